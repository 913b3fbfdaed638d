#include "base/quantity.h"

#include <charconv>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

namespace netsum {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit rates[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
constexpr Unit durations[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
constexpr Unit sizes[] = {{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"KiB", 0x1p10}, {"MiB", 0x1p20}};

// A unit is always needed: the same number means other things to ping (seconds), tc (bits or bytes) and us.
std::uint64_t parse(std::string_view text, std::span<const Unit> units, double least, double most, const char* expected) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error == std::errc{}) {
    const std::string_view name(rest, text.data() + text.size());
    for (const Unit& unit : units) {
      if (unit.name != name) continue;
      const double value = std::round(number * unit.factor);
      if (value >= least && value <= most) return static_cast<std::uint64_t>(value);  // false for NaN
    }
  }
  throw std::invalid_argument("'" + std::string(text) + "' is not " + expected);
}

}  // namespace

std::uint64_t parse_rate(std::string_view text) {
  return parse(text, rates, 1, most_bits_per_second, "a rate like 100mbit (bit, kbit, mbit or gbit; at most 1600gbit)");
}

Duration parse_duration(std::string_view text) {
  return Duration(parse(text, durations, 0, 1e12, "a time like 100us (ns, us, ms or s; at most 1000s)"));
}

std::uint64_t parse_bytes(std::string_view text) {
  return parse(text, sizes, 0, 0x1p40, "a size like 256kB (B, kB, MB, KiB or MiB; at most 1048576MiB)");
}

}  // namespace netsum
