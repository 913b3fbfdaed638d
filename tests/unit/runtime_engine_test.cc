// The event loops over real sockets, without the control plane: engines and an aggregator's lanes are wired together by
// hand.
#include "runtime/worker_engine.h"

#include <gtest/gtest.h>

#include <array>
#include <cfenv>
#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "protocol/switchml/worker_lane.h"
#include "runtime/aggregator_lane.h"
#include "runtime/thread.h"
#include "service/switchml_service.h"
#include "transport/datagram/udp.h"
#include "wire/epochs.h"

namespace netsum::runtime {
namespace {

using namespace std::chrono_literals;
using WorkerFailure = protocol::LaneFailure;

constexpr std::uint64_t job_epoch = 0x1234;
constexpr auto patience = 20s;  // of the tests: far above what anything here takes

std::unique_ptr<transport::Udp> loopback_socket(std::optional<Endpoint> peer = std::nullopt) {
  transport::UdpOptions options;
  options.bind = transport::resolve("127.0.0.1:0");
  options.peer = peer;
  options.buffer_bytes = 1 << 20;
  return std::make_unique<transport::Udp>(options);
}

// One job: `lanes` lanes of an aggregator, and for each of `ranks` ranks an engine.
class Job {
 public:
  Job(std::uint32_t ranks, std::uint32_t lanes, std::uint32_t threads = 1, bool admitted = true, bool recovers = false)
      : ranks_(ranks) {
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      constexpr std::uint32_t switch_threads = 2;  // with some lanes each
      switches.push_back(
          std::make_unique<AggregatorLane>(loopback_socket(), UINT64_MAX, lane, ThreadOptions{},
                                           lane < switch_threads ? nullptr : switches[lane % switch_threads]->thread()));
    }
    service::Lanes served;
    for (const auto& lane : switches) served.push_back(lane.get());
    service = std::make_unique<service::SwitchMlService>(served);
    auto setups = lanes_of(job_epoch, admitted);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      std::optional<stream::OperationLog> log;
      if (recovers) static_cast<void>(log.emplace(0).resume({}));
      engines.push_back(std::make_unique<WorkerEngine>(
          std::move(setups[rank]), threads, ThreadOptions{.set = rank},
          [this](std::uint32_t, const WorkerFailure& failure) { std::call_once(told, [&] { failed.set_value(failure); }); },
          std::move(log)));
    }
  }

  // Of each rank, for a life of the job.
  std::vector<std::vector<LaneSetup>> lanes_of(std::uint64_t epoch, bool admitted = true) {
    std::vector<std::uint32_t> epochs(ranks_);
    std::iota(epochs.begin(), epochs.end(), 100 * static_cast<std::uint32_t>(epoch & 0xff));
    std::vector<std::vector<LaneSetup>> setups(ranks_);
    session::StartJob job;
    job.admission.job_epoch = epoch;
    job.admission.packet_elements = 256;
    job.admission.slots = 8;
    job.admission.rank_epochs = epochs;
    job.endpoints.resize(ranks_);
    job.listens.resize(ranks_);
    for (std::uint32_t lane = 0; lane < switches.size(); ++lane) {
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
        auto socket = loopback_socket(switches[lane]->local());
        job.endpoints[rank].push_back(socket->local());
        switchml::WorkerConfig config;
        config.job_epoch = epoch;
        config.rank = rank;
        config.world_size = ranks_;
        config.rank_epoch = epochs[rank];
        config.folded_epochs = wire::fold_epochs(epochs);
        config.slots = 8;
        config.lane = lane;
        config.lanes = static_cast<std::uint32_t>(switches.size());
        config.aggregator = switches[lane]->local();
        setups[rank].push_back({std::move(socket), switchml::make_worker_lane(config)});
      }
    }
    if (admitted) served_jobs.push_back(service->start(job));
    return setups;
  }

  std::shared_ptr<PendingOperation> submit(std::uint32_t rank, stream::Operation operation) {
    auto pending = std::make_shared<PendingOperation>(operation, now(), now() + patience);
    engines[rank]->submit(pending);
    return pending;
  }

  std::vector<std::unique_ptr<AggregatorLane>> switches;
  std::unique_ptr<service::SwitchMlService> service;
  std::vector<std::unique_ptr<service::ServedJob>> served_jobs;
  std::once_flag told;
  std::promise<WorkerFailure> failed;
  std::vector<std::unique_ptr<WorkerEngine>> engines;

 private:
  std::uint32_t ranks_;
};

stream::Operation sum_of(std::vector<float>& values, std::uint64_t number) {
  stream::Operation operation;
  operation.number = number;
  operation.elements = values.size();
  operation.data = values.data();
  return operation;
}

stream::Operation barrier(std::uint64_t number) {
  stream::Operation operation;
  operation.number = number;
  operation.collective = stream::Collective::barrier;
  return operation;
}

// Without this, an operation that never ends would hang the test.
void wait_for(const PendingOperation& operation) {
  const Time limit = now() + patience;
  while (!operation.done() && now() < limit) std::this_thread::yield();
  ASSERT_TRUE(operation.done());
}

TEST(WorkerEngine, SumsOverSeveralLanesAndThreads) {
  Job job(3, 4, 2);
  std::uint64_t number = 0;
  for (const std::size_t elements : {0U, 1U, 255U, 257U, 40'000U}) {
    std::vector<std::vector<float>> tensors(3, std::vector<float>(elements));
    std::vector<std::shared_ptr<PendingOperation>> operations;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      for (std::size_t i = 0; i < elements; ++i) tensors[rank][i] = static_cast<float>(i % 100 + rank);
      operations.push_back(job.submit(rank, sum_of(tensors[rank], number)));
    }
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      wait_for(*operations[rank]);
      ASSERT_EQ(operations[rank]->error(), nullptr);
      for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(tensors[rank][i], static_cast<float>(i % 100 * 3 + 3)) << i;
    }
    ++number;
  }
  EXPECT_EQ(job.engines[0]->operations_completed(), number);
  EXPECT_EQ(job.engines[0]->totals().protocol.window, 4U * 8);
}

// Of one thread, and so never more than has passed.
TEST(WorkerEngine, IsBusyWhileItMovesPackets) {
  Job job(2, 2, 1);
  std::vector<std::vector<float>> tensors(2, std::vector<float>(40'000, 1));
  const auto busy = [&] { return job.engines[0]->totals().busy_nanoseconds; };
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(busy(), 0U);
  std::vector<std::shared_ptr<PendingOperation>> operations;
  for (std::uint32_t rank = 0; rank < 2; ++rank) operations.push_back(job.submit(rank, sum_of(tensors[rank], 0)));
  for (const auto& operation : operations) wait_for(*operation);
  const std::uint64_t summed = busy();
  EXPECT_GT(summed, 0U);
  EXPECT_LE(std::chrono::nanoseconds(summed), std::chrono::steady_clock::now() - began);
}

// An operation that one rank has given half of, and one that is issued in between, end over other lanes with what they had.
TEST(WorkerEngine, GoesOnOverOtherLanes) {
  constexpr std::size_t elements = 40'000;
  Job job(2, 2, 2, true, true);
  std::vector<std::vector<float>> first(2, std::vector<float>(elements, 1)), second(2, std::vector<float>(elements, 3));
  auto done = job.submit(0, barrier(0));
  static_cast<void>(job.submit(1, barrier(0)));
  wait_for(*done);
  std::vector<std::shared_ptr<PendingOperation>> operations = {job.submit(0, sum_of(first[0], 1))};
  for (auto& engine : job.engines) engine->suspend();
  operations.push_back(job.submit(0, sum_of(second[0], 2)));
  EXPECT_FALSE(operations[0]->done());

  std::vector<stream::Progress> progress;
  for (auto& engine : job.engines) progress.push_back(engine->progress());
  stream::Resumption resumption;
  ASSERT_EQ(stream::agree(progress, resumption), "");
  auto lanes = job.lanes_of(job_epoch + 1);
  for (std::uint32_t rank = 0; rank < 2; ++rank) job.engines[rank]->resume(std::move(lanes[rank]), resumption);
  operations.push_back(job.submit(1, sum_of(first[1], 1)));
  operations.push_back(job.submit(1, sum_of(second[1], 2)));
  for (const auto& operation : operations) {
    wait_for(*operation);
    ASSERT_EQ(operation->error(), nullptr);
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(first[rank], std::vector<float>(elements, 2));
    EXPECT_EQ(second[rank], std::vector<float>(elements, 6));
  }
  EXPECT_EQ(job.engines[0]->operations_completed(), 3U);
}

TEST(WorkerEngine, AResultThatOneRankHasReachesTheOther) {
  Job job(2, 1, 1, true, true);
  std::vector<float> values(1000, 1), other(1000, 5);
  auto mine = job.submit(0, sum_of(values, 0));
  auto theirs = job.submit(1, sum_of(other, 0));
  wait_for(*mine);
  wait_for(*theirs);
  for (auto& engine : job.engines) engine->suspend();
  // Rank 1 has died meanwhile; its successor, from an earlier state, computes something else.
  std::vector<float> again(1000, 9);
  job.engines[1] = std::make_unique<WorkerEngine>(
      std::vector<LaneSetup>{}, 1, ThreadOptions{}, [](std::uint32_t, const WorkerFailure&) {}, stream::OperationLog(0));
  job.engines[1]->suspend();
  stream::Resumption resumption;
  ASSERT_EQ(stream::agree(std::array{job.engines[0]->progress(), stream::Progress{0, 0, {}}}, resumption), "");
  auto lanes = job.lanes_of(job_epoch + 1);
  for (std::uint32_t rank = 0; rank < 2; ++rank) job.engines[rank]->resume(std::move(lanes[rank]), resumption);
  auto late = job.submit(1, sum_of(again, 0));
  wait_for(*late);
  EXPECT_EQ(again, std::vector<float>(1000, 6));
  EXPECT_EQ(job.engines[0]->operations_completed(), 1U) << "a replay for another is none of its own";
}

// A barrier is one chunk: of two lanes one has nothing to do, and its operations end as they are submitted.
TEST(WorkerEngine, TakesMoreOperationsThanAWorkerHoldsAtOnce) {
  const std::uint64_t count = 5 * switchml::WorkerConfig{}.operations;
  Job job(2, 2);
  std::vector<std::shared_ptr<PendingOperation>> operations;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (std::uint64_t number = 0; number < count; ++number) operations.push_back(job.submit(rank, barrier(number)));
  }
  for (const auto& operation : operations) wait_for(*operation);
  EXPECT_EQ(job.engines[1]->operations_completed(), count);
}

// What a caller carries out itself and what it hands over follow each other on the same lanes.
TEST(WorkerEngine, CallersCarryOutOperationsThemselves) {
  constexpr std::uint64_t rounds = 200;
  Job job(2, 2, 2);
  const auto rank = [&](std::uint32_t number) {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      std::vector<float> values(round % 3 == 0 ? 3 : 1000, static_cast<float>(number + round));
      const auto operation = std::make_shared<PendingOperation>(sum_of(values, round), now(), never);
      if (round % 5 == 4) {
        job.engines[number]->submit(operation);
        wait_for(*operation);
      } else {
        ASSERT_TRUE(job.engines[number]->run(operation));
        ASSERT_TRUE(operation->done());
      }
      ASSERT_EQ(values, std::vector<float>(values.size(), static_cast<float>(2 * round + 1)));
    }
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
  EXPECT_EQ(job.engines[0]->operations_completed(), rounds);
}

TEST(WorkerEngine, CallersHandOverWhileOthersAreUnderWay) {
  Job job(2, 1);
  job.submit(0, barrier(0));
  const auto operation = std::make_shared<PendingOperation>(barrier(1), now(), never);
  EXPECT_FALSE(job.engines[0]->run(operation));
  EXPECT_FALSE(operation->done());
}

TEST(WorkerEngine, FailEndsWhatACallerCarriesOut) {
  Job job(2, 2, 2);
  const auto operation = std::make_shared<PendingOperation>(barrier(0), now(), never);
  std::thread caller([&] { EXPECT_TRUE(job.engines[0]->run(operation)); });
  const Time limit = now() + patience;
  while (!job.engines[0]->most_urgent() && now() < limit) std::this_thread::yield();
  job.engines[0]->fail(Error(ErrorCode::worker_lost, "rank 1 died"));
  caller.join();
  ASSERT_TRUE(operation->done());
  ASSERT_NE(operation->error(), nullptr);
  EXPECT_EQ(operation->error()->code(), ErrorCode::worker_lost);
}

// A caller's own environment neither decides the bits nor is lost.
TEST(WorkerEngine, CallersKeepTheirFloatingPointEnvironment) {
  Job job(1, 1);
  std::vector<float> values(stream::most_plain_floats + 1);  // so many that they travel as integers, which are rounded to
  values[0] = 1e-40F;
  values[1] = 3;
  std::vector<float> expected = values;
  expected[0] = 0;  // 2^-29 is one rank's unit beside 3: rounded upward it would stay
  const auto operation = std::make_shared<PendingOperation>(sum_of(values, 0), now(), never);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const bool run = job.engines[0]->run(operation);
  const int mode = std::fegetround();
  std::fesetround(FE_TONEAREST);
  ASSERT_TRUE(run);
  EXPECT_EQ(mode, FE_UPWARD);
  EXPECT_EQ(values, expected);
}

TEST(WorkerEngine, StallNamesTheMissingRank) {
  Job job(3, 2);
  std::vector<float> a(1000, 1), b(1000, 1);
  job.submit(0, sum_of(a, 0));
  job.submit(1, sum_of(b, 0));
  std::optional<LaneStall> stall;
  const Time limit = now() + patience;
  RankSet expected;
  expected.insert(2);
  while (now() < limit && !(stall && stall->stall.missing == expected)) stall = job.engines[0]->oldest_stall();
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->stall.missing, expected);
  EXPECT_EQ(stall->stall.operation, 0U);
  EXPECT_GT(stall->stall.told, Time{});
}

TEST(WorkerEngine, FailEndsWhatIsUnderWayAndWhatComesLater) {
  Job job(2, 2);
  std::vector<float> lent(100'000, 1);
  const auto first = job.submit(0, sum_of(lent, 0));
  const auto second = job.submit(0, barrier(1));
  job.engines[0]->fail(Error(ErrorCode::worker_lost, "rank 1 died"));
  job.engines[0]->fail(Error(ErrorCode::closed, "too late to be the reason"));
  for (const auto& operation : {first, second}) {
    ASSERT_TRUE(operation->done());  // at once: nothing touches `lent` any more
    ASSERT_NE(operation->error(), nullptr);
    EXPECT_EQ(operation->error()->code(), ErrorCode::worker_lost);
  }
  EXPECT_THROW(job.submit(0, barrier(2)), Error);
  EXPECT_FALSE(job.engines[0]->oldest_stall());
  EXPECT_EQ(job.engines[0]->most_urgent(), nullptr);
}

TEST(WorkerEngine, ClosingEndsWhatIsUnderWay) {
  Job job(2, 1);
  const auto operation = job.submit(0, barrier(0));
  job.engines[0].reset();
  ASSERT_TRUE(operation->done());
  EXPECT_EQ(operation->error()->code(), ErrorCode::closed);
}

TEST(WorkerEngine, TellsOfAJobThatTheSwitchDoesNotKnow) {
  Job job(1, 1, 1, false);
  job.submit(0, barrier(0));
  auto failure = job.failed.get_future();
  ASSERT_EQ(failure.wait_for(patience), std::future_status::ready);
  EXPECT_EQ(failure.get().kind, WorkerFailure::Kind::unknown_job);
}

TEST(WorkerEngine, TellsOfCallsThatDiffer) {
  Job job(2, 1);
  std::vector<float> a(10), b(11);
  job.submit(0, sum_of(a, 0));
  job.submit(1, sum_of(b, 0));
  auto failure = job.failed.get_future();
  ASSERT_EQ(failure.wait_for(patience), std::future_status::ready);
  const WorkerFailure told = failure.get();
  EXPECT_EQ(told.kind, WorkerFailure::Kind::mismatch);
  EXPECT_EQ(told.first_rank + told.second_rank, 1U);
}

TEST(AggregatorLane, ForgetsARemovedJob) {
  Job job(1, 1);
  wait_for(*job.submit(0, barrier(0)));
  std::uint64_t contributions = 0;
  job.switches[0]->run([&] {
    contributions = job.service->at(0).job_counters(job_epoch)->contributions;
    EXPECT_GT(job.switches[0]->counters().packets_received, 0U);
  });
  EXPECT_EQ(contributions, 1U);
  job.served_jobs[0]->stop();
  job.switches[0]->run([&] { EXPECT_EQ(job.service->at(0).job_counters(job_epoch), nullptr); });
  job.submit(0, barrier(1));
  ASSERT_EQ(job.failed.get_future().wait_for(patience), std::future_status::ready);
}

TEST(Thread, DoesNotInheritTheFloatingPointEnvironment) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  int inside = -1;
  std::thread([&] {
    enter_thread("test", -1);
    inside = std::fegetround();
  }).join();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(inside, FE_TONEAREST);
}

TEST(Time, DeadlinesBeyondTheClockAreNever) {
  const Time start = now();
  EXPECT_EQ(after(start, 5s), start + 5s);
  EXPECT_EQ(after(start, Duration::max()), never);
  EXPECT_EQ(bounded(2s), Duration(2s));
  EXPECT_EQ(bounded(std::chrono::milliseconds::max()), Duration::max());
}

}  // namespace
}  // namespace netsum::runtime
