// Sets of ranks as bits (bitmap.h), for those that are made with every packet: of the words those up to the highest rank's
// alone are read, written and copied.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

namespace netsum {

// Up to Capacity ranks, a multiple of 64.
template <std::uint32_t Capacity>
class ShortRankSet {
 public:
  ShortRankSet() : used_(0) {}
  ShortRankSet(const ShortRankSet& other) { copy(other); }
  ShortRankSet& operator=(const ShortRankSet& other) {
    copy(other);
    return *this;
  }
  // The ranks 0 ... count-1.
  [[nodiscard]] static ShortRankSet first(std::uint32_t count) {
    ShortRankSet set;
    for (; count >= 64; count -= 64) set.words_[set.used_++] = ~std::uint64_t{0};
    if (count != 0) set.words_[set.used_++] = (std::uint64_t{1} << count) - 1;
    return set;
  }
  // Words of 64 ranks each, no more than there are of its Capacity.
  [[nodiscard]] static ShortRankSet from_words(std::span<const std::uint64_t> words) {
    ShortRankSet set;
    set.used_ = static_cast<std::uint32_t>(words.size());
    std::copy(words.begin(), words.end(), set.words_.begin());
    set.trim();
    return set;
  }
  // Up to the highest rank's; the last one is not 0.
  [[nodiscard]] std::span<const std::uint64_t> words() const { return std::span(words_).first(used_); }

  [[nodiscard]] bool contains(std::uint32_t rank) const {
    return rank >> 6 < used_ && (words_[rank >> 6] >> (rank & 63) & 1) != 0;
  }
  void insert(std::uint32_t rank) {
    while (used_ <= rank >> 6) words_[used_++] = 0;
    words_[rank >> 6] |= std::uint64_t{1} << (rank & 63);
  }
  void clear() { used_ = 0; }
  [[nodiscard]] bool empty() const { return used_ == 0; }
  [[nodiscard]] std::uint32_t size() const {
    std::uint32_t sum = 0;
    for (const std::uint64_t word : words()) sum += static_cast<std::uint32_t>(std::popcount(word));
    return sum;
  }
  // The smallest rank in it; it is not empty.
  [[nodiscard]] std::uint32_t front() const {
    std::uint32_t word = 0;
    while (words_[word] == 0) ++word;
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(words_[word]));
  }
  [[nodiscard]] ShortRankSet minus(const ShortRankSet& other) const {
    ShortRankSet set(*this);
    for (std::uint32_t i = 0; i < std::min(used_, other.used_); ++i) set.words_[i] &= ~other.words_[i];
    set.trim();
    return set;
  }
  [[nodiscard]] ShortRankSet united(const ShortRankSet& other) const {
    const bool longer = used_ > other.used_;
    ShortRankSet set(longer ? *this : other);
    const ShortRankSet& shorter = longer ? other : *this;
    for (std::uint32_t i = 0; i < shorter.used_; ++i) set.words_[i] |= shorter.words_[i];
    return set;
  }
  [[nodiscard]] bool intersects(const ShortRankSet& other) const {
    std::uint64_t any = 0;
    for (std::uint32_t i = 0; i < std::min(used_, other.used_); ++i) any |= words_[i] & other.words_[i];
    return any != 0;
  }
  // Calls `what` with each rank, in order.
  template <class What>
  void for_each(What&& what) const {
    for (std::uint32_t i = 0; i < used_; ++i) {
      for (std::uint64_t bits = words_[i]; bits != 0; bits &= bits - 1) {
        what(i * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
      }
    }
  }
  bool operator==(const ShortRankSet& other) const {
    return used_ == other.used_ && std::equal(words_.begin(), words_.begin() + used_, other.words_.begin());
  }

 private:
  void copy(const ShortRankSet& other) {
    used_ = other.used_;
    std::copy_n(other.words_.begin(), used_, words_.begin());
  }
  void trim() {
    while (used_ > 0 && words_[used_ - 1] == 0) --used_;
  }

  std::uint32_t used_;                              // the last of them is not 0
  std::array<std::uint64_t, Capacity / 64> words_;  // what is beyond has no value
};

}  // namespace netsum
