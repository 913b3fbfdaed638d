#include "base/crc32.h"

#include <gtest/gtest.h>
#define HWY_WANT_AVX3_DL 1  // as the source has it
#include <hwy/targets.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/virtual_network.h"

namespace netsum {
namespace {

// One bit at a time, from the definition.
std::uint32_t reference(std::span<const std::byte> bytes) {
  std::uint32_t state = ~0U;
  for (const std::byte byte : bytes) {
    state ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0xedb88320U : 0U);
  }
  return ~state;
}

std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t size) {
  testing::Random random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

std::uint32_t crc_of(std::string_view text) {
  return crc32(std::as_bytes(std::span(text)));
}

class Crc32Test : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(Crc32Test, KnownValues) {
  EXPECT_EQ(0U, crc32({}));
  EXPECT_EQ(0xcbf43926U, crc_of("123456789"));
  EXPECT_EQ(0xe8b7be43U, crc_of("a"));
  EXPECT_EQ(0x414fa339U, crc_of("The quick brown fox jumps over the lazy dog"));
  EXPECT_EQ(0x190a55adU, crc32(std::vector<std::byte>(32)));
  EXPECT_EQ(0xff6cab0bU, crc32(std::vector<std::byte>(32, std::byte{0xff})));
}

TEST_P(Crc32Test, EveryLengthAtEveryAlignmentAgreesWithTheDefinition) {
  const auto bytes = random_bytes(1, 300 + 64);
  for (std::size_t at = 0; at < 64; ++at) {
    for (std::size_t length = 0; length <= 300; ++length) {
      const auto part = std::span(bytes).subspan(at, length);
      ASSERT_EQ(reference(part), crc32(part)) << length << " at " << at;
    }
  }
}

TEST_P(Crc32Test, LongInputsAgreeWithTheDefinition) {
  const auto bytes = random_bytes(2, 9100);
  for (std::size_t length = 300; length <= 9000; length += 61) {
    const auto part = std::span(bytes).subspan(length % 67, length);
    ASSERT_EQ(reference(part), crc32(part)) << length;
  }
}

TEST_P(Crc32Test, ContinuesWhereItStopped) {
  const auto bytes = random_bytes(3, 1000);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 37) {
    EXPECT_EQ(crc32(bytes), crc32(std::span(bytes).subspan(cut), crc32(std::span(bytes).first(cut))));
  }
}

TEST_P(Crc32Test, CombinesTheCrcsOfTheParts) {
  const auto bytes = random_bytes(4, 5000);
  testing::Random random(5);
  for (int i = 0; i < 2000; ++i) {
    const auto part = std::span(bytes).first(random.next() % (bytes.size() + 1));
    const std::size_t cut = random.next() % (part.size() + 1);
    const auto a = part.first(cut), b = part.subspan(cut);
    ASSERT_EQ(crc32(part), Crc32Shift(b.size()).combine(crc32(a), crc32(b))) << cut << " of " << part.size();
  }
}

TEST_P(Crc32Test, ShiftsByAnyLength) {
  const auto all = random_bytes(6, 4096);
  std::uint32_t doubled = crc32(all);
  std::size_t length = all.size();
  for (; length < std::size_t{1} << 40; length *= 2) doubled = Crc32Shift(length).combine(doubled, doubled);
  // The same terabyte, put together from unequal parts.
  std::uint32_t appended = 0;
  std::size_t whole = 0;
  std::uint32_t power = crc32(all);
  for (std::size_t part = all.size(); whole + part < length; part *= 2) {
    appended = Crc32Shift(part).combine(appended, power);
    whole += part;
    power = Crc32Shift(part).combine(power, power);
  }
  EXPECT_EQ(doubled, Crc32Shift(all.size()).combine(appended, crc32(all)));
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Crc32Test, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace netsum
