// Ranges of multicast groups as text, and groups that several sockets of this host hear.
#include "transport/datagram/multicast.h"

#include <map>
#include <memory>
#include <optional>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/udp.h"
#include "unit/transport_fixture.h"

namespace netsum::transport {
namespace {

std::string refusal(const std::string& text) {
  try {
    const GroupRange range(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_argument);
    return error.what();
  }
  return "";
}

TEST(GroupRange, OneGroup) {
  const GroupRange range("239.1.2.3:7180");
  EXPECT_EQ(range.groups(), 1U);
  EXPECT_EQ(to_string(range.group_of("a", 0)), "239.1.2.3:7180");
  EXPECT_EQ(to_string(range.group_of("b", 3)), "239.1.2.3:7183");
}

TEST(GroupRange, EachJobHasAGroupOfItsOwnAndEachLaneAPort) {
  const GroupRange range("239.192.77.5/16:7180");
  EXPECT_EQ(range.groups(), 65536U);
  std::map<std::uint32_t, int> seen;
  for (int job = 0; job < 100; ++job) {
    const Endpoint group = range.group_of("job-" + std::to_string(job), 1);
    EXPECT_EQ(group.address[12], 239);
    EXPECT_EQ(group.address[13], 192);
    EXPECT_EQ(group.port, 7181);
    ++seen[std::uint32_t{group.address[14]} << 8 | group.address[15]];
  }
  EXPECT_GE(seen.size(), 98U);
  EXPECT_EQ(range.group_of("vision", 0), GroupRange("239.192.0.0/16:7180").group_of("vision", 0));
}

TEST(GroupRange, RefusesWhatIsNone) {
  for (const char* const text : {"", "239.1.2.3", "239.1.2.3:", "239.1.2.3:0", "239.1.2.3:65536", "239.1.2:7180", ":7180",
                                 "10.0.0.1:7180", "239.1.2.3/3:7180", "239.1.2.3/33:7180", "239.1.2.3/:7180",
                                 "224.0.0.0/x:7180", "240.0.0.1:7180", "239.1.2.3/16:7180 "}) {
    EXPECT_NE(refusal(text), "") << text;
  }
  EXPECT_NE(refusal("[ff15::1]:7180").find("IPv6"), std::string::npos);
  EXPECT_NE(refusal("ff15::1:7180").find("IPv6"), std::string::npos);
  EXPECT_NE(refusal("10.0.0.1:7180").find("239.255.255.255"), std::string::npos);
}

const Endpoint here = resolve("127.0.0.1:0");

// A group and port that no other test uses.
Endpoint some_group(const Udp& sender) {
  return GroupRange("239.255.0.0/16:20000").group_of(to_string(sender.local()), sender.local().port % 1000);
}

struct Member {
  Member(const Endpoint& group, const Endpoint& source)
      : own(std::make_unique<Udp>(UdpOptions{.bind = here, .peer = source})),
        address(own->local()),
        both(with_group(std::move(own), std::make_unique<GroupSocket>(group, address, source, 1 << 20))) {}
  std::unique_ptr<Udp> own;
  Endpoint address;
  std::unique_ptr<Transport> both;
};

TEST(Group, OneTrainIsHeardByAllOfAHost) {
  Udp sender({.bind = here, .multicast_from_here = true});
  const Endpoint group = some_group(sender);
  Member one(group, sender.local()), other(group, sender.local());
  std::vector<Bytes> packets;
  for (std::size_t i = 0; i < 20; ++i) packets.push_back(pattern(1000, i));
  for (const Bytes& packet : packets) sender.sink().multicast(packet, {&group, 1});
  sender.sink().flush();
  EXPECT_EQ(sender.counters().packets_sent, 20U);
  EXPECT_EQ(sender.counters().send_failures, 0U);
  for (Member* const member : {&one, &other}) {
    const std::vector<Received> all = collect(*member->both, 20);
    ASSERT_EQ(all.size(), 20U);
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(all[i].bytes, packets[i]);
      EXPECT_EQ(all[i].source, sender.local());
    }
    EXPECT_EQ(member->both->counters().packets_received, 20U);
    EXPECT_EQ(member->both->counters().wire_bytes_received, 20U * (1000 + header_bytes(group)));
  }
}

TEST(Group, AMemberHasASocketOfItsOwnToo) {
  Udp sender({.bind = here, .multicast_from_here = true});
  const Endpoint group = some_group(sender);
  Member member(group, sender.local());
  EXPECT_EQ(member.both->local(), member.address);
  write(sender.sink(), member.address, pattern(100, 1));
  write(sender.sink(), group, pattern(100, 2));
  sender.sink().flush();
  EXPECT_EQ(collect(*member.both, 2).size(), 2U);
  write(member.both->sink(), sender.local(), pattern(100, 3));
  member.both->sink().flush();
  const std::vector<Received> answers = collect(sender, 1);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].source, member.address);
}

TEST(Group, AMemberHearsTheAggregatorAlone) {
  Udp sender({.bind = here, .multicast_from_here = true}), stranger({.bind = here, .multicast_from_here = true});
  const Endpoint group = some_group(sender);
  Member member(group, sender.local());
  write(stranger.sink(), group, pattern(100, 1));
  stranger.sink().flush();
  write(sender.sink(), group, pattern(100, 2));
  sender.sink().flush();
  const std::vector<Received> all = collect(*member.both, 1);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].bytes, pattern(100, 2));
  EXPECT_TRUE(member.both->receive().empty());
}

TEST(Group, WhoCannotJoinSaysWhy) {
  Udp sender({.bind = here, .multicast_from_here = true});
  Endpoint group = some_group(sender);
  const Udp owner({.bind = group});
  group.port = owner.local().port;
  try {
    const GroupSocket socket(group, here, sender.local(), 1 << 20);
    FAIL() << "two processes own the port";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::refused);
    EXPECT_NE(std::string(error.what()).find(to_string(group)), std::string::npos) << error.what();
  }
  try {
    const GroupSocket socket(group, resolve("[::1]:0"), resolve("[::1]:9"), 1 << 20);
    FAIL() << "a group of IPv4 is heard over IPv6";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_argument);
  }
}

}  // namespace
}  // namespace netsum::transport
