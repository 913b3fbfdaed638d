// Every order of packets' passes through the registers of a chip with ATP: each sum that leaves is that of the ranks that it
// names, and every part of the rule is needed for that, or is named here as one that only saves packets.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "model/atp_chip_job.h"

namespace netsum::model {
namespace {

using netsum::atp::ChipRule;

constexpr std::uint64_t most_states = 3'000'000;

template <class Rule>
Exploration search(const std::string& name, const AtpChipSetup& setup) {
  const Exploration found =
      explore(AtpChipJob<Rule>(setup), most_states, [](const AtpChipJob<Rule>& state) { state.check_liveness(); });
  std::printf("%-60s %9llu states %10llu transitions, depth %3llu, %6.1f s%s\n", name.c_str(),
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
  if (found.wrong) std::printf("    => %s\n", found.wrong->c_str());
  std::fflush(stdout);
  EXPECT_TRUE(found.wrong.has_value() || found.complete) << "not all states were seen";
  return found;
}

void holds(const AtpChipSetup& setup) {
  const std::string name = std::to_string(setup.workers) + " workers, " + std::to_string(setup.chunks) +
                           " chunks, window of " + std::to_string(setup.window) + (setup.disagree ? ", two calls" : "");
  EXPECT_FALSE(search<ChipRule>(name, setup).wrong.has_value());
}

TEST(AtpChipModel, TwoChunks) {
  holds({.workers = 2, .chunks = 2});
  holds({.workers = 2, .chunks = 2, .disagree = true});
}

TEST(AtpChipModel, MoreChunksAndRanks) {
  holds({.workers = 2, .chunks = 3, .window = 1});
  holds({.workers = 2, .chunks = 3, .passes = 1});
  holds({.workers = 3, .chunks = 2, .window = 1, .passes = 1});
}

// ---- the rule without one of its parts

template <class Rule>
std::string without(const std::string& part, const AtpChipSetup& setup = {}) {
  return search<Rule>("without " + part, setup).wrong.value_or("nothing");
}
constexpr const char* first_half = "a sum's first half is wrong";
constexpr const char* second_half = "a sum's second half is wrong";

// What another chunk has is added to.
struct AnyOwner : ChipRule {
  static std::uint32_t enter(AtpChipOwner& owner, std::uint32_t high, std::uint32_t low, std::uint32_t window) {
    const std::uint32_t found = ChipRule::enter(owner, high, low, window);
    return found == atp_chip_others ? std::uint32_t{atp_chip_ours} : found;
  }
};
struct AnyoneLeaves : ChipRule {
  static std::uint32_t leave(AtpChipOwner& owner, std::uint32_t, std::uint32_t) {
    owner.high = 0;
    return atp_chip_ours;
  }
};
TEST(AtpChipModelWithout, TheOwner) {
  EXPECT_EQ(first_half, without<AnyOwner>("the owner, for what is added"));
  EXPECT_EQ("worker 0 resends in vain", without<AnyoneLeaves>("the owner, for what is resent"));
}

struct NobodySeen : ChipRule {
  static bool seen(std::uint32_t, std::uint32_t) { return false; }
};
TEST(AtpChipModelWithout, TheSeenBit) {
  EXPECT_EQ(first_half, without<NobodySeen>("the seen bit"));
}

// Who takes a slot is added to what is there.
struct NeverCleared : ChipRule {
  static std::uint32_t mark(std::uint32_t& bitmap, std::uint32_t, std::uint32_t bit) {
    return atp_chip_mark(&bitmap, atp_chip_ours, bit);
  }
};
TEST(AtpChipModelWithout, TheClearedBitmap) {
  EXPECT_EQ(first_half, without<NeverCleared>("the cleared bitmap"));
}

struct AnySignature : ChipRule {
  static bool agrees(std::uint32_t&, std::uint32_t, std::uint32_t) { return true; }
};
TEST(AtpChipModelWithout, TheSignature) {
  EXPECT_EQ("values of two calls are in one sum", without<AnySignature>("the signature", {.chunks = 2, .disagree = true}));
}

// A second pass that was lost leaves a half without its packet.
struct EachHalfAlone : ChipRule {
  static bool is_sum(std::uint32_t, std::uint32_t) { return true; }
};
TEST(AtpChipModelWithout, TheComparisonOfTheHalves) {
  const std::string found = without<EachHalfAlone>("the comparison of the halves");
  EXPECT_TRUE(found == first_half || found == second_half) << found;
}

// The paper's two passes have one owner and one bitmap: a second pass that is lost, or late, is not missed.
TEST(AtpChipModelWithout, AnOwnerOfTheSecondHalf) {
  EXPECT_EQ(second_half, without<ChipRule>("an owner of the second half", {.one_owner = true}));
}

// Freed as every packet likes: the slot's sum is lost, and its ranks resend.
struct AlwaysFree : ChipRule {
  static std::uint32_t enter(AtpChipOwner& owner, std::uint32_t high, std::uint32_t low, std::uint32_t window) {
    if (owner.low != low) owner.high = 0;
    return ChipRule::enter(owner, high, low, window);
  }
};
struct NeverFree : ChipRule {
  static std::uint32_t enter(AtpChipOwner& owner, std::uint32_t high, std::uint32_t low, std::uint32_t) {
    return ChipRule::enter(owner, high, low, INT32_MAX);
  }
};
TEST(AtpChipModelWithout, WhatOnlySavesPackets) {
  EXPECT_EQ("nothing", without<AlwaysFree>("first come, first served", {.chunks = 2}));
  EXPECT_EQ("nothing", without<NeverFree>("the window", {.window = 1, .passes = 1}));
}

// A resend that leaves the slot as it is sends the sum up with each.
struct ResendsStay : ChipRule {
  static std::uint32_t leave(AtpChipOwner& owner, std::uint32_t high, std::uint32_t low) {
    return owner.high == high && owner.low == low ? std::uint32_t{atp_chip_ours} : std::uint32_t{atp_chip_others};
  }
};
// ... until the halves differ, as one was freed or a pass was lost: then no resend gets past it.
TEST(AtpChipModelWithout, TheResendThatFrees) {
  EXPECT_EQ("worker 0 resends in vain", without<ResendsStay>("the resend that frees"));
}

}  // namespace
}  // namespace netsum::model
