// Every order of packets' passes through a chip's registers: the rule is right in each, and every part of it is needed. And
// every interleaving of small jobs of the real workers at the data plane that has this rule.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "model/chip_job.h"
#include "model/job.h"
#include "protocol/switchml/chip_switch.h"

namespace netsum::model {
namespace {

using switchml::ChipGate;
using switchml::ChipRule;

constexpr std::uint64_t most_states = 3'000'000;

void print(const std::string& name, const Exploration& found) {
  std::printf("%-60s %9llu states %10llu transitions, depth %3llu, %6.1f s%s\n", name.c_str(),
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  std::fflush(stdout);
}

std::string name_of(const ChipSetup& setup) {
  return std::to_string(setup.workers) + " workers, " + std::to_string(setup.slots) +
         (setup.slots == 1 ? " slot, " : " slots, ") + std::to_string(setup.chunks) + " chunks" +
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

// The worst that comes of a rule that lacks a part.
template <class Rule>
Harm without(const std::string& part) {
  for (const bool for_deadlocks : {false, true}) {
    const Exploration found = search<Rule>("without " + part, {.without_idle_passes = false}, for_deadlocks);
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

// ---- the data plane with the real workers

class RealChip : public OneSwitch {
 public:
  static constexpr bool is_chip = true;

  explicit RealChip(const Setup& setup)
      : memory_(switchml::ChipSwitch::memory_bytes(packet_elements, setup.slots) / sizeof(Line)) {
    switchml::SwitchJobConfig config{job_epoch, packet_elements, setup.slots, {}};
    for (std::uint32_t rank = 0; rank < setup.workers; ++rank) config.members.push_back({100 + rank, host(rank)});
    if (!switch_.add_job(config, bytes())) throw std::logic_error("add_job");
  }
  RealChip(const RealChip& other) : OneSwitch(other), memory_(other.memory_), switch_(other.switch_) {
    switch_.move_memory(job_epoch, bytes());
  }
  RealChip(RealChip&&) = default;  // the memory stays where it is
  RealChip& operator=(const RealChip&) = delete;
  RealChip& operator=(RealChip&&) = delete;

  void on_packet(const RxView& packet, const Endpoint&, Time, Sink& sink) { switch_.on_packets({&packet, 1}, sink); }
  void check() const {
    const switchml::JobCounters& c = *switch_.job_counters(job_epoch);
    if (c.dropped_early + c.dropped_shape + c.dropped_slot + malformed_packets(switch_.counters()) != 0)
      throw Wrong("the switch met a packet that no correct worker sends");
  }
  void append_state(std::vector<std::byte>& out) const { switch_.append_state(out); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(memory_)); }

  std::vector<Line> memory_;
  switchml::ChipSwitch switch_;
};

void job_holds(const std::string& name, const Setup& setup) {
  const Exploration found = explore(Job<RealChip>(setup), most_states, [](const Job<RealChip>& state) {
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
    gate = {a + 2, ChipGate::accepted};
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
