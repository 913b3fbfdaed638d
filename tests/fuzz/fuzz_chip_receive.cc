// Packets of the chip profile, genuine ones with changes and forged ones, from the right addresses or a stranger's, at a
// switch, alone or below a parent, and a worker in the middle of their work. There is no checksum, so all of them are read.
// Neither touches memory that it should not; each counts every packet once; a stranger gets nothing and changes nothing;
// results go to the job's ranks, sums to the parent.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/counter_list.h"
#include "fuzz/harness.h"
#include "protocol/switchml/chip_switch.h"
#include "wire/switchml_chip.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

using Packet = std::vector<std::byte>;

constexpr std::uint32_t slots = 4, ranks = 2;
const Endpoint stranger = fuzz::endpoint_of(77), server = fuzz::endpoint_of(255), parent = fuzz::endpoint_of(200);

Packet forge(FuzzedDataProvider& input) {
  wire::chip::Header header;
  header.type = static_cast<wire::chip::Type>(input.ConsumeIntegralInRange<int>(0, 3));
  header.member = input.ConsumeIntegralInRange<std::uint8_t>(0, 3);
  header.rank = input.ConsumeIntegralInRange<std::uint8_t>(0, 3);
  header.version = input.ConsumeIntegralInRange<std::uint8_t>(0, 2);
  header.slot = input.ConsumeIntegralInRange<std::uint16_t>(0, slots);
  header.job_epoch = input.ConsumeIntegralInRange<int>(0, 15) == 0 ? 1 : fuzz::job_epoch;
  header.round = input.PickValueInArray<std::uint32_t>({0, 0, 1, 2, wire::chip::max_round, wire::chip::max_round + 1});
  for (auto& exponent : header.exponents) exponent = input.PickValueInArray<std::uint16_t>({0, 1, 127, 254, 255, 256, 257});
  header.echoed.operation = input.ConsumeIntegralInRange<std::uint64_t>(0, 2);
  header.echoed.chunk = input.ConsumeIntegralInRange<std::uint32_t>(0, 9);
  Packet packet(wire::chip::packet_bytes(input.PickValueInArray<std::uint32_t>({64, 64, 64, 256})));
  wire::chip::write_header(packet, header);
  return packet;
}

void alter(FuzzedDataProvider& input, Packet& packet) {
  for (int changes = input.ConsumeIntegralInRange<int>(0, 3); changes > 0 && !packet.empty(); --changes) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, std::min<std::size_t>(packet.size() - 1, 80))] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 15) == 0) {
    packet.resize(input.ConsumeIntegralInRange<std::size_t>(0, wire::chip::packet_bytes(256) + 1));
  }
}

template <class Object>
std::vector<std::byte> state_of(const Object& object) {
  std::vector<std::byte> state;
  object.append_state(state);
  return state;
}

struct World {
  World(bool floats, bool leaf) : is_leaf(leaf) {
    switchml::SwitchJobConfig job{fuzz::job_epoch, fuzz::packet_elements, slots, {}};
    for (std::uint8_t rank = 0; rank < ranks; ++rank)
      job.members.push_back({fuzz::rank_epochs[rank], fuzz::endpoint_of(rank)});
    if (leaf) {
      job.tree.emplace().parent = parent;
      job.tree->below = {wire::switchml::Ranks::first(1), wire::switchml::Ranks::first(2)};
      job.tree->is_switch = {false, true};
      job.tree->number = 5;
    }
    fuzz::check(aggregator.add_job(job, std::as_writable_bytes(std::span(memory))), "a job is admitted");
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      switchml::WorkerConfig config;
      config.job_epoch = fuzz::job_epoch;
      config.rank = rank;
      config.world_size = ranks;
      config.packet_elements = fuzz::packet_elements;
      config.slots = slots;
      config.aggregator = server;
      config.chip = true;
      config.member = rank;
      workers.emplace_back(config);
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      stream::Operation operation;
      operation.dtype = floats ? DType::float32 : DType::int32;
      operation.elements = tensors[rank].size();
      operation.data = tensors[rank].data();
      fuzz::RecordingSink out(fuzz::endpoint_of(static_cast<std::uint8_t>(rank)), sent);
      fuzz::check(workers[rank].submit(operation, now, out), "the operation is taken");
      out.flush();
    }
  }

  [[nodiscard]] std::uint64_t received() const {
    return outcomes(aggregator.counters()) + aggregator.job_counters(fuzz::job_epoch)->packets;
  }

  void to_switch(const Packet& packet, const Endpoint& source) {
    const std::uint64_t before = received();
    const auto state = source == stranger ? state_of(aggregator) : std::vector<std::byte>{};
    const std::size_t first = sent.size();
    fuzz::RecordingSink out(server, sent);
    const RxView view{packet, source};
    aggregator.on_packets({&view, 1}, now, out);
    out.flush();
    fuzz::check(received() == before + 1, "the switch counts every packet once");
    const switchml::JobCounters& counters = *aggregator.job_counters(fuzz::job_epoch);
    fuzz::check(counters.packets == outcomes(counters), "every packet of the job is counted by what became of it");
    if (source == stranger) {
      fuzz::check(sent.size() == first && state_of(aggregator) == state, "a stranger gets and changes nothing");
    }
    for (std::size_t i = first; i < sent.size(); ++i) {
      wire::chip::Packet packet_sent;
      fuzz::check(wire::chip::parse(sent[i].bytes, packet_sent) == wire::ParseError::none &&
                      packet_sent.header.job_epoch == fuzz::job_epoch,
                  "what the switch sends is of the job");
      if (packet_sent.header.type == wire::chip::Type::result) {
        fuzz::check(sent[i].to == fuzz::endpoint_of(0) || sent[i].to == fuzz::endpoint_of(1), "results go to ranks");
      } else {
        fuzz::check(is_leaf && sent[i].to == parent && packet_sent.header.member == 5, "sums go to the parent");
      }
    }
  }

  void to_worker(std::uint32_t rank, const Packet& packet, const Endpoint& source) {
    switchml::Worker& worker = workers[rank];
    const std::uint64_t before = outcomes(worker.counters());
    const auto state = source == stranger ? state_of(worker) : std::vector<std::byte>{};
    fuzz::RecordingSink out(fuzz::endpoint_of(static_cast<std::uint8_t>(rank)), sent);
    const RxView view{packet, source};
    worker.on_packets({&view, 1}, now, out);
    fuzz::check(outcomes(worker.counters()) == before + 1, "the worker counts every packet once");
    if (source == stranger) fuzz::check(state_of(worker) == state, "only the registered aggregator is believed");
    if (worker.next_timeout() <= now) worker.on_timer(now, out);
    out.flush();
  }

  const bool is_leaf;
  Time now{};
  switchml::ChipSwitch aggregator;
  std::vector<fuzz::CacheLine> memory = std::vector<fuzz::CacheLine>(
      switchml::ChipSwitch::memory_bytes(fuzz::packet_elements, slots) / sizeof(fuzz::CacheLine));
  std::vector<switchml::Worker> workers;
  std::vector<float> tensors[ranks] = {std::vector<float>(700, 1.5F), std::vector<float>(700, -3.0F)};
  std::vector<fuzz::Datagram> sent;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const bool floats = input.ConsumeBool();
  World world(floats, input.ConsumeBool());
  std::vector<fuzz::Datagram> genuine = std::exchange(world.sent, {});
  while (input.remaining_bytes() > 0) {
    world.now += std::chrono::microseconds(input.ConsumeIntegral<std::uint16_t>());
    const auto deliver = [&](const Packet& packet, const Endpoint& from, const Endpoint& to) {
      if (to == server) return world.to_switch(packet, from);
      world.to_worker(to == fuzz::endpoint_of(1) ? 1 : 0, packet, from);
    };
    const fuzz::Datagram* const one =
        genuine.empty() ? nullptr : &genuine[input.ConsumeIntegral<std::uint8_t>() % genuine.size()];
    if (one != nullptr && input.ConsumeBool()) {
      deliver(one->bytes, one->from, one->to);
    } else {
      const bool to_switch = input.ConsumeBool(), strange = input.ConsumeIntegralInRange<int>(0, 7) == 0;
      const bool altered = one != nullptr && (one->to == server) == to_switch && input.ConsumeBool();
      Packet packet = altered ? one->bytes : forge(input);
      alter(input, packet);
      const Endpoint rank = fuzz::endpoint_of(packet.size() > 2 ? std::to_integer<std::uint8_t>(packet[2]) % ranks : 0);
      const bool downstream = packet.size() > 1 && packet[1] == std::byte{2};
      if (to_switch) {
        deliver(packet, strange ? stranger : downstream ? parent : rank, server);
      } else {
        deliver(packet, strange ? stranger : server, rank);
      }
    }
    for (fuzz::Datagram& datagram : std::exchange(world.sent, {})) genuine.push_back(std::move(datagram));
    if (genuine.size() > 200) genuine.erase(genuine.begin(), genuine.end() - 100);
  }
  return 0;
}
