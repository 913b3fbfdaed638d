// Which counters a receiver has believed already (RFC 6479): each at most once, in any order within the window. Packets
// whose effect is not the same the second time need it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace netsum::seal {

class ReplayWindow {
 public:
  // How far behind the greatest counter a packet may be.
  static constexpr std::uint64_t length = 960;

  // Call it for authentic packets alone, since it remembers. False: seen before, or too old to tell.
  [[nodiscard]] bool take(std::uint64_t counter) {
    if (counter == 0 || (counter < greatest_ && greatest_ - counter > length)) return false;
    const std::uint64_t word = counter / word_bits;
    const std::uint64_t newest = greatest_ / word_bits;
    if (word > newest) {
      // Words between the two are of counters that have not come.
      const std::uint64_t skipped = word - newest < words ? word - newest : words;
      for (std::uint64_t i = 1; i <= skipped; ++i) seen_[(newest + i) % words] = 0;
    }
    if (counter > greatest_) greatest_ = counter;
    const std::uint64_t bit = std::uint64_t{1} << counter % word_bits;
    std::uint64_t& of_word = seen_[word % words];
    if ((of_word & bit) != 0) return false;
    of_word |= bit;
    return true;
  }

 private:
  static constexpr std::uint64_t word_bits = 64, words = 16;
  static_assert(length == (words - 1) * word_bits);  // the newest word may be as good as empty

  std::array<std::uint64_t, words> seen_{};
  std::uint64_t greatest_ = 0;
};

}  // namespace netsum::seal
