// A tensor's memory, seen through an operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

// Whether `rank` has values to send: in a broadcast, ranks other than the root send an empty contribution.
[[nodiscard]] inline bool contributes(const Operation& operation, std::uint32_t rank) {
  return operation.collective == Collective::all_reduce ||
         (operation.collective == Collective::broadcast && operation.root == rank);
}

}  // namespace netsum::stream
