// The measurement of the window, against a path whose delay and rate are known.
#include "protocol/switchml/probe.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "wire/switchml.h"

namespace netsum::switchml {
namespace {

using namespace std::chrono_literals;

Endpoint endpoint(std::uint16_t port) {
  Endpoint e;
  e.port = port;
  return e;
}

class Recorder final : public Sink {
 public:
  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    EXPECT_EQ(to, endpoint(1));
    return sent.emplace_back(bytes);
  }
  void multicast(std::span<const std::byte>, std::span<const Endpoint>) override { FAIL(); }
  void flush() override {}

  std::deque<std::vector<std::byte>> sent;
};

// Answers each probe `delay` after it was sent, and trains with `gap` between two replies; loses what `lost` says.
Probe measure(const ProbeConfig& config, Duration delay, Duration gap, std::size_t lost_of_train = 0) {
  Probe probe(config);
  Recorder sink;
  Time time{1s};
  probe.start(time, sink);
  for (int turn = 0; turn < 1000 && !probe.done(); ++turn) {
    std::deque<std::vector<std::byte>> batch;
    batch.swap(sink.sent);
    if (batch.size() > 1) batch.resize(batch.size() - lost_of_train);
    time += delay;
    for (const auto& packet : batch) {
      EXPECT_EQ(packet.size(), config.packet_bytes);
      wire::Common common;
      wire::ProbePacket request{}, reply{};
      EXPECT_EQ(wire::parse_common(packet, common), wire::ParseError::none);
      EXPECT_EQ(wire::parse_probe(packet, common, request), wire::ParseError::none);
      reply.common.type = wire::Type::probe_reply;
      reply.common.rank = 0;
      reply.common.job_epoch = 0;
      reply.common.rank_epoch = 0;
      reply.sequence = request.sequence;
      std::vector<std::byte> bytes(wire::probe_reply_bytes);
      wire::write_probe(bytes, reply);
      const RxView views[] = {{bytes, endpoint(1)}};
      probe.on_packets(views, time, sink);
      time += gap;
    }
    if (sink.sent.empty() && !probe.done()) probe.on_timer(time = probe.next_timeout(), sink);
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

TEST(Probe, WindowFillsFourSegmentTrainsOnShortPaths) {
  EXPECT_EQ(measure(config(), 10us, 10us).slots(), 16U);
}

// Replies that come all at once show only that the path is at least as fast as a train in a quarter of its time.
TEST(Probe, WindowHasALimit) {
  EXPECT_EQ(measure(config(), 100ms, 0us).slots(), 256U);
}

TEST(Probe, TrainWithLossStillMeasures) {
  EXPECT_EQ(measure(config(), 1ms, 10us, 16).slots(), 128U);
}

TEST(Probe, SilenceIsNoAnswer) {
  Probe probe(config());
  Recorder sink;
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
  Recorder sink;
  probe.start(Time{1s}, sink);
  std::vector<std::byte> bytes(wire::probe_reply_bytes);
  wire::write_probe(bytes, {{wire::Type::probe_reply, 0, 0, 0}, 0});
  const RxView views[] = {{bytes, endpoint(2)}};
  probe.on_packets(views, Time{1s} + 1us, sink);
  EXPECT_EQ(probe.round_trip(), Duration::max());
}

}  // namespace
}  // namespace netsum::switchml
