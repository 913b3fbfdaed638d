// How operations are cut up and dealt to lanes.
#include "protocol/switchml/stripes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace netsum::switchml {
namespace {

struct Cut {
  std::uint64_t elements, operation;
  std::uint32_t packet_elements, lanes, run_chunks = 1;
};

// Stripes in a run: as many as are allowed, but eight runs for each lane.
std::uint64_t run_of(const Cut& cut) {
  const std::uint64_t stripe = std::lcm(cut.packet_elements, wire::switchml::block_elements);
  const std::uint64_t stripes = std::max<std::uint64_t>(1, (cut.elements + stripe - 1) / stripe);
  std::uint64_t run = std::max<std::uint64_t>(1, cut.run_chunks / (stripe / cut.packet_elements));
  while (run > 1 && run * 8 * cut.lanes > stripes) run /= 2;
  return run;
}

// Every element is in exactly one chunk of exactly one lane, and chunks are numbered by their place.
void expect_partition(const Cut& cut) {
  SCOPED_TRACE(std::to_string(cut.elements) + " elements, operation " + std::to_string(cut.operation) + ", packets of " +
               std::to_string(cut.packet_elements) + ", " + std::to_string(cut.lanes) + " lanes, runs of " +
               std::to_string(cut.run_chunks));
  const std::uint64_t chunks = std::max<std::uint64_t>(1, (cut.elements + cut.packet_elements - 1) / cut.packet_elements);
  std::vector<int> seen(chunks);
  std::uint64_t elements = 0;
  const std::uint64_t stripe_elements = std::lcm(cut.packet_elements, wire::switchml::block_elements);
  const std::uint64_t run = run_of(cut);
  for (std::uint32_t lane = 0; lane < cut.lanes; ++lane) {
    const Stripes stripes(cut.elements, cut.operation, cut.packet_elements, {lane, cut.lanes, cut.run_chunks});
    std::uint64_t last_block = 0;
    for (std::uint64_t index = 0; index < stripes.chunks(); ++index) {
      const std::uint64_t stripe = stripes.stripe(index), begin = stripes.at(index).offset;
      const std::uint32_t length = stripes.at(index).elements;
      ASSERT_LT(stripe, stripes.count());
      ASSERT_EQ(stripes.stripe_offset(stripe) % wire::switchml::block_elements, 0U);
      ASSERT_EQ(
          (stripes.stripe_offset(stripe) / stripe_elements / run + cut.operation / Stripes::operations_in_turn) % cut.lanes,
          lane);
      ASSERT_GE(begin, stripes.stripe_offset(stripe));
      ASSERT_LE(begin + length, stripes.stripe_offset(stripe) + stripes.stripe_length(stripe));
      ASSERT_LE(begin + length, cut.elements);
      ASSERT_LT(stripes.at(index).number, chunks);
      ++seen[stripes.at(index).number];
      ASSERT_EQ(std::uint64_t{stripes.at(index).number} * cut.packet_elements, begin);
      elements += length;
      if (length == 0) continue;
      // Blocks are counted over the lane's stripes, each of which has its own.
      const std::uint64_t before =
          begin / wire::switchml::block_elements - stripes.stripe_offset(stripe) / wire::switchml::block_elements;
      ASSERT_EQ(stripes.at(index).first_block, stripe * (stripe_elements / wire::switchml::block_elements) + before);
      ASSERT_EQ(stripes.at(index).blocks,
                (begin + length - 1) / wire::switchml::block_elements - begin / wire::switchml::block_elements + 1);
      ASSERT_LE(stripes.at(index).blocks, wire::switchml::blocks_of_packet(cut.packet_elements));
      last_block = std::max(last_block, stripes.at(index).first_block + stripes.at(index).blocks);
    }
    ASSERT_LE(last_block, stripes.blocks());
  }
  EXPECT_EQ(elements, cut.elements);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

constexpr std::uint32_t packet_lengths[] = {64, 128, 192, 256, 320, 512, 704, 768, 960, 2048, 15360};

TEST(Stripes, CoverEveryElementOnce) {
  for (const std::uint32_t packet_elements : packet_lengths) {
    for (const std::uint64_t elements : {0U, 1U, 63U, 64U, 65U, 127U, 128U, 255U, 256U, 257U, 511U, 512U, 513U, 100'000U}) {
      for (const std::uint32_t lanes : {1U, 2U, 3U, 8U}) {
        for (const std::uint32_t run : {1U, 4U, 64U}) expect_partition({elements, 5, packet_elements, lanes, run});
      }
    }
  }
}

TEST(Stripes, CoverEveryElementOnceOfRandomCuts) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
    const std::uint64_t elements = random() % (std::uint64_t{1} << random() % 18);
    const std::uint32_t packet_elements = packet_lengths[random() % std::size(packet_lengths)];
    const std::uint32_t lanes = static_cast<std::uint32_t>(1 + random() % 40), run = 1U << random() % 8;
    expect_partition({elements, random(), packet_elements, lanes, run});
  }
}

TEST(Stripes, AnEmptyOperationIsOneEmptyChunk) {
  const Stripes stripes(0, 0, 256, {0, 1, 16});
  EXPECT_EQ(stripes.count(), 1U);
  EXPECT_EQ(stripes.chunks(), 1U);
  EXPECT_EQ(stripes.at(0).elements, 0U);
  EXPECT_EQ(stripes.at(0).blocks, 0U);
}

TEST(Stripes, SmallOperationsTakeTurnsOnTheLanes) {
  for (std::uint64_t operation = 0; operation < 8 * 16; ++operation) {
    for (std::uint32_t lane = 0; lane < 4; ++lane) {
      EXPECT_EQ(Stripes(10, operation, 256, {lane, 4, 16}).count(), operation / 16 % 4 == lane ? 1U : 0U);
    }
  }
}

// However long runs may be, no lane has an eighth more to do than another, or more than one stripe.
TEST(Stripes, RunsLeaveNoLaneWithMuchMore) {
  for (const std::uint32_t parts : {1U, 3U}) {
    for (std::uint64_t stripes = 1; stripes < 3000; stripes += 1 + stripes / 7) {
      for (const std::uint32_t lanes : {2U, 3U, 8U}) {
        std::uint64_t least = UINT64_MAX, most = 0;
        for (std::uint32_t lane = 0; lane < lanes; ++lane) {
          const std::uint64_t count = Stripes(stripes * 256, 0, 256, {lane, lanes, 16}, true, parts).count();
          least = std::min(least, count);
          most = std::max(most, count);
        }
        EXPECT_LE(most - least, std::max<std::uint64_t>(1, stripes * parts / lanes / 8)) << stripes << ", " << lanes;
      }
    }
  }
}

// A lane's run is one piece of memory.
TEST(Stripes, LongOperationsAreDealtInRuns) {
  const Stripes stripes(1 << 20, 0, 256, {1, 2, 16});
  for (std::uint64_t index = 0; index < stripes.chunks(); ++index) {
    const std::uint64_t run = 2 * (index / 16) + 1;
    ASSERT_EQ(stripes.at(index).offset, (run * 16 + index % 16) * 256);
  }
}

// Parts take turns in a run, so that each has a piece of it.
TEST(Stripes, PartsOfLongOperationsAreCoveredOnce) {
  for (const std::uint32_t parts : {2U, 3U, 7U}) {
    for (const std::uint32_t packet_elements : {64U, 256U, 320U}) {
      constexpr std::uint64_t elements = 100'000;  // of a part
      std::vector<int> seen(parts * elements);
      for (std::uint32_t lane = 0; lane < 3; ++lane) {
        const Stripes stripes(elements, 40, packet_elements, {lane, 3, 16}, true, parts);
        for (std::uint64_t index = 0; index < stripes.chunks(); ++index) {
          ASSERT_LT(stripes.at(index).part, parts);
          for (std::uint32_t i = 0; i < stripes.at(index).elements; ++i) {
            ++seen[stripes.at(index).part * elements + stripes.at(index).offset + i];
          }
        }
      }
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
    }
  }
}

// As long as chunks can be counted in 32 bits; offsets need more.
TEST(Stripes, HoldTensorsBeyondFourGigabytes) {
  const std::uint64_t elements = (std::uint64_t{1} << 36) + 1;
  const Stripes stripes(elements, 0, 256, {0, 1, 16});
  EXPECT_EQ(stripes.chunks(), (std::uint64_t{1} << 28) + 1);
  const std::uint64_t last = stripes.chunks() - 1;
  EXPECT_EQ(stripes.at(last).offset, elements - 1);
  EXPECT_EQ(stripes.at(last).elements, 1U);
  EXPECT_EQ(stripes.at(last).number, 1U << 28);
}

// How many blocks a packet is of, wherever it begins.
TEST(Stripes, PacketsOfAnyPossibleLengthHaveAsManyBlocksAsTheyMay) {
  EXPECT_FALSE(wire::switchml::possible_packet(0));
  EXPECT_FALSE(wire::switchml::possible_packet(100));
  EXPECT_FALSE(wire::switchml::possible_packet(1088));
  EXPECT_FALSE(wire::switchml::possible_packet(wire::switchml::max_packet_elements + wire::switchml::block_elements));
  for (std::uint32_t packet = 1; packet <= wire::switchml::max_packet_elements; ++packet) {
    if (!wire::switchml::possible_packet(packet)) continue;
    const Stripes stripes(10 * std::uint64_t{packet} * wire::switchml::block_elements, 0, packet, {0, 1, 1});
    std::uint32_t most = 0;
    for (std::uint64_t index = 0; index < 8; ++index) most = std::max(most, stripes.at(index).blocks);
    ASSERT_EQ(most, wire::switchml::blocks_of_packet(packet)) << packet;
    ASSERT_LE(most, wire::switchml::max_blocks);
  }
}

}  // namespace
}  // namespace netsum::switchml
