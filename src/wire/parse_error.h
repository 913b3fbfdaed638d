// Why bytes are not a packet; receivers count by it.
#pragma once

#include <cstdint>

namespace netsum::wire {

enum class ParseError : std::uint8_t { none, truncated, version, type, length, checksum, field };
[[nodiscard]] const char* to_string(ParseError error);

}  // namespace netsum::wire
