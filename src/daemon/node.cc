#include "daemon/node.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>

#include "runtime/aggregator_lane.h"
#include "telemetry/metrics_server.h"
#include "version.h"

namespace netsum::daemon {
namespace {

// How long the lanes of a stopping daemon still answer "unknown job": a worker with a chunk in flight retransmits within
// WorkerConfig::max_timeout.
constexpr std::chrono::milliseconds farewell{300};

}  // namespace

struct Node::Impl {
  // A job that lanes serve.
  struct Served {
    explicit Served(std::unique_ptr<service::ServedJob> served) : job(std::move(served)) {}

    const std::unique_ptr<service::ServedJob> job;
    std::mutex changing;                            // held while the job is changed
    std::optional<session::JobStatus> installed{};  // of a job whose ranks join elsewhere; guarded by `jobs_mutex`
  };

  NodeOptions options;
  std::vector<std::unique_ptr<runtime::AggregatorLane>> lanes;
  std::vector<std::unique_ptr<service::Service>> services;
  std::map<std::string, service::Service*> protocols;     // those that ranks join, by name
  std::map<std::uint64_t, std::shared_ptr<Served>> jobs;  // by epoch
  mutable std::mutex jobs_mutex;                          // guards `jobs`; never wait while holding it
  std::unique_ptr<control::Server> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;
  const pid_t owner = getpid();
  std::atomic<bool> closing = false, jobs_stopped = false;

  // ---- jobs, on the control plane's own thread

  [[nodiscard]] std::shared_ptr<Served> find(std::uint64_t epoch) const {
    const std::lock_guard lock(jobs_mutex);
    const auto found = jobs.find(epoch);
    return found == jobs.end() ? nullptr : found->second;
  }

  void start_job(const session::StartJob& start) {
    auto job = std::make_shared<Served>(protocols.at(start.protocol)->start(start));
    const std::lock_guard lock(jobs_mutex);
    jobs[start.admission.job_epoch] = std::move(job);
  }

  void stop_job(std::uint64_t epoch) {
    std::shared_ptr<Served> served;
    {
      const std::lock_guard lock(jobs_mutex);
      if (auto found = jobs.extract(epoch)) served = std::move(found.mapped());
    }
    if (!served) return;
    const std::lock_guard lock(served->changing);
    served->job->stop();
  }

  [[nodiscard]] bool takes(const session::SwitchMessage& message) const {
    return std::any_of(services.begin(), services.end(), [&](const auto& service) { return service->takes(message); });
  }

  session::JobView install(const session::SwitchMessage& message, const control::Caller& caller) {
    const std::uint64_t epoch = session::epoch_of(message);
    const auto service =
        std::find_if(services.begin(), services.end(), [&](const auto& each) { return each->takes(message); });
    const auto prove = [&](const session::SwitchMessage& each) {
      std::visit([&](const auto& told) { check_endpoints(told, caller, options.cookies); }, each);
    };
    auto served = find(epoch);
    service::Part part = (*service)->install(message, served ? served->job.get() : nullptr, prove);
    part.status.world_size = part.status.joined.size();  // only those below this switch
    part.status.running = true;
    const bool is_new = !served;
    if (is_new) served = std::make_shared<Served>(std::move(part.job));
    {
      const std::lock_guard lock(jobs_mutex);
      served->installed = std::move(part.status);
      jobs[epoch] = served;
    }
    return is_new ? session::JobView{} : served->job->look();
  }

  [[nodiscard]] session::JobView look(std::uint64_t epoch) const {
    const auto served = find(epoch);
    return served ? served->job->look() : session::JobView{};
  }

  void fill(telemetry::Report& report) const {
    report.version = NETSUM_VERSION;
    std::vector<std::shared_ptr<Served>> served;  // of the report's jobs; null: no lane serves it
    {
      const std::lock_guard lock(jobs_mutex);
      for (const auto& [epoch, job] : jobs) {
        if (job->installed) report.jobs.push_back({*job->installed, {}, {}});
      }
      for (const telemetry::JobReport& job : report.jobs) {
        const auto found = jobs.find(job.job.job_epoch);
        served.push_back(found == jobs.end() ? nullptr : found->second);
      }
    }
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane]->run([&] {
        report.counters.add(named(lanes[lane]->counters()));
        for (const auto& service : services) service->report(lane, report.counters);
        for (std::size_t i = 0; i < served.size(); ++i) {
          if (served[i]) served[i]->job->report(lane, report.jobs[i]);
        }
      });
    }
  }

  // ---- calls from other threads

  void place(const session::StartJob& start, const control::SwitchLanes& switches) const {
    const auto served = find(start.admission.job_epoch);
    if (!served) return;
    const std::lock_guard lock(served->changing);
    served->job->place(start, switches);
  }

  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t a_switch, bool again,
                                                const control::SwitchLanes& switches) const {
    return protocols.at(start.protocol)
        ->describe(start, a_switch, again, switches, own_endpoints(endpoints(), switches[a_switch].front()));
  }

  [[nodiscard]] std::vector<Endpoint> endpoints() const {
    std::vector<Endpoint> endpoints;
    for (const auto& lane : lanes) endpoints.push_back(lane->local());
    return endpoints;
  }
};

Node::Node(NodeOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  std::uint32_t index = 0;
  for (auto& socket : open_data_sockets(impl_->options.sockets)) {
    const std::uint64_t mark = mark_bytes(*socket);
    impl_->options.server.registry.receive_bytes = socket->receive_buffer_bytes();
    impl_->lanes.push_back(
        std::make_unique<runtime::AggregatorLane>(std::move(socket), mark, index++, impl_->options.threads));
  }
}

service::Lanes Node::lanes() const {
  service::Lanes lanes;
  for (const auto& lane : impl_->lanes) lanes.push_back(lane.get());
  return lanes;
}

void Node::serve(std::vector<std::unique_ptr<service::Service>> services, control::ServerHooks hooks) {
  Impl* const impl = impl_.get();
  control::ServerOptions server = impl->options.server;
  impl->services = std::move(services);
  server.registry.protocols.clear();
  for (const auto& service : impl->services) {
    if (const auto rules = service->rules()) {
      impl->protocols[rules->name] = service.get();
      server.registry.protocols.push_back(*rules);
    }
  }
  server.registry.check_endpoints = [impl](const session::JoinRequest& request) {
    return check_endpoints(request, impl->options.cookies);
  };
  hooks.lanes = [impl] { return impl->endpoints(); };
  hooks.same_host = is_of_this_host;
  hooks.start_job = [impl](const session::StartJob& start) { impl->start_job(start); };
  hooks.stop_job = [impl](const session::StopJob& stop) {
    if (impl->closing) impl->jobs_stopped = true;
    impl->stop_job(stop.job_epoch);
  };
  hooks.look = [impl](std::uint64_t epoch) { return impl->look(epoch); };
  hooks.fill_report = [impl](telemetry::Report& report) { impl->fill(report); };
  if (impl->takes(session::Installation{})) {
    hooks.install = [impl](const session::Installation& installation, const control::Caller& caller) {
      impl->install(installation, caller);
    };
  }
  if (impl->takes(session::RingInstallation{})) {
    hooks.install_ring = [impl](const session::RingInstallation& installation, const control::Caller& caller) {
      return impl->install(installation, caller);
    };
  }
  hooks.uninstall = [impl](std::uint64_t epoch) { impl->stop_job(epoch); };
  hooks.switches.complete = &complete_lanes;
  hooks.switches.place = [impl](const session::StartJob& start, const control::SwitchLanes& switches) {
    impl->place(start, switches);
  };
  hooks.switches.describe = [impl](const session::StartJob& start, std::uint32_t a_switch, bool again,
                                   const control::SwitchLanes& switches) {
    return impl->describe(start, a_switch, again, switches);
  };
  hooks.log = impl->options.sockets.log;
  impl->server = std::make_unique<control::Server>(std::move(server), std::move(hooks));
  if (!impl->options.metrics.empty()) {
    const std::string at = telemetry::metrics_address(impl->options.metrics, impl->options.server.listen);
    impl->metrics = std::make_unique<telemetry::MetricsServer>(at, [impl] { return impl->server->report(); });
  }
}

Node::~Node() {
  impl_->metrics.reset();
  impl_->closing = true;
  impl_->server.reset();
  if (impl_->jobs_stopped) std::this_thread::sleep_for(farewell);
}

void Node::set_tenants(std::vector<Tenant> tenants) {
  impl_->server->set_tenants(std::move(tenants));
}

std::string Node::address() const {
  return impl_->server->address();
}

void Node::lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how) {
  if (impl_->server) impl_->server->lose(job_epoch, rank, how);
}

bool Node::is_another_process() const {
  return getpid() != impl_->owner;
}

}  // namespace netsum::daemon
