// Membership under virtual time: who is admitted, who is refused and in which words, and that no slot is ever lost.
#include "session/check.h"
#include "session/liveness.h"
#include "session/registry.h"
#include "session/words.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "jobs/switchml_job.h"
#include "jobs/switchml_terms.h"
#include "wire/switchml.h"

namespace netsum::session {
namespace {

using namespace std::chrono_literals;
using State = HeartbeatReply::State;

constexpr std::uint32_t all_slots = 1024;

RegistryConfig config() {
  RegistryConfig c;
  c.protocols = {jobs::switchml_rules()};
  c.slots = all_slots;
  c.heartbeat_timeout = 3s;
  c.join_timeout = 60s;
  c.random = [engine = std::mt19937_64(7)]() mutable { return engine(); };
  return c;
}

JoinRequest request(std::uint32_t rank, std::uint32_t world_size, const std::string& job = "train") {
  JoinRequest r;
  r.protocol_version = wire::switchml::version;
  r.protocol = "switchml";
  r.job = job;
  r.rank = rank;
  r.world_size = world_size;
  r.packet_elements = 256;
  r.slots_measured = 64;
  r.endpoints = {{.address = {0xfd, 1}, .port = static_cast<std::uint16_t>(1000 + rank)}};
  return r;
}

// At the first of these aggregators, which the rank reaches all.
void recover(JoinRequest& request, const std::vector<std::string>& aggregators) {
  request.recovers = true;
  request.aggregators = aggregators;
  request.reached = SiteSet::first(static_cast<std::uint32_t>(aggregators.size()));
}

RankSet set_of(std::initializer_list<std::uint32_t> ranks) {
  RankSet set;
  for (const std::uint32_t rank : ranks) set.insert(rank);
  return set;
}

class RegistryTest : public ::testing::Test {
 protected:
  Time now{1000s};
  Registry registry{config()};

  void expect_refused(const JoinRequest& asked, Refusal refusal, const std::vector<std::string>& words) {
    const auto outcome = registry.join_outcome(registry.join(asked, now));
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->refusal, refusal) << to_string(outcome->refusal) << ": " << outcome->reason;
    EXPECT_FALSE(outcome->admission);
    for (const std::string& word : words) {
      EXPECT_NE(outcome->reason.find(word), std::string::npos) << "no '" << word << "' in: " << outcome->reason;
    }
  }

  // All ranks of a job join, in order.
  std::vector<JoinOutcome> join_all(const std::vector<JoinRequest>& requests) {
    std::vector<std::uint64_t> tickets;
    for (const JoinRequest& asked : requests) tickets.push_back(registry.join(asked, now));
    std::vector<JoinOutcome> outcomes;
    for (const std::uint64_t ticket : tickets) {
      outcomes.push_back(registry.join_outcome(ticket).value_or(JoinOutcome{Refusal::none, "no outcome", {}}));
      EXPECT_FALSE(registry.join_outcome(ticket)) << "an outcome is given once";
    }
    return outcomes;
  }

  std::vector<Admission> admit(const std::vector<JoinRequest>& requests) {
    std::vector<Admission> admissions;
    for (const JoinOutcome& outcome : join_all(requests)) {
      EXPECT_TRUE(outcome.admission) << outcome.reason;
      admissions.push_back(outcome.admission.value_or(Admission{}));
    }
    return admissions;
  }
};

// A tenant's failures are remembered, logged and recorded, as long as its jobs begin. All of them may fail, and begin anew.
TEST_F(RegistryTest, QuotasLimitFailures) {
  RegistryConfig c = config();
  c.quotas["loud"].jobs = 2;
  registry = Registry(std::move(c));
  const auto fail_one = [&](const std::string& tenant) {
    JoinRequest asked = request(0, 1);
    asked.tenant = tenant;
    const auto outcome = registry.join_outcome(registry.join(asked, now));
    if (outcome->admission) registry.fail(outcome->admission->job_epoch, "over", now);
    return *outcome;
  };
  int failed = 0;
  JoinOutcome last;
  while (failed < 1000 && (last = fail_one("loud")).admission) ++failed;
  EXPECT_GE(failed, 4 * 2);
  EXPECT_LT(failed, 100);
  EXPECT_EQ(Refusal::quota, last.refusal);
  EXPECT_NE(std::string::npos, last.reason.find("have failed within 30.0 s")) << last.reason;
  EXPECT_TRUE(fail_one("other").admission);
  now += 31s;
  registry.on_timer(now);
  EXPECT_TRUE(fail_one("loud").admission);
}

// ---- admission

TEST(Refusals, HaveNames) {
  EXPECT_STREQ("none", to_string(Refusal::none));
  EXPECT_STREQ("no_slots", to_string(Refusal::no_slots));
  EXPECT_STREQ("shutting_down", to_string(Refusal::shutting_down));
}

// Ranks with more threads than others have more lanes. What comes in first does not decide.
TEST_F(RegistryTest, RanksOfDifferentLanesAreToldTheFewest) {
  RegistryConfig c = config();
  c.lanes = 4;
  registry = Registry(std::move(c));
  const auto with_lanes = [](std::uint32_t rank, std::uint16_t lanes) {
    JoinRequest r = request(rank, 3);
    r.endpoints.clear();
    for (std::uint16_t lane = 0; lane < lanes; ++lane)
      r.endpoints.push_back({.address = {0xfd, 1}, .port = static_cast<std::uint16_t>(1000 + 10 * rank + lane)});
    r.switch_cookies.resize(lanes);
    return r;
  };
  for (const Admission& admission : admit({with_lanes(0, 4), with_lanes(1, 2), with_lanes(2, 3)})) {
    EXPECT_EQ(2U, admission.lanes);
  }
  const std::vector<StartJob> starts = registry.take_starts();
  ASSERT_EQ(1U, starts.size());
  EXPECT_EQ(2U, lanes_of(starts[0]));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(with_lanes(static_cast<std::uint32_t>(rank), 2).endpoints, starts[0].endpoints[rank]);
    EXPECT_EQ(2U, starts[0].switch_cookies[rank].size());
  }
  EXPECT_EQ(2U, registry.jobs().at(0).lanes);
  expect_refused(with_lanes(0, 5), Refusal::bad_parameters, {"5 data endpoints", "4 lanes"});
  expect_refused(with_lanes(0, 0), Refusal::bad_parameters, {"0 data endpoints"});
}

TEST_F(RegistryTest, AdmitsWhenAllRanksAreThere) {
  const std::uint64_t second = registry.join(request(1, 2), now);
  EXPECT_FALSE(registry.join_outcome(second));
  EXPECT_TRUE(registry.take_starts().empty());
  ASSERT_EQ(registry.jobs().size(), 1U);
  EXPECT_FALSE(registry.jobs()[0].running);
  EXPECT_EQ(registry.jobs()[0].joined, set_of({1}));

  const std::uint64_t first = registry.join(request(0, 2), now);
  const auto a = registry.join_outcome(first), b = registry.join_outcome(second);
  ASSERT_TRUE(a && a->admission && b && b->admission);
  EXPECT_EQ(a->admission->job_epoch, b->admission->job_epoch);
  ASSERT_EQ(a->admission->rank_epochs.size(), 2U);
  EXPECT_EQ(a->admission->rank_epochs, b->admission->rank_epochs);
  EXPECT_EQ(a->admission->rank_epoch, a->admission->rank_epochs[0]);
  EXPECT_EQ(b->admission->rank_epoch, b->admission->rank_epochs[1]);
  EXPECT_EQ(a->admission->packet_elements, 256U);

  const auto starts = registry.take_starts();
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].job, "train");
  EXPECT_EQ(starts[0].admission.job_epoch, a->admission->job_epoch);
  ASSERT_EQ(starts[0].endpoints.size(), 2U);
  EXPECT_EQ(starts[0].endpoints[1][0].port, 1001);
  EXPECT_TRUE(registry.take_starts().empty());
  EXPECT_TRUE(registry.jobs()[0].running);
}

TEST_F(RegistryTest, AgreesOnTheLargestMeasuredWindow) {
  auto small = request(0, 3), large = request(1, 3), odd = request(2, 3);
  small.slots_measured = 8;
  large.slots_measured = 100;
  odd.slots_measured = 0;
  for (const Admission& admission : admit({small, large, odd})) EXPECT_EQ(admission.slots, 128U);
  EXPECT_EQ(registry.slots_free(), all_slots - 128);
}

TEST_F(RegistryTest, FixedSlotsAreNotChanged) {
  auto fixed = request(0, 1);
  fixed.slots_fixed = 16;
  fixed.slots_measured = 512;
  EXPECT_EQ(admit({fixed})[0].slots, 16U);
}

TEST_F(RegistryTest, AgreesOnThePacketsThatAllPathsTake) {
  auto near = request(0, 3), far = request(1, 3), between = request(2, 3);
  near.packet_elements = 15360;
  far.packet_elements = 320;
  between.packet_elements = 2048;
  near.slots_measured = far.slots_measured = between.slots_measured = 2;
  for (JoinRequest* r : {&near, &far, &between}) r->packet_elements_measured = true;
  for (const Admission& admission : admit({near, far, between})) {
    EXPECT_EQ(admission.packet_elements, 320U);
    EXPECT_EQ(admission.slots, 128U) << "the longest window holds 2 x 15360 elements";
  }
  EXPECT_EQ(registry.slots_free(), all_slots - 128 * 2);
  EXPECT_EQ(registry.jobs()[0].packet_elements, 320U);
}

TEST_F(RegistryTest, WhoAsksForALengthHasItIfAllPathsTakeIt) {
  auto asking = request(0, 2), measuring = request(1, 2);
  asking.packet_elements = 128;
  measuring.packet_elements_measured = true;
  for (const Admission& admission : admit({asking, measuring})) EXPECT_EQ(admission.packet_elements, 128U);

  asking.job = measuring.job = "longer";
  asking.packet_elements = 512;
  std::ignore = registry.join(measuring, now);
  expect_refused(asking, Refusal::parameters_differ,
                 {"rank 0 of job 'longer' asks for packets of 512 elements", "path of rank 1", "at most 256"});
}

// ---- where packets may go

TEST(RegistryEndpoints, AreCheckedBeforeARankIsTaken) {
  RegistryConfig c = config();
  c.check_endpoints = [](const JoinRequest& r) { return r.cookies == std::vector<std::uint64_t>{7} ? "" : "not there"; };
  Registry registry(std::move(c));
  auto r = request(0, 1);
  r.switch_cookies = {8};
  const auto join = [&] { return registry.join_outcome(registry.join(r, Time{1s})).value_or(JoinOutcome{}); };
  EXPECT_EQ("not there", join().reason);
  EXPECT_TRUE(registry.jobs().empty());
  r.cookies = {7};
  EXPECT_TRUE(join().admission);
  const auto starts = registry.take_starts();
  ASSERT_EQ(1U, starts.size());
  EXPECT_EQ((std::vector<std::vector<std::uint64_t>>{{8}}), starts[0].switch_cookies);
}

// ---- windows

// A lane's buffer is for the windows of all ranks.
TEST(RegistryBuffers, BoundMeasuredWindows) {
  RegistryConfig c = config();
  c.receive_bytes = 4 * 16 * (2 * 1024 + 1024);  // of 4 ranks, 16 packets each, as the kernel charges them
  Registry registry(std::move(c));
  const auto start = [&](std::uint32_t ranks, const std::function<void(JoinRequest&)>& change) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      auto r = request(rank, ranks, "of " + std::to_string(ranks));
      change(r);
      std::ignore = registry.join(r, Time{1s});
    }
    const std::vector<StartJob> starts = registry.take_starts();
    EXPECT_EQ(starts.size(), 1U);
    return starts.empty() ? StartJob{} : starts.front();
  };
  const StartJob measured = start(4, [](JoinRequest&) {});
  EXPECT_EQ(measured.admission.slots, 16U);
  EXPECT_EQ(measured.warning, "");
  EXPECT_EQ(start(1, [](JoinRequest&) {}).admission.slots, 64U) << "there is room";
  EXPECT_EQ(start(200, [](JoinRequest&) {}).admission.slots, 2U) << "no fewer";
  const StartJob fixed = start(5, [](JoinRequest& r) { r.slots_fixed = 64; });
  EXPECT_EQ(fixed.admission.slots, 64U) << "what is asked for is obeyed";
  EXPECT_NE(fixed.warning.find("64 slots"), std::string::npos) << fixed.warning;
  EXPECT_NE(fixed.warning.find("holds only 12 packets"), std::string::npos) << fixed.warning;
}

TEST(RegistryBuffers, OfSwitchesBoundWindowsOfTheRanksThere) {
  RegistryConfig c = config();
  c.protocols.front().switches = true;
  c.receive_bytes = 64 * (2 * 1024 + 1024);
  Registry registry(std::move(c));
  std::uint64_t last = 0;
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    auto r = request(rank, 6);
    if (rank != 0) r.switch_address = "rack";
    if (rank != 0) r.switch_receive_bytes = std::uint64_t{5} * 8 * (2 * 1024 + 1024);
    last = registry.join(r, Time{1s});
  }
  const auto outcome = registry.join_outcome(last);
  ASSERT_TRUE(outcome && outcome->admission);
  EXPECT_EQ(outcome->admission->slots, 8U);
}

TEST_F(RegistryTest, ChargesLongPacketsForTheirLength) {
  auto half = request(0, 1, "half"), ten = request(0, 1, "ten");
  half.packet_elements = 128;
  ten.packet_elements = 2560;
  half.slots_fixed = ten.slots_fixed = 16;
  admit({half});
  EXPECT_EQ(registry.slots_free(), all_slots - 16);
  admit({ten});
  EXPECT_EQ(registry.slots_free(), all_slots - 16 - 160);
}

TEST_F(RegistryTest, HalvesAMeasuredWindowUntilItFits) {
  auto first = request(0, 1, "first");
  first.slots_fixed = 512;
  admit({first});
  auto second = request(0, 1, "second"), third = request(0, 1, "third");
  second.slots_measured = third.slots_measured = 4096;
  EXPECT_EQ(admit({second})[0].slots, 512U);
  EXPECT_EQ(registry.slots_free(), 0U);
  expect_refused(third, Refusal::no_slots, {"'third'", "needs 2 slots", "(2 per lane)", "0 of 1024 are free", "--slots"});
}

TEST_F(RegistryTest, FixedSlotsThatDoNotFitAreRefusedOnEveryRank) {
  auto first = request(0, 2), second = request(1, 2);
  first.slots_fixed = second.slots_fixed = 4096;
  for (const JoinOutcome& outcome : join_all({first, second})) {
    EXPECT_EQ(outcome.refusal, Refusal::no_slots);
    EXPECT_NE(outcome.reason.find("needs 4096 slots"), std::string::npos) << outcome.reason;
    EXPECT_NE(outcome.reason.find("1024 of 1024 are free"), std::string::npos) << outcome.reason;
  }
  EXPECT_EQ(registry.slots_free(), all_slots);
  EXPECT_TRUE(registry.jobs().empty());
  admit({request(0, 2), request(1, 2)});
}

// A source of random numbers that repeats itself and gives values whose halves are zero.
TEST(Registry, EpochsAreUniqueAndNotZero) {
  RegistryConfig poor = config();
  poor.slots = 1 << 20;
  poor.random = [n = std::uint64_t{0}]() mutable {
    const std::uint64_t step = n++ / 2;
    return step % 3 == 0 ? step << 32 : step;
  };
  Registry registry(poor);
  std::set<std::uint64_t> jobs;
  std::set<std::uint32_t> ranks;
  for (std::uint32_t i = 0; i < 50; ++i) {
    const std::string name = std::to_string(i);
    static_cast<void>(registry.join(request(0, 2, name), Time{}));
    const auto outcome = registry.join_outcome(registry.join(request(1, 2, name), Time{}));
    ASSERT_TRUE(outcome && outcome->admission);
    EXPECT_TRUE(jobs.insert(outcome->admission->job_epoch).second);
    for (const std::uint32_t epoch : outcome->admission->rank_epochs) EXPECT_TRUE(ranks.insert(epoch).second) << epoch;
  }
  EXPECT_FALSE(jobs.contains(0));
  EXPECT_FALSE(ranks.contains(0));
}

// ---- refusals

TEST_F(RegistryTest, RefusesAnotherVersion) {
  auto asked = request(0, 1);
  asked.protocol_version = 9;
  expect_refused(asked, Refusal::protocol_version, {"version 9", "this aggregator 3", "same netsum"});
}

TEST_F(RegistryTest, RefusesAnotherProtocol) {
  auto asked = request(0, 1);
  asked.protocol = "ring";
  expect_refused(asked, Refusal::protocol, {"'ring'", "switchml"});
  for (const std::string& unfit : {std::string("a\nb"), std::string(256, 'a')}) {
    asked.protocol = unfit;
    expect_refused(asked, Refusal::protocol, {"does not serve that protocol", "switchml"});
  }
}

TEST_F(RegistryTest, RefusesParametersThatCannotBe) {
  expect_refused(request(0, 1, ""), Refusal::bad_parameters, {"name"});
  for (const std::string& name : {std::string(256, 'a'), std::string("a\nb"), std::string("\x7f"), std::string(1, '\0')}) {
    expect_refused(request(0, 1, name), Refusal::bad_parameters, {"255 bytes", "control characters"});
  }
  expect_refused(request(0, 0), Refusal::bad_parameters, {"world size 0", "4096"});
  expect_refused(request(0, 4097), Refusal::bad_parameters, {"world size 4097", "4096"});
  expect_refused(request(4, 4), Refusal::bad_parameters, {"rank 4", "world size 4"});
  for (const std::uint32_t elements : {0U, 1U, 32U, 100U, 300U, 1088U, 15361U, 15616U}) {
    auto asked = request(0, 1);
    asked.packet_elements = elements;
    expect_refused(asked, Refusal::bad_parameters, {"packets of " + std::to_string(elements), "256", "15360"});
  }
  for (const std::uint32_t slots : {3U, 24U, 8192U}) {
    auto asked = request(0, 1);
    asked.slots_fixed = slots;
    expect_refused(asked, Refusal::bad_parameters, {std::to_string(slots) + " slots", "power of two"});
  }
  for (const std::size_t lanes : {0U, 2U}) {
    auto asked = request(0, 1);
    asked.endpoints.resize(lanes, asked.endpoints.front());
    expect_refused(asked, Refusal::bad_parameters, {std::to_string(lanes) + " data endpoints", "1 lanes"});
  }
  EXPECT_TRUE(registry.jobs().empty());
  EXPECT_EQ(join_all({request(0, 1, std::string(255, 'a'))})[0].refusal, Refusal::none);
}

TEST_F(RegistryTest, RefusesParametersThatDifferAndNamesBothRanks) {
  static_cast<void>(registry.join(request(2, 4), now));
  const auto differs = [&](auto change, const std::vector<std::string>& words) {
    auto asked = request(1, 4);
    change(asked);
    expect_refused(asked, Refusal::parameters_differ, words);
  };
  differs([](JoinRequest& r) { r.world_size = 3; }, {"rank 1", "world size 3", "rank 2 with 4"});
  differs([](JoinRequest& r) { r.packet_elements = 512; }, {"rank 1", "elements per packet 512", "rank 2 with 256"});
  differs(
      [](JoinRequest& r) {
        r.own = jobs::own_part(jobs::SwitchMlAsk{4096, {}});
      },
      {"rank 1", "bytes in a run of stripes 4096", "rank 2 with 16384"});
  differs([](JoinRequest& r) { r.slots_fixed = 32; }, {"rank 1", "slots 32", "rank 2 with 0"});
  EXPECT_EQ(registry.jobs()[0].joined, set_of({2}));  // whoever is refused takes nobody's place
}

TEST_F(RegistryTest, RefusesARankThatIsThereAlready) {
  static_cast<void>(registry.join(request(0, 2), now));
  expect_refused(request(0, 2), Refusal::duplicate_rank, {"rank 0", "'train'", "joined already"});
}

TEST_F(RegistryTest, RefusesToJoinARunningJob) {
  admit({request(0, 1)});
  expect_refused(request(0, 1), Refusal::job_running, {"'train'", "running"});
}

TEST(Registry, RefusesMoreJobsThanItServes) {
  RegistryConfig one = config();
  one.max_jobs = 1;
  Registry registry(one);
  static_cast<void>(registry.join(request(0, 2, "a"), Time{}));
  const auto outcome = registry.join_outcome(registry.join(request(0, 2, "b"), Time{}));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->refusal, Refusal::no_slots);
  EXPECT_NE(outcome->reason.find("1 jobs"), std::string::npos);
  EXPECT_FALSE(registry.join_outcome(registry.join(request(1, 2, "b"), Time{}))->admission);
  EXPECT_TRUE(registry.join_outcome(registry.join(request(1, 2, "a"), Time{}))->admission);
}

TEST_F(RegistryTest, ShuttingDownFailsAndRefuses) {
  const Admission running = admit({request(0, 1, "running")})[0];
  const std::uint64_t waiting = registry.join(request(0, 2, "waiting"), now);
  registry.shut_down(now);
  const auto refused = registry.join_outcome(waiting);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->refusal, Refusal::shutting_down);
  EXPECT_NE(refused->reason.find("shutting down"), std::string::npos);
  expect_refused(request(0, 1, "new"), Refusal::shutting_down, {"shutting down"});
  const HeartbeatReply reply = registry.heartbeat(running.job_epoch, 0, running.rank_epoch, now);
  EXPECT_EQ(reply.state, State::failed);
  EXPECT_NE(reply.reason.find("shutting down"), std::string::npos);
  EXPECT_FALSE(reply.lost);
  EXPECT_EQ(registry.slots_free(), all_slots);
}

// ---- joins that end early

TEST_F(RegistryTest, CancellingAJoinNamesTheMissing) {
  const std::uint64_t one = registry.join(request(1, 4), now), three = registry.join(request(3, 4), now);
  EXPECT_EQ(registry.cancel_join(one, now), set_of({0, 2}));
  EXPECT_EQ(registry.cancel_join(one, now), RankSet{});
  EXPECT_EQ(registry.cancel_join(three, now), set_of({0, 1, 2}));
  EXPECT_TRUE(registry.jobs().empty());
  admit({request(0, 1)});  // with another world size: nothing is left of the first attempt
}

TEST_F(RegistryTest, ARankThatGaveUpMayJoinAgain) {
  const std::uint64_t zero = registry.join(request(0, 2), now);
  static_cast<void>(registry.cancel_join(zero, now));
  static_cast<void>(registry.join(request(1, 2), now));
  const auto outcome = registry.join_outcome(registry.join(request(0, 2), now));
  ASSERT_TRUE(outcome && outcome->admission);
}

// The admission was on its way when its reader went away: for the others, that rank is lost.
TEST_F(RegistryTest, CancellingAnAdmissionFailsTheJob) {
  const std::uint64_t zero = registry.join(request(0, 2), now), one = registry.join(request(1, 2), now);
  const auto outcome = registry.join_outcome(zero);
  ASSERT_TRUE(outcome && outcome->admission);
  static_cast<void>(registry.cancel_join(one, now));
  const HeartbeatReply reply = registry.heartbeat(outcome->admission->job_epoch, 0, outcome->admission->rank_epoch, now);
  EXPECT_EQ(reply.state, State::failed);
  EXPECT_EQ(reply.lost, 1U);
  EXPECT_NE(reply.reason.find("rank 1 of job 'train' gave up"), std::string::npos) << reply.reason;
  EXPECT_EQ(registry.slots_free(), all_slots);
}

TEST(Words, NameRanksInAShortLine) {
  const auto ranks = [](std::initializer_list<std::uint32_t> members) {
    RankSet set;
    for (const std::uint32_t rank : members) set.insert(rank);
    return name_ranks(set);
  };
  EXPECT_EQ(ranks({3}), "rank 3");
  EXPECT_EQ(ranks({0, 1, 3}), "ranks 0, 1, 3");
  EXPECT_EQ(ranks({0, 2, 3, 4, 1023}), "ranks 0, 2-4, 1023");
  EXPECT_EQ(name_ranks(RankSet::first(max_world_size)), "ranks 0-4095");
  RankSet odd;
  for (std::uint32_t rank = 1; rank < max_world_size; rank += 2) odd.insert(rank);
  const std::string text = name_ranks(odd);
  EXPECT_TRUE(text.starts_with("ranks 1, 3, 5, ") && text.ends_with(", 127, ... (2048 in all)")) << text;
}

TEST_F(RegistryTest, AJobThatNeverBecomesCompleteIsRefused) {
  const std::uint64_t ticket = registry.join(request(1, 3), now);
  EXPECT_EQ(registry.next_timeout(), now + 60s);
  registry.on_timer(now + 60s - 1ns);
  EXPECT_FALSE(registry.join_outcome(ticket));
  registry.on_timer(now + 60s);
  const auto outcome = registry.join_outcome(ticket);
  ASSERT_TRUE(outcome);
  EXPECT_NE(outcome->reason.find("'train' did not become complete within 60.0 s: ranks 0, 2 are missing"), std::string::npos)
      << outcome->reason;
  EXPECT_TRUE(registry.jobs().empty());
  EXPECT_EQ(registry.next_timeout(), never);
}

// ---- running jobs

TEST_F(RegistryTest, LeavingFreesTheSlotsWhenAllHaveLeft) {
  const auto members = admit({request(0, 2), request(1, 2)});
  const std::uint64_t epoch = members[0].job_epoch;
  registry.leave(epoch, 0, members[0].rank_epoch, {}, now);
  registry.leave(epoch, 0, members[0].rank_epoch, {}, now);  // a repeated goodbye says nothing new
  EXPECT_LT(registry.slots_free(), all_slots);
  const HeartbeatReply reply = registry.heartbeat(epoch, 1, members[1].rank_epoch, now);
  EXPECT_EQ(reply.state, State::running);
  EXPECT_EQ(reply.left, set_of({0}));
  EXPECT_TRUE(registry.take_stops().empty());
  registry.leave(epoch, 1, members[1].rank_epoch, {}, now);
  EXPECT_EQ(registry.slots_free(), all_slots);
  const auto stops = registry.take_stops();
  ASSERT_EQ(stops.size(), 1U);
  EXPECT_EQ(stops[0].job_epoch, epoch);
  EXPECT_EQ(registry.heartbeat(epoch, 1, members[1].rank_epoch, now).state, State::unknown);
  EXPECT_EQ(registry.next_timeout(), never);
}

TEST_F(RegistryTest, AJobWhoseRanksWereClosedHasNotFailed) {
  const auto members = admit({request(0, 2), request(1, 2)});
  const std::uint64_t epoch = members[0].job_epoch;
  registry.leave(epoch, 0, members[0].rank_epoch, {FailureCause::none, "the user gave up"}, now);
  EXPECT_EQ("rank 0: the user gave up", registry.heartbeat(epoch, 1, members[1].rank_epoch, now).reason);
  registry.leave(epoch, 1, members[1].rank_epoch, {FailureCause::none, "the process group was destroyed"}, now);
  EXPECT_EQ(registry.take_stops().size(), 1U);
  EXPECT_EQ(registry.take_events().back().kind, JobEvent::Kind::ended);
}

// Each different call once, with the first rank that stated it, and not more of them than an answer has room for.
TEST_F(RegistryTest, TellsRanksWhatTheOthersCalledIfCallsDiffer) {
  std::vector<JoinRequest> requests;
  for (std::uint32_t rank = 0; rank < 8; ++rank) requests.push_back(request(rank, 8));
  const auto members = admit(requests);
  const std::uint64_t epoch = members[0].job_epoch;
  const auto state = [&](std::uint32_t rank, const std::string& call) {
    std::string calls;
    for (const RankCall& each : registry.heartbeat(epoch, rank, members[rank].rank_epoch, now, call).calls) {
      calls += std::to_string(each.rank) + " " + each.call + ", ";
    }
    return calls;
  };
  EXPECT_EQ("", state(0, ""));
  EXPECT_EQ("1 barrier, ", state(1, "barrier"));
  EXPECT_EQ("1 barrier, ", state(2, "barrier"));
  EXPECT_EQ("1 barrier, 3 all_reduce, ", state(3, "all_reduce"));
  registry.fail_mismatch(epoch, "ranks 0 and 3 issued different calls", now);
  EXPECT_EQ("1 barrier, 3 all_reduce, 4 reduce, ", state(4, "reduce"));
  const std::string all = state(5, "broadcast");
  EXPECT_EQ(all, state(6, "all_gather"));
  EXPECT_EQ(all, state(7, ""));
}

TEST_F(RegistryTest, AJobWhoseRankLeavesForAReasonHasFailedForTheFirstOne) {
  const auto members = admit({request(0, 3), request(1, 3), request(2, 3)});
  const std::uint64_t epoch = members[0].job_epoch;
  registry.leave(epoch, 2, members[2].rank_epoch, {}, now);
  EXPECT_EQ("", registry.heartbeat(epoch, 0, members[0].rank_epoch, now).reason);
  registry.leave(epoch, 1, members[1].rank_epoch, {FailureCause::deadline, "waited too long"}, now);
  EXPECT_EQ("rank 1: waited too long", registry.heartbeat(epoch, 0, members[0].rank_epoch, now).reason);
  EXPECT_TRUE(registry.take_stops().empty()) << "the others may not need it any more";
  registry.leave(epoch, 0, members[0].rank_epoch, {FailureCause::left, "rank 1 left"}, now);
  EXPECT_EQ(registry.take_stops().size(), 1U);
  const auto events = registry.take_events();
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const JobEvent& event) { return is_end(event.kind); }), 1);
  EXPECT_EQ(events.back().kind, JobEvent::Kind::failed);
  EXPECT_EQ(events.back().cause, FailureCause::deadline);
  EXPECT_EQ(events.back().what, "waited too long");
}

TEST_F(RegistryTest, ARankWhoseConnectionClosesIsDeadUnlessItConnectsAgain) {
  const auto members = admit({request(0, 2), request(1, 2)});
  const std::uint64_t epoch = members[0].job_epoch;
  registry.closed(epoch, 1, members[1].rank_epoch + 1, now);  // of another life
  registry.closed(epoch, 0, members[0].rank_epoch, now);
  EXPECT_EQ(registry.next_timeout(), now + reconnect_allowed);
  EXPECT_EQ(registry.heartbeat(epoch, 0, members[0].rank_epoch, now + 1s).state, State::running);
  registry.on_timer(now + reconnect_allowed);
  for (const std::uint32_t rank : {0U, 1U}) {
    static_cast<void>(registry.heartbeat(epoch, rank, members[rank].rank_epoch, now + 2s));
  }
  registry.closed(epoch, 1, members[1].rank_epoch, now + 2s);
  registry.on_timer(now + 2s + reconnect_allowed - 1ns);
  EXPECT_EQ(registry.heartbeat(epoch, 0, members[0].rank_epoch, now + 2s).state, State::running);
  registry.on_timer(now + 2s + reconnect_allowed);
  const HeartbeatReply reply = registry.heartbeat(epoch, 0, members[0].rank_epoch, now + 4s);
  EXPECT_EQ(reply.lost, 1U);
  EXPECT_NE(reply.reason.find("rank 1 of job 'train' died"), std::string::npos) << reply.reason;
}

// An aggregator that was stopped finds all ranks' heartbeats in its sockets afterwards.
TEST_F(RegistryTest, TheTimeInWhichTheAggregatorDidNotRunDoesNotCount) {
  const auto members = admit({request(0, 2), request(1, 2)});
  registry.on_timer(now + 10min);
  EXPECT_EQ(registry.heartbeat(members[0].job_epoch, 0, members[0].rank_epoch, now + 10min).state, State::running);
  EXPECT_EQ(registry.next_timeout(), now + 10min + hearing);
  registry.on_timer(registry.next_timeout());
  EXPECT_EQ(registry.heartbeat(members[0].job_epoch, 0, members[0].rank_epoch, now + 10min).lost, 1U);
}

TEST_F(RegistryTest, AnOperatorEndsARunningJobWhichDoesNotGoOn) {
  std::vector<JoinRequest> asked{request(0, 2), request(1, 2)};
  for (JoinRequest& each : asked) recover(each, {"a:1"});
  const auto members = admit(asked);
  const std::uint64_t epoch = members[0].job_epoch,
                      successor = registry.join(asked[0], now);  // of a rank that may have died
  EXPECT_NE(registry.end({"other"}, "10.0.0.9", now).find("no job 'other' is joining or running here"), std::string::npos);
  EXPECT_NE(registry.end({"train", "b"}, "10.0.0.9", now), "") << "another tenant's";
  EXPECT_EQ(registry.end({"train"}, "10.0.0.9", now), "");
  const HeartbeatReply reply = registry.heartbeat(epoch, 1, members[1].rank_epoch, now);
  EXPECT_EQ(reply.state, State::failed);
  EXPECT_TRUE(reply.ended_by_operator);
  EXPECT_EQ(reply.reason, "an operator at 10.0.0.9 ended job 'train' (netsum end)");
  EXPECT_EQ(registry.slots_free(), all_slots);
  EXPECT_EQ(registry.take_stops().size(), 1U);
  EXPECT_EQ(registry.take_events().back().cause, FailureCause::ended_by_operator);
  EXPECT_EQ(registry.join_outcome(successor).value().refusal, Refusal::ended_by_operator);
  JoinRequest again = asked[1];
  again.former_epoch = members[1].rank_epoch;
  expect_refused(again, Refusal::ended_by_operator, {"an operator at 10.0.0.9"});
  admit({request(0, 2), request(1, 2)});  // started anew
}

TEST_F(RegistryTest, AnOperatorEndsAJobThatWaitsForRanks) {
  const std::uint64_t ticket = registry.join(request(0, 2), now);
  EXPECT_EQ(registry.end({"train"}, "10.0.0.9", now), "");
  EXPECT_EQ(registry.join_outcome(ticket).value().refusal, Refusal::ended_by_operator);
  EXPECT_TRUE(registry.jobs().empty());
}

TEST_F(RegistryTest, WhoseJobIsToBeEndedMustBeSaid) {
  for (const char* const tenant : {"a", "b"}) {
    JoinRequest asked = request(0, 1);
    asked.tenant = tenant;
    admit({asked});
  }
  EXPECT_NE(registry.end({"train"}, "x", now).find("choose one with --tenant: a, b"), std::string::npos);
  EXPECT_EQ(registry.end({"train", "b"}, "x", now), "");
  for (const JobStatus& job : registry.jobs()) EXPECT_EQ(job.running, job.tenant == "a");
}

TEST_F(RegistryTest, ADrainedAggregatorLetsRunWhatRunsAndAdmitsNothingNew) {
  std::vector<JoinRequest> asked{request(0, 2), request(1, 2)};
  for (JoinRequest& each : asked) recover(each, {"a:1"});
  const auto members = admit(asked);
  const std::uint64_t waiting = registry.join(request(0, 2, "waits"), now);
  registry.set_draining(true, now);
  EXPECT_EQ(registry.join_outcome(waiting).value().refusal, Refusal::draining);
  expect_refused(request(0, 1, "new"), Refusal::draining, {"job 'new' is not admitted", "netsum drain --undo"});
  EXPECT_EQ(registry.heartbeat(members[0].job_epoch, 0, members[0].rank_epoch, now).state, State::running);
  registry.lose(members[0].job_epoch, 1, "its process has ended", now);
  EXPECT_EQ(admit(asked).size(), 2U) << "a job that ran recovers";
  EXPECT_EQ(registry.end({"train"}, "x", now), "");
  expect_refused(asked[0], Refusal::draining, {});
  registry.set_draining(false, now);
  admit(asked);
}

TEST_F(RegistryTest, ASilentRankIsNamedAndItsJobsSlotsAreFree) {
  const auto members = admit({request(0, 3), request(1, 3), request(2, 3)});
  const std::uint64_t epoch = members[0].job_epoch;
  EXPECT_EQ(registry.next_timeout(), now + 3s);
  for (const std::uint32_t rank : {0U, 2U}) {
    static_cast<void>(registry.heartbeat(epoch, rank, members[rank].rank_epoch, now + 2s));
  }
  registry.on_timer(now + 3s - 1ns);
  EXPECT_EQ(registry.heartbeat(epoch, 0, members[0].rank_epoch, now + 2s).state, State::running);
  registry.on_timer(now + 3s);
  const HeartbeatReply reply = registry.heartbeat(epoch, 0, members[0].rank_epoch, now + 3s);
  EXPECT_EQ(reply.state, State::failed);
  EXPECT_EQ(reply.lost, 1U);
  EXPECT_NE(reply.reason.find("rank 1 of job 'train' has not been heard from for 3.0 s"), std::string::npos) << reply.reason;
  EXPECT_EQ(registry.slots_free(), all_slots);
  EXPECT_EQ(registry.take_stops().size(), 1U);

  // The name is free at once, beside the failed job that late heartbeats still ask for; the dead rank's goodbye is void.
  now += 3s;
  const auto again = admit({request(0, 1)});
  EXPECT_NE(again[0].job_epoch, epoch);
  EXPECT_EQ(registry.jobs().size(), 2U);
  registry.leave(epoch, 1, members[1].rank_epoch, {}, now);
  EXPECT_EQ(registry.heartbeat(epoch, 2, members[2].rank_epoch, now).state, State::failed);
  EXPECT_EQ(registry.heartbeat(again[0].job_epoch, 0, again[0].rank_epoch, now).state, State::running);
  // And is forgotten in the end.
  registry.leave(again[0].job_epoch, 0, again[0].rank_epoch, {}, now);
  ASSERT_NE(registry.next_timeout(), never);
  registry.on_timer(registry.next_timeout());
  EXPECT_TRUE(registry.jobs().empty());
  EXPECT_EQ(registry.heartbeat(epoch, 2, members[2].rank_epoch, now).state, State::unknown);
}

TEST_F(RegistryTest, ARankThatLeftIsNotExpectedToBeHeardFrom) {
  const auto members = admit({request(0, 2), request(1, 2)});
  registry.leave(members[0].job_epoch, 0, members[0].rank_epoch, {}, now);
  static_cast<void>(registry.heartbeat(members[0].job_epoch, 1, members[1].rank_epoch, now + 10s));
  registry.on_timer(now + 10s);
  EXPECT_EQ(registry.heartbeat(members[0].job_epoch, 1, members[1].rank_epoch, now + 10s).state, State::running);
}

TEST_F(RegistryTest, OnlyMembersAreBelieved) {
  const auto members = admit({request(0, 1)});
  const std::uint64_t epoch = members[0].job_epoch;
  registry.leave(epoch, 0, members[0].rank_epoch + 1, {}, now);
  registry.leave(epoch, 1, members[0].rank_epoch, {}, now);
  registry.leave(epoch + 1, 0, members[0].rank_epoch, {}, now);
  EXPECT_EQ(registry.heartbeat(epoch, 0, members[0].rank_epoch + 1, now).state, State::unknown);
  EXPECT_EQ(registry.heartbeat(epoch, 7, members[0].rank_epoch, now).state, State::unknown);
  EXPECT_EQ(registry.heartbeat(epoch, 0xffffffff, members[0].rank_epoch, now).state, State::unknown);
  EXPECT_EQ(registry.heartbeat(epoch, 0, members[0].rank_epoch, now).state, State::running);
}

// ---- any order of events

// Joins, goodbyes, deaths and time in random order. What must hold after every event: free slots and the slots of running
// jobs are all there are, a job is stopped once and only if it was started, and every ticket gets at most one outcome.
void random_life(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t bound) { return static_cast<std::uint32_t>(random() % bound); };
  RegistryConfig c = config();
  c.slots = 64U << below(6);
  Registry registry(c);
  Time now{1s};
  struct Member {
    std::uint64_t epoch;
    std::uint32_t rank, rank_epoch;
  };
  std::set<std::uint64_t> waiting, started, running;
  std::vector<Member> members;

  const auto carry_out = [&] {
    for (const StopJob& stop : registry.take_stops()) {
      ASSERT_EQ(running.erase(stop.job_epoch), 1U);
    }
    for (const StartJob& start : registry.take_starts()) {
      ASSERT_TRUE(started.insert(start.admission.job_epoch).second);
      ASSERT_EQ(start.endpoints.size(), start.admission.rank_epochs.size());
      running.insert(start.admission.job_epoch);
    }
  };
  const auto settle = [&] {
    carry_out();
    for (auto ticket = waiting.begin(); ticket != waiting.end();) {
      const auto outcome = registry.join_outcome(*ticket);
      if (!outcome) {
        ++ticket;
        continue;
      }
      ASSERT_NE(outcome->refusal == Refusal::none, outcome->reason.size() > 0);
      if (outcome->admission) {
        const auto& epochs = outcome->admission->rank_epochs;
        const auto rank = std::find(epochs.begin(), epochs.end(), outcome->admission->rank_epoch) - epochs.begin();
        members.push_back({outcome->admission->job_epoch, static_cast<std::uint32_t>(rank), outcome->admission->rank_epoch});
      }
      ticket = waiting.erase(ticket);
    }
    std::uint32_t used = 0;
    for (const JobStatus& job : registry.jobs()) {
      ASSERT_EQ(job.running, running.contains(job.job_epoch));
      if (job.running) used += job.slots * ((job.packet_elements + 255) / 256);
    }
    ASSERT_EQ(used + registry.slots_free(), c.slots);
  };

  for (int event = 0; event < 300; ++event) {
    switch (below(8)) {
      case 0:
      case 1:
      case 2: {
        const std::uint32_t world_size = 1 + below(3);
        auto asked = request(below(world_size), world_size, std::string(1, static_cast<char>('a' + below(4))));
        asked.packet_elements = 256U << below(2);
        asked.slots_fixed = below(2) == 0 ? 0 : 1U << below(8);
        asked.slots_measured = below(5000);
        const std::uint64_t ticket = registry.join(asked, now);
        waiting.insert(ticket);
        carry_out();
        if (below(8) == 0) {
          static_cast<void>(registry.cancel_join(ticket, now));
          waiting.erase(ticket);
        }
        break;
      }
      case 3:
        if (!waiting.empty()) {
          static_cast<void>(registry.cancel_join(*waiting.begin(), now));
          waiting.erase(waiting.begin());
        }
        break;
      case 4:
      case 5:
        if (!members.empty()) {
          const Member& member = members[below(members.size())];
          registry.leave(member.epoch, member.rank, member.rank_epoch, {}, now);
        }
        break;
      case 6:
        for (const Member& member : members) {
          if (below(16) != 0) static_cast<void>(registry.heartbeat(member.epoch, member.rank, member.rank_epoch, now));
        }
        break;
      default:
        now += std::chrono::milliseconds(below(2000));
        registry.on_timer(now);
        ASSERT_GT(registry.next_timeout(), now);
    }
    settle();
    if (::testing::Test::HasFatalFailure()) return;
  }
  if (seed % 2 == 0) {
    registry.shut_down(now);
  } else {
    while (registry.next_timeout() != never) registry.on_timer(now = registry.next_timeout());
  }
  settle();
  EXPECT_TRUE(waiting.empty());
  EXPECT_TRUE(running.empty());
  EXPECT_EQ(registry.slots_free(), c.slots);
}

TEST(Registry, SlotsComeBackWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_life(seed);
    if (::testing::Test::HasFailure()) return;
  }
}

// ---- where ranks stand

JoinRequest request_at(std::uint32_t rank, std::uint32_t world_size, const std::string& address) {
  JoinRequest r = request(rank, world_size);
  r.switch_address = address;
  return r;
}

TEST(RegistryPlacement, SwitchesOfRanksAndThoseAboveThemAreInTheAdmission) {
  RegistryConfig c = config();
  c.protocols.front().switches = true;
  c.switch_parents = {{"rack1", "hall"}, {"rack2", "hall"}, {"unused", "hall"}};
  Registry registry(std::move(c));
  std::vector<std::uint64_t> tickets;
  // Joined in another order: ranks are placed by their number.
  for (const auto& [rank, address] : std::map<std::uint32_t, std::string, std::greater<>>{
           {0, "rack1"}, {1, "rack2"}, {2, "rack1"}, {3, "hall"}, {4, ""}, {5, "alone"}}) {
    tickets.push_back(registry.join(request_at(rank, 6, address), Time{1s}));
  }
  const auto outcome = registry.join_outcome(tickets.back());
  ASSERT_TRUE(outcome && outcome->admission);
  const Placement& placement = outcome->admission->placement;
  EXPECT_EQ((std::vector<std::string>{"rack1", "hall", "rack2", "alone"}), placement.switches);
  EXPECT_EQ((std::vector<std::uint32_t>{1, Placement::at_server, 1, Placement::at_server}), placement.parent_of_switch);
  EXPECT_EQ((std::vector<std::uint32_t>{0, 2, 0, 1, Placement::at_server, 3}), placement.switch_of_rank);
  const auto starts = registry.take_starts();
  ASSERT_EQ(1U, starts.size());
  EXPECT_EQ(placement.switch_of_rank, starts[0].admission.placement.switch_of_rank);
}

// What a protocol grants is its own: the registry hands it on, and keeps it for the jobs that come after.
TEST(RegistryOwn, RulesSeeWhatSwitchesSayAndWhatRunningJobsHave) {
  struct Seen {
    std::vector<std::string> asked, parents, others;
    std::uint32_t window = 0;
  };
  Seen seen;
  ProtocolRules rules = jobs::switchml_rules();
  rules.own.emplace();
  rules.own->check_request = [](const JoinRequest& r) { return r.own.empty() ? "asks for nothing" : ""; };
  rules.own->compare = [](const JoinRequest& first, const JoinRequest& second) -> std::optional<Difference> {
    if (first.own.size() == second.own.size()) return std::nullopt;
    return Difference{"words", static_cast<std::uint32_t>(first.own.size()), static_cast<std::uint32_t>(second.own.size())};
  };
  rules.own->agree = [&](const Gathered& gathered) {
    seen = {};
    for (const JoinRequest* const rank : gathered.ranks) seen.asked.push_back(rank->own);
    for (const OwnPart* const parent : gathered.parents) seen.parents.push_back(*parent);
    for (const OwnPart* const other : gathered.others) seen.others.push_back(*other);
    seen.window = gathered.window;
    Agreement agreement;
    agreement.own = "granted to " + gathered.ranks.front()->job;
    agreement.slots = 4;
    if (gathered.ranks.front()->job == "greedy") {
      agreement.refusal = Refusal::no_slots;
      agreement.reason = "there is no more of it";
    }
    return agreement;
  };
  rules.own->check_admission = [](const Admission&, const JoinRequest&) { return std::string(); };
  RegistryConfig c = config();
  c.protocols = {rules, jobs::switchml_rules()};
  c.protocols[1].name = "plain";
  c.switch_parents = {{"rack", "hall"}, {"shed", "barn"}};
  Registry registry(std::move(c));
  registry.on_greeted("hall", {{"plain", "not for it"}, {"switchml", "a hall"}});
  registry.on_greeted("rack", {{"switchml", "nobody's parent"}});
  registry.on_greeted("barn", {{"switchml", "not above these ranks"}});
  const auto join = [&](std::uint32_t rank, const std::string& job, const std::string& own,
                        const std::string& protocol = "switchml") {
    JoinRequest r = request(rank, 2, job);
    r.protocol = protocol;
    r.switch_address = "rack";
    r.own = own;
    return registry.join_outcome(registry.join(r, Time{1s})).value_or(JoinOutcome{});
  };
  EXPECT_EQ("asks for nothing", join(0, "first", "").reason);
  EXPECT_EQ("", join(1, "first", "b").reason);
  const JoinOutcome differs = join(0, "first", "aaa");
  EXPECT_EQ(Refusal::parameters_differ, differs.refusal);
  EXPECT_EQ("rank 0 joined job 'first' with words 3, rank 1 with 1: all ranks must give the same", differs.reason);
  const JoinOutcome first = join(0, "first", "a");
  ASSERT_TRUE(first.admission) << first.reason;
  EXPECT_EQ("granted to first", first.admission->own);
  EXPECT_EQ(4U, first.admission->slots);
  EXPECT_EQ((std::vector<std::string>{"a", "b"}), seen.asked) << "by rank";
  EXPECT_EQ(std::vector<std::string>{"a hall"}, seen.parents);
  EXPECT_TRUE(seen.others.empty());
  EXPECT_EQ(64U, seen.window);
  const auto starts = registry.take_starts();
  ASSERT_EQ(1U, starts.size());
  EXPECT_EQ("granted to first", starts[0].admission.own);

  EXPECT_EQ(Refusal::bad_parameters, join(0, "other", "a", "plain").refusal);
  static_cast<void>(join(0, "other", "", "plain"));
  EXPECT_TRUE(join(1, "other", "", "plain").admission);
  static_cast<void>(join(0, "greedy", "a"));
  const JoinOutcome greedy = join(1, "greedy", "b");
  EXPECT_EQ(Refusal::no_slots, greedy.refusal);
  EXPECT_EQ("job 'greedy': there is no more of it", greedy.reason);
  static_cast<void>(join(0, "second", "a"));
  EXPECT_TRUE(join(1, "second", "b").admission);
  EXPECT_EQ(std::vector<std::string>{"granted to first"}, seen.others) << "not of another protocol, or of a refused job";
  registry.fail(first.admission->job_epoch, "over", Time{1s});
  static_cast<void>(join(0, "third", "a"));
  EXPECT_TRUE(join(1, "third", "b").admission);
  EXPECT_EQ(std::vector<std::string>{"granted to second"}, seen.others);
}

TEST(RegistryPlacement, AProtocolWithoutSwitchesOfItsOwnRefusesThem) {
  RegistryConfig c = config();
  c.protocols.front().switches = false;
  Registry registry(c);
  const auto outcome = registry.join_outcome(registry.join(request_at(0, 2, "rack1"), Time{1s}));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(Refusal::bad_parameters, outcome->refusal);
}

// As an operator may write it: the protocol refuses it, and placing ends.
TEST(RegistryPlacement, ACircleOfSwitchesIsTheProtocolsToRefuse) {
  RegistryConfig c = config();
  c.protocols.front().switches = true;
  c.switch_parents = {{"a", "b"}, {"b", "a"}};
  c.protocols.front().check_placement = [](const Placement& placement) {
    EXPECT_EQ((std::vector<std::uint32_t>{1, 0}), placement.parent_of_switch);
    return std::string("switch 0 has no path to the parameter server");
  };
  Registry registry(std::move(c));
  const std::uint64_t first = registry.join(request_at(0, 2, "a"), Time{1s});
  EXPECT_FALSE(registry.join_outcome(first));
  const std::uint64_t second = registry.join(request_at(1, 2, ""), Time{1s});
  for (const std::uint64_t ticket : {first, second}) {
    const auto outcome = registry.join_outcome(ticket);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(Refusal::bad_parameters, outcome->refusal);
    EXPECT_EQ("job 'train': switch 0 has no path to the parameter server", outcome->reason);
  }
  EXPECT_TRUE(registry.take_starts().empty());
  EXPECT_EQ(all_slots, registry.slots_free());
  EXPECT_FALSE(registry.join_outcome(registry.join(request_at(0, 2, ""), Time{1s})));  // the name is free again
}

TEST(RegistryPlacement, AnAddressOfASwitchIsOneLineOfReasonableLength) {
  RegistryConfig c = config();
  c.protocols.front().switches = true;
  Registry registry(std::move(c));
  for (const std::string& address : {std::string(256, 'a'), std::string("a\nb")}) {
    const auto outcome = registry.join_outcome(registry.join(request_at(0, 2, address), Time{1s}));
    ASSERT_TRUE(outcome);
    EXPECT_EQ(Refusal::bad_parameters, outcome->refusal);
  }
}

// A server that waits for its switches before it answers does not take the ranks' silence meanwhile for death.
TEST(RegistryPlacement, RanksCanBeHeardFromWhenTheyWereToldOfTheirAdmission) {
  Registry registry(config());
  JoinRequest r = request(0, 1);
  const std::uint64_t ticket = registry.join(r, Time{10s});
  const std::uint64_t epoch = registry.join_outcome(ticket)->admission->job_epoch;
  registry.admission_told(epoch, Time{15s});
  registry.admission_told(epoch + 1, Time{15s});  // nobody's
  registry.on_timer(Time{17s});
  EXPECT_TRUE(registry.jobs()[0].running);
  registry.on_timer(Time{18s});
  EXPECT_FALSE(registry.jobs()[0].running);
}

// ---- generations

class GenerationTest : public RegistryTest {
 protected:
  // All slots, so that no second job fits.
  static JoinRequest of(std::uint64_t generation, std::uint32_t rank, std::uint32_t world_size = 2) {
    JoinRequest r = request(rank, world_size);
    r.slots_fixed = all_slots;
    r.generation = generation;
    return r;
  }
};

TEST_F(GenerationTest, ALaterOneEndsAnEarlierOneAtOnce) {
  const auto first = admit({of(5, 0), of(5, 1)});
  const auto second = admit({of(6, 0), of(6, 1)});
  EXPECT_NE(first[0].job_epoch, second[0].job_epoch);
  const auto stops = registry.take_stops();
  ASSERT_EQ(stops.size(), 1U);
  EXPECT_EQ(stops[0].job_epoch, first[0].job_epoch);
  const HeartbeatReply reply = registry.heartbeat(first[1].job_epoch, 1, first[1].rank_epoch, now);
  EXPECT_EQ(reply.state, State::failed);
  EXPECT_TRUE(reply.lost);
  EXPECT_NE(reply.reason.find("was started again"), std::string::npos) << reply.reason;
  EXPECT_EQ(registry.heartbeat(second[1].job_epoch, 1, second[1].rank_epoch, now).state, State::running);
}

TEST_F(GenerationTest, MayHaveMoreRanksThanTheEarlierOne) {
  const auto first = admit({of(5, 0), of(5, 1)});
  static_cast<void>(registry.join(of(6, 2, 3), now));
  const HeartbeatReply reply = registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now);
  ASSERT_TRUE(reply.lost);
  EXPECT_LT(*reply.lost, 2U);
}

TEST_F(GenerationTest, AnEarlierOneIsRefused) {
  static_cast<void>(registry.join(of(6, 0), now));
  expect_refused(of(5, 1), Refusal::superseded, {"rank 1", "earlier start"});
  EXPECT_TRUE(registry.join_outcome(registry.join(of(6, 1), now)));
  expect_refused(of(5, 1), Refusal::superseded, {"rank 1", "earlier start"});
  expect_refused(of(6, 1), Refusal::job_running, {"running already"});
  EXPECT_TRUE(registry.take_stops().empty());
}

TEST_F(GenerationTest, ALaterOneRefusesTheEarlierOnesThatWait) {
  const std::uint64_t waiting = registry.join(of(5, 0), now);
  const std::uint64_t later = registry.join(of(6, 1), now);
  const auto outcome = registry.join_outcome(waiting);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->refusal, Refusal::superseded);
  EXPECT_FALSE(registry.join_outcome(later));
  EXPECT_TRUE(registry.join_outcome(registry.join(of(6, 0), now)));
  EXPECT_TRUE(registry.join_outcome(later));
}

TEST_F(GenerationTest, ALaterOneRefusesTheEarlierOnesSuccessors) {
  const auto recovering = [](std::uint64_t generation, std::uint32_t rank) {
    JoinRequest r = of(generation, rank);
    recover(r, {"a:1"});
    return r;
  };
  static_cast<void>(admit({recovering(5, 0), recovering(5, 1)}));
  const std::uint64_t successor = registry.join(recovering(5, 1), now);
  const auto second = admit({recovering(6, 0), recovering(6, 1)});
  EXPECT_EQ(registry.heartbeat(second[0].job_epoch, 0, second[0].rank_epoch, now).state, State::running);
  const auto outcome = registry.join_outcome(successor);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->refusal, Refusal::superseded);
}

// ---- survivors

class SurvivorsTest : public RegistryTest {
 protected:
  static constexpr std::uint32_t ranks = 4;

  static JoinRequest new_process(std::uint32_t rank) {
    JoinRequest r = request(rank, ranks);
    recover(r, {"a:1"});
    r.survivors = 2;
    return r;
  }
  // The rank was in the life of this admission.
  static JoinRequest again(std::uint32_t rank, const Admission& admission) {
    JoinRequest r = new_process(rank);
    r.life = admission.life;
    r.members = admission.resumption.members;
    r.former_epoch = admission.rank_epoch;
    r.progress = {5, 4, {}};
    return r;
  }
  std::vector<Admission> start() { return admit({new_process(0), new_process(1), new_process(2), new_process(3)}); }
  // Its process ends.
  void kill(std::uint32_t rank, const Admission& admission) {
    registry.closed(admission.job_epoch, rank, admission.rank_epoch, now);
    now = std::min(registry.next_timeout(), now + 1s);
    registry.on_timer(now);
  }
};

TEST_F(SurvivorsTest, GoOnAtOnceWithoutADeadRank) {
  const auto first = start();
  EXPECT_EQ(first[0].resumption.members, RankSet::first(ranks));
  const Time killed = now;
  kill(2, first[2]);
  EXPECT_LE(now - killed, 50ms);
  const HeartbeatReply told = registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now);
  EXPECT_EQ(told.state, State::failed);
  EXPECT_EQ(told.lost, 2U);
  const auto second = admit({again(0, first[0]), again(1, first[1]), again(3, first[3])});
  for (const Admission& admission : second) {
    EXPECT_EQ(admission.resumption.members, set_of({0, 1, 3}));
    EXPECT_EQ(admission.life, 2U);
    EXPECT_EQ(admission.rank_epochs, (std::vector{second[0].rank_epoch, second[1].rank_epoch, second[2].rank_epoch}));
    EXPECT_EQ(check(admission, again(3, first[3]), jobs::switchml_rules()).empty(), &admission == &second[2]);
  }
}

// The life after the one that was here was at others, so connections to this aggregator ended.
TEST_F(SurvivorsTest, WaitForASlowRankAlsoWhereTheLastLifeWasNot) {
  const auto first = start();
  const auto from_elsewhere = [&](std::uint32_t rank) {
    JoinRequest r = again(rank, first[rank]);
    r.life = 2;
    return r;
  };
  const std::uint64_t moved = registry.join(again(0, first[0]), now);
  static_cast<void>(registry.cancel_join(moved, now));
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    registry.closed(first[rank].job_epoch, rank, first[rank].rank_epoch, now);
  now += 1s;
  const std::uint64_t zero = registry.join(from_elsewhere(0), now), one = registry.join(from_elsewhere(1), now);
  static_cast<void>(registry.join(from_elsewhere(3), now));
  registry.on_timer(now += 100ms);
  EXPECT_FALSE(registry.join_outcome(zero));
  static_cast<void>(registry.join(from_elsewhere(2), now));
  EXPECT_EQ(registry.join_outcome(one).value().admission.value().resumption.members, RankSet::first(ranks));
}

TEST_F(SurvivorsTest, AnOldLifeDoesNotGoOnBesideTheLatest) {
  const auto first = start();
  kill(3, first[3]);  // it lives, and was cut off
  const auto second = admit({again(0, first[0]), again(1, first[1]), again(2, first[2])});
  kill(2, second[2]);
  expect_refused({again(3, first[3])}, Refusal::excluded, {"rank 3", "declared dead"});
  const auto third = admit({again(0, second[0]), again(1, second[1])});
  EXPECT_EQ(third[0].life, 3U);
}

// Ranks that turned away from it have closed their connections.
TEST_F(SurvivorsTest, ALifeThatNobodyBeganSaysOfNobodyThatItDied) {
  const auto first = start();
  kill(3, first[3]);
  const auto second = admit({again(0, first[0]), again(1, first[1]), again(2, first[2])});
  for (std::uint32_t rank = 0; rank < 3; ++rank) registry.closed(second[rank].job_epoch, rank, second[rank].rank_epoch, now);
  now = registry.next_timeout();
  registry.on_timer(now);
  const std::uint64_t tickets[] = {registry.join(again(0, first[0]), now), registry.join(again(1, first[1]), now)};
  now += 1s;
  registry.on_timer(now);
  EXPECT_FALSE(registry.join_outcome(tickets[0]));
  const std::uint64_t slow = registry.join(again(2, first[2]), now);
  for (const std::uint64_t ticket : {tickets[0], tickets[1], slow}) {
    const auto outcome = registry.join_outcome(ticket);
    ASSERT_TRUE(outcome && outcome->admission);
    EXPECT_EQ(outcome->admission->resumption.members, set_of({0, 1, 2}));
  }
}

// Two aggregators that different ranks reach admit two second lives: this one of ranks 0, 1 and 3, the other one of 0, 1 and
// 2, which have a result of it.
TEST_F(SurvivorsTest, ALifeWhoseMembersWereInAnotherOfItsNumberIsVoid) {
  const auto first = start();
  kill(2, first[2]);
  const auto here = admit({again(0, first[0]), again(1, first[1]), again(3, first[3])});
  const auto from_elsewhere = [&](std::uint32_t rank) {
    JoinRequest r = again(rank, first[rank]);
    r.life = 2;
    r.members = set_of({0, 1, 2});
    return r;
  };
  kill(3, here[2]);
  const std::uint64_t three = registry.join(again(3, here[2]), now), two = registry.join(from_elsewhere(2), now);
  EXPECT_FALSE(registry.join_outcome(three)) << "nobody knows which of the two is void";
  static_cast<void>(registry.join(from_elsewhere(0), now));
  EXPECT_EQ(registry.join_outcome(three).value().refusal, Refusal::excluded);
  static_cast<void>(registry.join(from_elsewhere(1), now));
  EXPECT_EQ(registry.join_outcome(two).value().admission.value().resumption.members, set_of({0, 1, 2}));
}

TEST_F(SurvivorsTest, IfBothAreVoidAllTheirMembersMayGoOn) {
  const auto first = start();
  kill(2, first[2]);
  const auto here = admit({again(0, first[0]), again(1, first[1]), again(3, first[3])});
  JoinRequest elsewhere = again(1, first[1]);
  elsewhere.life = 2;
  elsewhere.members = set_of({0, 1, 2});
  kill(3, here[2]);
  const std::uint64_t one = registry.join(elsewhere, now);
  static_cast<void>(registry.join(again(0, here[0]), now));
  static_cast<void>(registry.join(again(2, first[2]), now));
  EXPECT_FALSE(registry.join_outcome(one));
  static_cast<void>(registry.join(again(3, here[2]), now));
  EXPECT_EQ(registry.join_outcome(one).value().admission.value().resumption.members, RankSet::first(ranks));
}

TEST_F(SurvivorsTest, ARankWhoseNextResultIsForgottenIsTooLate) {
  const auto first = start();
  kill(3, first[3]);
  JoinRequest needy = again(0, first[0]), ahead = again(1, first[1]);
  needy.progress = {1, 0, {}};
  ahead.progress = {3, 2, {}};
  const std::uint64_t zero = registry.join(needy, now), one = registry.join(ahead, now);
  EXPECT_EQ(registry.join_outcome(zero).value().refusal, Refusal::excluded);
  JoinRequest other = again(2, first[2]);
  other.progress = {2, 2, {}};
  const std::uint64_t two = registry.join(other, now);
  EXPECT_EQ(registry.join_outcome(one).value().admission.value().resumption.members, set_of({1, 2}));
  EXPECT_TRUE(registry.join_outcome(two).value().admission);
}

// All join, and are refused as there is no room. The one that joins last then is not taken for silent since the life before.
TEST_F(SurvivorsTest, WhoHasJoinedInVainLives) {
  const auto first = start();
  kill(3, first[3]);
  now += 2s;
  const auto greedy = [&](std::uint32_t rank) {
    JoinRequest r = again(rank, first[rank]);
    r.slots_fixed = 4096;
    return r;
  };
  for (const JoinOutcome& outcome : join_all({greedy(0), greedy(1), greedy(2)}))
    EXPECT_EQ(outcome.refusal, Refusal::no_slots) << outcome.reason;
  now += 1s;
  const std::uint64_t zero = registry.join(again(0, first[0]), now);
  static_cast<void>(registry.join(again(1, first[1]), now));
  EXPECT_FALSE(registry.join_outcome(zero));
  static_cast<void>(registry.join(again(2, first[2]), now));
  EXPECT_EQ(registry.join_outcome(zero).value().admission.value().resumption.members, set_of({0, 1, 2}));
}

TEST_F(SurvivorsTest, WaitForARankThatIsOnlySlow) {
  const auto first = start();
  kill(2, first[2]);
  const std::uint64_t zero = registry.join(again(0, first[0]), now), one = registry.join(again(1, first[1]), now);
  for (int i = 0; i < 23; ++i, now += 100ms) registry.on_timer(now);
  EXPECT_FALSE(registry.join_outcome(zero));
  const auto three = registry.join_outcome(registry.join(again(3, first[3]), now));
  ASSERT_TRUE(three && three->admission);
  EXPECT_EQ(three->admission->resumption.members, set_of({0, 1, 3}));
  EXPECT_TRUE(registry.join_outcome(zero) && registry.join_outcome(one));
}

// Its host is gone, or the way there.
TEST_F(SurvivorsTest, GoOnSoonWithoutASilentRank) {
  const auto first = start();
  const auto beat = [&](std::uint32_t rank) {
    return registry.heartbeat(first[rank].job_epoch, rank, first[rank].rank_epoch, now).state;
  };
  now += 2900ms;  // until their first heartbeats
  registry.on_timer(now);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(beat(rank), State::running);
  const Time silent = now;
  while (beat(0) == State::running) {
    static_cast<void>(beat(1));
    static_cast<void>(beat(2));
    now += 50ms;
    registry.on_timer(now);
    ASSERT_LE(now - silent, 1s);
  }
  EXPECT_GE(now - silent, 800ms);
  EXPECT_EQ(registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now).lost, 3U);
}

TEST_F(SurvivorsTest, ASecondDeathWhileTheJobForms) {
  const auto first = start();
  kill(2, first[2]);
  const std::uint64_t zero = registry.join(again(0, first[0]), now), one = registry.join(again(1, first[1]), now);
  kill(3, first[3]);
  const auto outcome = registry.join_outcome(zero);
  ASSERT_TRUE(outcome && outcome->admission);
  EXPECT_EQ(outcome->admission->resumption.members, set_of({0, 1}));
  EXPECT_TRUE(registry.join_outcome(one));
}

TEST_F(SurvivorsTest, ARankThatLeavesWhileTheJobFormsIsNotWaitedFor) {
  const auto first = start();
  kill(2, first[2]);
  const std::uint64_t zero = registry.join(again(0, first[0]), now);
  static_cast<void>(registry.join(again(1, first[1]), now));
  registry.leave(first[3].job_epoch, 3, first[3].rank_epoch, {}, now);
  registry.on_timer(now);
  const auto outcome = registry.join_outcome(zero);
  ASSERT_TRUE(outcome && outcome->admission);
  EXPECT_EQ(outcome->admission->resumption.members, set_of({0, 1}));
}

TEST_F(SurvivorsTest, ARankThatWasDeclaredDeadIsToldSo) {
  const auto first = start();
  kill(2, first[2]);
  const auto second = admit({again(0, first[0]), again(1, first[1]), again(3, first[3])});
  expect_refused(again(2, first[2]), Refusal::excluded,
                 {"rank 2", "declared dead", "ranks 0, 1, 3 continue without it, most recently from operation 5"});
  // Also while the others form the next life, whoever comes first.
  kill(3, second[2]);
  const std::uint64_t stale = registry.join(again(2, first[2]), now);
  const auto third = admit({again(0, second[0]), again(1, second[1])});
  EXPECT_EQ(third[0].resumption.members, set_of({0, 1}));
  EXPECT_EQ(third[0].life, 3U);
  const auto outcome = registry.join_outcome(stale);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->refusal, Refusal::excluded);
}

TEST_F(SurvivorsTest, ANewProcessWaitsUntilItIsLetIn) {
  const auto first = start();
  kill(2, first[2]);
  const std::uint64_t fresh = registry.join(new_process(2), now);  // before the others have joined again
  const auto second = admit({again(0, first[0]), again(1, first[1]), again(3, first[3])});
  EXPECT_EQ(second[0].resumption.members, set_of({0, 1, 3}));
  now += 20s;
  for (const std::uint32_t rank : {0U, 1U, 3U}) {
    const Admission& own = second[rank == 3 ? 2 : rank];
    EXPECT_EQ(registry.heartbeat(own.job_epoch, rank, own.rank_epoch, now).waiting, set_of({2}));
  }
  registry.on_timer(now);
  EXPECT_FALSE(registry.join_outcome(fresh));
  std::vector<JoinRequest> letting;
  for (const std::uint32_t rank : {0U, 1U, 3U}) {
    letting.push_back(again(rank, second[rank == 3 ? 2 : rank]));
    letting.back().lets_in = true;
  }
  const auto third = admit(letting);
  EXPECT_EQ(third[0].resumption.members, RankSet::first(ranks));
  const auto let_in = registry.join_outcome(fresh);
  ASSERT_TRUE(let_in && let_in->admission);
  EXPECT_EQ(let_in->admission->rank_epoch, third[0].rank_epochs[2]);
}

// A new process has come in its place, and is gone, too.
TEST_F(SurvivorsTest, WhoWasDeclaredDeadIsNotTakenForTheProcessAfterIt) {
  const auto first = start();
  kill(2, first[2]);  // it lives
  const auto second = admit({again(0, first[0]), again(1, first[1]), again(3, first[3])});
  const std::uint64_t fresh = registry.join(new_process(2), now);
  std::vector<JoinRequest> letting;
  for (const std::uint32_t rank : {0U, 1U, 3U}) {
    letting.push_back(again(rank, second[rank == 3 ? 2 : rank]));
    letting.back().lets_in = true;
  }
  const auto third = admit(letting);
  const auto let_in = registry.join_outcome(fresh);
  ASSERT_TRUE(let_in && let_in->admission);
  // The new one is there; then it is not; then the others have joined again.
  expect_refused(again(2, first[2]), Refusal::excluded, {"rank 2", "declared dead"});
  kill(2, *let_in->admission);
  const std::uint64_t old = registry.join(again(2, first[2]), now);
  const auto fourth = admit({again(0, third[0]), again(1, third[1]), again(3, third[2])});
  EXPECT_EQ(fourth[0].resumption.members, set_of({0, 1, 3}));
  const auto outcome = registry.join_outcome(old);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->refusal, Refusal::excluded);
}

// Its admission did not reach it: it is the same process all the same.
TEST_F(SurvivorsTest, WhoWasNotToldOfALifeIsInTheNextOne) {
  const auto first = start();
  kill(3, first[3]);
  const auto second = admit({again(0, first[0]), again(1, first[1]), again(2, first[2])});
  const auto third = admit({again(0, second[0]), again(1, second[1]), again(2, first[2])});
  EXPECT_EQ(third[2].resumption.members, set_of({0, 1, 2}));
}

TEST_F(SurvivorsTest, ACallThatWaitsForAllEndsNoLifeBetweenHeartbeats) {
  std::vector<JoinRequest> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    all.push_back(new_process(rank));
    all.back().straggler_deadline = 20ms;
    all.back().survivors = 1;
  }
  const auto first = admit(all);
  const auto beat = [&](std::uint32_t rank, Pace pace) {
    return registry.heartbeat(first[rank].job_epoch, rank, first[rank].rank_epoch, now, "", {}, pace).state;
  };
  const Pace outside{.calls = false, .next = 3, .since = 1s};
  for (const std::uint32_t rank : {1U, 2U, 3U}) EXPECT_EQ(beat(rank, outside), State::running);
  EXPECT_EQ(beat(0, {.calls = true, .next = 3, .since = 0s}), State::running);
  now += 40ms;
  for (const std::uint32_t rank : {1U, 2U, 3U}) EXPECT_EQ(beat(rank, outside), State::running);
  EXPECT_EQ(beat(0, {.calls = true, .next = 3, .since = 20ms}), State::failed) << "it waits for all no longer";
}

// Rank 3 is dead, ranks 1 and 2 are late, and rank 1 has a result that rank 2 lacks. Rank 0, which has it, dies, too.
class LateRanksTest : public SurvivorsTest {
 protected:
  std::vector<Admission> first;

  static JoinRequest calling(JoinRequest r, std::uint64_t next) {
    r.survivors = 1;
    r.straggler_deadline = 100ms;
    r.progress = {next, next == stream::Progress::anywhere ? next : 0, {}};
    r.pace = {.calls = true, .next = next, .since = 1s};
    return r;
  }
  static JoinRequest late(JoinRequest r, std::uint64_t next) {
    r = calling(std::move(r), next);
    r.pace.calls = false;
    r.set_aside = true;
    return r;
  }
  bool told_aside(std::uint64_t ticket, std::uint32_t rank) {
    const auto outcome = registry.join_outcome(ticket);
    return outcome && outcome->admission && outcome->admission->aside.contains(rank);
  }
  // Rank 2's ticket, and when rank 1 was there last.
  std::pair<std::uint64_t, Time> begin();
};

std::pair<std::uint64_t, Time> LateRanksTest::begin() {
  std::vector<JoinRequest> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) all.push_back(calling(new_process(rank), stream::Progress::anywhere));
  first = admit(all);
  kill(3, first[3]);
  const std::uint64_t one = registry.join(late(again(1, first[1]), 6), now),
                      two = registry.join(late(again(2, first[2]), 5), now);
  const auto zero = registry.join_outcome(registry.join(calling(again(0, first[0]), 6), now));
  EXPECT_TRUE(zero && zero->admission && zero->admission->resumption.members == set_of({0}));
  EXPECT_TRUE(told_aside(one, 1) && told_aside(two, 2));
  now += 1s;
  EXPECT_TRUE(told_aside(registry.join(late(again(1, first[1]), 6), now), 1));  // it looks in
  const Time looked = now;
  kill(0, *zero->admission);
  // Rank 2 makes its call.
  JoinRequest called = late(again(2, first[2]), 5);
  called.pace.calls = true;
  const std::uint64_t third = registry.join(called, now);
  registry.on_timer(now = looked + 2300ms);
  EXPECT_FALSE(registry.join_outcome(third)) << "rank 1 may have a result that rank 2 lacks";
  return {third, looked};
}

TEST_F(LateRanksTest, OneThatIsFurtherThanTheOthersIsWaitedFor) {
  const auto [third, looked] = begin();
  const std::uint64_t look = registry.join(late(again(1, first[1]), 6), now);
  const auto outcome = registry.join_outcome(third);
  ASSERT_TRUE(outcome && outcome->admission);
  EXPECT_EQ(outcome->admission->resumption.members, set_of({1, 2}));
  EXPECT_TRUE(outcome->admission->resumption.replays.contains(5));
  EXPECT_TRUE(registry.join_outcome(look));
}

TEST_F(LateRanksTest, OneThatIsFurtherThanTheOthersAndSilentIsLeftOut) {
  const auto [third, looked] = begin();
  registry.on_timer(now = looked + 2400ms);
  const auto outcome = registry.join_outcome(third);
  ASSERT_TRUE(outcome && outcome->admission);
  EXPECT_EQ(outcome->admission->resumption.members, set_of({2}));
  expect_refused(late(again(1, first[1]), 6), Refusal::excluded, {"rank 1", "declared dead"});
}

TEST_F(SurvivorsTest, TooFewWaitForNewProcesses) {
  const auto first = start();
  kill(1, first[1]);
  kill(2, first[2]);
  kill(3, first[3]);
  const std::uint64_t zero = registry.join(again(0, first[0]), now);
  now += 10s;
  registry.on_timer(now);
  EXPECT_FALSE(registry.join_outcome(zero));
  const auto fresh = registry.join_outcome(registry.join(new_process(2), now));
  ASSERT_TRUE(fresh && fresh->admission);
  EXPECT_EQ(fresh->admission->resumption.members, set_of({0, 2}));
  EXPECT_EQ(fresh->admission->resumption.first, 5U);
}

// A job of the same name, which ran here earlier, says nothing about this one's ranks.
TEST_F(SurvivorsTest, AnEarlierJobOfTheSameNameIsNoWitness) {
  const auto earlier = start();
  kill(2, earlier[2]);
  const auto of_three = admit({again(0, earlier[0]), again(1, earlier[1]), again(3, earlier[3])});
  registry.fail(of_three[0].job_epoch, "over", now);
  for (const std::uint32_t rank : {0U, 1U, 3U})
    registry.closed(of_three[0].job_epoch, rank, of_three[rank == 3 ? 2 : rank].rank_epoch, now);
  const auto first = start();
  kill(2, first[2]);
  const std::uint64_t zero = registry.join(again(0, first[0]), now);
  static_cast<void>(registry.join(again(1, first[1]), now));
  EXPECT_FALSE(registry.join_outcome(zero)) << "rank 3 lives";
}

// What it cannot know counts as alive for as long as silence may last.
TEST_F(SurvivorsTest, ADaemonThatWasStartedAgainWaits) {
  const auto first = start();
  registry = Registry(config());
  const std::uint64_t zero = registry.join(again(0, first[0]), now);
  static_cast<void>(registry.join(again(1, first[1]), now));
  registry.on_timer(now + 2900ms);
  EXPECT_FALSE(registry.join_outcome(zero));
  registry.on_timer(now + 3s);
  const auto outcome = registry.join_outcome(zero);
  ASSERT_TRUE(outcome && outcome->admission);
  EXPECT_EQ(outcome->admission->resumption.members, set_of({0, 1}));
}

TEST_F(SurvivorsTest, ItsWordsAreChecked) {
  JoinRequest bad = new_process(0);
  bad.survivors = 5;
  expect_refused(bad, Refusal::bad_parameters, {"4 ranks", "with 5"});
  bad = new_process(0);
  bad.recovers = false;
  expect_refused(bad, Refusal::bad_parameters, {"require recovery"});
  bad = new_process(0);
  recover(bad, {"a:1", "b:1"});
  expect_refused(bad, Refusal::bad_parameters, {"several aggregators", "at least 3"});
  bad = new_process(0);
  bad.members = set_of({4});
  expect_refused(bad, Refusal::bad_parameters, {"last life"});
  static_cast<void>(registry.join(new_process(0), now));
  bad = new_process(1);
  bad.survivors = 3;
  expect_refused(bad, Refusal::parameters_differ, {"survivors"});
}

// ---- recovery

class RecoveryTest : public RegistryTest {
 protected:
  static JoinRequest recovering(std::uint32_t rank, std::uint32_t world_size) {
    JoinRequest r = request(rank, world_size);
    recover(r, {"a:1", "b:1"});
    return r;
  }
  std::vector<Admission> start(std::uint32_t world_size) {
    std::vector<JoinRequest> all;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) all.push_back(recovering(rank, world_size));
    return admit(all);
  }
};

TEST_F(RecoveryTest, ANewProcessOfALargerWorldIsRefused) {
  static_cast<void>(admit({recovering(0, 2), recovering(1, 2)}));
  expect_refused(recovering(2, 3), Refusal::job_running, {"running already"});
  JoinRequest begun_anew = recovering(2, 3);
  begun_anew.former_epoch = 7;
  expect_refused(begun_anew, Refusal::job_running, {"running already"});
}

TEST_F(RecoveryTest, RanksAgreeWhereToGoOn) {
  JoinRequest ahead = recovering(0, 3), behind = recovering(1, 3);
  ahead.progress = {9, 6, {}};
  behind.progress = {8, 6, {}};
  const auto admissions = admit({ahead, behind, recovering(2, 3)});
  for (const Admission& admission : admissions) {
    EXPECT_EQ(admission.resumption, (stream::Resumption{8, {{8, 0}}}));
  }
}

TEST_F(RecoveryTest, WhatNobodyKeepsIsRefusedToAll) {
  JoinRequest ahead = recovering(0, 2), early = recovering(1, 2);
  ahead.progress = {9, 6, {}};
  early.progress = {3, 3, {}};
  for (const JoinOutcome& outcome : join_all({ahead, early})) {
    EXPECT_EQ(outcome.refusal, Refusal::results_forgotten);
    EXPECT_NE(outcome.reason.find("rank 1 must continue with operation 3"), std::string::npos) << outcome.reason;
  }
  EXPECT_EQ(registry.slots_free(), all_slots);
}

TEST_F(RecoveryTest, ASuccessorWaitsForTheDeathOfItsPredecessor) {
  const auto first = start(2);
  const std::uint64_t successor = registry.join(recovering(1, 2), now);
  EXPECT_FALSE(registry.join_outcome(successor));
  now += 3s;
  EXPECT_EQ(registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now).state, State::running);
  registry.on_timer(now);  // rank 1 is dead now
  EXPECT_EQ(registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now).state, State::failed);
  EXPECT_FALSE(registry.join_outcome(successor));
  JoinRequest survivor = recovering(0, 2);
  survivor.progress = {5, 4, {}};
  const auto a = registry.join_outcome(registry.join(survivor, now));
  const auto b = registry.join_outcome(successor);
  ASSERT_TRUE(a && a->admission && b && b->admission);
  EXPECT_NE(a->admission->job_epoch, first[0].job_epoch);
  EXPECT_EQ(b->admission->resumption.first, 5U);
}

TEST_F(RecoveryTest, ASecondProcessOfALivingRankIsRefused) {
  const auto first = start(2);
  const std::uint64_t twin = registry.join(recovering(1, 2), now);
  expect_refused(recovering(1, 2), Refusal::job_running, {"running already"});  // a third
  for (int i = 0; i < 50 && !registry.jobs().empty(); ++i) {
    now += 100ms;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(registry.heartbeat(first[0].job_epoch, rank, first[rank].rank_epoch, now).state, State::running);
    }
    if (now >= registry.next_timeout()) registry.on_timer(now);
  }
  const auto outcome = registry.join_outcome(twin);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->refusal, Refusal::duplicate_rank);
  EXPECT_NE(outcome->reason.find("is alive"), std::string::npos) << outcome->reason;
}

// With the usual time-out, a rank that is only silent is neither alive nor dead for a while.
TEST_F(RecoveryTest, ASuccessorWaitsWhileItsPredecessorIsSilent) {
  RegistryConfig c = config();
  c.heartbeat_timeout = 15s;
  registry = Registry(std::move(c));
  const auto first = start(2);
  const std::uint64_t successor = registry.join(recovering(1, 2), now);
  const Time began = now;
  for (; now < began + 14s; now += 500ms) {
    EXPECT_EQ(registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now).state, State::running);
    while (registry.next_timeout() <= now) registry.on_timer(now);
    EXPECT_FALSE(registry.join_outcome(successor));
  }
  EXPECT_EQ(registry.heartbeat(first[1].job_epoch, 1, first[1].rank_epoch, now).state, State::running);
  for (int i = 0; i < 4; ++i, now += 500ms) registry.on_timer(now);
  EXPECT_EQ(registry.join_outcome(successor).value().refusal, Refusal::duplicate_rank);
}

TEST_F(RecoveryTest, ASuccessorMayGiveUp) {
  const auto first = start(2);
  const std::uint64_t successor = registry.join(recovering(1, 2), now);
  EXPECT_TRUE(registry.cancel_join(successor, now).empty());
  EXPECT_EQ(registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now).state, State::running);
  now += 3s;
  registry.on_timer(now);
  ASSERT_EQ(registry.jobs().size(), 1U);
  EXPECT_FALSE(registry.jobs()[0].failure.empty());
}

TEST_F(RecoveryTest, ARankThatBeganAnewEndsItsFormerLife) {
  const auto first = start(2);
  JoinRequest again = recovering(0, 2);
  again.former_epoch = first[0].rank_epoch;
  const std::uint64_t ticket = registry.join(again, now);
  EXPECT_EQ(registry.heartbeat(first[1].job_epoch, 1, first[1].rank_epoch, now).state, State::failed);
  JoinRequest other = recovering(1, 2);
  other.former_epoch = first[1].rank_epoch;
  const auto outcome = registry.join_outcome(registry.join(other, now));
  ASSERT_TRUE(outcome && outcome->admission);
  EXPECT_TRUE(registry.join_outcome(ticket));
  EXPECT_EQ(registry.take_stops().size(), 1U);
}

TEST_F(RecoveryTest, ItsSecondLifeIsAsItsRanksAsked) {
  const auto first = start(2);
  std::vector<JoinRequest> again = {recovering(0, 2), recovering(1, 2)};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    again[rank].former_epoch = first[rank].rank_epoch;
    again[rank].life = first[rank].life;
  }
  const auto second = admit(again);
  for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ("", check(second[rank], again[rank], jobs::switchml_rules()));
}

TEST_F(RecoveryTest, NobodyElseEndsALife) {
  const auto first = start(2);
  JoinRequest forged = recovering(0, 2);
  forged.former_epoch = first[1].rank_epoch;  // another's
  EXPECT_FALSE(registry.join_outcome(registry.join(forged, now)));
  EXPECT_EQ(registry.heartbeat(first[1].job_epoch, 1, first[1].rank_epoch, now).state, State::running);
}

TEST_F(RecoveryTest, TheSuccessorOfARankThatLeftWaitsForTheOthers) {
  const auto first = start(2);
  registry.leave(first[1].job_epoch, 1, first[1].rank_epoch, {}, now);
  const std::uint64_t successor = registry.join(recovering(1, 2), now);
  for (int i = 0; i < 60; ++i) {
    now += 100ms;
    ASSERT_EQ(registry.heartbeat(first[0].job_epoch, 0, first[0].rank_epoch, now).state, State::running);
    if (now >= registry.next_timeout()) registry.on_timer(now);
  }
  EXPECT_FALSE(registry.join_outcome(successor));
  JoinRequest again = recovering(0, 2);
  again.former_epoch = first[0].rank_epoch;
  EXPECT_TRUE(registry.join_outcome(registry.join(again, now)));
  EXPECT_TRUE(registry.join_outcome(successor));
}

TEST_F(RecoveryTest, RanksMustMeetAtTheSameAggregators) {
  static_cast<void>(registry.join(recovering(0, 2), now));
  JoinRequest other = recovering(1, 2);
  recover(other, {"b:1"});
  expect_refused(other, Refusal::parameters_differ, {"rank 1", "joins at b:1", "rank 0 at a:1, b:1"});
  other = recovering(1, 2);
  other.recovers = false;
  other.reached = {};
  expect_refused(other, Refusal::parameters_differ, {"recovery"});
  other = recovering(1, 2);
  other.standbys = 1;
  expect_refused(other, Refusal::parameters_differ, {"standbys 1, rank 0 with 0"});
}

// Which aggregators serve a life: those that all of its ranks reach.
class SitesTest : public RegistryTest {
 protected:
  // At aggregator `site` of three.
  static JoinRequest at(std::uint32_t site, std::uint32_t rank, std::initializer_list<std::uint32_t> reached,
                        std::uint32_t standbys = 0) {
    JoinRequest r = request(rank, 2);
    recover(r, {"a:1", "b:1", "c:1"});
    r.standbys = standbys;
    r.site = site;
    r.reached = sites(reached);
    return r;
  }
  static SiteSet sites(std::initializer_list<std::uint32_t> numbers) {
    SiteSet set;
    for (const std::uint32_t number : numbers) set.insert(number);
    return set;
  }
  HeartbeatReply beat(const std::vector<Admission>& ranks, std::uint32_t rank, const SiteSet& seen) {
    return registry.heartbeat(ranks[rank].job_epoch, rank, ranks[rank].rank_epoch, now, {}, seen);
  }
};

TEST_F(SitesTest, AreThoseThatAllRanksReach) {
  for (const Admission& admission : admit({at(1, 0, {0, 1, 2}), at(1, 1, {1, 2})})) {
    EXPECT_EQ(admission.sites, sites({1, 2}));
    EXPECT_EQ(check(admission, at(1, 1, {1, 2}), jobs::switchml_rules()).empty(),
              admission.rank_epoch == admission.rank_epochs[1]);
    EXPECT_FALSE(check(admission, at(0, 1, {0, 1}), jobs::switchml_rules()).empty()) << "it does not serve";
  }
}

TEST_F(SitesTest, AStandbyWaitsWhileAnotherIsReachedByAll) {
  const std::uint64_t first = registry.join(at(2, 0, {0, 2}, 1), now), second = registry.join(at(2, 1, {0, 1, 2}, 1), now);
  registry.on_timer(now += 30s);
  EXPECT_FALSE(registry.join_outcome(first));
  EXPECT_EQ(registry.slots_free(), all_slots);
  static_cast<void>(registry.cancel_join(first, now));
  static_cast<void>(registry.cancel_join(second, now));
  // Each of the others is reached by one rank alone.
  for (const Admission& admission : admit({at(2, 0, {0, 2}, 1), at(2, 1, {1, 2}, 1)}))
    EXPECT_EQ(admission.sites, sites({2}));
}

TEST_F(SitesTest, ComeBackOnceAllRanksHearThem) {
  const auto ranks = admit({at(0, 0, {0, 1}), at(0, 1, {0, 1})});
  EXPECT_TRUE(beat(ranks, 0, sites({2})).returned.empty());
  EXPECT_EQ(beat(ranks, 1, sites({2})).returned, sites({2}));
  EXPECT_TRUE(beat(ranks, 0, {}).returned.empty());
  EXPECT_TRUE(beat(ranks, 1, sites({2})).returned.empty());
}

TEST_F(SitesTest, OnlyPossibleOnesAreTaken) {
  expect_refused(at(0, 0, {1, 2}), Refusal::bad_parameters, {"the aggregators that the rank reaches are not its job's"});
  expect_refused(at(3, 0, {0, 3}), Refusal::bad_parameters, {"aggregators"});
  expect_refused(at(UINT32_MAX, 0, {0, 1, 2}), Refusal::bad_parameters, {"aggregators"});
  expect_refused(at(0, 0, {0}, 3), Refusal::bad_parameters, {"aggregators"});
  JoinRequest none = request(0, 2);
  none.reached = sites({0});
  expect_refused(none, Refusal::bad_parameters, {"aggregators"});
}

TEST_F(RecoveryTest, ItsWordsAreChecked) {
  JoinRequest bad = recovering(0, 2);
  bad.progress = {1'000'000'000, 0, {}};
  expect_refused(bad, Refusal::bad_parameters, {"operations"});
  bad = recovering(0, 2);
  bad.aggregators = {"a:1\nb:1"};
  expect_refused(bad, Refusal::bad_parameters, {"aggregators"});
}

TEST_F(RecoveryTest, AnAggregatorThatStopsRefusesSuccessors) {
  static_cast<void>(start(2));
  const std::uint64_t successor = registry.join(recovering(1, 2), now);
  registry.shut_down(now);
  const auto outcome = registry.join_outcome(successor);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->refusal, Refusal::shutting_down);
}

// ---- memory

// Jobs come and go by the hundred thousand, and end in every way that they can: what is left of them is nothing.
class KeyTest : public RegistryTest {
 protected:
  // An aggregator whose control channel is secret, for a protocol whose packets can be sealed.
  [[nodiscard]] static RegistryConfig secret() {
    RegistryConfig c = config();
    c.protocols.front().sealed = true;
    c.keys = c.keys_below = true;
    c.security = PacketSecurity::tag;
    return c;
  }
  void begin(RegistryConfig c) { registry = Registry(std::move(c)); }
  KeyTest() { begin(secret()); }

  [[nodiscard]] static std::vector<JoinRequest> three() { return {request(0, 3), request(1, 3), request(2, 3)}; }
};

TEST_F(KeyTest, EachRankHasItsOwnAndAllHaveTheResults) {
  const auto outcomes = join_all(three());
  const auto starts = registry.take_starts();
  ASSERT_EQ(1U, starts.size());
  const StartJob& start = starts.front();
  ASSERT_EQ(3U, start.keys.size());
  std::set<seal::PacketKey::Bytes> distinct{start.admission.results.bytes()};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Admission& admission = *outcomes[rank].admission;
    EXPECT_EQ(PacketSecurity::tag, admission.security);
    EXPECT_TRUE(admission.results == start.admission.results);
    EXPECT_TRUE(admission.keys.up == start.keys[rank].up && admission.keys.down == start.keys[rank].down);
    distinct.insert(admission.keys.up.bytes());
    distinct.insert(admission.keys.down.bytes());
    EXPECT_EQ("", check(admission, three()[rank], jobs::switchml_rules()));
  }
  EXPECT_EQ(7U, distinct.size());
}

TEST_F(KeyTest, AnotherLifeHasOtherKeys) {
  const auto first = join_all(three());
  registry.fail(first[0].admission->job_epoch, "over", now);
  const auto second = join_all(three());
  EXPECT_FALSE(first[0].admission->results == second[0].admission->results);
  EXPECT_FALSE(first[1].admission->keys.up == second[1].admission->keys.up);
}

TEST_F(KeyTest, ANearRankNeedsNoneOfItsOwn) {
  auto asked = three();
  asked[1].near = true;
  const auto outcomes = join_all(asked);
  EXPECT_TRUE(outcomes[0].admission->keys.up);
  EXPECT_FALSE(outcomes[1].admission->keys.up || outcomes[1].admission->keys.down);
  EXPECT_TRUE(outcomes[1].admission->results);  // results are of all ranks
  EXPECT_EQ("", check(*outcomes[1].admission, asked[1], jobs::switchml_rules()));
  EXPECT_NE("", check(*outcomes[1].admission, asked[0], jobs::switchml_rules()));
}

TEST_F(KeyTest, TheRankThatAsksForMostDecides) {
  auto asked = three();
  asked[2].security = PacketSecurity::encrypt;
  for (const JoinOutcome& outcome : join_all(asked)) EXPECT_EQ(PacketSecurity::encrypt, outcome.admission->security);
  RegistryConfig c = secret();
  c.security = PacketSecurity::none;
  begin(c);
  EXPECT_EQ(PacketSecurity::none, join_all(three())[0].admission->security);
  begin(c);
  EXPECT_EQ(PacketSecurity::encrypt, join_all(asked)[0].admission->security);
}

TEST_F(KeyTest, SharedMemoryNeedsNone) {
  auto asked = three();
  for (JoinRequest& each : asked) each.local_ticket = 1 + each.rank;
  asked[0].security = PacketSecurity::tag;
  const auto outcomes = join_all(asked);
  ASSERT_TRUE(outcomes[0].admission->local);
  EXPECT_EQ(PacketSecurity::none, outcomes[0].admission->security);
  EXPECT_EQ("", check(*outcomes[0].admission, asked[0], jobs::switchml_rules()));
}

TEST_F(KeyTest, WhereNoKeyCanTravelWhoeverNeedsOneIsRefused) {
  JoinRequest needy = request(0, 3);
  needy.security = PacketSecurity::tag;
  RegistryConfig clear = secret();
  clear.keys = clear.keys_below = false;
  begin(clear);
  expect_refused(needy, Refusal::bad_parameters, {"rank 0", "--tls-cert"});
  EXPECT_EQ(PacketSecurity::none, join_all(three())[0].admission->security);
  clear.keys_required = true;
  begin(clear);
  expect_refused(request(0, 3), Refusal::bad_parameters, {"this aggregator", "--tls-cert"});
  auto near = three();
  for (JoinRequest& each : near) each.near = true;
  EXPECT_TRUE(join_all(near)[0].admission);  // no packet between hosts
  RegistryConfig other = secret();
  other.protocols.front().sealed = false;
  begin(other);
  expect_refused(needy, Refusal::bad_parameters, {"rank 0", "switchml does not support them"});
  EXPECT_EQ(PacketSecurity::none, join_all(three())[0].admission->security);
}

TEST_F(KeyTest, SwitchesWithoutTlsLearnNone) {
  RegistryConfig c = secret();
  c.keys_below = false;
  c.protocols.front().switches = true;
  begin(c);
  auto asked = three();
  for (JoinRequest& each : asked) each.switch_address = "leaf:1";
  EXPECT_EQ(PacketSecurity::none, join_all(asked)[0].admission->security);
  asked[1].security = PacketSecurity::tag;
  asked[1].job = "other";
  expect_refused(asked[1], Refusal::bad_parameters, {"rank 1", "--tls-ca"});
}

TEST_F(KeyTest, AnAdmissionWithOtherKeysThanItShouldHaveIsRefused) {
  const auto asked = request(1, 3);
  const Admission good = *join_all(three())[1].admission;
  const auto broken = [&](const auto& how) {
    Admission admission = good;
    how(admission);
    return check(admission, asked, jobs::switchml_rules());
  };
  EXPECT_EQ("", broken([](Admission&) {}));
  EXPECT_NE("", broken([](Admission& a) { a.results = {}; }));
  EXPECT_NE("", broken([](Admission& a) { a.keys.up = {}; }));
  EXPECT_NE("", broken([](Admission& a) { a.keys.down = {}; }));
  EXPECT_NE("", broken([](Admission& a) { a.security = PacketSecurity::none; }));
  JoinRequest demanding = asked;
  demanding.security = PacketSecurity::encrypt;
  EXPECT_NE("", check(good, demanding, jobs::switchml_rules()));
}

TEST_F(RegistryTest, MemoryIsOfTheJobsThatLive) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator does not say how much is in use";
#endif
  int number = 0;
  const auto live = [&](int jobs) {
    for (int i = 0; i < jobs; ++i) {
      const std::string job = "job " + std::to_string(number);
      static_cast<void>(registry.take_events());
      now += 1s;
      switch (number++ % 5) {
        case 0: {  // all leave
          const auto admissions = admit({request(0, 2, job), request(1, 2, job)});
          for (std::uint32_t rank = 0; rank < 2; ++rank) {
            registry.leave(admissions[rank].job_epoch, rank, admissions[rank].rank_epoch, {}, now);
          }
          break;
        }
        case 1:  // falls silent
          static_cast<void>(admit({request(0, 1, job)}));
          break;
        case 2:  // fails
          registry.fail(admit({request(0, 1, job)})[0].job_epoch, "it had to", now);
          break;
        case 3: {  // is given up
          const std::uint64_t ticket = registry.join(request(0, 2, job), now);
          static_cast<void>(registry.cancel_join(ticket, now));
          break;
        }
        default: {  // is refused, and told so
          auto wrong = request(0, 1, job);
          wrong.packet_elements = 1;
          static_cast<void>(registry.join_outcome(registry.join(wrong, now)));
        }
      }
      registry.on_timer(now);
      static_cast<void>(registry.take_starts());
      static_cast<void>(registry.take_stops());
    }
    // A failed job is remembered for a while.
    now += 60s;
    registry.on_timer(now);
    static_cast<void>(registry.take_stops());
    return mallinfo2().uordblks;
  };
  const std::size_t first = live(100);
  const std::size_t last = live(100'000);
  EXPECT_LE(last, first + 65'536) << "after 100,000 jobs, " << last - first
                                  << " bytes more are in use than after the first 100";
  EXPECT_TRUE(registry.jobs().empty());
  EXPECT_EQ(registry.slots_free(), all_slots);
}

}  // namespace
}  // namespace netsum::session
