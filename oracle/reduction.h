// How floats are reduced, and how far from the exact result that may lead: docs/numerics.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "netsum/types.h"

namespace netsum::oracle {

// How floats travel and are added.
enum class Numbers : std::uint8_t {
  block_fixed_point,
  scaled,        // times 10^8
  rescaled,      // times 10^8, or the scale that the largest value allows
  in_double,     // unconverted, added one after the other in double
  in_order,      // unconverted, added one after the other in float32
  in_any_order,  // so, or more exactly, in no order that is known
  in_racks,      // as in_order, with racks' sums rounded to the tensor's type, on at most two levels below the root
  as_float16,    // rounded to float16 if they are float32, added exactly, and rounded once
  as_bfloat16,   // rounded to bfloat16 if they are float32, and added one after the other in float32
  as_block8,     // blocks of 64 rounded to 8 bits by chance, added one after the other in float32, and rounded to 8 bits
  as_block4,     // so, but rounded to 4 bits before
};
[[nodiscard]] constexpr bool in_blocks(Numbers numbers) {
  return numbers == Numbers::as_block8 || numbers == Numbers::as_block4;
}

struct Reduction {
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::float32;
  Numbers numbers = Numbers::block_fixed_point;
  std::uint32_t ranks = 1;
  std::uint32_t added_before =
      1;                      // inputs are added in float32 in groups of this many, a divisor of `ranks`, before they travel
  bool loses_blocks = false;  // an element that is not finite makes NaN of its block
  std::uint32_t block_elements = 256;    // block_fixed_point: that share an exponent
  std::optional<int> fixed_scale{};      // block_fixed_point: of all blocks, as `exponent` below
  std::vector<std::uint32_t> members{};  // their ranks; empty: 0 to ranks-1
  bool in_tree = false;                  // of switches, which add as_float16, as_bfloat16, as_block8 and as_block4 exactly
  bool saturates = false;                // scaled: the order of arrival decides which elements are summed as floats

  [[nodiscard]] std::uint32_t rank_at(std::uint32_t place) const { return members.empty() ? place : members[place]; }
  [[nodiscard]] std::uint32_t divisor() const { return op == ReduceOp::avg ? ranks : 1; }
};

// Values become integers: times this. All finite inputs of the block are below 2^exponent. 0: they do not.
[[nodiscard]] double scale_of(const Reduction& reduction, int exponent);

// What a result may be away from the exact one.
struct Bound {
  double fixed = 0;        // whatever the values are
  double of_inputs = 0;    // times the sum of the inputs' magnitudes
  double of_result = 0;    // times the largest that the result may be: it is rounded
  double of_smallest = 0;  // where it is rounded to a subnormal

  [[nodiscard]] double operator()(double exact, double magnitude) const {
    const double before = fixed + of_inputs * magnitude;
    return before + (std::fabs(exact) + before) * of_result + of_smallest;
  }
};
[[nodiscard]] Bound bound_of(const Reduction& reduction, int exponent);

}  // namespace netsum::oracle
