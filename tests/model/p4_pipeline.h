// The pipeline of p4/netsum_v1model.p4 (control Sum) in C++: stage by stage, register by register, one pass of one packet at
// a time. A register that a pass accesses twice is an error, as a chip cannot do it.
//
// Of a half's 32 words there is one here, as all 32 registers of sums do the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "model/explore.h"

namespace netsum::model {

template <class T>
class P4Register {
 public:
  explicit P4Register(std::size_t entries, T value = {}) : entries_(entries, value) {}
  // `access(entry)`, once a pass.
  template <class Access>
  auto access(std::size_t index, std::uint64_t pass, const Access& access) {
    if (pass == last_pass_) throw Wrong("a register is accessed twice in a pass");
    last_pass_ = pass;
    return access(entries_.at(index));
  }
  [[nodiscard]] const std::vector<T>& entries() const { return entries_; }

 private:
  std::vector<T> entries_;
  std::uint64_t last_pass_ = 0;
};

enum class P4Kind : std::uint8_t { consume, answer };
enum class P4Outcome : std::uint8_t { again, contribution, silent, old, early, to_all, to_sender };

// What of a packet the pipeline reads and writes: headers, metadata that the table of members sets, and what a pass tells
// the next.
struct P4Packet {
  std::uint32_t slot = 0, version = 0, round = 0, bit_of = 0;
  std::uint16_t exponent = 0;
  std::uint32_t low = 0, high = 0;  // the pass's words
  P4Kind kind = P4Kind::consume;
  std::uint8_t quarter = 0;
  std::uint32_t offset = 0;
  bool added = false;  // of use for a rule that lacks a part alone
};

// Parts that a test may leave out, to see that it notices.
struct P4Rule {
  static constexpr bool gate_of_each_quarter = true;  // or: only the first one says whether the packet adds
  static constexpr bool compares_at_leave = true;
};

template <class Rule = P4Rule>
class P4Pipeline {
 public:
  P4Pipeline(std::uint32_t slots, std::uint32_t members, std::uint8_t quarters)
      : stride_(2 * slots),
        everyone_(accepted | ((1U << members) - 1)),
        last_quarter_(static_cast<std::uint8_t>(quarters - 1)),
        gate_(std::size_t{stride_} * quarters, Gate{0, accepted}),
        done_(std::size_t{stride_} * quarters),
        exponents_(std::size_t{stride_} * quarters),
        sums_(std::size_t{stride_} * quarters) {}

  // One pass. P4Outcome::again: `packet` has another one.
  P4Outcome pass(P4Packet& packet) {
    ++pass_;
    // Stages 0 and 1.
    const std::uint32_t a = packet.round << 1;
    const std::uint32_t index = packet.offset + (packet.slot << 1 | packet.version);
    return packet.kind == P4Kind::consume ? consume(packet, a, index) : answer(packet, a, index);
  }

  void append_state(std::vector<std::byte>& out) const {
    for (const Gate& gate : gate_.entries()) append_bytes(out, gate.x, gate.bitmap);
    for (const std::uint32_t done : done_.entries()) append_bytes(out, done);
    for (const std::uint16_t exponent : exponents_.entries()) append_bytes(out, exponent);
    for (const Pair& pair : sums_.entries()) append_bytes(out, pair.low, pair.high);
  }

 private:
  static constexpr std::uint32_t accepted = 0x80000000;
  struct Gate {
    std::uint32_t x, bitmap;
  };
  struct Pair {
    std::uint32_t low = 0, high = 0;
  };

  P4Outcome consume(P4Packet& packet, std::uint32_t a, std::uint32_t index) {
    // Stage 2.
    bool is_early = false;
    const std::uint32_t before = gate_.access(index, pass_, [&](Gate& gate) -> std::uint32_t {
      is_early = gate.x < a;
      if (gate.x != a && gate.x != a + 1) return 0;
      const std::uint32_t was = gate.bitmap;
      gate = {a + 1, was | packet.bit_of};
      return was;
    });
    // Stage 3.
    const bool matches = done_.access(index, pass_, [&](const std::uint32_t& done) { return done == a + 2; });
    const bool is_done = before == 0 && matches, is_refused = before == 0 && !matches;
    bool adds = before != 0 && (before & packet.bit_of) == 0;
    if (!Rule::gate_of_each_quarter && packet.quarter != 0) adds = packet.added;
    const bool is_complete = is_done || (before | packet.bit_of) == everyone_;
    if (adds && packet.quarter == 0) {
      exponents_.access(index, pass_, [&](std::uint16_t& exponent) {
        if (before == accepted || exponent < packet.exponent) exponent = packet.exponent;
      });
    }
    packet.added = adds;
    // Stages 4 to 11.
    if (adds) {
      sums_.access(index, pass_, [&](Pair& sum) {
        const std::uint32_t kept = before == accepted ? 0 : 0xffffffff;
        sum = {(sum.low & kept) + packet.low, (sum.high & kept) + packet.high};
      });
    }
    packet.low = packet.high = 0;
    // The end.
    if (is_refused) return is_early ? P4Outcome::early : P4Outcome::old;
    if (packet.quarter != last_quarter_) return go_on(packet, P4Kind::consume, packet.quarter + 1);
    if (is_complete) return go_on(packet, P4Kind::answer, packet.quarter);
    return adds ? P4Outcome::contribution : P4Outcome::silent;
  }

  P4Outcome answer(P4Packet& packet, std::uint32_t a, std::uint32_t index) {
    // Stage 2.
    const bool closes = gate_.access(index, pass_, [&](Gate& gate) {
      if (Rule::compares_at_leave && gate.x != a + 1) return false;
      gate = {a + 2, accepted};
      return true;
    });
    // Stage 3.
    if (closes) done_.access(index, pass_, [&](std::uint32_t& done) { done = a + 2; });
    // Stages 4 to 11.
    sums_.access(index, pass_, [&](const Pair& sum) {
      packet.low = sum.low;
      packet.high = sum.high;
    });
    // The end.
    if (packet.quarter != 0) return go_on(packet, P4Kind::answer, packet.quarter - 1);
    exponents_.access(index, pass_, [&](const std::uint16_t& exponent) { packet.exponent = exponent; });
    return closes ? P4Outcome::to_all : P4Outcome::to_sender;
  }

  P4Outcome go_on(P4Packet& packet, P4Kind kind, int quarter) const {
    packet.kind = kind;
    packet.quarter = static_cast<std::uint8_t>(quarter);
    packet.offset = packet.quarter * stride_;
    return P4Outcome::again;
  }

  std::uint32_t stride_, everyone_;
  std::uint8_t last_quarter_;
  std::uint64_t pass_ = 0;
  P4Register<Gate> gate_;
  P4Register<std::uint32_t> done_;
  P4Register<std::uint16_t> exponents_;
  P4Register<Pair> sums_;
};

}  // namespace netsum::model
