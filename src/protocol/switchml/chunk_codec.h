// Tensor memory to packet payload and back, as stream::on_wire() says (docs/numerics.md). Operations are whole, or one part
// of them (stream::part_of).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "seal/linear_hash.h"
#include "seal/private_sums.h"
#include "stream/operation.h"
#include "stream/underflow.h"
#include "wire/switchml.h"

namespace netsum::switchml {

class ChunkCodec {
 public:
  struct Privacy {
    // Payloads are masked with them; operations are then such that stream::adds_integers().
    std::optional<seal::PadKeys> pads{};
    bool checked = false;  // with pads: payloads of check_words() have a hash behind their values
    // Of all blocks. Values may then be above it, and are clamped.
    std::optional<std::uint8_t> fixed_exponent{};
  };
  // `packet_elements`: 32-bit values. No call exceeds one packet (or twice as many 16-bit values) or one stripe.
  ChunkCodec(std::uint32_t rank, std::uint32_t world_size, std::uint32_t packet_elements, const Privacy& privacy);
  ChunkCodec(std::uint32_t rank, std::uint32_t world_size, std::uint32_t packet_elements)
      : ChunkCodec(rank, world_size, packet_elements, Privacy()) {}

  // Words of a hash behind the values of each chunk: of sums that cannot overflow, and of what one rank gives.
  [[nodiscard]] std::uint32_t check_words(const stream::Operation& operation) const;

  // The largest exponent of each block in [offset, offset + elements), a stripe of this rank's tensor; offset is a multiple
  // of 256. Returns whether any element is not finite.
  [[nodiscard]] bool scan(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                          std::span<std::uint8_t> exponents);

  // Elements [offset, offset + elements) into payload, in stream::wire_dtype(), with the hash behind them, and into masks
  // unless that is empty.
  // `exponents`: the global exponents of the range's blocks.
  void encode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
              const std::uint8_t* exponents, std::byte* payload, std::span<std::byte> masks);

  struct Values {
    std::span<const std::byte> payload, masks;
  };
  // The sum of the other ranks' values and of what encode() makes of this one's, with masks if it is `nonfinite`. Valid
  // until the next call.
  [[nodiscard]] Values with_own(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                                const std::uint8_t* exponents, Values others, bool nonfinite);

  // Counts, in a sample, the values of [offset, offset + elements) that encode() with these exponents makes 0.
  void examine(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
               const std::uint8_t* exponents);
  [[nodiscard]] const stream::Underflow& underflow() const { return sample_.found(); }

  // The reverse, from the sum over all ranks into the tensor. False: the sum is not that of the ranks.
  [[nodiscard]] bool decode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
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
  std::optional<std::uint8_t> fixed_exponent_;
  std::optional<seal::Pads> pads_;
  std::optional<seal::LinearHash> hash_;
  std::vector<std::byte> unmasked_;
  std::vector<std::byte> with_own_;  // a packet's payload and masks; empty until it is needed
};

}  // namespace netsum::switchml
