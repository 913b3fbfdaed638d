// What a format on the wire rounds, for those who give it back.
#include <algorithm>
#include <array>
#include <string>

#include "kernels/kernels.h"
#include "netsum/communicator.h"
#include "netsum/error.h"

namespace netsum {

void round_as(WireFormat wire, ConstTensorView from, TensorView to) {
  if (!rounds_blocks(wire)) {
    throw Error(ErrorCode::bad_argument,
                std::string("values are rounded as int8 or int4 has them, not as ") + to_string(wire));
  }
  if ((from.dtype != DType::float32 && from.dtype != DType::bfloat16) || to.dtype != from.dtype) {
    throw Error(ErrorCode::bad_argument, std::string("8 and 4 bits are of float32 or bfloat16 tensors, not of ") +
                                             to_string(from.dtype) + " and " + to_string(to.dtype));
  }
  if (from.elements != to.elements) {
    throw Error(ErrorCode::bad_argument, "both tensors must have the same number of elements, not " +
                                             std::to_string(from.elements) + " and " + std::to_string(to.elements));
  }
  const DType type = wire == WireFormat::int4 ? block4 : block8;
  constexpr std::size_t most = 64 * block_values;
  std::array<std::byte, block_bytes(block8, most)> blocks;
  std::array<float, most> wide;
  const bool is_wide = from.dtype == DType::float32;
  for (std::size_t begin = 0; begin < from.elements; begin += most) {
    const std::size_t part = std::min(most, from.elements - begin);
    const float* values = static_cast<const float*>(from.data) + begin;
    if (!is_wide) kernels::from_bfloat16(wide.data(), static_cast<const std::uint16_t*>(from.data) + begin, part);
    kernels::to_blocks(type, blocks.data(), is_wide ? values : wide.data(), part, 0, 0);
    kernels::from_blocks(type, is_wide ? static_cast<float*>(to.data) + begin : wide.data(), blocks.data(), part, 1);
    if (!is_wide) kernels::to_bfloat16(static_cast<std::uint16_t*>(to.data) + begin, wide.data(), part);
  }
}

}  // namespace netsum
