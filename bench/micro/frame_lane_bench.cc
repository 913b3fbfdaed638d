// What a lane past the kernel costs for a frame in and a frame out, without a port: frames lie in memory, and what leaves is
// thrown away. Each of so many ranks' datagrams is answered, in bursts; with no protocol, and beside it a bare loop, which
// sends every frame back as it is.
//   turns/RANKS/BURST/BYTES
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <vector>

#include "transport/addresses/addresses.h"
#include "transport/bypass/frame_host.h"
#include "wire/udp_frame.h"

namespace netsum::transport {
namespace {

constexpr std::size_t frame_bytes = 2048, frames = 512;

class Places final : public FramePlaces {
 public:
  Places() : FramePlaces(frame_bytes) {}
  void send() {
    for (const Place& frame : filled()) benchmark::DoNotOptimize(frame.begin);
    leave(added());
  }

 private:
  bool get_more() override {
    for (int i = 0; i < 32; ++i) append(memory_.data() + next_++ % frames * frame_bytes);
    return true;
  }
  std::vector<std::byte> memory_ = std::vector<std::byte>(frames * frame_bytes);
  std::size_t next_ = 0;
};

// What arrives again and again.
struct Arriving {
  std::vector<std::vector<std::byte>> ranks;
  std::vector<iovec> burst;
};

class Queues final : public LaneQueues {
 public:
  explicit Queues(const Arriving& arriving) : arriving_(arriving) {}
  std::span<const iovec> receive(std::uint32_t, std::uint32_t) override { return arriving_.burst; }
  void release() override {}
  FramePlaces& places(std::uint32_t) override { return places_; }
  void send(std::uint32_t, std::uint32_t) override { places_.send(); }

 private:
  const Arriving& arriving_;
  Places places_;
};

class Ports final : public FramePorts {
 public:
  explicit Ports(const Arriving& arriving) : arriving_(arriving) {}
  const std::vector<Port>& ports() const override { return ports_; }
  std::unique_ptr<LaneQueues> lane_queues() override { return std::make_unique<Queues>(arriving_); }
  bool has_link(std::uint32_t) const override { return true; }
  void look_for_link(std::uint32_t) override {}
  bool steer(std::uint32_t, std::uint16_t, std::uint32_t) override { return false; }
  void steer_no_more(std::uint16_t) override {}
  std::uint64_t overrun() const override { return 0; }
  std::uint64_t waiting(std::uint32_t, std::uint32_t) const override { return 0; }
  std::uint64_t capacity() const override { return 0; }

 private:
  const Arriving& arriving_;
  const std::vector<Port> ports_ = {{"memory", {2, 0, 0, 0, 0, 1}}};
};

constexpr wire::ethernet::Address card = {2, 0, 0, 0, 0, 2};

void arrive(Arriving& arriving, const Endpoint& lane, const std::vector<Endpoint>& ranks, std::size_t burst,
            std::size_t bytes) {
  arriving.ranks.clear();
  for (const Endpoint& rank : ranks) {
    auto& frame = arriving.ranks.emplace_back(wire::udp_head_bytes + bytes);
    wire::UdpHead({.next = card, .own = card, .from = rank, .to = lane})
        .write(std::span(frame).first<wire::udp_head_bytes>(), bytes);
  }
  arriving.burst.clear();
  for (std::size_t i = 0; i < burst; ++i) {
    auto& frame = arriving.ranks[i % ranks.size()];
    arriving.burst.push_back({frame.data(), frame.size()});
  }
}

void turns(benchmark::State& state) {
  const auto burst = static_cast<std::size_t>(state.range(1)), bytes = static_cast<std::size_t>(state.range(2));
  Arriving arriving;
  const auto host = std::make_shared<FrameHost>(std::make_unique<Ports>(arriving), host_address("10.0.0.1/24"));
  const auto lane = host->open({.port = 7170});
  std::vector<Endpoint> ranks;
  for (std::int64_t i = 0; i < state.range(0); ++i) ranks.push_back(resolve("10.0.0.9:" + std::to_string(5000 + i)));
  auto question = wire::arp_frame({false, card, {10, 0, 0, 9}, {}, {10, 0, 0, 1}});
  arriving.burst = {{question.data(), question.size()}};  // the lane learns where they are
  static_cast<void>(lane->receive());
  arrive(arriving, lane->local(), ranks, burst, bytes);
  const std::vector<std::byte> result(bytes);
  Sink& sink = lane->sink();
  for (auto _ : state) {
    for (const RxView& packet : lane->receive()) sink.multicast(result, {&packet.source, 1});
    sink.flush();
  }
  if (lane->counters().send_failures != 0) state.SkipWithError("answers were lost");
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(burst));
}

void bare(benchmark::State& state) {
  const auto burst = static_cast<std::size_t>(state.range(1)), bytes = static_cast<std::size_t>(state.range(2));
  Arriving arriving;
  arrive(arriving, resolve("10.0.0.1:7170"), {resolve("10.0.0.9:5000")}, burst, bytes);
  Places places;
  for (auto _ : state) {
    for (const iovec& frame : arriving.burst) std::memcpy(places.add(frame.iov_len).data(), frame.iov_base, frame.iov_len);
    places.send();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(burst));
}

void sizes(benchmark::internal::Benchmark* made) {
  for (const std::int64_t ranks : {1, 8}) {
    for (const std::int64_t burst : {1, 8, 64}) {
      for (const std::int64_t bytes : {32, 1076}) made->Args({ranks, burst, bytes});
    }
  }
}
BENCHMARK(turns)->Apply(sizes);
BENCHMARK(bare)->Args({1, 64, 32})->Args({1, 64, 1076});

}  // namespace
}  // namespace netsum::transport

BENCHMARK_MAIN();
