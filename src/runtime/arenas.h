// This rank's tensor memory that the other ranks of its host have mapped: found by address, given back by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace netsum::runtime {

// Thread-safe.
class Arenas {
 public:
  static constexpr std::uint32_t most = 4096;  // at a time

  struct Place {
    std::uint32_t arena = 0;  // 0: nowhere here
    std::uint64_t offset = 0;
    std::shared_ptr<const void> memory;  // stays as long as this does
  };

  // A number that is not in use; 0: all are.
  [[nodiscard]] std::uint32_t reserve();
  // The other ranks have mapped this arena.
  void show(std::uint32_t arena, std::span<const std::byte> memory, std::weak_ptr<const void> owner);
  // find() no longer finds this arena: its owner is about to give it back.
  void hide(std::uint32_t arena);
  // Arenas hidden since the last call. Their numbers may now be reserved again, so tell the other ranks first.
  [[nodiscard]] std::vector<std::uint32_t> take_hidden();

  // Where `bytes` bytes at `data` lie, in elements of `width` bytes.
  [[nodiscard]] Place find(const void* data, std::size_t bytes, std::size_t width) const;

 private:
  struct Shown {
    std::uint32_t arena = 0;
    std::size_t bytes = 0;
    std::weak_ptr<const void> owner;
  };

  mutable std::mutex mutex_;
  std::vector<bool> used_;  // by number - 1
  std::vector<std::uint32_t> hidden_;
  std::map<std::uintptr_t, Shown> shown_;  // by first address
};

}  // namespace netsum::runtime
