// Any packets, from anyone, in any order, at a switch with a parent and a child switch: each is counted once, what is sent
// can be read and goes to a neighbour, and a result is passed on only where the sum went upstream.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <chrono>

#include "fuzz/harness.h"

namespace netsum {
namespace {

using wire::switchml::Ranks;
using wire::switchml::Type;

constexpr std::uint32_t slots = 2;
const std::vector<std::uint32_t> epochs = {1000, 1001, 1002, 1003, 1004};
const Endpoint parent = fuzz::endpoint_of(99), child = fuzz::endpoint_of(50);

switchml::SwitchJobConfig tree_job() {
  switchml::SwitchJobConfig config{fuzz::job_epoch, fuzz::packet_elements, slots, {}};
  config.members = {{epochs[1], fuzz::endpoint_of(1)}, {epochs[2], fuzz::endpoint_of(2)}, {0, child}};
  config.tree.emplace();
  for (const auto& below : {std::vector<std::uint32_t>{1}, {2}, {3, 4}}) {
    Ranks& set = config.tree->below.emplace_back();
    for (const std::uint32_t rank : below) set.insert(rank);
  }
  config.tree->is_switch = {false, false, true};
  config.tree->parent = parent;
  config.tree->rank_epochs = epochs;
  return config;
}

std::vector<std::byte> packet_of(FuzzedDataProvider& input) {
  wire::switchml::Common common{};
  common.type = input.ConsumeIntegralInRange<int>(0, 3) == 0 ? Type::sum_part
                                                             : static_cast<Type>(input.ConsumeIntegralInRange<int>(1, 10));
  const bool up =
      common.type <= Type::exponent_contribution || common.type == Type::missing || common.type == Type::sum_part;
  common.sender = up ? input.ConsumeIntegralInRange<std::uint16_t>(0, 5) : std::uint16_t{0};
  common.job_epoch = fuzz::job_epoch;
  common.rank_epoch = input.ConsumeBool() ? wire::fold_epochs(epochs) : epochs[common.sender % epochs.size()];
  wire::switchml::ChunkHeader header;
  header.operation = input.ConsumeIntegralInRange<std::uint64_t>(0, 2);
  header.chunk = input.ConsumeIntegralInRange<std::uint32_t>(0, 3);
  header.signature = input.ConsumeIntegralInRange<std::uint32_t>(0, 8) == 0 ? 1 : 0;
  header.slot = input.ConsumeIntegralInRange<std::uint16_t>(0, slots);
  header.version = input.ConsumeIntegralInRange<std::uint8_t>(0, 1);
  header.dtype = input.ConsumeIntegralInRange<int>(0, 3) == 0 ? DType::float16 : DType::int32;
  header.elements = input.PickValueInArray<std::uint16_t>({1, 64, 64, 65});
  std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
  switch (common.type) {
    case Type::waiting:
    case Type::missing: {
      Ranks missing;
      for (std::uint32_t rank = 0; rank < 6; ++rank) {
        if (input.ConsumeBool()) missing.insert(rank);
      }
      packet.resize(wire::switchml::waiting_bytes(missing));
      wire::switchml::write_waiting(packet, {common, header.operation, header.chunk, header.slot, input.ConsumeBool(),
                                             missing, input.PickValueInArray<std::uint32_t>({0, 1, 2, 3, 4, 0xffffffff})});
      break;
    }
    case Type::mismatch:
      packet.resize(wire::switchml::mismatch_bytes);
      wire::switchml::write_mismatch(packet, {common, header.operation, header.chunk, 0, 1, 1, 2});
      break;
    case Type::sum_part: {
      const std::uint16_t place = input.PickValueInArray<std::uint16_t>({0, 1, 33, 273, 0xffff});
      packet.resize(wire::switchml::sum_part_bytes(header, place));
      const std::uint8_t parts = input.ConsumeIntegralInRange<std::uint8_t>(1, 3);
      wire::switchml::write_sum_part_header(
          packet, {{common, header, {}, {}, {}}, place, input.ConsumeIntegralInRange<std::uint8_t>(0, parts), parts});
      const std::size_t payload = wire::switchml::sum_part_header_bytes;
      for (std::size_t i = payload; i < packet.size(); ++i) packet[i] = std::byte{input.ConsumeIntegral<std::uint8_t>()};
      break;
    }
    case Type::unknown_job:
      packet.resize(wire::switchml::common_bytes);
      wire::switchml::write_unknown_job(packet, common);
      break;
    default:
      wire::switchml::write_chunk_header(packet, common, header);
  }
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - 1)] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  wire::switchml::seal(packet);
  return packet;
}

std::uint64_t received(const switchml::Switch& machine) {
  return machine.job_counters(fuzz::job_epoch)->packets + outcomes(machine.counters());
}

}  // namespace
}  // namespace netsum

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace netsum;
  FuzzedDataProvider input(data, size);
  const switchml::SwitchJobConfig config = tree_job();
  std::vector<fuzz::CacheLine> memory(switchml::Switch::memory_bytes(config) / sizeof(fuzz::CacheLine));
  switchml::Switch machine;
  fuzz::check(machine.add_job(config, std::as_writable_bytes(std::span(memory))), "a job is added");
  Time now{std::chrono::seconds(1)};
  while (input.remaining_bytes() > 0) {
    const Endpoint from = input.PickValueInArray(
        {parent, parent, child, child, fuzz::endpoint_of(1), fuzz::endpoint_of(2), fuzz::endpoint_of(7)});
    const std::vector<std::byte> packet = packet_of(input);
    const RxView view{packet, from};
    const std::uint64_t before = received(machine);
    fuzz::RecordingSink sink;
    machine.on_packets({&view, 1}, now, sink);
    sink.flush();
    fuzz::check(received(machine) == before + 1, "each packet is counted once");
    const switchml::JobCounters& c = *machine.job_counters(fuzz::job_epoch);
    fuzz::check(c.packets == outcomes(c), "and has one outcome");
    fuzz::check(c.results_taken <= c.sums_sent - c.sums_repeated + c.passed_up, "a result ends what went upstream");
    for (const fuzz::Datagram& each : sink.sent()) {
      wire::switchml::Common common{};
      fuzz::check(wire::switchml::parse_common(each.bytes, common) == wire::ParseError::none, "what it sends can be read");
      const bool neighbour = each.to == parent || each.to == from ||
                             std::any_of(config.members.begin(), config.members.end(),
                                         [&](const switchml::Member& member) { return member.endpoint == each.to; });
      fuzz::check(neighbour, "and goes to a neighbour");
    }
    now += std::chrono::microseconds(input.ConsumeIntegralInRange<int>(0, 2000));
  }
  return 0;
}
