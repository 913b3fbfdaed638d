#include "session/registry.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <set>
#include <utility>

#include "base/check.h"
#include "session/words.h"

namespace netsum::session {
namespace {

constexpr std::uint32_t least_slots = 2;    // a measured window is halved down to this before a job is refused
constexpr std::uint32_t most_slots = 4096;  // per lane
constexpr Duration succession_slack = std::chrono::seconds(1);  // beyond the time in which a death is noticed
constexpr Duration remember_failed = std::chrono::seconds(30);  // so that late heartbeats still get the reason

// What a stranger sends goes into one-line errors and logs: neither lines of its own making nor megabytes.
constexpr std::size_t longest_name = 255;
constexpr std::size_t most_aggregators = 256;

[[nodiscard]] std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

[[nodiscard]] bool printable(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

struct Rank {
  JoinRequest request;
  std::uint64_t ticket = 0;
  std::uint32_t epoch = 0;
  Time heard{};
};

enum class Phase : std::uint8_t { joining, running, failed };

struct Job {
  Phase phase = Phase::joining;
  std::map<std::uint32_t, Rank> ranks;
  std::uint32_t world_size = 0, packet_elements = 0, slots = 0, charged = 0, part = 0;
  std::uint64_t epoch = 0;
  RankSet joined, left;
  Time since{};
  std::string failure;
  std::optional<std::uint32_t> lost;
  bool mismatch = false;
  bool told = true;                          // its ranks know that they are admitted
  std::map<std::uint32_t, Rank> successors;  // of a job that recovers: new processes for ranks that are not known to be dead
};

}  // namespace

const char* to_string(Refusal refusal) {
  constexpr const char* names[] = {
      "none",           "protocol_version", "protocol",    "bad_parameters",    "parameters_differ",
      "duplicate_rank", "no_slots",         "job_running", "results_forgotten", "shutting_down"};
  return names[static_cast<std::size_t>(refusal)];
}

struct Registry::Impl {
  RegistryConfig config;
  std::map<std::string, Job> jobs;             // joining or running, by name
  std::map<std::uint64_t, Job> failed;         // by epoch
  std::map<std::uint64_t, std::string> names;  // of running and failed jobs
  std::map<std::uint64_t, JoinOutcome> outcomes;
  std::map<std::uint64_t, std::pair<std::string, std::uint32_t>> waiting;  // ticket -> (job, rank)
  std::vector<StartJob> starts;
  std::vector<StopJob> stops;
  std::set<std::uint64_t> job_epochs;   // issued in this life; random ones of former lives do not come again
  std::set<std::uint32_t> rank_epochs;  // likewise
  std::uint64_t next_ticket = 1;
  std::uint32_t slots_free = 0;
  bool closing = false;

  template <class Epoch>
  [[nodiscard]] Epoch new_epoch(std::set<Epoch>& issued) const {
    Epoch epoch = 0;
    while (epoch == 0 || !issued.insert(epoch).second) epoch = static_cast<Epoch>(config.random());
    return epoch;
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

  // Empty, or why the request cannot be served, whatever the rest of its job says.
  [[nodiscard]] JoinOutcome check(const JoinRequest& request) const {
    const auto refuse = [](Refusal refusal, std::string reason) { return JoinOutcome{refusal, std::move(reason), {}}; };
    if (closing) return refuse(Refusal::shutting_down, "the aggregator is shutting down");
    const ProtocolRules* const rules = rules_of(request.protocol);
    if (rules == nullptr) {
      const bool shown = request.protocol.size() <= longest_name && printable(request.protocol);
      return refuse(Refusal::protocol, "this aggregator does not serve " +
                                           (shown ? "protocol '" + request.protocol + "'" : "that protocol") + ", only " +
                                           protocols_served());
    }
    if (request.protocol_version != rules->version) {
      return refuse(Refusal::protocol_version, "the worker speaks wire version " + std::to_string(request.protocol_version) +
                                                   ", this aggregator " + std::to_string(rules->version) +
                                                   ": install the same netsum on both");
    }
    if (request.job.empty()) return refuse(Refusal::bad_parameters, "the job has no name");
    if (request.job.size() > longest_name || !printable(request.job)) {
      return refuse(Refusal::bad_parameters, "a job's name has at most " + std::to_string(longest_name) +
                                                 " bytes, and no line breaks or other control characters");
    }
    if (request.world_size == 0 || request.world_size > rules->max_world_size) {
      return refuse(Refusal::bad_parameters, "world size " + std::to_string(request.world_size) + " is not between 1 and " +
                                                 std::to_string(rules->max_world_size));
    }
    if (request.rank >= request.world_size) {
      return refuse(Refusal::bad_parameters, "rank " + std::to_string(request.rank) + " is not below the world size " +
                                                 std::to_string(request.world_size));
    }
    if (std::string error = rules->check_packet(request.packet_elements); !error.empty()) {
      return refuse(Refusal::bad_parameters, std::move(error));
    }
    if (!rules->switches && !request.switch_address.empty()) {
      return refuse(Refusal::bad_parameters, rules->name + " has no switches of its own");
    }
    if (request.switch_address.size() > longest_name || !printable(request.switch_address)) {
      return refuse(Refusal::bad_parameters, "the address of the rank's switch is none");
    }
    if (request.aggregators.size() > most_aggregators ||
        !std::all_of(request.aggregators.begin(), request.aggregators.end(),
                     [](const std::string& name) { return name.size() <= longest_name && printable(name); })) {
      return refuse(Refusal::bad_parameters, "the addresses of the aggregators are none");
    }
    if (!request.progress.sound()) {
      return refuse(Refusal::bad_parameters, "what the rank says of its operations cannot be");
    }
    if (request.slots_fixed != 0 && (!std::has_single_bit(request.slots_fixed) || request.slots_fixed > most_slots)) {
      return refuse(Refusal::bad_parameters, std::to_string(request.slots_fixed) +
                                                 " slots per lane are not a power of two up to " +
                                                 std::to_string(most_slots));
    }
    if (request.endpoints.size() != config.lanes) {
      return refuse(Refusal::bad_parameters, "the worker names " + std::to_string(request.endpoints.size()) +
                                                 " data endpoints for this aggregator's " + std::to_string(config.lanes) +
                                                 " lanes");
    }
    if (request.why_not_local.size() > longest_name || !printable(request.why_not_local)) {
      return refuse(Refusal::bad_parameters, "what the rank says of its shared memory cannot be");
    }
    if (std::string error = rules->check_request(request); !error.empty()) {
      return refuse(Refusal::bad_parameters, std::move(error));
    }
    return {};
  }

  [[nodiscard]] static JoinOutcome compare(const Job& job, const JoinRequest& request) {
    const JoinRequest& first = job.ranks.begin()->second.request;
    const auto differ = [&](const char* what, std::uint32_t theirs, std::uint32_t ours) {
      return JoinOutcome{Refusal::parameters_differ,
                         "rank " + std::to_string(request.rank) + " joined job '" + request.job + "' with " + what + " " +
                             std::to_string(ours) + ", rank " + std::to_string(first.rank) + " with " +
                             std::to_string(theirs) + ": all ranks must give the same",
                         {}};
    };
    if (first.world_size != request.world_size) return differ("world size", first.world_size, request.world_size);
    if (first.packet_elements != request.packet_elements) {
      return differ("elements per packet", first.packet_elements, request.packet_elements);
    }
    if (first.protocol != request.protocol) {
      return JoinOutcome{Refusal::parameters_differ,
                         "rank " + std::to_string(request.rank) + " joined job '" + request.job + "' for " +
                             request.protocol + ", rank " + std::to_string(first.rank) + " for " + first.protocol +
                             ": all ranks must give the same",
                         {}};
    }
    if (first.message_packets != request.message_packets) {
      return differ("packets per message", first.message_packets, request.message_packets);
    }
    if (first.slots_fixed != request.slots_fixed) return differ("slots", first.slots_fixed, request.slots_fixed);
    if (first.recovers != request.recovers) return differ("recovery", first.recovers, request.recovers);
    if (first.aggregators != request.aggregators) {
      return JoinOutcome{Refusal::parameters_differ,
                         "rank " + std::to_string(request.rank) + " of job '" + request.job + "' joins at " +
                             list(request.aggregators) + ", rank " + std::to_string(first.rank) + " at " +
                             list(first.aggregators) + ": can all ranks reach the same, and do all name them alike?",
                         {}};
    }
    return {};
  }

  // The switches that the ranks are at, and those between them and here.
  [[nodiscard]] Placement place(const Job& job) const {
    Placement placement;
    placement.indexing = config.indexing;
    placement.scaling = config.scaling;
    placement.parts = config.parts;
    std::map<std::string, std::uint32_t> known;
    const std::function<std::uint32_t(const std::string&)> index_of = [&](const std::string& address) {
      if (address.empty()) return Placement::at_server;
      const auto [found, added] = known.emplace(address, static_cast<std::uint32_t>(placement.switches.size()));
      const std::uint32_t index = found->second;
      if (!added) return index;
      placement.switches.push_back(address);
      placement.parent_of_switch.push_back(Placement::at_server);
      if (const auto parent = config.switch_parents.find(address); parent != config.switch_parents.end()) {
        const std::uint32_t above = index_of(parent->second);
        placement.parent_of_switch[index] = above;
      }
      return index;
    };
    for (const auto& [rank, member] : job.ranks) {
      const JoinRequest& request = member.request;
      placement.switch_of_rank.push_back(index_of(request.switch_address));
      if (request.switch_address.empty()) continue;
      placement.pool_slots =
          placement.pool_slots == 0 ? request.pool_slots : std::min(placement.pool_slots, request.pool_slots);
    }
    return placement;
  }

  // Calls what(lane, connection, rank) with both directions of each rank's connection to its successor.
  template <class What>
  static void for_each_connection(const Job& job, const What& what) {
    for (const auto& [rank, member] : job.ranks) {
      const std::vector<netreduce::Member>& own = member.request.members;
      const std::vector<netreduce::Member>& next = job.ranks.at((rank + 1) % job.world_size).request.members;
      for (std::size_t lane = 0; lane < own.size(); ++lane) {
        what(lane, netreduce::data_connection(own[lane], next[lane]), rank);
        what(lane, netreduce::answer_connection(own[lane], next[lane]), rank);
      }
    }
  }

  // Empty, or which connection of the job's looks on the wire like another one.
  [[nodiscard]] std::string clash(const Job& job) const {
    if (job.ranks.begin()->second.request.members.empty()) return "";
    std::set<std::pair<std::size_t, netreduce::Connection>> taken;
    const auto take = [&](std::size_t lane, const netreduce::Connection& connection, std::uint32_t) {
      return taken.emplace(lane, connection).second;
    };
    for (const auto& [other, each] : jobs) {
      if (each.phase == Phase::running) for_each_connection(each, take);
    }
    std::string error;
    for_each_connection(job, [&](std::size_t lane, const netreduce::Connection& connection, std::uint32_t rank) {
      if (take(lane, connection, rank) || !error.empty()) return;
      error = "a queue pair between ranks " + std::to_string(rank) + " and " + std::to_string((rank + 1) % job.world_size) +
              " on lane " + std::to_string(lane) + " is another's";
    });
    return error;
  }

  // All ranks are there: slots, epochs, answers.
  void admit(const std::string& name, Job& job, Time now) {
    const JoinRequest& first = job.ranks.begin()->second.request;
    std::uint32_t slots = first.slots_fixed;
    if (slots == 0) {
      for (const auto& [rank, member] : job.ranks) slots = std::max(slots, member.request.slots_measured);
      slots = std::bit_ceil(std::clamp(slots, least_slots, most_slots));
    }
    Placement placement = place(job);
    if (config.parts != 0) {
      std::set<std::uint32_t> taken;
      for (const auto& [other, each] : jobs) {
        if (each.phase == Phase::running) taken.insert(each.part);
      }
      while (taken.contains(placement.part)) ++placement.part;
      if (placement.part >= config.parts) {
        return refuse_all(
            name, Refusal::no_slots,
            "job '" + name + "': all " + std::to_string(config.parts) + " parts of the switches' slots are other jobs'");
      }
      job.part = placement.part;
    }
    std::vector<stream::Progress> progress;
    for (const auto& [rank, member] : job.ranks) progress.push_back(member.request.progress);
    stream::Resumption resumption;
    if (const std::string error = stream::agree(progress, resumption); !error.empty()) {
      return refuse_all(name, Refusal::results_forgotten, "job '" + name + "': " + error);
    }
    if (const std::string error = rules_of(first.protocol)->check_placement(placement); !error.empty()) {
      return refuse_all(name, Refusal::bad_parameters, "job '" + name + "': " + error);
    }
    if (const std::string error = clash(job); !error.empty()) {
      return refuse_all(name, Refusal::bad_parameters, "job '" + name + "': " + error);
    }
    std::string why_not_local;
    std::vector<std::uint64_t> local_tickets;
    std::optional<std::uint32_t> needy;
    for (const auto& [rank, member] : job.ranks) {
      local_tickets.push_back(member.request.local_ticket);
      if (member.request.needs_local && !needy) needy = rank;
      if (member.request.local_ticket != 0 || !why_not_local.empty()) continue;
      why_not_local = "rank " + std::to_string(rank) + " is without: " + member.request.why_not_local;
    }
    if (needy && !why_not_local.empty()) {
      return refuse_all(
          name, Refusal::bad_parameters,
          "job '" + name + "': rank " + std::to_string(*needy) + " requires shared memory, but " + why_not_local);
    }
    const std::uint64_t unit = std::uint64_t{rules_of(first.protocol)->units(first)} * config.lanes;
    JoinRequest agreed = first;
    const auto fits = [&] {
      agreed.slots_fixed = slots;
      return slots * unit <= slots_free && rules_of(first.protocol)->check_request(agreed).empty();
    };
    while (first.slots_fixed == 0 && slots > least_slots && !fits()) slots /= 2;
    if (slots * unit > slots_free) {
      refuse_all(name, Refusal::no_slots,
                 "job '" + name + "' needs " + std::to_string(slots * unit) + " slots of 256 elements (" +
                     std::to_string(slots) + " per lane), " + std::to_string(slots_free) + " of " +
                     std::to_string(config.slots) + " are free: start the switch with a larger --slots, or ask for fewer");
      return;
    }
    job.phase = Phase::running;
    job.epoch = new_epoch(job_epochs);
    job.slots = slots;
    job.charged = static_cast<std::uint32_t>(slots * unit);
    NETSUM_CHECK(job.joined == RankSet::first(job.world_size) && job.ranks.size() == job.world_size);
    slots_free -= job.charged;
    names[job.epoch] = name;

    StartJob start;
    start.job = name;
    start.switches_needed = rules_of(first.protocol)->switches_needed && !placement.switches.empty();
    job.told = !start.switches_needed;
    start.admission = {job.epoch,
                       0,
                       {},
                       job.packet_elements,
                       slots,
                       std::move(placement),
                       std::move(resumption),
                       first.message_packets,
                       {},
                       why_not_local.empty(),
                       why_not_local};
    if (start.admission.local) start.local_tickets = std::move(local_tickets);
    for (auto& [rank, member] : job.ranks) {
      if (!member.request.members.empty()) start.admission.members.push_back(member.request.members);
      member.epoch = new_epoch(rank_epochs);
      member.heard = now;
      start.admission.rank_epochs.push_back(member.epoch);
      start.endpoints.push_back(member.request.endpoints);
      start.listens.push_back(member.request.listens);
    }
    for (auto& [rank, member] : job.ranks) {
      Admission admission = start.admission;
      admission.rank_epoch = member.epoch;
      outcomes[member.ticket] = {Refusal::none, {}, std::move(admission)};
      waiting.erase(member.ticket);
    }
    starts.push_back(std::move(start));
  }

  void refuse_all(const std::string& name, Refusal refusal, const std::string& reason) {
    for (auto& [rank, member] : jobs.at(name).ranks) {
      outcomes[member.ticket] = {refusal, reason, {}};
      waiting.erase(member.ticket);
    }
    jobs.erase(name);
  }

  // Takes a running job off the lanes; its name is free at once.
  void end(const std::string& name, std::string failure, std::optional<std::uint32_t> lost, Time now) {
    auto node = jobs.extract(name);
    Job& job = node.mapped();
    slots_free += job.charged;
    NETSUM_CHECK(job.phase == Phase::running && slots_free <= config.slots);
    stops.push_back({job.epoch});
    for (auto& [rank, successor] : std::exchange(job.successors, {})) {
      waiting.erase(successor.ticket);
      if (closing) {
        outcomes[successor.ticket] = {Refusal::shutting_down, "the aggregator is shutting down", {}};
        continue;
      }
      register_rank(std::move(successor.request), successor.ticket, now);
    }
    if (failure.empty()) {
      names.erase(job.epoch);
      return;
    }
    job.phase = Phase::failed;
    job.failure = std::move(failure);
    job.lost = lost;
    job.since = now;
    failed.emplace(job.epoch, std::move(job));
  }

  // Whether a new process may wait for the end of the rank's old one: that died, and nobody knows yet.
  [[nodiscard]] static bool may_succeed(const Job& job, const JoinRequest& request) {
    return request.recovers && job.ranks.at(request.rank).request.recovers && request.world_size == job.world_size &&
           !job.successors.contains(request.rank);
  }

  void register_rank(JoinRequest request, std::uint64_t ticket, Time now) {
    const auto refuse = [&](JoinOutcome outcome) { outcomes[ticket] = std::move(outcome); };
    auto found = jobs.find(request.job);
    if (found != jobs.end() && found->second.phase == Phase::running && request.former_epoch != 0 &&
        request.world_size == found->second.world_size &&
        found->second.ranks.at(request.rank).epoch == request.former_epoch) {
      // Its other aggregators know of a death, or have died; this one need not find out by itself.
      end(request.job, "rank " + std::to_string(request.rank) + " of job '" + request.job + "' has begun anew", std::nullopt,
          now);
      found = jobs.find(request.job);
    }
    if (found == jobs.end() && jobs.size() >= config.max_jobs) {
      return refuse({Refusal::no_slots, "this aggregator serves " + std::to_string(config.max_jobs) + " jobs already", {}});
    }
    Job& job = found == jobs.end() ? jobs[request.job] : found->second;
    if (job.phase == Phase::running && may_succeed(job, request)) {
      waiting[ticket] = {request.job, request.rank};
      const std::uint32_t rank = request.rank;
      job.successors[rank] = {std::move(request), ticket, 0, now};
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
      if (JoinOutcome outcome = compare(job, request); outcome.refusal != Refusal::none) return refuse(std::move(outcome));
    } else {
      job.world_size = request.world_size;
      job.packet_elements = request.packet_elements;
      job.since = now;
    }
    const std::string name = request.job;
    job.joined.insert(request.rank);
    waiting[ticket] = {name, request.rank};
    const std::uint32_t rank = request.rank;
    job.ranks[rank] = {std::move(request), ticket, 0, now};
    if (job.ranks.size() == job.world_size) admit(name, job, now);
  }

  // A new process whose old one lives after all.
  void refuse_successors(const std::string& name, Job& job, Time now) {
    std::erase_if(job.successors, [&](auto& entry) {
      auto& [rank, successor] = entry;
      if (job.left.contains(rank) || now - successor.heard < config.heartbeat_timeout + succession_slack) return false;
      waiting.erase(successor.ticket);
      outcomes[successor.ticket] = {Refusal::duplicate_rank,
                                    "rank " + std::to_string(rank) + " of job '" + name +
                                        "' is alive: two processes use the same rank, or two jobs the same name",
                                    {}};
      return true;
    });
  }

  [[nodiscard]] Job* running(std::uint64_t epoch) {
    const auto name = names.find(epoch);
    if (name == names.end() || failed.contains(epoch)) return nullptr;
    return &jobs.at(name->second);
  }
};

Registry::Registry(RegistryConfig config) : impl_(std::make_unique<Impl>()) {
  impl_->config = std::move(config);
  impl_->slots_free = impl_->config.slots;
}
Registry::~Registry() = default;
Registry::Registry(Registry&&) noexcept = default;

std::uint64_t Registry::join(const JoinRequest& request, Time now) {
  Impl& r = *impl_;
  const std::uint64_t ticket = r.next_ticket++;
  const auto refuse = [&](JoinOutcome outcome) {
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
    // Admitted just now, and nobody will hear of it: for the others this rank is dead.
    if (node.mapped().admission) {
      const Admission& admission = *node.mapped().admission;
      if (Job* job = r.running(admission.job_epoch)) {
        const auto& epochs = admission.rank_epochs;
        const auto rank =
            static_cast<std::uint32_t>(std::find(epochs.begin(), epochs.end(), admission.rank_epoch) - epochs.begin());
        const std::string name = job->ranks.at(rank).request.job;
        r.end(name, "rank " + std::to_string(rank) + " of job '" + name + "' gave up while joining", rank, now);
      }
    }
    return {};
  }
  const auto found = r.waiting.find(ticket);
  if (found == r.waiting.end()) return {};
  const auto [name, rank] = found->second;
  Job& job = r.jobs.at(name);
  const RankSet missing = RankSet::first(job.world_size).minus(job.joined);
  r.waiting.erase(found);
  if (const auto successor = job.successors.find(rank);
      successor != job.successors.end() && successor->second.ticket == ticket) {
    job.successors.erase(successor);
    return missing;
  }
  job.ranks.erase(rank);
  RankSet still;
  for (const auto& [other, member] : job.ranks) still.insert(other);
  job.joined = still;
  if (job.ranks.empty()) r.jobs.erase(name);
  return missing;
}

void Registry::admission_told(std::uint64_t job_epoch, Time now) {
  Job* job = impl_->running(job_epoch);
  if (job == nullptr) return;
  job->told = true;
  for (auto& [rank, member] : job->ranks) member.heard = now;
}

void Registry::leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now) {
  Job* job = impl_->running(job_epoch);
  if (job == nullptr) return;
  const auto found = job->ranks.find(rank);
  if (found == job->ranks.end() || found->second.epoch != rank_epoch) return;
  job->left.insert(rank);
  if (job->left.size() == job->world_size) impl_->end(impl_->names.at(job_epoch), {}, std::nullopt, now);
}

HeartbeatReply Registry::heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now) {
  HeartbeatReply reply;
  if (const auto found = impl_->failed.find(job_epoch); found != impl_->failed.end()) {
    reply.state = HeartbeatReply::State::failed;
    reply.reason = found->second.failure;
    reply.lost = found->second.lost;
    reply.mismatch = found->second.mismatch;
    return reply;
  }
  Job* job = impl_->running(job_epoch);
  if (job == nullptr) return reply;
  const auto found = job->ranks.find(rank);
  if (found == job->ranks.end() || found->second.epoch != rank_epoch) return reply;
  found->second.heard = now;
  reply.state = HeartbeatReply::State::running;
  reply.left = job->left;
  return reply;
}

void Registry::fail(std::uint64_t job_epoch, const std::string& reason, Time now) {
  if (impl_->running(job_epoch) == nullptr) return;
  const std::string name = impl_->names.at(job_epoch);
  impl_->end(name, "job '" + name + "': " + reason, std::nullopt, now);
}

void Registry::lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how, Time now) {
  const Job* const job = impl_->running(job_epoch);
  if (job == nullptr || !job->ranks.contains(rank) || job->left.contains(rank)) return;
  const std::string name = impl_->names.at(job_epoch);
  impl_->end(name, "rank " + std::to_string(rank) + " of job '" + name + "' died: " + how, rank, now);
}

void Registry::fail_mismatch(std::uint64_t job_epoch, const std::string& reason, Time now) {
  if (Job* const job = impl_->running(job_epoch)) job->mismatch = true;
  fail(job_epoch, reason, now);
}

void Registry::on_timer(Time now) {
  Impl& r = *impl_;
  std::erase_if(r.failed, [&](const auto& entry) {
    const bool forget = now - entry.second.since >= remember_failed;
    if (forget) r.names.erase(entry.first);
    return forget;
  });
  std::vector<std::pair<std::string, std::uint32_t>> dead;
  std::vector<std::string> late;
  for (auto& [name, job] : r.jobs) {
    r.refuse_successors(name, job, now);
    if (job.phase == Phase::joining && now - job.since >= r.config.join_timeout) late.push_back(name);
    if (job.phase != Phase::running || !job.told) continue;
    for (const auto& [rank, member] : job.ranks) {
      if (!job.left.contains(rank) && now - member.heard >= r.config.heartbeat_timeout) {
        dead.emplace_back(name, rank);
        break;
      }
    }
  }
  for (const auto& [name, rank] : dead) {
    r.end(name,
          "rank " + std::to_string(rank) + " of job '" + name + "' has not been heard from for " +
              in_seconds(r.config.heartbeat_timeout) + ": it died, or its host is unreachable",
          rank, now);
  }
  for (const std::string& name : late) {
    const Job& job = r.jobs.at(name);
    const RankSet missing = RankSet::first(job.world_size).minus(job.joined);
    r.refuse_all(name, Refusal::bad_parameters,
                 "job '" + name + "' did not become complete within " + in_seconds(r.config.join_timeout) + ": " +
                     name_ranks(missing) + (missing.size() == 1 ? " is" : " are") + " missing");
  }
}

Time Registry::next_timeout() const {
  Time next = never;
  for (const auto& [name, job] : impl_->jobs) {
    if (job.phase == Phase::joining) next = std::min(next, job.since + impl_->config.join_timeout);
    if (job.phase != Phase::running) continue;
    for (const auto& [rank, successor] : job.successors) {
      if (!job.left.contains(rank))
        next = std::min(next, successor.heard + impl_->config.heartbeat_timeout + succession_slack);
    }
    if (!job.told) continue;
    for (const auto& [rank, member] : job.ranks) {
      if (!job.left.contains(rank)) next = std::min(next, member.heard + impl_->config.heartbeat_timeout);
    }
  }
  for (const auto& [epoch, job] : impl_->failed) next = std::min(next, job.since + remember_failed);
  return next;
}

void Registry::shut_down(Time now) {
  Impl& r = *impl_;
  r.closing = true;
  std::vector<std::pair<std::string, Phase>> all;
  for (const auto& [name, job] : r.jobs) all.emplace_back(name, job.phase);
  for (const auto& [name, phase] : all) {
    if (phase == Phase::running)
      r.end(name, "the aggregator is shutting down", std::nullopt, now);
    else
      r.refuse_all(name, Refusal::shutting_down, "the aggregator is shutting down");
  }
}

std::vector<StartJob> Registry::take_starts() {
  return std::exchange(impl_->starts, {});
}
std::vector<StopJob> Registry::take_stops() {
  return std::exchange(impl_->stops, {});
}
std::uint32_t Registry::slots_free() const {
  return impl_->slots_free;
}

std::vector<JobStatus> Registry::jobs() const {
  std::vector<JobStatus> list;
  const auto add = [&](const std::string& name, const Job& job) {
    list.push_back({name, job.epoch, job.world_size, job.packet_elements, job.slots, job.joined, job.left,
                    job.phase == Phase::running, job.failure, job.charged});
  };
  for (const auto& [name, job] : impl_->jobs) add(name, job);
  for (const auto& [epoch, job] : impl_->failed) add(impl_->names.at(epoch), job);
  return list;
}

}  // namespace netsum::session
