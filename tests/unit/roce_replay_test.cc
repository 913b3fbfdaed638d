// Queue pairs in the place of soft-RoCE's (tests/data/roce): the recorded requester's packets to our responder, which must
// answer as the recorded one did; the recorded answers to our requester, which must send what the recorded one sent.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "protocol/roce/queue_pair.h"
#include "support/pcap.h"
#include "support/recording_packet_sink.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace netsum::roce {
namespace {

using wire::roce::Aeth;
using wire::roce::Opcode;
using wire::roce::Packet;

std::array<std::uint8_t, 16> host(std::uint8_t number) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number};
}

struct Frame {
  Time time;
  std::vector<std::byte> bytes;
  Packet packet;  // refers to bytes
  bool intact = false;
};

std::vector<Frame> read(const std::string& capture) {
  std::vector<Frame> frames;
  for (auto& captured : testing::read_pcap(NETSUM_TEST_DATA "/roce/" + capture + ".pcap")) {
    Frame frame{Time(std::chrono::nanoseconds(captured.time_ns)), std::move(captured.bytes), {}};
    const auto ip = std::span(frame.bytes).subspan(wire::ethernet::header_bytes);
    EXPECT_EQ(wire::ParseError::none, wire::roce::parse(ip, frame.packet));
    frame.intact = wire::roce::icrc_valid(ip.first(wire::roce::packet_bytes(ip)));
    frames.push_back(std::move(frame));
  }
  return frames;
}

// What was sent since the last call.
struct Taken {
  explicit Taken(testing::RecordingPacketSink& sink) : bytes(sink.take()), packets(bytes.size()) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_EQ(wire::ParseError::none, wire::roce::parse(bytes[i], packets[i]));
    }
  }
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Packet> packets;  // refer to bytes
};

// A connection of a capture, seen from one of its ends.
struct Connection {
  std::vector<Frame> frames;
  std::uint8_t requester = 1, responder = 2;

  [[nodiscard]] bool is_request(const Frame& frame) const {
    return frame.packet.ip.source == host(requester) && frame.packet.ip.destination == host(responder) &&
           wire::roce::shape_of(frame.packet.bth.opcode).request;
  }
  [[nodiscard]] bool is_answer(const Frame& frame) const {
    return frame.packet.ip.source == host(responder) && frame.packet.ip.destination == host(requester) &&
           frame.packet.bth.opcode == Opcode::rc_acknowledge;
  }

  // Of one end, but for the messages: QPNs, PSNs, the responder's memory and path MTU are in the packets.
  [[nodiscard]] QueuePairConfig config(bool as_responder) const {
    QueuePairConfig c;
    c.local = host(as_responder ? responder : requester);
    c.remote = host(as_responder ? requester : responder);
    std::uint64_t begin = ~std::uint64_t{0}, end = 0;
    std::uint32_t mtu = 0;
    bool first = true;
    for (const Frame& frame : frames) {
      const Packet& packet = frame.packet;
      if (is_answer(frame)) {
        (as_responder ? c.remote_qp : c.local_qp) = packet.bth.destination_qp;
        if (as_responder) c.source_port = packet.source_port;
      } else if (is_request(frame)) {
        (as_responder ? c.local_qp : c.remote_qp) = packet.bth.destination_qp;
        if (!as_responder) c.source_port = packet.source_port;
        if (first) (as_responder ? c.receive_psn : c.send_psn) = packet.bth.psn;
        first = false;
        mtu = std::max(mtu, static_cast<std::uint32_t>(packet.payload.size()));
        if (packet.reth.length != 0) {
          begin = std::min(begin, packet.reth.address);
          end = std::max(end, packet.reth.address + packet.reth.length);
          c.memory_key = packet.reth.key;
        }
      }
    }
    c.mtu = mtu;
    c.memory_address = begin;
    memory_bytes = static_cast<std::size_t>(end - begin);
    c.max_packets = 128;  // soft-RoCE's
    return c;
  }
  mutable std::size_t memory_bytes = 0;
};

std::uint32_t recorded_word(std::uint32_t message, std::uint32_t i) {
  return 0x01000193U * (7919 * message + i + 1);
}

void expect_recorded_payload(std::span<const std::byte> bytes, std::uint32_t message) {
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    ASSERT_EQ(recorded_word(message, static_cast<std::uint32_t>(i / 4)), load_le<std::uint32_t>(bytes.data() + i));
  }
}

void expect_ring_sums(std::span<const std::byte> bytes, std::uint32_t message) {
  for (std::uint32_t i = 4; i < bytes.size() / 4; ++i) {
    ASSERT_EQ(6 * (1000 * message + i), load_le<std::uint32_t>(bytes.data() + std::size_t{i} * 4));
  }
}

std::string words(const Packet& packet) {
  char text[64];
  std::snprintf(text, sizeof text, "%02x %06x/%u", packet.aeth.syndrome, packet.bth.psn, packet.aeth.msn);
  return text;
}

// Returns the messages that were told.
template <class Check>
std::size_t replay_to_responder(const Connection& connection, Check check) {
  QueuePairConfig config = connection.config(true);
  std::vector<std::byte> memory(connection.memory_bytes);
  config.memory = memory;
  QueuePair pair(config);
  testing::RecordingPacketSink recorder;
  std::vector<std::string> expected, answered;
  std::size_t messages = 0;
  for (const Frame& frame : connection.frames) {
    if (connection.is_answer(frame)) {
      expected.push_back(words(frame.packet));
      EXPECT_EQ(config.remote_qp, frame.packet.bth.destination_qp);
    } else if (connection.is_request(frame) && frame.intact) {
      // One by one: soft-RoCE answers every packet by itself.
      pair.on_packet(frame.packet, frame.time);
      pair.send(frame.time, recorder);
      const Taken taken(recorder);
      for (const Packet& packet : taken.packets) {
        answered.push_back(words(packet));
        EXPECT_EQ(config.source_port, packet.source_port);
        EXPECT_EQ(config.remote_qp, packet.bth.destination_qp);
      }
      for (const Received& message : pair.take_received()) {
        EXPECT_EQ(messages, message.immediate);
        check(std::span(memory).subspan(message.offset, message.bytes), message.immediate);
        ++messages;
      }
    }
  }
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(expected, answered);
  EXPECT_EQ(0U, pair.counters().refused + pair.counters().foreign);
  return messages;
}

TEST(RoceReplay, OurResponderAnswersAsTheRecordedOneDid) {
  const std::map<std::string, std::size_t> captures = {
      {"rc_write", 0},  // has no immediate: nobody is told
      {"rc_write_imm", 4},
      {"rc_write_imm_only", 4},
      {"rc_write_imm_pad", 3},
      {"rc_write_imm_long", 2},
      {"rc_write_imm_wrap", 3},
      {"rc_write_imm_mtu256", 2},
      {"rc_write_imm_mtu4096", 4},
      {"rc_write_imm_dup.rx", 2},
      {"rc_write_imm_loss_ack.rx", 2},
      {"rc_write_imm_loss_first.rx", 4},
      {"rc_write_imm_loss_middle.rx", 4},
      {"rc_write_imm_loss_tail.rx", 2},
      {"rc_write_imm_loss_two.rx", 4},
      {"rc_write_imm_bad_icrc.rx", 2},
      {"rc_write_imm_spurious_timeout", 2},
  };
  for (const auto& [capture, messages] : captures) {
    SCOPED_TRACE(capture);
    EXPECT_EQ(messages, replay_to_responder(Connection{read(capture)}, expect_recorded_payload));
  }
}

TEST(RoceReplay, OurResponderAnswersAsTheRecordedOnesOfARingDid) {
  for (const std::string name :
       {"ring3_sum", "ring3_sum_loss_first", "ring3_sum_loss_last", "ring3_sum_loss_middle", "ring3_sum_loss_result"}) {
    for (std::uint8_t rank = 0; rank < 3; ++rank) {
      const std::string capture = name + ".link" + std::to_string(rank);
      SCOPED_TRACE(capture);
      const auto worker = static_cast<std::uint8_t>(rank + 1), predecessor = static_cast<std::uint8_t>((rank + 2) % 3 + 1);
      EXPECT_EQ(8U, replay_to_responder(Connection{read(capture), predecessor, worker}, expect_ring_sums));
    }
  }
}

// SEND and READ are answered, as by a NIC that has nothing for them.
TEST(RoceReplay, OurResponderRefusesWhatItDoesNotTake) {
  for (const std::string capture : {"rc_send", "rc_send_imm", "rc_read"}) {
    SCOPED_TRACE(capture);
    const std::vector<Frame> frames = read(capture);
    const Packet& first = frames.at(0).packet;
    QueuePairConfig config;
    config.local = host(2);
    config.remote = host(1);
    config.local_qp = first.bth.destination_qp;
    config.receive_psn = first.bth.psn;
    QueuePair pair(config);
    testing::RecordingPacketSink recorder;
    std::size_t from_requester = 0;
    for (const Frame& frame : frames) {
      if (frame.packet.ip.source != host(1)) continue;
      ++from_requester;
      pair.on_packet(frame.packet, frame.time);
    }
    pair.send(frames.back().time, recorder);
    const Taken answers(recorder);
    ASSERT_EQ(1U, answers.packets.size());
    EXPECT_EQ(Aeth::nak_invalid, answers.packets[0].aeth.syndrome);
    EXPECT_EQ(first.bth.psn, answers.packets[0].bth.psn);
    EXPECT_EQ(from_requester, pair.counters().refused + pair.counters().out_of_order + pair.counters().foreign);
  }
}

TEST(RoceReplay, UnreliableConnectionsAreForeign) {
  for (const std::string capture : {"uc_write", "uc_write_imm", "uc_write_imm_only", "uc_send"}) {
    SCOPED_TRACE(capture);
    const Connection connection{read(capture)};
    QueuePair pair(connection.config(true));
    testing::RecordingPacketSink recorder;
    for (const Frame& frame : connection.frames) pair.on_packet(frame.packet, frame.time);
    pair.send(connection.frames.back().time, recorder);
    EXPECT_TRUE(recorder.sent.empty());
    EXPECT_EQ(connection.frames.size(), pair.counters().foreign);
  }
}

// ---- requester

struct Message {
  std::vector<std::byte> bytes;
  wire::roce::Reth reth;
  std::uint32_t immediate = 0;
};

// The first time that each packet was sent, by distance from the first PSN; and the messages that they are.
std::vector<const Packet*> first_transmissions(const Connection& connection, std::uint32_t first_psn) {
  std::vector<const Packet*> packets;
  for (const Frame& frame : connection.frames) {
    if (!connection.is_request(frame)) continue;
    const std::int32_t number = wire::roce::psn_distance(first_psn, frame.packet.bth.psn);
    if (number == static_cast<std::int32_t>(packets.size())) packets.push_back(&frame.packet);
  }
  return packets;
}

std::vector<Message> messages_of(const std::vector<const Packet*>& packets) {
  std::vector<Message> messages;
  for (const Packet* packet : packets) {
    if (wire::roce::shape_of(packet->bth.opcode).first) messages.push_back({{}, packet->reth, 0});
    Message& message = messages.back();
    message.bytes.insert(message.bytes.end(), packet->payload.begin(), packet->payload.end());
    if (wire::roce::shape_of(packet->bth.opcode).last) message.immediate = packet->immediate;
  }
  return messages;
}

struct Replayed {
  QueuePairCounters counters;
  std::vector<std::uint32_t> repeated;  // PSNs
};

// Posts the recorded messages and hears the recorded answers at the recorded times.
Replayed replay_to_requester(const Connection& connection) {
  QueuePairConfig config = connection.config(false);
  const auto recorded = first_transmissions(connection, config.send_psn);
  const std::vector<Message> messages = messages_of(recorded);
  config.ack_interval = 66;
  QueuePair pair(config);
  for (const Message& message : messages) {
    EXPECT_TRUE(pair.post_write(message.bytes, message.reth.address, message.reth.key, message.immediate));
  }

  Replayed replayed;
  testing::RecordingPacketSink recorder;
  std::size_t sent = 0;
  const auto send = [&](Time now) {
    pair.send(now, recorder);
    const Taken taken(recorder);
    for (const Packet& packet : taken.packets) {
      if (wire::roce::psn_distance(config.send_psn, packet.bth.psn) < static_cast<std::int32_t>(sent)) {
        replayed.repeated.push_back(packet.bth.psn);
        continue;
      }
      ASSERT_LT(sent, recorded.size());
      const Packet& twin = *recorded[sent++];
      EXPECT_EQ(twin.bth.opcode, packet.bth.opcode);
      EXPECT_EQ(twin.bth.psn, packet.bth.psn);
      EXPECT_EQ(twin.bth.pad, packet.bth.pad);
      EXPECT_EQ(twin.bth.destination_qp, packet.bth.destination_qp);
      EXPECT_EQ(twin.bth.partition_key, packet.bth.partition_key);
      EXPECT_EQ(twin.reth, packet.reth);
      EXPECT_EQ(twin.immediate, packet.immediate);
      EXPECT_EQ(twin.source_port, packet.source_port);
      EXPECT_EQ(twin.udp_checksum, packet.udp_checksum);
      EXPECT_EQ(twin.ip.fragment, packet.ip.fragment);
      EXPECT_TRUE(std::equal(twin.payload.begin(), twin.payload.end(), packet.payload.begin(), packet.payload.end()));
      EXPECT_GE(packet.bth.ack_request, wire::roce::shape_of(packet.bth.opcode).last);
    }
  };
  send(connection.frames.front().time);
  for (const Frame& frame : connection.frames) {
    while (pair.next_timeout() <= frame.time) {
      const Time now = pair.next_timeout();
      pair.on_timer(now);
      send(now);
    }
    if (!connection.is_answer(frame)) continue;
    pair.on_packet(frame.packet, frame.time);
    send(frame.time);
  }
  EXPECT_EQ(recorded.size(), sent);
  EXPECT_EQ(messages.size(), pair.completed());
  EXPECT_EQ(QueuePairError::none, pair.error());
  replayed.counters = pair.counters();
  return replayed;
}

TEST(RoceReplay, OurRequesterSendsWhatTheRecordedOneSent) {
  for (const std::string capture : {"rc_write_imm", "rc_write_imm_only", "rc_write_imm_pad", "rc_write_imm_long",
                                    "rc_write_imm_wrap", "rc_write_imm_mtu256", "rc_write_imm_mtu4096"}) {
    SCOPED_TRACE(capture);
    const Replayed replayed = replay_to_requester(Connection{read(capture)});
    EXPECT_EQ(0U, replayed.counters.stale_acks + replayed.counters.foreign + replayed.counters.naks_received);
  }
}

TEST(RoceReplay, OurRequesterGoesBackWhereTheRecordedOneDid) {
  const std::map<std::string, std::vector<std::uint32_t>> captures = {{"rc_write_imm_loss_first", {0x1108}},
                                                                      {"rc_write_imm_loss_middle", {0x1003}},
                                                                      {"rc_write_imm_loss_two", {0x1403, 0x1405}},
                                                                      {"rc_write_imm_bad_icrc", {0x1602}}};
  for (const auto& [capture, naks] : captures) {
    SCOPED_TRACE(capture);
    const Replayed replayed = replay_to_requester(Connection{read(capture)});
    EXPECT_EQ(naks.size(), replayed.counters.naks_received);
    const std::set<std::uint32_t> repeated(replayed.repeated.begin(), replayed.repeated.end());
    for (const std::uint32_t psn : naks) EXPECT_EQ(1U, repeated.count(psn)) << std::hex << psn;
  }
}

// There the whole message came again; here its first packet, and then the one that was lost.
TEST(RoceReplay, OurRequesterFindsALostTailByItsTimer) {
  const Replayed replayed = replay_to_requester(Connection{read("rc_write_imm_loss_tail")});
  EXPECT_GT(replayed.counters.timeouts, 0U);
  const std::set<std::uint32_t> repeated(replayed.repeated.begin(), replayed.repeated.end());
  EXPECT_EQ((std::set<std::uint32_t>{0x1208, 0x120f}), repeated);
  EXPECT_EQ(0x120fU, replayed.repeated.back());
}

TEST(RoceReplay, OurRequesterRepeatsOnePacketForALostAck) {
  const Replayed replayed = replay_to_requester(Connection{read("rc_write_imm_loss_ack")});
  const std::set<std::uint32_t> repeated(replayed.repeated.begin(), replayed.repeated.end());
  EXPECT_EQ((std::set<std::uint32_t>{0x1300}), repeated);
  EXPECT_EQ(3U, replayed.counters.stale_acks) << "of the recorded one's duplicates";
}

TEST(RoceReplay, OurRequesterDoesNotRepeatAWindowThatWasOnlyLate) {
  const Replayed replayed = replay_to_requester(Connection{read("rc_write_imm_spurious_timeout")});
  EXPECT_LE(replayed.repeated.size(), 2U);
}

}  // namespace
}  // namespace netsum::roce
