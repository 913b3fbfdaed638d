// Which Ethernet address an IPv4 address has: ARP (RFC 826), as whole frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "wire/ethernet.h"
#include "wire/ipv4.h"

namespace netsum::wire {

struct Arp {
  bool reply = false;  // else a request
  ethernet::Address sender{};
  Ipv4 of_sender{};
  ethernet::Address target{};  // of a reply
  Ipv4 of_target{};
};

inline constexpr std::size_t arp_frame_bytes = 60;  // the shortest that Ethernet has

// A request goes to all stations, and a reply to the target.
[[nodiscard]] std::array<std::byte, arp_frame_bytes> arp_frame(const Arp& arp);

// None: no ARP of IPv4 over Ethernet, or from a sender that cannot be one.
[[nodiscard]] std::optional<Arp> read_arp(std::span<const std::byte> frame);

}  // namespace netsum::wire
