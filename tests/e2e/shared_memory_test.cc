// Ranks on one host, in shared memory: chosen for all together, with the bits of packets, and with the same errors.
// communicator_test and communicator_failure_test run over it too.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <future>
#include <numeric>

#include "e2e/rank_threads.h"
#include "transport/local/local_socket.h"
#include "transport/local/shared_memory.h"

namespace netsum {
namespace {

using namespace testing;

Options shared_options(const std::string& aggregator, std::uint32_t rank, std::uint32_t world_size,
                       SharedMemory shared = SharedMemory::required) {
  Options options = rank_options({aggregator}, rank, world_size);
  options.protocol = SwitchMl{.shared_memory = shared};
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

// Tensors that are not given back before the end: in memory from allocate(), or in vectors.
class Tensors {
 public:
  Tensors(Communicator& comm, bool allocate) {
    if (allocate) memory_ = comm.allocate(std::size_t{40} << 20);
  }
  std::span<std::byte> hold(const std::vector<std::byte>& values) {
    std::span<std::byte> tensor;
    if (memory_.size() == 0) {
      tensor = vectors_.emplace_back(values);
    } else {
      tensor = memory_.bytes().subspan(used_, values.size());
      std::copy(values.begin(), values.end(), tensor.begin());
      used_ += (values.size() + 7) / 4 * 4;  // not aligned to more than the widest element
    }
    return tensor;
  }

 private:
  TensorMemory memory_;
  std::size_t used_ = 0;
  std::deque<std::vector<std::byte>> vectors_;
};

// All types, reductions and lengths, some at the same time; and broadcasts.
Results results_of(Communicator& comm, bool allocate = false) {
  Results results;
  Tensors memory(comm, allocate);
  for (const DType dtype : {DType::float32, DType::int32, DType::float16, DType::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      std::vector<std::span<std::byte>> tensors;
      std::vector<Work> works;
      for (const std::size_t elements : {1U, 255U, 256U, 2048U, 2049U, 70'000U, 1'100'001U, 5U}) {
        const auto tensor = tensors.emplace_back(memory.hold(noise(dtype, comm.rank(), elements)));
        const TensorView view{tensor.data(), elements, dtype};
        if (elements == 2048) {
          comm.all_reduce(view, op);
        } else {
          works.push_back(comm.all_reduce_async(view, op));
        }
      }
      for (Work& work : works) work.wait();
      for (const auto& tensor : tensors) results.emplace_back(tensor.begin(), tensor.end());
    }
  }
  for (const std::size_t bytes : {0U, 3U, 5000U, 500'001U}) {
    const auto tensor = memory.hold(noise(DType::int32, comm.rank(), bytes / 4 + 1)).first(bytes);
    comm.broadcast(tensor, comm.world_size() - 1);
    results.emplace_back(tensor.begin(), tensor.end());
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

// docs/numerics.md#what-becomes-0: 100 gradients of 1e-5 beside one of 1e5, in one tensor and in each block of a long one.
TEST(SharedMemory, ItAndPacketsTellWhatBecomesZero) {
  const Aggregator aggregator(small_aggregator());
  for (const SharedMemory shared : {SharedMemory::off, SharedMemory::required}) {
    std::array<Statistics, 2> after_short, after_long;
    expect_success(on_ranks(2, [&](std::uint32_t rank) {
      auto comm = Communicator::connect(shared_options(aggregator.address(), rank, 2, shared));
      std::vector<float> values(101, 1e-5F);
      values[50] = 1e5F;
      comm.all_reduce(std::span<float>(values), ReduceOp::sum);
      EXPECT_EQ(values[0], 0);
      after_short[rank] = comm.statistics();
      std::vector<float> blocks(256'000, 1e-5F);
      for (std::size_t i = 3; i < blocks.size(); i += 256) blocks[i] = 1e5F;
      comm.all_reduce(std::span<float>(blocks), ReduceOp::sum);
      comm.all_reduce(std::span<float>(values).first(16), ReduceOp::sum);  // travel as floats
      after_long[rank] = comm.statistics();
    }));
    const auto sum = [](const std::array<Statistics, 2>& of, std::uint64_t Statistics::*value) {
      return of[0].*value + of[1].*value;
    };
    EXPECT_EQ(sum(after_short, &Statistics::values_examined), 202U);
    EXPECT_EQ(sum(after_short, &Statistics::values_underflowed), 200U);
    EXPECT_EQ(after_short[0].values_underflowed, 100U);
    const auto examined = sum(after_long, &Statistics::values_examined) - 202;
    EXPECT_GT(examined, 2 * 256'000 / 200);
    EXPECT_LT(examined, 2 * 256'000 / 20);
    EXPECT_EQ(sum(after_long, &Statistics::values_underflowed) - 200, examined / 256 * 255);
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
                 {"'test'", "rank 0 requires shared memory", "rank 1 does not use it", "has it off"});
  }
  Options options = shared_options(aggregator.address(), 0, 1);
  options.recovery = 1s;
  expect_error(attempt([&] { static_cast<void>(Communicator::connect(options)); }), ErrorCode::bad_argument, {"recovery"});
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

// ---- tensors in memory from allocate()

TEST(Allocate, TensorsThatLieThereAreSummedToTheSameBitsWithoutCopies) {
  for (const std::uint32_t size : {1U, 2U, 3U}) {
    const Aggregator aggregator(small_aggregator());
    std::vector<Results> expected(size), all(size), some(size), over_udp(size);
    const auto run = [&](SharedMemory shared, std::uint32_t threads, auto allocates, std::vector<Results>& out) {
      expect_success(on_ranks(size, [&](std::uint32_t rank) {
        Options options = shared_options(aggregator.address(), rank, size, shared);
        options.threads = threads;
        auto comm = Communicator::connect(options);
        // A rank that has it off of it is part of the call all the same.
        if (!allocates(rank)) static_cast<void>(comm.allocate(0));
        out[rank] = results_of(comm, allocates(rank));
        const bool all_allocate = allocates(0) && (size == 1 || allocates(1));
        const bool copies = shared == SharedMemory::required && !all_allocate;
        EXPECT_EQ(comm.statistics().bytes_copied != 0, copies) << comm.statistics().bytes_copied;
      }));
    };
    const auto nobody = [](std::uint32_t) { return false; };
    const auto everybody = [](std::uint32_t) { return true; };
    run(SharedMemory::required, 1, nobody, expected);
    run(SharedMemory::required, 2, everybody, all);
    run(
        SharedMemory::required, 3, [](std::uint32_t rank) { return rank % 2 == 0; }, some);
    run(SharedMemory::off, 1, everybody, over_udp);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(all[rank] == expected[rank]) << size << " ranks, rank " << rank;
      EXPECT_TRUE(some[rank] == expected[rank]) << size << " ranks, rank " << rank;
      EXPECT_TRUE(over_udp[rank] == expected[rank]) << size << " ranks, rank " << rank;
    }
  }
}

TEST(Allocate, MemoryComesAndGoes) {
  const Aggregator aggregator(small_aggregator());
  for (const SharedMemory shared : {SharedMemory::required, SharedMemory::off}) {
    expect_success(on_ranks(2, [&](std::uint32_t rank) {
      std::deque<TensorMemory> held;
      std::optional<Communicator> communicator =
          Communicator::connect(shared_options(aggregator.address(), rank, 2, shared));
      Communicator& comm = *communicator;
      for (std::int32_t i = 0; i < 60; ++i) {
        const std::size_t elements = 5'000 + static_cast<std::size_t>(i % 7) * 3'000;
        held.push_back(comm.allocate(elements * 4));
        const auto tensor = held.back().as<std::int32_t>();
        ASSERT_EQ(tensor.size(), elements);
        ASSERT_EQ(std::count(tensor.begin(), tensor.end(), 0), static_cast<std::ptrdiff_t>(elements)) << "of one before";
        std::fill(tensor.begin(), tensor.end(), i + static_cast<std::int32_t>(rank));
        comm.all_reduce(tensor, ReduceOp::sum);
        ASSERT_EQ(std::count(tensor.begin(), tensor.end(), 2 * i + 1), static_cast<std::ptrdiff_t>(elements)) << i;
        if (held.size() > 3)
          held.erase(held.begin() + (static_cast<std::uint32_t>(i) + rank) % 3);  // not all ranks the same
      }
      EXPECT_EQ(comm.statistics().bytes_copied, 0U);
      // Let go of while it is lent.
      for (const std::size_t elements : {100'000U, 10U}) {
        TensorMemory lent = comm.allocate(elements * 4);
        Work work = comm.all_reduce_async({lent.data(), elements, DType::int32}, ReduceOp::sum);
        lent = {};
        work.wait();
      }
      held.push_back(comm.allocate(10));
      communicator.reset();  // the memory may be held for longer
      for (const TensorMemory& memory : held) std::fill_n(memory.data(), memory.size(), std::byte{1});
    }));
  }
}

TEST(Allocate, AChildOfForkHasACopy) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(shared_options(aggregator.address(), rank, 2));
    TensorMemory memory = comm.allocate(400'000);
    const auto tensor = memory.as<std::int32_t>();
    std::fill(tensor.begin(), tensor.end(), 1 + static_cast<std::int32_t>(rank));
    const pid_t child = fork();
    if (child == 0) {
      const bool as_it_was = std::count(tensor.begin(), tensor.end(), 1 + static_cast<std::int32_t>(rank)) == 100'000;
      std::fill(tensor.begin(), tensor.end(), 1000);
      memory = {};
      _exit(as_it_was ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    comm.all_reduce(tensor, ReduceOp::sum);
    EXPECT_EQ(std::count(tensor.begin(), tensor.end(), 3), 100'000);
  }));
}

TEST(Allocate, IsACallThatAllRanksMake) {
  const Aggregator aggregator(small_aggregator());
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(shared_options(aggregator.address(), rank, 2));
    std::vector<float> values(100'000);
    rank == 0 ? static_cast<void>(comm.allocate(1000)) : comm.all_reduce(std::span<float>(values), ReduceOp::sum);
  });
  bool named = false;
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    named |= outcome->code() == ErrorCode::mismatch && std::string(outcome->what()).find("allocate") != std::string::npos;
  }
  EXPECT_TRUE(named || outcomes[1]->code() == ErrorCode::mismatch) << outcomes[0]->what() << " / " << outcomes[1]->what();
}

TEST(Allocate, ARankThatDoesNotCallItIsNamed) {
  const Aggregator aggregator(small_aggregator());
  std::promise<void> over;
  const auto outcomes = on_ranks(3, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(shared_options(aggregator.address(), rank, 3));
    comm.barrier();
    if (rank == 2) return over.get_future().wait();
    const auto outcome = attempt([&] { static_cast<void>(comm.allocate(1000, {.deadline = 300ms})); });
    const auto again = attempt([&] { static_cast<void>(comm.allocate(1000)); });
    if (rank == 0) over.set_value();
    expect_error(again, outcome->code(), {"failed earlier"});
    throw Error(*outcome);
  });
  bool named = false;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(outcomes[rank]);
    named |= outcomes[rank]->code() == ErrorCode::deadline &&
             std::string(outcomes[rank]->what()).find("rank 2") != std::string::npos;
  }
  EXPECT_TRUE(named) << outcomes[0]->what() << " / " << outcomes[1]->what();
}

TEST(Allocate, ARankThatLeavesEndsIt) {
  const Aggregator aggregator(small_aggregator());
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(shared_options(aggregator.address(), rank, 2));
    if (rank == 0) static_cast<void>(comm.allocate(1000));
  });
  expect_error(outcomes[0], ErrorCode::worker_lost, {"rank 1"});
}

TEST(Allocate, MoreThanThereIsIsAnError) {
  const Aggregator aggregator(small_aggregator());
  for (const SharedMemory shared : {SharedMemory::required, SharedMemory::off}) {
    auto comm = Communicator::connect(shared_options(aggregator.address(), 0, 1, shared));
    const auto outcome = attempt([&] { static_cast<void>(comm.allocate(std::size_t{1} << 62)); });
    expect_error(outcome, ErrorCode::bad_argument, {"4611686018427387904 bytes"});
  }
}

// What keeps ranks of one host apart, where they are not to be together.
TEST(SharedMemory, IsNotReachedFromAnotherNetworkNamespace) {
  const std::string name = "netsum-test-" + std::to_string(getpid());
  const transport::LocalListener listener(name, false);
  std::shared_ptr<transport::Descriptor> socket;
  EXPECT_EQ(transport::connect_local(name, socket), transport::LocalOutcome::done);
  bool moved = false;
  transport::LocalOutcome outcome = transport::LocalOutcome::done;
  std::thread([&] {
    moved = unshare(CLONE_NEWNET) == 0;
    outcome = transport::connect_local(name, socket);
  }).join();
  if (!moved) GTEST_SKIP() << "no right to make a network namespace";
  EXPECT_EQ(outcome, transport::LocalOutcome::closed);
}

}  // namespace
}  // namespace netsum
