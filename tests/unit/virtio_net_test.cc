// The header in front of a port's frames, byte by byte, and checksums that were left to others.
#include "base/virtio_net.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace netsum {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes(std::initializer_list<int> values) {
  Bytes made;
  for (const int value : values) made.push_back(static_cast<std::byte>(value));
  return made;
}

Bytes frame(const VirtioNetHeader& header, const Bytes& content) {
  Bytes made(virtio_net_header_bytes);
  write_virtio_net_header(made, header);
  made.insert(made.end(), content.begin(), content.end());
  return made;
}

constexpr VirtioNetHeader checksum_at(std::uint16_t start, std::uint16_t offset) {
  return {.flags = VirtioNetHeader::needs_checksum, .csum_start = start, .csum_offset = offset};
}

TEST(VirtioNet, HeaderIsTenBytesLittleEndian) {
  const VirtioNetHeader header{1, 4, 0x0102, 0x0304, 0x0506, 0x0708};
  Bytes place(12, std::byte{0xee});
  write_virtio_net_header(place, header);
  EXPECT_EQ(place, bytes({1, 4, 2, 1, 4, 3, 6, 5, 8, 7, 0xee, 0xee}));
  EXPECT_EQ(read_virtio_net_header(place), header);
}

// RFC 1071, 3: the words 0001 f203 f4f5 f6f7 sum up to ddf2, and the checksum is its complement. Here the first is in the
// checksum's place, as a pseudo header's sum is.
TEST(VirtioNet, CompletesAChecksum) {
  Bytes all = frame(checksum_at(3, 2), bytes({9, 9, 9, 0xf2, 0x03, 0x00, 0x01, 0xf4, 0xf5, 0xf6, 0xf7}));
  ASSERT_TRUE(complete_checksum(all));
  EXPECT_EQ(Bytes(all.begin() + 10, all.end()), bytes({9, 9, 9, 0xf2, 0x03, 0x22, 0x0d, 0xf4, 0xf5, 0xf6, 0xf7}));
  EXPECT_EQ(read_virtio_net_header(all).flags & VirtioNetHeader::needs_checksum, 0);
}

TEST(VirtioNet, WritesTheOtherZeroForAChecksumOfZero) {
  Bytes all = frame(checksum_at(0, 0), bytes({0x12, 0x34, 0xed, 0xcb}));
  ASSERT_TRUE(complete_checksum(all));
  EXPECT_EQ(Bytes(all.begin() + 10, all.end()), bytes({0xff, 0xff, 0xed, 0xcb}));
}

// By definition: the words of what was summed and of the pseudo header, with the checksum among them, are all ones.
TEST(VirtioNet, MakesTheSumOnes) {
  std::mt19937 random(1);
  const auto sum_of = [](const Bytes& content, std::size_t from) {
    std::uint32_t sum = 0;
    for (std::size_t i = from; i < content.size(); ++i) {
      sum += std::to_integer<std::uint32_t>(content[i]) << ((i - from) % 2 == 0 ? 8 : 0);
    }
    return sum;
  };
  for (std::size_t length = 2; length < 200; ++length) {
    for (std::size_t start = 0; start + 2 <= length; start += 1 + random() % 5) {
      Bytes content(length);
      for (std::byte& byte : content) byte = static_cast<std::byte>(random() & 0xff);
      const std::size_t offset = (random() % (length - start - 1)) & ~std::size_t{1};
      const std::uint32_t pseudo = std::to_integer<std::uint32_t>(content[start + offset]) << 8 |
                                   std::to_integer<std::uint32_t>(content[start + offset + 1]);
      Bytes all = frame(checksum_at(static_cast<std::uint16_t>(start), static_cast<std::uint16_t>(offset)), content);
      ASSERT_TRUE(complete_checksum(all));
      std::uint32_t sum = sum_of({all.begin() + 10, all.end()}, start) + pseudo;
      while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
      ASSERT_EQ(sum, 0xffffU) << "length " << length << " start " << start << " offset " << offset;
      all[10 + start + offset] = content[start + offset];
      all[10 + start + offset + 1] = content[start + offset + 1];
      ASSERT_TRUE(std::equal(content.begin(), content.end(), all.begin() + 10));  // and nothing else was touched
    }
  }
}

TEST(VirtioNet, LeavesAloneWhatNeedsNoChecksum) {
  Bytes all = frame({.csum_start = 0, .csum_offset = 0}, bytes({1, 2, 3, 4}));
  const Bytes before = all;
  EXPECT_TRUE(complete_checksum(all));
  EXPECT_EQ(all, before);
}

TEST(VirtioNet, RefusesPlacesOutsideTheFrame) {
  for (const auto& [start, offset] : std::initializer_list<std::pair<int, int>>{
           {4, 0}, {3, 0}, {0, 3}, {0, 4}, {0xffff, 0}, {0, 0xffff}, {0xffff, 0xffff}, {0xfffe, 4}, {4, 0xfffe}}) {
    Bytes all =
        frame(checksum_at(static_cast<std::uint16_t>(start), static_cast<std::uint16_t>(offset)), bytes({1, 2, 3, 4}));
    const Bytes before = all;
    EXPECT_FALSE(complete_checksum(all)) << start << ' ' << offset;
    EXPECT_EQ(all, before);
  }
  Bytes no_header(9);
  EXPECT_FALSE(complete_checksum(no_header));
}

TEST(VirtioNet, RefusesATrain) {
  VirtioNetHeader header = checksum_at(0, 0);
  header.gso_type = VirtioNetHeader::gso_tcpv4;
  Bytes all = frame(header, bytes({1, 2, 3, 4}));
  const Bytes before = all;
  EXPECT_FALSE(complete_checksum(all));
  EXPECT_EQ(all, before);
}

}  // namespace
}  // namespace netsum
