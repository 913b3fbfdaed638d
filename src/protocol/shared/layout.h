// A rank's shared memory, which only this rank writes: the progress and the data of each of its lanes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace netsum::shared {

inline constexpr std::uint32_t max_world_size = 256;
using kernels::block_elements;  // as in packets

// Rows of a lane, counted over all operations: staged, summed by this rank as their owner, and taken.
struct Progress {
  std::uint64_t staged = 0, summed = 0, taken = 0;
  bool operator==(const Progress&) const = default;
};

// Accompanies each staged row. Readers copy it first and check the copy.
struct alignas(32) RowHeader {
  std::uint64_t operation = 0;
  std::uint64_t offset = 0;  // of the tensor in its arena
  std::uint32_t signature = 0;
  std::uint32_t arena = 0;  // 0: the row is in the ring
};

// One lane of one rank's memory: rings of `window` rows each. Const for all other ranks.
template <class Byte, class Header>
struct BasicLaneMemory {
  Header* headers = nullptr;  // 2 * window entries: an owner's are read until the others have taken its results
  Byte* staged = nullptr;     // window * row_bytes, as `results`
  Byte* results = nullptr;
};
using LaneMemory = BasicLaneMemory<std::byte, RowHeader>;
using PeerMemory = BasicLaneMemory<const std::byte, const RowHeader>;

// Slots for short tensors, which every rank sums itself: two slots, used alternately.
inline constexpr std::size_t small_bytes = 65536;

struct alignas(64) SmallSlot {
  std::uint64_t operation = 0;
  std::uint32_t signature = 0;
  alignas(16) std::byte values[small_bytes] = {};  // in the first cache line with the other fields, if there are few
};

// Another process may write concurrently: each field is read once.
template <class T>
[[nodiscard]] inline T once(const T& field) {
  return *static_cast<const volatile T*>(&field);
}

}  // namespace netsum::shared
