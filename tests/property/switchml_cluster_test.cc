// Random jobs on a random network: every delivered result is right, and the same on every rank.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "oracle/narrow.h"
#include "support/float_oracle.h"
#include "support/virtual_cluster.h"

namespace netsum::testing {
namespace {

using oracle::narrow_on_wire, oracle::narrow_sum, oracle::narrow_value;
using stream::Collective;
using stream::Operation;

constexpr std::uint32_t packet_lengths[] = {64, 128, 192, 256, 320, 512, 960, 1024};

float special(Random& random) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float values[] = {0.0F,
                              -0.0F,
                              inf,
                              -inf,
                              std::numeric_limits<float>::quiet_NaN(),
                              1e-45F,
                              -1e-40F,
                              std::numeric_limits<float>::max(),
                              -std::numeric_limits<float>::max(),
                              std::numeric_limits<float>::min()};
  return values[random.below(std::size(values))];
}

// Fills one block per style: what a block is made of decides which path it takes.
void fill(Random& random, std::vector<float>& values, bool specials) {
  for (std::size_t block = 0; block < values.size(); block += 256) {
    const std::uint64_t style = random.below(specials ? 6 : 3);
    const int exponent = static_cast<int>(random.below(250)) - 140;
    for (std::size_t i = block; i < std::min(values.size(), block + 256); ++i) {
      const double unit = static_cast<double>(random.below(2'000'001)) / 1e6 - 1;
      switch (style) {
        case 0:
          values[i] = static_cast<float>(unit);
          break;
        case 1:
          values[i] = static_cast<float>(std::ldexp(unit, exponent));
          break;
        case 2:
          values[i] = std::ldexp(1.0F, exponent);
          break;  // every element exactly 2^m
        case 3:
          values[i] = 0.0F;
          break;
        case 4:
          values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
          break;
        default:
          values[i] = random.chance(0.1) ? special(random) : static_cast<float>(unit);
          break;
      }
    }
  }
}

std::uint64_t length(Random& random) {
  constexpr std::uint64_t edges[] = {0, 1, 16, 17, 63, 64, 65, 255, 256, 257, 511, 1024, 1025};
  return random.chance(0.5) ? edges[random.below(std::size(edges))] : random.below(9000);
}

struct Call {
  Operation operation;
  std::vector<std::vector<float>> floats;       // [rank]
  std::vector<std::vector<std::int32_t>> ints;  // [rank]
  std::vector<std::vector<std::uint16_t>> halves;
  std::vector<std::vector<float>> input;  // as it was
  std::vector<std::vector<std::int32_t>> int_input;
  std::vector<std::vector<std::uint16_t>> half_input;

  void* data(std::uint32_t rank) {
    if (bytes_of(operation.dtype) == 2) return halves[rank].data();
    return operation.collective == Collective::all_reduce && operation.dtype == DType::float32
               ? static_cast<void*>(floats[rank].data())
               : static_cast<void*>(ints[rank].data());
  }
};

Call random_call(Random& random, std::uint64_t number, std::uint32_t workers) {
  Call call;
  call.operation.number = number;
  const std::uint64_t kind = random.below(10);
  const std::uint64_t elements = length(random);
  call.operation.elements = elements;
  call.operation.op = random.chance(0.3) ? ReduceOp::avg : ReduceOp::sum;
  if (kind == 0) {
    call.operation.collective = Collective::barrier;
    call.operation.elements = 0;
  } else if (kind == 1) {
    call.operation.collective = Collective::broadcast;
    call.operation.root = static_cast<std::uint32_t>(random.below(workers));
  } else if (kind == 2) {
    call.operation.dtype = DType::int32;
  } else if (kind == 3) {
    call.operation.dtype = random.chance(0.5) ? DType::float16 : DType::bfloat16;
  } else if (kind == 4) {
    call.operation.wire = random.chance(0.5) ? WireFormat::float16 : WireFormat::bfloat16;
  }
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    call.floats.emplace_back(elements);
    call.ints.emplace_back(elements);
    fill(random, call.floats.back(), true);
    for (auto& value : call.ints.back()) value = static_cast<std::int32_t>(random.next());
    call.halves.emplace_back(elements);
    for (auto& value : call.halves.back()) value = static_cast<std::uint16_t>(random.next());
  }
  call.input = call.floats;
  call.int_input = call.ints;
  call.half_input = call.halves;
  return call;
}

// To the bit, NaN too; float32 results are the 16-bit ones widened.
void check_narrow(const Call& call, DType wire, std::uint32_t divisor) {
  const bool wide = call.operation.dtype == DType::float32;
  for (std::size_t i = 0; i < call.operation.elements; ++i) {
    std::vector<std::uint16_t> values;
    for (std::size_t rank = 0; rank < call.halves.size(); ++rank) {
      values.push_back(wide ? narrow_on_wire(wire, static_cast<double>(call.input[rank][i])) : call.half_input[rank][i]);
    }
    const std::uint16_t expected = narrow_sum(wire, values, divisor);
    const double value = narrow_value(wire, expected);
    for (std::size_t rank = 0; rank < call.halves.size(); ++rank) {
      if (wide) {
        const auto got = static_cast<double>(call.floats[rank][i]);
        ASSERT_TRUE(std::isnan(value) ? std::isnan(got) : got == value) << "element " << i << ": " << got;
      } else {
        ASSERT_EQ(expected, call.halves[rank][i]) << "element " << i;
      }
    }
  }
}

// Floats as they are: added in double, in rank order, divided, and rounded once.
void check_plain(const Call& call, std::uint32_t divisor) {
  for (std::size_t i = 0; i < call.operation.elements; ++i) {
    double sum = -0.0;
    for (const auto& input : call.input) sum += static_cast<double>(input[i]);
    const auto expected = static_cast<float>(sum / divisor);
    for (const auto& result : call.floats) {
      if (std::isnan(expected)) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(result[i]), 0x7fc00000U) << "element " << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(result[i]), std::bit_cast<std::uint32_t>(expected)) << "element " << i;
      }
    }
  }
}

void check(const Call& call, std::uint32_t workers) {
  const Operation& operation = call.operation;
  if (operation.elements == 0) return;  // a barrier, or nothing to see
  if (operation.collective == Collective::broadcast) {
    for (const auto& result : call.ints) {
      EXPECT_EQ(0, std::memcmp(result.data(), call.int_input[operation.root].data(), operation.elements));
    }
    return;
  }
  const bool avg = operation.op == ReduceOp::avg;
  if (operation.dtype == DType::int32) {
    for (std::size_t i = 0; i < operation.elements; ++i) {
      std::uint32_t sum = 0;
      for (const auto& input : call.int_input) sum += static_cast<std::uint32_t>(input[i]);
      auto expected = static_cast<std::int32_t>(sum);
      if (avg) expected = static_cast<std::int32_t>(std::int64_t{expected} / workers);
      for (const auto& result : call.ints) ASSERT_EQ(expected, result[i]) << "element " << i;
    }
    return;
  }
  const DType wire = wire_dtype(operation);
  if (wire == DType::float32) return check_plain(call, avg ? workers : 1);
  if (wire != DType::int32) return check_narrow(call, wire, avg ? workers : 1);
  const auto oracles = float_oracles(call.input, avg ? workers : 1);
  for (std::size_t i = 0; i < operation.elements; ++i) {
    ASSERT_EQ("", judge(oracles[i], call.floats[0][i])) << "element " << i;
    for (const auto& result : call.floats) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(call.floats[0][i]), std::bit_cast<std::uint32_t>(result[i])) << "element " << i;
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
    faults.corrupt = static_cast<double>(random.below(100)) / 1000;
  }
  return faults;
}

// Ranks issue their calls at random moments: the look-ahead then is known to some and not to others.
void run_seed(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  ClusterConfig config;
  config.seed = random.next();
  config.workers = 1 + static_cast<std::uint32_t>(random.below(6));
  config.lanes = 1 + static_cast<std::uint32_t>(random.below(3));
  config.slots = 1U << random.below(6);
  config.packet_elements = packet_lengths[random.below(std::size(packet_lengths))];
  config.faults = random_faults(random);
  VirtualCluster cluster(config);

  const std::size_t operations = 1 + random.below(5);
  std::vector<Call> calls;
  for (std::uint64_t number = 0; number < operations; ++number) calls.push_back(random_call(random, number, config.workers));

  std::vector<std::size_t> issued(config.workers);
  while (std::any_of(issued.begin(), issued.end(), [&](std::size_t n) { return n < operations; })) {
    const auto rank = static_cast<std::uint32_t>(random.below(config.workers));
    if (issued[rank] < operations) {
      Operation operation = calls[issued[rank]].operation;
      operation.data = calls[issued[rank]].data(rank);
      cluster.submit(rank, operation);
      ++issued[rank];
    }
    for (std::uint64_t steps = random.below(30); steps > 0; --steps) {
      if (!cluster.step(cluster.network.now + std::chrono::milliseconds(5))) break;
    }
  }
  // One slot, and a fifth of all packets lost: that takes minutes.
  ASSERT_TRUE(cluster.run(operations, std::chrono::minutes(10)))
      << "did not end: " << config.workers << " workers, " << config.slots << " slots, " << config.lanes
      << " lanes, packets of " << config.packet_elements;
  for (const Call& call : calls) check(call, config.workers);
  for (std::uint32_t lane = 0; lane < config.lanes; ++lane) {
    EXPECT_EQ(0U, cluster.lane_switch(lane).slots_in_use(VirtualCluster::job_epoch));
    EXPECT_EQ(0U, cluster.lane_switch(lane).job_counters(VirtualCluster::job_epoch)->dropped_early);
  }
}

TEST(SwitchmlCluster, RandomJobsOnRandomNetworksAreRight) {
  for (std::uint64_t seed = 1; seed <= 2500; ++seed) {
    run_seed(seed);
    if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "seed " << seed;
  }
}

// The result depends on nothing but the inputs.
TEST(SwitchmlCluster, SameBitsWhateverTheConfiguration) {
  Random random(7);
  std::vector<std::vector<float>> inputs(3, std::vector<float>(5000));
  for (auto& input : inputs) fill(random, input, true);
  std::vector<float> expected;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterConfig config{.workers = 3,
                         .lanes = 1 + static_cast<std::uint32_t>(random.below(4)),
                         .slots = 1U << random.below(7),
                         .packet_elements = packet_lengths[random.below(std::size(packet_lengths))],
                         .seed = seed,
                         .faults = random_faults(random)};
    VirtualCluster cluster(config);
    auto tensors = inputs;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      cluster.submit(rank, {.number = 0, .elements = 5000, .data = tensors[rank].data()});
    }
    ASSERT_TRUE(cluster.run(1));
    if (expected.empty()) expected = tensors[0];
    for (const auto& tensor : tensors) ASSERT_EQ(0, std::memcmp(expected.data(), tensor.data(), 5000 * sizeof(float)));
  }
}

TEST(SwitchmlCluster, SameNarrowBitsWhateverTheConfiguration) {
  Random random(8);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    std::vector<std::vector<std::uint16_t>> inputs(5, std::vector<std::uint16_t>(5001));
    for (auto& input : inputs) {
      for (auto& value : input) value = static_cast<std::uint16_t>(random.next());
    }
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      ClusterConfig config{.workers = 5,
                           .lanes = 1 + static_cast<std::uint32_t>(random.below(4)),
                           .slots = 1U << random.below(7),
                           .packet_elements = packet_lengths[random.below(std::size(packet_lengths))],
                           .seed = seed,
                           .faults = random_faults(random)};
      VirtualCluster cluster(config);
      auto tensors = inputs;
      for (std::uint32_t rank = 0; rank < 5; ++rank) {
        cluster.submit(rank, {.number = 0, .dtype = dtype, .elements = 5001, .data = tensors[rank].data()});
      }
      ASSERT_TRUE(cluster.run(1));
      EXPECT_EQ(0U, cluster.worker(0).counters().exponent_rounds);
      for (std::size_t i = 0; i < 5001; ++i) {
        std::vector<std::uint16_t> values;
        for (const auto& input : inputs) values.push_back(input[i]);
        for (const auto& tensor : tensors) ASSERT_EQ(narrow_sum(dtype, values, 1), tensor[i]) << "element " << i;
      }
    }
  }
}

// 1 KiB of payload is 256 int32, or 512 halves.
TEST(SwitchmlCluster, SixteenBitsTakeHalfThePackets) {
  for (const WireFormat wire : {WireFormat::native, WireFormat::float16, WireFormat::bfloat16}) {
    VirtualCluster cluster({.workers = 2});
    std::vector<std::vector<float>> tensors(2, std::vector<float>(4096, 1.0F));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      cluster.submit(rank, {.number = 0, .elements = 4096, .data = tensors[rank].data(), .wire = wire});
    }
    ASSERT_TRUE(cluster.run(1));
    const auto& counters = cluster.worker(0).counters();
    EXPECT_EQ(wire == WireFormat::native ? 16U : 8U, counters.contributions - counters.exponent_rounds);
    EXPECT_EQ(2.0F, tensors[1][4095]);
  }
}

// docs/numerics.md: with every rank at 2^m the published scale overflows; ours must not, for any number of ranks.
TEST(SwitchmlCluster, EveryRankAtAPowerOfTwo) {
  for (const std::uint32_t workers : {1U, 2U, 3U, 5U, 8U, 17U, 64U, 255U}) {
    VirtualCluster cluster({.workers = workers, .slots = 2});
    std::vector<std::vector<float>> tensors(workers, std::vector<float>(3));
    for (auto& tensor : tensors) tensor = {0x1p20F, std::nextafter(0x1p20F, 0.0F), std::nextafter(0x1p20F, 0x1p21F)};
    const auto oracles = float_oracles(tensors);
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
      cluster.submit(rank, {.number = 0, .elements = 3, .data = tensors[rank].data()});
    }
    ASSERT_TRUE(cluster.run(1));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ("", judge(oracles[i], tensors[0][i])) << workers << " workers";
  }
}

// A rank half a second late must cost the others fewer than two extra packets per slot.
TEST(SwitchmlCluster, StragglerCostsFewPackets) {
  constexpr std::uint32_t slots = 64;
  VirtualCluster cluster({.workers = 3, .slots = slots});
  constexpr std::uint64_t elements = 256 * slots * 4;
  std::vector<std::vector<float>> tensors(3, std::vector<float>(elements, 1.0F));
  for (const std::uint32_t rank : {0U, 1U})
    cluster.submit(rank, {.number = 0, .elements = elements, .data = tensors[rank].data()});
  while (cluster.step(Time(std::chrono::milliseconds(500)))) {
  }
  cluster.submit(2, {.number = 0, .elements = elements, .data = tensors[2].data()});
  ASSERT_TRUE(cluster.run(1));
  EXPECT_LT(cluster.worker(0).counters().retransmissions, 2 * slots);
  EXPECT_GE(cluster.worker(0).counters().retransmissions, slots);  // each was asked about once
  EXPECT_EQ(3.0F, tensors[0][0]);
}

TEST(SwitchmlCluster, LookAheadSavesTheExponentRoundsOfABusyStream) {
  constexpr std::uint32_t slots = 8;
  VirtualCluster cluster({.workers = 2, .slots = slots});
  std::vector<std::vector<float>> tensors(2, std::vector<float>(256 * slots * 10, 1.0F));
  for (std::uint64_t number = 0; number < 3; ++number) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      cluster.submit(rank, {.number = number, .elements = tensors[rank].size(), .data = tensors[rank].data()});
    }
  }
  ASSERT_TRUE(cluster.run(3));
  EXPECT_EQ(slots, cluster.worker(0).counters().exponent_rounds);  // the first window only, across all three tensors
}

TEST(SwitchmlCluster, MismatchedCallsEndInAnErrorThatNamesBothRanks) {
  for (int kind = 0; kind < 6; ++kind) {
    VirtualCluster cluster({.workers = 3, .lanes = 1, .slots = 4});
    std::vector<std::vector<float>> tensors(3, std::vector<float>(3000, 1.0F));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      Operation operation{.number = 0, .elements = 2000, .data = tensors[rank].data()};
      if (rank == 1) {
        if (kind == 0) operation.elements = 100;
        if (kind == 1) operation.dtype = DType::int32;
        if (kind == 2) operation.op = ReduceOp::avg;
        if (kind == 3) operation.tag = 9;
        if (kind == 4) operation = {.number = 0, .collective = Collective::barrier};
        if (kind == 5) operation.wire = WireFormat::bfloat16;
      }
      cluster.submit(rank, operation);
    }
    EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const auto& failure = cluster.worker(rank).failure();
      ASSERT_TRUE(failure.has_value()) << "rank " << rank << ", kind " << kind;
      EXPECT_EQ(switchml::WorkerFailure::Kind::mismatch, failure->kind);
      EXPECT_TRUE(failure->first_rank == 1 || failure->second_rank == 1);
      EXPECT_NE(failure->first_rank, failure->second_rank);
    }
  }
}

TEST(SwitchmlCluster, ASwitchThatForgotTheJobSaysSo) {
  VirtualCluster cluster({.workers = 2});
  std::vector<float> tensor(1000, 1.0F);
  cluster.lane_switch().remove_job(VirtualCluster::job_epoch);
  cluster.submit(0, {.number = 0, .elements = 1000, .data = tensor.data()});
  EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
  ASSERT_TRUE(cluster.worker(0).failure().has_value());
  EXPECT_EQ(switchml::WorkerFailure::Kind::unknown_job, cluster.worker(0).failure()->kind);
}

TEST(SwitchmlCluster, AStallNamesTheMissingRanks) {
  VirtualCluster cluster({.workers = 3});
  std::vector<float> tensor(10, 1.0F);
  cluster.submit(1, {.number = 0, .elements = 10, .data = tensor.data()});
  EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
  const auto stall = cluster.worker(1).oldest_stall();
  ASSERT_TRUE(stall.has_value());
  EXPECT_TRUE(stall->missing.contains(0) && stall->missing.contains(2) && !stall->missing.contains(1));
  const auto stalled = cluster.lane_switch().stalled(VirtualCluster::job_epoch, 5);
  ASSERT_EQ(1U, stalled.size());
  EXPECT_EQ(stall->missing, stalled[0].missing);
}

}  // namespace
}  // namespace netsum::testing
