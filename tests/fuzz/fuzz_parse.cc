// Packets: no parser reads or points outside the bytes, and what parses is written again as the same bytes, so that nothing
// in a packet is without a meaning. The input is a packet as it is, one given its right checksum so that the fields behind
// it are reached, or the fields of a packet.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "fuzz/harness.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

using Packet = std::vector<std::byte>;

void check_inside(std::span<const std::byte> whole, std::span<const std::byte> part) {
  if (part.empty()) return;
  fuzz::check(part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size(), "a part lies inside");
}

void check_same(const Packet& packet, const Packet& again) {
  fuzz::check(packet == again, "what parses is written again as the same bytes");
}

void parse_chunk(const Packet& packet, const wire::switchml::Common& common) {
  wire::switchml::ChunkPacket chunk;
  if (wire::switchml::parse_chunk(packet, common, chunk) != wire::ParseError::none) return;
  check_inside(packet, chunk.exponents);
  check_inside(packet, chunk.payload);
  check_inside(packet, chunk.masks);
  fuzz::check(packet.size() == wire::switchml::chunk_packet_bytes(chunk.header), "a chunk's length follows from its header");
  Packet again(packet.size(), std::byte{0xaa});
  std::byte* at = again.data() + wire::switchml::chunk_header_bytes;
  std::copy(chunk.exponents.begin(), chunk.exponents.end(), at);
  at += wire::switchml::padded_exponents(chunk.header.exponents);
  at = std::copy(chunk.payload.begin(), chunk.payload.end(), at);
  std::copy(chunk.masks.begin(), chunk.masks.end(), at);
  wire::switchml::write_chunk_header(again, chunk.common, chunk.header);
  wire::switchml::seal(again);
  check_same(packet, again);
}

void parse_run(const Packet& packet, const wire::switchml::Common& common) {
  wire::switchml::RunPacket all;
  if (wire::switchml::parse_run(packet, common, all) != wire::ParseError::none) return;
  check_inside(packet, all.exponents);
  Packet again(packet.size(), std::byte{0xaa});
  std::copy(all.exponents.begin(), all.exponents.end(), again.begin() + wire::switchml::run_header_bytes);
  wire::switchml::write_run_header(again, common, all.run);
  wire::switchml::seal(again);
  check_same(packet, again);
  wire::switchml::Run same;
  all.for_each([&](const wire::switchml::ChunkPacket& member) {
    check_inside(packet, member.exponents);
    fuzz::check(same.take(member.header), "a run's members make the run");
  });
  fuzz::check(same.members == all.run.members && same.versions == all.run.versions, "and nothing else");
}

void parse_sum_part(const Packet& packet, const wire::switchml::Common& common) {
  wire::switchml::SumPart part;
  if (wire::switchml::parse_sum_part(packet, common, part) != wire::ParseError::none) return;
  check_inside(packet, part.chunk.exponents);
  check_inside(packet, part.chunk.payload);
  fuzz::check(packet.size() == wire::switchml::sum_part_bytes(part.chunk.header, part.place),
              "a part's length follows from its header");
  Packet again(packet.size(), std::byte{0xaa});
  std::copy(part.chunk.payload.begin(), part.chunk.payload.end(),
            again.end() - static_cast<std::ptrdiff_t>(part.chunk.payload.size()));
  wire::switchml::write_sum_part_header(again, part);
  wire::switchml::seal(again);
  check_same(packet, again);
}

void parse(const Packet& packet) {
  wire::switchml::Common common{};
  if (wire::switchml::parse_common(packet, common) != wire::ParseError::none) return;
  Packet again(packet.size(), std::byte{0xaa});
  switch (common.type) {
    case wire::switchml::Type::contribution:
    case wire::switchml::Type::exponent_contribution:
    case wire::switchml::Type::result:
    case wire::switchml::Type::exponent_result:
    case wire::switchml::Type::acknowledgement:
      return parse_chunk(packet, common);
    case wire::switchml::Type::empty_contributions:
    case wire::switchml::Type::acknowledgements:
      return parse_run(packet, common);
    case wire::switchml::Type::sum_part:
      return parse_sum_part(packet, common);
    case wire::switchml::Type::waiting:
    case wire::switchml::Type::missing: {
      wire::switchml::WaitingPacket waiting;
      if (wire::switchml::parse_waiting(packet, common, waiting) != wire::ParseError::none) return;
      wire::switchml::write_waiting(again, waiting);
      return check_same(packet, again);
    }
    case wire::switchml::Type::mismatch: {
      wire::switchml::MismatchPacket mismatch;
      if (wire::switchml::parse_mismatch(packet, common, mismatch) != wire::ParseError::none) return;
      wire::switchml::write_mismatch(again, mismatch);
      return check_same(packet, again);
    }
    case wire::switchml::Type::unknown_job: {
      if (packet.size() != wire::switchml::common_bytes)
        return;  // its receiver checks the length: it has nothing else to parse
      wire::switchml::write_unknown_job(again, common);
      return check_same(packet, again);
    }
    case wire::switchml::Type::probe:
    case wire::switchml::Type::probe_reply: {
      wire::switchml::ProbePacket probe;
      if (wire::switchml::parse_probe(packet, common, probe) != wire::ParseError::none) return;
      wire::switchml::write_probe(again, probe);
      return check_same(packet, again);
    }
  }
}

// A chunk's packet from its fields, mostly with the length that they imply.
Packet compose(FuzzedDataProvider& input) {
  const auto type = static_cast<wire::switchml::Type>(input.ConsumeIntegralInRange<int>(0, 14));
  const wire::switchml::Common common{type, input.ConsumeIntegral<std::uint8_t>(), input.ConsumeIntegral<std::uint64_t>(),
                                      input.ConsumeIntegral<std::uint32_t>()};
  wire::switchml::ChunkHeader header;
  header.operation = input.ConsumeIntegral<std::uint64_t>();
  header.chunk = input.ConsumeIntegral<std::uint32_t>();
  header.slot = input.ConsumeIntegral<std::uint16_t>();
  header.version = input.ConsumeIntegralInRange<std::uint8_t>(0, 1);
  constexpr DType dtypes[] = {DType::int32, DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int64,
                              DType::int16, DType::int8,    DType::uint8,    block8,         block4};
  header.masks = input.ConsumeBool();
  header.acknowledge_only = input.ConsumeBool();
  header.later = input.ConsumeBool();
  header.due = input.ConsumeBool();
  header.dtype = input.PickValueInArray(dtypes);
  header.op = static_cast<ReduceOp>(input.ConsumeIntegralInRange<int>(0, 7));
  header.elements = input.ConsumeBool() ? input.ConsumeIntegralInRange<std::uint16_t>(0, 80)
                                        : input.PickValueInArray<std::uint16_t>({256, 15360, 15361, 30720, 30721, 65535});
  header.exponents = input.ConsumeBool() ? input.ConsumeIntegralInRange<std::uint8_t>(0, 5)
                                         : input.PickValueInArray<std::uint8_t>({60, 61, 255});
  header.ahead_operation = header.exponents == 0 ? wire::switchml::no_ahead : input.ConsumeIntegral<std::uint8_t>();
  header.ahead_chunk = input.ConsumeIntegral<std::uint32_t>();
  Packet packet(wire::switchml::chunk_packet_bytes(header));
  if (type == wire::switchml::Type::sum_part) {
    const std::uint16_t place = input.PickValueInArray<std::uint16_t>({0, 16, 40, 273, 274, 0xffff});
    packet.resize(wire::switchml::sum_part_bytes(header, place));
    const std::vector<std::byte> exponents(header.exponents);
    wire::switchml::write_sum_part_header(packet, {{common, header, exponents, {}, {}},
                                                   place,
                                                   input.ConsumeIntegralInRange<std::uint8_t>(0, 40),
                                                   input.ConsumeIntegralInRange<std::uint8_t>(0, 40)});
  } else {
    wire::switchml::write_chunk_header(packet, common, header);
  }
  for (int changes = input.ConsumeIntegralInRange<int>(0, 4); changes > 0; --changes) {
    const auto at = input.ConsumeIntegralInRange<std::size_t>(0, std::min<std::size_t>(packet.size() - 1, 80));
    packet[at] = std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) packet.resize(packet.size() + 1 - 2 * input.ConsumeBool());
  const auto rest = input.ConsumeRemainingBytes<std::uint8_t>();
  for (std::size_t i = 0; i < rest.size() && wire::switchml::chunk_header_bytes + i < packet.size(); ++i) {
    packet[wire::switchml::chunk_header_bytes + i] = std::byte{rest[i]};
  }
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
  if (kind != 0 && packet.size() >= wire::switchml::common_bytes) wire::switchml::seal(packet);
  parse(packet);
  return 0;
}
