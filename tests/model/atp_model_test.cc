// Every interleaving of small ATP jobs.

#include <gtest/gtest.h>

#include <cstdio>

#include "model/atp_job.h"

namespace netsum::model::atp {
namespace {

constexpr std::uint64_t most_states = 4'000'000;

void print(const char* name, const Exploration& found) {
  std::printf("%-58s %8llu states %9llu transitions, depth %3llu, %5.1f s%s\n", name,
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  std::fflush(stdout);
}

Exploration explore(const char* name, const JobSetup& setup, Shortcuts shortcuts, bool liveness,
                    std::uint64_t most = most_states) {
  JobSystem system(setup);
  Search search(system, shortcuts);
  const Exploration found = search.run(most, liveness);
  print(name, found);
  return found;
}

void holds(const char* name, const JobSetup& setup) {
  const Exploration found = explore(name, setup, Shortcuts::all, true);
  EXPECT_TRUE(found.wrong.has_value() || found.complete) << "not all states were seen";
  if (!found.wrong) return;
  // Once more, for a way there that leaves nothing out; unless that is too far.
  const Exploration longer = explore("  every step of the way there", setup, Shortcuts::none, true, 300'000);
  const Exploration& shown = longer.wrong ? longer : found;
  std::string trace;
  for (const std::string& step : shown.trace) trace += "\n  " + step;
  ADD_FAILURE() << *shown.wrong << trace << (longer.wrong ? "" : "\n  (without the steps that change no node)");
}

void is_found_wrong(const char* name, const JobSetup& setup) {
  const Exploration found = explore(name, setup, Shortcuts::none, false);
  for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
  ASSERT_TRUE(found.wrong.has_value());
  std::printf("    => %s\n", found.wrong->c_str());
  EXPECT_NE(std::string::npos, found.wrong->find("receives")) << *found.wrong;
}

TopologyConfig one_switch(std::uint32_t ranks) {
  return {{at_server}, std::vector<std::uint32_t>(ranks, 0)};
}
const TopologyConfig two_racks{{2, 2, at_server}, {0, 1}}, two_racks_of_three{{2, 2, at_server}, {0, 0, 1}};

constexpr Values i = Values::ints, f = Values::floats, s = Values::sum_overflows, v = Values::value_overflows,
                 c = Values::cancels;

TEST(AtpModel, OneChunk) {
  holds("2 workers, 1 chunk, int32", {one_switch(2), {{i}}});
  holds("2 workers, 1 chunk, float32 whose sum overflows", {one_switch(2), {{s}}});
  holds("2 workers, 1 chunk, a float32 too large", {one_switch(2), {{v}}});
  holds("3 workers, 1 chunk, int32", {one_switch(3), {{i}}});
  holds("3 workers, 1 chunk, float32 whose sum overflows", {one_switch(3), {{s}}});
}

TEST(AtpModel, ChunksInOneSlot) {
  holds("2 workers, 2 chunks, int32", {one_switch(2), {{i, i}}});
  holds("2 workers, 1+1 chunks, int32 and float32", {one_switch(2), {{i}, {f}}});
  holds("2 workers, 2 chunks, float32, one overflows", {one_switch(2), {{f, s}}});
}

TEST(AtpModel, WindowsOneAfterTheOther) {
  holds("2 workers, 3 chunks, window of 1, 3 slots, indices move", {one_switch(2), {{i, i, i}}, 1, 3});
}

TEST(AtpModel, SumsThatOverflowOnTheWay) {
  JobSetup setup{one_switch(3), {{c}}};
  holds("3 workers, 1 chunk, overflows on the way, wide", setup);
  setup.overflow = Overflow::saturating;
  holds("3 workers, 1 chunk, overflows on the way, saturating", setup);
}

// Values that no longer overflow from the second window on, as all ranks have heard how large they are (§B.3).
TEST(AtpModel, ScalesOfTheirOwn) {
  JobSetup setup{one_switch(2), {{v, v}}, 1};
  setup.scaling = Scaling::dynamic;
  holds("2 workers, 2 chunks, window of 1, floats too large, scales", setup);
  setup = {two_racks, {{v, v}}, 1};
  setup.scaling = Scaling::dynamic;
  holds("2 workers in 2 racks, 2 chunks, the same", setup);
}

TEST(AtpModel, SlotsThatAreAbandoned) {
  JobSetup setup{one_switch(2), {{i, i}}};
  setup.abandons = true;
  holds("2 workers, 2 chunks, slots abandoned, int32", setup);
}

TEST(AtpModel, SwitchThatRestarts) {
  JobSetup setup{one_switch(2), {{s}}};
  setup.losses = 1;
  holds("2 workers, 1 chunk, restart, float32 overflows", setup);
  setup = {one_switch(2), {{i, i}}};
  setup.losses = 1;
  holds("2 workers, 2 chunks, restart, int32", setup);
}

TEST(AtpModel, ThePapersRules) {
  const auto by_them = [](const TopologyConfig& topology, std::vector<std::vector<Values>> calls) {
    JobSetup setup{topology, std::move(calls)};
    setup.rules = Rules::paper;
    return setup;
  };
  holds("2 workers, 1 chunk, int32, the paper's rules", by_them(one_switch(2), {{i}}));
  holds("3 workers, 1 chunk, the same", by_them(one_switch(3), {{i}}));
  holds("2 workers, 2 chunks, the same", by_them(one_switch(2), {{i, i}}));
  holds("2 workers in 2 racks, 1 chunk, float32 overflows, the same", by_them(two_racks, {{s}}));
}

TEST(AtpModel, Chips) {
  const auto at_chips = [](const TopologyConfig& topology, std::vector<std::vector<Values>> calls) {
    JobSetup setup{topology, std::move(calls)};
    setup.rules = Rules::chip;
    return setup;
  };
  holds("2 workers, 1 chunk, int32, at a chip", at_chips(one_switch(2), {{i}}));
  holds("3 workers, 1 chunk, the same", at_chips(one_switch(3), {{i}}));
  holds("2 workers, 2 chunks, the same", at_chips(one_switch(2), {{i, i}}));
  holds("2 workers, 1 chunk, float32 whose sum overflows, at a chip", at_chips(one_switch(2), {{s}}));
  holds("3 workers, 1 chunk, overflows on the way, at a chip", at_chips(one_switch(3), {{c}}));
  holds("2 workers in 2 racks, 1 chunk, int32, at chips", at_chips(two_racks, {{i}}));
}

TEST(AtpModel, TwoLevels) {
  holds("2 workers in 2 racks, 1 chunk, float32 overflows", {two_racks, {{s}}});
  holds("3 workers in 2 racks, 1 chunk, int32", {two_racks_of_three, {{i}}});
  holds("3 workers, one at the second level, 1 chunk, int32", {{{1, at_server}, {0, 0, 1}}, {{i}}});
  holds("3 workers, one at the server, 1 chunk, int32", {{{at_server}, {0, 0, at_server}}, {{i}}});
}

// Searches that take most of the time of all, and that CTest makes with -C thorough only.
TEST(AtpModelAtLength, ThreeChunks) {
  holds("2 workers, 3 chunks, int32", {one_switch(2), {{i, i, i}}});
  JobSetup setup{one_switch(2), {{f, f, v}}};
  setup.scaling = Scaling::dynamic;
  holds("2 workers, 3 chunks, the last too large", setup);
}

TEST(AtpModelAtLength, FourWorkers) {
  holds("4 workers, 1 chunk, int32", {one_switch(4), {{i}}});
}

TEST(AtpModelAtLength, WindowsOneAfterTheOther) {
  holds("2 workers, 4 chunks, window of 1, int32", {one_switch(2), {{i, i, i, i}}, 1});
  holds("3 workers, 2 chunks, window of 1, int32", {one_switch(3), {{i, i}}, 1});
  JobSetup setup{one_switch(2), {{v, v, v}, {v}}, 1};
  setup.scaling = Scaling::dynamic;
  holds("2 workers, 3+1 chunks, window of 1, floats too large, scales", setup);
}

TEST(AtpModelAtLength, TwoLevelsAndTwoChunks) {
  holds("2 workers in 2 racks, 2 chunks, int32", {two_racks, {{i, i}}});
}

TEST(AtpModelAtLength, ARacksSwitchRestarts) {
  JobSetup setup{two_racks_of_three, {{i}}};
  setup.losses = 1;
  holds("3 workers in 2 racks, 1 chunk, a rack's restart, int32", setup);
}

// The searches above may take their shortcuts.
TEST(AtpModelSearch, ShortcutsLeaveNoStateOut) {
  const TopologyConfig one_at_the_server{{at_server}, {0, at_server}};
  for (const JobSetup& setup : {JobSetup{one_switch(2), {{i}}}, JobSetup{one_at_the_server, {{s}}}}) {
    JobSystem one(setup), other(setup);
    Search short_search(one, Shortcuts::all), long_search(other, Shortcuts::none);
    const Exploration by_shortcuts = short_search.run(most_states, false), all = long_search.run(most_states, false);
    print("with shortcuts", by_shortcuts);
    print("without", all);
    EXPECT_TRUE(by_shortcuts.complete && all.complete);
    EXPECT_GT(all.states, by_shortcuts.states);
    EXPECT_EQ(short_search.states_of_nodes(), long_search.states_of_nodes());
  }
}

TEST(AtpModelOfAWrong, ServerThatAddsOverlaps) {
  JobSetup setup{one_switch(2), {{i}}};
  setup.wrongly = Wrongly::server_adds_overlaps;
  is_found_wrong("a server that adds overlapping sums", setup);
}

TEST(AtpModelOfAWrong, SecondLevelThatMergesResends) {
  JobSetup setup{two_racks_of_three, {{i}}};
  setup.wrongly = Wrongly::root_merges_resends;
  is_found_wrong("a second level that merges resends", setup);
}

}  // namespace
}  // namespace netsum::model::atp
