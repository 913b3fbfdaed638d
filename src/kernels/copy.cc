#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/copy.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void CopyPastCaches(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;  // null pointers are possible then, and invalid for memcpy
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(to) % lanes;  // streaming stores are whole vectors
  std::size_t i = std::min(bytes, beyond == 0 ? 0 : lanes - beyond);
  std::memcpy(to, from, i);
  for (; i + 2 * lanes <= bytes; i += 2 * lanes) {
    const auto* const in = reinterpret_cast<const std::uint8_t*>(from + i);
    auto* const out = reinterpret_cast<std::uint8_t*>(to + i);
    const auto first = hn::LoadU(d, in), second = hn::LoadU(d, in + lanes);
    hn::Stream(first, d, out);
    hn::Stream(second, d, out + lanes);
  }
  std::memcpy(to + i, from + i, bytes - i);
  hwy::FlushStream();
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(CopyPastCaches);

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(CopyPastCaches)(to, from, bytes);
}

}  // namespace netsum::kernels
#endif
