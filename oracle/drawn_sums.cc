#include "oracle/drawn_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "oracle/narrow.h"

namespace netsum::oracle {
namespace {

constexpr std::size_t block_elements = 256;  // the exponent blocks of docs/numerics.md

template <class T>
using Block = std::array<T, block_elements>;

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

[[nodiscard]] float unit_of(std::uint64_t key, const Shape& shape) {
  const auto exponent = static_cast<int>((key >> 32) & (shape.exponents - 1)) + shape.smallest_exponent;
  return std::ldexp(1.0F, exponent - (shape.bits - 1));
}

[[nodiscard]] float value_of(std::uint32_t random, int bits, float scale) {
  return static_cast<float>(static_cast<std::int32_t>(random) >> (32 - bits)) * scale;
}

// To 16 bits: only zero and exact values in the normal range, as inputs are.
[[nodiscard]] std::uint16_t exact_float16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = (word & 0x7fffffffu) >> 13;
  const std::uint32_t sign = (word >> 16) & 0x8000u;
  return static_cast<std::uint16_t>(sign | (magnitude == 0 ? 0 : magnitude - (112u << 10)));
}
[[nodiscard]] std::uint16_t exact_bfloat16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

void fill_block(std::byte* out, std::size_t count, DType dtype, const Shape& shape, std::uint64_t key) {
  const auto low = static_cast<std::uint32_t>(key);
  const float scale = unit_of(key, shape);
  Block<std::uint32_t> words;
  Block<std::uint16_t> halves;
  switch (dtype) {
    default:  // int32
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

struct Lanes {  // maxima kept per vector lane: a compiler may not reorder a maximum of doubles that might be NaN
  std::array<double, 8> error{}, bound{}, ratio{};
};

// Adds the block's verdict; `count` is a constant 256 except for a tensor's last block.
inline __attribute__((always_inline)) std::uint32_t check_floats(const std::byte* result, std::size_t count,
                                                                 const Reduction& reduction, const Shape& shape,
                                                                 const std::uint64_t* keys, Lanes& lanes) {
  Block<double> sum{}, magnitude{};
  std::uint32_t largest = 0;
  for (std::uint32_t rank = 0; rank < reduction.ranks; ++rank) {
    const auto low = static_cast<std::uint32_t>(keys[rank]);
    const float scale = unit_of(keys[rank], shape);
    for (std::uint32_t i = 0; i < count; ++i) {
      const float value = value_of(draw(low, i), shape.bits, scale);
      sum[i] += static_cast<double>(value);
      magnitude[i] += std::fabs(static_cast<double>(value));
      largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
    }
  }
  // Where a scale is of more elements than this block, assume the largest possible input.
  const bool by_block = reduction.numbers == Numbers::block_fixed_point || in_blocks(reduction.numbers);
  const int exponent =
      by_block ? static_cast<int>(largest >> 23) - 126 : shape.smallest_exponent + static_cast<int>(shape.exponents);
  const Bound bound_at = bound_of(reduction, exponent);
  const double divisor = reduction.divisor();

  Block<float> values{};
  load_floats(values, result, count, reduction.dtype);
  std::uint32_t wrong = 0;
  for (std::size_t begin = 0; begin < block_elements; begin += lanes.error.size()) {
    for (std::size_t lane = 0; lane < lanes.error.size(); ++lane) {
      const double exact = sum[begin + lane] / divisor;
      const double error = std::fabs(static_cast<double>(values[begin + lane]) - exact);
      const double bound = bound_at(exact, magnitude[begin + lane]);
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

void fill_sums(std::uint64_t seed, const Reduction& reduction, int magnitude, std::span<std::byte> tensor,
               std::uint32_t rank, std::uint64_t iteration) {
  const std::size_t width = bytes_of(reduction.dtype), elements = tensor.size() / width;
  const Shape shape = shape_of(reduction.dtype, reduction.numbers, magnitude);
  for (std::size_t begin = 0; begin < elements; begin += block_elements) {
    fill_block(tensor.data() + begin * width, std::min(block_elements, elements - begin), reduction.dtype, shape,
               mix(drawn_key(seed, rank, iteration) + begin / block_elements));
  }
}

Verdict check_sums(std::uint64_t seed, const Reduction& reduction, int magnitude, std::span<const std::byte> tensor,
                   std::uint64_t iteration) {
  const std::size_t width = bytes_of(reduction.dtype), elements = tensor.size() / width;
  const Shape shape = shape_of(reduction.dtype, reduction.numbers, magnitude);
  Verdict verdict;
  Lanes lanes;
  std::vector<std::uint64_t> keys(reduction.ranks);
  for (std::size_t begin = 0; begin < elements; begin += block_elements) {
    for (std::uint32_t place = 0; place < reduction.ranks; ++place) {
      keys[place] = mix(drawn_key(seed, reduction.rank_at(place), iteration) + begin / block_elements);
    }
    const std::size_t count = std::min(block_elements, elements - begin);
    const std::byte* result = tensor.data() + begin * width;
    if (reduction.dtype == DType::int32) {
      verdict.wrong += check_int32(result, count, reduction.divisor(), keys.data(), reduction.ranks, verdict.max_abs_error);
    } else if (count == block_elements) {
      verdict.wrong += check_floats(result, block_elements, reduction, shape, keys.data(), lanes);
    } else {
      verdict.wrong += check_floats(result, count, reduction, shape, keys.data(), lanes);
    }
  }
  for (std::size_t lane = 0; lane < lanes.error.size(); ++lane) {
    verdict.merge({0, lanes.error[lane], lanes.bound[lane], lanes.ratio[lane]});
  }
  return verdict;
}

}  // namespace netsum::oracle
