// What only kernel UDP has: connected sockets, errors that the kernel reports, buffers, families.
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "netsum/error.h"
#include "transport/udp.h"
#include "unit/transport_fixture.h"

namespace netsum::transport {
namespace {

Endpoint loopback(std::uint16_t port = 0) {
  return resolve("127.0.0.1:" + std::to_string(port));
}

ErrorCode code_of(const UdpOptions& options) {
  try {
    Udp udp(options);
  } catch (const Error& error) {
    EXPECT_FALSE(std::string(error.what()).empty());
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::internal;
}

TEST(Udp, ConnectedSocketHearsItsPeerAlone) {
  Udp peer({.bind = loopback()}), stranger({.bind = loopback()});
  Udp connected({.bind = loopback(), .peer = peer.local()});
  EXPECT_EQ(connected.local().address, loopback().address);
  EXPECT_NE(connected.local().port, 0);
  write(stranger.sink(), connected.local(), pattern(10, 1));
  stranger.sink().flush();
  write(peer.sink(), connected.local(), pattern(10, 2));
  peer.sink().flush();
  const std::vector<Received> all = collect(connected, 1);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].bytes, pattern(10, 2));
  EXPECT_TRUE(connected.receive().empty());
}

TEST(Udp, ConnectedSocketBoundToAnyAddressLearnsItsOwn) {
  Udp peer({.bind = loopback()});
  Udp connected({.peer = peer.local()});
  EXPECT_EQ(connected.local().address, loopback().address);
  for (std::size_t i = 0; i < 61; ++i) write(connected.sink(), peer.local(), pattern(1000, i));
  connected.sink().flush();
  EXPECT_EQ(collect(peer, 61).size(), 61u);
}

TEST(Udp, ErrorOfAnEarlierDatagramCostsNoLaterOne) {
  auto peer = std::make_unique<Udp>(UdpOptions{.bind = loopback()});
  const Endpoint address = peer->local();
  peer.reset();
  Udp connected({.bind = loopback(), .peer = address});
  write(connected.sink(), address, pattern(10, 1));
  connected.sink().flush();  // is answered: port unreachable

  peer = std::make_unique<Udp>(UdpOptions{.bind = address});
  for (std::size_t i = 0; i < 3; ++i) write(connected.sink(), address, pattern(10, i));
  connected.sink().flush();
  EXPECT_EQ(collect(*peer, 3).size(), 3u);
  EXPECT_EQ(connected.counters().send_failures, 0u);
}

TEST(Udp, ErrorOfAnEarlierDatagramHidesNoReceivedOne) {
  auto peer = std::make_unique<Udp>(UdpOptions{.bind = loopback()});
  const Endpoint address = peer->local();
  Udp connected({.bind = loopback(), .peer = address});
  write(peer->sink(), connected.local(), pattern(10, 7));
  peer->sink().flush();
  peer.reset();
  write(connected.sink(), address, pattern(10, 1));
  connected.sink().flush();  // is answered: port unreachable
  EXPECT_EQ(connected.receive().size(), 1u);
}

TEST(Udp, TrainThatTheKernelRefusesGoesOneByOne) {
  Udp from({.bind = loopback()}), a({.bind = loopback()}), b({.bind = loopback()});
  // Without checksums the kernel refuses to segment, as it does for segments longer than the path's MTU.
  const int on = 1;
  ASSERT_EQ(::setsockopt(from.descriptor(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof on), 0);
  const std::vector<Endpoint> group = {a.local(), b.local()};
  const Bytes packet = pattern(1076, 500);
  for (std::size_t round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 10; ++i) write(from.sink(), a.local(), pattern(i == 9 ? 50 : 1076, i));
    for (std::size_t i = 0; i < 5; ++i) from.sink().multicast(packet, group);
    from.sink().flush();
    const std::vector<Received> at_a = collect(a, 15), at_b = collect(b, 5);
    ASSERT_EQ(at_a.size(), 15u);
    ASSERT_EQ(at_b.size(), 5u);
    for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(at_a[i].bytes, pattern(i == 9 ? 50 : 1076, i));
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(at_b[i].bytes, packet);
  }
  EXPECT_EQ(from.counters().packets_sent, 40u);
  EXPECT_EQ(from.counters().send_failures, 0u);
}

TEST(Udp, RefusedDatagramsAreCountedAndTheOthersSent) {
  Udp from({.bind = loopback()}), to({.bind = loopback()});
  const std::vector<Endpoint> group = {resolve("[::1]:9"), loopback(0),
                                       to.local()};  // other family, no port, and a good one
  const Bytes packet = pattern(200, 1);
  for (std::size_t i = 0; i < 4; ++i) from.sink().multicast(packet, group);
  from.sink().flush();
  EXPECT_EQ(collect(to, 4).size(), 4u);
  EXPECT_EQ(from.counters().packets_sent, 4u);
  EXPECT_EQ(from.counters().send_failures, 8u);
}

// How a socket that coalesces and does not split receives: a length for each message of the sender.
class TrainLengths {
 public:
  TrainLengths() : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    sockaddr_storage address{};
    const socklen_t size = to_sockaddr(loopback(), false, address);
    const int on = 1;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    coalesces = ::setsockopt(socket_, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
  }
  ~TrainLengths() { ::close(socket_); }
  TrainLengths(const TrainLengths&) = delete;
  TrainLengths& operator=(const TrainLengths&) = delete;

  [[nodiscard]] Endpoint local() const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return endpoint_of(address);
  }
  [[nodiscard]] std::vector<std::size_t> receive() const {
    Bytes buffer(65536);
    std::vector<std::size_t> lengths;
    ssize_t length = 0;
    while ((length = ::recv(socket_, buffer.data(), buffer.size(), 0)) >= 0)
      lengths.push_back(static_cast<std::size_t>(length));
    return lengths;
  }

  bool coalesces = false;

 private:
  int socket_;
};

TEST(Udp, EqualDatagramsTravelAsTrains) {
  using Lengths = std::vector<std::size_t>;
  const TrainLengths to;
  if (!to.coalesces) GTEST_SKIP() << "this kernel has no segment trains";
  Udp from({.bind = loopback()});
  for (std::size_t i = 0; i < 61; ++i) write(from.sink(), to.local(), pattern(i == 60 ? 7 : 1000, i));
  from.sink().flush();
  EXPECT_EQ(to.receive(), Lengths{60'007});
  for (std::size_t i = 0; i < 100; ++i) write(from.sink(), to.local(), pattern(10, i));
  from.sink().flush();
  EXPECT_EQ(to.receive(), (Lengths{640, 360}));  // older kernels take no more than 64 segments
  for (std::size_t i = 0; i < 100; ++i) write(from.sink(), to.local(), pattern(1000, i));
  from.sink().flush();
  EXPECT_EQ(to.receive(), (Lengths{64'000, 36'000}));
}

TEST(Udp, ReplyInBetweenEndsNoTrain) {
  const TrainLengths to;
  if (!to.coalesces) GTEST_SKIP() << "this kernel has no segment trains";
  Udp from({.bind = loopback()}), other({.bind = loopback()});
  const std::vector<Endpoint> group = {to.local(), other.local()};
  const Bytes packet = pattern(1000, 1);
  for (std::size_t i = 0; i < 30; ++i) {
    from.sink().multicast(packet, group);
    write(from.sink(), other.local(), pattern(20, i));
  }
  from.sink().flush();
  EXPECT_EQ(to.receive(), std::vector<std::size_t>{30'000});
  EXPECT_EQ(collect(other, 60).size(), 60u);
}

TEST(Udp, BadDestinationEndsNoTrainOfOthers) {
  const TrainLengths to;
  if (!to.coalesces) GTEST_SKIP() << "this kernel has no segment trains";
  Udp from({.bind = loopback()});
  const std::vector<Endpoint> group = {loopback(0),
                                       to.local()};  // no port: the kernel says EINVAL, as of a segment too long
  const Bytes packet = pattern(1000, 1);
  for (std::size_t round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 30; ++i) from.sink().multicast(packet, group);
    from.sink().flush();
    EXPECT_EQ(to.receive(), std::vector<std::size_t>{30'000});
  }
}

TEST(Udp, DatagramsThatNoPacketCanHoldAreABug) {
  Udp from({.bind = loopback()});
  EXPECT_THROW(from.sink().datagram(loopback(9), 65508), Error);
  const std::vector<Endpoint> group = {loopback(9)};
  EXPECT_THROW(from.sink().multicast(Bytes(65508), group), Error);
}

TEST(Udp, DualStackSocketTakesIpv4) {
  std::unique_ptr<Udp> to;
  try {
    to = std::make_unique<Udp>(UdpOptions{.ipv6 = true});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  Udp from({.bind = loopback()});
  const Endpoint address = loopback(to->local().port);
  for (std::size_t i = 0; i < 61; ++i) write(from.sink(), address, pattern(1000, i));
  from.sink().flush();
  const std::vector<Received> all = collect(*to, 61);
  ASSERT_EQ(all.size(), 61u);
  EXPECT_EQ(all[60].source, from.local());
  for (std::size_t i = 0; i < 61; ++i) write(to->sink(), all[i].source, pattern(1000, i));
  to->sink().flush();
  EXPECT_EQ(collect(from, 61).size(), 61u);
  EXPECT_EQ(to->counters().wire_bytes_sent, 61u * 1042);
}

TEST(Udp, SaysWhyItCannotBind) {
  Udp first({.bind = loopback()});
  EXPECT_EQ(code_of({.bind = first.local()}), ErrorCode::refused);
  EXPECT_EQ(code_of({.bind = resolve("192.0.2.1:0")}), ErrorCode::refused);
  EXPECT_EQ(code_of({.bind = resolve("[::1]:0"), .peer = first.local()}), ErrorCode::bad_argument);
}

TEST(Udp, KnowsTheMtuOfItsPath) {
  Udp peer({.bind = loopback()});
  EXPECT_GE(Udp({.peer = peer.local()}).mtu(), 65535u);  // IPv4 holds no more, whatever the interface says
  EXPECT_EQ(peer.mtu(), 1500u);
}

TEST(Udp, WarnsOfSmallBuffers) {
  EXPECT_EQ(Udp({.bind = loopback(), .buffer_bytes = 64 << 10}).buffer_warning(), "");
  const bool root = ::geteuid() == 0;  // who may exceed the limit
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const std::string warning = Udp({.bind = loopback(), .buffer_bytes = 1 << 30}).buffer_warning();
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_NE(warning.find("sysctl -w net.core.rmem_max=1073741824"), std::string::npos) << warning;
  EXPECT_NE(warning.find("sysctl -w net.core.wmem_max=1073741824"), std::string::npos) << warning;
}

TEST(Addresses, ReadsAndWrites) {
  EXPECT_EQ(to_string(resolve("127.0.0.1:80")), "127.0.0.1:80");
  EXPECT_EQ(to_string(resolve("[2001:db8::1]:65535")), "[2001:db8::1]:65535");
  EXPECT_EQ(to_string(resolve("localhost:7170")), "127.0.0.1:7170");
  EXPECT_EQ(to_string(resolve("0.0.0.0:0")), "0.0.0.0:0");
  EXPECT_TRUE(is_unspecified(resolve("0.0.0.0:1")));
  EXPECT_TRUE(is_unspecified(resolve("[::]:1")));
  EXPECT_FALSE(is_unspecified(resolve("[::1]:1")));
  EXPECT_TRUE(is_ipv4(resolve("10.1.2.3:1")));
  EXPECT_FALSE(is_ipv4(resolve("[::1]:1")));
}

TEST(Addresses, RefusesWhatIsNone) {
  using namespace std::string_literals;
  for (const std::string& text : {""s, "127.0.0.1\0.example:80"s, "host"s, ":80"s, "host:"s, "host:port"s, "host:65536"s,
                                  "host:-1"s, "::1:80"s, "[::1:80"s, "[]:80"s, "[::1]"s, "host:80 "s}) {
    try {
      static_cast<void>(resolve(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_argument) << text;
      EXPECT_NE(std::string(error.what()).find("HOST:PORT"), std::string::npos);
    }
  }
}

TEST(Addresses, NamesTheHostThatIsNotFound) {
  try {
    static_cast<void>(resolve("no host has blanks:80"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unreachable);
    EXPECT_NE(std::string(error.what()).find("no host has blanks"), std::string::npos);
  }
}

}  // namespace
}  // namespace netsum::transport
