// Tensor memory to packet payload and back: block fixed point or 16 bits for floats (docs/numerics.md), bytes as they are
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stream/operation.h"
#include "wire/switchml.h"

namespace netsum::stream {

class ChunkCodec {
 public:
  // `packet_elements`: of 32 bits; no call names more than such a packet, or one of twice as many 16-bit values, or a
  // stripe.
  ChunkCodec(std::uint32_t rank, std::uint32_t world_size, std::uint32_t packet_elements);

  // Largest exponents of the blocks in [offset, offset + elements), a stripe of this rank's tensor; offset is a multiple of
  // 256. Whether there are elements that are not finite.
  [[nodiscard]] bool scan(const Operation& operation, std::uint64_t offset, std::uint32_t elements,
                          std::span<std::uint8_t> exponents);

  // Elements [offset, offset + elements) into payload, as wire_dtype() says, and, if not empty, masks.
  // `exponents`: the global ones of the blocks that hold elements of the range.
  void encode(const Operation& operation, std::uint64_t offset, std::uint32_t elements, const std::uint8_t* exponents,
              std::byte* payload, std::span<std::byte> masks);

  // The reverse, from the sum over all ranks into the tensor.
  void decode(const Operation& operation, std::uint64_t offset, std::uint32_t elements, const std::uint8_t* exponents,
              const std::byte* payload, std::span<const std::byte> masks);

 private:
  // The floats at `offset`: in place, or widened into scratch_.
  [[nodiscard]] const float* floats(const Operation& operation, std::uint64_t offset, std::uint32_t elements);

  std::uint32_t rank_, world_size_;
  std::vector<float> scratch_;
  std::vector<std::uint16_t> halves_;
};

}  // namespace netsum::stream
