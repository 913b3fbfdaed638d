// The P4 programs' pipeline, in C++: every order of packets' passes is right, and no register is accessed twice in one.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

#include "base/bytes.h"
#include "model/p4_job.h"
#include "protocol/switchml/chip_slots.h"
#include "support/virtual_network.h"

namespace netsum::model {
namespace {

constexpr std::uint64_t most_states = 3'000'000;

template <class Rule>
Exploration search(const std::string& name, const P4Setup& setup, bool for_deadlocks) {
  const Exploration found = explore(P4Job<Rule>(setup), most_states, [&](const P4Job<Rule>& state) {
    if (for_deadlocks) state.check_liveness();
  });
  std::printf("%-60s %9llu states %10llu transitions, depth %3llu, %6.1f s%s\n", name.c_str(),
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  std::fflush(stdout);
  return found;
}

void holds(const P4Setup& setup) {
  const std::string name = std::to_string(setup.workers) + " workers, " + std::to_string(setup.slots) + " slots, " +
                           std::to_string(setup.chunks) + " chunks of " + std::to_string(setup.quarters * 64) +
                           (setup.without_idle_passes ? "" : ", all passes");
  const Exploration found = search<P4Rule>(name, setup, true);
  std::string trace;
  for (const std::string& step : found.trace) trace += "\n  " + step;
  EXPECT_FALSE(found.wrong.has_value()) << *found.wrong << trace;
  EXPECT_TRUE(found.complete) << "not all states were seen";
}

TEST(P4Model, OnePass) {
  holds({2, 1, 6, 1});
  holds({2, 1, 3, 1, false});
  holds({2, 2, 4, 1});
  holds({3, 1, 4, 1});
  holds({4, 1, 3, 1});
}

TEST(P4Model, TwoPasses) {
  holds({2, 1, 4, 2});
  holds({2, 1, 1, 2, false});
  holds({3, 1, 2, 2});
}

TEST(P4Model, FourPasses) {
  holds({2, 1, 2, 4});
}

// ---- without parts of it

struct OneGate : P4Rule {
  static constexpr bool gate_of_each_quarter = false;
};
TEST(P4ModelWithout, TheGateOfEachQuarter) {
  const Exploration found = search<OneGate>("without the gate of each quarter", {.chunks = 2}, true);
  for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
  ASSERT_TRUE(found.wrong.has_value());
  std::printf("    => %s\n", found.wrong->c_str());
}

// A packet's second pass comes when the next round of its slot version is open: that goes on.
template <class Rule>
P4Outcome last_contribution_after_a_late_pass() {
  P4Pipeline<Rule> pipeline(1, 2, 1);
  const auto contribution = [](std::uint32_t round, std::uint32_t member) {
    return P4Packet{.round = round, .bit_of = 1U << member, .exponent = 9, .low = 5, .high = 6};
  };
  P4Packet first = contribution(0, 0), last = contribution(0, 1);
  EXPECT_EQ(P4Outcome::contribution, pipeline.pass(first));
  EXPECT_EQ(P4Outcome::again, pipeline.pass(last));
  P4Packet late = last;
  EXPECT_EQ(P4Outcome::to_all, pipeline.pass(last));
  P4Packet next = contribution(1, 0);
  EXPECT_EQ(P4Outcome::contribution, pipeline.pass(next));
  pipeline.pass(late);
  next = contribution(1, 1);
  return pipeline.pass(next);
}
struct AlwaysLeft : P4Rule {
  static constexpr bool compares_at_leave = false;
};
TEST(P4ModelWithout, TheComparisonAtTheHarvest) {
  EXPECT_EQ(P4Outcome::again, last_contribution_after_a_late_pass<P4Rule>());
  EXPECT_EQ(P4Outcome::contribution, last_contribution_after_a_late_pass<AlwaysLeft>());  // the other one's was forgotten
}

// ---- it is the rule of the switch in C++

TEST(P4Pipeline, DoesWhatTheSwitchInCxxDoes) {
  testing::Random random(7);
  constexpr std::uint32_t slots = 2, members = 3;
  P4Pipeline<> pipeline(slots, members, 1);
  switchml::ChipSlots registers(slots, members);
  std::array<std::array<std::byte, 4>, slots * 2> sums{};
  std::array<std::uint32_t, slots * 2> rounds{};
  std::array<int, 7> outcomes{};
  for (int i = 0; i < 100'000; ++i) {
    const auto number = static_cast<std::uint32_t>(random.below(slots * 2));
    const auto member = static_cast<std::uint32_t>(random.below(members));
    const auto which = random.below(10);  // mostly the round that is open; or one of the two before, or the one after it
    const std::uint32_t older = which < 2 ? static_cast<std::uint32_t>(which) + 1 : 0;
    if (rounds[number] < older) continue;
    const std::uint32_t round = rounds[number] - older + (which == 2 ? 1 : 0);
    const switchml::ChipRound of{number / 2, static_cast<std::uint8_t>(number % 2), round};
    P4Packet packet{of.slot,
                    of.version,
                    of.round,
                    1U << member,
                    static_cast<std::uint16_t>(random.below(255)),
                    static_cast<std::uint32_t>(random.below(1U << 31))};
    std::array<std::byte, 4> payload;
    store_be(payload.data(), packet.low);
    const auto entry = registers.consume(of, member);
    if (entry.adds) registers.add(of, entry, {packet.exponent, 0}, payload, sums[number].data());

    const P4Outcome first = pipeline.pass(packet);
    ++outcomes[static_cast<std::size_t>(first)];
    ASSERT_EQ(entry.again == switchml::ChipPass::answer, first == P4Outcome::again);
    ASSERT_EQ(entry.adds && entry.again == switchml::ChipPass::none, first == P4Outcome::contribution);
    ASSERT_EQ(entry.accepted && !entry.adds && entry.again == switchml::ChipPass::none, first == P4Outcome::silent);
    if (first != P4Outcome::again) continue;
    const bool to_all = registers.harvest(of);
    const P4Outcome second = pipeline.pass(packet);
    ++outcomes[static_cast<std::size_t>(second)];
    ASSERT_EQ(to_all ? P4Outcome::to_all : P4Outcome::to_sender, second);
    ASSERT_EQ(load_be<std::uint32_t>(sums[number].data()), packet.low);
    ASSERT_EQ(registers.exponents(of)[0], packet.exponent);
    if (to_all) rounds[number] = of.round + 1;
  }
  for (const int each : outcomes) EXPECT_GT(each, 0);
}

}  // namespace
}  // namespace netsum::model
