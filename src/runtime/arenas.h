// This rank's memory for tensors that the other ranks of its host have mapped: found by address, given back by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace netsum::runtime {

// From any thread.
class Arenas {
 public:
  static constexpr std::uint32_t most = 4096;  // at a time

  struct Place {
    std::uint32_t arena = 0;  // 0: nowhere here
    std::uint64_t offset = 0;
    std::shared_ptr<const void> memory;  // stays as long as this does
  };

  // A number that no other has; 0: all are in use.
  [[nodiscard]] std::uint32_t reserve();
  // The others have it mapped.
  void show(std::uint32_t arena, std::span<const std::byte> memory, std::weak_ptr<const void> owner);
  // Is not found any more: its owner is about to give it back.
  void hide(std::uint32_t arena);
  // Those that were hidden since the last call. Their numbers may be reserved again, so the others must hear of that first.
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
  std::map<std::uintptr_t, Shown> shown_;  // by where it begins
};

}  // namespace netsum::runtime
