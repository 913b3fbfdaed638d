// ATP's numbers: floats to int32 by one scale and back, additions with overflow detection, and the exact sum beyond int32.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scaled.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "kernels/quotient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using I = hn::ScalableTag<std::int32_t>;
using D = hn::ScalableTag<double>;

// Loads from any address, as a packet's payload may end anywhere: Highway's partial loads do not allow that.
template <class Tag>
HWY_INLINE hn::Vec<Tag> load(Tag tag, const void* from) {
  using T = hn::TFromD<Tag>;
  if constexpr (sizeof(T) * hn::MaxLanes(Tag()) >= 16) {
    return hn::LoadU(tag, static_cast<const T*>(from));
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(Tag())];
    std::memcpy(lanes, from, sizeof lanes);
    return hn::Load(tag, lanes);
  }
}

template <class Tag>
HWY_INLINE void store(hn::Vec<Tag> vector, Tag tag, void* to) {
  using T = hn::TFromD<Tag>;
  if constexpr (sizeof(T) * hn::MaxLanes(Tag()) >= 16) {
    hn::StoreU(vector, tag, static_cast<T*>(to));
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(Tag())];
    hn::Store(vector, tag, lanes);
    std::memcpy(to, lanes, sizeof lanes);
  }
}

// body(tag, at) for the whole vectors of [at, count), then for the rest in vectors of half the width, down to one lane: the
// same code for every length, also in place, and no tail of 15 scalars for a packet of 62.
template <class Tag, class Body>
HWY_INLINE void for_vectors(Tag tag, std::size_t count, const Body& body, std::size_t at = 0) {
  const std::size_t lanes = hn::Lanes(tag);
  for (; at + lanes <= count; at += lanes) body(tag, at);
  if constexpr (hn::MaxLanes(Tag()) > 1) {
    if (at < count) for_vectors(hn::Half<Tag>(), count, body, at);
  }
}

template <class Tag>
HWY_INLINE bool any(Tag tag, hn::Mask<Tag> mask) {
  return !hn::AllFalse(tag, mask);
}
template <class Tag>
HWY_INLINE bool any(Tag tag, hn::Vec<Tag> signs) {
  return any(tag, hn::Lt(signs, hn::Zero(tag)));
}

// for_vectors() with a body that returns hits: as a mask, or bits that `hits` finds in a vector's signs, after all vectors
// were put together by OR. Returns whether there was any hit.
struct InSigns {
  template <class V>
  HWY_INLINE V operator()(V seen) const {
    return seen;
  }
};
template <class Tag, class Body, class Hits = InSigns>
HWY_INLINE bool any_in_vectors(Tag tag, std::size_t count, const Body& body, const Hits& hits = {}, std::size_t at = 0) {
  const std::size_t lanes = hn::Lanes(tag);
  bool found = false;
  if (at + lanes <= count) {
    auto seen = body(tag, at);
    for (at += lanes; at + lanes <= count; at += lanes) seen = hn::Or(seen, body(tag, at));
    found = any(tag, hits(seen));
  }
  if constexpr (hn::MaxLanes(Tag()) > 1) {
    if (at < count) found |= any_in_vectors(hn::Half<Tag>(), count, body, hits, at);
  }
  return found;
}

// In the sign: whether before + added left int32. The wrapped sum's sign then differs from both operands'.
template <class V>
HWY_INLINE V overflow(V sum, V before, V added) {
  return hn::And(hn::Xor(sum, before), hn::Xor(sum, added));
}

// A double of 2^52 ... 2^53 counts units: adding 1.5 * 2^52 rounds to nearest even, and leaves the integer in the low bits.
constexpr double units = 0x1.8p52;

template <class Tag>
HWY_INLINE auto in_units(Tag d, const float* values, double scale) {
  const hn::Rebind<float, Tag> f;
  const auto scaled = hn::Mul(hn::PromoteTo(d, load(f, values)), hn::Set(d, scale));
  return hn::BitCast(hn::RebindToSigned<Tag>(), hn::Add(scaled, hn::Set(d, units)));
}

template <class Tag>
HWY_INLINE void store_low_words(hn::Vec<Tag> wide, Tag, std::byte* payload) {
  const hn::RebindToUnsigned<Tag> u64;
  const hn::Rebind<std::uint32_t, Tag> u32;
  store(hn::TruncateTo(u32, hn::BitCast(u64, wide)), u32, payload);
}

// The integer and 2^31: in [0, 2^32) if it is an int32. NaN, infinity and other exponents are far off.
template <class Tag>
HWY_INLINE hn::Vec<Tag> from_least(hn::Vec<Tag> in_units, Tag i64) {
  return hn::Add(in_units, hn::Set(i64, (std::int64_t{1} << 31) - std::bit_cast<std::int64_t>(units)));
}

// In the sign: whether it is off [0, 2^32). So is the OR of several if one of them is, and only then.
struct OffUint32 {
  template <class V>
  HWY_INLINE V operator()(V from_least) const {
    return hn::Or(from_least, hn::Sub(hn::Set(hn::DFromV<V>(), (std::int64_t{1} << 32) - 1), from_least));
  }
};

bool QuantizeScaled(std::byte* payload, const float* values, std::size_t count, double scale) {
  const hn::RebindToSigned<D> wide;
  const auto each = [=](auto i64, std::size_t i) HWY_ATTR {
    const auto rounded = in_units(hn::RebindToFloat<decltype(i64)>(), values + i, scale);
    store_low_words(rounded, i64, payload + i * 4);
    return from_least(rounded, i64);
  };
  const bool any_beyond = any_in_vectors(wide, count, each, OffUint32());
  if (any_beyond) {
    // Rare, so it is kept out of the loop above: zeroes the words out of range.
    for_vectors(wide, count, [=](auto i64, std::size_t i) HWY_ATTR {
      const auto rounded = in_units(hn::RebindToFloat<decltype(i64)>(), values + i, scale);
      const auto beyond = hn::Lt(OffUint32()(from_least(rounded, i64)), hn::Zero(i64));
      store_low_words(hn::IfThenZeroElse(beyond, rounded), i64, payload + i * 4);
    });
  }
  return !any_beyond;
}

void DequantizeScaled(float* values, const std::byte* payload, std::size_t count, double divisor) {
  with_quotient(divisor, [=](auto quotient) HWY_ATTR {
    for_vectors(D(), count, [=](auto d, std::size_t i) HWY_ATTR {
      const hn::Rebind<float, decltype(d)> f;
      const hn::Rebind<std::int32_t, decltype(d)> i32;
      store(to_floats(quotient(d, hn::PromoteTo(d, load(i32, payload + i * 4))), d), f, values + i);
    });
  });
}

// Toward zero: no non-integer quotient rounds to an integer, as it is at least 1 / divisor away from one.
void DivideInt32(std::int32_t* values, std::size_t count, double divisor) {
  with_quotient(divisor, [=](auto quotient) HWY_ATTR {
    for_vectors(D(), count, [=](auto d, std::size_t i) HWY_ATTR {
      const hn::Rebind<std::int32_t, decltype(d)> i32;
      store(hn::DemoteTo(i32, quotient(d, hn::PromoteTo(d, load(i32, values + i)))), i32, values + i);
    });
  });
}

bool AddInt32Checked(std::byte* sum, const std::byte* payload, std::size_t count) {
  return any_in_vectors(I(), count, [=](auto d, std::size_t i) HWY_ATTR {
    const auto before = load(d, sum + i * 4), added = load(d, payload + i * 4);
    const auto after = hn::Add(before, added);
    store(after, d, sum + i * 4);
    return overflow(after, before, added);
  });
}

void CarryInt32(std::byte* high, const std::byte* sum, const std::byte* payload, std::size_t count) {
  for_vectors(I(), count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::Rebind<std::int16_t, decltype(d)> i16;
    const auto after = load(d, sum + i * 4), added = load(d, payload + i * 4);
    const auto overflowed = hn::Lt(overflow(after, hn::Sub(after, added), added), hn::Zero(d));
    // Upward overflow adds a non-negative value: 1; downward: -1.
    const auto direction = hn::Or(hn::ShiftRight<31>(added), hn::Set(d, 1));
    const auto carry = hn::DemoteTo(i16, hn::IfThenElseZero(overflowed, direction));
    store(hn::Add(load(i16, high + i * 2), carry), i16, high + i * 2);
  });
}

void AddInt16(std::byte* high, const std::byte* other, std::size_t count) {
  for_vectors(hn::ScalableTag<std::int16_t>(), count, [=](auto d, std::size_t i) HWY_ATTR {
    store(hn::Add(load(d, high + i * 2), load(d, other + i * 2)), d, high + i * 2);
  });
}

bool AllZero(const std::byte* bytes, std::size_t count) {
  return !any_in_vectors(hn::ScalableTag<std::uint8_t>(), count,
                         [=](auto d, std::size_t i) HWY_ATTR { return hn::Ne(load(d, bytes + i), hn::Zero(d)); });
}

bool AddInt32Saturating(std::byte* sum, const std::byte* payload, std::size_t count) {
  constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
  return any_in_vectors(I(), count, [=](auto d, std::size_t i) HWY_ATTR {
    const auto most = hn::Set(d, largest), least = hn::Set(d, -largest - 1);
    const auto before = load(d, sum + i * 4), added = load(d, payload + i * 4);
    const auto after = hn::Add(before, added);
    const auto is_end = [=](auto v) HWY_ATTR { return hn::Or(hn::Eq(v, most), hn::Eq(v, least)); };
    const auto overflowed = hn::Lt(overflow(after, before, added), hn::Zero(d));
    const auto end = hn::Xor(most, hn::ShiftRight<31>(before));  // the end with the same sign: most ^ -1 is least
    const auto held = hn::IfThenElse(hn::Or(overflowed, is_end(before)), end, after);
    store(held, d, sum + i * 4);
    return is_end(held);
  });
}

void AddFloats(double* sum, const std::byte* payload, std::size_t count) {
  for_vectors(D(), count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> f;
    store(hn::Add(load(d, sum + i), hn::PromoteTo(d, load(f, payload + i * 4))), d, sum + i);
  });
}

// False for NaN.
template <class Tag>
HWY_INLINE auto is_int32(hn::Vec<Tag> integer, Tag d) {
  return hn::And(hn::Ge(integer, hn::Set(d, -0x1p31)), hn::Lt(integer, hn::Set(d, 0x1p31)));
}

void AddScaled(double* sum, const std::byte* payload, std::size_t count, double scale) {
  for_vectors(D(), count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> f;
    const auto nan = hn::Set(d, std::numeric_limits<double>::quiet_NaN());
    const auto rounded = hn::Round(hn::Mul(hn::PromoteTo(d, load(f, payload + i * 4)), hn::Set(d, scale)));
    store(hn::Add(load(d, sum + i), hn::IfThenElse(is_int32(rounded, d), rounded, nan)), d, sum + i);
  });
}

void RoundToFloats(std::byte* payload, const double* sum, const double* scaled, std::size_t count, double divisor) {
  for_vectors(D(), count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> f;
    const auto nan = hn::Set(d, std::numeric_limits<double>::quiet_NaN());
    const auto floats = load(d, sum + i), integers = load(d, scaled + i);
    const auto exact = hn::IfThenElse(is_int32(integers, d), hn::Div(integers, hn::Set(d, divisor)), floats);
    store(to_floats(hn::IfThenElse(hn::IsNaN(exact), nan, exact), d), f, payload + i * 4);
  });
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(QuantizeScaled);
HWY_EXPORT(DequantizeScaled);
HWY_EXPORT(DivideInt32);
HWY_EXPORT(AddInt32Checked);
HWY_EXPORT(CarryInt32);
HWY_EXPORT(AddInt16);
HWY_EXPORT(AllZero);
HWY_EXPORT(AddInt32Saturating);
HWY_EXPORT(AddFloats);
HWY_EXPORT(AddScaled);
HWY_EXPORT(RoundToFloats);

bool quantize_scaled(std::byte* payload, const float* values, std::size_t count, double scale) {
  return HWY_DYNAMIC_DISPATCH(QuantizeScaled)(payload, values, count, scale);
}

float largest_to_zero(double scale) {
  const auto nearest = static_cast<float>(0.5 / scale);
  return double{nearest} * scale <= 0.5 ? nearest : std::nextafter(nearest, 0.0F);
}

void dequantize_scaled(float* values, const std::byte* payload, std::size_t count, double scale, std::uint32_t divisor) {
  HWY_DYNAMIC_DISPATCH(DequantizeScaled)(values, payload, count, scale * divisor);
}

void divide_int32(std::int32_t* values, std::size_t count, std::uint32_t divisor) {
  HWY_DYNAMIC_DISPATCH(DivideInt32)(values, count, divisor);
}

bool add_int32_checked(std::byte* sum, const std::byte* payload, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(AddInt32Checked)(sum, payload, count);
}

void carry_int32(std::byte* high, const std::byte* sum, const std::byte* payload, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(CarryInt32)(high, sum, payload, count);
}

void add_int16(std::byte* high, const std::byte* other, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(AddInt16)(high, other, count);
}

bool all_zero(const std::byte* bytes, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(AllZero)(bytes, count);
}

bool add_int32_saturating(std::byte* sum, const std::byte* payload, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(AddInt32Saturating)(sum, payload, count);
}

void add_floats(double* sum, const std::byte* payload, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(AddFloats)(sum, payload, count);
}

void add_scaled(double* sum, const std::byte* payload, std::size_t count, double scale) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(sum, payload, count, scale);
}

void round_to_floats(std::byte* payload, const double* sum, const double* scaled, std::size_t count, double divisor) {
  HWY_DYNAMIC_DISPATCH(RoundToFloats)(payload, sum, scaled, count, divisor);
}

}  // namespace netsum::kernels
#endif
