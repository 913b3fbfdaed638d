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

namespace netsum::runtime {

// Of threads that serve packets: memory comes and goes elsewhere, since both take the kernel long.
inline thread_local bool serves_packets = false;

enum class Pages { when_touched, now };

// From the kernel and back to it: what ended jobs had is not kept, however much it was. What a job reserves and does not use
// costs nothing, unless it is to be there now: then no packet waits for a page.
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

// The memory of a lane's jobs, by a number of the job's own. Of the thread that adds and removes jobs, not of the lane's:
// what the kernel takes long for (unmapping many pages) delays no packet.
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
