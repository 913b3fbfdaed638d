// Whole rings on a network that loses, repeats, reorders, delays and damages: every rank gets the sum in rank order, bit by
// bit, in bounded time; and nothing is repeated on a network that does nothing of that.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "support/virtual_ring.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;
using stream::Collective;
using stream::Operation;
using Bytes = std::vector<std::byte>;

// An operation, and what goes in and must come out.
struct Call {
  Operation operation;
  std::vector<Bytes> tensors;  // by rank: what it gives, then what it has
  Bytes expected;
};

float widened(DType dtype, const std::byte* at) {
  if (dtype == DType::float32) return std::bit_cast<float>(load_le<std::uint32_t>(at));
  const auto half = load_le<std::uint16_t>(at);
  float value = 0;
  (dtype == DType::float16 ? kernels::from_float16 : kernels::from_bfloat16)(&value, &half, 1);
  return value;
}

// Element i of a sum, as docs/numerics.md has it: in rank order.
void sum_element(const Call& call, std::size_t i, std::byte* out) {
  const DType dtype = call.operation.dtype;
  const std::size_t width = bytes_of(dtype);
  const auto divisor = call.operation.op == ReduceOp::avg ? static_cast<std::uint32_t>(call.tensors.size()) : 1;
  if (dtype == DType::int32) {
    std::uint32_t sum = 0;
    for (const Bytes& tensor : call.tensors) sum += load_le<std::uint32_t>(tensor.data() + i * width);
    const std::int64_t quotient = std::int64_t{static_cast<std::int32_t>(sum)} / divisor;
    return store_le(out, static_cast<std::uint32_t>(static_cast<std::int32_t>(quotient)));
  }
  float sum = widened(dtype, call.tensors[0].data() + i * width);
  double wide = static_cast<double>(sum);
  for (std::size_t rank = 1; rank < call.tensors.size(); ++rank) {
    const float value = widened(dtype, call.tensors[rank].data() + i * width);
    sum += value;
    wide += static_cast<double>(value);
  }
  const float result = std::isfinite(sum) ? sum / static_cast<float>(divisor) : static_cast<float>(wide / divisor);
  if (dtype == DType::float32) return store_le(out, std::bit_cast<std::uint32_t>(result));
  std::uint16_t half = 0;
  (dtype == DType::float16 ? kernels::to_float16 : kernels::to_bfloat16)(&half, &result, 1);
  store_le(out, half);
}

Call random_call(Random& random, std::uint64_t number, std::uint32_t ranks, std::size_t longest) {
  Call call;
  Operation& o = call.operation;
  o.number = number;
  o.dtype = static_cast<DType>(random.below(4));
  o.op = random.chance(0.3) ? ReduceOp::avg : ReduceOp::sum;
  o.collective = random.chance(0.8)   ? Collective::all_reduce
                 : random.chance(0.7) ? Collective::broadcast
                                      : Collective::barrier;
  o.root = static_cast<std::uint32_t>(random.below(ranks));
  const std::size_t bytes = random.below(random.chance(0.5) ? longest : 50);
  const std::size_t width = o.collective == Collective::broadcast ? 1 : bytes_of(o.dtype);
  o.elements = o.collective == Collective::barrier ? 0 : bytes / width;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Bytes& tensor = call.tensors.emplace_back(o.elements * width);
    for (std::byte& byte : tensor) byte = static_cast<std::byte>(random.next());
    if (o.collective != Collective::all_reduce || o.dtype == DType::int32) continue;
    for (std::size_t i = 0; i < o.elements; ++i) {  // no NaN: one has many bits
      if (std::isnan(widened(o.dtype, tensor.data() + i * width))) tensor[(i + 1) * width - 1] = std::byte{0x3f};
    }
  }
  if (o.collective == Collective::broadcast) call.expected = call.tensors[o.root];
  if (o.collective == Collective::all_reduce) {
    call.expected.resize(o.elements * width);
    for (std::size_t i = 0; i < o.elements; ++i) sum_element(call, i, call.expected.data() + i * width);
  }
  return call;
}

// As `expected`, but that the sum of infinities of both signs is any NaN.
void expect_result(const Call& call, const Bytes& actual) {
  ASSERT_EQ(call.expected.size(), actual.size());
  if (call.expected == actual) return;
  const DType dtype = call.operation.dtype;
  ASSERT_EQ(Collective::all_reduce, call.operation.collective);
  ASSERT_NE(DType::int32, dtype);
  const std::size_t width = bytes_of(dtype);
  for (std::size_t at = 0; at < actual.size(); at += width) {
    if (std::isnan(widened(dtype, call.expected.data() + at)) && std::isnan(widened(dtype, actual.data() + at))) continue;
    ASSERT_TRUE(std::equal(actual.begin() + static_cast<std::ptrdiff_t>(at),
                           actual.begin() + static_cast<std::ptrdiff_t>(at + width),
                           call.expected.begin() + static_cast<std::ptrdiff_t>(at)))
        << "element " << at / width;
  }
}

RingJobConfig random_config(Random& random) {
  RingJobConfig config;
  config.ranks = 1 + static_cast<std::uint32_t>(random.below(5));
  config.lanes = 1 + static_cast<std::uint32_t>(random.below(3));
  config.window = 1 + static_cast<std::uint32_t>(random.below(5));
  config.message_packets = 1 + static_cast<std::uint32_t>(random.below(6));
  constexpr std::uint32_t mtus[] = {256, 256, 256, 256, 1024, 1024, 2 * wire::roce::max_mtu};  // the last: of tunnels alone
  config.mtu = mtus[random.below(std::size(mtus))];
  config.first_psn =
      static_cast<std::uint32_t>(random.chance(0.5) ? 0x1000000 - random.below(100) : random.next()) & wire::roce::psn_mask;
  config.order = random.chance(0.7) ? netreduce::Order::ring : netreduce::Order::arrival;
  config.selective = random.chance(0.5);
  config.seed = random.next();
  return config;
}

// All ranks' calls, each at a time of its own: stragglers are the normal case.
class Job {
 public:
  Job(const RingJobConfig& config, Random& random) : config_(config), ring_(config), next_(config.ranks) {
    const std::size_t longest = std::size_t{config.mtu} * config.message_packets * 12;
    const std::uint64_t count = 1 + random.below(8);
    for (std::uint64_t number = 0; number < count; ++number) {
      calls_.push_back(random_call(random, number, config.ranks, longest));
    }
    inputs_ = calls_;
  }

  // False: not done by then.
  bool run(Random& random, Duration limit, Duration latest_submit) {
    std::vector<Time> submit_at(config_.ranks);
    while (true) {
      Time soonest = never;
      for (std::uint32_t rank = 0; rank < config_.ranks; ++rank) {
        while (next_[rank] < calls_.size() && submit_at[rank] <= ring_.network.now) {
          Call& call = calls_[next_[rank]++];
          call.operation.data = call.tensors[rank].data();
          ring_.submit(rank, call.operation);
          if (latest_submit > Duration{}) {
            submit_at[rank] = ring_.network.now + Duration(random.below(static_cast<std::uint64_t>(latest_submit.count()))) *
                                                      (random.chance(0.3) ? 1 : 0);
          }
        }
        if (next_[rank] < calls_.size()) soonest = std::min(soonest, submit_at[rank]);
      }
      if (soonest == never) break;
      while (ring_.network.now < soonest && ring_.step(soonest)) {
      }
    }
    return ring_.run(calls_.size(), limit) && ring_.drain(limit);
  }

  void expect_results() const {
    for (const Call& call : calls_) {
      for (std::uint32_t rank = 0; rank < config_.ranks; ++rank) {
        SCOPED_TRACE(to_string(call.operation) + ", number " + std::to_string(call.operation.number) + ", rank " +
                     std::to_string(rank));
        expect_result(call, call.tensors[rank]);
        ASSERT_EQ(call.tensors[0], call.tensors[rank]) << "the same bits everywhere";
      }
    }
  }

  void expect_counters_add_up() {
    for (std::uint32_t lane = 0; lane < config_.lanes; ++lane) {
      const auto sum = [](const auto& kinds) {
        return std::accumulate(std::begin(kinds), std::end(kinds), std::uint64_t{0});
      };
      const netreduce::TunnelCounters& t = ring_.tunnel(lane).counters();
      EXPECT_EQ(ring_.received_by_tunnel(lane), sum(t.malformed) + t.unknown + t.dropped_source + t.passed + t.taken);
      const netreduce::RingCounters& c = ring_.counters(lane);
      EXPECT_EQ(t.taken, c.packets);
      EXPECT_EQ(c.contributions, c.sums * config_.ranks);
      // Hosts that keep to their rules.
      EXPECT_EQ(0U, c.dropped_header + c.dropped_early + c.dropped_misplaced + c.dropped_mismatch + c.dropped_shape);
      EXPECT_EQ(0U, ring_.tunnel(lane).accelerator().counters().dropped_known);
      for (std::uint32_t rank = 0; rank < config_.ranks; ++rank) {
        const netreduce::RoceHostCounters& h = ring_.host(rank, lane).counters();
        EXPECT_EQ(ring_.received_by_host(rank, lane), h.packets + sum(h.malformed) + h.dropped_icrc + h.foreign);
        EXPECT_EQ("", ring_.host(rank, lane).failure());
        EXPECT_TRUE(ring_.host(rank, lane).worker().idle());
      }
    }
  }

  [[nodiscard]] VirtualRing& ring() { return ring_; }
  [[nodiscard]] const std::vector<Call>& calls() const { return calls_; }

 private:
  RingJobConfig config_;
  VirtualRing ring_;
  std::vector<Call> calls_, inputs_;
  std::vector<std::size_t> next_;  // call of each rank
};

// Of one seed: the same calls, whatever the network does.
struct Outcome {
  std::vector<Bytes> results;
  std::uint64_t retransmissions = 0, timeouts = 0, naks = 0, early = 0, answered = 0, held = 0, waiting = 0, damaged = 0,
                old = 0;
};

Outcome run(std::uint64_t seed, bool faulty, Duration delay) {
  Random random(seed);
  RingJobConfig config = random_config(random);
  const std::uint64_t profile = random.below(4);
  config.faults.least_delay = config.faults.most_delay = delay;
  if (faulty) {
    Random faults(seed + 1'000'000);
    config.faults.least_delay = 5us;
    config.faults.most_delay = 5us + std::chrono::microseconds(faults.below(profile == 0 ? 5 : 300));  // reorders
    if (profile >= 1) config.faults.loss = static_cast<double>(faults.below(100)) / 600;
    if (profile >= 2) config.faults.duplicate = static_cast<double>(faults.below(100)) / 300;
    if (profile == 3) {
      config.faults.late = static_cast<double>(faults.below(100)) / 1000;
      config.faults.latest = std::chrono::milliseconds(1 + faults.below(500));
      config.faults.corrupt = static_cast<double>(faults.below(100)) / 1000;
    }
  }
  Job job(config, random);
  Random when(seed + 2'000'000);
  EXPECT_TRUE(job.run(when, 1000s, faulty ? 100ms : Duration{})) << "not done";
  Outcome outcome;
  job.expect_results();
  job.expect_counters_add_up();
  for (const Call& call : job.calls()) outcome.results.push_back(call.tensors[0]);
  for (std::uint32_t lane = 0; lane < config.lanes; ++lane) {
    const netreduce::RingCounters& c = job.ring().counters(lane);
    outcome.early += c.early;
    outcome.answered += c.repeats_answered;
    outcome.held += c.repeats_held;
    outcome.waiting += c.repeats_waiting;
    outcome.damaged += c.dropped_icrc;
    outcome.old += c.dropped_old + c.dropped_unplaced;
    for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
      const auto& sending = job.ring().host(rank, lane).sending();
      outcome.retransmissions += sending.retransmissions;
      outcome.timeouts += sending.timeouts;
      outcome.naks += sending.naks_received;
    }
  }
  return outcome;
}

TEST(NetreduceCluster, EveryRankGetsTheSameBitsOnAnyNetwork) {
  Outcome all;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Outcome clean = run(seed, false, 10us);
    const Outcome faulty = run(seed, true, {});
    ASSERT_EQ(clean.results, faulty.results);
    if (::testing::Test::HasFailure()) FAIL();
    all.retransmissions += faulty.retransmissions;
    all.timeouts += faulty.timeouts;
    all.naks += faulty.naks;
    all.early += faulty.early;
    all.answered += faulty.answered;
    all.held += faulty.held;
    all.waiting += faulty.waiting;
    all.damaged += faulty.damaged;
    all.old += faulty.old;
  }
  // Everything that can happen did.
  EXPECT_GT(all.retransmissions, 1000U);
  EXPECT_GT(all.timeouts, 300U);
  EXPECT_GT(all.naks, 300U);
  EXPECT_GT(all.early, 100U);
  EXPECT_GT(all.answered, 300U);
  EXPECT_GT(all.held, 100U);
  EXPECT_GT(all.waiting, 300U);
  EXPECT_GT(all.damaged, 100U);
  EXPECT_GT(all.old, 100U);
}

TEST(NetreduceCluster, NothingIsRepeatedWithoutLoss) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Outcome outcome = run(seed, false, std::chrono::microseconds(1 + seed % 200));
    EXPECT_EQ(0U, outcome.retransmissions + outcome.timeouts + outcome.naks);
    EXPECT_EQ(0U, outcome.early + outcome.answered + outcome.held + outcome.waiting + outcome.damaged + outcome.old);
    if (::testing::Test::HasFailure()) FAIL();
  }
}

// However late a rank is: the others repeat now and then, nothing breaks, and all is right when it comes.
TEST(NetreduceCluster, AStragglerIsWaitedFor) {
  for (const netreduce::Order order : {netreduce::Order::ring, netreduce::Order::arrival}) {
    RingJobConfig config;
    config.ranks = 4;
    config.window = 4;
    config.order = order;
    VirtualRing ring(config);
    constexpr std::size_t elements = 5000;
    std::vector<std::vector<float>> tensors(4, std::vector<float>(elements, 1.25F));
    const auto submit = [&](std::uint32_t rank) {
      Operation operation;
      operation.elements = elements;
      operation.data = tensors[rank].data();
      ring.submit(rank, operation);
    };
    for (const std::uint32_t rank : {0U, 1U, 3U}) submit(rank);
    EXPECT_FALSE(ring.run(1, 60s));
    const auto stall = ring.tunnel().accelerator().stall(VirtualRing::incarnation_of(0));
    ASSERT_TRUE(stall.has_value());
    EXPECT_TRUE(stall->missing.contains(2));
    EXPECT_EQ(1U, stall->missing.size());
    EXPECT_EQ(0U, ring.counters().results);
    for (const std::uint32_t rank : {0U, 1U, 3U}) {
      EXPECT_LT(ring.host(rank).sending().retransmissions, 60s / 250ms + 20) << "one packet per time-out, and no more";
    }
    submit(2);
    EXPECT_TRUE(ring.run(1, 60s));
    EXPECT_TRUE(ring.drain());
    for (const auto& tensor : tensors) EXPECT_EQ(std::vector<float>(elements, 5.0F), tensor);
  }
}

// What restarted knows nothing, and passes nothing that it knows to be a gradient; no rank takes what was not summed.
TEST(NetreduceCluster, ABypassedAcceleratorIsNoticed) {
  RingJobConfig config;
  config.ranks = 3;
  VirtualRing ring(config);
  constexpr std::size_t elements = 20'000;
  std::vector<std::vector<float>> tensors(3, std::vector<float>(elements, 1));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Operation operation;
    operation.elements = elements;
    operation.data = tensors[rank].data();
    ring.submit(rank, operation);
  }
  std::uint64_t delivered = 0;
  ring.network.lose = [&](const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) {
    if (++delivered < 200 || from == endpoint_of(255, 7170)) return false;
    // From here on everything goes straight to where it was going: inner addresses are the hosts' own.
    wire::roce::Packet packet;
    EXPECT_EQ(wire::ParseError::none, wire::roce::parse(bytes, packet));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (VirtualRing::address_of_host(rank).address == packet.ip.destination) {
        ring.network.send(endpoint_of(255, 7170), VirtualRing::address_of_host(rank), bytes);
      }
    }
    return true;
  };
  EXPECT_FALSE(ring.run(1, 10s));
  std::size_t noticed = 0;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    if (ring.host(rank).worker().failure()) ++noticed;
    for (const float value : tensors[rank]) ASSERT_TRUE(value == 1 || value == 3) << "a sum, or what was there";
  }
  EXPECT_GT(noticed, 0U);
}

}  // namespace
}  // namespace netsum::testing
