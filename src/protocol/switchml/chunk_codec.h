// Tensor memory to packet payload and back, as stream::on_wire() says (docs/numerics.md). Operations are whole, or one part
// of them (stream::part_of).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "seal/private_sums.h"
#include "stream/operation.h"
#include "stream/underflow.h"
#include "wire/switchml.h"

namespace netsum::switchml {

class ChunkCodec {
 public:
  // `packet_elements`: 32-bit values. No call exceeds one packet (or twice as many 16-bit values) or one stripe. `pads`:
  // payloads are masked with them; operations are then such that stream::adds_integers().
  ChunkCodec(std::uint32_t rank, std::uint32_t world_size, std::uint32_t packet_elements,
             const std::optional<seal::PadKeys>& pads = {});

  // The largest exponent of each block in [offset, offset + elements), a stripe of this rank's tensor; offset is a multiple
  // of 256. Returns whether any element is not finite.
  [[nodiscard]] bool scan(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                          std::span<std::uint8_t> exponents);

  // Elements [offset, offset + elements) into payload, in stream::wire_dtype(), and into masks unless that is empty.
  // `exponents`: the global exponents of the range's blocks.
  void encode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
              const std::uint8_t* exponents, std::byte* payload, std::span<std::byte> masks);

  // Counts, in a sample, the values of [offset, offset + elements) that encode() with these exponents makes 0.
  void examine(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
               const std::uint8_t* exponents);
  [[nodiscard]] const stream::Underflow& underflow() const { return sample_.found(); }

  // The reverse, from the sum over all ranks into the tensor.
  void decode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
              const std::uint8_t* exponents, const std::byte* payload, std::span<const std::byte> masks);

 private:
  void encode_plain(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                    const std::uint8_t* exponents, std::byte* payload, std::span<std::byte> masks);
  void decode_plain(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                    const std::uint8_t* exponents, const std::byte* payload, std::span<const std::byte> masks);

  // Without exponents: integers, floats that the switch takes as they are or in 16 bits, or as integers in their order.
  void encode_unscaled(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements, std::byte* payload);
  void decode_unscaled(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                       const std::byte* payload);

  // The floats at `offset`: in place, or widened into scratch_.
  [[nodiscard]] const float* floats(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements);

  std::uint32_t rank_, world_size_;
  std::vector<float> scratch_;
  stream::UnderflowSample sample_;
  std::vector<std::uint16_t> halves_;
  std::optional<seal::Pads> pads_;
  std::vector<std::byte> unmasked_;
};

}  // namespace netsum::switchml
