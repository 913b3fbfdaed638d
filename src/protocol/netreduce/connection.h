// One direction of a RoCEv2 connection, as named by packets on the wire: the key of NetReduce's connection lookup table
// (§3.2). It has both addresses, because equal queue pair numbers on different hosts are the normal case.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace netsum::netreduce {

using HostAddress = std::array<std::uint8_t, 16>;  // in Endpoint's format

struct Connection {
  HostAddress source{}, destination{};
  std::uint32_t destination_qp = 0;
  auto operator<=>(const Connection&) const = default;
};

// A gradient connection as recorded persistently. Queue pair numbers are reused; a new connection with the same number
// begins with another PSN.
struct KnownConnection {
  Connection connection;
  std::optional<std::uint32_t> first_psn;  // of its message 0; none: not seen
  auto operator<=>(const KnownConnection&) const = default;
};

struct ConnectionHash {
  [[nodiscard]] std::size_t operator()(const Connection& connection) const {
    std::uint64_t words[4];
    std::memcpy(words, connection.source.data(), 16);
    std::memcpy(words + 2, connection.destination.data(), 16);
    std::uint64_t hash = connection.destination_qp;
    for (const std::uint64_t word : words) hash = (hash ^ word) * 0x9e3779b97f4a7c15U ^ hash >> 29;
    return static_cast<std::size_t>(hash * 0xbf58476d1ce4e5b9U);
  }
};

}  // namespace netsum::netreduce
