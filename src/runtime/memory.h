// Packet memory for protocols: zeroed, and aligned to pages.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <unordered_map>

#include "base/check.h"
#include "netsum/error.h"
#include "service/memory.h"

namespace netsum::runtime {

// True on threads that serve packets. They neither allocate nor free packet memory: both take the kernel long.
inline thread_local bool serves_packets = false;

using service::Pages;

// Mapped from the kernel and returned to it: memory of ended jobs is not cached. Pages that a job reserves and does not use
// cost nothing, unless they are populated at once so that no packet waits for a page.
class PacketMemory {
 public:
  PacketMemory() = default;
  explicit PacketMemory(std::size_t bytes, Pages pages = Pages::when_touched)
      : size_(bytes), block_(map(bytes, pages), Unmap{bytes}) {}

  [[nodiscard]] std::span<std::byte> bytes() { return {static_cast<std::byte*>(block_.get()), size_}; }

 private:
  static void* map(std::size_t bytes, Pages pages) {
    NETSUM_CHECK(!serves_packets);
    if (bytes == 0) return nullptr;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (pages == Pages::now ? MAP_POPULATE : 0);
    void* const block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    return block;
  }
  struct Unmap {
    std::size_t bytes;
    void operator()(void* block) const {
      NETSUM_CHECK(!serves_packets);
      munmap(block, bytes);
    }
  };
  std::size_t size_ = 0;
  std::unique_ptr<void, Unmap> block_;
};

class MappedMemory final : public service::Memory {
 public:
  explicit MappedMemory(std::size_t bytes, Pages pages = Pages::when_touched) : memory_(bytes, pages) {}
  [[nodiscard]] std::span<std::byte> bytes() override { return memory_.bytes(); }

 private:
  PacketMemory memory_;
};

// The memory of a lane's jobs, by a job's number. Belongs to the thread that adds and removes jobs, not to the lane's
// thread, so slow kernel work (unmapping many pages) delays no packet.
class JobMemory {
 public:
  // Calls serve(bytes) with new memory. If that throws, the memory is freed.
  template <class Serve>
  void add(std::uint64_t job, std::size_t bytes, const Serve& serve) {
    const auto [place, is_new] = memory_.try_emplace(job, bytes);
    if (!is_new) throw Error(ErrorCode::internal, "a job's number was issued twice");
    try {
      serve(place->second.bytes());
    } catch (...) {
      memory_.erase(place);
      throw;
    }
  }
  void remove(std::uint64_t job) { memory_.erase(job); }

 private:
  std::unordered_map<std::uint64_t, PacketMemory> memory_;
};

}  // namespace netsum::runtime
