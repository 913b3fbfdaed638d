// Tensor memory to packet payload and back with one scale for each call (ATP §3.8, §B.3): floats times the scale as int32,
// or unscaled; other types as bytes. docs/numerics.md has the bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stream/operation.h"
#include "stream/underflow.h"

namespace netsum::atp {

inline constexpr double largest_scale = 1e8;  // ATP §B.1

// With a nonzero exponent, every finite value is below 2^(exponent - 126), and the scale is the largest of largest_scale and
// powers of two with which no sum of all ranks leaves int32. 0: unknown; the scale is largest_scale.
[[nodiscard]] double scale_for(std::uint8_t exponent, std::uint32_t world_size);

class ScaledCodec {
 public:
  // `most_elements`: of the range of any call.
  ScaledCodec(std::uint32_t rank, std::uint32_t world_size, std::uint32_t most_elements);

  // The exponent for the finite elements in [offset, offset + elements): 1 ... 254.
  [[nodiscard]] std::uint8_t exponent_of(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements);

  // Elements [offset, offset + elements) as int32 into payload (4 * elements bytes). False if a value does not fit.
  [[nodiscard]] bool encode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                            std::uint8_t exponent, std::byte* payload);
  // Counts, in a sample, the values of that range that encode() makes 0.
  void examine(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements, std::uint8_t exponent);
  [[nodiscard]] const stream::Underflow& underflow() const { return sample_.found(); }
  // The same as float32, unscaled.
  void encode_floats(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements, std::byte* payload);

  // The reverse, from the sum over all ranks into the tensor.
  void decode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements, std::uint8_t exponent,
              const std::byte* payload,
              bool floats);  // floats: as from encode_floats(), and averages already divided

 private:
  [[nodiscard]] float* scratch();
  // The floats at `offset`: in place, or widened into scratch().
  [[nodiscard]] const float* floats_at(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements);

  std::uint32_t rank_, world_size_, most_elements_;
  std::vector<float> scratch_;  // none before the first tensor of 16 bits
  stream::UnderflowSample sample_;
};

// Whether values are floats that travel scaled; all others are added unconverted, modulo 2^32.
[[nodiscard]] constexpr bool uses_scale(const stream::Operation& operation) {
  return stream::adds_floats(operation);
}

}  // namespace netsum::atp
