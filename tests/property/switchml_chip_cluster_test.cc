// Random jobs at a chip on a random network give what the software switch gives for block fixed point, to the bit; but a
// block of which an element is not finite is lost.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/virtual_cluster.h"
#include "support/virtual_tree.h"

namespace netsum::testing {
namespace {

using stream::Collective;
using stream::Operation;

constexpr std::size_t block = 256;
constexpr std::uint16_t infinity_of_float16 = 0x7c00, infinity_of_bfloat16 = 0x7f80;

// A rank's tensor, as bits.
using Tensor = std::vector<std::byte>;

struct Call {
  Operation operation;
  std::vector<Tensor> tensors;  // [rank]
};

std::uint16_t half_at(const Tensor& tensor, std::size_t i) {
  std::uint16_t half = 0;
  std::memcpy(&half, tensor.data() + 2 * i, 2);
  return half;
}
float float_at(const Tensor& tensor, std::size_t i) {
  float value = 0;
  std::memcpy(&value, tensor.data() + 4 * i, 4);
  return value;
}

bool is_finite(DType dtype, const Tensor& tensor, std::size_t i) {
  if (dtype == DType::float32) return std::isfinite(float_at(tensor, i));
  const std::uint16_t mask = dtype == DType::float16 ? infinity_of_float16 : infinity_of_bfloat16;
  return (half_at(tensor, i) & mask) != mask;
}
bool is_nan(DType dtype, const Tensor& tensor, std::size_t i) {
  if (dtype == DType::float32) return std::isnan(float_at(tensor, i));
  const std::uint16_t infinity = dtype == DType::float16 ? infinity_of_float16 : infinity_of_bfloat16;
  return (half_at(tensor, i) & 0x7fff) > infinity;
}

std::uint64_t length(Random& random) {
  constexpr std::uint64_t edges[] = {0, 1, 16, 17, 63, 64, 65, 255, 256, 257, 511, 1024, 1025};
  return random.chance(0.5) ? edges[random.below(std::size(edges))] : random.below(6000);
}

// Most blocks are finite, and of one magnitude; some have any bits.
void fill(Random& random, DType dtype, Tensor& tensor) {
  const std::size_t width = bytes_of(dtype), elements = tensor.size() / width;
  for (std::size_t first = 0; first < elements; first += block) {
    const std::uint64_t style = random.below(8);
    const int exponent = static_cast<int>(random.below(200)) - 120;
    for (std::size_t i = first; i < std::min(elements, first + block); ++i) {
      auto bits = static_cast<std::uint32_t>(random.next());
      if (dtype == DType::float32 && style != 0) {
        const double unit = static_cast<double>(random.below(2'000'001)) / 1e6 - 1;
        bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::ldexp(unit, style == 1 ? exponent : 0)));
      } else if (dtype == DType::float16 && style != 0) {
        bits &= 0xbfff;  // below 2
      } else if (dtype == DType::bfloat16 && style != 0) {
        bits = (bits & 0x80ff) | 0x3f00;
      }
      std::memcpy(tensor.data() + width * i, &bits, width);
    }
  }
}

Call random_call(Random& random, std::uint64_t number, std::uint32_t workers) {
  Call call;
  call.operation.number = number;
  call.operation.elements = length(random);
  call.operation.op = random.chance(0.3) ? ReduceOp::avg : ReduceOp::sum;
  constexpr DType dtypes[] = {DType::float32, DType::float32, DType::float32, DType::int32, DType::float16, DType::bfloat16};
  call.operation.dtype = dtypes[random.below(std::size(dtypes))];
  const std::uint64_t kind = random.below(10);
  std::size_t bytes = call.operation.elements * bytes_of(call.operation.dtype);
  if (kind == 0) {
    call.operation.collective = Collective::barrier;
    call.operation.elements = 0;
  } else if (kind == 1) {
    call.operation.collective = Collective::broadcast;
    call.operation.dtype = DType::int32;
    call.operation.root = static_cast<std::uint32_t>(random.below(workers));
    bytes = call.operation.elements = length(random);
  }
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    fill(random, call.operation.dtype, call.tensors.emplace_back((bytes + 3) / 4 * 4));
  }
  return call;
}

// Whether the ranks' calls came to their end.
template <class Job>
bool carry_out(Job& cluster, std::vector<Call>& calls, Random& random) {
  const auto workers = static_cast<std::uint32_t>(calls.front().tensors.size());
  std::vector<std::size_t> issued(workers);
  const auto is_behind = [&](std::size_t n) { return n < calls.size(); };
  while (std::any_of(issued.begin(), issued.end(), is_behind)) {
    const auto rank = static_cast<std::uint32_t>(random.below(workers));
    if (is_behind(issued[rank])) {
      Call& call = calls[issued[rank]++];
      Operation operation = call.operation;
      operation.data = call.tensors[rank].data();
      operation.fixed_point = true;
      cluster.submit(rank, operation);
    }
    for (std::uint64_t steps = random.below(30); steps > 0; --steps) {
      if (!cluster.step(cluster.network.now + std::chrono::milliseconds(5))) break;
    }
  }
  return cluster.run(calls.size(), std::chrono::minutes(10));
}

// What the ranks have when all is over.
std::vector<Call> results(std::vector<Call> calls, const ClusterConfig& config, Random& random) {
  VirtualCluster cluster(config);
  EXPECT_TRUE(carry_out(cluster, calls, random))
      << "did not end: " << config.workers << " workers, " << config.slots << " slots, " << config.lanes
      << " lanes, packets of " << config.packet_elements;
  if (config.chip) {
    for (std::uint32_t lane = 0; lane < config.lanes; ++lane) {
      EXPECT_EQ(0U, cluster.chip_switch(lane).slots_in_use(VirtualCluster::job_epoch));
      EXPECT_EQ(0U, cluster.chip_switch(lane).job_counters(VirtualCluster::job_epoch)->dropped_early);
      EXPECT_FALSE(cluster.worker(0, lane).failure().has_value());
    }
  }
  return calls;
}

// `at_chip` against `at_switch`, both made of `call`.
void compare(const Call& call, const Call& at_switch, const Call& at_chip, std::uint64_t& lost) {
  const DType dtype = call.operation.dtype;
  const bool floats = stream::adds_floats(call.operation);
  const std::size_t width = bytes_of(dtype), elements = floats ? call.operation.elements : 0;
  for (std::size_t rank = 0; rank < call.tensors.size(); ++rank) {
    if (!floats) {
      ASSERT_EQ(at_switch.tensors[rank], at_chip.tensors[rank]) << "rank " << rank;
    }
    ASSERT_EQ(at_chip.tensors[0].size(), at_chip.tensors[rank].size());
    for (std::size_t first = 0; first < elements; first += block) {
      const std::size_t end = std::min(elements, first + block);
      bool finite = true;
      for (const Tensor& tensor : call.tensors) {
        for (std::size_t i = first; i < end; ++i) finite &= is_finite(dtype, tensor, i);
      }
      if (finite) {
        ASSERT_EQ(0, std::memcmp(at_switch.tensors[rank].data() + first * width,
                                 at_chip.tensors[rank].data() + first * width, (end - first) * width))
            << "rank " << rank << ", block at " << first;
        continue;
      }
      ++lost;
      for (std::size_t i = first; i < end; ++i) ASSERT_TRUE(is_nan(dtype, at_chip.tensors[rank], i)) << "element " << i;
    }
  }
}

Faults random_faults(Random& random) {
  Faults faults;
  const std::uint64_t profile = random.below(4);
  if (profile == 0) return faults;
  faults.least_delay = std::chrono::microseconds(5);
  faults.most_delay = std::chrono::microseconds(5 + random.below(500));  // reorders
  if (profile >= 2) {
    faults.loss = static_cast<double>(random.below(100)) / 500;
    faults.duplicate = static_cast<double>(random.below(100)) / 300;
  }
  if (profile == 3) {
    faults.late = static_cast<double>(random.below(100)) / 1000;
    faults.latest = std::chrono::milliseconds(1 + random.below(500));
  }
  return faults;
}

TEST(SwitchmlChipCluster, GivesTheSoftwareSwitchsBits) {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    ClusterConfig chip;
    chip.seed = random.next();
    chip.workers = 1 + static_cast<std::uint32_t>(random.below(6));
    chip.lanes = 1 + static_cast<std::uint32_t>(random.below(3));
    chip.slots = 1U << random.below(6);
    chip.packet_elements = random.chance(0.5) ? 64 : 256;
    chip.faults = random_faults(random);
    chip.chip = true;
    const ClusterConfig software{.workers = chip.workers, .slots = 16};
    std::vector<Call> calls;
    const std::size_t operations = 1 + random.below(4);
    for (std::uint64_t number = 0; number < operations; ++number) calls.push_back(random_call(random, number, chip.workers));
    const auto at_switch = results(calls, software, random), at_chip = results(calls, chip, random);
    for (std::size_t i = 0; i < calls.size(); ++i) compare(calls[i], at_switch[i], at_chip[i], lost);
    if (HasFatalFailure() || HasNonfatalFailure()) FAIL();
  }
  EXPECT_GT(lost, 100U) << "blocks with elements that are not finite";
}

// Chips at two and three levels: the same as one software switch.
TEST(SwitchmlChipCluster, TreesGiveTheSoftwareSwitchsBits) {
  std::uint64_t lost = 0, repeated = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const std::vector<std::uint32_t> levels[] = {{1}, {2}, {3}, {1, 2}, {2, 4}};
    TreeConfig config;
    config.levels = levels[random.below(std::size(levels))];
    config.ranks_per_switch = 1 + static_cast<std::uint32_t>(random.below(3));
    config.slots = 1U << random.below(5);
    config.packet_elements = random.chance(0.5) ? 64 : 256;
    config.seed = random.next();
    config.faults = random_faults(random);
    VirtualChips chips(config);
    std::vector<Call> calls;
    for (std::uint64_t number = 0; number < 2; ++number) calls.push_back(random_call(random, number, chips.ranks()));
    std::vector<Call> at_chips = calls;
    ASSERT_TRUE(carry_out(chips, at_chips, random)) << "did not end";
    const auto at_switch = results(calls, {.workers = chips.ranks(), .slots = 16}, random);
    for (std::size_t i = 0; i < calls.size(); ++i) compare(calls[i], at_switch[i], at_chips[i], lost);
    for (std::size_t number = 0; number < chips.switches(); ++number) {
      const switchml::JobCounters& counters = chips.switch_counters(number);
      ASSERT_EQ(0U, counters.dropped_early + counters.dropped_source + counters.dropped_rank);
      repeated += counters.sums_repeated;
    }
    if (HasFatalFailure() || HasNonfatalFailure()) FAIL();
  }
  EXPECT_GT(lost, 20U);
  EXPECT_GT(repeated, 100U) << "sums that went upstream again";
}

// Each chip sends one packet a chunk upstream, however many ranks are below it.
TEST(SwitchmlChipCluster, AChipSendsEachSumUpstreamOnce) {
  VirtualChips chips({.levels = {2, 4}, .ranks_per_switch = 3});
  constexpr std::size_t elements = 256 * 50;
  std::vector<std::vector<std::int32_t>> tensors(chips.ranks(), std::vector<std::int32_t>(elements, 1));
  for (std::uint32_t rank = 0; rank < chips.ranks(); ++rank)
    chips.submit(rank, {.dtype = DType::int32, .elements = elements, .data = tensors[rank].data()});
  ASSERT_TRUE(chips.run(1));
  for (const auto& tensor : tensors)
    EXPECT_EQ(static_cast<std::ptrdiff_t>(elements), std::count(tensor.begin(), tensor.end(), 12));
  EXPECT_EQ(0U, chips.switch_counters(0).sums_sent);
  for (std::size_t number = 1; number < chips.switches(); ++number) {
    EXPECT_EQ(50U, chips.switch_counters(number).sums_sent);
    EXPECT_EQ(50U, chips.switch_counters(number).results_taken);
  }
}

// A chip tells nobody of a loss: time-outs alone make up for it, and without the patience for what it would tell.
TEST(SwitchmlChipCluster, ALossCostsATimeOut) {
  ClusterConfig config{.workers = 4, .slots = 16, .faults = {.loss = 0.01}, .chip = true};
  VirtualCluster cluster(config);
  constexpr std::size_t elements = 256 * 16 * 200;
  std::vector<std::vector<std::int32_t>> tensors(config.workers, std::vector<std::int32_t>(elements, 1));
  for (std::uint32_t rank = 0; rank < config.workers; ++rank)
    cluster.submit(rank, {.dtype = DType::int32, .elements = elements, .data = tensors[rank].data()});
  ASSERT_TRUE(cluster.run(1));
  for (const auto& tensor : tensors)
    EXPECT_EQ(static_cast<std::ptrdiff_t>(elements), std::count(tensor.begin(), tensor.end(), 4));
  EXPECT_LT(cluster.network.now - Time{}, std::chrono::milliseconds(1000));
  EXPECT_EQ(0U, cluster.worker(0).counters().losses);
  EXPECT_GT(cluster.worker(0).counters().retransmissions, 50U);
}

}  // namespace
}  // namespace netsum::testing
