// A FIFO of frames in a fixed piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace netsum::transport {

class FrameQueue {
 public:
  explicit FrameQueue(std::size_t bytes) : memory_(bytes) {}

  // False: no room.
  [[nodiscard]] bool push(std::span<const std::byte> frame) {
    const std::size_t needed = length_bytes + frame.size();
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
    store_le(&memory_[end_], static_cast<std::uint32_t>(frame.size()));
    if (!frame.empty()) std::memcpy(&memory_[end_] + length_bytes, frame.data(), frame.size());
    end_ += needed;
    bytes_ += needed;
    ++frames_;
    return true;
  }

  // The oldest frame, valid until pop(). The queue is not empty.
  [[nodiscard]] std::span<std::byte> front() {
    return {memory_.data() + begin_ + length_bytes, load_le<std::uint32_t>(&memory_[begin_])};
  }
  void pop() {
    const std::size_t freed = length_bytes + load_le<std::uint32_t>(&memory_[begin_]);
    begin_ += freed;
    bytes_ -= freed;
    if (begin_ == wrap_) {
      begin_ = 0;
      wrap_ = nowhere;
    }
    --frames_;
  }

  [[nodiscard]] std::size_t size() const { return frames_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }  // with a few of its own for each
  [[nodiscard]] std::size_t capacity() const { return memory_.size(); }
  [[nodiscard]] bool empty() const { return frames_ == 0; }

 private:
  static constexpr std::size_t length_bytes = sizeof(std::uint32_t);
  static constexpr std::size_t nowhere = ~std::size_t{0};

  std::vector<std::byte> memory_;
  std::size_t begin_ = 0, end_ = 0, frames_ = 0, bytes_ = 0;
  std::size_t wrap_ = nowhere;  // where the queue wraps to the beginning of the memory
};

}  // namespace netsum::transport
