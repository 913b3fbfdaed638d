// Packet memory for protocols: zeroed, and aligned to cache lines.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace netsum::runtime {

// Large blocks come from the kernel as they are first touched: what a job reserves and does not use costs nothing.
class PacketMemory {
 public:
  PacketMemory() = default;
  explicit PacketMemory(std::size_t bytes) : size_(bytes), block_(std::calloc(bytes + alignment, 1)) {
    if (!block_) throw std::bad_alloc();
  }

  [[nodiscard]] std::span<std::byte> bytes() {
    void* begin = block_.get();
    std::size_t space = size_ + alignment;
    return {static_cast<std::byte*>(std::align(alignment, size_, begin, space)), size_};
  }

 private:
  static constexpr std::size_t alignment = 64;
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  std::size_t size_ = 0;
  std::unique_ptr<void, Free> block_;
};

}  // namespace netsum::runtime
