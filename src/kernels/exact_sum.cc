#include "kernels/exact_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/exact_sum.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#ifndef NETSUM_EXACT_SUM_DECODED
#define NETSUM_EXACT_SUM_DECODED
namespace netsum::kernels {

// The places of values that are not 0. `special`: some are -0 or not finite; the latter have the value 0.
struct Decoded {
  std::int32_t least, most;
  bool special;
};

}  // namespace netsum::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Limbs have whole cache lines, with zeros behind the last value: whole vectors.
using I = hn::CappedTag<std::int32_t, 16>;
using L = hn::CappedTag<std::int64_t, 8>;

template <int fraction>
HWY_INLINE Decoded DecodeAs(const std::uint16_t* HWY_RESTRICT halves, std::size_t count, std::int32_t* HWY_RESTRICT values,
                            std::int32_t* HWY_RESTRICT places) {
  constexpr std::int32_t hidden = 1 << fraction, infinity = 0x7fff & -hidden;
  constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
  const I d;
  const hn::Rebind<std::uint16_t, I> narrow;
  const auto zero = hn::Zero(d);
  auto least = hn::Set(d, none), most = hn::Set(d, -1), special = zero;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto half = hn::PromoteTo(d, hn::LoadU(narrow, halves + i));
    const auto magnitude = hn::And(half, hn::Set(d, 0x7fff)), exponent = hn::ShiftRight<fraction>(magnitude);
    const auto normal = hn::Gt(exponent, zero), finite = hn::Lt(magnitude, hn::Set(d, infinity));
    const auto bits = hn::Or(hn::And(magnitude, hn::Set(d, hidden - 1)), hn::IfThenElseZero(normal, hn::Set(d, hidden)));
    const auto integer = hn::IfThenElseZero(finite, bits);
    const auto place = hn::Sub(exponent, hn::IfThenElseZero(normal, hn::Set(d, 1)));
    const auto any = hn::Gt(integer, zero);
    hn::StoreU(hn::IfThenElse(hn::Gt(half, hn::Set(d, 0x7fff)), hn::Neg(integer), integer), d, values + i);
    hn::StoreU(place, d, places + i);
    least = hn::Min(least, hn::IfThenElse(any, place, hn::Set(d, none)));
    most = hn::Max(most, hn::IfThenElse(any, place, hn::Set(d, -1)));
    special = hn::Or(
        special, hn::IfThenElse(finite, hn::IfThenElseZero(hn::Eq(half, hn::Set(d, 0x8000)), hn::Set(d, 1)), hn::Set(d, 1)));
  }
  return {hn::GetLane(hn::MinOfLanes(d, least)), hn::GetLane(hn::MaxOfLanes(d, most)),
          !hn::AllTrue(d, hn::Eq(special, zero))};
}
Decoded Decode(bool brain, const std::uint16_t* halves, std::size_t count, std::int32_t* values, std::int32_t* places) {
  return brain ? DecodeAs<7>(halves, count, values, places) : DecodeAs<10>(halves, count, values, places);
}

void AddToLimb(std::int64_t* HWY_RESTRICT limb, const std::int32_t* HWY_RESTRICT values,
               const std::int32_t* HWY_RESTRICT places, std::int32_t number, std::size_t count) {
  const L d;
  const hn::Rebind<std::int32_t, L> words;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto place = hn::PromoteTo(d, hn::LoadU(words, places + i));
    const auto shifted = hn::Shl(hn::PromoteTo(d, hn::LoadU(words, values + i)), hn::And(place, hn::Set(d, 31)));
    const auto here = hn::Eq(hn::ShiftRight<5>(place), hn::Set(d, number));
    hn::StoreU(hn::Add(hn::LoadU(d, limb + i), hn::IfThenElseZero(here, shifted)), d, limb + i);
  }
}

template <class Digit>
HWY_INLINE void AddDigits(std::int64_t* HWY_RESTRICT limb, const std::byte* HWY_RESTRICT digits, int shift,
                          std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Digit digit;
    std::memcpy(&digit, digits + i * sizeof(Digit), sizeof(Digit));
    limb[i] += std::int64_t{digit} * (std::int64_t{1} << shift);
  }
}
void AddPlane(bool wide, std::int64_t* limb, const std::byte* digits, int shift, std::size_t count) {
  wide ? AddDigits<std::int16_t>(limb, digits, shift, count) : AddDigits<std::int8_t>(limb, digits, shift, count);
}

// To digits with a sign; `bias` has their least value in each. Returns which differ from 0 in any, as bits, and in its high
// half whether anything is carried: that is added to `next`, or, without, left out.
std::uint64_t Carry(std::int64_t* HWY_RESTRICT limb, std::int64_t* HWY_RESTRICT next, std::uint32_t bias,
                    std::size_t count) {
  const L d;
  const auto biases = hn::Set(d, std::int64_t{bias});
  auto used = hn::Zero(d), carried = used;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto biased = hn::Add(hn::LoadU(d, limb + i), biases);
    const auto low = hn::And(biased, hn::Set(d, 0xffffffff)), carry = hn::ShiftRight<32>(biased);
    hn::StoreU(hn::Sub(low, biases), d, limb + i);
    if (next != nullptr) hn::StoreU(hn::Add(hn::LoadU(d, next + i), carry), d, next + i);
    used = hn::Or(used, hn::Xor(low, biases));
    carried = hn::Or(carried, carry);
  }
  alignas(64) std::int64_t lanes[hn::MaxLanes(d)];
  hn::Store(used, d, lanes);
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) bits |= static_cast<std::uint64_t>(lanes[i]);
  return bits | (hn::AllTrue(d, hn::Eq(carried, hn::Zero(d))) ? 0 : std::uint64_t{1} << 32);
}

void ShiftDown(std::int64_t* HWY_RESTRICT limb, const std::int64_t* HWY_RESTRICT next, int bits, std::size_t count) {
  const L d;
  const auto below = hn::Set(d, (std::int64_t{1} << bits) - 1);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    auto shifted = hn::ShiftRightSame(hn::LoadU(d, limb + i), bits);
    if (next != nullptr) {
      shifted = hn::Add(shifted, hn::ShiftLeftSame(hn::And(hn::LoadU(d, next + i), below), 32 - bits));
    }
    hn::StoreU(shifted, d, limb + i);
  }
}

template <class Digit>
HWY_INLINE void WriteDigits(std::byte* HWY_RESTRICT out, const std::int64_t* HWY_RESTRICT limb, std::uint32_t bias,
                            int shift, std::size_t count) {
  constexpr auto least = std::uint32_t{1} << (8 * sizeof(Digit) - 1);
  for (std::size_t i = 0; i < count; ++i) {
    const auto digit = static_cast<Digit>((static_cast<std::uint32_t>(limb[i] + bias) >> shift) - least);
    std::memcpy(out + i * sizeof(Digit), &digit, sizeof(Digit));
  }
}
void WritePlane(bool wide, std::byte* out, const std::int64_t* limb, std::uint32_t bias, int shift, std::size_t count) {
  wide ? WriteDigits<std::int16_t>(out, limb, bias, shift, count) : WriteDigits<std::int8_t>(out, limb, bias, shift, count);
}

// Each of both parts is a double, so their sum is rounded once. Returns whether all of the upper ones were so short.
bool TwoLimbs(double* HWY_RESTRICT out, const std::int64_t* HWY_RESTRICT low, const std::int64_t* HWY_RESTRICT high,
              double unit, std::size_t count) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto below = static_cast<std::int32_t>(low[i]);
    const std::int64_t above = high[i] + ((low[i] - below) >> 32);
    longest |= above ^ (above >> 63);
    out[i] = (static_cast<double>(above) * 0x1p32 + below) * unit;
  }
  return longest >> 53 == 0;
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/cache_line.h"
#include "base/check.h"
#include "kernels/kernels.h"

namespace netsum::kernels {
namespace {

constexpr std::uint32_t limbs = SumParts::limbs, masks = SumParts::masks;

HWY_EXPORT(Decode);
HWY_EXPORT(AddToLimb);
HWY_EXPORT(AddPlane);
HWY_EXPORT(Carry);
HWY_EXPORT(ShiftDown);
HWY_EXPORT(WritePlane);
HWY_EXPORT(TwoLimbs);

constexpr std::size_t block = 256;  // values at a time, in the first-level cache
static_assert(block % block_values == 0);

constexpr std::size_t mask_bytes(std::size_t values) {
  return (values + 7) / 8;
}

// The least value of a type, and of a block's exponents.
constexpr int least_exponent = 20;
double unit_of(DType travels) {
  if (travels == DType::float16) return 0x1p-24;
  if (travels == DType::bfloat16) return 0x1p-133;
  return travels == block4 ? 0x1p-109 : 0x1p-113;
}

// So that rounding it again, to fewer bits, is rounding `value` itself: to odd.
float shortened(double value) {
  if (std::isnan(value)) return std::numeric_limits<float>::quiet_NaN();
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest) - (std::fabs(back) > std::fabs(value) ? 1U : 0U);
  return std::bit_cast<float>(bits | 1);
}

// Limbs of one sum, of any length.
double nearest_double(std::array<std::int64_t, limbs> sum) {
  std::array<std::uint32_t, limbs + 3> digits{};  // two below, one above
  const auto carry = [&] {
    std::int64_t carried = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const std::int64_t all = sum[i] + carried;
      digits[i + 2] = static_cast<std::uint32_t>(all);
      carried = all >> 32;
    }
    return carried;
  };
  std::int64_t above = carry();
  const bool negative = above < 0;
  if (negative) {
    for (std::int64_t& limb : sum) limb = -limb;
    above = carry();
  }
  digits.back() = static_cast<std::uint32_t>(above);
  std::size_t top = digits.size() - 1;
  while (top > 2 && digits[top] == 0) --top;
  if (digits[top] == 0) return 0;
  const int zeros = std::countl_zero(digits[top]);
  std::uint64_t bits = (std::uint64_t{digits[top]} << 32 | digits[top - 1]) << zeros;
  bits |= (std::uint64_t{digits[top - 2]} << zeros) >> 32;
  bool rest = static_cast<std::uint32_t>(digits[top - 2] << zeros) != 0;
  for (std::size_t i = 2; i + 2 < top; ++i) rest |= digits[i] != 0;
  const double nearest = std::ldexp(static_cast<double>(bits | (rest ? 1 : 0)), 32 * (static_cast<int>(top) - 3) - zeros);
  return negative ? -nearest : nearest;
}

bool bit_of(const std::byte* bits, std::size_t number) {
  return (bits[number / 8] >> number % 8 & std::byte{1}) != std::byte{0};
}

}  // namespace

// Which values have only had -0 is known as a mask, or nothing was added yet, or there are none.
enum class Minus : std::uint8_t { all, some, none };

struct ExactSum::State {
  std::uint32_t touched = 0;  // a bit for each limb that is not 0 throughout; others' memory is of the past
  std::uint32_t shift = 0;    // of the lowest place, when settled
  std::uint64_t planes = 0;   // a bit for each byte of all limbs: where a plane begins that is not 0
  Minus minus = Minus::all;
  bool special = false;  // some are not finite: the masks up and down are there
  bool masked = false;   // when settled: there are masks
};

std::size_t ExactSum::memory_bytes(std::size_t values) {
  static_assert(sizeof(State) <= cache_line);
  return cache_line + limbs * whole_lines(values * sizeof(std::int64_t)) + 3 * whole_lines(mask_bytes(values));
}

ExactSum::ExactSum(DType travels, std::size_t elements, std::byte* memory)
    : travels_(travels),
      values_(SumParts::values_in(travels, elements)),
      stride_(whole_lines(values_ * sizeof(std::int64_t))),
      memory_(memory) {}

ExactSum::State& ExactSum::state() const {
  return *reinterpret_cast<State*>(memory_);
}

std::int64_t* ExactSum::limb(std::uint32_t number) const {
  return reinterpret_cast<std::int64_t*>(memory_ + cache_line + number * stride_);
}

std::byte* ExactSum::mask(std::size_t number) const {
  return memory_ + cache_line + limbs * stride_ + number * whole_lines(mask_bytes(values_));
}

void ExactSum::clear() {
  state() = {};
}

void ExactSum::touch(std::uint32_t first, std::uint32_t last) {
  for (std::uint32_t number = first; number <= last; ++number) {
    if ((state().touched >> number & 1) != 0) continue;
    state().touched |= 1U << number;
    std::fill_n(limb(number), stride_ / sizeof(std::int64_t), 0);
  }
}

void ExactSum::set_special(std::size_t value, bool up, bool down) {
  if (!state().special) {
    state().special = true;
    std::fill_n(mask(0), mask_bytes(values_), std::byte{0});
    std::fill_n(mask(1), mask_bytes(values_), std::byte{0});
  }
  const std::byte bit = std::byte{1} << value % 8;
  if (up) mask(0)[value / 8] |= bit;
  if (down) mask(1)[value / 8] |= bit;
}

void ExactSum::add(const std::byte* payload) {
  has_blocks(travels_) ? add_blocks(payload) : add_halves(payload);
}

void ExactSum::add_values(const std::int32_t* values, const std::int32_t* places, std::size_t begin, std::size_t count,
                          std::int32_t least, std::int32_t most) {
  if (most < 0) return;
  const auto first = static_cast<std::uint32_t>(least) / 32, last = static_cast<std::uint32_t>(most) / 32;
  touch(first, last);
  for (std::uint32_t number = first; number <= last; ++number) {
    HWY_DYNAMIC_DISPATCH(AddToLimb)(limb(number) + begin, values, places, static_cast<std::int32_t>(number), count);
  }
}

void ExactSum::add_halves(const std::byte* payload) {
  State& s = state();
  const bool brain = travels_ == DType::bfloat16;
  const int infinity = brain ? 0x7f80 : 0x7c00;
  if (s.minus == Minus::all) {
    s.minus = Minus::some;
    std::fill_n(mask(2), mask_bytes(values_), std::byte{0xff});
  }
  bool any_minus = false;
  std::array<std::uint16_t, block> halves{};
  std::array<std::int32_t, block> values, places;
  for (std::size_t begin = 0; begin < values_; begin += block) {
    const std::size_t count = std::min(block, values_ - begin);
    if (count < block) halves.fill(0);
    std::memcpy(halves.data(), payload + begin * 2, count * 2);
    const auto found = HWY_DYNAMIC_DISPATCH(Decode)(brain, halves.data(), count, values.data(), places.data());
    add_values(values.data(), places.data(), begin, count, found.least, found.most);
    std::byte* const minus = mask(2) + begin / 8;
    if (!found.special) {
      if (s.minus == Minus::some) std::fill_n(minus, mask_bytes(count), std::byte{0});
      continue;
    }
    std::array<std::byte, block / 8> here{};
    for (std::size_t i = 0; i < count; ++i) {
      const int magnitude = halves[i] & 0x7fff;
      const bool negative = (halves[i] & 0x8000) != 0;
      if (magnitude == 0 && negative) here[i / 8] |= std::byte{1} << i % 8;
      if (magnitude < infinity) continue;
      const bool nan = magnitude > infinity;
      set_special(begin + i, nan || !negative, nan || negative);
    }
    if (s.minus != Minus::some) continue;
    for (std::size_t i = 0; i < mask_bytes(count); ++i) {
      minus[i] &= here[i];
      any_minus |= minus[i] != std::byte{0};
    }
  }
  if (!any_minus) s.minus = Minus::none;
}

void ExactSum::add_blocks(const std::byte* payload) {
  const bool halves = travels_ == block4;
  std::array<std::int32_t, block_values> values, places;
  for (std::size_t begin = 0; begin < values_; begin += block_values) {
    const std::size_t count = std::min(block_values, values_ - begin);
    const int exponent = std::clamp(std::to_integer<int>(*payload++), least_exponent, 254);
    places.fill(exponent - least_exponent);
    bool any = false;
    if (count < block_values) values.fill(0);
    for (std::size_t i = 0; i < count; ++i) {
      const auto byte = std::to_integer<std::uint8_t>(payload[halves ? i / 2 : i]);
      const int value = !halves ? static_cast<std::int8_t>(byte) : ((byte >> (i % 2 * 4) & 15) ^ 8) - 8;
      const bool finite = value != (halves ? -8 : -128);
      values[i] = finite ? value : 0;
      any |= values[i] != 0;
      if (!finite) set_special(begin + i, true, true);
    }
    if (any) add_values(values.data(), places.data(), begin, count, places[0], places[0]);
    payload += halves ? (count + 1) / 2 : count;
  }
  state().minus = Minus::none;
}

void ExactSum::add_part(std::uint32_t place, const std::byte* part) {
  if (place != masks) {
    touch(place / 32, place / 32);
    return HWY_DYNAMIC_DISPATCH(AddPlane)(!has_blocks(travels_), limb(place / 32), part, static_cast<int>(place % 32),
                                          values_);
  }
  State& s = state();
  const std::size_t each = mask_bytes(values_);
  if (!all_zero(part, 2 * each)) {
    set_special(0, false, false);
    for (std::size_t i = 0; i < 2; ++i) or_bytes(mask(i), part + i * each, each);
  }
  if (s.minus == Minus::all) std::memcpy(mask(2), part + 2 * each, each);
  if (s.minus == Minus::some) {
    for (std::size_t i = 0; i < each; ++i) mask(2)[i] &= part[2 * each + i];
  }
  if (s.minus == Minus::all) s.minus = Minus::some;
}

void ExactSum::add_no_masks() {
  state().minus = Minus::none;
}

// To digits, from the lowest limb to the one that nothing is carried from.
void ExactSum::normalize() {
  State& s = state();
  const bool wide = !has_blocks(travels_);
  const std::uint32_t bias = wide ? 0x80008000U : 0x80808080U;
  std::uint32_t last = static_cast<std::uint32_t>(std::bit_width(s.touched)) - 1;
  const auto first = static_cast<std::uint32_t>(std::countr_zero(s.touched));
  touch(first, last);
  s.planes = 0;
  for (std::uint32_t number = first; number <= last; ++number) {
    std::int64_t* next = nullptr;
    if (number + 1 < limbs) {
      touch(number + 1, number + 1);
      next = limb(number + 1);
    }
    const std::uint64_t used = HWY_DYNAMIC_DISPATCH(Carry)(limb(number), next, bias, values_);
    if (number == last && used >> 32 != 0 && next != nullptr) ++last;
    const int width = wide ? 16 : 8;
    for (int bit = 0; bit < 32; bit += width) {
      if ((used >> bit & ((std::uint64_t{1} << width) - 1)) == 0) continue;
      s.planes |= std::uint64_t{1} << (number * 4 + static_cast<std::uint32_t>(bit) / 8);
    }
  }
}

void ExactSum::settle() {
  State& s = state();
  if (s.minus == Minus::some) {
    if (values_ % 8 != 0) mask(2)[values_ / 8] &= std::byte{0xff} >> (8 - values_ % 8);
    if (all_zero(mask(2), mask_bytes(values_))) s.minus = Minus::none;
  }
  s.masked = s.special || s.minus == Minus::some;
  if (s.touched == 0) return;
  normalize();
  // From the lowest bit of any sum on.
  if (s.planes == 0) return;
  const std::uint32_t first = static_cast<std::uint32_t>(std::countr_zero(s.planes)) / 4;
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < values_; ++i) bits |= static_cast<std::uint64_t>(limb(first)[i]);
  s.shift = static_cast<std::uint32_t>(std::countr_zero(bits)) % (has_blocks(travels_) ? 8 : 16);
  if (s.shift == 0) return;
  for (std::uint32_t number = first; number < limbs && (s.touched >> number & 1) != 0; ++number) {
    const bool more = number + 1 < limbs && (s.touched >> (number + 1) & 1) != 0;
    HWY_DYNAMIC_DISPATCH(ShiftDown)
    (limb(number), more ? limb(number + 1) : nullptr, static_cast<int>(s.shift), values_);
  }
  normalize();
}

std::size_t ExactSum::parts() const {
  const State& s = state();
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::popcount(s.planes)) + (s.masked ? 1 : 0));
}

std::uint32_t ExactSum::place_of(std::size_t part) const {
  const State& s = state();
  for (std::uint64_t planes = s.planes; planes != 0; planes &= planes - 1) {
    if (part-- == 0) return static_cast<std::uint32_t>(std::countr_zero(planes)) * 8 + s.shift;
  }
  return s.masked ? masks : 0;
}

void ExactSum::write_part(std::size_t part, std::byte* out) const {
  const State& s = state();
  const std::uint32_t place = place_of(part);
  const bool wide = !has_blocks(travels_);
  if (place == masks) {
    const std::size_t each = mask_bytes(values_);
    std::fill_n(out, 3 * each, std::byte{0});
    if (s.special) std::memcpy(out, mask(0), each), std::memcpy(out + each, mask(1), each);
    if (s.minus == Minus::some) std::memcpy(out + 2 * each, mask(2), each);
  } else if (s.planes == 0) {
    std::fill_n(out, values_ * (wide ? 2 : 1), std::byte{0});
  } else {
    const std::uint32_t bit = place - s.shift;
    HWY_DYNAMIC_DISPATCH(WritePlane)
    (wide, out, limb(bit / 32), wide ? 0x80008000U : 0x80808080U, static_cast<int>(bit % 32), values_);
  }
}

void ExactSum::doubles(double* out, std::size_t begin, std::size_t count) const {
  const State& s = state();
  if (s.touched == 0) return void(std::fill_n(out, count, 0.0));
  const auto first = static_cast<std::uint32_t>(std::countr_zero(s.touched));
  const auto last = static_cast<std::uint32_t>(std::bit_width(s.touched)) - 1;
  const double unit = std::ldexp(unit_of(travels_), static_cast<int>(32 * first + s.shift));
  if (first == last) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<double>(limb(first)[begin + i]) * unit;
    return;
  }
  const bool two = last == first + 1;
  if (two && HWY_DYNAMIC_DISPATCH(TwoLimbs)(out, limb(first) + begin, limb(last) + begin, unit, count)) return;
  for (std::size_t i = 0; i < count; ++i) {
    std::array<std::int64_t, limbs> sum{};
    for (std::uint32_t number = first; number <= last; ++number) {
      if ((s.touched >> number & 1) != 0) sum[number - first] = limb(number)[begin + i];
    }
    out[i] = nearest_double(sum) * unit;
  }
}

void ExactSum::round(std::byte* out, std::uint32_t divisor) const {
  const State& s = state();
  const bool blocks = has_blocks(travels_);
  std::array<double, block> sums;
  std::array<float, block> floats;
  std::array<std::uint16_t, block> halves;
  for (std::size_t begin = 0; begin < values_; begin += block) {
    const std::size_t count = std::min(block, values_ - begin);
    doubles(sums.data(), begin, count);
    for (std::size_t i = 0; i < count; ++i) {
      if (s.minus == Minus::some && sums[i] == 0 && bit_of(mask(2), begin + i)) sums[i] = -0.0;
      if (s.special) {
        const bool up = bit_of(mask(0), begin + i), down = bit_of(mask(1), begin + i);
        if (up || down) sums[i] = up && down ? std::nan("") : up ? HUGE_VAL : -HUGE_VAL;
      }
      floats[i] = blocks ? static_cast<float>(sums[i] * 0x1p-13) : shortened(sums[i] / divisor);
    }
    if (blocks) {
      round_to_blocks(out, floats.data(), count);
      out += block_bytes(block8, count);
    } else {
      travels_ == DType::float16 ? to_float16(halves.data(), floats.data(), count)
                                 : to_bfloat16(halves.data(), floats.data(), count);
      std::memcpy(out, halves.data(), count * 2);
      out += count * 2;
    }
  }
}

void ExactSum::append_state(std::vector<std::byte>& out) const {
  const State& s = state();
  const auto append = [&](const void* bytes, std::size_t count) {
    const auto* const from = static_cast<const std::byte*>(bytes);
    out.insert(out.end(), from, from + count);
  };
  append(&s.touched, sizeof(s.touched));
  append(&s.minus, sizeof(s.minus));
  append(&s.special, sizeof(s.special));
  for (std::uint32_t number = 0; number < limbs; ++number) {
    if ((s.touched >> number & 1) != 0) append(limb(number), values_ * sizeof(std::int64_t));
  }
  for (std::size_t number = 0; number < 3; ++number) {
    if (number < 2 ? s.special : s.minus == Minus::some) append(mask(number), mask_bytes(values_));
  }
}

}  // namespace netsum::kernels
#endif
