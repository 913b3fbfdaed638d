// One collective call as data: what is matched between ranks, and where its bytes lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "netsum/types.h"

namespace netsum::stream {

enum class Collective : std::uint8_t { all_reduce, broadcast, barrier };

struct Operation {
  std::uint64_t number = 0;  // position of the call in the communicator; the same on all ranks
  Collective collective = Collective::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::float32;
  std::uint64_t elements = 0;  // of dtype; a broadcast counts bytes
  std::uint32_t root = 0;      // broadcast
  std::uint32_t tag = 0;
  void* data = nullptr;
};

// Everything that must agree between ranks, in 32 bits.
[[nodiscard]] std::uint32_t signature_of(const Operation& operation, std::uint32_t packet_elements);

// "all_reduce sum of 1000 float32, tag 0"
[[nodiscard]] std::string to_string(const Operation& operation);

// int32 words on the wire; a barrier and an empty tensor have none and travel as one empty chunk.
[[nodiscard]] std::uint64_t wire_elements(const Operation& operation);

// Whether its values travel as block fixed point and so need exponents.
[[nodiscard]] constexpr bool uses_exponents(const Operation& operation) {
  return operation.collective == Collective::all_reduce && operation.dtype != DType::int32 && operation.elements > 0;
}

}  // namespace netsum::stream
