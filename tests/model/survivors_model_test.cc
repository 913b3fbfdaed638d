// Jobs with survivors, searched: every order of joins, calls, results, deaths, false alarms and new processes of a few ranks
// at one aggregator, whose registry is the product's own, as are the ranks' logs of calls. Packets are the other models'
// part: within a life, whose packets no other life takes, a call has a result once all members have made it, and each member
// gets that sooner or later, or never.
//
// What must hold: members of one life that have a call's result have the same one; what a result names are the members that
// gave to it; and whatever has happened, the ranks that are left finish once nothing else happens to them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "jobs/switchml_job.h"
#include "session/registry.h"
#include "stream/operation_log.h"
#include "wire/switchml.h"

namespace netsum::session {
namespace {

using namespace std::chrono_literals;

struct Limits {
  std::uint32_t ranks = 3, survivors = 2;
  std::uint64_t calls = 2;
  std::uint32_t deaths = 1, false_alarms = 1, restarts = 1;
  bool stragglers = false;  // whoever has not made the call that another waits in may be late
  bool sleepers = false;    // a process that was declared dead may be replaced, and come back when that one is dead
  std::size_t depth = 16;
};

// The value of a result: the life that it was formed in, and its members.
struct Value {
  std::uint64_t epoch = 0;
  RankSet members{};
  bool operator==(const Value&) const = default;
};

class World {
 public:
  enum class Kind : std::uint8_t { join, admitted, call, result, hear, die, alarm, restart, wake, tick, late };
  struct Action {
    Kind kind{};
    std::uint32_t rank = 0;
  };

  explicit World(const Limits& limits) : limits_(limits), registry_(config()), processes_(limits.ranks) {}

  [[nodiscard]] std::vector<Action> possible() const {
    std::vector<Action> list;
    for (std::uint32_t rank = 0; rank < limits_.ranks; ++rank) {
      const Process& p = processes_[rank];
      const auto may = [&](Kind kind, bool can) {
        if (can) list.push_back({kind, rank});
      };
      const bool left_out = limits_.sleepers && !sleeper_ && p.alive && p.in && !registry_.is_running(p.in->job_epoch);
      may(Kind::restart, (!p.alive || left_out) && restarts_ < limits_.restarts);
      may(Kind::wake, !p.alive && sleeper_ && sleeper_->first == rank);
      if (!p.alive || p.excluded) continue;
      may(Kind::join, !p.in && p.ticket == 0 && (!p.aside || p.calls));
      may(Kind::call, p.aside && !p.calls && p.ticket == 0 && p.log.next_issue() < limits_.calls);
      may(Kind::late, limits_.stragglers && p.in && p.waits && registry_.is_running(p.in->job_epoch));
      may(Kind::admitted, p.ticket != 0 && registry_.look_at_outcome(p.ticket) != nullptr);
      may(Kind::call, p.in && !p.waits && p.next_to_send() < limits_.calls);
      may(Kind::result, p.in && p.waits && formed_.contains({p.in->job_epoch, p.waits->number}));
      may(Kind::hear, p.in && !registry_.is_running(p.in->job_epoch));
      may(Kind::die, deaths_ < limits_.deaths);
      may(Kind::alarm, p.in && alarms_ < limits_.false_alarms && registry_.is_running(p.in->job_epoch));
    }
    if (registry_.next_timeout() < now_ + 5s) list.push_back({Kind::tick, 0});
    return list;
  }

  void take(const Action& action) {
    Process& p = processes_[action.rank];
    switch (action.kind) {
      case Kind::join:
        p.ticket = registry_.join(request(action.rank), now_);
        break;
      case Kind::admitted:
        admitted(action.rank);
        break;
      case Kind::call:
        p.aside ? call_late(p) : call(p);
        break;
      case Kind::late:
        beat();
        break;
      case Kind::result:
        result(p);
        break;
      case Kind::hear:
        p.leave_life();
        break;
      case Kind::die:
        die(action.rank);
        ++deaths_;
        break;
      case Kind::alarm:
        registry_.lose(p.in->job_epoch, action.rank, "false alarm", now_);
        ++alarms_;
        break;
      case Kind::restart:
        if (p.alive) sleeper_.emplace(action.rank, std::move(p));
        p = Process();
        ++restarts_;
        break;
      case Kind::wake:
        p = std::move(sleeper_->second);
        sleeper_.reset();
        break;
      case Kind::tick:
        now_ = std::max(now_, registry_.next_timeout());
        waited_ = true;
        registry_.on_timer(now_);
        break;
    }
    static_cast<void>(registry_.take_starts());
    static_cast<void>(registry_.take_stops());
    static_cast<void>(registry_.take_events());
    check();
  }

  // Nothing else happens: those that are left finish.
  void finish() {
    const std::uint32_t most = 200;
    std::uint32_t steps = 0;
    for (bool more = true; more && steps < most; ++steps) {
      more = false;
      for (const Action& action : possible()) {
        if (action.kind == Kind::die || action.kind == Kind::alarm || action.kind == Kind::restart ||
            action.kind == Kind::wake || action.kind == Kind::late) {
          continue;
        }
        take(action);
        more = true;
        break;
      }
    }
    std::uint32_t left = 0;
    bool begun = false, all_done = true;
    for (const Process& p : processes_) {
      if (!p.alive || p.excluded) continue;
      ++left;
      begun = begun || p.life != 0;
      // A new process may wait at the door: nobody lets it in here unless it is needed.
      all_done = all_done && (p.life == 0 || (p.log.next_issue() == limits_.calls && !p.waits && p.again.empty()));
    }
    // The first life needs all ranks.
    if (wrong_.empty() && begun && left >= limits_.survivors && !all_done) wrong_ = "ranks wait for ever";
  }

  [[nodiscard]] const std::string& wrong() const { return wrong_; }

  // All that decides what can follow. Epochs are random: they are numbered in the order of lives.
  [[nodiscard]] std::string key() const {
    std::string text;
    const auto put = [&text](std::uint64_t number) { text += std::to_string(number) + ' '; };
    const auto put_set = [&](const RankSet& set) { put(set.words()[0]); };
    std::map<std::uint64_t, std::uint64_t> names;
    const auto put_epoch = [&](std::uint64_t epoch) { put(names.try_emplace(epoch, names.size()).first->second); };
    put(deaths_), put(alarms_), put(restarts_), put(waited_), put(sleeper_ ? sleeper_->first + 1 : 0);
    std::vector<const Process*> all;
    for (const Process& p : processes_) all.push_back(&p);
    if (sleeper_) all.push_back(&sleeper_->second);
    for (const Process* const each : all) {
      const Process& p = *each;
      put(p.alive), put(p.excluded), put(p.aside), put(p.calls), put(p.others_aside.words()[0]), put(p.ticket != 0),
          put(p.life), put(p.former_epoch != 0);
      put_set(p.members);
      put_epoch(p.in ? p.in->job_epoch : 0);
      put(p.in && registry_.is_running(p.in->job_epoch));
      put(p.log.next_issue()), put(p.waits ? p.waits->number + 1 : 0), put(p.again.size());
      if (p.ticket != 0) put(registry_.look_at_outcome(p.ticket) != nullptr);
      for (const auto& [number, value] : p.results) {
        put(number), put_epoch(value.epoch);
        put_set(value.members);
      }
    }
    for (const auto& [call, made] : made_) {
      if (!registry_.is_running(call.first)) continue;
      put_epoch(call.first), put(call.second);
      put_set(made);
    }
    for (const auto* const values : {&given_, &formed_}) {
      for (const auto& [call, value] : *values) {
        put_epoch(call.first), put(call.second), put_epoch(value.epoch);
      }
    }
    for (const JobStatus& job : registry_.jobs()) {
      put_epoch(job.job_epoch), put(job.running), put(job.failure.empty());
      put_set(job.joined), put_set(job.left);
    }
    put(registry_.next_timeout() < now_ + 5s ? static_cast<std::uint64_t>((registry_.next_timeout() - now_) / 10ms) : 9999);
    return text;
  }

 private:
  struct Process {
    bool alive = true, excluded = false;
    bool aside = false, calls = false;  // late; and has made a call since
    RankSet others_aside;
    std::uint64_t ticket = 0;
    std::optional<Admission> in;  // of the life that it believes to be in
    std::uint32_t life = 0, former_epoch = 0;
    RankSet members;
    stream::OperationLog log{1 << 20};
    std::array<std::int32_t, 4> tensor{};
    std::vector<stream::Operation> again;    // to send in this life, before new calls
    std::optional<stream::Operation> waits;  // sent, without a result
    std::map<std::uint64_t, Value> results{};

    [[nodiscard]] std::uint64_t next_to_send() const { return again.empty() ? log.next_issue() : again.front().number; }
    void leave_life() {
      former_epoch = in->rank_epoch;
      in.reset();
      waits.reset();
      again.clear();
    }
  };

  static RegistryConfig config() {
    RegistryConfig c;
    c.protocols = {jobs::switchml_rules()};
    c.slots = 1024;
    c.random = [engine = std::mt19937_64(7)]() mutable { return engine(); };
    return c;
  }

  [[nodiscard]] JoinRequest request(std::uint32_t rank) const {
    const Process& p = processes_[rank];
    JoinRequest r;
    r.protocol_version = wire::switchml::version;
    r.protocol = "switchml";
    r.job = "train";
    r.rank = rank;
    r.world_size = limits_.ranks;
    r.packet_elements = 256;
    r.slots_measured = 64;
    r.endpoints = {{.address = {0xfd, 1}, .port = static_cast<std::uint16_t>(1000 + rank)}};
    r.recovers = true;
    r.aggregators = {"a:1"};
    r.reached = SiteSet::first(1);
    r.survivors = limits_.survivors;
    r.life = p.life;
    r.members = p.members;
    r.former_epoch = p.former_epoch;
    if (limits_.stragglers) {
      r.straggler_deadline = 1ms;
      r.pace = pace(p);
      r.aside = p.others_aside;
      r.set_aside = p.aside;
    }
    if (p.life != 0) r.progress = p.log.progress();
    return r;
  }

  // All ranks have been where they are for longer than the deadline.
  [[nodiscard]] static Pace pace(const Process& p) {
    const stream::Progress progress = p.log.progress();
    return {p.waits.has_value() || p.calls || progress.next < p.log.next_issue(), progress.next, 1s};
  }
  void beat() {
    for (std::uint32_t rank = 0; rank < limits_.ranks; ++rank) {
      const Process& p = processes_[rank];
      if (p.in) static_cast<void>(registry_.heartbeat(p.in->job_epoch, rank, p.in->rank_epoch, now_, {}, {}, pace(p)));
    }
  }
  // Of a rank that the others go on without: it joins again with that.
  static void call_late(Process& p) {
    stream::Operation operation;
    operation.number = p.log.next_issue();
    operation.dtype = DType::int32;
    operation.elements = p.tensor.size();
    operation.data = p.tensor.data();
    static_cast<void>(p.log.issue(operation));
    p.calls = true;
  }

  void admitted(std::uint32_t rank) {
    Process& p = processes_[rank];
    const JoinOutcome outcome = registry_.join_outcome(std::exchange(p.ticket, 0)).value();
    if (!outcome.admission) {
      p.excluded = outcome.refusal == Refusal::excluded;
      if (p.excluded && deaths_ == 0 && alarms_ == 0 && !waited_) wrong_ = "a rank was left out to which nothing happened";
      if (!p.excluded && outcome.refusal != Refusal::duplicate_rank) wrong_ = "a refusal: " + outcome.reason;
      if (outcome.refusal == Refusal::duplicate_rank) p.alive = false;
      return;
    }
    if (outcome.admission->aside.contains(rank)) {
      p.aside = true;
      p.calls = false;
      return;
    }
    if (told_.insert(outcome.admission->job_epoch).second) registry_.admission_told(outcome.admission->job_epoch, now_);
    p.in = outcome.admission;
    p.aside = p.calls = false;
    p.others_aside = p.in->aside;
    p.life = p.in->life;
    p.members = p.in->resumption.members;
    p.again = p.log.resume(p.in->resumption);
  }

  // A call is made by the last of the members: the result is there. Nothing of a life that has ended counts.
  void call(Process& p) {
    if (!p.again.empty()) {
      p.waits = p.again.front();
      p.again.erase(p.again.begin());
    } else {
      stream::Operation operation;
      operation.number = p.log.next_issue();
      operation.dtype = DType::int32;
      operation.elements = p.tensor.size();
      operation.data = p.tensor.data();
      p.waits = p.log.issue(operation);
    }
    const std::pair at{p.in->job_epoch, p.waits->number};
    if (!registry_.is_running(at.first)) return;
    const auto rank = static_cast<std::uint32_t>(&p - processes_.data());
    RankSet& made = made_[at];
    made.insert(rank);
    // A replay is what the rank that keeps it has; it may die once it has given it.
    const auto replay = p.in->resumption.replays.find(at.second);
    if (replay == p.in->resumption.replays.end()) {
      given_[at] = {at.first, p.members};
    } else if (p.members.at_place(replay->second) == rank) {
      given_[at] = p.results.contains(at.second) ? p.results.at(at.second) : Value{};
    }
    if (made == p.members) formed_[at] = given_.at(at);
  }

  void result(Process& p) {
    const std::uint64_t number = p.waits->number;
    const Value value = formed_.at({p.in->job_epoch, number});  // epoch 0: it has none
    p.waits.reset();
    const RankSet named = p.log.finish(number);
    if (value.epoch == 0) wrong_ = "a rank was to replay a result that it does not have";
    if (!(named == value.members)) wrong_ = "a result names other ranks than gave to it";
    const auto [known, is_new] = p.results.try_emplace(number, value);
    if (!is_new && !(known->second == value)) wrong_ = "a rank got a second result of a call";
  }

  void die(std::uint32_t rank) {
    Process& p = processes_[rank];
    if (p.ticket != 0) static_cast<void>(registry_.cancel_join(p.ticket, now_));
    const std::uint32_t epoch = p.in ? p.in->rank_epoch : p.former_epoch;
    for (const JobStatus& job : registry_.jobs()) registry_.closed(job.job_epoch, rank, epoch, now_);
    p.alive = false;
    p.in.reset();
    p.waits.reset();
    p.ticket = 0;
  }

  void check() {
    std::uint32_t running = 0;
    for (const JobStatus& job : registry_.jobs()) running += job.running ? 1 : 0;
    if (running > 1) wrong_ = "two lives run at a time";
    for (const Process& a : processes_) {
      for (const Process& b : processes_) {
        if (!a.in || !b.in || a.in->job_epoch != b.in->job_epoch) continue;
        for (const auto& [number, value] : a.results) {
          const auto other = b.results.find(number);
          if (other != b.results.end() && !(other->second == value)) wrong_ = "two members of a life have different results";
        }
      }
    }
  }

  const Limits limits_;
  Time now_{1000s};
  Registry registry_;
  std::vector<Process> processes_;
  std::optional<std::pair<std::uint32_t, Process>> sleeper_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, RankSet> made_;  // by life and call: by whom
  std::map<std::pair<std::uint64_t, std::uint64_t>, Value> given_, formed_;
  std::set<std::uint64_t> told_;
  std::uint32_t deaths_ = 0, alarms_ = 0, restarts_ = 0;
  bool waited_ = false;  // for so long that a slow rank may count as dead
  std::string wrong_;
};

const char* name_of(World::Kind kind) {
  constexpr const char* names[] = {"join",  "admitted", "call", "result", "hear", "die",
                                   "alarm", "restart",  "wake", "tick",   "late"};
  return names[static_cast<std::size_t>(kind)];
}

std::string in_words(const std::vector<World::Action>& actions) {
  std::string text;
  for (const World::Action& action : actions) {
    text += std::string(text.empty() ? "" : ", ") + name_of(action.kind) + ' ' + std::to_string(action.rank);
  }
  return text;
}

// Depth first; each state is reached again from the beginning, as a registry cannot be copied.
class Search {
 public:
  explicit Search(const Limits& limits) : limits_(limits) {}

  void run() { visit(); }
  [[nodiscard]] std::size_t states() const { return seen_.size(); }

 private:
  [[nodiscard]] World now() const {
    World world(limits_);
    for (const World::Action& action : path_) world.take(action);
    return world;
  }

  void visit() {
    const World world = now();
    ASSERT_EQ("", world.wrong()) << in_words(path_);
    // A state that was seen at a smaller depth has been searched further.
    const auto [known, is_new] = seen_.try_emplace(world.key(), path_.size());
    if (!is_new && known->second <= path_.size()) return;
    known->second = path_.size();
    World last = now();
    last.finish();
    ASSERT_EQ("", last.wrong()) << in_words(path_) << ", and then nothing else";
    if (path_.size() == limits_.depth) return;
    for (const World::Action& action : world.possible()) {
      path_.push_back(action);
      visit();
      path_.pop_back();
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  const Limits limits_;
  std::vector<World::Action> path_;
  std::map<std::string, std::size_t> seen_;
};

void search(const Limits& limits) {
  Search search(limits);
  search.run();
  std::printf("%zu states\n", search.states());
}

TEST(SurvivorsModel, OneDeathOfTwo) {
  search({.ranks = 2, .survivors = 1, .calls = 2, .deaths = 1, .false_alarms = 0, .restarts = 1, .depth = 18});
}

TEST(SurvivorsModel, FalseAlarmsOfTwo) {
  search({.ranks = 2, .survivors = 1, .calls = 1, .deaths = 0, .false_alarms = 3, .restarts = 0, .depth = 24});
}

TEST(SurvivorsModel, TwoCallsOfThree) {
  search({.ranks = 3, .survivors = 2, .calls = 2, .deaths = 1, .false_alarms = 0, .restarts = 0, .depth = 26});
}

TEST(SurvivorsModel, ANewProcessOfThree) {
  search({.ranks = 3, .survivors = 2, .calls = 1, .deaths = 1, .false_alarms = 0, .restarts = 1, .depth = 24});
}

TEST(SurvivorsModel, AnOldProcessOfTwoComesBack) {
  search({.ranks = 2,
          .survivors = 2,
          .calls = 1,
          .deaths = 1,
          .false_alarms = 1,
          .restarts = 1,
          .sleepers = true,
          .depth = 26});
}

TEST(SurvivorsModel, StragglersOfTwo) {
  search({.ranks = 2,
          .survivors = 1,
          .calls = 2,
          .deaths = 1,
          .false_alarms = 0,
          .restarts = 0,
          .stragglers = true,
          .depth = 20});
}

TEST(SurvivorsModel, StragglersOfThree) {
  search({.ranks = 3,
          .survivors = 2,
          .calls = 1,
          .deaths = 0,
          .false_alarms = 0,
          .restarts = 0,
          .stragglers = true,
          .depth = 20});
}

TEST(SurvivorsModelAtLength, StragglersAndAFalseAlarmOfThree) {
  search({.ranks = 3,
          .survivors = 1,
          .calls = 1,
          .deaths = 0,
          .false_alarms = 1,
          .restarts = 0,
          .stragglers = true,
          .depth = 22});
}

TEST(SurvivorsModelAtLength, ADeathAndAFalseAlarmOfThree) {
  search({.ranks = 3, .survivors = 1, .calls = 1, .deaths = 1, .false_alarms = 1, .restarts = 0, .depth = 24});
}

TEST(SurvivorsModelAtLength, TwoDeathsOfThree) {
  search({.ranks = 3, .survivors = 2, .calls = 1, .deaths = 2, .false_alarms = 0, .restarts = 2, .depth = 22});
}

}  // namespace
}  // namespace netsum::session
