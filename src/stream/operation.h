// One collective call as data: the fields matched between ranks, and the location of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/wire_types.h"
#include "kernels/kernels.h"
#include "netsum/types.h"

namespace netsum::stream {

// allocate: a barrier at which the ranks exchange memory.
enum class Collective : std::uint8_t { all_reduce, broadcast, barrier, allocate, reduce, reduce_scatter, all_gather };

struct Operation {
  std::uint64_t number = 0;  // position of the call in the communicator; the same on all ranks
  Collective collective = Collective::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::float32;
  std::uint64_t elements = 0;  // of dtype, over all parts; a broadcast and an all-gather count bytes
  std::uint32_t root = 0;      // broadcast, reduce
  std::uint32_t tag = 0;
  void* data = nullptr;
  // reduce-scatter and all-gather: as many parts as ranks. Part i is the sum that rank i takes, or what rank i gives.
  std::uint32_t parts = 1;
  std::uint32_t part = 0;  // which of the call's parts this is, as an operation of its own (part_of)
  void* out =
      nullptr;  // results, if not in `data`: of a reduction, this rank's part (reduce-scatter), all parts (all-gather)
  WireFormat wire = WireFormat::native;
  bool nearest = false;      // this rank rounds what travels in blocks to nearest, not by chance
  bool fixed_point = false;  // floats travel as block fixed point, whatever `wire` says: a chip adds nothing else (SwitchML)
};

// A 32-bit digest of all fields that must agree between ranks.
[[nodiscard]] std::uint32_t signature_of(const Operation& operation, std::uint32_t packet_elements);

// "all_reduce sum of 1000 float32, tag 0"
[[nodiscard]] std::string to_string(const Operation& operation);

[[nodiscard]] constexpr bool reduces(const Operation& operation) {
  return operation.collective == Collective::all_reduce || operation.collective == Collective::reduce ||
         operation.collective == Collective::reduce_scatter;
}
// Whether it carries bytes from one rank to the others.
[[nodiscard]] constexpr bool spreads(const Operation& operation) {
  return operation.collective == Collective::broadcast || operation.collective == Collective::all_gather;
}
[[nodiscard]] constexpr std::uint64_t part_elements(const Operation& operation) {
  return operation.parts == 1 ? operation.elements : operation.elements / operation.parts;
}

// A float32 tensor, or a part, of at most this many elements travels as plain floats: exponents would cost an extra round
// trip. It fits into any packet.
inline constexpr std::uint64_t most_plain_floats = 16;

// Values in SwitchML's packets: their type, and how the switch combines them. int32 sums are also block fixed point and a
// broadcast's words; of blocks the ranks divide averages.
struct OnWire {
  DType dtype = DType::int32;
  ReduceOp op = ReduceOp::sum;
  bool operator==(const OnWire&) const = default;
};

[[nodiscard]] constexpr OnWire on_wire(const Operation& operation) {
  if (!reduces(operation) || operation.elements == 0 || operation.fixed_point) return {};
  const bool sums = operation.op == ReduceOp::sum || operation.op == ReduceOp::avg;
  if (operation.dtype == DType::boolean) return {DType::uint8, kernels::on_booleans(operation.op)};
  if (!is_float(operation.dtype)) return {operation.dtype, sums ? ReduceOp::sum : operation.op};
  if (operation.op == ReduceOp::product || operation.dtype == DType::float64) {
    return sums || operation.op == ReduceOp::product ? OnWire{operation.dtype, operation.op}
                                                     : OnWire{DType::int64, operation.op};
  }
  if (!sums) return {kernels::integer_as_wide_as(operation.dtype), operation.op};
  const bool few = part_elements(operation) <= most_plain_floats;
  if (rounds_blocks(operation.wire) && operation.dtype != DType::float16 && !few) {
    return {operation.wire == WireFormat::int4 ? block4 : block8, ReduceOp::sum};
  }
  if (operation.dtype == DType::float32) {
    if (operation.wire == WireFormat::float16) return {DType::float16, operation.op};
    if (operation.wire == WireFormat::bfloat16) return {DType::bfloat16, operation.op};
    if (few) return {DType::float32, operation.op};
    return {};
  }
  return operation.wire != WireFormat::float32 ? OnWire{operation.dtype, operation.op} : OnWire{};
}

[[nodiscard]] constexpr DType wire_dtype(const Operation& operation) {
  return on_wire(operation).dtype;
}

// Values of each part on the wire (int32 words of bytes); a barrier and an empty tensor have none and travel as one empty
// chunk.
[[nodiscard]] std::uint64_t wire_elements(const Operation& operation);

// Whether it adds floats.
[[nodiscard]] constexpr bool adds_floats(const Operation& operation) {
  return reduces(operation) && is_float(operation.dtype) && operation.elements > 0 &&
         (operation.op == ReduceOp::sum || operation.op == ReduceOp::avg);
}

// Whether its values travel as integers that are added modulo 2^width, if at all: what a pad can hide
// (docs/private-sums.md).
[[nodiscard]] constexpr bool adds_integers(const Operation& operation) {
  const OnWire wire = on_wire(operation);
  return !added_in_order(wire.dtype) && wire.op == ReduceOp::sum;
}

// Whether its values travel as block fixed point and so need exponents (SwitchML).
[[nodiscard]] constexpr bool uses_exponents(const Operation& operation) {
  return adds_floats(operation) && wire_dtype(operation) == DType::int32;
}

}  // namespace netsum::stream
