// Memory shared by the processes of one machine, as by its GPUs: per member, a slot for its progress and a tensor. Member 0
// creates it and passes it over a local socket, only to processes of the same user; it does not outlive them. Members detect
// each other's deaths, however caused: each holds a lock on one byte, which the kernel releases with the member's process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/time.h"
#include "transport/local/shared_memory.h"

namespace netsum::parallel {

enum class MemberState : std::uint32_t { absent, here, left, failed };

// Written only by its member.
struct alignas(64) MemberSlot {
  // Number of calls that the member has reached, times 4, plus its state: a futex, on which the others wait.
  std::atomic<std::uint32_t> word{0};
  // The call, by its number modulo 2: no member is two calls ahead of another.
  std::array<std::atomic<std::uint64_t>, 2> calls{};
  std::array<char, 256> reason{};  // of `failed`, before it is set
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "atomics between processes must not need a lock of one process");

struct GroupMemoryOptions {
  std::string name;  // letters, digits, '-', '_' and '.', at most 80; unique per user and machine
  std::uint32_t rank = 0, size = 1;
  std::size_t elements = 0;  // of each tensor, float32
};

class GroupMemory {
 public:
  // Member 0 creates it; the others wait for that. Throws Error: bad_argument, refused (the name or the rank is in use),
  // mismatch, deadline, internal (no memory).
  [[nodiscard]] static std::shared_ptr<GroupMemory> join(const GroupMemoryOptions& options, Time deadline);
  // For members that are threads of this process: all use this one object.
  [[nodiscard]] static std::shared_ptr<GroupMemory> of_threads(std::uint32_t size, std::size_t elements);

  ~GroupMemory();
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] MemberSlot& slot(std::uint32_t rank) const { return slots_[rank]; }
  [[nodiscard]] std::span<float> tensor(std::uint32_t rank) const { return {tensors_ + rank * stride_, elements_}; }
  [[nodiscard]] bool alive(std::uint32_t rank) const;  // of a member that is `here`
  void close_door();                                   // no more members are admitted; for member 0, which created it

 private:
  class Door;

  GroupMemory(std::uint32_t size, std::size_t elements);
  void use(std::unique_ptr<transport::CommonMemory> memory);
  void make(const std::string& name);
  [[nodiscard]] bool attach(const GroupMemoryOptions& options, Time deadline);  // false: not there yet
  [[nodiscard]] bool lock(std::uint32_t rank);

  std::uint32_t size_;
  std::size_t elements_, stride_, bytes_;  // stride: floats from tensor to tensor
  std::unique_ptr<transport::CommonMemory> memory_;
  std::shared_ptr<transport::Descriptor> locks_;  // null: members are threads
  MemberSlot* slots_ = nullptr;
  float* tensors_ = nullptr;
  std::unique_ptr<Door> door_;
};

}  // namespace netsum::parallel
