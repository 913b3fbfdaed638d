// What each register unit of a chip does with a packet of ATP's: docs/protocol-atp.md, "On a chip". In C, so that the switch
// in C++ (chip_slots.h), the model that searches it and a program in the kernel have one rule.
//
// A slot has two halves, each with units of its own, as a packet comes to them in two passes (App. C). Within one, it meets
// them in this order: owner, signature, bitmap, values. `found`: what the owner's unit said of the packet.
#pragma once

#include "base/c_integers.h"

static const uint32_t atp_chip_children = 32;  // bits of a bitmap

// high 0: nobody. Else the upper 16 bits are a job's number, as the control plane gave it, and the lower 16 and `low` the
// sequence number.
struct AtpChipOwner {
  uint32_t high, low;
};
enum { atp_chip_others = 0, atp_chip_ours = 1, atp_chip_taken = 2 };

// Longer sequence numbers pass on: nothing comes again.
static const uint64_t atp_chip_sequences = 1ULL << 48;  // `upper` has 16 bits
static inline uint32_t atp_chip_high(uint32_t job, uint32_t upper) {
  return job << 16 | upper;
}

// A packet that may take the half. A sender of what is a window later has the result of what is in it.
static inline uint32_t atp_chip_enter(struct AtpChipOwner* owner, uint32_t high, uint32_t low, uint32_t window) {
  const bool same = owner->high == high;
  if (same && owner->low == low) return atp_chip_ours;
  if (owner->high != 0 && !(same && low - owner->low - window < 1U << 31)) return atp_chip_others;
  owner->high = high;
  owner->low = low;
  return atp_chip_taken;
}

// One that frees it: a resend, which is added yet; and what comes from the server.
static inline uint32_t atp_chip_leave(struct AtpChipOwner* owner, uint32_t high, uint32_t low) {
  if (owner->high != high || owner->low != low) return atp_chip_others;
  owner->high = 0;
  return atp_chip_ours;
}

// False: another call has this sequence number, and the packet passes on.
static inline bool atp_chip_agrees(uint32_t* mine, uint32_t found, uint32_t signature) {
  if (found == atp_chip_taken) *mine = signature;
  return *mine == signature;
}

// The bitmap as it was; 0: the packet's values are stored over what is there.
static inline uint32_t atp_chip_mark(uint32_t* bitmap, uint32_t found, uint32_t bit) {
  const uint32_t before = found == atp_chip_taken ? 0 : *bitmap;
  *bitmap = before | bit;
  return before;
}
static inline bool atp_chip_seen(uint32_t before, uint32_t bit) {
  return (before & bit) != 0;
}

// After both passes, of which either may have been lost for others: whether the values of both halves are of the same
// children, whose sum they are.
static inline bool atp_chip_is_sum(uint32_t first, uint32_t second) {
  return first == second;
}

static inline uint32_t atp_chip_everyone(uint32_t children) {
  return children == 32 ? UINT32_MAX : (1U << children) - 1;
}
