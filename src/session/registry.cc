#include "session/registry.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "base/check.h"
#include "session/admitting.h"
#include "session/check.h"
#include "session/liveness.h"
#include "session/stragglers.h"
#include "session/words.h"

namespace netsum::session {
namespace {

// A rank that was heard so lately lives: a new process in its place has waited long enough to be refused. Where it was not,
// that waits on, until the old one is heard or counts as dead.
constexpr Duration sign_of_life = std::chrono::seconds(3), succession_slack = std::chrono::seconds(1);
constexpr int survivors_between_lives = 3;  // times their time-out: to join again takes longer than a heartbeat
constexpr std::size_t most_events = 8192;   // between two calls of take_events()
constexpr Duration remember_failed = std::chrono::seconds(30);  // so that late heartbeats still get the reason
constexpr std::size_t failures_of_each = 4;                     // that are remembered, for each job that a tenant may have

struct Member {
  JoinRequest request;
  std::uint64_t ticket = 0;
  std::uint32_t epoch = 0;
  Liveness liveness;
  bool beats = false;  // a heartbeat of this life has come
  SiteSet seen{};      // as the latest said
  Pace pace{};         // likewise
};

// Without which a life began, as its program was late.
struct Late {
  JoinRequest request{};  // the one that it was told so on; of life 0: this daemon has only heard of it
  Liveness liveness{};    // it looks in
};

// Whether a rank's request is of the process that made the other one, when it was given that epoch (0: none), or of another
// one: a rank may have an old process that was declared dead, and lives, and a new one.
[[nodiscard]] bool is_same_process(const JoinRequest& request, const JoinRequest& earlier, std::uint32_t epoch) {
  if (epoch != 0 && request.former_epoch == epoch) return true;
  // It was not told.
  return request.former_epoch == earlier.former_epoch && (request.former_epoch != 0 || request.life == earlier.life);
}

enum class Phase : std::uint8_t { joining, running, failed };

struct Job {
  std::string name, tenant;
  Phase phase = Phase::joining;
  std::map<std::uint32_t, Member> ranks;
  std::uint32_t world_size = 0, packet_elements = 0, slots = 0, lanes = 0, charged = 0;
  std::uint64_t epoch = 0, generation = 0;
  std::uint32_t life = 1, survivors = 0;
  std::uint64_t lineage = 0;          // the epoch of the first of these lives that is known here
  std::uint64_t first_operation = 0;  // of this life
  bool boundary = false;              // this life began where its ranks let new processes in
  std::chrono::milliseconds straggler_deadline{0};
  RankSet aside;                       // ranks that were late, when this life began
  std::map<std::uint32_t, Late> late;  // these
  SiteSet sites;                       // of this life
  RankSet joined, left, too_late;      // the last: of those that joined, and were turned away
  Time since{};
  std::string failure, lost_switch;
  std::optional<std::uint32_t> lost;
  Farewell farewell;       // of the first rank that failed
  std::string last_words;  // of the first rank that gave a reason, with its number
  bool mismatch = false, ended_by_operator = false, straggler = false;
  std::vector<RankCall> calls;  // as HeartbeatReply's
  Placement placement;
  OwnPart own;                                 // as in StartJob::admission
  bool told = true;                            // its ranks have been told of their admission
  std::map<std::uint32_t, Member> successors;  // a job that recovers: new processes for ranks not known to be dead
};

// Jobs of different tenants may have the same name. Neither a tenant's nor a job's name has a line break.
[[nodiscard]] std::string key_of(const JoinRequest& request) {
  return request.tenant.empty() ? request.job : request.tenant + '\n' + request.job;
}

}  // namespace

const char* to_string(Refusal refusal) {
  constexpr const char* names[] = {"none",           "protocol_version",  "protocol",
                                   "bad_parameters", "parameters_differ", "duplicate_rank",
                                   "no_slots",       "no_memory",         "quota",
                                   "job_running",    "results_forgotten", "superseded",
                                   "shutting_down",  "draining",          "ended_by_operator",
                                   "excluded",       "not_started"};
  return names[static_cast<std::size_t>(refusal)];
}

struct Registry::Impl {
  RegistryConfig config;
  MemoryAccount memory;
  std::map<std::string, Job> jobs;            // joining or running, by key
  std::map<std::uint64_t, Job> failed;        // by epoch
  std::map<std::uint64_t, std::string> keys;  // of running and failed jobs
  std::map<std::uint64_t, JoinOutcome> outcomes;
  std::map<std::uint64_t, std::pair<std::string, std::uint32_t>> waiting;  // ticket -> (key, rank)
  std::map<std::string, std::uint32_t> joins;                              // number of waiting joins, by tenant
  std::vector<StartJob> starts;
  std::vector<StopJob> stops;
  std::vector<JobEvent> events;
  std::set<std::uint32_t> rank_epochs;               // of running and failed jobs
  std::map<std::string, std::vector<Profile>> said;  // by switches that are parents of others
  std::uint64_t next_ticket = 1;
  std::uint32_t slots_free = 0;
  bool closing = false, draining = false;
  std::set<std::string> spared;  // keys of jobs that ran when the draining began, and have not ended since

  void note(JobEvent::Kind kind, const Job& job, Time now, std::optional<std::uint32_t> rank = {}, std::string what = {},
            FailureCause cause = FailureCause::none) {
    if (events.size() >= most_events) return;
    events.push_back({kind, job.name, job.tenant, job.epoch, job.world_size, now, rank, std::move(what), cause});
  }
  // One of a job's ranks, while the others wait.
  void note_refusal(const JoinRequest& request, const JoinOutcome& outcome, Time now) {
    const auto job = jobs.find(key_of(request));
    if (job != jobs.end()) note(JobEvent::Kind::rank_refused, job->second, now, request.rank, outcome.reason);
  }

  // 64 random bits do not repeat, in this process or another.
  [[nodiscard]] std::uint64_t new_job_epoch() const {
    std::uint64_t epoch = 0;
    while (epoch == 0 || keys.contains(epoch)) epoch = config.random();
    return epoch;
  }
  // Always compared together with the job's epoch; among live jobs, unique to the rank.
  [[nodiscard]] std::uint32_t new_rank_epoch() {
    std::uint32_t epoch = 0;
    while (epoch == 0 || !rank_epochs.insert(epoch).second) epoch = static_cast<std::uint32_t>(config.random());
    return epoch;
  }

  void wait(std::uint64_t ticket, const std::string& key, const JoinRequest& request) {
    waiting[ticket] = {key, request.rank};
    ++joins[request.tenant];
  }
  void wait_no_more(std::uint64_t ticket, const std::string& tenant) {
    if (waiting.erase(ticket) == 0) return;
    const auto of_tenant = joins.find(tenant);
    if (--of_tenant->second == 0) joins.erase(of_tenant);
  }

  // Releases all that a job was charged.
  void release(const Job& job) {
    slots_free += job.charged;
    memory.release(job.epoch);
  }
  // The job will not be asked for again.
  void forget(const Job& job) {
    keys.erase(job.epoch);
    for (const auto& [rank, member] : job.ranks) rank_epochs.erase(member.epoch);
  }

  [[nodiscard]] static std::string drained(const std::string& job) {
    return "job '" + job +
           "' is not admitted: an operator is draining this daemon for maintenance; use another daemon, or try again after "
           "the drain (netsum drain --undo)";
  }
  // Empty, or who has ended the job that the rank would go on with.
  [[nodiscard]] std::string ended(const JoinRequest& request) const {
    if (request.former_epoch == 0) return "";
    const auto found = std::find_if(failed.begin(), failed.end(), [&](const auto& entry) {
      const Job& job = entry.second;
      const auto rank = job.ranks.find(request.rank);
      return job.ended_by_operator && job.name == request.job && job.tenant == request.tenant && rank != job.ranks.end() &&
             rank->second.epoch == request.former_epoch;
    });
    return found == failed.end() ? "" : found->second.failure;
  }

  // Empty, or why the tenant may have no further join or job.
  [[nodiscard]] std::string over_quota(const JoinRequest& request, bool new_job) const {
    const Quota& quota = quota_of(request.tenant);
    if (const auto found = joins.find(request.tenant); found != joins.end() && found->second >= quota.joins) {
      return "tenant '" + request.tenant + "' has " + std::to_string(quota.joins) +
             " ranks that wait for other ranks of their jobs, its maximum: start the missing ranks, or end these jobs";
    }
    if (!new_job || quota.jobs == UINT32_MAX) return "";
    const auto of_tenant =
        std::count_if(jobs.begin(), jobs.end(), [&](const auto& entry) { return entry.second.tenant == request.tenant; });
    if (of_tenant >= quota.jobs) {
      return "tenant '" + request.tenant + "' has " + std::to_string(quota.jobs) + " jobs, its maximum: end one";
    }
    // Each is remembered, logged and recorded. All of a tenant's jobs may begin anew at once, and again.
    const std::size_t most = failures_of_each * std::max<std::size_t>(quota.jobs, 16);
    const auto failures_of_tenant = static_cast<std::size_t>(std::count_if(
        failed.begin(), failed.end(), [&](const auto& entry) { return entry.second.tenant == request.tenant; }));
    if (failures_of_tenant < most) return "";
    return std::to_string(failures_of_tenant) + " jobs of tenant '" + request.tenant + "' have failed within " +
           in_seconds(remember_failed) + ": find the cause, and try again later";
  }
  [[nodiscard]] const Quota& quota_of(const std::string& tenant) const {
    static const Quota none;
    const auto found = config.quotas.find(tenant);
    return found == config.quotas.end() ? none : found->second;
  }

  [[nodiscard]] const ProtocolRules* rules_of(const std::string& protocol) const {
    const auto found = std::find_if(config.protocols.begin(), config.protocols.end(),
                                    [&](const ProtocolRules& rules) { return rules.name == protocol; });
    return found == config.protocols.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::string protocols_served() const {
    std::vector<std::string> served;
    for (const ProtocolRules& rules : config.protocols) served.push_back(rules.name);
    return list(served);
  }

  // Empty, or why the request cannot be served, whatever the other ranks ask for.
  [[nodiscard]] JoinOutcome check(const JoinRequest& request) const {
    const auto refuse = [](Refusal refusal, std::string reason) { return JoinOutcome{refusal, std::move(reason), {}}; };
    if (closing) return refuse(Refusal::shutting_down, "the aggregator is shutting down");
    const ProtocolRules* const rules = rules_of(request.protocol);
    if (rules == nullptr) {
      return refuse(Refusal::protocol,
                    "this aggregator does not serve " +
                        (is_name(request.protocol) ? "protocol '" + request.protocol + "'" : "that protocol") + ", only " +
                        protocols_served());
    }
    if (request.protocol_version != rules->version) {
      return refuse(Refusal::protocol_version, "the worker speaks wire version " + std::to_string(request.protocol_version) +
                                                   ", this aggregator " + std::to_string(rules->version) +
                                                   ": install the same netsum on both");
    }
    if (std::string error = between("world size", request.world_size, 1, rules->max_world_size); !error.empty())
      return refuse(Refusal::bad_parameters, std::move(error));
    if (std::string error = session::check(request); !error.empty())
      return refuse(Refusal::bad_parameters, std::move(error));
    if (std::string error = rules->check_packet(request.packet_elements); !error.empty()) {
      return refuse(Refusal::bad_parameters, std::move(error));
    }
    if (!rules->switches && !request.switch_address.empty()) {
      return refuse(Refusal::bad_parameters, rules->name + " does not use switches: name no switch");
    }
    if (request.endpoints.empty() || request.endpoints.size() > config.lanes) {
      return refuse(Refusal::bad_parameters, "the worker names " + std::to_string(request.endpoints.size()) +
                                                 " data endpoints for this aggregator's " + std::to_string(config.lanes) +
                                                 " lanes");
    }
    if (std::string error = config.check_endpoints ? config.check_endpoints(request) : ""; !error.empty()) {
      return refuse(Refusal::bad_parameters, std::move(error));
    }
    if (std::string error = check_request(*rules, request); !error.empty()) {
      return refuse(Refusal::bad_parameters, std::move(error));
    }
    if (std::string error = why_no_keys(request, *rules, config); !error.empty()) {
      return refuse(Refusal::bad_parameters, std::move(error));
    }
    return {};
  }

  [[nodiscard]] static Requests requests_of(const Job& job) {
    Requests requests;
    for (const auto& [rank, member] : job.ranks) requests.push_back(&member.request);
    return requests;
  }

  [[nodiscard]] Supply supply_for(const Job& job, const ProtocolRules& rules) const {
    Supply supply{config, slots_free, memory, quota_of(job.tenant).memory_bytes, {}, {}};
    for (const auto& [key, other] : jobs) {
      if (other.phase == Phase::running && other.ranks.begin()->second.request.protocol == rules.name) {
        supply.others.push_back(&other.own);
      }
    }
    supply.said = [this, &rules](const std::string& switch_id) -> const OwnPart* {
      const auto found = said.find(switch_id);
      return found == said.end() ? nullptr : profile_of(found->second, rules.name);
    };
    return supply;
  }

  // All ranks are there.
  void admit(const std::string& key, Job& job, Time now) {
    const ProtocolRules& rules = *rules_of(job.ranks.begin()->second.request.protocol);
    Plan plan = session::plan(requests_of(job), rules, supply_for(job, rules));
    if (plan.refusal != Refusal::none) {
      return refuse_all(key, plan.refusal, "job '" + job.name + "': " + plan.reason, now);
    }
    NETSUM_CHECK(job.joined.size() == job.ranks.size());
    if (job.survivors != 0) plan.resumption.members = job.joined;
    plan.resumption.boundary = job.boundary;
    job.sites = sites_of(job, job.joined);
    job.first_operation = plan.resumption.first;
    charge(key, job, plan);
    const RankSet gone = RankSet::first(job.world_size).minus(job.joined);
    note(JobEvent::Kind::started, job, now, {},
         rules.name + ", " + std::to_string(job.packet_elements) + " elements per packet, " + std::to_string(job.slots) +
             " slots per lane, " + in_lanes(plan.lanes) + (gone.empty() ? "" : ", without " + name_ranks(gone)));
    StartJob start = start_of(job, rules, std::move(plan));
    if (job.survivors != 0) start.switch_patience = config.survivor_timeout * 3 / 4;
    give_keys(job, start, now);
    tell(job, rules, start);
    starts.push_back(std::move(start));
  }

  void charge(const std::string& key, Job& job, const Plan& plan) {
    job.phase = Phase::running;
    job.epoch = new_job_epoch();
    if (job.lineage == 0) job.lineage = job.epoch;
    job.packet_elements = plan.packet_elements;
    job.slots = plan.slots;
    job.lanes = plan.lanes;
    job.charged = plan.charged;
    job.placement = plan.placement;
    job.own = plan.own;
    slots_free -= job.charged;
    memory.charge(job.epoch, job.tenant, plan.memory_bytes);
    keys[job.epoch] = key;
  }

  [[nodiscard]] static StartJob start_of(Job& job, const ProtocolRules& rules, Plan plan) {
    StartJob start;
    start.job = job.name;
    start.tenant = job.tenant;
    start.protocol = rules.name;
    start.watched = rules.watched;
    start.switches_needed = rules.switches_needed && !plan.placement.switches.empty();
    job.told = !start.switches_needed;
    start.warning = std::move(plan.warning);
    Admission& admission = start.admission;
    admission.job_epoch = job.epoch;
    admission.packet_elements = plan.packet_elements;
    admission.slots = plan.slots;
    admission.lanes = plan.lanes;
    admission.placement = std::move(plan.placement);
    admission.resumption = std::move(plan.resumption);
    admission.life = job.life;
    admission.sites = job.sites;
    admission.aside = job.aside;
    admission.local = plan.local;
    admission.why_not_local = std::move(plan.why_not_local);
    admission.security = plan.security;
    admission.own = std::move(plan.own);
    for (const auto& [rank, member] : job.ranks) {
      const JoinRequest& request = member.request;
      if (admission.local) start.local_tickets.push_back(request.local_ticket);
      const auto cookies = std::min<std::ptrdiff_t>(plan.lanes, std::ssize(request.switch_cookies));
      start.endpoints.emplace_back(request.endpoints.begin(), request.endpoints.begin() + plan.lanes);
      start.listens.push_back(request.listens);
      start.switch_cookies.emplace_back(request.switch_cookies.begin(), request.switch_cookies.begin() + cookies);
    }
    return start;
  }

  // Epochs and keys.
  void give_keys(Job& job, StartJob& start, Time now) {
    const bool sealed = start.admission.security != PacketSecurity::none;
    const auto hop = [&] { return HopKeys{random_key(config.random), random_key(config.random)}; };
    if (sealed) {
      start.admission.results = random_key(config.random);
      for (std::size_t i = 0; i < start.admission.placement.switches.size(); ++i) start.switch_keys.push_back(hop());
    }
    std::vector<std::uint32_t> epochs;
    for (auto& [rank, member] : job.ranks) {
      member.epoch = new_rank_epoch();
      member.liveness.hear(now);
      epochs.push_back(member.epoch);
      if (sealed) start.keys.push_back(member.request.near ? RankKeys() : hop());
    }
    start.admission.rank_epochs = std::move(epochs);
  }

  void tell(Job& job, const ProtocolRules& rules, const StartJob& start) {
    std::vector<OwnPart> shares = session::shares(rules, start.admission.own, static_cast<std::uint32_t>(job.ranks.size()));
    Admission common = start.admission;
    if (!shares.empty()) common.own.clear();
    std::size_t place = 0;
    for (auto& [rank, member] : job.ranks) {
      Admission admission = common;
      if (!shares.empty()) admission.own = std::move(shares[place]);
      admission.rank_epoch = member.epoch;
      if (!start.keys.empty()) admission.keys = start.keys[place];
      ++place;
      outcomes[member.ticket] = {Refusal::none, {}, std::move(admission)};
      wait_no_more(member.ticket, job.tenant);
    }
  }

  void refuse_all(const std::string& key, Refusal refusal, const std::string& reason, Time now) {
    const auto job = jobs.extract(key);
    note(JobEvent::Kind::refused, job.mapped(), now, {}, reason,
         refusal == Refusal::ended_by_operator ? FailureCause::ended_by_operator : FailureCause::refused);
    hear_again(job.mapped(), now);
    for (const auto& [rank, member] : job.mapped().ranks) {
      outcomes[member.ticket] = {refusal, reason, {}};
      wait_no_more(member.ticket, job.mapped().tenant);
    }
    for (const auto& [rank, successor] : job.mapped().successors) {
      outcomes[successor.ticket] = {refusal, reason, {}};
      wait_no_more(successor.ticket, job.mapped().tenant);
    }
  }

  // Who has joined again lives, though the life that it waited for does not begin: it joins once more.
  void hear_again(const Job& job, Time now) {
    for (auto& [epoch, known] : failed) {
      if (known.name != job.name || known.tenant != job.tenant) continue;
      for (auto& [rank, former] : known.ranks) {
        const auto again = job.ranks.find(rank);
        if (again != job.ranks.end() && again->second.request.former_epoch == former.epoch) former.liveness.hear(now);
      }
    }
  }

  // Processes that waited for a rank's old process to end take its place, or are told why not.
  void succeed(Job& ended, Time now) {
    for (auto& [rank, successor] : std::exchange(ended.successors, {})) {
      wait_no_more(successor.ticket, ended.tenant);
      if (closing || ended.ended_by_operator) {
        outcomes[successor.ticket] = {closing ? Refusal::shutting_down : Refusal::ended_by_operator,
                                      closing ? "the aggregator is shutting down" : ended.failure,
                                      {}};
        continue;
      }
      register_rank(std::move(successor.request), successor.ticket, now);
    }
  }

  // Takes a running job off the lanes; its name is free at once.
  void end(const std::string& key, std::string failure, FailureCause cause, std::optional<std::uint32_t> lost, Time now) {
    auto node = jobs.extract(key);
    Job& job = node.mapped();
    note(failure.empty() ? JobEvent::Kind::ended : JobEvent::Kind::failed, job, now, lost, failure, cause);
    release(job);
    NETSUM_CHECK(job.phase == Phase::running && slots_free <= config.slots);
    stops.push_back({job.epoch});
    if (failure.empty() || cause == FailureCause::ended_by_operator) spared.erase(key);
    job.failure = std::move(failure);
    job.ended_by_operator = cause == FailureCause::ended_by_operator;
    job.straggler = cause == FailureCause::straggler;
    succeed(job, now);
    if (job.failure.empty()) return forget(job);
    job.phase = Phase::failed;
    job.lost = lost;
    job.since = now;
    const std::uint64_t lineage = job.lineage;
    failed.emplace(job.epoch, std::move(job));
    forget_lives(lineage);
    if (failed.size() <= config.max_jobs) return;
    const auto oldest = std::min_element(failed.begin(), failed.end(),
                                         [](const auto& a, const auto& b) { return a.second.since < b.second.since; });
    forget(oldest->second);
    failed.erase(oldest);
  }

  // All but the latest of one job.
  void forget_lives(std::uint64_t lineage) {
    std::map<std::uint32_t, std::uint64_t> lives;
    for (const auto& [epoch, job] : failed) {
      if (job.lineage == lineage) lives[job.life] = epoch;
    }
    for (; lives.size() > failures_of_each; lives.erase(lives.begin())) {
      const auto old = failed.find(lives.begin()->second);
      forget(old->second);
      failed.erase(old);
    }
  }

  // Ends what is here of the job's earlier generation: its processes are dead, or about to be. False: a later one is here.
  [[nodiscard]] bool supersede(const std::string& key, const JoinRequest& request, Time now) {
    const auto found = jobs.find(key);
    if (found == jobs.end() || found->second.generation == request.generation) return true;
    Job& job = found->second;
    if (job.generation > request.generation) return false;
    const std::string reason = "job '" + request.job + "' was started again: this process is of an earlier start";
    for (const auto& [rank, successor] : std::exchange(job.successors, {})) {
      wait_no_more(successor.ticket, job.tenant);
      outcomes[successor.ticket] = {Refusal::superseded, reason, {}};
    }
    if (job.phase == Phase::running) {
      end(key, reason, FailureCause::started_again, std::min(request.rank, job.world_size - 1), now);
    } else {
      refuse_all(key, Refusal::superseded, reason, now);
    }
    return true;
  }

  // Whether a new process may wait for the end of the rank's old one, which may be dead but not detected yet.
  [[nodiscard]] static bool may_succeed(const Job& job, const JoinRequest& request) {
    return request.recovers && request.world_size == job.world_size && job.ranks.begin()->second.request.recovers &&
           !job.successors.contains(request.rank);
  }

  // The aggregators for a life of these ranks: where all of them join. Each aggregator names the same ones, as each rank
  // tells all of them where it joins.
  [[nodiscard]] static SiteSet sites_of(const Job& job, const RankSet& ranks) {
    const JoinRequest& any = job.ranks.begin()->second.request;
    SiteSet common = SiteSet::first(static_cast<std::uint32_t>(any.aggregators.size()));
    ranks.for_each([&](std::uint32_t rank) { common = common.in_both(job.ranks.at(rank).request.reached); });
    const SiteSet first = SiteSet::first(static_cast<std::uint32_t>(any.aggregators.size()) - any.standbys);
    return common.intersects(first) ? common.in_both(first) : common;
  }
  [[nodiscard]] static std::vector<std::string> absent(const Job& job) {
    std::vector<std::string> addresses;
    if (job.sites.empty()) return addresses;
    const JoinRequest& any = job.ranks.begin()->second.request;
    for (std::uint32_t site = 0; site < any.aggregators.size() - any.standbys; ++site) {
      if (!job.sites.contains(site)) addresses.push_back(any.aggregators[site]);
    }
    return addresses;
  }
  // Whether this aggregator would serve a life of these ranks. If not, they turn to those that would.
  [[nodiscard]] static bool serves(const Job& job, const RankSet& ranks) {
    const JoinRequest& any = job.ranks.begin()->second.request;
    return !any.recovers || sites_of(job, ranks).contains(any.site);
  }

  // ---- jobs that go on without ranks that died

  // The ranks of a job that forms again. Its first life has only new processes.
  struct Muster {
    std::uint32_t life = 0;  // the latest that joined ranks were in
    RankSet former;          // in that life
    RankSet again;           // have joined again
    RankSet fresh;           // new processes
    RankSet stale;           // were in an earlier life, and not in that one
    RankSet aside;           // of the others: late ones, then or now
    RankSet late;            // of `again`, which goes on without them
    RankSet too_late;        // need results that others have forgotten
    std::uint64_t kept = 0;  // the first result that all others keep
    // Ranks that were late then do not know who was in `life`: this daemon does, or one that was in it has joined, too, or
    // new processes in place of all of these.
    bool known = true;
    const Job* last = nullptr;  // that life as it was here; null: this daemon knows nothing of it
    bool begun = true;          // a rank that has joined began it
    bool boundary = false;      // the others let new processes in
    bool lets_in = false;       // or need them, as they are too few; if not, new processes wait

    [[nodiscard]] RankSet next() const { return (lets_in ? again.united(fresh) : again).minus(late); }  // members
  };
  [[nodiscard]] Muster muster(const Job& job) const {
    Muster found;
    for (const auto& [rank, member] : job.ranks) {
      found.boundary = found.boundary || member.request.lets_in;
      found.life = std::max(found.life, member.request.life);
    }
    found.known = found.life == 0;
    bool was_begun = false;
    for (const auto& [rank, member] : job.ranks) {
      const JoinRequest& request = member.request;
      if (request.life != found.life || request.set_aside) continue;
      const bool begun = !is_void(job, request.life, request.members);
      if (was_begun) continue;
      found.former = begun ? request.members : found.former.united(request.members);
      found.aside = begun ? request.aside : found.aside.united(request.aside);
      found.known = true;
      was_begun = begun;
    }
    if (const Job* const newest = newest_life(job);
        newest != nullptr && newest->life >= found.life && !is_void(job, newest->life, newest->joined)) {
      found.last = newest;
      found.begun = newest->life == found.life && found.known;
      found.life = newest->life;
      found.former = newest->joined;
      found.aside = newest->aside;
      found.known = true;
      if (newest->lost) found.aside.erase(*newest->lost);
    }
    found.known = found.known || job.ranks.size() == job.world_size;
    for (const auto& [rank, member] : job.ranks) {
      const JoinRequest& request = member.request;
      const bool was_in_it =
          request.life == found.life && (request.set_aside || !is_void(job, request.life, request.members));
      const bool was = was_in_it || ((found.former.contains(rank) || found.aside.contains(rank)) &&
                                     !(found.last && is_replaced(*found.last, request)));
      (request.life == 0 ? found.fresh : was ? found.again : found.stale).insert(rank);
      const bool knows = !request.set_aside && request.progress.next != stream::Progress::anywhere;
      if (found.again.contains(rank) && knows) found.kept = std::max(found.kept, request.progress.kept);
    }
    found.again.for_each([&](std::uint32_t rank) {
      if (job.ranks.at(rank).request.progress.next < found.kept) found.too_late.insert(rank);
    });
    found.again = found.again.minus(found.too_late);
    std::vector<Paced> paces;
    found.again.for_each([&](std::uint32_t rank) {
      const JoinRequest& request = job.ranks.at(rank).request;
      paces.push_back({rank, request.pace.calls, request.progress.next, request.pace.since, request.set_aside});
    });
    if (job.straggler_deadline.count() != 0) found.late = stragglers(paces, job.straggler_deadline, job.survivors);
    found.aside = found.aside.minus(job.joined).united(found.late);
    found.lets_in = found.boundary || found.life == 0 || found.again.size() < job.survivors;
    return found;
  }
  // Aggregators that not all ranks reach may admit two lives of one number. Each rank begins one of them, and without all of
  // its members a life sums nothing: this one is void if one of its members was in the other.
  [[nodiscard]] static bool is_void(const Job& job, std::uint32_t life, const RankSet& members) {
    return std::any_of(job.ranks.begin(), job.ranks.end(), [&](const auto& entry) {
      const auto& [rank, member] = entry;
      const JoinRequest& request = member.request;
      return request.life == life && !request.set_aside && members.contains(rank) && request.members != members;
    });
  }
  // Whether another process was in that life as this rank.
  [[nodiscard]] static bool is_replaced(const Job& life, const JoinRequest& request) {
    if (const auto member = life.ranks.find(request.rank); member != life.ranks.end())
      return !is_same_process(request, member->second.request, member->second.epoch);
    const auto late = life.late.find(request.rank);
    return late != life.late.end() && late->second.request.life != 0 && !is_same_process(request, late->second.request, 0);
  }
  // Late ranks that have not joined again, and may have results that none of those has that have: the next life would sum
  // these calls anew, over other ranks. Whoever looks in joins; who does not counts as dead.
  [[nodiscard]] static RankSet ahead(const Job& job, const Muster& all) {
    RankSet found;
    if (all.last == nullptr) return found;
    std::uint64_t furthest = 0;
    all.again.for_each([&](std::uint32_t rank) { furthest = std::max(furthest, job.ranks.at(rank).request.progress.next); });
    for (const auto& [rank, late] : all.last->late) {
      if (all.aside.contains(rank) && !job.ranks.contains(rank) && late.request.progress.next > furthest) found.insert(rank);
    }
    return found;
  }
  // The latest that was here of the job that the ranks were in. An earlier job may have had the same name.
  [[nodiscard]] const Job* newest_life(const Job& job) const {
    const Job* newest = nullptr;
    const auto was_in = [&](const Job& other) {
      return std::any_of(job.ranks.begin(), job.ranks.end(), [&](const auto& entry) {
        const auto& [rank, member] = entry;
        const auto former = other.ranks.find(rank);
        return member.request.former_epoch != 0 && former != other.ranks.end() &&
               former->second.epoch == member.request.former_epoch;
      });
    };
    for (const auto& [epoch, known] : failed) {
      if (known.name != job.name || known.tenant != job.tenant || !was_in(known)) continue;
      for (const auto& [at, other] : failed) {
        if (other.lineage == known.lineage && (newest == nullptr || other.life > newest->life)) newest = &other;
      }
    }
    return newest;
  }
  // When a member of the job's last life, which has not joined again, counts as dead. It counts as that at once if it is why
  // that life ended, or had left. A daemon that knows nothing of it, as it was started again, gives it the time that silent
  // ranks have.
  [[nodiscard]] Time gone_at(const Job& job, const Muster& all, std::uint32_t rank) const {
    const Job* const last = all.last;
    if (last == nullptr || !last->ranks.contains(rank)) {
      const bool others_know = job.ranks.begin()->second.request.aggregators.size() > 1;
      // New processes may have waited here for long.
      Time first = never;
      for (const auto& [other, member] : job.ranks) {
        if (member.request.life != 0) first = std::min(first, member.liveness.heard());
      }
      return after(first, others_know ? silence_between_lives() : config.heartbeat_timeout);
    }
    if (last->left.contains(rank)) return job.since;
    // Nobody needs to have died: ranks that turned away from it closed connections, too.
    if (!all.begun) return after(last->ranks.at(rank).liveness.heard(), silence_between_lives());
    if (last->lost == rank) return job.since;
    return last->ranks.at(rank).liveness.dead_at(silence_between_lives(), reconnect_allowed_by_survivors);
  }
  // When all ranks that the job waits for have joined or count as dead; `never`: too few have joined.
  [[nodiscard]] Time complete_at(const Job& job) const {
    const bool whole = job.ranks.size() == job.world_size;
    if (job.survivors == 0) return whole && serves(job, job.joined) ? job.since : never;
    const Muster all = muster(job);
    if (!all.known) return never;
    if (!whole && (all.life == 0 || all.next().size() < job.survivors)) return never;
    if (!serves(job, all.next())) return never;
    if (whole) return job.since;
    Time when = job.since;
    all.former.minus(job.joined).minus(job.too_late).for_each([&](std::uint32_t rank) {
      when = std::max(when, gone_at(job, all, rank));
    });
    ahead(job, all).for_each([&](std::uint32_t rank) {
      when = std::max(when, all.last->late.at(rank).liveness.dead_at(silence_between_lives()));
    });
    return when;
  }
  // At once, so that new processes can take their places.
  void turn_away(Job& job) {
    const Muster all = muster(job);
    const auto turn_away = [&](std::uint32_t rank, std::string why) {
      const auto node = job.ranks.extract(rank);
      wait_no_more(node.mapped().ticket, job.tenant);
      outcomes[node.mapped().ticket] = {Refusal::excluded, std::move(why), {}};
    };
    all.stale.for_each(
        [&](std::uint32_t rank) { turn_away(rank, why_excluded(job.ranks.at(rank).request, all.again, all.last)); });
    all.too_late.for_each([&](std::uint32_t rank) {
      turn_away(rank, "rank " + std::to_string(rank) + " of job '" + job.name +
                          "' is too late: it needs the result of operation " +
                          std::to_string(job.ranks.at(rank).request.progress.next) +
                          ", and the others keep results only from operation " + std::to_string(all.kept) +
                          " on: raise Options::recovery_memory");
    });
    job.joined = job.joined.minus(all.stale).minus(all.too_late);
    job.too_late = job.too_late.united(all.too_late);
  }
  void admit_if_complete(const std::string& key, Time now) {
    Job& job = jobs.at(key);
    if (job.phase != Phase::joining) return;
    if (job.survivors != 0) turn_away(job);
    if (now < complete_at(job)) return;
    if (job.survivors == 0) return admit(key, job, now);
    const Muster all = muster(job);
    const Job* const newest = newest_life(job);
    job.lineage = newest == nullptr ? 0 : newest->lineage;
    job.joined = all.next();
    job.aside = all.aside.minus(ahead(job, all));
    if (!all.lets_in) {
      all.fresh.for_each([&](std::uint32_t rank) { job.successors.insert(job.ranks.extract(rank)); });
    }
    job.life = all.life + 1;
    job.boundary = all.boundary;
    job.aside.for_each([&](std::uint32_t rank) {
      const bool known = newest != nullptr && newest->late.contains(rank);
      job.late[rank] = {known ? newest->late.at(rank).request : JoinRequest{}, Liveness(now)};
    });
    set_aside(job, all.late);
    if (job.ranks.size() >= job.survivors && !job.ranks.empty()) admit(key, job, now);
  }
  [[nodiscard]] static std::string ended_without(const Job& job) {
    return "job '" + job.name + "' has ended without " + name_ranks(job.aside) +
           (job.aside.size() == 1 ? ", which was" : ", which were") +
           " late: end it with a call that waits for all (CallOptions::waits_for_all)";
  }
  // Of the late rank's job, if the others have all left.
  [[nodiscard]] const Job* ended_without(const JoinRequest& request) const {
    for (const auto& [epoch, job] : failed) {
      if (job.straggler && job.left.size() == job.ranks.size() && job.aside.contains(request.rank) &&
          job.life > request.life && job.name == request.job && job.tenant == request.tenant) {
        return &job;
      }
    }
    return nullptr;
  }
  // The next life begins without them, and they are told.
  void set_aside(Job& job, const RankSet& late) {
    late.for_each([&](std::uint32_t rank) {
      auto node = job.ranks.extract(rank);
      tell_aside(job, node.mapped().ticket);
      wait_no_more(node.mapped().ticket, job.tenant);
      job.late.at(rank).request = std::move(node.mapped().request);
    });
  }
  void tell_aside(const Job& job, std::uint64_t ticket) {
    Admission admission;
    admission.life = job.life;
    admission.sites = sites_of(job, job.joined);
    admission.aside = job.aside;
    admission.resumption.members = job.joined;
    outcomes[ticket] = {Refusal::none, {}, std::move(admission)};
  }
  // `life`: of the others, after the rank's own; null: this daemon knows nothing of it.
  [[nodiscard]] static std::string why_excluded(const JoinRequest& request, const RankSet& others, const Job* life) {
    return "rank " + std::to_string(request.rank) + " of job '" + request.job +
           "' was declared dead: " + (others.empty() ? "the others" : name_ranks(others)) +
           (others.size() == 1 ? " continues without it" : " continue without it") +
           (life == nullptr ? "" : ", most recently from operation " + std::to_string(life->first_operation)) +
           ": start it again, as a new process";
  }

  // Why no rank of the job, or none of a new one, may wait here.
  [[nodiscard]] std::optional<JoinOutcome> has_no_room(const JoinRequest& request, const std::string& key) const {
    const auto refused = [](Refusal refusal, std::string why) { return JoinOutcome{refusal, std::move(why), {}}; };
    const bool is_new = !jobs.contains(key);
    if (std::string error = ended(request); is_new && !error.empty()) {
      return refused(Refusal::ended_by_operator, std::move(error));
    }
    if (is_new && draining && !(request.recovers && spared.contains(key))) {
      return refused(Refusal::draining, drained(request.job));
    }
    if (std::string error = over_quota(request, is_new); !error.empty()) return refused(Refusal::quota, std::move(error));
    if (waiting.size() >= config.max_joins) {
      return refused(Refusal::no_slots, std::to_string(config.max_joins) +
                                            " ranks wait here for other ranks of their jobs, the maximum: try again later");
    }
    if (is_new && jobs.size() >= config.max_jobs) {
      return refused(Refusal::no_slots,
                     "this aggregator serves " + std::to_string(config.max_jobs) + " jobs, its maximum: try again later");
    }
    return std::nullopt;
  }

  void register_rank(JoinRequest request, std::uint64_t ticket, Time now) {
    const auto refuse = [&](JoinOutcome outcome) {
      note_refusal(request, outcome, now);
      outcomes[ticket] = std::move(outcome);
    };
    const std::string key = key_of(request);
    if (!supersede(key, request, now)) {
      return refuse({Refusal::superseded,
                     "rank " + std::to_string(request.rank) + " of job '" + request.job +
                         "' belongs to an earlier start than the job that runs here",
                     {}});
    }
    auto found = jobs.find(key);
    if (found != jobs.end() && found->second.phase == Phase::running && request.former_epoch != 0 &&
        request.world_size == found->second.world_size && found->second.ranks.contains(request.rank) &&
        found->second.ranks.at(request.rank).epoch == request.former_epoch) {
      // The rank's other aggregators know of a death, or have died: no need to wait until this one detects it.
      end(key, "rank " + std::to_string(request.rank) + " of job '" + request.job + "' has joined again",
          FailureCause::started_again, std::nullopt, now);
      found = jobs.find(key);
    }
    if (found != jobs.end() && found->second.phase == Phase::running && request.life != 0 &&
        found->second.aside.contains(request.rank) && !is_replaced(found->second, request)) {
      found->second.late.at(request.rank).liveness.hear(now);
      if (!request.pace.calls) return tell_aside(found->second, ticket);
      request.set_aside = true;
      end(key, "rank " + std::to_string(request.rank) + " of job '" + request.job + "' was late, and has made its call",
          FailureCause::straggler, std::nullopt, now);
      found = jobs.find(key);
    }
    if (const Job* const ended = found == jobs.end() && request.set_aside ? ended_without(request) : nullptr) {
      return refuse({Refusal::excluded, ended->failure, {}});
    }
    if (auto outcome = has_no_room(request, key)) return refuse(std::move(*outcome));
    Job& job = found == jobs.end() ? jobs[key] : found->second;
    if (job.phase == Phase::running && job.survivors != 0 && request.life != 0 &&
        (!job.joined.contains(request.rank) || (request.life < job.life && is_replaced(job, request)))) {
      return refuse({Refusal::excluded, why_excluded(request, job.joined, &job), {}});
    }
    if (job.phase == Phase::running && may_succeed(job, request)) {
      wait(ticket, key, request);
      const std::uint32_t rank = request.rank;
      job.successors[rank] = {std::move(request), ticket, 0, Liveness(now)};
      return;
    }
    if (job.phase == Phase::running) {
      return refuse({Refusal::job_running,
                     "job '" + request.job + "' is running already: give this one another name, or wait until it ends",
                     {}});
    }
    if (!job.ranks.empty()) {
      if (job.ranks.contains(request.rank)) {
        return refuse({Refusal::duplicate_rank,
                       "rank " + std::to_string(request.rank) + " of job '" + request.job +
                           "' has joined already: two processes use "
                           "the same rank, or two jobs the same name",
                       {}});
      }
      if (JoinOutcome outcome = compare(requests_of(job), request, *rules_of(request.protocol));
          outcome.refusal != Refusal::none)
        return refuse(std::move(outcome));
    } else {
      job.name = request.job;
      job.tenant = request.tenant;
      job.generation = request.generation;
      job.world_size = request.world_size;
      job.packet_elements = request.packet_elements;
      job.survivors = request.survivors;
      job.straggler_deadline = request.straggler_deadline;
      job.since = now;
    }
    job.joined.insert(request.rank);
    note(JobEvent::Kind::joined, job, now, request.rank);
    wait(ticket, key, request);
    const std::uint32_t rank = request.rank;
    job.ranks[rank] = {std::move(request), ticket, 0, Liveness(now)};
    admit_if_complete(key, now);
  }

  // After how much silence a rank of a job that runs counts as dead.
  [[nodiscard]] Duration silence(const Job& job, const Member& member) const {
    const bool soon = job.survivors != 0 && member.beats;
    return soon ? std::min(config.survivor_timeout, config.heartbeat_timeout) : config.heartbeat_timeout;
  }
  [[nodiscard]] Time dead_at(const Job& job, const Member& member) const {
    return member.liveness.dead_at(silence(job, member), reconnect(job));
  }
  // Of a rank that sends no heartbeats, as it joins again.
  [[nodiscard]] Duration silence_between_lives() const {
    return std::min(survivors_between_lives * config.survivor_timeout, config.heartbeat_timeout);
  }

  // How long a rank whose connection has ended may take to open another one.
  [[nodiscard]] static Duration reconnect(const Job& job) {
    return job.survivors == 0 ? reconnect_allowed : reconnect_allowed_by_survivors;
  }

  // Ends the job's life if a rank has waited long enough for the call of others that the next one can begin without.
  bool leave_stragglers(const Job& job, Time now) {
    if (job.straggler_deadline.count() == 0) return false;
    std::vector<Paced> paces;
    for (const auto& [rank, member] : job.ranks) {
      if (!member.beats || job.left.contains(rank)) continue;
      const Pace& pace = member.pace;
      const bool patient = pace.calls && pace.since.count() == 0;  // also until it is heard again
      const Duration since = patient ? Duration::zero() : pace.since + (now - member.liveness.heard());
      paces.push_back({rank, pace.calls, pace.next, since, false});
    }
    const RankSet late = stragglers(paces, job.straggler_deadline, job.survivors);
    if (late.empty()) return false;
    end(keys.at(job.epoch),
        "job '" + job.name + "': " + name_ranks(late) + (late.size() == 1 ? " is" : " are") + " more than " +
            in_seconds(job.straggler_deadline) + " late with " + (late.size() == 1 ? "its call" : "their calls"),
        FailureCause::straggler, std::nullopt, now);
    return true;
  }

  [[nodiscard]] Duration succession_patience() const {
    return std::min(config.heartbeat_timeout, sign_of_life) + succession_slack;
  }

  // New processes whose old one is alive after all.
  void refuse_successors(Job& job, Time now) {
    for (auto& [rank, successor] : job.successors) {
      const bool due = now >= successor.liveness.heard() + succession_patience();
      if (!due || !job.ranks.contains(rank) || now - job.ranks.at(rank).liveness.heard() <= sign_of_life) continue;
      successor.liveness = Liveness(now - succession_patience() + succession_slack);  // looks again after that
    }
    std::erase_if(job.successors, [&](auto& entry) {
      auto& [rank, successor] = entry;
      if (!job.ranks.contains(rank) || job.left.contains(rank) || now < successor.liveness.heard() + succession_patience())
        return false;
      wait_no_more(successor.ticket, job.tenant);
      outcomes[successor.ticket] = {Refusal::duplicate_rank,
                                    "rank " + std::to_string(rank) + " of job '" + job.name +
                                        "' is alive: two processes use the same rank, or two jobs the same name",
                                    {}};
      return true;
    });
  }

  [[nodiscard]] Job* running(std::uint64_t epoch) {
    const auto key = keys.find(epoch);
    if (key == keys.end() || failed.contains(epoch)) return nullptr;
    return &jobs.at(key->second);
  }
};

Registry::Registry(RegistryConfig config) : impl_(std::make_unique<Impl>()) {
  impl_->config = std::move(config);
  impl_->slots_free = impl_->config.slots;
  impl_->memory = MemoryAccount(impl_->config.memory_bytes);
}
Registry::~Registry() = default;
Registry::Registry(Registry&&) noexcept = default;
Registry& Registry::operator=(Registry&&) noexcept = default;

std::uint64_t Registry::join(const JoinRequest& request, Time now) {
  Impl& r = *impl_;
  const std::uint64_t ticket = r.next_ticket++;
  const auto refuse = [&](JoinOutcome outcome) {
    r.note_refusal(request, outcome, now);
    r.outcomes[ticket] = std::move(outcome);
    return ticket;
  };
  if (JoinOutcome outcome = r.check(request); outcome.refusal != Refusal::none) return refuse(std::move(outcome));
  r.register_rank(request, ticket, now);
  return ticket;
}

std::optional<JoinOutcome> Registry::join_outcome(std::uint64_t ticket) {
  auto node = impl_->outcomes.extract(ticket);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

RankSet Registry::cancel_join(std::uint64_t ticket, Time now) {
  Impl& r = *impl_;
  if (auto node = r.outcomes.extract(ticket); !node.empty()) {
    // Admitted just now, but the rank will not be told: for the others it is dead.
    if (node.mapped().admission) {
      const Admission& admission = *node.mapped().admission;
      if (Job* job = r.running(admission.job_epoch)) {
        const auto& epochs = admission.rank_epochs;
        const auto place = std::find(epochs.begin(), epochs.end(), admission.rank_epoch) - epochs.begin();
        const std::uint32_t rank = job->joined.at_place(static_cast<std::uint32_t>(place));
        r.end(r.keys.at(admission.job_epoch),
              "rank " + std::to_string(rank) + " of job '" + job->name + "' gave up while joining", FailureCause::gave_up,
              rank, now);
      }
    }
    return {};
  }
  const auto found = r.waiting.find(ticket);
  if (found == r.waiting.end()) return {};
  const auto [key, rank] = found->second;
  Job& job = r.jobs.at(key);
  const RankSet missing = RankSet::first(job.world_size).minus(job.joined);
  r.wait_no_more(ticket, job.tenant);
  if (const auto successor = job.successors.find(rank);
      successor != job.successors.end() && successor->second.ticket == ticket) {
    job.successors.erase(successor);
    return missing;
  }
  // Ranks turn away from an aggregator that would not serve them.
  const bool parts = !r.serves(job, job.joined);
  if (!parts) r.note(JobEvent::Kind::gave_up, job, now, rank, "while it waited for " + name_ranks(missing));
  job.ranks.erase(rank);
  RankSet still;
  for (const auto& [other, member] : job.ranks) still.insert(other);
  job.joined = still;
  if (job.ranks.empty()) {
    if (!parts) r.note(JobEvent::Kind::refused, job, now, {}, "all ranks that had joined gave up", FailureCause::gave_up);
    r.jobs.erase(key);
  }
  return missing;
}

void Registry::start_failed(std::uint64_t job_epoch, const std::string& reason, Time now) {
  Impl& r = *impl_;
  if (r.running(job_epoch) == nullptr) return;  // the job ended meanwhile
  auto node = r.jobs.extract(r.keys.at(job_epoch));
  Job& job = node.mapped();
  for (const auto& [rank, member] : job.ranks) {
    r.outcomes[member.ticket] = {Refusal::not_started, "job '" + job.name + "': " + reason, {}};
  }
  r.release(job);
  r.note(JobEvent::Kind::failed, job, now, {}, reason, FailureCause::not_started);
  r.succeed(job, now);
  r.forget(job);
}

void Registry::admission_told(std::uint64_t job_epoch, Time now) {
  Job* job = impl_->running(job_epoch);
  if (job == nullptr) return;
  job->told = true;
  for (auto& [rank, member] : job->ranks) member.liveness.hear(now);
}

void Registry::on_greeted(const std::string& switch_id, const std::vector<Profile>& profiles) {
  const bool parent = std::any_of(impl_->config.switch_parents.begin(), impl_->config.switch_parents.end(),
                                  [&](const auto& entry) { return entry.second == switch_id; });
  if (parent) impl_->said[switch_id] = profiles;
}

void Registry::leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, const Farewell& why, Time now) {
  if (const auto failed = impl_->failed.find(job_epoch); failed != impl_->failed.end()) {
    const auto member = failed->second.ranks.find(rank);
    if (member != failed->second.ranks.end() && member->second.epoch == rank_epoch) failed->second.left.insert(rank);
    return;  // it will not join again
  }
  Job* job = impl_->running(job_epoch);
  if (job == nullptr) return;
  const auto found = job->ranks.find(rank);
  if (found == job->ranks.end() || found->second.epoch != rank_epoch) return;
  if (!job->left.contains(rank)) impl_->note(JobEvent::Kind::left, *job, now, rank, why.reason);
  job->left.insert(rank);
  if (job->farewell.cause == FailureCause::none && why.cause != FailureCause::none) job->farewell = why;
  if (job->last_words.empty() && !why.reason.empty()) job->last_words = "rank " + std::to_string(rank) + ": " + why.reason;
  if (job->left.size() == job->ranks.size()) {
    const Farewell first = job->farewell;
    const std::string key = impl_->keys.at(job_epoch);
    if (first.cause == FailureCause::none && !job->aside.empty())
      return impl_->end(key, Impl::ended_without(*job), FailureCause::straggler, std::nullopt, now);
    impl_->end(key, first.reason, first.cause, std::nullopt, now);
  }
}

HeartbeatReply Registry::heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now,
                                   const std::string& call, const SiteSet& seen, const Pace& pace) {
  HeartbeatReply reply;
  const auto compare_calls = [&](Job& job) {
    const bool known =
        std::any_of(job.calls.begin(), job.calls.end(), [&](const auto& other) { return other.call == call; });
    if (!call.empty() && !known && job.calls.size() < most_stated_calls) job.calls.push_back({rank, call});
    reply.calls = job.calls;
  };
  if (const auto found = impl_->failed.find(job_epoch); found != impl_->failed.end()) {
    reply.state = HeartbeatReply::State::failed;
    reply.reason = found->second.failure;
    reply.lost = found->second.lost;
    reply.lost_switch = found->second.lost_switch;
    reply.mismatch = found->second.mismatch;
    reply.straggler = found->second.straggler;
    reply.ended_by_operator = found->second.ended_by_operator;
    if (rank < found->second.world_size) compare_calls(found->second);
    if (const auto member = found->second.ranks.find(rank);
        member != found->second.ranks.end() && member->second.epoch == rank_epoch) {
      member->second.liveness.hear(now);  // it may join again
    }
    return reply;
  }
  Job* job = impl_->running(job_epoch);
  if (job == nullptr) return reply;
  const auto found = job->ranks.find(rank);
  if (found == job->ranks.end() || found->second.epoch != rank_epoch) return reply;
  found->second.liveness.hear(now);
  found->second.beats = true;
  found->second.seen = seen;
  found->second.pace = pace;
  if (impl_->leave_stragglers(*job, now)) return heartbeat(job_epoch, rank, rank_epoch, now, call, seen, pace);
  reply.state = HeartbeatReply::State::running;
  reply.returned = seen.minus(job->sites);
  for (auto other = job->ranks.begin(); other != job->ranks.end() && !reply.returned.empty(); ++other) {
    reply.returned = reply.returned.in_both(other->second.seen);
  }
  reply.left = job->left;
  for (const auto& [other, successor] : job->successors) {
    if (!job->ranks.contains(other)) reply.waiting.insert(other);
  }
  reply.reason = one_line(job->last_words);
  compare_calls(*job);
  return reply;
}

void Registry::fail(std::uint64_t job_epoch, const std::string& reason, Time now, const std::string& lost_switch) {
  Job* const job = impl_->running(job_epoch);
  if (job == nullptr) return;
  job->lost_switch = lost_switch;
  const FailureCause cause = job->mismatch ? FailureCause::mismatch : FailureCause::other;
  impl_->end(impl_->keys.at(job_epoch), "job '" + job->name + "': " + reason, cause, std::nullopt, now);
}

void Registry::lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how, Time now) {
  const Job* const job = impl_->running(job_epoch);
  if (job == nullptr || !job->ranks.contains(rank) || job->left.contains(rank)) return;
  impl_->end(impl_->keys.at(job_epoch), "rank " + std::to_string(rank) + " of job '" + job->name + "' died: " + how,
             FailureCause::died, rank, now);
}

void Registry::fail_mismatch(std::uint64_t job_epoch, const std::string& reason, Time now) {
  if (Job* const job = impl_->running(job_epoch)) job->mismatch = true;
  fail(job_epoch, reason, now);
}

void Registry::closed(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now) {
  const auto failed = impl_->failed.find(job_epoch);
  Job* const job = failed == impl_->failed.end() ? impl_->running(job_epoch) : &failed->second;
  if (job == nullptr) return;
  const auto found = job->ranks.find(rank);
  if (found != job->ranks.end() && found->second.epoch == rank_epoch) found->second.liveness.close(now);
}

std::string Registry::end(const NamedJob& named, const std::string& by, Time now) {
  Impl& r = *impl_;
  std::vector<std::string> found;
  for (const auto& [key, job] : r.jobs) {
    if (job.name == named.job && (!named.tenant || job.tenant == *named.tenant)) found.push_back(key);
  }
  if (found.empty()) return "no job '" + named.job + "' is joining or running here: `netsum status` lists the jobs";
  if (found.size() > 1) {
    std::vector<std::string> tenants;
    for (const std::string& key : found) tenants.push_back(r.jobs.at(key).tenant);
    return "several tenants have a job '" + named.job + "' here: choose one with --tenant: " + list(tenants);
  }
  const std::string reason = "an operator at " + by + " ended job '" + named.job + "' (netsum end)";
  if (r.jobs.at(found.front()).phase == Phase::running) {
    r.end(found.front(), reason, FailureCause::ended_by_operator, std::nullopt, now);
  } else {
    r.refuse_all(found.front(), Refusal::ended_by_operator, reason, now);
  }
  return "";
}

void Registry::set_draining(bool draining, Time now) {
  Impl& r = *impl_;
  if (std::exchange(r.draining, draining) == draining) return;
  r.spared.clear();
  if (!draining) return;
  std::vector<std::string> waiting;
  for (const auto& [key, job] : r.jobs) {
    if (job.phase == Phase::running)
      r.spared.insert(key);
    else
      waiting.push_back(key);
  }
  for (const std::string& key : waiting) r.refuse_all(key, Refusal::draining, Impl::drained(r.jobs.at(key).name), now);
}

bool Registry::draining() const {
  return impl_->draining;
}

void Registry::on_timer(Time now) {
  Impl& r = *impl_;
  const Time meant = next_timeout();
  std::erase_if(r.failed, [&](const auto& entry) {
    const bool old = now - entry.second.since >= remember_failed;
    if (old) r.forget(entry.second);
    return old;
  });
  for (auto& [epoch, job] : r.failed) {
    for (auto& [rank, member] : job.ranks) member.liveness.look(now, meant);
  }
  struct Dead {
    std::string key;
    std::uint32_t rank;
    bool closed;
    Duration silence;
  };
  std::vector<Dead> dead;
  std::vector<std::string> late;
  for (auto& [key, job] : r.jobs) {
    r.refuse_successors(job, now);
    if (job.phase == Phase::joining && now - job.since >= r.config.join_timeout) late.push_back(key);
    if (job.phase != Phase::running || !job.told) continue;
    for (auto& [rank, member] : job.ranks) member.liveness.look(now, meant);
    for (const auto& [rank, member] : job.ranks) {
      if (!job.left.contains(rank) && now >= r.dead_at(job, member)) {
        dead.push_back({key, rank, member.liveness.has_closed(), r.silence(job, member)});
        break;
      }
    }
    if (!dead.empty() && dead.back().key == key) continue;
    for (auto& [rank, waits] : job.late) {
      waits.liveness.look(now, meant);
      if (now < waits.liveness.dead_at(r.config.heartbeat_timeout)) continue;
      dead.push_back({key, rank, false, r.config.heartbeat_timeout});
      break;
    }
  }
  for (const auto& [key, rank, closed, silence] : dead) {
    const std::string who = "rank " + std::to_string(rank) + " of job '" + r.jobs.at(key).name + "'";
    if (closed) {
      r.end(key, who + " died: its process has ended, as its connection closed", FailureCause::died, rank, now);
    } else {
      r.end(key, who + " has not been heard from for " + in_seconds(silence) + ": it is stopped, or its host is unreachable",
            FailureCause::silent, rank, now);
    }
  }
  std::vector<std::string> forming;
  for (const auto& [key, job] : r.jobs) {
    if (job.phase == Phase::joining && job.survivors != 0) forming.push_back(key);
  }
  for (const std::string& key : forming) r.admit_if_complete(key, now);
  for (const std::string& key : late) {
    if (!r.jobs.contains(key) || r.jobs.at(key).phase != Phase::joining) continue;
    const Job& job = r.jobs.at(key);
    const RankSet missing = RankSet::first(job.world_size).minus(job.joined);
    r.refuse_all(key, Refusal::bad_parameters,
                 "job '" + job.name + "' did not become complete within " + in_seconds(r.config.join_timeout) + ": " +
                     name_ranks(missing) + (missing.size() == 1 ? " is" : " are") + " missing",
                 now);
  }
}

Time Registry::next_timeout() const {
  Time next = never;
  for (const auto& [key, job] : impl_->jobs) {
    if (job.phase == Phase::joining) {
      next = std::min({next, job.since + impl_->config.join_timeout, impl_->complete_at(job)});
    }
    if (job.phase != Phase::running) continue;
    for (const auto& [rank, successor] : job.successors) {
      if (job.ranks.contains(rank) && !job.left.contains(rank))
        next = std::min(next, successor.liveness.heard() + impl_->succession_patience());
    }
    if (!job.told) continue;
    for (const auto& [rank, member] : job.ranks) {
      if (!job.left.contains(rank)) next = std::min(next, impl_->dead_at(job, member));
    }
    for (const auto& [rank, waits] : job.late)
      next = std::min(next, waits.liveness.dead_at(impl_->config.heartbeat_timeout));
  }
  for (const auto& [epoch, job] : impl_->failed) next = std::min(next, job.since + remember_failed);
  return next;
}

void Registry::shut_down(Time now) {
  Impl& r = *impl_;
  r.closing = true;
  std::vector<std::pair<std::string, Phase>> all;
  for (const auto& [key, job] : r.jobs) all.emplace_back(key, job.phase);
  for (const auto& [key, phase] : all) {
    if (phase == Phase::running)
      r.end(key, "the aggregator is shutting down", FailureCause::shutting_down, std::nullopt, now);
    else
      r.refuse_all(key, Refusal::shutting_down, "the aggregator is shutting down", now);
  }
}

std::vector<StartJob> Registry::take_starts() {
  return std::exchange(impl_->starts, {});
}
std::vector<StopJob> Registry::take_stops() {
  return std::exchange(impl_->stops, {});
}

std::vector<JobEvent> Registry::take_events() {
  return std::exchange(impl_->events, {});
}

RankSet Registry::members(std::uint64_t job_epoch) const {
  if (const auto failed = impl_->failed.find(job_epoch); failed != impl_->failed.end()) return failed->second.joined;
  const Job* const job = impl_->running(job_epoch);
  return job == nullptr ? RankSet() : job->joined;
}
bool Registry::belongs(std::uint64_t job_epoch, const std::string& tenant) const {
  if (const auto failed = impl_->failed.find(job_epoch); failed != impl_->failed.end()) {
    return failed->second.tenant == tenant;
  }
  const Job* const job = impl_->running(job_epoch);
  return job != nullptr && job->tenant == tenant;
}
const Quota& Registry::quota_of(const std::string& tenant) const {
  return impl_->quota_of(tenant);
}
void Registry::set_quotas(std::map<std::string, Quota> quotas) {
  impl_->config.quotas = std::move(quotas);
}
std::vector<std::uint64_t> Registry::decided() const {
  std::vector<std::uint64_t> tickets;
  for (const auto& [ticket, outcome] : impl_->outcomes) tickets.push_back(ticket);
  return tickets;
}
const JoinOutcome* Registry::look_at_outcome(std::uint64_t ticket) const {
  const auto found = impl_->outcomes.find(ticket);
  return found == impl_->outcomes.end() ? nullptr : &found->second;
}
bool Registry::is_running(std::uint64_t job_epoch) const {
  return impl_->running(job_epoch) != nullptr;
}
MemoryAccount& Registry::memory() {
  return impl_->memory;
}
const MemoryAccount& Registry::memory() const {
  return impl_->memory;
}

std::uint32_t Registry::slots_free() const {
  return impl_->slots_free;
}

std::vector<JobStatus> Registry::jobs() const {
  std::vector<JobStatus> list;
  const auto add = [&](const Job& job) {
    std::vector<Endpoint> endpoints;
    std::vector<Process> processes;
    for (const auto& [rank, member] : job.ranks) {
      processes.push_back(member.request.process);
      const std::vector<Endpoint>& own = member.request.endpoints;
      endpoints.push_back(own.empty() ? Endpoint() : own.front());
    }
    list.push_back({job.name, job.epoch, job.world_size, job.packet_elements, job.slots, job.joined, job.left,
                    job.phase == Phase::running, job.failure, job.charged, job.tenant, impl_->memory.of(job.epoch),
                    job.ranks.empty() ? "" : job.ranks.begin()->second.request.protocol, std::move(endpoints),
                    std::move(processes), job.placement, job.lanes, Impl::absent(job), job.aside});
  };
  for (const auto& [key, job] : impl_->jobs) add(job);
  for (const auto& [epoch, job] : impl_->failed) add(job);
  return list;
}

Changes take_changes(Registry& registry) {
  Changes changes{registry.take_stops(), registry.take_starts()};
  std::erase_if(changes.starts, [&](const StartJob& start) {
    return std::erase_if(changes.stops, [&](const StopJob& stop) { return stop.job_epoch == start.admission.job_epoch; }) !=
           0;
  });
  return changes;
}

}  // namespace netsum::session
