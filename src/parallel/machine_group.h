// Collectives inside a machine: members that share memory read each other's tensors in place, as GPUs with peer access do.
// Sums are added in float32 in the order of the members, so that they have the same bits in every run. No locks: a member
// that dies holds nothing, and the others notice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/time.h"
#include "netsum/error.h"
#include "parallel/group_memory.h"

namespace netsum::parallel {

// A share of a tensor: whole blocks of 256 elements, except at the tensor's end.
struct Piece {
  std::size_t begin = 0, end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};
[[nodiscard]] Piece piece_of(std::size_t elements, std::uint32_t index, std::uint32_t pieces);

// One member; all members make the same calls in the same order, with the same lengths. Each call throws Error: deadline
// (with the members that are missing), worker_lost (a member died, failed or left), mismatch; after that every call of every
// member throws. One thread at a time.
class MachineGroup {
 public:
  // Returns when all members are there.
  MachineGroup(std::string name, std::shared_ptr<GroupMemory> memory, std::uint32_t rank, Time deadline);
  ~MachineGroup();
  MachineGroup(const MachineGroup&) = delete;
  MachineGroup& operator=(const MachineGroup&) = delete;

  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  [[nodiscard]] std::uint32_t size() const { return memory_->size(); }
  [[nodiscard]] std::span<float> tensor() const { return memory_->tensor(rank_); }

  void barrier(Time deadline);

  // This member's piece of its tensor becomes the sum of all members' pieces. Until the next call, no other piece may be
  // written.
  void reduce_scatter(std::size_t elements, Time deadline);
  // Sends each member's piece to all.
  void all_gather(std::size_t elements, Time deadline);
  // Member 0's tensor becomes the sum of all; each member adds its piece. The others' stay as they are.
  void reduce(std::size_t elements, Time deadline);
  // Sends member 0's tensor to all.
  void broadcast(std::size_t elements, Time deadline);

  // The others fail too, with this reason.
  void abort(const std::string& reason);

 private:
  enum class Step : std::uint8_t { join, barrier, reduce_scatter, all_gather, reduce, broadcast, end };
  static const char* name_of(Step step);

  // Returns when all members have reached this step.
  void meet(Step step, std::size_t elements, Time deadline);
  void await(std::uint32_t member, Step step, Time deadline);
  void check_members(Step step, bool look, bool too_late);
  void check_call(std::uint32_t member, std::uint64_t mine);
  void publish(MemberState state);
  [[nodiscard]] bool has_come(std::uint32_t member) const;
  void sum_piece(std::span<float> out, std::size_t elements);
  void end(const Error& error, const std::string& reason);  // the others hear the reason
  [[noreturn]] void fail(ErrorCode code, const std::string& what);

  std::string name_;
  std::shared_ptr<GroupMemory> memory_;
  std::uint32_t rank_;
  std::uint32_t calls_ = 0;  // modulo 2^30, like those in the members' words
  std::optional<Error> failure_;
};

}  // namespace netsum::parallel
