// int32 addition and byte OR: the switch's inner loop.
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/integers.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "base/bytes.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void AddInt32(std::byte* payload_sum, const std::byte* payload, std::size_t count) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* sum = reinterpret_cast<std::uint32_t*>(payload_sum);  // any alignment: LoadU and StoreU only
  const auto* add = reinterpret_cast<const std::uint32_t*>(payload);
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t at = i + k * lanes;
      hn::StoreU(hn::Add(hn::LoadU(d, sum + at), hn::LoadU(d, add + at)), d, sum + at);
    }
  }
  for (; i < count; ++i) {
    store_le(payload_sum + i * 4, load_le<std::uint32_t>(payload_sum + i * 4) + load_le<std::uint32_t>(payload + i * 4));
  }
}

void OrBytes(std::byte* mask, const std::byte* other, std::size_t count) {
  const hn::ScalableTag<std::uint8_t> d;
  auto* to = reinterpret_cast<std::uint8_t*>(mask);
  const auto* from = reinterpret_cast<const std::uint8_t*>(other);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(hn::Or(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
  }
  for (; i < count; ++i) mask[i] |= other[i];
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(AddInt32);
HWY_EXPORT(OrBytes);

void add_int32(std::byte* payload_sum, const std::byte* payload, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(AddInt32)(payload_sum, payload, count);
}

void or_bytes(std::byte* mask, const std::byte* other, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(OrBytes)(mask, other, count);
}

}  // namespace netsum::kernels
#endif
