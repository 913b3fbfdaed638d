// Ports on Ethernet interfaces by AF_XDP: both ends of a veth pair in a network namespace of this test's own. Skipped where
// such may not be made.
#include <net/ethernet.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "netsum/error.h"
#include "transport/ports/port_set.h"
#include "unit/transport_fixture.h"

namespace netsum::transport {
namespace {

constexpr std::size_t header = virtio_net_header_bytes;

bool shell(const std::string& command) {
  return std::system(command.c_str()) == 0;  // NOLINT: a test's own words
}

// Of the ethertype for local experiments, with a header in front that says nothing.
Bytes frame(std::size_t bytes, std::size_t number) {
  Bytes all = pattern(header + bytes, number);
  write_virtio_net_header(all, {});
  all[header + 12] = std::byte{0x88};
  all[header + 13] = std::byte{0xb5};
  return all;
}

class XdpPorts : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0 || ::unshare(CLONE_NEWNET) != 0 || !make_pair("")) {
      GTEST_SKIP() << "skipped: needs CAP_BPF, and network namespaces";
    }
    try {
      open();
    } catch (const Error& error) {
      if (std::string(error.what()).find("requires CAP_") == std::string::npos) throw;
      GTEST_SKIP() << "skipped: needs CAP_BPF: " << error.what();
    }
  }

  static bool make_pair(const std::string& more) {
    if (!shell("ip link add left " + more + " type veth peer name right " + more)) return false;
    for (const char* end : {"left", "right"}) {
      if (!shell(std::string("ip link set ") + end + " addrgenmode none && ip link set " + end + " up")) return false;
    }
    return true;
  }

  void open(const PortOptions& options = {}, const std::string& left = "xdp:left") {
    set_.reset();
    const std::vector<std::string> names = {left, "xdp:right"};
    set_.emplace(open_ports(names, options));
    // The kernel connects the ends of a pair a while after both are up.
    for (const std::size_t from : {0UL, 1UL}) {
      EXPECT_TRUE(eventually([&] {
        send(frame(60, 0), from);
        return !set_->receive().empty();
      }));
      send(frame(61, 0), from);
      bool last = false;
      EXPECT_TRUE(eventually([&] {
        for (const RxView& view : set_->receive()) last = last || view.bytes.size() == header + 61;
        return last;
      }));
    }
    for (const std::size_t number : {0UL, 1UL}) before_[number] = set_->port(number).counters();
  }
  void send(const Bytes& all, std::size_t from) {
    write(set_->sink(), set_->endpoints()[from], all);
    set_->sink().flush();
  }
  void expect_passes(const Bytes& all, std::size_t from) {
    send(all, from);
    const std::vector<Received> received = collect(*set_, 1);
    ASSERT_EQ(received.size(), 1U);
    EXPECT_EQ(received[0].source, set_->endpoints()[1 - from]);
    EXPECT_EQ(received[0].bytes, all);
  }
  [[nodiscard]] std::uint64_t since(std::size_t number, std::uint64_t PortCounters::*counter) const {
    return set_->port(number).counters().*counter - before_[number].*counter;
  }
  static bool has_program(const std::string& interface) { return shell("ip link show " + interface + " | grep -q xdp"); }

  std::optional<PortSet> set_;
  PortCounters before_[2];
};

TEST_F(XdpPorts, CarryFramesOfAllLengthsBothWays) {
  for (const std::size_t bytes : {15UL, 60UL, 1000UL, 1514UL}) {
    for (const std::size_t from : {0UL, 1UL}) expect_passes(frame(bytes, bytes), from);
  }
  EXPECT_EQ(since(0, &PortCounters::frames_sent), 4U);
  EXPECT_EQ(since(0, &PortCounters::bytes_sent), 15U + 60 + 1000 + 1514);
  EXPECT_EQ(since(1, &PortCounters::frames_received), 4U);
  EXPECT_EQ(since(1, &PortCounters::bytes_received), 15U + 60 + 1000 + 1514);
}

TEST_F(XdpPorts, CarryBurstsInOrder) {
  constexpr std::size_t burst = 700, all = 20'000;
  std::size_t next = 0;
  for (std::size_t sent = 0; sent < all;) {
    for (std::size_t i = 0; i < burst; ++i, ++sent) {
      write(set_->sink(), set_->endpoints()[0], frame(64 + sent % 900, sent));
    }
    set_->sink().flush();
    for (const Received& received : collect(*set_, burst)) {
      ASSERT_EQ(received.bytes, frame(64 + next % 900, next));
      ++next;
    }
    ASSERT_EQ(next, sent);
  }
  EXPECT_EQ(since(1, &PortCounters::dropped_overrun), 0U);
}

TEST_F(XdpPorts, AreTheOnlyReaders) {
  ASSERT_TRUE(shell("ip address add 10.77.0.1/24 dev right"));
  Bytes ping = frame(60, 3);
  expect_passes(ping, 0);
  try {
    const std::vector<std::string> again = {"xdp:right"};
    static_cast<void>(open_ports(again));
    FAIL() << "two on one interface";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("already"), std::string::npos) << error.what();
  }
  expect_passes(ping, 0);  // as before
}

TEST_F(XdpPorts, LeaveTheirInterfacesAsTheyFoundThem) {
  EXPECT_TRUE(has_program("left"));
  EXPECT_FALSE(shell("ip -d link show left | grep -q 'promiscuity 0'"));
  set_.reset();
  EXPECT_FALSE(has_program("left"));
  EXPECT_TRUE(shell("ip -d link show left | grep -q 'promiscuity 0'"));
  open();
  expect_passes(frame(60, 1), 0);
}

TEST_F(XdpPorts, FinishChecksumsAndDropTrains) {
  Bytes all = frame(14 + 40 + 100, 5);
  all[header + 12] = std::byte{0x08};
  all[header + 13] = std::byte{0x00};
  VirtioNetHeader says;
  says.flags = VirtioNetHeader::needs_checksum;
  says.csum_start = 14 + 20;
  says.csum_offset = 16;
  write_virtio_net_header(all, says);
  Bytes finished = all;
  ASSERT_TRUE(complete_checksum(finished));
  send(all, 0);
  const std::vector<Received> received = collect(*set_, 1);
  ASSERT_EQ(received.size(), 1U);
  write_virtio_net_header(finished, {});
  EXPECT_EQ(received[0].bytes, finished);
  says.gso_type = VirtioNetHeader::gso_tcpv4;
  says.gso_size = 50;
  write_virtio_net_header(all, says);
  send(all, 0);
  EXPECT_EQ(since(0, &PortCounters::dropped_train), 1U);
  send(frame(1600, 1), 0);
  EXPECT_EQ(since(0, &PortCounters::dropped_refused), 1U);
  send(Bytes(header + 3), 0);
  EXPECT_EQ(since(0, &PortCounters::dropped_malformed), 1U);
}

TEST_F(XdpPorts, CountWhatCameFasterThanItWasTaken) {
  PortOptions few;
  few.buffer_bytes = 64 * 2048;  // the least
  open(few);
  for (int i = 0; i < 200; ++i) send(frame(60, 1), 0);
  // A few that were received are still this side's.
  EXPECT_TRUE(eventually([&] { return since(1, &PortCounters::dropped_overrun) >= 200 - 64; }));
  const std::size_t dropped = since(1, &PortCounters::dropped_overrun);
  EXPECT_EQ(collect(*set_, 200 - dropped).size(), 200 - dropped);
}

TEST_F(XdpPorts, AttachToAnInterfaceThatIsMadeAgain) {
  ASSERT_TRUE(shell("ip link del left"));
  EXPECT_EQ(set_->look_after().size(), 2U);
  EXPECT_TRUE(set_->look_after().empty());
  send(frame(60, 1), 0);
  EXPECT_TRUE(set_->receive().empty());
  ASSERT_TRUE(make_pair(""));
  std::size_t said = 0;
  EXPECT_TRUE(eventually([&] { return (said += set_->look_after().size()) == 2; }));
  EXPECT_TRUE(eventually([&] {
    send(frame(60, 0), 0);
    return !set_->receive().empty();
  }));
}

TEST_F(XdpPorts, HearEveryQueue) {
  set_.reset();
  ASSERT_TRUE(shell("ip link del left"));
  ASSERT_TRUE(make_pair("numrxqueues 4 numtxqueues 4"));
  open({}, "eth:left");
  for (std::size_t i = 0; i < 10; ++i) expect_passes(frame(100 + i, i), 0);
}

TEST_F(XdpPorts, SayWhatIsWrong) {
  set_.reset();
  const auto said = [](const std::string& text) {
    try {
      static_cast<void>(open_port(text));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(said("xdp:nothing"), "port xdp:nothing: there is no interface 'nothing'");
  EXPECT_EQ(said("xdp:lo"), "port xdp:lo: interface 'lo' is not Ethernet");
  ASSERT_TRUE(shell("ip link set left mtu 9000"));
  EXPECT_NE(said("xdp:left").find("the MTU of interface 'left', 9000, is too long"), std::string::npos) << said("xdp:left");
  ASSERT_TRUE(shell("ip link set left mtu 1500 down"));
  EXPECT_EQ(said("xdp:left"), "port xdp:left: interface 'left' is down: ip link set left up");
}

}  // namespace
}  // namespace netsum::transport
