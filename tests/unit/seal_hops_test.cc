#include "seal/hops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "support/recording_sink.h"

namespace netsum::seal {
namespace {

using testing::Datagram;
using testing::RecordingSink;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t job = 77;
constexpr std::size_t at_epoch = 8;
const Hops::Layout layout{.mark = [](std::span<const std::byte> packet) -> std::optional<std::uint64_t> {
                            if (packet.size() < 16) return std::nullopt;
                            return load_le<std::uint64_t>(packet.data() + at_epoch);
                          },
                          .clear = 16};

Endpoint at(std::uint16_t port) {
  Endpoint endpoint;
  endpoint.port = port;
  return endpoint;
}
PacketKey key(std::uint8_t number) {
  PacketKey::Bytes bytes;
  bytes.fill(std::byte{number});
  return PacketKey(bytes);
}
Bytes packet(std::uint64_t epoch, std::uint8_t content) {
  Bytes bytes(40, std::byte{content});
  store_le(bytes.data() + at_epoch, epoch);
  return bytes;
}

class HopsTest : public ::testing::TestWithParam<PacketSecurity> {
 protected:
  // Two nodes, 1 and 2, with keys for each way between them.
  HopsTest() {
    left_.set(job, GetParam(), std::vector<Neighbour>{{at(2), key(1), key(2)}}, {&job, 1});
    right_.set(job, GetParam(), std::vector<Neighbour>{{at(1), key(2), key(1)}}, {&job, 1});
  }

  [[nodiscard]] static std::vector<Datagram> sent(Hops& hops, const Bytes& bytes, const Endpoint& to) {
    std::vector<Datagram> out;
    RecordingSink network(at(1), out);
    {
      SealingSink sink(network, hops);
      const auto place = sink.datagram(to, bytes.size());
      std::copy(bytes.begin(), bytes.end(), place.begin());
    }
    network.flush();
    return out;
  }
  [[nodiscard]] static std::vector<Bytes> opened(Hops& hops, const Bytes& bytes, const Endpoint& from) {
    const RxView view{bytes, from};
    std::vector<Bytes> believed;
    for (const RxView& each : hops.open({&view, 1})) believed.emplace_back(each.bytes.begin(), each.bytes.end());
    return believed;
  }

  Hops left_{layout}, right_{layout};
};
INSTANTIATE_TEST_SUITE_P(Securities, HopsTest, ::testing::Values(PacketSecurity::tag, PacketSecurity::encrypt),
                         [](const auto& test) { return to_string(test.param); });

TEST_P(HopsTest, WhatANeighbourSendsArrivesOnce) {
  const auto out = sent(left_, packet(job, 3), at(2));
  ASSERT_EQ(1U, out.size());
  EXPECT_EQ(std::vector<Bytes>{packet(job, 3)}, opened(right_, out[0].bytes, at(1)));
  EXPECT_TRUE(opened(right_, out[0].bytes, at(1)).empty()) << "a repeat";
  EXPECT_EQ(1U, right_.unbelieved());
}

TEST_P(HopsTest, NobodyElseIsBelieved) {
  const auto out = sent(left_, packet(job, 3), at(2));
  EXPECT_TRUE(opened(right_, out[0].bytes, at(9)).empty()) << "another address";
  EXPECT_TRUE(opened(left_, out[0].bytes, at(2)).empty()) << "sent back";
  EXPECT_TRUE(opened(right_, packet(job, 3), at(1)).empty()) << "without a seal";
  for (std::size_t i = 0; i < out[0].bytes.size(); ++i) {
    if (i >= at_epoch && i < at_epoch + 8) continue;  // another job
    Bytes changed = out[0].bytes;
    changed[i] ^= std::byte{1};
    EXPECT_TRUE(opened(right_, changed, at(1)).empty()) << i;
  }
}

TEST_P(HopsTest, OtherJobsAreLeftAlone) {
  EXPECT_EQ(packet(78, 3), sent(left_, packet(78, 3), at(2))[0].bytes);
  EXPECT_EQ(std::vector<Bytes>{packet(78, 3)}, opened(right_, packet(78, 3), at(9)));
  right_.remove(job);
  EXPECT_TRUE(right_.empty());
}

// Another tenant may choose connections whose marks are those of a job's.
TEST_P(HopsTest, JobsWithEqualMarksTakeNoSealsFromEachOther) {
  right_.set(1, GetParam(), std::vector<Neighbour>{{at(3), key(5), key(6)}}, {&job, 1});
  EXPECT_EQ(1U, opened(right_, sent(left_, packet(job, 3), at(2))[0].bytes, at(1)).size());
  right_.remove(1);
  EXPECT_TRUE(opened(right_, packet(job, 3), at(1)).empty()) << "without a seal";
  EXPECT_EQ(1U, opened(right_, sent(left_, packet(job, 4), at(2))[0].bytes, at(1)).size());
  EXPECT_FALSE(sent(right_, packet(job, 3), at(1)).empty());
}

TEST_P(HopsTest, AJobsValuesGoToNobodyWithoutAKey) {
  EXPECT_TRUE(sent(left_, packet(job, 3), at(9)).empty());
}

TEST_P(HopsTest, ANeighbourOnThisHostNeedsNoSeal) {
  left_.set(job, GetParam(), std::vector<Neighbour>{{at(2), {}, {}}}, {&job, 1});
  EXPECT_EQ(packet(job, 3), sent(left_, packet(job, 3), at(2))[0].bytes);
  EXPECT_EQ(std::vector<Bytes>{packet(job, 4)}, opened(left_, packet(job, 4), at(2)));
}

TEST_P(HopsTest, WhoMovesGoesOnCounting) {
  const auto before = sent(left_, packet(job, 3), at(2));
  left_.set(job, GetParam(), std::vector<Neighbour>{{at(5), key(1), key(2)}}, {&job, 1});
  const auto after = sent(left_, packet(job, 3), at(5));
  EXPECT_NE(before[0].bytes, after[0].bytes);
  EXPECT_EQ(1U, opened(right_, before[0].bytes, at(1)).size());
  EXPECT_EQ(1U, opened(right_, after[0].bytes, at(1)).size());
}

TEST_P(HopsTest, WhoIsForgottenAndToldAgainGoesOnCounting) {
  for (int life = 0; life < 3; ++life) {
    left_.set(job, GetParam(), std::vector<Neighbour>{{at(2), key(1), key(2)}}, {&job, 1});
    for (int i = 0; i < 2; ++i) {
      const auto out = sent(left_, packet(job, 3), at(2));
      ASSERT_EQ(1U, out.size());
      EXPECT_EQ(1U, opened(right_, out[0].bytes, at(1)).size()) << "with a counter of a former life";
    }
    if (life == 0) left_.remove(job);
    if (life == 1) left_.set(job, GetParam(), std::vector<Neighbour>{{at(2), key(3), key(4)}}, {&job, 1});  // other keys
  }
}

TEST_P(HopsTest, OneResultIsSealedForEach) {
  left_.set(job, GetParam(), std::vector<Neighbour>{{at(2), key(1), key(2)}, {at(3), key(3), key(4)}}, {&job, 1});
  std::vector<Datagram> out;
  RecordingSink network(at(1), out);
  const Bytes result = packet(job, 9);
  const std::vector<Endpoint> both{at(2), at(3)};
  SealingSink sink(network, left_);
  sink.multicast(result, both);
  sink.flush();
  ASSERT_EQ(2U, out.size());
  EXPECT_NE(out[0].bytes, out[1].bytes);
  EXPECT_EQ(1U, opened(right_, out[0].bytes, at(1)).size());
  EXPECT_TRUE(opened(right_, out[1].bytes, at(1)).empty());
}

}  // namespace
}  // namespace netsum::seal
