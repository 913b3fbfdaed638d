// Somebody on the path of a job whose packets are sealed, who reads everything, and sends whatever the input says from the
// addresses that are believed: parts of packets, packets with other bytes, with something behind them, or with a checksum in
// place of the seal. Nothing that was not sent so changes a node, and the sums are right.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>

#include "fuzz/harness.h"
#include "fuzz/under_way.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr std::size_t elements = 300;
const Endpoint aggregator = fuzz::endpoint_of(255);

struct World {
  explicit World(FuzzedDataProvider& input) : job(2, input.ConsumeBool() ? PacketSecurity::tag : PacketSecurity::encrypt) {
    const bool floats = input.ConsumeBool();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      tensors[rank].fill(floats ? 0x3f800000 : 1);  // 1.0
      stream::Operation operation;
      operation.dtype = floats ? DType::float32 : DType::int32;
      operation.elements = elements;
      operation.data = tensors[rank].data();
      fuzz::check(job.workers[rank].submit(operation, now, outboxes[rank]), "the operation is taken");
      outboxes[rank].flush();
    }
    expected = floats ? 0x40000000 : 2;
  }

  [[nodiscard]] std::vector<std::byte> state_of(const Endpoint& node) const {
    std::vector<std::byte> state;
    node == aggregator ? job.aggregator.append_state(state) : job.workers[node != fuzz::endpoint_of(0)].append_state(state);
    return state;
  }

  void deliver(const fuzz::Datagram& datagram) {
    const RxView view{datagram.bytes, datagram.from};
    const std::size_t box = datagram.to == aggregator ? 2 : datagram.to == fuzz::endpoint_of(0) ? 0 : 1;
    now += std::chrono::microseconds(1);
    box == 2 ? job.aggregator.on_packets({&view, 1}, now, outboxes[2])
             : job.workers[box].on_packets({&view, 1}, now, outboxes[box]);
    outboxes[box].flush();
  }

  void forge(FuzzedDataProvider& input) {
    if (seen.empty()) return;
    fuzz::Datagram forged = seen[input.ConsumeIntegralInRange<std::size_t>(0, seen.size() - 1)];
    std::vector<std::byte>& bytes = forged.bytes;
    if (input.ConsumeBool()) {  // the end of another one
      const auto& other = seen[input.ConsumeIntegralInRange<std::size_t>(0, seen.size() - 1)].bytes;
      const std::size_t from = input.ConsumeIntegralInRange<std::size_t>(0, std::min(bytes.size(), other.size()));
      bytes.resize(from);
      bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
    }
    for (int changes = input.ConsumeIntegralInRange<int>(0, 3); changes > 0; --changes) {
      bytes[input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] ^=
          std::byte{input.ConsumeIntegral<std::uint8_t>()};
    }
    if (input.ConsumeBool()) bytes.resize(input.ConsumeIntegralInRange<std::size_t>(1, bytes.size() + 32));
    if (input.ConsumeBool() && bytes.size() >= wire::switchml::common_bytes) {
      wire::switchml::reseal(bytes, PacketSecurity::none);
    }
    // What was sent is believed, in whatever order: a result, which all ranks are sent, also before a rank's own copy comes.
    const auto sent = [&](const fuzz::Datagram& one) { return one.to == forged.to && one.bytes == forged.bytes; };
    if (std::any_of(seen.begin(), seen.end(), sent) || std::any_of(under_way.sent.begin(), under_way.sent.end(), sent)) {
      return deliver(forged);
    }
    const auto before = state_of(forged.to);
    const std::size_t answers = under_way.sent.size();
    deliver(forged);
    fuzz::check(state_of(forged.to) == before, "a packet that nobody sent changes nothing");
    fuzz::check(under_way.sent.size() == answers, "and is not answered");
  }

  fuzz::Job job;
  std::array<std::array<std::uint32_t, elements>, 2> tensors{};
  std::uint32_t expected = 0;
  Time now{};
  fuzz::UnderWay under_way;
  std::array<fuzz::RecordingSink, 3> outboxes{fuzz::RecordingSink{fuzz::endpoint_of(0), under_way.sent},
                                              fuzz::RecordingSink{fuzz::endpoint_of(1), under_way.sent},
                                              fuzz::RecordingSink{aggregator, under_way.sent}};
  std::vector<fuzz::Datagram> seen;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  World world(input);
  while (!world.under_way.sent.empty()) {
    for (int forgeries = input.ConsumeIntegralInRange<int>(0, 3); forgeries > 0; --forgeries) world.forge(input);
    const std::size_t next = input.ConsumeIntegralInRange<std::size_t>(0, world.under_way.sent.size() - 1);
    world.seen.push_back(world.under_way.take(next));
    world.deliver(world.seen.back());
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    fuzz::check(!world.job.workers[rank].failure() && world.job.workers[rank].idle(), "the operation ends well");
    for (const std::uint32_t value : world.tensors[rank]) fuzz::check(value == world.expected, "every sum is right");
  }
  return 0;
}
