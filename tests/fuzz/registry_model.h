// A registry beside a book of what it said: what must hold after every call, whatever the calls are. Also of what follows at
// the other ends: each rank can work with its admission, and each switch with its installation.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fuzz/harness.h"
#include "jobs/atp_job.h"
#include "jobs/netreduce_job.h"
#include "jobs/switchml_job.h"
#include "netsum/error.h"
#include "session/check.h"
#include "session/registry.h"
#include "session/supervisor.h"
#include "wire/netreduce.h"

namespace netsum::fuzz {

[[nodiscard]] inline session::ProtocolRules rules_of(const session::JoinRequest& request) {
  for (const auto& rules : {jobs::netreduce_rules(), jobs::atp_rules()}) {
    if (rules.name == request.protocol) return rules;
  }
  return jobs::switchml_rules();
}

class CheckedRegistry {
 public:
  static constexpr std::uint32_t lanes = 2, slots = 4096, max_jobs = 3, max_joins = 16;
  static constexpr std::uint64_t memory_bytes = 64 << 20;

  struct Ticket {
    std::uint64_t number = 0;
    session::JoinRequest request;
    bool answered = false, cancelled = false;
  };
  struct Life {  // of a rank, as its admission told it
    std::uint64_t job_epoch = 0;
    std::uint32_t rank = 0, rank_epoch = 0;
    session::JoinRequest request;
    session::Admission admission;
  };

  explicit CheckedRegistry(std::uint32_t parts = 0) : registry_(config(parts)) {}

  std::vector<Ticket> tickets;
  std::vector<Life> lives;
  std::vector<session::StartJob> starts;  // the latest few

  // Where a job's switches are: next to each other, and told of themselves.
  [[nodiscard]] static Endpoint endpoint_of_switch(std::uint32_t switch_id, std::size_t lane) {
    return {.address = {0xfd, 9, static_cast<std::uint8_t>(switch_id)}, .port = static_cast<std::uint16_t>(1 + lane)};
  }
  // The job's.
  [[nodiscard]] static std::vector<Endpoint> own_lanes(const session::StartJob& start) {
    std::vector<Endpoint> own = {{.address = {0xfd, 8}, .port = 1}, {.address = {0xfd, 8}, .port = 2}};
    own.resize(session::lanes_of(start));
    return own;
  }
  [[nodiscard]] static bool is_atp(const session::StartJob& start) { return start.protocol == jobs::atp_rules().name; }
  [[nodiscard]] static bool has_rings(const session::StartJob& start) {
    return start.protocol == jobs::netreduce_rules().name;
  }
  // What the switch is told of the job.
  [[nodiscard]] static session::SwitchMessage message_for(const session::StartJob& start, std::uint32_t switch_id) {
    if (is_atp(start))
      return jobs::message_of(jobs::installation_for(start, switch_id, {}, endpoint_of_switch, own_lanes(start)));
    session::SwitchLanes switches;
    for (std::uint32_t i = 0; i < start.admission.placement.switches.size(); ++i) {
      switches.push_back({endpoint_of_switch(i, 0), endpoint_of_switch(i, 1)});
    }
    return jobs::tree_message(start, switch_id, false, switches, own_lanes(start));
  }

  void join(const session::JoinRequest& request) {
    const std::uint64_t ticket = registry_.join(request, now_);
    check(std::none_of(tickets.begin(), tickets.end(), [&](const Ticket& t) { return t.number == ticket; }), "a new ticket");
    tickets.push_back({ticket, request});
    carry_out();
  }

  void poll(std::size_t index) {
    Ticket& ticket = tickets[index];
    const auto outcome = registry_.join_outcome(ticket.number);
    if (!outcome) return;
    check(!ticket.answered && !ticket.cancelled, "a ticket is answered at most once");
    ticket.answered = true;
    if (outcome->refusal != session::Refusal::none) {
      check(!outcome->admission && !outcome->reason.empty(), "a refusal says why");
      check(session::printable(outcome->reason) && outcome->reason.size() <= session::longest_text,
            ("in one short line: " + outcome->reason).c_str());
      return;
    }
    check(outcome->admission.has_value(), "no refusal is an admission");
    const session::Admission& a = *outcome->admission;
    const auto at = std::find(a.rank_epochs.begin(), a.rank_epochs.end(), a.rank_epoch);
    check(at != a.rank_epochs.end() && started_.contains(a.job_epoch), "the job was started before its ranks hear of it");
    const std::string error = session::check(a, ticket.request, rules_of(ticket.request));
    check(error.empty(), ("a rank can work with its admission: " + error).c_str());
    lives.push_back({a.job_epoch, static_cast<std::uint32_t>(at - a.rank_epochs.begin()), a.rank_epoch, ticket.request, a});
    registry_.admission_told(a.job_epoch, now_);
    told_.insert(a.job_epoch);
    for (std::uint32_t rank = 0; rank < a.rank_epochs.size(); ++rank) heard_[{a.job_epoch, rank}] = now_;
  }

  void cancel(std::size_t index) {
    static_cast<void>(registry_.cancel_join(tickets[index].number, now_));
    tickets[index].cancelled = true;
    carry_out();
  }

  void heartbeat(const Life& life) {
    const auto reply = registry_.heartbeat(life.job_epoch, life.rank, life.rank_epoch, now_);
    const bool member = is_member(life);
    using State = session::HeartbeatReply::State;
    check((reply.state == State::running) == (member && running_.contains(life.job_epoch)),
          "a running job's rank is told so");
    check(reply.state != State::failed || (!reply.reason.empty() && !running_.contains(life.job_epoch)),
          "a failure says why");
    check(!reply.lost || *reply.lost < max_world_size, "who was lost is a rank");
    if (reply.state == State::running) heard_[{life.job_epoch, life.rank}] = now_;
    // The rank at the other end takes the same answer.
    session::Supervisor supervisor({"job", life.rank, {"aggregator"}}, now_);
    check(supervisor.on_reply(0, reply, now_).has_value() == (reply.state != State::running), "the rank concludes the same");
  }

  void leave(const Life& life) {
    registry_.leave(life.job_epoch, life.rank, life.rank_epoch, {}, now_);
    if (is_member(life) && running_.contains(life.job_epoch)) left_.insert({life.job_epoch, life.rank});
    carry_out();
  }

  void tick(Duration passed) {
    const Time end = now_ + passed;
    while (registry_.next_timeout() < end) serve(std::max(now_, registry_.next_timeout()));
    serve(end);
    for (const auto& [rank, heard] : heard_) {
      if (!running_.contains(rank.first) || !told_.contains(rank.first) || left_.contains(rank)) continue;
      check(now_ - heard < heartbeat_timeout, "a rank that fell silent ends its job");
    }
  }

  void serve(Time at) {
    now_ = at;
    registry_.on_timer(now_);
    carry_out();
    check(registry_.next_timeout() > now_, "a timer that was served is not due");
  }

  // As a data plane does that has no memory: before any rank hears of its admission. Stops and starts may follow.
  void fail_starts(bool fail) { starts_fail_ = fail; }

  void shut_down() {
    registry_.shut_down(now_);
    carry_out();
    check(running_.empty() && registry_.slots_free() == slots, "nothing runs after the end");
  }

  // In the end every ticket is answered: nobody waits for ever.
  void end() {
    for (int life = 0; life < 3; ++life) {  // new processes that waited for the end of old ones wait for each other then
      tick(join_timeout);
      for (std::size_t i = 0; i < tickets.size(); ++i) poll(i);
    }
    for (const Ticket& ticket : tickets) check(ticket.answered || ticket.cancelled, "every join is answered");
    tick(heartbeat_timeout);
    check(running_.empty() && registry_.slots_free() == slots, "jobs whose ranks fell silent give their slots back");
    tick(std::chrono::minutes(1));
    check(registry_.jobs().empty() && registry_.next_timeout() == never, "and are forgotten");
  }

 private:
  static constexpr Duration heartbeat_timeout = std::chrono::seconds(3), join_timeout = std::chrono::seconds(60);

  struct Started {
    std::string job;
    std::vector<std::uint32_t> rank_epochs;
  };

  [[nodiscard]] bool is_member(const Life& life) const {
    const auto job = started_.find(life.job_epoch);
    return job != started_.end() && life.rank < job->second.rank_epochs.size() &&
           job->second.rank_epochs[life.rank] == life.rank_epoch;
  }

  // What a server does after each call.
  void carry_out() {
    while (take_actions()) {
    }
    check_book();
  }

  // Whether there were any: what fails to start may let others begin.
  bool take_actions() {
    const auto stops = registry_.take_stops();
    const auto began = registry_.take_starts();
    for (const session::StopJob& stop : stops) check(running_.erase(stop.job_epoch) == 1, "what is stopped ran");
    for (const session::StartJob& start : began) {
      const session::Admission& a = start.admission;
      check(a.job_epoch != 0 && !started_.contains(a.job_epoch), "a job epoch is issued once");
      check(a.rank_epochs.size() == start.endpoints.size() && !a.rank_epochs.empty(),
            "an epoch and endpoints for each rank");
      check(a.lanes >= 1 && a.lanes <= lanes, "as many lanes as there are");
      for (const auto& endpoints : start.endpoints) check(endpoints.size() == a.lanes, "an endpoint for each lane");
      for (const std::uint32_t epoch : a.rank_epochs) {
        check(epoch != 0 && rank_epochs_.insert(epoch).second, "a rank epoch is issued once");
      }
      check(a.slots >= 1 && (a.slots & (a.slots - 1)) == 0, "a power of two slots");
      started_[a.job_epoch] = {start.job, a.rank_epochs};
      running_.insert(a.job_epoch);
      if (!start.switches_needed) told_.insert(a.job_epoch);
      for (std::uint32_t rank = 0; rank < a.rank_epochs.size(); ++rank) heard_[{a.job_epoch, rank}] = now_;
      check_switches(start);
      if (starts_fail_) {
        running_.erase(a.job_epoch);
        registry_.start_failed(a.job_epoch, "there is no memory", now_);
        continue;
      }
      starts.push_back(start);
      if (starts.size() > 4) starts.erase(starts.begin());
    }
    return !stops.empty() || !began.empty();
  }

  void check_book() {
    std::uint64_t charged = 0, bytes = 0;
    for (const session::JobStatus& job : registry_.jobs()) {
      if (job.running) charged += job.charged;
      check((job.memory_bytes != 0) == job.running, "a job that runs has memory, and no other");
      check(job.memory_bytes <= registry_.quota_of(job.tenant).memory_bytes, "within its tenant's quota");
      bytes += job.memory_bytes;
    }
    check(bytes == registry_.memory().used() && bytes <= memory_bytes, "and is all that is charged");
    check(registry_.slots_free() + charged == slots, "slots are free or charged to a job that runs");
    std::set<std::string> names;
    std::size_t runs = 0;
    for (const session::JobStatus& job : registry_.jobs()) {
      if (job.running) ++runs;
      if (job.running || job.failure.empty()) check(names.insert(job.tenant + '/' + job.job).second, "a name is one job's");
      check(!job.running || (running_.contains(job.job_epoch) && started_[job.job_epoch].job == job.job), "its own epoch");
      check(job.joined.minus(RankSet::first(job.world_size)).empty() && job.left.minus(job.joined).empty(),
            "ranks of the job");
    }
    check(runs == running_.size() && names.size() <= max_jobs, "what runs is listed");
    const bool waits = std::any_of(running_.begin(), running_.end(), [&](auto epoch) { return !told_.contains(epoch); });
    check(registry_.next_timeout() != never || registry_.jobs().empty() || waits, "whatever there is has an end");
  }

  // What the switches are told of the job is what they accept.
  static void check_switches(const session::StartJob& start) {
    const auto switches = static_cast<std::uint32_t>(start.admission.placement.switches.size());
    for (std::uint32_t i = 0; i < switches; ++i) {
      const session::SwitchMessage message = message_for(start, i);
      try {
        if (is_atp(start)) {
          static_cast<void>(jobs::read_installation(message));
        } else if (has_rings(start)) {
          static_cast<void>(jobs::read_ring(message, jobs::netreduce_rules()));
        } else {
          static_cast<void>(jobs::read_switchml(message, jobs::switchml_rules()));
        }
      } catch (const Error& error) {
        check(false, (std::string("a switch accepts its installation: ") + error.what()).c_str());
      }
    }
    for (std::size_t lane = 0; lane < session::lanes_of(start); ++lane) {
      if (is_atp(start)) {
        static_cast<void>(jobs::server_job(start, lane, {}, endpoint_of_switch));
      } else if (!has_rings(start)) {
        const auto job = jobs::switchml_job(start, lane, endpoint_of_switch);
        std::size_t ranks = job.tree ? 0 : job.members.size();
        if (job.tree) {
          for (const auto& below : job.tree->below) ranks += below.size();
        }
        check(ranks == start.endpoints.size(), "the root has every rank below it, once");
      } else {
        const auto ring = jobs::tunnel_ring(start, lane, netreduce::at_root, endpoint_of_switch);
        check(netreduce::check(ring.ring).empty(), "a ring can be made");
      }
    }
  }

  session::RegistryConfig config(std::uint32_t parts) {
    session::RegistryConfig config;
    config.protocols = {jobs::switchml_rules(), jobs::atp_rules({}, {.count = parts}), jobs::netreduce_rules()};
    config.switch_parents = {{"a:1", "top:1"}, {"b:1", "top:1"}, {"x:1", "y:1"}, {"y:1", "x:1"}};
    config.lanes = lanes;
    config.slots = slots;
    config.receive_bytes = 1 << 20;
    config.max_jobs = max_jobs;
    config.heartbeat_timeout = heartbeat_timeout;
    config.join_timeout = join_timeout;
    config.memory_bytes = memory_bytes;
    config.max_joins = max_joins;
    config.quotas = {{"small", {memory_bytes / 4, 1, 4}}};
    config.random = [this] { return ++random_ / 2 * 0x9e3779b97f4a7c15; };  // the same twice: no two ranks must have one
    return config;
  }

  std::uint64_t random_ = 0;
  session::Registry registry_;
  Time now_{};
  bool starts_fail_ = false;
  std::map<std::uint64_t, Started> started_;
  std::set<std::uint64_t> running_, told_;
  std::set<std::uint32_t> rank_epochs_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Time> heard_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> left_;
};

// A join that is right, most often: of one of a few jobs, which are of any protocol. `ring`: what it asks for, if the job
// has rings and its rank has not been here before.
[[nodiscard]] inline session::JoinRequest request_of(FuzzedDataProvider& input, const CheckedRegistry& registry,
                                                     jobs::RingAsk& ring) {
  session::JoinRequest request;
  const int kind = input.ConsumeIntegralInRange<int>(0, 7);
  const bool atp = kind == 4 || kind == 5, rings = kind > 5;
  const session::ProtocolRules rules = rings ? jobs::netreduce_rules() : atp ? jobs::atp_rules() : jobs::switchml_rules();
  request.protocol = rules.name;
  request.protocol_version = rules.version;
  const int job = input.ConsumeIntegralInRange<int>(0, 4);
  request.job = std::string(1, static_cast<char>('a' + job));
  request.world_size = input.PickValueInArray<std::uint32_t>({1, 2, 2, 2, 3, 3, 256});
  request.rank = input.ConsumeIntegralInRange<std::uint32_t>(0, 3);
  request.packet_elements = input.PickValueInArray<std::uint32_t>({256, 256, 256, 64, 1024, 10880});
  request.packet_elements_measured = input.ConsumeBool();
  request.slots_fixed = input.PickValueInArray<std::uint32_t>({0, 0, 0, 16, 2048});
  request.slots_measured = input.PickValueInArray<std::uint32_t>({0, 64, 512, 4096, 0xffffffff});
  const std::uint32_t lanes = request.rank == 1 ? 1 : CheckedRegistry::lanes;  // what limits the others
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    request.endpoints.push_back(
        {.address = {0xfd, 1, static_cast<std::uint8_t>(request.rank)}, .port = static_cast<std::uint16_t>(1000 + lane)});
  }
  if (rings) {
    ring.message_packets = input.PickValueInArray<std::uint32_t>({0, 1, 2, 4, 4096});
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      ring.members.push_back({request.endpoints[lane].address, static_cast<std::uint32_t>(100 * job), 0x123,
                              static_cast<std::uint32_t>(100 * job + 1), 0x1000, request.rank});
    }
    if (input.ConsumeIntegralInRange<int>(0, 7) == 0) ring.members[0].receive_qp = ring.members[0].send_qp;
    request.own = jobs::own_part(ring);
  }
  jobs::AtpAsk pool;
  if (rules.switches && input.ConsumeBool()) {
    request.switch_address = input.PickValueInArray({"a:1", "a:1", "b:1", "c:1", "top:1", "x:1"});
    pool.pool_slots = input.PickValueInArray<std::uint32_t>({0, 1, 1024});
  }
  if (atp) request.own = jobs::own_part(pool);
  if (input.ConsumeBool()) {
    request.recovers = true;
    request.aggregators.assign(input.PickValueInArray<std::size_t>({1, 1, 1, 2, 256}), "aggregator:1");
    request.site = input.PickValueInArray<std::uint32_t>({0, 0, 0, 1, 255, UINT32_MAX});
    request.reached = session::SiteSet::first(input.PickValueInArray<std::uint32_t>({1, 1, 1, 2, 256}));
    request.standbys = input.PickValueInArray<std::uint32_t>({0, 0, 0, 1, 255});
    if (input.ConsumeBool()) {
      request.progress.next = input.PickValueInArray<std::uint64_t>({0, 5, 6, 7, 5000, UINT64_MAX / 2});
      request.progress.kept =
          request.progress.next - std::min<std::uint64_t>(request.progress.next, input.ConsumeBool() ? 2 : 0);
      if (input.ConsumeBool()) request.progress.finished = {request.progress.next + 2};
    }
    if (!registry.lives.empty() && input.ConsumeBool()) {
      const auto& life = registry.lives[input.ConsumeIntegral<std::uint8_t>() % registry.lives.size()];
      request.former_epoch = life.rank_epoch;
      request.rank = life.rank;
      if (input.ConsumeBool())
        request = [&] {
          session::JoinRequest again = life.request;
          again.former_epoch = life.rank_epoch;
          return again;
        }();
    }
  }
  if (input.ConsumeIntegralInRange<int>(0, 3) == 0) request.tenant = input.ConsumeBool() ? "small" : "large";
  if (input.ConsumeIntegralInRange<int>(0, 3) == 0) {
    request.local_ticket = input.ConsumeBool() ? 1 : 0;
    request.needs_local = input.ConsumeBool();
    request.listens = input.ConsumeBool();
  }
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) request.generation = input.ConsumeIntegralInRange<std::uint64_t>(1, 2);
  return request;
}

[[nodiscard]] inline session::JoinRequest request_of(FuzzedDataProvider& input, const CheckedRegistry& registry) {
  jobs::RingAsk ring;
  return request_of(input, registry, ring);
}

}  // namespace netsum::fuzz
