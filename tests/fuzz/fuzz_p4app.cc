// Packets of p4app, forged ones and genuine ones with changes, at a switch and a worker; and any bytes as their control
// connections and messages. Each counts every packet once; a stranger gets nothing; results go to the session's workers.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <utility>

#include "base/counter_list.h"
#include "fuzz/harness.h"
#include "protocol/p4app/switch.h"
#include "protocol/p4app/worker.h"
#include "wire/p4app.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr std::uint32_t workers = 2;
const Endpoint stranger = fuzz::endpoint_of(77), server = fuzz::endpoint_of(255);

std::vector<std::byte> forge(FuzzedDataProvider& input) {
  wire::p4app::Header header;
  header.elements = input.ConsumeIntegralInRange<int>(0, 7) == 0 ? 256 : 64;
  header.job = input.ConsumeIntegralInRange<std::uint8_t>(0, 2);
  header.packet = input.PickValueInArray<std::uint32_t>({0, 1, 2, 3, 4, 5, 6, UINT32_MAX});
  header.slot = input.PickValueInArray<std::uint16_t>({0, 1, 2, 3, 8191, 8192, 0x3fff});
  header.set = input.ConsumeBool();
  for (auto& exponent : header.exponents) exponent = input.ConsumeIntegral<std::int8_t>();
  std::vector<std::byte> packet(wire::p4app::packet_bytes(header.elements), std::byte{0x7f});
  wire::p4app::write_header(packet, header);
  return packet;
}

void alter(FuzzedDataProvider& input, std::vector<std::byte>& packet) {
  for (int changes = input.ConsumeIntegralInRange<int>(0, 3); changes > 0 && !packet.empty(); --changes) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, std::min<std::size_t>(packet.size() - 1, 12))] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 15) == 0) packet.resize(input.ConsumeIntegralInRange<std::size_t>(0, 1035));
}

// Its memory is taken once; each input begins a session.
p4app::Switch& aggregator() {
  static p4app::Switch one;
  return one;
}

struct World {
  explicit World(bool floats) : tensor(64 * 5 + 3, floats ? 0x3fc00000 : 7) {
    aggregator().begin(workers, 64);
    for (std::uint8_t rank = 0; rank < workers; ++rank) aggregator().set_worker(rank, fuzz::endpoint_of(rank));
    fuzz::RecordingSink out(fuzz::endpoint_of(0), sent);
    worker.begin(floats ? DType::float32 : DType::int32, std::as_writable_bytes(std::span(tensor)), now, out);
    out.flush();
  }

  void to_switch(const std::vector<std::byte>& packet, const Endpoint& source) {
    const std::uint64_t before = outcomes(aggregator().counters());
    const std::size_t first = sent.size();
    fuzz::RecordingSink out(server, sent);
    const RxView view{packet, source};
    aggregator().on_packets({&view, 1}, now, out);
    out.flush();
    fuzz::check(outcomes(aggregator().counters()) == before + 1, "the switch counts every packet once");
    fuzz::check(source != stranger || sent.size() == first, "a stranger gets nothing");
    for (std::size_t i = first; i < sent.size(); ++i) {
      wire::p4app::Packet result;
      fuzz::check(wire::p4app::parse(sent[i].bytes, result) == wire::ParseError::none, "what the switch sends is a packet");
      fuzz::check(sent[i].to == fuzz::endpoint_of(0) || sent[i].to == fuzz::endpoint_of(1), "results go to workers");
    }
  }

  void to_worker(const std::vector<std::byte>& packet, const Endpoint& source) {
    const std::uint64_t before = outcomes(worker.counters()), results = worker.counters().results;
    fuzz::RecordingSink out(fuzz::endpoint_of(0), sent);
    const RxView view{packet, source};
    worker.on_packets({&view, 1}, now, out);
    worker.on_timer(now, out);
    out.flush();
    fuzz::check(outcomes(worker.counters()) == before + 1, "the worker counts every packet once");
    fuzz::check(source == server || worker.counters().results == results, "only the switch is believed");
  }

  Time now{};
  std::vector<std::uint32_t> tensor;
  p4app::Worker worker{{workers, 64, 4, 0, server}};
  std::vector<fuzz::Datagram> sent;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  World world(input.ConsumeBool());
  std::vector<fuzz::Datagram> genuine = std::exchange(world.sent, {});
  while (input.remaining_bytes() > 0) {
    world.now += std::chrono::microseconds(input.ConsumeIntegral<std::uint16_t>());
    const bool known = !genuine.empty() && input.ConsumeBool();
    const fuzz::Datagram* const one = known ? &genuine[input.ConsumeIntegral<std::uint8_t>() % genuine.size()] : nullptr;
    std::vector<std::byte> packet = one != nullptr ? one->bytes : forge(input);
    if (one == nullptr || input.ConsumeBool()) alter(input, packet);
    const bool strange = input.ConsumeIntegralInRange<int>(0, 7) == 0;
    if (one != nullptr ? one->to == server : input.ConsumeBool()) {
      world.to_switch(packet, strange ? stranger : fuzz::endpoint_of(input.ConsumeIntegralInRange<std::uint8_t>(0, 1)));
    } else {
      world.to_worker(packet, strange ? stranger : server);
    }
    for (fuzz::Datagram& datagram : std::exchange(world.sent, {})) genuine.push_back(std::move(datagram));
    if (genuine.size() > 200) genuine.erase(genuine.begin(), genuine.end() - 100);
  }
  return 0;
}
