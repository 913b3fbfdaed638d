// The measurement of the window, against a path whose delay and rate are known.
#include "protocol/switchml/probe.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "base/siphash.h"
#include "support/recording_sink.h"
#include "wire/switchml.h"

namespace netsum::switchml {
namespace {

using namespace std::chrono_literals;
using testing::RecordingSink;

Endpoint endpoint(std::uint16_t port) {
  Endpoint e;
  e.port = port;
  return e;
}

// All is for the aggregator.
void look(std::span<const Endpoint> to, bool multicast) {
  EXPECT_FALSE(multicast);
  EXPECT_EQ(to.front(), endpoint(1));
}

// Answers each probe `delay` after it was sent, and trains with `gap` between two replies; loses what `lost` says.
Probe measure(const ProbeConfig& config, Duration delay, Duration gap, std::size_t lost_of_train = 0) {
  Probe probe(config);
  RecordingSink sink(look);
  Time time{1s};
  probe.start(time, sink);
  for (int turn = 0; turn < 1000 && !probe.done(); ++turn) {
    std::vector<testing::Datagram> batch = sink.take();
    if (batch.size() > 1) batch.resize(batch.size() - lost_of_train);
    time += delay;
    for (const auto& each : batch) {
      const std::vector<std::byte>& packet = each.bytes;
      EXPECT_EQ(packet.size(), config.packet_bytes);
      wire::switchml::Common common;
      wire::switchml::ProbePacket request{}, reply{};
      EXPECT_EQ(wire::switchml::parse_common(packet, common), wire::ParseError::none);
      EXPECT_EQ(wire::switchml::parse_probe(packet, common, request), wire::ParseError::none);
      reply.common.type = wire::switchml::Type::probe_reply;
      reply.common.sender = 0;
      reply.common.job_epoch = 0;
      reply.common.rank_epoch = 0;
      reply.sequence = request.sequence;
      std::vector<std::byte> bytes(wire::switchml::probe_reply_bytes);
      wire::switchml::write_probe(bytes, reply);
      const RxView views[] = {{bytes, endpoint(1)}};
      probe.on_packets(views, time, sink);
      time += gap;
    }
    if (sink.sent().empty() && !probe.done()) probe.on_timer(time = probe.next_timeout(), sink);
  }
  EXPECT_TRUE(probe.done());
  return probe;
}

ProbeConfig config() {
  ProbeConfig c;
  c.aggregator = endpoint(1);
  c.packet_bytes = 16 * 1024;  // long packets: the floor of four segment trains is 16 of them
  return c;
}

TEST(Probe, WindowIsTheBandwidthDelayProduct) {
  const Probe probe = measure(config(), 1ms, 10us);  // 100 packets per round trip
  EXPECT_TRUE(probe.answered());
  EXPECT_EQ(probe.round_trip(), 1ms);
  EXPECT_EQ(probe.slots(), 128U);
}

// 100 Gbit/s, packets of 256 elements and a round trip of 100 us (Appendix C).
TEST(Probe, WindowFillsALongFastPath) {
  ProbeConfig long_path = config();
  long_path.packet_bytes = 1076;
  EXPECT_EQ(measure(long_path, 100us, 110ns).slots(), 1024U);
}

// Half a millisecond beside the round trip, so that a host may pause.
TEST(Probe, WindowOutlastsAPauseOnShortPaths) {
  const Probe probe = measure(config(), 10us, 100us);  // 10 packets in a millisecond
  EXPECT_EQ(probe.slots(), 8U);
}

TEST(Probe, WindowFillsFourSegmentTrainsOnFastShortPaths) {
  const Probe probe = measure(config(), 10us, 10us);
  EXPECT_EQ(probe.slots(), 16U);
}

// Replies that come all at once show only that the path is at least as fast as a train in a quarter of its time.
TEST(Probe, WindowHasALimit) {
  EXPECT_EQ(measure(config(), 100ms, 0us).slots(), 4096U);
}

TEST(Probe, TrainWithLossStillMeasures) {
  EXPECT_EQ(measure(config(), 1ms, 10us, 16).slots(), 128U);
}

TEST(Probe, SilenceIsNoAnswer) {
  Probe probe(config());
  RecordingSink sink(look);
  Time time{1s};
  probe.start(time, sink);
  int timeouts = 0;
  for (; !probe.done() && timeouts < 100; ++timeouts) probe.on_timer(time = probe.next_timeout(), sink);
  EXPECT_TRUE(probe.done());
  EXPECT_FALSE(probe.answered());
  EXPECT_EQ(timeouts, 10);
  EXPECT_EQ(probe.next_timeout(), never);
}

TEST(Probe, RepliesOfOthersAreNotBelieved) {
  Probe probe(config());
  RecordingSink sink(look);
  probe.start(Time{1s}, sink);
  std::vector<std::byte> bytes(wire::switchml::probe_reply_bytes);
  wire::switchml::write_probe(bytes, {{wire::switchml::Type::probe_reply, 0, 0, 0}, 0});
  const RxView views[] = {{bytes, endpoint(2)}};
  probe.on_packets(views, Time{1s} + 1us, sink);
  EXPECT_EQ(probe.round_trip(), Duration::max());
}

// Whatever else arrives meanwhile is not taken for an answer.
TEST(Probe, BelievesOnlyItsAggregatorAndItsOwnQuestions) {
  ProbeConfig config;
  config.aggregator = endpoint(1);
  config.singles = 2;
  config.train = 2;
  Probe probe(config);
  RecordingSink sink(look);
  Time now{1s};
  const auto receive = [&](std::uint32_t sequence, wire::switchml::Type type = wire::switchml::Type::probe_reply,
                           std::uint16_t port = 1, std::size_t bytes = wire::switchml::probe_reply_bytes) {
    std::vector<std::byte> packet(wire::switchml::probe_reply_bytes);
    wire::switchml::write_probe(packet, {{type, 0, 0, 0}, sequence});
    packet.resize(bytes);
    wire::switchml::seal(packet);
    const RxView view{packet, endpoint(port)};
    probe.on_packets({&view, 1}, now, sink);
  };
  probe.start(now, sink);
  probe.on_timer(now, sink);  // too soon
  receive(0, wire::switchml::Type::probe_reply, 2);
  receive(0, wire::switchml::Type::probe);
  receive(0, wire::switchml::Type::probe_reply, 1, wire::switchml::common_bytes);
  receive(7);
  const std::vector<std::byte> nothing(3);
  const RxView view{nothing, endpoint(1)};
  probe.on_packets({&view, 1}, now, sink);
  EXPECT_EQ(1U, sink.sent().size());
  now += 1ms;
  receive(0);
  EXPECT_EQ(2U, sink.sent().size());
  now += 1ms;
  receive(1);
  EXPECT_EQ(4U, sink.sent().size());  // the train
  receive(1);                         // a copy of the last single's answer
  receive(9);
  EXPECT_FALSE(probe.done());
  receive(2);
  now = probe.next_timeout();
  probe.on_timer(now, sink);
  EXPECT_TRUE(probe.answered());
  EXPECT_EQ(1ms, probe.round_trip());
  EXPECT_GE(probe.slots(), 1U);  // one answer of the train shows no rate
  probe.on_timer(now + 1h, sink);
  receive(3);
  EXPECT_EQ(4U, sink.sent().size());
}

// A probe whose answer alone counts, for the cookie in it.
TEST(Probe, WithoutATrainEndsWithItsFirstAnswer) {
  ProbeConfig config;
  config.aggregator = endpoint(1);
  config.packet_bytes = wire::switchml::probe_reply_bytes;
  config.singles = 1;
  config.train = 0;
  Probe probe(config);
  RecordingSink sink(look);
  probe.start(Time{1s}, sink);
  std::vector<std::byte> bytes(wire::switchml::probe_reply_bytes);
  wire::switchml::write_probe(bytes, {{wire::switchml::Type::probe_reply, 0, 0, 0}, 0, 0x1234567890abcdef});
  const RxView view{bytes, config.aggregator};
  probe.on_packets({&view, 1}, Time{1s} + 1us, sink);
  EXPECT_TRUE(probe.answered());
  EXPECT_EQ(0x1234567890abcdefU, probe.cookie());
  EXPECT_EQ(1U, sink.sent().size());
}

// The vectors of its authors: key 00 to 0f, message 00, 01, ..
TEST(EndpointCookies, AreMadeBySipHash) {
  const SipKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::vector<std::byte> message;
  for (int i = 0; i < 15; ++i) message.push_back(static_cast<std::byte>(i));
  EXPECT_EQ(0xa129ca6149be45e5U, siphash(key, message));
  EXPECT_EQ(0x726fdb47dd0e0e31U, siphash(key, {}));
  EXPECT_EQ(0x93f5f5799a932462U, siphash(key, std::span(message).first(8)));
}

}  // namespace
}  // namespace netsum::switchml
