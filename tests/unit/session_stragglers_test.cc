#include "session/stragglers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "session/words.h"

namespace netsum::session {
namespace {

using namespace std::chrono_literals;

constexpr Duration deadline = 100ms;

Paced calling(std::uint32_t rank, std::uint64_t next, Duration since) {
  return {rank, true, next, since, false};
}
Paced away(std::uint32_t rank, std::uint64_t next, Duration since, bool aside = false) {
  return {rank, false, next, since, aside};
}
std::string late(const std::vector<Paced>& ranks, std::uint32_t least = 1) {
  const RankSet set = stragglers(ranks, deadline, least);
  return set.empty() ? "" : name_ranks(set);
}

TEST(Stragglers, AreThoseThatOthersHaveWaitedForLongEnough) {
  EXPECT_EQ("rank 2", late({calling(0, 5, 100ms), calling(1, 5, 10ms), away(2, 5, 300ms)}));
  EXPECT_EQ("", late({calling(0, 5, 99ms), calling(1, 5, 10ms), away(2, 5, 300ms)}));
  EXPECT_EQ("ranks 1, 2", late({calling(0, 5, 200ms), away(1, 5, 150ms), away(2, 5, 300ms)}));
}

TEST(Stragglers, AreNoRanksThatHaveJustEndedACallOrAreInsideOfOne) {
  EXPECT_EQ("", late({calling(0, 6, 200ms), calling(1, 5, 500ms)})) << "its packets are slow, not its program";
  EXPECT_EQ("", late({calling(0, 6, 200ms), away(1, 6, 99ms)}));
  EXPECT_EQ("", late({away(0, 6, 200ms), away(1, 6, 300ms)})) << "all compute";
}

TEST(Stragglers, HaveNoResultThatAnotherLacks) {
  EXPECT_EQ("", late({calling(0, 5, 200ms), calling(1, 4, 200ms), away(2, 5, 200ms)}));
  EXPECT_EQ("", late({calling(0, 4, 200ms), away(1, 5, 200ms)})) << "it waits for a packet";
}

TEST(Stragglers, LeaveEnoughOthers) {
  EXPECT_EQ("", late({calling(0, 5, 200ms), calling(1, 5, 200ms), away(2, 5, 200ms)}, 3));
  EXPECT_EQ("rank 2", late({calling(0, 5, 200ms), calling(1, 5, 200ms), away(2, 5, 200ms)}, 2));
}

TEST(Stragglers, StayAsideUntilTheyCall) {
  EXPECT_EQ("rank 2", late({calling(0, 7, 1ms), calling(1, 7, 1ms), away(2, 5, 0ms, true)}));
  EXPECT_EQ("", late({calling(0, 7, 1ms), calling(1, 7, 1ms), {2, true, 5, 0ms, true}}));
}

}  // namespace
}  // namespace netsum::session
