#include "daemon/bump_daemon.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/counters.h"
#include "control/fingerprint.h"
#include "control/server.h"
#include "daemon/background.h"
#include "daemon/bump_rings.h"
#include "daemon/data_sockets.h"
#include "daemon/learned_connections.h"
#include "daemon/proved_endpoints.h"
#include "daemon/ring_settings.h"
#include "daemon/ring_watch.h"
#include "daemon/served_jobs.h"
#include "daemon/switches.h"
#include "daemon/wire_lane.h"
#include "jobs/netreduce_job.h"
#include "netsum/error.h"
#include "protocol/netreduce/bump.h"
#include "protocol/netreduce/ring_text.h"
#include "runtime/memory.h"
#include "runtime/packet_loop.h"
#include "runtime/ring_threads.h"
#include "runtime/thread.h"
#include "service/netreduce_service.h"
#include "service/stalled_chunks.h"
#include "telemetry/metrics_server.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/udp.h"
#include "transport/ports/port_set.h"
#include "transport/system/random.h"
#include "wire/ethernet.h"

namespace netsum::daemon {
namespace {

using netreduce::Bump;
using netreduce::Connection;
using netreduce::ConnectionChange;
using netreduce::HostAddress;
using netreduce::RingConfig;
using telemetry::Counters;

// A connection without a ring that was silent for so long has no packet left in flight: hosts give up, or retransmit,
// sooner.
constexpr Duration forgotten_after = std::chrono::minutes(10);
constexpr Duration forget_every = std::chrono::minutes(1);
constexpr Duration look_every = std::chrono::seconds(1);

Counters counters_of(const Bump& bump) {
  const netreduce::BridgeCounters& bridge = bump.bridge().counters();
  const netreduce::AcceleratorCounters& accelerator = bump.accelerator().counters();
  std::uint64_t unreadable = 0, misfits = 0;
  for (const std::uint64_t count : bump.counters().unreadable) unreadable += count;
  for (const std::uint64_t count : accelerator.dropped_misfit) misfits += count;
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
          {"roce_passed_on_rings", accelerator.passed_other},
          {"roce_unmarked", accelerator.unmarked},
          {"dropped_roce_known", accelerator.dropped_known},
          {"dropped_roce_nowhere", accelerator.dropped_nowhere},
          {"dropped_roce_unmatched", misfits},
          {"dropped_roce_restart", accelerator.dropped_restart},
          {"dropped_roce_damaged", accelerator.dropped_damaged},
          {"dropped_roce_trains", bump.counters().dropped_trains},
          {"dropped_roce_unreadable", bump.counters().dropped_unreadable},
          {"dropped_roce_virtual", bump.counters().dropped_virtual}};
}

// Of datagrams.
Counters counters_of(const netreduce::TunnelCounters& tunnel) {
  return {{"datagrams_taken", tunnel.taken},
          {"dropped_datagram_unknown", tunnel.strangers() - tunnel.dropped_source},
          {"dropped_datagram_source", tunnel.dropped_source}};
}

Counters counters_of(const netreduce::LearnedRacksCounters& racks) {
  return {{"agreements_ready", racks.ready},
          {"agreements_begin", racks.begin},
          {"agreements_over", racks.over},
          {"agreements_ask", racks.ask},
          {"ring_lives", racks.lives},
          {"dropped_agreement_malformed", racks.malformed},
          {"dropped_agreement_unknown", racks.strangers},
          {"dropped_agreement_differing", racks.differing}};
}

Counters counters_of(std::size_t number, const transport::PortCounters& port) {
  const std::string name = "port" + std::to_string(number) + "_";
  return {{name + "frames_received", port.frames_received},
          {name + "frames_sent", port.frames_sent},
          {name + "dropped_overrun", port.dropped_overrun},
          {name + "dropped_unreadable", port.dropped_unreadable},
          {name + "dropped_full", port.dropped_full},
          {name + "dropped_refused", port.dropped_refused},
          {name + "dropped_train", port.dropped_train},
          {name + "dropped_malformed", port.dropped_malformed},
          {name + "marked", port.marked}};
}

}  // namespace

struct BumpDaemon::Impl {
  BumpOptions options;
  transport::PortSet* ports = nullptr;  // the loop's
  std::vector<HostAddress> hosts;
  std::optional<BumpRings> rings;
  std::unique_ptr<Bump> bump;
  const Time started = runtime::now();
  std::unique_ptr<runtime::PacketLoop> loop;           // its thread uses all above
  std::unique_ptr<runtime::RingThreads> ring_threads;  // that loop's thread hands rings over to; null: it serves them itself

  // Used only by the background thread.
  std::optional<LearnedConnections> learned;
  Time next_forget{};
  std::optional<RingWatch> watch;
  std::unique_ptr<Background> background;

  // They serve the rings that ranks have named.
  std::optional<WireLane> lane;
  std::optional<ServedJobs> jobs;
  std::unique_ptr<control::Server> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;

  ~Impl() {
    metrics.reset();
    server.reset();
    jobs.reset();
    background.reset();
    if (loop && ring_threads) {
      on_packet_thread([this] { bump->accelerator().serve_by(nullptr); });
      ring_threads.reset();  // before the ports that it sends through
    }
    loop.reset();
  }

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  // Between batches, when no other thread uses rings.
  void on_packet_thread(const std::function<void()>& command) const {
    loop->call([&] {
      if (ring_threads) ring_threads->wait_until_idle();
      command();
    });
  }

  // Ranks send once told that the job has begun; that waits until their connections are on the disk.
  void record(const RingConfig& ring) {
    background->call([&] {
      learned->add(ring);
      commit();
    });
  }

  // Restores the former process's connections, so that their packets do not pass as they are.
  void restore() {
    netreduce::Accelerator& accelerator = bump->accelerator();
    accelerator.learn({hosts, !options.state.empty()});
    accelerator.on_change([this](const ConnectionChange& change) { background->post([this, change] { note(change); }); });
    if (options.state.empty()) {
      log("warning: without --state FILE a restarted bump forgets its connections, and their gradients pass unsummed");
    }
    learned.emplace(options.state, [this](const std::string& line) { log(line); });
    const std::vector<netreduce::KnownConnection> known = learned->known();
    for (const netreduce::KnownConnection& connection : known) accelerator.know(connection, started);
    if (!known.empty())
      log(std::to_string(known.size()) + " gradient connections were restored from '" + options.state + "'");
  }

  // ---- on the background's thread

  void note(const ConnectionChange& change) {
    learned->note(change);
    watch->on_change(change);
  }

  // Commits, and releases all that waits for the disk: the first sums on learned connections (LearningConfig::record), and
  // ranks that join.
  void commit() {
    const std::vector<Connection> recorded = learned->commit(runtime::now());
    if (recorded.empty()) return;
    on_packet_thread([&] {
      for (const Connection& connection : recorded) bump->accelerator().recorded(connection, ports->sink());
      ports->sink().flush();
    });
  }

  void look_after() {
    std::vector<std::string> of_ports;
    BumpLook look;
    const Time now = runtime::now();
    on_packet_thread([&] {
      of_ports = ports->look_after();
      if (now >= next_forget) {
        next_forget = now + forget_every;
        bump->accelerator().forget(now - forgotten_after);
      }
      look = rings->look(*bump);
    });
    for (const std::string& words : of_ports) log(words);
    watch->on_look(look, runtime::now());
  }

  // ----

  // Null: of one rack.
  [[nodiscard]] std::unique_ptr<transport::Udp> open_socket() const {
    if (!options.racks) return nullptr;
    transport::UdpOptions udp;
    udp.bind = transport::resolve(options.listen);
    udp.ipv6 = !transport::is_ipv4(udp.bind);
    auto socket = std::make_unique<transport::Udp>(udp);
    if (const std::string warning = socket->buffer_warning(); !warning.empty()) log("warning: " + warning);
    return socket;
  }

  void bridge() {
    transport::PortOptions port_options;
    port_options.mark = wire::ethernet::mark_congestion;
    port_options.own_source = options.one_arm;
    auto owned = std::make_unique<transport::PortSet>(transport::open_ports(options.ports, port_options), open_socket());
    ports = owned.get();
    std::vector<Sink*> sinks;
    while (sinks.size() + 1 < options.threads) sinks.push_back(&owned->other_sink());
    for (std::size_t number = 0; number < options.ports.size(); ++number) {
      if (const std::string warning = ports->port(number).warning(); !warning.empty()) log("warning: " + warning);
    }
    netreduce::BridgeConfig config;
    config.ports.assign(ports->endpoints().begin(), ports->endpoints().end());
    config.one_arm = options.one_arm;
    bump = std::make_unique<Bump>(config);
    const auto say = [this](const std::string& line) { log(line); };
    rings->add_to(*bump, say);
    if (rings->configs().empty() && options.listen.empty()) {
      log("warning: no --ring is given: this bump only forwards packets");
    }
    restore();
    next_forget = started + forget_every;
    watch.emplace(rings->configs(), say);
    const runtime::ThreadOptions thread_options{.pin = options.pin_threads};
    if (!sinks.empty()) {
      runtime::RingThreads::Options ring_options;
      ring_options.threads = thread_options;
      ring_options.mark = wire::ethernet::mark_congestion;
      ring_threads = std::make_unique<runtime::RingThreads>(sinks, ring_options);
      bump->accelerator().serve_by(ring_threads.get());
    }
    loop = std::make_unique<runtime::PacketLoop>(
        std::move(owned), 0, thread_options,
        [this](std::span<const RxView> frames, Time now, transport::Transport& transport) {
          const auto datagrams =
              static_cast<std::size_t>(std::find_if(frames.rbegin(), frames.rend(),
                                                    [](const RxView& each) { return transport::is_port(each.source); }) -
                                       frames.rbegin());
          bump->on_packets(frames.first(frames.size() - datagrams), now, transport.sink());
          bump->on_datagrams(frames.last(datagrams), now, transport.sink());
          transport.sink().flush();
          if (ring_threads) ring_threads->end_batch();
          return bump->tunnel().counters().strangers();  // none among frames: a bridge forwards all
        });
    background = std::make_unique<Background>(
        look_every, [this] { commit(); }, [this] { look_after(); });
  }

  void serve_jobs(control::ServerHooks& hooks) {
    lane.emplace(*loop, [this](const std::function<void()>& command) { on_packet_thread(command); });
    service::NetReduceService::Wire wire{bump->tunnel(), options.racks, {}, {}};
    wire.check = [this](const RingConfig& ring) { check_hosts(ring, hosts); };
    wire.record = [this](const RingConfig& ring) { record(ring); };
    std::vector<std::unique_ptr<service::Service>> services;
    services.push_back(std::make_unique<service::NetReduceService>(*lane, std::move(wire)));
    jobs.emplace(
        std::move(services), [this] { return options.racks ? std::vector{loop->local()} : std::vector<Endpoint>(); },
        [](const std::vector<session::Destination>& destinations, const control::Caller& caller) {
          check_destinations(destinations, caller, EndpointCookies());
        },
        [this](std::size_t, const Endpoint& to, const Endpoint& own) { loop->send_from(to, own); });
    jobs->serve(hooks);
    if (!options.racks) hooks.switches = {};
  }

  void listen() {
    control::ServerHooks hooks;
    serve_jobs(hooks);
    hooks.fill_report = [this](telemetry::Report& report) { fill(report); };
    hooks.log = options.log;
    if (!options.listen.empty()) {
      control::ServerOptions control;
      control.listen = options.listen;
      control.token = options.token;
      control.tls_cert = options.tls_cert;
      control.tls_key = options.tls_key;
      control.flight_records = options.flight_records;
      control.daemon_token = options.daemon_token;
      control.registry.protocols = jobs->rules();
      control.registry.switch_parents = options.switch_parents;
      control.registry.slots = options.slots;
      control.registry.heartbeat_timeout = std::chrono::milliseconds(options.heartbeat_timeout_ms);
      control.switches =
          switch_teller_options({options.token, options.daemon_token}, options.tls_ca, "bump", control.registry);
      control.switches.in_wire = true;
      server = std::make_unique<control::Server>(std::move(control), std::move(hooks));
    }
    if (!options.metrics.empty()) {
      metrics = std::make_unique<telemetry::MetricsServer>(
          telemetry::metrics_address(options.metrics, options.listen),
          [this] {
            if (server) return server->report();
            telemetry::Report report;
            fill(report);
            return report;
          },
          telemetry::PageAdmittance(), [this] { return !server || server->alive(); });
    }
  }

  void fill(telemetry::Report& report) const {
    report.version = control::version();
    report.daemon = "bump";
    report.lanes = 1;
    report.uptime_seconds = std::chrono::duration<double>(runtime::now() - started).count();
    jobs->fill(report, 0, {});
    on_packet_thread([&] {
      report.counters = named(ports->counters());
      report.counters.add(counters_of(*bump));
      if (options.racks) {
        report.counters.add(counters_of(bump->tunnel().counters()));
        report.counters.add(counters_of(bump->learned_racks().counters()));
      }
      for (std::size_t number = 0; number < ports->endpoints().size(); ++number) {
        report.counters.add(counters_of(number, ports->port_counters(number)));
      }
      if (ring_threads) {
        report.counters.add({{"dropped_ring_queue_full", ring_threads->counters().dropped_full},
                             {"ring_queue_marked", ring_threads->counters().marked}});
      }
      for (telemetry::JobReport& job : report.jobs) describe(job, jobs::incarnation_of(job.job.job_epoch, 0));
      for (const RingConfig& ring : rings->configs()) report.jobs.push_back(report_of(ring));
    });
  }

  // Reports a ring as a job, and a message as an operation.
  [[nodiscard]] telemetry::JobReport report_of(const RingConfig& ring) const {
    const netreduce::Accelerator& accelerator = bump->accelerator();
    telemetry::JobReport report;
    report.job.job = "ring " + std::to_string(ring.ring);
    report.job.job_epoch = ring.incarnation;
    report.job.world_size = ring.members;
    report.job.packet_elements = ring.mtu / static_cast<std::uint32_t>(bytes_of(ring.dtype));
    report.job.slots = 2 * ring.window;
    report.job.joined = accelerator.bound(ring.incarnation);
    report.job.running = rings->is_complete(*bump, ring);
    describe(report, ring.incarnation);
    return report;
  }

  void describe(telemetry::JobReport& report, std::uint64_t incarnation) const {
    const netreduce::Accelerator& accelerator = bump->accelerator();
    const netreduce::RingCounters* const counters = accelerator.ring_counters(incarnation);
    report.counters = named(counters == nullptr ? netreduce::RingCounters{} : *counters);
    if (const auto stall = accelerator.stall(incarnation)) service::add_stalled(report, *stall);
  }
};

BumpDaemon::BumpDaemon(const BumpOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->hosts = parse_hosts(options.hosts);
  const auto log = [this](const std::string& line) { impl_->log(line); };
  impl_->rings.emplace(parse_rings(options, impl_->hosts, log), impl_->options);
  check_wiring(options);
  impl_->bridge();
  impl_->listen();
}

BumpDaemon::BumpDaemon(BumpDaemon&&) noexcept = default;

BumpDaemon::~BumpDaemon() = default;

void BumpDaemon::reload_certificate() {
  if (impl_->server) impl_->server->reload_certificate();
}

bool BumpDaemon::alive() {
  return !impl_->server || impl_->server->alive();
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

}  // namespace netsum::daemon
