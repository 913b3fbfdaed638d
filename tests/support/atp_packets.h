// ATP packets made and read by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/packet_io.h"
#include "support/recording_sink.h"
#include "wire/atp.h"

namespace netsum::testing {

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

[[nodiscard]] inline Endpoint port(std::uint16_t number) {
  Endpoint endpoint;
  endpoint.port = number;
  return endpoint;
}

[[nodiscard]] inline wire::atp::Ranks ranks_of(std::initializer_list<std::uint32_t> list) {
  wire::atp::Ranks ranks;
  for (const std::uint32_t rank : list) ranks.insert(rank);
  return ranks;
}

using Bytes = std::vector<std::byte>;

[[nodiscard]] inline Bytes gradient_bytes_of(wire::atp::Common common, const wire::atp::Directions& directions,
                                             const std::vector<std::int32_t>& values,
                                             const std::vector<std::int16_t>& high = {}) {
  common.type = wire::atp::Type::gradient;
  common.elements = static_cast<std::uint16_t>(values.size());
  common.wide = !high.empty();
  Bytes packet(wire::atp::gradient_bytes(common, directions));
  wire::atp::write_gradient_header(packet, common, directions);
  std::byte* at = packet.data() + wire::atp::header_bytes(directions);
  for (const std::int32_t value : values) store_le(std::exchange(at, at + 4), static_cast<std::uint32_t>(value));
  for (const std::int16_t word : high) store_le(std::exchange(at, at + 2), static_cast<std::uint16_t>(word));
  wire::atp::seal(packet);
  return packet;
}

// parameter, ask, done.
[[nodiscard]] inline Bytes parameter_bytes_of(wire::atp::Common common, std::uint32_t next_index = 0,
                                              const std::vector<std::int32_t>& values = {}) {
  common.elements = static_cast<std::uint16_t>(values.size());
  Bytes packet(wire::atp::parameter_bytes(common));
  wire::atp::write_parameter_header(packet, common, next_index);
  std::byte* at = packet.data() + wire::atp::parameter_header_bytes;
  for (const std::int32_t value : values) store_le(std::exchange(at, at + 4), static_cast<std::uint32_t>(value));
  wire::atp::seal(packet);
  return packet;
}

// A packet with all its parts, by whatever type it has.
struct AnyPacket {
  wire::ParseError error = wire::ParseError::none;
  Endpoint to;
  wire::atp::Common common;
  wire::atp::Directions directions;
  std::vector<std::int32_t> values;
  std::vector<std::int16_t> high;
  std::uint32_t next_index = 0;
  wire::atp::Ranks missing;
  wire::atp::MismatchPacket mismatch;
};

[[nodiscard]] inline AnyPacket read_packet(const Bytes& bytes, const Endpoint& to = {}) {
  using wire::atp::Type;
  AnyPacket read;
  read.to = to;
  read.error = wire::atp::parse_common(bytes, read.common);
  if (read.error != wire::ParseError::none) return read;
  const auto keep = [&](std::span<const std::byte> payload) {
    for (std::size_t i = 0; i < payload.size(); i += 4) {
      read.values.push_back(static_cast<std::int32_t>(load_le<std::uint32_t>(payload.data() + i)));
    }
  };
  switch (read.common.type) {
    case Type::gradient: {
      wire::atp::GradientPacket gradient;
      read.error = wire::atp::parse_gradient(bytes, read.common, gradient);
      read.directions = gradient.directions;
      keep(gradient.payload);
      for (std::size_t i = 0; i < gradient.high.size() && i / 2 < read.common.elements; i += 2) {
        read.high.push_back(static_cast<std::int16_t>(load_le<std::uint16_t>(gradient.high.data() + i)));
      }
      break;
    }
    case Type::parameter:
    case Type::ask:
    case Type::done: {
      wire::atp::ParameterPacket parameter;
      read.error = wire::atp::parse_parameter(bytes, read.common, parameter);
      read.next_index = parameter.next_index;
      keep(parameter.payload);
      break;
    }
    case Type::waiting: {
      wire::atp::WaitingPacket waiting;
      read.error = wire::atp::parse_waiting(bytes, read.common, waiting);
      read.missing = waiting.missing;
      break;
    }
    case Type::mismatch:
      read.error = wire::atp::parse_mismatch(bytes, read.common, read.mismatch);
      break;
    case Type::unknown_job:
      break;
  }
  return read;
}

// What was sent since the last call, in order; every packet can be read.
[[nodiscard]] inline std::vector<AnyPacket> take_packets(RecordingSink& sink) {
  std::vector<AnyPacket> packets;
  for (const Datagram& each : sink.take()) {
    packets.push_back(read_packet(each.bytes, each.to));
    EXPECT_EQ(packets.back().error, wire::ParseError::none);
  }
  return packets;
}

}  // namespace netsum::testing
