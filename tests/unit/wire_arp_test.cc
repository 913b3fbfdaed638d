#include "wire/arp.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace netsum::wire {
namespace {

using Bytes = std::vector<std::byte>;

const Arp question{
    .reply = false, .sender = {2, 0, 0, 0, 0, 7}, .of_sender = {10, 1, 2, 7}, .target = {}, .of_target = {10, 1, 2, 9}};

Bytes bytes_of(const Arp& arp) {
  const auto frame = arp_frame(arp);
  return {frame.begin(), frame.end()};
}

// As RFC 826 has them.
TEST(ArpFrames, AreWrittenToTheByte) {
  const std::vector<int> wanted = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0,  7, 0x08, 0x06,
                                   0,    1,    0x08, 0x00, 6,    4,    0, 1, 2, 0, 0,  0, 0,    7,
                                   10,   1,    2,    7,    0,    0,    0, 0, 0, 0, 10, 1, 2,    9};
  const Bytes made = bytes_of(question);
  ASSERT_EQ(made.size(), 60U);
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(made[i]), i < wanted.size() ? wanted[i] : 0) << "byte " << i;
  }
}

TEST(ArpFrames, AreReadAsTheyWereWritten) {
  Arp answer = question;
  answer.reply = true;
  answer.target = {2, 0, 0, 0, 0, 9};
  for (const Arp& arp : {question, answer}) {
    const auto read = read_arp(bytes_of(arp));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->reply, arp.reply);
    EXPECT_EQ(read->sender, arp.sender);
    EXPECT_EQ(read->of_sender, arp.of_sender);
    EXPECT_EQ(read->target, arp.target);
    EXPECT_EQ(read->of_target, arp.of_target);
  }
  EXPECT_EQ(std::to_integer<int>(bytes_of(answer)[5]), 9) << "an answer goes to who asked";
}

TEST(ArpFrames, RefuseEverythingElse) {
  const Bytes good = bytes_of(question);
  for (std::size_t bytes = 0; bytes < 42; ++bytes) EXPECT_FALSE(read_arp(std::span(good).first(bytes))) << bytes;
  EXPECT_TRUE(read_arp(std::span(good).first(42)));
  // Types, lengths of addresses, and kinds.
  for (std::size_t place = 12; place < 22; ++place) {
    Bytes other = good;
    other[place] = std::byte{0x77};
    EXPECT_FALSE(read_arp(other)) << place;
  }
  Bytes group = good, nobody = good;
  group[22] = std::byte{1};
  nobody[22] = nobody[27] = std::byte{0};
  EXPECT_FALSE(read_arp(group)) << "a group is no sender";
  EXPECT_FALSE(read_arp(nobody));
}

TEST(ArpFrames, OfStrangersAreReadWithinTheirBounds) {
  std::mt19937 random(1);
  int read_ones = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes all = bytes_of(question);
    for (unsigned change = random() % 4; change > 0; --change) all[random() % all.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) all.resize(random() % (all.size() + 1));
    const Bytes exact(all);  // so that a sanitizer sees its end
    read_ones += read_arp(exact).has_value() ? 1 : 0;
  }
  EXPECT_GT(read_ones, 1000);
}

}  // namespace
}  // namespace netsum::wire
