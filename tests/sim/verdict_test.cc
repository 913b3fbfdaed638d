// The judge itself: what it must not let pass.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "sim/tensors.h"
#include "sim/verdict.h"

namespace netsum::sim {
namespace {

using Ranks = std::vector<std::uint32_t>;

TEST(RanksNamed, AreTheCausesAndNotWhoReports) {
  EXPECT_EQ((Ranks{3}), ranks_named("rank 3 of job 'job0' has not been heard from for 3.0 s"));
  EXPECT_EQ((Ranks{1, 12}),
            ranks_named("job 'job0': ranks 1 and 12 issued different calls as operation 4; this is rank 2, with barrier"));
  EXPECT_EQ(
      (Ranks{0, 5, 7}),
      ranks_named(
          "job 'job0', rank 2: operation 4 (broadcast of 8 bytes from rank 6, tag 0) did not end: waits for ranks 0, 5, 7"));
  EXPECT_EQ((Ranks{0, 4, 5, 6, 9}), ranks_named("job 'job0': operation 1 waits for ranks 0, 4-6, 9"));
  EXPECT_EQ((Ranks{4}), ranks_named("job 'job0': operation 1 waits for rank 4, which left the job"));
  EXPECT_EQ((Ranks{4}),
            ranks_named("job 'job0': operation 1 waits for rank 4, which left the job: rank 3: waits for rank 2"));
  EXPECT_EQ(Ranks{}, ranks_named("aggregator switch0 has not answered for 3.0 s (job 'job0', rank 2): no answer"));
}

JobPlan plan(std::uint32_t workers, stream::Operation call) {
  JobPlan job;
  job.name = "job0";
  job.seed = 9;
  job.workers = workers;
  job.calls = {call};
  return job;
}

// With this process of rank 1.
std::vector<std::byte> sum_of(const JobPlan& job, std::uint32_t process = 0) {
  const stream::Operation& call = job.calls[0];
  std::vector<std::byte> result(tensor_bytes(call));
  for (std::size_t i = 0; i < call.elements; ++i) {
    std::uint32_t sum = 0;
    for (std::uint32_t rank = 0; rank < job.workers; ++rank) {
      std::uint32_t value = 0;
      std::memcpy(&value, tensor_of(job, call, rank, rank == 1 ? process : 0).data() + i * 4, 4);
      sum += value;
    }
    std::memcpy(result.data() + i * 4, &sum, 4);
  }
  return result;
}

TEST(Judge, EveryElementCounts) {
  const JobPlan job = plan(3, {.dtype = DType::int32, .elements = 20});
  auto result = sum_of(job);
  EXPECT_EQ("", judge(job, job.calls[0], result));
  for (std::size_t i = 0; i < 20; ++i) {
    auto wrong = result;
    wrong[i * 4] ^= std::byte{1};
    EXPECT_NE("", judge(job, job.calls[0], wrong)) << i;
  }
}

TEST(Judge, APartThatIsMissingOrCountedTwiceShowsInFloats) {
  const JobPlan job = plan(2, {.elements = 256});
  std::vector<float> inputs[2] = {std::vector<float>(256), std::vector<float>(256)};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto bytes = tensor_of(job, job.calls[0], rank);
    std::memcpy(inputs[rank].data(), bytes.data(), bytes.size());
  }
  const auto judged = [&](float first, float second) {
    std::vector<float> sum(256);
    for (std::size_t i = 0; i < 256; ++i) sum[i] = first * inputs[0][i] + second * inputs[1][i];
    return judge(job, job.calls[0], std::as_bytes(std::span(sum)));
  };
  EXPECT_EQ("", judged(1, 1));
  EXPECT_NE("", judged(1, 0));
  EXPECT_NE("", judged(2, 1));
  EXPECT_NE("", judged(2, 0));
}

Scenario scenario(Profile profile) {
  Scenario s;
  s.settings.profile = profile;
  s.jobs.push_back(plan(3, {.dtype = DType::int32, .elements = 4}));
  return s;
}

// The job's epochs at its only aggregator, in two lives.
const std::vector<std::uint64_t> seventh{7}, eighth{8};

TEST(Verdict, AllRanksGetTheSameBits) {
  const Scenario s = scenario(Profile::none);
  Verdict verdict(s);
  for (std::uint32_t rank = 0; rank < 3; ++rank) verdict.began(0, rank, seventh, 0);
  auto result = sum_of(s.jobs[0]);
  verdict.delivered(0, 0, s.jobs[0].calls[0], result, seventh);
  verdict.delivered(0, 1, s.jobs[0].calls[0], result, seventh);
  result[3] ^= std::byte{1};
  EXPECT_THROW(verdict.delivered(0, 2, s.jobs[0].calls[0], result, seventh), Violation);
}

TEST(Verdict, AResultHoldsAsLongAsARankHasIt) {
  Scenario s = scenario(Profile::crash);
  JobPlan& job = s.jobs[0];
  job.recovers = true;
  const auto first = sum_of(job), second = sum_of(job, 1);  // rank 1's second process computes another gradient
  ASSERT_NE(first, second);
  Verdict verdict(s);
  for (std::uint32_t rank = 0; rank < job.workers; ++rank) verdict.began(0, rank, seventh, 0);
  verdict.delivered(0, 0, job.calls[0], first, seventh);
  verdict.forgot(0, 1);
  for (std::uint32_t rank = 0; rank < job.workers; ++rank) verdict.began(0, rank, eighth, rank == 1 ? 1 : 0);
  EXPECT_THROW(verdict.delivered(0, 2, job.calls[0], second, eighth), Violation) << "rank 0 has the other";
  EXPECT_NO_THROW(verdict.delivered(0, 1, job.calls[0], first, eighth));

  Verdict without(s);
  for (std::uint32_t rank = 0; rank < job.workers; ++rank) without.began(0, rank, seventh, 0);
  without.delivered(0, 1, job.calls[0], first, seventh);
  without.forgot(0, 1);  // the only one that had it
  for (std::uint32_t rank = 0; rank < job.workers; ++rank) without.began(0, rank, eighth, rank == 1 ? 1 : 0);
  EXPECT_NO_THROW(without.delivered(0, 0, job.calls[0], second, eighth));

  Verdict mixed(s);
  for (std::uint32_t rank = 0; rank < job.workers; ++rank) mixed.began(0, rank, eighth, rank == 1 ? 1 : 0);
  EXPECT_THROW(mixed.delivered(0, 0, job.calls[0], first, eighth), Violation) << "not the sum of those that run";
}

TEST(Verdict, ARankThatHasNotBegunIsInNoResult) {
  Scenario s = scenario(Profile::crash);
  Verdict verdict(s);
  verdict.began(0, 0, seventh, 0);
  EXPECT_THROW(verdict.delivered(0, 0, s.jobs[0].calls[0], sum_of(s.jobs[0]), seventh), Violation);
}

TEST(Verdict, AResultMayComeFromTheAggregatorThatARankHasReached) {
  // Rank 1 runs with the first aggregator's former life and the second one's present life, as in seed 12897 of ATP's chaos.
  Scenario s = scenario(Profile::crash);
  s.jobs[0].recovers = true;
  const auto first = sum_of(s.jobs[0]), second = sum_of(s.jobs[0], 1);
  const std::vector<std::uint64_t> former{7, 20}, present{8, 20}, elsewhere{9, 21};
  const auto deliver = [&](const std::vector<std::uint64_t>& rank1, const std::vector<std::byte>& result) {
    Verdict verdict(s);
    verdict.began(0, 1, rank1, 0);
    verdict.began(0, 0, present, 0);
    verdict.began(0, 2, present, 0);
    verdict.delivered(0, 0, s.jobs[0].calls[0], result, present);
  };
  EXPECT_NO_THROW(deliver(former, first));
  EXPECT_THROW(deliver(former, second), Violation) << "of a process that did not run";
  EXPECT_THROW(deliver(elsewhere, first), Violation) << "rank 1 was at neither";
}

TEST(Verdict, AnErrorNeedsAFaultAndNamesItsRank) {
  const Error lost(ErrorCode::worker_lost, "rank 1 of job 'job0' has not been heard from");
  const Scenario quiet = scenario(Profile::lossy);
  Verdict calm(quiet);
  EXPECT_THROW(calm.failed(0, 0, lost), Violation);

  const Scenario s = scenario(Profile::crash);
  Verdict other(s);
  other.rank_disturbed(0, 2);
  EXPECT_THROW(other.failed(0, 0, lost), Violation);
  Verdict right(s);
  right.rank_disturbed(0, 1);
  EXPECT_NO_THROW(right.failed(0, 0, lost));
  EXPECT_THROW(right.failed(0, 2, Error(ErrorCode::worker_lost, "somebody died")), Violation);
  EXPECT_THROW(right.failed(0, 2, Error(ErrorCode::mismatch, "job 'job0': ranks 1 and 2 issued different calls")),
               Violation);
  Verdict blamed(s);
  EXPECT_THROW(blamed.failed(0, 0, Error(ErrorCode::aggregator_lost, "aggregator switch0 has not answered")), Violation);
  blamed.aggregator_disturbed();
  EXPECT_NO_THROW(blamed.failed(0, 0, Error(ErrorCode::aggregator_lost, "aggregator switch0 has not answered")));
  EXPECT_THROW(blamed.failed(0, 0, Error(ErrorCode::internal, "a bug")), Violation);
}

TEST(Verdict, WhereALinkIsDeadForEverAnErrorNamesTheRankBehindIt) {
  Scenario s = scenario(Profile::dead_link);
  s.lasting = LastingFault{.kind = Fault::dead_link, .rank = 1};
  const Error right(ErrorCode::deadline, "job 'job0', rank 0: operation 0 waits for rank 1"),
      wrong(ErrorCode::deadline, "job 'job0', rank 0: operation 0 waits for rank 2");
  const auto judge = [&](const Error& error, std::uint32_t rank) {
    Verdict verdict(s);
    verdict.rank_disturbed(0, 1);
    verdict.failed(0, rank, error);
  };
  EXPECT_NO_THROW(judge(right, 0));
  EXPECT_THROW(judge(wrong, 0), Violation);
  EXPECT_NO_THROW(judge(wrong, 1)) << "it cannot know whose link it is";
  s.lasting->reach = LastingFault::Reach::packets;
  EXPECT_THROW(judge(wrong, 0), Violation);
  s.lasting->reach = LastingFault::Reach::path;
  s.aggregators = 2;
  EXPECT_NO_THROW(judge(wrong, 0)) << "all join again";
}

TEST(Verdict, ACallThatARankDidNotIssueHasNoResult) {
  Scenario s = scenario(Profile::chaos);
  s.jobs[0].mismatch = JobPlan::Mismatch{1, {.number = 0, .collective = stream::Collective::barrier}};
  Verdict verdict(s);
  EXPECT_THROW(verdict.delivered(0, 0, s.jobs[0].calls[0], sum_of(s.jobs[0]), seventh), Violation);
  EXPECT_NO_THROW(
      verdict.failed(0, 0, Error(ErrorCode::mismatch, "job 'job0': ranks 0 and 1 issued different calls as operation 0")));
  EXPECT_THROW(
      verdict.failed(0, 0, Error(ErrorCode::mismatch, "job 'job0': ranks 0 and 2 issued different calls as operation 0")),
      Violation);
}

}  // namespace
}  // namespace netsum::sim
