#include "oracle/reduction.h"

#include <algorithm>
#include <bit>

namespace netsum::oracle {

double scale_of(const Reduction& reduction, int exponent) {
  const std::uint32_t ranks = reduction.ranks / reduction.added_before;
  const auto growth = [](std::uint32_t values) { return values == 1 ? 0 : static_cast<int>(std::bit_width(values)); };
  const int spare = 31 - static_cast<int>(std::bit_width(ranks - 1)) - growth(reduction.added_before) -
                    reduction.fixed_scale.value_or(exponent);
  switch (reduction.numbers) {
    case Numbers::block_fixed_point:
      return std::ldexp(1.0, spare);
    case Numbers::scaled:
      return 1e8;
    case Numbers::rescaled:  // from 256 ranks on, rounding may take a power of two of them beyond int32
      return std::min(1e8, std::ldexp(1.0, spare - (ranks >= 256 && std::has_single_bit(ranks) ? 1 : 0)));
    default:
      return 0;
  }
}

Bound bound_of(const Reduction& reduction, int exponent) {
  const Numbers numbers = reduction.numbers;
  const double divisor = reduction.divisor(), scale = scale_of(reduction, exponent);
  // Halves of units in the last place, relative to the value. float32 sums in 16 bits: each input is rounded, and the sum.
  const bool narrowed =
      reduction.dtype == DType::float32 && (numbers == Numbers::as_float16 || numbers == Numbers::as_bfloat16);
  const bool float16 = reduction.dtype == DType::float16 || numbers == Numbers::as_float16;
  const bool bfloat16 = !float16 && (reduction.dtype == DType::bfloat16 || numbers == Numbers::as_bfloat16);
  const double narrow = float16 ? 0x1p-11 : bfloat16 ? 0x1p-8 : 0;
  Bound bound;
  bound.of_result =
      0x1p-24 * (1 + 0x1p-20) + narrow;  // 16-bit types are rounded twice; a quotient is rounded to double first
  bound.of_smallest = float16 ? 0x1p-25 : bfloat16 ? 0x1p-134 : 0x1p-149;
  if (narrowed) bound.of_smallest *= 1 + reduction.ranks / divisor;
  if (scale != 0) bound.fixed = reduction.ranks / reduction.added_before / scale / 2 / divisor;
  if (in_blocks(numbers)) {
    // A step of each rank, 16 of those of 8 bits with 4, and one of the sum, which is less than twice the power of two above
    // the number of ranks.
    const double steps =
        (numbers == Numbers::as_block4 ? 16.0 : 1.0) * reduction.ranks + static_cast<double>(std::bit_ceil(reduction.ranks));
    bound.fixed = steps * std::ldexp(1.0, exponent - 7) / divisor;
    bound.of_smallest += steps * 0x1p-113 / divisor;
  }
  // Added in float32: each addition rounds a value no larger than the sum of all magnitudes. So do the racks of one level
  // together; a sum of subnormal values is one of their type.
  const bool racks = numbers == Numbers::in_racks;
  const bool in_order = racks || numbers == Numbers::in_order || numbers == Numbers::in_any_order ||
                        numbers == Numbers::as_bfloat16 || in_blocks(numbers);
  const std::uint32_t added = in_order ? reduction.ranks : reduction.added_before;
  bound.of_inputs = (added - 1) * 0x1p-24 * (1 + 0x1p-7);
  if (racks) bound.of_inputs += 2 * bound.of_result * (1 + bound.of_result);
  if (narrowed) bound.of_inputs += bound.of_result * (1 + 0x1p-7);
  bound.of_inputs /= divisor;
  return bound;
}

}  // namespace netsum::oracle
