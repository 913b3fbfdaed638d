// A set of up to 256 ranks.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace netsum {

inline constexpr std::uint32_t max_world_size = 256;

class RankSet {
 public:
  RankSet() = default;
  // The ranks 0 ... count-1.
  [[nodiscard]] static constexpr RankSet first(std::uint32_t count) {
    RankSet set;
    for (std::uint32_t word = 0; word < 4; ++word) {
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
  constexpr void clear() { words_ = {}; }
  [[nodiscard]] constexpr bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  [[nodiscard]] constexpr std::uint32_t size() const {
    std::uint32_t sum = 0;
    for (const std::uint64_t word : words_) sum += static_cast<std::uint32_t>(std::popcount(word));
    return sum;
  }
  [[nodiscard]] constexpr RankSet minus(const RankSet& other) const {
    RankSet set;
    for (std::uint32_t word = 0; word < 4; ++word) set.words_[word] = words_[word] & ~other.words_[word];
    return set;
  }
  [[nodiscard]] constexpr RankSet united(const RankSet& other) const {
    RankSet set;
    for (std::uint32_t word = 0; word < 4; ++word) set.words_[word] = words_[word] | other.words_[word];
    return set;
  }
  [[nodiscard]] constexpr const std::array<std::uint64_t, 4>& words() const { return words_; }
  [[nodiscard]] static constexpr RankSet from_words(const std::array<std::uint64_t, 4>& words) {
    RankSet set;
    set.words_ = words;
    return set;
  }
  bool operator==(const RankSet&) const = default;

 private:
  std::array<std::uint64_t, 4> words_{};
};

}  // namespace netsum
