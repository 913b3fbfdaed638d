// Where a ring's ranks are in a tree of switches (NetReduce §3.3), and what each switch must know of it: which connections
// it sums, which it hands on, and its virtual connections to the switches next to it.
//
// The paper's leaf switches learn their translation table from the first packets of messages. Here a ring's queue pairs are
// registered when its job is admitted, so each switch is told of them beforehand; what only packets can tell (PSN0, RETH,
// the immediate) travels as their headers do, from a connection's first switch to its last.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "protocol/netreduce/member.h"
#include "protocol/netreduce/tunnel.h"

namespace netsum::netreduce {

inline constexpr std::uint32_t at_root = UINT32_MAX;  // in place of a switch

struct Tree {
  std::vector<std::uint32_t> parent_of_switch;  // or at_root
  std::vector<std::uint32_t> switch_of_rank;    // or at_root
};
// Empty, or why no ring can be in this tree.
[[nodiscard]] std::string check(const Tree& tree);

// An address in IPv6's range for private use that no other ring's switch has.
[[nodiscard]] std::array<std::uint8_t, 16> switch_address(std::uint64_t incarnation, std::uint32_t a_switch);

struct Places {
  std::function<Endpoint(std::uint32_t rank)> rank;          // asked of those next to the switch
  std::function<Endpoint(std::uint32_t a_switch)> a_switch;  // likewise; also at_root
};

// For a switch (or at_root) with ranks below. `ring`: all but connections, lines and uplink.
[[nodiscard]] TunnelRing tunnel_ring(const RingConfig& ring, const std::vector<Member>& members, const Tree& tree,
                                     std::uint32_t a_switch, const Places& places);

}  // namespace netsum::netreduce
