#include "protocol/switchml/chip_codec.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/kernels.h"
#include "stream/tensor.h"
#include "wire/switchml_chip.h"

namespace netsum::switchml {
namespace {

// A block of which some rank's element is not finite.
bool is_lost(const stream::Operation& operation, std::uint8_t exponent) {
  return stream::uses_exponents(operation) && exponent == wire::chip::not_finite;
}

void fill_with_nan(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements) {
  constexpr std::uint16_t nan_of_float16 = 0x7e00, nan_of_bfloat16 = 0x7fc0;
  if (operation.dtype == DType::float32) {
    std::fill_n(stream::tensor_at<float>(operation, offset), elements, std::numeric_limits<float>::quiet_NaN());
  } else {
    std::fill_n(stream::tensor_at<std::uint16_t>(operation, offset), elements,
                operation.dtype == DType::float16 ? nan_of_float16 : nan_of_bfloat16);
  }
}

}  // namespace

void ChipCodec::encode(ChunkCodec& codec, const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                       std::uint8_t exponent, std::span<std::byte> payload) const {
  NETSUM_CHECK(payload.size() == words_.size() && std::size_t{elements} * 4 <= payload.size());
  const std::size_t used = is_lost(operation, exponent) ? 0 : elements;
  if (used != 0) codec.encode(operation, offset, elements, &exponent, payload.data(), {});
  std::fill(payload.begin() + static_cast<std::ptrdiff_t>(used * 4), payload.end(), std::byte{0});
  kernels::swap_int32(payload.data(), payload.data(), used);
}

void ChipCodec::decode(ChunkCodec& codec, const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                       std::uint8_t exponent, std::span<const std::byte> payload) {
  NETSUM_CHECK(payload.size() == words_.size() && std::size_t{elements} * 4 <= payload.size());
  if (is_lost(operation, exponent)) return fill_with_nan(operation, offset, elements);
  kernels::swap_int32(words_.data(), payload.data(), elements);
  static_cast<void>(codec.decode(operation, offset, elements, &exponent, words_.data(), {}));  // there is no hash
}

}  // namespace netsum::switchml
