// Vector kernels over packet payloads and tensors: Highway chooses this CPU's widest instruction set at run time.
//
// Pointers to payloads (`const std::byte*`, `std::byte*`) may have any alignment; payload words are little-endian int32.
// All counts are elements. docs/numerics.md derives scale, clamp and bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/wire_types.h"
#include "netsum/types.h"

namespace netsum::kernels {

// payload_sum[i] += payload[i], modulo 2^32.
void add_int32(std::byte* payload_sum, const std::byte* payload, std::size_t count);

// The same, and crc32c(packet, previous) in the same pass. The payload is the packet's end.
[[nodiscard]] std::uint32_t add_int32_and_crc32c(std::byte* payload_sum, std::span<const std::byte> packet,
                                                 std::size_t count, std::uint32_t previous);

// The same as add_int32() of words in network order.
void add_int32_network(std::byte* payload_sum, const std::byte* payload, std::size_t count);

// to[i] = from[i] in the other byte order. `to` may be `from`.
void swap_int32(std::byte* to, const std::byte* from, std::size_t count);

// mask[i] |= other[i], bytes.
void or_bytes(std::byte* mask, const std::byte* other, std::size_t count);

// As memcpy(), for long memory that is not read soon: the stores bypass the caches, and neither load nor evict lines. Later
// stores become visible after them.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes);
// Bytes of a tensor from which it has left the caches, at least in part, when an operation on it ends: other ranks of the
// host have theirs there.
inline constexpr std::size_t beyond_caches_from = std::size_t{4} << 20;

// One pass over a block: its largest_exponent(), and whether any element is not finite.
struct BlockScan {
  std::uint8_t exponent;
  bool nonfinite;
};
[[nodiscard]] BlockScan scan_block(const float* values, std::size_t count);

// Largest biased exponent (bits 30..23) over the finite elements: 0 ... 254; 0 also if there is none.
[[nodiscard]] std::uint8_t largest_exponent(const float* values, std::size_t count);

inline constexpr std::uint32_t block_elements = 256;  // of an exponent block
inline constexpr int exponent_bias = 126;             // with the exponent E, its magnitudes are below 2^(E - 126)
inline constexpr std::uint8_t largest_block_exponent = 254;

// The fixed-point format of one exponent block: a power-of-two scale and a clamp.
struct FixedPoint {
  int shift;           // value * 2^shift is the integer; 31 - ceil(log2 n) - (exponent - 126)
  std::int32_t limit;  // floor((2^31 - 1) / n)
};
[[nodiscard]] FixedPoint fixed_point(std::uint8_t block_exponent, std::uint32_t world_size);

// The largest magnitude that quantize() makes 0: half a unit, as the tie goes to the even 0.
[[nodiscard]] float largest_to_zero(FixedPoint format);

// The number of values other than 0 whose magnitude is at most `most`, which is finite.
[[nodiscard]] std::size_t count_nonzero_up_to(const float* values, std::size_t count, float most);

// payload[i] = clamp(round_to_nearest_even(values[i] * 2^shift), -limit, limit); 0 for NaN and infinity.
// Returns whether any element was NaN or infinite.
[[nodiscard]] bool quantize(std::byte* payload, const float* values, std::size_t count, FixedPoint format);

// The same after scan_block() found every value finite and none above the exponent of `format`: faster, as only values that
// round to the limit are clamped.
void quantize_finite(std::byte* payload, const float* values, std::size_t count, FixedPoint format);

// values[i] = payload[i] * 2^-shift / divisor, rounded to nearest even (an average as if in double and then to float, so
// that it is finite where the sum is not), subnormals kept. divisor is 1 for a sum and the world size for an average.
void dequantize(float* values, const std::byte* payload, std::size_t count, FixedPoint format, std::uint32_t divisor);

// Masks of the elements that are not finite, bit i % 8 of byte i / 8: `up` for +inf and NaN, `down` for -inf and NaN.
// Both have ceil(count / 8) bytes; padding bits are 0. OR over all ranks, then both set: NaN; up: +inf; down: -inf.
void nonfinite_masks(std::byte* up, std::byte* down, const float* values, std::size_t count);
void apply_nonfinite_masks(float* values, const std::byte* up, const std::byte* down, std::size_t count);

// values[i] /= divisor, rounded toward zero. Any alignment.
void divide_int32(std::int32_t* values, std::size_t count, std::uint32_t divisor);

// 16-bit float conversions; to 16 bits rounds to nearest even, NaN stays NaN, overflow becomes infinity.
void from_float16(float* values, const std::uint16_t* halves, std::size_t count);
void to_float16(std::uint16_t* halves, const float* values, std::size_t count);
void from_bfloat16(float* values, const std::uint16_t* halves, std::size_t count);
void to_bfloat16(std::uint16_t* halves, const float* values, std::size_t count);

// float32 that travels in 16 bits: as above, but a finite value stays finite, and is the type's largest at most.
void to_narrow_wire(DType travels, std::uint16_t* halves, const float* values, std::size_t count);

// Floats of 8 and of 4 bits, in blocks (`type`: block8, block4).

// `key` 0: to nearest even. Else up or down by chance, so that the mean is right; the chances follow from key and number,
// the first value's being `first`. Infinity and NaN come back as NaN. A value of more than 127 64ths becomes 127, of 4 bits
// one of more than 7 quarters 7.
void to_blocks(DType type, std::byte* out, const float* values, std::size_t count, std::uint64_t key, std::uint64_t first);
void from_blocks(DType type, float* values, const std::byte* blocks, std::size_t count, std::uint32_t divisor);
// The sum of all sources, each of so many bytes, added in float32 in their order, and rounded once, to nearest even and 8
// bits: elements_of_sum() bytes. `out` is none of the sources.
void sum_blocks(DType type, std::byte* out, std::span<const std::byte* const> sources, std::size_t bytes);
// The rounding alone, of sums that are a 2^13th of their size.
void round_to_blocks(std::byte* out, const float* sums, std::size_t count);

// Scaled integers, ATP's numbers: a float times one scale for the whole job, in int32, added exactly or caught overflowing;
// and the sum of the floats themselves, for chunks that overflowed (docs/numerics.md, "Scaled integers (ATP)").

// payload[i] = values[i] * scale, in double (exact for a float and 10^8), rounded to nearest even. Returns false if any is
// NaN, infinite, or leaves int32: such words are 0. Not in place.
[[nodiscard]] bool quantize_scaled(std::byte* payload, const float* values, std::size_t count, double scale);

// The largest magnitude that quantize_scaled() makes 0.
[[nodiscard]] float largest_to_zero(double scale);

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

// The paper's switch: sum[i] += payload[i], saturating: a word at the largest or smallest int32 stays there. Returns whether
// any word is saturated afterwards.
[[nodiscard]] bool add_int32_saturating(std::byte* sum, const std::byte* payload, std::size_t count);

// sum[i] += payload[i], float32 payload.
void add_floats(double* sum, const std::byte* payload, std::size_t count);

// sum[i] += payload[i] * scale, float32 payload, rounded as by quantize_scaled(); NaN, for good, where that is no int32.
void add_scaled(double* sum, const std::byte* payload, std::size_t count, double scale);

// payload[i] = the nearest float32 of scaled[i] / divisor, as from dequantize_scaled(), where scaled[i] is an int32; of
// sum[i] elsewhere. NaN becomes one NaN: which of two an addition keeps is up to the compiler.
void round_to_floats(std::byte* payload, const double* sum, const double* scaled, std::size_t count, double divisor);

// Sums of tensors that are all in this host's memory.

// out[i] = the result of quantizing, adding and dequantizing sources[0][i], sources[1][i], ... as above, one source per
// rank; blocks are counted from the first element. `copy`, if not null, receives the same. `out` may be one of the sources,
// `copy` not. All are aligned to the type. `divisor` is 1 or the number of sources (1 to 256). `travels`: the type of floats
// in packets: int32 (block fixed point), or a type that sum_gathered() below takes: the tensor's type or, for float32, one
// of 16 bits.
void sum_all(DType dtype, std::byte* out, std::byte* copy, std::span<const std::byte* const> sources, std::size_t count,
             std::uint32_t divisor, DType travels = DType::int32);

// In [begin, begin + count), at most one block: the number of values other than 0 that sum_all() of these sources, with
// int32, makes 0. Those of `counted` count, which are of the sources.
[[nodiscard]] std::size_t count_to_zero(DType dtype, std::span<const std::byte* const> sources,
                                        std::span<const std::byte* const> counted, std::size_t begin, std::size_t count);

// Sums of buffered contributions (NetReduce), added in the order of the sources.

// out[i] = (sources[0][i] + sources[1][i] + ...) / divisor. Floats: added in float32 (16-bit ones widened), divided there,
// and rounded to the type once; a sum that leaves float32 on the way is computed in double. int32: modulo 2^32, a quotient
// rounded toward zero. `out` is none of the sources; all may have any alignment.
void sum_in_order(DType dtype, std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
                  std::uint32_t divisor = 1);

// SwitchML's sums of floats that travel unconverted, of up to 256 sources. bfloat16: as above. float16: exact, as 2^24 times
// each value has 41 bits and a sum 49, and rounded once, after the division. float32: added and divided in double, rounded
// once. NaN and infinity as in IEEE addition, NaN in one form. `out` may be one of the sources.
void sum_gathered(DType dtype, std::byte* out, std::span<const std::byte* const> sources, std::size_t count,
                  std::uint32_t divisor = 1);

// Reductions other than sums of 32-bit integers and of short floats (docs/numerics.md, "Other operations").

// into[i] = into[i] `op` from[i], of integers; sum and product modulo 2^width. Their order does not matter. Any alignment.
void combine(ReduceOp op, DType integers, std::byte* into, const std::byte* from, std::size_t count);

// What an operation is on booleans: bit_and, bit_or or bit_xor.
[[nodiscard]] constexpr ReduceOp on_booleans(ReduceOp op) {
  if (op == ReduceOp::sum || op == ReduceOp::max) return ReduceOp::bit_or;
  return op == ReduceOp::product || op == ReduceOp::min ? ReduceOp::bit_and : op;
}
// out[i] = values[i] != 0.
void truths(std::byte* out, const std::byte* values, std::size_t count);

[[nodiscard]] constexpr DType integer_as_wide_as(DType floats) {
  return floats == DType::float64 ? DType::int64 : floats == DType::float32 ? DType::int32 : DType::int16;
}
// For min and max of floats: signed integers, as wide, in the order of the floats: -inf, ..., -0, +0, ..., +inf. NaN is the
// least for min, and the greatest for max, so that it stays; it comes back as one NaN. `out` may be `values`.
void to_ordered(ReduceOp op, DType floats, std::byte* out, const std::byte* values, std::size_t count);
void from_ordered(DType floats, std::byte* values, const std::byte* ordered, std::size_t count);

// out[i] = sources[0][i] `op` sources[1][i] `op` ..., in this order, of floats: sum, avg or product. In double, rounded to
// the type at the end (16 bits: through float32); sums of shorter floats as sum_gathered(). `out` is none of the sources.
void combine_in_order(ReduceOp op, DType floats, std::byte* out, std::span<const std::byte* const> sources,
                      std::size_t count, std::uint32_t divisor = 1);

// values[i] *= factor, of floats, in double, rounded once. Any alignment.
void scale(DType floats, std::byte* values, std::size_t count, double factor);

// values[i] /= divisor, of integers, rounded toward zero.
void divide(DType integers, std::byte* values, std::size_t count, std::uint32_t divisor);

// out[i] = the reduction of sources[0][i], sources[1][i], ..., one source per rank, with the bits that packets give. `out`,
// `copy`, `travels` and alignment as in sum_all(), which it includes.
void reduce_all(ReduceOp op, DType dtype, std::byte* out, std::byte* copy, std::span<const std::byte* const> sources,
                std::size_t count, DType travels = DType::int32);

}  // namespace netsum::kernels
