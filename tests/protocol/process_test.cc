// A fourth protocol over real sockets: the product's daemon serves it, and the product's communicator joins it.

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "collective/connect.h"
#include "daemon/node.h"
#include "e2e/rank_threads.h"
#include "protocol/baseline/rank.h"
#include "protocol/baseline/service.h"
#include "service/probe_service.h"

namespace netsum::baseline {
namespace {

using namespace testing;

// A parameter server with two threads.
std::unique_ptr<daemon::Node> serve(const std::string& listen = "127.0.0.1:0") {
  const AggregatorOptions small = small_aggregator(listen, 2);
  daemon::NodeOptions options = daemon::node_options(small, small.slots, "parameter server");
  const EndpointCookies cookies = options.cookies;
  auto node = std::make_unique<daemon::Node>(std::move(options));
  std::vector<std::unique_ptr<service::Service>> services;
  services.push_back(std::make_unique<Service>(node->lanes()));
  services.push_back(std::make_unique<service::ProbeService>(node->lanes(), cookies));
  node->serve(std::move(services), {});
  return node;
}

Communicator connect(const Options& options) {
  return collective::Connector::connect(options, &make_rank);
}

void expect_sums(Communicator& ranks, std::uint32_t rank, std::uint32_t world_size) {
  for (const std::size_t elements : {0UL, 1UL, 255UL, 257UL, 100'000UL}) {
    std::vector<float> tensor(elements);
    std::iota(tensor.begin(), tensor.end(), static_cast<float>(rank));
    ranks.all_reduce(std::span(tensor), ReduceOp::avg);
    for (std::size_t i = 0; i < elements; ++i) {
      ASSERT_EQ(static_cast<float>(i) + static_cast<float>(world_size - 1) / 2, tensor[i]) << i << " of " << elements;
    }
    std::vector<std::int32_t> whole(elements, static_cast<std::int32_t>(rank));
    ranks.all_reduce(std::span(whole), ReduceOp::sum);
    EXPECT_EQ(std::vector<std::int32_t>(elements, static_cast<std::int32_t>(world_size * (world_size - 1) / 2)), whole);
  }
}

void expect_no_errors(const std::vector<std::optional<Error>>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_FALSE(outcomes[rank]) << "rank " << rank << ": " << outcomes[rank]->what();
  }
}

TEST(BaselineProcess, SumsOverTwoServers) {
  const auto first = serve(), second = serve();
  expect_no_errors(on_ranks(3, [&](std::uint32_t rank) {
    Communicator ranks = connect(rank_options({first->address(), second->address()}, rank, 3));
    expect_sums(ranks, rank, 3);
    std::vector<std::byte> bytes(1001, std::byte{static_cast<unsigned char>(rank)});
    ranks.broadcast(bytes, 2);
    EXPECT_EQ(std::vector<std::byte>(1001, std::byte{2}), bytes);
    ranks.barrier();
  }));
}

// What is a protocol's own in joining takes part in it, and nothing else in the product knows of it.
TEST(BaselineProcess, RanksAgreeOnWhatIsTheProtocolsOwn) {
  const auto server = serve();
  expect_no_errors(on_ranks(2, [&](std::uint32_t rank) {
    const Options options = rank_options({server->address()}, rank, 2);
    const Communicator ranks =
        collective::Connector::connect(options, ranks_with(std::chrono::milliseconds(700 - 400 * rank)));
    EXPECT_NE(std::string::npos, ranks.placement().find("patience 300 ms")) << ranks.placement();
  }));
  const auto outcomes = on_ranks(1, [&](std::uint32_t) {
    static_cast<void>(
        collective::Connector::connect(rank_options({server->address()}, 0, 1), ranks_with(std::chrono::milliseconds(0))));
  });
  ASSERT_TRUE(outcomes[0]);
  EXPECT_EQ(ErrorCode::refused, outcomes[0]->code());
  EXPECT_NE(std::string::npos, std::string(outcomes[0]->what()).find("without patience")) << outcomes[0]->what();
}

TEST(BaselineProcess, LostPacketsAreSentAgain) {
  const auto server = serve();
  expect_no_errors(on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({server->address()}, rank, 2);
    options.loss = 0.02;
    Communicator ranks = connect(options);
    expect_sums(ranks, rank, 2);
  }));
}

TEST(BaselineProcess, RanksThatDisagreeLearnOfIt) {
  const auto server = serve();
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    Communicator ranks = connect(rank_options({server->address()}, rank, 2));
    std::vector<float> tensor(100 + rank);
    ranks.all_reduce(std::span(tensor), ReduceOp::sum);
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_TRUE(outcome->code() == ErrorCode::mismatch || outcome->code() == ErrorCode::worker_lost) << outcome->what();
  }
}

// A std::function of it throws when it is copied for the second operation of a call.
struct CopiedOnce {
  CopiedOnce() = default;
  CopiedOnce(CopiedOnce&&) = default;
  CopiedOnce(const CopiedOnce& other) : copies(other.copies) {
    if (++*copies == 2) throw std::bad_alloc();
  }
  void operator()() const {}

  std::shared_ptr<int> copies = std::make_shared<int>(0);
};

// A reduce-scatter is an all-reduce for each part here, and all of them use memory of the call.
TEST(BaselineProcess, ACallThatFailsHalfWayWaitsForWhatItBegan) {
  const auto server = serve();
  std::latch ended(2);
  expect_no_errors(on_ranks(2, [&](std::uint32_t rank) {
    Communicator ranks = connect(rank_options({server->address()}, rank, 2));
    std::vector<float> whole(2000), part(1000);
    if (rank == 0) {
      const CallOptions call{.deadline = std::chrono::milliseconds(100), .while_waiting = CopiedOnce()};
      EXPECT_THROW(ranks.reduce_scatter(TensorView{whole.data(), whole.size(), DType::float32},
                                        TensorView{part.data(), part.size(), DType::float32}, ReduceOp::sum, call),
                   std::bad_alloc);
      // The first part's deadline has passed.
      expect_error(attempt([&] { ranks.barrier(); }), ErrorCode::deadline, {"failed earlier"});
    }
    ended.arrive_and_wait();
  }));
}

TEST(BaselineProcess, AJobGoesOnAfterItsServerWasRestarted) {
  auto server = serve();
  const std::string address = server->address();
  std::atomic<int> before = 0;
  std::thread restart([&] {
    before.wait(0);
    before.wait(1);
    server.reset();
    server = serve(address);
  });
  expect_no_errors(on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({address}, rank, 2);
    options.recovery = patience;
    Communicator ranks = connect(options);
    expect_sums(ranks, rank, 2);
    ++before;
    before.notify_all();
    expect_sums(ranks, rank, 2);
    expect_sums(ranks, rank, 2);
  }));
  restart.join();
}

}  // namespace
}  // namespace netsum::baseline
