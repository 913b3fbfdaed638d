#include "collective/bump_daemon.h"

#include <atomic>
#include <map>
#include <random>
#include <span>
#include <utility>

#include "collective/connection_file.h"
#include "collective/counters.h"
#include "control/server.h"
#include "netsum/error.h"
#include "protocol/netreduce/bump.h"
#include "protocol/netreduce/ring_text.h"
#include "runtime/memory.h"
#include "runtime/packet_loop.h"
#include "runtime/thread.h"
#include "session/netreduce_job.h"
#include "telemetry/metrics_server.h"
#include "transport/port_set.h"
#include "version.h"

namespace netsum::collective {
namespace {

using netreduce::Bump;
using netreduce::RingConfig;
using telemetry::Counters;

// A connection without a ring that was silent for so long has no packet left on its way: hosts give up, or repeat, sooner.
constexpr Duration forgotten_after = std::chrono::minutes(10);
constexpr Duration forget_every = std::chrono::minutes(1);

std::uint64_t system_random() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

Counters counters_of(const Bump& bump) {
  const netreduce::BridgeCounters& bridge = bump.bridge().counters();
  const netreduce::AcceleratorCounters& accelerator = bump.accelerator().counters();
  std::uint64_t unreadable = 0;
  for (const std::uint64_t count : bump.counters().unreadable) unreadable += count;
  return {{"frames_forwarded", bridge.forwarded},
          {"frames_flooded", bridge.flooded},
          {"frames_filtered", bridge.filtered},
          {"dropped_frame_malformed", bridge.malformed},
          {"addresses_moved", bridge.moved},
          {"addresses_not_learned", bridge.not_learned},
          {"frames_not_roce", bump.counters().others},
          {"roce_trains", bump.counters().trains},
          {"roce_unreadable", unreadable},
          {"roce_passed", accelerator.passed},
          {"dropped_roce_known", accelerator.dropped_known},
          {"dropped_roce_nowhere", accelerator.dropped_nowhere}};
}

Counters counters_of(std::size_t number, const transport::PortCounters& port) {
  const std::string name = "port" + std::to_string(number) + "_";
  return {{name + "frames_received", port.frames_received}, {name + "frames_sent", port.frames_sent},
          {name + "dropped_overrun", port.dropped_overrun}, {name + "dropped_unreadable", port.dropped_unreadable},
          {name + "dropped_full", port.dropped_full},       {name + "dropped_refused", port.dropped_refused},
          {name + "dropped_train", port.dropped_train},     {name + "dropped_malformed", port.dropped_malformed}};
}

// Jobs of ranks with RDMA hardware: a ring each, in the wire of all of its hosts.
session::ProtocolRules bump_rules() {
  session::ProtocolRules rules = session::netreduce_rules();
  rules.switches = rules.switches_needed = false;
  return rules;
}

std::vector<std::uint32_t> members(const RankSet& set, std::uint32_t count) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    if (set.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

struct BumpDaemon::Impl {
  BumpOptions options;
  const transport::PortSet* ports = nullptr;  // the loop's
  std::vector<RingConfig> rings;
  std::map<std::uint64_t, runtime::PacketMemory> memory;  // of each ring, and of each job's, by incarnation
  std::unique_ptr<Bump> bump;
  Time next_forget{};
  const Time started = runtime::now();
  std::unique_ptr<runtime::PacketLoop> loop;  // its thread uses all above
  std::unique_ptr<control::Server> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  void parse_rings() {
    std::map<std::pair<std::uint32_t, std::vector<std::byte>>, std::string>
        seen;  // ID and magic: how packets tell them apart
    for (const std::string& text : options.rings) {
      RingConfig ring = netreduce::parse_ring(text);
      const auto magic = std::span(ring.layout.magic).first(ring.layout.magic_bytes);
      const auto [other, is_new] = seen.try_emplace({ring.ring, {magic.begin(), magic.end()}}, text);
      if (!is_new) {
        throw Error(ErrorCode::bad_argument,
                    "rings '" + other->second + "' and '" + text + "' cannot be told apart: give them IDs of their own");
      }
      ring.incarnation = system_random();
      rings.push_back(std::move(ring));
    }
  }

  void add_rings() {
    for (const RingConfig& ring : rings) {
      if (!add_ring(ring)) throw Error(ErrorCode::internal, "a random number was issued twice");
      log("ring " + std::to_string(ring.ring) + ": " + std::to_string(ring.members) + " ranks, " +
          std::to_string(memory.at(ring.incarnation).bytes().size() >> 10) + " KiB of packet buffers");
    }
    if (rings.empty() && options.listen.empty()) log("warning: no --ring: this only bridges");
  }

  [[nodiscard]] bool add_ring(const RingConfig& ring) {
    const auto [place, is_new] = memory.try_emplace(ring.incarnation, netreduce::Accelerator::memory_bytes(ring));
    if (is_new && bump->accelerator().add_ring(ring, place->second.bytes())) return true;
    if (is_new) memory.erase(place);
    return false;
  }

  void start_job(const session::StartJob& start) {
    const RingConfig ring = session::tunnel_ring(start, 0).ring;
    bool added = false;
    loop->call([&] {
      added = add_ring(ring);
      if (added && !options.state.empty()) save();
    });
    if (!added) throw Error(ErrorCode::internal, "two ranks, of this job or others, have the same queue pair");
  }

  // Its connections stay known: what still comes of them does not pass.
  void stop_job(std::uint64_t epoch) {
    const std::uint64_t incarnation = session::incarnation_of(epoch, 0);
    loop->call([&] {
      bump->accelerator().remove_ring(incarnation);
      memory.erase(incarnation);
    });
  }

  [[nodiscard]] session::JobView look(std::uint64_t epoch) const {
    session::JobView view;
    loop->call([&] {
      const netreduce::Accelerator& accelerator = bump->accelerator();
      const std::uint64_t incarnation = session::incarnation_of(epoch, 0);
      if (const auto mismatch = accelerator.mismatch(incarnation)) {
        view.mismatch = "ranks " + std::to_string(mismatch->first_rank) + " and " + std::to_string(mismatch->second_rank) +
                        " issued different calls as message " + std::to_string(mismatch->message);
      }
      if (const auto stall = accelerator.stall(incarnation)) view.missing = stall->missing;
    });
    return view;
  }

  // What a former life knew, so that packets of its connections do not pass as they are.
  void restore() {
    if (options.state.empty()) {
      log("warning: no --state FILE: after a restart, gradients of connections that this life knew pass unsummed");
      return;
    }
    const std::vector<netreduce::Connection> known = read_connections(options.state);
    write_connections(options.state, known);  // or it could not be done when it matters
    for (const netreduce::Connection& connection : known) bump->accelerator().know(connection, started);
    if (!known.empty()) log(std::to_string(known.size()) + " gradient connections are known from '" + options.state + "'");
    bump->accelerator().on_learned([this](const netreduce::Connection&) { save(); });
  }

  // On the loop's thread, which waits for the disk: once for each connection, in its whole life.
  void save() {
    try {
      write_connections(options.state, bump->accelerator().known());
    } catch (const std::exception& error) {
      log("error: " + std::string(error.what()) + ": do not restart before the hosts have");
    }
  }

  void forget(Time now) {
    next_forget = now + forget_every;
    netreduce::Accelerator& accelerator = bump->accelerator();
    const std::size_t before = accelerator.known().size();
    accelerator.forget(now - forgotten_after);
    if (!options.state.empty() && accelerator.known().size() != before) save();
  }

  void bridge() {
    if (options.ports.size() < 2) {
      throw Error(ErrorCode::bad_argument,
                  "a bump in the wire has two ports or more (--port eth:IFNAME or --port qemu:LOCAL,REMOTE, each)");
    }
    auto owned = std::make_unique<transport::PortSet>(transport::open_ports(options.ports));
    ports = owned.get();
    for (std::size_t number = 0; number < options.ports.size(); ++number) {
      if (const std::string warning = ports->port(number).warning(); !warning.empty()) log("warning: " + warning);
    }
    netreduce::BridgeConfig config;
    config.ports.assign(ports->endpoints().begin(), ports->endpoints().end());
    bump = std::make_unique<Bump>(config);
    add_rings();
    restore();
    next_forget = started + forget_every;
    loop = std::make_unique<runtime::PacketLoop>(
        std::move(owned), 0, runtime::ThreadOptions{.pin = options.pin_thread},
        [this](std::span<const RxView> frames, Time now, transport::Transport& transport) {
          bump->on_packets(frames, now, transport.sink());
          if (now >= next_forget) forget(now);
        });
  }

  void listen() {
    control::ServerHooks hooks;
    hooks.lanes = [] { return std::vector<Endpoint>(); };  // nobody sends to a bump
    hooks.start_job = [this](const session::StartJob& start) { start_job(start); };
    hooks.stop_job = [this](const session::StopJob& stop) { stop_job(stop.job_epoch); };
    hooks.look = [this](std::uint64_t epoch) { return look(epoch); };
    hooks.fill_report = [this](telemetry::Report& report) { fill(report); };
    hooks.log = options.log;
    if (!options.listen.empty()) {
      control::ServerOptions control;
      control.listen = options.listen;
      control.token = options.token;
      control.tls_cert = options.tls_cert;
      control.tls_key = options.tls_key;
      control.registry.protocols = {bump_rules()};
      control.registry.slots = options.slots;
      control.registry.heartbeat_timeout = std::chrono::milliseconds(options.heartbeat_timeout_ms);
      server = std::make_unique<control::Server>(std::move(control), std::move(hooks));
    }
    if (!options.metrics.empty()) {
      metrics = std::make_unique<telemetry::MetricsServer>(options.metrics, [this] {
        if (server) return server->report();
        telemetry::Report report;
        fill(report);
        return report;
      });
    }
  }

  void fill(telemetry::Report& report) const {
    report.version = NETSUM_VERSION;
    report.lanes = 1;
    report.uptime_seconds = std::chrono::duration<double>(runtime::now() - started).count();
    loop->call([&] {
      report.counters = collective::counters_of(ports->counters());
      const auto append = [&](const Counters& more) {
        report.counters.insert(report.counters.end(), more.begin(), more.end());
      };
      append(counters_of(*bump));
      for (std::size_t number = 0; number < ports->endpoints().size(); ++number) {
        append(counters_of(number, ports->port(number).counters()));
      }
      for (telemetry::JobReport& job : report.jobs) describe(job, session::incarnation_of(job.job.job_epoch, 0));
      for (const RingConfig& ring : rings) report.jobs.push_back(report_of(ring));
    });
  }

  // A ring in the place of a job, a message in that of an operation.
  [[nodiscard]] telemetry::JobReport report_of(const RingConfig& ring) const {
    const netreduce::Accelerator& accelerator = bump->accelerator();
    telemetry::JobReport report;
    report.job.job = "ring " + std::to_string(ring.ring);
    report.job.job_epoch = ring.incarnation;
    report.job.world_size = ring.members;
    report.job.packet_elements = ring.mtu / static_cast<std::uint32_t>(bytes_of(ring.dtype));
    report.job.slots = 2 * ring.window;
    report.job.joined = accelerator.bound(ring.incarnation);
    report.job.running = report.job.joined == RankSet::first(ring.members);
    describe(report, ring.incarnation);
    return report;
  }

  void describe(telemetry::JobReport& report, std::uint64_t incarnation) const {
    const netreduce::Accelerator& accelerator = bump->accelerator();
    const netreduce::RingCounters* const counters = accelerator.ring_counters(incarnation);
    report.counters = collective::counters_of(counters == nullptr ? netreduce::RingCounters{} : *counters);
    if (const auto stall = accelerator.stall(incarnation)) {
      report.stalled.push_back({stall->message, stall->packet, static_cast<std::uint32_t>(stall->message % report.job.slots),
                                members(stall->missing, report.job.world_size)});
    }
  }
};

BumpDaemon::BumpDaemon(const BumpOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->parse_rings();
  impl_->bridge();
  impl_->listen();
}

BumpDaemon::BumpDaemon(BumpDaemon&&) noexcept = default;

BumpDaemon::~BumpDaemon() {
  if (!impl_) return;
  impl_->metrics.reset();
  impl_->server.reset();
  impl_->loop.reset();
}

std::string BumpDaemon::address() const {
  return impl_->server ? impl_->server->address() : "";
}

std::string BumpDaemon::summary() const {
  telemetry::Report report;
  impl_->fill(report);
  std::uint64_t received = 0, sent = 0, dropped = 0, sums = 0;
  const auto is_drop = [](const std::string& name) { return name.find("dropped_") != std::string::npos; };
  for (const auto& [name, value] : report.counters) {
    if (name == "packets_received") received = value;
    if (name == "packets_sent") sent = value;
    if (is_drop(name)) dropped += value;
  }
  for (const telemetry::JobReport& ring : report.jobs) {
    for (const auto& [name, value] : ring.counters) {
      if (name == "sums") sums += value;
      if (is_drop(name)) dropped += value;
    }
  }
  return std::to_string(received) + " frames received, " + std::to_string(sent) + " sent, " + std::to_string(sums) +
         " packets summed, " + std::to_string(dropped) + " frames dropped";
}

}  // namespace netsum::collective
