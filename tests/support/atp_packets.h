// ATP packets made and read by hand, and a sink that keeps what is sent.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/packet_io.h"
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
  Bytes packet(wire::atp::gradient_bytes(common));
  wire::atp::write_gradient_header(packet, common, directions);
  std::byte* at = packet.data() + wire::atp::gradient_header_bytes;
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

// Reads references at flush() and not before, as the contract of Sink allows.
class Recorder final : public Sink {
 public:
  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    auto& item = *pending_.emplace_back(std::make_unique<Pending>(Pending{Bytes(bytes), {to}, {}, {}}));
    item.to = item.owned_to;
    return item.owned;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    pending_.push_back(std::make_unique<Pending>(Pending{{}, {}, packet, to}));
  }
  void flush() override {
    for (const auto& item : pending_) {
      for (const Endpoint& to : item->to) {
        const std::span<const std::byte> bytes = item->owned.empty() ? item->referenced : item->owned;
        sent_.emplace_back(to, Bytes(bytes.begin(), bytes.end()));
      }
    }
    pending_.clear();
  }

  // What was sent since the last call, in order; every packet can be read.
  [[nodiscard]] std::vector<AnyPacket> take() {
    flush();
    std::vector<AnyPacket> packets;
    for (const auto& [to, bytes] : sent_) {
      packets.push_back(read_packet(bytes, to));
      EXPECT_EQ(packets.back().error, wire::ParseError::none);
    }
    sent_.clear();
    return packets;
  }
  // The same as bytes.
  [[nodiscard]] std::vector<std::pair<Endpoint, Bytes>> take_bytes() {
    flush();
    return std::exchange(sent_, {});
  }

 private:
  struct Pending {  // behind a pointer: what was given out stays where it is
    Bytes owned;
    std::vector<Endpoint> owned_to;
    std::span<const std::byte> referenced;
    std::span<const Endpoint> to;
  };
  std::vector<std::unique_ptr<Pending>> pending_;
  std::vector<std::pair<Endpoint, Bytes>> sent_;
};

}  // namespace netsum::testing
