// An aggregator's life cycle by hand: what is to be done comes in one order, and no rank hears of an admission too early.
#include "session/rendezvous.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "jobs/switchml_job.h"
#include "wire/switchml.h"

namespace netsum::session {
namespace {

using namespace std::chrono_literals;
using State = HeartbeatReply::State;

RegistryConfig config() {
  RegistryConfig c;
  c.protocols = {jobs::switchml_rules()};
  c.slots = 64;  // one job's
  c.random = [engine = std::mt19937_64(7)]() mutable { return engine(); };
  return c;
}

JoinRequest request(std::uint32_t rank, std::uint32_t world_size, const std::string& job, const std::string& tenant = "") {
  JoinRequest r;
  r.protocol_version = wire::switchml::version;
  r.protocol = "switchml";
  r.job = job;
  r.rank = rank;
  r.world_size = world_size;
  r.packet_elements = 256;
  r.slots_fixed = 64;
  r.endpoints = {{.address = {0xfd, 1}, .port = static_cast<std::uint16_t>(1000 + rank)}};
  r.tenant = tenant;
  return r;
}

class RendezvousTest : public ::testing::Test {
 protected:
  Time now{1000s};
  Rendezvous aggregator{config()};
  std::set<std::uint64_t> silent;  // jobs whose switches do not know them yet

  Rendezvous::Step step() {
    return aggregator.step(now, [this](std::uint64_t epoch) { return !silent.contains(epoch); });
  }
  // The only start of a step.
  StartJob only_start() {
    const Rendezvous::Step taken = step();
    EXPECT_EQ(taken.changes.starts.size(), 1U);
    EXPECT_TRUE(taken.answers.empty()) << "no lane serves the job yet";
    return taken.changes.starts.empty() ? StartJob{} : taken.changes.starts.front();
  }
  // A job of one rank, which has its answer.
  Admission run_alone(Rendezvous::Call call, const std::string& job, const std::string& tenant = "") {
    aggregator.join(call, request(0, 1, job, tenant), never, now);
    aggregator.on_started(only_start());
    const Rendezvous::Step answered = step();
    EXPECT_EQ(answered.answers.size(), 1U);
    if (answered.answers.empty() || !answered.answers[0].outcome.admission) return {};
    EXPECT_EQ(answered.answers[0].call, call);
    return *answered.answers[0].outcome.admission;
  }
};

TEST_F(RendezvousTest, AnswersWhenEveryLaneServesTheJob) {
  aggregator.join(1, request(1, 2, "train"), never, now);
  EXPECT_TRUE(step().empty());
  aggregator.join(2, request(0, 2, "train"), never, now);
  const StartJob start = only_start();
  EXPECT_EQ(start.protocol, "switchml");
  EXPECT_FALSE(start.watched);
  EXPECT_TRUE(step().empty());
  aggregator.on_started(start);
  const Rendezvous::Step answered = step();
  ASSERT_EQ(answered.answers.size(), 2U);
  EXPECT_EQ(answered.answers[0].call + answered.answers[1].call, 3U);
  EXPECT_EQ(aggregator.waiting(), 0U);
  EXPECT_TRUE(step().empty());
}

TEST_F(RendezvousTest, AnswersWhenTheSwitchesKnowTheJob) {
  aggregator.join(1, request(0, 1, "train"), never, now);
  const StartJob start = only_start();
  silent.insert(start.admission.job_epoch);
  aggregator.on_started(start);
  EXPECT_TRUE(step().empty());
  silent.clear();
  EXPECT_EQ(step().answers.size(), 1U);
}

TEST_F(RendezvousTest, ARankThatGivesUpBeforeItIsToldEndsTheJob) {
  aggregator.join(1, request(0, 2, "train"), never, now);
  aggregator.join(2, request(1, 2, "train"), never, now);
  const StartJob start = only_start();
  silent.insert(start.admission.job_epoch);
  aggregator.on_started(start);
  EXPECT_TRUE(aggregator.cancel(1, now));
  const Rendezvous::Step ended = step();
  ASSERT_EQ(ended.changes.stops.size(), 1U);
  EXPECT_EQ(ended.events.back().kind, JobEvent::Kind::failed);
  EXPECT_NE(ended.events.back().what.find("rank 0"), std::string::npos) << ended.events.back().what;
  ASSERT_EQ(ended.answers.size(), 1U) << "the other rank learns of it from its first heartbeat";
  EXPECT_EQ(ended.answers[0].call, 2U);
  EXPECT_FALSE(aggregator.cancel(1, now));
}

TEST_F(RendezvousTest, StopsComeBeforeTheStartsThatNeedTheirSlots) {
  const Admission first = run_alone(1, "first");
  aggregator.leave(first.job_epoch, 0, first.rank_epoch, "", {}, now);
  aggregator.join(2, request(0, 1, "second"), never, now);
  const Rendezvous::Step both = step();
  ASSERT_EQ(both.changes.stops.size(), 1U);
  EXPECT_EQ(both.changes.stops[0].job_epoch, first.job_epoch);
  EXPECT_EQ(both.changes.starts.size(), 1U);
}

TEST_F(RendezvousTest, AJobThatBeganAndEndedBetweenTwoStepsIsNeverStarted) {
  aggregator.join(1, request(0, 1, "train"), never, now);
  EXPECT_TRUE(aggregator.cancel(1, now));
  const Rendezvous::Step nothing = step();
  EXPECT_TRUE(nothing.changes.starts.empty());
  EXPECT_TRUE(nothing.changes.stops.empty());
  EXPECT_EQ(aggregator.registry().slots_free(), 64U);
}

TEST_F(RendezvousTest, AStartThatFailsRefusesTheRanksAndFreesTheSlots) {
  aggregator.join(1, request(0, 1, "train"), never, now);
  aggregator.on_start_failed(only_start().admission.job_epoch, "there is no memory left", now);
  const Rendezvous::Step refused = step();
  ASSERT_EQ(refused.answers.size(), 1U);
  EXPECT_FALSE(refused.answers[0].outcome.admission);
  EXPECT_EQ(refused.answers[0].outcome.refusal, Refusal::not_started);
  EXPECT_NE(refused.answers[0].outcome.reason.find("no memory left"), std::string::npos);
  EXPECT_TRUE(refused.changes.stops.empty()) << "no lane serves it";
  EXPECT_EQ(aggregator.registry().slots_free(), 64U);
}

TEST_F(RendezvousTest, ALateJoinNamesTheRanksThatAreMissing) {
  aggregator.join(1, request(1, 3, "train"), now + 5s, now);
  EXPECT_LE(aggregator.next_timeout(), now + 5s);
  now += 5s;
  aggregator.on_timer(now);
  const Rendezvous::Step late = step();
  ASSERT_EQ(late.answers.size(), 1U);
  EXPECT_TRUE(late.answers[0].late);
  EXPECT_TRUE(late.answers[0].missing.contains(0) && late.answers[0].missing.contains(2));
  EXPECT_FALSE(late.answers[0].missing.contains(1));
  EXPECT_FALSE(aggregator.cancel(1, now));
}

TEST_F(RendezvousTest, AJoinThatWasAdmittedInTimeIsNotLate) {
  aggregator.join(1, request(0, 1, "train"), now + 5s, now);
  const StartJob start = only_start();
  now += 6s;  // the lanes take their time
  aggregator.on_timer(now);
  aggregator.on_started(start);
  const Rendezvous::Step answered = step();
  ASSERT_EQ(answered.answers.size(), 1U);
  EXPECT_FALSE(answered.answers[0].late);
  EXPECT_TRUE(answered.answers[0].outcome.admission);
}

TEST_F(RendezvousTest, RanksHearWhatTheDataPlaneShows) {
  const Admission admission = run_alone(1, "train");
  const auto beat = [&] { return aggregator.heartbeat(admission.job_epoch, 0, admission.rank_epoch, "", now); };
  EXPECT_TRUE(beat().missing.empty());
  JobView view;
  view.missing.insert(0);
  aggregator.on_view(admission.job_epoch, view, now);
  EXPECT_TRUE(beat().missing.contains(0));
  view.mismatch = "issued different calls";
  aggregator.on_view(admission.job_epoch, view, now);
  EXPECT_EQ(beat().state, State::failed);
  EXPECT_TRUE(beat().mismatch);
  EXPECT_EQ(step().changes.stops.size(), 1U);
  aggregator.on_stopped(admission.job_epoch);
  aggregator.on_view(admission.job_epoch, view, now);  // a look that comes too late
  EXPECT_TRUE(beat().missing.empty());
}

TEST_F(RendezvousTest, AJobThatTheDataPlaneCannotFinishEndsWithItsReason) {
  const Admission admission = run_alone(1, "train");
  JobView view;
  view.hopeless = "its packets are merged";
  aggregator.on_view(admission.job_epoch, view, now);
  const HeartbeatReply beat = aggregator.heartbeat(admission.job_epoch, 0, admission.rank_epoch, "", now);
  EXPECT_EQ(beat.state, State::failed);
  EXPECT_NE(std::string::npos, beat.reason.find("job 'train': its packets are merged"));
  EXPECT_FALSE(beat.mismatch);
}

TEST_F(RendezvousTest, AnotherTenantsJobIsUnknownAndUntouched) {
  const Admission admission = run_alone(1, "train", "a");
  EXPECT_EQ(aggregator.heartbeat(admission.job_epoch, 0, admission.rank_epoch, "b", now).state, State::unknown);
  aggregator.leave(admission.job_epoch, 0, admission.rank_epoch, "b", {}, now);
  EXPECT_TRUE(step().empty());
  EXPECT_EQ(aggregator.heartbeat(admission.job_epoch, 0, admission.rank_epoch, "a", now).state, State::running);
}

TEST_F(RendezvousTest, ShuttingDownAnswersEveryJoin) {
  aggregator.join(1, request(0, 2, "waits"), never, now);
  aggregator.shut_down(now);
  const Rendezvous::Step last = step();
  ASSERT_EQ(last.answers.size(), 1U);
  EXPECT_EQ(last.answers[0].outcome.refusal, Refusal::shutting_down);
  EXPECT_EQ(aggregator.waiting(), 0U);
}

}  // namespace
}  // namespace netsum::session
