#include "conversion.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "conversion.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void convert_to_integers(std::int32_t* integers, const float* values, std::size_t count, float scale) {
  const hn::ScalableTag<float> floats;
  const hn::ScalableTag<std::int32_t> whole;
  const auto factor = hn::Set(floats, scale);
  const std::size_t lanes = hn::Lanes(floats);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::NearestInt(hn::Mul(hn::LoadU(floats, values + i), factor)), whole, integers + i);
  }
  for (; i < count; ++i) integers[i] = static_cast<std::int32_t>(values[i] * scale);
}

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum {

HWY_EXPORT(convert_to_integers);

void convert_to_integers(std::int32_t* integers, const float* values, std::size_t count, float scale) {
  HWY_DYNAMIC_DISPATCH(convert_to_integers)(integers, values, count, scale);
}

}  // namespace netsum
#endif
