// The rule of a chip's slots, in place of the identities of switch.h: docs/protocol-switchml-chip.md.
//
// A chip's state is in register units, which a packet meets once on its way through the pipeline: each is read, compared
// with what the packet carries, and written, at once. A packet that completes its round goes through the pipeline again to
// read the sums (§5), while other packets come between, and may be lost on that way (App. B). So a packet has two passes
// here, each of which is atomic, and nothing else is. tests/model/chip_model_test.cc searches all their orders.
//
// In a tree (§7) a switch's members are ranks and other switches. Below the root, the second pass of a complete round sends
// the sum upstream; the round stays open until the parent's result closes it, in one pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "protocol/switchml/chip_rule.h"

namespace netsum::switchml {

// Which round of which version of a slot a packet is for.
struct ChipRound {
  std::uint32_t slot = 0;
  std::uint8_t version = 0;
  std::uint32_t round = 0;
};

// What each unit does with a packet. The model removes one part after the other (by hiding it in a class derived from this
// one).
struct ChipRule {
  static std::uint32_t enter(ChipGate& gate, std::uint32_t a, std::uint32_t bit) { return chip_enter(&gate, a, bit); }
  static bool seen(std::uint32_t before, std::uint32_t bit) { return chip_seen(before, bit); }
  static bool is_complete(std::uint32_t before, std::uint32_t bit, std::uint32_t everyone) {
    return chip_is_complete(before, bit, everyone);
  }
  static bool goes_up(std::uint32_t before, std::uint32_t bit) { return chip_goes_up(before, bit); }
  static bool is_done(std::uint32_t done, std::uint32_t a) { return chip_is_done(done, a); }
  static bool leave(ChipGate& gate, std::uint32_t a) { return chip_leave(&gate, a); }
  static void finish(std::uint32_t& done, std::uint32_t a) { chip_finish(&done, a); }
};

// A packet's second pass, which comes then or later, with what the registers of exponents and sums hold by then. An answer:
// harvest() says to whom. Upstream: the sum, to the parent.
enum class ChipPass : std::uint8_t { none, answer, upstream };

// A job's slots on one lane, without the sums: those lie where their owner needs them.
template <class Rule>
class BasicChipSlots {
 public:
  using Exponents = std::array<std::uint16_t, 2>;

 private:
  // Of one version of one slot: a unit each.
  struct Units {
    ChipGate gate{0, chip_accepted};
    std::uint32_t done = 0;
    Exponents exponents{};
  };

 public:
  static constexpr std::size_t bytes_of_one = sizeof(Units);

  BasicChipSlots() = default;
  // `root`: of a tree, or the only switch.
  BasicChipSlots(std::uint32_t slots, std::uint32_t members, bool root = true)
      : units_(std::size_t{slots} * 2), everyone_(chip_everyone(members)), root_(root) {}

  [[nodiscard]] static std::size_t index(const ChipRound& of) { return std::size_t{of.slot} * 2 + of.version; }

  // The first pass: what it finds.
  struct Entry {
    bool accepted = false;  // of the round that is open
    bool adds = false;      // its member's first packet of the round: add() follows
    bool first = false;     // of the round
    ChipPass again = ChipPass::none;
  };
  [[nodiscard]] Entry consume(const ChipRound& of, std::uint32_t member) {
    Units& units = at(of);
    const std::uint32_t a = 2 * of.round, bit = 1U << member;
    const std::uint32_t before = Rule::enter(units.gate, a, bit);
    if (before == 0) return {.again = Rule::is_done(units.done, a) ? ChipPass::answer : ChipPass::none};
    Entry entry{.accepted = true, .adds = !Rule::seen(before, bit), .first = before == chip_accepted};
    if (Rule::is_complete(before, bit, everyone_)) {
      if (root_) entry.again = ChipPass::answer;
      if (!root_ && Rule::goes_up(before, bit)) entry.again = ChipPass::upstream;
    }
    return entry;
  }
  // The rest of that pass. `sums` and `payload`: of equal length, in network order.
  void add(const ChipRound& of, const Entry& entry, const Exponents& exponents, std::span<const std::byte> payload,
           std::byte* sums) {
    Units& units = at(of);
    if (entry.first) return store(of, exponents, payload, sums);
    for (std::size_t i = 0; i < exponents.size(); ++i) units.exponents[i] = chip_larger(units.exponents[i], exponents[i]);
    kernels::add_int32_network(sums, payload.data(), payload.size() / 4);
  }

  // The second pass with an answer, which reads exponents() and the sums. True: it is for all members; false: for the
  // sender.
  bool harvest(const ChipRound& of) { return root_ && close(of); }

  // The only pass of the parent's result. True: it is for all members, and the rest of the pass stores it in place of the
  // sum; false: nobody waits for it.
  bool close(const ChipRound& of) {
    Units& units = at(of);
    const std::uint32_t a = 2 * of.round;
    if (!Rule::leave(units.gate, a)) return false;
    Rule::finish(units.done, a);
    return true;
  }
  void store(const ChipRound& of, const Exponents& exponents, std::span<const std::byte> payload, std::byte* sums) {
    at(of).exponents = exponents;
    std::memcpy(sums, payload.data(), payload.size());
  }
  [[nodiscard]] const Exponents& exponents(const ChipRound& of) const { return units_[index(of)].exponents; }

  [[nodiscard]] bool is_done(const ChipRound& of) const { return Rule::is_done(units_[index(of)].done, 2 * of.round); }
  [[nodiscard]] bool is_early(const ChipRound& of) const { return chip_is_early(&units_[index(of)].gate, 2 * of.round); }
  [[nodiscard]] std::size_t size() const { return units_.size(); }  // versions of slots, by index()
  // Versions of slots with a round that is not complete.
  [[nodiscard]] std::uint32_t open() const {
    std::uint32_t count = 0;
    for (const Units& unit : units_) count += chip_is_open(&unit.gate);
    return count;
  }
  [[nodiscard]] std::uint32_t missing(std::size_t number) const { return chip_missing(&units_[number].gate, everyone_); }
  [[nodiscard]] bool was_used(std::size_t number) const { return units_[number].gate.x != 0; }

  void append_state(std::vector<std::byte>& out) const {
    for (const Units& units : units_) {
      append_bytes(out, units.gate.x, units.gate.bitmap, units.done, units.exponents[0], units.exponents[1]);
    }
  }

 private:
  [[nodiscard]] Units& at(const ChipRound& of) { return units_[index(of)]; }

  std::vector<Units> units_;
  std::uint32_t everyone_ = 0;
  bool root_ = true;
};

using ChipSlots = BasicChipSlots<ChipRule>;

}  // namespace netsum::switchml
