// A FIFO of frames in a fixed piece of memory, each from a cache line on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"
#include "base/copied.h"

namespace netsum::transport {

class FrameQueue {
 public:
  explicit FrameQueue(std::size_t bytes) : memory_(Copied::from, bytes) {}

  // False: no room.
  [[nodiscard]] bool push(std::span<const std::byte> frame) {
    const std::size_t needed = bytes_of(frame.size());
    if (frames_ == 0) {
      begin_ = end_ = 0;
      wrap_ = nowhere;
    }
    const bool wrapped = end_ < begin_ || (frames_ > 0 && end_ == begin_);
    if (needed > (wrapped ? begin_ : memory_.size()) - end_) {
      if (wrapped || needed > begin_) return false;
      wrap_ = end_;  // frames are contiguous: the rest at the end stays empty
      end_ = 0;
    }
    store_le(memory_.data() + end_, static_cast<std::uint32_t>(frame.size()));
    if (!frame.empty()) std::memcpy(memory_.data() + end_ + before_frame, frame.data(), frame.size());
    end_ += needed;
    bytes_ += needed;
    ++frames_;
    return true;
  }

  // The oldest frame, valid until pop(). The queue is not empty.
  [[nodiscard]] std::span<std::byte> front() { return {memory_.data() + begin_ + before_frame, first_length()}; }
  void pop() {
    const std::size_t freed = bytes_of(first_length());
    begin_ += freed;
    bytes_ -= freed;
    if (begin_ == wrap_) {
      begin_ = 0;
      wrap_ = nowhere;
    }
    --frames_;
  }

  [[nodiscard]] std::size_t size() const { return frames_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }  // with those between frames
  [[nodiscard]] std::size_t capacity() const { return memory_.size(); }
  [[nodiscard]] bool empty() const { return frames_ == 0; }

 private:
  static constexpr std::size_t before_frame = cache_line;  // its length, and nothing
  static constexpr std::size_t nowhere = ~std::size_t{0};

  [[nodiscard]] static std::size_t bytes_of(std::size_t frame) { return before_frame + whole_lines(frame); }
  [[nodiscard]] std::uint32_t first_length() const { return load_le<std::uint32_t>(memory_.data() + begin_); }

  CopiedMemory memory_;
  std::size_t begin_ = 0, end_ = 0, frames_ = 0, bytes_ = 0;
  std::size_t wrap_ = nowhere;  // where the queue wraps to the beginning of the memory
};

}  // namespace netsum::transport
