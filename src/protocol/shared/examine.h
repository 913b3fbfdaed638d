// Which values the sum of all ranks' memory makes 0, in a sample (docs/numerics.md#what-becomes-0).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "protocol/shared/layout.h"
#include "stream/operation.h"
#include "stream/underflow.h"

namespace netsum::shared {

// `count` elements from a block's begin: of the operation's sources, all ranks', those that are `counted`.
inline void examine(stream::UnderflowSample& sample, const stream::Operation& operation,
                    std::span<const std::byte* const> sources, std::span<const std::byte* const> counted,
                    std::uint64_t count) {
  if (!stream::uses_exponents(operation)) return;
  constexpr std::uint64_t block = block_elements;
  for (std::uint64_t begin = 0; begin < count; begin += block) {
    if (!sample.takes(operation.elements)) continue;
    const std::uint64_t length = std::min(block, count - begin);
    sample.add({length * counted.size(), kernels::count_to_zero(operation.dtype, sources, counted, begin, length)});
  }
}

}  // namespace netsum::shared
