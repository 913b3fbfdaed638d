#include "daemon/node.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "control/fingerprint.h"
#include "daemon/near_threads.h"
#include "daemon/packet_security.h"
#include "daemon/proved_endpoints.h"
#include "daemon/served_jobs.h"
#include "daemon/switches.h"
#include "netsum/error.h"
#include "runtime/aggregator_lane.h"
#include "telemetry/metrics_server.h"
#include "transport/system/numa.h"

namespace netsum::daemon {
namespace {

// How long the lanes of a stopping daemon still answer "unknown job": a worker with a chunk in flight retransmits within
// WorkerConfig::max_timeout.
constexpr std::chrono::milliseconds farewell{300};

}  // namespace

NodeOptions node_options(const DaemonOptions& daemon, std::uint32_t slots, const std::string& own,
                         const std::string& state) {
  NodeOptions node;
  const std::uint32_t lanes = lanes_of(daemon);
  node.number_of_threads = daemon.threads;
  node.sockets = {daemon.listen,     lanes,      daemon.loss, daemon.loss_seed, daemon.log, daemon.data_path,
                  daemon.interfaces, daemon.dpdk};
  node.sockets.attachments = std::make_shared<transport::Attachments>(daemon.log);
  node.threads = near_threads(daemon.pin_threads, daemon.interfaces, daemon.listen);
  node.threads.busy_poll = daemon.busy_poll;
  node.cookies = cookies_of(daemon.listen, state);
  node.metrics = daemon.metrics;
  control::ServerOptions& server = node.server;
  server.listen = daemon.listen;
  server.token = daemon.token;
  server.tenants = daemon.tenants;
  server.daemon_token = daemon.daemon_token;
  server.tls_cert = daemon.tls_cert;
  server.tls_key = daemon.tls_key;
  server.flight_records = daemon.flight_records;
  server.registry.memory_bytes = daemon.memory_bytes;
  server.registry.switch_parents = daemon.switch_parents;
  server.registry.lanes = lanes;
  server.threads = daemon.threads;
  server.registry.slots = slots;
  server.registry.heartbeat_timeout = std::chrono::milliseconds(daemon.heartbeat_timeout_ms);
  server.registry.survivor_timeout = std::chrono::milliseconds(daemon.survivor_timeout_ms);
  server.switches = switch_teller_options({daemon.token, daemon.daemon_token}, daemon.tls_ca, own, server.registry);
  choose_keys({daemon.packet_security, daemon.require_keys, !daemon.tls_cert.empty(), !daemon.tls_ca.empty()},
              server.registry);
  warn_of_no_keys(server.registry, daemon.listen, daemon.log);
  return node;
}

struct Node::Impl {
  NodeOptions options;
  std::vector<std::unique_ptr<runtime::AggregatorLane>> lanes;  // the i-th of n threads serves lanes i, i + n ...
  std::optional<ServedJobs> jobs;
  std::unique_ptr<control::Server> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;
  const pid_t owner = getpid();
  std::atomic<bool> closing = false, jobs_stopped = false;

  void fill(telemetry::Report& report) const {
    report.version = control::version();
    report.interfaces = options.sockets.attachments->all();
    jobs->fill(report, lanes.size(), [&](std::size_t lane, const std::function<void()>& add) {
      lanes[lane]->run([&] {
        report.counters.add(named(lanes[lane]->counters()));
        report.counters.add(named(lanes[lane]->loop_counters()));
        add();
      });
    });
  }

  [[nodiscard]] std::vector<Endpoint> endpoints() const {
    std::vector<Endpoint> endpoints;
    for (const auto& lane : lanes) endpoints.push_back(lane->local());
    return endpoints;
  }
};

Node::Node(NodeOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  auto& attachments = impl_->options.sockets.attachments;
  if (!attachments) attachments = std::make_shared<transport::Attachments>(impl_->options.sockets.log);
  std::uint32_t index = 0;
  const auto open = [&] {
    const transport::MemoryOf near(
        impl_->options.threads.node);  // of AF_XDP's frames; sockets' buffers are first touched by their lanes
    return open_data_sockets(impl_->options.sockets);
  };
  for (auto& socket : open()) {
    const std::uint64_t most = most_waiting(*socket);
    impl_->options.server.registry.receive_bytes = socket->receive_buffer_bytes();
    const std::uint32_t thread = index++ % impl_->options.number_of_threads;
    const std::shared_ptr<runtime::PacketLoop> same =
        thread < impl_->lanes.size() ? impl_->lanes[thread]->thread() : nullptr;
    impl_->lanes.push_back(
        std::make_unique<runtime::AggregatorLane>(std::move(socket), most, thread, impl_->options.threads, same));
  }
}

std::vector<Endpoint> Node::endpoints() const {
  return impl_->endpoints();
}

const EndpointCookies& Node::cookies() const {
  return impl_->options.cookies;
}

service::Lanes Node::lanes() const {
  service::Lanes lanes;
  for (const auto& lane : impl_->lanes) lanes.push_back(lane.get());
  return lanes;
}

void Node::serve(std::vector<std::unique_ptr<service::Service>> services, control::ServerHooks hooks) {
  Impl* const impl = impl_.get();
  control::ServerOptions server = impl->options.server;
  impl->jobs.emplace(
      std::move(services), [impl] { return impl->endpoints(); },
      [impl](const std::vector<session::Destination>& destinations, const control::Caller& caller) {
        check_destinations(destinations, caller, impl->options.cookies);
      },
      [impl](std::size_t lane, const Endpoint& to, const Endpoint& own) { impl->lanes[lane]->send_from(to, own); });
  server.registry.protocols = impl->jobs->rules();
  server.registry.check_endpoints = [impl](const session::JoinRequest& request) {
    return check_endpoints(request, impl->options.cookies);
  };
  impl->jobs->serve(hooks);
  hooks.same_host = is_of_this_host;
  hooks.stop_job = [impl, stop = hooks.stop_job](const session::StopJob& job) {
    if (impl->closing) impl->jobs_stopped = true;
    stop(job);
  };
  hooks.fill_report = [impl](telemetry::Report& report) { impl->fill(report); };
  hooks.log = impl->options.sockets.log;
  hooks.reach_lanes = [impl] {
    for (const auto& lane : impl->lanes) lane->run([] {});
  };
  impl->server = std::make_unique<control::Server>(std::move(server), std::move(hooks));
  if (!impl->options.metrics.empty()) {
    const std::string at = telemetry::metrics_address(impl->options.metrics, impl->options.server.listen);
    impl->metrics = std::make_unique<telemetry::MetricsServer>(
        at, [impl] { return impl->server->report(); }, impl->server->page_admittance(),
        [impl] { return impl->server->alive(); });
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

void Node::reload_certificate() {
  impl_->server->reload_certificate();
}

bool Node::alive() {
  return impl_->server->alive();
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
