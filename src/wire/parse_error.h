// Why bytes are not a packet; receivers count by reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace netsum::wire {

enum class ParseError : std::uint8_t { none, truncated, version, type, length, checksum, field };
inline constexpr std::size_t parse_error_kinds = static_cast<std::size_t>(ParseError::field) + 1;
[[nodiscard]] const char* to_string(ParseError error);
[[nodiscard]] const char* malformed_counter(ParseError error);  // the counter's name: "malformed_" and the reason

}  // namespace netsum::wire
