// What only kernel UDP has: connected sockets, errors that the kernel reports, buffers, families.
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/datagram/udp.h"
#include "transport/system/caches.h"
#include "unit/copied_ends.h"
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

TEST(Caches, LengthsOnThisHostFollowFromThem) {
  EXPECT_EQ(near_path(512 << 10).datagram_bytes, 65536U);
  EXPECT_EQ(near_path(512 << 10).window_bytes, 131072U) << "two of the longest datagrams keep both ends busy";
  EXPECT_EQ(near_path(256 << 10).datagram_bytes, 32768U);
  EXPECT_EQ(near_path(256 << 10).window_bytes, 65536U);
  EXPECT_EQ(near_path(4 << 20).window_bytes, 131072U);
  EXPECT_EQ(near_path().window_bytes, near_path(level_2_cache_bytes()).window_bytes);
  EXPECT_GE(level_2_cache_bytes(), 64U << 10);
}

TEST(Interfaces, HaveAnMtuWhereTheAddressIsThisHosts) {
  const auto loopback = interface_of(resolve("127.0.0.1:1"));
  ASSERT_TRUE(loopback);
  EXPECT_GE(loopback->mtu, 1280U);
  EXPECT_TRUE(loopback->loopback);
  EXPECT_EQ(interface_of(resolve("127.0.0.1:2"))->mtu, loopback->mtu);
  EXPECT_FALSE(interface_of(resolve("192.0.2.1:1")));  // of documentation alone (RFC 5737)
}

TEST(Interfaces, SayWhetherAnAddressIsThisHosts) {
  EXPECT_TRUE(is_of_this_host(resolve("127.0.0.1:1")));
  EXPECT_TRUE(is_of_this_host(resolve("127.9.8.7:1"))) << "no interface names it";
  EXPECT_TRUE(is_of_this_host(resolve("[::1]:1")));
  EXPECT_FALSE(is_of_this_host(resolve("192.0.2.1:1")));
  EXPECT_FALSE(is_of_this_host(resolve("[2001:db8::1]:1")));
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

TEST(Udp, EveryTrainBeginsWhereTheKernelCopiesFast) {
  for (const bool segmentation : {true, false}) {
    Udp from({.bind = loopback()}), to({.bind = loopback(), .segmentation = segmentation});
    std::size_t trains = 0;
    // In one call, each to another socket, and so a train too.
    for (std::size_t i = 1; i <= 4; ++i) {
      const Endpoint elsewhere{.address = to.local().address, .port = static_cast<std::uint16_t>(i)};
      expect_lies_well(Copied::from, from.sink().datagram(elsewhere, 100 * i).data());
    }
    from.sink().flush();
    // Of differing lengths, so that each is a train of its own. A first buffer could lie well by chance.
    for (std::size_t round = 0; round < 4; ++round) {
      for (std::size_t i = 1; i <= 4; ++i) {
        write(from.sink(), to.local(), pattern(100 * i, i));
        from.sink().flush();
      }
      pollfd readable{to.descriptor(), POLLIN, 0};
      ASSERT_EQ(::poll(&readable, 1, 5000), 1);
      for (const RxView& view : to.receive()) {
        expect_lies_well(Copied::into, view.bytes.data());
        ++trains;
      }
    }
    EXPECT_GE(trains, 4U);
  }
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

TEST(Udp, WhatIsSentAroundBytesTravelsAsTrains) {
  const TrainLengths to;
  if (!to.coalesces) GTEST_SKIP() << "this kernel has no segment trains";
  Udp from({.bind = loopback()});
  const Bytes body = pattern(4000, 1);
  for (std::size_t i = 0; i < 10; ++i) {
    for (const auto& place : {from.sink().around(to.local(), 96, body, 4)}) {
      std::fill(place.head.begin(), place.head.end(), std::byte{1});
      std::fill(place.tail.begin(), place.tail.end(), std::byte{2});
    }
  }
  from.sink().flush();
  EXPECT_EQ(to.receive(), std::vector<std::size_t>{41'000});
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

// Peers that are connected to addresses of their choice, and so hear from nowhere else.
class UdpAtEveryAddress : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    try {
      daemon_ = std::make_unique<Udp>(UdpOptions{.ipv6 = GetParam()});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    for (const char* host : {"127.0.0.2", "127.0.0.1", "127.0.0.3"}) {
      Endpoint at = resolve(host + std::string(":0"));
      at.port = daemon_->local().port;
      peers_.push_back(std::make_unique<Udp>(UdpOptions{.bind = loopback(), .peer = at}));
      write(peers_.back()->sink(), at, pattern(10, 1));
      peers_.back()->sink().flush();
    }
    for (const Received& each : collect(*daemon_, peers_.size())) sources_.push_back(each.source);
    ASSERT_EQ(sources_.size(), peers_.size());
  }
  std::unique_ptr<Udp> daemon_;
  std::vector<std::unique_ptr<Udp>> peers_;
  std::vector<Endpoint> sources_;
};

TEST_P(UdpAtEveryAddress, AnswersFromTheOneThatWasSentTo) {
  const Bytes packet = pattern(1000, 1);
  for (Sink* const sink : {&daemon_->sink(), &daemon_->other_sink()}) {
    for (std::size_t i = 0; i < 61; ++i) sink->multicast(packet, sources_);
    for (const Endpoint& to : sources_) write(*sink, to, pattern(7, 2));
    sink->flush();
    for (const auto& peer : peers_) EXPECT_EQ(collect(*peer, 62).size(), 62U);
  }
  EXPECT_EQ(daemon_->counters().send_failures, 0U);
}

TEST_P(UdpAtEveryAddress, SendsFirstFromTheOneItIsTold) {
  Udp peer({.bind = loopback()});
  daemon_->send_from(peer.local(), resolve("127.0.0.9:0"));
  write(daemon_->sink(), peer.local(), pattern(7, 2));
  daemon_->sink().flush();
  const std::vector<Received> all = collect(peer, 1);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].source.address, resolve("127.0.0.9:0").address);
}

INSTANTIATE_TEST_SUITE_P(All, UdpAtEveryAddress, testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "dual_stack" : "ipv4"; });

// A socket without the code under test: sends what it is told with any type of service (IPv6: traffic class), and says with
// which its datagrams came.
class PlainSocket {
 public:
  explicit PlainSocket(const Endpoint& bind)
      : ipv6_(!is_ipv4(bind)), socket_(::socket(ipv6_ ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    sockaddr_storage address{};
    const socklen_t size = to_sockaddr(bind, ipv6_, address);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    const int on = 1;
    EXPECT_EQ(::setsockopt(socket_, level(), ipv6_ ? IPV6_RECVTCLASS : IP_RECVTOS, &on, sizeof on), 0);
  }
  ~PlainSocket() { ::close(socket_); }
  PlainSocket(const PlainSocket&) = delete;
  PlainSocket& operator=(const PlainSocket&) = delete;

  [[nodiscard]] Endpoint local() const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return endpoint_of(address);
  }

  // As a train of segments, or as one datagram (`segment` 0).
  void send(const Endpoint& to, Bytes bytes, int tos, std::uint16_t segment = 0) const {
    sockaddr_storage address{};
    iovec piece{bytes.data(), bytes.size()};
    Control control{};
    msghdr header{};
    header.msg_name = &address;
    header.msg_namelen = to_sockaddr(to, ipv6_, address);
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = segment == 0 ? CMSG_SPACE(sizeof tos) : sizeof control.bytes;
    cmsghdr* note = CMSG_FIRSTHDR(&header);
    *note = {CMSG_LEN(sizeof tos), level(), type()};
    std::memcpy(CMSG_DATA(note), &tos, sizeof tos);
    if (segment != 0) {
      note = CMSG_NXTHDR(&header, note);
      *note = {CMSG_LEN(sizeof segment), SOL_UDP, UDP_SEGMENT};
      std::memcpy(CMSG_DATA(note), &segment, sizeof segment);
    }
    EXPECT_EQ(::sendmsg(socket_, &header, 0), static_cast<ssize_t>(bytes.size()));
  }

  // Of the next datagram; -1 if none comes in time.
  [[nodiscard]] int receive_tos() const {
    Bytes bytes(65536);
    iovec piece{bytes.data(), bytes.size()};
    Control control{};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    pollfd readable{socket_, POLLIN, 0};
    ::poll(&readable, 1, 5000);
    if (::recvmsg(socket_, &header, 0) < 0) return -1;
    const cmsghdr* note = CMSG_FIRSTHDR(&header);
    if (note == nullptr || note->cmsg_level != level() || note->cmsg_type != type()) return -1;
    if (!ipv6_) return *CMSG_DATA(note);
    int traffic_class = -1;
    std::memcpy(&traffic_class, CMSG_DATA(note), sizeof traffic_class);
    return traffic_class;
  }

 private:
  struct Control {
    alignas(cmsghdr) std::byte bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(std::uint16_t))];
  };
  [[nodiscard]] int level() const { return ipv6_ ? IPPROTO_IPV6 : IPPROTO_IP; }
  [[nodiscard]] int type() const { return ipv6_ ? IPV6_TCLASS : IP_TOS; }

  bool ipv6_;
  int socket_;
};

struct Path {
  const char* name;
  const char* bind;  // of the transport
  const char* host;  // as which it and its peer see each other
};

class UdpEcn : public testing::TestWithParam<Path> {
 protected:
  static constexpr int not_ect = 0, ect1 = 1, ect0 = 2, ce = 3;
  static constexpr int expedited = 0xb8;  // the other six bits are none of ECN's business

  void SetUp() override {
    try {
      const Udp without_ecn(options(false));
      ASSERT_EQ(is_ipv4(without_ecn.local()), is_ipv4(options().bind));
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static UdpOptions options(bool ecn = true) {
    const Endpoint bind = resolve(GetParam().bind + std::string(":0"));
    return {.bind = bind, .ipv6 = !is_ipv4(bind), .ecn = ecn};
  }
  static Endpoint peer_address() { return resolve(GetParam().host + std::string(":0")); }
  static Endpoint address_of(const Udp& udp) {
    Endpoint address = peer_address();
    address.port = udp.local().port;
    return address;
  }
  static bool has_trains() {
    const TrainLengths probe;
    return probe.coalesces;
  }
};

TEST_P(UdpEcn, SaysWhichDatagramsWereMarked) {
  const PlainSocket from(peer_address());
  Udp to(options());
  const std::vector<int> all_tos = {ce, ect0, ce, ce, not_ect, ect1, ce | expedited, ect0 | expedited, ce};
  for (std::size_t i = 0; i < all_tos.size(); ++i) from.send(address_of(to), pattern(100, i), all_tos[i]);
  const std::vector<Received> all = collect(to, all_tos.size());
  ASSERT_EQ(all.size(), all_tos.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].bytes, pattern(100, i));
    EXPECT_EQ(all[i].congested, (all_tos[i] & 3) == ce) << all_tos[i];
  }
}

TEST_P(UdpEcn, SaysItOfEveryDatagramOfATrain) {
  if (!has_trains()) GTEST_SKIP() << "this kernel has no segment trains";
  constexpr std::size_t trains = 7, datagrams = 10, bytes = 1000;
  for (const bool coalescing : {true, false}) {
    const PlainSocket from(peer_address());
    UdpOptions receiver = options();
    receiver.segmentation = coalescing;
    Udp to(receiver);
    for (std::size_t i = 0; i < trains; ++i)
      from.send(address_of(to), pattern(datagrams * bytes - 1, i), i % 3 == 0 ? ce : ect0, bytes);
    const std::vector<Received> all = collect(to, trains * datagrams);
    ASSERT_EQ(all.size(), trains * datagrams);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].bytes.size(), i % datagrams == datagrams - 1 ? bytes - 1 : bytes);
      EXPECT_EQ(all[i].congested, i / datagrams % 3 == 0) << "datagram " << i;
    }
    EXPECT_EQ(to.counters().truncated, 0u);
  }
}

TEST_P(UdpEcn, SendsEverythingEcnCapable) {
  const PlainSocket a(peer_address()), b(peer_address());
  const std::vector<Endpoint> group = {a.local(), b.local()};
  const Bytes packet = pattern(500, 1);
  for (const bool trains : {true, false}) {
    UdpOptions sender = options();
    sender.segmentation = trains;
    Udp from(sender);
    write(from.sink(), a.local(), pattern(100, 0));
    from.sink().flush();
    for (std::size_t i = 0; i < 5; ++i) write(from.sink(), a.local(), pattern(200, i));
    for (std::size_t i = 0; i < 5; ++i) from.sink().multicast(packet, group);
    from.sink().flush();
    for (std::size_t i = 0; i < 11; ++i) ASSERT_EQ(a.receive_tos(), ect0);
    for (std::size_t i = 0; i < 5; ++i) ASSERT_EQ(b.receive_tos(), ect0);

    sender.peer = a.local();
    Udp connected(sender);
    write(connected.sink(), a.local(), pattern(100, 0));
    connected.sink().flush();
    ASSERT_EQ(a.receive_tos(), ect0);
  }
}

TEST_P(UdpEcn, IsOffUnlessAskedFor) {
  const PlainSocket peer(peer_address());
  Udp udp(options(false));
  write(udp.sink(), peer.local(), pattern(100, 0));
  udp.sink().flush();
  EXPECT_EQ(peer.receive_tos(), not_ect);
  peer.send(address_of(udp), pattern(100, 0), ce);
  const std::vector<Received> all = collect(udp, 1);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_FALSE(all[0].congested);
}

INSTANTIATE_TEST_SUITE_P(All, UdpEcn,
                         testing::Values(Path{"ipv4", "127.0.0.1", "127.0.0.1"}, Path{"ipv6", "[::1]", "[::1]"},
                                         Path{"dual_stack_ipv4", "[::]", "127.0.0.1"},
                                         Path{"dual_stack_ipv6", "[::]", "[::1]"}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

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
