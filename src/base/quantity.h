// Quantities as people write them: 1gbit, 100us, 256kB. Units are decimal; KiB and MiB are not.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/time.h"

namespace netsum {

inline constexpr std::uint64_t most_bits_per_second = 1'600'000'000'000;  // beyond, nanoseconds are too coarse

// All throw std::invalid_argument, whose text names the value and what would be one.
[[nodiscard]] std::uint64_t parse_rate(std::string_view text);  // bits a second, at least 1
[[nodiscard]] Duration parse_duration(std::string_view text);
[[nodiscard]] std::uint64_t parse_bytes(std::string_view text);

}  // namespace netsum
