// Sets of ranks of which only as many words are read as the highest rank needs.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/bitmap.h"
#include "base/short_rank_set.h"

namespace netsum {
namespace {

using Short = ShortRankSet<4096>;

std::vector<std::uint32_t> listed(const auto& set) {
  std::vector<std::uint32_t> list;
  set.for_each([&](std::uint32_t rank) { list.push_back(rank); });
  return list;
}

TEST(ShortRankSet, IsWhatALongOneIs) {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  for (int round = 0; round < 2000; ++round) {
    Short a, b;
    RankSet long_a, long_b;
    const std::uint32_t most = 1U << below(13);
    for (std::uint32_t i = below(40); i > 0; --i) {
      const std::uint32_t rank = below(most);
      a.insert(rank);
      long_a.insert(rank);
      if (below(2) == 0) continue;
      b.insert(rank / 2);
      long_b.insert(rank / 2);
    }
    EXPECT_EQ(listed(long_a), listed(a));
    EXPECT_EQ(listed(long_a.minus(long_b)), listed(a.minus(b)));
    EXPECT_EQ(listed(long_a.united(long_b)), listed(a.united(b)));
    EXPECT_EQ(long_a.intersects(long_b), a.intersects(b));
    EXPECT_EQ(long_a == long_b, a == b);
    EXPECT_EQ(long_a.size(), a.size());
    EXPECT_EQ(long_a.empty(), a.empty());
    for (const std::uint32_t rank : {0U, 63U, 64U, most - 1, 4095U}) EXPECT_EQ(long_a.contains(rank), a.contains(rank));
    if (!a.empty()) {
      EXPECT_EQ(long_a.front(), a.front());
      EXPECT_NE(0U, a.words().back());
    }
    EXPECT_EQ(a, Short::from_words(long_a.words()));
    Short copy = b;
    copy = a;
    EXPECT_EQ(a, copy);
    EXPECT_TRUE(a.minus(a).words().empty());
    copy.clear();
    EXPECT_TRUE(copy.empty() && copy == Short());
  }
}

TEST(ShortRankSet, TheFirstRanks) {
  for (const std::uint32_t count : {0U, 1U, 63U, 64U, 65U, 4095U, 4096U}) {
    EXPECT_EQ(Short::from_words(RankSet::first(count).words()), Short::first(count)) << count;
  }
}

}  // namespace
}  // namespace netsum
