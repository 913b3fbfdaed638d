// What one rank concludes from heartbeats, departures and deadlines: the code, and the words that name who is missing.

#include <gtest/gtest.h>

#include "session/supervisor.h"

namespace netsum::session {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = HeartbeatReply::State;

constexpr Time start{seconds(100)};

Supervisor supervisor() {
  return Supervisor({"train", 2, {"a:1", "b:2"}}, start);
}

RankSet ranks(std::initializer_list<std::uint32_t> list) {
  RankSet set;
  for (const std::uint32_t rank : list) set.insert(rank);
  return set;
}

HeartbeatReply running(const RankSet& left = {}) {
  return {State::running, {}, {}, left};
}

void expect(const std::optional<Error>& error, ErrorCode code, std::initializer_list<const char*> words) {
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(code, error->code()) << error->what();
  for (const char* word : words) EXPECT_NE(std::string::npos, std::string(error->what()).find(word)) << error->what();
}

TEST(Supervisor, ARunningJobIsNoError) {
  Supervisor s = supervisor();
  EXPECT_FALSE(s.on_reply(0, running(), start));
  EXPECT_FALSE(s.check_left(Stall{0, 7, 3, ranks({0}), start + seconds(9)}));
  EXPECT_EQ(beat_interval, s.interval());
}

TEST(Supervisor, AFailedJobNamesTheLostRankAndWhoSaidSo) {
  Supervisor s = supervisor();
  expect(s.on_reply(1, {State::failed, "rank 3 died", 3, {}}, start), ErrorCode::worker_lost, {"rank 3 died", "b:2"});
  expect(s.on_reply(0, {State::failed, "shutting down", {}, {}}, start), ErrorCode::aggregator_lost,
         {"shutting down", "a:1"});
}

TEST(Supervisor, AnAggregatorThatForgotTheJobWasRestarted) {
  Supervisor s = supervisor();
  expect(s.on_reply(1, {}, start), ErrorCode::aggregator_restarted, {"b:2", "train", "rank 2"});
}

constexpr Duration silence_allowed = std::chrono::milliseconds(default_heartbeat_timeout_ms);

// Looks in time, if heartbeats to the site have no answer.
std::optional<Error> look(Supervisor& s, std::size_t site, const std::string& why, Time now, bool closed = false) {
  s.on_no_reply(site, why, now, closed);
  return s.look(now, now);
}

TEST(Supervisor, AnAggregatorWhoseConnectionClosedIsLostSoon) {
  Supervisor s = supervisor();
  EXPECT_FALSE(look(s, 0, "refused", start + seconds(1), true));
  EXPECT_FALSE(s.on_reply(0, running(), start + seconds(2)));  // it was connected to again
  EXPECT_FALSE(look(s, 0, "refused", start + seconds(3), true));
  EXPECT_FALSE(look(s, 0, "refused", start + seconds(4), true));
  EXPECT_EQ(start + seconds(3) + reconnect_allowed, s.next_look());
  expect(look(s, 0, "refused", s.next_look(), true), ErrorCode::aggregator_lost, {"a:1"});
}

// A rank that was stopped has heard nobody meanwhile.
TEST(Supervisor, TheJudgesOwnPauseDoesNotCount) {
  Supervisor s = supervisor();
  EXPECT_FALSE(s.on_reply(0, running(), start));
  EXPECT_FALSE(s.look(start + std::chrono::minutes(10), start + beat_interval));
  EXPECT_FALSE(look(s, 0, "late", start + std::chrono::minutes(10) + seconds(1)));
}

TEST(Supervisor, OnlyLongSilenceIsAnError) {
  Supervisor s = supervisor();
  EXPECT_FALSE(look(s, 0, "refused", start + seconds(2)));
  EXPECT_FALSE(s.on_reply(0, running(), start + seconds(2)));
  EXPECT_FALSE(s.on_reply(1, running(), start + seconds(3)));
  EXPECT_FALSE(look(s, 0, "refused", start + seconds(2) + silence_allowed - milliseconds(1)));
  expect(look(s, 0, "refused", start + seconds(2) + silence_allowed), ErrorCode::aggregator_lost,
         {"a:1", "15.0 s", "train", "rank 2", "refused"});
  EXPECT_FALSE(s.on_reply(0, running(), start + seconds(4)));
  expect(s.look(start + seconds(3) + silence_allowed, start + seconds(3) + silence_allowed), ErrorCode::aggregator_lost,
         {"b:2", "no answer"});
}

TEST(Supervisor, ADroppedJobIsAskedAboutSoonerAndBelieved) {
  Supervisor s = supervisor();
  s.on_job_dropped(1);
  EXPECT_EQ(beat_retry_interval, s.interval());
  EXPECT_FALSE(s.on_reply(0, running(), start));
  expect(s.on_reply(1, running(), start), ErrorCode::aggregator_restarted, {"b:2", "no longer serves"});
  EXPECT_FALSE(s.on_reply(0, running(), start + seconds(1)));
  expect(look(s, 1, "refused", start + silence_allowed), ErrorCode::aggregator_lost,
         {"b:2 no longer serves this job, and has not answered"});
}

TEST(Supervisor, AStallOnARankThatLeftEndsOnceTheSwitchWasAskedAfterwards) {
  Supervisor s = supervisor();
  EXPECT_FALSE(s.on_reply(0, running(ranks({1})), start + seconds(1)));
  EXPECT_FALSE(s.check_left(std::nullopt));
  EXPECT_FALSE(s.check_left(Stall{0, 7, 3, ranks({0, 1}), start + seconds(1)}));  // told before it left, perhaps
  EXPECT_FALSE(s.check_left(Stall{0, 7, 3, ranks({0}), start + seconds(3)}));     // waits for another
  EXPECT_FALSE(s.check_left(Stall{0, 7, 3, ranks({0, 1}), start + seconds(2)}));  // by a switch that forgot the sum, perhaps
  expect(s.check_left(Stall{0, 7, 3, ranks({0, 1}), start + seconds(3)}), ErrorCode::worker_lost,
         {"operation 7", "rank 1,", "its own error says why"});

  // Another departure starts the wait again; the first is not forgotten, whichever aggregator knows of it.
  EXPECT_FALSE(s.on_reply(1, running(ranks({0})), start + seconds(4)));
  EXPECT_FALSE(s.check_left(Stall{0, 7, 3, ranks({0, 1}), start + seconds(5)}));
  expect(s.check_left(Stall{0, 7, 3, ranks({0, 1}), start + seconds(6)}), ErrorCode::worker_lost, {"ranks 0, 1"});
  HeartbeatReply reply = running(ranks({0}));
  reply.reason = "rank 0: the user gave up";
  EXPECT_FALSE(s.on_reply(1, reply, start + seconds(7)));  // no other rank
  expect(s.check_left(Stall{0, 7, 3, ranks({0}), start + seconds(6)}), ErrorCode::worker_lost, {"rank 0: the user gave up"});
  EXPECT_TRUE(s.check_left(Stall{0, 7, 3, ranks({0}), start + seconds(6)}));
}

TEST(Supervisor, MismatchAndDeadlineNameWhoAndWhat) {
  const Supervisor s = supervisor();
  EXPECT_EQ((std::vector<std::uint32_t>{0, 2}), s.mismatch(4, 0, 2).details().ranks);
  EXPECT_EQ(4U, s.mismatch(4, 0, 2).details().operation);
  expect(s.mismatch(4, 0, 2), ErrorCode::mismatch, {"ranks 0 and 2", "operation 4"});
  expect(s.overdue(4, "barrier", seconds(5), {}), ErrorCode::deadline, {"operation 4 (barrier)", "5.0 s"});
  expect(s.overdue(4, "barrier", seconds(5), Stall{1, 3, 9, {}, {}}), ErrorCode::deadline,
         {"chunk 9 of operation 3", "b:2"});
  expect(s.overdue(4, "barrier", seconds(5), Stall{1, 3, 9, ranks({1, 3}), {}}), ErrorCode::deadline,
         {"waits for ranks 1, 3"});
}

TEST(Recovery, HelpsWhereARankOrAnAggregatorIsLost) {
  for (const ErrorCode code : {ErrorCode::worker_lost, ErrorCode::aggregator_lost, ErrorCode::aggregator_restarted}) {
    EXPECT_TRUE(recoverable(code));
  }
  for (const ErrorCode code : {ErrorCode::mismatch, ErrorCode::deadline, ErrorCode::refused, ErrorCode::closed}) {
    EXPECT_FALSE(recoverable(code));
  }
}

TEST(Admissions, MustAgreeOverAllAggregators) {
  Admission first;
  first.packet_elements = 256;
  Admission other = first;
  EXPECT_EQ(disagreement(first, other), "");
  other.packet_elements = 320;
  EXPECT_EQ(disagreement(first, other), "the packet length");
  other.resumption.first = 7;
  EXPECT_EQ(disagreement(first, other), "the operation to continue with");
}

}  // namespace
}  // namespace netsum::session
