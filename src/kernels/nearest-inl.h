// Floats to the nearest integers: to be included behind hwy/highway.h by a source that foreach_target.h compiles once a
// target.
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

// Of floats that int32 can hold. NearestInt() is right for others too, which takes it as many instructions again as all else
// that quantizing does.
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
