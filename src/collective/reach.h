// A rank's paths to the aggregators where it is about to join: control connections, sockets, and the MTU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "collective/lane.h"
#include "collective/local_ranks.h"
#include "control/client.h"
#include "netsum/communicator.h"
#include "protocol/switchml/probe.h"
#include "seal/private_sums.h"

namespace netsum::collective {

// One aggregator.
struct Site {
  std::string address;
  std::unique_ptr<control::Client> client;
  std::vector<Lane> lanes;
  bool standby = false;                            // it serves only if no other can
  bool near = false;                               // the aggregator is on this host
  PacketSecurity security = PacketSecurity::none;  // of packets, as the aggregator says
  std::uint32_t slots_measured = 0;
  std::string local_socket{};
  std::vector<Endpoint> groups{};  // of IP multicast, one per lane, if the aggregator offers them
  std::shared_ptr<LocalRanks> local{};
  std::string why_not_local{};
  bool needs_local = false;
  bool listens = false;
  std::vector<session::Profile> profiles{};  // what protocols say of themselves there
};

// The switch that this rank is at, if the aggregators are behind one.
struct FirstHop {
  std::string address;
  std::vector<Endpoint> lanes;               // empty: there is none
  std::uint32_t threads = 0;                 // that serve them
  std::vector<session::Profile> profiles{};  // as Site::profiles
  std::uint64_t receive_bytes = 0;
};

struct Reach {
  FirstHop hop;
  std::vector<Site> sites;  // one per aggregator
  std::uint32_t packet_elements = 0;
  std::optional<seal::Agreement> agreement{};  // of private sums; of this attempt to join alone
};

[[nodiscard]] std::chrono::milliseconds remaining(Time deadline);

// Each throws Error: unreachable, refused.

// The control connection to an address, and the data sockets that answer there. Sockets on every address are reached at the
// known one.
struct Reached {
  std::unique_ptr<control::Client> client;
  control::Hello hello;
};
[[nodiscard]] Reached reach_control(const Options& options, const std::string& address, Time deadline);
// The shortest of a few, over its control channel.
[[nodiscard]] Duration round_trip_of(control::Client& client, Time deadline);
// Of all its lanes. `address` empty: no switch.
[[nodiscard]] FirstHop reach_switch(const Options& options, const std::string& address, Time deadline);
// `ecn`: queues on the way may mark (transport::UdpOptions).
[[nodiscard]] Site reach_site(const Options& options, const std::string& address, Time deadline, bool ecn = false);
// A lane's packets come from its switch and from its server, so its socket is connected to neither.
[[nodiscard]] Site reach_behind(const Options& options, const std::string& address, const FirstHop& hop, Time deadline);

// With DataPath::xdp: gives each lane queues of the interface towards its next hop, if there are. Throws Error:
// bad_argument, refused.
void claim_queues(const Options& options, Reach& reach);

// How long a lane's window is.
struct WindowRule {
  std::uint32_t least = 1;                                     // packets
  std::uint32_t most_near_bytes = 0;                           // of values, to an aggregator on this host
  std::function<std::uint32_t(std::uint32_t packets)> wanted;  // on a link that these packets fill
  // Packets go to the rank's switch, and sums from there to the site: the path is as long as both parts, and as fast as the
  // slower one.
  bool through_switch = false;
};
// Measures round trip and bandwidth to each site, and sets slots_measured, in packets. Lanes share the link to this host,
// and so the window that fills it.
void measure_lanes(Reach& reach, const WindowRule& rule, Time deadline);
// Proves to all senders that the lanes receive their packets.
void prove_endpoints(Reach& reach, Time deadline);

// The longest packets, IP headers included, that all ranks' paths to the site, and to the switch before it, carry, as far as
// this rank can know. Of those whose length the interface allows, probes show which pass (RFC 8899); the log says if others
// do not.
[[nodiscard]] std::uint32_t mtu_for_all(const Options& options, const FirstHop& hop, const Site& site, Time deadline);

// Whether only ranks of this host can use the address: it is of the loopback device.
[[nodiscard]] bool is_near_alone(const Endpoint& address);

[[nodiscard]] std::size_t lanes_of(const Reach& reach);
// How many lanes a rank has at an aggregator, of those that the daemons on the way have: each of the rank's threads has one
// at some aggregator, and each of the daemons' (of the one that has more) one of this rank's. All ranks have as many as the
// one with the fewest (session/admitting.h).
[[nodiscard]] constexpr std::size_t own_lanes(std::size_t threads, std::size_t aggregators, std::size_t threads_of_daemons,
                                              std::size_t lanes_of_daemons) {
  return std::min(lanes_of_daemons, std::max(threads_of_daemons, (threads + aggregators - 1) / aggregators));
}

}  // namespace netsum::collective
