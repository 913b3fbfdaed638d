// One collective call as data: the fields matched between ranks, and the location of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "netsum/types.h"

namespace netsum::stream {

// allocate: a barrier at which the ranks exchange memory.
enum class Collective : std::uint8_t { all_reduce, broadcast, barrier, allocate };

struct Operation {
  std::uint64_t number = 0;  // position of the call in the communicator; the same on all ranks
  Collective collective = Collective::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::float32;
  std::uint64_t elements = 0;  // of dtype; a broadcast counts bytes
  std::uint32_t root = 0;      // broadcast
  std::uint32_t tag = 0;
  void* data = nullptr;
  WireFormat wire = WireFormat::native;
  bool fixed_point = false;  // floats travel as block fixed point, whatever `wire` says: a chip adds nothing else (SwitchML)
};

// A 32-bit digest of all fields that must agree between ranks.
[[nodiscard]] std::uint32_t signature_of(const Operation& operation, std::uint32_t packet_elements);

// "all_reduce sum of 1000 float32, tag 0"
[[nodiscard]] std::string to_string(const Operation& operation);

// A float32 tensor of at most this many elements travels as plain floats: exponents would cost an extra round trip. It fits
// into any packet.
inline constexpr std::uint64_t most_plain_floats = 16;

// The type on the wire in SwitchML: the float's type, or int32 for block fixed point, a broadcast's words, and integers.
[[nodiscard]] constexpr DType wire_dtype(const Operation& operation) {
  if (operation.collective != Collective::all_reduce || operation.elements == 0 || operation.fixed_point)
    return DType::int32;
  switch (operation.dtype) {
    case DType::int32:
      break;
    case DType::float32:
      if (operation.wire == WireFormat::float16) return DType::float16;
      if (operation.wire == WireFormat::bfloat16) return DType::bfloat16;
      if (operation.elements <= most_plain_floats) return DType::float32;
      break;
    case DType::float16:
    case DType::bfloat16:
      if (operation.wire != WireFormat::float32) return operation.dtype;
      break;
  }
  return DType::int32;
}

// Values on the wire (int32 words of a broadcast); a barrier and an empty tensor have none and travel as one empty chunk.
[[nodiscard]] std::uint64_t wire_elements(const Operation& operation);

// Whether it adds floats.
[[nodiscard]] constexpr bool adds_floats(const Operation& operation) {
  return operation.collective == Collective::all_reduce && operation.dtype != DType::int32 && operation.elements > 0;
}

// Whether its values travel as block fixed point and so need exponents (SwitchML).
[[nodiscard]] constexpr bool uses_exponents(const Operation& operation) {
  return adds_floats(operation) && wire_dtype(operation) == DType::int32;
}

}  // namespace netsum::stream
