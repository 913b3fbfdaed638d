// Where memory begins that the kernel or libc copies: the one rule for it.
//
// Both copy with rep movsb, libc only what is long. Some processors then take 15 times as long where the copy lies 1 to 31
// bytes behind its source, modulo a page (Zen 3; Zen 4 where it lies 1 to 15). bench/micro/copy_bench.cc measures it. The
// other end is not ours, but it begins in few places:
//
//   at a page                        trains, long datagrams, tensors of Communicator::allocate()
//   16 bytes behind one, or 64       a caller's long tensors, from malloc() or aligned
//   42, 44, 62 or 64 behind a line   shorter datagrams, behind the headers of their frames
//
// So what is copied out of begins a line behind a page, and what is copied into half a line later. More of the same memory
// follows at whole lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "base/cache_line.h"

namespace netsum {

inline constexpr std::size_t copied_page = 4096;
inline constexpr std::size_t slow_from = 1, slow_to = 31;  // bytes behind

[[nodiscard]] constexpr bool copies_slowly(std::uintptr_t to, std::uintptr_t from) {
  const std::uintptr_t behind = (to - from) % copied_page;
  return behind >= slow_from && behind <= slow_to;
}

// Bytes behind a page. Memory that is both is `into`.
enum class Copied : std::size_t { from = cache_line, into = cache_line + cache_line / 2 };

// Not initialized. As long as the object lives, and at the same place when that is moved.
class CopiedMemory {
 public:
  CopiedMemory() = default;
  CopiedMemory(Copied way, std::size_t bytes)
      : at_(static_cast<std::size_t>(way)),
        bytes_(bytes),
        pages_(new (std::align_val_t{copied_page}) std::byte[at_ + bytes]) {}

  [[nodiscard]] std::byte* data() const { return pages_ ? pages_.get() + at_ : nullptr; }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> first(std::size_t bytes) const { return std::span(data(), bytes_).first(bytes); }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{copied_page}); }
  };
  std::size_t at_ = 0, bytes_ = 0;
  std::unique_ptr<std::byte[], Delete> pages_;
};

}  // namespace netsum
