// What a rank remembers so that its job can go on: inputs, results, and where ranks that are apart meet.
#include "stream/operation_log.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "stream/tensor.h"

namespace netsum::stream {
namespace {

constexpr std::uint64_t anywhere = Progress::anywhere;

using Tensor = std::vector<float>;

Operation call(std::uint64_t number, Tensor& tensor) {
  Operation operation;
  operation.number = number;
  operation.elements = tensor.size();
  operation.data = tensor.data();
  return operation;
}

Tensor filled(std::size_t elements, float value) {
  return Tensor(elements, value);
}

void set(Tensor& tensor, float value) {  // in place
  std::fill(tensor.begin(), tensor.end(), value);
}

float* result_in(const Operation& sent) {
  return static_cast<float*>(result_of(sent));
}

// Results of the network, where the log wants them.
void give(const Operation& sent, std::size_t elements, float value) {
  std::fill_n(result_in(sent), elements, value);
}

struct Log : OperationLog {
  explicit Log(std::size_t memory = 1 << 20) : OperationLog(memory) { EXPECT_TRUE(resume({}).empty()); }
  void run(std::uint64_t number, Tensor& tensor, float result) {
    give(issue(call(number, tensor)), tensor.size(), result);
    finish(number);
  }
};

TEST(OperationLog, ANewProcessGoesOnWhereTheOthersAre) {
  OperationLog log(0);
  EXPECT_EQ(log.progress(), (Progress{anywhere, anywhere, {}}));
  EXPECT_TRUE(log.resume({812, {}}).empty());
  EXPECT_EQ(log.next_issue(), 812U);
  EXPECT_EQ(log.progress(), (Progress{812, 812, {}}));
}

TEST(OperationLog, WhatHasNoResultIsSentAgainWithItsInput) {
  Log log;
  Tensor done = filled(3, 1), half = filled(4, 2), untouched = filled(5, 3);
  log.run(0, done, 10);
  EXPECT_EQ(done, filled(3, 10));
  const Operation sent = log.issue(call(1, half));
  EXPECT_EQ(sent.data, half.data());
  give(sent, 2, 99);  // of some chunks
  static_cast<void>(log.issue(call(2, untouched)));
  set(done, 77);  // the caller's again
  EXPECT_EQ(log.progress(), (Progress{1, 0, {}}));

  const auto again = log.resume({1, {}});
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].number, 1U);
  EXPECT_EQ(again[0].collective, Collective::all_reduce);
  EXPECT_EQ(again[0].data, half.data());
  EXPECT_EQ(half, filled(4, 2));
  EXPECT_EQ(untouched, filled(5, 3));
  EXPECT_EQ(done, filled(3, 77)) << "no business of the log's any more";
  give(again[0], 4, 8);
  log.finish(1);
  EXPECT_EQ(half, filled(4, 8));
}

// What a rank gives of a broadcast when its root has died is its own, and not half of the root's.
TEST(OperationLog, ABroadcastIsSentAgainWithWhatTheCallerHas) {
  Log log;
  Tensor tensor = filled(4, 1);
  Operation broadcast = call(0, tensor);
  broadcast.collective = Collective::broadcast;
  broadcast.elements = 4 * sizeof(float);
  give(log.issue(broadcast), 2, 99);
  const auto again = log.resume({0, {}});
  EXPECT_EQ(Tensor(result_in(again[0]), result_in(again[0]) + 4), filled(4, 1));
  EXPECT_EQ(tensor, filled(4, 1));
  give(again[0], 4, 8);
  log.finish(0);
  EXPECT_EQ(tensor, filled(4, 8));
}

TEST(OperationLog, AResultGoesWhereTheCallWantsIt) {
  Log log;
  Tensor in = filled(4, 1), out = filled(4, 2);
  Operation apart = call(0, in);
  apart.out = out.data();
  give(log.issue(apart), 4, 8);
  EXPECT_EQ(out, filled(4, 2)) << "as long as the call may have to be sent again";
  log.finish(0);
  EXPECT_EQ(in, filled(4, 1));
  EXPECT_EQ(out, filled(4, 8));
}

TEST(OperationLog, AResultThatOthersLackIsBroadcastFromItsCopy) {
  Log log;
  Tensor tensor = filled(6, 1);
  log.run(0, tensor, 10);
  set(tensor, 50);
  const auto sent = log.resume({0, {{0, 3}}});
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].collective, Collective::broadcast);
  EXPECT_EQ(sent[0].root, 3U);
  EXPECT_EQ(sent[0].elements, 6 * sizeof(float));
  ASSERT_NE(sent[0].data, tensor.data());
  EXPECT_EQ(Tensor(static_cast<float*>(sent[0].data), static_cast<float*>(sent[0].data) + 6), filled(6, 10));
  log.finish(0);
  EXPECT_EQ(tensor, filled(6, 50));
  EXPECT_EQ(log.progress(), (Progress{1, 0, {}}));
}

TEST(OperationLog, ACallThatOthersHaveTheResultOfBecomesItsBroadcast) {
  Log log;
  Tensor first = filled(2, 1), second = filled(2, 2);
  static_cast<void>(log.issue(call(0, first)));
  const auto sent = log.resume({0, {{0, 1}, {1, 1}}});
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].collective, Collective::broadcast);
  give(sent[0], 2, 8);
  EXPECT_EQ(first, filled(2, 1)) << "the rank that has the result may die too";
  const Operation later = log.issue(call(1, second));
  EXPECT_EQ(later.collective, Collective::broadcast) << "it was not called yet when the ranks agreed";
  Tensor third = filled(2, 3);
  EXPECT_EQ(log.issue(call(2, third)).collective, Collective::all_reduce);
}

TEST(OperationLog, ReplaysOfDifferentCallsDoNotMatch) {
  Log one, other;
  Tensor tensor = filled(2, 1);
  Operation average = call(0, tensor);
  average.op = ReduceOp::avg;
  static_cast<void>(one.issue(call(0, tensor)));
  static_cast<void>(other.issue(average));
  const Resumption resumption{0, {{0, 5}}};
  EXPECT_NE(signature_of(one.resume(resumption)[0], 256), signature_of(other.resume(resumption)[0], 256));
}

TEST(OperationLog, ABarrierHasNoBytes) {
  Log log;
  Operation barrier;
  barrier.collective = Collective::barrier;
  static_cast<void>(log.issue(barrier));
  log.finish(0);
  const auto sent = log.resume({0, {{0, 0}}});
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].elements, 0U);
}

TEST(OperationLog, ResultsMayComeInAnyOrder) {
  Log log;
  std::array<Tensor, 4> tensors;
  for (std::uint64_t i = 0; i < 4; ++i) static_cast<void>(log.issue(call(i, tensors[i] = filled(1, 1))));
  log.finish(1);
  log.finish(3);
  EXPECT_EQ(log.progress(), (Progress{0, 0, {1, 3}}));
  log.finish(0);
  EXPECT_EQ(log.progress(), (Progress{2, 0, {3}}));
}

RankSet ranks(std::initializer_list<std::uint32_t> all) {
  RankSet set;
  for (const std::uint32_t rank : all) set.insert(rank);
  return set;
}

Resumption with(const RankSet& members) {
  Resumption resumption;
  resumption.members = members;
  return resumption;
}

TEST(OperationLog, ResultsKeepTheRanksThatTheyAreTheSumOf) {
  OperationLog holder(1 << 20), other(1 << 20);
  static_cast<void>(holder.resume(with(ranks({0, 1, 2}))));
  static_cast<void>(other.resume(with(ranks({0, 1, 2}))));
  std::array<Tensor, 4> tensors;
  for (std::uint64_t i = 0; i < 2; ++i) {
    static_cast<void>(holder.issue(call(i, tensors[i] = filled(4, 1))));
    static_cast<void>(other.issue(call(i, tensors[i + 2] = filled(4, 1))));
  }
  EXPECT_EQ(holder.finish(0), ranks({0, 1, 2}));
  EXPECT_EQ(holder.progress().summed, (std::vector<Progress::Summed>{{0, ranks({0, 1, 2})}}));
  // Rank 1 dies. The result that rank 0 has stands; the next one is of those that are left.
  Resumption resumption;
  ASSERT_EQ("", agree(std::array{holder.progress(), other.progress()}, resumption));
  resumption.members = ranks({0, 2});
  EXPECT_EQ(resumption.summed, (std::vector<Progress::Summed>{{0, ranks({0, 1, 2})}}));
  static_cast<void>(holder.resume(resumption));
  static_cast<void>(other.resume(resumption));
  EXPECT_EQ(other.finish(0), ranks({0, 1, 2}));
  EXPECT_EQ(other.finish(1), ranks({0, 2}));
  EXPECT_EQ(other.progress().summed, (std::vector<Progress::Summed>{{0, ranks({0, 1, 2})}, {1, ranks({0, 2})}}));
}

TEST(OperationLog, ABroadcastFromARankThatIsGoneComesFromTheNextOne) {
  const RankSet members = ranks({0, 3, 5});
  const std::array<std::pair<std::uint32_t, std::uint32_t>, 6> places = {{{0, 0}, {1, 1}, {3, 1}, {4, 2}, {5, 2}, {6, 0}}};
  OperationLog log(1 << 20);
  static_cast<void>(log.resume(with(members)));
  Tensor tensor = filled(4, 1);
  std::uint64_t number = 0;
  for (const auto& [root, place] : places) {
    Operation broadcast = call(number++, tensor);
    broadcast.collective = Collective::broadcast;
    broadcast.root = root;
    EXPECT_EQ(place, log.issue(broadcast).root) << root;
  }
}

TEST(OperationLog, KeepsTheLatestResultsThatFit) {
  Log log(100);
  Tensor tensor = filled(10, 1);  // 40 bytes
  for (std::uint64_t i = 0; i < 5; ++i) log.run(i, tensor, 2);
  EXPECT_EQ(log.progress(), (Progress{5, 3, {}}));
  EXPECT_EQ(log.bytes_kept(), 80U);
  Tensor large = filled(1000, 1);
  log.run(5, large, 2);
  EXPECT_EQ(log.progress(), (Progress{6, 5, {}})) << "the latest is kept, whatever its length";
}

TEST(OperationLog, MemoryOfEarlierCallsHoldsLaterOnes) {
  Log log(0);
  Tensor large = filled(40'000, 1), small = filled(30'000, 7);
  for (std::uint64_t number = 0; number < 4; ++number) log.run(number, large, 2);
  const float* const earlier = result_in(log.issue(call(4, small)));
  static_cast<void>(log.resume({4, {}}));
  log.finish(4);
  log.run(5, small, 2);
  EXPECT_EQ(earlier, result_in(log.issue(call(6, small))));
}

TEST(OperationLog, NothingIsForgottenWhileItIsReplayed) {
  Log log(0);
  Tensor tensor = filled(10, 1);
  log.run(0, tensor, 2);
  static_cast<void>(log.issue(call(1, tensor)));
  static_cast<void>(log.resume({0, {{0, 0}}}));
  log.finish(1);
  EXPECT_EQ(log.progress().kept, 0U);
  log.finish(0);
  EXPECT_EQ(log.progress().kept, 1U);
}

TEST(OperationLog, ManySmallResultsAreNotKeptForEver) {
  Log log(1 << 30);
  Tensor tensor = filled(1, 1);
  for (std::uint64_t i = 0; i < OperationLog::most_results + 100; ++i) log.run(i, tensor, 2);
  EXPECT_EQ(log.progress().kept, 100U);
  EXPECT_TRUE(log.progress().sound());
}

TEST(Agree, AllNewRanksBeginAtTheBeginning) {
  Resumption resumption{5, {{6, 7}}};
  const std::vector<Progress> ranks(3);
  EXPECT_EQ(agree(ranks, resumption), "");
  EXPECT_EQ(resumption, (Resumption{0, {}}));
}

TEST(Agree, OnTheFirstOperationThatSomebodyLacks) {
  const std::vector<Progress> ranks = {{8, 6, {9}}, {}, {7, 5, {}}, {8, 7, {}}};
  Resumption resumption;
  EXPECT_EQ(agree(ranks, resumption), "");
  EXPECT_EQ(resumption.first, 7U);
  EXPECT_EQ(resumption.replays, (std::map<std::uint64_t, std::uint32_t>{{7, 0}, {9, 0}}));
}

TEST(Agree, WhatNobodyKeepsIsARefusalInWords) {
  const std::vector<Progress> ranks = {{812, 808, {}}, {3, 3, {}}};
  Resumption resumption;
  const std::string error = agree(ranks, resumption);
  for (const auto* word : {"rank 1 must continue with operation 3", "rank 0 keeps results only from operation 808"}) {
    EXPECT_NE(error.find(word), std::string::npos) << error;
  }
}

TEST(Agree, ANewProcessThatIsAheadIsRefused) {
  const std::vector<Progress> ranks = {{812, 808, {}}, {900, 900, {}}};
  Resumption resumption;
  EXPECT_NE(agree(ranks, resumption).find("rank 0 must continue with operation 812"), std::string::npos);
}

TEST(Progress, OnlyWhatALogCanSayIsSound) {
  EXPECT_TRUE((Progress{anywhere, anywhere, {}}).sound());
  EXPECT_TRUE((Progress{7, 3, {8, 11}}).sound());
  EXPECT_FALSE((Progress{anywhere, 3, {}}).sound());
  EXPECT_FALSE((Progress{anywhere, anywhere, {5}}).sound());
  EXPECT_FALSE((Progress{3, 7, {}}).sound());
  EXPECT_FALSE((Progress{1'000'000'000, 0, {}}).sound()) << "a map of that many replays";
  EXPECT_FALSE((Progress{7, 3, {7}}).sound());
  EXPECT_FALSE((Progress{7, 3, {11, 8}}).sound());
  EXPECT_FALSE((Progress{7, 3, {1'000'000'000}}).sound());
}

// Three ranks with random results of random operations, again and again: whoever has a result keeps it, everybody ends with
// the same bits, and the inputs of all others are as they were.
TEST(OperationLog, RanksThatAreApartComeTogether) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    constexpr std::uint64_t operations = 12;
    std::array<Log, 3> logs;
    std::array<std::vector<Tensor>, 3> tensors;
    std::array<std::array<Operation, operations>, 3> sent{};
    std::array<std::array<bool, operations>, 3> has{};
    for (auto& each : tensors) each.resize(operations);
    std::array<std::uint64_t, 3> issued{};
    std::vector<float> truth(operations, 0);  // of the operation that some rank has the result of
    for (int life = 1; life < 5; ++life) {
      // This life: ranks issue some more, and get results of what all have issued.
      for (std::size_t rank = 0; rank < 3; ++rank) {
        const std::uint64_t until = std::min<std::uint64_t>(operations, issued[rank] + random() % 5);
        for (; issued[rank] < until; ++issued[rank]) {
          const std::uint64_t number = issued[rank];
          tensors[rank][number] = filled(2, static_cast<float>(number) + 0.25F * static_cast<float>(rank));
          sent[rank][number] = logs[rank].issue(call(number, tensors[rank][number]));
        }
      }
      const std::uint64_t common = *std::min_element(issued.begin(), issued.end());
      for (std::uint64_t number = 0; number < common; ++number) {
        if (truth[number] == 0) truth[number] = static_cast<float>(100 * life) + static_cast<float>(number);
        for (std::size_t rank = 0; rank < 3; ++rank) {
          if (has[rank][number] || random() % 2 == 0) continue;
          give(sent[rank][number], 2, truth[number]);
          logs[rank].finish(number);
          ASSERT_EQ(tensors[rank][number], filled(2, truth[number])) << "seed " << seed;
          has[rank][number] = true;
        }
        const bool anybody = has[0][number] || has[1][number] || has[2][number];
        if (!anybody) truth[number] = 0;  // void: the next life's is another
      }
      // Its end: half of a result has come to some.
      for (std::size_t rank = 0; rank < 3; ++rank) {
        for (std::uint64_t number = 0; number < issued[rank]; ++number) {
          if (!has[rank][number]) give(sent[rank][number], 1, -1);
        }
      }
      Resumption resumption;
      ASSERT_EQ(agree(std::array{logs[0].progress(), logs[1].progress(), logs[2].progress()}, resumption), "");
      for (std::size_t rank = 0; rank < 3; ++rank) {
        for (const Operation& again : logs[rank].resume(resumption)) {
          const bool replay = again.collective == Collective::broadcast;
          const std::uint64_t number = again.number;
          ASSERT_EQ(replay, truth[number] != 0) << "seed " << seed;
          if (replay && again.root == rank) {
            ASSERT_EQ(*static_cast<const float*>(again.data), truth[number]) << "seed " << seed;
          }
          if (has[rank][number]) {
            logs[rank].finish(number);
            continue;
          }
          sent[rank][number] = again;
          const float input = static_cast<float>(number) + 0.25F * static_cast<float>(rank);
          ASSERT_EQ(tensors[rank][number], filled(2, input)) << "seed " << seed;
          ASSERT_TRUE(replay || again.data == tensors[rank][number].data()) << "seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace netsum::stream
