// Numbers in text.
#pragma once

#include <charconv>
#include <concepts>
#include <limits>
#include <optional>
#include <string_view>

namespace netsum {

// All of `text` as a decimal number from `least` to `most`; none if it is not one.
template <std::unsigned_integral Number>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text, Number least = 0,
                                                 Number most = std::numeric_limits<Number>::max()) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most) return std::nullopt;
  return number;
}

}  // namespace netsum
