#include "netsum/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "control/server.h"
#include "daemon/counters.h"
#include "daemon/data_sockets.h"
#include "daemon/proved_endpoints.h"
#include "daemon/switches.h"
#include "runtime/server_lane.h"
#include "session/atp_job.h"
#include "session/installations.h"
#include "telemetry/metrics_server.h"
#include "version.h"

namespace netsum {
namespace {

using telemetry::Counters;

constexpr std::chrono::milliseconds farewell{300};  // as Aggregator's

Counters counters_of(const atp::ServerJobCounters& c, std::uint32_t incomplete) {
  return {{"packets", c.packets},
          {"bytes", c.bytes},
          {"added_single", c.added_single},
          {"added_partial", c.added_partial},
          {"added_complete", c.added_complete},
          {"chunks", c.chunks},
          {"fallbacks", c.fallbacks},
          {"collisions", c.collisions},
          {"remapped", c.remapped},
          {"floats", c.floats},
          {"asks", c.asks},
          {"overlaps", c.overlaps},
          {"old", c.old},
          {"repeats_answered", c.repeats_answered},
          {"repeats_waiting", c.repeats_waiting},
          {"repeats_silent", c.repeats_silent},
          {"dropped_early", c.dropped_early},
          {"dropped_mismatch", c.dropped_mismatch},
          {"dropped_source", c.dropped_source},
          {"dropped_rank_epoch", c.dropped_rank_epoch},
          {"dropped_shape", c.dropped_shape},
          {"chunks_incomplete", incomplete}};
}

Counters counters_of(const atp::ServerCounters& s, const transport::Counters& t) {
  Counters counters = daemon::counters_of(t);
  counters.add({{"dropped_unknown_job", s.unknown_job},
                {"unknown_job_replies", s.unknown_job_replies},
                {"dropped_unexpected_type", s.unexpected_type}});
  daemon::append_malformed(counters, s.malformed);
  return counters;
}

session::AtpSettings settings_of(const ParameterServerOptions& options) {
  session::AtpSettings settings;
  if (options.indexing == "rehash") {
    settings.indexing = atp::Indexing::rehash;
  } else if (options.indexing == "hash") {
    settings.indexing = atp::Indexing::hash;
  } else if (options.indexing == "linear") {
    settings.indexing = atp::Indexing::linear;
  } else {
    throw Error(ErrorCode::bad_argument, "indexing is rehash, hash or linear, not '" + options.indexing + "'");
  }
  if (options.overflow != "exact" && options.overflow != "saturating") {
    throw Error(ErrorCode::bad_argument, "overflow is exact or saturating, not '" + options.overflow + "'");
  }
  if (options.overflow == "saturating") settings.overflow = atp::Overflow::saturating;
  if (options.scaling != "fixed" && options.scaling != "dynamic") {
    throw Error(ErrorCode::bad_argument, "scaling is fixed or dynamic, not '" + options.scaling + "'");
  }
  if (options.scaling == "dynamic") settings.scaling = atp::Scaling::dynamic;
  return settings;
}

}  // namespace

struct ParameterServer::Impl {
  ParameterServerOptions options;
  session::AtpSettings settings;
  std::vector<std::unique_ptr<runtime::ServerLane>> lanes;
  std::uint64_t receive_bytes = 0;  // of each one's buffer
  std::unique_ptr<control::Server> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;
  const pid_t owner = getpid();
  std::atomic<bool> closing = false, jobs_stopped = false;

  // The switches' endpoints come later. If a lane cannot take the job, no lane keeps it.
  void start_job(const session::StartJob& start) {
    try {
      for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        lanes[lane]->add_job(session::server_job(start, lane, settings, session::switch_endpoints({})));
      }
    } catch (...) {
      stop_job(start.admission.job_epoch);
      throw;
    }
  }
  void stop_job(std::uint64_t epoch) {
    for (const auto& lane : lanes) lane->remove_job(epoch);
  }

  void place(const session::StartJob& start, const control::SwitchLanes& switches) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane]->move_roots(
          start.admission.job_epoch,
          session::server_job(start, lane, settings, session::spread_switch_endpoints(switches, start.admission.job_epoch))
              .roots);
    }
  }

  [[nodiscard]] session::Installation describe(const session::StartJob& start, std::uint32_t a_switch,
                                               const control::SwitchLanes& switches) const {
    return session::installation_for(start, a_switch, settings,
                                     session::spread_switch_endpoints(switches, start.admission.job_epoch),
                                     daemon::own_endpoints(own_lanes(), switches[a_switch].front()));
  }

  [[nodiscard]] std::vector<Endpoint> own_lanes() const {
    std::vector<Endpoint> endpoints;
    for (const auto& lane : lanes) endpoints.push_back(lane->local());
    return endpoints;
  }

  void fill(telemetry::Report& report) {
    report.version = NETSUM_VERSION;
    for (const auto& lane : lanes) {
      lane->inspect([&](const atp::Server& s, const transport::Counters& t) {
        report.counters.add(counters_of(s.counters(), t));
        for (telemetry::JobReport& job : report.jobs) {
          const auto* counters = s.job_counters(job.job.job_epoch);
          job.counters.add(counters == nullptr ? counters_of(atp::ServerJobCounters{}, 0)
                                               : counters_of(*counters, s.incomplete(job.job.job_epoch)));
        }
      });
    }
  }
};

ParameterServer::ParameterServer(const ParameterServerOptions& options) : impl_(std::make_unique<Impl>()) {
  if (options.threads == 0 || options.threads > 64) throw Error(ErrorCode::bad_argument, "threads must be between 1 and 64");
  if (options.parts != 0 &&
      (options.first_part >= options.parts || options.own_parts > options.parts - options.first_part)) {
    throw Error(ErrorCode::bad_argument, "slot parts out of range: first " + std::to_string(options.first_part) +
                                             ", count " + std::to_string(options.own_parts) + "; parts are numbered 0 to " +
                                             std::to_string(options.parts - 1));
  }
  impl_->options = options;
  impl_->settings = settings_of(options);
  const EndpointCookies cookies = daemon::cookies_of(options.listen, options.daemon_token);
  std::uint32_t index = 0;
  for (auto& socket :
       daemon::open_data_sockets({options.listen, options.threads, options.loss, options.loss_seed, options.log})) {
    const std::uint64_t mark_bytes = daemon::mark_bytes(*socket);
    impl_->receive_bytes = socket->receive_buffer_bytes();
    impl_->lanes.push_back(std::make_unique<runtime::ServerLane>(
        std::move(socket), mark_bytes, index++, runtime::ThreadOptions{options.pin_threads, options.busy_poll}, cookies));
  }

  control::ServerOptions server;
  server.listen = options.listen;
  server.token = options.token;
  server.tenants = options.tenants;
  server.registry.memory_bytes = options.memory_bytes;
  server.tls_cert = options.tls_cert;
  server.tls_key = options.tls_key;
  server.registry.protocols = {session::atp_rules()};
  server.registry.switch_parents = options.switch_parents;
  server.registry.parts = options.parts;
  server.registry.first_part = options.first_part;
  server.registry.own_parts = options.own_parts;
  server.registry.indexing = static_cast<std::uint32_t>(impl_->settings.indexing);
  server.registry.scaling = static_cast<std::uint32_t>(impl_->settings.scaling);
  server.registry.lanes = options.threads;
  server.registry.slots = options.slots;
  server.registry.receive_bytes = impl_->receive_bytes;
  server.registry.check_endpoints = [cookies](const session::JoinRequest& request) {
    return daemon::check_endpoints(request, cookies);
  };
  server.registry.heartbeat_timeout = std::chrono::milliseconds(options.heartbeat_timeout_ms);
  server.switches = daemon::switch_teller_options(options, "parameter server", server.registry);
  Impl* const impl = impl_.get();
  control::ServerHooks hooks;
  hooks.lanes = [impl] { return impl->own_lanes(); };
  hooks.same_host = daemon::is_of_this_host;
  hooks.start_job = [impl](const session::StartJob& start) { impl->start_job(start); };
  hooks.stop_job = [impl](const session::StopJob& stop) {
    if (impl->closing) impl->jobs_stopped = true;
    impl->stop_job(stop.job_epoch);
  };
  hooks.fill_report = [impl](telemetry::Report& report) { impl->fill(report); };
  hooks.switches.complete = &daemon::complete_lanes;
  hooks.switches.place = [impl](const session::StartJob& start, const control::SwitchLanes& switches) {
    impl->place(start, switches);
  };
  hooks.switches.describe = [impl](const session::StartJob& start, std::uint32_t a_switch, bool,
                                   const control::SwitchLanes& switches) {
    return impl->describe(start, a_switch, switches);
  };
  hooks.log = options.log;
  impl_->server = std::make_unique<control::Server>(std::move(server), std::move(hooks));
  if (!options.metrics.empty()) {
    impl_->metrics = std::make_unique<telemetry::MetricsServer>(telemetry::metrics_address(options.metrics, options.listen),
                                                                [impl] { return impl->server->report(); });
  }
}

ParameterServer::ParameterServer(ParameterServer&&) noexcept = default;

ParameterServer::~ParameterServer() {
  if (!impl_) return;
  if (getpid() != impl_->owner) {  // a child of fork() has none of the threads
    static_cast<void>(impl_.release());
    return;
  }
  impl_->metrics.reset();
  impl_->closing = true;
  impl_->server.reset();
  if (impl_->jobs_stopped) std::this_thread::sleep_for(farewell);
}

void ParameterServer::set_tenants(std::vector<Tenant> tenants) {
  impl_->server->set_tenants(std::move(tenants));
}

std::string ParameterServer::address() const {
  return impl_->server->address();
}

}  // namespace netsum
