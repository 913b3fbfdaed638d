#include "wire/udp_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "wire/internet_checksum.h"

namespace netsum::wire {
namespace {

using Bytes = std::vector<std::byte>;

Endpoint at(std::uint8_t host, std::uint16_t port) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, host}, port};
}

const UdpWay way{.next = {2, 0, 0, 0, 0, 9}, .own = {2, 0, 0, 0, 0, 7}, .from = at(7, 0x1234), .to = at(9, 7170)};

Bytes frame(std::size_t datagram, const UdpWay& of = way) {
  Bytes all(udp_head_bytes + datagram, std::byte{0xaa});
  UdpHead(of).write(std::span<std::byte, udp_head_bytes>(all.data(), udp_head_bytes), datagram);
  return all;
}

// The IP header's checksum was computed apart, as RFC 1071 says.
TEST(UdpFrames, AreWrittenToTheByte) {
  const std::vector<int> wanted = {2,    0,    0,    0,    0, 9, 2,    0,    0,    0,    0,    7,    0x08, 0,
                                   0x45, 0x00, 0x00, 0x20, 0, 0, 0x40, 0,    0x40, 0x11, 0x22, 0xbc, 10,   1,
                                   2,    7,    10,   1,    2, 9, 0x12, 0x34, 0x1c, 0x02, 0,    12,   0,    0};
  const Bytes made = frame(4);
  ASSERT_EQ(made.size(), wanted.size() + 4);
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(std::to_integer<int>(made[i]), wanted[i]) << "byte " << i;
}

TEST(UdpFrames, AreReadAsTheyWereWritten) {
  for (const std::size_t bytes : {0UL, 1UL, 17UL, 255UL, 256UL, 1472UL, 3790UL}) {
    const Bytes all = frame(bytes);
    const auto read = read_udp_frame(all);
    ASSERT_TRUE(read) << bytes;
    EXPECT_EQ(read->from, way.from);
    EXPECT_EQ(read->to, way.to);
    EXPECT_FALSE(read->congested);
    EXPECT_EQ(read->datagram.data(), all.data() + udp_head_bytes);
    EXPECT_EQ(read->datagram.size(), bytes);
  }
}

TEST(UdpFrames, CarryCongestion) {
  UdpWay capable = way;
  capable.ecn = Ecn::capable_0;
  Bytes all = frame(100, capable);
  EXPECT_FALSE(read_udp_frame(all)->congested);
  ASSERT_TRUE(ethernet::mark_congestion(all));
  EXPECT_TRUE(read_udp_frame(all)->congested);
}

TEST(UdpFrames, MayHavePaddingBehind) {
  Bytes all = frame(3);
  all.resize(60);
  EXPECT_EQ(read_udp_frame(all)->datagram.size(), 3U);
}

TEST(UdpFrames, RefuseEverythingElse) {
  const Bytes good = frame(100);
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(read_udp_frame(std::span(good).first(bytes))) << bytes;
  }
  const auto refused_with = [&](std::size_t place, int value) {
    Bytes other = good;
    other[place] = static_cast<std::byte>(value);
    return !read_udp_frame(other);
  };
  EXPECT_TRUE(refused_with(12, 0x86));  // another type
  // Any change of the IP header, whose checksum says so; of its length in particular.
  for (std::size_t place = 14; place < 34; ++place) EXPECT_TRUE(refused_with(place, 0x77)) << place;
  EXPECT_TRUE(refused_with(38, 0x77));  // UDP's length: more than there is
  Bytes less = good;
  less[38] = std::byte{0};
  less[39] = std::byte{7};  // less than UDP's own header
  EXPECT_FALSE(read_udp_frame(less));
}

TEST(UdpFrames, FromALinkAreOfOtherHosts) {
  UdpWay forged = way;
  forged.from.address = way.to.address;
  EXPECT_FALSE(read_udp_frame(frame(100, forged)));
  forged.from.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  EXPECT_FALSE(read_udp_frame(frame(100, forged)));
}

// Changed frames with a right checksum of the IP header: whatever is read is inside the frame.
TEST(UdpFrames, OfStrangersAreReadWithinTheirBounds) {
  std::mt19937 random(1);
  int read_ones = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes all = frame(random() % 200);
    for (unsigned change = random() % 4; change > 0; --change) all[random() % all.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) all.resize(random() % (all.size() + 1));
    if (all.size() >= udp_head_bytes) {
      all[24] = all[25] = std::byte{0};
      const std::uint16_t sum = checksum_of(sum_words(std::span(all).subspan(14, 20)));
      std::memcpy(&all[24], &sum, sizeof sum);
    }
    const Bytes exact(all);  // so that a sanitizer sees its end
    const auto found = read_udp_frame(exact);
    if (!found) continue;
    ++read_ones;
    EXPECT_GE(found->datagram.data(), exact.data() + udp_head_bytes);
    EXPECT_LE(found->datagram.data() + found->datagram.size(), exact.data() + exact.size());
  }
  EXPECT_GT(read_ones, 1000);
}

}  // namespace
}  // namespace netsum::wire
