// Protocols' counters by name, for reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/counter_list.h"
#include "base/counters.h"
#include "wire/parse_error.h"

namespace netsum::service {

// `malformed`: by wire::ParseError.
inline void append_malformed(Counters& counters, const std::uint64_t (&malformed)[wire::parse_error_kinds]) {
  for (std::size_t i = 1; i < wire::parse_error_kinds; ++i) {
    counters.add(std::string("dropped_") + wire::malformed_counter(static_cast<wire::ParseError>(i)), malformed[i]);
  }
}

// A format's, with its malformed packets by the reason: what formats of one lane have in common is added up.
template <class FormatCounters>
[[nodiscard]] Counters counters_of_format(const FormatCounters& c) {
  Counters counters = named(c);
  append_malformed(counters, c.malformed);
  return counters;
}

}  // namespace netsum::service
