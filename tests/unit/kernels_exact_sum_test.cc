// Sums of short floats in any order and grouping, for every instruction set that this CPU has, against sums that are added
// in another way (oracle/).

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/cache_line.h"
#include "kernels/exact_sum.h"
#include "kernels/kernels.h"
#include "oracle/narrow.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;
using Bytes = std::vector<std::byte>;

class ExactSums : public ::testing::TestWithParam<std::tuple<std::int64_t, DType>> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(std::get<0>(GetParam())); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  const DType type = std::get<1>(GetParam());
};

// With memory of its own, which is not zero.
struct Owned {
  Owned(DType type, std::size_t elements) : memory(dirty(type, elements)), sum(type, elements, memory.get()) { sum.clear(); }
  static Lines dirty(DType type, std::size_t elements) {
    const std::size_t bytes = ExactSum::memory_bytes(SumParts::values_in(type, elements));
    Lines lines = new_lines(bytes);
    std::memset(lines.get(), 0xa5, bytes);
    return lines;
  }

  Lines memory;
  ExactSum sum;
};

Bytes random_payload(DType type, std::size_t elements, Random& random, bool anything) {
  Bytes payload(elements);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random.next());
  if (has_blocks(type)) {
    const std::size_t each = type == block4 ? 33 : 65;
    for (std::size_t at = 0; at < elements; at += each) {
      if (!anything) payload[at] = static_cast<std::byte>(120 + random.below(10));
    }
    return payload;
  }
  for (std::size_t at = 0; at + 2 <= elements; at += 2) {
    auto half = static_cast<std::uint16_t>(random.next());
    if (!anything) half = static_cast<std::uint16_t>((half & 0x87ff) | (type == DType::float16 ? 0x3000 : 0x3f00));
    if (anything && random.below(8) == 0) half = random.below(2) == 0 ? 0x8000 : 0;
    std::memcpy(&payload[at], &half, 2);
  }
  return payload;
}

// Adds `from` to `to`, in parts in any order.
void pass(DType type, std::size_t elements, ExactSum& from, ExactSum& to, Random& random) {
  from.settle();
  const std::size_t parts = from.parts();
  ASSERT_LE(parts, SumParts::most);
  bool masks = false;
  const std::size_t first = random.below(parts);
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t part = (first + i) % parts;
    const std::uint32_t place = from.place_of(part);
    ASSERT_TRUE(place <= SumParts::most_place || place == SumParts::masks);
    Bytes bytes(SumParts::bytes(type, elements, place) + 2, std::byte{0xee});
    from.write_part(part, bytes.data() + 1);
    EXPECT_TRUE(bytes.front() == std::byte{0xee} && bytes.back() == std::byte{0xee});
    to.add_part(place, bytes.data() + 1);
    masks |= place == SumParts::masks;
  }
  if (!masks) to.add_no_masks();
}

Bytes rounded(DType type, std::size_t elements, const ExactSum& sum, std::uint32_t divisor) {
  Bytes out(elements_of_sum(type, elements) * bytes_of(type) + 2, std::byte{0xee});
  sum.round(out.data() + 1, divisor);
  EXPECT_TRUE(out.front() == std::byte{0xee} && out.back() == std::byte{0xee});
  return {out.begin() + 1, out.end() - 1};
}

// The largest sum of the most ranks, whose planes begin at any bit.
TEST(ExactSum, HasRoomForAllRanksLargestValues) {
  constexpr std::uint32_t most_ranks = 4096;
  for (const std::uint16_t low : std::initializer_list<std::uint16_t>{0x0001, 0x0002, 0x0004, 0x3f80, 0x3d80, 0x8002}) {
    for (const std::uint16_t largest : std::initializer_list<std::uint16_t>{0x7f7f, 0xff7f}) {
      const DType type = DType::bfloat16;
      Owned below(type, 2), above(type, 2);
      for (std::uint32_t rank = 0; rank < most_ranks; ++rank) {
        const std::array<std::uint16_t, 2> values = {largest, rank == 0 ? low : std::uint16_t{0}};
        below.sum.add(std::as_bytes(std::span(values)).data());
      }
      Random random(1);
      pass(type, 2, below.sum, above.sum, random);
      const std::array<std::uint16_t, 2> expected = {static_cast<std::uint16_t>((largest & 0x8000) | 0x7f80), low};
      Bytes bytes(4);
      std::memcpy(bytes.data(), expected.data(), 4);
      EXPECT_EQ(bytes, rounded(type, 2, above.sum, 1)) << low;
    }
  }
}

TEST_P(ExactSums, HaveTheBitsOfNoOrder) {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    const std::size_t ranks = 1 + random.below(round % 10 == 0 ? 40 : 6);
    std::size_t elements = round % 3 == 0 ? 512 : 1 + random.below(700);
    if (has_blocks(type) && elements % (type == block4 ? 33 : 65) == 1) ++elements;
    const bool anything = round % 2 == 0;
    std::vector<Bytes> payloads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      payloads.push_back(random_payload(type, elements * bytes_of(type), random, anything));
    const std::uint32_t divisor = has_blocks(type) || random.below(2) == 0 ? 1 : static_cast<std::uint32_t>(ranks);
    Owned all(type, elements);
    for (const Bytes& payload : payloads) all.sum.add(payload.data());
    const Bytes expected = rounded(type, elements, all.sum, divisor);
    if (!has_blocks(type)) {
      for (std::size_t i = 0; i < elements; ++i) {
        std::vector<std::uint16_t> column(ranks);
        for (std::size_t rank = 0; rank < ranks; ++rank) std::memcpy(&column[rank], &payloads[rank][i * 2], 2);
        const std::uint16_t sum = oracle::narrow_sum_exactly(type, column, divisor);
        ASSERT_EQ(0, std::memcmp(&sum, &expected[i * 2], 2)) << "element " << i << " of " << elements << ", ranks " << ranks;
      }
    }
    // A tree of three levels, any ranks below any switch.
    std::vector<Owned> leaves;
    for (int i = 0; i < 4; ++i) leaves.emplace_back(type, elements);
    Owned middle(type, elements), root(type, elements);
    std::vector<bool> used(4);
    bool in_middle = false;
    std::reverse(payloads.begin(), payloads.end());
    for (const Bytes& payload : payloads) {
      const std::size_t leaf = random.below(6);
      if (leaf == 5) root.sum.add(payload.data());
      if (leaf == 4) middle.sum.add(payload.data());
      in_middle |= leaf == 4;
      if (leaf < 4) leaves[leaf].sum.add(payload.data()), used[leaf] = true;
    }
    for (std::size_t leaf = 0; leaf < 4; ++leaf) {
      if (!used[leaf]) continue;
      const bool above = leaf < 2;
      pass(type, elements, leaves[leaf].sum, above ? middle.sum : root.sum, random);
      in_middle |= above;
    }
    if (in_middle) pass(type, elements, middle.sum, root.sum, random);
    EXPECT_EQ(expected, rounded(type, elements, root.sum, divisor)) << "round " << round;
  }
}

// Values of one size take few parts: what a sum costs upstream.
TEST_P(ExactSums, AreShort) {
  Random random(1);
  Owned sum(type, 512);
  for (int rank = 0; rank < 8; ++rank) {
    const Bytes payload = random_payload(type, 512 * bytes_of(type), random, false);
    sum.sum.add(payload.data());
  }
  sum.sum.settle();
  EXPECT_GE(4U, sum.sum.parts());
}

class ExactBlockSums : public ExactSums {};

// As one switch adds them, where float32 does not round.
TEST_P(ExactBlockSums, AreThoseOfOneSwitch) {
  Random random(3);
  const std::size_t elements = type == block4 ? 33 * 3 + 5 : 65 * 3 + 5;
  std::vector<Bytes> payloads;
  std::vector<const std::byte*> sources;
  Owned sum(type, elements);
  for (int rank = 0; rank < 5; ++rank) payloads.push_back(random_payload(type, elements, random, false));
  for (const Bytes& payload : payloads) {
    sources.push_back(payload.data());
    sum.sum.add(payload.data());
  }
  Bytes expected(elements_of_sum(type, elements));
  sum_blocks(type, expected.data(), sources, elements);
  EXPECT_EQ(expected, rounded(type, elements, sum.sum, 1));
}

std::string name(const ::testing::TestParamInfo<std::tuple<std::int64_t, DType>>& info) {
  const DType type = std::get<1>(info.param);
  return std::string(hwy::TargetName(std::get<0>(info.param))) + (type == block8   ? "8bits"
                                                                  : type == block4 ? "4bits"
                                                                                   : to_string(type));
}

INSTANTIATE_TEST_SUITE_P(AllTargets, ExactSums,
                         ::testing::Combine(::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                                            ::testing::Values(DType::float16, DType::bfloat16, block8, block4)),
                         name);
INSTANTIATE_TEST_SUITE_P(AllTargets, ExactBlockSums,
                         ::testing::Combine(::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                                            ::testing::Values(block8, block4)),
                         name);

}  // namespace
}  // namespace netsum::kernels
