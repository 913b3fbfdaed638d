// A ring's ranks in a tree of switches (NetReduce §3.3), and the configuration of each switch: the connections that it sums,
// those that it forwards, and its virtual connections to the neighbouring switches.
//
// The paper's leaf switches learn their translation table from the first packets of messages. Here a ring's queue pairs are
// registered when its job is admitted, so each switch knows them beforehand; fields that only packets have (PSN0, RETH, the
// immediate) travel in their headers from a connection's first switch to its last.
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
// Empty if the tree is valid, else the reason.
[[nodiscard]] std::string check(const Tree& tree);

// An address in IPv6's private range, unique to the ring and the switch.
[[nodiscard]] std::array<std::uint8_t, 16> switch_address(std::uint64_t incarnation, std::uint32_t switch_id);

struct Places {
  // Called for the switch's neighbours. Empty: the switches are bumps in the wire of the ranks' hosts, whose packets come
  // and go as frames; no routes are made for them.
  std::function<Endpoint(std::uint32_t rank)> rank;
  std::function<Endpoint(std::uint32_t switch_id)> switch_id;  // called for neighbours and at_root
};

// For a switch (or at_root) with ranks below. `ring`: complete but for connections, lines and uplink.
[[nodiscard]] TunnelRing tunnel_ring(const RingConfig& ring, const std::vector<Member>& members, const Tree& tree,
                                     std::uint32_t switch_id, const Places& places);

}  // namespace netsum::netreduce
