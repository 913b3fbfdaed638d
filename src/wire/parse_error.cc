#include "wire/parse_error.h"

#include <cstddef>

namespace netsum::wire {

const char* to_string(ParseError error) {
  constexpr const char* names[] = {"none", "truncated", "version", "type", "length", "checksum", "field"};
  return names[static_cast<std::size_t>(error)];
}

const char* malformed_counter(ParseError error) {
  constexpr const char* names[] = {"malformed_none",   "malformed_truncated", "malformed_version", "malformed_type",
                                   "malformed_length", "malformed_checksum",  "malformed_field"};
  return names[static_cast<std::size_t>(error)];
}

}  // namespace netsum::wire
