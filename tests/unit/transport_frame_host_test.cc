// Hosts over ports in memory: frames that leave, frames that arrive, and several hosts on wires.
#include "transport/bypass/frame_host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "wire/udp_frame.h"

namespace netsum::transport {
namespace {

using Bytes = std::vector<std::byte>;
using wire::Ipv4;
using wire::ethernet::Address;

constexpr std::size_t most_sent = 8;  // frames that a queue takes until somebody empties it

// What is behind a host's ports. It outlives the host.
struct Outside {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<Bytes>> arriving;  // by port and queue
  std::map<std::uint32_t, std::deque<Bytes>> left;                                // by port
  std::set<std::uint16_t> steered;                                                // UDP ports
  std::set<std::pair<std::uint32_t, std::uint32_t>> looked_at;
  std::size_t takes = most_sent;
  bool steers = false;
  bool linked = true;
  int looks = 0;  // for a link
};

// Of a few at a time, so that a port has no place for more.
class MemoryPlaces final : public FramePlaces {
 public:
  MemoryPlaces() : FramePlaces(1600) {}
  void send(std::deque<Bytes>& left, std::size_t takes) {
    std::size_t count = 0;
    for (const Place& frame : filled()) {
      if (left.size() >= takes) break;
      left.emplace_back(frame.begin, frame.begin + frame.bytes);
      ++count;
    }
    leave(count);
  }

 private:
  bool get_more() override {
    const std::size_t few = 4 - added();
    for (std::size_t i = 0; i < few; ++i) append(memory_.emplace_back(1600).data());
    return few > 0;
  }

  std::deque<Bytes> memory_;
};

class MemoryQueues final : public LaneQueues {
 public:
  MemoryQueues(Outside& outside, std::size_t ports) : outside_(outside), places_(ports) {}

  std::span<const iovec> receive(std::uint32_t port, std::uint32_t queue) override {
    frames_.clear();
    outside_.looked_at.insert({port, queue});
    auto& arriving = outside_.arriving[{port, queue}];
    while (!arriving.empty() && frames_.size() < most_taken) {
      Bytes& frame = held_.emplace_back(std::move(arriving.front()));
      arriving.pop_front();
      frames_.push_back({frame.data(), frame.size()});
    }
    return frames_;
  }
  void release() override {
    for (Bytes& frame : held_) std::fill(frame.begin(), frame.end(), std::byte{0xdd});
    held_.clear();
  }
  FramePlaces& places(std::uint32_t port) override { return places_[port]; }
  void send(std::uint32_t port, std::uint32_t) override { places_[port].send(outside_.left[port], outside_.takes); }

 private:
  Outside& outside_;
  std::deque<Bytes> held_;
  std::vector<iovec> frames_;
  std::deque<MemoryPlaces> places_;  // by port
};

class Ports final : public FramePorts {
 public:
  Ports(Outside& outside, std::vector<Port> ports) : outside_(outside), ports_(std::move(ports)) {}

  const std::vector<Port>& ports() const override { return ports_; }
  std::unique_ptr<LaneQueues> lane_queues() override { return std::make_unique<MemoryQueues>(outside_, ports_.size()); }
  bool has_link(std::uint32_t) const override { return outside_.linked; }
  void look_for_link(std::uint32_t) override { ++outside_.looks; }
  bool steer(std::uint32_t, std::uint16_t udp_port, std::uint32_t) override {
    if (outside_.steers) outside_.steered.insert(udp_port);
    return outside_.steers;
  }
  void steer_no_more(std::uint16_t udp_port) override { outside_.steered.erase(udp_port); }
  std::uint64_t overrun() const override { return 3; }
  std::uint64_t waiting(std::uint32_t, std::uint32_t) const override { return 0; }
  std::uint64_t capacity() const override { return 0; }

 private:
  Outside& outside_;
  std::vector<Port> ports_;
};

const Address own = {2, 0, 0, 0, 0, 1}, own_too = {2, 0, 0, 0, 0, 2}, card = {2, 0, 0, 0, 1, 1},
              card_too = {2, 0, 0, 0, 1, 2};
const Endpoint peer = resolve("10.0.0.9:5000"), other_peer = resolve("10.0.0.8:5001"), far_peer = resolve("10.9.9.9:5000");

std::shared_ptr<FrameHost> host_on(Outside& outside, std::vector<FramePorts::Port> ports,
                                   const std::string& address = "10.0.0.1/24") {
  return std::make_shared<FrameHost>(std::make_unique<Ports>(outside, std::move(ports)), host_address(address));
}

void send(Transport& from, const Endpoint& to, const Bytes& content) {
  const std::span<std::byte> place = from.sink().datagram(to, content.size());
  std::copy(content.begin(), content.end(), place.begin());
  from.sink().flush();
}

Bytes datagram_from(const Endpoint& from, const Endpoint& to, const Bytes& content, wire::Ecn ecn = wire::Ecn::not_capable) {
  Bytes frame(wire::udp_head_bytes);
  frame.insert(frame.end(), content.begin(), content.end());
  wire::UdpHead({.next = own, .own = card, .from = from, .to = to, .ecn = ecn})
      .write(std::span(frame).first<wire::udp_head_bytes>(), content.size());
  return frame;
}

Bytes answer(const Ipv4& of, const Address& address) {
  const auto frame = wire::arp_frame({true, address, of, own, {10, 0, 0, 1}});
  return {frame.begin(), frame.end()};
}
Bytes question(const Ipv4& from, const Address& address, const Ipv4& about) {
  const auto frame = wire::arp_frame({false, address, from, {}, about});
  return {frame.begin(), frame.end()};
}

// What has left by a port, in order.
struct Left {
  std::vector<wire::Arp> arps;
  std::vector<Bytes> datagrams;
};
Left all_left(Outside& outside, std::uint32_t port) {
  Left left;
  for (const Bytes& frame : std::exchange(outside.left[port], {})) {
    if (const auto arp = wire::read_arp(frame)) {
      left.arps.push_back(*arp);
    } else {
      left.datagrams.push_back(frame);
    }
  }
  return left;
}

const Bytes hello(5, std::byte{'h'});

TEST(HostAddresses, AreReadAndRefused) {
  const HostAddress address = host_address("10.1.2.3/20,10.1.15.1");
  EXPECT_EQ(address.own, (Ipv4{10, 1, 2, 3}));
  EXPECT_EQ(address.next_of({10, 1, 0, 255}), (Ipv4{10, 1, 0, 255}));
  EXPECT_EQ(address.next_of({10, 1, 16, 1}), (Ipv4{10, 1, 15, 1})) << "by way of the gateway";
  EXPECT_FALSE(host_address("10.1.2.3/20").next_of({10, 1, 16, 1}));
  EXPECT_FALSE(host_address("10.1.2.3/32").next_of({10, 1, 2, 2}));
  for (const char* bad :
       {"", "10.0.0.1", "10.0.0.1/", "10.0.0.1/33", "10.0.0.1/0", "10.0.0/24", "10.0.0.256/24", "10.0.0.1/24,",
        "10.0.0.1/24,10.0.1.1", "10.0.0.1/24,10.0.0.1", "0.0.0.0/8", "224.0.0.1/8", "10.0.0.1/24x", "::1/64"}) {
    EXPECT_THROW(static_cast<void>(host_address(bad)), Error) << bad;
  }
}

TEST(FrameHosts, AskForTheirPeerAtEveryPort) {
  Outside outside;
  const auto lane = host_on(outside, {{"a", own}, {"b", own_too}})->open({});
  send(*lane, peer, hello);
  EXPECT_EQ(lane->counters().send_failures, 1U);
  for (const std::uint32_t port : {0U, 1U}) {
    const Left left = all_left(outside, port);
    ASSERT_EQ(left.arps.size(), 1U);
    EXPECT_TRUE(left.datagrams.empty());
    EXPECT_FALSE(left.arps[0].reply);
    EXPECT_EQ(left.arps[0].sender, port == 0 ? own : own_too);
    EXPECT_EQ(left.arps[0].of_sender, (Ipv4{10, 0, 0, 1}));
    EXPECT_EQ(left.arps[0].of_target, (Ipv4{10, 0, 0, 9}));
  }
  send(*lane, peer, hello);
  EXPECT_TRUE(all_left(outside, 0).arps.empty()) << "a moment ago";
}

TEST(FrameHosts, SendWhereTheAnswerCameFrom) {
  Outside outside;
  const auto lane = host_on(outside, {{"a", own}, {"b", own_too}})->open({.port = 7170});
  send(*lane, peer, hello);
  static_cast<void>(all_left(outside, 1));
  outside.arriving[{1, 0}].push_back(answer({10, 0, 0, 9}, card));
  EXPECT_TRUE(lane->receive().empty());
  send(*lane, peer, hello);
  EXPECT_TRUE(all_left(outside, 0).datagrams.empty());
  const Left left = all_left(outside, 1);
  ASSERT_EQ(left.datagrams.size(), 1U);
  const auto read = wire::read_udp_frame(left.datagrams[0]);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->from, resolve("10.0.0.1:7170"));
  EXPECT_EQ(read->to, peer);
  EXPECT_TRUE(std::equal(read->datagram.begin(), read->datagram.end(), hello.begin(), hello.end()));
  const auto head = wire::ethernet::parse(left.datagrams[0]);
  EXPECT_EQ(head->destination, card);
  EXPECT_EQ(head->source, own_too);
  EXPECT_EQ(lane->counters().packets_sent, 1U);
}

TEST(FrameHosts, AskTheGatewayForOtherNetworks) {
  Outside outside;
  const auto lane = host_on(outside, {{"a", own}}, "10.0.0.1/24,10.0.0.254")->open({});
  send(*lane, far_peer, hello);
  const Left left = all_left(outside, 0);
  ASSERT_EQ(left.arps.size(), 1U);
  EXPECT_EQ(left.arps[0].of_target, (Ipv4{10, 0, 0, 254}));
  Outside lonely;
  const auto without = host_on(lonely, {{"a", own}})->open({});
  send(*without, far_peer, hello);
  EXPECT_TRUE(all_left(lonely, 0).arps.empty());
  EXPECT_EQ(without->counters().send_failures, 1U);
}

// So a switch knows a rank's way before it sends the first time.
TEST(FrameHosts, AnswerQuestionsAboutThemselvesAndLearnWhoAsked) {
  Outside outside;
  const auto lane = host_on(outside, {{"a", own}, {"b", own_too}})->open({});
  outside.arriving[{1, 0}].push_back(question({10, 0, 0, 9}, card, {10, 0, 0, 1}));
  outside.arriving[{1, 0}].push_back(question({10, 0, 0, 8}, card_too, {10, 0, 0, 77}));
  EXPECT_TRUE(lane->receive().empty());
  EXPECT_TRUE(outside.left[0].empty());
  const Left left = all_left(outside, 1);
  ASSERT_EQ(left.arps.size(), 1U);
  EXPECT_TRUE(left.arps[0].reply);
  EXPECT_EQ(left.arps[0].sender, own_too);
  EXPECT_EQ(left.arps[0].target, card);
  EXPECT_EQ(left.arps[0].of_target, (Ipv4{10, 0, 0, 9}));
  send(*lane, peer, hello);
  EXPECT_EQ(all_left(outside, 1).datagrams.size(), 1U);
  send(*lane, other_peer, hello);
  EXPECT_EQ(all_left(outside, 1).arps.size(), 1U) << "that question was another host's";
}

TEST(FrameHosts, ReceiveWhatIsForThem) {
  Outside outside;
  const auto host = host_on(outside, {{"a", own}, {"b", own_too}});
  const auto lane = host->open({.port = 7170, .ecn = true});
  const Endpoint at = lane->local();
  auto& arriving = outside.arriving[{1, 0}];
  arriving.push_back(datagram_from(peer, at, hello, wire::Ecn::congestion));
  arriving.push_back(datagram_from(peer, resolve("10.0.0.2:7170"), hello));  // another host's
  arriving.push_back(datagram_from(peer, resolve("10.0.0.1:7171"), hello));  // nobody's port
  arriving.push_back(Bytes(3));
  arriving.push_back({});  // in several pieces
  outside.arriving[{0, 0}].push_back(datagram_from(other_peer, at, {}));
  const std::span<const RxView> received = lane->receive();
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[0].source, other_peer);
  EXPECT_FALSE(received[0].congested);
  EXPECT_EQ(received[1].source, peer);
  EXPECT_TRUE(received[1].congested);
  EXPECT_TRUE(std::equal(received[1].bytes.begin(), received[1].bytes.end(), hello.begin(), hello.end()));
  EXPECT_EQ(lane->counters().packets_received, 2U);
  EXPECT_EQ(lane->counters().dropped_kernel, 3U) << "the ports'";
  EXPECT_TRUE(lane->receive().empty());
  const auto connected = host->open({.peer = peer});
  for (const Endpoint& from : {other_peer, peer}) arriving.push_back(datagram_from(from, connected->local(), hello));
  ASSERT_EQ(connected->receive().size(), 1U);
}

// A head that came before is not read again: all that differs must be seen.
TEST(FrameHosts, SeeWhatDiffersFromTheLastFrameOfASender) {
  Outside outside;
  const auto lane = host_on(outside, {{"a", own}})->open({.port = 7170, .ecn = true});
  const Endpoint at = lane->local();
  const auto arrives = [&](const Bytes& frame) {
    outside.arriving[{0, 0}].push_back(frame);
    return lane->receive();
  };
  const Bytes first = datagram_from(peer, at, hello);
  for (int times = 0; times < 3; ++times) {
    ASSERT_EQ(arrives(first).size(), 1U);
    for (std::size_t i = 12; i < 38; ++i) {  // from the type of what is in the frame to UDP's ports
      Bytes damaged = first;
      damaged[i] ^= std::byte{0x40};
      const std::span<const RxView> received = arrives(damaged);
      const bool of_another = i == 34 || i == 35;  // port there
      ASSERT_EQ(received.size(), of_another ? 1U : 0U) << i;
      for (const RxView& each : received) EXPECT_NE(each.source.port, peer.port);
    }
    Bytes cut = first;
    cut.pop_back();
    EXPECT_TRUE(arrives(cut).empty());
    const std::span<const RxView> marked = arrives(datagram_from(peer, at, hello, wire::Ecn::congestion));
    ASSERT_EQ(marked.size(), 1U);
    EXPECT_TRUE(marked[0].congested);
    const std::span<const RxView> longer = arrives(datagram_from(peer, at, Bytes(9, std::byte{'l'})));
    ASSERT_EQ(longer.size(), 1U);
    EXPECT_EQ(longer[0].bytes.size(), 9U);
    Bytes padded = first;
    padded.resize(60);
    ASSERT_EQ(arrives(padded).size(), 1U);
    const std::span<const RxView> again = arrives(first);
    ASSERT_EQ(again.size(), 1U);
    EXPECT_EQ(again[0].source, peer);
    EXPECT_FALSE(again[0].congested);
    EXPECT_TRUE(std::equal(again[0].bytes.begin(), again[0].bytes.end(), hello.begin(), hello.end()));
  }
}

// More than a lane remembers the ways and the heads of at once.
TEST(FrameHosts, KnowThousandsOfSendersApart) {
  Outside outside;
  outside.takes = 3000;
  const auto lane = host_on(outside, {{"a", own}})->open({.port = 7170});
  outside.arriving[{0, 0}].push_back(question({10, 0, 0, 9}, card, {10, 0, 0, 1}));
  static_cast<void>(lane->receive());
  static_cast<void>(all_left(outside, 0));
  for (int times = 0; times < 2; ++times) {
    for (std::uint16_t i = 0; i < 2000; ++i) {
      Endpoint sender = peer;
      sender.port = static_cast<std::uint16_t>(5000 + i);
      outside.arriving[{0, 0}].push_back(datagram_from(sender, lane->local(), Bytes(1, std::byte(i))));
    }
    for (std::uint16_t i = 0; i < 2000;) {
      const std::span<const RxView> received = lane->receive();
      ASSERT_FALSE(received.empty());
      for (const RxView& each : received) {
        EXPECT_EQ(each.source.port, 5000 + i);
        EXPECT_EQ(each.bytes[0], std::byte(i++));
        lane->sink().multicast(each.bytes, {&each.source, 1});
      }
      lane->sink().flush();
    }
    const Left left = all_left(outside, 0);
    ASSERT_EQ(left.datagrams.size(), 2000U);
    for (std::uint16_t i = 0; i < 2000; ++i) {
      const auto read = wire::read_udp_frame(left.datagrams[i]);
      ASSERT_TRUE(read);
      EXPECT_EQ(read->to.port, 5000 + i);
      EXPECT_EQ(read->datagram[0], std::byte(i));
    }
  }
}

// A batch without anything of ours does not look like an empty queue.
TEST(FrameHosts, PassOverStrangersFrames) {
  Outside outside;
  const auto lane = host_on(outside, {{"a", own}})->open({});
  auto& arriving = outside.arriving[{0, 0}];
  for (std::size_t i = 0; i < 3 * LaneQueues::most_taken; ++i) arriving.push_back(Bytes(60));
  arriving.push_back(datagram_from(peer, lane->local(), hello));
  EXPECT_EQ(lane->receive().size(), 1U);
}

TEST(FrameHosts, KeepWhatAPortDoesNotTakeYet) {
  Outside outside;
  outside.takes = 2;
  const auto lane = host_on(outside, {{"a", own}})->open({});
  outside.arriving[{0, 0}].push_back(question({10, 0, 0, 9}, card, {10, 0, 0, 1}));
  static_cast<void>(lane->receive());
  static_cast<void>(all_left(outside, 0));
  const std::vector<Endpoint> to(10, peer);
  lane->sink().multicast(hello, to);
  lane->sink().flush();
  // Two have left, four wait, and there was no place for the others.
  EXPECT_EQ(lane->counters().packets_sent, 6U);
  EXPECT_EQ(lane->counters().send_failures, 4U);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(all_left(outside, 0).datagrams.size(), 2U);
    static_cast<void>(lane->receive());
  }
  EXPECT_TRUE(outside.left[0].empty());
}

// Lanes whose ports have one queue: whoever receives a frame hands it over.
TEST(FrameHosts, TellLanesApartByTheirPorts) {
  Outside outside;
  const auto host = host_on(outside, {{"a", own}});
  const auto one = host->open({.port = 7170}), two = host->open({.port = 7171});
  EXPECT_THROW(static_cast<void>(host->open({.port = 7171})), Error);
  auto& arriving = outside.arriving[{0, 0}];
  for (int i = 0; i < 3; ++i) {
    arriving.push_back(datagram_from(peer, one->local(), Bytes(1)));
    arriving.push_back(datagram_from(peer, two->local(), Bytes(2)));
  }
  EXPECT_EQ(one->receive().size(), 3U);
  arriving.push_back(datagram_from(other_peer, two->local(), Bytes(2)));
  const std::span<const RxView> received = two->receive();
  ASSERT_EQ(received.size(), 4U);
  for (const RxView& view : received) EXPECT_EQ(view.bytes.size(), 2U);
  EXPECT_EQ(received[3].source, other_peer);
  EXPECT_TRUE(two->receive().empty());
}

TEST(FrameHosts, SendByOneQueueFromSeveralThreads) {
  constexpr std::size_t datagrams = 5000;
  Outside outside;
  outside.takes = 3 * datagrams;
  const auto host = host_on(outside, {{"a", own}});
  const auto first = host->open({});
  outside.arriving[{0, 0}].push_back(question({10, 0, 0, 9}, card, {10, 0, 0, 1}));
  static_cast<void>(first->receive());
  static_cast<void>(all_left(outside, 0));
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const auto lane = host->open({});
      for (std::size_t number = 0; number < datagrams; ++number) send(*lane, peer, hello);
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(all_left(outside, 0).datagrams.size(), 2 * datagrams);
}

TEST(FrameHosts, DropWhatALaneDoesNotFetch) {
  Outside outside;
  const auto host = host_on(outside, {{"a", own}});
  const auto one = host->open({}), two = host->open({});
  const Bytes frame = datagram_from(peer, two->local(), Bytes(1400));
  for (int i = 0; i < 1000; ++i) {
    outside.arriving[{0, 0}].push_back(frame);
    static_cast<void>(one->receive());
  }
  const std::size_t kept = two->receive().size();
  EXPECT_GT(kept, 300U);
  EXPECT_LT(kept, 400U) << "half a megabyte";
  EXPECT_EQ(two->counters().dropped_kernel + kept, 1000U);
}

TEST(FrameHosts, GiveEachLaneItsQueueWhereTheDeviceSteers) {
  Outside outside;
  outside.steers = true;
  const auto host = host_on(outside, {{.name = "a", .address = own, .queues = 2}});
  auto one = host->open({.port = 7170});
  const auto two = host->open({.port = 7171});
  EXPECT_EQ(outside.steered, (std::set<std::uint16_t>{7170, 7171}));
  static_cast<void>(two->receive());
  EXPECT_EQ(outside.looked_at, (std::set<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}}));
  // What comes to another's queue nevertheless is found, a while later, whatever that one does.
  outside.arriving[{0, 0}].push_back(datagram_from(peer, two->local(), hello));
  int looks = 1;
  while (two->receive().empty()) ASSERT_LT(++looks, 64);
  one.reset();
  EXPECT_EQ(outside.steered, (std::set<std::uint16_t>{7171}));
  EXPECT_EQ(host->open({.port = 7170})->local().port, 7170) << "it is free again";
}

TEST(FrameHosts, LookAtEveryQueueWhereItDoesNot) {
  Outside outside;
  const auto lane = host_on(outside, {{.name = "a", .address = own, .queues = 2}})->open({});
  outside.arriving[{0, 1}].push_back(datagram_from(peer, lane->local(), hello));
  EXPECT_EQ(lane->receive().size(), 1U);
}

// A switch with a wire to each rank, and what leaves at one end arrives at the other.
TEST(FrameHosts, AreFoundByEachOther) {
  constexpr std::uint32_t ranks = 3;
  Outside at_switch;
  std::vector<FramePorts::Port> ports;
  for (std::uint8_t i = 0; i < ranks; ++i) ports.push_back({"wire" + std::to_string(i), Address{2, 0, 0, 0, 2, i}});
  const auto middle = host_on(at_switch, ports)->open({.port = 7170});
  std::vector<Outside> at_rank(ranks);
  std::vector<std::unique_ptr<Transport>> lanes;
  for (std::uint8_t i = 0; i < ranks; ++i) {
    const std::string address = "10.0.0." + std::to_string(10 + i) + "/24";
    lanes.push_back(host_on(at_rank[i], {{"wire", Address{2, 0, 0, 0, 3, i}}}, address)->open({.peer = middle->local()}));
  }
  const auto carry = [&] {
    for (std::uint32_t i = 0; i < ranks; ++i) {
      for (Bytes& frame : std::exchange(at_rank[i].left[0], {})) at_switch.arriving[{i, 0}].push_back(std::move(frame));
      for (Bytes& frame : std::exchange(at_switch.left[i], {})) at_rank[i].arriving[{0, 0}].push_back(std::move(frame));
    }
  };
  std::vector<Endpoint> members;
  for (const auto& lane : lanes) {
    send(*lane, middle->local(), hello);  // lost, but it asks
    members.push_back(lane->local());
  }
  carry();
  EXPECT_TRUE(middle->receive().empty());
  carry();
  for (const auto& lane : lanes) {
    EXPECT_TRUE(lane->receive().empty());
    send(*lane, middle->local(), hello);
  }
  carry();
  EXPECT_EQ(middle->receive().size(), ranks);
  middle->sink().multicast(hello, members);
  middle->sink().flush();
  for (std::uint32_t i = 0; i < ranks; ++i) EXPECT_EQ(at_switch.left[i].size(), 1U) << "each by its own wire";
  carry();
  for (const auto& lane : lanes) EXPECT_EQ(lane->receive().size(), 1U);
}

// A port must not be started anew under a lane that takes frames from its queues.
TEST(FrameHost, LooksForALinkWhileNobodyHasALane) {
  Outside outside;
  const auto host = host_on(outside, {{"wire", own}});
  EXPECT_TRUE(host->find_link());
  EXPECT_EQ(outside.looks, 0);
  outside.linked = false;
  auto lane = host->open({});
  EXPECT_FALSE(host->find_link());
  EXPECT_EQ(outside.looks, 0);
  lane.reset();
  EXPECT_FALSE(host->find_link());
  EXPECT_EQ(outside.looks, 1);
}

}  // namespace
}  // namespace netsum::transport
