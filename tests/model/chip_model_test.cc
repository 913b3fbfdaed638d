// Every order of packets' passes through a chip's registers: the rule is right in each, and every part of it is needed. And
// every interleaving of small jobs of the real workers at the data plane that has this rule.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "model/chip_job.h"
#include "model/job.h"
#include "model/tree.h"
#include "protocol/switchml/chip_switch.h"

namespace netsum::model {
namespace {

using switchml::ChipRule;

constexpr std::uint64_t most_states = 3'000'000;

void print(const std::string& name, const Exploration& found) {
  std::printf("%-60s %9llu states %10llu transitions, depth %3llu, %6.1f s%s\n", name.c_str(),
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  std::fflush(stdout);
}

std::string leaves_of(const ChipSetup& setup) {
  std::string text;
  for (const std::uint32_t workers : setup.racks) text += (text.empty() ? ", leaves of " : " + ") + std::to_string(workers);
  return text;
}

std::string name_of(const ChipSetup& setup) {
  return std::to_string(setup.workers) + " workers, " + std::to_string(setup.slots) +
         (setup.slots == 1 ? " slot, " : " slots, ") + std::to_string(setup.chunks) + " chunks" + leaves_of(setup) +
         (setup.without_idle_passes ? "" : ", all passes");
}

template <class Rule>
Exploration search(const std::string& name, const ChipSetup& setup, bool for_deadlocks) {
  const Exploration found = explore(ChipJob<Rule>(setup), most_states, [&](const ChipJob<Rule>& state) {
    if (for_deadlocks) state.check_liveness();
  });
  print(name, found);
  return found;
}

void holds(const ChipSetup& setup) {
  const Exploration found = search<ChipRule>(name_of(setup), setup, true);
  std::string trace;
  for (const std::string& step : found.trace) trace += "\n  " + step;
  EXPECT_FALSE(found.wrong.has_value()) << *found.wrong << trace;
  EXPECT_TRUE(found.complete) << "not all states were seen";
}

enum class Harm { none, deadlock, wrong_sum };

// A worker at a leaf, and one at the root.
ChipSetup small_tree() {
  return {.chunks = 3, .without_idle_passes = false, .racks = {1}};
}

// A rule without one of its parts, which is chosen as the search begins: it is compiled once for all of them.
struct Without {
  static inline decltype(&ChipRule::enter) enter;
  static inline decltype(&ChipRule::seen) seen;
  static inline decltype(&ChipRule::is_complete) is_complete;
  static inline decltype(&ChipRule::goes_up) goes_up;
  static inline decltype(&ChipRule::is_done) is_done;
  static inline decltype(&ChipRule::leave) leave;
  static inline decltype(&ChipRule::finish) finish;

  template <class Rule>
  static void choose() {
    enter = &Rule::enter;
    seen = &Rule::seen;
    is_complete = &Rule::is_complete;
    goes_up = &Rule::goes_up;
    is_done = &Rule::is_done;
    leave = &Rule::leave;
    finish = &Rule::finish;
  }
};

// The worst that comes of a rule that lacks a part.
template <class Rule>
Harm without(const std::string& part, const ChipSetup& setup = {.without_idle_passes = false}) {
  Without::choose<Rule>();
  for (const bool for_deadlocks : {false, true}) {
    const Exploration found = search<Without>("without " + part + leaves_of(setup), setup, for_deadlocks);
    for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
    if (found.wrong) std::printf("    => %s\n", found.wrong->c_str());
    if (found.wrong) return for_deadlocks ? Harm::deadlock : Harm::wrong_sum;
    EXPECT_TRUE(found.complete) << "not all states were seen";
  }
  return Harm::none;
}

TEST(ChipModel, TwoWorkers) {
  holds({2, 1, 8});
  holds({2, 1, 6, false});
  holds({2, 2, 6});
  holds({2, 2, 4, false});
  holds({2, 2, 8});
}

TEST(ChipModel, ThreeWorkers) {
  holds({3, 1, 6});
  holds({3, 1, 4, false});
  holds({3, 2, 6});
}

TEST(ChipModel, FourWorkers) {
  holds({4, 1, 4});
  holds({4, 1, 3, false});
  holds({4, 2, 4});
}

TEST(ChipModel, TwoLevels) {
  holds({.workers = 2, .chunks = 4, .racks = {1, 1}});
  holds({.workers = 2, .slots = 2, .chunks = 4, .racks = {1, 1}});
  holds({.workers = 3, .chunks = 4, .racks = {2}});
  holds({.workers = 3, .chunks = 2, .without_idle_passes = false, .racks = {2}});
  holds({.workers = 3, .chunks = 4, .racks = {2, 1}});
  holds({.workers = 4, .chunks = 3, .racks = {2, 2}});
}

// ---- the data plane with the real workers

using RealChips = TreeSwitches<switchml::ChipSwitch>;

void job_holds(const std::string& name, const Setup& setup) {
  const Exploration found = explore(Job<RealChips>(setup), most_states, [](const Job<RealChips>& state) {
    state.check_retransmissions();
    state.check_liveness();
  });
  print(name, found);
  std::string trace;
  for (const std::string& step : found.trace) trace += "\n  " + step;
  EXPECT_FALSE(found.wrong.has_value()) << *found.wrong << trace;
  EXPECT_TRUE(found.complete) << "not all states were seen";
}

constexpr Call floats(std::uint64_t chunks) {
  return {(chunks - 1) * packet_elements + 1, DType::float32, stream::Collective::all_reduce};
}
constexpr Call ints(std::uint64_t elements) {
  return {elements, DType::int32, stream::Collective::all_reduce};
}

// Results differ by whose packet was last, and late copies are answered with what the slot holds by then: of as long jobs as
// in switchml_model_test.cc there are too many states.
TEST(ChipJobModel, TwoWorkers) {
  job_holds("2 workers, 1 slot, 3 chunks, int32", {2, 1, {ints(513)}});
  job_holds("2 workers, 1 slot, 3 chunks, float32", {2, 1, {floats(3)}});
  job_holds("2 workers, 1 slot, 1+1 chunks, float32", {2, 1, {floats(1), floats(1)}});
  job_holds("2 workers, 1 slot, float32, int32", {2, 1, {floats(1), ints(1)}});
  job_holds("2 workers, 1 slot, barrier and broadcast",
            {2, 1, {{0, DType::float32, stream::Collective::barrier}, {1, DType::int32, stream::Collective::broadcast}}});
}

TEST(ChipJobModel, ThreeWorkers) {
  job_holds("3 workers, 1 slot, 2 chunks, int32", {3, 1, {ints(257)}});
  job_holds("3 workers, 1 slot, 1 chunk, float32", {3, 1, {floats(1)}});
}

TEST(ChipJobModel, TwoLevels) {
  job_holds("1 + 1 workers at two leaves, 2 chunks, int32", {2, 1, {ints(257)}, 1, {1, 1}});
  job_holds("2 workers at a leaf, 1 at the root, 1 chunk, int32", {3, 1, {ints(1)}, 1, {2}});
}

// ---- the rule without one of its parts

// Packets of any round are added to the one that is there.
struct AnyRound : ChipRule {
  static std::uint32_t enter(ChipGate& gate, std::uint32_t a, std::uint32_t bit) {
    gate.x = a + 1;
    return std::exchange(gate.bitmap, gate.bitmap | bit);
  }
};
struct NeverOpened : ChipRule {
  static std::uint32_t enter(ChipGate& gate, std::uint32_t a, std::uint32_t bit) {
    return gate.x == a ? 0 : ChipRule::enter(gate, a, bit);
  }
};
struct NeverJoined : ChipRule {
  static std::uint32_t enter(ChipGate& gate, std::uint32_t a, std::uint32_t bit) {
    return gate.x == a + 1 ? 0 : ChipRule::enter(gate, a, bit);
  }
};
TEST(ChipModelWithout, TheComparisonOfX) {
  EXPECT_EQ(Harm::wrong_sum, without<AnyRound>("the comparison of x"));
  EXPECT_EQ(Harm::deadlock, without<NeverOpened>("x = a"));
  EXPECT_EQ(Harm::deadlock, without<NeverJoined>("x = a + 1"));
}

struct NobodySeen : ChipRule {
  static bool seen(std::uint32_t, std::uint32_t) { return false; }
};
TEST(ChipModelWithout, TheSeenBit) {
  EXPECT_EQ(Harm::wrong_sum, without<NobodySeen>("the seen bit"));
}

// Only the packet that sets the last bit harvests: if it is lost on its way to its second pass, nobody does.
struct OnlyTheLast : ChipRule {
  static bool is_complete(std::uint32_t before, std::uint32_t bit, std::uint32_t everyone) {
    return before != everyone && ChipRule::is_complete(before, bit, everyone);
  }
};
TEST(ChipModelWithout, AnotherHarvestByARepeat) {
  EXPECT_EQ(Harm::deadlock, without<OnlyTheLast>("another harvest by a repeat"));
}

// That harvest then needs the comparison with x: it may come when the next round is open.
struct AlwaysLeft : ChipRule {
  static bool leave(ChipGate& gate, std::uint32_t a) {
    gate = {a + 2, chip_accepted};
    return true;
  }
};
TEST(ChipModelWithout, TheComparisonAtTheHarvest) {
  EXPECT_EQ(Harm::wrong_sum, without<AlwaysLeft>("the comparison at the harvest"));
}

struct NeverDone : ChipRule {
  static bool is_done(std::uint32_t, std::uint32_t) { return false; }
};
struct NeverFinished : ChipRule {
  static void finish(std::uint32_t&, std::uint32_t) {}
};
TEST(ChipModelWithout, Done) {
  EXPECT_EQ(Harm::deadlock, without<NeverDone>("answers to repeats"));
  EXPECT_EQ(Harm::deadlock, without<NeverFinished>("the harvest's write of done"));
}

// A packet that the gate refuses is of a complete round, or of one before it, and then nobody waits for the answer. `done`
// keeps a chip from these answers, and from any to a worker that is wrong.
struct AlwaysDone : ChipRule {
  static bool is_done(std::uint32_t, std::uint32_t) { return true; }
};
TEST(ChipModelWithout, TheComparisonOfDoneLateCopiesAreAnswered) {
  EXPECT_EQ(Harm::none, without<AlwaysDone>("the comparison of done"));
}
// Not so if repeats of the open round are answered as well.
struct AlwaysComplete : AlwaysDone {
  static bool is_complete(std::uint32_t, std::uint32_t, std::uint32_t) { return true; }
};
TEST(ChipModelWithout, TheComparisonWithAllBits) {
  EXPECT_EQ(Harm::wrong_sum, without<AlwaysComplete>("the comparison with all bits"));
}

// A chip of several pipelines (§5) keeps the packets of a slot in order between its gate and its sums.
TEST(ChipModelWithout, TheOrderOfSums) {
  const Exploration found =
      search<ChipRule>("without the order of sums", {.without_idle_passes = false, .sums_in_order = false}, false);
  for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
  ASSERT_TRUE(found.wrong.has_value());
  std::printf("    => %s\n", found.wrong->c_str());
}

// ---- in a tree

TEST(ChipModelWithout, InATreeWhatATreeShares) {
  EXPECT_EQ(Harm::wrong_sum, without<NobodySeen>("the seen bit", small_tree()));
  EXPECT_EQ(Harm::deadlock, without<NeverDone>("answers to repeats", small_tree()));
}

// A late copy of a result finds the next round open.
TEST(ChipModelWithout, TheComparisonWhenAResultComes) {
  EXPECT_EQ(Harm::wrong_sum, without<AlwaysLeft>("the comparison when a result comes", small_tree()));
}

struct NeverUpAgain : ChipRule {
  static bool goes_up(std::uint32_t before, std::uint32_t bit) { return !seen(before, bit); }
};
struct AllGoUp : ChipRule {
  static bool goes_up(std::uint32_t, std::uint32_t) { return true; }
};
TEST(ChipModelWithout, RepeatsThatGoUpstream) {
  ChipSetup setup = small_tree();
  setup.chunks = 2;
  EXPECT_EQ(Harm::deadlock, without<NeverUpAgain>("repeats upstream", setup));
  // That only the first member's do saves packets.
  setup.workers = 3;
  setup.racks = {2};
  EXPECT_EQ(Harm::none, without<AllGoUp>("the first member's privilege", setup));
}

TEST(ChipModelWithout, TheResultInPlaceOfTheSum) {
  ChipSetup setup = small_tree();
  setup.stores_results = false;
  EXPECT_EQ(Harm::wrong_sum, without<ChipRule>("the result in place of the sum", setup));
}

// Why a switch that was started again does not take its jobs again: its registers are rounds behind.
TEST(ChipModelWithout, MemoryThatARestartClears) {
  ChipSetup setup = small_tree();
  setup.begins_anew = true;
  const Exploration found = search<ChipRule>("without memory" + leaves_of(setup), setup, true);
  ASSERT_TRUE(found.wrong.has_value());
  std::printf("    => %s\n", found.wrong->c_str());
}

struct NeverCleared : ChipRule {
  static bool leave(ChipGate& gate, std::uint32_t a) {
    const std::uint32_t bitmap = gate.bitmap;
    const bool first = ChipRule::leave(gate, a);
    if (first) gate.bitmap = bitmap;
    return first;
  }
};
TEST(ChipModelWithout, TheClearedBitmap) {
  EXPECT_EQ(Harm::wrong_sum, without<NeverCleared>("the cleared bitmap"));
}

struct NeverClosed : ChipRule {
  static bool leave(ChipGate& gate, std::uint32_t a) {
    const std::uint32_t x = gate.x;
    const bool first = ChipRule::leave(gate, a);
    if (first) gate.x = x;
    return first;
  }
};
TEST(ChipModelWithout, TheHarvestsWriteOfX) {
  EXPECT_EQ(Harm::wrong_sum, without<NeverClosed>("the harvest's write of x"));
}

}  // namespace
}  // namespace netsum::model
