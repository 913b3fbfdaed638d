#include "daemon/bump_daemon.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/counters.h"
#include "control/fingerprint.h"
#include "control/server.h"
#include "daemon/background.h"
#include "daemon/bump_report.h"
#include "daemon/bump_rings.h"
#include "daemon/learned_connections.h"
#include "daemon/near_threads.h"
#include "daemon/proved_endpoints.h"
#include "daemon/ring_settings.h"
#include "daemon/ring_watch.h"
#include "daemon/served_jobs.h"
#include "daemon/switches.h"
#include "daemon/wire_lane.h"
#include "jobs/netreduce_job.h"
#include "protocol/netreduce/bump.h"
#include "runtime/packet_loop.h"
#include "runtime/ring_threads.h"
#include "runtime/thread.h"
#include "service/netreduce_service.h"
#include "telemetry/metrics_server.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/udp.h"
#include "transport/ports/port_set.h"
#include "transport/system/numa.h"
#include "wire/ethernet.h"

namespace netsum::daemon {
namespace {

using netreduce::Bump;
using netreduce::Connection;
using netreduce::ConnectionChange;
using netreduce::HostAddress;
using netreduce::RingConfig;

// A connection without a ring that was silent for so long has no packet left in flight: hosts give up, or retransmit,
// sooner.
constexpr Duration forgotten_after = std::chrono::minutes(10);
constexpr Duration forget_every = std::chrono::minutes(1);
constexpr Duration look_every = std::chrono::seconds(1);

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

  // Of a batch, frames come before datagrams. Returns how many datagrams so far were of nobody; no frame is: a bridge
  // forwards all.
  std::uint64_t on_batch(std::span<const RxView> batch, Time now, Sink& sink) {
    const auto last =
        std::find_if(batch.rbegin(), batch.rend(), [](const auto& each) { return transport::is_port(each.source); });
    const auto datagrams = static_cast<std::size_t>(last - batch.rbegin());
    bump->on_packets(batch.first(batch.size() - datagrams), now, sink);
    bump->on_datagrams(batch.last(datagrams), now, sink);
    sink.flush();
    if (ring_threads) ring_threads->end_batch();
    return bump->tunnel().counters().strangers();
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
    const runtime::ThreadOptions thread_options = near_threads(options.pin_threads, options.ports, options.listen);
    const auto open = [&] {
      const transport::MemoryOf near(thread_options.node);
      return std::make_unique<transport::PortSet>(transport::open_ports(options.ports, port_options), open_socket());
    };
    auto owned = open();
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
    if (!sinks.empty()) {
      runtime::RingThreads::Options ring_options;
      ring_options.threads = thread_options;
      ring_options.mark = wire::ethernet::mark_congestion;
      ring_threads = std::make_unique<runtime::RingThreads>(sinks, ring_options);
      bump->accelerator().serve_by(ring_threads.get());
    }
    loop = std::make_unique<runtime::PacketLoop>(
        std::move(owned), 0, thread_options,
        [this](std::span<const RxView> batch, Time now, transport::Transport& transport) {
          return on_batch(batch, now, transport.sink());
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
      report.counters.add(counters_of(*bump, options.racks));
      for (std::size_t number = 0; number < ports->endpoints().size(); ++number) {
        report.counters.add(counters_of(number, ports->port_counters(number)));
        const bool there = ports->port(number).attached();
        report.interfaces.push_back({options.ports[number], there, there ? "a port of the bump" : "it was removed"});
      }
      if (ring_threads) {
        report.counters.add({{"dropped_ring_queue_full", ring_threads->counters().dropped_full},
                             {"ring_queue_marked", ring_threads->counters().marked}});
      }
      for (telemetry::JobReport& job : report.jobs) {
        describe_ring(job, jobs::incarnation_of(job.job.job_epoch, 0), bump->accelerator());
      }
      for (const RingConfig& ring : rings->configs()) {
        report.jobs.push_back(report_of(ring, rings->is_complete(*bump, ring), bump->accelerator()));
      }
    });
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
  return summary_of(report);
}

}  // namespace netsum::daemon
