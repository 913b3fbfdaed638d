#include "wire/parse_error.h"

#include <cstddef>

namespace netsum::wire {

const char* to_string(ParseError error) {
  constexpr const char* names[] = {"none", "truncated", "version", "type", "length", "checksum", "field"};
  return names[static_cast<std::size_t>(error)];
}

}  // namespace netsum::wire
