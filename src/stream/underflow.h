// How many values a scale rounds to 0, counted in a sample of blocks (docs/numerics.md#what-becomes-0): to count them all
// would take a second pass over each packet's values. And how many are too large for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace netsum::stream {

struct Underflow {
  std::uint64_t examined = 0;     // values
  std::uint64_t underflowed = 0;  // of these: were not 0, and travelled as 0
  std::uint64_t clamped = 0;      // of all: were above the job's fixed scale, and travelled as its largest

  Underflow& operator+=(const Underflow& other) {
    examined += other.examined;
    underflowed += other.underflowed;
    clamped += other.clamped;
    return *this;
  }
};

class UnderflowSample {
 public:
  static constexpr std::uint64_t examined_whole = 512;  // tensors of at most so many elements; others: a block of 64

  // Whether to examine the next block of a tensor. The gaps vary, so that no block of a tensor that is summed again and
  // again is passed over each time.
  [[nodiscard]] bool takes(std::uint64_t elements_of_tensor) {
    if (elements_of_tensor <= examined_whole) return true;
    if (--gap_ != 0) return false;
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX
    gap_ = 1 + 2 * static_cast<std::uint32_t>(random_ >> 58);         // 1, 3, ... 127
    return true;
  }

  // `most`: the largest magnitude that becomes 0.
  void examine(std::span<const float> values, float most) {
    add({values.size(), kernels::count_nonzero_up_to(values.data(), values.size(), most), 0});
  }
  void add(const Underflow& found) { found_ += found; }

  [[nodiscard]] const Underflow& found() const { return found_; }

 private:
  Underflow found_;
  std::uint64_t random_ = 1;
  std::uint32_t gap_ = 1;
};

}  // namespace netsum::stream
