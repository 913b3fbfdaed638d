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

using runtime::SwitchLane;
using telemetry::Counters;

constexpr std::size_t stalled_shown = 8;
// How long the lanes of a stopping aggregator still answer that they no longer know a job: a worker with a chunk in flight
// asks again within WorkerConfig::max_timeout.
constexpr std::chrono::milliseconds farewell{300};

Counters counters_of(const switchml::JobCounters& c, std::uint32_t slots_in_use) {
  return {{"packets", c.packets},
          {"bytes", c.bytes},
          {"contributions", c.contributions},
          {"chunks", c.chunks},
          {"results_sent", c.results_sent},
          {"results_to_group", c.results_to_group},
          {"group_unheard", c.group_unheard},
          {"repeats_answered", c.repeats_answered},
          {"repeats_waiting", c.repeats_waiting},
          {"repeats_silent", c.repeats_silent},
          {"losses_told", c.losses_told},
          {"dropped_old", c.dropped_old},
          {"dropped_early", c.dropped_early},
          {"dropped_mismatch", c.dropped_mismatch},
          {"dropped_rank", c.dropped_rank},
          {"dropped_rank_epoch", c.dropped_rank_epoch},
          {"dropped_source", c.dropped_source},
          {"dropped_slot", c.dropped_slot},
          {"dropped_shape", c.dropped_shape},
          {"slots_in_use", slots_in_use}};
}

Counters counters_of(const atp::SwitchJobCounters& c, std::uint32_t slots_in_use) {
  return {{"packets", c.packets},
          {"bytes", c.bytes},
          {"added", c.added},
          {"completed", c.completed},
          {"allocated", c.allocated},
          {"deallocated", c.deallocated},
          {"collisions", c.collisions},
          {"repeats_waiting", c.repeats_waiting},
          {"repeats_silent", c.repeats_silent},
          {"resends_merged", c.resends_merged},
          {"resends_passed", c.resends_passed},
          {"direct_passed", c.direct_passed},
          {"mismatch_passed", c.mismatch_passed},
          {"marked", c.marked},
          {"parameters", c.parameters},
          {"asks", c.asks},
          {"dones", c.dones},
          {"dropped_source", c.dropped_source},
          {"dropped_rank_epoch", c.dropped_rank_epoch},
          {"dropped_shape", c.dropped_shape},
          {"slots_in_use", slots_in_use}};
}

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

// A malformed packet counts once, whichever format it was meant to be.
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
  std::vector<std::unique_ptr<SwitchLane>> lanes;
  std::uint64_t receive_bytes = 0;  // of each one's buffer
  EndpointCookies cookies;
  std::map<std::uint64_t, session::JobStatus> installed;  // ATP jobs, by epoch
  std::optional<session::Parts> parts;                    // of these
  std::mutex installed_mutex;
  std::map<std::uint64_t, std::size_t> rings;  // NetReduce jobs, by epoch: lanes, from the first on, that serve them
  std::mutex rings_mutex;
  std::unique_ptr<daemon::Broker> broker;  // outlives the server, whose jobs it is told of
  std::unique_ptr<control::Server> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;
  const pid_t owner = getpid();
  std::atomic<bool> closing = false, jobs_stopped = false;

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

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
      lanes.push_back(std::make_unique<SwitchLane>(std::move(socket), pool, mark_bytes, index++,
                                                   runtime::ThreadOptions{options.pin_threads, options.busy_poll}, cookies));
    }
  }

  // Of all lanes, for ATP.
  [[nodiscard]] std::uint64_t pool_bytes() const {
    return lanes.size() * atp::Switch::memory_bytes({.slots = options.pool_slots, .packet_elements = options.pool_elements});
  }

  void install(const session::Installation& installation, const control::Caller& caller) {
    if (installation.lanes.size() > lanes.size()) {
      throw Error(ErrorCode::refused, "this switch has " + std::to_string(lanes.size()) + " threads, and the job needs " +
                                          std::to_string(installation.lanes.size()) + ": raise the switch's --threads");
    }
    daemon::check_endpoints(installation, caller, cookies);
    const bool known = is_installed(installation.job_epoch);
    {
      const std::lock_guard lock(installed_mutex);
      const std::string why = parts->take(installation.job_epoch, installation.job, installation.part);
      if (!why.empty()) throw Error(ErrorCode::refused, why);
    }
    try {
      for (std::size_t lane = 0; lane < installation.lanes.size(); ++lane) {
        lanes[session::switch_lane(installation.job_epoch, lane, lanes.size())]->install(
            session::switch_job(installation, lane));
      }
    } catch (...) {
      if (!known) uninstall(installation.job_epoch);
      throw;
    }
    session::JobStatus status;
    status.job = installation.job;
    status.job_epoch = installation.job_epoch;
    status.packet_elements = installation.packet_elements;
    for (const auto& child : installation.lanes.front().children) {
      for (const std::uint32_t rank : child.ranks) {
        if (rank < max_world_size) status.joined.insert(rank);
      }
    }
    status.world_size = status.joined.size();  // of those below this switch
    status.slots = options.pool_slots;
    status.running = true;
    const std::lock_guard lock(installed_mutex);
    installed[installation.job_epoch] = std::move(status);
  }

  // Part of a tree of switches: a ring of a job whose ranks join elsewhere.
  session::JobView install_ring(const session::RingInstallation& installation, const control::Caller& caller) {
    const session::Admission& admission = installation.start.admission;
    const std::uint64_t epoch = admission.job_epoch;
    if (is_ring(epoch)) return look(epoch);
    if (installation.again) {
      throw Error(ErrorCode::refused, "it was restarted, or could not be reached for a while, and has lost the job's sums");
    }
    const std::size_t used = installation.root.size();
    if (used > lanes.size()) {
      throw Error(ErrorCode::refused, "this switch has " + std::to_string(lanes.size()) + " threads, and the job needs " +
                                          std::to_string(used) + ": raise the switch's --threads");
    }
    std::vector<netreduce::TunnelRing> made;
    for (std::size_t lane = 0; lane < used; ++lane) {
      made.push_back(session::tunnel_ring(installation, lane));
      daemon::check_endpoints(made.back(), installation, lane, caller, cookies);
    }
    try {
      add_rings(epoch, used, [&](std::size_t lane) { return made[lane]; });
    } catch (...) {
      remove_ring(epoch);
      throw;
    }
    session::JobStatus status;
    status.job = installation.start.job;
    status.job_epoch = epoch;
    status.packet_elements = admission.packet_elements;
    status.slots = admission.slots;
    for (const netreduce::Line& line : made.front().ring.lines) {
      if (line.way != netreduce::Way::arriving) status.joined = status.joined.united(line.ranks);
    }
    status.world_size = status.joined.size();  // of those below this switch
    status.running = true;
    const std::lock_guard installed_lock(installed_mutex);
    installed[epoch] = std::move(status);
    return {};
  }

  void uninstall(std::uint64_t epoch) {
    if (is_ring(epoch)) {
      remove_ring(epoch);
    } else {
      for (const auto& lane : lanes) lane->uninstall(epoch);
    }
    const std::lock_guard lock(installed_mutex);
    installed.erase(epoch);
    parts->release(epoch);
  }

  // ring_of(lane) on each of so many lanes. If that fails, rings[epoch] says which have theirs.
  template <class RingOf>
  void add_rings(std::uint64_t epoch, std::size_t used, const RingOf& ring_of) {
    const std::lock_guard lock(rings_mutex);
    std::size_t& done = rings[epoch];
    for (; done < used; ++done) lanes[done]->add_ring(ring_of(done));
  }

  void remove_ring(std::uint64_t epoch) {
    const std::lock_guard lock(rings_mutex);
    const auto ring = rings.extract(epoch);
    for (std::size_t lane = 0; lane < ring.mapped(); ++lane) {
      lanes[lane]->remove_ring(session::incarnation_of(epoch, lane));
    }
  }

  [[nodiscard]] bool is_installed(std::uint64_t epoch) {
    const std::lock_guard lock(installed_mutex);
    return installed.contains(epoch);
  }

  [[nodiscard]] session::RingInstallation describe(const session::StartJob& start, std::uint32_t a_switch, bool again,
                                                   const control::SwitchLanes& switches) const {
    return {start, a_switch, again, switches, daemon::own_endpoints(own_lanes(), switches[a_switch].front())};
  }

  [[nodiscard]] std::vector<Endpoint> own_lanes() const {
    std::vector<Endpoint> endpoints;
    for (const auto& lane : lanes) endpoints.push_back(lane->local());
    return endpoints;
  }

  // Of a job that cannot be put on all lanes, none keeps anything.
  void start_job(const session::StartJob& start) {
    try {
      put_on_lanes(start);
    } catch (...) {
      stop_job(start.admission.job_epoch);
      throw;
    }
  }

  void put_on_lanes(const session::StartJob& start) {
    if (!start.admission.members.empty()) {
      add_rings(start.admission.job_epoch, 0, [](std::size_t) { return netreduce::TunnelRing(); });
      if (start.admission.placement.switches.empty()) place(start, {});
      return;
    }
    if (start.admission.local) {
      broker->start_job(start.admission.job_epoch, start.local_tickets);
    } else if (groups) {
      log_group(start);
    }
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      switchml::SwitchJobConfig config;
      config.epoch = start.admission.job_epoch;
      config.packet_elements = start.admission.packet_elements;
      config.slots = start.admission.slots;
      for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
        config.members.push_back({start.admission.rank_epochs[rank], start.endpoints[rank][lane], start.listens[rank]});
      }
      if (groups) config.group = groups->group_of(start.job, lane);
      lanes[lane]->add_job(config);
    }
  }

  // Rings whose switches, if there are any, are all known. None of the job's ranks has been told that it is admitted before
  // these know it too, so no packet comes earlier; and none is placed twice, as what a switch holds is lost with it.
  void place(const session::StartJob& start, const control::SwitchLanes& switches) {
    {
      const std::lock_guard lock(rings_mutex);
      const auto ring = rings.find(start.admission.job_epoch);
      if (ring == rings.end() || ring->second != 0) return;
    }
    add_rings(start.admission.job_epoch, lanes.size(), [&](std::size_t lane) {
      return session::tunnel_ring(start, lane, netreduce::at_root, session::switch_endpoints(switches));
    });
  }

  void log_group(const session::StartJob& start) const {
    const std::string group = transport::to_string(groups->group_of(start.job, 0));
    if (std::count(start.listens.begin(), start.listens.end(), true) < 2) {
      return log("job '" + start.job + "': each rank has its own results, as fewer than two have joined " + group);
    }
    std::string others;
    for (std::size_t rank = 0; rank < start.listens.size(); ++rank) {
      if (!start.listens[rank]) others += (others.empty() ? "" : ", ") + std::to_string(rank);
    }
    log("job '" + start.job + "': results go to " + group +
        (others.empty() ? "" : ", and by themselves to ranks " + others + ", which have not joined it"));
  }

  // Of a job, one a lane.
  [[nodiscard]] std::vector<Endpoint> groups_of(const std::string& job) const {
    std::vector<Endpoint> of_lanes;
    for (std::size_t lane = 0; groups && lane < lanes.size(); ++lane) of_lanes.push_back(groups->group_of(job, lane));
    return of_lanes;
  }

  void stop_job(std::uint64_t epoch) {
    if (is_ring(epoch)) return remove_ring(epoch);
    broker->stop_job(epoch);
    for (const auto& lane : lanes) lane->remove_job(epoch);
  }

  [[nodiscard]] bool is_ring(std::uint64_t epoch) {
    const std::lock_guard lock(rings_mutex);
    return rings.contains(epoch);
  }

  // Of the lane whose stream is furthest behind.
  session::JobView look(std::uint64_t epoch) {
    session::JobView view;
    if (!is_ring(epoch)) return view;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane]->inspect([&](const auto&, const auto*, netreduce::Tunnel& tunnel, const auto&) {
        const std::uint64_t incarnation = session::incarnation_of(epoch, lane);
        if (const auto mismatch = tunnel.accelerator().mismatch(incarnation)) {
          view.mismatch = "ranks " + std::to_string(mismatch->first_rank) + " and " + std::to_string(mismatch->second_rank) +
                          " issued different calls as message " + std::to_string(mismatch->message) + " of ring " +
                          std::to_string(lane);
        }
        const auto stall = tunnel.accelerator().stall(incarnation);
        if (stall && view.missing.empty()) view.missing = stall->missing;
      });
    }
    return view;
  }

  void fill(telemetry::Report& report) {
    report.version = NETSUM_VERSION;
    const std::size_t own = report.jobs.size();
    {
      const std::lock_guard lock(installed_mutex);
      for (const auto& [epoch, status] : installed) report.jobs.push_back({status, {}, {}});
    }
    // Of one kind each on all lanes, whatever starts and ends meanwhile; and a lane waits for no lock.
    enum class Kind : std::uint8_t { switchml, atp, ring };
    std::vector<Kind> kinds;
    for (const telemetry::JobReport& job : report.jobs) {
      kinds.push_back(is_ring(job.job.job_epoch) ? Kind::ring : kinds.size() < own ? Kind::switchml : Kind::atp);
    }
    std::size_t number = 0;
    for (const auto& lane : lanes) {
      const std::size_t lane_number = number++;
      lane->inspect([&](const switchml::Switch& s, const atp::Switch* atp, const netreduce::Tunnel& tunnel,
                        const transport::Counters& t) {
        report.counters.add(counters_of(s.counters(), atp, t));
        report.counters.add(counters_of(tunnel));
        for (std::size_t i = 0; i < report.jobs.size(); ++i) {
          telemetry::JobReport& job = report.jobs[i];
          const std::uint64_t epoch = job.job.job_epoch;
          if (kinds[i] == Kind::ring) {
            const auto* ring = tunnel.accelerator().ring_counters(session::incarnation_of(epoch, lane_number));
            job.counters.add(daemon::counters_of(ring == nullptr ? netreduce::RingCounters{} : *ring));
            continue;
          }
          if (kinds[i] == Kind::atp) {
            const auto* counters = atp == nullptr ? nullptr : atp->job_counters(epoch);
            job.counters.add(counters == nullptr ? counters_of(atp::SwitchJobCounters{}, 0)
                                                 : counters_of(*counters, atp->slots_in_use(epoch)));
            continue;
          }
          const switchml::JobCounters* counters = s.job_counters(epoch);
          if (counters == nullptr) {
            job.counters.add(counters_of(switchml::JobCounters{}, 0));
            continue;
          }
          job.counters.add(counters_of(*counters, s.slots_in_use(epoch)));
          for (const auto& chunk : s.stalled(epoch, stalled_shown)) {
            telemetry::JobReport::Stalled stalled{chunk.operation, chunk.chunk, chunk.slot, {}};
            for (std::uint32_t rank = 0; rank < job.job.world_size; ++rank) {
              if (chunk.missing.contains(rank)) stalled.missing.push_back(rank);
            }
            job.stalled.push_back(std::move(stalled));
          }
        }
      });
    }
    for (telemetry::JobReport& job : report.jobs) {
      std::sort(job.stalled.begin(), job.stalled.end(), [](const auto& a, const auto& b) {
        return std::tie(a.operation, a.chunk) < std::tie(b.operation, b.chunk);
      });
      if (job.stalled.size() > stalled_shown) job.stalled.resize(stalled_shown);
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
  impl_->cookies = daemon::cookies_of(options.listen, options.daemon_token);
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
  server.registry.check_endpoints = [cookies = impl_->cookies](const session::JoinRequest& request) {
    return daemon::check_endpoints(request, cookies);
  };
  server.registry.protocols = {session::switchml_rules(), session::netreduce_rules()};
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
