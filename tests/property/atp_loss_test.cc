// How much longer ATP takes where packets are lost, and what it repeats where threads are late: ranks and the parameter
// server behind links of 200 Mbit/s, a switch between them, under a virtual clock. Times are exact, and the same on every
// machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/worker.h"
#include "support/late_node.h"
#include "support/virtual_network.h"

namespace netsum::atp {
namespace {

using netsum::testing::endpoint_of;
using netsum::testing::Faults;
using netsum::testing::LateNode;
using netsum::testing::VirtualNetwork;

constexpr std::uint64_t job_epoch = 0x1234567;
constexpr std::uint32_t folded_epochs = 77, packet_elements = 353, pool = 4096;
const Endpoint switch_host = endpoint_of(100, 1), server_host = endpoint_of(101, 1);

Endpoint rank_host(std::uint32_t rank) {
  return endpoint_of(static_cast<std::uint8_t>(rank + 1), 1);
}

// Sums are exact.
float part_of(std::uint32_t rank) {
  return 0.125F * static_cast<float>(rank + 1);
}

struct alignas(64) Line {
  std::byte bytes[64];
};
std::vector<Line> lines(std::size_t bytes) {
  return std::vector<Line>((bytes + sizeof(Line) - 1) / sizeof(Line));
}

struct Setting {
  std::uint32_t ranks = 4;
  std::size_t elements = 2'000'000;
  double loss = 0;                // of each datagram
  bool only_from_rank_0 = false;  // is lost
  bool congestion_control = true;
  std::uint32_t window = 256;
  netsum::testing::Link link{};
  netsum::testing::Stops stops{};  // of every thread
};

Topology one_switch(std::uint32_t ranks) {
  return Topology({{at_server}, std::vector<std::uint32_t>(ranks, 0)});
}

class SwitchNode final : public LateNode {
 public:
  SwitchNode(VirtualNetwork& network, const Setting& s)
      : LateNode(network, switch_host, s.stops),
        memory_(lines(Switch::memory_bytes(config()))),
        switch_(config(), std::as_writable_bytes(std::span(memory_))) {
    SwitchJobConfig job;
    job.epoch = job_epoch;
    job.folded_epochs = folded_epochs;
    job.packet_elements = packet_elements;
    job.window = s.window;
    job.parent = server_host;
    for (std::uint32_t rank = 0; rank < s.ranks; ++rank) {
      SwitchChild child{rank_host(rank), false, 100 + rank, {}};
      child.ranks.insert(rank);
      job.children.push_back(child);
    }
    EXPECT_TRUE(switch_.add_job(job));
  }
  void serve(std::span<const RxView> packets) override { switch_.on_packets(packets, false, now(), sink); }

 private:
  static SwitchConfig config() {
    SwitchConfig c;
    c.slots = pool;
    c.packet_elements = packet_elements;
    return c;
  }
  std::vector<Line> memory_;
  Switch switch_;
};

class ServerNode final : public LateNode {
 public:
  ServerNode(VirtualNetwork& network, const Setting& s)
      : LateNode(network, server_host, s.stops), memory_(lines(Server::memory_bytes(packet_elements, s.window, s.ranks))) {
    ServerJobConfig job;
    job.epoch = job_epoch;
    job.folded_epochs = folded_epochs;
    job.packet_elements = packet_elements;
    job.window = s.window;
    job.switch_slots = pool;
    job.topology = one_switch(s.ranks);
    for (std::uint32_t rank = 0; rank < s.ranks; ++rank) job.members.push_back({100 + rank, rank_host(rank)});
    job.roots = {switch_host};
    EXPECT_TRUE(server_.add_job(job, std::as_writable_bytes(std::span(memory_))));
  }
  void serve(std::span<const RxView> packets) override { server_.on_packets(packets, false, now(), sink); }

 private:
  std::vector<Line> memory_;
  Server server_;
};

class Rank final : public LateNode {
 public:
  Rank(VirtualNetwork& network, const Setting& s, std::uint32_t rank)
      : LateNode(network, rank_host(rank), s.stops), tensor_(s.elements, part_of(rank)), worker_(config(s, rank)) {}

  void begin() {
    EXPECT_TRUE(worker_.submit({.number = 0, .elements = tensor_.size(), .data = tensor_.data()}, now(), sink));
    sink.flush();
  }
  void serve(std::span<const RxView> packets) override { worker_.on_packets(packets, now(), sink); }
  [[nodiscard]] Time timer() const override { return worker_.next_timeout(); }
  void on_time() override { worker_.on_timer(now(), sink); }
  [[nodiscard]] const WorkerCounters& counters() const { return worker_.counters(); }
  [[nodiscard]] bool done() const { return worker_.idle(); }
  [[nodiscard]] const std::vector<float>& tensor() const { return tensor_; }

 private:
  static WorkerConfig config(const Setting& s, std::uint32_t rank) {
    WorkerConfig c;
    c.job_epoch = job_epoch;
    c.rank = rank;
    c.world_size = s.ranks;
    c.rank_epoch = 100 + rank;
    c.folded_epochs = folded_epochs;
    c.packet_elements = packet_elements;
    c.window = s.window;
    c.first_hop = switch_host;
    c.server = server_host;
    c.path = one_switch(s.ranks).path(rank);
    c.switch_slots = pool;
    c.congestion_control = s.congestion_control;
    return c;
  }
  std::vector<float> tensor_;
  Worker worker_;
};

struct Outcome {
  double seconds = 0;
  double repeated = 0;  // packets of ranks over those that they sent first
};

// Of an all-reduce.
Outcome outcome_of(const Setting& s) {
  Faults faults;
  faults.least_delay = faults.most_delay = std::chrono::microseconds(50);
  if (!s.only_from_rank_0) faults.loss = s.loss;
  VirtualNetwork network(1, faults);
  netsum::testing::Random random(2);
  if (s.only_from_rank_0) {
    network.lose = [&](const Endpoint& from, const Endpoint&, std::span<const std::byte>) {
      return from == rank_host(0) && random.chance(s.loss);
    };
  }
  const SwitchNode at_switch(network, s);
  const ServerNode server(network, s);
  network.shape(server_host, s.link);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint32_t rank = 0; rank < s.ranks; ++rank) {
    ranks.push_back(std::make_unique<Rank>(network, s, rank));
    network.shape(ranks.back()->self(), s.link);
  }
  for (auto& rank : ranks) rank->begin();
  const auto all_done = [&] {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->done(); });
  };
  while (!all_done() && network.step(Time(std::chrono::minutes(5)))) {
  }
  EXPECT_TRUE(all_done());
  float sum = 0;
  for (std::uint32_t rank = 0; rank < s.ranks; ++rank) sum += part_of(rank);
  for (const auto& rank : ranks) {
    EXPECT_TRUE(std::all_of(rank->tensor().begin(), rank->tensor().end(), [&](float value) { return value == sum; }));
  }
  double sent = 0, repeated = 0;
  for (const auto& rank : ranks) {
    sent += static_cast<double>(rank->counters().gradients);
    repeated += static_cast<double>(rank->counters().retransmissions);
  }
  return {std::chrono::duration<double>(network.now.time_since_epoch()).count(), repeated / sent};
}

// The time with losses over the time without.
double ratio_of(Setting s, double loss) {
  s.loss = 0;
  const double without = outcome_of(s).seconds;
  s.loss = loss;
  const double with = outcome_of(s).seconds;
  std::printf("%u ranks, window of %u, congestion control %s, %g %% of %s lost: %.3f s, %.3f s without; ratio %.3f\n",
              s.ranks, s.window, s.congestion_control ? "on" : "off", loss * 100,
              s.only_from_rank_0 ? "a rank's packets" : "all packets", with, without, with / without);
  return with / without;
}

TEST(AtpLoss, OnAllLinks) {
  EXPECT_LE(ratio_of({.ranks = 4}, 0.01), 1.25);
  EXPECT_LE(ratio_of({.ranks = 8}, 0.01), 1.3);
}

// §5.2.3: one worker drops packets; congestion control is off.
TEST(AtpLoss, OfOneRank) {
  const Setting s{.only_from_rank_0 = true, .congestion_control = false, .window = 64};
  EXPECT_LE(ratio_of(s, 0.0001), 1.02);
  EXPECT_LE(ratio_of(s, 0.001), 1.03);
  EXPECT_LE(ratio_of(s, 0.01), 1.10);
}

// Nothing is lost on the way, but a window that doubles would overrun these queues for all ranks at once.
TEST(AtpLoss, OfQueuesThatDoNotMark) {
  for (const std::uint32_t ranks : {4U, 8U}) {
    Setting s{.ranks = ranks};
    const Outcome marked = outcome_of(s);
    s.link.mark = s.link.queue;
    const Outcome full = outcome_of(s);
    std::printf("%u ranks, queues that do not mark: %.3f s, %.2f %% repeated; %.3f s where they do\n", ranks, full.seconds,
                full.repeated * 100, marked.seconds);
    EXPECT_LE(full.seconds, 1.05 * marked.seconds);
    EXPECT_LE(full.repeated, 0.02);
  }
}

// On a host that is busy elsewhere: no packet is lost, and every thread stops now and then, for longer than a time-out.
TEST(AtpLoss, FewRepeatsWhereThreadsAreLate) {
  for (const std::uint32_t ranks : {4U, 8U}) {
    Setting s{.ranks = ranks, .stops = {.chance = 0.002, .longest = std::chrono::milliseconds(8)}};
    s.link = {.bytes_per_second = 2.5e9, .queue = 8e6, .mark = 8e6};
    const Outcome outcome = outcome_of(s);
    std::printf("%u ranks, threads late: %.3f s, %.2f %% repeated\n", ranks, outcome.seconds, outcome.repeated * 100);
    EXPECT_LE(outcome.repeated, 0.02);
  }
}

}  // namespace
}  // namespace netsum::atp
