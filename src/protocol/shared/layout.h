// What a rank shows the others in memory that only it writes: where each of its lanes is, and what it has put there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace netsum::shared {

inline constexpr std::uint32_t max_world_size = 256;
inline constexpr std::uint32_t block_elements = 256;  // of an exponent, as in packets

// Rows of a lane's operations, counted over all of them: staged, summed where the rank is their owner, and taken.
struct Progress {
  std::uint64_t staged = 0, summed = 0, taken = 0;
  bool operator==(const Progress&) const = default;
};

// Beside each staged row. Whoever reads it copies it first and checks the copy.
struct alignas(32) RowHeader {
  std::uint64_t operation = 0;
  std::uint64_t offset = 0;  // of the tensor in its arena
  std::uint32_t signature = 0;
  std::uint32_t arena = 0;  // 0: the row is in the ring
};

// One lane of one rank's memory: rings of `window` rows each. Const for all but its rank.
template <class Byte, class Header>
struct BasicLaneMemory {
  Header* headers = nullptr;  // 2 * window of them: an owner's are read until the others have taken its results
  Byte* staged = nullptr;     // window * row_bytes, like the next
  Byte* results = nullptr;
};
using LaneMemory = BasicLaneMemory<std::byte, RowHeader>;
using PeerMemory = BasicLaneMemory<const std::byte, const RowHeader>;

// Short tensors, which every rank sums by itself: two of them, in turn.
inline constexpr std::size_t small_bytes = 65536;

struct alignas(64) SmallSlot {
  std::uint64_t operation = 0;
  std::uint32_t signature = 0;
  alignas(16) std::byte values[small_bytes] = {};  // in the first line with the others, if they are few
};

// Another process may write there meanwhile: each field is read once.
template <class T>
[[nodiscard]] inline T once(const T& field) {
  return *static_cast<const volatile T*>(&field);
}

}  // namespace netsum::shared
