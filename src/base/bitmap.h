// Sets of ranks as bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace netsum {

inline constexpr std::uint32_t max_world_size = 4096;  // of any protocol; each may take fewer

// Up to Capacity ranks, a multiple of 64.
template <std::uint32_t Capacity>
class BasicRankSet {
 public:
  static constexpr std::uint32_t word_count = Capacity / 64;
  using Words = std::array<std::uint64_t, word_count>;

  BasicRankSet() = default;
  // The ranks 0 ... count-1.
  [[nodiscard]] static constexpr BasicRankSet first(std::uint32_t count) {
    BasicRankSet set;
    for (std::uint32_t word = 0; word < word_count; ++word) {
      const std::uint32_t begin = word * 64;
      if (count >= begin + 64) {
        set.words_[word] = ~std::uint64_t{0};
      } else if (count > begin) {
        set.words_[word] = (std::uint64_t{1} << (count - begin)) - 1;
      }
    }
    return set;
  }

  [[nodiscard]] constexpr bool contains(std::uint32_t rank) const { return (words_[rank >> 6] >> (rank & 63) & 1) != 0; }
  constexpr void insert(std::uint32_t rank) { words_[rank >> 6] |= std::uint64_t{1} << (rank & 63); }
  constexpr void erase(std::uint32_t rank) { words_[rank >> 6] &= ~(std::uint64_t{1} << (rank & 63)); }
  constexpr void clear() { words_ = {}; }
  [[nodiscard]] constexpr bool empty() const {
    std::uint64_t any = 0;
    for (const std::uint64_t word : words_) any |= word;
    return any == 0;
  }
  [[nodiscard]] constexpr std::uint32_t size() const {
    std::uint32_t sum = 0;
    for (const std::uint64_t word : words_) sum += static_cast<std::uint32_t>(std::popcount(word));
    return sum;
  }
  // The smallest rank in it; it is not empty.
  [[nodiscard]] constexpr std::uint32_t front() const {
    std::uint32_t word = 0;
    while (words_[word] == 0) ++word;
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(words_[word]));
  }
  [[nodiscard]] constexpr BasicRankSet minus(const BasicRankSet& other) const {
    BasicRankSet set;
    for (std::uint32_t word = 0; word < word_count; ++word) set.words_[word] = words_[word] & ~other.words_[word];
    return set;
  }
  [[nodiscard]] constexpr BasicRankSet united(const BasicRankSet& other) const {
    BasicRankSet set;
    for (std::uint32_t word = 0; word < word_count; ++word) set.words_[word] = words_[word] | other.words_[word];
    return set;
  }
  [[nodiscard]] constexpr BasicRankSet in_both(const BasicRankSet& other) const { return minus(minus(other)); }
  [[nodiscard]] constexpr bool intersects(const BasicRankSet& other) const {
    std::uint64_t any = 0;
    for (std::uint32_t word = 0; word < word_count; ++word) any |= words_[word] & other.words_[word];
    return any != 0;
  }
  // Numbers the ranks in the set from 0 on, in order. Of a rank: how many are below it. The rank with a number below size().
  [[nodiscard]] constexpr std::uint32_t place_of(std::uint32_t rank) const { return minus(minus(first(rank))).size(); }
  [[nodiscard]] constexpr std::uint32_t at_place(std::uint32_t place) const {
    std::uint32_t found = Capacity;
    for_each([&](std::uint32_t rank) {
      if (place-- == 0) found = rank;
    });
    return found;
  }
  // The ranks with these numbers.
  [[nodiscard]] constexpr BasicRankSet at_places(const BasicRankSet& places) const {
    BasicRankSet set;
    std::uint32_t place = 0;
    for_each([&](std::uint32_t rank) {
      if (places.contains(place++)) set.insert(rank);
    });
    return set;
  }
  // Calls `what` with each rank, in order.
  template <class What>
  constexpr void for_each(What&& what) const {
    for (std::uint32_t word = 0; word < word_count; ++word) {
      for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1) {
        what(word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
      }
    }
  }
  [[nodiscard]] constexpr const Words& words() const { return words_; }
  [[nodiscard]] static constexpr BasicRankSet from_words(const Words& words) {
    BasicRankSet set;
    set.words_ = words;
    return set;
  }
  bool operator==(const BasicRankSet&) const = default;

 private:
  Words words_{};
};

using RankSet = BasicRankSet<max_world_size>;

}  // namespace netsum
