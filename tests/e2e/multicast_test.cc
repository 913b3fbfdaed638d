// Results by IP multicast over the loopback: who hears them, who cannot, and what it saves.
#include <gtest/gtest.h>

#include "e2e/rank_threads.h"
#include "netsum/communicator.h"

namespace netsum {
namespace {

using namespace testing;

constexpr std::uint32_t ranks = 4;
constexpr std::size_t elements = 100'000;
constexpr int rounds = 10;

AggregatorOptions multicasting(std::uint32_t threads = 1) {
  AggregatorOptions options = small_aggregator("127.0.0.1:0", threads);
  options.multicast = "239.255.0.0/16:21000";
  return options;
}

Options over_packets(const Aggregator& aggregator, std::uint32_t rank) {
  Options options = rank_options({aggregator.address()}, rank, ranks);
  // Of its own, so that tests that run at once share no group, and its packets are many.
  options.job = "multicast " + aggregator.address();
  options.packet_elements = 256;
  options.slots = 16;
  return options;
}

void all_reduce(Communicator& comm) {
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::int32_t> values(elements);
    for (std::size_t i = 0; i < elements; ++i) values[i] = static_cast<std::int32_t>(i * (comm.rank() + 1));
    comm.all_reduce(std::span<std::int32_t>(values), ReduceOp::sum);
    for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(values[i], static_cast<std::int32_t>(i * 10)) << i;
  }
}

TEST(Multicast, EveryRankHearsTheGroup) {
  const Aggregator aggregator(multicasting(2));
  expect_success(on_ranks(ranks, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(over_packets(aggregator, rank));
    EXPECT_NE(comm.placement().find("by IP multicast"), std::string::npos) << comm.placement();
    all_reduce(comm);
    const Statistics statistics = comm.statistics();
    EXPECT_GE(statistics.packets_received + statistics.packets_retransmitted, elements / 256 * rounds);
  }));
}

TEST(Multicast, ARankWithoutItHasItsResultsByItself) {
  const Aggregator aggregator(multicasting());
  expect_success(on_ranks(ranks, [&](std::uint32_t rank) {
    Options options = over_packets(aggregator, rank);
    std::get<SwitchMl>(options.protocol).multicast = rank != 2;
    auto comm = Communicator::connect(options);
    EXPECT_EQ(comm.placement().find("by IP multicast") == std::string::npos, rank == 2) << comm.placement();
    all_reduce(comm);
  }));
}

TEST(Multicast, LossesOfSomeOrAllAreRepeated) {
  AggregatorOptions options = multicasting();
  options.loss = 0.01;
  const Aggregator aggregator(options);
  expect_success(on_ranks(ranks, [&](std::uint32_t rank) {
    Options of_rank = over_packets(aggregator, rank);
    of_rank.loss = 0.01;
    of_rank.loss_seed = rank + 1;
    auto comm = Communicator::connect(of_rank);
    all_reduce(comm);
    EXPECT_GT(comm.statistics().packets_dropped_down, 0U);
  }));
}

TEST(Multicast, JobsInOneGroupDoNotDisturbEachOther) {
  AggregatorOptions options = multicasting();
  options.multicast = "239.255.7.7:21500";
  const Aggregator aggregator(options);
  expect_success(on_ranks(2 * ranks, [&](std::uint32_t number) {
    Options of_rank = over_packets(aggregator, number % ranks);
    of_rank.job += number < ranks ? " a" : " b";
    auto comm = Communicator::connect(of_rank);
    all_reduce(comm);
  }));
}

TEST(Multicast, RefusesWhatItCannotDo) {
  const auto error_of = [](const std::string& listen, const std::string& groups) {
    AggregatorOptions options = small_aggregator(listen, 2);
    options.multicast = groups;
    return attempt([&] { const Aggregator aggregator(options); });
  };
  expect_error(error_of("127.0.0.1:0", "10.0.0.1:7180"), ErrorCode::bad_argument, {"10.0.0.1:7180", "239.255.255.255"});
  expect_error(error_of("127.0.0.1:0", "[ff15::1]:7180"), ErrorCode::bad_argument, {"IPv6"});
  expect_error(error_of("[::1]:0", "239.1.1.1:7180"), ErrorCode::bad_argument, {"IPv4", "[::1]:0"});
  expect_error(error_of("127.0.0.1:0", "239.1.1.1:65535"), ErrorCode::bad_argument, {"65535", "lanes"});
}

}  // namespace
}  // namespace netsum
