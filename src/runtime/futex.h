// Waiting for another process, on a word of memory that both have mapped at least to read.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/time.h"

namespace netsum::runtime {

// Waits until the word differs from `value`, for `patience` at most; may return early.
void wait_on(const std::atomic<std::uint32_t>& word, std::uint32_t value, Duration patience);
void wake_all(const std::atomic<std::uint32_t>& word);

// Hints to the processor that this thread spins on memory.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace netsum::runtime
