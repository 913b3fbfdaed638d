// Records of bytes from one thread to another: a FIFO in a fixed piece of memory, without locks.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/cache_line.h"

namespace netsum::runtime {

class HandoverQueue {
 public:
  static constexpr std::size_t alignment = cache_line;  // of records

  explicit HandoverQueue(std::size_t bytes) : size_(std::bit_ceil(bytes)), memory_(new_lines(size_)) {}

  // ---- the producer's thread

  // A place for a record, which push() hands over; empty: no room.
  [[nodiscard]] std::span<std::byte> reserve(std::size_t bytes) {
    const std::size_t needed = whole_lines(alignment + bytes), at = tail_ & (size_ - 1);
    const std::size_t skipped = needed <= size_ - at ? 0 : size_ - at;  // records are contiguous
    if (size_ - (tail_ - seen_head_) < skipped + needed) {
      seen_head_ = head_.load(std::memory_order_acquire);
      if (size_ - (tail_ - seen_head_) < skipped + needed) return {};
    }
    if (skipped > 0) {
      write_length(tail_, nothing);
      tail_ += skipped;
    }
    write_length(tail_, bytes);
    reserved_ = needed;
    return {&memory_[(tail_ & (size_ - 1)) + alignment], bytes};
  }
  void push() {
    tail_ += reserved_;
    published_.store(tail_, std::memory_order_release);
  }
  // Orders what was pushed before what this thread reads next.
  void announce() { published_.store(tail_, std::memory_order_seq_cst); }
  // Bytes of records that were not released when the producer looked last.
  [[nodiscard]] std::size_t bytes_seen() const { return static_cast<std::size_t>(tail_ - seen_head_); }
  void look() { seen_head_ = head_.load(std::memory_order_acquire); }
  [[nodiscard]] std::size_t capacity() const { return size_; }
  [[nodiscard]] bool is_drained() const { return head_.load(std::memory_order_acquire) == tail_; }

  // ---- the consumer's thread

  // The next record; empty: none. Its memory is reused after release().
  [[nodiscard]] std::span<std::byte> next() {
    while (read_ != published_.load(std::memory_order_acquire)) {
      const std::size_t at = read_ & (size_ - 1);
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, &memory_[at], sizeof bytes);
      if (bytes == nothing) {
        read_ += size_ - at;
        continue;
      }
      read_ += whole_lines(alignment + bytes);
      return {&memory_[at + alignment], bytes};
    }
    return {};
  }
  // All that next() has returned was served.
  void release() { head_.store(read_, std::memory_order_release); }
  [[nodiscard]] bool has_more() const { return read_ != published_.load(std::memory_order_seq_cst); }

 private:
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};  // the rest of the memory is not used

  void write_length(std::uint64_t at, std::uint64_t bytes) { std::memcpy(&memory_[at & (size_ - 1)], &bytes, sizeof bytes); }

  std::size_t size_;
  Lines memory_;
  // Each thread's own, on cache lines of their own.
  alignas(64) std::uint64_t tail_ = 0;
  std::uint64_t seen_head_ = 0;
  std::size_t reserved_ = 0;
  alignas(64) std::uint64_t read_ = 0;
  alignas(64) std::atomic<std::uint64_t> published_ = 0;
  alignas(64) std::atomic<std::uint64_t> head_ = 0;
};

}  // namespace netsum::runtime
