#include "base/crc32c.h"

#define HWY_WANT_AVX3_DL 1  // carry-less products of whole AVX-512 vectors
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/crc32c.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "base/crc32c-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

std::uint32_t Crc(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  return crc_folded<Castagnoli, CastagnoliWords>(state, p, bytes);
}

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum {

HWY_EXPORT(Crc);

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous) {
  return ~HWY_DYNAMIC_DISPATCH(Crc)(~previous, bytes.data(), bytes.size());
}

}  // namespace netsum
#endif
