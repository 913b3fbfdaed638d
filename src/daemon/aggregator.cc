#include "netsum/aggregator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "control/server.h"
#include "daemon/broker.h"
#include "daemon/counters.h"
#include "daemon/data_sockets.h"
#include "daemon/proved_endpoints.h"
#include "daemon/service.h"
#include "daemon/switches.h"
#include "runtime/switch_lane.h"
#include "session/atp_job.h"
#include "session/installations.h"
#include "session/netreduce_job.h"
#include "session/parts.h"
#include "telemetry/metrics_server.h"
#include "transport/addresses.h"
#include "transport/multicast.h"
#include "version.h"

namespace netsum {
namespace {

using telemetry::Counters;

// How long the lanes of a stopping aggregator still answer "unknown job": a worker with a chunk in flight retransmits within
// WorkerConfig::max_timeout.
constexpr std::chrono::milliseconds farewell{300};

Counters counters_of(const netreduce::Tunnel& tunnel) {
  const netreduce::TunnelCounters& t = tunnel.counters();
  std::uint64_t malformed = 0;
  for (const std::uint64_t count : t.malformed) malformed += count;
  return {{"roce_passed", t.passed},
          {"roce_taken", t.taken},
          {"dropped_roce_malformed", malformed},
          {"dropped_roce_unknown", t.unknown},
          {"dropped_roce_source", t.dropped_source},
          {"dropped_roce_known", tunnel.accelerator().counters().dropped_known}};
}

// A malformed packet counts once, whatever its format.
Counters counters_of(const switchml::SwitchCounters& switchml, const atp::Switch* atp, const transport::Counters& t) {
  switchml::SwitchCounters s = switchml;
  std::uint64_t reclaimed = 0, pool_in_use = 0;
  if (atp != nullptr) {
    const atp::SwitchCounters& a = atp->counters();
    for (std::size_t i = 0; i < std::size(s.malformed); ++i) s.malformed[i] += a.malformed[i];
    s.unknown_job += a.unknown_job;
    s.unknown_job_replies += a.unknown_job_replies;
    s.unexpected_type += a.unexpected_type;
    reclaimed = a.reclaimed;
    pool_in_use = atp->slots_in_use();
  }
  Counters counters = daemon::counters_of(t);
  counters.add({{"probes", s.probes},
                {"dropped_unknown_job", s.unknown_job},
                {"unknown_job_replies", s.unknown_job_replies},
                {"dropped_unexpected_type", s.unexpected_type},
                {"pool_slots_in_use", pool_in_use},
                {"pool_slots_reclaimed", reclaimed}});
  daemon::append_malformed(counters, s.malformed);
  return counters;
}

}  // namespace

struct Aggregator::Impl {
  AggregatorOptions options;
  std::optional<transport::GroupRange> groups;
  std::uint64_t receive_bytes = 0;  // of each lane's buffer
  daemon::DataPlane plane;
  std::map<std::string, std::unique_ptr<daemon::Service>> services;  // by the protocol's name

  // A job that lanes serve.
  struct Served {
    std::shared_ptr<daemon::ServedJob> job;
    std::optional<session::JobStatus> installed;  // of a job whose ranks join elsewhere
  };
  std::map<std::uint64_t, Served> jobs;  // by epoch
  mutable std::mutex jobs_mutex;         // guards `jobs`; never wait while holding it
  std::optional<session::Parts> parts;   // of pools; only the control plane's own thread uses it

  std::unique_ptr<daemon::Broker> broker;  // outlives the server, which tells it of jobs
  std::unique_ptr<control::Server> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;
  const pid_t owner = getpid();
  std::atomic<bool> closing = false, jobs_stopped = false;

  void open_lanes() {
    atp::SwitchConfig pool;
    pool.slots = options.pool_slots;
    pool.packet_elements = options.pool_elements;
    std::uint32_t index = 0;
    const daemon::DataSocketsConfig sockets{options.listen,    options.threads, options.loss,
                                            options.loss_seed, options.log,     groups.has_value()};
    for (auto& socket : daemon::open_data_sockets(sockets)) {
      const std::uint64_t mark_bytes = daemon::mark_bytes(*socket);
      receive_bytes = socket->receive_buffer_bytes();
      const runtime::ThreadOptions threads{options.pin_threads, options.busy_poll};
      plane.lanes.push_back(
          std::make_unique<runtime::SwitchLane>(std::move(socket), pool, mark_bytes, index++, threads, plane.cookies));
    }
  }

  // Of all lanes, for ATP.
  [[nodiscard]] std::uint64_t pool_bytes() const {
    return plane.lanes.size() *
           atp::Switch::memory_bytes({.slots = options.pool_slots, .packet_elements = options.pool_elements});
  }

  // ---- jobs, on the control plane's own thread

  [[nodiscard]] std::shared_ptr<daemon::ServedJob> find(std::uint64_t epoch) const {
    const std::lock_guard lock(jobs_mutex);
    const auto found = jobs.find(epoch);
    return found == jobs.end() ? nullptr : found->second.job;
  }

  void start_job(const session::StartJob& start) {
    auto job = services.at(start.protocol)->start(start);
    const std::lock_guard lock(jobs_mutex);
    jobs[start.admission.job_epoch] = {std::move(job), {}};
  }

  void stop_job(std::uint64_t epoch) {
    Served served;
    {
      const std::lock_guard lock(jobs_mutex);
      if (auto found = jobs.extract(epoch)) served = std::move(found.mapped());
    }
    if (served.job) served.job->stop();
  }

  void install(const session::Installation& installation, const control::Caller& caller) {
    const std::uint64_t epoch = installation.job_epoch;
    const auto former = find(epoch);
    const std::string why = parts->take(epoch, installation.job, installation.part);
    if (!why.empty()) throw Error(ErrorCode::refused, why);
    try {
      keep(daemon::install_part(plane, installation, caller, former));
    } catch (...) {
      if (!former) parts->release(epoch);
      throw;
    }
  }

  // Part of a tree of switches: a ring of a job whose ranks join elsewhere.
  [[nodiscard]] session::JobView install_ring(const session::RingInstallation& installation, const control::Caller& caller) {
    if (const auto known = find(installation.start.admission.job_epoch)) return known->look();
    keep(daemon::install_part(plane, installation, caller));
    return {};
  }

  void keep(daemon::Part part) {
    part.status.world_size = part.status.joined.size();  // only those below this switch
    part.status.running = true;
    const std::uint64_t epoch = part.status.job_epoch;
    const std::lock_guard lock(jobs_mutex);
    jobs[epoch] = {std::move(part.job), std::move(part.status)};
  }

  void uninstall(std::uint64_t epoch) {
    stop_job(epoch);
    parts->release(epoch);
  }

  [[nodiscard]] session::JobView look(std::uint64_t epoch) const {
    const auto job = find(epoch);
    return job ? job->look() : session::JobView{};
  }

  // ---- calls from other threads

  void place(const session::StartJob& start, const control::SwitchLanes& switches) const {
    if (const auto job = find(start.admission.job_epoch)) job->place(start, switches);
  }

  [[nodiscard]] session::RingInstallation describe(const session::StartJob& start, std::uint32_t a_switch, bool again,
                                                   const control::SwitchLanes& switches) const {
    return {start, a_switch, again, switches, daemon::own_endpoints(own_lanes(), switches[a_switch].front())};
  }

  [[nodiscard]] std::vector<Endpoint> own_lanes() const {
    std::vector<Endpoint> endpoints;
    for (const auto& lane : plane.lanes) endpoints.push_back(lane->local());
    return endpoints;
  }

  // A job's groups, one per lane.
  [[nodiscard]] std::vector<Endpoint> groups_of(const std::string& job) const {
    std::vector<Endpoint> of_lanes;
    for (std::size_t lane = 0; groups && lane < plane.lanes.size(); ++lane) of_lanes.push_back(groups->group_of(job, lane));
    return of_lanes;
  }

  void fill(telemetry::Report& report) const {
    report.version = NETSUM_VERSION;
    std::vector<std::shared_ptr<daemon::ServedJob>> served;  // of the report's jobs; null: no lane serves it
    {
      const std::lock_guard lock(jobs_mutex);
      for (const auto& [epoch, job] : jobs) {
        if (job.installed) report.jobs.push_back({*job.installed, {}, {}});
      }
      for (const telemetry::JobReport& job : report.jobs) {
        const auto found = jobs.find(job.job.job_epoch);
        served.push_back(found == jobs.end() ? nullptr : found->second.job);
      }
    }
    for (std::size_t lane = 0; lane < plane.lanes.size(); ++lane) {
      plane.lanes[lane]->inspect([&](const runtime::SwitchLane::State& state) {
        report.counters.add(counters_of(state.switchml.counters(), state.atp, state.transport));
        report.counters.add(counters_of(state.netreduce));
        for (std::size_t i = 0; i < served.size(); ++i) {
          if (served[i]) served[i]->report(lane, state, report.jobs[i]);
        }
      });
    }
  }
};

Aggregator::Aggregator(const AggregatorOptions& options) : impl_(std::make_unique<Impl>()) {
  if (options.threads == 0 || options.threads > 64) throw Error(ErrorCode::bad_argument, "threads must be between 1 and 64");
  if (options.pool_slots == 0 || options.pool_elements == 0 || options.pool_elements > wire::atp::max_packet_elements) {
    throw Error(ErrorCode::bad_argument, "an ATP pool has at least one slot, of 1 to " +
                                             std::to_string(wire::atp::max_packet_elements) + " elements");
  }
  if (!options.multicast.empty()) {
    impl_->groups.emplace(options.multicast);
    if (!transport::is_ipv4(transport::resolve(options.listen))) {
      throw Error(ErrorCode::bad_argument, "results by multicast (" + options.multicast +
                                               ") are of IPv4: listen at an IPv4 address, not " + options.listen);
    }
    if (impl_->groups->port() + options.threads - 1 > 65535) {
      throw Error(ErrorCode::bad_argument, "the groups of " + std::to_string(options.threads) +
                                               " threads have no ports from " + std::to_string(impl_->groups->port()) +
                                               " on: give a lower one");
    }
  }
  impl_->options = options;
  impl_->plane.pool_slots = options.pool_slots;
  impl_->plane.groups = impl_->groups ? &*impl_->groups : nullptr;
  impl_->plane.cookies = daemon::cookies_of(options.listen, options.daemon_token);
  impl_->plane.log = [log = options.log](const std::string& line) {
    if (log) log(line);
  };
  impl_->parts.emplace(options.pool_slots);
  impl_->open_lanes();

  control::ServerOptions server;
  server.listen = options.listen;
  server.token = options.token;
  server.tenants = options.tenants;
  server.registry.memory_bytes = options.memory_bytes;
  server.tls_cert = options.tls_cert;
  server.tls_key = options.tls_key;
  server.daemon_token = options.daemon_token;
  server.registry.lanes = options.threads;
  server.registry.switch_parents = options.switch_parents;
  server.registry.slots = options.slots;
  server.registry.receive_bytes = impl_->receive_bytes;
  server.registry.check_endpoints = [cookies = impl_->plane.cookies](const session::JoinRequest& request) {
    return daemon::check_endpoints(request, cookies);
  };
  server.registry.protocols.clear();
  for (auto make : {&daemon::make_switchml_service, &daemon::make_netreduce_service}) {
    std::unique_ptr<daemon::Service> service = make(impl_->plane);
    server.registry.protocols.push_back(service->rules());
    impl_->services[server.registry.protocols.back().name] = std::move(service);
  }
  server.registry.heartbeat_timeout = std::chrono::milliseconds(options.heartbeat_timeout_ms);
  server.switches = daemon::switch_teller_options(options, "aggregator", server.registry);
  Impl* const impl = impl_.get();
  control::ServerHooks hooks;
  hooks.lanes = [impl] { return impl->own_lanes(); };
  hooks.same_host = daemon::is_of_this_host;
  hooks.groups = [impl](const std::string& job) { return impl->groups_of(job); };
  hooks.start_job = [impl](const session::StartJob& start) { impl->start_job(start); };
  hooks.stop_job = [impl](const session::StopJob& stop) {
    if (impl->closing) impl->jobs_stopped = true;
    impl->stop_job(stop.job_epoch);
  };
  hooks.look = [impl](std::uint64_t epoch) { return impl->look(epoch); };
  hooks.fill_report = [impl](telemetry::Report& report) { impl->fill(report); };
  hooks.pool_bytes = impl->pool_bytes();
  hooks.pool = [impl] { return std::pair(impl->options.pool_slots, impl->options.pool_elements); };
  hooks.install = [impl](const session::Installation& installation, const control::Caller& caller) {
    impl->install(installation, caller);
  };
  hooks.install_ring = [impl](const session::RingInstallation& installation, const control::Caller& caller) {
    return impl->install_ring(installation, caller);
  };
  hooks.switches.complete = &daemon::complete_lanes;
  hooks.switches.place = [impl](const session::StartJob& start, const control::SwitchLanes& switches) {
    impl->place(start, switches);
  };
  hooks.switches.describe = [impl](const session::StartJob& start, std::uint32_t a_switch, bool again,
                                   const control::SwitchLanes& switches) {
    return impl->describe(start, a_switch, again, switches);
  };
  hooks.uninstall = [impl](std::uint64_t epoch) { impl->uninstall(epoch); };
  hooks.log = options.log;
  impl->broker = std::make_unique<daemon::Broker>(options.local_users, [impl](std::uint64_t job_epoch, std::uint32_t rank) {
    if (impl->server) impl->server->lose(job_epoch, rank, "its connection to the aggregator has ended");
  });
  impl->plane.broker = impl->broker.get();
  hooks.local_socket = impl->broker->name();
  impl_->server = std::make_unique<control::Server>(std::move(server), std::move(hooks));
  if (!options.metrics.empty()) {
    impl_->metrics = std::make_unique<telemetry::MetricsServer>(telemetry::metrics_address(options.metrics, options.listen),
                                                                [impl] { return impl->server->report(); });
  }
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
  if (!impl_) return;
  if (getpid() != impl_->owner) {  // a child of fork() has none of the threads
    static_cast<void>(impl_.release());
    return;
  }
  impl_->metrics.reset();
  impl_->closing = true;
  impl_->broker->silence();
  impl_->server.reset();
  if (impl_->jobs_stopped) std::this_thread::sleep_for(farewell);
}

void Aggregator::set_tenants(std::vector<Tenant> tenants) {
  impl_->server->set_tenants(std::move(tenants));
}

std::string Aggregator::address() const {
  return impl_->server->address();
}

}  // namespace netsum
