// Everything that can go wrong for a communicator ends in an error that says what, where and who, in bounded time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <future>
#include <latch>

#include "control/border.h"
#include "control/client.h"
#include "e2e/rank_threads.h"
#include "jobs/atp_job.h"
#include "jobs/netreduce_job.h"
#include "jobs/switchml_job.h"
#include "protocol/switchml/probe.h"
#include "runtime/thread.h"
#include "support/raw_channel.h"
#include "transport/datagram/udp.h"
#include "wire/switchml.h"

namespace netsum {
namespace {

using namespace testing;
using Clock = std::chrono::steady_clock;

std::vector<float> ones(std::size_t elements) {
  return std::vector<float>(elements, 1);
}

void sum(Communicator& comm, std::vector<float>& values, const CallOptions& call = {}) {
  comm.all_reduce(std::span<float>(values), ReduceOp::sum, call);
}

// ---- calls that differ

struct Call {
  const char* what;
  std::function<void(Communicator&)> issue;
};

void expect_mismatch(const std::vector<Call>& of_rank) {
  const Aggregator aggregator(small_aggregator());
  std::latch ended(2);
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    comm.barrier();
    const auto outcome = attempt([&] { of_rank[rank].issue(comm); });
    expect_error(attempt([&] { comm.barrier(); }), ErrorCode::mismatch, {"different calls"});
    ended.arrive_and_wait();
    if (outcome) throw *outcome;
  });
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const std::string own = "this is rank " + std::to_string(rank),
                      other = "; rank " + std::to_string(1 - rank) + " called ";
    expect_error(outcomes[rank], ErrorCode::mismatch,
                 {"'test'", "operation 1", own, of_rank[rank].what, other, of_rank[1 - rank].what});
    if (outcomes[rank]) {
      const std::vector<RankCall>& calls = outcomes[rank]->details().calls;
      ASSERT_EQ(2U, calls.size());
      EXPECT_EQ(rank, calls[0].rank);
      EXPECT_NE(std::string::npos, calls[0].call.find(of_rank[rank].what)) << calls[0].call;
      EXPECT_EQ(1 - rank, calls[1].rank);
      EXPECT_NE(std::string::npos, calls[1].call.find(of_rank[1 - rank].what)) << calls[1].call;
      const std::string text = outcomes[rank]->what();
      EXPECT_TRUE(text.find("ranks 0 and 1") != std::string::npos || text.find("ranks 1 and 0") != std::string::npos)
          << text;
    }
  }
}

Call sum_call(const char* what, std::size_t elements, DType dtype, ReduceOp op, std::uint32_t tag) {
  return {what, [=](Communicator& comm) {
            std::vector<float> values(elements);
            comm.all_reduce(TensorView{values.data(), elements, dtype}, op, {.deadline = std::nullopt, .tag = tag});
          }};
}

const Call usual = sum_call("1000 float32", 1000, DType::float32, ReduceOp::sum, 0);

TEST(Mismatch, OfLength) {
  expect_mismatch({usual, sum_call("1001 float32", 1001, DType::float32, ReduceOp::sum, 0)});
}
TEST(Mismatch, OfType) {
  expect_mismatch({usual, sum_call("1000 int32", 1000, DType::int32, ReduceOp::sum, 0)});
}
TEST(Mismatch, OfReduction) {
  expect_mismatch({usual, sum_call("avg", 1000, DType::float32, ReduceOp::avg, 0)});
}
TEST(Mismatch, OfTag) {
  expect_mismatch({usual, sum_call("tag 7", 1000, DType::float32, ReduceOp::sum, 7)});
}
TEST(Mismatch, OfCollective) {
  expect_mismatch({usual, {"barrier", [](Communicator& comm) { comm.barrier(); }}});
}
TEST(Mismatch, OfALengthInAListThatIsAsLongInAll) {
  const auto list = [](std::size_t first) {
    return Call{"300 int32", [first](Communicator& comm) {
                  std::vector<std::int32_t> values(300);
                  const TensorView tensors[] = {{values.data(), first}, {values.data() + first, 300 - first}};
                  comm.all_reduce_coalesced(tensors, ReduceOp::sum);
                }};
  };
  expect_mismatch({list(100), list(200)});
}
TEST(Mismatch, OfRoot) {
  const auto from = [](std::uint32_t root) {
    return Call{"broadcast", [root](Communicator& comm) {
                  std::vector<std::byte> data(100);
                  comm.broadcast(data, root);
                }};
  };
  expect_mismatch({from(0), from(1)});
}

// ---- waits that end

TEST(Deadline, NamesTheMissingRanks) {
  const Aggregator aggregator(small_aggregator());
  std::latch waited(4);
  const auto outcomes = on_ranks(4, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 4));
    auto values = ones(1000);
    const auto outcome = attempt([&] {
      if (rank < 2) sum(comm, values, {.deadline = 700ms});
    });
    waited.arrive_and_wait();
    if (outcome) throw *outcome;
  });
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    expect_error(outcomes[rank], ErrorCode::deadline,
                 {"'test'", "operation 0", "1000 float32", "0.7 s", "chunk 0", "ranks 2, 3"});
  }
  EXPECT_FALSE(outcomes[2]);
}

TEST(Deadline, OfTheOptionsHoldsWhereACallNamesNone) {
  const Aggregator aggregator(small_aggregator());
  std::latch waited(2);
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({aggregator.address()}, rank, 2);
    options.operation_deadline = 300ms;
    auto comm = Communicator::connect(options);
    const auto outcome = attempt([&] {
      if (rank == 0) comm.barrier();
    });
    waited.arrive_and_wait();
    if (outcome) throw *outcome;
  });
  expect_error(outcomes[0], ErrorCode::deadline, {"barrier", "rank 1"});
}

TEST(Deadline, HoldsForARankThatDoesNotSplit) {
  const Aggregator aggregator(small_aggregator());
  std::latch waited(3);
  const auto outcomes = on_ranks(3, [&](std::uint32_t rank) {
    Options options = rank_options({aggregator.address()}, rank, 3);
    options.operation_deadline = 300ms;
    auto comm = Communicator::connect(options);
    const auto outcome = attempt([&] {
      if (rank != 1) static_cast<void>(comm.split(0));
    });
    waited.arrive_and_wait();
    if (outcome) throw *outcome;
  });
  expect_error(outcomes[0], ErrorCode::deadline, {"operation 0", "rank 1"});
  expect_error(outcomes[2], ErrorCode::deadline, {"operation 0", "rank 1"});
}

TEST(Deadline, LongerThanTheClockIsNever) {
  const Aggregator aggregator(small_aggregator());
  Options options = rank_options({aggregator.address()}, 0, 1);
  options.operation_deadline = std::chrono::milliseconds::max();
  options.connect_deadline = std::chrono::milliseconds::max();
  auto comm = Communicator::connect(options);
  comm.barrier();
  comm.barrier({.deadline = std::chrono::nanoseconds::max()});
}

TEST(Leaving, EndsTheWaitsOfOthers) {
  const Aggregator aggregator(small_aggregator());
  const auto outcomes = on_ranks(3, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 3));
    comm.barrier();
    if (rank == 1) return;
    auto values = ones(100'000);
    sum(comm, values);
  });
  EXPECT_FALSE(outcomes[1]);
  // The first of the others that notices ends too, and may be what the second waits for next.
  expect_error(outcomes[0], ErrorCode::worker_lost, {"'test'", "operation 1", "rank 1", "left"});
  expect_error(outcomes[2], ErrorCode::worker_lost, {"'test'", "operation 1", "rank 1", "left"});
}

TEST(Leaving, AfterTheLastOperationDisturbsNobody) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(4, [&](std::uint32_t rank) {
    Options options = rank_options({aggregator.address()}, rank, 4);
    options.loss = rank == 3 ? 0.2 : 0;  // its last results come late, when the others have gone
    auto comm = Communicator::connect(options);
    auto values = ones(30'000);
    sum(comm, values);
    EXPECT_EQ(values, std::vector<float>(30'000, 4));
  }));
}

TEST(Leaving, FailedRankIsNotWaitedFor) {
  const Aggregator aggregator(small_aggregator());
  std::latch ended(2);
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    if (rank == 0) comm.abort("the user gave up");
    const auto outcome = attempt([&] { comm.barrier(); });
    ended.arrive_and_wait();  // both communicators are there until both have failed
    if (outcome) throw *outcome;
  });
  expect_error(outcomes[0], ErrorCode::closed, {"the user gave up"});
  expect_error(outcomes[1], ErrorCode::worker_lost, {"rank 0", "left", "the user gave up"});
}

TEST(Abort, EndsAWaitFromAnotherThread) {
  const Aggregator aggregator(small_aggregator());
  std::latch waited(2);
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    auto values = ones(100'000);
    std::optional<Error> outcome;
    if (rank == 0) {
      Work work = comm.all_reduce_async(TensorView{values.data(), values.size(), DType::float32}, ReduceOp::sum);
      std::thread other([&] { comm.abort("enough"); });
      outcome = attempt([&] { work.wait(); });
      other.join();
      EXPECT_TRUE(work.done());
    }
    waited.arrive_and_wait();
    if (outcome) throw *outcome;
  });
  expect_error(outcomes[0], ErrorCode::closed, {"enough"});
}

// While no operation is pending; not if its own caller has ended it.
TEST(Death, OfTheAggregatorIsToldToACommunicatorsOwner) {
  std::optional<Aggregator> aggregator(small_aggregator());
  std::promise<Error> told;
  std::atomic<int> errors_logged = 0;
  Options options = rank_options({aggregator->address()}, 0, 1);
  options.on_failure = [&](const Error& error) { told.set_value(error); };
  options.log = [&](const std::string& line) { errors_logged += line.starts_with("error: ") ? 1 : 0; };
  auto aborted = Communicator::connect(options);
  aborted.abort("by its owner");
  options.job = "another";
  const auto comm = Communicator::connect(options);
  aggregator.reset();
  const Error error = told.get_future().get();  // a second call would throw there
  EXPECT_EQ(ErrorCode::aggregator_lost, error.code()) << error.what();
  EXPECT_EQ(error.what(), std::string(comm.failure()->what()));
  EXPECT_EQ(1, errors_logged);
}

TEST(Abort, FollowsAStopRequest) {
  const Aggregator aggregator(small_aggregator());
  std::stop_source stop;
  Options options = rank_options({aggregator.address()}, 0, 2);
  options.stop = stop.get_token();
  std::thread requests([&] { stop.request_stop(); });  // the other rank never joins
  expect_error(attempt([&] { static_cast<void>(Communicator::connect(options)); }), ErrorCode::closed, {});
  requests.join();

  stop = {};
  std::latch connected(2), stopped(2);
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    Options own = rank_options({aggregator.address()}, rank, 2);
    if (rank == 0) own.stop = stop.get_token();
    auto comm = Communicator::connect(own);
    connected.arrive_and_wait();
    if (rank == 1) stop.request_stop();
    stopped.arrive_and_wait();
    auto values = ones(1000);
    sum(comm, values);
  });
  expect_error(outcomes[0], ErrorCode::closed, {"a stop was requested"});
  expect_error(outcomes[1], ErrorCode::worker_lost, {"a stop was requested"});
}

TEST(Abort, FollowsAnExceptionThatLeavesAnOperationWhichNobodyElseBegan) {
  const Aggregator aggregator(small_aggregator());
  std::latch left(2);
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({aggregator.address()}, rank, 2);
    options.heartbeat_timeout = 100ms;
    auto comm = Communicator::connect(options);
    auto values = ones(1000);
    if (rank == 0) {
      EXPECT_THROW(
          {
            const Work work = comm.all_reduce_async(values, ReduceOp::sum);
            throw std::runtime_error("of the caller");
          },
          std::runtime_error);
      expect_error(comm.failure(), ErrorCode::closed, {"an exception left the scope"});
    }
    left.arrive_and_wait();
    if (rank == 0) return;
    static_cast<void>(attempt([&] { sum(comm, values); }));  // rank 0's values may be there already
    comm.barrier();
  });
  EXPECT_FALSE(outcomes[0]);
  expect_error(outcomes[1], ErrorCode::worker_lost, {"an exception left the scope"});
}

TEST(Work, OneThatWasMovedFromSaysSo) {
  const Aggregator aggregator(small_aggregator());
  auto comm = Communicator::connect(rank_options({aggregator.address()}, 0, 1));
  Work work = comm.barrier_async();
  Work other = std::move(work);
  expect_error(attempt([&] { work.wait(); }), ErrorCode::closed, {"moved from"});
  expect_error(attempt([&] { static_cast<void>(work.done()); }), ErrorCode::closed, {"moved from"});
  other.wait();
}

TEST(Work, OutlivesItsCommunicator) {
  const Aggregator aggregator(small_aggregator());
  auto values = ones(100'000);
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    std::optional<Work> work;
    {
      auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
      if (rank == 0) work = comm.all_reduce_async(TensorView{values.data(), values.size(), DType::float32}, ReduceOp::sum);
    }
    if (work) work->wait();
  });
  expect_error(outcomes[0], ErrorCode::closed, {"closed"});
}

// ---- threads

// Everything that one thread at a time may do.
const std::vector<Call> calls_of_one_thread = {
    {"sum", [](Communicator& comm) { sum(comm, *std::make_unique<std::vector<float>>(10)); }},
    {"sum_async",
     [](Communicator& comm) {
       static_cast<void>(comm.all_reduce_async({nullptr, 0, DType::float32}, ReduceOp::sum));
     }},
    {"broadcast", [](Communicator& comm) { comm.broadcast({}, 0); }},
    {"broadcast_async", [](Communicator& comm) { static_cast<void>(comm.broadcast_async({}, 0)); }},
    {"barrier", [](Communicator& comm) { comm.barrier(); }},
    {"allocate", [](Communicator& comm) { static_cast<void>(comm.allocate(1)); }},
    {"dup", [](Communicator& comm) { static_cast<void>(comm.dup()); }},
    {"split", [](Communicator& comm) { static_cast<void>(comm.split(0)); }},
    {"next_operation", [](Communicator& comm) { static_cast<void>(comm.next_operation()); }},
};
const std::vector<Call> calls_of_any_thread = {
    {"abort", [](Communicator& comm) { comm.abort("no more"); }},
    {"statistics", [](Communicator& comm) { static_cast<void>(comm.statistics()); }},
    {"placement", [](Communicator& comm) { static_cast<void>(comm.placement()); }},
    {"rank", [](Communicator& comm) { static_cast<void>(comm.rank()); }},
    {"world_size", [](Communicator& comm) { static_cast<void>(comm.world_size()); }},
};

// On a thread of its own, which this one may have stood in the way of.
std::optional<Error> barrier_in_turn(Communicator& comm) {
  while (true) {
    const auto outcome = attempt([&] { comm.barrier(); });
    if (!outcome || outcome->code() != ErrorCode::bad_argument) return outcome;
  }
}

[[nodiscard]] bool comes_to_be_inside_a_call(Communicator& comm) {
  for (const auto until = Clock::now() + patience; Clock::now() < until; std::this_thread::yield()) {
    if (attempt([&] { static_cast<void>(comm.next_operation()); })) return true;
  }
  return false;
}

TEST(Threads, ACallInsideAnotherOneIsRefusedAndDoesNothing) {
  const Aggregator aggregator(small_aggregator());
  std::latch tried(2);
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    if (rank == 0) {
      std::optional<Error> of_other;
      std::thread other([&] { of_other = barrier_in_turn(comm); });
      EXPECT_TRUE(comes_to_be_inside_a_call(comm));
      for (const Call& call : calls_of_one_thread) {
        SCOPED_TRACE(call.what);
        expect_error(attempt([&] { call.issue(comm); }), ErrorCode::bad_argument,
                     {"'test'", "rank 0", "another thread", "dup()"});
      }
      EXPECT_EQ(comm.rank(), 0);
      EXPECT_EQ(comm.statistics().operations, 0);
      tried.arrive_and_wait();
      other.join();
      if (of_other) throw Error(*of_other);
    } else {
      tried.arrive_and_wait();
      comm.barrier();
    }
    EXPECT_EQ(comm.next_operation(), 1);
    auto values = ones(1000);
    sum(comm, values);
    EXPECT_EQ(values, std::vector<float>(1000, 2));
  }));
}

TEST(Threads, FourOnOneCommunicatorGetSumsOrThatError) {
  const Aggregator aggregator(small_aggregator());
  auto comm = Communicator::connect(rank_options({aggregator.address()}, 0, 1));
  std::atomic<std::uint64_t> sums{0};
  expect_success(on_ranks(4, [&](std::uint32_t thread) {
    for (int call = 0; call < 1000; ++call) {
      std::vector<float> values(100, static_cast<float>(thread));
      const auto refused = attempt([&] {
        if (call % 2 == 0) {
          sum(comm, values);
        } else {
          comm.all_reduce_async({values.data(), values.size(), DType::float32}, ReduceOp::sum).wait();
        }
      });
      if (refused) {
        expect_error(refused, ErrorCode::bad_argument, {"another thread"});
      } else {
        sums.fetch_add(1, std::memory_order_relaxed);
        EXPECT_EQ(values, std::vector<float>(100, static_cast<float>(thread)));
      }
    }
  }));
  EXPECT_GE(sums, 1);
  EXPECT_EQ(comm.next_operation(), sums);
}

TEST(Threads, ACommunicatorThatIsDestroyedFailsTheCallInsideIt) {
  const Aggregator aggregator(small_aggregator());
  std::latch ended(2);
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    std::optional comm(Communicator::connect(rank_options({aggregator.address()}, rank, 2)));
    if (rank == 0) {
      std::optional<Error> of_other;
      std::thread other([&, &inside = *comm] { of_other = barrier_in_turn(inside); });
      EXPECT_TRUE(comes_to_be_inside_a_call(*comm));
      comm.reset();
      other.join();
      expect_error(of_other, ErrorCode::closed, {"'test'", "rank 0", "was destroyed during a call on another thread"});
    }
    ended.arrive_and_wait();
  }));
}

TEST(Threads, OneThatWasMovedFromSaysSo) {
  const Aggregator aggregator(small_aggregator());
  auto comm = Communicator::connect(rank_options({aggregator.address()}, 0, 1));
  Communicator other = std::move(comm);
  for (const auto& calls : {calls_of_one_thread, calls_of_any_thread}) {
    for (const Call& call : calls) {
      SCOPED_TRACE(call.what);
      expect_error(attempt([&] { call.issue(comm); }), ErrorCode::closed, {"moved from"});
    }
  }
  other.barrier();
  comm = std::move(other);
  comm.barrier();
}

// ---- deaths

TEST(Death, OfTheAggregatorInGoodOrder) {
  std::optional<Aggregator> aggregator(small_aggregator());
  const std::string address = aggregator->address();
  std::latch going(3);
  std::thread end([&] {
    going.arrive_and_wait();
    aggregator.reset();
  });
  const auto began = Clock::now();
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({address}, rank, 2));
    auto values = ones(50'000);
    sum(comm, values);
    going.arrive_and_wait();
    while (true) sum(comm, values);
  });
  end.join();
  EXPECT_LT(Clock::now() - began, patience);
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_NE(std::string(outcome->what()).find(address), std::string::npos) << outcome->what();
  }
}

TEST(Death, OfTheAggregatorThatComesBack) {
  std::optional<Aggregator> aggregator(small_aggregator());
  const std::string address = aggregator->address();
  std::latch joined(3);
  std::thread restart([&] {
    joined.arrive_and_wait();
    aggregator.reset();
    aggregator.emplace(small_aggregator(address));
  });
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({address}, rank, 2));
    comm.barrier();
    joined.arrive_and_wait();
    auto values = ones(50'000);
    while (true) sum(comm, values);
  });
  restart.join();
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_NE(std::string(outcome->what()).find(address), std::string::npos) << outcome->what();
    EXPECT_TRUE(outcome->code() == ErrorCode::aggregator_restarted || outcome->code() == ErrorCode::aggregator_lost)
        << outcome->what();
  }
}

class RankProcess {
 public:
  RankProcess(const std::string& address, std::uint32_t rank, std::uint32_t world_size) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<std::string> words = {NETSUM_RANK_PROCESS, address, "test", std::to_string(rank),
                                      std::to_string(world_size)};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, NETSUM_RANK_PROCESS, &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = ends[0];
  }
  ~RankProcess() {
    kill();
    waitpid(pid_, nullptr, 0);
    close(output_);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // False if it ended before it was.
  [[nodiscard]] bool ready() const {
    char byte = 0;
    return read(output_, &byte, 1) == 1;
  }
  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

TEST(Death, OfARankIsNamed) {
  AggregatorOptions quick = small_aggregator();
  quick.heartbeat_timeout_ms = 3000;
  const Aggregator aggregator(quick);
  const RankProcess victim(aggregator.address(), 1, 3);
  std::thread killer([&] {
    EXPECT_TRUE(victim.ready());
    victim.kill();
  });
  const auto outcomes = on_ranks(3, [&](std::uint32_t rank) {
    if (rank == 1) return;
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 3));
    auto values = ones(10'000);
    while (true) sum(comm, values);
  });
  killer.join();
  for (const std::uint32_t rank : {0U, 2U}) {
    expect_error(outcomes[rank], ErrorCode::worker_lost, {"rank 1", "'test'", aggregator.address()});
  }
}

// ---- fork

// What `body` says in a forked child; 0 if it said nothing.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fork, ChildsCopyIsDeadAndTheParentsLives) {
  std::optional<Aggregator> aggregator(small_aggregator());
  std::optional<Communicator> comm(Communicator::connect(rank_options({aggregator->address()}, 0, 1)));
  auto values = ones(10);
  std::optional<Work> work = comm->all_reduce_async(TensorView{values.data(), 10, DType::float32}, ReduceOp::sum);
  const int said = in_child([&] {
    int refused = 0;
    const std::function<void()> calls[] = {[&] { comm->barrier(); },
                                           [&] { work->wait(); },
                                           [&] { static_cast<void>(work->done()); },
                                           [&] { static_cast<void>(comm->statistics()); },
                                           [&] { comm->abort("child"); },
                                           [&] { static_cast<void>(comm->dup()); }};
    for (const auto& call : calls) {
      const auto outcome = attempt(call);
      if (outcome && outcome->code() == ErrorCode::closed && std::string(outcome->what()).find("fork") != std::string::npos)
        ++refused;
    }
    work.reset();
    comm.reset();
    aggregator.reset();
    return refused;
  });
  EXPECT_EQ(said, 6);
  work->wait();
  comm->barrier();
}

// ---- connecting

std::optional<Error> attempt_to_connect(const Options& options) {
  return attempt([&] { static_cast<void>(Communicator::connect(options)); });
}

TEST(Connect, ToNobody) {
  // Bound and never listening: a port that refuses.
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string nobody = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  Options options = rank_options({nobody}, 0, 2);
  options.connect_deadline = 500ms;
  expect_error(attempt_to_connect(options), ErrorCode::unreachable, {nobody, "is netsum running there"});
  close(socket);
}

TEST(Connect, WithoutTheOtherRanks) {
  const Aggregator aggregator(small_aggregator());
  const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({aggregator.address()}, rank, 3);
    options.connect_deadline = 2s;
    static_cast<void>(Communicator::connect(options));
  });
  for (const auto& outcome : outcomes) expect_error(outcome, ErrorCode::deadline, {"'test'", "2"});
}

TEST(Connect, WithBadArguments) {
  const std::string somewhere = "127.0.0.1:9";
  expect_error(attempt_to_connect(rank_options({}, 0, 1)), ErrorCode::bad_argument, {"aggregator"});
  expect_error(attempt_to_connect(rank_options({somewhere}, 0, 0)), ErrorCode::bad_argument, {"world size 0"});
  expect_error(attempt_to_connect(rank_options({somewhere}, 0, 4097)), ErrorCode::bad_argument, {"4097", "4096"});
  expect_error(attempt_to_connect(rank_options({somewhere}, 2, 2)), ErrorCode::bad_argument, {"rank 2"});
  expect_error(attempt_to_connect(rank_options({"nonsense"}, 0, 1)), ErrorCode::bad_argument, {"nonsense"});
  Options options = rank_options({somewhere}, 0, 1);
  options.packet_elements = 100;
  expect_error(attempt_to_connect(options), ErrorCode::bad_argument, {"100", "256"});
  options = rank_options({somewhere}, 0, 1);
  options.slots = 24;
  expect_error(attempt_to_connect(options), ErrorCode::bad_argument, {"24", "power of two"});
  options = rank_options({somewhere}, 0, 1);
  options.loss = 1;
  expect_error(attempt_to_connect(options), ErrorCode::bad_argument, {"loss"});
}

TEST(Connect, RefusalsSayWhy) {
  AggregatorOptions guarded = small_aggregator();
  guarded.token = "secret";
  const Aggregator aggregator(guarded);
  expect_error(attempt_to_connect(rank_options({aggregator.address()}, 0, 1)), ErrorCode::refused,
               {aggregator.address(), "token"});

  Options options = rank_options({aggregator.address()}, 0, 1);
  options.token = "secret";
  auto comm = Communicator::connect(options);
  expect_error(attempt_to_connect(options), ErrorCode::refused, {"'test'", "running"});
  options.job = "huge";
  options.slots = 4096;
  options.packet_elements = 15360;
  expect_error(attempt_to_connect(options), ErrorCode::refused, {"'huge'", "slots"});
}

// A rank's data endpoint that has shown a lane that it receives.
struct Proved {
  Endpoint endpoint;
  std::uint64_t cookie = 0;
};
Proved prove_to(const Endpoint& lane) {
  transport::Udp socket({.peer = lane});
  switchml::ProbeConfig config;
  config.aggregator = lane;
  config.singles = 1;
  config.train = 0;
  switchml::Probe probe(config);
  probe.start(runtime::now(), socket.sink());
  while (!probe.done()) {
    socket.sink().flush();
    pollfd ready{socket.descriptor(), POLLIN, 0};
    poll(&ready, 1, 10);
    probe.on_packets(socket.receive(), runtime::now(), socket.sink());
    probe.on_timer(runtime::now(), socket.sink());
  }
  EXPECT_TRUE(probe.answered());
  return {socket.local(), probe.cookie()};
}

// Rank 1, spoken for by hand at each of two aggregators.
class TwoAggregators : public ::testing::Test {
 protected:
  static Aggregator impatient() {
    AggregatorOptions options = small_aggregator();
    options.heartbeat_timeout_ms = 2000;
    return Aggregator(options);
  }

  static session::JoinRequest request(const control::Hello& hello, std::uint32_t packet_elements) {
    session::JoinRequest request;
    request.protocol_version = wire::switchml::version;
    request.protocol = "switchml";
    request.job = "test";
    request.rank = 1;
    request.world_size = 2;
    request.packet_elements = packet_elements;
    request.slots_fixed = 2;
    for (const Endpoint& lane : hello.lanes) {
      const Proved own = prove_to(lane);
      request.endpoints.push_back(own.endpoint);
      request.cookies.push_back(own.cookie);
    }
    return request;
  }
  static session::Admission join(control::Client& client) {
    return client.join(request(client.hello(patience), 256), jobs::switchml_rules(), patience);
  }

  std::future<void> connect_rank_0() {
    return std::async(std::launch::async, [this] {
      Options options = rank_options({a_.address(), b_.address()}, 0, 2);
      options.packet_elements = 256;
      options.slots = 2;
      static_cast<void>(Communicator::connect(options));
    });
  }

  const Aggregator a_ = impatient(), b_ = impatient();
  control::Client at_a_{{a_.address(), "", ""}}, at_b_{{b_.address(), "", ""}};
};

// netsum simulate, chaos, seed 181: a rank that waited at one aggregator was declared dead at the other.
TEST_F(TwoAggregators, ARankThatWaitsAtOneIsAliveAtTheOther) {
  auto connected = connect_rank_0();
  const session::Admission admission = join(at_a_);
  const auto began = Clock::now();
  while (Clock::now() - began < 3500ms) {
    ASSERT_EQ(std::future_status::timeout, connected.wait_for(200ms));
    const auto reply = at_a_.heartbeat(admission.job_epoch, 1, admission.rank_epoch, patience);
    ASSERT_EQ(session::HeartbeatReply::State::running, reply.state) << reply.reason;
  }
  static_cast<void>(join(at_b_));
  EXPECT_NO_THROW(connected.get());
}

TEST_F(TwoAggregators, ARankThatOneRefusesLeavesTheOther) {
  // Rank 1 waits at one of them with other parameters; nobody will come to it there.
  const auto waiting = std::async(std::launch::async, [this] {
    control::Client client({b_.address(), "", ""});
    static_cast<void>(
        attempt([&] { static_cast<void>(client.join(request(client.hello(patience), 512), jobs::switchml_rules(), 3s)); }));
  });
  const auto deadline = Clock::now() + patience;
  while (at_b_.report(patience).jobs.empty() && Clock::now() < deadline) {
  }
  auto connected = connect_rank_0();
  const session::Admission admission = join(at_a_);
  expect_error(attempt([&] { connected.get(); }), ErrorCode::refused, {"elements per packet"});
  session::HeartbeatReply reply;
  while (!reply.left.contains(0) && Clock::now() < deadline) {
    reply = at_a_.heartbeat(admission.job_epoch, 1, admission.rank_epoch, patience);
    ASSERT_EQ(session::HeartbeatReply::State::running, reply.state) << reply.reason;
  }
  EXPECT_TRUE(reply.left.contains(0));
}

// ---- nothing is sent to who has not shown that he receives it

class Installing : public ::testing::Test {
 protected:
  explicit Installing(const AggregatorOptions& options) : aggregator_(options) {
    for (const Endpoint& lane : lanes_) own_.push_back(prove_to(lane));
  }

  // What the switch says against an installation; nothing: it is done.
  std::string install(const jobs::AtpInstallation& installation) {
    return RawChannel::why(channel_.call(control::Kind::install, jobs::message_of(installation)));
  }
  std::string install(const jobs::TreeInstallation& installation) {
    return RawChannel::why(channel_.call(control::Kind::install, jobs::message_of(installation)));
  }
  template <class Installation>
  void expect_refused(const Installation& installation, const std::vector<std::string>& words) {
    const std::string reason = install(installation);
    for (const std::string& word : words)
      EXPECT_NE(reason.find(word), std::string::npos) << "no '" << word << "': " << reason;
  }

  // A ring of two ranks at a leaf, on all of its lanes: their queue pairs' numbers from first_qps[lane] on.
  [[nodiscard]] jobs::TreeInstallation ring_of(std::uint64_t epoch, const std::vector<std::uint32_t>& first_qps) const {
    jobs::TreeInstallation ring;
    ring.start.job = "test";
    ring.start.protocol = "netreduce";
    session::Admission& admission = ring.start.admission;
    admission.job_epoch = epoch;
    admission.packet_elements = 64;
    admission.slots = 1;
    admission.rank_epochs = {1, 2};
    jobs::RingGrant grant{1, {}};
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      grant.members.emplace_back();
      ring.start.endpoints.emplace_back();
      ring.start.switch_cookies.emplace_back();
      for (std::size_t lane = 0; lane < own_.size(); ++lane) {
        const std::uint32_t qp = first_qps[lane] + 2 * rank;
        grant.members.back().push_back({own_[lane].endpoint.address, qp, 0, qp + 1, 0, 0});
        ring.start.endpoints.back().push_back(own_[lane].endpoint);
        ring.start.switch_cookies.back().push_back(own_[lane].cookie);
      }
    }
    admission.own = jobs::own_part(grant);
    admission.placement.switches = {"leaf"};
    admission.placement.parent_of_switch = {session::Placement::at_server};
    admission.placement.switch_of_rank = {0, 0};
    ring.switches = {lanes_};
    for (const Proved& each : own_) ring.root.push_back(each.endpoint);
    return ring;
  }

  const Aggregator aggregator_;
  control::Client client_{{aggregator_.address(), "", ""}};
  RawChannel channel_{{aggregator_.address(), "", ""}};
  const std::vector<Endpoint> lanes_ = client_.hello(patience).lanes;
  std::vector<Proved> own_;  // at each lane
};

class Strangers : public Installing {
 protected:
  Strangers() : Installing(small_aggregator("127.0.0.1:0", 1)) {}

  static constexpr Endpoint victim{
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1}, 7, 0};  // of documentation alone
};

TEST_F(Strangers, JoinForNobodyElse) {
  session::JoinRequest request;
  request.protocol_version = wire::switchml::version;
  request.protocol = "switchml";
  request.job = "test";
  request.rank = 0;
  request.world_size = 1;
  request.packet_elements = 256;
  request.slots_fixed = 2;
  request.endpoints = {victim};
  const auto join = [&] { static_cast<void>(client_.join(request, jobs::switchml_rules(), patience)); };
  expect_error(attempt(join), ErrorCode::refused, {"rank 0's data endpoint 192.0.2.1:7", "has not been probed"});
  request.cookies = {own_[0].cookie};
  expect_error(attempt(join), ErrorCode::refused, {"rank 0's data endpoint 192.0.2.1:7"});
  request.endpoints = {own_[0].endpoint};
  EXPECT_NO_THROW(join());
}

// One parameter packet from the parent was 32 packets to the victim.
TEST_F(Strangers, InstallNoJobThatSendsToOthers) {
  jobs::AtpInstallation good;
  good.job = "test";
  good.job_epoch = 5;
  good.packet_elements = 62;
  good.window = good.next_level = 1;
  auto& lane = good.lanes.emplace_back();
  lane.parent = own_[0].endpoint;
  lane.children.push_back({own_[0].endpoint, false, 1, {0}, own_[0].cookie});
  for (const bool is_switch : {false, true}) {
    jobs::AtpInstallation forged = good;
    for (std::uint32_t rank = 1; rank < 32; ++rank) {
      forged.lanes[0].children.push_back({victim, is_switch, is_switch ? 0U : 1U, {rank}, own_[0].cookie});
    }
    expect_refused(forged, {"192.0.2.1:7"});
  }
  jobs::AtpInstallation forged = good;
  forged.lanes[0].parent = victim;
  expect_refused(forged, {"192.0.2.1:7", "--daemon-token-file"});
  EXPECT_EQ("", install(good));
}

TEST_F(Strangers, InstallNoJobOfAProtocolThatIsNotHere) {
  const session::SwitchMessage message{"ps", "test", 7, false, {}};
  const std::string why = RawChannel::why(channel_.call(control::Kind::install, message));
  EXPECT_NE(std::string::npos, why.find("does not serve protocol 'ps'")) << why;
}

TEST_F(Strangers, InstallNoRingThatSendsToOthers) {
  jobs::TreeInstallation ring = ring_of(6, {100});
  ring.start.endpoints[1] = {victim};
  expect_refused(ring, {"rank 1's data endpoint 192.0.2.1:7"});
  ring = ring_of(6, {100});
  ring.root = {victim};
  expect_refused(ring, {"192.0.2.1:7"});
}

// ---- rings at a leaf of a tree of switches

class LeafRings : public Installing {
 protected:
  static constexpr std::uint64_t most = 3;  // rings that have room

  LeafRings() : Installing(options()) {}

  static AggregatorOptions options() {
    AggregatorOptions options = small_aggregator("127.0.0.1:0", 2);
    netreduce::RingConfig of_lane;
    of_lane.members = 2;
    of_lane.message_packets = 1;
    of_lane.window = netreduce::roomy_window(1, of_lane.message_packets);
    of_lane.mtu = 256;
    options.memory_bytes = (most + 1) * 2 * netreduce::Accelerator::memory_bytes(of_lane) - 1;
    return options;
  }
};

// It was charged twice.
TEST_F(LeafRings, AreChargedOnce) {
  const std::uint64_t bytes = jobs::memory_bytes(ring_of(1, {100, 100}));
  ASSERT_EQ(options().memory_bytes, (most + 1) * bytes - 1);
  for (std::uint32_t number = 1; number <= most; ++number) {
    const jobs::TreeInstallation ring = ring_of(number, {100 * number, 100 * number});
    EXPECT_EQ("", install(ring));
    EXPECT_EQ("", install(ring)) << "again";
    EXPECT_EQ(number * bytes, client_.report(patience).memory_used);
  }
  expect_refused(ring_of(9, {900, 900}), {"memory"});
  EXPECT_EQ(most * bytes, client_.report(patience).memory_used);
}

// What the first lane had was left there.
TEST_F(LeafRings, ThatOneLaneRefusesAreOnNone) {
  ASSERT_EQ("", install(ring_of(1, {100, 100})));
  const std::uint64_t used = client_.report(patience).memory_used;
  for (int i = 0; i < 20; ++i) expect_refused(ring_of(2, {200, 100}), {"one of its queue pairs belongs to another rank"});
  EXPECT_EQ(used, client_.report(patience).memory_used);
  EXPECT_EQ("", install(ring_of(2, {200, 200})));
  EXPECT_EQ(2 * used, client_.report(patience).memory_used);
}

TEST(Calls, WithBadArguments) {
  const Aggregator aggregator(small_aggregator());
  auto comm = Communicator::connect(rank_options({aggregator.address()}, 0, 1));
  expect_error(attempt([&] {
                 comm.all_reduce(TensorView{nullptr, 5, DType::float32}, ReduceOp::sum);
               }),
               ErrorCode::bad_argument, {"null"});
  expect_error(attempt([&] { comm.broadcast({}, 1); }), ErrorCode::bad_argument, {"rank 1", "1"});
  comm.barrier();  // the caller's mistakes cost the communicator nothing
}

TEST(Aggregator, WithBadArguments) {
  const Aggregator first(small_aggregator());
  const auto outcome_of = [](AggregatorOptions options) { return attempt([&] { const Aggregator aggregator(options); }); };
  expect_error(outcome_of(small_aggregator("127.0.0.1:0", 0)), ErrorCode::bad_argument, {"threads"});
  expect_error(outcome_of(small_aggregator(first.address())), ErrorCode::refused, {first.address()});
  expect_error(outcome_of(small_aggregator("nonsense")), ErrorCode::bad_argument, {"nonsense"});
}

}  // namespace
}  // namespace netsum
