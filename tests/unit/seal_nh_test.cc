#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <array>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "seal/nh.h"
#include "seal/tagger.h"
#include "support/random_bytes.h"

namespace netsum::seal {
namespace {

using Bytes = std::vector<std::byte>;

// From the definition, a pair of words at a time.
Bytes reference(const Bytes& key, std::span<const std::byte> content) {
  Bytes hashes;
  for (std::size_t block = 0; block < content.size(); block += 1024) {
    const auto bytes = content.subspan(block, std::min<std::size_t>(1024, content.size() - block));
    for (const std::size_t from : {std::size_t{0}, std::size_t{64}}) {
      const auto word = [&](std::size_t i) {
        return std::uint64_t{load_le<std::uint32_t>(bytes.data() + i) + load_le<std::uint32_t>(key.data() + from + i)};
      };
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < bytes.size(); i += 8) sum += word(i) * word(i + 4);
      hashes.resize(hashes.size() + 8);
      store_le(hashes.data() + hashes.size() - 8, sum);
    }
  }
  return hashes;
}

class Nh : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(Nh, EveryLengthAndAlignmentAgreesWithTheDefinition) {
  const Bytes key = testing::random_bytes(nh_key_bytes, 1), bytes = testing::random_bytes(5000, 2);
  for (std::size_t length = 0; length < 4900; length += 64) {
    const auto content = std::span(bytes).subspan(length % 67, length);
    Bytes hashes(80);
    std::byte* const end = nh(hashes.data(), std::span<const std::byte, nh_key_bytes>(key), content);
    hashes.resize(static_cast<std::size_t>(end - hashes.data()));
    ASSERT_EQ(reference(key, content), hashes) << length;
  }
}

// Computed from the description in seal/tagger.h by another program, with OpenSSL's AES in counter mode.
TEST_P(Nh, TagsAreAsDescribed) {
  std::array<std::byte, PacketKey::size> key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  Bytes content(3000);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i);
  const Tagger tagger{PacketKey(key)};
  const auto tag = [&](std::size_t bytes) { return tagger.tag(std::span(content).first(bytes), 7); };
  EXPECT_EQ(0xbb5b97cef9a73903U, tag(0));
  EXPECT_EQ(0xa00089afd24d5ca0U, tag(20));
  EXPECT_EQ(0xbe582d27f1f1eed4U, tag(64));
  EXPECT_EQ(0x33b6e7b6d1ce83d4U, tag(1072));
  EXPECT_EQ(0x844118c540d8a998U, tag(3000));
}

TEST_P(Nh, TheLongestContentHasATag) {
  const Bytes content = testing::random_bytes(Tagger::longest, 3);
  const Tagger tagger{PacketKey(std::array<std::byte, PacketKey::size>{})};
  EXPECT_NE(tagger.tag(content, 1), tagger.tag(content, 2));
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Nh, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace netsum::seal
