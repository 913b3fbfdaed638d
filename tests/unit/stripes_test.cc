// How operations are cut up and dealt to lanes.
#include "stream/stripes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace netsum::stream {
namespace {

struct Cut {
  std::uint64_t elements, operation;
  std::uint32_t packet_elements, lanes;
};

// Every element is in exactly one chunk of exactly one lane, and chunks are numbered by their place.
void expect_partition(const Cut& cut) {
  SCOPED_TRACE(std::to_string(cut.elements) + " elements, operation " + std::to_string(cut.operation) + ", packets of " +
               std::to_string(cut.packet_elements) + ", " + std::to_string(cut.lanes) + " lanes");
  const std::uint64_t chunks = std::max<std::uint64_t>(1, (cut.elements + cut.packet_elements - 1) / cut.packet_elements);
  std::vector<int> seen(chunks);
  std::uint64_t elements = 0, blocks = 0;
  for (std::uint32_t lane = 0; lane < cut.lanes; ++lane) {
    const Stripes stripes(cut.elements, cut.operation, cut.packet_elements, lane, cut.lanes);
    std::uint64_t of_lane = 0;
    for (std::uint64_t index = 0; index < stripes.count(); ++index) {
      ASSERT_EQ(stripes.offset(index) % wire::block_elements, 0U);
      const std::uint64_t stripe = stripes.offset(index) / std::max(cut.packet_elements, wire::block_elements);
      ASSERT_EQ((stripe + cut.operation) % cut.lanes, lane);
      ASSERT_LE(stripes.offset(index) + stripes.elements(index), cut.elements);
      elements += stripes.elements(index);
      blocks += stripes.blocks_of(index);
      for (std::uint32_t part = 0; part < stripes.chunks_of(index); ++part) {
        ASSERT_LT(stripes.chunk(index, part), chunks);
        ++seen[stripes.chunk(index, part)];
        ASSERT_EQ(std::uint64_t{stripes.chunk(index, part)} * cut.packet_elements,
                  stripes.offset(index) + std::uint64_t{part} * cut.packet_elements);
      }
      of_lane += stripes.chunks_of(index);
    }
    ASSERT_EQ(of_lane, stripes.chunks()) << "lane " << lane;
  }
  EXPECT_EQ(elements, cut.elements);
  EXPECT_EQ(blocks, (cut.elements + wire::block_elements - 1) / wire::block_elements);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

constexpr std::uint32_t packet_lengths[] = {64, 128, 256, 512, 768, 2048, 15360};

TEST(Stripes, CoverEveryElementOnce) {
  for (const std::uint32_t packet_elements : packet_lengths) {
    for (const std::uint64_t elements : {0U, 1U, 63U, 64U, 65U, 127U, 128U, 255U, 256U, 257U, 511U, 512U, 513U, 100'000U}) {
      for (const std::uint32_t lanes : {1U, 2U, 3U, 8U}) expect_partition({elements, 5, packet_elements, lanes});
    }
  }
}

TEST(Stripes, CoverEveryElementOnceOfRandomCuts) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
    const std::uint64_t elements = random() % (std::uint64_t{1} << random() % 18);
    const std::uint32_t packet_elements = packet_lengths[random() % std::size(packet_lengths)];
    expect_partition({elements, random(), packet_elements, static_cast<std::uint32_t>(1 + random() % 40)});
  }
}

TEST(Stripes, AnEmptyOperationIsOneEmptyChunk) {
  const Stripes stripes(0, 0, 256, 0, 1);
  EXPECT_EQ(stripes.count(), 1U);
  EXPECT_EQ(stripes.chunks(), 1U);
  EXPECT_EQ(stripes.elements(0), 0U);
  EXPECT_EQ(stripes.blocks_of(0), 0U);
}

TEST(Stripes, SmallOperationsTakeTurnsOnTheLanes) {
  for (std::uint64_t operation = 0; operation < 8; ++operation) {
    for (std::uint32_t lane = 0; lane < 4; ++lane) {
      EXPECT_EQ(Stripes(10, operation, 256, lane, 4).count(), operation % 4 == lane ? 1U : 0U);
    }
  }
}

// As long as chunks can be counted in 32 bits; offsets need more.
TEST(Stripes, HoldTensorsBeyondFourGigabytes) {
  const std::uint64_t elements = (std::uint64_t{1} << 36) + 1;
  const Stripes stripes(elements, 0, 256, 0, 1);
  EXPECT_EQ(stripes.chunks(), (std::uint64_t{1} << 28) + 1);
  const std::uint64_t last = stripes.count() - 1;
  EXPECT_EQ(stripes.offset(last), elements - 1);
  EXPECT_EQ(stripes.elements(last), 1U);
  EXPECT_EQ(stripes.chunk(last, 0), 1U << 28);
}

}  // namespace
}  // namespace netsum::stream
