#include "collective/join.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <future>
#include <optional>
#include <utility>

#include "protocol/switchml/probe.h"
#include "runtime/thread.h"
#include "session/supervisor.h"
#include "transport/addresses.h"
#include "transport/lossy.h"
#include "transport/udp.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

// The control protocol counts milliseconds in 32 bits.
constexpr Duration longest_join = std::chrono::hours(24);

// For a heartbeat or a goodbye while other aggregators still decide.
constexpr milliseconds parting_deadline{1000};

struct Lane {
  Endpoint aggregator;
  std::unique_ptr<transport::Udp> socket;
};

struct Site {
  Membership membership;
  std::vector<Lane> lanes;
  std::uint32_t slots_measured = 0;
};

[[nodiscard]] milliseconds remaining(Time deadline) {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - now()));
}

void check(const Options& options) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  if (options.aggregators.empty()) throw bad("no aggregator is named");
  if (options.world_size == 0 || options.world_size > max_world_size) {
    throw bad("world size " + std::to_string(options.world_size) + " is not between 1 and " +
              std::to_string(max_world_size));
  }
  if (options.rank >= options.world_size) {
    throw bad("rank " + std::to_string(options.rank) + " is not below the world size " + std::to_string(options.world_size));
  }
  const std::uint32_t elements = options.packet_elements;
  if (elements != 0 && elements != 64 && elements != 128 &&
      (elements % wire::block_elements != 0 || elements > wire::max_packet_elements)) {
    throw bad("packets of " + std::to_string(elements) + " elements are not possible: 64, 128, or a multiple of 256 up to " +
              std::to_string(wire::max_packet_elements));
  }
  if (options.slots != 0 && !std::has_single_bit(options.slots)) {
    throw bad(std::to_string(options.slots) + " slots are not a power of two");
  }
  if (options.loss < 0 || options.loss >= 1) throw bad("loss must be at least 0 and below 1");
}

[[nodiscard]] std::size_t longest_datagram(std::uint32_t packet_elements) {
  wire::ChunkHeader header;
  header.elements = static_cast<std::uint16_t>(packet_elements);
  header.exponents = static_cast<std::uint8_t>(std::max(1U, packet_elements / wire::block_elements));
  header.masks = true;
  return wire::chunk_packet_bytes(header);
}

[[nodiscard]] std::uint32_t packet_elements_for(std::uint32_t mtu, bool ipv6) {
  const std::size_t room = mtu - (ipv6 ? 48 : 28);
  std::uint32_t best = 64;
  for (const std::uint32_t elements : {64U, 128U}) {
    if (longest_datagram(elements) <= room) best = elements;
  }
  for (std::uint32_t elements = 256; elements <= wire::max_packet_elements; elements += 256) {
    if (longest_datagram(elements) <= room) best = elements;
  }
  return best;
}

Site reach(const Options& options, const std::string& address, Time deadline) {
  Site site;
  site.membership.address = address;
  const Endpoint control = transport::resolve(address);
  site.membership.client = std::make_unique<control::Client>(control::ClientOptions{address, options.token, options.tls_ca});
  for (Endpoint lane : site.membership.client->hello(remaining(deadline)).lanes) {
    if (transport::is_unspecified(lane)) {  // it listens on every address: the one that we reached it by is as good as any
      lane.address = control.address;
      lane.scope = control.scope;
    }
    transport::UdpOptions udp;
    udp.bind.address = transport::is_ipv4(lane) ? std::array<std::uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}
                                                : std::array<std::uint8_t, 16>{};
    udp.ipv6 = !transport::is_ipv4(lane);
    udp.peer = lane;
    site.lanes.push_back({lane, std::make_unique<transport::Udp>(udp)});
  }
  if (site.lanes.empty()) throw Error(ErrorCode::internal, "aggregator " + address + " has no data sockets");
  return site;
}

// Appendix C: the window from round trip and bandwidth.
std::uint32_t measure(Lane& lane, const std::string& address, std::uint32_t packet_elements, Time deadline) {
  switchml::ProbeConfig config;
  config.aggregator = lane.aggregator;
  config.packet_bytes = static_cast<std::uint32_t>(wire::chunk_header_bytes + 4 + packet_elements * 4);
  switchml::Probe probe(config);
  Sink& sink = lane.socket->sink();
  probe.start(now(), sink);
  sink.flush();
  while (!probe.done() && now() < deadline) {
    pollfd descriptor{lane.socket->descriptor(), POLLIN, 0};
    const auto wait =
        std::clamp(std::chrono::ceil<milliseconds>(probe.next_timeout() - now()), milliseconds(0), milliseconds(1000));
    poll(&descriptor, 1, static_cast<int>(wait.count()));
    probe.on_packets(lane.socket->receive(), now(), sink);
    probe.on_timer(now(), sink);
    sink.flush();
  }
  if (!probe.answered()) {
    throw Error(ErrorCode::unreachable, "aggregator " + address + " answers on TCP, but not on UDP " +
                                            transport::to_string(lane.aggregator) + ": does a firewall drop UDP?");
  }
  return probe.slots();
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

session::Admission join_at(const Options& options, const Site& site, std::uint32_t packet_elements, Time deadline) {
  session::JoinRequest request;
  request.protocol_version = wire::switchml_version;
  request.protocol = "switchml";
  request.job = options.job;
  request.rank = options.rank;
  request.world_size = options.world_size;
  request.packet_elements = packet_elements;
  request.slots_fixed = options.slots;
  request.slots_measured = site.slots_measured;
  for (const Lane& lane : site.lanes) request.endpoints.push_back(lane.socket->local());
  return site.membership.client->join(request, remaining(deadline));
}

// All at once: an aggregator answers only when every rank has come to it, and ranks must not wait for each other in turn.
// Who has admitted this rank hears from it while others still wait for somebody, and is told if they wait in vain.
std::vector<session::Admission> join_all(const Options& options, const std::vector<Site>& sites,
                                         std::uint32_t packet_elements, Time deadline) {
  std::vector<std::future<session::Admission>> pending;
  for (const Site& site : sites) {
    pending.push_back(std::async(std::launch::async, [&options, &site, packet_elements, deadline] {
      return join_at(options, site, packet_elements, deadline);
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
    for (std::size_t i = 0; i < sites.size(); ++i) {
      if (!admitted[i] || (!waiting && !error)) continue;
      try {
        control::Client& client = *sites[i].membership.client;
        if (error && !waiting) {
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

}  // namespace

Joined join(const Options& options) {
  check(options);
  const Time deadline = runtime::after(now(), std::min<Duration>(longest_join, runtime::bounded(options.connect_deadline)));
  std::vector<Site> sites;
  for (const std::string& address : options.aggregators) sites.push_back(reach(options, address, deadline));

  Joined joined;
  joined.packet_elements = options.packet_elements;
  if (joined.packet_elements == 0) {
    std::uint32_t mtu = 65535;
    bool ipv6 = false;
    for (const Site& site : sites) {
      mtu = std::min(mtu, site.lanes.front().socket->mtu());
      ipv6 |= !transport::is_ipv4(site.lanes.front().aggregator);
    }
    joined.packet_elements = packet_elements_for(mtu, ipv6);
  }
  for (Site& site : sites) {
    if (options.log && !site.lanes.front().socket->buffer_warning().empty()) {
      options.log("warning: " + site.lanes.front().socket->buffer_warning());
    }
    if (options.slots == 0) {
      site.slots_measured = measure(site.lanes.front(), site.membership.address, joined.packet_elements, deadline);
    }
  }

  const std::vector<session::Admission> admissions = join_all(options, sites, joined.packet_elements, deadline);
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
      std::unique_ptr<transport::Transport> transport = std::move(lane.socket);
      if (options.loss > 0) {
        const std::uint64_t stream = std::uint64_t{options.rank} * 4096 + lane_number;
        transport = std::make_unique<transport::Lossy>(std::move(transport), options.loss, options.loss_seed, stream);
      }
      joined.lanes.push_back({std::move(transport), config});
      joined.aggregator_of_lane.push_back(i);
      joined.slots += admission.slots;
      ++lane_number;
    }
    joined.memberships.push_back(std::move(site.membership));
  }
  joined.placement = describe(options, joined.lanes.size(), joined.packet_elements, joined.slots / lanes);
  return joined;
}

}  // namespace netsum::collective
