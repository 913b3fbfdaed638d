// How an operation is cut up: chunks (packets), and stripes of them, dealt to lanes.
//
// A stripe is the least number of packets that hold whole exponent blocks (256 elements, whatever the packet's length), so
// no block is in two stripes or two lanes. Without exponents a stripe is one packet. Stripes are dealt in runs, so that two
// cores do not read the same pages: as many stripes as the job's length of a run holds, or fewer in a short operation, of
// which each lane is to have several runs. Run u of operation o belongs to lane (u + o / 16) mod lanes: small operations use
// all lanes in turn, and consecutive ones use the same lane, whose thread is awake. An operation's parts (reduce-scatter,
// all-gather) are cut up each for itself, so that no chunk is of two, and take turns, so that no rank's link carries most of
// what is in flight.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "wire/switchml.h"

namespace netsum::switchml {

// Bytes on the wire of each part; the same at all ranks of a job.
inline constexpr std::uint32_t default_run_bytes = 16 << 10;

// Which lane of how many, and the most chunks in a run of a part: a power of two.
struct Dealt {
  std::uint32_t lane = 0, lanes = 1, run_chunks = 1;
};

// One of a lane's chunks of an operation.
struct Chunk {
  std::uint64_t index = 0;        // on the lane
  std::uint64_t offset = 0;       // in its part
  std::uint64_t first_block = 0;  // of those that it touches, counted over the lane's stripes
  std::uint32_t blocks = 0;
  std::uint32_t elements = 0;
  std::uint32_t number = 0;  // within the operation, the same on all lanes
  std::uint32_t part = 0;
};

class Stripes {
 public:
  static constexpr std::uint64_t operations_in_turn = 16;
  // Of each lane, at least: none then has more than an eighth more to do than another.
  static constexpr std::uint64_t runs_each = 8;

  Stripes() = default;
  Stripes(std::uint64_t wire_elements, std::uint64_t operation, std::uint32_t packet_elements, const Dealt& dealt,
          bool blocks = true, std::uint32_t parts = 1)
      : elements_(wire_elements),
        parts_(parts),
        packet_elements_(packet_elements),
        stripe_elements_(blocks ? std::lcm(packet_elements, wire::switchml::block_elements) : packet_elements),
        chunks_log_(static_cast<std::uint32_t>(std::countr_zero(stripe_elements_ / packet_elements))),
        lanes_(dealt.lanes),
        first_((dealt.lane + lanes_ - static_cast<std::uint32_t>(operation / operations_in_turn % lanes_)) % lanes_) {
    const std::uint64_t in_part = std::max<std::uint64_t>(1, (elements_ + stripe_elements_ - 1) / stripe_elements_);
    const std::uint64_t stripes = in_part * parts;
    const std::uint64_t longest = std::max<std::uint64_t>(1, dealt.run_chunks >> chunks_log_) * parts;
    const std::uint64_t run = std::bit_floor(std::clamp<std::uint64_t>(stripes / lanes_ / runs_each, 1, longest));
    run_log_ = static_cast<std::uint32_t>(std::countr_zero(run));
    const std::uint64_t runs = (stripes + run - 1) / run;
    const std::uint64_t own_runs = first_ < runs ? (runs - 1 - first_) / lanes_ + 1 : 0;
    const bool has_last = own_runs > 0 && first_ + (own_runs - 1) * lanes_ == runs - 1;
    count_ = own_runs * run - (has_last ? runs * run - stripes : 0);
    chunks_ = count_ << chunks_log_;
    // The last stripe of all may have fewer chunks. That of another part has as many as every stripe, if need be empty ones.
    if (has_last && parts == 1) chunks_ -= (std::uint64_t{1} << chunks_log_) - chunks_in(stripe_length(count_ - 1));
  }

  [[nodiscard]] std::uint64_t count() const { return count_; }    // stripes on this lane
  [[nodiscard]] std::uint64_t chunks() const { return chunks_; }  // chunks on this lane

  // Of the lane's chunks, so many in a row have numbers in a row, and all do from each multiple of it on: a power of two.
  [[nodiscard]] std::uint64_t in_a_row() const {
    return lanes_ == 1 ? std::uint64_t{1} << 63 : std::uint64_t{1} << (run_log_ + chunks_log_);
  }

  [[nodiscard]] Chunk at(std::uint64_t index) const {
    const std::uint64_t own = stripe(index), stripe = number_of(own);
    const std::uint64_t place = index & ((std::uint64_t{1} << chunks_log_) - 1);  // in the stripe
    const std::uint64_t begin = place * packet_elements_;
    Chunk chunk;
    chunk.index = index;
    chunk.offset = in_part(stripe) * stripe_elements_ + begin;
    chunk.elements = rest_of(chunk.offset, packet_elements_);
    chunk.number = static_cast<std::uint32_t>((stripe << chunks_log_) + place);
    chunk.part = parts_ == 1 ? 0 : static_cast<std::uint32_t>(stripe % parts_);
    chunk.first_block = first_block_of(own) + begin / wire::switchml::block_elements;
    const std::uint64_t end = begin % wire::switchml::block_elements + chunk.elements;
    if (chunk.elements != 0) {
      chunk.blocks = static_cast<std::uint32_t>((end + wire::switchml::block_elements - 1) / wire::switchml::block_elements);
    }
    return chunk;
  }
  [[nodiscard]] std::uint64_t stripe(std::uint64_t index) const { return index >> chunks_log_; }

  // For the lane's stripe `stripe`:
  [[nodiscard]] std::uint64_t stripe_offset(std::uint64_t stripe) const {
    return in_part(number_of(stripe)) * stripe_elements_;
  }
  [[nodiscard]] std::uint32_t stripe_length(std::uint64_t stripe) const {
    return rest_of(stripe_offset(stripe), stripe_elements_);
  }

  // Blocks, counted over the lane's stripes.
  [[nodiscard]] std::uint64_t blocks() const { return first_block_of(count_); }  // at most
  [[nodiscard]] std::uint64_t first_block_of(std::uint64_t stripe) const {
    return stripe * (stripe_elements_ / wire::switchml::block_elements);
  }

 private:
  // Of the lane's stripe, among those of all lanes.
  [[nodiscard]] std::uint64_t number_of(std::uint64_t stripe) const {
    const std::uint64_t run = first_ + (stripe >> run_log_) * lanes_;
    return (run << run_log_) + (stripe & ((std::uint64_t{1} << run_log_) - 1));
  }
  // Of a stripe's number among all.
  [[nodiscard]] std::uint64_t in_part(std::uint64_t number) const { return parts_ == 1 ? number : number / parts_; }
  [[nodiscard]] std::uint32_t rest_of(std::uint64_t offset, std::uint32_t most) const {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, elements_ - std::min(elements_, offset)));
  }
  [[nodiscard]] std::uint32_t chunks_in(std::uint32_t elements) const {
    return std::max(1U, (elements + packet_elements_ - 1) / packet_elements_);
  }

  std::uint64_t elements_ = 0;  // of a part
  std::uint32_t parts_ = 1;
  std::uint32_t packet_elements_ = wire::switchml::block_elements, stripe_elements_ = wire::switchml::block_elements;
  std::uint32_t chunks_log_ = 0;  // log2 of the chunks in a stripe, a power of two as 256 is
  std::uint32_t run_log_ = 0;     // log2 of the stripes in a run
  std::uint32_t lanes_ = 1, first_ = 0;
  std::uint64_t count_ = 0, chunks_ = 0;
};

}  // namespace netsum::switchml
