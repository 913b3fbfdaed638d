// Every interleaving of small jobs: the protocol is right in each, and what was published is not.

#include <gtest/gtest.h>

#include <cstdio>

#include "model/job.h"
#include "model/published.h"
#include "model/tree.h"

namespace netsum::model {
namespace {

using RealTree = TreeSwitches<switchml::Switch>;

constexpr std::uint64_t most_states = 3'000'000;

void print(const char* name, const Exploration& found) {
  std::printf("%-44s %9llu states %10llu transitions, depth %3llu, %6.1f s%s\n", name,
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  std::fflush(stdout);
}

template <class SwitchType = RealSwitch>
void holds(const char* name, const Setup& setup) {
  const Job<SwitchType> job(setup);
  const Exploration found = explore(job, most_states, [](const Job<SwitchType>& state) {
    state.check_slots();
    state.check_retransmissions();
    state.check_liveness();
  });
  print(name, found);
  std::string trace;
  for (const std::string& step : found.trace) trace += "\n  " + step;
  EXPECT_FALSE(found.wrong.has_value()) << *found.wrong << trace;
  EXPECT_TRUE(found.complete) << "not all states were seen";
}

template <class SwitchType>
Exploration search_for_a_wrong_sum(const char* name, const Setup& setup) {
  const Exploration found = explore(Job<SwitchType>(setup), most_states, [](const Job<SwitchType>&) {});
  print(name, found);
  for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
  if (found.wrong) std::printf("    => %s\n", found.wrong->c_str());
  return found;
}

// Of so many chunks, with exponents.
constexpr Call f(std::uint64_t chunks) {
  return {(chunks - 1) * packet_elements + stream::most_plain_floats + 1, DType::float32, stream::Collective::all_reduce};
}
// Few floats, which are summed in rank order.
constexpr Call plain{1, DType::float32, stream::Collective::all_reduce};
// In 16 bits, of which a switch below the root sends a sum in two parts.
constexpr Call h(std::uint64_t elements) {
  return {elements, DType::float32, stream::Collective::all_reduce, WireFormat::bfloat16};
}
// In blocks of 8 bits, or 4 up.
constexpr Call q(std::uint64_t elements, WireFormat wire) {
  return {elements, DType::float32, stream::Collective::all_reduce, wire};
}
constexpr Call i(std::uint64_t elements) {
  return {elements, DType::int32, stream::Collective::all_reduce};
}

TEST(SwitchmlModel, TwoWorkersOneSlotThreeChunks) {
  holds("2 workers, 1 slot, 3 chunks, float32", {2, 1, {f(3)}});
  holds("2 workers, 1 slot, 3 chunks, int32", {2, 1, {i(513)}});
}

TEST(SwitchmlModel, TwoWorkersTwoSlotsFiveChunks) {
  holds("2 workers, 2 slots, 5 chunks, int32", {2, 2, {i(513), i(257)}});
  holds("2 workers, 2 slots, 5 chunks, float32", {2, 2, {f(3), f(2)}});
}

TEST(SwitchmlModel, OperationsThatSomeRanksKnowLater) {
  holds("2 workers, 1 slot, 1+2+1 chunks, float32", {2, 1, {f(1), f(2), f(1)}});
  holds("2 workers, 1 slot, float32, int32, float32", {2, 1, {f(1), i(1), f(1)}});
  holds("2 workers, 1 slot, barrier and broadcast",
        {2,
         1,
         {f(1), {0, DType::float32, stream::Collective::barrier}, {1, DType::int32, stream::Collective::broadcast}, f(1)}});
}

TEST(SwitchmlModel, SumsOfBlocks) {
  for (const WireFormat wire : {WireFormat::int8, WireFormat::int4})
    holds("2 workers, 1 slot, blocks, 2 chunks, then float32", {2, 1, {q(1026, wire), f(1), q(17, wire)}});
}

// Ranks that take no values are acknowledged, between rounds of which all take the result.
constexpr Call to_root{257, DType::int32, stream::Collective::reduce};
constexpr Call scattered(std::uint64_t ranks) {
  return {ranks, DType::int32, stream::Collective::reduce_scatter};
}

TEST(SwitchmlModel, RanksThatTakeNoValues) {
  holds("2 workers, 1 slot, float32, reduce, reduce-scatter, float32", {2, 1, {f(1), to_root, scattered(2), f(1)}});
  holds("3 workers, 1 slot, reduce, int32", {3, 1, {to_root, i(1)}});
}

// Chunks that begin together, in runs: what the root of a reduce sends, and what the other ranks get; the other way round
// in a broadcast; both in a reduce-scatter, of which a rank has every other chunk.
constexpr Call three_to_root{513, DType::int32, stream::Collective::reduce};
constexpr Call two_of_words{257, DType::int32, stream::Collective::broadcast};
Setup in_groups(std::uint32_t workers, std::uint32_t slots, std::vector<Call> calls, std::vector<std::uint32_t> racks = {}) {
  Setup setup{workers, slots, std::move(calls), 1, std::move(racks)};
  setup.group = slots;
  return setup;
}

TEST(SwitchmlModel, ChunksInGroups) {
  holds("2 workers, 2 slots in a group, reduce", in_groups(2, 2, {three_to_root}));
  holds("2 workers, 2 slots in a group, broadcast, reduce", in_groups(2, 2, {two_of_words, to_root}));
  holds("3 workers, 2 slots in a group, reduce", in_groups(3, 2, {to_root}));
}

TEST(TreeModel, ChunksInGroups) {
  holds<RealTree>("1 + 1 workers, 2 leaves, 2 slots in a group, reduce", in_groups(2, 2, {three_to_root}, {1, 1}));
  holds<RealTree>("2 + 1 workers, 2 slots in a group, broadcast", in_groups(3, 2, {two_of_words}, {2}));
}

// In windows of their own, in whatever order they end.
constexpr Call words{1, DType::int32, stream::Collective::broadcast};
TEST(SwitchmlModel, ReduceScattersBesideBroadcasts) {
  holds("2 workers, 1 slot, parts beside broadcasts", {2, 1, {scattered(2), words, scattered(2)}, 2});
  holds<BothPaths>("2 workers, 1 slot, an all-reduce beside a broadcast", {2, 1, {f(2), words}, 2});
}

TEST(TreeModel, ReduceScattersBesideBroadcasts) {
  holds<RealTree>("1 + 1 workers, 2 leaves, parts beside a broadcast", {2, 1, {scattered(2), words}, 2, {1, 1}});
}

TEST(SwitchmlModel, BothPathsOfTheSwitchAreTheSame) {
  holds<BothPaths>("2 workers, 1 slot, 3 chunks, int32, both paths", {2, 1, {i(513)}});
  holds<BothPaths>("3 workers, 1 slot, 2 chunks, float32, both paths", {3, 1, {f(2)}});
  holds<BothPaths>("3 workers, 1 slot, reduce, int32, both paths", {3, 1, {to_root, i(1)}});
}

// As many states as with it, and as right.
TEST(SwitchmlModel, WorkersWithoutTheirFastPath) {
  model::Setup setup{2, 1, {f(3), to_root, i(1)}};
  for (const bool fast : {true, false}) {
    setup.fast_workers = fast;
    holds(fast ? "2 workers, 1 slot, float32, reduce, int32" : "the same, workers without their fast path", setup);
  }
}

TEST(SwitchmlModel, PrivateSums) {
  model::Setup setup{2, 1, {f(2), i(1), {1, DType::int32, stream::Collective::broadcast}, scattered(2)}};
  setup.is_private = true;
  holds("2 workers, 1 slot, float32, int32, broadcast, reduce-scatter, private", setup);
}

TEST(TreeModel, PrivateSums) {
  model::Setup setup{3, 1, {f(1), i(1)}, 1, {2}};
  setup.is_private = true;
  holds<RealTree>("2 + 1 workers, 1 slot, float32, int32, private", setup);
}

TEST(TreeModel, RanksThatTakeNoValues) {
  holds<RealTree>("2 + 1 workers, 1 slot, reduce, int32", {3, 1, {to_root, i(1)}, 1, {2}});
  holds<RealTree>("1 + 1 workers, 2 leaves, 1 slot, reduce-scatter, float32", {2, 1, {scattered(2), f(1)}, 1, {1, 1}});
}

TEST(SwitchmlModel, ThreeWorkersOneSlot) {
  holds("3 workers, 1 slot, 3 chunks, int32", {3, 1, {i(513)}});
  holds("3 workers, 1 slot, 2 chunks, float32", {3, 1, {f(2)}});
  holds("3 workers, 1 slot, 1+1 chunks, float32", {3, 1, {f(1), f(1)}});
  holds("3 workers, 1 slot, 1+1+1 chunks, float32", {3, 1, {f(1), f(1), f(1)}});
  holds("3 workers, 1 slot, 5 chunks, int32", {3, 1, {i(513), i(257)}});
}

TEST(SwitchmlModel, MoreWorkers) {
  holds("3 workers, 2 slots, 4 chunks, int32", {3, 2, {i(1024)}});
  holds("4 workers, 1 slot, 3 chunks, int32", {4, 1, {i(513)}});
}

// Searches that take most of the time of all, and that CTest makes with -C thorough only.
TEST(SwitchmlModelAtLength, ChunksInGroups) {
  holds("2 workers, 2 slots in a group, reduce, broadcast", in_groups(2, 2, {three_to_root, two_of_words}));
  holds("2 workers, 2 slots in a group, reduce, int32", in_groups(2, 2, {three_to_root, i(257)}));
  holds("2 workers, 4 slots in a group, reduce-scatter",
        in_groups(2, 4, {{1024, DType::int32, stream::Collective::reduce_scatter}}));
}

TEST(SwitchmlModelAtLength, MoreWorkers) {
  holds("3 workers, 1 slot, 1+1+1 chunks, 3 at once", {3, 1, {f(1), f(1), f(1)}, 2});
  holds("4 workers, 1 slot, 1+1 chunks, float32", {4, 1, {f(1), f(1)}});
}

// Two levels of switches.
TEST(TreeModel, TwoWorkersAtALeafAndOneAtTheRoot) {
  holds<RealTree>("2 + 1 workers, 1 slot, 3 chunks, int32", {3, 1, {i(513)}, 1, {2}});
  holds<RealTree>("2 + 1 workers, 1 slot, 2 chunks, float32", {3, 1, {f(2)}, 1, {2}});
  holds<RealTree>("2 + 1 workers, 1 slot, 3 chunks, few floats", {3, 1, {plain, plain, plain}, 1, {2}});
}

TEST(TreeModel, TwoLeaves) {
  holds<RealTree>("2 + 1 workers, 2 leaves, 1 slot, 3 chunks, int32", {3, 1, {i(513)}, 1, {2, 1}});
  holds<RealTree>("1 + 1 workers, 2 leaves, 2 slots, 5 chunks", {2, 2, {i(513), i(257)}, 1, {1, 1}});
  holds<RealTree>("2 + 2 workers, 2 leaves, 1 slot, 3 chunks, int32", {4, 1, {i(513)}, 1, {2, 2}});
  holds<RealTree>("2 + 2 workers, 2 leaves, 1 slot, 2 chunks, float32", {4, 1, {f(2)}, 1, {2, 2}});
}

TEST(TreeModel, SumsInParts) {
  holds<RealTree>("2 + 1 workers, 1 slot, 16 bits, float32", {3, 1, {h(2), h(2), f(1)}, 1, {2}});
  holds<RealTree>("1 + 1 workers, 2 leaves, 1 slot, 16 bits, 2 chunks", {2, 1, {h(514), h(2)}, 1, {1, 1}});
}

TEST(TreeModel, SumsOfBlocks) {
  for (const WireFormat wire : {WireFormat::int8, WireFormat::int4})
    holds<RealTree>("1 + 1 workers, 2 leaves, 1 slot, blocks, 2 chunks", {2, 1, {q(1026, wire), q(17, wire)}, 1, {1, 1}});
}

TEST(TreeModel, ALeafThatRestarts) {
  holds<RealTree>("2 + 1 workers, 1 slot, 3 chunks, a restart", {3, 1, {i(513)}, 1, {2}, true});
  holds<RealTree>("1 + 1 workers, 2 leaves, float32, a restart", {2, 1, {f(1), f(1)}, 1, {1, 1}, true});
}

// Why a switch that was started again does not take its jobs again.
TEST(TreeModel, ALeafThatBeginsAnewIsWrong) {
  const auto found =
      search_for_a_wrong_sum<RealTree>("2 + 1 workers, a leaf that begins anew", {3, 1, {i(513)}, 1, {2}, true, true});
  ASSERT_TRUE(found.wrong.has_value());
}

TEST(PublishedModel, Algorithm3IsWrong) {
  const auto found = search_for_a_wrong_sum<Published<false>>("Algorithm 3 as published", {2, 1, {i(513)}});
  ASSERT_TRUE(found.wrong.has_value());
  EXPECT_NE(std::string::npos, found.wrong->find("receives")) << *found.wrong;
}

TEST(PublishedModel, Algorithm3WithAComparisonOfChunksIsWrong) {
  const auto found = search_for_a_wrong_sum<Published<true>>("Algorithm 3 and a comparison of chunks", {2, 1, {i(513)}});
  ASSERT_TRUE(found.wrong.has_value());
  EXPECT_NE(std::string::npos, found.wrong->find("receives")) << *found.wrong;
}

}  // namespace
}  // namespace netsum::model
