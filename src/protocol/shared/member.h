// One rank's part of a lane whose ranks share memory (docs/shared-memory.md): the ranks themselves do the switch's work.
// Each row of a tensor, some tens of kilobytes, has an owner, which sums the row from all ranks' memory and publishes the
// result for the others.
//
// A pure state machine: before each step the caller copies the others' progress with acquire order, and after it publishes
// its own with release order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bitmap.h"
#include "protocol/shared/layout.h"
#include "stream/operation.h"
#include "stream/underflow.h"

namespace netsum::shared {

struct MemberConfig {
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t lane = 0, lanes = 1;
  bool rotate = false;  // owners alternate by row; else one owner per lane, which is best if its ranks share a core
  std::uint32_t window = 4;
  std::size_t row_bytes = 65536;  // a multiple of 1024
};

// A call, and the location of its tensor if the others have it mapped.
struct Call {
  stream::Operation operation;
  std::uint32_t arena = 0;  // 0: nowhere
  std::uint64_t offset = 0;
};

struct MemberFailure {  // ranks issued different calls, or wrote an impossible header
  std::uint64_t operation = 0;
  std::uint32_t first_rank = 0, second_rank = 0;
};

struct MemberStall {
  std::uint64_t operation = 0;
  std::uint64_t row = 0;
  RankSet missing;
};

class Member {
 public:
  static constexpr std::uint32_t most_operations = 8;  // pending at once

  // `peers`: by rank; the rank's own entry is ignored.
  Member(const MemberConfig& config, const LaneMemory& own, std::vector<PeerMemory> peers);

  // Memory in which a rank's tensors may lie; empty: removed.
  void set_arena(std::uint32_t rank, std::uint32_t arena, std::span<const std::byte> memory);

  // In the order of calls. False: too many are pending; retry when some have completed.
  [[nodiscard]] bool submit(const Call& call);

  // Takes each kind of step that is possible, once. True if any step was taken. `others`: by rank.
  [[nodiscard]] bool advance(std::span<const Progress> others);

  [[nodiscard]] const Progress& progress() const { return progress_; }
  [[nodiscard]] bool idle() const { return first_ == last_; }
  [[nodiscard]] std::optional<std::uint64_t> take_completed();
  [[nodiscard]] const std::optional<MemberFailure>& failure() const { return failure_; }
  // The ranks for which the oldest operation waits; none: it does not wait.
  [[nodiscard]] std::optional<MemberStall> stall(std::span<const Progress> others) const;
  [[nodiscard]] std::uint64_t bytes_copied() const { return bytes_copied_; }  // into and out of rings
  // Of all ranks' values in the rows that this rank sums.
  [[nodiscard]] const stream::Underflow& underflow() const { return sample_.found(); }

 private:
  struct Active {
    Call call;
    std::uint32_t signature = 0;
    std::uint64_t base = 0, rows = 0;  // of this lane
    std::size_t width = 1;             // bytes of an element
    std::uint64_t row_elements = 0;    // of each row but the last
    bool beyond_caches = false;        // the tensor exceeds the caches
    std::uint64_t last_owned_end = 0;  // one past the last row that this rank owns; 0: none
  };
  struct Row {
    std::uint64_t begin = 0, count = 0;  // elements
  };

  [[nodiscard]] Active& active(std::uint64_t index) { return operations_[index % most_operations]; }
  [[nodiscard]] const Active& active(std::uint64_t index) const { return operations_[index % most_operations]; }
  [[nodiscard]] Row row_of(const Active& op, std::uint64_t row) const;
  [[nodiscard]] std::uint32_t owner_of(const Active& op, std::uint64_t row) const;
  [[nodiscard]] std::size_t slot_of(std::uint64_t row) const { return static_cast<std::size_t>(row % config_.window); }
  // The ring has twice the window: when a row that far ahead is staged, its owner had all ranks' rows one window ahead, and
  // so all ranks had taken this one.
  [[nodiscard]] std::size_t header_of(std::uint64_t row) const {
    return static_cast<std::size_t>(row % (2 * config_.window));
  }
  [[nodiscard]] std::byte* tensor_at(const Active& op, std::uint64_t element) const;
  // The rank's header for this row, checked; false: the check failed.
  [[nodiscard]] bool read_header(std::uint32_t rank, const Active& op, std::uint64_t row, RowHeader& header);
  // The begin of the rank's tensor, if it lies in an arena.
  [[nodiscard]] const std::byte* arena_of(std::uint32_t rank, const Active& op, const RowHeader& header);
  void fail(const Active& op, std::uint32_t rank);

  void step(std::uint64_t& row, std::uint64_t& operation);
  bool stage();
  bool sum(std::span<const Progress> others);
  bool take(std::span<const Progress> others);
  void complete(std::span<const Progress> others);

  MemberConfig config_;
  LaneMemory own_;
  std::vector<PeerMemory> peers_;
  std::vector<std::vector<std::span<const std::byte>>> arenas_;  // [rank][arena - 1]
  std::array<Active, most_operations> operations_{};
  std::uint64_t first_ = 0, last_ = 0;                    // pending operations
  std::uint64_t staging_ = 0, summing_ = 0, taking_ = 0;  // the operation index of each step
  std::uint64_t end_ = 0;                                 // rows of all operations so far
  Progress progress_;
  std::array<std::uint64_t, most_operations> completed_{};
  std::uint32_t completed_count_ = 0, completed_taken_ = 0;
  std::optional<MemberFailure> failure_;
  std::uint64_t bytes_copied_ = 0;
  stream::UnderflowSample sample_;
};

}  // namespace netsum::shared
