#include "base/crc32c.h"

#include <gtest/gtest.h>
#define HWY_WANT_AVX3_DL 1  // as the source has it
#include <hwy/targets.h>

#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "support/virtual_network.h"

namespace netsum {
namespace {

// One bit at a time, from the definition.
std::uint32_t reference(std::span<const std::byte> bytes) {
  std::uint32_t state = ~0U;
  for (const std::byte byte : bytes) {
    state ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~state;
}

class Crc32cTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(Crc32cTest, KnownValues) {
  EXPECT_EQ(0U, crc32c({}));
  EXPECT_EQ(0xe3069283U, crc32c(std::as_bytes(std::span(std::string_view("123456789")))));
  EXPECT_EQ(0x8a9136aaU, crc32c(std::vector<std::byte>(32)));  // RFC 3720, B.4
}

TEST_P(Crc32cTest, EveryLengthAndAlignmentAgreesWithTheDefinition) {
  testing::Random random(1);
  std::vector<std::byte> bytes(5000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  for (std::size_t length = 0; length < 1400; ++length) {
    const auto part = std::span(bytes).subspan(length % 67, length);
    ASSERT_EQ(reference(part), crc32c(part)) << length;
  }
  EXPECT_EQ(reference(bytes), crc32c(bytes));
}

TEST_P(Crc32cTest, ContinuesWhereItStopped) {
  testing::Random random(2);
  std::vector<std::byte> bytes(1000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 37) {
    EXPECT_EQ(crc32c(bytes), crc32c(std::span(bytes).subspan(cut), crc32c(std::span(bytes).first(cut))));
  }
}

TEST_P(Crc32cTest, AddsInTheSamePass) {
  testing::Random random(3);
  std::vector<std::byte> bytes(5000), sum(bytes.size());
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  for (auto& byte : sum) byte = static_cast<std::byte>(random.next());
  for (std::size_t count = 0; count < 350; ++count) {
    for (const std::size_t header : {std::size_t{0}, std::size_t{44}, count % 131}) {
      const auto packet = std::span(bytes).subspan(count % 67, header + count * 4);
      std::vector<std::byte> expected = sum;
      std::byte* const to = sum.data() + count % 61;
      kernels::add_int32(expected.data() + count % 61, packet.data() + header, count);
      const std::uint32_t previous = crc32c(packet.first(header / 2));
      ASSERT_EQ(reference(packet), kernels::add_int32_and_crc32c(to, packet.subspan(header / 2), count, previous)) << count;
      ASSERT_EQ(expected, sum) << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Crc32cTest, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace netsum
