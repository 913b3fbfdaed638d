// Two queue pairs on a network that loses, repeats, reorders, delays and damages: every message arrives exactly once, in
// order, with the right bytes, in bounded time, however many packets are marked; and nothing is repeated on a network that
// does nothing but mark.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "protocol/roce/queue_pair.h"
#include "support/recording_packet_sink.h"
#include "support/virtual_network.h"
#include "wire/ecn.h"
#include "wire/roce.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;
using roce::QueuePair;
using roce::QueuePairConfig;

constexpr std::uint64_t memory_address = 0x10000;
constexpr std::size_t guard = 64;  // bytes on both sides of the memory that nobody may write to

std::byte content(std::uint64_t seed, std::uint64_t message, std::size_t i) {
  return static_cast<std::byte>((seed + message * 131 + i * (i >> 8 | 1)) >> (i % 7));
}

struct Setting {
  std::uint32_t mtu = 1024, max_packets = 128, max_messages = 8, ack_interval = 32;
  std::size_t messages = 40, longest = 10'000;
  bool both = true;  // both ends send
  bool selective = false;
  Faults faults;
  double marked = 0;   // of what arrives
  Duration polling{};  // an end takes what has come once in this time
};

struct End {
  End(QueuePair p, const Endpoint& a, std::vector<std::byte> m, std::size_t slot)
      : pair(std::move(p)), address(a), memory(std::move(m)), slot_bytes(slot) {}

  QueuePair pair;
  Endpoint address;
  std::vector<std::byte> memory;  // with guards
  std::size_t slot_bytes;
  std::vector<std::vector<std::byte>> outgoing;  // by place in the window
  std::vector<std::size_t> sizes;                // of messages to send
  std::size_t posted = 0, received = 0;
  std::uint64_t seed = 0, packets_in = 0;
  Time polled{};
  std::vector<std::vector<std::byte>> waiting;  // arrived, not taken
};

class Pairs {
 public:
  Pairs(std::uint64_t seed, const Setting& setting)
      : setting_(setting), random_(seed), network_(random_.next(), setting.faults) {
    std::array<std::uint8_t, 16> addresses[2] = {};
    if (random_.chance(0.5)) addresses[0][10] = addresses[0][11] = addresses[1][10] = addresses[1][11] = 0xff;
    addresses[0][15] = 1;
    addresses[1][15] = 2;
    std::uint32_t psns[2];
    for (std::uint32_t& psn : psns) {
      psn = static_cast<std::uint32_t>(random_.chance(0.5) ? 0x1000000 - random_.below(100) : random_.next()) & 0xffffff;
    }
    const std::size_t slot = setting.longest + random_.below(16);
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<std::byte> memory(2 * guard + slot * setting.max_messages, std::byte{0xee});
      QueuePairConfig config;
      config.local = addresses[i];
      config.remote = addresses[1 - i];
      config.local_qp = config.remote_qp = 17;  // equal numbers on both hosts are the normal case
      config.send_psn = psns[i];
      config.receive_psn = psns[1 - i];
      config.mtu = setting.mtu;
      config.max_packets = setting.max_packets;
      config.max_messages = setting.max_messages;
      config.ack_interval = setting.ack_interval;
      config.selective = setting.selective;
      config.memory = std::span(memory).subspan(guard, memory.size() - 2 * guard);
      config.memory_address = memory_address;
      config.memory_key = static_cast<std::uint32_t>(i + 1);
      End& end = ends_.emplace_back(QueuePair(config), Endpoint{addresses[i], 4791, 0}, std::move(memory), slot);
      end.seed = random_.next();
      end.outgoing.resize(setting.max_messages);
      for (std::size_t k = 0; k < (i == 0 || setting.both ? setting.messages : 0); ++k) {
        end.sizes.push_back(
            1 + random_.below(random_.chance(0.5) ? setting.longest : std::min<std::size_t>(50, setting.longest)));
      }
    }
  }

  // False: not done by then.
  bool run(Duration limit) {
    for (End& end : ends_) advance(end);
    while (!done()) {
      Time next = network_.next();
      for (const End& end : ends_) {
        next = std::min(next, end.pair.next_timeout());
        if (!end.waiting.empty()) next = std::min(next, end.polled + setting_.polling);
      }
      if (next == never || next > Time{} + limit) return false;
      const Time now = network_.now = std::max(network_.now, next);
      while (network_.next() <= now) {
        const auto delivery = network_.take();
        end_at(delivery.to).waiting.push_back(delivery.bytes);
      }
      for (End& end : ends_) {
        if (now - end.polled < setting_.polling && now < end.pair.next_timeout()) continue;
        end.polled = now;
        advance(end);
        if (::testing::Test::HasFatalFailure()) return false;
      }
    }
    return true;
  }

  [[nodiscard]] const End& end(std::size_t i) const { return ends_[i]; }
  [[nodiscard]] Time now() const { return network_.now; }

 private:
  End& end_at(const Endpoint& address) { return ends_[address == ends_[0].address ? 0 : 1]; }
  End& peer_of(const End& end) { return ends_[&end == ends_.data() ? 1 : 0]; }

  [[nodiscard]] bool done() const {
    return std::all_of(ends_.begin(), ends_.end(), [](const End& end) { return end.pair.completed() == end.sizes.size(); });
  }

  void advance(End& end) {
    for (const auto& bytes : end.waiting) {
      wire::roce::Packet packet;
      if (!wire::roce::is_roce(bytes) || wire::roce::parse(bytes, packet) != wire::ParseError::none) continue;
      if (wire::roce::packet_bytes(bytes) > bytes.size() ||
          !wire::roce::icrc_valid(std::span(bytes).first(wire::roce::packet_bytes(bytes)))) {
        continue;
      }
      ++end.packets_in;
      if (setting_.marked > 0 && random_.chance(setting_.marked))
        packet.ip.traffic_class = wire::marked(packet.ip.traffic_class);
      end.pair.on_packet(packet, network_.now);
    }
    end.waiting.clear();
    if (network_.now >= end.pair.next_timeout()) end.pair.on_timer(network_.now);
    take(end);
    post(end);
    if (random_.chance(0.05)) end.pair = QueuePair(end.pair);  // its state is a value
    RecordingPacketSink frames;
    end.pair.send(network_.now, frames);
    for (const auto& frame : frames.sent) network_.send(end.address, peer_of(end).address, frame);
    ASSERT_EQ(roce::QueuePairError::none, end.pair.error());
    ASSERT_LE(end.pair.completed(), peer_of(end).received) << "acknowledged before it was received";
  }

  void take(End& end) {
    const End& peer = peer_of(end);
    for (const roce::Received& message : end.pair.take_received()) {
      ASSERT_LT(end.received, peer.posted);
      ASSERT_EQ(static_cast<std::uint32_t>(end.received), message.immediate) << "in order, once each";
      ASSERT_EQ(peer.sizes[end.received], message.bytes);
      ASSERT_EQ(end.received % setting_.max_messages * end.slot_bytes, message.offset);
      const std::byte* const bytes = end.memory.data() + guard + message.offset;
      for (std::size_t i = 0; i < message.bytes; ++i) {
        ASSERT_EQ(content(peer.seed, end.received, i), bytes[i]) << "byte " << i << " of message " << end.received;
      }
      ++end.received;
    }
    for (std::size_t i = 0; i < guard; ++i) {
      ASSERT_EQ(std::byte{0xee}, end.memory[i]);
      ASSERT_EQ(std::byte{0xee}, end.memory[end.memory.size() - 1 - i]);
    }
  }

  void post(End& end) {
    while (end.posted < end.sizes.size() && (end.pair.next_timeout() == never || random_.chance(0.9))) {
      const std::size_t place = end.posted % setting_.max_messages;
      if (end.posted - end.pair.completed() == setting_.max_messages) break;
      auto& message = end.outgoing[place];
      message.resize(end.sizes[end.posted]);
      for (std::size_t i = 0; i < message.size(); ++i) message[i] = content(end.seed, end.posted, i);
      ASSERT_TRUE(end.pair.post_write(message, memory_address + place * end.slot_bytes,
                                      peer_of(end).pair.config().memory_key, static_cast<std::uint32_t>(end.posted)));
      ++end.posted;
    }
  }

  Setting setting_;
  Random random_;
  VirtualNetwork network_;
  std::vector<End> ends_;
};

void check_counters(const Pairs& pairs) {
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& own = pairs.end(i).pair.counters();
    const auto& peer = pairs.end(1 - i).pair.counters();
    EXPECT_EQ(pairs.end(i).packets_in, own.packets_received + own.acks_received + own.naks_received + own.duplicates +
                                           own.out_of_order + own.repeat_requests_received + own.stale_acks + own.refused +
                                           own.notifications_received + own.foreign);
    EXPECT_EQ(own.packets_sent - own.retransmissions, peer.packets_received);
    EXPECT_EQ(own.messages_sent, peer.messages_received);
    EXPECT_EQ(0U, own.refused + own.foreign);
  }
}

Setting random_setting(Random& random) {
  Setting setting;
  constexpr std::uint32_t mtus[] = {256, 1024, 4096};
  setting.mtu = mtus[random.below(3)];
  setting.max_packets = 1 + static_cast<std::uint32_t>(random.below(random.chance(0.5) ? 8 : 200));
  setting.max_messages = 1 + static_cast<std::uint32_t>(random.below(10));
  setting.ack_interval = 1 + static_cast<std::uint32_t>(random.below(40));
  setting.messages = 1 + random.below(30);
  setting.longest = setting.mtu * (1 + random.below(12));
  setting.both = random.chance(0.7);
  if (random.chance(0.5)) setting.polling = std::chrono::microseconds(random.below(100));
  setting.selective = random.chance(0.5);
  if (random.chance(0.5)) setting.marked = static_cast<double>(random.below(100)) / 200;
  return setting;
}

TEST(RoceQueuePairs, EveryMessageArrivesOnceInOrderOnAnyNetwork) {
  std::uint64_t retransmissions = 0, naks = 0, timeouts = 0, requests = 0, notifications = 0;
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Setting setting = random_setting(random);
    const std::uint64_t profile = random.below(4);
    setting.faults.least_delay = 5us;
    setting.faults.most_delay = 5us + std::chrono::microseconds(random.below(profile == 0 ? 5 : 300));  // reorders
    if (profile >= 1) setting.faults.loss = static_cast<double>(random.below(100)) / 500;
    if (profile >= 2) setting.faults.duplicate = static_cast<double>(random.below(100)) / 300;
    if (profile == 3) {
      setting.faults.late = static_cast<double>(random.below(100)) / 1000;
      setting.faults.latest = std::chrono::milliseconds(1 + random.below(500));
      setting.faults.corrupt = static_cast<double>(random.below(100)) / 1000;
    }
    Pairs pairs(seed, setting);
    ASSERT_TRUE(pairs.run(600s)) << "not done";
    check_counters(pairs);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto& counters = pairs.end(i).pair.counters();
      retransmissions += counters.retransmissions;
      naks += counters.naks_received;
      timeouts += counters.timeouts;
      requests += counters.repeat_requests_received;
      notifications += counters.notifications_received;
    }
    if (::testing::Test::HasFailure()) FAIL();
  }
  EXPECT_GT(retransmissions, 1000U);
  EXPECT_GT(naks, 1000U);
  EXPECT_GT(timeouts, 1000U);
  EXPECT_GT(requests, 1000U);
  EXPECT_GT(notifications, 1000U);
}

TEST(RoceQueuePairs, NothingIsRepeatedWithoutLoss) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Setting setting = random_setting(random);
    const Duration delay = std::chrono::microseconds(1 + random.below(900));  // less than the least time-out
    setting.faults.least_delay = setting.faults.most_delay = delay / 2;
    Pairs pairs(seed, setting);
    ASSERT_TRUE(pairs.run(10s));
    check_counters(pairs);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto& counters = pairs.end(i).pair.counters();
      EXPECT_EQ(0U, counters.retransmissions + counters.timeouts + counters.duplicates + counters.naks_sent);
      EXPECT_EQ(0U, counters.out_of_order + counters.stale_acks);
    }
    if (::testing::Test::HasFailure()) FAIL();
  }
}

// A loss costs about one window of repeats, not one for each packet behind it.
TEST(RoceQueuePairs, RepeatsAreInProportionToLosses) {
  Setting setting;
  setting.both = false;
  setting.messages = 2000;
  setting.longest = 4096;
  setting.max_packets = 64;
  setting.max_messages = 64;
  setting.faults.loss = 0.001;
  Pairs pairs(1, setting);
  ASSERT_TRUE(pairs.run(60s));
  const auto& counters = pairs.end(0).pair.counters();
  const std::uint64_t gone_back = counters.naks_received + counters.timeouts;
  EXPECT_GT(gone_back, 0U);
  EXPECT_LE(counters.retransmissions, gone_back * setting.max_packets);
  EXPECT_LE(gone_back, 30U) << "of some 5000 packets, one in a thousand";
  setting.selective = true;
  Pairs selective(1, setting);
  ASSERT_TRUE(selective.run(60s));
  EXPECT_GT(selective.end(0).pair.counters().repeat_requests_received, 0U);
  EXPECT_LE(selective.end(0).pair.counters().retransmissions, 15U) << "hardly more than was lost";
}

}  // namespace
}  // namespace netsum::testing
