// Packets of SwitchML over RoCEv2 UC, genuine ones with changes and forged ones, with right ICRCs, from the right addresses
// or a stranger's, at a switch and at workers in the middle of their work. Neither touches memory that it should not; each
// counts every packet once; a stranger gets nothing; what the switch sends is a rank's next PSN, in messages that hang
// together.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/counter_list.h"
#include "fuzz/harness.h"
#include "protocol/switchml/rdma_ends.h"
#include "protocol/switchml/rdma_switch.h"
#include "wire/roce.h"
#include "wire/switchml_rdma.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

using Packet = std::vector<std::byte>;

constexpr std::uint32_t queues = 2, ranks = 2, longest = 2, elements = longest * wire::rdma::packet_elements;
const Endpoint stranger = fuzz::endpoint_of(77), server = fuzz::endpoint_of(255);

Packet forge(FuzzedDataProvider& input, bool to_switch, std::uint32_t rank) {
  const switchml::RdmaEnds ends = switchml::rdma_ends(fuzz::job_epoch, ranks, rank, queues);
  wire::roce::Packet packet;
  wire::roce::set_addresses(packet, fuzz::endpoint_of(1).address, server.address);
  packet.bth.opcode = static_cast<wire::roce::Opcode>(input.ConsumeIntegralInRange<int>(0x20, 0x2b));
  packet.bth.destination_qp =
      (to_switch ? ends.switch_qp : ends.rank_qp) + input.ConsumeIntegralInRange<std::uint32_t>(0, queues);
  packet.bth.psn =
      (switchml::rdma_psn(fuzz::job_epoch, packet.bth.destination_qp) + input.ConsumeIntegralInRange<std::uint32_t>(0, 9)) &
      wire::roce::psn_mask;
  packet.reth = {input.ConsumeIntegralInRange<std::uint64_t>(0, 8) * 512, input.ConsumeIntegralInRange<std::uint32_t>(0, 4),
                 input.PickValueInArray<std::uint32_t>({0, 1024, 2048, 2048, 2049, 4096, UINT32_MAX})};
  if (!to_switch) packet.reth.address += ends.memory_address;
  if (!to_switch) packet.reth.key = ends.memory_key;
  packet.immediate = wire::rdma::immediate_of({input.ConsumeIntegralInRange<std::uint32_t>(0, 3),
                                               {input.PickValueInArray<std::uint16_t>({1, 255, 256, 300, 511}),
                                                input.PickValueInArray<std::uint16_t>({1, 255, 256})}});
  const Packet payload(input.PickValueInArray<std::size_t>({0, 1024, 1024, 1020}), std::byte{1});
  packet.payload = payload;
  Packet bytes(wire::roce::packet_bytes(packet));
  wire::roce::write(bytes, packet);
  return bytes;
}

void alter(FuzzedDataProvider& input, Packet& packet) {
  for (int changes = input.ConsumeIntegralInRange<int>(0, 3); changes > 0 && !packet.empty(); --changes) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, std::min<std::size_t>(packet.size() - 1, 64))] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 15) == 0) packet.resize(input.ConsumeIntegralInRange<std::size_t>(0, 1200));
  wire::roce::Packet parsed;
  if (input.ConsumeIntegralInRange<int>(0, 7) != 0 && wire::roce::parse(packet, parsed) == wire::ParseError::none)
    wire::roce::write_icrc(std::span(packet).first(wire::roce::packet_bytes(packet)));
}

struct World {
  explicit World(bool floats) {
    switchml::SwitchJobConfig job{fuzz::job_epoch, elements, queues, {}};
    for (std::uint8_t rank = 0; rank < ranks; ++rank)
      job.members.push_back({fuzz::rank_epochs[rank], fuzz::endpoint_of(rank)});
    fuzz::check(aggregator.add_job(job, std::as_writable_bytes(std::span(memory))), "a job is admitted");
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      switchml::WorkerConfig config;
      config.job_epoch = fuzz::job_epoch;
      config.rank = config.member = rank;
      config.world_size = ranks;
      config.packet_elements = elements;
      config.slots = queues;
      config.aggregator = server;
      config.rdma = fuzz::endpoint_of(static_cast<std::uint8_t>(rank)).address;
      workers.emplace_back(config);
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
    const std::size_t first = sent.size();
    fuzz::RecordingSink out(server, sent);
    const RxView view{packet, source};
    aggregator.on_packets({&view, 1}, now, out);
    out.flush();
    fuzz::check(received() == before + 1, "the switch counts every packet once");
    const switchml::JobCounters& counters = *aggregator.job_counters(fuzz::job_epoch);
    fuzz::check(counters.packets == outcomes(counters), "every packet of the job is counted by what became of it");
    fuzz::check(source != stranger || sent.size() == first, "a stranger gets nothing");
    for (std::size_t i = first; i < sent.size(); ++i) check_result(sent[i]);
  }

  void check_result(const fuzz::Datagram& datagram) {
    wire::roce::Packet packet;
    fuzz::check(
        wire::roce::parse(datagram.bytes, packet) == wire::ParseError::none && wire::roce::icrc_valid(datagram.bytes),
        "what the switch sends is RoCE");
    fuzz::check(datagram.to == fuzz::endpoint_of(0) || datagram.to == fuzz::endpoint_of(1), "results go to ranks");
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    auto [at, is_new] = pairs.try_emplace({datagram.to.address.back(), packet.bth.destination_qp}, packet.bth.psn, false);
    fuzz::check(is_new || at->second.first == packet.bth.psn, "a queue pair's PSNs follow each other");
    fuzz::check(shape.first || at->second.second, "no packet comes before its message's first");
    at->second = {(packet.bth.psn + 1) & wire::roce::psn_mask, !shape.last};
  }

  void to_worker(std::uint32_t rank, const Packet& packet, const Endpoint& source) {
    switchml::Worker& worker = workers[rank];
    const std::uint64_t before = outcomes(worker.counters()), results = worker.counters().results;
    fuzz::RecordingSink out(fuzz::endpoint_of(static_cast<std::uint8_t>(rank)), sent);
    const RxView view{packet, source};
    worker.on_packets({&view, 1}, now, out);
    fuzz::check(outcomes(worker.counters()) == before + 1, "the worker counts every packet once");
    fuzz::check(source != stranger || worker.counters().results == results, "only the registered aggregator is believed");
    if (worker.next_timeout() <= now) worker.on_timer(now, out);
    out.flush();
  }

  Time now{};
  switchml::RdmaSwitch aggregator;
  std::vector<fuzz::CacheLine> memory =
      std::vector<fuzz::CacheLine>(switchml::RdmaSwitch::memory_bytes(elements, queues) / sizeof(fuzz::CacheLine));
  std::vector<switchml::Worker> workers;
  std::vector<float> tensors[ranks] = {std::vector<float>(2300, 1.5F), std::vector<float>(2300, -3.0F)};
  std::vector<fuzz::Datagram> sent;
  std::map<std::pair<std::uint8_t, std::uint32_t>, std::pair<std::uint32_t, bool>> pairs;  // next PSN; in a message
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  World world(input.ConsumeBool());
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
      const std::uint32_t number = input.ConsumeIntegralInRange<std::uint32_t>(0, ranks - 1);
      Packet packet = altered ? one->bytes : forge(input, to_switch, number);
      alter(input, packet);
      const Endpoint rank = fuzz::endpoint_of(static_cast<std::uint8_t>(number));
      deliver(packet, strange ? stranger : to_switch ? rank : server, to_switch ? server : rank);
    }
    for (fuzz::Datagram& datagram : std::exchange(world.sent, {})) genuine.push_back(std::move(datagram));
    if (genuine.size() > 200) genuine.erase(genuine.begin(), genuine.end() - 100);
  }
  return 0;
}
