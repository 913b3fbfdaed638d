// Ranks on one host, in shared memory: chosen for all together, with the bits of packets, and with the same errors.
// communicator_test and communicator_failure_test run over it too.
#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "e2e/rank_threads.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"

namespace netsum {
namespace {

using namespace testing;

Options shared_options(const std::string& aggregator, std::uint32_t rank, std::uint32_t world_size,
                       SharedMemory shared = SharedMemory::required) {
  Options options = rank_options({aggregator}, rank, world_size);
  options.shared_memory = shared;
  return options;
}

// Noise over many magnitudes, and now and then a number that is none.
std::vector<std::byte> noise(DType dtype, std::uint32_t rank, std::size_t elements) {
  std::vector<std::byte> tensor(elements * bytes_of(dtype));
  std::uint64_t state = rank + 1;
  for (std::size_t i = 0; i < elements; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    auto value =
        std::ldexp(static_cast<float>(static_cast<std::int32_t>(state >> 32)), -31 - static_cast<int>(state >> 20 & 7));
    if (elements > 1000 && i % 997 == rank) value = (i & 1) != 0 ? INFINITY : NAN;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    if (dtype == DType::bfloat16) bits >>= 16;
    if (dtype == DType::float16) bits = bits >> 16 & 0xbfff;
    std::memcpy(tensor.data() + i * bytes_of(dtype), &bits, bytes_of(dtype));
  }
  return tensor;
}

using Results = std::vector<std::vector<std::byte>>;

// All types, reductions and lengths, some at the same time; and broadcasts.
Results results_of(Communicator& comm) {
  Results results;
  for (const DType dtype : {DType::float32, DType::int32, DType::float16, DType::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      std::vector<std::vector<std::byte>> tensors;
      std::vector<Work> works;
      for (const std::size_t elements : {1, 255, 256, 2048, 2049, 70'000, 300'001, 5}) {
        auto& tensor = tensors.emplace_back(noise(dtype, comm.rank(), elements));
        const TensorView view{tensor.data(), elements, dtype};
        if (elements == 2048) {
          comm.all_reduce(view, op);
        } else {
          works.push_back(comm.all_reduce_async(view, op));
        }
      }
      for (Work& work : works) work.wait();
      results.insert(results.end(), tensors.begin(), tensors.end());
    }
  }
  for (const std::size_t bytes : {0, 3, 5000, 500'001}) {
    auto& tensor = results.emplace_back(noise(DType::int32, comm.rank(), bytes / 4 + 1));
    tensor.resize(bytes);
    comm.broadcast(tensor, comm.world_size() - 1);
  }
  comm.barrier();
  return results;
}

TEST(SharedMemory, HasTheBitsOfPackets) {
  for (const std::uint32_t size : {2U, 3U}) {
    const Aggregator aggregator(small_aggregator());
    std::vector<Results> of_packets(size), of_memory(size), of_memory_with_threads(size);
    const auto run = [&](SharedMemory shared, std::uint32_t threads, std::vector<Results>& out) {
      expect_success(on_ranks(size, [&](std::uint32_t rank) {
        Options options = shared_options(aggregator.address(), rank, size, shared);
        options.threads = threads;
        auto comm = Communicator::connect(options);
        out[rank] = results_of(comm);
        EXPECT_EQ(comm.statistics().shared_memory, shared != SharedMemory::off);
        EXPECT_EQ(comm.statistics().packets_sent == 0, shared != SharedMemory::off);
      }));
    };
    run(SharedMemory::off, 1, of_packets);
    run(SharedMemory::required, 1, of_memory);
    run(SharedMemory::automatic, 3, of_memory_with_threads);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(of_packets[rank] == of_packets[0]);
      EXPECT_TRUE(of_memory[rank] == of_packets[0]) << size << " ranks, rank " << rank;
      EXPECT_TRUE(of_memory_with_threads[rank] == of_packets[0]) << size << " ranks, rank " << rank;
    }
  }
}

TEST(SharedMemory, ManyShortAndLongOperationsInAnyOrder) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(3, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(shared_options(aggregator.address(), rank, 3));
    EXPECT_NE(comm.placement().find("shared memory"), std::string::npos);
    std::vector<std::vector<std::int32_t>> tensors;
    std::vector<Work> works;
    for (std::int32_t i = 0; i < 200; ++i) {
      auto& tensor = tensors.emplace_back(i % 3 == 0 ? 20'000 : 1 + i % 7, i + static_cast<std::int32_t>(rank));
      if (i % 5 == 0) {
        comm.all_reduce(std::span<std::int32_t>(tensor), ReduceOp::sum);
      } else {
        works.push_back(comm.all_reduce_async(TensorView{tensor.data(), tensor.size(), DType::int32}, ReduceOp::sum));
      }
    }
    for (Work& work : works) work.wait();
    for (std::int32_t i = 0; i < 200; ++i) {
      const auto& tensor = tensors[static_cast<std::size_t>(i)];
      ASSERT_EQ(tensor, std::vector<std::int32_t>(tensor.size(), 3 * i + 3)) << i;
    }
    EXPECT_EQ(comm.statistics().operations, 200U);
  }));
}

TEST(SharedMemory, IsForAllRanksOrForNone) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(
        shared_options(aggregator.address(), rank, 2, rank == 0 ? SharedMemory::automatic : SharedMemory::off));
    std::vector<float> values(1000, 1);
    comm.all_reduce(std::span<float>(values), ReduceOp::sum);
    EXPECT_EQ(values, std::vector<float>(1000, 2));
    EXPECT_FALSE(comm.statistics().shared_memory);
    EXPECT_GT(comm.statistics().packets_sent, 0U);
  }));
}

TEST(SharedMemory, RequiredAndNotThereIsAnErrorThatNamesTheRank) {
  const Aggregator aggregator(small_aggregator());
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(
        shared_options(aggregator.address(), rank, 2, rank == 0 ? SharedMemory::required : SharedMemory::off));
  });
  for (const auto& outcome : outcomes) {
    expect_error(outcome, ErrorCode::refused,
                 {"'test'", "rank 0 requires shared memory", "rank 1 is without", "wants none"});
  }
  Options options = shared_options(aggregator.address(), 0, 1);
  options.recovery = 1s;
  expect_error(attempt([&] { static_cast<void>(Communicator::connect(options)); }), ErrorCode::bad_argument, {"recovery"});
  options.recovery = 0s;
  options.protocol = "atp";
  expect_error(attempt([&] { static_cast<void>(Communicator::connect(options)); }), ErrorCode::bad_argument, {"switchml"});
}

TEST(SharedMemory, ShortAndLongCallsAsTheSameOperationAreAMismatch) {
  const Aggregator aggregator(small_aggregator());
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(shared_options(aggregator.address(), rank, 2));
    comm.barrier();
    std::vector<float> values(rank == 0 ? 10 : 100'000);
    comm.all_reduce(std::span<float>(values), ReduceOp::sum);
  });
  bool named = false;
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    const std::string text = outcome->what();
    // The other one learns of it by the first one's leaving, if it was not quick enough to see for itself.
    EXPECT_TRUE(outcome->code() == ErrorCode::mismatch || outcome->code() == ErrorCode::worker_lost) << text;
    named |= outcome->code() == ErrorCode::mismatch && text.find("operation 1") != std::string::npos;
  }
  EXPECT_TRUE(named);
}

// What keeps ranks of one host apart, where they are not to be together.
TEST(SharedMemory, IsNotReachedFromAnotherNetworkNamespace) {
  const auto listener = transport::listen_local("netsum-test-" + std::to_string(getpid()));
  EXPECT_TRUE(transport::connect_local("netsum-test-" + std::to_string(getpid())));
  bool moved = false, reached = true;
  std::thread([&] {
    moved = unshare(CLONE_NEWNET) == 0;
    reached = transport::connect_local("netsum-test-" + std::to_string(getpid())) != nullptr;
  }).join();
  if (!moved) GTEST_SKIP() << "no right to make a network namespace";
  EXPECT_FALSE(reached);
}

}  // namespace
}  // namespace netsum
