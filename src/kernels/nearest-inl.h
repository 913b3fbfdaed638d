// Floats to the nearest integers. Include it after hwy/highway.h in a source that foreach_target.h compiles once per target.
#if defined(NETSUM_KERNELS_NEAREST_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NETSUM_KERNELS_NEAREST_INL_H
#undef NETSUM_KERNELS_NEAREST_INL_H
#else
#define NETSUM_KERNELS_NEAREST_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// For floats in int32's range. NearestInt() is right for others too, at the cost of as many more instructions as the rest of
// quantizing takes.
template <class V>
HWY_INLINE auto nearest_in_range(V v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Vec512<std::int32_t>{_mm512_cvtps_epi32(v.raw)};
#elif HWY_TARGET == HWY_AVX2
  return hn::Vec256<std::int32_t>{_mm256_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
