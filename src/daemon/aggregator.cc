#include "netsum/aggregator.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/broker.h"
#include "daemon/data_planes.h"
#include "daemon/node.h"
#include "service/atp_switch_service.h"
#include "service/chip_plane_service.h"
#include "service/netreduce_service.h"
#include "service/probe_service.h"
#include "service/switchml_chip_service.h"
#include "service/switchml_service.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/datagram/multicast.h"
#include "wire/atp.h"

namespace netsum {
namespace {

// Packets of ranks on this host are as long as may be.
atp::SwitchConfig pool_of(const AggregatorOptions& options) {
  constexpr std::uint32_t slots = 4096, elements = 2048, most_slots = 65536;
  if (options.pool_elements > wire::atp::max_packet_elements) {
    throw Error(ErrorCode::bad_argument, "invalid ATP pool: its slots must have at most " +
                                             std::to_string(wire::atp::max_packet_elements) + " elements");
  }
  atp::SwitchConfig pool;
  // Where SwitchML's packets are summed outside of this process, ATP's go through its sockets, and its software.
  pool.chip = options.chip && options.data_plane == DataPlane::sockets;
  pool.packet_elements = options.pool_elements;
  if (pool.chip && pool.packet_elements == 0) pool.packet_elements = 256;
  if (pool.packet_elements == 0) {
    const auto interface = transport::interface_of(transport::resolve(options.listen));
    const bool here = options.data_path != DataPath::dpdk && interface && interface->loopback;
    pool.packet_elements = here ? wire::atp::max_packet_elements : elements;
  }
  pool.slots = options.pool_slots != 0 ? options.pool_slots : std::min(slots * elements / pool.packet_elements, most_slots);
  return pool;
}

std::optional<transport::GroupRange> groups_of(const AggregatorOptions& options) {
  if (options.multicast == "off") return std::nullopt;
  if (options.multicast.empty()) {
    const bool sockets = options.data_plane == DataPlane::sockets && options.data_path == DataPath::sockets && !options.chip;
    const Endpoint listen = transport::resolve(options.listen);
    if (!sockets || !transport::is_ipv4(listen) || !transport::is_loopback(listen)) return std::nullopt;
    return transport::loopback_groups();
  }
  const transport::GroupRange groups(options.multicast);
  if (!transport::is_ipv4(transport::resolve(options.listen))) {
    throw Error(ErrorCode::bad_argument, "results by multicast (" + options.multicast +
                                             ") require IPv4: listen at an IPv4 address, not " + options.listen);
  }
  const std::uint32_t lanes = daemon::lanes_of(options);
  if (groups.port() + lanes - 1 > 65535) {
    throw Error(ErrorCode::bad_argument, "multicast groups of " + std::to_string(lanes) +
                                             " lanes need ports above 65535, from " + std::to_string(groups.port()) +
                                             " on: give a lower port");
  }
  return groups;
}

daemon::NodeOptions completed(daemon::NodeOptions node, const AggregatorOptions& options, bool multicast) {
  node.sockets.multicast = multicast;
  node.sockets.trains = options.data_plane != DataPlane::xdp;
  return node;
}

// A data plane outside of this process has a lane for each thread.
AggregatorOptions with_lanes(AggregatorOptions options) {
  if (options.data_plane != DataPlane::sockets) options.lanes = options.threads;
  return options;
}

void check_profile(const AggregatorOptions& options) {
  daemon::check_data_plane(options);
  if (!options.chip) {
    if (!options.allow_fcs_only) return;
    throw Error(ErrorCode::bad_argument, "--allow-fcs-only requires --profile chip");
  }
  if (!options.allow_fcs_only) {
    throw Error(ErrorCode::bad_argument,
                "packets of the chip profile have no checksum except Ethernet's frame check: pass --allow-fcs-only if that "
                "suffices on this network, or use --profile software");
  }
  if (!options.multicast.empty() && options.multicast != "off" && options.data_plane != DataPlane::xdp) {
    throw Error(ErrorCode::bad_argument, "multicast (" + options.multicast +
                                             ") requires the software profile: a chip sends each result to every rank");
  }
  if (options.require_keys || options.packet_security.value_or(PacketSecurity::none) != PacketSecurity::none) {
    throw Error(ErrorCode::bad_argument,
                "packet keys require the software profile: omit --packet-security and --require-keys");
  }
}

std::string line_of_group(const transport::GroupRange& groups, const session::StartJob& start) {
  const std::string group = transport::to_string(groups.group_of(start.job, 0));
  if (std::count(start.listens.begin(), start.listens.end(), true) < 2) {
    return "job '" + start.job + "': results go to each rank by unicast, because fewer than two ranks joined group " + group;
  }
  std::string others;
  for (std::size_t rank = 0; rank < start.listens.size(); ++rank) {
    if (!start.listens[rank]) others += (others.empty() ? "" : ", ") + std::to_string(rank);
  }
  return "job '" + start.job + "': results go to group " + group +
         (others.empty() ? "" : ", and by unicast to ranks " + others + ", which did not join the group");
}

}  // namespace

struct Aggregator::Impl {
  Impl(const AggregatorOptions& options, daemon::NodeOptions of_node)
      : log(options.log),
        chip(options.chip),
        pool(pool_of(options)),
        groups(groups_of(options)),
        logs_group(!options.multicast.empty()),
        group_within_host(groups && transport::is_loopback(transport::resolve(options.listen))),
        cookies(of_node.cookies),
        attachments(of_node.sockets.attachments),
        broker(options.local_users,
               [this](std::uint64_t job_epoch, std::uint32_t rank) {
                 node.lose(job_epoch, rank, "its connection to the aggregator has ended");
               }),
        node(completed(std::move(of_node), options, groups.has_value())) {
    serve(options);
  }
  ~Impl() { broker.silence(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Ranks on one host may share memory in place of packets.
  [[nodiscard]] service::SwitchMlService::Surroundings for_switchml() {
    service::SwitchMlService::Surroundings surroundings;
    surroundings.cookies = cookies;
    if (groups) {
      surroundings.group_within_host = group_within_host;
      surroundings.group = [this](const std::string& job, std::size_t lane) { return groups->group_of(job, lane); };
    }
    surroundings.starting = [this](const session::StartJob& start) {
      if (start.admission.local) {
        broker.start_job(start.admission.job_epoch, start.local_tickets);
      } else if (groups && logs_group && log) {
        log(line_of_group(*groups, start));
      }
    };
    surroundings.stopping = [this](std::uint64_t job_epoch) { broker.stop_job(job_epoch); };
    return surroundings;
  }

  void serve(const AggregatorOptions& options) {
    const service::Lanes lanes = node.lanes();
    std::vector<std::unique_ptr<service::Service>> services;
    if (options.data_plane != DataPlane::sockets) {
      services.push_back(std::make_unique<service::ChipPlaneService>(
          lanes, daemon::open_data_plane(options, node.endpoints(), attachments), for_switchml()));
    } else if (chip) {
      services.push_back(std::make_unique<service::SwitchMlChipService>(lanes));
    } else {
      services.push_back(std::make_unique<service::SwitchMlService>(lanes, for_switchml()));
    }
    if (chip) services.push_back(std::make_unique<service::ProbeService>(lanes, cookies));
    services.push_back(std::make_unique<service::NetReduceService>(lanes));
    services.push_back(std::make_unique<service::AtpSwitchService>(lanes, pool));
    control::ServerHooks hooks;
    hooks.groups = [this, count = lanes.size()](const std::string& job) {
      std::vector<Endpoint> of_lanes;
      for (std::size_t lane = 0; groups && lane < count; ++lane) of_lanes.push_back(groups->group_of(job, lane));
      return of_lanes;
    };
    if (chip) hooks.said_security = PacketSecurity::none;  // of SwitchML's packets
    if (!chip) hooks.local_socket = broker.name();
    node.serve(std::move(services), std::move(hooks));
  }

  const std::function<void(const std::string&)> log;
  const bool chip;
  const atp::SwitchConfig pool;
  const std::optional<transport::GroupRange> groups;
  const bool logs_group;  // somebody asked for it
  const bool group_within_host;
  const EndpointCookies cookies;
  const std::shared_ptr<transport::Attachments> attachments;
  daemon::Broker broker;  // outlives the node, which tells it of jobs
  daemon::Node node;
};

Aggregator::Aggregator(const AggregatorOptions& given) {
  check_profile(given);
  const AggregatorOptions options = with_lanes(given);
  impl_ = std::make_unique<Impl>(options, daemon::node_options(options, options.slots, "aggregator", options.state));
}

Aggregator::Aggregator(Aggregator&&) noexcept = default;

Aggregator& Aggregator::operator=(Aggregator&& other) noexcept {
  if (this != &other) {
    const Aggregator old(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Aggregator::~Aggregator() {
  if (impl_ && impl_->node.is_another_process()) static_cast<void>(impl_.release());
}

void Aggregator::set_tenants(std::vector<Tenant> tenants) {
  impl_->node.set_tenants(std::move(tenants));
}

void Aggregator::reload_certificate() {
  impl_->node.reload_certificate();
}

bool Aggregator::alive() {
  return impl_->node.alive();
}

std::string Aggregator::address() const {
  return impl_->node.address();
}

}  // namespace netsum
