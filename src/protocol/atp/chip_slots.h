// The slots of a chip, in place of switch.cc's: docs/protocol-atp.md, "On a chip".
//
// A chip's packet goes through the pipeline twice, and comes to half of the values each time (App. C). Each pass is atomic,
// and nothing else is: between a packet's passes others have theirs, and it may be lost. So each half knows by itself whose
// values it has. tests/model/atp_chip_model_test.cc searches all orders.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "protocol/atp/chip_rule.h"

namespace netsum::atp {

// What each unit does with a packet. The model removes one part after the other.
struct ChipRule {
  static std::uint32_t enter(AtpChipOwner& owner, std::uint32_t high, std::uint32_t low, std::uint32_t window) {
    return atp_chip_enter(&owner, high, low, window);
  }
  static std::uint32_t leave(AtpChipOwner& owner, std::uint32_t high, std::uint32_t low) {
    return atp_chip_leave(&owner, high, low);
  }
  static bool agrees(std::uint32_t& mine, std::uint32_t found, std::uint32_t signature) {
    return atp_chip_agrees(&mine, found, signature);
  }
  static std::uint32_t mark(std::uint32_t& bitmap, std::uint32_t found, std::uint32_t bit) {
    return atp_chip_mark(&bitmap, found, bit);
  }
  static bool seen(std::uint32_t before, std::uint32_t bit) { return atp_chip_seen(before, bit); }
  static bool is_sum(std::uint32_t first, std::uint32_t second) { return atp_chip_is_sum(first, second); }
};

// A packet, as the units see it.
struct ChipPacket {
  std::uint32_t high = 0, low = 0;  // the identity: atp_chip_high()
  std::uint32_t signature = 0, bit = 0, window = 0;
  bool resend = false;
};

// The sums lie where their owner needs them.
template <class Rule>
class BasicChipSlots {
 public:
  // What a packet finds in a pass. It does not join what another chunk or another call has.
  struct Meeting {
    bool joins = false, agrees = false;
    bool adds = false;         // its child's first: add() follows
    bool stores = false;       // over what is there
    std::uint32_t bitmap = 0;  // with its own bit
  };
  struct Flags {
    bool ecn = false, overflow = false;
    std::uint8_t exponent = 0;
  };

 private:
  struct Half {
    AtpChipOwner owner{0, 0};
    std::uint32_t signature = 0, bitmap = 0;
    AtpChipOwner swept{0, 0};  // the owner at the last sweep
  };
  struct Slot {
    std::array<Half, 2> halves;
    Flags flags;
  };

 public:
  static constexpr std::size_t bytes_of_one = sizeof(Slot);

  BasicChipSlots() = default;
  explicit BasicChipSlots(std::uint32_t slots) : slots_(slots) {}

  [[nodiscard]] std::size_t size() const { return slots_.size(); }

  // ---- a gradient's pass through half 0 or 1

  [[nodiscard]] Meeting meet(std::size_t slot, std::size_t half, const ChipPacket& packet) {
    Half& at = slots_[slot].halves[half];
    const std::uint32_t found = packet.resend ? Rule::leave(at.owner, packet.high, packet.low)
                                              : Rule::enter(at.owner, packet.high, packet.low, packet.window);
    if (found == atp_chip_others) return {.agrees = true};
    if (!Rule::agrees(at.signature, found, packet.signature)) return {};
    const std::uint32_t before = Rule::mark(at.bitmap, found, packet.bit);
    const bool adds = !Rule::seen(before, packet.bit);
    return {.joins = true, .agrees = true, .adds = adds, .stores = adds && before == 0, .bitmap = before | packet.bit};
  }
  // The rest of that pass. `sums`, `payload`: the whole packet's, of which it takes its half.
  static void add(std::size_t half, const Meeting& meeting, std::span<const std::byte> payload, std::byte* sums) {
    if (!meeting.adds) return;
    const std::size_t split = payload.size() / 8 * 4;
    const std::size_t from = half == 0 ? 0 : split, bytes = half == 0 ? split : payload.size() - split;
    if (bytes == 0) return;
    if (meeting.stores) {
      std::memcpy(sums + from, payload.data() + from, bytes);
    } else {
      kernels::add_int32(sums + from, payload.data() + from, static_cast<std::uint32_t>(bytes / 4));
    }
  }
  // In the second pass: what is sticky in a sum.
  void note(std::size_t slot, const Meeting& second, const Flags& flags) {
    if (!second.joins) return;
    Flags& all = slots_[slot].flags;
    if (second.stores) all = {};
    all.ecn |= flags.ecn;
    all.overflow |= flags.overflow;
    all.exponent = std::max(all.exponent, flags.exponent);
  }
  [[nodiscard]] const Flags& flags(std::size_t slot) const { return slots_[slot].flags; }

  // Whether the packet leaves upstream as the sum, which is then of the children in second.bitmap.
  [[nodiscard]] static bool goes_up(const Meeting& first, const Meeting& second, bool resend, std::uint32_t everyone) {
    if (!first.joins || !second.joins || !Rule::is_sum(first.bitmap, second.bitmap)) return false;
    return resend || (second.bitmap == everyone && (first.adds || second.adds));
  }

  // ---- what comes from the server frees the slot, in two passes too

  // True: it held that chunk.
  bool leave(std::size_t slot, std::size_t half, std::uint32_t high, std::uint32_t low) {
    return Rule::leave(slots_[slot].halves[half].owner, high, low) != atp_chip_others;
  }

  // ---- the control plane: that a half is freed is right at any time, since what comes yet stores over it

  void free(std::size_t slot, std::size_t half) { slots_[slot].halves[half].owner.high = 0; }
  void free_job(std::uint32_t job) {
    for (Slot& slot : slots_) {
      for (Half& half : slot.halves) {
        if (half.owner.high >> 16 == job) half.owner.high = 0;
      }
    }
  }
  // What is still there since the last sweep has been abandoned. Returns how many slots.
  std::uint32_t sweep() {
    std::uint32_t freed = 0;
    for (Slot& slot : slots_) {
      bool old = false;
      for (Half& half : slot.halves) {
        const bool same = half.owner.high != 0 && half.owner.high == half.swept.high && half.owner.low == half.swept.low;
        if (same) half.owner.high = 0;
        old |= same;
        half.swept = half.owner;
      }
      freed += old ? 1 : 0;
    }
    return freed;
  }
  [[nodiscard]] std::uint32_t in_use() const {
    return static_cast<std::uint32_t>(
        std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.halves[0].owner.high != 0; }));
  }
  [[nodiscard]] std::uint32_t in_use(std::uint32_t job) const {
    return static_cast<std::uint32_t>(std::count_if(
        slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.halves[0].owner.high >> 16 == job; }));
  }

  // Of what nobody has, nothing is read any more.
  void append_state(std::vector<std::byte>& out) const {
    for (const Slot& slot : slots_) {
      for (const Half& half : slot.halves) {
        append_bytes(out, half.owner.high);
        if (half.owner.high != 0) append_bytes(out, half.owner.low, half.signature, half.bitmap);
      }
      if (slot.halves[1].owner.high != 0) append_bytes(out, slot.flags.ecn, slot.flags.overflow, slot.flags.exponent);
    }
  }
  [[nodiscard]] bool has(std::size_t slot, std::size_t half) const { return slots_[slot].halves[half].owner.high != 0; }

 private:
  std::vector<Slot> slots_;
};

using ChipSlots = BasicChipSlots<ChipRule>;

}  // namespace netsum::atp
