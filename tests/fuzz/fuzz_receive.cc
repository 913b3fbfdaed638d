// Forged packets from the right addresses, with the right epochs and checksums, at a switch and a worker in the middle of
// their work: neither touches memory that it should not, and the switch counts every packet once.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "fuzz/harness.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

std::vector<std::byte> forge(FuzzedDataProvider& input, bool to_switch) {
  wire::Common common{};
  common.type = static_cast<wire::Type>(input.ConsumeIntegralInRange<int>(0, 10));
  common.rank = input.ConsumeIntegralInRange<std::uint8_t>(0, 2);
  common.job_epoch = input.ConsumeIntegralInRange<int>(0, 15) == 0 ? 1 : fuzz::job_epoch;
  common.rank_epoch = to_switch ? fuzz::rank_epochs[common.rank % 2] : wire::fold_epochs(fuzz::rank_epochs);
  wire::ChunkHeader header;
  header.operation = input.ConsumeIntegralInRange<std::uint64_t>(0, 3);
  header.chunk = input.ConsumeIntegralInRange<std::uint32_t>(0, 9);
  header.signature = input.ConsumeIntegralInRange<std::uint32_t>(0, 2);
  header.slot = input.ConsumeIntegralInRange<std::uint16_t>(0, 5);
  header.version = input.ConsumeIntegralInRange<std::uint8_t>(0, 1);
  header.masks = input.ConsumeBool();
  header.exponents = input.ConsumeIntegralInRange<std::uint8_t>(0, 3);
  header.elements = input.PickValueInArray<std::uint16_t>({0, 1, 63, 64, 65, 256});
  header.ahead_operation = input.PickValueInArray<std::uint16_t>({wire::no_ahead, 0, 1, 2});
  header.ahead_chunk = input.ConsumeIntegralInRange<std::uint32_t>(0, 9);

  std::vector<std::byte> packet(wire::chunk_packet_bytes(header));
  wire::write_chunk_header(packet, common, header);
  const std::size_t body = input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - wire::chunk_header_bytes);
  const auto bytes = input.ConsumeBytes<std::uint8_t>(body);
  std::transform(bytes.begin(), bytes.end(), packet.begin() + wire::chunk_header_bytes, [](auto b) { return std::byte{b}; });
  for (int flips = input.ConsumeIntegralInRange<int>(0, 3); flips > 0; --flips) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - 1)] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {
    packet.resize(input.ConsumeIntegralInRange<std::size_t>(wire::common_bytes, packet.size() + 64));
  }
  wire::seal(packet);
  return packet;
}

void check_counters(const switchml::Switch& aggregator) {
  const switchml::JobCounters& c = *aggregator.job_counters(fuzz::job_epoch);
  const std::uint64_t accounted = c.contributions + c.repeats_answered + c.repeats_waiting + c.repeats_silent +
                                  c.dropped_old + c.dropped_early + c.dropped_mismatch + c.dropped_rank +
                                  c.dropped_rank_epoch + c.dropped_source + c.dropped_slot + c.dropped_shape;
  fuzz::check(c.packets == accounted, "every packet of the job is counted once");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  fuzz::Job job(4);
  std::vector<fuzz::Datagram> sent;
  fuzz::Outbox switch_out(fuzz::endpoint_of(255), sent), worker_out(fuzz::endpoint_of(0), sent);
  std::vector<float> tensor(300, 1.0F);
  Time now{};
  stream::Operation operation;
  operation.elements = tensor.size();
  operation.data = tensor.data();
  fuzz::check(job.workers[0].submit(operation, now, worker_out), "the first operation is taken");
  worker_out.flush();

  while (input.remaining_bytes() > 0) {
    now += std::chrono::microseconds(input.ConsumeIntegral<std::uint16_t>());
    const bool to_switch = input.ConsumeBool();
    // Half of the time what the worker really sent goes first, so that the forgery meets slots that are in use.
    if (!sent.empty() && sent.front().to == fuzz::endpoint_of(255) && input.ConsumeBool()) {
      const RxView view{sent.front().bytes, sent.front().from};
      job.aggregator.on_packets({&view, 1}, now, switch_out);
    }
    const std::vector<std::byte> packet = forge(input, to_switch);
    if (to_switch) {
      const RxView view{packet, fuzz::endpoint_of(std::to_integer<std::uint8_t>(packet[2]) % 2)};
      job.aggregator.on_packets({&view, 1}, now, switch_out);
    } else {
      const RxView view{packet, fuzz::endpoint_of(255)};
      job.workers[0].on_packets({&view, 1}, now, worker_out);
      if (job.workers[0].next_timeout() <= now) job.workers[0].on_timer(now, worker_out);
    }
    sent.clear();
    switch_out.flush();
    worker_out.flush();
    check_counters(job.aggregator);
  }
  return 0;
}
