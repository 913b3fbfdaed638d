// NetReduce's gradient packets made by hand, and an accelerator that they are given to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/packet_io.h"
#include "protocol/netreduce/accelerator.h"
#include "support/recording_sink.h"
#include "support/virtual_network.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::testing {

using Bytes = std::vector<std::byte>;

// A packet with a payload of its own.
struct Crafted {
  wire::roce::Packet packet;
  Bytes payload;

  // As it is on the wire, behind `ip_at` bytes of something else.
  [[nodiscard]] Bytes frame(std::size_t ip_at = 0) const {
    wire::roce::Packet whole = packet;
    whole.payload = payload;
    Bytes bytes(ip_at + wire::roce::packet_bytes(whole));
    for (std::size_t i = 0; i < ip_at; ++i) bytes[i] = static_cast<std::byte>(0xe0 + i);
    wire::roce::write(std::span(bytes).subspan(ip_at), whole);
    return bytes;
  }
};

// What the accelerator sent.
struct Sent {
  Endpoint to;
  Bytes frame;
  std::size_t ip_at = 0;

  [[nodiscard]] std::span<const std::byte> ip() const { return std::span(frame).subspan(ip_at); }
  [[nodiscard]] wire::roce::Packet packet() const {
    wire::roce::Packet packet;
    EXPECT_EQ(wire::ParseError::none, wire::roce::parse(ip(), packet));
    EXPECT_EQ(ip().size(), wire::roce::packet_bytes(ip()));
    EXPECT_TRUE(wire::roce::icrc_valid(ip()));
    return packet;
  }
  [[nodiscard]] netreduce::Connection connection() const {
    const wire::roce::Packet p = packet();
    return {p.ip.source, p.ip.destination, p.bth.destination_qp};
  }
};

// Nobody sends by reference here.
inline void look_for_frames(std::span<const Endpoint> /*to*/, bool multicast) {
  if (multicast) throw std::logic_error("a multicast was not expected");
}

[[nodiscard]] inline std::vector<Sent> take_frames(RecordingSink& sink, std::size_t ip_at = 0) {
  std::vector<Sent> sent;
  for (Datagram& each : sink.take()) sent.push_back({each.to, std::move(each.bytes), ip_at});
  return sent;
}

// The hosts of one ring: what they send, packet by packet. Values are made of rank, message and place alone.
class RingHosts {
 public:
  // The ring's connections are filled in, also where the accelerator is to learn them: `connections`.
  explicit RingHosts(const netreduce::RingConfig& c, std::uint8_t first_host = 1, std::uint32_t qp = 17)
      : config(c), memory_(netreduce::Accelerator::memory_bytes(c) / sizeof(CacheLine)) {
    for (std::uint32_t rank = 0; rank < c.members; ++rank) {
      const auto host = [&](std::uint32_t r) {
        return endpoint_of(static_cast<std::uint8_t>(first_host + r % c.members), 0);
      };
      connections.push_back({host(rank).address, host(rank + 1).address, qp});
      egress.push_back(host(rank + 1));
      first_psns.push_back(1000 * (rank + 1));
    }
    config.connections = connections;
  }

  [[nodiscard]] std::span<std::byte> memory() { return std::as_writable_bytes(std::span(memory_)); }

  // From now on the accelerator is to know on which connections receivers answer.
  void name_answers() {
    config.connections.clear();
    for (std::uint32_t rank = 0; rank < config.members; ++rank) {
      netreduce::Line& line = config.lines.emplace_back();
      line.connection = connections[rank];
      line.ranks.insert(rank);
      line.answers = netreduce::Connection{connections[rank].destination, connections[rank].source, send_qp};
    }
  }
  // The NAK of the rank's receiver, which misses that packet.
  [[nodiscard]] Crafted nak(std::uint32_t rank, std::uint64_t message, std::uint32_t packet) const {
    Crafted made;
    made.packet.ip.source = connections[rank].destination;
    made.packet.ip.destination = connections[rank].source;
    made.packet.bth.opcode = wire::roce::Opcode::rc_acknowledge;
    made.packet.bth.destination_qp = send_qp;
    made.packet.bth.psn = psn_of(rank, message, packet);
    made.packet.aeth = {wire::roce::Aeth::nak_sequence, static_cast<std::uint32_t>(message)};
    return made;
  }

  // Messages have as many packets as the ring's, unless said here.
  void set_packets(std::uint64_t message, std::uint32_t packets) { packets_[message] = packets; }
  [[nodiscard]] std::uint32_t packets_of(std::uint64_t message) const {
    const auto found = packets_.find(message);
    return found != packets_.end() ? found->second : config.message_packets;
  }
  [[nodiscard]] std::uint32_t psn_of(std::uint32_t rank, std::uint64_t message, std::uint32_t packet) const {
    std::uint64_t before = packet;
    for (std::uint64_t m = 0; m < message; ++m) before += packets_of(m);
    return static_cast<std::uint32_t>(first_psns[rank] + before) & wire::roce::psn_mask;
  }

  // What is in front of the values in a packet.
  [[nodiscard]] std::size_t skipped(std::uint32_t packet) const {
    return packet == 0 ? config.layout.header_bytes : config.layout.seals ? wire::netreduce::seal_bytes : 0;
  }
  [[nodiscard]] wire::netreduce::InaHeader header(std::uint32_t rank, std::uint64_t message) const {
    wire::netreduce::InaHeader h;
    h.ring = config.ring;
    h.rank = rank;
    h.message = message;
    h.packets = packets_of(message);
    h.signature = config.layout.signature.bytes == 0 ? 0 : static_cast<std::uint32_t>(7 * message + 1);
    return h;
  }

  // Floats of different magnitudes: their sum depends on the order.
  [[nodiscard]] static Bytes values(std::uint32_t rank, std::uint64_t message, std::uint32_t packet, std::size_t bytes) {
    Random random((std::uint64_t{rank} << 48) + (message << 16) + packet);
    Bytes made;
    while (made.size() < bytes) {
      const float value = (static_cast<float>(random.below(1U << 24)) - 0x1p23F) * (random.chance(0.5) ? 0x1p-20F : 0x1p-4F);
      append_bytes(made, std::bit_cast<std::uint32_t>(value));
    }
    return made;
  }

  // An RDMA WRITE with immediate, as a whole message's packet `packet`.
  [[nodiscard]] Crafted gradient(std::uint32_t rank, std::uint64_t message, std::uint32_t packet) const {
    using wire::roce::Opcode;
    const bool first = packet == 0, last = packet + 1 == packets_of(message);
    Crafted made;
    made.packet.ip.source = connections[rank].source;
    made.packet.ip.destination = connections[rank].destination;
    made.packet.ip.identification = static_cast<std::uint16_t>(100 * rank + 10 * message + packet);
    made.packet.source_port = static_cast<std::uint16_t>(0xc000 + rank);
    made.packet.bth.opcode = first ? (last ? Opcode::rc_write_only_immediate : Opcode::rc_write_first)
                                   : (last ? Opcode::rc_write_last_immediate : Opcode::rc_write_middle);
    made.packet.bth.destination_qp = connections[rank].destination_qp;
    made.packet.bth.psn = psn_of(rank, message, packet);
    made.packet.bth.ack_request = last;
    if (first) made.packet.reth = {0x7f0000001 + message, 0xabcd0000 + rank, packets_of(message) * config.mtu};
    if (last) made.packet.immediate = static_cast<std::uint32_t>(message);
    const std::size_t skip = skipped(packet);
    made.payload.resize(skip);
    if (first) wire::netreduce::write_header(config.layout, made.payload, header(rank, message));
    const Bytes numbers = values(rank, message, packet, config.mtu - skip);
    made.payload.insert(made.payload.end(), numbers.begin(), numbers.end());
    return made;
  }

  // The values that results of that packet must hold: float32, in rank order.
  [[nodiscard]] Bytes sum(std::uint64_t message, std::uint32_t packet) const {
    const std::size_t bytes = config.mtu - skipped(packet);
    Bytes total = values(0, message, packet, bytes);
    for (std::uint32_t rank = 1; rank < config.members; ++rank) {
      const Bytes more = values(rank, message, packet, bytes);
      for (std::size_t i = 0; i < bytes; i += 4) {
        const float added = std::bit_cast<float>(load_le<std::uint32_t>(total.data() + i)) +
                            std::bit_cast<float>(load_le<std::uint32_t>(more.data() + i));
        store_le(total.data() + i, std::bit_cast<std::uint32_t>(added));
      }
    }
    return total;
  }

  // What must leave for a packet that came in: the same but for seal, values and ICRC.
  [[nodiscard]] Crafted result(std::uint32_t rank, std::uint64_t message, std::uint32_t packet) const {
    Crafted made = gradient(rank, message, packet);
    if (config.layout.seals) {
      wire::netreduce::write_seal(made.payload, {config.incarnation, config.ring, message, packet, config.members});
    }
    const Bytes total = sum(message, packet);
    std::copy(total.begin(), total.end(), made.payload.begin() + static_cast<std::ptrdiff_t>(skipped(packet)));
    return made;
  }

  netreduce::RingConfig config;
  std::vector<netreduce::Connection> connections;  // by rank
  std::vector<Endpoint> egress;
  std::vector<std::uint32_t> first_psns;

 private:
  static constexpr std::uint32_t send_qp = 16;
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  std::vector<CacheLine> memory_;
  std::map<std::uint64_t, std::uint32_t> packets_;
};

// An accelerator, and what it did with the frames that it was given.
class Bump {
 public:
  using Verdict = netreduce::Accelerator::Verdict;

  Verdict give(std::span<const std::byte> frame, const Endpoint& egress, std::size_t ip_at = 0) {
    wire::roce::Packet packet;
    if (wire::roce::parse(frame.subspan(ip_at), packet) != wire::ParseError::none) throw std::logic_error("no RoCE packet");
    const Bytes copy(frame.begin(), frame.end());
    const Verdict verdict = accelerator.on_packet(packet, frame, ip_at, egress, now, sink_);
    EXPECT_TRUE(std::equal(frame.begin(), frame.end(), copy.begin())) << "what it is given stays as it is";
    accelerator.check();
    last_ip_at_ = ip_at;
    return verdict;
  }
  Verdict give(const Crafted& packet, const Endpoint& egress, std::size_t ip_at = 0) {
    return give(packet.frame(ip_at), egress, ip_at);
  }

  // What was sent since the last call.
  [[nodiscard]] std::vector<Sent> take() { return take_frames(sink_, last_ip_at_); }

  [[nodiscard]] Bytes state() const {
    Bytes bytes;
    accelerator.append_state(bytes);
    return bytes;
  }

  netreduce::Accelerator accelerator;
  void recorded(const netreduce::Connection& connection) { accelerator.recorded(connection, sink_); }

  Time now{};

 private:
  RecordingSink sink_{look_for_frames};
  std::size_t last_ip_at_ = 0;
};

}  // namespace netsum::testing
