// Rows of bits, all of one length that is known only at run time: one allocation, and a row of up to 64 bits is one word.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace netsum {

class BitRows {
 public:
  BitRows() = default;
  BitRows(std::size_t rows, std::size_t columns) : words_((columns + 63) / 64), bits_(rows * words_) {}

  [[nodiscard]] bool contains(std::size_t row, std::size_t column) const {
    return (bits_[row * words_ + (column >> 6)] >> (column & 63) & 1) != 0;
  }
  void insert(std::size_t row, std::size_t column) {
    bits_[row * words_ + (column >> 6)] |= std::uint64_t{1} << (column & 63);
  }
  void erase(std::size_t row, std::size_t column) {
    bits_[row * words_ + (column >> 6)] &= ~(std::uint64_t{1} << (column & 63));
  }
  void clear(std::size_t row) { std::fill_n(bits_.begin() + static_cast<std::ptrdiff_t>(row * words_), words_, 0); }
  [[nodiscard]] const std::vector<std::uint64_t>& words() const { return bits_; }
  [[nodiscard]] std::size_t count(std::size_t row) const {
    std::size_t sum = 0;
    for (std::size_t word = 0; word < words_; ++word) {
      sum += static_cast<std::size_t>(std::popcount(bits_[row * words_ + word]));
    }
    return sum;
  }

 private:
  std::size_t words_ = 0;
  std::vector<std::uint64_t> bits_;
};

}  // namespace netsum
