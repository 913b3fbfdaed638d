// Rings on threads of their own: the queue to a thread, and an accelerator that hands its rings over.
#include "runtime/ring_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include "support/netreduce_packets.h"
#include "support/netreduce_ring.h"
#include "support/recording_sink.h"

namespace netsum::runtime {
namespace {

using netreduce::Accelerator;
using netreduce::RingConfig;
using testing::Bytes;
using testing::Crafted;
using testing::RecordingSink;
using testing::RingHosts;
using Verdict = Accelerator::Verdict;

constexpr std::size_t ip_at = 24;

Bytes record(std::size_t bytes, std::size_t number) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 31 + number * 7);
  return made;
}

bool push(HandoverQueue& queue, const Bytes& bytes) {
  const std::span<std::byte> place = queue.reserve(bytes.size());
  if (place.empty()) return false;
  std::copy(bytes.begin(), bytes.end(), place.begin());
  queue.push();
  return true;
}

// Against one without bounds, filled and emptied at random.
TEST(HandoverQueue, IsFirstInFirstOutInABoundedPiece) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    HandoverQueue queue(4096);
    std::deque<Bytes> model;
    std::size_t taken = 0, refused = 0, passed = 0;
    for (std::size_t i = 0; i < 5000; ++i) {
      if (random() % 1000 < (i / 500 % 2 == 0 ? 600 : 400)) {
        const Bytes bytes = record(1 + random() % 500, i);
        if (push(queue, bytes)) {
          model.push_back(bytes);
        } else {
          ++refused;
          ASSERT_GE(model.size(), 3U) << "seed " << seed << " step " << i;  // more than half of the memory is in use
        }
      } else if (taken < model.size()) {
        const std::span<std::byte> next = queue.next();
        ASSERT_EQ(Bytes(next.begin(), next.end()), model[taken]) << "seed " << seed << " step " << i;
        ++taken;
      } else {
        ASSERT_TRUE(queue.next().empty());
      }
      if (random() % 4 == 0) {
        queue.release();
        passed += taken;
        model.erase(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(taken));
        taken = 0;
      }
      ASSERT_EQ(queue.is_drained(), model.empty());
    }
    EXPECT_GT(refused, 0U);
    EXPECT_GT(passed, 1000U);
  }
}

TEST(HandoverQueue, CarriesRecordsBetweenThreads) {
  constexpr std::size_t records = 20'000;
  HandoverQueue queue(4096);
  std::thread consumer([&] {
    for (std::size_t i = 0; i < records;) {
      const std::span<std::byte> next = queue.next();
      if (next.empty()) {
        std::this_thread::yield();
        continue;
      }
      if (Bytes(next.begin(), next.end()) != record(1 + i % 300, i)) {
        ADD_FAILURE() << "record " << i << " is wrong";
        return;
      }
      queue.release();
      ++i;
    }
  });
  for (std::size_t i = 0; i < records; ++i) {
    while (!::testing::Test::HasFailure() && !push(queue, record(1 + i % 300, i))) std::this_thread::yield();
  }
  consumer.join();
  EXPECT_TRUE(queue.is_drained());
}

class RingThreadsTest : public ::testing::Test {
 protected:
  static RingConfig config(std::uint32_t number, std::uint32_t members) {
    RingConfig made;
    made.incarnation = 0x1122334455667788 + number;
    made.ring = number;
    made.members = members;
    made.window = 2;
    made.message_packets = 3;
    made.mtu = 256;
    return made;
  }

  void start(std::size_t threads, const RingThreads::Options& options = {}) {
    std::vector<Sink*> sinks;
    for (std::size_t i = 0; i < threads; ++i) sinks.push_back(sinks_.emplace_back(std::make_unique<RecordingSink>()).get());
    start(sinks, options);
  }
  void start(const std::vector<Sink*>& sinks, const RingThreads::Options& options) {
    threads_ = std::make_unique<RingThreads>(sinks, options);
    accelerator_.serve_by(threads_.get());
  }

  Verdict give(const Crafted& crafted, const Endpoint& egress) {
    const Bytes frame = crafted.frame(ip_at);
    wire::roce::Packet packet;
    EXPECT_EQ(wire::ParseError::none, wire::roce::parse(std::span(frame).subspan(ip_at), packet));
    return accelerator_.on_packet(packet, frame, ip_at, egress, Time{}, own_);  // the frame is gone afterwards
  }
  Verdict give(const RingHosts& hosts, std::uint32_t rank, std::uint64_t message, std::uint32_t packet) {
    return give(hosts.gradient(rank, message, packet), hosts.egress[rank]);
  }
  void give_all(const RingHosts& hosts, std::uint64_t message, std::uint32_t packet) {
    for (std::uint32_t rank = 0; rank < hosts.config.members; ++rank)
      EXPECT_EQ(Verdict::taken, give(hosts, rank, message, packet));
  }

  // The results of a ring's ranks among what was sent, in order: of all packets of `messages` messages.
  static void expect_all(const std::vector<testing::Datagram>& sent, const RingHosts& hosts, std::uint64_t messages) {
    for (std::uint32_t rank = 0; rank < hosts.config.members; ++rank) {
      std::vector<Bytes> found;
      for (const testing::Datagram& each : sent) {
        if (testing::Sent{each.to, each.bytes, ip_at}.connection() == hosts.connections[rank]) found.push_back(each.bytes);
      }
      std::vector<Bytes> expected;
      for (std::uint64_t message = 0; message < messages; ++message) {
        for (std::uint32_t packet = 0; packet < hosts.packets_of(message); ++packet) {
          expected.push_back(hosts.result(rank, message, packet).frame(ip_at));
        }
      }
      EXPECT_EQ(found, expected) << "of rank " << rank << " of ring " << hosts.config.ring;
    }
  }

  std::vector<std::unique_ptr<RecordingSink>> sinks_;  // by thread
  RecordingSink own_;
  Accelerator accelerator_;
  std::unique_ptr<RingThreads> threads_;
};

TEST_F(RingThreadsTest, SumsLeaveInOrderEachRingsByOneThread) {
  start(2);
  std::deque<RingHosts> rings;
  for (std::uint32_t number = 0; number < 3; ++number) {
    RingHosts& hosts = rings.emplace_back(config(number, 2 + number), static_cast<std::uint8_t>(1 + 10 * number));
    ASSERT_TRUE(accelerator_.add_ring(hosts.config, hosts.memory()));
  }
  constexpr std::uint64_t messages = 50;
  for (std::uint64_t message = 0; message < messages; ++message) {
    for (std::uint32_t packet = 0; packet < 3; ++packet) {
      for (const RingHosts& hosts : rings) give_all(hosts, message, packet);
      threads_->end_batch();
    }
  }
  threads_->wait_until_idle();
  EXPECT_TRUE(own_.sent().empty());
  const auto first = sinks_[0]->take(), second = sinks_[1]->take();
  expect_all(first, rings[0], messages);
  expect_all(second, rings[1], messages);
  expect_all(first, rings[2], messages);  // the thread with the fewest rings; of two, the first
  EXPECT_EQ(first.size() + second.size(), messages * 3 * (2 + 3 + 4));
  EXPECT_EQ(accelerator_.ring_counters(rings[2].config.incarnation)->sums, messages * 3);
  EXPECT_EQ(threads_->counters().dropped_full, 0U);

  // A ring that is removed makes room on its thread.
  const Accelerator::RingState removed[] = {accelerator_.remove_ring(rings[0].config.incarnation),
                                            accelerator_.remove_ring(rings[2].config.incarnation)};
  RingHosts fourth(config(4, 2), 101);
  ASSERT_TRUE(accelerator_.add_ring(fourth.config, fourth.memory()));
  give_all(fourth, 0, 0);
  threads_->wait_until_idle();
  EXPECT_EQ(sinks_[0]->take().size(), 2U);
}

TEST_F(RingThreadsTest, WhatMustKeepItsPlaceIsServedHereUntilTheBatchEnds) {
  start(1);
  RingHosts hosts(config(0, 2));
  RingConfig learned = hosts.config;
  learned.connections.clear();
  ASSERT_TRUE(accelerator_.add_ring(learned, hosts.memory()));
  netreduce::LearningConfig learning;
  for (const netreduce::Connection& connection : hosts.connections) learning.hosts.push_back(connection.source);
  accelerator_.learn(learning);

  // Connections are learned: the ring is served here, and then by its thread.
  give_all(hosts, 0, 0);
  EXPECT_EQ(own_.take().size(), 2U);
  threads_->end_batch();
  give_all(hosts, 0, 1);
  threads_->end_batch();
  EXPECT_EQ(give(hosts, 0, 0, 2), Verdict::taken);
  EXPECT_EQ(give(hosts, 1, 0, 2), Verdict::taken);

  // A message that is no gradient passes behind all sums before it; and those behind it leave here, where it does.
  Crafted other = hosts.gradient(0, 1, 0);
  other.packet.bth.opcode = wire::roce::Opcode::rc_send_only;
  other.packet.reth = {};
  other.payload.assign(64, std::byte{7});
  EXPECT_EQ(give(other, hosts.egress[0]), Verdict::pass);
  EXPECT_EQ(sinks_[0]->take().size(), 4U);
  hosts.first_psns[0] += 1;
  give_all(hosts, 1, 0);
  EXPECT_EQ(own_.take().size(), 2U);
  threads_->end_batch();
  give_all(hosts, 1, 1);
  threads_->wait_until_idle();
  EXPECT_EQ(sinks_[0]->take().size(), 2U);
  EXPECT_TRUE(own_.sent().empty());
}

// Stops its thread at the first datagram.
class ShutSink final : public Sink {
 public:
  std::span<std::byte> datagram(const Endpoint& /*to*/, std::size_t bytes) override {
    ++reached;
    while (shut) std::this_thread::yield();
    memory_.resize(bytes);
    return memory_;
  }
  void multicast(std::span<const std::byte> /*packet*/, std::span<const Endpoint> /*to*/) override {}
  void flush() override {}
  std::atomic<bool> shut = true;
  std::atomic<std::size_t> reached = 0;

 private:
  Bytes memory_;
};

std::size_t marks = 0;
bool count_mark(std::span<std::byte> frame) {
  if (frame.size() > ip_at) ++marks;
  return true;
}

TEST_F(RingThreadsTest, ASlowThreadsQueueIsMarkedWhenItIsLongAndDropsWhenItIsFull) {
  ShutSink sink;
  RingThreads::Options options;
  options.queue_bytes = 16 << 10;
  options.mark = count_mark;
  marks = 0;
  start({&sink}, options);
  RingHosts hosts(config(0, 1));
  ASSERT_TRUE(accelerator_.add_ring(hosts.config, hosts.memory()));
  for (std::uint64_t message = 0; message < 30; ++message) {
    for (std::uint32_t packet = 0; packet < 3; ++packet) give_all(hosts, message, packet);
    threads_->end_batch();
    if (message == 0) {
      EXPECT_EQ(marks, 0U);
    }
  }
  const std::uint64_t dropped = threads_->counters().dropped_full;
  EXPECT_GT(dropped, 45U);  // more than half: a record takes more than 300 bytes
  EXPECT_LT(dropped, 85U);
  EXPECT_GT(marks, 0U);
  EXPECT_LT(marks, 90 - dropped);
  EXPECT_EQ(threads_->counters().marked, marks);
  sink.shut = false;
  threads_->wait_until_idle();
  EXPECT_EQ(sink.reached, 90 - dropped);
}

}  // namespace
}  // namespace netsum::runtime
