// Exact sums of floats of 16, 8 or 4 bits, whatever the order and the grouping: what switches in a tree send one another
// (docs/numerics.md, "Trees"). Values are multiples of the least of their type, so sums are integers, in limbs of 32 bits
// with room for 4,096 ranks. A sum travels as planes: digits with a sign, of as many bits as the values have, all of one
// place; what is 0 in all sums stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/wire_types.h"

namespace netsum::kernels {

class ExactSum {
 public:
  [[nodiscard]] static std::size_t memory_bytes(std::size_t values);

  // Of payloads of so many elements, in memory of memory_bytes() at a cache line. It has what was there: clear() begins.
  ExactSum(DType travels, std::size_t elements, std::byte* memory);
  void clear();

  void add(const std::byte* payload);  // a rank's values
  // A part of another sum; `place` is at most SumParts::most_place, or SumParts::masks. A sum that has no masks says so.
  void add_part(std::uint32_t place, const std::byte* part);
  void add_no_masks();

  // When all is added: the parts, which are the same for all orders and groupings; then nothing may be added.
  void settle();
  [[nodiscard]] std::size_t parts() const;
  [[nodiscard]] std::uint32_t place_of(std::size_t part) const;
  void write_part(std::size_t part, std::byte* out) const;

  // The sums, rounded to double, divided there, and rounded to the type; of blocks not divided, and as sum_blocks() rounds.
  // elements_of_sum() elements.
  void round(std::byte* out, std::uint32_t divisor) const;

  void append_state(std::vector<std::byte>& out) const;

 private:
  struct State;
  [[nodiscard]] State& state() const;
  [[nodiscard]] std::int64_t* limb(std::uint32_t number) const;
  [[nodiscard]] std::byte* mask(std::size_t number) const;  // up, down, minus
  void touch(std::uint32_t first, std::uint32_t last);
  void set_special(std::size_t value, bool up, bool down);
  void add_halves(const std::byte* payload);
  void add_blocks(const std::byte* payload);
  void add_values(const std::int32_t* values, const std::int32_t* places, std::size_t begin, std::size_t count,
                  std::int32_t least, std::int32_t most);
  void normalize();
  void doubles(double* out, std::size_t begin, std::size_t count) const;

  DType travels_;
  std::size_t values_, stride_;  // stride: bytes of a limb
  std::byte* memory_;
};

}  // namespace netsum::kernels
