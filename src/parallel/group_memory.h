// Memory that the processes of one machine share, as its GPUs do: a slot for each member to say where it is, and a tensor
// for each. Member 0 makes it, and hands it over a local socket to processes of its own user alone; nothing of it outlives
// them. Members tell which of them live, whatever ended the others: each holds a lock on a byte of it, which the kernel
// gives back with the member's process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/time.h"
#include "transport/shared_memory.h"

namespace netsum::parallel {

enum class MemberState : std::uint32_t { absent, here, left, failed };

// Written by its member alone.
struct alignas(64) MemberSlot {
  // Calls that the member has come to, times 4, plus its state: a futex, on which the others wait.
  std::atomic<std::uint32_t> word{0};
  // What the call is, by its number modulo 2: nobody is two calls ahead of anybody.
  std::array<std::atomic<std::uint64_t>, 2> calls{};
  std::array<char, 256> reason{};  // of `failed`, before it is set
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "atomics between processes must not need a lock of one process");

struct GroupMemoryOptions {
  std::string name;  // letters, digits, '-', '_' and '.', 80 at most: the group's, among this user's on this machine
  std::uint32_t rank = 0, size = 1;
  std::size_t elements = 0;  // of each tensor, float32
};

class GroupMemory {
 public:
  // Member 0 makes it; the others wait for it. Throws Error: bad_argument, refused (the name or the rank is in use),
  // mismatch, deadline, internal (no memory).
  [[nodiscard]] static std::shared_ptr<GroupMemory> join(const GroupMemoryOptions& options, Time deadline);
  // For members that are threads of this process: all of them use this one object.
  [[nodiscard]] static std::shared_ptr<GroupMemory> of_threads(std::uint32_t size, std::size_t elements);

  ~GroupMemory();
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] MemberSlot& slot(std::uint32_t rank) const { return slots_[rank]; }
  [[nodiscard]] std::span<float> tensor(std::uint32_t rank) const { return {tensors_ + rank * stride_, elements_}; }
  [[nodiscard]] bool alive(std::uint32_t rank) const;  // of a member that is `here`
  void close_door();                                   // nobody else comes; for member 0, which made it

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
  std::shared_ptr<transport::Descriptor> locks_;  // null: of threads
  MemberSlot* slots_ = nullptr;
  float* tensors_ = nullptr;
  std::unique_ptr<Door> door_;
};

}  // namespace netsum::parallel
