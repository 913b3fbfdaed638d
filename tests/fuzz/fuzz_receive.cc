// Forged packets with right checksums, from the right addresses or a stranger's, at a switch and a worker in the middle of
// their work. Neither touches memory that it should not; each counts every packet once; a stranger gets nothing but short
// answers, and no packet of one job, with whatever epochs, changes another's state. A switch without the fast path does the
// same.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "base/counter_list.h"
#include "fuzz/harness.h"
#include "wire/epochs.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr std::uint64_t other_epoch = fuzz::job_epoch + 1;
const Endpoint stranger = fuzz::endpoint_of(77);

std::vector<std::byte> forge(FuzzedDataProvider& input, bool to_switch) {
  wire::switchml::Common common{};
  common.type = static_cast<wire::switchml::Type>(input.ConsumeIntegralInRange<int>(0, 14));
  common.sender = input.ConsumeIntegralInRange<std::uint16_t>(0, 2);
  common.job_epoch = input.ConsumeIntegralInRange<int>(0, 15) == 0 ? 1 : fuzz::job_epoch;
  common.rank_epoch = to_switch ? fuzz::rank_epochs[common.sender % 2] : wire::fold_epochs(fuzz::rank_epochs);
  // An answer to one rank alone (unknown job) carries that rank's epoch.
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) common.rank_epoch = fuzz::rank_epochs[0];
  wire::switchml::ChunkHeader header;
  header.operation = input.ConsumeIntegralInRange<std::uint64_t>(0, 3);
  header.chunk = input.ConsumeIntegralInRange<std::uint32_t>(0, 9);
  header.signature = input.ConsumeIntegralInRange<std::uint32_t>(0, 2);
  header.slot = input.ConsumeIntegralInRange<std::uint16_t>(0, 5);
  header.version = input.ConsumeIntegralInRange<std::uint8_t>(0, 1);
  header.masks = input.ConsumeBool();
  header.exponents = input.ConsumeIntegralInRange<std::uint8_t>(0, 3);
  header.elements = input.PickValueInArray<std::uint16_t>({0, 1, 63, 64, 65, 256});
  header.ahead_operation = input.PickValueInArray<std::uint8_t>({wire::switchml::no_ahead, 0, 1, 2});
  header.ahead_chunk = input.ConsumeIntegralInRange<std::uint32_t>(0, 9);
  if (header.elements == 0) header.masks = false;
  if (input.ConsumeBool()) {
    header.masks = false;
    header.dtype =
        input.PickValueInArray({DType::int32, DType::int64, DType::uint8, DType::float16, DType::float64, block8, block4});
    header.op = static_cast<ReduceOp>(input.ConsumeIntegralInRange<int>(0, 7));
    header.acknowledge_only = input.ConsumeBool();
    header.later = header.acknowledge_only && input.ConsumeBool();
    header.due = !header.acknowledge_only && input.ConsumeBool();
  }

  std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
  switch (common.type) {
    case wire::switchml::Type::waiting:
      packet.resize(wire::switchml::waiting_bytes(wire::switchml::Ranks::first(2)));
      wire::switchml::write_waiting(
          packet, {common, header.operation, header.chunk, header.slot, header.masks, wire::switchml::Ranks::first(2)});
      break;
    case wire::switchml::Type::mismatch:
      packet.resize(wire::switchml::mismatch_bytes);
      wire::switchml::write_mismatch(packet, {common, header.operation, header.chunk, 1, 2, common.sender, header.version});
      break;
    case wire::switchml::Type::unknown_job:
      packet.resize(wire::switchml::common_bytes);
      wire::switchml::write_unknown_job(packet, common);
      break;
    case wire::switchml::Type::empty_contributions:
    case wire::switchml::Type::acknowledgements: {
      wire::switchml::Run run{header, input.ConsumeIntegral<std::uint16_t>(), input.ConsumeIntegral<std::uint16_t>()};
      run.first.version = 0;
      run.first.masks = false;
      run.members |= 1;
      run.versions &= run.members;
      packet.resize(wire::switchml::run_bytes(run));
      wire::switchml::write_run_header(packet, common, run);
      break;
    }
    default:
      wire::switchml::write_chunk_header(packet, common, header);
  }
  if (packet.size() > wire::switchml::chunk_header_bytes) {
    const auto bytes = input.ConsumeBytes<std::uint8_t>(
        input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - wire::switchml::chunk_header_bytes));
    std::transform(bytes.begin(), bytes.end(), packet.begin() + wire::switchml::chunk_header_bytes,
                   [](auto b) { return std::byte{b}; });
  }
  for (int flips = input.ConsumeIntegralInRange<int>(0, 3); flips > 0; --flips) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - 1)] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {
    packet.resize(input.ConsumeIntegralInRange<std::size_t>(wire::switchml::common_bytes, packet.size() + 64));
  }
  wire::switchml::seal(packet);
  return packet;
}

// What both sides sent by themselves, and a packet of that with a few bytes changed: it meets a slot that is in use, with
// the right signature and identity.
std::vector<std::byte> alter(FuzzedDataProvider& input, std::vector<std::byte> packet) {
  for (int flips = input.ConsumeIntegralInRange<int>(0, 3); flips > 0; --flips) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - 1)] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  wire::switchml::seal(packet);
  if (input.ConsumeIntegralInRange<int>(0, 3) == 0) {  // on its way
    packet[input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - 1)] ^=
        std::byte{input.ConsumeIntegralInRange<std::uint8_t>(1, 255)};
  }
  return packet;
}

std::uint64_t received(const switchml::Switch& aggregator) {
  return outcomes(aggregator.counters()) + aggregator.job_counters(fuzz::job_epoch)->packets +
         aggregator.job_counters(other_epoch)->packets;
}

template <class Object>
std::vector<std::byte> state_of(const Object& object) {
  std::vector<std::byte> state;
  object.append_state(state);
  return state;
}

struct World {
  explicit World(int k) : kind(k), operation_of(300) {
    for (auto& member : other.members) member = {member.epoch, fuzz::endpoint_of(9)};
    fuzz::check(job.aggregator.add_job(other, std::as_writable_bytes(std::span(other_memory))), "a second job is admitted");
    // The last packet of its rank was a contribution that waits for nobody: its state is more than an empty slot.
    switchml::WorkerConfig config;
    config.job_epoch = other_epoch;
    config.rank_epoch = other.members[0].epoch;
    config.packet_elements = fuzz::packet_elements;
    config.slots = 2;
    config.world_size = 2;
    config.aggregator = fuzz::endpoint_of(255);
    switchml::Worker worker(config);
    std::vector<fuzz::Datagram> contributions;
    fuzz::RecordingSink out(fuzz::endpoint_of(9), contributions);
    fuzz::check(worker.submit(operation(), Time{}, out), "the second job's operation is taken");
    out.flush();
    for (const fuzz::Datagram& datagram : contributions) to_switch(datagram.bytes, datagram.from);
    fuzz::check(job.aggregator.job_counters(other_epoch)->contributions == contributions.size(), "they are added");
    fuzz::check(job.workers[0].submit(operation(), now, worker_out), "the first operation is taken");
    worker_out.flush();
    fuzz::RecordingSink second_out(fuzz::endpoint_of(1), sent);
    fuzz::check(job.workers[1].submit(operation(), now, second_out), "the second rank's operation is taken");
    second_out.flush();
    slow = job.aggregator;
    slow.use_fast_path(false);
    slow.move_memory(fuzz::job_epoch, std::as_writable_bytes(std::span(slow_memory)));
    slow.move_memory(other_epoch, std::as_writable_bytes(std::span(slow_other_memory)));
    compares = true;
  }

  stream::Operation operation() {
    stream::Operation made;
    made.dtype = kind % 2 != 0 ? DType::int32 : DType::float32;
    if (kind == 2) made.wire = WireFormat::bfloat16;
    made.elements = operation_of.size();
    made.data = operation_of.data();
    return made;
  }

  void to_switch(std::span<const std::byte> packet, const Endpoint& source) {
    const switchml::JobCounters before = *job.aggregator.job_counters(fuzz::job_epoch);
    const std::uint64_t others_before = job.aggregator.job_counters(other_epoch)->packets;
    const std::uint64_t received_before = received(job.aggregator);
    const auto state = source == stranger ? state_of(job.aggregator) : std::vector<std::byte>{};
    const RxView view{packet, source};
    const std::size_t first = sent.size();
    job.aggregator.on_packets({&view, 1}, now, switch_out);
    switch_out.flush();

    if (compares) {
      std::vector<fuzz::Datagram> same;
      fuzz::RecordingSink slow_out(fuzz::endpoint_of(255), same);
      slow.on_packets({&view, 1}, now, slow_out);
      slow_out.flush();
      fuzz::check(std::equal(same.begin(), same.end(), sent.begin() + static_cast<std::ptrdiff_t>(first), sent.end()),
                  "both paths send the same");
      fuzz::check(state_of(slow) == state_of(job.aggregator), "both paths come to the same state");
    }

    const switchml::JobCounters& after = *job.aggregator.job_counters(fuzz::job_epoch);
    fuzz::check(received(job.aggregator) == received_before + 1, "the switch counts every packet once");
    fuzz::check(after.packets == outcomes(after), "every packet of the job is counted by what became of it");
    const std::uint64_t packets = after.packets - before.packets;
    fuzz::check(packets + job.aggregator.job_counters(other_epoch)->packets - others_before <= 1, "a packet is of one job");
    if (source == stranger) {
      fuzz::check(state_of(job.aggregator) == state, "a stranger changes nothing");
      std::size_t answered = 0;
      for (std::size_t i = first; i < sent.size(); ++i) {
        fuzz::check(sent[i].to == stranger, "what a stranger sends makes nobody else receive");
        answered += sent[i].bytes.size();
      }
      fuzz::check(answered <= packet.size(), "a stranger receives no more than it sends");
    }
    for (std::size_t i = first; i < sent.size(); ++i) {
      wire::switchml::Common common{};
      fuzz::check(wire::switchml::parse_common(sent[i].bytes, common) == wire::ParseError::none,
                  "what the switch sends can be read");
      const bool answer =
          common.type == wire::switchml::Type::unknown_job || common.type == wire::switchml::Type::probe_reply;
      fuzz::check(answer ? sent[i].to == source
                         : sent[i].to == fuzz::endpoint_of(0) || sent[i].to == fuzz::endpoint_of(1) ||
                               (sent[i].to == fuzz::endpoint_of(9) && common.job_epoch == other_epoch),
                  "results go to registered addresses, of their own job");
    }
  }

  void to_worker(std::span<const std::byte> packet, const Endpoint& source) {
    switchml::Worker& worker = job.workers[0];
    const std::uint64_t received_before = outcomes(worker.counters());
    const auto state = source == stranger ? state_of(worker) : std::vector<std::byte>{};
    const RxView view{packet, source};
    worker.on_packets({&view, 1}, now, worker_out);
    if (worker.next_timeout() <= now) worker.on_timer(now, worker_out);
    worker_out.flush();
    fuzz::check(outcomes(worker.counters()) == received_before + 1, "the worker counts every packet once");
    if (source == stranger) fuzz::check(state_of(worker) == state, "only the registered aggregator is believed");
  }

  int kind;
  fuzz::Job job{4};
  switchml::SwitchJobConfig other{other_epoch, fuzz::packet_elements, 2, {{2000, {}}, {2001, {}}}};
  std::vector<fuzz::CacheLine> other_memory =
      std::vector<fuzz::CacheLine>(switchml::Switch::memory_bytes(fuzz::packet_elements, 2, 2) / sizeof(fuzz::CacheLine));
  std::vector<fuzz::CacheLine> slow_memory = job.memory, slow_other_memory = other_memory;
  switchml::Switch slow;
  bool compares = false;
  std::vector<float> operation_of;
  Time now{};
  std::vector<fuzz::Datagram> sent;
  fuzz::RecordingSink switch_out{fuzz::endpoint_of(255), sent}, worker_out{fuzz::endpoint_of(0), sent};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  World world(input.ConsumeIntegralInRange<int>(0, 3));
  const switchml::JobCounters other_before = *world.job.aggregator.job_counters(other_epoch);
  std::vector<fuzz::Datagram> genuine = world.sent;

  while (input.remaining_bytes() > 0) {
    world.now += std::chrono::microseconds(input.ConsumeIntegral<std::uint16_t>());
    const bool to_switch = input.ConsumeBool();
    const Endpoint server = fuzz::endpoint_of(255);
    // Half of the time one that was really sent goes first, so that the forgery meets slots that are in use.
    if (!genuine.empty() && input.ConsumeBool()) {
      const fuzz::Datagram one = genuine[input.ConsumeIntegral<std::uint8_t>() % genuine.size()];
      one.to == server ? world.to_switch(one.bytes, one.from) : world.to_worker(one.bytes, one.from);
    }
    std::vector<std::byte> packet = forge(input, to_switch);
    if (!genuine.empty() && input.ConsumeBool()) {
      const fuzz::Datagram one = genuine[input.ConsumeIntegral<std::uint8_t>() % genuine.size()];
      if ((one.to == server) == to_switch) packet = alter(input, one.bytes);
    }
    const bool strange = input.ConsumeIntegralInRange<int>(0, 7) == 0;
    if (to_switch) {
      world.to_switch(packet, strange ? stranger : fuzz::endpoint_of(std::to_integer<std::uint8_t>(packet[2]) % 2));
    } else {
      world.to_worker(packet, strange ? stranger : server);
    }
    if (!world.sent.empty()) genuine = std::move(world.sent);
    world.sent.clear();
    std::erase_if(genuine,
                  [](const auto& one) { return one.to != fuzz::endpoint_of(255) && one.to != fuzz::endpoint_of(0); });
  }
  // No packet named the other job: nothing of it moved.
  const switchml::JobCounters& other_after = *world.job.aggregator.job_counters(other_epoch);
  fuzz::check(
      other_after.contributions == other_before.contributions && other_after.results_sent == other_before.results_sent,
      "the other job's state is its own");
  return 0;
}
