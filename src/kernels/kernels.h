// Vector kernels over packet payloads and tensors: Highway, the widest instruction set of this CPU chosen at run time.
//
// Pointers to payloads (`const std::byte*`, `std::byte*`) may have any alignment; payload words are little-endian int32.
// All counts are elements. docs/numerics.md derives scale, clamp and bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "netsum/types.h"

namespace netsum::kernels {

// payload_sum[i] += payload[i], modulo 2^32.
void add_int32(std::byte* payload_sum, const std::byte* payload, std::size_t count);

// mask[i] |= other[i], bytes.
void or_bytes(std::byte* mask, const std::byte* other, std::size_t count);

// As memcpy(), for long memory that nobody reads soon: what it overwrites is not read into a cache first, and pushes nothing
// out of it. Stores that follow are seen after it.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes);

// One pass over a block: its largest_exponent(), and whether it has an element that is not finite.
struct BlockScan {
  std::uint8_t exponent;
  bool nonfinite;
};
[[nodiscard]] BlockScan scan_block(const float* values, std::size_t count);

// Largest biased exponent (bits 30..23) over the finite elements: 0 ... 254; 0 also if there is none.
[[nodiscard]] std::uint8_t largest_exponent(const float* values, std::size_t count);

// The fixed-point format of one exponent block (256 elements): a power-of-two scale and a clamp.
struct FixedPoint {
  int shift;           // value * 2^shift is the integer; 31 - ceil(log2 n) - (exponent - 126)
  std::int32_t limit;  // floor((2^31 - 1) / n)
};
[[nodiscard]] FixedPoint fixed_point(std::uint8_t block_exponent, std::uint32_t world_size);

// payload[i] = clamp(round_to_nearest_even(values[i] * 2^shift), -limit, limit); 0 for NaN and infinity.
// Returns whether any element was NaN or infinite.
[[nodiscard]] bool quantize(std::byte* payload, const float* values, std::size_t count, FixedPoint format);

// The same where scan_block() has said that every value is finite, and none above the exponent of `format`: faster, as
// nothing but what rounds to the limit is clamped.
void quantize_finite(std::byte* payload, const float* values, std::size_t count, FixedPoint format);

// values[i] = payload[i] * 2^-shift / divisor, rounded to nearest even (an average as if in double and then to float, so
// that it is finite where the sum is not), subnormals kept. divisor is 1 for a sum and the world size for an average.
void dequantize(float* values, const std::byte* payload, std::size_t count, FixedPoint format, std::uint32_t divisor);

// Masks of the elements that are not finite, bit i % 8 of byte i / 8: `up` for +inf and NaN, `down` for -inf and NaN.
// Both have ceil(count / 8) bytes; padding bits are 0. OR over all ranks, then both set: NaN; up: +inf; down: -inf.
void nonfinite_masks(std::byte* up, std::byte* down, const float* values, std::size_t count);
void apply_nonfinite_masks(float* values, const std::byte* up, const std::byte* down, std::size_t count);

// values[i] /= divisor, rounded toward zero. Of any alignment.
void divide_int32(std::int32_t* values, std::size_t count, std::uint32_t divisor);

// 16-bit float conversions; to 16 bits rounds to nearest even, NaN stays NaN, overflow becomes infinity.
void from_float16(float* values, const std::uint16_t* halves, std::size_t count);
void to_float16(std::uint16_t* halves, const float* values, std::size_t count);
void from_bfloat16(float* values, const std::uint16_t* halves, std::size_t count);
void to_bfloat16(std::uint16_t* halves, const float* values, std::size_t count);

// Scaled integers, ATP's numbers: a float times one scale for the whole job, in int32, added exactly or caught overflowing;
// and the sum of the floats themselves, for what overflowed (docs/numerics.md, "Scaled integers (ATP)").

// payload[i] = values[i] * scale, in double (exact for a float and 10^8), rounded to nearest even. Returns false if any is
// NaN, infinite, or leaves int32: such words are 0. Not in place.
[[nodiscard]] bool quantize_scaled(std::byte* payload, const float* values, std::size_t count, double scale);

// values[i] = payload[i] / (scale * divisor), in double, then to the nearest float, subnormals kept.
void dequantize_scaled(float* values, const std::byte* payload, std::size_t count, double scale, std::uint32_t divisor);

// sum[i] += payload[i] modulo 2^32. Returns whether the exact value of any left int32: then carry_int32 says where.
[[nodiscard]] bool add_int32_checked(std::byte* sum, const std::byte* payload, std::size_t count);

// After add_int32_checked(sum, payload): high[i] (int16) += 1 where the addition passed 2^31 - 1, -= 1 where it fell below
// -2^31; high[i] * 2^32 + sum[i] is then exact. The sum before is recomputed, as sum - payload.
void carry_int32(std::byte* high, const std::byte* sum, const std::byte* payload, std::size_t count);

// high[i] += other[i], int16, modulo 2^16.
void add_int16(std::byte* high, const std::byte* other, std::size_t count);

// Whether every byte is 0.
[[nodiscard]] bool all_zero(const std::byte* bytes, std::size_t count);

// The paper's switch: sum[i] += payload[i], held at the largest or the smallest int32 once it gets there: a word at either
// end stays. Returns whether any word is at either end afterwards.
[[nodiscard]] bool add_int32_saturating(std::byte* sum, const std::byte* payload, std::size_t count);

// sum[i] += payload[i], float32 payload.
void add_floats(double* sum, const std::byte* payload, std::size_t count);

// payload[i] = sum[i] as the nearest float32.
void round_to_floats(std::byte* payload, const double* sum, std::size_t count);

// Sums of tensors that all ranks' memory is at hand for.

// out[i] = what add, quantize and their reverse above make of sources[0][i], sources[1][i], ... of as many ranks; blocks are
// counted from the first element. `copy`, if not null, receives the same. `out` may be one of the sources, `copy` not. All
// are aligned to the type. `divisor` is 1 or the number of sources, of which there are 1 to 256.
// `travels`: as what floats would travel in packets: int32 (block fixed point), or a type that sum_gathered() below takes,
// the tensor's own or, of float32, one of 16 bits.
void sum_all(DType dtype, std::byte* out, std::byte* copy, std::span<const std::byte* const> sources, std::size_t count,
             std::uint32_t divisor, DType travels = DType::int32);

// Sums of buffered contributions (NetReduce): the elements of all sources, added in their order.

// out[i] = (sources[0][i] + sources[1][i] + ...) / divisor. Floats: added in float32 (16-bit ones widened), divided there,
// and rounded to the type once; a sum that leaves float32 on the way is formed in double. int32: modulo 2^32, a quotient
// rounded toward zero. `out` is none of the sources; all may have any alignment.
void sum_in_order(DType dtype, std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
                  std::uint32_t divisor = 1);

// SwitchML's sums of floats that travel as they are, of up to 256 sources. bfloat16: as above. float16: exactly, as 2^24
// times each value has 41 bits and a sum 49, and rounded once, after the division. float32: added and divided in double,
// rounded once. NaN and infinity as IEEE addition has them, NaN in one form. `out` may be one of the sources.
void sum_gathered(DType dtype, std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
                  std::uint32_t divisor = 1);

}  // namespace netsum::kernels
