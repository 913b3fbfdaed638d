#include "stream/underflow.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace netsum::stream {
namespace {

TEST(UnderflowSample, TakesShortTensorsWholeAndOneBlockOf64OfOthers) {
  UnderflowSample sample;
  for (int block = 0; block < 2; ++block) EXPECT_TRUE(sample.takes(UnderflowSample::examined_whole));
  std::uint64_t taken = 0;
  for (int block = 0; block < 640'000; ++block) taken += sample.takes(UnderflowSample::examined_whole + 1);
  EXPECT_NEAR(static_cast<double>(taken), 10'000, 500);
}

// The same bucket in each step, of a length that the mean gap divides.
TEST(UnderflowSample, PassesOverNoBlockForEver) {
  UnderflowSample sample;
  std::vector<bool> seen(256);
  for (int step = 0; step < 1000; ++step) {
    for (std::size_t block = 0; block < seen.size(); ++block) seen[block] = sample.takes(65'536) || seen[block];
  }
  EXPECT_EQ(seen, std::vector<bool>(seen.size(), true));
}

}  // namespace
}  // namespace netsum::stream
