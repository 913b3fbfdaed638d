#include "oracle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace netsum::app {
namespace {

constexpr std::size_t block_elements = 256;  // the exponent blocks of docs/numerics.md

template <class T>
using Block = std::array<T, block_elements>;

[[nodiscard]] std::uint64_t mix(std::uint64_t value) {  // SplitMix64's finalizer
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

[[nodiscard]] std::uint64_t block_key(std::uint64_t seed, std::uint32_t rank, std::uint64_t iteration, std::uint64_t block) {
  return mix(mix(mix(mix(seed + 0x9e3779b97f4a7c15u) + rank) + iteration) + block);
}

// Counter-based, so that each element costs a few vector instructions and none depends on another.
[[nodiscard]] std::uint32_t draw(std::uint32_t key, std::uint32_t index) {
  std::uint32_t value = key + index * 0x9e3779b9u;
  value = (value ^ (value >> 16)) * 0x7feb352du;
  value = (value ^ (value >> 15)) * 0x846ca68bu;
  return value ^ (value >> 16);
}

// Significant bits of an input, and the range of a block's exponent. Inputs are exact in their type and sums of up to 256 of
// them are exact in double: 24 bits + 15 of exponents + 8 of ranks.
struct Shape {
  int bits;
  int smallest_exponent;
  std::uint32_t exponents;  // a power of two
};
constexpr Shape shape_of(DType dtype, Numbers numbers, int magnitude) {
  // Gradients as ATP's one scale expects them: below 1/2, so that sums of some dozens of ranks do not overflow.
  if (numbers == Numbers::scaled || numbers == Numbers::rescaled) {
    if (dtype == DType::float16) return {11, -3, 2};
    return {dtype == DType::bfloat16 ? 8 : 24, magnitude - 9, 8};
  }
  if (numbers == Numbers::as_float16 && dtype == DType::float32) return {24, -3, 8};
  if (dtype == DType::float16) return {11, -3, 8};  // no subnormals, and no overflow with 256 ranks
  if (dtype == DType::bfloat16) return {8, magnitude - 8, 16};
  return {24, magnitude - 8, 16};
}

// The step of the integers that `ranks` values are rounded to, in double; `largest` holds the bits of the block's largest
// input, of which each value is a sum of `added`.
[[nodiscard]] double unit_of(const Shape& shape, Numbers numbers, std::uint32_t largest, std::uint32_t ranks,
                             std::uint32_t added) {
  const int growth = added == 1 ? 0 : static_cast<int>(std::bit_width(added));
  const int ranks_log = static_cast<int>(std::bit_width(ranks - 1)) + growth;
  if (numbers == Numbers::scaled) return 1e-8;
  if (numbers == Numbers::in_order || numbers == Numbers::in_racks) return 0;       // no rounding before the additions
  if (numbers == Numbers::as_float16 || numbers == Numbers::as_bfloat16) return 0;  // or not to a fixed step
  if (numbers == Numbers::block_fixed_point) return std::ldexp(1.0, static_cast<int>(largest >> 23) - 126 + ranks_log - 31);
  // Packet boundaries and contents are unknown here, so assume the largest possible input. One more bit for 256 ranks.
  const int above = shape.smallest_exponent + static_cast<int>(shape.exponents);
  return std::max(1e-8, std::ldexp(1.0, above + ranks_log + (ranks == 256 ? 1 : 0) - 31));
}

[[nodiscard]] float scale_of(std::uint64_t key, const Shape& shape) {
  const auto exponent = static_cast<int>((key >> 32) & (shape.exponents - 1)) + shape.smallest_exponent;
  return std::ldexp(1.0F, exponent - (shape.bits - 1));
}

[[nodiscard]] float value_of(std::uint32_t random, int bits, float scale) {
  return static_cast<float>(static_cast<std::int32_t>(random) >> (32 - bits)) * scale;
}

// 16-bit floats, in separate scalar code. To 16 bits: only zero and exact values in the normal range, as inputs are.
[[nodiscard]] std::uint16_t exact_float16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = (word & 0x7fffffffu) >> 13;
  const std::uint32_t sign = (word >> 16) & 0x8000u;
  return static_cast<std::uint16_t>(sign | (magnitude == 0 ? 0 : magnitude - (112u << 10)));
}
[[nodiscard]] float from_float16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t word = magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : std::bit_cast<std::uint32_t>(finite);
  return std::bit_cast<float>(word | sign);
}
[[nodiscard]] std::uint16_t exact_bfloat16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}
[[nodiscard]] float from_bfloat16(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

void fill_block(std::byte* out, std::size_t count, DType dtype, const Shape& shape, std::uint64_t key) {
  const auto low = static_cast<std::uint32_t>(key);
  const float scale = scale_of(key, shape);
  Block<std::uint32_t> words;
  Block<std::uint16_t> halves;
  switch (dtype) {
    default:  // int32: exact_oracle.h has the others
      for (std::uint32_t i = 0; i < block_elements; ++i) words[i] = draw(low, i);
      break;
    case DType::float32:
      for (std::uint32_t i = 0; i < block_elements; ++i) {
        words[i] = std::bit_cast<std::uint32_t>(value_of(draw(low, i), shape.bits, scale));
      }
      break;
    case DType::float16:
      for (std::uint32_t i = 0; i < block_elements; ++i)
        halves[i] = exact_float16(value_of(draw(low, i), shape.bits, scale));
      break;
    case DType::bfloat16:
      for (std::uint32_t i = 0; i < block_elements; ++i)
        halves[i] = exact_bfloat16(value_of(draw(low, i), shape.bits, scale));
      break;
  }
  if (bytes_of(dtype) == 4) {
    std::memcpy(out, words.data(), count * 4);
  } else {
    std::memcpy(out, halves.data(), count * 2);
  }
}

void load_floats(Block<float>& out, const std::byte* in, std::size_t count, DType dtype) {
  if (dtype == DType::float32) {
    std::memcpy(out.data(), in, count * 4);
    return;
  }
  Block<std::uint16_t> halves{};
  std::memcpy(halves.data(), in, count * 2);
  if (dtype == DType::float16) {
    for (std::size_t i = 0; i < block_elements; ++i) out[i] = from_float16(halves[i]);
  } else {
    for (std::size_t i = 0; i < block_elements; ++i) out[i] = from_bfloat16(halves[i]);
  }
}

// Half a unit in the last place of a result, relative to the result: the error that rounding to the type may add.
[[nodiscard]] double rounding_of(DType dtype) {
  const double narrow = dtype == DType::float16 ? 0x1p-11 : dtype == DType::bfloat16 ? 0x1p-8 : 0;
  return 0x1p-24 * (1 + 0x1p-20) + narrow;  // 16-bit types are rounded twice; a quotient is rounded to double first
}

struct Lanes {  // maxima kept per vector lane: a compiler may not reorder a maximum of doubles that might be NaN
  std::array<double, 8> error{}, bound{}, ratio{};
};

// Adds the block's verdict; `count` is a constant 256 except for a tensor's last block.
inline __attribute__((always_inline)) std::uint32_t check_floats(const std::byte* result, std::size_t count, DType dtype,
                                                                 Numbers numbers, const Shape& shape, double divisor,
                                                                 const std::uint64_t* keys, std::uint32_t ranks,
                                                                 std::uint32_t added_before, Lanes& lanes) {
  Block<double> sum{}, magnitude{};
  std::uint32_t largest = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto low = static_cast<std::uint32_t>(keys[rank]);
    const float scale = scale_of(keys[rank], shape);
    for (std::uint32_t i = 0; i < count; ++i) {
      const float value = value_of(draw(low, i), shape.bits, scale);
      sum[i] += static_cast<double>(value);
      magnitude[i] += std::fabs(static_cast<double>(value));
      largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
    }
  }
  // Quantization: half a unit per rank, the unit from the largest exponent over all ranks, or the same for all.
  const std::uint32_t quantized = ranks / added_before;
  const double quantization = quantized * unit_of(shape, numbers, largest, quantized, added_before) / 2 / divisor;
  // Added in float32: each addition rounds a value no larger than the sum of all magnitudes.
  const bool racks = numbers == Numbers::in_racks;
  const bool in_order = racks || numbers == Numbers::in_order || numbers == Numbers::as_bfloat16;
  const std::uint32_t added = in_order ? ranks : added_before;
  // float32 in 16 bits: each input and the sum are rounded; values below 2^-14 to a multiple of 2^-24 in float16, those
  // below 2^-126 of 2^-133 in bfloat16.
  const DType narrow = numbers == Numbers::as_float16 ? DType::float16 : DType::bfloat16;
  const bool narrowed = dtype == DType::float32 && (numbers == Numbers::as_float16 || numbers == Numbers::as_bfloat16);
  const double rounding = rounding_of(narrowed ? narrow : dtype);
  // The sums of a level's racks are also no larger than the sum of all magnitudes.
  const double of_racks = racks ? 2 * rounding * (1 + 0x1p-10) : 0;
  const double of_inputs = narrowed ? rounding * (1 + 0x1p-7) : 0;
  const double additions = ((added - 1) * 0x1p-24 * (1 + 0x1p-7) + of_racks + of_inputs) / divisor;
  const double half_step = dtype == DType::float16 || numbers == Numbers::as_float16 ? 0x1p-25
                           : dtype == DType::bfloat16 || narrowed                    ? 0x1p-134
                                                                                     : 0x1p-149;
  const double smallest = half_step * (narrowed ? 1 + ranks / divisor : 1);  // half of the smallest subnormal, or more

  Block<float> values{};
  load_floats(values, result, count, dtype);
  std::uint32_t wrong = 0;
  for (std::size_t begin = 0; begin < block_elements; begin += lanes.error.size()) {
    for (std::size_t lane = 0; lane < lanes.error.size(); ++lane) {
      const double exact = sum[begin + lane] / divisor;
      const double error = std::fabs(static_cast<double>(values[begin + lane]) - exact);
      const double before = quantization + additions * magnitude[begin + lane];
      const double bound = before + (std::fabs(exact) + before) * rounding + smallest;
      const double ratio = error / bound;
      // Beyond a short block's end both are 0. A NaN fails the comparison and so counts as wrong.
      wrong += error <= bound ? 0u : 1u;
      lanes.error[lane] = error > lanes.error[lane] ? error : lanes.error[lane];
      lanes.bound[lane] = bound > lanes.bound[lane] ? bound : lanes.bound[lane];
      lanes.ratio[lane] = ratio > lanes.ratio[lane] ? ratio : lanes.ratio[lane];
    }
  }
  return wrong;
}

// Sums modulo 2^32; an average is rounded toward zero. The bound is 0, so the difference itself is the error.
inline std::uint32_t check_int32(const std::byte* result, std::size_t count, std::uint32_t divisor,
                                 const std::uint64_t* keys, std::uint32_t ranks, double& max_error) {
  Block<std::uint32_t> sum{};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto low = static_cast<std::uint32_t>(keys[rank]);
    for (std::uint32_t i = 0; i < block_elements; ++i) sum[i] += draw(low, i);
  }
  if (divisor != 1) {
    for (auto& word : sum) {
      word = static_cast<std::uint32_t>(static_cast<std::int32_t>(word) / static_cast<std::int32_t>(divisor));
    }
  }
  if (std::memcmp(sum.data(), result, count * 4) == 0) return 0;
  Block<std::uint32_t> values{};
  std::memcpy(values.data(), result, count * 4);
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] == sum[i]) continue;
    ++wrong;
    const auto difference = std::int64_t{static_cast<std::int32_t>(values[i])} - static_cast<std::int32_t>(sum[i]);
    max_error = std::max(max_error, std::fabs(static_cast<double>(difference)));
  }
  return wrong;
}

}  // namespace

void Verdict::merge(const Verdict& other) {
  wrong += other.wrong;
  max_abs_error = std::max(max_abs_error, other.max_abs_error);
  error_bound = std::max(error_bound, other.error_bound);
  max_error_over_bound = std::max(max_error_over_bound, other.max_error_over_bound);
}

void Oracle::fill(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration) const {
  const std::size_t elements = tensor.size() / bytes_of(dtype_);
  for (std::size_t begin = 0; begin < elements; begin += block_elements) {
    fill_block(tensor.data() + begin * bytes_of(dtype_), std::min(block_elements, elements - begin), dtype_,
               shape_of(dtype_, numbers_, magnitude_), block_key(seed_, rank, iteration, begin / block_elements));
  }
}

Verdict Oracle::check(std::span<const std::byte> tensor, std::uint64_t iteration) const {
  const std::size_t elements = tensor.size() / bytes_of(dtype_);
  const std::uint32_t divisor = op_ == ReduceOp::avg ? world_size_ : 1;
  const Shape shape = shape_of(dtype_, numbers_, magnitude_);
  Verdict verdict;
  Lanes lanes;
  std::array<std::uint64_t, 256> keys{};
  for (std::size_t begin = 0; begin < elements; begin += block_elements) {
    for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
      keys[rank] = block_key(seed_, rank, iteration, begin / block_elements);
    }
    const std::size_t count = std::min(block_elements, elements - begin);
    const std::byte* result = tensor.data() + begin * bytes_of(dtype_);
    if (dtype_ == DType::int32) {
      verdict.wrong += check_int32(result, count, divisor, keys.data(), world_size_, verdict.max_abs_error);
    } else if (count == block_elements) {
      verdict.wrong += check_floats(result, block_elements, dtype_, numbers_, shape, divisor, keys.data(), world_size_,
                                    added_before_, lanes);
    } else {
      verdict.wrong +=
          check_floats(result, count, dtype_, numbers_, shape, divisor, keys.data(), world_size_, added_before_, lanes);
    }
  }
  for (std::size_t lane = 0; lane < lanes.error.size(); ++lane) {
    verdict.merge({0, lanes.error[lane], lanes.bound[lane], lanes.ratio[lane]});
  }
  return verdict;
}

std::uint64_t hash_of(std::uint64_t hash, std::uint64_t next) {
  return mix(hash ^ (next + 0x9e3779b97f4a7c15u));
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 4> lanes{1, 2, 3, 4};  // independent chains, for the multiplier's latency
  std::size_t at = 0;
  const auto step = [](std::uint64_t lane, std::uint64_t word) { return std::rotl(lane ^ word, 29) * 0x9fb21c651e98df25u; };
  for (; at + sizeof(lanes) <= bytes.size(); at += sizeof(lanes)) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = step(lanes[i], words[i]);
  }
  std::uint64_t hash = bytes.size();
  for (; at < bytes.size(); ++at) hash = step(hash, static_cast<std::uint64_t>(bytes[at]));
  for (const std::uint64_t lane : lanes) hash = hash_of(hash, lane);
  return hash;
}

}  // namespace netsum::app
