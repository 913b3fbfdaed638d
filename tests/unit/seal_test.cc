#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "seal/aes_gcm.h"
#include "seal/packet_key.h"
#include "seal/replay_window.h"
#include "seal/sealer.h"
#include "seal/tagger.h"
#include "support/virtual_network.h"

namespace netsum::seal {
namespace {

// OpenSSL's allocations, counted from before its first one.
std::uint64_t allocations = 0;
[[maybe_unused]] const bool counted = CRYPTO_set_mem_functions(
                                          [](std::size_t bytes, const char*, int) {
                                            ++allocations;
                                            return std::malloc(bytes);
                                          },
                                          [](void* memory, std::size_t bytes, const char*, int) {
                                            ++allocations;
                                            return std::realloc(memory, bytes);
                                          },
                                          [](void* memory, const char*, int) { std::free(memory); }) == 1;

using Packet = std::vector<std::byte>;

Packet bytes_of(const std::string& digits) {
  Packet bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

PacketKey key_of(const Packet& bytes) {
  return PacketKey(std::span<const std::byte, PacketKey::size>(bytes));
}
PacketKey some_key(std::uint64_t seed) {
  testing::Random random(seed);
  Packet bytes(PacketKey::size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return key_of(bytes);
}

Packet counting(std::size_t bytes) {
  Packet packet(bytes);
  for (std::size_t i = 0; i < bytes; ++i) packet[i] = static_cast<std::byte>(i);
  return packet;
}

TEST(SealTest, HkdfExpandsAsInRfc5869) {  // A.1, with its info as a purpose of 2 bytes and a number
  const PacketKey key = key_of(bytes_of("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"));
  EXPECT_EQ(key_of(bytes_of("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf")),
            key.derived("\xf0\xf1", 0xf9f8f7f6f5f4f3f2));
}

TEST(SealTest, PurposesAndNumbersHaveKeysOfTheirOwn) {
  const PacketKey key = some_key(1);
  EXPECT_EQ(key.derived("a", 1), key.derived("a", 1));
  EXPECT_FALSE(key.derived("a", 1) == key.derived("a", 2));
  EXPECT_FALSE(key.derived("a", 1) == key.derived("b", 1));
  EXPECT_FALSE(PacketKey());
  EXPECT_TRUE(key);
  EXPECT_FALSE(PacketKey() == key_of(Packet(PacketKey::size)));
}

TEST(SealTest, HashesAsTheReferenceDoes) {  // github.com/google/highwayhash, highwayhash_test.cc
  const PacketKey key = key_of(counting(PacketKey::size));
  EXPECT_EQ(0x907a56de22c26e53U, keyed_hash(key, counting(0)));
  EXPECT_EQ(0x7eab43aac7cddd78U, keyed_hash(key, counting(1)));
  EXPECT_EQ(0xb8d0569ab0b53d62U, keyed_hash(key, counting(2)));
  EXPECT_EQ(0xa0c964d9ecd580fcU, keyed_hash(key, counting(32)));
  EXPECT_EQ(0x2c90f73ca03181fcU, keyed_hash(key, counting(33)));
}

TEST(SealTest, EncryptsAsInTheSpecification) {  // McGrew and Viega, The Galois/Counter Mode of Operation, test case 2
  AesGcm cipher(key_of(Packet(PacketKey::size)));
  Packet text(16);
  const AesGcm::Tag tag = cipher.encrypt({}, {}, text);
  EXPECT_EQ(bytes_of("0388dace60b6a392f328c2b971b2fe78"), text);
  EXPECT_EQ(bytes_of("ab6e47d42cec13bdf53a67b21257bddf"), Packet(tag.begin(), tag.end()));
}

TEST(SealTest, EachNonceEncryptsDifferently) {
  AesGcm cipher(some_key(2));
  std::set<Packet> seen;
  for (const Nonce nonce : {Nonce{0, 1}, Nonce{1, 1}, Nonce{0, 2}, Nonce{256, 1}, Nonce{0, std::uint64_t{1} << 63}}) {
    Packet text(32);
    static_cast<void>(cipher.encrypt(nonce, {}, text));
    seen.insert(text);
  }
  EXPECT_EQ(5U, seen.size());
}

class TrailerTest : public ::testing::TestWithParam<PacketSecurity> {
 protected:
  static constexpr std::size_t clear = 20;

  [[nodiscard]] static Packet sealed(Sealer& sealer, std::size_t content) {
    Packet packet = counting(content + sealer.trailer());
    sealer.seal(packet, clear);
    return packet;
  }
  [[nodiscard]] std::optional<Opener::Opened> open(const Packet& packet) { return opener_.open(packet, clear, room_); }

  Sealer sealer_{GetParam(), some_key(3), 7};
  Opener opener_{GetParam(), some_key(3), 7};
  Packet room_ = Packet(2000);
};

TEST_P(TrailerTest, WhatWasSealedIsOpenedAndCounted) {
  for (const std::size_t content : {std::size_t{20}, std::size_t{21}, std::size_t{48}, std::size_t{1000}}) {
    const Packet packet = sealed(sealer_, content);
    const auto opened = open(packet);
    ASSERT_TRUE(opened) << content;
    const Packet expected = counting(content);
    EXPECT_TRUE(std::ranges::equal(expected, opened->bytes)) << content;
  }
  EXPECT_EQ(5U, open(sealed(sealer_, 20))->counter);
}

TEST_P(TrailerTest, EqualPacketsLeaveDifferently) {
  EXPECT_NE(sealed(sealer_, 100), sealed(sealer_, 100));
}

TEST_P(TrailerTest, NoBitMayChange) {
  for (const std::size_t content :
       {std::size_t{60}, std::size_t{1300}}) {  // what is left of a unit; a block, units and a rest
    const Packet packet = sealed(sealer_, content);
    for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
      Packet other = packet;
      other[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
      EXPECT_FALSE(open(other)) << bit << " of " << content;
    }
  }
}

TEST_P(TrailerTest, NoByteMayBeMissingOrAdded) {
  const Packet packet = sealed(sealer_, 200);
  for (std::size_t bytes = 0; bytes < packet.size(); ++bytes) {
    EXPECT_FALSE(open(Packet(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(bytes)))) << bytes;
    EXPECT_FALSE(open(Packet(packet.end() - static_cast<std::ptrdiff_t>(bytes), packet.end()))) << bytes;
  }
  Packet longer = packet;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(open(longer));
}

TEST_P(TrailerTest, OtherKeysTagsAreNotBelieved) {
  Sealer other(GetParam(), some_key(4), 7);
  EXPECT_FALSE(open(sealed(other, 60)));
  const PacketSecurity weaker = GetParam() == PacketSecurity::tag ? PacketSecurity::encrypt : PacketSecurity::tag;
  Sealer otherwise(weaker, some_key(3), 7);
  EXPECT_FALSE(open(sealed(otherwise, 60)));
}

TEST_P(TrailerTest, OnlyEncryptionHidesValues) {
  const Packet packet = sealed(sealer_, 60);
  const Packet content = counting(60);
  EXPECT_TRUE(std::equal(packet.begin(), packet.begin() + clear, content.begin()));
  EXPECT_EQ(GetParam() == PacketSecurity::tag,
            std::equal(packet.begin() + clear, packet.begin() + 60, content.begin() + clear));
}

TEST_P(TrailerTest, NothingIsAllocatedPerPacket) {
  ASSERT_TRUE(counted);
  Packet packet = counting(1000 + sealer_.trailer());
  const auto round_trip = [&] {
    sealer_.seal(packet, clear);
    ASSERT_TRUE(opener_.open(packet, clear, room_));
  };
  round_trip();
  const std::uint64_t before = allocations;
  for (int i = 0; i < 10; ++i) round_trip();
  EXPECT_EQ(before, allocations);
}

INSTANTIATE_TEST_SUITE_P(Securities, TrailerTest, ::testing::Values(PacketSecurity::tag, PacketSecurity::encrypt),
                         [](const auto& test) { return to_string(test.param); });

TEST(SealerTest, EncryptionIsOfOneSender) {
  Sealer sealer(PacketSecurity::encrypt, some_key(3), 7);
  Opener opener(PacketSecurity::encrypt, some_key(3), 8);
  Packet packet(100), room(100);
  sealer.seal(packet, 20);
  EXPECT_FALSE(opener.open(packet, 20, room));
}

TEST(SealerTest, NoTagIsOfMoreThanADatagram) {
  Opener opener(PacketSecurity::tag, some_key(3), 0);
  EXPECT_FALSE(opener.open(Packet(100'000), 20, {}));
}

TEST(SealerTest, WithoutSecurityNothingIsBelieved) {
  Sealer sealer(PacketSecurity::none, some_key(3), 0);
  Opener opener(PacketSecurity::none, some_key(3), 0);
  Packet packet(100);
  sealer.seal(packet, 20);
  EXPECT_EQ(Packet(100), packet);
  EXPECT_FALSE(opener.open(packet, 20, {}));
}

TEST(ReplayWindowTest, EachCounterCountsOnceInAnyOrder) {
  ReplayWindow window;
  for (const std::uint64_t counter : {5U, 3U, 900U, 4U, 1U, 899U}) EXPECT_TRUE(window.take(counter)) << counter;
  for (const std::uint64_t counter : {5U, 3U, 900U, 4U, 1U, 899U, 0U}) EXPECT_FALSE(window.take(counter)) << counter;
}

TEST(ReplayWindowTest, WhatIsOlderThanTheWindowIsNotBelieved) {
  ReplayWindow window;
  EXPECT_TRUE(window.take(10'000));
  EXPECT_TRUE(window.take(10'000 - ReplayWindow::length));
  EXPECT_FALSE(window.take(10'000 - ReplayWindow::length));
  EXPECT_FALSE(window.take(10'000 - ReplayWindow::length - 1));
}

TEST(ReplayWindowTest, AgreesWithASetOfAllCounters) {
  testing::Random random(5);
  ReplayWindow window;
  std::set<std::uint64_t> seen;
  std::uint64_t greatest = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t ahead = random.below(100) == 0 ? random.below(3000) : random.below(40);
    const std::uint64_t base = greatest + ahead, back = random.below(1100);
    const std::uint64_t counter = base > back ? base - back : 1;
    const bool young = counter >= greatest || greatest - counter <= ReplayWindow::length;
    ASSERT_EQ(young && !seen.contains(counter), window.take(counter)) << counter << " after " << greatest;
    seen.insert(counter);
    greatest = std::max(greatest, counter);
  }
}

TEST(ReplayWindowTest, TheGreatestCounterDoesNotWrap) {
  ReplayWindow window;
  EXPECT_TRUE(window.take(UINT64_MAX));
  EXPECT_FALSE(window.take(1));
  EXPECT_TRUE(window.take(UINT64_MAX - 1));
}

}  // namespace
}  // namespace netsum::seal
