// The memory that a rank shows to the other ranks of its job on one host, which map it read-only. Only that rank writes it,
// and readers trust nothing in it: protocol/shared copies each value before it checks and uses it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/copied.h"
#include "protocol/shared/layout.h"

namespace netsum::runtime {

inline constexpr std::uint64_t segment_magic = 0x33'6d65'6d75'736eULL;  // "nsumem3": the layout below
inline constexpr std::uint32_t most_shared_lanes = 8;
inline constexpr std::size_t shared_ring_bytes = 524288;  // per lane
inline constexpr std::size_t least_row_bytes = 65536;
inline constexpr std::uint32_t most_shared_rows = shared_ring_bytes / least_row_bytes;
inline constexpr std::size_t calls_shown = 64;

// A rank announces that its state changed and, in `sleeping`, that it sleeps until another rank's changes.
struct alignas(64) Signal {
  std::atomic<std::uint32_t> changes{0};  // a futex
  std::atomic<std::uint32_t> sleeping{0};
};

struct alignas(64) LaneState {
  Signal signal;
  std::atomic<std::uint64_t> staged{0}, summed{0}, taken{0};
};

struct alignas(64) SmallState {
  std::atomic<std::uint64_t> posted{0};
  std::atomic<std::uint32_t> changes{0}, sleeping{0};  // as a Signal, in the same line
};

// The call issued under an operation number, for ranks that wait in vain.
struct ShownCall {
  std::atomic<std::uint64_t> number_and_one{0};
  std::atomic<std::uint32_t> signature{0};
};

// Two ranks that were found to differ.
struct ShownFailure {
  std::atomic<std::uint32_t> valid{0}, first_rank{0}, second_rank{0};
  std::atomic<std::uint64_t> operation{0};
};

struct SharedSegment {
  std::uint64_t magic = segment_magic;
  std::uint32_t rank = 0, world_size = 0;
  std::uint32_t threads = 1, processors = 1;  // available to the rank

  SmallState small;
  std::array<shared::SmallSlot, 2> small_slots;
  alignas(64) ShownFailure failure;
  alignas(64) std::array<ShownCall, calls_shown> calls;
  alignas(64) std::array<std::atomic<std::uint32_t>, shared::max_world_size> arenas_known{};  // of each rank
  std::array<LaneState, most_shared_lanes> lanes;
  std::array<std::array<shared::RowHeader, std::size_t{2} * most_shared_rows>, most_shared_lanes> headers;
  struct alignas(copied_page) Ring {
    std::array<std::byte, static_cast<std::size_t>(Copied::from)> before;
    std::array<std::byte, shared_ring_bytes> bytes;
  };
  std::array<Ring, most_shared_lanes> staged, results;
};

// How a lane's ring is divided. The same on all ranks.
struct Rows {
  std::uint32_t window;  // rows
  std::size_t bytes;     // of each
};

// Where the ranks of a lane share a processor, two rows: longer rows mean fewer context switches. Else many short rows, so
// that as many owners sum at a time.
inline Rows rows_of(bool crowded) {
  return crowded ? Rows{2, shared_ring_bytes / 2} : Rows{most_shared_rows, least_row_bytes};
}

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "atomics between processes must not need a lock of one process");

}  // namespace netsum::runtime
