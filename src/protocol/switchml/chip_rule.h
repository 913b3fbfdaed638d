// What each register unit of a chip does with a packet: docs/protocol-switchml-chip.md. In C, so that the switch in C++
// (chip_slots.h), the model that searches it and the program in the kernel (dataplane/xdp) have one rule.
//
// `a`: twice the packet's round. `bit`: its member's. `before`: what the gate said of the packet.
#pragma once

#include "base/c_integers.h"

static const uint32_t chip_accepted = 1U << 31;  // always set in a bitmap, and so in what a gate says of a packet

// A unit of two words: at first {0, chip_accepted}. x is a once the round before was closed, and a + 1 while packets come
// for this one.
struct ChipGate {
  uint32_t x, bitmap;
};

// The bitmap as it was, or 0: the packet is of another round. Tofino 1's units have two comparisons, and one result for each
// of two words.
static inline uint32_t chip_enter(struct ChipGate* gate, uint32_t a, uint32_t bit) {
  const uint32_t before = gate->bitmap;
  if (gate->x != a && gate->x != a + 1) return 0;
  gate->x = a + 1;
  gate->bitmap = before | bit;
  return before;
}

static inline bool chip_seen(uint32_t before, uint32_t bit) {
  return (before & bit) != 0;
}

// A repeat that finds all bits set harvests too: the packet that should have was lost on its way to its second pass.
static inline bool chip_is_complete(uint32_t before, uint32_t bit, uint32_t everyone) {
  return (before | bit) == everyone;
}

// Below the root, whether a packet that finds the round complete takes the sum upstream: the last one, and then the first
// member's repeats alone. As long as the parent's result is not there, all members repeat.
static inline bool chip_goes_up(uint32_t before, uint32_t bit) {
  return !chip_seen(before, bit) || bit == 1;
}

// Whether the round was closed, and no later one of this version since.
static inline bool chip_is_done(uint32_t done, uint32_t a) {
  return done == a + 2;
}

// At the harvest, or when the parent's result comes; false: the round is not open. A second harvest, for a repeat, must not
// close the next round, and neither must a late copy of a result.
static inline bool chip_leave(struct ChipGate* gate, uint32_t a) {
  if (gate->x != a + 1) return false;
  gate->x = a + 2;
  gate->bitmap = chip_accepted;
  return true;
}

static inline void chip_finish(uint32_t* done, uint32_t a) {
  *done = a + 2;
}

// Exponents: the largest of all packets.
static inline uint16_t chip_larger(uint16_t one, uint16_t other) {
  return one < other ? other : one;
}

// Only for counting: a chip cannot tell these from packets of rounds long past.
static inline bool chip_is_early(const struct ChipGate* gate, uint32_t a) {
  return gate->x < a;
}

// All bits of a switch with so many members, which a complete round has.
static inline uint32_t chip_everyone(uint32_t members) {
  return chip_accepted | ((1U << members) - 1);
}
static inline bool chip_is_open(const struct ChipGate* gate) {
  return gate->x % 2 == 1;
}
// The members that an open round lacks, as bits; 0: it lacks none, or is closed.
static inline uint32_t chip_missing(const struct ChipGate* gate, uint32_t everyone) {
  return chip_is_open(gate) ? everyone & ~gate->bitmap : 0;
}
