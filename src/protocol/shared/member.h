// One rank's part of a lane on which ranks that share memory sum (docs/shared-memory.md): the switch's work is done by the
// ranks themselves. A row of a tensor, some tens of kilobytes, has an owner, which sums it from all ranks' memory and puts
// the result where the others take it from.
//
// A pure state machine: who runs it copies the others' progress, with acquire order, before each step, and publishes its
// own, with release order, after it.
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

namespace netsum::shared {

struct MemberConfig {
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t lane = 0, lanes = 1;
  bool rotate = false;  // rows have owners in turn; else a lane has one, which is best where its ranks share a core
  std::uint32_t window = 4;
  std::size_t row_bytes = 65536;  // a multiple of 1024
};

// A call, and where its tensor lies if the others have that mapped.
struct Call {
  stream::Operation operation;
  std::uint32_t arena = 0;  // 0: nowhere
  std::uint64_t offset = 0;
};

struct MemberFailure {  // ranks that issued different calls, or say what cannot be
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
  static constexpr std::uint32_t most_operations = 8;  // under way

  // `peers`: by rank; the own entry is not looked at.
  Member(const MemberConfig& config, const LaneMemory& own, std::vector<PeerMemory> peers);

  // Where a rank's tensors may lie; empty: no longer.
  void set_arena(std::uint32_t rank, std::uint32_t arena, std::span<const std::byte> memory);

  // In the order of calls. False: too many are under way; again when some have ended.
  [[nodiscard]] bool submit(const Call& call);

  // One step of each kind, of what can be done. Whether there was any. `others`: by rank.
  [[nodiscard]] bool advance(std::span<const Progress> others);

  [[nodiscard]] const Progress& progress() const { return progress_; }
  [[nodiscard]] bool idle() const { return first_ == last_; }
  [[nodiscard]] std::optional<std::uint64_t> take_completed();
  [[nodiscard]] const std::optional<MemberFailure>& failure() const { return failure_; }
  // Whom the oldest operation waits for; empty: nobody.
  [[nodiscard]] std::optional<MemberStall> stall(std::span<const Progress> others) const;
  [[nodiscard]] std::uint64_t bytes_copied() const { return bytes_copied_; }  // into rings, and out of them

 private:
  struct Active {
    Call call;
    std::uint32_t signature = 0;
    std::uint64_t base = 0, rows = 0;  // of this lane
    std::size_t width = 1;             // bytes of an element
    std::uint64_t row_elements = 0;    // of each, but for the last
    bool beyond_caches = false;        // the tensor is so long
    std::uint64_t last_owned_end = 0;  // one past the last row that is this rank's; 0: none is
  };
  struct Row {
    std::uint64_t begin = 0, count = 0;  // elements
  };

  [[nodiscard]] Active& active(std::uint64_t index) { return operations_[index % most_operations]; }
  [[nodiscard]] const Active& active(std::uint64_t index) const { return operations_[index % most_operations]; }
  [[nodiscard]] Row row_of(const Active& op, std::uint64_t row) const;
  [[nodiscard]] std::uint32_t owner_of(const Active& op, std::uint64_t row) const;
  [[nodiscard]] std::size_t slot_of(std::uint64_t row) const { return static_cast<std::size_t>(row % config_.window); }
  // A ring twice as long: when a row that far ahead is staged, its owner had all ranks' rows a window ahead, and so all had
  // taken this one.
  [[nodiscard]] std::size_t header_of(std::uint64_t row) const {
    return static_cast<std::size_t>(row % (2 * config_.window));
  }
  [[nodiscard]] std::byte* tensor_at(const Active& op, std::uint64_t element) const;
  // Its header for this row, checked; false: it failed.
  [[nodiscard]] bool read_header(std::uint32_t rank, const Active& op, std::uint64_t row, RowHeader& header);
  // Its tensor's begin, if that lies in an arena.
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
  std::uint64_t first_ = 0, last_ = 0;                    // operations under way
  std::uint64_t staging_ = 0, summing_ = 0, taking_ = 0;  // where each of the steps is: index of operation
  std::uint64_t end_ = 0;                                 // rows of all operations so far
  Progress progress_;
  std::array<std::uint64_t, most_operations> completed_{};
  std::uint32_t completed_count_ = 0, completed_taken_ = 0;
  std::optional<MemberFailure> failure_;
  std::uint64_t bytes_copied_ = 0;
};

}  // namespace netsum::shared
