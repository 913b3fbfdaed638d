// Datagrams by AF_XDP at one end of a veth pair in a network namespace of this test's own; at its other end a port stands
// for the hosts there. Skipped where such may not be made.
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/next_hop.h"
#include "transport/bypass/xdp_path.h"
#include "transport/datagram/udp.h"
#include "transport/ports/packet_port.h"
#include "transport/ports/port_set.h"
#include "unit/transport_fixture.h"
#include "wire/udp_frame.h"

namespace netsum::transport {
namespace {

bool shell(const std::string& command) {
  return std::system(command.c_str()) == 0;  // NOLINT: a test's own words
}

const Endpoint peer = resolve("10.77.0.2:5000"), other_peer = resolve("10.77.0.3:5001");
const EthernetAddress peers_card = {2, 0, 0, 0, 0, 2};

class XdpPaths : public testing::Test {
 protected:
  void SetUp() override {
    const bool made =
        ::geteuid() == 0 && ::unshare(CLONE_NEWNET) == 0 &&
        shell(
            "ip link set lo up && ip link add left numrxqueues 2 numtxqueues 2 type veth peer name right &&"
            "ip link set left addrgenmode none up && ip link set right addrgenmode none up &&"
            "ip address add 10.77.0.1/24 dev left && ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev left &&"
            "ip neigh add 10.77.0.3 lladdr 02:00:00:00:00:03 dev left");
    if (!made) GTEST_SKIP() << "skipped: needs CAP_BPF, and network namespaces";
    try {
      static_cast<void>(claim({.interfaces = {"left"}}));
    } catch (const Error& error) {
      if (std::string(error.what()).find("requires CAP_") == std::string::npos) throw;
      GTEST_SKIP() << "skipped: needs CAP_BPF: " << error.what();
    }
    card_ = ethernet_interface("left").address;
    const std::vector<std::string> right = {"eth:right"};
    wire_.emplace(open_ports(right));
  }

  static std::unique_ptr<XdpQueues> claim(const XdpQueuesOptions& options) { return claim_xdp_queues(options); }

  std::unique_ptr<Transport> open(UdpOptions options = {}, const char* at = "10.77.0.1:0") {
    options.bind = resolve(at);
    auto socket = std::make_unique<Udp>(options);
    auto made = over_xdp(claim({.interfaces = {"left"}}), std::move(socket), options);
    EXPECT_TRUE(eventually([&] {  // the ends of the pair are connected
      write(made->sink(), peer, Bytes(1));
      made->sink().flush();
      return !wire_->receive().empty();
    }));
    while (!wire_->receive().empty()) {
    }
    return made;
  }

  // The next datagram that leaves.
  struct Left {
    Bytes frame;
    wire::UdpFrame read;
  };
  Left next() {
    for (;;) {
      if (left_.empty()) left_ = collect(*wire_, 1);
      if (left_.empty()) return {};
      Left left{{left_.front().bytes.begin() + virtio_net_header_bytes, left_.front().bytes.end()}, {}};
      left_.erase(left_.begin());
      if (const auto found = wire::read_udp_frame(left.frame)) {
        left.read = *found;
        return left;
      }
    }
  }
  // A datagram from there arrives.
  void arrive(const Endpoint& from, const Endpoint& to, const Bytes& content, wire::Ecn ecn = wire::Ecn::not_capable) {
    constexpr std::size_t before = virtio_net_header_bytes + wire::udp_head_bytes;
    Bytes frame(before);
    frame.insert(frame.end(), content.begin(), content.end());
    wire::UdpHead({.next = card_, .own = peers_card, .from = from, .to = to, .ecn = ecn})
        .write(std::span(frame).subspan<virtio_net_header_bytes, wire::udp_head_bytes>(), content.size());
    write(wire_->sink(), wire_->endpoints()[0], frame);
    wire_->sink().flush();
  }

  EthernetAddress card_{};
  std::optional<PortSet> wire_;
  std::vector<Received> left_;  // frames that next() has not looked at
};

TEST_F(XdpPaths, SendFramesToTheNextHop) {
  const auto path = open();
  for (const std::size_t bytes : {0UL, 1UL, 700UL, 1472UL}) {
    const Bytes content = pattern(bytes, bytes);
    write(path->sink(), peer, content);
    path->sink().flush();
    const Left left = next();
    EXPECT_EQ(left.read.from, path->local());
    EXPECT_EQ(left.read.to, peer);
    EXPECT_TRUE(std::equal(content.begin(), content.end(), left.read.datagram.begin(), left.read.datagram.end()));
    EXPECT_EQ(std::memcmp(left.frame.data(), peers_card.data(), 6), 0);
    EXPECT_EQ(std::memcmp(left.frame.data() + 6, card_.data(), 6), 0);
  }
  EXPECT_EQ(path->counters().send_failures, 0U);
}

TEST_F(XdpPaths, SendOneDatagramToSeveral) {
  const auto path = open();
  const Bytes content = pattern(300, 1);
  const std::vector<Endpoint> all = {peer, other_peer};
  path->sink().multicast(content, all);
  path->sink().flush();
  for (const Endpoint& to : all) {
    const Left left = next();
    EXPECT_EQ(left.read.to, to);
    EXPECT_TRUE(std::equal(content.begin(), content.end(), left.read.datagram.begin(), left.read.datagram.end()));
  }
}

TEST_F(XdpPaths, ReceiveWithoutTheKernel) {
  const auto path = open();
  for (std::size_t i = 0; i < 1000; ++i) {
    arrive(peer, path->local(), pattern(i, i));
    const std::vector<Received> received = collect(*path, 1);
    ASSERT_EQ(received.size(), 1U);
    EXPECT_EQ(received[0].source, peer);
    EXPECT_EQ(received[0].bytes, pattern(i, i));
  }
  EXPECT_TRUE(shell("grep '^Udp:' /proc/thread-self/net/snmp | tail -1 | grep -q '^Udp: 0 '"));  // InDatagrams
  EXPECT_EQ(path->counters().packets_received, 1000U);
}

TEST_F(XdpPaths, ReceiveWhatTheKernelGetsToo) {
  const auto path = open();
  UdpOptions own;
  own.bind = resolve("10.77.0.1:0");
  Udp here(own);
  write(here.sink(), path->local(), pattern(100, 1));  // over the loopback device
  here.sink().flush();
  write(path->sink(), here.local(), pattern(100, 2));
  path->sink().flush();
  EXPECT_EQ(collect(*path, 1).at(0).bytes, pattern(100, 1));
  EXPECT_EQ(collect(here, 1).at(0).bytes, pattern(100, 2));
}

TEST_F(XdpPaths, LongOnesGoByTheKernel) {
  const auto path = open();
  write(path->sink(), peer, pattern(3000, 1));  // in fragments
  write(path->sink(), peer, pattern(10, 2));
  path->sink().flush();
  EXPECT_EQ(next().read.datagram.size(), 10U);
  EXPECT_EQ(path->counters().packets_sent, 3U);
  EXPECT_EQ(path->counters().send_failures, 0U);
}

TEST_F(XdpPaths, HearTheirPeerAlone) {
  UdpOptions connected;
  connected.peer = peer;
  const auto path = open(connected);
  arrive(other_peer, path->local(), pattern(10, 1));
  arrive(peer, path->local(), pattern(10, 2));
  EXPECT_EQ(collect(*path, 1).at(0).bytes, pattern(10, 2));
}

// The same frame at one address, at the other, and at the first one again.
TEST_F(XdpPaths, AnswerFromWherePeersSendTo) {
  ASSERT_TRUE(shell("ip address add 10.77.0.4/24 dev left"));
  const auto path = open({}, "0.0.0.0:0");
  const auto answers_from = [&](const char* own) {
    Endpoint to = resolve(own);
    to.port = path->local().port;
    arrive(peer, to, pattern(10, 1));
    EXPECT_EQ(collect(*path, 1).size(), 1U);
    write(path->sink(), peer, pattern(10, 2));
    path->sink().flush();
    EXPECT_EQ(next().read.from, to);
  };
  for (const char* const own : {"10.77.0.1:0", "10.77.0.4:0", "10.77.0.1:0"}) answers_from(own);
  path->send_from(peer, resolve("10.77.0.4:0"));
  answers_from("10.77.0.1:0");
}

TEST_F(XdpPaths, CarryMarksOfCongestion) {
  UdpOptions marked;
  marked.ecn = true;
  const auto path = open(marked);
  write(path->sink(), peer, pattern(10, 1));
  path->sink().flush();
  Left left = next();
  EXPECT_EQ(wire::ecn_of(std::span(left.frame).subspan(14)), wire::Ecn::capable_0);
  arrive(peer, path->local(), pattern(10, 1), wire::Ecn::congestion);
  arrive(peer, path->local(), pattern(10, 2), wire::Ecn::capable_0);
  const std::vector<Received> received = collect(*path, 2);
  ASSERT_EQ(received.size(), 2U);
  EXPECT_TRUE(received[0].congested);
  EXPECT_FALSE(received[1].congested);
}

TEST_F(XdpPaths, FollowTheirNeighbours) {
  const auto path = open();
  ASSERT_TRUE(shell("ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:09 dev left"));
  EXPECT_TRUE(eventually([&] {
    write(path->sink(), peer, pattern(10, 1));
    path->sink().flush();
    const Left left = next();
    return left.frame.size() > 6 && left.frame[5] == std::byte{9};
  }));
}

TEST_F(XdpPaths, ShareAnInterface) {
  const std::unique_ptr<XdpQueues> first = claim({.interfaces = {"left"}, .lanes = 2}),
                                   second = claim({.interfaces = {"left"}, .lanes = 2});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(claim({.interfaces = {"left"}}), nullptr);
  EXPECT_EQ(second->description(77),
            "left, queue 1 (the kernel copies), which receives UDP port 77 by: ethtool -N left flow-type udp4 dst-port 77 "
            "action 1");
}

TEST_F(XdpPaths, LeaveTheInterfaceAsItWas) {
  auto path = open();
  EXPECT_TRUE(shell("ip link show left | grep -q xdp"));
  path.reset();
  EXPECT_FALSE(shell("ip link show left | grep -q xdp"));
  path = open();
  arrive(peer, path->local(), pattern(10, 1));
  EXPECT_EQ(collect(*path, 1).size(), 1U);
}

}  // namespace
}  // namespace netsum::transport
