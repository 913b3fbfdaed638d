// Jobs whose aggregator cannot read what it adds: sums have the bits that they have without pads, what passes the aggregator
// looks random whatever the values are, and no pad is used twice.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "netsum/types.h"
#include "support/pads.h"
#include "support/virtual_cluster.h"
#include "wire/switchml.h"

namespace netsum::testing {
namespace {

using stream::Collective;
using stream::Operation;

using Tensor = std::vector<std::byte>;

// A call, with tensors for `ranks` of what `value(rank)` gives each byte's random stream, or of zeros.
struct Call {
  Operation operation;
  std::vector<Tensor> in, out;
  Call(Operation what, std::uint32_t ranks, const std::function<std::byte(Random&)>& byte) : operation(what) {
    operation.fixed_point = is_float(what.dtype);
    if (what.collective == Collective::reduce_scatter || what.collective == Collective::all_gather) operation.parts = ranks;
    const std::size_t width = stream::spreads(operation) ? 1 : bytes_of(what.dtype);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Random random(what.number * 1000 + rank);
      Tensor& tensor = in.emplace_back(what.elements * width);
      for (std::byte& each : tensor) each = byte(random);
      out.emplace_back(what.collective == Collective::reduce_scatter ? tensor.size() / ranks : tensor.size());
    }
  }
  void submit(VirtualCluster& cluster) {
    for (std::uint32_t rank = 0; rank < in.size(); ++rank) {
      operation.data = in[rank].data();
      operation.out = operation.parts > 1 ? out[rank].data() : nullptr;
      if (operation.collective == Collective::all_gather)
        operation.data = in[rank].data() + rank * in[rank].size() / in.size();
      cluster.submit(rank, operation);
    }
  }
};

std::byte small(Random& random) {  // floats of moderate size: each byte of them below 64
  return static_cast<std::byte>(random.below(64));
}
std::byte zero(Random&) {
  return {};
}

std::vector<Call> every_call(std::uint32_t ranks, const std::function<std::byte(Random&)>& byte, bool chip = false) {
  std::vector<Call> calls;
  const auto add = [&](Operation operation) {
    operation.number = calls.size();
    calls.emplace_back(operation, ranks, byte);
  };
  for (const DType dtype : dtypes) {
    if (dtype == DType::boolean || dtype == DType::float64) continue;
    if (chip && dtype != DType::int32 && !is_float(dtype)) continue;
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      for (const std::uint64_t elements : {1U, 7U, 16U, 1500U}) {
        add({.op = op, .dtype = dtype, .elements = elements});
        if (chip) continue;
        add({.collective = Collective::reduce, .op = op, .dtype = dtype, .elements = elements, .root = ranks - 1});
        add({.collective = Collective::reduce_scatter, .op = op, .dtype = dtype, .elements = elements * ranks});
      }
    }
  }
  add({.collective = Collective::barrier});
  for (const std::uint64_t bytes : {1U, 5U, 4000U}) {
    add({.collective = Collective::broadcast, .elements = bytes, .root = ranks - 1});
    if (!chip) add({.collective = Collective::all_gather, .elements = bytes * ranks});
  }
  return calls;
}

using Seen = std::function<void(const wire::switchml::Common&, const wire::switchml::ChunkPacket&)>;

void run(std::vector<Call>& calls, const ClusterConfig& config, const Seen& seen = {}) {
  VirtualCluster cluster(config);
  if (seen) {
    cluster.network.lose = [&](const Endpoint&, const Endpoint&, std::span<const std::byte> bytes) {
      wire::switchml::Common common;
      wire::switchml::ChunkPacket packet;
      if (wire::switchml::parse_common(bytes, common) == wire::ParseError::none &&
          wire::switchml::parse_chunk(bytes, common, packet) == wire::ParseError::none) {
        seen(common, packet);
      }
      return false;
    };
  }
  for (Call& call : calls) call.submit(cluster);
  ASSERT_TRUE(cluster.run(calls.size()));
}

TEST(SwitchmlPrivate, SumsHaveTheBitsThatTheyHaveWithoutPads) {
  for (const bool chip : {false, true}) {
    for (const std::uint32_t ranks : {1U, 2U, 5U}) {
      ClusterConfig config{
          .workers = ranks, .lanes = 2, .slots = 8, .faults = {.loss = 0.05, .duplicate = 0.05}, .chip = chip};
      if (chip) config.lanes = 1;
      std::vector<Call> plain = every_call(ranks, small, chip), masked = every_call(ranks, small, chip);
      run(plain, config);
      config.pads = pads_of(ranks);
      run(masked, config);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        ASSERT_EQ(plain[i].in, masked[i].in) << to_string(plain[i].operation) << ", " << ranks << " ranks, chip: " << chip;
        ASSERT_EQ(plain[i].out, masked[i].out) << to_string(plain[i].operation) << ", " << ranks << " ranks";
      }
    }
  }
}

// Pearson's statistic of bytes that should be uniform: 255 on average, with a deviation of 23.
class Bytes {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) ++counts_[std::to_integer<std::size_t>(byte)];
    total_ += bytes.size();
  }
  [[nodiscard]] double chi_square() const {
    const double expected = static_cast<double>(total_) / 256;
    double sum = 0;
    for (const std::uint64_t count : counts_) {
      sum += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
    }
    return sum;
  }

 private:
  std::array<std::uint64_t, 256> counts_{};
  std::uint64_t total_ = 0;
};

TEST(SwitchmlPrivate, WhatPassesTheAggregatorLooksRandom) {
  constexpr std::uint32_t ranks = 3;
  constexpr double suspicious = 255 + 6 * 23;
  const auto equal = [](Random&) { return std::byte{0x3f}; };
  for (const auto& byte : {std::function<std::byte(Random&)>(zero), std::function<std::byte(Random&)>(equal)}) {
    for (const bool is_private : {false, true}) {
      // Of each rank's contributions, and of results: chunks count once.
      std::map<std::uint16_t, Bytes> contributions;
      Bytes results;
      std::set<std::tuple<std::uint16_t, std::uint64_t, std::uint32_t, bool>> counted;
      std::vector<Call> calls;
      for (const DType dtype : {DType::float32, DType::int32, DType::int64, DType::uint8})
        calls.emplace_back(Operation{.number = calls.size(), .dtype = dtype, .elements = 20000}, ranks, byte);
      ClusterConfig config{.workers = ranks, .faults = {.loss = 0.02}};
      if (is_private) config.pads = pads_of(ranks);
      run(calls, config, [&](const wire::switchml::Common& common, const wire::switchml::ChunkPacket& packet) {
        const bool result = common.type == wire::switchml::Type::result;
        if (!result && common.type != wire::switchml::Type::contribution) return;
        const auto sender = result ? std::uint16_t{0} : common.sender;
        if (!counted.emplace(sender, packet.header.operation, packet.header.chunk, result).second) return;
        (result ? results : contributions[sender]).add(packet.payload);
      });
      ASSERT_EQ(ranks, contributions.size());
      for (const auto& [rank, bytes] : contributions)
        EXPECT_EQ(is_private, bytes.chi_square() < suspicious) << "rank " << rank;
      EXPECT_EQ(is_private, results.chi_square() < suspicious);
    }
  }
}

// Contributions of zeros are pads.
TEST(SwitchmlPrivate, NoPadIsUsedTwice) {
  constexpr std::uint32_t ranks = 3;
  std::set<std::array<std::uint32_t, 3>> pads;  // the first words of blocks of 16 bytes; a hash is as long
  std::size_t blocks = 0;
  for (const std::uint64_t life : {1U, 2U}) {
    std::map<std::tuple<std::uint16_t, std::uint64_t, std::uint32_t>, std::vector<std::byte>> sent;
    std::vector<Call> calls = every_call(ranks, zero);
    run(calls, {.workers = ranks, .lanes = 2, .slots = 8, .faults = {.loss = 0.05}, .pads = pads_of(ranks, life)},
        [&](const wire::switchml::Common& common, const wire::switchml::ChunkPacket& packet) {
          if (common.type != wire::switchml::Type::contribution) return;
          const std::vector<std::byte> values(packet.payload.begin(), packet.payload.end());
          const auto [at, first] =
              sent.emplace(std::tuple(common.sender, packet.header.operation, packet.header.chunk), values);
          EXPECT_EQ(at->second, values) << "a repeat has other values";
          if (!first) return;
          for (std::size_t i = 0; i + 12 <= values.size(); i += 16) {
            std::array<std::uint32_t, 3> block{};
            std::memcpy(block.data(), values.data() + i, sizeof block);
            pads.insert(block);
            ++blocks;
          }
        });
  }
  EXPECT_GT(blocks, 5000U);
  EXPECT_EQ(blocks, pads.size()) << "some pads of 16 bytes are the same";
}

// An aggregator that changes a sum is found out, as long as the sum cannot overflow.
TEST(SwitchmlPrivate, AChangedSumIsNoResult) {
  constexpr std::uint32_t ranks = 3;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{4 * 255 + 3}, std::size_t{4 * 258}}) {  // values, and the hash
      VirtualCluster cluster({.workers = ranks, .pads = pads_of(ranks)});
      std::vector<std::vector<float>> tensors(ranks, std::vector<float>(1000, 1.5F));
      cluster.network.lose = [&](const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) {
        wire::switchml::Common common;
        wire::switchml::ChunkPacket packet;
        if (wire::switchml::parse_common(bytes, common) != wire::ParseError::none ||
            wire::switchml::parse_chunk(bytes, common, packet) != wire::ParseError::none ||
            common.type != wire::switchml::Type::result || packet.header.chunk != 1) {
          return false;
        }
        EXPECT_EQ(259, packet.header.elements);
        std::vector<std::byte> changed(bytes.begin(), bytes.end());
        changed[static_cast<std::size_t>(packet.payload.data() - bytes.data()) + at] ^= std::byte{0x80};
        wire::switchml::seal(changed);
        const RxView view{changed, from};
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          if (to != endpoint_of(static_cast<std::uint8_t>(rank), from.port)) continue;
          RecordingSink nowhere;
          cluster.worker(rank).on_packets({&view, 1}, cluster.network.now, nowhere);
        }
        return true;
      };
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        cluster.submit(rank, {.dtype = dtype, .elements = 1000, .data = tensors[rank].data(), .fixed_point = true});
      }
      EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
      ASSERT_TRUE(cluster.worker(1).failure());
      EXPECT_EQ(switchml::WorkerFailure::Kind::changed_sum, cluster.worker(1).failure()->kind);
    }
  }
}

// One scale for all blocks: no packet has exponents, what is too large counts as the largest, and what is not finite stays
// so.
TEST(SwitchmlPrivate, AFixedScaleShowsNoExponents) {
  constexpr std::uint32_t ranks = 2;
  constexpr std::size_t elements = 2000;
  ClusterConfig config{.workers = ranks, .faults = {.loss = 0.05}, .pads = pads_of(ranks), .fixed_exponent = 126 + 4};
  VirtualCluster cluster(config);
  cluster.network.lose = [](const Endpoint&, const Endpoint&, std::span<const std::byte> bytes) {
    wire::switchml::Common common;
    wire::switchml::ChunkPacket packet;
    EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_common(bytes, common));
    EXPECT_NE(wire::switchml::Type::exponent_contribution, common.type);
    if (wire::switchml::parse_chunk(bytes, common, packet) != wire::ParseError::none) return false;
    EXPECT_EQ(0, packet.header.exponents);
    return false;
  };
  std::vector<std::vector<float>> tensors(ranks, std::vector<float>(elements, 1.25F));
  tensors[0][3] = 15.5F;
  tensors[0][300] = 1e30F;
  tensors[0][301] = -16.0F;
  tensors[1][1999] = -std::numeric_limits<float>::infinity();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    cluster.submit(rank, {.elements = elements, .data = tensors[rank].data(), .fixed_point = true});
  }
  ASSERT_TRUE(cluster.run(1));
  EXPECT_EQ(tensors[0], tensors[1]);
  EXPECT_EQ(2.5F, tensors[0][0]);
  EXPECT_EQ(16.75F, tensors[0][3]);
  EXPECT_EQ(17.25F, tensors[0][300]);
  EXPECT_EQ(-14.75F, tensors[0][301]);
  EXPECT_EQ(-std::numeric_limits<float>::infinity(), tensors[0][1999]);
  EXPECT_EQ(2U, cluster.worker(0).underflow().clamped);
  EXPECT_EQ(0U, cluster.worker(1).underflow().clamped);
}

}  // namespace
}  // namespace netsum::testing
