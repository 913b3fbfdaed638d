#include "seal/pads.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <openssl/evp.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "seal/linear_hash.h"
#include "seal/private_sums.h"
#include "support/random_bytes.h"

namespace netsum::seal {
namespace {

using Bytes = std::vector<std::byte>;

PacketKey key_of(std::uint64_t seed) {
  const Bytes bytes = testing::random_bytes(PacketKey::size, seed);
  return PacketKey(std::span<const std::byte, PacketKey::size>(bytes));
}

// The key stream by OpenSSL's AES-128, from blocks as seal/pads.h describes them.
Bytes pad_by_openssl(const PacketKey& key, PadPlace place, std::size_t bytes) {
  Bytes blocks((bytes + 15) / 16 * 16), out(blocks.size() + 16);
  for (std::size_t i = 0; i < blocks.size(); i += 16) {
    store_le(blocks.data() + i, place.block + i / 16);
    store_le(blocks.data() + i + 8, place.operation);
  }
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  int written = 0;
  EXPECT_EQ(1, EVP_EncryptInit_ex(context.get(), EVP_aes_128_ecb(), nullptr,
                                  reinterpret_cast<const unsigned char*>(key.bytes().data()), nullptr));
  EXPECT_EQ(1, EVP_EncryptUpdate(context.get(), reinterpret_cast<unsigned char*>(out.data()), &written,
                                 reinterpret_cast<const unsigned char*>(blocks.data()), static_cast<int>(blocks.size())));
  out.resize(bytes);
  return out;
}

template <class Word>
void add(std::byte* to, const std::byte* pad, bool added) {
  const Word word = load_le<Word>(to), other = load_le<Word>(pad);
  store_le(to, static_cast<Word>(added ? word + other : word - other));
}

class PadsOnTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(PadsOnTarget, AreOpenSslsKeyStreams) {
  const std::array<PacketKey, 3> keys{key_of(1), key_of(2), key_of(3)};
  const std::array<PadKey, 3> pads{PadKey(keys[0]), PadKey(keys[1]), PadKey(keys[2])};
  const std::array<PadTerm, 3> terms{PadTerm{&pads[0], true}, {&pads[1], false}, {&pads[2], true}};
  for (std::size_t length = 0; length < 1100; length += length < 80 ? 8 : 136) {
    const Bytes values = testing::random_bytes(length + 7, length);
    const auto from = std::span(values).subspan(length % 8, length);
    const PadPlace place{0x0123456789abcdefU + length, (std::uint64_t{length} << 48) + 0xffffffffU};
    for (const std::size_t width : {1U, 2U, 4U, 8U}) {
      for (std::size_t count = 0; count <= 3; ++count) {
        Bytes expected(from.begin(), from.end());
        for (std::size_t term = 0; term < count; ++term) {
          const Bytes pad = pad_by_openssl(keys[term], place, length);
          for (std::size_t i = 0; i < length; i += width) {
            const auto word = width == 1   ? add<std::uint8_t>
                              : width == 2 ? add<std::uint16_t>
                              : width == 4 ? add<std::uint32_t>
                                           : add<std::uint64_t>;
            word(expected.data() + i, pad.data() + i, terms[term].added);
          }
        }
        Bytes apart(length + 3);
        apply_pads(apart.data() + 3, from, width, place, std::span(terms).first(count));
        ASSERT_EQ(expected, Bytes(apart.begin() + 3, apart.end())) << length << " bytes in words of " << width;
        Bytes in_place(from.begin(), from.end());
        apply_pads(in_place.data(), in_place, width, place, std::span(terms).first(count));
        ASSERT_EQ(expected, in_place);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, PadsOnTarget, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

struct Ring {
  explicit Ring(std::uint32_t ranks, const std::string& secret = "a secret of the ranks", std::uint64_t seed = 0) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const Bytes drawn = testing::random_bytes(32, seed + rank);
      agreements.emplace_back(secret, std::span<const std::byte, 32>(drawn));
      all.push_back(agreements.back().own());
    }
  }
  std::vector<Agreement> agreements;
  std::vector<PublicKey> all;
};

TEST(PrivateSums, MasksCancelForEveryNumberOfRanks) {
  constexpr PadPlace place{5, 77};
  for (const std::uint32_t ranks : {1U, 2U, 3U, 8U}) {
    const Ring ring(ranks);
    std::vector<std::uint32_t> sum(100), masked_sum(100);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      testing::Random random(rank);
      std::vector<std::uint32_t> values(100);
      for (auto& value : values) value = static_cast<std::uint32_t>(random.next());
      for (std::size_t i = 0; i < 100; ++i) sum[i] += values[i];
      const std::vector<std::uint32_t> plain = values;
      Pads(ring.agreements[rank].keys(ring.all, rank).value(), rank)
          .mask_term(std::as_writable_bytes(std::span(values)), 4, place);
      EXPECT_TRUE(ranks == 1 || values[0] != plain[0]) << "rank " << rank << " of " << ranks << " is not masked";
      for (std::size_t i = 0; i < 100; ++i) masked_sum[i] += values[i];
    }
    EXPECT_NE(sum, masked_sum) << "the aggregator reads the sum of " << ranks;
    std::vector<std::uint32_t> result(100);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Pads(ring.agreements[rank].keys(ring.all, rank).value(), rank)
          .unmask(reinterpret_cast<std::byte*>(result.data()), std::as_bytes(std::span(masked_sum)), 4, place);
      EXPECT_EQ(sum, result) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(PrivateSums, WhatOneRankGivesAllOthersRead) {
  const Ring ring(3);
  std::vector<std::uint32_t> values(9, 42), read(9);
  Pads(ring.agreements[2].keys(ring.all, 2).value(), 2).mask_only(std::as_writable_bytes(std::span(values)), 4, {1, 0});
  EXPECT_NE(42U, values[0]);
  Pads(ring.agreements[1].keys(ring.all, 1).value(), 1)
      .unmask(reinterpret_cast<std::byte*>(read.data()), std::as_bytes(std::span(values)), 4, {1, 0});
  EXPECT_EQ(std::vector<std::uint32_t>(9, 42), read);
}

// Whatever an aggregator says again: a rank's own key pair is new each time, and with it all of its keys.
TEST(PrivateSums, KeysAreOfOneLifeEvenIfAllOthersAreTheSame) {
  const Ring first(3), second(3, "a secret of the ranks", 1000);
  std::vector<PublicKey> mixed = first.all;
  mixed[1] = second.all[1];
  const PadKeys before = first.agreements[1].keys(first.all, 1).value(), after = second.agreements[1].keys(mixed, 1).value();
  EXPECT_FALSE(before.out == after.out);
  EXPECT_FALSE(before.next == after.next);
  EXPECT_FALSE(before.previous == after.previous);
  EXPECT_FALSE(before.next == before.previous);
}

TEST(PrivateSums, BothEndsOfAnEdgeHaveItsKeyAndNobodyElse) {
  const Ring ring(3);
  std::vector<PadKeys> keys;
  for (std::uint32_t rank = 0; rank < 3; ++rank) keys.push_back(ring.agreements[rank].keys(ring.all, rank).value());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(keys[rank].next == keys[(rank + 1) % 3].previous);
    EXPECT_FALSE(keys[rank].next == keys[(rank + 1) % 3].next);
    EXPECT_TRUE(keys[rank].out == keys[0].out);
  }
}

TEST(PrivateSums, ASecretOfTheRanksIsPartOfEachKey) {
  const Ring ring(2), other(2, "another secret of ranks");
  ASSERT_EQ(ring.all, other.all) << "the same key pairs";
  const PadKeys keys = ring.agreements[0].keys(ring.all, 0).value(), others = other.agreements[0].keys(other.all, 0).value();
  EXPECT_FALSE(keys.out == others.out);
  EXPECT_FALSE(keys.next == others.next);
  EXPECT_NE(ring.agreements[0].fingerprint(), other.agreements[0].fingerprint());
  EXPECT_EQ(ring.agreements[0].fingerprint(), ring.agreements[1].fingerprint());
}

TEST(PrivateSums, ForgedPublicKeysGiveNoKeys) {
  const Ring ring(3), other(3, "a secret of the ranks", 1000);
  std::vector<PublicKey> all = ring.all;
  all[1] = other.all[1];
  EXPECT_FALSE(ring.agreements[1].keys(all, 1)) << "not this rank's own";
  all = ring.all;
  all[2] = {};  // a point of small order, with which everybody shares zeros
  EXPECT_FALSE(ring.agreements[1].keys(all, 1));
  EXPECT_FALSE(ring.agreements[1].keys({}, 1));
}

// From the definition.
TEST_P(PadsOnTarget, AHashIsLinear) {
  const LinearHash hash(key_of(9), 3000);
  const Bytes some = testing::random_bytes(12000, 1), more = testing::random_bytes(12000, 2);
  const auto small = [](const Bytes& bytes, std::size_t i) {  // the sum of two does not overflow
    return static_cast<std::int32_t>(load_le<std::uint32_t>(bytes.data() + i * 4)) / 2;
  };
  for (const std::size_t count : {0U, 1U, 15U, 1024U, 1025U, 2999U}) {
    Bytes a(count * 4 + 1), b(a.size()), both(a.size());
    for (std::size_t i = 0; i < count; ++i) {
      store_le(a.data() + 1 + i * 4, static_cast<std::uint32_t>(small(some, i)));
      store_le(b.data() + 1 + i * 4, static_cast<std::uint32_t>(small(more, i)));
      store_le(both.data() + 1 + i * 4, static_cast<std::uint32_t>(small(some, i) + small(more, i)));
    }
    const std::uint64_t expected = hash(a.data() + 1, 0, count) + hash(b.data() + 1, 0, count);
    EXPECT_EQ(expected, hash(both.data() + 1, 0, count)) << count;
    if (count > 1024) {
      EXPECT_EQ(expected, hash(both.data() + 1, 0, 1024) + hash(both.data() + 1 + 4096, 1024, count - 1024));
    }
    std::array<std::byte, hash_bytes> words{}, other{}, sum{};
    write_hash(words.data(), hash(a.data() + 1, 0, count));
    write_hash(other.data(), hash(b.data() + 1, 0, count));
    for (std::size_t i = 0; i < hash_bytes; i += 4)
      store_le(sum.data() + i, load_le<std::uint32_t>(words.data() + i) + load_le<std::uint32_t>(other.data() + i));
    EXPECT_EQ(expected, read_hash(sum.data()));
    for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {  // one bit is enough, also the highest
      if (count == 0) continue;
      both[1 + at * 4 + 3] ^= std::byte{0x80};
      EXPECT_NE(expected, hash(both.data() + 1, 0, count));
      both[1 + at * 4 + 3] ^= std::byte{0x80};
    }
  }
  EXPECT_EQ(10445832817784397572U, hash(some.data(), 0, 3000)) << "ranks on other processors have other hashes";
}

}  // namespace
}  // namespace netsum::seal
