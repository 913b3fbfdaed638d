// A UDP/IP address as a value; IPv4 is held as an IPv4-mapped IPv6 address.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>

namespace netsum {

struct Endpoint {
  std::array<std::uint8_t, 16> address{};  // network order
  std::uint16_t port = 0;                  // host order
  std::uint32_t scope = 0;                 // IPv6 link-local interface index

  auto operator<=>(const Endpoint&) const = default;
  // By hand, as compilers call memcmp() for the address, once a packet.
  [[nodiscard]] bool operator==(const Endpoint& other) const {
    std::uint64_t ours[2], theirs[2];
    std::memcpy(ours, address.data(), sizeof ours);
    std::memcpy(theirs, other.address.data(), sizeof theirs);
    return ours[0] == theirs[0] && ours[1] == theirs[1] && port == other.port && scope == other.scope;
  }
};

struct EndpointHash {
  [[nodiscard]] std::size_t operator()(const Endpoint& endpoint) const {
    std::uint64_t high, low;
    std::memcpy(&high, endpoint.address.data(), 8);
    std::memcpy(&low, endpoint.address.data() + 8, 8);
    return static_cast<std::size_t>((high ^ low * 0x9e3779b97f4a7c15ULL ^ endpoint.port) * 0xbf58476d1ce4e5b9ULL);
  }
};

}  // namespace netsum
