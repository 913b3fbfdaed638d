// The recorded rings (tests/data/roce): what three soft-RoCE hosts sent goes through an accelerator, and what comes out is
// what a program of its own had summed and passed on when that was recorded.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "support/netreduce_packets.h"
#include "support/pcap.h"
#include "wire/ethernet.h"

namespace netsum::testing {
namespace {

using netreduce::Connection;
using netreduce::Order;
using wire::roce::Packet;

constexpr std::size_t ip_at = wire::ethernet::header_bytes;
constexpr std::uint32_t workers = 3, messages = 8, message_packets = 8;

struct Frame {
  std::uint64_t time_ns = 0;
  Bytes bytes;
  Packet packet;           // of `bytes`
  std::uint32_t from = 0;  // worker
  [[nodiscard]] bool gradient() const { return wire::roce::shape_of(packet.bth.opcode).request; }
  [[nodiscard]] Connection connection() const {
    return {packet.ip.source, packet.ip.destination, packet.bth.destination_qp};
  }
};

// On the wire a worker is told from another one by its address, 10.0.0.1 and so on.
struct Recording {
  std::vector<Frame> sent;                 // by the workers, in order of time
  std::vector<std::vector<Frame>> passed;  // to each worker

  explicit Recording(const std::string& name) : passed(workers) {
    for (std::uint32_t link = 0; link < workers; ++link) {
      for (auto& captured : read_pcap(NETSUM_TEST_DATA "/roce/" + name + ".link" + std::to_string(link) + ".pcap")) {
        Frame frame{captured.time_ns, std::move(captured.bytes), {}, 0};
        EXPECT_EQ(wire::ParseError::none, wire::roce::parse(std::span(frame.bytes).subspan(ip_at), frame.packet));
        frame.from = frame.packet.ip.source[15] - 1U;
        auto& list = frame.from == link ? sent : passed[link];
        list.push_back(std::move(frame));
      }
    }
    std::stable_sort(sent.begin(), sent.end(), [](const Frame& a, const Frame& b) { return a.time_ns < b.time_ns; });
  }
};

// With the IP identification and the AckReq bit of another transmission of the same packet.
Bytes as_transmitted(const Frame& frame, const Packet& other) {
  Packet packet = frame.packet;
  packet.ip.identification = other.ip.identification;
  packet.bth.ack_request = other.bth.ack_request;
  Bytes bytes = frame.bytes;
  wire::roce::write(std::span(bytes).subspan(ip_at), packet);
  return bytes;
}

struct Outcome {
  std::size_t results = 0;                                            // that came out
  std::size_t recorded = 0;                                           // as they are in the recording
  std::size_t held = 0;                                               // likewise, but for headers of an earlier transmission
  std::map<std::pair<Connection, std::uint32_t>, std::size_t> times;  // each came out
};

// `lost`: worker and IP identification of the frame that did not get to the sum.
Outcome replay(const std::string& name, Order order, std::optional<std::pair<std::uint32_t, std::uint16_t>> lost = {}) {
  const Recording recording(name);
  Outcome outcome;
  Bump bump;
  netreduce::RingConfig config;
  config.incarnation = 1;
  config.members = workers;
  config.window = 4;
  config.message_packets = message_packets;
  config.mtu = 1024;
  config.layout = wire::netreduce::nrtv_layout;
  config.dtype = DType::int32;
  config.order = order;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory(netreduce::Accelerator::memory_bytes(config) / sizeof(Line));
  EXPECT_TRUE(bump.accelerator.add_ring(config, std::as_writable_bytes(std::span(memory))));
  netreduce::LearningConfig learning;
  for (std::uint8_t host = 1; host <= workers; ++host) learning.hosts.push_back(endpoint_of(host, 0).address);
  bump.accelerator.learn(learning);

  std::map<std::pair<Connection, std::uint32_t>, std::vector<const Frame*>> passed;
  for (const auto& link : recording.passed) {
    for (const Frame& frame : link) {
      if (frame.gradient()) passed[{frame.connection(), frame.packet.bth.psn}].push_back(&frame);
    }
  }
  std::uint64_t others = 0;
  for (const Frame& frame : recording.sent) {
    if (lost && frame.gradient() && frame.from == lost->first && frame.packet.ip.identification == lost->second) {
      lost.reset();
      continue;
    }
    Endpoint egress;
    egress.port = static_cast<std::uint16_t>((frame.from + 1) % workers + 1);  // gradients go to the successor
    const auto verdict = bump.give(frame.bytes, egress, ip_at);
    if (!frame.gradient()) {
      EXPECT_EQ(Bump::Verdict::pass, verdict);
      ++others;
      continue;
    }
    EXPECT_EQ(Bump::Verdict::taken, verdict);
    for (const Sent& sent : bump.take()) {
      const Packet packet = sent.packet();
      const std::pair place(sent.connection(), packet.bth.psn);
      ++outcome.results;
      ++outcome.times[place];
      EXPECT_EQ(sent.to.port, packet.ip.destination[15]);
      const auto& candidates = passed[place];
      const auto same = [&](const Frame* f) { return f->bytes == sent.frame; };
      if (std::any_of(candidates.begin(), candidates.end(), same)) {
        ++outcome.recorded;
      } else if (!candidates.empty() && as_transmitted(*candidates[0], packet) == sent.frame) {
        ++outcome.held;
      } else {
        ADD_FAILURE() << "worker " << packet.ip.source[15] - 1 << ", packet " << packet.bth.psn << ", identification "
                      << packet.ip.identification << " is not in the recording";
      }
    }
  }
  EXPECT_FALSE(lost.has_value()) << "the frame is not in the recording";
  EXPECT_GT(others, 0U);
  EXPECT_EQ(others, bump.accelerator.counters().passed);
  EXPECT_EQ(0U, bump.accelerator.counters().dropped_known);
  EXPECT_EQ(std::size_t{workers} * messages * message_packets, outcome.times.size()) << "every packet of every message";
  const netreduce::RingCounters& c = *bump.accelerator.ring_counters(1);
  EXPECT_EQ(messages * message_packets, c.sums);
  EXPECT_EQ(workers * messages * message_packets, c.contributions);
  EXPECT_EQ(0U, c.dropped_icrc + c.dropped_header + c.dropped_old + c.dropped_early + c.dropped_misplaced +
                    c.dropped_mismatch + c.dropped_shape);
  return outcome;
}

// Which frame was lost is seen in the recordings: its identification is in none of the frames that were passed on, and its
// packet is sent again. The recorded program kept the newest transmission of a packet that it held; the accelerator keeps
// the first, and that is what `held` counts.

TEST(NetreduceRecordedRing, SumsAsItWasRecorded) {
  for (const Order order : {Order::ring, Order::arrival}) {
    const Outcome outcome = replay("ring3_sum", order);
    EXPECT_EQ(192U, outcome.results);
    EXPECT_EQ(192U, outcome.recorded);
    EXPECT_EQ(0U, outcome.held);
  }
}

TEST(NetreduceRecordedRing, SumsAfterAMiddlePacketWasLost) {
  const Outcome outcome = replay("ring3_sum_loss_middle", Order::arrival, std::pair{0U, std::uint16_t{24578}});
  EXPECT_EQ(254U, outcome.results);
  EXPECT_EQ(8U, outcome.held);
}

TEST(NetreduceRecordedRing, SumsAfterAFirstPacketWasLost) {
  const Outcome outcome = replay("ring3_sum_loss_first", Order::arrival, std::pair{1U, std::uint16_t{48558}});
  EXPECT_EQ(296U, outcome.results);
  EXPECT_EQ(16U, outcome.held);
}

TEST(NetreduceRecordedRing, SumsAfterALastPacketWasLost) {
  const Outcome outcome = replay("ring3_sum_loss_last", Order::arrival, std::pair{1U, std::uint16_t{48786}});
  EXPECT_EQ(213U, outcome.results);
  EXPECT_EQ(2U, outcome.held);
}

// One result was dropped behind the sum: its repeat is in the recording.
TEST(NetreduceRecordedRing, AnswersTheRepeatOfALostResult) {
  const Outcome outcome = replay("ring3_sum_loss_result", Order::arrival);
  EXPECT_EQ(206U, outcome.results);
  EXPECT_EQ(205U, outcome.recorded);
  EXPECT_EQ(1U, outcome.held);
}

// The hosts behaved as they did because results came in the order of arrival. In the order of the ring the same frames still
// give the same bits, and each at least once.
TEST(NetreduceRecordedRing, InTheOrderOfTheRingTheBitsAreTheSame) {
  EXPECT_LE(192U, replay("ring3_sum_loss_middle", Order::ring, std::pair{0U, std::uint16_t{24578}}).results);
  EXPECT_LE(192U, replay("ring3_sum_loss_first", Order::ring, std::pair{1U, std::uint16_t{48558}}).results);
  EXPECT_LE(192U, replay("ring3_sum_loss_last", Order::ring, std::pair{1U, std::uint16_t{48786}}).results);
  EXPECT_LE(192U, replay("ring3_sum_loss_result", Order::ring).results);
}

}  // namespace
}  // namespace netsum::testing
