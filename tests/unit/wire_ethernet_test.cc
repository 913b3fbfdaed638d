#include "wire/ethernet.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace netsum::wire::ethernet {
namespace {

std::vector<std::byte> frame(std::initializer_list<int> behind_addresses) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 12; ++i) bytes.push_back(static_cast<std::byte>(0x10 + i));
  for (const int byte : behind_addresses) bytes.push_back(static_cast<std::byte>(byte));
  return bytes;
}

TEST(Ethernet, ReadsAddressesAndType) {
  const auto header = parse(frame({0x08, 0x00, 0x45}));
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ((Address{0x10, 0x11, 0x12, 0x13, 0x14, 0x15}), header->destination);
  EXPECT_EQ((Address{0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b}), header->source);
  EXPECT_EQ(ipv4, header->type);
  EXPECT_EQ(14U, header->bytes);
}

TEST(Ethernet, LooksBehindTwoTags) {
  const auto one = parse(frame({0x81, 0x00, 0x60, 0x07, 0x86, 0xdd}));
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(ipv6, one->type);
  EXPECT_EQ(18U, one->bytes);
  const auto two = parse(frame({0x88, 0xa8, 0x60, 0x07, 0x81, 0x00, 0x00, 0x01, 0x08, 0x00}));
  ASSERT_TRUE(two.has_value());
  EXPECT_EQ(ipv4, two->type);
  EXPECT_EQ(22U, two->bytes);
  const auto three = parse(frame({0x88, 0xa8, 0, 1, 0x81, 0x00, 0, 1, 0x81, 0x00, 0, 1, 0x08, 0x00}));
  ASSERT_TRUE(three.has_value());
  EXPECT_EQ(vlan, three->type);
  EXPECT_EQ(22U, three->bytes);
}

TEST(Ethernet, RefusesWhatIsCut) {
  const auto whole = frame({0x88, 0xa8, 0x60, 0x07, 0x81, 0x00, 0x00, 0x01, 0x08, 0x00});
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    EXPECT_EQ(length >= 22, parse(std::span(whole).first(length)).has_value()) << length;
  }
  const auto untagged = frame({0x08, 0x00});
  EXPECT_TRUE(parse(untagged).has_value());
  EXPECT_FALSE(parse(std::span(untagged).first(13)).has_value());
}

TEST(Ethernet, MarksThePacketBehindTheTags) {
  const auto marked = [](std::vector<std::byte> bytes) {
    bytes.resize(bytes.size() + 40);
    return mark_congestion(bytes) ? std::optional(bytes) : std::nullopt;
  };
  for (const auto& tags : {frame({}), frame({0x81, 0, 0, 7}), frame({0x88, 0xa8, 0, 9, 0x81, 0, 0, 7})}) {
    const auto with = [&](std::initializer_list<int> more) {
      std::vector<std::byte> bytes = tags;
      for (const int byte : more) bytes.push_back(static_cast<std::byte>(byte));
      return bytes;
    };
    const auto four = marked(with({0x08, 0x00, 0x45, 0x02}));
    ASSERT_TRUE(four.has_value());
    EXPECT_EQ((*four)[tags.size() + 3], std::byte{0x03});
    const auto six = marked(with({0x86, 0xdd, 0x60, 0x10}));
    ASSERT_TRUE(six.has_value());
    EXPECT_EQ((*six)[tags.size() + 3], std::byte{0x30});
    EXPECT_FALSE(marked(with({0x08, 0x00, 0x45, 0x00})).has_value());  // its sender does not understand marks
    EXPECT_FALSE(marked(with({0x08, 0x06, 0x45, 0x02})).has_value());  // ARP
  }
  EXPECT_FALSE(mark_congestion({}));
}

TEST(Ethernet, KnowsMulticast) {
  EXPECT_TRUE(is_multicast({0xff, 0xff, 0xff, 0xff, 0xff, 0xff}));
  EXPECT_TRUE(is_multicast({0x01, 0, 0x5e, 0, 0, 1}));
  EXPECT_FALSE(is_multicast({0x02, 0, 0, 0, 0, 1}));
}

}  // namespace
}  // namespace netsum::wire::ethernet
