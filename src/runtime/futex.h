// Waiting for another process, on a word of memory that both have mapped at least to read.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/time.h"

namespace netsum::runtime {

// Waits until the word differs from `value`, for `patience` at most; may return early.
void wait_on(const std::atomic<std::uint32_t>& word, std::uint32_t value, Duration patience);
void wake_all(const std::atomic<std::uint32_t>& word);

struct Awaited {
  const std::atomic<std::uint32_t>* word;
  std::uint32_t seen;
  Duration longest;  // of one sleep
};
// The same, until one of several words differs: Linux 5.16 and later, where no filter of system calls forbids it.
[[nodiscard]] bool can_wait_on_any();
void wait_on_any(std::span<const Awaited> words, Duration patience);  // 128 at most; waits for the first ones of more

// Hints to the processor that this thread spins on memory.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace netsum::runtime
