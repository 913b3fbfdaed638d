// ATP's sums are the same bits whatever packets' length, window, slots and order of arrival: those of the formulas in
// docs/numerics.md. (The simulator's packets have whole multiples of 64 elements.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "oracle/judge.h"
#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/worker.h"
#include "support/atp_packets.h"
#include "support/virtual_network.h"

namespace netsum::testing {
namespace {

using Tensor = std::vector<float>;

constexpr std::uint64_t epoch = 7;
constexpr std::uint32_t folded = 9;
const Endpoint the_switch = port(10), the_server = port(11);

Endpoint rank_at(std::uint32_t rank) {
  return port(static_cast<std::uint16_t>(100 + rank));
}

struct Setup {
  std::uint32_t packet_elements = 64, window = 16;
  atp::Scaling scaling = atp::Scaling::fixed;
  atp::Overflow overflow = atp::Overflow::exact;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t order = 1;  // of arrival
};

std::span<std::byte> bytes_of(std::vector<CacheLine>& lines) {
  return std::as_writable_bytes(std::span(lines));
}
std::vector<CacheLine> lines_for(std::size_t bytes) {
  return std::vector<CacheLine>(bytes / sizeof(CacheLine) + 1);
}

// Ranks at one switch with few slots, so that chunks collide, below a server. Packets arrive in any order.
class Cluster {
 public:
  Cluster(const Setup& setup, std::vector<Tensor>& tensors) : random_(setup.order) {
    const auto ranks = static_cast<std::uint32_t>(tensors.size());
    const atp::Topology topology({{atp::at_server}, std::vector<std::uint32_t>(ranks, 0)});
    atp::SwitchJobConfig at_switch;
    atp::ServerJobConfig at_server;
    at_switch.epoch = at_server.epoch = epoch;
    at_switch.folded_epochs = at_server.folded_epochs = folded;
    at_switch.packet_elements = at_server.packet_elements = setup.packet_elements;
    at_switch.window = at_server.window = setup.window;
    at_switch.overflow = at_server.overflow = setup.overflow;
    at_switch.parent = the_server;
    at_server.topology = topology;
    at_server.roots = {the_switch};
    at_server.switch_slots = slots;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      at_switch.children.push_back({rank_at(rank), false, 100 + rank, ranks_of({rank})});
      at_server.members.push_back({100 + rank, rank_at(rank)});
      atp::WorkerConfig c;
      c.job_epoch = epoch;
      c.rank = rank;
      c.world_size = ranks;
      c.rank_epoch = 100 + rank;
      c.folded_epochs = folded;
      c.packet_elements = setup.packet_elements;
      c.window = setup.window;
      c.first_hop = the_switch;
      c.server = the_server;
      c.path = topology.path(rank);
      c.scaling = setup.scaling;
      c.switch_slots = slots;
      workers_.push_back(std::make_unique<atp::Worker>(c));
    }
    const atp::SwitchConfig pool{.slots = slots, .packet_elements = setup.packet_elements};
    pool_ = lines_for(atp::Switch::memory_bytes(pool));
    switch_ = std::make_unique<atp::Switch>(pool, bytes_of(pool_));
    EXPECT_TRUE(switch_->add_job(at_switch));
    memory_ = lines_for(atp::Server::memory_bytes(setup.packet_elements, setup.window, ranks));
    EXPECT_TRUE(server_.add_job(at_server, bytes_of(memory_)));
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(workers_[rank]->submit({.number = 0,
                                          .op = setup.op,
                                          .dtype = DType::float32,
                                          .elements = tensors[rank].size(),
                                          .data = tensors[rank].data()},
                                         now_, sink_));
      collect(rank_at(rank));
    }
  }

  void run() {
    while (std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return !worker->idle(); })) {
      if (pending_.empty()) {
        now_ += std::chrono::milliseconds(20);
        for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
          workers_[rank]->on_timer(now_, sink_);
          collect(rank_at(rank));
        }
        continue;
      }
      std::swap(pending_[random_.below(std::min<std::size_t>(pending_.size(), 4))], pending_.front());
      const Datagram datagram = std::move(pending_.front());
      pending_.pop_front();
      const RxView view{datagram.bytes, datagram.from};
      if (datagram.to == the_switch) {
        switch_->on_packets({&view, 1}, false, now_, sink_);
      } else if (datagram.to == the_server) {
        server_.on_packets({&view, 1}, false, now_, sink_);
      } else {
        workers_.at(datagram.to.port - 100U)->on_packets({&view, 1}, now_, sink_);
      }
      collect(datagram.to);
    }
  }

 private:
  static constexpr std::uint32_t slots = 6;

  void collect(const Endpoint& from) {
    sink_.flush();
    for (Datagram& each : sink_.take()) {
      each.from = from;
      pending_.push_back(std::move(each));
    }
  }

  Random random_;
  std::vector<CacheLine> pool_, memory_;
  std::unique_ptr<atp::Switch> switch_;
  atp::Server server_;
  std::vector<std::unique_ptr<atp::Worker>> workers_;
  RecordingSink sink_;
  std::deque<Datagram> pending_;
  Time now_{std::chrono::hours(1)};
};

// In stretches, each with a range of its own.
std::vector<Tensor> tensors_of(Random& random, std::size_t ranks, std::size_t elements) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float specials[] = {0, -0.0F, infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 50, 4e-9F, 1e-40F};
  std::vector<Tensor> tensors(ranks, Tensor(elements));
  for (std::size_t begin = 0, end = 0; begin < elements; begin = end) {
    end = std::min(elements, begin + 1 + random.below(3000));
    const auto style = random.below(5);
    const int exponent = static_cast<int>(random.below(120)) - 60;
    for (std::size_t i = begin; i < end; ++i) {
      for (Tensor& tensor : tensors) {
        const float fraction = static_cast<float>(static_cast<std::int32_t>(random.next())) * 0x1p-31F;
        tensor[i] = style == 0   ? 4e-9F
                    : style == 1 ? std::ldexp(fraction, exponent)
                    : style == 2 ? fraction * 8
                                 : fraction / 8;
        if (random.below(style == 4 ? 8 : 500) == 0) tensor[i] = specials[random.below(std::size(specials))];
      }
    }
  }
  return tensors;
}

void expect_bits(const std::vector<Tensor>& inputs, const Setup& setup) {
  std::vector<Tensor> tensors = inputs;
  Cluster(setup, tensors).run();
  const auto numbers = setup.scaling == atp::Scaling::fixed ? oracle::Numbers::scaled : oracle::Numbers::rescaled;
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  const auto bytes_of_tensor = [](const Tensor& tensor) { return std::as_bytes(std::span(tensor)); };
  std::vector<std::vector<std::byte>> given;
  for (const Tensor& input : inputs) given.emplace_back(bytes_of_tensor(input).begin(), bytes_of_tensor(input).end());
  for (const Tensor& tensor : tensors) {
    ASSERT_EQ("", oracle::judge({.op = setup.op, .numbers = numbers, .ranks = ranks}, given, bytes_of_tensor(tensor)))
        << setup.packet_elements << " elements in a packet, window " << setup.window
        << (setup.scaling == atp::Scaling::dynamic ? ", dynamic" : ", fixed");
  }
}

TEST(AtpBits, DependNeitherOnPacketsNorOnWindows) {
  Random random(1);
  for (const auto scaling : {atp::Scaling::fixed, atp::Scaling::dynamic}) {
    for (const std::uint32_t packet : {32U, 64U, 100U, 128U, 256U, 353U, 2219U, 8192U, 10880U}) {
      for (const std::uint32_t window : {1U, 4U, 64U}) {
        const std::vector<Tensor> inputs = tensors_of(random, 2 + random.below(4), 1 + random.below(20'000));
        for (const auto overflow : {atp::Overflow::exact, atp::Overflow::saturating}) {
          const auto op = random.chance(0.5) ? ReduceOp::sum : ReduceOp::avg;
          expect_bits(inputs, {packet, window, scaling, overflow, op, random.next()});
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// One value that does not fit costs its neighbours nothing, and gives them nothing.
TEST(AtpBits, OfASmallValueDoNotDependOnALargeOneBesideIt) {
  for (const auto scaling : {atp::Scaling::fixed, atp::Scaling::dynamic}) {
    for (const std::uint32_t packet : {64U, 353U}) {
      std::vector<Tensor> tensors(2, Tensor(301, 4e-9F));
      for (Tensor& tensor : tensors) tensor[150] = 50;
      Cluster({.packet_elements = packet, .scaling = scaling}, tensors).run();
      EXPECT_EQ(300, std::count(tensors[0].begin(), tensors[0].end(), 0.0F)) << packet;
      EXPECT_EQ(100, tensors[1][150]);
    }
  }
}

}  // namespace
}  // namespace netsum::testing
