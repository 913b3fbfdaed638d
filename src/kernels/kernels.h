// Vector kernels over packet payloads and tensors: Highway, the widest instruction set of this CPU chosen at run time.
//
// Pointers to payloads (`const std::byte*`, `std::byte*`) may have any alignment; payload words are little-endian int32.
// All counts are elements. docs/numerics.md derives scale, clamp and bound.
#pragma once

#include <cstddef>
#include <cstdint>

#include "netsum/types.h"

namespace netsum::kernels {

// payload_sum[i] += payload[i], modulo 2^32.
void add_int32(std::byte* payload_sum, const std::byte* payload, std::size_t count);

// mask[i] |= other[i], bytes.
void or_bytes(std::byte* mask, const std::byte* other, std::size_t count);

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

// values[i] = payload[i] * 2^-shift / divisor, rounded to nearest even (an average as if in double and then to float, so
// that it is finite where the sum is not), subnormals kept. divisor is 1 for a sum and the world size for an average.
void dequantize(float* values, const std::byte* payload, std::size_t count, FixedPoint format, std::uint32_t divisor);

// Masks of the elements that are not finite, bit i % 8 of byte i / 8: `up` for +inf and NaN, `down` for -inf and NaN.
// Both have ceil(count / 8) bytes; padding bits are 0. OR over all ranks, then both set: NaN; up: +inf; down: -inf.
void nonfinite_masks(std::byte* up, std::byte* down, const float* values, std::size_t count);
void apply_nonfinite_masks(float* values, const std::byte* up, const std::byte* down, std::size_t count);

// values[i] /= divisor, rounded toward zero.
void divide_int32(std::int32_t* values, std::size_t count, std::uint32_t divisor);

// 16-bit float conversions; to 16 bits rounds to nearest even, NaN stays NaN, overflow becomes infinity.
void from_float16(float* values, const std::uint16_t* halves, std::size_t count);
void to_float16(std::uint16_t* halves, const float* values, std::size_t count);
void from_bfloat16(float* values, const std::uint16_t* halves, std::size_t count);
void to_bfloat16(std::uint16_t* halves, const float* values, std::size_t count);

}  // namespace netsum::kernels
