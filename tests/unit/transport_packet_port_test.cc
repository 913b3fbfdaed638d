// Ports on Ethernet interfaces: both ends of a veth pair in a network namespace of this test's own. Skipped where such may
// not be made.
#include <linux/capability.h>
#include <net/ethernet.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "base/copied.h"
#include "netsum/error.h"
#include "transport/ports/port_set.h"
#include "unit/transport_fixture.h"

namespace netsum::transport {
namespace {

constexpr std::size_t header = virtio_net_header_bytes;

bool shell(const std::string& command) {
  return std::system(command.c_str()) == 0;  // NOLINT: a test's own words
}

struct Tag {
  std::uint16_t type, control;
};

// With room for the header in front; the content is a pattern from behind the addresses, types and IP's first fields.
Bytes ethernet(std::size_t bytes, std::size_t number, const std::vector<Tag>& tags = {}, std::uint16_t type = 0x88b5) {
  Bytes all = pattern(header + bytes, number);
  std::size_t at = header;
  const auto put = [&](std::initializer_list<int> values) {
    for (const int value : values) all[at++] = static_cast<std::byte>(value);
  };
  put({0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1});
  for (const Tag& tag : tags) put({tag.type >> 8, tag.type & 0xff, tag.control >> 8, tag.control & 0xff});
  put({type >> 8, type & 0xff});
  return all;
}

// One of which nothing is said.
Bytes plain(std::size_t bytes, std::size_t number) {
  Bytes all = ethernet(bytes, number);
  write_virtio_net_header(all, {});
  return all;
}

class PacketPorts : public testing::Test {
 protected:
  void SetUp() override {
    if (::unshare(CLONE_NEWNET) != 0) GTEST_SKIP() << "skipped: network namespaces are not permitted here";
    if (!shell("ip link add left type veth peer name right")) GTEST_SKIP() << "skipped: veth pairs cannot be made here";
    for (const char* end : {"left", "right"}) {
      ASSERT_TRUE(shell(std::string("ip link set ") + end + " addrgenmode none && ip link set " + end + " up"));
    }
    open();
    wait_until_connected();
    set_.reset();
  }

  void open(const PortOptions& options = {}) {
    set_.reset();
    const std::vector<std::string> names = {"left", "eth:right"};
    set_.emplace(open_ports(names, options));
  }
  // The kernel connects the ends of a pair a while after both are up; and what was sent until then may still be on its way.
  void wait_until_connected() {
    for (const std::size_t from : {0UL, 1UL}) {
      const auto probe = [&](std::size_t bytes) {
        write(set_->sink(), set_->endpoints()[from], plain(bytes, 0));
        set_->sink().flush();
      };
      EXPECT_TRUE(eventually([&] {
        probe(60);
        return !set_->receive().empty();
      }));
      probe(61);
      bool last = false;
      EXPECT_TRUE(eventually([&] {
        for (const RxView& view : set_->receive()) last = last || view.bytes.size() == header + 61;
        return last;
      }));
    }
  }
  [[nodiscard]] PortCounters counters(std::size_t number) const { return set_->port(number).counters(); }

  // Sends at one end, and expects it at the other, as it was but for what is said of it.
  void expect_passes(const Bytes& all, const VirtioNetHeader& says = {}, std::size_t from = 0) {
    Bytes sent = all;
    write_virtio_net_header(sent, says);
    write(set_->sink(), set_->endpoints()[from], sent);
    set_->sink().flush();
    const std::vector<Received> received = collect(*set_, 1);
    ASSERT_EQ(received.size(), 1U);
    EXPECT_EQ(received[0].source, set_->endpoints()[1 - from]);
    ASSERT_EQ(received[0].bytes.size(), sent.size());
    EXPECT_TRUE(std::equal(sent.begin() + header, sent.end(), received[0].bytes.begin() + header));
    const VirtioNetHeader said = read_virtio_net_header(received[0].bytes);
    EXPECT_EQ(said.gso_type, says.gso_type);
    EXPECT_EQ(said.gso_size, says.gso_size);
    EXPECT_GE(said.hdr_len, says.hdr_len);
    EXPECT_EQ(said.flags & VirtioNetHeader::needs_checksum, says.flags & VirtioNetHeader::needs_checksum);
    EXPECT_EQ(said.csum_start, says.csum_start);
    EXPECT_EQ(said.csum_offset, says.csum_offset);
    EXPECT_TRUE(set_->receive().empty());
  }

  std::optional<PortSet> set_;
};

// A TCP segment in IPv4, or a train of them.
Bytes tcp(std::size_t payload, const std::vector<Tag>& tags = {}) {
  Bytes all = ethernet(14 + 4 * tags.size() + 40 + payload, 9, tags, ETHERTYPE_IP);
  std::byte* const ip = all.data() + header + 14 + 4 * tags.size();
  const std::size_t length = 40 + payload;
  const int fields[] = {0x45,
                        0,
                        static_cast<int>(length >> 8),
                        static_cast<int>(length & 0xff),
                        0,
                        1,
                        0x40,
                        0,
                        64,
                        6,
                        0,
                        0,
                        10,
                        0,
                        0,
                        1,
                        10,
                        0,
                        0,
                        2,  // ports, sequence, acknowledgement:
                        0x10,
                        0,
                        0x20,
                        0,
                        0,
                        0,
                        0,
                        1,
                        0,
                        0,
                        0,
                        1,
                        0x50,
                        0x10,
                        1,
                        0};
  for (std::size_t i = 0; i < std::size(fields); ++i) ip[i] = static_cast<std::byte>(fields[i]);
  return all;
}

VirtioNetHeader tcp_left_undone(std::size_t tags, std::uint16_t segment) {
  VirtioNetHeader says;
  says.flags = VirtioNetHeader::needs_checksum;
  says.csum_start = static_cast<std::uint16_t>(14 + 4 * tags + 20);
  says.csum_offset = 16;
  if (segment > 0) {
    says.gso_type = VirtioNetHeader::gso_tcpv4;
    says.gso_size = segment;
    says.hdr_len = static_cast<std::uint16_t>(14 + 4 * tags + 40);
  }
  return says;
}

TEST_F(PacketPorts, CarryFramesOfAllLengthsBothWays) {
  open();
  EXPECT_TRUE(set_->receive().empty());
  for (const std::size_t bytes : {14UL, 15UL, 60UL, 1000UL, 1514UL}) {
    for (const std::size_t from : {0UL, 1UL}) expect_passes(ethernet(bytes, bytes), {}, from);
  }
  EXPECT_EQ(counters(0).frames_sent, 5U);
  EXPECT_EQ(counters(0).bytes_sent, 14U + 15 + 60 + 1000 + 1514);
  EXPECT_EQ(counters(1).frames_received, 5U);
  EXPECT_EQ(counters(1).bytes_received, 14U + 15 + 60 + 1000 + 1514);
  EXPECT_EQ(set_->counters().send_failures, 0U);
  EXPECT_EQ(set_->counters().truncated, 0U);
}

TEST_F(PacketPorts, CarryWhatIsSaidOfChecksumsAndTrains) {
  open();
  expect_passes(tcp(1000), tcp_left_undone(0, 0));
  expect_passes(tcp(5000), tcp_left_undone(0, 1000));
  expect_passes(tcp(65'000), tcp_left_undone(0, 1448));
}

TEST_F(PacketPorts, CarryTagsThatTheKernelTakesOut) {
  open();
  const Tag customer{0x8100, 0xa007}, provider{0x88a8, 9}, priority{0x8100, 0x6000};
  for (const auto& tags : {std::vector{customer}, {provider}, {priority}, {provider, customer}, {customer, customer}}) {
    SCOPED_TRACE(testing::Message() << std::hex << tags.front().type << ' ' << tags.back().type << ' ' << tags.size());
    expect_passes(ethernet(100, 1, tags));
    expect_passes(ethernet(16 + 4 * tags.size(), 2, tags));
    expect_passes(tcp(1000, tags), tcp_left_undone(tags.size(), 0));
    expect_passes(tcp(60'000, tags), tcp_left_undone(tags.size(), 1000));
  }
}

// The kernel has a frame there at the beginning of memory of its own, or two bytes behind it.
TEST_F(PacketPorts, BeginWhereTheKernelCopiesFast) {
  open();
  for (std::size_t i = 0; i < 3; ++i) write(set_->sink(), set_->endpoints()[0], plain(1000 + i, i));
  set_->sink().flush();
  std::size_t frames = 0;
  EXPECT_TRUE(eventually([&] {
    for (const RxView& view : set_->receive()) {
      const auto frame = reinterpret_cast<std::uintptr_t>(view.bytes.data() + header);
      EXPECT_EQ(frame % 2048, static_cast<std::uintptr_t>(Copied::into));
      ++frames;
    }
    return frames == 3;
  }));
}

TEST_F(PacketPorts, HearFramesWhoeverTheyAreFor) {
  open();
  for (const int first : {0x02, 0x01, 0xff, 0x33}) {
    Bytes all = ethernet(60, 1);
    all[header] = static_cast<std::byte>(first);
    expect_passes(all);
  }
  // veth pairs filter nothing, but cards do.
  EXPECT_TRUE(shell("ip -d link show left | grep -q 'promiscuity 1'"));
  set_.reset();
  EXPECT_TRUE(shell("ip -d link show left | grep -q 'promiscuity 0'"));
}

TEST_F(PacketPorts, HearNothingThatLeaves) {
  open();
  PortSet others(open_ports(std::vector<std::string>{"left"}));  // as the interface's own host does
  write(others.sink(), others.endpoints()[0], plain(60, 1));
  others.sink().flush();
  const std::vector<Received> received = collect(*set_, 1);
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(received[0].source, set_->endpoints()[1]);
  expect_passes(ethernet(60, 2));
}

TEST_F(PacketPorts, CarryBurstsInOrder) {
  open();
  constexpr std::size_t frames = 1000;
  const std::vector<Endpoint> right = {set_->endpoints()[1]};
  std::vector<Bytes> all;
  for (std::size_t i = 0; i < frames; ++i) {
    all.push_back(plain(60 + i, i));
  }
  for (std::size_t i = 0; i < frames; ++i) {
    if (i % 3 == 0) {
      write(set_->sink(), right[0], all[i]);
    } else {
      set_->sink().multicast(all[i], right);
    }
  }
  set_->sink().flush();
  const std::vector<Received> received = collect(*set_, frames);
  ASSERT_EQ(received.size(), frames);
  for (std::size_t i = 0; i < frames; ++i) {
    ASSERT_TRUE(std::equal(all[i].begin() + header, all[i].end(), received[i].bytes.begin() + header)) << i;
  }
}

// Trains are longer than a slot of the ring, and come by another way.
TEST_F(PacketPorts, KeepTheOrderOfFramesAndTrains) {
  open();
  std::vector<Bytes> all;
  for (std::size_t i = 0; i < 100; ++i) {
    if (i % 3 == 1 || i % 7 < 3) {
      all.push_back(tcp(20'000 + i));
      write_virtio_net_header(all.back(), tcp_left_undone(0, 1448));
    } else {
      all.push_back(plain(60 + 10 * i, i));
    }
  }
  for (const Bytes& each : all) write(set_->sink(), set_->endpoints()[0], each);
  set_->sink().flush();
  const std::vector<Received> received = collect(*set_, all.size());
  ASSERT_EQ(received.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(received[i].bytes.size(), all[i].size()) << i;
    ASSERT_TRUE(std::equal(all[i].begin() + header, all[i].end(), received[i].bytes.begin() + header)) << i;
  }
  EXPECT_EQ(counters(1).dropped_unreadable + counters(1).dropped_overrun, 0U);
}

TEST_F(PacketPorts, CarryFramesOfALongMtu) {
  for (const char* end : {"left", "right"}) ASSERT_TRUE(shell(std::string("ip link set ") + end + " mtu 9000"));
  open();
  for (const std::size_t bytes : {60UL, 1514UL, 4000UL, 9014UL}) expect_passes(ethernet(bytes, bytes));
}

TEST_F(PacketPorts, CarryFramesThatAreLongerThanTheMtuWasWhenTheyWereOpened) {
  open();
  for (const char* end : {"left", "right"}) ASSERT_TRUE(shell(std::string("ip link set ") + end + " mtu 9000"));
  for (const std::size_t bytes : {60UL, 9014UL, 1514UL}) expect_passes(ethernet(bytes, bytes));
}

TEST_F(PacketPorts, MarkFramesThatMeetALongQueue) {
  PortOptions options{.buffer_bytes = 1 << 20};  // 512 slots, of which an eighth is a batch
  options.mark = [](std::span<std::byte> frame) {
    const bool capable = frame[20] == std::byte{2};
    if (capable) frame[20] = std::byte{3};
    return capable;
  };
  open(options);
  Bytes capable = plain(100, 1), other = plain(100, 1);
  capable[header + 20] = std::byte{2};
  other[header + 20] = std::byte{0};
  for (std::size_t i = 0; i < 200; ++i) write(set_->sink(), set_->endpoints()[0], i % 2 == 0 ? capable : other);
  set_->sink().flush();
  EXPECT_TRUE(eventually([&] { return set_->queued_bytes() == 200 * 2048; }));
  const std::vector<Received> received = collect(*set_, 200);
  ASSERT_EQ(received.size(), 200U);
  std::size_t marked = 0;
  for (std::size_t i = 0; i < received.size(); ++i) {
    const bool is_marked = received[i].bytes[header + 20] == std::byte{3};
    EXPECT_EQ(is_marked, i % 2 == 0 && i < 128) << i;  // two batches have more than a batch behind them
    marked += is_marked ? 1 : 0;
  }
  EXPECT_EQ(counters(1).marked, marked);
  EXPECT_EQ(counters(0).marked, 0U);
}

TEST_F(PacketPorts, SendInTheirOwnNameIfTheyAreToldTo) {
  ASSERT_TRUE(shell("ip link set left address 02:00:00:00:00:77"));
  PortOptions options;
  options.own_source = true;
  open(options);
  const Bytes sent = plain(100, 1);
  Bytes expected = sent;
  const int address[] = {2, 0, 0, 0, 0, 0x77};
  for (std::size_t i = 0; i < 6; ++i) expected[header + 6 + i] = static_cast<std::byte>(address[i]);
  Sink& other = set_->other_sink();
  for (Sink* const sink : {&set_->sink(), &other}) {
    write(*sink, set_->endpoints()[0], sent);
    sink->flush();
    const std::vector<Received> received = collect(*set_, 1);
    ASSERT_EQ(received.size(), 1U);
    EXPECT_TRUE(std::equal(expected.begin() + header, expected.end(), received[0].bytes.begin() + header));
  }
  EXPECT_THROW(static_cast<void>(open_port("qemu:/tmp/netsum-a,/tmp/netsum-b", options)), Error);
}

// A slow link: what waits for it counts as the socket's.
TEST_F(PacketPorts, MarkFramesThatWouldWaitLongToLeave) {
  if (!shell("tc qdisc add dev left root tbf rate 1mbit burst 5kb limit 10mb")) {
    GTEST_SKIP() << "skipped: this kernel has no token bucket";
  }
  PortOptions options{.buffer_bytes = 64 << 10};
  options.mark = [](std::span<std::byte> frame) {
    frame[20] = std::byte{3};
    return true;
  };
  open(options);
  std::size_t sent = 0;
  for (; counters(0).marked == 0 && sent < 200; ++sent) {
    write(set_->sink(), set_->endpoints()[0], plain(1000, 1));
    set_->sink().flush();
  }
  EXPECT_EQ(counters(0).dropped_full, 0U);
  EXPECT_GT(sent, 5U);
  EXPECT_LT(sent, 50U);
  const std::vector<Received> received = collect(*set_, sent);
  ASSERT_EQ(received.size(), sent);
  for (std::size_t i = 0; i < sent; ++i) EXPECT_EQ(received[i].bytes[header + 20] == std::byte{3}, i + 1 == sent) << i;
}

TEST_F(PacketPorts, SendForSeveralThreads) {
  open();
  Sink& other = set_->other_sink();
  constexpr std::size_t frames = 200;
  std::thread thread([&] {
    for (std::size_t i = 0; i < frames; ++i) {
      write(other, set_->endpoints()[0], plain(100, i));
      other.flush();
    }
  });
  for (std::size_t i = 0; i < frames; ++i) {
    write(set_->sink(), set_->endpoints()[0], plain(101, i));
    set_->sink().flush();
  }
  thread.join();
  std::size_t next[2] = {0, 0};
  for (const Received& each : collect(*set_, 2 * frames)) {
    const std::size_t bytes = each.bytes.size() - header;
    ASSERT_TRUE(bytes == 100 || bytes == 101);
    const Bytes expected = plain(bytes, next[bytes - 100]++);
    ASSERT_TRUE(std::equal(expected.begin() + header, expected.end(), each.bytes.begin() + header));
  }
  EXPECT_EQ(next[0], frames);
  EXPECT_EQ(next[1], frames);
  EXPECT_EQ(counters(0).frames_sent, frames);
  EXPECT_EQ(set_->port_counters(0).frames_sent, 2 * frames);
  EXPECT_EQ(set_->counters().packets_sent, 2 * frames);
}

TEST_F(PacketPorts, CountWhatCameFasterThanItWasTaken) {
  open({.buffer_bytes = 50'000});
  constexpr std::size_t frames = 1000;
  const Bytes frame = plain(1000, 1);
  for (std::size_t i = 0; i < frames; ++i) {
    write(set_->sink(), set_->endpoints()[0], frame);
    set_->sink().flush();
  }
  EXPECT_TRUE(eventually([&] { return set_->queued_bytes() > 25'000; }));
  EXPECT_TRUE(eventually([&] {
    static_cast<void>(set_->receive());
    return counters(1).frames_received + counters(1).dropped_overrun == frames;
  }));
  EXPECT_GT(counters(1).dropped_overrun, 0U);
  EXPECT_GT(counters(1).frames_received, 0U);
  EXPECT_EQ(counters(0).frames_sent, frames);
}

TEST_F(PacketPorts, CountWhatTheyCannotSendAndGoOn) {
  open();
  const auto put = [&](const Bytes& all) { write(set_->sink(), set_->endpoints()[0], all); };
  Bytes train = tcp(5000);
  write_virtio_net_header(train, {.gso_type = 0x7f, .gso_size = 1000});  // of a kind that there is not
  const Bytes too_long = plain(1600, 1), good = plain(100, 1);
  for (const Bytes& all : {train, good, too_long, Bytes(9), good, Bytes(header + 13), good}) put(all);
  set_->sink().flush();
  EXPECT_EQ(collect(*set_, 3).size(), 3U);
  EXPECT_EQ(counters(0).frames_sent, 3U);
  EXPECT_EQ(counters(0).dropped_malformed, 3U);
  EXPECT_EQ(counters(0).dropped_refused, 1U);
  EXPECT_EQ(set_->counters().send_failures, 4U);
}

TEST_F(PacketPorts, GoOnWhenTheInterfaceWasDownForAWhile) {
  open();
  ASSERT_TRUE(shell("ip link set left down"));
  write(set_->sink(), set_->endpoints()[0], plain(100, 1));
  set_->sink().flush();
  EXPECT_EQ(counters(0).dropped_refused, 1U);
  EXPECT_TRUE(set_->receive().empty());  // an error, once
  pollfd asked{set_->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&asked, 1, 0), 0);
  ASSERT_TRUE(shell("ip link set left up"));
  wait_until_connected();
  expect_passes(ethernet(100, 2));
  expect_passes(ethernet(100, 3), {}, 1);
}

void expect_error(const std::string& text, ErrorCode code, const std::string& words) {
  try {
    static_cast<void>(open_port(text));
    ADD_FAILURE() << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST_F(PacketPorts, SayWhatIsWrong) {
  expect_error("eth:nowhere", ErrorCode::bad_argument, "port eth:nowhere: no such interface here");
  expect_error("a-name-that-is-too-long", ErrorCode::bad_argument, "15 characters");
  expect_error("lo", ErrorCode::bad_argument, "not Ethernet");
  ASSERT_TRUE(shell("ip link set left down"));
  expect_error("left", ErrorCode::refused, "the interface is down: ip link set left up");
  const std::vector<std::string> twice = {"right", "eth:right"};
  EXPECT_THROW(static_cast<void>(open_ports(twice)), Error);
}

TEST_F(PacketPorts, SayThatRootIsNeeded) {
  std::thread([] {  // capabilities are a thread's own
    __user_cap_header_struct version{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2] = {};
    ASSERT_EQ(::syscall(SYS_capset, &version, none), 0);
    expect_error("left", ErrorCode::refused, "run as root, or give the program CAP_NET_RAW");
  })
      .join();
}

// A driver that is loaded again, or a container's pair: the same name, another interface.
TEST_F(PacketPorts, AnInterfaceThatIsMadeAgainIsOpenedAgain) {
  open();
  Sink& other = set_->other_sink();
  expect_passes(plain(100, 1));
  EXPECT_TRUE(set_->look_after().empty());
  ASSERT_TRUE(shell("ip link del left"));
  std::vector<std::string> said = set_->look_after();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_NE(said[0].find("port eth:left: the interface was removed"), std::string::npos) << said[0];
  EXPECT_TRUE(set_->look_after().empty()) << "it is said once";
  ASSERT_TRUE(shell("ip link add left type veth peer name right"));
  EXPECT_TRUE(set_->look_after().empty()) << "they are not up";
  for (const char* end : {"left", "right"}) {
    ASSERT_TRUE(shell(std::string("ip link set ") + end + " addrgenmode none && ip link set " + end + " up"));
  }
  said = set_->look_after();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_NE(said[1].find("port eth:right: the interface exists again"), std::string::npos) << said[1];
  wait_until_connected();
  expect_passes(plain(100, 2));
  expect_passes(plain(100, 3), {}, 1);
  write(other, set_->endpoints()[0], plain(100, 4));
  other.flush();
  EXPECT_EQ(collect(*set_, 1).size(), 1U);
}

}  // namespace
}  // namespace netsum::transport
