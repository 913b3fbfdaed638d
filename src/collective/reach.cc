#include "collective/reach.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "runtime/thread.h"
#include "session/check.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/addresses/next_hop.h"
#include "transport/addresses/translation.h"
#include "transport/bypass/dpdk_path.h"
#include "transport/datagram/path.h"
#include "transport/system/numa.h"
#include "wire/switchml.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

constexpr milliseconds link_patience{10'000}, between_looks{5};
constexpr milliseconds for_reason{1'000};  // to find why probes are not answered

// MTUs of links and of tunnels over them, from the longest on: jumbo frames, FDDI and VMs, Ethernet, PPPoE, VXLAN and
// Geneve, WireGuard, and the least that IPv6 and IPv4 have.
constexpr std::array<std::uint32_t, 16> usual_mtus = {9216, 9000, 8950, 8900, 8500, 8000, 4352, 4096,
                                                      2000, 1500, 1492, 1450, 1420, 1400, 1280, 576};

// The number of a probe is its length's. RFC 8899 takes three lost probes for a length that does not pass.
class LengthSearch {
 public:
  LengthSearch(transport::Transport& socket, const Endpoint& to) : socket_(socket), to_(to) {
    socket_.allow_fragments(false);
  }
  ~LengthSearch() { socket_.allow_fragments(true); }
  LengthSearch(const LengthSearch&) = delete;
  LengthSearch& operator=(const LengthSearch&) = delete;

  // The longest of the MTUs, which begin with it, that is answered; 0: none is.
  [[nodiscard]] std::uint32_t longest(std::span<const std::uint32_t> mtus, Time deadline) {
    std::uint32_t best = 0;
    for (int tries = 0; tries < 3 && best != mtus.front() && now() < deadline; ++tries) {
      for (const std::uint32_t mtu : mtus) {
        if (mtu > best) send(mtu);
      }
      const Time until = std::min(deadline, now() + patience);
      while (best != mtus.front() && now() < until) best = std::max(best, hear(until));
    }
    return best;
  }

 private:
  static constexpr milliseconds patience{200};

  void send(std::uint32_t mtu) {
    const std::size_t headers = transport::header_bytes(to_) - 14;  // IP and UDP
    wire::switchml::write_probe(socket_.sink().datagram(to_, mtu - headers), {{wire::switchml::Type::probe, 0, 0, 0}, mtu});
    socket_.sink().flush();  // each alone, not as a train
  }
  [[nodiscard]] std::uint32_t hear(Time until) {
    pollfd descriptor{socket_.descriptor(), POLLIN, 0};
    const auto wait = std::chrono::ceil<milliseconds>(until - now()).count();
    if (descriptor.fd >= 0) poll(&descriptor, 1, static_cast<int>(std::max<std::int64_t>(wait, 0)));
    std::uint32_t longest = 0;
    for (const RxView& packet : socket_.receive()) {
      wire::switchml::Common common;
      wire::switchml::ProbePacket reply{};
      if (packet.source == to_ && wire::switchml::parse_common(packet.bytes, common) == wire::ParseError::none &&
          common.type == wire::switchml::Type::probe_reply &&
          wire::switchml::parse_probe(packet.bytes, common, reply) == wire::ParseError::none) {
        longest = std::max(longest, reply.sequence);
      }
    }
    return longest;
  }

  transport::Transport& socket_;
  const Endpoint to_;
};

// At most `mtu`, which is also the answer where nothing arrives: then the length is not at fault.
std::uint32_t passing_mtu(transport::Transport& socket, const Endpoint& to, std::uint32_t mtu, Time deadline) {
  LengthSearch search(socket, to);
  if (search.longest(std::array{mtu}, deadline) == mtu) return mtu;
  std::vector<std::uint32_t> shorter{mtu};
  std::copy_if(usual_mtus.begin(), usual_mtus.end(), std::back_inserter(shorter), [&](auto each) { return each < mtu; });
  const std::uint32_t longest = search.longest(shorter, deadline);
  return longest == 0 ? mtu : longest;
}

switchml::Probe probe(transport::Transport& socket, const std::string& address, const switchml::ProbeConfig& config,
                      Time deadline) {
  switchml::Probe path(config);
  Sink& sink = socket.sink();
  path.start(now(), sink);
  sink.flush();
  while (!path.done() && now() < deadline) {
    pollfd descriptor{socket.descriptor(), POLLIN, 0};
    const auto wait =
        std::clamp(std::chrono::ceil<milliseconds>(path.next_timeout() - now()), milliseconds(0), milliseconds(1000));
    // Without a descriptor nothing says that there is an answer.
    if (descriptor.fd >= 0) poll(&descriptor, 1, static_cast<int>(wait.count()));
    path.on_packets(socket.receive(), now(), sink);
    path.on_timer(now(), sink);
    sink.flush();
  }
  if (!path.answered()) {
    const std::size_t headers = transport::header_bytes(config.aggregator) - 14;
    const auto mtu = static_cast<std::uint32_t>(config.packet_bytes + headers);
    const std::uint32_t passing = passing_mtu(socket, config.aggregator, mtu, std::max(deadline, now() + for_reason));
    if (passing < mtu) {
      throw Error(ErrorCode::unreachable,
                  "packets of " + std::to_string(mtu) + " bytes do not reach aggregator " + address + ", and packets of " +
                      std::to_string(passing) + " bytes do: raise the MTU on the way, or ask for fewer elements per packet",
                  {.aggregator = address});
    }
    const bool translated = transport::seems_translated(transport::resolve(address), config.aggregator);
    throw Error(
        ErrorCode::unreachable,
        "aggregator " + address + " answers on TCP, but not on UDP " + transport::to_string(config.aggregator) +
            (translated ? ", where it receives data: is its address or port translated on the way (NAT, docker -p, a "
                          "Kubernetes service)? Data packets do not pass that: use the hosts' network"
             : socket.descriptor() < 0  // a host of its own (--data-path dpdk)
                 ? ": has another rank the same --dpdk-address, or does the network drop UDP?"
                 : ": does a firewall drop UDP?"),
        {.aggregator = address});
  }
  return path;
}

switchml::Probe measure(const Lane& lane, const Endpoint& to, const std::string& address, std::uint32_t packet_elements,
                        Time deadline) {
  switchml::ProbeConfig config;
  config.aggregator = to;
  config.packet_bytes = static_cast<std::uint32_t>(wire::switchml::chunk_header_bytes + 4 + packet_elements * 4);
  return probe(lane.transport(), address, config, deadline);
}

// Whether ranks on other hosts may use the aggregator, over a link.
bool is_reached_over_link(const Site& site) {
  return !site.near || !is_near_alone(site.lanes.front().aggregator);
}

// For ranks that send datagrams.
void refuse_bump(const control::Hello& hello, const std::string& address) {
  if (!hello.in_wire) return;
  throw Error(ErrorCode::refused,
              "aggregator " + address + " is a bump in the wire: only ranks with RDMA hardware (verbs) join there");
}

// The host of DataPath::dpdk; null with other data paths. A device that has just been started has no link yet.
std::shared_ptr<transport::FrameHost> host_of(const Options& options, std::size_t lanes, Time deadline) {
  if (options.data_path != DataPath::dpdk) return nullptr;
  auto host = transport::dpdk_host(options.dpdk, static_cast<std::uint32_t>(options.aggregators.size() * lanes));
  const Time until = std::min(deadline, now() + link_patience);
  while (!host->find_link()) {
    if (now() >= until) {
      throw Error(ErrorCode::unreachable,
                  "no DPDK port has a link (" + host->description() + "): connect it, or start its other end");
    }
    std::this_thread::sleep_for(between_looks);
  }
  return host;
}

// The first ones of a daemon, behind the rank's switch if there is one.
std::vector<Endpoint> lanes_at(const Options& options, const control::Hello& hello, const FirstHop& hop) {
  const std::size_t all = hop.lanes.empty() ? hello.lanes.size() : std::min(hop.lanes.size(), hello.lanes.size());
  const std::size_t own = own_lanes(options.threads, options.aggregators.size(), std::max(hop.threads, hello.threads), all);
  return {hello.lanes.begin(), hello.lanes.begin() + static_cast<std::ptrdiff_t>(own)};
}

}  // namespace

milliseconds remaining(Time deadline) {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - now()));
}

Reached reach_control(const Options& options, const std::string& address, Time deadline) {
  const Endpoint control = transport::resolve(address);  // first: retries until the deadline do not help a bad name
  Reached reached;
  reached.client = std::make_unique<control::Client>(control::ClientOptions{address, options.token, options.tls_ca});
  reached.hello = reached.client->hello(remaining(deadline), options.job, options.stop);
  for (Endpoint& lane : reached.hello.lanes) {
    if (!transport::is_unspecified(lane)) continue;
    lane.address = control.address;
    lane.scope = control.scope;
  }
  return reached;
}

Duration round_trip_of(control::Client& client, Time deadline) {
  constexpr int few = 4;
  Duration shortest = Duration::max();
  for (int i = 0; i < few; ++i) {
    const Time asked = now();
    static_cast<void>(client.hello(remaining(deadline)));
    shortest = std::min(shortest, now() - asked);
  }
  return shortest;
}

FirstHop reach_switch(const Options& options, const std::string& address, Time deadline) {
  FirstHop hop;
  if (address.empty()) return hop;
  hop.address = address;
  control::Hello hello = reach_control(options, address, deadline).hello;
  if (!hello.is_switch) {
    throw Error(ErrorCode::refused, address + " is not a switch: is a parameter server running there?");
  }
  hop.lanes = std::move(hello.lanes);
  hop.threads = hello.threads;
  hop.receive_bytes = hello.receive_bytes;
  hop.profiles = std::move(hello.profiles);
  return hop;
}

Site reach_behind(const Options& options, const std::string& address, const FirstHop& hop, Time deadline) {
  Site site;
  site.address = address;
  Reached reached = reach_control(options, address, deadline);
  site.client = std::move(reached.client);
  refuse_bump(reached.hello, address);
  site.profiles = std::move(reached.hello.profiles);
  const std::vector<Endpoint> lanes = lanes_at(options, reached.hello, hop);
  const auto host = host_of(options, lanes.size(), deadline);
  for (const Endpoint& lane : lanes) {
    const Endpoint& next = hop.lanes.empty() ? lane : hop.lanes[site.lanes.size()];
    if (host) {
      site.lanes.push_back({lane, HostPath(host, lane, {.port = 0, .peer = {}, .ecn = true})});
      continue;
    }
    transport::UdpOptions udp;
    udp.bind = transport::path_towards(next).local;
    udp.bind.port = 0;
    udp.ipv6 = !transport::is_ipv4(udp.bind);
    udp.ecn = true;
    site.lanes.push_back({lane, SocketPath(udp)});
  }
  if (site.lanes.empty()) throw Error(ErrorCode::internal, address + " has no data sockets");
  site.security = reached.hello.security;
  return site;
}

Site reach_site(const Options& options, const std::string& address, Time deadline, bool ecn) {
  Site site;
  site.address = address;
  Reached reached = reach_control(options, address, deadline);
  site.client = std::move(reached.client);
  refuse_bump(reached.hello, address);
  site.local_socket = std::move(reached.hello.local_socket);
  const std::vector<Endpoint> lanes = lanes_at(options, reached.hello, {});
  const auto host = host_of(options, lanes.size(), deadline);
  for (const Endpoint& lane : lanes) {
    if (host) {
      site.lanes.push_back({lane, HostPath(host, lane, {.port = 0, .peer = lane, .ecn = ecn})});
      continue;
    }
    transport::UdpOptions udp;
    udp.bind.address = transport::is_ipv4(lane) ? std::array<std::uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}
                                                : std::array<std::uint8_t, 16>{};
    udp.ipv6 = !transport::is_ipv4(lane);
    udp.peer = lane;
    udp.ecn = ecn;
    site.lanes.push_back({lane, SocketPath(udp)});
  }
  if (site.lanes.empty()) throw Error(ErrorCode::internal, address + " has no data sockets");
  // Both ends must say so: behind address translation, one end alone may take the other for local.
  site.near = reached.hello.same_host && transport::is_of_this_host(site.lanes.front().aggregator);
  if (!host) site.groups = std::move(reached.hello.groups);  // a host of our own joins none
  if (!site.groups.empty()) site.groups.resize(site.lanes.size());
  site.security = reached.hello.security;
  site.profiles = std::move(reached.hello.profiles);
  return site;
}

void claim_queues(const Options& options, Reach& reach) {
  if (options.data_path != DataPath::xdp) return;
  const auto say = [&](const std::string& line) {
    if (options.log) options.log(line);
  };
  transport::XdpQueuesOptions wanted;
  wanted.lanes = static_cast<std::uint32_t>(lanes_of(reach));
  wanted.attachments = std::make_shared<transport::Attachments>(options.log);
  for (Site& site : reach.sites) {
    for (std::size_t i = 0; i < site.lanes.size(); ++i) {
      Lane& lane = site.lanes[i];
      const Endpoint& next = reach.hop.lanes.empty() ? lane.aggregator : reach.hop.lanes[i];
      auto* const socket = std::get_if<SocketPath>(&lane.path);
      if (socket == nullptr || transport::is_of_this_host(next)) continue;
      if (!transport::is_ipv4(next)) {
        throw Error(ErrorCode::bad_argument,
                    "the data path xdp requires IPv4: " + site.address + " has the address " + transport::to_string(next));
      }
      wanted.interfaces = {transport::interface_towards(next)};
      const transport::MemoryOf near(options.pin_threads ? transport::node_of(wanted.interfaces.front()) : std::nullopt);
      auto queues = transport::claim_xdp_queues(wanted);
      const std::string to = "packets to " + transport::to_string(next);
      say(queues ? to + ": AF_XDP on " + queues->description(lane.local().port)
                 : "warning: " + to + " are sent by kernel sockets: all queues of " + wanted.interfaces.front() +
                       " are in use. For more queues: ethtool -L " + wanted.interfaces.front() + " combined " +
                       std::to_string(wanted.lanes));
      if (queues) lane.path = XdpPath(std::move(*socket), std::move(queues));
    }
  }
}

void measure_lanes(Reach& reach, const WindowRule& rule, Time deadline) {
  const std::uint32_t most_near = std::bit_floor(std::max(2U, rule.most_near_bytes / (reach.packet_elements * 4)));
  // Ranks agree on the longest window: a near rank must not lengthen it. A near rank is on other ranks' link if it uses
  // loopback.
  std::uint32_t lanes = 0, far = 0, near = 0;
  const bool all_stand_by =
      std::all_of(reach.sites.begin(), reach.sites.end(), [](const Site& site) { return site.standby; });
  for (Site& site : reach.sites) {
    const Lane& lane = site.lanes.front();
    const switchml::Probe path = measure(lane, lane.aggregator, site.address, reach.packet_elements, deadline);
    std::uint32_t packets = path.slots();
    if (rule.through_switch && !reach.hop.lanes.empty()) {
      const Endpoint& to = reach.hop.lanes.front();
      const switchml::Probe first = measure(lane, to, reach.hop.address, reach.packet_elements, deadline);
      packets = std::min(path.slots(first.round_trip()), first.slots(path.round_trip()));
    }
    site.slots_measured = std::min(rule.wanted(packets), site.near ? most_near : UINT32_MAX);
    std::uint32_t& longest = site.near ? near : far;
    longest = std::max(longest, site.slots_measured);
    const bool serves = !site.standby || all_stand_by;
    if (is_reached_over_link(site) && serves) lanes += static_cast<std::uint32_t>(site.lanes.size());
  }
  if (lanes == 0) return;
  const std::uint32_t wanted = std::bit_ceil(((far != 0 ? far : near) + lanes - 1) / lanes);
  const std::uint32_t each = std::clamp(wanted, rule.least, session::most_slots);
  for (Site& site : reach.sites) site.slots_measured = each;
}

void prove_endpoints(Reach& reach, Time deadline) {
  switchml::ProbeConfig config;
  config.packet_bytes = wire::switchml::probe_reply_bytes;
  config.singles = 1;
  config.train = 0;
  for (Site& site : reach.sites) {
    for (std::size_t l = 0; l < site.lanes.size(); ++l) {
      Lane& lane = site.lanes[l];
      if (!lane.sends_probes()) continue;
      config.aggregator = lane.aggregator;
      lane.cookie = probe(lane.transport(), site.address, config, deadline).cookie();
      if (reach.hop.lanes.empty()) continue;
      config.aggregator = reach.hop.lanes[l];
      lane.switch_cookie = probe(lane.transport(), reach.hop.address, config, deadline).cookie();
    }
  }
}

std::uint32_t mtu_for_all(const Options& options, const FirstHop& hop, const Site& site, Time deadline) {
  const Lane& lane = site.lanes.front();
  std::uint32_t mtu = 65535;
  const auto along = [&](const Endpoint& to, const std::string& address) {
    mtu = std::min(mtu, lane.mtu_towards(to));
    if (transport::is_of_this_host(to)) return;
    const std::uint32_t passing = passing_mtu(lane.transport(), to, mtu, deadline);
    if (passing < mtu && options.log) {
      options.log("warning: packets of " + std::to_string(mtu) + " bytes, the MTU of this host's interface, do not reach " +
                  address + ": the path drops them. This rank sends packets of at most " + std::to_string(passing) +
                  " bytes: raise the MTU on the way for longer ones (netsum doctor)");
    }
    mtu = passing;
  };
  if (hop.lanes.empty()) {
    along(lane.aggregator, site.address);
  } else {
    along(hop.lanes.front(), hop.address);
    along(lane.aggregator, site.address);
  }
  return mtu;
}

bool is_near_alone(const Endpoint& address) {
  return transport::is_loopback(address);
}

std::size_t lanes_of(const Reach& reach) {
  std::size_t lanes = 0;
  for (const Site& site : reach.sites) lanes += site.lanes.size();
  return lanes;
}

}  // namespace netsum::collective
