// A queue pair with hand-made packets: what it sends, what it takes, and when it repeats itself. Two of them on a network
// are in tests/property.
#include "protocol/roce/queue_pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/recording_packet_sink.h"

namespace netsum::roce {
namespace {

using namespace std::chrono_literals;
using wire::roce::Aeth;
using wire::roce::Opcode;

constexpr std::uint32_t mtu = 256;

std::array<std::uint8_t, 16> ipv4(std::uint8_t host) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
}
std::array<std::uint8_t, 16> ipv6(std::uint8_t host) {
  return {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host};
}

// "F100": a FIRST packet with PSN 0x100; M, L and O likewise; "?" behind it: an ACK is asked for. "ack 102/1": of PSN 0x102,
// one message completed; "nak60 103/1".
std::string words(const wire::roce::Packet& packet) {
  std::ostringstream out;
  out << std::hex;
  if (packet.bth.opcode == Opcode::rc_acknowledge) {
    if (packet.aeth.syndrome == Aeth::ack)
      out << "ack ";
    else
      out << "nak" << int{packet.aeth.syndrome} << ' ';
    out << packet.bth.psn << '/' << packet.aeth.msn;
    return out.str();
  }
  if (packet.bth.opcode == Opcode::congestion_notification) return "cnp";
  const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
  out << (shape.first ? (shape.last ? 'O' : 'F') : (shape.last ? 'L' : 'M')) << packet.bth.psn
      << (packet.bth.ack_request ? "?" : "");
  return out.str();
}

class QueuePairTest : public ::testing::Test {
 protected:
  QueuePairTest() : memory(16 * mtu, std::byte{0xee}), source(1 << 20) {
    std::uint32_t value = 1;
    for (std::byte& byte : source) byte = static_cast<std::byte>((value = value * 0x01000193 + 7) >> 24);
  }

  QueuePairConfig config() {
    QueuePairConfig c;
    c.local = ipv4(1);
    c.remote = ipv4(2);
    c.local_qp = 0x11;
    c.remote_qp = 0x22;
    c.send_psn = 0x100;
    c.receive_psn = 0x500;
    c.mtu = mtu;
    c.ack_interval = 1000;
    c.memory = memory;
    c.memory_address = 0x7000;
    c.memory_key = 0xbeef;
    return c;
  }

  // ---- what it sends

  std::span<const std::byte> bytes(std::size_t count, std::size_t from = 0) {
    return std::span(source).subspan(from, count);
  }

  static bool post(QueuePair& pair, std::span<const std::byte> message) {
    return pair.post_write(message, 0x9000, 0xcafe, 7);
  }

  std::vector<wire::roce::Packet> packets(QueuePair& pair) {
    recorder.sent.clear();
    pair.send(now, recorder);
    std::vector<wire::roce::Packet> parsed(recorder.sent.size());  // which refer to its bytes
    for (std::size_t i = 0; i < parsed.size(); ++i) {
      EXPECT_TRUE(wire::roce::is_roce(recorder.sent[i]));
      EXPECT_EQ(wire::ParseError::none, wire::roce::parse(recorder.sent[i], parsed[i]));
      EXPECT_TRUE(wire::roce::icrc_valid(recorder.sent[i]));
      EXPECT_EQ(recorder.sent[i].size(), wire::roce::packet_bytes(recorder.sent[i]));
    }
    return parsed;
  }

  std::string sent(QueuePair& pair) {
    std::string all;
    for (const wire::roce::Packet& packet : packets(pair)) all += (all.empty() ? "" : " ") + words(packet);
    return all;
  }

  // ---- what it is sent

  static wire::roce::Packet from_peer(Opcode opcode, std::uint32_t psn) {
    wire::roce::Packet packet;
    packet.ip.source = ipv4(2);
    packet.ip.destination = ipv4(1);
    packet.source_port = 0xdddd;
    packet.bth.opcode = opcode;
    packet.bth.destination_qp = 0x11;
    packet.bth.psn = psn;
    return packet;
  }

  void acknowledge(QueuePair& pair, std::uint32_t psn, std::uint8_t syndrome = Aeth::ack) {
    wire::roce::Packet packet = from_peer(Opcode::rc_acknowledge, psn);
    packet.aeth.syndrome = syndrome;
    pair.on_packet(packet, now);
  }

  void notify(QueuePair& pair) { pair.on_packet(from_peer(Opcode::congestion_notification, 0), now); }

  // A message of `count` bytes to `offset` of the memory, from a PSN on, as its packets.
  std::vector<wire::roce::Packet> message(std::uint32_t psn, std::size_t count, std::uint64_t offset = 0,
                                          std::uint32_t immediate = 1) {
    std::vector<wire::roce::Packet> all;
    for (std::size_t from = 0; from < count; from += mtu) {
      const bool first = from == 0, last = from + mtu >= count;
      auto packet = from_peer(first ? (last ? Opcode::rc_write_only_immediate : Opcode::rc_write_first)
                                    : (last ? Opcode::rc_write_last_immediate : Opcode::rc_write_middle),
                              psn++ & wire::roce::psn_mask);
      if (first) packet.reth = {0x7000 + offset, 0xbeef, static_cast<std::uint32_t>(count)};
      if (last) packet.immediate = immediate;
      packet.bth.ack_request = last;
      packet.payload = bytes(std::min<std::size_t>(mtu, count - from), from);
      all.push_back(packet);
    }
    return all;
  }

  void give(QueuePair& pair, std::span<const wire::roce::Packet> all) {
    for (const wire::roce::Packet& packet : all) pair.on_packet(packet, now);
  }

  [[nodiscard]] bool memory_holds(std::size_t offset, std::size_t count) const {
    return std::equal(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(count),
                      memory.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  [[nodiscard]] bool memory_untouched(std::size_t offset, std::size_t count) const {
    const auto from = memory.begin() + static_cast<std::ptrdiff_t>(offset);
    return std::all_of(from, from + static_cast<std::ptrdiff_t>(count), [](std::byte b) { return b == std::byte{0xee}; });
  }

  std::vector<std::byte> memory, source;
  testing::RecordingPacketSink recorder;
  Time now{1s};
};

// As a rank does whose RDMA hardware gave up: the acknowledgements of a message and a part of the next were lost.
TEST_F(QueuePairTest, ARequesterThatGaveUpMayBeginAgain) {
  QueuePair receiver(config());
  QueuePairConfig sending = config();
  std::swap(sending.local, sending.remote);
  std::swap(sending.local_qp, sending.remote_qp);
  std::swap(sending.send_psn, sending.receive_psn);
  sending.retries = 1;
  const auto post_both = [&](QueuePair& pair) {
    return pair.post_write(bytes(3 * mtu), 0x7000, 0xbeef, 1) &&
           pair.post_write(bytes(4 * mtu), 0x7000 + 3 * mtu, 0xbeef, 2);
  };
  QueuePair former(sending);
  ASSERT_TRUE(post_both(former));
  const std::vector<wire::roce::Packet> part = packets(former);
  give(receiver, std::span(part).first(5));
  EXPECT_EQ("ack 502/1", sent(receiver));
  while (former.error() == QueuePairError::none) {
    now = former.next_timeout();
    former.on_timer(now);
    static_cast<void>(packets(former));
  }

  QueuePair again(sending);
  ASSERT_TRUE(post_both(again));
  give(receiver, packets(again));
  EXPECT_EQ("ack 506/2", sent(receiver));
  EXPECT_EQ(2U, receiver.take_received().size());
  EXPECT_EQ(7U, receiver.counters().packets_received) << "each once";
  EXPECT_TRUE(memory_holds(0, 3 * mtu) && memory_holds(3 * mtu, 4 * mtu));
  wire::roce::Packet acknowledgement = from_peer(Opcode::rc_acknowledge, 0x506);
  std::swap(acknowledgement.ip.source, acknowledgement.ip.destination);
  acknowledgement.bth.destination_qp = 0x22;
  again.on_packet(acknowledgement, now);
  EXPECT_EQ(2U, again.completed());
}

// ---- requester

TEST_F(QueuePairTest, AMessageBecomesFirstMiddleAndLastWithImmediate) {
  QueuePair pair(config());
  const auto data = bytes(2 * mtu + 13);
  ASSERT_TRUE(pair.post_write(data, 0x123456789abcdef0, 0xcafe, 0x01020304));
  const auto all = packets(pair);
  ASSERT_EQ(3U, all.size());
  EXPECT_EQ(Opcode::rc_write_first, all[0].bth.opcode);
  EXPECT_EQ(Opcode::rc_write_middle, all[1].bth.opcode);
  EXPECT_EQ(Opcode::rc_write_last_immediate, all[2].bth.opcode);
  EXPECT_EQ((wire::roce::Reth{0x123456789abcdef0, 0xcafe, 2 * mtu + 13}), all[0].reth);
  EXPECT_EQ(0x01020304U, all[2].immediate);
  EXPECT_EQ(3, all[2].bth.pad);
  for (std::uint32_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(0x100 + i, all[i].bth.psn);
    EXPECT_EQ(0x22U, all[i].bth.destination_qp);
    EXPECT_EQ(i == 2, all[i].bth.ack_request);
    EXPECT_EQ(0xffff, all[i].bth.partition_key);
    EXPECT_FALSE(all[i].ip.v6);
    EXPECT_EQ(ipv4(1), all[i].ip.source);
    EXPECT_EQ(ipv4(2), all[i].ip.destination);
    EXPECT_EQ(0x4000, all[i].ip.fragment);
    EXPECT_EQ(i, all[i].ip.identification);
    EXPECT_EQ(0xc000, all[i].source_port);
    const auto part = data.subspan(i * mtu, i == 2 ? 13 : mtu);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all[i].payload.begin(), all[i].payload.end()));
  }
  EXPECT_EQ(3U, pair.counters().packets_sent);
  EXPECT_EQ(1U, pair.counters().messages_sent);
  EXPECT_EQ(0U, pair.completed());
  EXPECT_EQ("", sent(pair));
}

TEST_F(QueuePairTest, AMessageOfOnePacketIsOnly) {
  QueuePair pair(config());
  ASSERT_TRUE(pair.post_write(bytes(mtu), 1, 2, 3));
  ASSERT_TRUE(pair.post_write(bytes(1), 4, 5, 6));
  const auto all = packets(pair);
  ASSERT_EQ(2U, all.size());
  EXPECT_EQ(Opcode::rc_write_only_immediate, all[0].bth.opcode);
  EXPECT_EQ((wire::roce::Reth{1, 2, mtu}), all[0].reth);
  EXPECT_EQ(3U, all[0].immediate);
  EXPECT_TRUE(all[0].bth.ack_request);
  EXPECT_EQ((wire::roce::Reth{4, 5, 1}), all[1].reth);
  EXPECT_EQ(6U, all[1].immediate);
}

TEST_F(QueuePairTest, SpeaksIpv6) {
  QueuePairConfig c = config();
  c.local = ipv6(1);
  c.remote = ipv6(2);
  QueuePair pair(c);
  ASSERT_TRUE(post(pair, bytes(10)));
  const auto all = packets(pair);
  ASSERT_EQ(1U, all.size());
  EXPECT_TRUE(all[0].ip.v6);
  EXPECT_EQ(ipv6(1), all[0].ip.source);
  EXPECT_EQ(ipv6(2), all[0].ip.destination);
  auto answer = from_peer(Opcode::rc_acknowledge, 0x100);
  answer.ip.source = ipv6(2);
  answer.ip.destination = ipv6(1);
  pair.on_packet(answer, now);
  EXPECT_EQ(1U, pair.completed());
}

TEST_F(QueuePairTest, PsnsWrapInsideAMessage) {
  QueuePairConfig c = config();
  c.send_psn = 0xfffffe;
  QueuePair pair(c);
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  ASSERT_TRUE(post(pair, bytes(mtu)));
  EXPECT_EQ("Ffffffe Mffffff M0 L1? O2?", sent(pair));
  acknowledge(pair, 0xffffff);
  EXPECT_EQ(0U, pair.completed());
  acknowledge(pair, 0, Aeth::nak_sequence);
  EXPECT_EQ("M0 L1? O2?", sent(pair));
  acknowledge(pair, 2);
  EXPECT_EQ(2U, pair.completed());
  EXPECT_EQ(0U, pair.counters().stale_acks);
}

TEST_F(QueuePairTest, AsksForAnAckEverySoManyPacketsOfAMessage) {
  QueuePairConfig c = config();
  c.ack_interval = 3;
  QueuePair pair(c);
  ASSERT_TRUE(post(pair, bytes(7 * mtu)));
  ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  EXPECT_EQ("F100 M101 M102? M103 M104 M105? L106? F107 L108?", sent(pair));
}

TEST_F(QueuePairTest, SendsNoMoreThanTheWindow) {
  QueuePairConfig c = config();
  c.max_packets = 4;
  QueuePair pair(c);
  ASSERT_TRUE(post(pair, bytes(7 * mtu)));
  EXPECT_EQ("F100 M101? M102 M103?", sent(pair)) << "a window without a question would never move";
  EXPECT_EQ("", sent(pair));
  acknowledge(pair, 0x101);
  EXPECT_EQ("M104 M105?", sent(pair));
  acknowledge(pair, 0x105);
  EXPECT_EQ("L106?", sent(pair));
  EXPECT_EQ(0U, pair.counters().retransmissions);
}

// As the other stream brings packets.
TEST_F(QueuePairTest, LeadsTheStreamThatClocksIt) {
  QueuePairConfig c = config();
  c.lead = 2;
  QueuePair pair(c);
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  EXPECT_EQ("F100 M101", sent(pair));
  acknowledge(pair, 0x101);
  EXPECT_EQ("", sent(pair));
  pair.follow(1);
  EXPECT_EQ("M102", sent(pair));
  pair.follow(0);
  pair.follow(2);
  EXPECT_EQ("L103?", sent(pair));
}

TEST_F(QueuePairTest, AWindowOfOnePacketMoves) {
  QueuePairConfig c = config();
  c.max_packets = 1;
  QueuePair pair(c);
  ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  EXPECT_EQ("F100?", sent(pair));
  acknowledge(pair, 0x100);
  EXPECT_EQ("L101?", sent(pair));
}

TEST_F(QueuePairTest, TakesNoMoreMessagesThanItHasPlaceFor) {
  QueuePairConfig c = config();
  c.max_messages = 2;
  QueuePair pair(c);
  EXPECT_TRUE(post(pair, bytes(1)));
  EXPECT_TRUE(post(pair, bytes(1)));
  EXPECT_FALSE(post(pair, bytes(1)));
  EXPECT_EQ("O100? O101?", sent(pair));
  acknowledge(pair, 0x100);
  EXPECT_TRUE(post(pair, bytes(1)));
  EXPECT_FALSE(post(pair, bytes(1)));
  EXPECT_EQ("O102?", sent(pair));
}

TEST_F(QueuePairTest, AcksAreCumulative) {
  QueuePair pair(config());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  sent(pair);
  acknowledge(pair, 0x104);
  EXPECT_EQ(2U, pair.completed());
  acknowledge(pair, 0x107);
  EXPECT_EQ(4U, pair.completed());
  EXPECT_EQ(never, pair.next_timeout());
  EXPECT_EQ(2U, pair.counters().acks_received);
}

TEST_F(QueuePairTest, AcksOfWhatIsNotUnderWayAreStale) {
  QueuePair pair(config());
  acknowledge(pair, 0xff);
  acknowledge(pair, 0x100);
  ASSERT_TRUE(post(pair, bytes(3 * mtu)));
  acknowledge(pair, 0x100);
  EXPECT_EQ(3U, pair.counters().stale_acks) << "nothing is sent yet";
  sent(pair);
  acknowledge(pair, 0x101);
  for (const std::uint32_t psn : {0x101U, 0x100U, 0x103U, 0x100U + 0x800000U}) acknowledge(pair, psn);
  for (const std::uint32_t psn : {0x101U, 0x103U}) acknowledge(pair, psn, Aeth::nak_sequence);
  acknowledge(pair, 0x101, Aeth::nak_access);
  EXPECT_EQ(10U, pair.counters().stale_acks);
  EXPECT_EQ("", sent(pair));
  EXPECT_EQ(QueuePairError::none, pair.error());
  acknowledge(pair, 0x102);
  EXPECT_EQ(1U, pair.completed());
}

TEST_F(QueuePairTest, ASequenceNakGoesBackAndAcknowledgesWhatIsBefore) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  sent(pair);
  acknowledge(pair, 0x103, Aeth::nak_sequence);
  EXPECT_EQ(1U, pair.completed());
  EXPECT_EQ("M103 M104 L105?", sent(pair));
  EXPECT_EQ(3U, pair.counters().retransmissions);
  EXPECT_EQ(1U, pair.counters().naks_received);
}

TEST_F(QueuePairTest, OneGoBackPerPsn) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(6 * mtu)));
  sent(pair);
  acknowledge(pair, 0x102, Aeth::nak_sequence);
  acknowledge(pair, 0x102, Aeth::nak_sequence);
  EXPECT_EQ("M102 M103 M104 L105?", sent(pair));
  acknowledge(pair, 0x102, Aeth::nak_sequence);
  EXPECT_EQ("", sent(pair)) << "the network's duplicate";
  EXPECT_EQ(2U, pair.counters().stale_acks);
  acknowledge(pair, 0x104, Aeth::nak_sequence);
  EXPECT_EQ("M104 L105?", sent(pair)) << "another loss";

  // The repeat of 104 is lost too: nothing tells but the time-out, and after it a NAK is news.
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ("M104?", sent(pair));
  acknowledge(pair, 0x104, Aeth::nak_sequence);
  EXPECT_EQ("M104 L105?", sent(pair));
}

TEST_F(QueuePairTest, NaksOfOneBatchGoBackOnce) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(6 * mtu)));
  sent(pair);
  acknowledge(pair, 0x101, Aeth::nak_sequence);
  acknowledge(pair, 0x104, Aeth::nak_sequence);
  EXPECT_EQ("M104 L105?", sent(pair));
}

TEST_F(QueuePairTest, WaitsWhileThePeerIsNotReady) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  sent(pair);
  const Time before = now;
  acknowledge(pair, 0x102, 0x20 | 14);  // 1.28 ms
  EXPECT_EQ(before + 1280us, pair.next_timeout());
  acknowledge(pair, 0x102, Aeth::nak_sequence);  // what lay behind the refused packet is out of order there
  ASSERT_TRUE(post(pair, bytes(1)));
  now = before + 1279us;
  pair.on_timer(now);
  EXPECT_EQ("", sent(pair));
  now = before + 1280us;
  pair.on_timer(now);
  EXPECT_EQ("M102 L103? O104?", sent(pair));
  EXPECT_EQ(0U, pair.counters().timeouts);
  EXPECT_GT(pair.next_timeout(), now);
  // Still not ready: however often.
  acknowledge(pair, 0x102, 0x20);  // 655.36 ms
  EXPECT_EQ(now + 655360us, pair.next_timeout());
  EXPECT_EQ("", sent(pair));
  now += 655360us;
  EXPECT_EQ("M102 L103? O104?", sent(pair)) << "send() looks at the time too";
  // The network's duplicate does not make it longer, and an ACK ends it.
  acknowledge(pair, 0x102, 0x20 | 31);
  const Time until = pair.next_timeout();
  now += 1ms;
  acknowledge(pair, 0x102, 0x20 | 31);
  EXPECT_EQ(until, pair.next_timeout());
  acknowledge(pair, 0x103);
  EXPECT_EQ("O104?", sent(pair));
  EXPECT_EQ(1U, pair.completed());
}

TEST_F(QueuePairTest, OtherNaksAreTheEndOfSending) {
  const std::pair<std::uint8_t, QueuePairError> cases[] = {{0x61, QueuePairError::remote_invalid},
                                                           {0x62, QueuePairError::remote_access},
                                                           {0x63, QueuePairError::remote_operation},
                                                           {0x64, QueuePairError::remote_operation}};
  for (const auto& [syndrome, error] : cases) {
    SCOPED_TRACE(int{syndrome});
    QueuePair pair(config());
    ASSERT_TRUE(post(pair, bytes(2 * mtu)));
    ASSERT_TRUE(post(pair, bytes(2 * mtu)));
    sent(pair);
    acknowledge(pair, 0x102, syndrome);
    EXPECT_EQ(error, pair.error());
    EXPECT_STRNE("none", to_string(pair.error()));
    EXPECT_EQ(1U, pair.completed()) << "what is before it was taken";
    EXPECT_EQ("", sent(pair));
    EXPECT_EQ(never, pair.next_timeout());
    pair.on_timer(now + 1h);
    EXPECT_FALSE(post(pair, bytes(1)));
    acknowledge(pair, 0x103);
    EXPECT_EQ(1U, pair.completed());
    // The peer may go on writing.
    give(pair, message(0x500, mtu));
    EXPECT_EQ("ack 500/1", sent(pair));
  }
}

TEST_F(QueuePairTest, ReservedSyndromesAreForeign) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(mtu)));
  sent(pair);
  for (const int syndrome : {0x40, 0x80, 0xa0, 0xe0, 0xff}) acknowledge(pair, 0x100, static_cast<std::uint8_t>(syndrome));
  EXPECT_EQ(5U, pair.counters().foreign);
  EXPECT_EQ(0U, pair.completed());
  acknowledge(pair, 0x100, 0x05);  // credits
  EXPECT_EQ(1U, pair.completed());
}

// ---- time-outs

TEST_F(QueuePairTest, ATimeoutRepeatsTheOldestAloneAndBacksOff) {
  QueuePair pair(config());
  EXPECT_EQ(never, pair.next_timeout());
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  EXPECT_EQ(never, pair.next_timeout());
  sent(pair);
  EXPECT_EQ(now + 20ms, pair.next_timeout());
  pair.on_timer(now + 20ms - 1ns);
  EXPECT_EQ("", sent(pair));
  Duration wait = 20ms;
  for (int i = 0; i < 6; ++i) {
    now = pair.next_timeout();
    pair.on_timer(now);
    pair.on_timer(now);
    EXPECT_EQ("F100?", sent(pair));
    wait = std::min<Duration>(250ms, 2 * wait);
    EXPECT_LE(now + wait, pair.next_timeout());
    EXPECT_GT(now + wait * 5 / 4, pair.next_timeout());
  }
  EXPECT_EQ(6U, pair.counters().timeouts);
  EXPECT_EQ(6U, pair.counters().retransmissions);
  // What is posted meanwhile is sent: if the peer is there, it may tell of the gap.
  ASSERT_TRUE(post(pair, bytes(1)));
  EXPECT_EQ("O104?", sent(pair));
  // Once it answers, the back-off is over.
  acknowledge(pair, 0x100);
  EXPECT_EQ(now + 20ms, pair.next_timeout());
}

// Else what was lost together in a short queue would be repeated together, and lost again (netsum simulate --protocol
// netreduce
// --faults chaos --seeds 945, once). Queue pairs of different hosts have equal numbers.
TEST_F(QueuePairTest, RepeatsOfPacketsThatWereLostTogetherSpreadOut) {
  std::set<Time> timeouts;
  for (std::uint8_t host = 1; host <= 8; ++host) {
    QueuePairConfig of_host = config();
    of_host.local[15] = host;
    QueuePair pair(of_host);
    ASSERT_TRUE(post(pair, bytes(4 * mtu)));
    sent(pair);
    pair.on_timer(now + 20ms);
    timeouts.insert(pair.next_timeout());
  }
  EXPECT_GE(timeouts.size(), 7U);
}

TEST_F(QueuePairTest, TheRestFollowsWhenThePeerHasOnlyTheRepeatedPacket) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  sent(pair);
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ("F100?", sent(pair));
  acknowledge(pair, 0x100);
  EXPECT_EQ("M101 M102 L103?", sent(pair));
  EXPECT_EQ("", sent(pair));
}

// The tail of the message was lost: the peer answers a duplicate with its newest PSN, for which nobody had asked.
TEST_F(QueuePairTest, TheRestFollowsWhenThePeerAnswersADuplicate) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(5 * mtu)));
  sent(pair);
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ("F100?", sent(pair));
  acknowledge(pair, 0x102);
  EXPECT_EQ("M103 L104?", sent(pair));
}

// The packets were held up, not lost: answers to them arrive, one after the other.
TEST_F(QueuePairTest, NothingMoreIsRepeatedWhenLateAcksShowThatNothingWasLost) {
  QueuePair pair(config());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(post(pair, bytes(3 * mtu)));
  sent(pair);
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ("F100?", sent(pair));
  for (const std::uint32_t psn : {0x102U, 0x105U, 0x108U, 0x10bU}) {
    acknowledge(pair, psn);
    EXPECT_EQ("", sent(pair));
  }
  EXPECT_EQ(4U, pair.completed());
  EXPECT_EQ(1U, pair.counters().retransmissions);
}

TEST_F(QueuePairTest, ATimeoutBeforeTheGoBackIsSentRepeatsNothingTwice) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  sent(pair);
  acknowledge(pair, 0x101, Aeth::nak_sequence);
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ("M101? M102 L103?", sent(pair));
}

TEST_F(QueuePairTest, AnAckBeforeTheRepeatIsSentSavesIt) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(1)));
  ASSERT_TRUE(post(pair, bytes(1)));
  sent(pair);
  now = pair.next_timeout();
  pair.on_timer(now);
  acknowledge(pair, 0x100);
  EXPECT_EQ("", sent(pair));
  acknowledge(pair, 0x101);
  EXPECT_EQ(2U, pair.completed());
}

TEST_F(QueuePairTest, GivesUpAfterSoManyRepeatsWithoutProgress) {
  QueuePairConfig c = config();
  c.retries = 2;
  QueuePair pair(c);
  ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  sent(pair);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) {
      now = pair.next_timeout();
      pair.on_timer(now);
      EXPECT_EQ(round == 0 ? "F100?" : "L101?", sent(pair));
    }
    EXPECT_EQ(QueuePairError::none, pair.error());
    if (round == 0) acknowledge(pair, 0x100);
    sent(pair);
  }
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ(QueuePairError::retries_exceeded, pair.error());
  EXPECT_EQ("", sent(pair));
  EXPECT_EQ(never, pair.next_timeout());
  EXPECT_FALSE(post(pair, bytes(1)));
}

TEST_F(QueuePairTest, TheTimeoutFollowsTheRoundTrips) {
  QueuePair pair(config());
  for (std::uint32_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(post(pair, bytes(1)));
    sent(pair);
    now += 100us;
    acknowledge(pair, 0x100 + i);
  }
  ASSERT_TRUE(post(pair, bytes(1)));
  sent(pair);
  EXPECT_EQ(now + 1100us, pair.next_timeout()) << "the round trip and the least time-out";
}

TEST_F(QueuePairTest, RoundTripsOfRepeatsAreNotMeasured) {
  const auto wait_after = [&](auto repeat) {
    QueuePair pair(config());
    EXPECT_TRUE(post(pair, bytes(2 * mtu)));
    sent(pair);
    repeat(pair);
    sent(pair);
    now += 1us;
    acknowledge(pair, 0x101);
    EXPECT_TRUE(post(pair, bytes(1)));
    sent(pair);
    return pair.next_timeout() - now;
  };
  EXPECT_EQ(1001us, wait_after([](QueuePair&) {}));
  EXPECT_EQ(20ms, wait_after([&](QueuePair& pair) { acknowledge(pair, 0x100, Aeth::nak_sequence); }));
  EXPECT_EQ(20ms, wait_after([&](QueuePair& pair) {
              now = pair.next_timeout();
              pair.on_timer(now);
            }));
}

TEST_F(QueuePairTest, ProgressStartsTheTimerAnew) {
  QueuePair pair(config());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(post(pair, bytes(1)));
  sent(pair);
  now += 5ms;
  acknowledge(pair, 0x100);
  const Duration wait = pair.next_timeout() - now;
  EXPECT_EQ(15ms, wait) << "5 ms, and four times half of it";
  now += 4ms;
  sent(pair);
  acknowledge(pair, 0x100);  // says nothing new
  EXPECT_EQ(now + wait - 4ms, pair.next_timeout());
}

// ---- responder

TEST_F(QueuePairTest, BytesAreWrittenAsTheyArriveAndTheMessageCountsAtItsEnd) {
  QueuePair pair(config());
  const auto all = message(0x500, 2 * mtu + 5, 100, 0xabcd);
  pair.on_packet(all[0], now);
  EXPECT_TRUE(memory_holds(100, mtu));
  EXPECT_TRUE(memory_untouched(100 + mtu, mtu));
  pair.on_packet(all[1], now);
  EXPECT_EQ("", sent(pair)) << "nobody asked";
  EXPECT_TRUE(pair.take_received().empty());
  pair.on_packet(all[2], now);
  EXPECT_TRUE(memory_holds(100, 2 * mtu + 5));
  EXPECT_TRUE(memory_untouched(0, 100));
  EXPECT_TRUE(memory_untouched(100 + 2 * mtu + 5, memory.size() - 100 - 2 * mtu - 5));
  const auto received = pair.take_received();
  ASSERT_EQ(1U, received.size());
  EXPECT_EQ(100U, received[0].offset);
  EXPECT_EQ(2 * mtu + 5, received[0].bytes);
  EXPECT_EQ(0xabcdU, received[0].immediate);
  EXPECT_TRUE(pair.take_received().empty());
  const auto answers = packets(pair);
  ASSERT_EQ(1U, answers.size());
  EXPECT_EQ("ack 502/1", words(answers[0]));
  EXPECT_EQ(0x22U, answers[0].bth.destination_qp);
  EXPECT_TRUE(answers[0].payload.empty());
  EXPECT_EQ(3U, pair.counters().packets_received);
  EXPECT_EQ(1U, pair.counters().messages_received);
  EXPECT_EQ(1U, pair.counters().acks_sent);
  EXPECT_EQ(0U, pair.counters().packets_sent);
}

TEST_F(QueuePairTest, OneAckABatchNamesTheNewestPacketThatAsked) {
  QueuePair pair(config());
  give(pair, message(0x500, mtu));
  give(pair, message(0x501, 2 * mtu));
  auto third = message(0x503, 3 * mtu);
  give(pair, std::span(third).first(2));
  EXPECT_EQ("ack 502/2", sent(pair));
  EXPECT_EQ("", sent(pair));
  third[2].bth.ack_request = false;
  pair.on_packet(third[2], now);
  EXPECT_EQ("", sent(pair));
  EXPECT_EQ(3U, pair.take_received().size());
}

TEST_F(QueuePairTest, DuplicatesAreAcknowledgedAgainAndNotWritten) {
  QueuePair pair(config());
  const auto first = message(0x500, 2 * mtu), second = message(0x502, 3 * mtu, 4 * mtu);
  give(pair, first);
  give(pair, std::span(second).first(1));
  EXPECT_EQ("ack 501/1", sent(pair));
  std::fill(memory.begin(), memory.end(), std::byte{0xee});
  give(pair, first);
  EXPECT_EQ("ack 502/1", sent(pair)) << "once, with the newest PSN";
  give(pair, std::span(second).first(1));
  EXPECT_EQ("ack 502/1", sent(pair)) << "though it did not ask";
  EXPECT_TRUE(memory_untouched(0, memory.size()));
  EXPECT_EQ(3U, pair.counters().duplicates);
  EXPECT_EQ(1U, pair.take_received().size());
}

TEST_F(QueuePairTest, NothingIsAcknowledgedThatWasNeverReceived) {
  QueuePair pair(config());
  give(pair, message(0x4ff, mtu));
  EXPECT_EQ("", sent(pair));
  give(pair, message(0x500, mtu));
  EXPECT_EQ("ack 500/1", sent(pair));
  give(pair, message(0x4ff, mtu));
  EXPECT_EQ("", sent(pair));
  EXPECT_EQ(2U, pair.counters().foreign);
}

TEST_F(QueuePairTest, AGapIsToldOnceAndWhatIsBehindItIsDropped) {
  QueuePair pair(config());
  const auto all = message(0x500, 8 * mtu);
  give(pair, std::span(all).first(2));
  give(pair, std::span(all).subspan(3, 2));
  EXPECT_EQ("nak60 502/0", sent(pair));
  give(pair, std::span(all).subspan(5));
  EXPECT_EQ("", sent(pair));
  EXPECT_EQ(5U, pair.counters().out_of_order);
  EXPECT_TRUE(memory_untouched(2 * mtu, 6 * mtu));

  // The sender goes back, and loses another: a NAK for that one.
  give(pair, std::span(all).subspan(2, 2));
  EXPECT_EQ("", sent(pair));
  give(pair, std::span(all).subspan(5, 1));
  EXPECT_EQ("nak60 504/0", sent(pair));
  give(pair, std::span(all).subspan(4));
  EXPECT_EQ("ack 507/1", sent(pair));
  EXPECT_TRUE(memory_holds(0, 8 * mtu));
  EXPECT_EQ(2U, pair.counters().naks_sent);
}

TEST_F(QueuePairTest, ALostFirstPacketIsAGapToo) {
  QueuePair pair(config());
  const auto all = message(0x500, 2 * mtu);
  pair.on_packet(all[1], now);
  EXPECT_EQ("nak60 500/0", sent(pair));
}

TEST_F(QueuePairTest, PacketsThatChangePlacesInABatchAskForWhatWasDropped) {
  QueuePair pair(config());
  const auto all = message(0x500, 6 * mtu);
  pair.on_packet(all[1], now);
  pair.on_packet(all[0], now);
  EXPECT_EQ("nak60 501/0", sent(pair)) << "501 came, and was dropped";
  give(pair, std::span(all).subspan(1, 2));
  pair.on_packet(all[4], now);
  give(pair, std::span(all).subspan(3, 3));
  EXPECT_EQ("ack 505/1", sent(pair)) << "the gap is closed already";
}

TEST_F(QueuePairTest, ANakStandsForTheAck) {
  QueuePair pair(config());
  give(pair, message(0x500, mtu));
  give(pair, message(0x502, mtu));
  EXPECT_EQ("nak60 501/1", sent(pair));
  EXPECT_EQ("", sent(pair));
}

TEST_F(QueuePairTest, PsnsWrapWhileReceiving) {
  QueuePairConfig c = config();
  c.receive_psn = 0xfffffe;
  QueuePair pair(c);
  const auto all = message(0xfffffe, 4 * mtu);
  give(pair, std::span(all).first(2));
  pair.on_packet(all[3], now);
  EXPECT_EQ("nak60 0/0", sent(pair));
  give(pair, std::span(all).subspan(1));
  EXPECT_EQ("ack 1/1", sent(pair));
  EXPECT_TRUE(memory_holds(0, 4 * mtu));
  EXPECT_EQ(1U, pair.counters().duplicates);
}

TEST_F(QueuePairTest, AWriteWithoutImmediateIsTakenAndNotTold) {
  QueuePair pair(config());
  auto all = message(0x500, 2 * mtu);
  all[1].bth.opcode = Opcode::rc_write_last;
  give(pair, all);
  EXPECT_EQ("ack 501/1", sent(pair));
  EXPECT_TRUE(memory_holds(0, 2 * mtu));
  EXPECT_TRUE(pair.take_received().empty());
  EXPECT_EQ(1U, pair.counters().messages_received);
}

TEST_F(QueuePairTest, AWriteOfNothingIsOnlyItsImmediate) {
  QueuePair pair(config());
  auto packet = from_peer(Opcode::rc_write_only_immediate, 0x500);
  packet.bth.ack_request = true;
  packet.immediate = 9;
  pair.on_packet(packet, now);
  EXPECT_EQ("ack 500/1", sent(pair));
  const auto received = pair.take_received();
  ASSERT_EQ(1U, received.size());
  EXPECT_EQ(0U, received[0].bytes);
  EXPECT_EQ(9U, received[0].immediate);
}

TEST_F(QueuePairTest, RequestsThatBreakARuleAreRefusedAndWriteNothing) {
  using Change = void (*)(std::vector<wire::roce::Packet>&);
  struct Case {
    const char* what;
    std::uint8_t syndrome;
    std::size_t before;  // packets of the message that are given, and taken, first
    Change change;
  };
  const Case cases[] = {
      {"another key", 0x62, 0, [](auto& all) { all[0].reth.key ^= 1; }},
      {"before the memory", 0x62, 0, [](auto& all) { all[0].reth.address = 0x6fff; }},
      {"behind the memory", 0x62, 0, [](auto& all) { all[0].reth.address = 0x7000 + 16 * mtu + 1; }},
      {"across its end", 0x62, 0, [](auto& all) { all[0].reth.address = 0x7000 + 13 * mtu + 1; }},
      {"longer than it", 0x62, 0, [](auto& all) { all[0].reth.length = 16 * mtu + 1; }},
      {"across the end of the address space", 0x62, 0, [](auto& all) { all[0].reth.address = ~std::uint64_t{0}; }},
      {"around it", 0x62, 0,
       [](auto& all) {
         all[0].reth = {~std::uint64_t{0}, 0xbeef, 0x7100};
       }},
      {"longest", 0x62, 0, [](auto& all) { all[0].reth.length = 0xffffffff; }},
      {"first, short", 0x61, 0, [](auto& all) { all[0].payload = all[0].payload.first(mtu - 4); }},
      {"first of one packet's length", 0x61, 0, [](auto& all) { all[0].reth.length = mtu; }},
      {"first of no length", 0x61, 0, [](auto& all) { all[0].reth.length = 0; }},
      {"only, of two packets' length", 0x61, 0, [](auto& all) { all[0].bth.opcode = Opcode::rc_write_only_immediate; }},
      {"middle without a first", 0x61, 0, [](auto& all) { all[0].bth.opcode = Opcode::rc_write_middle; }},
      {"last without a first", 0x61, 0, [](auto& all) { all[0].bth.opcode = Opcode::rc_write_last_immediate; }},
      {"middle, short", 0x61, 1, [](auto& all) { all[1].payload = all[1].payload.first(mtu - 4); }},
      {"middle, empty", 0x61, 1, [](auto& all) { all[1].payload = {}; }},
      {"first inside a message", 0x61, 1,
       [](auto& all) {
         all[1].bth.opcode = Opcode::rc_write_first;
         all[1].reth = all[0].reth;
       }},
      {"only inside a message", 0x61, 1,
       [](auto& all) {
         all[1].bth.opcode = Opcode::rc_write_only;
         all[1].reth = {0x7000, 0xbeef, mtu};
       }},
      {"last too early", 0x61, 1, [](auto& all) { all[1].bth.opcode = Opcode::rc_write_last_immediate; }},
      {"middle too late", 0x61, 2, [](auto& all) { all[2].bth.opcode = Opcode::rc_write_middle; }},
      {"last, short", 0x61, 2, [](auto& all) { all[2].payload = all[2].payload.first(mtu - 1); }},
      {"last, empty", 0x61, 2, [](auto& all) { all[2].payload = {}; }},
      {"send", 0x61, 0, [](auto& all) { all[0].bth.opcode = Opcode::rc_send_first; }},
      {"send inside a message", 0x61, 1, [](auto& all) { all[1].bth.opcode = Opcode::rc_send_middle; }},
      {"read", 0x61, 0, [](auto& all) { all[0].bth.opcode = Opcode::rc_read_request; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    std::fill(memory.begin(), memory.end(), std::byte{0xee});
    QueuePair pair(config());
    const auto good = message(0x500, 3 * mtu);
    auto bad = good;
    c.change(bad);
    give(pair, std::span(good).first(c.before));
    pair.on_packet(bad[c.before], now);
    std::ostringstream expected;
    expected << std::hex << "nak" << int{c.syndrome} << ' ' << 0x500 + c.before << "/0";
    EXPECT_EQ(expected.str(), sent(pair));
    give(pair, std::span(good).subspan(c.before + 1));
    EXPECT_EQ("", sent(pair)) << "what is behind it is dropped silently";
    EXPECT_EQ(1U, pair.counters().refused);
    EXPECT_TRUE(memory_untouched(c.before * mtu, memory.size() - c.before * mtu));
    EXPECT_TRUE(pair.take_received().empty());

    give(pair, std::span(good).subspan(c.before));
    EXPECT_EQ("ack 502/1", sent(pair)) << "the right packet is taken";
    EXPECT_TRUE(memory_holds(0, 3 * mtu));
  }
}

TEST_F(QueuePairTest, AMessageMayFillTheMemoryToItsLastByte) {
  QueuePair pair(config());
  give(pair, message(0x500, 16 * mtu));
  give(pair, message(0x510, 3, 16 * mtu - 3));
  EXPECT_EQ("ack 510/2", sent(pair));
}

TEST_F(QueuePairTest, WithoutMemoryEveryWriteIsRefused) {
  QueuePairConfig c = config();
  c.memory = {};
  QueuePair pair(c);
  give(pair, message(0x500, 1));
  EXPECT_EQ("nak62 500/0", sent(pair));
}

TEST_F(QueuePairTest, WhatIsNotThePeersIsForeign) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(1)));
  sent(pair);
  using Change = void (*)(wire::roce::Packet&);
  const Change changes[] = {
      [](auto& p) { p.ip.source = ipv4(3); },
      [](auto& p) { p.ip.destination = ipv4(3); },
      [](auto& p) { std::swap(p.ip.source, p.ip.destination); },  // its own, come back
      [](auto& p) { p.ip.source = ipv6(2); },
      [](auto& p) { p.bth.destination_qp = 0x22; },
  };
  for (const Change change : changes) {
    for (wire::roce::Packet packet :
         {from_peer(Opcode::rc_acknowledge, 0x100), message(0x500, 1)[0], from_peer(Opcode::congestion_notification, 0)}) {
      change(packet);
      pair.on_packet(packet, now);
    }
  }
  for (const auto opcode : {Opcode::rc_read_response_only, Opcode::rc_read_response_middle, Opcode::uc_write_only_immediate,
                            Opcode::uc_send_only}) {
    pair.on_packet(from_peer(opcode, 0x500), now);
  }
  EXPECT_EQ(19U, pair.counters().foreign);
  EXPECT_EQ(0U, pair.completed());
  EXPECT_EQ("", sent(pair));
}

// ---- congestion

TEST_F(QueuePairTest, AMarkedPacketIsAnsweredWithANotificationOncePerInterval) {
  QueuePair pair(config());
  auto all = message(0x500, 6 * mtu);
  for (auto& packet : all) packet.ip.traffic_class = 3;
  give(pair, std::span(all).first(2));
  const auto answers = packets(pair);
  ASSERT_EQ(1U, answers.size());
  const wire::roce::Packet& told = answers[0];
  EXPECT_EQ(Opcode::congestion_notification, told.bth.opcode);
  EXPECT_TRUE(told.bth.becn);
  EXPECT_EQ(0x22U, told.bth.destination_qp);
  EXPECT_EQ(0U, told.bth.psn);
  EXPECT_TRUE(std::ranges::equal(std::vector<std::byte>(16), told.payload));
  now += 49us;
  give(pair, std::span(all).subspan(2, 1));
  EXPECT_EQ("", sent(pair));
  now += 1us;
  EXPECT_EQ("", sent(pair)) << "what was marked before tells of nothing new";
  all[3].ip.traffic_class = 2;
  give(pair, std::span(all).subspan(3, 1));
  EXPECT_EQ("", sent(pair));
  give(pair, std::span(all).subspan(4, 2));
  EXPECT_EQ("cnp ack 505/1", sent(pair));
  EXPECT_EQ(5U, pair.counters().marked);
  EXPECT_EQ(2U, pair.counters().notifications_sent);
}

TEST_F(QueuePairTest, WithoutCongestionControlMarksAndNotificationsChangeNothing) {
  QueuePairConfig c = config();
  c.congestion_control = false;
  QueuePair pair(c);
  auto marked = message(0x500, mtu);
  marked[0].ip.traffic_class = 3;
  give(pair, marked);
  EXPECT_EQ("ack 500/1", sent(pair));
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  for (const auto& packet : packets(pair)) EXPECT_EQ(0, packet.ip.traffic_class);
  now += 100us;
  acknowledge(pair, 0x101);
  notify(pair);
  ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  EXPECT_EQ("F112 L113?", sent(pair));
}

// 20 packets in flight in 100 us are 5 us for each; half of the rate is left. What is due already leaves at once.
TEST_F(QueuePairTest, ANotificationSpacesPackets) {
  QueuePair pair(config());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(post(pair, bytes(mtu)));
  for (const auto& packet : packets(pair)) EXPECT_EQ(2, packet.ip.traffic_class) << "ECT(0)";
  notify(pair);
  now += 100us;
  acknowledge(pair, 0x100 + 19);
  ASSERT_TRUE(post(pair, bytes(mtu)));
  EXPECT_EQ("O114?", sent(pair)) << "nothing is known of the path before its first round trip";
  notify(pair);
  for (int i = 0; i < 19; ++i) ASSERT_TRUE(post(pair, bytes(mtu)));
  EXPECT_EQ(11U, packets(pair).size()) << "100 us late, and one";
  EXPECT_EQ(now + 10us, pair.next_timeout());
  now += 9us;
  pair.on_timer(now);
  EXPECT_EQ("", sent(pair));
  now += 1us;
  pair.on_timer(now);
  EXPECT_EQ("O120?", sent(pair));
  QueuePair copy(pair);
  for (QueuePair* each : {&pair, &copy}) EXPECT_EQ(now + 10us, each->next_timeout());
  EXPECT_EQ(0U, pair.counters().timeouts);
  EXPECT_EQ(2U, pair.counters().notifications_received);
}

// ---- value

TEST_F(QueuePairTest, ACopyGoesOnByItself) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(3 * mtu)));
  sent(pair);
  const auto incoming = message(0x500, 3 * mtu);
  give(pair, std::span(incoming).first(1));

  QueuePair copy(pair);
  const auto state = [](const QueuePair& p) {
    std::vector<std::byte> out;
    p.append_state(out);
    return out;
  };
  EXPECT_EQ(state(pair), state(copy));
  std::vector<std::byte> other_memory = memory, other_message(source.begin(), source.begin() + 3 * mtu);
  copy.move_memory(other_memory);
  copy.move_message(0, other_message);
  EXPECT_EQ(state(pair), state(copy));

  give(copy, std::span(incoming).subspan(1));
  EXPECT_NE(state(pair), state(copy));
  EXPECT_TRUE(memory_untouched(mtu, 2 * mtu));
  EXPECT_TRUE(std::equal(other_memory.begin(), other_memory.begin() + 3 * mtu, source.begin()));
  EXPECT_EQ("ack 502/1", sent(copy));
  EXPECT_EQ("", sent(pair));
  acknowledge(copy, 0x102);
  EXPECT_EQ(1U, copy.completed());
  EXPECT_EQ(0U, pair.completed());

  pair = copy;
  EXPECT_EQ(state(pair), state(copy));
  EXPECT_EQ(1U, pair.completed());
}

TEST_F(QueuePairTest, StateIsWhatDecidesAndNotTheTime) {
  const auto state = [&](Duration after) {
    now = Time{1s};
    QueuePair pair(config());
    EXPECT_TRUE(post(pair, bytes(2 * mtu)));
    now += after;
    sent(pair);
    now += after;
    acknowledge(pair, 0x100);
    std::vector<std::byte> out;
    pair.append_state(out);
    return out;
  };
  EXPECT_EQ(state(1us), state(7ms));
}

// ---- single repeats

class SelectiveQueuePairTest : public QueuePairTest {
 protected:
  QueuePairConfig selective() {
    QueuePairConfig c = config();
    c.selective = true;
    c.max_packets = 16;
    return c;
  }
  void ask(QueuePair& pair, std::uint32_t psn, std::uint32_t count, std::uint8_t syndrome = Aeth::repeat_request) {
    wire::roce::Packet packet = from_peer(Opcode::rc_acknowledge, psn);
    packet.aeth = {syndrome, count};
    pair.on_packet(packet, now);
  }
};

TEST_F(SelectiveQueuePairTest, KeepsWhatIsBehindAGapAndAsksForTheGapOnly) {
  QueuePair pair(selective());
  const auto all = message(0x500, 6 * mtu);
  give(pair, std::span(all).first(1));
  give(pair, std::span(all).subspan(3, 1));
  EXPECT_EQ("nak7e 501/2", sent(pair)) << "two packets from 0x501 on";
  give(pair, std::span(all).subspan(5, 1));
  EXPECT_EQ("nak7e 504/1", sent(pair));
  give(pair, std::span(all).subspan(5, 1));
  EXPECT_EQ("", sent(pair)) << "a duplicate of what is kept";
  EXPECT_TRUE(pair.take_received().empty());
  give(pair, std::span(all).subspan(4, 1));
  give(pair, std::span(all).subspan(1, 2));
  ASSERT_EQ(1U, pair.take_received().size());
  EXPECT_TRUE(memory_holds(0, 6 * mtu));
  EXPECT_EQ("ack 505/1", sent(pair));
  const QueuePairCounters& c = pair.counters();
  EXPECT_EQ(6U, c.packets_received);
  EXPECT_EQ(1U, c.duplicates);
  EXPECT_EQ(2U, c.repeat_requests_sent);
  EXPECT_EQ(0U, c.naks_sent + c.out_of_order + c.refused);
  EXPECT_EQ(never, pair.next_timeout());
}

// With the owner's leave, whether it came in order or behind a gap. Longer ones are in the memory.
TEST_F(SelectiveQueuePairTest, AMessageOfOnePacketNeedsNoMemory) {
  QueuePairConfig single = selective();
  single.singles_in_packets = true;
  QueuePair pair(single);
  const auto first = message(0x500, mtu), second = message(0x501, mtu, mtu), longer = message(0x502, 2 * mtu, 2 * mtu);
  give(pair, second);
  EXPECT_TRUE(pair.take_received().empty());
  give(pair, first);
  const auto singles = pair.take_received();
  ASSERT_EQ(2U, singles.size());
  for (const Received& each : singles) {
    EXPECT_EQ(mtu, each.bytes);
    EXPECT_TRUE(std::ranges::equal(bytes(mtu), each.content));
  }
  EXPECT_EQ(mtu, singles[1].offset);
  EXPECT_TRUE(memory_untouched(0, 2 * mtu));
  give(pair, longer);
  const auto rest = pair.take_received();
  ASSERT_EQ(1U, rest.size());
  EXPECT_TRUE(rest[0].content.empty());
  EXPECT_TRUE(memory_holds(2 * mtu, 2 * mtu));
}

TEST_F(SelectiveQueuePairTest, AsksAgainForWhatStaysMissing) {
  QueuePair pair(selective());
  const auto all = message(0x500, 6 * mtu);
  give(pair, std::span(all).subspan(2, 1));
  give(pair, std::span(all).subspan(4, 1));
  EXPECT_EQ("nak7e 500/2 nak7e 503/1", sent(pair));
  const Time first = pair.next_timeout();
  ASSERT_EQ(now + config().initial_timeout, first);
  now = first;
  pair.on_timer(now);
  EXPECT_EQ("nak7f 500/2 nak7f 503/1", sent(pair));
  EXPECT_GE(pair.next_timeout(), now + 2 * config().initial_timeout) << "ever more patient";
  give(pair, std::span(all).first(2));
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ("nak7f 503/1", sent(pair));
}

TEST_F(SelectiveQueuePairTest, DropsWhatIsBeyondItsMemory) {
  QueuePair pair(selective());
  const auto all = message(0x500, 15 * mtu);
  give(pair, std::span(all).subspan(14, 1));
  EXPECT_EQ("nak7e 500/e", sent(pair));
  auto far = from_peer(Opcode::rc_write_middle, 0x510);
  far.payload = bytes(mtu);
  pair.on_packet(far, now);
  EXPECT_EQ(1U, pair.counters().out_of_order);
  EXPECT_EQ("", sent(pair));
}

// What was kept is checked when its turn comes, as everything else.
TEST_F(SelectiveQueuePairTest, RefusesWhatItKeptInVain) {
  QueuePair pair(selective());
  auto all = message(0x500, 2 * mtu);
  auto second = message(0x502, mtu);
  second[0].reth.key = 1;
  give(pair, second);
  static_cast<void>(sent(pair));
  give(pair, all);
  EXPECT_EQ(1U, pair.take_received().size());
  EXPECT_EQ(1U, pair.counters().refused);
  EXPECT_EQ("nak62 502/1", sent(pair));
}

TEST_F(SelectiveQueuePairTest, RepeatsWhatItIsAskedForAndNothingElse) {
  QueuePair pair(selective());
  ASSERT_TRUE(post(pair, bytes(6 * mtu)));
  EXPECT_EQ("F100 M101 M102 M103 M104 L105?", sent(pair));
  ask(pair, 0x101, 2);
  ask(pair, 0x104, 1, Aeth::repeat_again);
  EXPECT_EQ("M101? M102? M104?", sent(pair));
  EXPECT_EQ("", sent(pair));
  acknowledge(pair, 0x102);
  ask(pair, 0x100, 4);
  EXPECT_EQ("M103?", sent(pair)) << "the others are acknowledged";
  ask(pair, 0x100, 2);
  ask(pair, 0x106, 5);
  ask(pair, 0xfffff0, 0x110);
  EXPECT_EQ("", sent(pair)) << "all of it is acknowledged, or was never sent";
  EXPECT_EQ(3U, pair.counters().stale_acks);
  EXPECT_EQ(3U, pair.counters().repeat_requests_received);
  EXPECT_EQ(4U, pair.counters().retransmissions);
  EXPECT_EQ(0U, pair.completed()) << "a request acknowledges nothing";
}

// After a time-out one packet is repeated at a time: the peer has kept the others.
TEST_F(SelectiveQueuePairTest, ATimeOutRepeatsOneGapAfterTheOther) {
  QueuePair pair(selective());
  ASSERT_TRUE(post(pair, bytes(4 * mtu)));
  static_cast<void>(sent(pair));
  now = pair.next_timeout();
  pair.on_timer(now);
  EXPECT_EQ("F100?", sent(pair));
  acknowledge(pair, 0x101);
  EXPECT_EQ("M102?", sent(pair));
  acknowledge(pair, 0x103);
  EXPECT_EQ("", sent(pair));
  EXPECT_EQ(1U, pair.completed());
}

// Without the extension, a reserved NAK code is an error of the peer's.
TEST_F(SelectiveQueuePairTest, OthersDoNotKnowRequests) {
  QueuePair pair(config());
  ASSERT_TRUE(post(pair, bytes(2 * mtu)));
  static_cast<void>(sent(pair));
  ask(pair, 0x100, 1);
  EXPECT_EQ(QueuePairError::remote_operation, pair.error());
}

}  // namespace
}  // namespace netsum::roce
