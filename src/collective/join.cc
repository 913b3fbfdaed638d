#include "collective/join.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <future>
#include <optional>
#include <random>
#include <utility>

#include "protocol/switchml/probe.h"
#include "runtime/thread.h"
#include "session/atp_job.h"
#include "session/netreduce_job.h"
#include "session/supervisor.h"
#include "transport/addresses.h"
#include "transport/interfaces.h"
#include "transport/lossy.h"
#include "transport/multicast.h"
#include "transport/path.h"
#include "transport/udp.h"
#include "transport/verbs_ring.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

// The control protocol counts milliseconds in 32 bits.
constexpr Duration longest_join = std::chrono::hours(24);

// For a heartbeat or a goodbye while other aggregators still decide.
constexpr milliseconds parting_deadline{1000};

// For an aggregator to show that it is there, where others may do without it.
constexpr milliseconds reach_again{1000};

// ATP: what congestion control may use when nobody says, where buffers take it, and the packets that fill a slot of a switch
// with default settings, where the MTU takes longer ones (on loopback).
constexpr std::uint32_t atp_window = 256;
constexpr std::uint32_t longest_default_packet = 2048;

// On RDMA hardware, which has no packets to measure the path with: 25 Gbit/s for 160 us, with messages of that length.
constexpr std::uint32_t verbs_window = 8;

struct Lane {
  Endpoint aggregator;
  std::unique_ptr<transport::Udp> socket;
  std::unique_ptr<transport::VerbsRing> ring{};     // in its place
  std::unique_ptr<transport::GroupSocket> group{};  // results come here too
  std::uint64_t cookie = 0, switch_cookie = 0;      // as the aggregator's lane answered a probe, and the switch's
  [[nodiscard]] Endpoint local() const { return ring ? ring->local() : socket->local(); }
};

struct Site {
  Membership membership;
  std::vector<Lane> lanes;
  bool near = false;  // the aggregator is on this host
  std::uint32_t slots_measured = 0;
  std::string local_socket{};
  std::shared_ptr<LocalGroup> local{};
  std::string why_not_local{};
  bool needs_local = false;
  bool listens = false;
};

[[nodiscard]] milliseconds remaining(Time deadline) {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - now()));
}

[[nodiscard]] bool is_atp(const Options& options) {
  return options.protocol == "atp";
}

[[nodiscard]] bool is_netreduce(const Options& options) {
  return options.protocol == "netreduce";
}

[[nodiscard]] session::ProtocolRules rules_of(const Options& options) {
  if (is_atp(options)) return session::atp_rules();
  return is_netreduce(options) ? session::netreduce_rules() : session::switchml_rules();
}

void check(const Options& options) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  if (options.aggregators.empty()) throw bad("no aggregator is named");
  if (options.protocol != "switchml" && options.protocol != "atp" && options.protocol != "netreduce") {
    throw bad("the protocol is switchml, atp or netreduce, not '" + options.protocol + "'");
  }
  if (options.wire != WireFormat::native && options.protocol != "switchml") {
    throw bad("the format on the wire (" + std::string(to_string(options.wire)) + ") is of protocol switchml");
  }
  const session::ProtocolRules rules = rules_of(options);
  if (!rules.switches && !options.switch_address.empty()) {
    throw bad(options.protocol + " has no switches beside its aggregators");
  }
  if (options.world_size == 0 || options.world_size > rules.max_world_size) {
    throw bad("world size " + std::to_string(options.world_size) + " is not between 1 and " +
              std::to_string(rules.max_world_size));
  }
  if (options.rank >= options.world_size) {
    throw bad("rank " + std::to_string(options.rank) + " is not below the world size " + std::to_string(options.world_size));
  }
  if (options.packet_elements != 0) {
    if (const std::string error = rules.check_packet(options.packet_elements); !error.empty()) throw bad(error);
  }
  if (options.slots != 0 && !std::has_single_bit(options.slots)) {
    throw bad(std::to_string(options.slots) + " slots are not a power of two");
  }
  if (options.loss < 0 || options.loss >= 1) throw bad("loss must be at least 0 and below 1");
  if (!options.verbs.empty() && (!is_netreduce(options) || !options.switch_address.empty() || options.loss != 0)) {
    throw bad("RDMA hardware (verbs) is of protocol netreduce, without switches beside the aggregators, and without losses");
  }
  if (options.message_packets > wire::netreduce::max_message_packets) {
    throw bad("a message has at most " + std::to_string(wire::netreduce::max_message_packets) + " packets");
  }
  if (options.shared_memory == SharedMemory::required && (options.protocol != "switchml" || options.recovery.count() > 0 ||
                                                          options.loss > 0 || options.wire != WireFormat::native)) {
    throw bad("shared memory is of protocol switchml, without recovery, losses, and a format on the wire");
  }
  if (options.spin && (!options.busy_poll || options.shared_memory == SharedMemory::off)) {
    throw bad("who spins looks again for as long as it takes (busy_poll), and in shared memory");
  }
  if (options.first_psn.value_or(0) > wire::roce::psn_mask) throw bad("packet sequence numbers have 24 bits");
}

[[nodiscard]] std::size_t longest_datagram(std::uint32_t packet_elements) {
  wire::ChunkHeader header;
  header.elements = static_cast<std::uint16_t>(packet_elements);
  header.exponents = static_cast<std::uint8_t>(wire::blocks_of_packet(packet_elements));
  header.masks = true;
  return wire::chunk_packet_bytes(header);
}

[[nodiscard]] std::uint32_t packet_elements_for(std::uint32_t mtu, bool ipv6) {
  const std::size_t room = mtu - (ipv6 ? 48 : 28);
  std::uint32_t best = wire::packet_step;
  for (std::uint32_t elements = best; elements <= wire::max_packet_elements; elements += wire::packet_step) {
    if (wire::possible_packet(elements) && longest_datagram(elements) <= room) best = elements;
  }
  return best;
}

// The control connection to an address, and the data sockets that answer there. What listens on every address is reached at
// the one that we know.
struct Reached {
  std::unique_ptr<control::Client> client;
  control::Hello hello;
};
Reached reach_control(const Options& options, const std::string& address, Time deadline) {
  const Endpoint control = transport::resolve(address);  // first: no deadline helps a name that is none
  Reached reached;
  reached.client = std::make_unique<control::Client>(control::ClientOptions{address, options.token, options.tls_ca});
  reached.hello = reached.client->hello(remaining(deadline), options.job);
  for (Endpoint& lane : reached.hello.lanes) {
    if (!transport::is_unspecified(lane)) continue;
    lane.address = control.address;
    lane.scope = control.scope;
  }
  return reached;
}

// ATP, and NetReduce in a tree: the switch that this rank is at.
struct FirstHop {
  std::vector<Endpoint> lanes;  // empty: none
  std::uint32_t pool_slots = 0, pool_elements = wire::atp::max_packet_elements;
  std::uint64_t receive_bytes = 0;
};

FirstHop reach_switch(const Options& options, Time deadline) {
  FirstHop hop;
  if (options.switch_address.empty()) return hop;
  control::Hello hello = reach_control(options, options.switch_address, deadline).hello;
  if (hello.pool_slots == 0) {
    throw Error(ErrorCode::refused, options.switch_address + " is no switch: is a parameter server running there?");
  }
  hop.lanes = std::move(hello.lanes);
  hop.pool_slots = hello.pool_slots;
  hop.pool_elements = hello.pool_elements;
  hop.receive_bytes = hello.receive_bytes;
  return hop;
}

// A lane's packets come from its switch and from its server, so its socket is connected to neither.
Site reach_behind(const Options& options, const std::string& address, const FirstHop& hop, Time deadline) {
  Site site;
  site.membership.address = address;
  Reached reached = reach_control(options, address, deadline);
  site.membership.client = std::move(reached.client);
  for (const Endpoint& lane : reached.hello.lanes) {
    if (!hop.lanes.empty() && site.lanes.size() >= hop.lanes.size()) {
      throw Error(ErrorCode::refused, "switch " + options.switch_address + " has " + std::to_string(hop.lanes.size()) +
                                          " threads, " + address + " more: start the switch with as many --threads");
    }
    const Endpoint& next = hop.lanes.empty() ? lane : hop.lanes[site.lanes.size()];
    transport::UdpOptions udp;
    udp.bind = transport::path_towards(next).local;
    udp.bind.port = 0;
    udp.ipv6 = !transport::is_ipv4(udp.bind);
    udp.ecn = true;
    site.lanes.push_back({lane, std::make_unique<transport::Udp>(udp)});
  }
  if (site.lanes.empty()) throw Error(ErrorCode::internal, address + " has no data sockets");
  return site;
}

// Whether a network carries the groups' packets shows only once there are some: the aggregator then sees who hears them.
void join_groups(const Options& options, const std::vector<Endpoint>& groups, Site& site) {
  if (groups.size() != site.lanes.size()) return;
  try {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      Lane& lane = site.lanes[i];
      lane.group =
          std::make_unique<transport::GroupSocket>(groups[i], lane.local(), lane.aggregator, transport::socket_buffer_bytes);
    }
    site.listens = true;
  } catch (const Error& error) {
    for (Lane& lane : site.lanes) lane.group.reset();
    if (options.log) {
      options.log(std::string("warning: ") + error.what() + ", so rank " + std::to_string(options.rank) +
                  " has its results sent to itself alone");
    }
  }
}

Site reach(const Options& options, const std::string& address, Time deadline) {
  Site site;
  site.membership.address = address;
  Reached reached = reach_control(options, address, deadline);
  site.membership.client = std::move(reached.client);
  site.local_socket = std::move(reached.hello.local_socket);
  for (const Endpoint& lane : reached.hello.lanes) {
    transport::UdpOptions udp;
    udp.bind.address = transport::is_ipv4(lane) ? std::array<std::uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}
                                                : std::array<std::uint8_t, 16>{};
    udp.ipv6 = !transport::is_ipv4(lane);
    udp.peer = lane;
    site.lanes.push_back({lane, std::make_unique<transport::Udp>(udp)});
  }
  if (site.lanes.empty()) {
    throw Error(
        ErrorCode::refused,
        "aggregator " + address + " has no data sockets: it is a bump in the wire, where ranks with RDMA hardware join");
  }
  // Both ends must say so: where addresses are translated on the way, one end alone takes the other for local.
  site.near = reached.hello.same_host && transport::is_of_this_host(site.lanes.front().aggregator);
  if (options.protocol == "switchml" && options.multicast) join_groups(options, reached.hello.groups, site);
  return site;
}

switchml::Probe probe(transport::Udp& socket, const std::string& address, const switchml::ProbeConfig& config,
                      Time deadline) {
  switchml::Probe path(config);
  Sink& sink = socket.sink();
  path.start(now(), sink);
  sink.flush();
  while (!path.done() && now() < deadline) {
    pollfd descriptor{socket.descriptor(), POLLIN, 0};
    const auto wait =
        std::clamp(std::chrono::ceil<milliseconds>(path.next_timeout() - now()), milliseconds(0), milliseconds(1000));
    poll(&descriptor, 1, static_cast<int>(wait.count()));
    path.on_packets(socket.receive(), now(), sink);
    path.on_timer(now(), sink);
    sink.flush();
  }
  if (!path.answered()) {
    throw Error(ErrorCode::unreachable, "aggregator " + address + " answers on TCP, but not on UDP " +
                                            transport::to_string(config.aggregator) + ": does a firewall drop UDP?");
  }
  return path;
}

// Round trip and bandwidth, of which the window comes.
switchml::Probe measure(const Lane& lane, const std::string& address, std::uint32_t packet_elements, Time deadline) {
  switchml::ProbeConfig config;
  config.aggregator = lane.aggregator;
  config.packet_bytes = static_cast<std::uint32_t>(wire::chunk_header_bytes + 4 + packet_elements * 4);
  return probe(*lane.socket, address, config, deadline);
}

// Shows all that will send to the lanes that these receive it.
void prove_endpoints(const Options& options, std::vector<Site>& sites, const FirstHop& hop, Time deadline) {
  switchml::ProbeConfig config;
  config.packet_bytes = wire::probe_reply_bytes;
  config.singles = 1;
  config.train = 0;
  for (Site& site : sites) {
    for (std::size_t l = 0; l < site.lanes.size(); ++l) {
      Lane& lane = site.lanes[l];
      config.aggregator = lane.aggregator;
      lane.cookie = probe(*lane.socket, site.membership.address, config, deadline).cookie();
      if (hop.lanes.empty()) continue;
      config.aggregator = hop.lanes[l];
      lane.switch_cookie = probe(*lane.socket, options.switch_address, config, deadline).cookie();
    }
  }
}

// What the packets of all ranks to this address may be as long as, where `own` is the MTU of this rank's way there. On this
// host that is the loopback device's, unless the address is another interface's: ranks elsewhere get there over its link.
std::uint32_t mtu_for_all(const Endpoint& address, std::uint32_t own) {
  if (!transport::is_of_this_host(address)) return own;
  const auto interface = transport::interface_of(address);
  return interface ? std::min(own, interface->mtu) : own;
}
std::uint32_t mtu_for_all(const Lane& lane) {
  return mtu_for_all(lane.aggregator, lane.socket->mtu());
}
std::uint32_t mtu_for_all(const Endpoint& address) {
  return mtu_for_all(address, transport::path_towards(address).mtu);
}

// Whether ranks on other hosts may be there, and so a link.
bool is_reached_over_link(const Site& site) {
  if (!site.near) return true;
  const auto interface = transport::interface_of(site.lanes.front().aggregator);
  return interface && !interface->loopback;
}

// The most slots that are of use on the way there. To an aggregator on this host nothing is ever under way: a longer window
// only waits its turn, and leaves the cache before it comes.
std::uint32_t most_slots(const Site& site, std::uint32_t packet_elements) {
  constexpr std::uint32_t window_bytes = 128 << 10;
  if (!site.near) return UINT32_MAX;
  return std::bit_floor(std::max(2U, window_bytes / (packet_elements * 4)));
}

// Each lane's window. Lanes share the link to this host, and so what keeps that busy: that of other ranks, if this one gets
// there over its loopback device. The ranks agree on the longest window: it is to be no longer for being near.
void measure_windows(std::vector<Site>& sites, std::uint32_t packet_elements, Time deadline) {
  constexpr std::uint32_t least = 4;  // fewer, and losses are not noticed before a time-out (protocol/switchml/overtaken.h)
  std::uint32_t lanes = 0, far = 0, near = 0;
  for (Site& site : sites) {
    const std::uint32_t measured = measure(site.lanes.front(), site.membership.address, packet_elements, deadline).slots();
    site.slots_measured = std::min(measured, most_slots(site, packet_elements));
    std::uint32_t& longest = site.near ? near : far;
    longest = std::max(longest, site.slots_measured);
    if (is_reached_over_link(site)) lanes += static_cast<std::uint32_t>(site.lanes.size());
  }
  if (lanes == 0) return;
  const std::uint32_t each = std::max(least, std::bit_ceil(((far != 0 ? far : near) + lanes - 1) / lanes));
  for (Site& site : sites) site.slots_measured = each;
}

std::string describe(const Options& options, std::size_t lanes, std::uint32_t packet_elements, std::uint32_t slots) {
  const std::size_t aggregators = options.aggregators.size();
  std::string text =
      "switchml over " + std::to_string(aggregators) + (aggregators == 1 ? " aggregator (" : " aggregators (");
  for (std::size_t i = 0; i < aggregators; ++i) text += (i == 0 ? "" : ", ") + options.aggregators[i];
  text += "), " + std::to_string(lanes) + " lanes of " + std::to_string(slots) + " slots, " +
          std::to_string(packet_elements) + " elements per packet; ";
  if (aggregators == 1) {
    return text + "each worker sends and receives |U|; expect a gain over a ring where the aggregator's port carries " +
           std::to_string(options.world_size) + "|U| at once (a switch, a fat port, the workers' own host)";
  }
  if (aggregators >= options.world_size) {
    return text +
           "with a shard on every worker's host a host's port carries as many bytes as in a ring, and an all-reduce waits "
           "one round trip instead of " +
           std::to_string(2 * (options.world_size - 1));
  }
  return text + "each aggregator carries " + std::to_string(options.world_size) + "/" + std::to_string(aggregators) +
         " |U|; expect a gain over a ring where its port is as fast as that many workers'";
}

// What one attempt to join takes along, beside the options.
struct Attempt {
  Time deadline{};
  Former* former = nullptr;
  std::stop_token stop;
};

// A rank's queue pairs at a lane. Numbers from the socket's port, which no other rank at the same address has.
[[nodiscard]] netreduce::Member member_at(const Options& options, const Endpoint& local) {
  std::random_device random;
  netreduce::Member member;
  member.address = local.address;
  member.send_qp = 0x20000U | std::uint32_t{local.port} << 1;
  member.receive_qp = member.send_qp | 1;
  member.send_psn = options.first_psn.value_or(random() & wire::roce::psn_mask);
  member.memory_address = std::uint64_t{random()} << 16;
  member.memory_key = random();
  return member;
}

[[nodiscard]] netreduce::Member member_of(const transport::VerbsMember& m) {
  return {m.address, m.send_qp, m.send_psn, m.receive_qp, m.memory_address, m.memory_key};
}
[[nodiscard]] transport::VerbsMember verbs_member_of(const netreduce::Member& m) {
  return {m.address, m.send_qp, m.send_psn, m.receive_qp, m.memory_address, m.memory_key};
}

[[nodiscard]] std::uint32_t window_of(const Options& options) {
  return options.slots != 0 || options.verbs.empty() ? options.slots : verbs_window;
}

[[nodiscard]] std::uint32_t message_packets_of(const Options& options, std::uint32_t packet_elements) {
  return options.message_packets != 0 ? options.message_packets : session::default_message_packets(packet_elements);
}

session::Admission join_at(const Options& options, const Site& site, const FirstHop& hop, std::uint32_t packet_elements,
                           const Attempt& attempt) {
  session::JoinRequest request;
  request.protocol_version = rules_of(options).version;
  request.protocol = options.protocol;
  request.switch_address = options.switch_address;
  request.pool_slots = hop.pool_slots;
  request.switch_receive_bytes = hop.receive_bytes;
  request.job = options.job;
  request.rank = options.rank;
  request.world_size = options.world_size;
  request.packet_elements = packet_elements;
  request.packet_elements_measured = options.packet_elements == 0 && options.verbs.empty();
  request.slots_fixed = window_of(options);
  request.slots_measured = site.slots_measured;
  for (const Lane& lane : site.lanes) {
    request.endpoints.push_back(lane.local());
    request.cookies.push_back(lane.cookie);
    if (!hop.lanes.empty()) request.switch_cookies.push_back(lane.switch_cookie);
  }
  if (is_netreduce(options)) {
    // What is registered with RDMA hardware before, has its length already.
    request.message_packets = options.verbs.empty() ? options.message_packets : message_packets_of(options, packet_elements);
    for (const Lane& lane : site.lanes) {
      request.members.push_back(lane.ring ? member_of(lane.ring->own()) : member_at(options, lane.local()));
    }
  }
  request.local_ticket = site.local ? site.local->ticket() : 0;
  request.why_not_local = site.why_not_local;
  request.needs_local = site.needs_local;
  request.listens = site.listens;
  request.recovers = options.recovery.count() > 0;
  if (request.recovers) request.aggregators = options.aggregators;
  if (options.first_operation) request.progress = {*options.first_operation, *options.first_operation, {}};
  if (attempt.former != nullptr) {
    request.progress = attempt.former->progress;
    const auto known = attempt.former->rank_epochs.find(site.membership.address);
    if (known != attempt.former->rank_epochs.end()) request.former_epoch = known->second;
  }
  return site.membership.client->join(request, remaining(attempt.deadline), attempt.stop);
}

// All at once: an aggregator answers only when every rank has come to it, and ranks must not wait for each other in turn.
// Who has admitted this rank hears from it while others still wait for somebody, and is told if they wait in vain.
std::vector<session::Admission> join_all(const Options& options, const std::vector<Site>& sites, const FirstHop& hop,
                                         std::uint32_t packet_elements, const Attempt& attempt) {
  std::vector<std::future<session::Admission>> pending;
  for (const Site& site : sites) {
    pending.push_back(std::async(std::launch::async, [&options, &site, &hop, packet_elements, &attempt] {
      return join_at(options, site, hop, packet_elements, attempt);
    }));
  }
  std::vector<std::optional<session::Admission>> admitted(sites.size());
  std::optional<Error> error;
  for (bool waiting = true; waiting;) {
    waiting = false;
    for (std::size_t i = 0; i < sites.size(); ++i) {
      if (!pending[i].valid()) continue;
      if (pending[i].wait_for(waiting ? Duration::zero() : session::beat_interval) != std::future_status::ready) {
        waiting = true;
        continue;
      }
      try {
        admitted[i] = pending[i].get();
      } catch (const Error& refusal) {
        if (!error) error = refusal;
      }
    }
    for (const auto& admission : admitted) {
      if (waiting || error) continue;
      const session::Admission& first = *admitted.front();
      const bool agree = admission->resumption == first.resumption;
      if (agree && admission->packet_elements == first.packet_elements) continue;
      error = Error(ErrorCode::refused, "the aggregators of job '" + options.job + "' do not agree " +
                                            (agree ? "how long its packets are" : "where it goes on"));
    }
    for (std::size_t i = 0; i < sites.size(); ++i) {
      if (!admitted[i] || (!waiting && !error)) continue;
      try {
        control::Client& client = *sites[i].membership.client;
        if (error && !waiting) {
          if (attempt.former != nullptr) attempt.former->rank_epochs[sites[i].membership.address] = admitted[i]->rank_epoch;
          client.leave(admitted[i]->job_epoch, options.rank, admitted[i]->rank_epoch, parting_deadline);
        } else {
          static_cast<void>(
              client.heartbeat(admitted[i]->job_epoch, options.rank, admitted[i]->rank_epoch, parting_deadline));
        }
      } catch (const Error&) {
        // The monitor, or whoever tries again, finds out why.
      }
    }
  }
  if (error) throw Error(*error);
  std::vector<session::Admission> admissions;
  for (auto& admission : admitted) admissions.push_back(std::move(*admission));
  return admissions;
}

std::unique_ptr<transport::Transport> with_loss(const Options& options, std::unique_ptr<transport::Transport> transport,
                                                std::uint32_t lane) {
  if (options.loss == 0) return transport;
  const std::uint64_t stream = std::uint64_t{options.rank} * 4096 + lane;
  return std::make_unique<transport::Lossy>(std::move(transport), options.loss, options.loss_seed, stream);
}

std::string describe_atp(const Options& options, std::size_t lanes, std::uint32_t packet_elements, std::uint32_t window) {
  const std::size_t servers = options.aggregators.size();
  std::string text = "atp over " + std::to_string(servers) + (servers == 1 ? " parameter server (" : " parameter servers (");
  for (std::size_t i = 0; i < servers; ++i) text += (i == 0 ? "" : ", ") + options.aggregators[i];
  text += options.switch_address.empty() ? "), no switch" : "), switch " + options.switch_address;
  return text + ", " + std::to_string(lanes) + (lanes == 1 ? " lane" : " lanes") + ", window of " + std::to_string(window) +
         " chunks, " + std::to_string(packet_elements) + " elements per packet; each worker sends and receives |U|, and " +
         (options.switch_address.empty() ? std::to_string(options.world_size) + "|U| meet at the servers"
                                         : "what finds a slot at the switch reaches the servers once, the rest " +
                                               std::to_string(options.world_size) + " times");
}

Joined join_atp(const Options& options, const Attempt& attempt) {
  const Time deadline = attempt.deadline;
  const FirstHop hop = reach_switch(options, deadline);
  std::vector<Site> sites;
  for (const std::string& address : options.aggregators) sites.push_back(reach_behind(options, address, hop, deadline));

  Joined joined;
  joined.packet_elements = options.packet_elements;
  if (joined.packet_elements == 0) {
    std::uint32_t room = 65535;
    for (const Site& site : sites) {
      for (std::size_t lane = 0; lane < site.lanes.size(); ++lane) {
        const Endpoint& next = hop.lanes.empty() ? site.lanes[lane].aggregator : hop.lanes[lane];
        room = std::min(room, mtu_for_all(next) - (transport::is_ipv4(next) ? 28U : 48U));
      }
    }
    const auto fill = static_cast<std::uint32_t>((room - wire::atp::gradient_header_bytes) / 4);
    joined.packet_elements = std::min({fill, hop.pool_elements, wire::atp::max_packet_elements, longest_default_packet});
  } else if (joined.packet_elements > hop.pool_elements) {
    throw Error(ErrorCode::refused, "switch " + options.switch_address + " has slots of " +
                                        std::to_string(hop.pool_elements) + " elements, packets of " +
                                        std::to_string(joined.packet_elements) +
                                        " do not fit: start it with --pool-elements, or ask for fewer");
  }
  if (options.log) {
    const std::string warning = sites.front().lanes.front().socket->buffer_warning();
    if (!warning.empty()) options.log("warning: " + warning);
  }

  for (Site& site : sites) site.slots_measured = atp_window;
  prove_endpoints(options, sites, hop, deadline);
  const std::vector<session::Admission> admissions = join_all(options, sites, hop, joined.packet_elements, attempt);
  joined.resumption = admissions.front().resumption;
  joined.packet_elements = admissions.front().packet_elements;
  std::uint32_t lanes = 0;
  for (const Site& site : sites) lanes += static_cast<std::uint32_t>(site.lanes.size());
  std::uint32_t lane_number = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const session::Admission& admission = admissions[i];
    Site& site = sites[i];
    site.membership.job_epoch = admission.job_epoch;
    site.membership.rank_epoch = admission.rank_epoch;
    session::AtpSettings settings;
    settings.indexing = static_cast<atp::Indexing>(admission.placement.indexing);
    settings.scaling = static_cast<atp::Scaling>(admission.placement.scaling);
    for (std::size_t l = 0; l < site.lanes.size(); ++l) {
      Lane& lane = site.lanes[l];
      atp::WorkerConfig config = session::worker_config(
          admission, options.rank, settings, lane.aggregator,
          hop.lanes.empty() ? lane.aggregator : hop.lanes[session::switch_lane(admission.job_epoch, l, hop.lanes.size())]);
      config.lane = lane_number;
      config.lanes = lanes;
      config.congestion_control = options.congestion_control;
      joined.lanes.push_back({with_loss(options, std::move(lane.socket), lane_number), runtime::make_worker_lane(config)});
      joined.aggregator_of_lane.push_back(i);
      joined.slots += admission.slots;
      ++lane_number;
    }
    joined.memberships.push_back(std::move(site.membership));
  }
  joined.placement = describe_atp(options, joined.lanes.size(), joined.packet_elements, joined.slots / lanes);
  return joined;
}

// Shared memory is the first aggregator's matter; at the others there are memberships alone.
void reach_memory(const Options& options, Site& site, Time deadline) {
  site.needs_local = options.shared_memory == SharedMemory::required;
  if (options.shared_memory == SharedMemory::off) {
    site.why_not_local = "it wants none";
  } else if (options.recovery.count() > 0) {
    site.why_not_local = "a job that recovers goes over the network";
  } else if (options.loss > 0) {
    site.why_not_local = "only packets can be lost";
  } else if (options.wire != WireFormat::native) {
    site.why_not_local = "a format on the wire was asked for";  // and its numbers with it
  } else {
    const LocalGroup::Config config{site.local_socket, options.rank, options.world_size, options.threads};
    site.local = LocalGroup::reach(config, deadline, site.why_not_local);
  }
}

Joined join_memory(const Options& options, std::vector<Site>& sites, const std::vector<session::Admission>& admissions,
                   Time deadline) {
  Joined joined;
  joined.local = sites.front().local;
  joined.local->gather(admissions.front().job_epoch, deadline);
  joined.aggregator_of_lane.assign(runtime::most_shared_lanes, 0);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    sites[i].membership.job_epoch = admissions[i].job_epoch;
    sites[i].membership.rank_epoch = admissions[i].rank_epoch;
    joined.memberships.push_back(std::move(sites[i].membership));
  }
  joined.resumption = admissions.front().resumption;
  joined.placement = "switchml in shared memory: all " + std::to_string(options.world_size) + " ranks are on the host of " +
                     options.aggregators.front() + ", and are the switch themselves; no packets";
  return joined;
}

Joined join_switchml(const Options& options, const Attempt& attempt) {
  const Time deadline = attempt.deadline;
  std::vector<Site> sites;
  for (const std::string& address : options.aggregators) sites.push_back(reach(options, address, deadline));
  reach_memory(options, sites.front(), deadline);

  Joined joined;
  joined.packet_elements = options.packet_elements;
  if (joined.packet_elements == 0) {
    std::uint32_t mtu = 65535;
    bool ipv6 = false;
    for (const Site& site : sites) {
      mtu = std::min(mtu, mtu_for_all(site.lanes.front()));
      ipv6 |= !transport::is_ipv4(site.lanes.front().aggregator);
    }
    joined.packet_elements = packet_elements_for(mtu, ipv6);
  }
  for (Site& site : sites) {
    if (options.log && !site.lanes.front().socket->buffer_warning().empty()) {
      options.log("warning: " + site.lanes.front().socket->buffer_warning());
    }
  }
  if (options.slots == 0) measure_windows(sites, joined.packet_elements, deadline);
  prove_endpoints(options, sites, {}, deadline);

  const std::vector<session::Admission> admissions = join_all(options, sites, {}, joined.packet_elements, attempt);
  if (admissions.front().local) return join_memory(options, sites, admissions, deadline);
  if (options.log && options.shared_memory != SharedMemory::off && !sites.front().local_socket.empty()) {
    options.log("no shared memory: " + admissions.front().why_not_local);
  }
  joined.resumption = admissions.front().resumption;
  joined.packet_elements = admissions.front().packet_elements;
  bool by_group = options.world_size > 1;
  std::uint32_t lanes = 0;
  for (const Site& site : sites) lanes += static_cast<std::uint32_t>(site.lanes.size());
  std::uint32_t lane_number = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const session::Admission& admission = admissions[i];
    Site& site = sites[i];
    site.membership.job_epoch = admission.job_epoch;
    site.membership.rank_epoch = admission.rank_epoch;
    for (Lane& lane : site.lanes) {
      switchml::WorkerConfig config;
      config.job_epoch = admission.job_epoch;
      config.rank = options.rank;
      config.world_size = options.world_size;
      config.rank_epoch = admission.rank_epoch;
      config.folded_epochs = wire::fold_epochs(admission.rank_epochs);
      config.packet_elements = admission.packet_elements;
      config.slots = admission.slots;
      config.lane = lane_number;
      config.lanes = lanes;
      config.aggregator = lane.aggregator;
      config.checksums = options.local_checksums || !site.near;
      auto transport = transport::with_group(std::move(lane.socket), std::move(lane.group));
      joined.lanes.push_back({with_loss(options, std::move(transport), lane_number), runtime::make_worker_lane(config)});
      joined.aggregator_of_lane.push_back(i);
      joined.slots += admission.slots;
      ++lane_number;
    }
    by_group &= site.listens;
    joined.memberships.push_back(std::move(site.membership));
  }
  joined.placement = describe(options, joined.lanes.size(), joined.packet_elements, joined.slots / lanes);
  if (by_group) joined.placement += "; results by IP multicast";
  return joined;
}

// The largest path MTU of RoCE whose packets fit, as elements.
[[nodiscard]] std::uint32_t roce_elements_for(std::uint32_t mtu, bool ipv6) {
  const std::size_t headers = (ipv6 ? 2 * wire::roce::ipv6_bytes : 2 * wire::roce::ipv4_bytes) + 2 * wire::roce::udp_bytes +
                              wire::roce::bth_bytes + wire::roce::reth_bytes + wire::roce::immediate_bytes +
                              wire::roce::icrc_bytes;
  std::uint32_t best = 64;
  while (best < wire::roce::max_mtu / 4 && headers + 2 * best * 4 <= mtu) best *= 2;
  return best;
}

std::string describe_netreduce(const Options& options, std::size_t lanes, std::uint32_t packet_elements,
                               std::uint32_t message_packets, std::uint32_t window) {
  std::string text = "netreduce through " + std::to_string(options.aggregators.size()) +
                     (options.aggregators.size() == 1 ? " accelerator (" : " accelerators (");
  for (std::size_t i = 0; i < options.aggregators.size(); ++i) text += (i == 0 ? "" : ", ") + options.aggregators[i];
  text += options.switch_address.empty() ? ")" : "), below them switch " + options.switch_address;
  return text + ", " + std::to_string(lanes) + (lanes == 1 ? " ring" : " rings") + " of RoCEv2 connections, path MTU " +
         std::to_string(packet_elements * 4) + ", window of " + std::to_string(window) + " messages of " +
         std::to_string(message_packets) +
         " packets; each worker sends and receives |U|, and the accelerator's ports carry all of it at once";
}

Joined join_netreduce(const Options& options, const Attempt& attempt) {
  const FirstHop hop = reach_switch(options, attempt.deadline);
  const bool tree = !hop.lanes.empty();
  std::vector<Site> sites;
  for (const std::string& address : options.aggregators) {
    sites.push_back(tree ? reach_behind(options, address, hop, attempt.deadline)
                         : reach(options, address, attempt.deadline));
  }

  Joined joined;
  joined.packet_elements = options.packet_elements;
  if (joined.packet_elements == 0) {
    joined.packet_elements = wire::roce::max_mtu / 4;
    for (const Site& site : sites) {
      const Lane& lane = site.lanes.front();
      const std::uint32_t mtu = tree ? mtu_for_all(hop.lanes.front()) : mtu_for_all(lane);
      // Switches have addresses of IPv6 among themselves.
      joined.packet_elements =
          std::min(joined.packet_elements, roce_elements_for(mtu, tree || !transport::is_ipv4(lane.aggregator)));
    }
  }
  for (Site& site : sites) {
    if (options.log && !site.lanes.front().socket->buffer_warning().empty()) {
      options.log("warning: " + site.lanes.front().socket->buffer_warning());
    }
    if (options.slots != 0) continue;
    // N x MsgLen x pktSize >= RTT x PortRate (§3.2), and one more: a result is taken when all of its message is there. No
    // more: where the links' queues are shorter than all ranks' windows, a loss makes a connection go back by one.
    const std::uint32_t message_packets = message_packets_of(options, joined.packet_elements);
    const std::uint32_t packets =
        measure(site.lanes.front(), site.membership.address, joined.packet_elements, attempt.deadline).packets();
    site.slots_measured = std::bit_ceil((packets + message_packets - 1) / message_packets + 1);
  }

  prove_endpoints(options, sites, hop, attempt.deadline);
  const std::vector<session::Admission> admissions = join_all(options, sites, hop, joined.packet_elements, attempt);
  joined.resumption = admissions.front().resumption;
  joined.packet_elements = admissions.front().packet_elements;
  std::uint32_t lanes = 0;
  for (const Site& site : sites) lanes += static_cast<std::uint32_t>(site.lanes.size());
  std::uint32_t lane_number = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const session::Admission& admission = admissions[i];
    Site& site = sites[i];
    site.membership.job_epoch = admission.job_epoch;
    site.membership.rank_epoch = admission.rank_epoch;
    if (admission.members.size() != options.world_size) {
      throw Error(ErrorCode::internal, "aggregator " + site.membership.address + " does not name the ring's queue pairs");
    }
    for (std::size_t l = 0; l < site.lanes.size(); ++l) {
      netreduce::RoceHostConfig config = session::host_config(admission, options.rank, l);
      config.worker.lane = lane_number;
      config.worker.lanes = lanes;
      config.accelerator = tree ? hop.lanes[l] : site.lanes[l].aggregator;
      joined.lanes.push_back(
          {with_loss(options, std::move(site.lanes[l].socket), lane_number), runtime::make_worker_lane(config)});
      joined.aggregator_of_lane.push_back(i);
      joined.slots += admission.slots * admission.message_packets;
      ++lane_number;
    }
    joined.memberships.push_back(std::move(site.membership));
  }
  joined.placement = describe_netreduce(options, joined.lanes.size(), joined.packet_elements,
                                        admissions.front().message_packets, admissions.front().slots);
  return joined;
}

// One ring at each aggregator, which is a bump in the wire of all ranks' hosts. Its packets are the device's.
Joined join_verbs(const Options& options, const Attempt& attempt) {
  Joined joined;
  joined.packet_elements =
      options.packet_elements != 0 ? options.packet_elements : transport::verbs_path_mtu(options.verbs) / 4;
  const std::uint32_t message_packets = message_packets_of(options, joined.packet_elements);
  netreduce::WorkerConfig shape;
  shape.window = window_of(options);
  shape.message_packets = message_packets;
  shape.mtu = joined.packet_elements * 4;
  transport::VerbsOptions verbs;
  verbs.device = options.verbs;
  verbs.mtu = shape.mtu;
  verbs.messages = shape.window;
  verbs.send_bytes = netreduce::Worker::send_bytes(shape);
  verbs.receive_bytes = netreduce::Worker::receive_bytes(shape);
  verbs.first_psn = options.first_psn;

  std::vector<Site> sites;
  for (const std::string& address : options.aggregators) {
    Reached reached = reach_control(options, address, attempt.deadline);
    if (!reached.hello.lanes.empty()) {
      throw Error(ErrorCode::refused, "aggregator " + address +
                                          " is no bump in the wire, and what RDMA hardware sends passes no other: start it "
                                          "as netsum bump");
    }
    Site& site = sites.emplace_back();
    site.membership.address = address;
    site.membership.client = std::move(reached.client);
    site.lanes.push_back({{}, nullptr, transport::open_verbs_ring(verbs)});
  }

  const std::vector<session::Admission> admissions = join_all(options, sites, {}, joined.packet_elements, attempt);
  joined.resumption = admissions.front().resumption;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const session::Admission& admission = admissions[i];
    Site& site = sites[i];
    site.membership.job_epoch = admission.job_epoch;
    site.membership.rank_epoch = admission.rank_epoch;
    if (admission.members.size() != options.world_size || admission.slots != shape.window) {
      throw Error(ErrorCode::internal, "aggregator " + site.membership.address + " does not admit what was asked for");
    }
    netreduce::RoceHostConfig config = session::host_config(admission, options.rank, 0);
    config.worker.lane = static_cast<std::uint32_t>(i);
    config.worker.lanes = static_cast<std::uint32_t>(sites.size());
    transport::VerbsRing& ring = *site.lanes.front().ring;
    ring.connect(verbs_member_of(config.successor), verbs_member_of(config.predecessor));
    joined.lanes.push_back({std::move(site.lanes.front().ring), runtime::make_worker_lane(config.worker, ring)});
    joined.aggregator_of_lane.push_back(i);
    joined.slots += admission.slots * admission.message_packets;
    joined.memberships.push_back(std::move(site.membership));
  }
  joined.placement = describe_netreduce(options, joined.lanes.size(), joined.packet_elements, message_packets, shape.window);
  return joined;
}

Joined attempt_to_join(const Options& options, const Attempt& attempt) {
  if (!options.verbs.empty()) return join_verbs(options, attempt);
  if (is_netreduce(options)) return join_netreduce(options, attempt);
  return is_atp(options) ? join_atp(options, attempt) : join_switchml(options, attempt);
}

[[nodiscard]] bool reachable(const Options& options, const std::string& address, Time deadline) {
  try {
    static_cast<void>(reach_control(options, address, std::min(deadline, now() + reach_again)));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Joined join(const Options& options) {
  check(options);
  const Time deadline = runtime::after(now(), std::min<Duration>(longest_join, runtime::bounded(options.connect_deadline)));
  return attempt_to_join(options, {deadline, nullptr, {}});
}

Joined join_again(const Options& options, Former& former, Time deadline, const std::stop_token& stop) {
  Options again = options;
  again.packet_elements = former.packet_elements;
  std::erase_if(again.aggregators, [&](const std::string& address) { return !reachable(options, address, deadline); });
  if (again.aggregators.empty()) {
    throw Error(ErrorCode::unreachable, options.aggregators.size() == 1
                                            ? "aggregator " + options.aggregators.front() + " cannot be reached"
                                            : "none of the aggregators can be reached");
  }
  // ATP goes past a switch; NetReduce's sums would be others in another tree.
  if (is_atp(options) && !again.switch_address.empty() && !reachable(options, again.switch_address, deadline))
    again.switch_address.clear();
  return attempt_to_join(again, {std::min(deadline, now() + longest_join), &former, stop});
}

}  // namespace netsum::collective
