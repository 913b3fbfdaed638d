// What a chip sums in place of what ranks hand in (docs/protocol-switchml-chip.md): int32 in network order, and floats as
// block fixed point alone. A packet's elements are all of one exponent block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/switchml/chunk_codec.h"
#include "stream/operation.h"

namespace netsum::switchml {

// The same call, as far as its values travel.
[[nodiscard]] inline stream::Operation for_chip(stream::Operation operation) {
  operation.fixed_point = true;
  return operation;
}

class ChipCodec {
 public:
  explicit ChipCodec(std::uint32_t packet_elements) : words_(std::size_t{packet_elements} * 4) {}

  // As ChunkCodec's, but for the payload: a packet's whole, of which `elements` are in use. `exponent`: the global one of
  // the block, or wire::chip::not_finite.
  void encode(ChunkCodec& codec, const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
              std::uint8_t exponent, std::span<std::byte> payload) const;
  void decode(ChunkCodec& codec, const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
              std::uint8_t exponent, std::span<const std::byte> payload);

 private:
  std::vector<std::byte> words_;  // a payload in the host's order
};

}  // namespace netsum::switchml
