// ATP's packets: no parser reads or points outside the bytes, and what parses is written again as the same bytes, so that
// nothing in a packet is without a meaning. The input is a packet as it is, one given its right checksum so that the fields
// behind it are reached, or the fields of a packet.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "base/bytes.h"
#include "fuzz/harness.h"
#include "wire/atp.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using wire::ParseError;
using wire::atp::Type;

using Packet = std::vector<std::byte>;

void check_inside(const Packet& whole, std::span<const std::byte> part) {
  if (part.empty()) return;
  fuzz::check(part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size(), "a part lies inside");
}

void parse(const Packet& packet) {
  wire::atp::Common common;
  if (wire::atp::parse_common(packet, common) != ParseError::none) return;
  Packet again(packet.size(), std::byte{0xaa});
  switch (common.type) {
    case Type::gradient: {
      wire::atp::GradientPacket gradient;
      if (wire::atp::parse_gradient(packet, common, gradient) != ParseError::none) return;
      check_inside(packet, gradient.payload);
      check_inside(packet, gradient.high);
      fuzz::check(packet.size() == wire::atp::gradient_bytes(gradient.common, gradient.directions),
                  "a length follows from its header");
      const auto at = again.begin() + static_cast<std::ptrdiff_t>(wire::atp::header_bytes(gradient.directions));
      std::copy(gradient.high.begin(), gradient.high.end(), std::copy(gradient.payload.begin(), gradient.payload.end(), at));
      wire::atp::write_gradient_header(again, gradient.common, gradient.directions);
      break;
    }
    case Type::parameter:
    case Type::ask:
    case Type::done: {
      wire::atp::ParameterPacket parameter;
      if (wire::atp::parse_parameter(packet, common, parameter) != ParseError::none) return;
      check_inside(packet, parameter.payload);
      fuzz::check(packet.size() == wire::atp::parameter_bytes(parameter.common), "a length follows from its header");
      std::copy(parameter.payload.begin(), parameter.payload.end(), again.begin() + wire::atp::parameter_header_bytes);
      wire::atp::write_parameter_header(again, parameter.common, parameter.next_index);
      break;
    }
    case Type::waiting: {
      wire::atp::WaitingPacket waiting;
      if (wire::atp::parse_waiting(packet, common, waiting) != ParseError::none) return;
      wire::atp::write_waiting(again, waiting);
      break;
    }
    case Type::mismatch: {
      wire::atp::MismatchPacket mismatch;
      if (wire::atp::parse_mismatch(packet, common, mismatch) != ParseError::none) return;
      wire::atp::write_mismatch(again, mismatch);
      break;
    }
    case Type::unknown_job:
      wire::atp::write_unknown_job(again, common);
      break;
  }
  wire::atp::seal(again);
  fuzz::check(packet == again, "what parses is written again as the same bytes");
}

// A packet from its fields, mostly with the length that they imply.
Packet compose(FuzzedDataProvider& input) {
  wire::atp::Common c;
  c.type = static_cast<Type>(input.ConsumeIntegralInRange<int>(0, 8));
  const auto flags = input.ConsumeIntegral<std::uint16_t>();
  c.resend = (flags & 1) != 0;
  c.ecn = (flags & 2) != 0;
  c.collision = (flags & 4) != 0;
  c.overflow = (flags & 8) != 0;
  c.wide = (flags & 16) != 0;
  c.direct = (flags & 32) != 0;
  c.floats = (flags & 64) != 0;
  c.average = (flags & 128) != 0;
  c.integers = (flags & 256) != 0;
  c.exponent = static_cast<std::uint8_t>(flags >> 8 & 0xfe);
  c.job_epoch = input.ConsumeIntegral<std::uint64_t>();
  c.sequence = input.ConsumeIntegral<std::uint64_t>();
  c.rank_epoch = input.ConsumeIntegral<std::uint32_t>();
  c.signature = input.ConsumeIntegral<std::uint32_t>();
  c.index = input.ConsumeIntegral<std::uint32_t>();
  c.elements = input.ConsumeBool() ? input.ConsumeIntegralInRange<std::uint16_t>(0, 9)
                                   : input.PickValueInArray<std::uint16_t>({256, 10880, 10881, 65535});
  Packet packet;
  if (c.type == Type::gradient) {
    const auto level = input.ConsumeIntegralInRange<std::uint8_t>(0, 4);
    wire::atp::Directions::FanIn fan_in;
    wire::atp::Directions::Words words;
    for (std::uint32_t i = 0; i < wire::atp::max_levels; ++i) {
      fan_in[i] = input.PickValueInArray<std::uint16_t>({0, 1, 2, 31, 32, 33, 64, 65, 255, 256});
      words[i] = input.PickValueInArray<std::uint32_t>({0, 1, 2, 3, 0x7fffffff, 0x80000000, 0xffffffff});
    }
    wire::atp::Directions directions(level, fan_in, words);
    if (directions.broad()) {
      for (std::uint32_t i = 0; i < wire::atp::max_levels; ++i) directions.insert(i, input.ConsumeIntegral<std::uint8_t>());
    }
    packet.resize(wire::atp::gradient_bytes(c, directions));
    wire::atp::write_gradient_header(packet, c, directions);
  } else {
    std::size_t bytes = wire::atp::parameter_bytes(c);
    if (c.type == Type::waiting) bytes = wire::atp::common_bytes + 8 * input.ConsumeIntegralInRange<std::size_t>(1, 65);
    if (c.type == Type::mismatch) bytes = wire::atp::mismatch_bytes;
    packet.resize(bytes);
    wire::atp::write_parameter_header(packet, c, input.ConsumeBool() ? input.ConsumeIntegral<std::uint32_t>() : 0);
    if (c.type == Type::unknown_job) packet.resize(wire::atp::common_bytes);
  }
  for (int changes = input.ConsumeIntegralInRange<int>(0, 4); changes > 0; --changes) {
    const auto at = input.ConsumeIntegralInRange<std::size_t>(0, std::min<std::size_t>(packet.size() - 1, 200));
    packet[at] = std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) packet.resize(packet.size() + 1 - 2 * input.ConsumeBool());
  return packet;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int kind = data[0] % 3;
  const auto given = std::as_bytes(std::span(data + 1, size - 1));
  Packet packet(given.begin(), given.end());
  if (kind == 2) {
    FuzzedDataProvider input(data + 1, size - 1);
    packet = compose(input);
  }
  if (kind != 0 && packet.size() >= wire::atp::common_bytes) wire::atp::seal(packet);
  parse(packet);
  return 0;
}
