#include "transport/bypass/neighbours.h"

#include <gtest/gtest.h>

namespace netsum::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const wire::Ipv4 rank = {10, 0, 0, 2}, other = {10, 0, 0, 3};
const Neighbours::Place left{{2, 0, 0, 0, 0, 2}, 0}, right{{2, 0, 0, 0, 0, 2}, 1};
constexpr Time start{seconds(1000)};

TEST(Neighbours, AreAskedForUntilOneAnswers) {
  Neighbours neighbours;
  Neighbours::Found found = neighbours.find(rank, start);
  EXPECT_FALSE(found.place);
  EXPECT_TRUE(found.ask);
  EXPECT_FALSE(neighbours.find(rank, start + milliseconds(99)).ask) << "a moment ago";
  EXPECT_TRUE(neighbours.find(rank, start + milliseconds(100)).ask);
  EXPECT_FALSE(neighbours.find(other, start).place);
  neighbours.learn(rank, right, false, start + milliseconds(101));
  found = neighbours.find(rank, start + milliseconds(102));
  EXPECT_EQ(found.place, right);
  EXPECT_FALSE(found.ask);
}

TEST(Neighbours, AreAskedForAgainWhileTheyAreUsed) {
  Neighbours neighbours;
  neighbours.learn(rank, left, true, start);
  EXPECT_FALSE(neighbours.find(rank, start + Neighbours::holds - milliseconds(1)).ask);
  const Neighbours::Found found = neighbours.find(rank, start + Neighbours::holds);
  EXPECT_TRUE(found.ask);
  EXPECT_EQ(found.place, left) << "it serves until another is known";
  EXPECT_FALSE(neighbours.find(rank, start + Neighbours::holds + milliseconds(1)).ask);
  neighbours.learn(rank, right, false, start + Neighbours::holds + milliseconds(2));
  EXPECT_EQ(neighbours.find(rank, start + Neighbours::holds + milliseconds(3)).place, right) << "it has moved";
}

TEST(Neighbours, AreLearnedFromThoseWhoMeanThisHostOrAreKnown) {
  Neighbours neighbours;
  neighbours.learn(other, left, false, start);
  EXPECT_EQ(neighbours.size(), 0U);
  neighbours.learn(other, left, true, start);
  EXPECT_EQ(neighbours.find(other, start).place, left);
  neighbours.learn(wire::Ipv4{}, left, true, start);  // a host that has no address yet
  EXPECT_EQ(neighbours.size(), 1U);
}

TEST(Neighbours, TakeNoMoreMemoryHoweverManyThereAre) {
  Neighbours neighbours;
  for (std::uint32_t i = 0; i < 3 * Neighbours::most; ++i) {
    const wire::Ipv4 one = {10, static_cast<std::uint8_t>(i >> 16), static_cast<std::uint8_t>(i >> 8),
                            static_cast<std::uint8_t>(i)};
    neighbours.learn(one, left, true, start);
    ASSERT_LE(neighbours.size(), Neighbours::most);
    ASSERT_EQ(neighbours.find(one, start).place, left);
  }
}

}  // namespace
}  // namespace netsum::transport
