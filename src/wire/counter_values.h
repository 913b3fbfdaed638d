// A struct of counters as a list, with its malformed packets by the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/counter_list.h"
#include "wire/parse_error.h"

namespace netsum::wire {

template <class Counters>
[[nodiscard]] std::vector<CounterValue> counter_values(const Counters& counters) {
  std::vector<CounterValue> values;
  values.reserve(counter_fields<Counters>.size() + parse_error_kinds);
  for_each_counter(counters, [&](const CounterValue& counter) { values.push_back(counter); });
  if constexpr (CountsMalformed<Counters>) {
    for (std::size_t i = 1; i < parse_error_kinds; ++i) {
      values.push_back({malformed_counter(static_cast<ParseError>(i)), counters.malformed[i], CounterKind::outcome});
    }
  }
  return values;
}

}  // namespace netsum::wire
