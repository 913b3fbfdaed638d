// A tensor's memory, seen through an operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "stream/operation.h"

namespace netsum::stream {

template <class T>
[[nodiscard]] inline T* tensor_at(const Operation& operation, std::uint64_t offset) {
  return static_cast<T*>(operation.data) + offset;
}

[[nodiscard]] inline std::byte* word_at(const Operation& operation, std::uint64_t word) {
  return static_cast<std::byte*>(operation.data) + word * 4;
}

// A broadcast's last word may be partly outside the caller's memory.
[[nodiscard]] inline std::size_t broadcast_bytes(const Operation& operation, std::uint64_t word, std::uint32_t words) {
  return static_cast<std::size_t>(std::min<std::uint64_t>(std::uint64_t{words} * 4, operation.elements - word * 4));
}

// Whether `rank` has values to send of a part: in a broadcast, ranks other than the root send an empty contribution.
[[nodiscard]] inline bool contributes(const Operation& operation, std::uint32_t rank, std::uint32_t part = 0) {
  if (operation.collective == Collective::all_gather) return part == rank;
  return reduces(operation) || (operation.collective == Collective::broadcast && operation.root == rank);
}

// Whether `rank` takes the result of a part; else it only needs to know that the part's slot is free again.
[[nodiscard]] inline bool takes(const Operation& operation, std::uint32_t rank, std::uint32_t part = 0) {
  switch (operation.collective) {
    case Collective::broadcast:
      return operation.root != rank;
    case Collective::reduce:
      return operation.root == rank;
    case Collective::reduce_scatter:
      return part == rank;
    case Collective::all_gather:
      return part != rank;
    default:
      return true;
  }
}

// Whether nobody but `rank` takes the result of a part.
[[nodiscard]] inline bool takes_alone(const Operation& operation, std::uint32_t rank, std::uint32_t part = 0) {
  const bool one_taker = operation.collective == Collective::reduce || operation.collective == Collective::reduce_scatter;
  return one_taker && takes(operation, rank, part);
}

// Whether all of the tensor is one part, in one place.
[[nodiscard]] inline bool whole(const Operation& operation) {
  return operation.parts == 1 && operation.out == nullptr;
}

// Where the result of one that has no parts goes.
[[nodiscard]] inline void* result_of(const Operation& operation) {
  return operation.out != nullptr ? operation.out : operation.data;
}

// One part as an operation of its own: an all-reduce whose values `rank` gives, or takes, or a broadcast from the rank whose
// part it is.
[[nodiscard]] inline Operation part_of(const Operation& operation, std::uint32_t rank, std::uint32_t part, bool taken) {
  Operation view = operation;
  view.parts = 1;
  view.part = part;
  view.elements = part_elements(operation);
  view.out = nullptr;
  const bool gathered = operation.collective == Collective::all_gather;
  const std::size_t bytes = view.elements * (gathered ? 1 : bytes_of(operation.dtype));
  const bool elsewhere = operation.out != nullptr;
  auto* const data = static_cast<std::byte*>(operation.data);
  auto* const out = static_cast<std::byte*>(elsewhere ? operation.out : operation.data);
  if (gathered) {
    view.collective = Collective::broadcast;
    view.root = part;
    view.data = elsewhere && part == rank ? data : out + part * bytes;
  } else {
    view.collective = Collective::all_reduce;
    // A reduce-scatter's `out` is one part.
    view.data = taken && elsewhere ? out : data + part * bytes;
  }
  return view;
}

// An operation that is whole, or a part of one as an operation of its own. Only that is a copy, as each packet asks.
class Seen {
 public:
  Seen(const Operation& operation, std::uint32_t rank, std::uint32_t part, bool as_taken) : operation_(&operation) {
    if (!whole(operation)) part_ = part_of(operation, rank, part, as_taken);
  }
  operator const Operation&() const { return part_ ? *part_ : *operation_; }

 private:
  const Operation* operation_;
  std::optional<Operation> part_;
};

// An all-gather's own part, of which the network brings nothing: bytes [begin, begin + most) into place.
inline void keep_own(const Operation& operation, std::uint32_t part, std::uint64_t begin, std::uint64_t most) {
  if (operation.collective != Collective::all_gather || operation.out == nullptr) return;
  const std::uint64_t bytes = part_elements(operation);
  if (begin >= bytes) return;
  const std::byte* const from = static_cast<const std::byte*>(operation.data) + begin;
  std::byte* const to = static_cast<std::byte*>(operation.out) + part * bytes + begin;
  if (from != to) std::memcpy(to, from, std::min(most, bytes - begin));
}

}  // namespace netsum::stream
