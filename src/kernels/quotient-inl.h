// Integers divided by one number, in double, for averages. Include it after hwy/highway.h in a source that foreach_target.h
// compiles once per target.
#if defined(NETSUM_KERNELS_QUOTIENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NETSUM_KERNELS_QUOTIENT_INL_H
#undef NETSUM_KERNELS_QUOTIENT_INL_H
#else
#define NETSUM_KERNELS_QUOTIENT_INL_H
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// integer / divisor, rounded once. `integer` holds int32.
struct ByDivision {
  double divisor;

  template <class Tag>
  HWY_INLINE hn::Vec<Tag> operator()(Tag d, hn::Vec<Tag> integer) const {
    return hn::Div(integer, hn::Set(d, divisor));
  }
};

// The same as integer * first + (integer * second), fused, for every int32; first is the rounded reciprocal, second its
// error. Before rounding, the sum's relative error is below 2^-104, and no quotient is that near to a rounding boundary:
// integer / (m * 2^k) is no midpoint T * 2^j of two doubles, as the odd T has 54 bits and the integer 32, so its relative
// distance from one is 1 / (m * T) > 2^-94 if m < 2^40. For ATP, m is 5^8 * ranks: 19 bits plus those of the ranks.
struct ByReciprocal {
  double first, second;

  [[nodiscard]] static HWY_INLINE bool is_exact(double divisor) {
    constexpr std::uint64_t low_bits = (std::uint64_t{1} << (53 - 40)) - 1;
    return HWY_NATIVE_FMA && divisor > 0x1p-900 && divisor < 0x1p900 &&
           (std::bit_cast<std::uint64_t>(divisor) & low_bits) == 0;
  }

  [[nodiscard]] static HWY_INLINE ByReciprocal of(double divisor) {
    const hn::CappedTag<double, 1> one;
    const auto by = hn::Set(one, divisor);
    const auto first = hn::Div(hn::Set(one, 1), by);
    return {hn::GetLane(first), hn::GetLane(hn::Mul(hn::NegMulAdd(first, by, hn::Set(one, 1)), first))};
  }

  template <class Tag>
  HWY_INLINE hn::Vec<Tag> operator()(Tag d, hn::Vec<Tag> integer) const {
    return hn::MulAdd(integer, hn::Set(d, first), hn::Mul(integer, hn::Set(d, second)));
  }
};

// Calls body(quotient) with the faster of the two if that is exact.
template <class Body>
HWY_INLINE void with_quotient(double divisor, const Body& body) {
  if (ByReciprocal::is_exact(divisor)) {
    body(ByReciprocal::of(divisor));
  } else {
    body(ByDivision{divisor});
  }
}

// The nearest floats; infinity beyond the largest, where Highway's single-lane conversion would give the largest float.
template <class Tag>
HWY_INLINE auto to_floats(hn::Vec<Tag> doubles, Tag) {
  const hn::Rebind<float, Tag> f;
  if constexpr (hn::MaxLanes(Tag()) == 1) {
    return hn::Set(f, static_cast<float>(hn::GetLane(doubles)));
  } else {
    return hn::DemoteTo(f, doubles);
  }
}

// A vector of int32, each divided, as floats.
template <class Quotient>
HWY_INLINE auto divided_to_floats(hn::Vec<hn::ScalableTag<std::int32_t>> integers, const Quotient& quotient) {
  const hn::ScalableTag<float> f;
#if HWY_TARGET == HWY_SCALAR  // whose vectors have no halves
  const hn::Rebind<double, decltype(f)> d;
  return to_floats(quotient(d, hn::PromoteTo(d, integers)), d);
#else
  const hn::Repartition<double, decltype(f)> d;
  const hn::Half<hn::ScalableTag<std::int32_t>> half;
  const auto low = quotient(d, hn::PromoteTo(d, hn::LowerHalf(half, integers)));
  const auto high = quotient(d, hn::PromoteTo(d, hn::UpperHalf(half, integers)));
  return hn::Combine(f, to_floats(high, d), to_floats(low, d));
#endif
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
