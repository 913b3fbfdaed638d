// A rank's life as a machine: what it asks its owner to do, in which order, and what ends it.

#include <gtest/gtest.h>

#include "session/rank.h"

namespace netsum::session {
namespace {

using namespace std::chrono_literals;
using protocol::LaneFailure;

constexpr Time start{100s};
constexpr Duration pause = 100ms;

std::string name_of(const Rank::Action& action) {
  struct Namer {
    std::string operator()(const Rank::Prepare& prepare) { return prepare.again ? "prepare again" : "prepare"; }
    std::string operator()(const Rank::Join& join) { return "join " + std::to_string(join.site); }
    std::string operator()(const Rank::Cancel& cancel) { return "cancel " + std::to_string(cancel.site); }
    std::string operator()(const Rank::Start&) { return "start"; }
    std::string operator()(const Rank::Beat& beat) {
      return "beat " + std::to_string(beat.site) + " " + std::to_string(beat.life.job_epoch) +
             (beat.call.empty() ? "" : ": " + beat.call);
    }
    std::string operator()(const Rank::Look& look) { return "look " + std::to_string(look.number); }
    std::string operator()(const Rank::Leave& leave) {
      return "leave " + std::to_string(leave.site) + " " + std::to_string(leave.life.job_epoch);
    }
    std::string operator()(const Rank::Suspend&) { return "suspend"; }
    std::string operator()(const Rank::Retry&) { return "retry"; }
    std::string operator()(const Rank::Warn& warn) { return warn.text; }
    std::string operator()(const Rank::End&) { return "end"; }
  };
  return std::visit(Namer(), action);
}

class RankTest : public testing::Test, protected Rank::Operations {
 protected:
  using Names = std::vector<std::string>;

  std::optional<Stall> oldest_stall() override { return stall; }
  std::string call(std::uint64_t) override { return "all_reduce of 8 float32"; }
  std::optional<Overdue> overdue(Time) override { return late; }
  Pace pace(Time) override { return program; }

  // The names of the actions since the last call; the error of the last one that had one is in `error`.
  Names actions() {
    Names names;
    for (const Rank::Action& action : rank->take_actions()) {
      names.push_back(name_of(action));
      if (const auto* prepare = std::get_if<Rank::Prepare>(&action)) past_switch = prepare->past_switch;
      if (const auto* end = std::get_if<Rank::End>(&action)) error = end->error;
      if (const auto* suspend = std::get_if<Rank::Suspend>(&action)) error = suspend->cause;
      if (const auto* retry = std::get_if<Rank::Retry>(&action)) error = retry->error;
    }
    return names;
  }

  void make(bool recovers = false) {
    Rank::Config config;
    config.job = "train";
    config.rank = 1;
    config.aggregators = {"a:1", "b:2"};
    config.standbys = standbys;
    config.switch_address = at_switch;
    config.recovers = recovers;
    config.recovery = 10s;
    config.pause = [] { return pause; };
    rank.emplace(std::move(config), static_cast<Rank::Operations&>(*this));
  }

  static Admission admission(std::uint64_t job_epoch, std::uint32_t packet_elements = 256,
                             SiteSet sites = SiteSet::first(2)) {
    Admission admission;
    admission.sites = sites;
    admission.job_epoch = job_epoch;
    admission.rank_epoch = static_cast<std::uint32_t>(job_epoch + 1);
    admission.packet_elements = packet_elements;
    return admission;
  }

  // Both aggregators have been asked.
  void join(bool recovers = false) {
    make(recovers);
    rank->begin(start + 30s);
    EXPECT_EQ(Names{"prepare"}, actions());
    rank->on_prepared({"a:1", "b:2"}, never, start);
    EXPECT_EQ((Names{"join 0", "join 1"}), actions());
  }

  void run(bool recovers = false) {
    join(recovers);
    rank->on_admitted(0, admission(10), start);
    rank->on_admitted(1, admission(20), start);
    EXPECT_EQ(Names{"start"}, actions());
    rank->on_started(start);
    EXPECT_TRUE(rank->running());
  }

  static SiteSet only(std::uint32_t number) {
    SiteSet set;
    set.insert(number);
    return set;
  }
  // It runs at these alone.
  void begin_at(const SiteSet& sites) {
    join(true);
    rank->on_admitted(sites.front(), admission(20, 256, sites), start);
    rank->on_started(start);
    rank->on_timer(start);
    EXPECT_EQ((Names{"cancel 0", "start", "look 0", "beat 0 20"}), actions());
  }
  // It ran at the switch rack:1, and joins again.
  void lose_switch(const std::string& lost) {
    at_switch = "rack:1";
    run(true);
    HeartbeatReply failed{HeartbeatReply::State::failed, "the job requires switch " + lost, {}, {}};
    failed.lost_switch = lost;
    rank->on_reply(0, failed, start);
    rank->on_timer(start + pause);
    static_cast<void>(actions());
  }
  // Where it is about to join.
  void expect_sites(const std::vector<std::string>& addresses) {
    std::vector<std::string> tried;
    for (const Rank::Action& action : rank->take_actions()) {
      if (const auto* prepare = std::get_if<Rank::Prepare>(&action)) tried = prepare->aggregators;
    }
    EXPECT_EQ(addresses, tried);
  }

  void expect_error(ErrorCode code, const std::string& words) {
    ASSERT_TRUE(error);
    EXPECT_EQ(code, error->code()) << error->what();
    EXPECT_NE(std::string::npos, std::string(error->what()).find(words)) << error->what();
  }

  std::uint32_t standbys = 0;
  std::string at_switch;
  bool past_switch = false;  // as the latest Prepare said
  std::optional<Rank> rank;
  std::optional<Error> error;
  std::optional<Stall> stall;
  std::optional<Overdue> late;
  Pace program;
};

const Error lost(ErrorCode::worker_lost, "rank 0 died");
const HeartbeatReply running{HeartbeatReply::State::running, {}, {}, {}};
const HeartbeatReply forgotten{HeartbeatReply::State::unknown, {}, {}, {}};

TEST_F(RankTest, StartsWhenEveryAggregatorHasAdmittedIt) {
  join();
  rank->on_admitted(1, admission(20), start);
  EXPECT_EQ(Names{}, actions());
  rank->on_admitted(0, admission(10), start);
  EXPECT_EQ(Names{"start"}, actions());
  EXPECT_EQ(10, rank->admissions()[0].job_epoch);
  EXPECT_EQ(20, rank->admissions()[1].job_epoch);
  EXPECT_FALSE(rank->running());
  rank->on_started(start);
  EXPECT_EQ(start, rank->next_timeout());
  rank->on_timer(start);
  EXPECT_EQ((Names{"beat 0 10", "beat 1 20"}), actions());
}

// An aggregator that has admitted the rank must not take it for dead while others wait for ranks.
TEST_F(RankTest, SendsHeartbeatsWhereItIsAdmittedWhileOthersDecide) {
  join();
  rank->on_admitted(1, admission(20), start);
  EXPECT_EQ(start + beat_interval, rank->next_timeout());
  for (int i = 1; i <= 3; ++i) {  // answered or not
    rank->on_timer(start + i * beat_interval);
    EXPECT_EQ(Names{"beat 1 20"}, actions());
  }
  rank->on_reply(1, forgotten, start + 2s);  // the running rank's first heartbeat tells
  EXPECT_EQ(Names{}, actions());
}

TEST_F(RankTest, LeavesWhereItIsAdmittedIfAnotherAggregatorRefuses) {
  join();
  rank->on_refused(0, Error(ErrorCode::refused, "no room"), start);
  EXPECT_EQ(Names{}, actions());  // not before all have answered: an admission would be forgotten
  rank->on_admitted(1, admission(20), start);
  EXPECT_EQ((Names{"end", "leave 1 20"}), actions());
  expect_error(ErrorCode::refused, "no room");
  EXPECT_TRUE(rank->ended());
  rank->leave();
  EXPECT_EQ(Names{}, actions());  // a goodbye is said once
}

TEST_F(RankTest, RefusesAggregatorsThatDisagree) {
  join();
  rank->on_admitted(0, admission(10, 256), start);
  rank->on_admitted(1, admission(20, 512), start);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
  expect_error(ErrorCode::refused, "do not agree on the packet length");
}

TEST_F(RankTest, CancelsJoinsThatLastTooLong) {
  make();
  rank->begin(start + 30s);
  rank->on_prepared({"a:1", "b:2"}, start + 5s, start);
  rank->on_admitted(0, admission(10), start);
  static_cast<void>(actions());
  rank->on_timer(start + 5s);
  EXPECT_EQ((Names{"cancel 1", "end", "leave 0 10"}), actions());
  expect_error(ErrorCode::unreachable, "job 'train', rank 1");
  rank->on_admitted(1, admission(20), start + 5s);  // crosses the cancellation
  EXPECT_EQ(Names{}, actions());
}

TEST_F(RankTest, AnUnreachableAggregatorEndsIt) {
  make();
  rank->begin(start + 30s);
  rank->on_unprepared(Error(ErrorCode::unreachable, "nobody there"), start);
  EXPECT_EQ((Names{"prepare", "end"}), actions());
  expect_error(ErrorCode::unreachable, "nobody there");
}

TEST_F(RankTest, HasOneHeartbeatInFlightPerAggregator) {
  run();
  rank->on_timer(start);
  static_cast<void>(actions());
  rank->on_reply(0, running, start);
  rank->on_timer(start + beat_interval);
  EXPECT_EQ(Names{"beat 0 10"}, actions());  // the other one has not answered yet
  rank->on_timer(start + beat_patience);
  EXPECT_EQ(Names{"beat 1 20"}, actions());  // and is not going to
  EXPECT_TRUE(rank->running());
  Time now = start + beat_patience;
  while (!rank->ended() && now < start + 1min) {
    now = rank->next_timeout();
    rank->on_timer(now);
    rank->on_reply(0, running, now);
  }
  EXPECT_EQ("end", actions().end()[-3]);
  expect_error(ErrorCode::aggregator_lost, "aggregator b:2 has not answered");
  EXPECT_LE(now, start + std::chrono::milliseconds(default_heartbeat_timeout_ms) + beat_patience);
}

// The answer in flight may predate the lanes' news.
TEST_F(RankTest, AsksAtOnceWhyItsJobWasDropped) {
  run();
  rank->on_timer(start);
  static_cast<void>(actions());
  rank->on_lane_failure(1, {LaneFailure::Kind::unknown_job}, start + 1ms);
  EXPECT_EQ(start + 1ms, rank->next_timeout());
  rank->on_timer(start + 1ms);
  EXPECT_EQ(Names{"beat 1 20"}, actions());
  rank->on_reply(1, forgotten, start + 2ms);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
  expect_error(ErrorCode::aggregator_restarted, "b:2");
}

// Ranks of a job that ended before they were told of their admission send what nobody sums.
TEST_F(RankTest, AsksWhyResultsAreNoneBeforeItBlamesTheNetwork) {
  const LaneFailure raw{LaneFailure::Kind::unsealed, 7, 0, 0, "packet 0 of message 0 arrived unsummed"};
  for (const bool known : {true, false}) {
    SCOPED_TRACE(known);
    run();
    rank->on_timer(start);
    static_cast<void>(actions());
    rank->on_lane_failure(1, raw, start + 1ms);
    rank->on_timer(start + 1ms);
    EXPECT_EQ(Names{"beat 1 20"}, actions());
    rank->on_reply(0, running, start + 2ms);
    EXPECT_EQ(Names{}, actions()) << "another aggregator's ring";
    HeartbeatReply why = running;
    if (known) {
      why.state = HeartbeatReply::State::failed;
      why.reason = "rank 3 gave up while joining";
      why.lost = 3;
    }
    rank->on_reply(1, why, start + 2ms);
    EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
    expect_error(known ? ErrorCode::worker_lost : ErrorCode::aggregator_lost, known ? "rank 3" : "bypasses aggregator b:2");
  }
}

TEST_F(RankTest, NamesTheAggregatorOfAChangedSum) {
  run();
  rank->on_lane_failure(1, {LaneFailure::Kind::changed_sum, 7, 0, 0, {}}, start + 1ms);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
  expect_error(ErrorCode::aggregator_lost, "aggregator b:2, or a host on the way, has changed it");
}

// The network is not to blame, and the device may come back.
TEST_F(RankTest, SaysWhatItsDeviceSays) {
  run(true);
  rank->on_lane_failure(1, {LaneFailure::Kind::device, 7, 0, 0, "port 1 of RDMA device mlx5_0 is down"}, start);
  EXPECT_EQ(Names{"suspend"}, actions());
  ASSERT_TRUE(error);
  EXPECT_EQ(ErrorCode::aggregator_lost, error->code());
  EXPECT_STREQ("job 'train', rank 1: operation 7: port 1 of RDMA device mlx5_0 is down", error->what());
}

TEST_F(RankTest, AnErrorThatNothingCuresEndsAJobThatRecovers) {
  run(true);
  rank->on_lane_failure(0, {LaneFailure::Kind::mismatch, 7, 0, 1}, start);
  EXPECT_EQ((Names{}), actions());
  rank->on_timer(start);
  EXPECT_EQ((Names{"beat 0 10: all_reduce of 8 float32", "beat 1 20"}), actions());
  rank->on_no_reply(0, "no answer", start + 1s);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
  expect_error(ErrorCode::mismatch, "operation 7; this is rank 1, with all_reduce of 8 float32");
}

// It states its own call, and waits for another's, but not for long.
TEST_F(RankTest, SaysWhatTheOthersCalledIfCallsDiffer) {
  const RankCall own{1, "all_reduce of 8 float32"}, other{3, "barrier"};
  for (const bool told : {true, false}) {
    run();
    rank->on_lane_failure(0, {LaneFailure::Kind::mismatch, 7, 0, 3}, start);
    rank->on_lane_failure(1, {LaneFailure::Kind::mismatch, 7, 0, 3}, start);
    rank->on_timer(start);
    EXPECT_EQ((Names{"beat 0 10: all_reduce of 8 float32", "beat 1 20"}), actions());
    HeartbeatReply reply = running;
    reply.calls = {own};
    rank->on_reply(0, reply, start + 1ms);
    EXPECT_EQ(Names{}, actions());  // nothing new
    EXPECT_EQ(start + 20ms, rank->next_timeout());
    rank->on_timer(start + 20ms);
    EXPECT_EQ(Names{"beat 0 10: all_reduce of 8 float32"}, actions());
    if (told) {
      reply.calls.push_back(other);
      rank->on_reply(0, reply, start + 21ms);
    } else {
      HeartbeatReply left = running;
      left.left = RankSet::first(1);
      rank->on_reply(1, left, start + 21ms);  // no reason to say that rank 0 left
      EXPECT_EQ(Names{}, actions());
      rank->on_timer(start + 1s);
    }
    EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
    expect_error(ErrorCode::mismatch, told ? "float32; rank 3 called barrier" : "with all_reduce of 8 float32");
    EXPECT_EQ(told ? 2U : 1U, error->details().calls.size());
  }
}

// The answer to an earlier heartbeat may have the other's call already: then the other rank has yet to hear this one's.
TEST_F(RankTest, StatesItsCallBeforeItLeavesForAnothers) {
  run();
  rank->on_lane_failure(0, {LaneFailure::Kind::mismatch, 7, 0, 3}, start);
  HeartbeatReply reply = running;
  reply.calls = {{3, "barrier"}};
  rank->on_reply(0, reply, start);
  EXPECT_EQ(Names{}, actions());
  rank->on_timer(start);
  EXPECT_EQ((Names{"beat 0 10: all_reduce of 8 float32", "beat 1 20"}), actions());
  rank->on_reply(0, reply, start + 1ms);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
}

// Where the aggregator alone finds out (NetReduce).
TEST_F(RankTest, StatesItsCallToAnAggregatorThatSaysThatCallsDiffer) {
  run();
  stall = Stall{0, 7, 0, {}, start};
  rank->on_timer(start);
  static_cast<void>(actions());
  HeartbeatReply failed{HeartbeatReply::State::failed, "ranks 0 and 3 issued different calls", {}, {}, true};
  rank->on_reply(0, failed, start);
  EXPECT_EQ(Names{}, actions());
  rank->on_timer(start);
  EXPECT_EQ(Names{"beat 0 10: all_reduce of 8 float32"}, actions());
  failed.calls = {{3, "barrier"}, {1, "all_reduce of 8 float32"}};
  rank->on_reply(0, failed, start + 1ms);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
  expect_error(ErrorCode::mismatch,
               "ranks 0 and 3 issued different calls (said by aggregator a:1); this is rank 1, with all_reduce of 8 "
               "float32; rank 3 called barrier");
}

TEST_F(RankTest, AJobThatAnOperatorEndedDoesNotRecoverAndItsOtherAggregatorsAreToldWhy) {
  run(true);
  HeartbeatReply ended{HeartbeatReply::State::failed, "an operator at x ended job 'train'", {}, {}};
  ended.ended_by_operator = true;
  rank->on_reply(0, ended, start);
  std::vector<FailureCause> causes;
  for (const Rank::Action& action : rank->take_actions()) {
    if (const auto* end = std::get_if<Rank::End>(&action)) error = end->error;
    if (const auto* leave = std::get_if<Rank::Leave>(&action)) causes.push_back(leave->why.cause);
  }
  expect_error(ErrorCode::refused, "an operator at x ended job 'train' (said by aggregator a:1)");
  EXPECT_EQ(causes, std::vector<FailureCause>(2, FailureCause::ended_by_operator));
}

TEST_F(RankTest, AJobThatDoesNotRecoverEndsWithTheFirstError) {
  run();
  rank->on_timer(start);
  rank->on_reply(0, forgotten, start);
  EXPECT_EQ((Names{"beat 0 10", "beat 1 20", "end", "leave 0 10", "leave 1 20"}), actions());
}

TEST_F(RankTest, JoinsAgainAndNamesTheLifeThatItGaveUp) {
  run(true);
  rank->on_reply(0, forgotten, start);
  EXPECT_EQ(Names{"suspend"}, actions());  // no goodbye: the next request says which life has ended
  EXPECT_EQ(start + pause, rank->next_timeout());
  rank->on_timer(start + pause);
  EXPECT_EQ(Names{"prepare again"}, actions());
  rank->on_prepared({"b:2"}, never, start + 1s);  // the other one cannot be reached
  EXPECT_EQ(Names{"join 0"}, actions());
  JoinRequest request;
  rank->complete(0, request);
  EXPECT_TRUE(request.recovers);
  EXPECT_EQ(21, request.former_epoch);
  EXPECT_EQ((std::vector<std::string>{"a:1", "b:2"}), request.aggregators);  // the job's, reached or not
  EXPECT_EQ(1, request.site);
  EXPECT_EQ(only(1), request.reached);
  rank->on_admitted(0, admission(30, 256, only(1)), start + 1s);
  EXPECT_EQ(Names{"start"}, actions());
  rank->on_started(start + 1s);
  rank->on_timer(start + 1s);
  EXPECT_EQ((Names{"look 0", "beat 0 30"}), actions());
}

// Other ranks do not reach them, or they stand by.
TEST_F(RankTest, PartsFromAggregatorsThatDoNotServeTheLife) {
  join(true);
  rank->on_refused(0, Error(ErrorCode::refused, "full"), start);
  rank->on_admitted(1, admission(20, 256, only(1)), start);
  EXPECT_EQ(Names{"start"}, actions());
  ASSERT_EQ(1U, rank->admissions().size());
  EXPECT_EQ(20, rank->admissions()[0].job_epoch);
  join(true);
  rank->on_admitted(1, admission(20, 256, only(1)), start);
  EXPECT_EQ((Names{"cancel 0", "start"}), actions());
  rank->on_started(start);
  rank->on_timer(start);
  EXPECT_EQ((Names{"look 0", "beat 0 20"}), actions());
  rank->on_lane_failure(0, {LaneFailure::Kind::changed_sum, 7, 0, 0, {}}, start);
  static_cast<void>(actions());
  expect_error(ErrorCode::aggregator_lost, "aggregator b:2");  // sites are numbered anew
}

TEST_F(RankTest, AggregatorsDisagreeThatNameDifferentOnes) {
  join(true);
  rank->on_admitted(0, admission(10), start);
  rank->on_admitted(1, admission(20, 256, only(1)), start);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
  expect_error(ErrorCode::refused, "do not agree on the aggregators that serve it");
}

// It comes back once all ranks hear it, as an aggregator says that they tell.
TEST_F(RankTest, LooksForAnAggregatorThatItMisses) {
  begin_at(only(1));
  rank->on_looked(0, false, start + 1ms);
  EXPECT_EQ(start + beat_interval, rank->next_timeout());
  rank->on_timer(start + look_interval);
  rank->on_looked(0, true, start + look_interval);
  rank->on_reply(0, running, start + look_interval);
  static_cast<void>(actions());
  rank->on_timer(start + look_interval + beat_interval);
  const auto beats = rank->take_actions();
  ASSERT_EQ(1U, beats.size());
  EXPECT_EQ(only(0), std::get<Rank::Beat>(beats[0]).seen);
  HeartbeatReply reply = running;
  rank->on_reply(0, reply, start + 2s);
  EXPECT_EQ(Names{}, actions());
  reply.returned = only(0);
  rank->on_reply(0, reply, start + 2s);
  EXPECT_EQ(Names{"suspend"}, actions());
  expect_error(ErrorCode::aggregator_restarted, "aggregator a:1 answers all ranks of job 'train' again");
}

// Not all ranks could join it after all: no job may begin again each second for that.
TEST_F(RankTest, LeavesAnAggregatorAloneThatDidNotComeBack) {
  begin_at(only(1));
  Time now = start;
  std::vector<Duration> pauses;
  for (int i = 0; i < 9; ++i) {
    rank->on_looked(0, true, now);
    HeartbeatReply reply = running;
    reply.returned = only(0);
    rank->on_reply(0, reply, now);
    rank->on_timer(now + pause);
    rank->on_prepared({"a:1", "b:2"}, never, now + pause);
    rank->on_admitted(1, admission(20, 256, only(1)), now + pause);
    rank->on_started(now + pause);
    const Time began = now + pause;
    static_cast<void>(actions());
    for (Names names; names.empty() || names.front() != "look 0"; names = actions()) {
      now = std::min(rank->next_timeout(), now + beat_interval);
      rank->on_reply(0, running, now);
      rank->on_timer(now);
    }
    pauses.push_back(now - began);
  }
  EXPECT_EQ((std::vector<Duration>{1s, 2s, 4s, 8s, 16s, 32s, 64s, 64s, 64s}), pauses);
}

// One that refused, or whose data packets do not arrive, is not asked again at once.
TEST_F(RankTest, DoesWithoutAnAggregatorThatFailedAnAttempt) {
  for (const bool refused : {true, false}) {
    run(true);
    rank->on_reply(0, forgotten, start);
    rank->on_timer(start + pause);
    if (refused) {
      rank->on_prepared({"a:1", "b:2"}, never, start + pause);
      rank->on_refused(0, Error(ErrorCode::refused, "an operator is draining this daemon"), start + pause);
      rank->on_admitted(1, admission(30), start + pause);
    } else {
      rank->on_unprepared(Error(ErrorCode::unreachable, "no UDP", {.aggregator = "a:1"}), start + pause);
    }
    static_cast<void>(actions());
    rank->on_timer(start + 2 * pause);
    expect_sites({"b:2"});
    rank->on_unprepared(Error(ErrorCode::unreachable, "nobody"), start + 2 * pause);
    rank->on_timer(start + 2s);
    expect_sites({"a:1", "b:2"});
  }
}

// All ranks joined all: one that does not answer now is gone.
TEST_F(RankTest, DoesNotWaitLongForTheLastAggregatorToDecide) {
  run(true);
  rank->on_reply(0, forgotten, start);
  rank->on_timer(start + pause);
  rank->on_prepared({"a:1", "b:2"}, never, start + pause);
  rank->on_admitted(1, admission(30), start + 1s);
  static_cast<void>(actions());
  for (Time now = start + 1s; now < start + 1s + undecided_patience; now += beat_interval) rank->on_timer(now);
  static_cast<void>(actions());
  rank->on_timer(start + 1s + undecided_patience);
  EXPECT_EQ((Names{"cancel 0", "retry", "leave 1 30"}), actions());
  rank->on_timer(start + 1s + undecided_patience + pause);
  expect_sites({"b:2"});
}

// Its own switch does not answer the aggregator, or this rank. Once it answers, the rank is at it again.
TEST_F(RankTest, GoesAroundItsSwitchWhileThatIsGone) {
  lose_switch("rack:1");
  EXPECT_TRUE(past_switch);
  rank->on_prepared({"a:1", "b:2"}, never, start + pause, true);
  rank->on_admitted(0, admission(30), start + pause);
  rank->on_admitted(1, admission(40), start + pause);
  rank->on_started(start + pause);
  rank->on_timer(start + pause);
  EXPECT_EQ((Names{"join 0", "join 1", "start", "beat 0 30", "beat 1 40"}), actions());
  rank->on_reply(0, running, start + 900ms);
  rank->on_reply(1, running, start + 900ms);
  rank->on_timer(start + 1s);
  EXPECT_EQ((Names{"look 256", "beat 0 30", "beat 1 40"}), actions());
  rank->on_looked(Rank::own_switch, true, start + 1s);
  EXPECT_EQ(Names{"suspend"}, actions());
  rank->on_timer(start + 1s + pause);
  static_cast<void>(actions());
  EXPECT_FALSE(past_switch);
}

TEST_F(RankTest, AnotherSwitchsEndIsNotItsOwn) {
  lose_switch("rack:2");
  EXPECT_FALSE(past_switch);
}

TEST_F(RankTest, StandbysAreJoinedToo) {
  standbys = 1;
  make(true);
  rank->begin(start + 30s);
  expect_sites({"a:1", "b:2"});  // a new process may find the others at a standby
  rank->on_prepared({"a:1", "b:2"}, never, start);
  rank->on_admitted(0, admission(10, 256, only(0)), start);
  rank->on_started(start);
  rank->on_timer(start);
  EXPECT_EQ((Names{"join 0", "join 1", "cancel 1", "start", "beat 0 10"}), actions());  // and does not look for the standby
}

// Another rank reaches the other one alone, and both wait.
TEST_F(RankTest, LooksAgainWhereItDidNotReachAll) {
  run(true);
  rank->on_reply(0, forgotten, start);
  rank->on_timer(start + pause);
  rank->on_prepared({"a:1"}, never, start + pause);
  static_cast<void>(actions());
  EXPECT_EQ(start + pause + look_again, rank->next_timeout());
  rank->on_timer(start + pause + look_again);
  EXPECT_EQ((Names{"cancel 0", "retry"}), actions());
  rank->on_timer(rank->next_timeout());
  expect_sites({"a:1", "b:2"});  // and blames none
}

// What has come back is not what it was.
TEST_F(RankTest, DoubtsWhatCameBackIfAnAttemptFailsForAnotherReason) {
  begin_at(only(1));
  rank->on_looked(0, true, start);
  HeartbeatReply reply = running;
  reply.returned = only(0);
  rank->on_reply(0, reply, start);
  rank->on_timer(start + pause);
  rank->on_unprepared(Error(ErrorCode::refused, "a:1 is a bump in the wire"), start + pause);
  static_cast<void>(actions());
  rank->on_timer(start + 2 * pause);
  expect_sites({"b:2"});
}

TEST_F(RankTest, AFailedAttemptIsAFormerLifeToo) {
  run(true);
  rank->on_reply(0, forgotten, start);
  rank->on_timer(start + pause);
  rank->on_prepared({"a:1", "b:2"}, never, start + 1s);
  static_cast<void>(actions());
  rank->on_admitted(0, admission(30), start + 1s);
  rank->on_refused(1, Error(ErrorCode::refused, "full"), start + 1s);
  EXPECT_EQ((Names{"retry", "leave 0 30"}), actions());
  rank->on_timer(start + 1s + pause);
  rank->on_prepared({"a:1", "b:2"}, never, start + 2s);
  JoinRequest first, second;
  rank->complete(0, first);
  rank->complete(1, second);
  EXPECT_EQ(31, first.former_epoch);
  EXPECT_EQ(21, second.former_epoch);
}

TEST_F(RankTest, GivesUpWithTheCauseAndTheLastReason) {
  run(true);
  rank->on_reply(0, forgotten, start);
  Time now = start;
  int attempts = 0;
  while (!rank->ended()) {
    now = rank->next_timeout();
    ASSERT_LE(now, start + 11s);
    rank->on_timer(now);
    rank->on_unprepared(Error(ErrorCode::unreachable, "still down"), now += 1s);
    ++attempts;
  }
  EXPECT_GE(attempts, 9);
  static_cast<void>(actions());
  expect_error(ErrorCode::aggregator_restarted, "within 10.0 s: still down");
}

TEST_F(RankTest, AnOverdueOperationEndsItWhileItJoinsAgain) {
  run(true);
  rank->on_reply(0, forgotten, start);
  rank->on_timer(start + pause);
  rank->on_prepared({"a:1", "b:2"}, never, start + 1s);
  rank->on_admitted(0, admission(30), start + 1s);
  static_cast<void>(actions());
  late = Overdue{4, "all_reduce of 8 float32", 2s};
  rank->on_timer(start + 2s);
  EXPECT_EQ((Names{"end", "cancel 1", "leave 0 30"}), actions());
  expect_error(ErrorCode::deadline, "operation 4 (all_reduce of 8 float32)");
  expect_error(ErrorCode::deadline, "the job could not continue after: aggregator a:1 no longer knows");
  EXPECT_EQ("a:1", error->details().aggregator);
  EXPECT_EQ(4U, error->details().operation);
}

TEST_F(RankTest, SaysWhoIsMissingWhenAnOperationIsOverdue) {
  run();
  RankSet missing;
  missing.insert(0);
  stall = Stall{1, 4, 9, missing, start};
  late = Overdue{4, "all_reduce of 8 float32", 2s};
  rank->on_timer(start + 2s);
  static_cast<void>(actions());
  expect_error(ErrorCode::deadline, "waits for rank 0");
}

TEST_F(RankTest, SaysOnceWhatItsJobDoesWithoutAndWhenThatIsOver) {
  run();
  HeartbeatReply without = running;
  without.warning = "switch s:3 does not take part in job 'train': it is not reachable";
  for (const HeartbeatReply& reply : {running, without, without}) rank->on_reply(1, reply, start);
  EXPECT_EQ(Names{"warning: " + without.warning + " (said by aggregator b:2)"}, actions());
  stall = Stall{1, 7, 3, {}, start};
  late = Overdue{7, "all_reduce", 2s};
  rank->on_timer(start);
  static_cast<void>(actions());
  expect_error(ErrorCode::deadline, "has no answer from aggregator b:2; switch s:3 does not take part");
  run();
  rank->on_reply(1, without, start);
  rank->on_reply(1, running, start);
  EXPECT_EQ("all switches take part in job 'train' again (said by aggregator b:2)", actions().at(1));
}

TEST_F(RankTest, WaitsForNoRankThatHasLeft) {
  run();
  HeartbeatReply reply = running;
  reply.left.insert(0);
  stall = Stall{0, 4, 9, reply.left, start + 1min};
  rank->on_reply(0, reply, start);
  EXPECT_EQ((Names{"end", "leave 0 10", "leave 1 20"}), actions());
  expect_error(ErrorCode::worker_lost, "rank 0, which left the job");
  EXPECT_TRUE(rank->left().contains(0));
}

TEST_F(RankTest, LeavesOnceWhateverItWasDoing) {
  run();
  rank->leave();
  EXPECT_EQ((Names{"leave 0 10", "leave 1 20"}), actions());
  rank->leave();
  rank->on_timer(start + 1s);
  rank->on_reply(0, forgotten, start + 1s);
  EXPECT_EQ(Names{}, actions());
  EXPECT_EQ(never, rank->next_timeout());

  join();
  rank->on_admitted(1, admission(20), start);
  rank->leave();
  EXPECT_EQ((Names{"cancel 0", "leave 1 20"}), actions());
}

}  // namespace
}  // namespace netsum::session
