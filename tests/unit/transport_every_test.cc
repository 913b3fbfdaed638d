// What holds for every transport: in memory, and kernel UDP of both families with and without segment trains.
#include <memory>
#include <string>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/fake.h"
#include "transport/datagram/udp.h"
#include "unit/transport_fixture.h"

namespace netsum::transport {
namespace {

struct Fabric {
  const char* name;
  const char* host;  // of every endpoint
  bool in_memory = false;
  bool sender_trains = true, receiver_trains = true;
};

class EveryTransport : public testing::TestWithParam<Fabric> {
 protected:
  void SetUp() override {
    if (GetParam().in_memory) return;
    try {
      receiver();
    } catch (const Error& error) {
      GTEST_SKIP() << "not on this host: " << error.what();
    }
  }
  std::unique_ptr<Transport> make(bool trains) {
    const Endpoint address = resolve(std::string(GetParam().host) + ":0");
    if (GetParam().in_memory) return network_.attach(address);
    return std::make_unique<Udp>(UdpOptions{.bind = address, .segmentation = trains});
  }
  std::unique_ptr<Transport> sender() { return make(GetParam().sender_trains); }
  std::unique_ptr<Transport> receiver() { return make(GetParam().receiver_trains); }

  // Whether this user may have the socket buffers that a test of half a megabyte needs.
  [[nodiscard]] bool has_buffers() {
    return GetParam().in_memory || Udp({.bind = resolve("127.0.0.1:0")}).buffer_warning().empty();
  }

  // Sends datagrams of these sizes with one flush and expects exactly them, in order.
  void expect_delivery(const std::vector<std::size_t>& sizes) {
    const auto from = sender(), to = receiver();
    for (std::size_t i = 0; i < sizes.size(); ++i) write(from->sink(), to->local(), pattern(sizes[i], i));
    from->sink().flush();
    const std::vector<Received> all = collect(*to, sizes.size());
    ASSERT_EQ(all.size(), sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_EQ(all[i].bytes, pattern(sizes[i], i)) << "datagram " << i;
      ASSERT_EQ(all[i].source, from->local());
    }
    EXPECT_TRUE(to->receive().empty());
    EXPECT_EQ(from->counters().packets_sent, sizes.size());
    EXPECT_EQ(from->counters().send_failures, 0u);
    EXPECT_EQ(to->counters().packets_received, sizes.size());
    std::uint64_t wire = 0;
    for (const std::size_t size : sizes) wire += size + (is_ipv4(to->local()) ? 42 : 62);
    EXPECT_EQ(from->counters().wire_bytes_sent, wire);
    EXPECT_EQ(to->counters().wire_bytes_received, wire);
  }

  FakeNetwork network_;
};

TEST_P(EveryTransport, HasNothingAtFirst) {
  EXPECT_TRUE(receiver()->receive().empty());
}

TEST_P(EveryTransport, DeliversMixedSizes) {
  expect_delivery({1, 1076, 1076, 20, 20, 1, 1500, 8, 9, 10, 10, 10, 3});
}

TEST_P(EveryTransport, DeliversTrainThatEndsShort) {
  expect_delivery({1076, 1076, 1076, 1076, 100});
}

TEST_P(EveryTransport, DeliversTrainOfEqualDatagrams) {
  expect_delivery(std::vector<std::size_t>(60, 1076));
}

TEST_P(EveryTransport, DeliversMoreThanOneTrainOfEqualDatagrams) {
  expect_delivery(std::vector<std::size_t>(150, 1076));
}

TEST_P(EveryTransport, DeliversMoreThanAnyTrainsSegments) {
  expect_delivery(std::vector<std::size_t>(300, 16));
}

TEST_P(EveryTransport, DeliversEmptyDatagrams) {
  expect_delivery({0, 5, 0, 0, 5, 5});
}

TEST_P(EveryTransport, DeliversBurstsLongerThanABatch) {
  std::vector<std::size_t> sizes;  // each longer than the last, so that none joins a train
  for (std::size_t size = 1; size <= 400; ++size) sizes.push_back(size);
  expect_delivery(sizes);
}

// On an interface with an MTU of 1500 the kernel refuses such trains, and fragments the datagrams one by one.
TEST_P(EveryTransport, DeliversTrainOfDatagramsLongerThanAFrame) {
  expect_delivery(std::vector<std::size_t>(15, 4000));
}

TEST_P(EveryTransport, DeliversLargeDatagrams) {
  expect_delivery({60'000, 60'000, 65'507});
}

TEST_P(EveryTransport, DeliversMoreThanTheSendArena) {
  if (!has_buffers()) GTEST_SKIP() << "net.core.rmem_max is too small";
  const auto from = sender(), to = receiver();
  std::size_t received = 0;
  for (std::size_t round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < 3; ++i) write(from->sink(), to->local(), pattern(60'000, round * 3 + i));
    if (round % 4 == 3) from->sink().flush();  // 720 KB: part of it has left before
    for (const Received& datagram : collect(*to, round % 4 == 3 ? (round + 1) * 3 - received : 0)) {
      ASSERT_EQ(datagram.bytes, pattern(60'000, received++));
    }
  }
  EXPECT_EQ(received, 60u);
}

TEST_P(EveryTransport, SaysHowMuchWaits) {
  const auto from = sender(), to = receiver();
  EXPECT_EQ(to->queued_bytes(), 0u);
  constexpr std::size_t rounds = 3, datagrams = 10, bytes = 1000;
  for (std::size_t round = 1; round <= rounds; ++round) {
    for (std::size_t i = 0; i < datagrams; ++i) write(from->sink(), to->local(), pattern(bytes, i));
    from->sink().flush();
    EXPECT_TRUE(eventually([&] { return to->queued_bytes() >= round * datagrams * bytes; })) << to->queued_bytes();
  }
  EXPECT_EQ(from->queued_bytes(), 0u);
  EXPECT_EQ(collect(*to, rounds * datagrams).size(), rounds * datagrams);
  EXPECT_EQ(to->queued_bytes(), 0u);
}

TEST_P(EveryTransport, SendsNothingTwice) {
  const auto from = sender(), to = receiver();
  write(from->sink(), to->local(), pattern(10, 1));
  from->sink().flush();
  from->sink().flush();
  EXPECT_EQ(collect(*to, 1).size(), 1u);
  EXPECT_TRUE(to->receive().empty());
}

TEST_P(EveryTransport, AnswersTheSource) {
  const auto from = sender(), to = receiver();
  write(from->sink(), to->local(), pattern(10, 1));
  from->sink().flush();
  const std::vector<Received> request = collect(*to, 1);
  ASSERT_EQ(request.size(), 1u);
  write(to->sink(), request[0].source, pattern(20, 2));
  to->sink().flush();
  const std::vector<Received> reply = collect(*from, 1);
  ASSERT_EQ(reply.size(), 1u);
  EXPECT_EQ(reply[0].bytes, pattern(20, 2));
  EXPECT_EQ(reply[0].source, to->local());
}

// Long bodies by reference, short ones copied; one destination's datagrams keep their order, whatever is in between.
TEST_P(EveryTransport, SendsAroundWhatIsThere) {
  const auto from = sender(), to = receiver(), other = receiver();
  const std::vector<Endpoint> both = {other->local(), to->local()};
  std::vector<Bytes> bodies;
  for (std::size_t i = 0; i < 60; ++i) bodies.push_back(pattern(i % 20 == 19 ? 100 : i < 40 ? 3000 : 8000, i));
  const Bytes multicast = pattern(50, 7);
  std::vector<Bytes> expected;
  const auto expect = [&] {
    const std::vector<Received> all = collect(*to, expected.size());
    ASSERT_EQ(all.size(), expected.size());
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].bytes, expected[i]) << i;
    expected.clear();
  };
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    const Bytes head = pattern(60, 1000 + i), tail = pattern(4, 2000 + i);
    const Sink::Around place = from->sink().around(to->local(), head.size(), bodies[i], tail.size());
    ASSERT_EQ(place.head.size(), head.size());
    ASSERT_EQ(place.tail.size(), tail.size());
    std::copy(head.begin(), head.end(), place.head.begin());
    std::copy(tail.begin(), tail.end(), place.tail.begin());
    Bytes& whole = expected.emplace_back(head);
    whole.insert(whole.end(), bodies[i].begin(), bodies[i].end());
    whole.insert(whole.end(), tail.begin(), tail.end());
    if (i == 10) write(from->sink(), other->local(), pattern(30, i));
    if (i == 12) write(from->sink(), to->local(), expected.emplace_back(pattern(40, i)));
    if (i == 35) from->sink().multicast(multicast, std::span(both).first(1));
    if (i % 20 != 19) continue;
    from->sink().flush();
    for (std::size_t sent = 0; sent <= i; ++sent) std::fill(bodies[sent].begin(), bodies[sent].end(), std::byte{0xee});
    expect();
  }
  EXPECT_EQ(collect(*other, 2).size(), 2u);
  EXPECT_EQ(from->counters().send_failures, 0u);
}

TEST_P(EveryTransport, MulticastsByReferenceToMany) {
  constexpr std::size_t packets = 70, group_size = 8;
  const auto from = sender();
  std::vector<std::unique_ptr<Transport>> receivers;
  std::vector<Endpoint> group;
  for (std::size_t i = 0; i < group_size; ++i) group.push_back(receivers.emplace_back(receiver())->local());
  std::vector<Bytes> memory;
  for (std::size_t i = 0; i < packets; ++i) memory.push_back(pattern(i == 40 ? 500 : 1076, i));

  for (std::size_t i = 0; i < packets; ++i) {
    from->sink().multicast(memory[i], group);
    if (i == 20) write(from->sink(), group[3], pattern(77, 1000));  // a reply to one of them in between
  }
  from->sink().flush();
  for (Bytes& packet : memory) std::fill(packet.begin(), packet.end(), std::byte{0xee});  // allowed after flush()

  for (std::size_t r = 0; r < group_size; ++r) {
    const std::size_t expected = packets + (r == 3 ? 1 : 0);
    std::size_t number = 0, replies = 0;
    for (const Received& datagram : collect(*receivers[r], expected)) {
      if (datagram.bytes == pattern(77, 1000)) {
        ++replies;
      } else {
        ASSERT_EQ(datagram.bytes, pattern(number == 40 ? 500 : 1076, number)) << "receiver " << r << " datagram " << number;
        ++number;
      }
    }
    EXPECT_EQ(number, packets);
    EXPECT_EQ(replies, r == 3 ? 1u : 0u);
    EXPECT_TRUE(receivers[r]->receive().empty());
  }
  EXPECT_EQ(from->counters().packets_sent, packets * group_size + 1);
  EXPECT_EQ(from->counters().send_failures, 0u);
}

TEST_P(EveryTransport, MulticastsToGroupsInTurn) {
  const auto from = sender(), a = receiver(), b = receiver();
  const std::vector<Endpoint> both = {b->local(), a->local()};
  const std::span<const Endpoint> only_b = std::span(both).first(1);
  const Bytes x = pattern(100, 1), y = pattern(100, 2);
  from->sink().multicast(x, both);
  from->sink().multicast(y, only_b);
  from->sink().multicast(y, {});
  from->sink().multicast(y, both);
  from->sink().flush();
  const std::vector<Received> at_a = collect(*a, 2), at_b = collect(*b, 3);
  ASSERT_EQ(at_a.size(), 2u);
  ASSERT_EQ(at_b.size(), 3u);
  EXPECT_EQ(at_a[0].bytes, x);
  EXPECT_EQ(at_a[1].bytes, y);
  EXPECT_EQ(at_b[0].bytes, x);
  EXPECT_EQ(at_b[1].bytes, y);
  EXPECT_EQ(at_b[2].bytes, y);
  EXPECT_TRUE(a->receive().empty());
}

TEST_P(EveryTransport, MulticastsMoreThanItHasRoomFor) {
  if (!has_buffers()) GTEST_SKIP() << "net.core.rmem_max is too small";
  const auto from = sender(), to = receiver();
  const std::vector<Endpoint> group = {to->local()};
  const std::vector<Bytes> memory = {pattern(8, 0), pattern(8, 1), pattern(8, 2)};
  std::size_t received = 0;
  for (std::size_t round = 0; round < 50; ++round) {  // without a flush in between: 100 each time, 5000 in all
    for (std::size_t i = 0; i < 100; ++i) from->sink().multicast(memory[(round * 100 + i) % 3], group);
    for (const RxView& view : to->receive()) {
      ASSERT_TRUE(std::equal(view.bytes.begin(), view.bytes.end(), memory[received++ % 3].begin()));
    }
  }
  from->sink().flush();
  for (const Received& datagram : collect(*to, 5000 - received)) ASSERT_EQ(datagram.bytes, memory[received++ % 3]);
  EXPECT_EQ(received, 5000u);
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryTransport,
    testing::Values(Fabric{.name = "fake", .host = "127.0.0.1", .in_memory = true},
                    Fabric{.name = "fake_ipv6", .host = "[::1]", .in_memory = true},
                    Fabric{.name = "udp", .host = "127.0.0.1"}, Fabric{.name = "udp_ipv6", .host = "[::1]"},
                    Fabric{.name = "udp_single_to_trains", .host = "127.0.0.1", .sender_trains = false},
                    Fabric{.name = "udp_trains_to_single", .host = "127.0.0.1", .receiver_trains = false},
                    Fabric{.name = "udp_single", .host = "127.0.0.1", .sender_trains = false, .receiver_trains = false},
                    Fabric{.name = "udp_ipv6_single", .host = "[::1]", .sender_trains = false, .receiver_trains = false}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(FakeNetwork, RefusesAnAddressThatIsTaken) {
  FakeNetwork network;
  const auto first = network.attach(resolve("10.0.0.1:7170"));
  EXPECT_EQ(first->local(), resolve("10.0.0.1:7170"));
  EXPECT_THROW(static_cast<void>(network.attach(resolve("10.0.0.1:7170"))), Error);
  EXPECT_NE(network.attach(resolve("10.0.0.1:0"))->local(), network.attach(resolve("10.0.0.1:0"))->local());
}

TEST(FakeNetwork, MarksWhatGoesToACongestedAddress) {
  FakeNetwork network;
  const auto from = network.attach(resolve("10.0.0.1:0"));
  const auto to = network.attach(resolve("10.0.0.2:7170")), other = network.attach(resolve("10.0.0.2:7171"));
  const std::vector<Endpoint> both = {to->local(), other->local()};
  const auto arrives_congested = [&](Transport& at) {
    const std::vector<Received> all = collect(at, 2);
    EXPECT_EQ(all.size(), 2u);
    EXPECT_EQ(all.front().congested, all.back().congested);
    return all.front().congested;
  };
  const auto send = [&] {
    for (const Endpoint& one : both) write(from->sink(), one, pattern(10, 1));
    const Bytes packet = pattern(10, 2);
    from->sink().multicast(packet, both);
    from->sink().flush();
  };
  send();
  EXPECT_FALSE(arrives_congested(*to));
  EXPECT_FALSE(arrives_congested(*other));
  network.congest(to->local());
  send();
  network.congest(to->local(), false);  // too late for what was sent
  EXPECT_TRUE(arrives_congested(*to));
  EXPECT_FALSE(arrives_congested(*other));
  send();
  EXPECT_FALSE(arrives_congested(*to));
}

TEST(FakeNetwork, CountsTheBytesThatWait) {
  FakeNetwork network;
  const auto from = network.attach(resolve("10.0.0.1:0")), to = network.attach(resolve("10.0.0.2:0"));
  for (const std::size_t size : {100U, 0U, 30U}) write(from->sink(), to->local(), pattern(size, 1));
  EXPECT_EQ(to->queued_bytes(), 0u);  // not flushed
  from->sink().flush();
  EXPECT_EQ(to->queued_bytes(), 130u);
  EXPECT_EQ(to->receive().size(), 3u);
  EXPECT_EQ(to->queued_bytes(), 0u);
}

TEST(FakeNetwork, ForgetsWhoLeft) {
  FakeNetwork network;
  const auto from = network.attach(resolve("10.0.0.1:0"));
  const Endpoint address = resolve("10.0.0.2:7170");
  auto to = network.attach(address);
  write(from->sink(), address, pattern(10, 1));
  from->sink().flush();
  to.reset();
  write(from->sink(), address, pattern(10, 2));
  from->sink().flush();
  to = network.attach(address);
  EXPECT_TRUE(to->receive().empty());
}

}  // namespace
}  // namespace netsum::transport
