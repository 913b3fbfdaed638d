#include "protocol/atp/scaled_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/kernels.h"
#include "stream/tensor.h"

namespace netsum::atp {

double scale_for(std::uint8_t exponent, std::uint32_t world_size) {
  if (exponent == 0) return largest_scale;
  // docs/numerics.md: with up to 128 ranks each value stays below 2^(31 - ranks_log), with more it may reach that.
  const auto ranks_log = static_cast<int>(std::bit_width(world_size > 128 ? world_size : world_size - 1));
  return std::min(largest_scale, std::ldexp(1.0, 31 - ranks_log - (int{exponent} - 126)));
}

ScaledCodec::ScaledCodec(std::uint32_t rank, std::uint32_t world_size, std::uint32_t most_elements)
    : rank_(rank), world_size_(world_size), most_elements_(most_elements) {}

float* ScaledCodec::scratch() {
  if (scratch_.empty()) scratch_.resize(most_elements_);
  return scratch_.data();
}

const float* ScaledCodec::floats_at(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements) {
  if (operation.dtype == DType::float32) return stream::tensor_at<const float>(operation, offset);
  if (operation.dtype == DType::float16) {
    kernels::from_float16(scratch(), stream::tensor_at<const std::uint16_t>(operation, offset), elements);
  } else {
    kernels::from_bfloat16(scratch(), stream::tensor_at<const std::uint16_t>(operation, offset), elements);
  }
  return scratch();
}

std::uint8_t ScaledCodec::exponent_of(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements) {
  NETSUM_CHECK(uses_scale(operation) && offset + elements <= stream::wire_elements(operation));
  return std::max<std::uint8_t>(1, kernels::largest_exponent(floats_at(operation, offset, elements), elements));
}

bool ScaledCodec::encode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                         std::uint8_t exponent, std::byte* payload) {
  if (elements == 0) return true;
  NETSUM_CHECK(offset + elements <= stream::wire_elements(operation));
  if (uses_scale(operation)) {
    return kernels::quantize_scaled(payload, floats_at(operation, offset, elements), elements,
                                    scale_for(exponent, world_size_));
  }
  const std::size_t bytes = operation.collective == stream::Collective::broadcast
                                ? stream::broadcast_bytes(operation, offset, elements)
                                : std::size_t{elements} * 4;
  std::memcpy(payload, stream::word_at(operation, offset), bytes);
  std::memset(payload + bytes, 0, std::size_t{elements} * 4 - bytes);
  return true;
}

void ScaledCodec::examine(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                          std::uint8_t exponent) {
  if (!uses_scale(operation)) return;
  constexpr std::uint32_t block = kernels::block_elements;
  for (std::uint32_t begin = 0; begin < elements; begin += block) {
    if (!sample_.takes(operation.elements)) continue;
    const std::uint32_t count = std::min(block, elements - begin);
    sample_.examine({floats_at(operation, offset + begin, count), count},
                    kernels::largest_to_zero(scale_for(exponent, world_size_)));
  }
}

void ScaledCodec::encode_floats(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                                std::byte* payload) {
  NETSUM_CHECK(uses_scale(operation) && offset + elements <= stream::wire_elements(operation));
  std::memcpy(payload, floats_at(operation, offset, elements), std::size_t{elements} * 4);
}

void ScaledCodec::decode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                         std::uint8_t exponent, const std::byte* payload, bool floats) {
  if (elements == 0) return;
  NETSUM_CHECK(offset + elements <= stream::wire_elements(operation));
  if (operation.collective == stream::Collective::broadcast) {
    if (operation.root != rank_) {
      std::memcpy(stream::word_at(operation, offset), payload, stream::broadcast_bytes(operation, offset, elements));
    }
    return;
  }
  const std::uint32_t divisor = operation.op == ReduceOp::avg ? world_size_ : 1;
  if (operation.dtype == DType::int32) {
    std::memcpy(stream::word_at(operation, offset), payload, std::size_t{elements} * 4);
    if (divisor != 1) kernels::divide_int32(stream::tensor_at<std::int32_t>(operation, offset), elements, divisor);
    return;
  }
  float* values = operation.dtype == DType::float32 ? stream::tensor_at<float>(operation, offset) : scratch();
  if (floats) {
    std::memcpy(values, payload, std::size_t{elements} * 4);  // divided already
  } else {
    kernels::dequantize_scaled(values, payload, elements, scale_for(exponent, world_size_), divisor);
  }
  if (operation.dtype == DType::float16) {
    kernels::to_float16(stream::tensor_at<std::uint16_t>(operation, offset), values, elements);
  } else if (operation.dtype == DType::bfloat16) {
    kernels::to_bfloat16(stream::tensor_at<std::uint16_t>(operation, offset), values, elements);
  }
}

}  // namespace netsum::atp
