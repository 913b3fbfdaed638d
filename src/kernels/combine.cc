// Reductions other than block fixed point: integers of any width, in any order; floats as integers in the same order; and
// products and doubles, in rank order (docs/numerics.md, "Other operations").
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/combine.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// into[i] = body(into[i], from[i]) in whole vectors, the last of them padded.
template <class D, class Body>
HWY_INLINE void Both(D d, std::byte* into, const std::byte* from, std::size_t count, Body body) {
  using T = hn::TFromD<D>;
  const std::size_t lanes = hn::Lanes(d);
  auto* const to = reinterpret_cast<T*>(into);
  const auto* const other = reinterpret_cast<const T*>(from);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(body(hn::LoadU(d, to + i), hn::LoadU(d, other + i)), d, to + i);
  if (i == count) return;
  HWY_ALIGN T a[hn::MaxLanes(d)] = {}, b[hn::MaxLanes(d)] = {};
  const std::size_t rest = (count - i) * sizeof(T);
  std::memcpy(a, into + i * sizeof(T), rest);
  std::memcpy(b, from + i * sizeof(T), rest);
  hn::Store(body(hn::Load(d, a), hn::Load(d, b)), d, a);
  std::memcpy(into + i * sizeof(T), a, rest);
}

// Few vector units multiply 8 or 64 bits; products are rare.
template <class T>
HWY_INLINE void Multiply(std::byte* into, const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::make_unsigned_t<T> a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = static_cast<std::make_unsigned_t<T>>(std::uint64_t{a} * b);
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

template <class T>
HWY_INLINE void CombineAs(ReduceOp op, std::byte* into, const std::byte* from, std::size_t count) {
  const hn::ScalableTag<T> d;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return Both(d, into, from, count, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
    case ReduceOp::min:
      return Both(d, into, from, count, [](auto a, auto b) HWY_ATTR { return hn::Min(a, b); });
    case ReduceOp::max:
      return Both(d, into, from, count, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); });
    case ReduceOp::product:
      return Multiply<T>(into, from, count);
    case ReduceOp::bit_and:
      return Both(d, into, from, count, [](auto a, auto b) HWY_ATTR { return hn::And(a, b); });
    case ReduceOp::bit_or:
      return Both(d, into, from, count, [](auto a, auto b) HWY_ATTR { return hn::Or(a, b); });
    case ReduceOp::bit_xor:
      return Both(d, into, from, count, [](auto a, auto b) HWY_ATTR { return hn::Xor(a, b); });
  }
}

void Combine(ReduceOp op, DType integers, std::byte* into, const std::byte* from, std::size_t count) {
  switch (integers) {
    case DType::int64:
      return CombineAs<std::int64_t>(op, into, from, count);
    case DType::int32:
      return CombineAs<std::int32_t>(op, into, from, count);
    case DType::int16:
      return CombineAs<std::int16_t>(op, into, from, count);
    case DType::int8:
      return CombineAs<std::int8_t>(op, into, from, count);
    default:
      return CombineAs<std::uint8_t>(op, into, from, count);
  }
}

// The other way round for negative ones, so that integers compare as the floats with these bits do. Its own inverse.
template <class D, class V>
HWY_INLINE V Turned(D d, V bits) {
  return hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), hn::Set(d, std::numeric_limits<hn::TFromD<D>>::max())));
}

template <class T>
struct Bits {
  T infinity, nan;
};

template <class D, class V, class T>
HWY_INLINE V WithOneNan(D d, V bits, Bits<T> special) {
  const auto magnitude = hn::And(bits, hn::Set(d, std::numeric_limits<T>::max()));
  return hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, special.infinity)), hn::Set(d, special.nan), bits);
}

template <class T>
HWY_INLINE void OrderAs(bool back, bool nan_is_least, std::byte* out, const std::byte* in, std::size_t count,
                        Bits<T> special) {
  const hn::ScalableTag<T> d;
  if (back) {
    Both(d, out, in, count, [=](auto, auto v) HWY_ATTR { return WithOneNan(d, Turned(d, v), special); });
    return;
  }
  if (nan_is_least) special.nan = static_cast<T>(special.nan | std::numeric_limits<T>::min());
  Both(d, out, in, count, [=](auto, auto v) HWY_ATTR { return Turned(d, WithOneNan(d, v, special)); });
}

void Order(DType floats, bool back, bool nan_is_least, std::byte* out, const std::byte* in, std::size_t count) {
  switch (floats) {
    case DType::float64:
      return OrderAs<std::int64_t>(back, nan_is_least, out, in, count, {0x7ff0000000000000, 0x7ff8000000000000});
    case DType::float32:
      return OrderAs<std::int32_t>(back, nan_is_least, out, in, count, {0x7f800000, 0x7fc00000});
    case DType::float16:
      return OrderAs<std::int16_t>(back, nan_is_least, out, in, count, {0x7c00, 0x7e00});
    default:
      return OrderAs<std::int16_t>(back, nan_is_least, out, in, count, {0x7f80, 0x7fc0});
  }
}

void AddDoubles(std::byte* into, const std::byte* from, std::size_t count) {
  Both(hn::ScalableTag<double>(), into, from, count, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
}

void MultiplyDoubles(std::byte* into, const std::byte* from, std::size_t count) {
  Both(hn::ScalableTag<double>(), into, from, count, [](auto a, auto b) HWY_ATTR { return hn::Mul(a, b); });
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace netsum::kernels {
namespace {

HWY_EXPORT(Combine);
HWY_EXPORT(Order);
HWY_EXPORT(AddDoubles);
HWY_EXPORT(MultiplyDoubles);

constexpr std::size_t block = 256;
constexpr std::size_t most_ranks = 4096;
using Doubles = std::array<double, block>;
using Sources = std::span<const std::byte* const>;

[[nodiscard]] std::byte* bytes_of_doubles(Doubles& doubles) {
  return reinterpret_cast<std::byte*>(doubles.data());
}

// Floats of any width, as doubles, without rounding.
void widen(DType floats, Doubles& out, const std::byte* in, std::size_t count) {
  if (floats == DType::float64) return void(std::memcpy(out.data(), in, count * 8));
  std::array<float, block> singles;
  std::array<std::uint16_t, block> halves;
  if (floats == DType::float32) {
    std::memcpy(singles.data(), in, count * 4);
  } else {
    std::memcpy(halves.data(), in, count * 2);
    floats == DType::float16 ? from_float16(singles.data(), halves.data(), count)
                             : from_bfloat16(singles.data(), halves.data(), count);
  }
  std::copy_n(singles.begin(), count, out.begin());
}

// To the nearest value of the type, in one step for float32 and in two for 16 bits; one NaN.
void narrow(DType floats, std::byte* out, Doubles& in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(in[i])) in[i] = std::numeric_limits<double>::quiet_NaN();
  }
  if (floats == DType::float64) return void(std::memcpy(out, in.data(), count * 8));
  std::array<float, block> singles;
  for (std::size_t i = 0; i < count; ++i) singles[i] = static_cast<float>(in[i]);
  if (floats == DType::float32) return void(std::memcpy(out, singles.data(), count * 4));
  std::array<std::uint16_t, block> halves;
  floats == DType::float16 ? to_float16(halves.data(), singles.data(), count)
                           : to_bfloat16(halves.data(), singles.data(), count);
  std::memcpy(out, halves.data(), count * 2);
}

template <class T>
void divide_as(std::byte* values, std::size_t count, std::uint32_t divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, values + i * sizeof(T), sizeof(T));
    value = static_cast<T>(std::int64_t{value} / divisor);
    std::memcpy(values + i * sizeof(T), &value, sizeof(T));
  }
}

// In steps of a block, so that `out` may be one of the sources. step(sources, result, count).
template <class Step>
void by_blocks(std::size_t width, std::byte* out, std::byte* copy, Sources sources, std::size_t count, const Step& step) {
  std::array<const std::byte*, most_ranks> at;
  alignas(64) std::array<std::byte, block * 8> result;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t part = std::min(block, count - begin);
    for (std::size_t rank = 0; rank < sources.size(); ++rank) at[rank] = sources[rank] + begin * width;
    step(Sources(at.data(), sources.size()), result.data(), part);
    std::memcpy(out + begin * width, result.data(), part * width);
    if (copy != nullptr) std::memcpy(copy + begin * width, result.data(), part * width);
  }
}

}  // namespace

void combine(ReduceOp op, DType integers, std::byte* into, const std::byte* from, std::size_t count) {
  NETSUM_CHECK(!is_float(integers));
  HWY_DYNAMIC_DISPATCH(Combine)(op, integers, into, from, count);
}

void to_ordered(ReduceOp op, DType floats, std::byte* out, const std::byte* values, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(Order)(floats, false, op == ReduceOp::min, out, values, count);
}

void from_ordered(DType floats, std::byte* values, const std::byte* ordered, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(Order)(floats, true, false, values, ordered, count);
}

void truths(std::byte* out, const std::byte* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = std::byte{values[i] != std::byte{0}};
}

void combine_in_order(ReduceOp op, DType floats, std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor) {
  if (has_blocks(floats)) return sum_blocks(floats, out, sources, count);
  if (op != ReduceOp::product && floats != DType::float64) return sum_gathered(floats, out, sources, count, divisor);
  Doubles result, next;
  const std::size_t width = netsum::bytes_of(floats);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t part = std::min(block, count - begin);
    widen(floats, result, sources[0] + begin * width, part);
    for (const std::byte* const source : sources.subspan(1)) {
      widen(floats, next, source + begin * width, part);
      if (op == ReduceOp::product) {
        HWY_DYNAMIC_DISPATCH(MultiplyDoubles)(bytes_of_doubles(result), bytes_of_doubles(next), part);
      } else {
        HWY_DYNAMIC_DISPATCH(AddDoubles)(bytes_of_doubles(result), bytes_of_doubles(next), part);
      }
    }
    if (divisor != 1) {
      for (std::size_t i = 0; i < part; ++i) result[i] /= divisor;
    }
    narrow(floats, out + begin * width, result, part);
  }
}

void scale(DType floats, std::byte* values, std::size_t count, double factor) {
  Doubles wide;
  const std::size_t width = netsum::bytes_of(floats);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t part = std::min(block, count - begin);
    widen(floats, wide, values + begin * width, part);
    for (std::size_t i = 0; i < part; ++i) wide[i] *= factor;
    narrow(floats, values + begin * width, wide, part);
  }
}

void divide(DType integers, std::byte* values, std::size_t count, std::uint32_t divisor) {
  if (divisor == 1) return;
  switch (integers) {
    case DType::int64:
      return divide_as<std::int64_t>(values, count, divisor);
    case DType::int32:
      return divide_as<std::int32_t>(values, count, divisor);
    case DType::int16:
      return divide_as<std::int16_t>(values, count, divisor);
    case DType::int8:
      return divide_as<std::int8_t>(values, count, divisor);
    default:
      return divide_as<std::uint8_t>(values, count, divisor);
  }
}

void reduce_all(ReduceOp op, DType dtype, std::byte* out, std::byte* copy, Sources sources, std::size_t count,
                DType travels) {
  const auto divisor = static_cast<std::uint32_t>(op == ReduceOp::avg ? sources.size() : 1);
  const bool sums = op == ReduceOp::sum || op == ReduceOp::avg;
  const std::size_t width = netsum::bytes_of(dtype);
  NETSUM_CHECK(!sources.empty() && sources.size() <= most_ranks);
  if (sums && (dtype == DType::int32 || (is_float(dtype) && dtype != DType::float64))) {
    return sum_all(dtype, out, copy, sources, count, divisor, travels);
  }
  if (is_float(dtype) && (sums || op == ReduceOp::product)) {
    return by_blocks(width, out, copy, sources, count, [&](Sources at, std::byte* result, std::size_t part) {
      combine_in_order(op, dtype, result, at, part, divisor);
    });
  }
  alignas(64) std::array<std::byte, block * 8> next;
  const bool floats = is_float(dtype);
  const DType integers = floats ? integer_as_wide_as(dtype) : dtype;
  const auto read = [&](const std::byte* from, std::byte* to, std::size_t part) {
    if (floats) return to_ordered(op, dtype, to, from, part);
    if (dtype == DType::boolean) return truths(to, from, part);
    std::memcpy(to, from, part * width);
  };
  by_blocks(width, out, copy, sources, count, [&](Sources at, std::byte* result, std::size_t part) {
    read(at[0], result, part);
    for (const std::byte* const source : at.subspan(1)) {
      read(source, next.data(), part);
      combine(dtype == DType::boolean ? on_booleans(op) : op, integers, result, next.data(), part);
    }
    if (floats) from_ordered(dtype, result, result, part);
    divide(integers, result, part, divisor);
  });
}

}  // namespace netsum::kernels
#endif
