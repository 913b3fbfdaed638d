// int32 words in network order, as a chip's parser reads them (SwitchML's chip profile).
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/network_order.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "base/bytes.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<std::uint32_t>;

template <class V>
HWY_INLINE V Swapped(V words) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(Words(), __builtin_bswap32(hn::GetLane(words)));
#else
  const hn::Repartition<std::uint8_t, Words> bytes;
  alignas(16) static constexpr std::uint8_t order[16] = {3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12};
  return hn::BitCast(Words(), hn::TableLookupBytes(hn::BitCast(bytes, words), hn::LoadDup128(bytes, order)));
#endif
}

void AddInt32Network(std::byte* payload_sum, const std::byte* payload, std::size_t count) {
  const Words d;
  const std::size_t lanes = hn::Lanes(d);
  auto* sum = reinterpret_cast<std::uint32_t*>(payload_sum);  // any alignment: LoadU and StoreU only
  const auto* add = reinterpret_cast<const std::uint32_t*>(payload);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto total = hn::Add(Swapped(hn::LoadU(d, sum + i)), Swapped(hn::LoadU(d, add + i)));
    hn::StoreU(Swapped(total), d, sum + i);
  }
  for (; i < count; ++i) {
    store_be(payload_sum + i * 4, load_be<std::uint32_t>(payload_sum + i * 4) + load_be<std::uint32_t>(payload + i * 4));
  }
}

void SwapInt32(std::byte* to, const std::byte* from, std::size_t count) {
  const Words d;
  const std::size_t lanes = hn::Lanes(d);
  auto* out = reinterpret_cast<std::uint32_t*>(to);
  const auto* in = reinterpret_cast<const std::uint32_t*>(from);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(Swapped(hn::LoadU(d, in + i)), d, out + i);
  for (; i < count; ++i) store_le(to + i * 4, load_be<std::uint32_t>(from + i * 4));
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(AddInt32Network);
HWY_EXPORT(SwapInt32);

void add_int32_network(std::byte* payload_sum, const std::byte* payload, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(AddInt32Network)(payload_sum, payload, count);
}

void swap_int32(std::byte* to, const std::byte* from, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(SwapInt32)(to, from, count);
}

}  // namespace netsum::kernels
#endif
