// Switch and server keep a sum where the packet that will carry it is written: the payload begins a cache line, and the
// header ends there.
#pragma once

#include <cstddef>

#include "base/cache_line.h"
#include "wire/atp.h"

namespace netsum::atp {

// Where the payload is.
inline constexpr std::size_t gradient_at = whole_lines(wire::atp::longest_header_bytes(wire::atp::max_workers));
inline constexpr std::size_t parameter_at = whole_lines(wire::atp::parameter_header_bytes);

// Bytes of memory for one packet with so many elements, in its widest form.
[[nodiscard]] constexpr std::size_t packet_memory(std::size_t payload_at, std::uint32_t packet_elements) {
  return whole_lines(payload_at + std::size_t{packet_elements} * 4 + wire::atp::high_bytes(packet_elements));
}

}  // namespace netsum::atp
