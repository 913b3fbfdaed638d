// The C API against arithmetic, and what it refuses.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <future>
#include <latch>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/netsum.h"

namespace netsum {
namespace {

constexpr std::uint32_t ranks = 2;

class CApi : public ::testing::Test {
 protected:
  using Settings = std::vector<std::pair<const char*, const char*>>;
  [[nodiscard]] netsum_communicator* connect(std::uint32_t rank, const char* memory = "auto",
                                             const Settings& settings = {}) const {
    netsum_options* const options = netsum_options_create();
    for (const auto& [name, value] : settings) EXPECT_EQ(NETSUM_OK, netsum_options_set(options, name, value));
    EXPECT_EQ(NETSUM_OK, netsum_options_set(options, "NETSUM_SWITCH", aggregator.address().c_str()));
    EXPECT_EQ(NETSUM_OK, netsum_options_set(options, "NETSUM_SHARED_MEMORY", memory));
    netsum_communicator* communicator = nullptr;
    EXPECT_EQ(NETSUM_OK, netsum_connect(options, memory, rank, ranks, &communicator)) << netsum_last_error();
    netsum_options_destroy(options);
    return communicator;
  }
  template <class Body>
  static void on_ranks(const Body& body) {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  }

  const Aggregator aggregator{[] {
    AggregatorOptions options;
    options.listen = "127.0.0.1:0";
    return options;
  }()};
};

// Makes a call, and waits for its work, if it made some.
template <class Call>
void carry_out(const Call& call) {
  netsum_work* work = nullptr;
  ASSERT_EQ(NETSUM_OK, call(&work)) << netsum_last_error();
  if (work == nullptr) return;
  EXPECT_EQ(NETSUM_OK, netsum_wait(work)) << netsum_last_error();
  EXPECT_EQ(1, netsum_work_done(work));
  netsum_work_destroy(work);
}

void check_every_call(netsum_communicator* c, std::uint32_t rank, bool waits) {
  const std::int64_t own = rank + 1;
  std::vector<std::int64_t> in{own, 10 * own}, out(2), part(1);
  const void* const from = in.data();
  const auto t = NETSUM_INT64;
  carry_out([&](netsum_work** work) {
    return waits ? netsum_all_reduce_async(c, from, out.data(), 2, t, NETSUM_SUM, nullptr, work)
                 : netsum_all_reduce(c, from, out.data(), 2, t, NETSUM_SUM, nullptr);
  });
  EXPECT_EQ((std::vector<std::int64_t>{3, 30}), out);
  carry_out([&](netsum_work** work) {
    return waits ? netsum_reduce_scatter_async(c, from, part.data(), 1, t, NETSUM_MAX, nullptr, work)
                 : netsum_reduce_scatter(c, from, part.data(), 1, t, NETSUM_MAX, nullptr);
  });
  EXPECT_EQ(rank == 0 ? 2 : 20, part[0]);
  carry_out([&](netsum_work** work) {
    return waits ? netsum_all_gather_async(c, from, out.data(), 1, t, nullptr, work)
                 : netsum_all_gather(c, from, out.data(), 1, t, nullptr);
  });
  EXPECT_EQ((std::vector<std::int64_t>{1, 2}), out);
  std::vector<std::int64_t> list{own, 2 * own, 3 * own};
  void* const each[] = {list.data() + 1, list.data()};
  const std::size_t lengths[] = {2, 1};
  carry_out([&](netsum_work** work) {
    return waits ? netsum_all_reduce_coalesced_async(c, each, lengths, 2, t, NETSUM_SUM, nullptr, work)
                 : netsum_all_reduce_coalesced(c, each, lengths, 2, t, NETSUM_SUM, nullptr);
  });
  EXPECT_EQ((std::vector<std::int64_t>{3, 6, 9}), list);
  const std::size_t counts[ranks] = {2, 0};
  std::vector<std::int64_t> all(2, -1);
  carry_out([&](netsum_work** work) {
    return waits ? netsum_reduce_scatter_v_async(c, from, all.data(), counts, t, NETSUM_MAX, nullptr, work)
                 : netsum_reduce_scatter_v(c, from, all.data(), counts, t, NETSUM_MAX, nullptr);
  });
  EXPECT_EQ((rank == 0 ? std::vector<std::int64_t>{2, 20} : std::vector<std::int64_t>{-1, -1}), all);
  carry_out([&](netsum_work** work) {
    return waits ? netsum_all_gather_v_async(c, rank == 0 ? from : nullptr, all.data(), counts, t, nullptr, work)
                 : netsum_all_gather_v(c, rank == 0 ? from : nullptr, all.data(), counts, t, nullptr);
  });
  EXPECT_EQ((std::vector<std::int64_t>{1, 10}), all);
  carry_out([&](netsum_work** work) {
    return waits ? netsum_broadcast_async(c, out.data(), 2, t, 1, nullptr, work)
                 : netsum_broadcast(c, out.data(), 2, t, 1, nullptr);
  });
  EXPECT_EQ((std::vector<std::int64_t>{1, 2}), out);
  carry_out([&](netsum_work** work) {
    return waits ? netsum_reduce_async(c, in.data(), 2, t, NETSUM_SUM, 0, nullptr, work)
                 : netsum_reduce(c, in.data(), 2, t, NETSUM_SUM, 0, nullptr);
  });
  EXPECT_EQ(rank == 0 ? 30 : 20, in[1]);
  carry_out([&](netsum_work** work) { return waits ? netsum_barrier_async(c, nullptr, work) : netsum_barrier(c, nullptr); });

  netsum_call call = NETSUM_CALL_INIT;
  call.factor = 0.5;
  call.deadline_seconds = 60;
  call.tag = 7;
  float value = 3;
  EXPECT_EQ(NETSUM_OK, netsum_all_reduce(c, &value, &value, 1, NETSUM_FLOAT32, NETSUM_SUM, &call));
  EXPECT_EQ(3, value) << "half of each";
}

TEST_F(CApi, EveryCallDoesWhatItsNameSays) {
  on_ranks([&](std::uint32_t rank) {
    for (const char* const memory : {"off", "auto"}) {
      netsum_communicator* const c = connect(rank, memory);
      ASSERT_NE(nullptr, c);
      EXPECT_EQ(rank, netsum_rank(c));
      EXPECT_EQ(ranks, netsum_world_size(c));
      EXPECT_EQ(1, netsum_can_reduce(c, NETSUM_MAX, NETSUM_FLOAT64));
      EXPECT_EQ(0, netsum_can_reduce(c, NETSUM_BIT_AND, NETSUM_FLOAT64));
      EXPECT_EQ(0, netsum_can_reduce(c, static_cast<netsum_op>(8), NETSUM_FLOAT64));
      check_every_call(c, rank, false);
      netsum_communicator* copy = nullptr;
      ASSERT_EQ(NETSUM_OK, netsum_dup(c, &copy)) << netsum_last_error();
      check_every_call(copy, rank, true);
      std::uint64_t operations = 0;
      EXPECT_EQ(NETSUM_OK, netsum_statistic(copy, "operations", &operations));
      EXPECT_GE(operations, 7U);
      netsum_destroy(copy);
      netsum_communicator* group = nullptr;
      ASSERT_EQ(NETSUM_OK, netsum_split(c, UINT32_MAX, -static_cast<int>(rank), &group)) << netsum_last_error();
      EXPECT_EQ(ranks, netsum_world_size(group));
      EXPECT_EQ(ranks - 1 - rank, netsum_rank(group));
      netsum_destroy(group);
      ASSERT_EQ(NETSUM_OK, netsum_split(c, rank == 0 ? 0 : NETSUM_NO_COLOR, 0, &group)) << netsum_last_error();
      EXPECT_EQ(rank == 0, group != nullptr);
      EXPECT_EQ(rank == 0 ? 1U : 0U, netsum_world_size(group));
      netsum_destroy(group);
      netsum_destroy(c);
    }
  });
}

TEST_F(CApi, AnAbortIsHeardWithItsReason) {
  on_ranks([&](std::uint32_t rank) {
    netsum_communicator* const c = connect(rank);
    ASSERT_NE(nullptr, c);
    EXPECT_EQ(NETSUM_OK, netsum_failure(c));
    if (rank == 0) {
      EXPECT_EQ(NETSUM_OK, netsum_abort(c, "the loss is not a number"));
      EXPECT_EQ(NETSUM_CLOSED, netsum_barrier(c, nullptr));
    } else {
      netsum_work* work = nullptr;
      ASSERT_EQ(NETSUM_OK, netsum_barrier_async(c, nullptr, &work));
      int ended = 1;
      EXPECT_EQ(NETSUM_OK, netsum_wait_for(work, 0, &ended));
      EXPECT_EQ(0, ended);
      EXPECT_EQ(NETSUM_WORKER_LOST, netsum_wait_for(work, 60, &ended));
      netsum_work_destroy(work);
      std::uint32_t who[2] = {7, 7};
      EXPECT_EQ(1U, netsum_last_error_ranks(who, 2));
      EXPECT_EQ(0U, who[0]);
      std::uint64_t operation = 7;
      EXPECT_EQ(1, netsum_last_error_operation(&operation));
      EXPECT_EQ(0U, operation);
      EXPECT_STREQ("", netsum_last_error_aggregator());
      EXPECT_EQ(NETSUM_WORKER_LOST, netsum_failure(c));
      EXPECT_STREQ("worker_lost", netsum_status_name(NETSUM_WORKER_LOST));
      EXPECT_EQ(NETSUM_WORKER_LOST, netsum_barrier(c, nullptr)) << "the first cause stays";
    }
    EXPECT_NE(nullptr, std::strstr(netsum_last_error(), "the loss is not a number")) << netsum_last_error();
    netsum_destroy(c);
  });
}

// Rank 1 leaves, and a new process of it is let in again.
TEST_F(CApi, SaysWhichRanksASumIsOf) {
  std::latch gone(ranks), waits(ranks);
  const Settings survivors = {{"NETSUM_RECOVERY", "60"}, {"NETSUM_SURVIVORS", "1"}};
  on_ranks([&](std::uint32_t rank) {
    using Ranks = std::vector<std::uint32_t>;
    netsum_communicator* c = connect(rank, "off", survivors);
    ASSERT_NE(nullptr, c);
    const auto sum_is_of = [&](const Ranks& expected) {
      std::int32_t value = 1 << rank, sum = 0;
      for (const std::uint32_t each : expected) sum += 1 << each;
      netsum_work* work = nullptr;
      ASSERT_EQ(NETSUM_OK, netsum_all_reduce_async(c, &value, &value, 1, NETSUM_INT32, NETSUM_SUM, nullptr, &work));
      EXPECT_EQ(NETSUM_OK, netsum_wait(work)) << netsum_last_error();
      Ranks found(expected.size());
      EXPECT_EQ(expected.size(), netsum_work_members(work, found.data(), found.size()));
      EXPECT_EQ(expected, found);
      EXPECT_EQ(sum, value);
      netsum_work_destroy(work);
    };
    sum_is_of({0, 1});
    if (rank == 1) netsum_destroy(c);
    gone.arrive_and_wait();
    if (rank == 0) sum_is_of({0});
    waits.arrive_and_wait();
    if (rank == 1) {
      c = connect(rank, "off", survivors);
      ASSERT_NE(nullptr, c);
    } else {
      std::uint32_t newcomer = 7;
      while (netsum_newcomers(c, &newcomer, 1) == 0) ASSERT_EQ(NETSUM_OK, netsum_admit(c, nullptr)) << netsum_last_error();
      EXPECT_EQ(1U, newcomer);
    }
    netsum_call patient = NETSUM_CALL_INIT;
    patient.waits_for_all = 1;
    EXPECT_EQ(NETSUM_OK, netsum_barrier(c, &patient)) << netsum_last_error();
    EXPECT_EQ(ranks, netsum_members(c, nullptr, 0));
    EXPECT_EQ(0U, netsum_behind(c));
    EXPECT_LT(2U, netsum_next_operation(c));
    sum_is_of({0, 1});
    netsum_destroy(c);
  });
}

TEST_F(CApi, TellsWhenWorkIsDone) {
  on_ranks([&](std::uint32_t rank) {
    netsum_communicator* const c = connect(rank);
    ASSERT_NE(nullptr, c);
    netsum_work* work = nullptr;
    ASSERT_EQ(NETSUM_OK, netsum_barrier_async(c, nullptr, &work));
    pollfd readable{-1, POLLIN, 0};
    EXPECT_EQ(NETSUM_OK, netsum_work_descriptor(work, &readable.fd));
    std::promise<void> told;
    EXPECT_EQ(NETSUM_OK, netsum_work_on_done(
                             work, [](void* context) { static_cast<std::promise<void>*>(context)->set_value(); }, &told));
    EXPECT_EQ(1, ::poll(&readable, 1, 60'000));
    told.get_future().wait();
    EXPECT_EQ(1, netsum_work_done(work));
    netsum_work_destroy(work);
    netsum_destroy(c);
  });
}

TEST_F(CApi, AMismatchHasTheCallsOfBothRanks) {
  std::latch heard(ranks);
  on_ranks([&](std::uint32_t rank) {
    netsum_communicator* const c = connect(rank);
    ASSERT_NE(nullptr, c);
    float value = 0;
    EXPECT_EQ(NETSUM_MISMATCH, rank == 0 ? netsum_barrier(c, nullptr)
                                         : netsum_all_reduce(c, &value, &value, 1, NETSUM_FLOAT32, NETSUM_SUM, nullptr));
    EXPECT_NE(nullptr, std::strstr(netsum_last_error_call(0), "barrier")) << netsum_last_error();
    EXPECT_NE(nullptr, std::strstr(netsum_last_error_call(1), "all_reduce sum of 1 float32")) << netsum_last_error();
    EXPECT_STREQ("", netsum_last_error_call(2));
    heard.arrive_and_wait();
    netsum_destroy(c);
  });
}

TEST_F(CApi, AStopEndsAConnectAndACommunicator) {
  netsum_options* const options = netsum_options_create();
  ASSERT_EQ(NETSUM_OK, netsum_options_set(options, "NETSUM_SWITCH", aggregator.address().c_str()));
  netsum_communicator* alone = nullptr;
  ASSERT_EQ(NETSUM_OK, netsum_connect(options, "alone", 0, 1, &alone)) << netsum_last_error();
  std::jthread stops([&] { EXPECT_EQ(NETSUM_OK, netsum_options_stop(options)); });
  netsum_communicator* never = nullptr;
  EXPECT_EQ(NETSUM_CLOSED, netsum_connect(options, "together", 0, 2, &never)) << netsum_last_error();
  EXPECT_EQ(nullptr, never);
  stops.join();
  EXPECT_EQ(NETSUM_CLOSED, netsum_barrier(alone, nullptr));
  EXPECT_NE(nullptr, std::strstr(netsum_last_error(), "a stop was requested")) << netsum_last_error();
  netsum_destroy(alone);
  netsum_options_destroy(options);
}

TEST_F(CApi, AFailureIsToldWithoutACall) {
  std::optional<Aggregator> mortal([] {
    AggregatorOptions options;
    options.listen = "127.0.0.1:0";
    return options;
  }());
  netsum_options* const options = netsum_options_create();
  ASSERT_EQ(NETSUM_OK, netsum_options_set(options, "NETSUM_SWITCH", mortal->address().c_str()));
  std::promise<std::pair<netsum_status, std::string>> told;
  ASSERT_EQ(NETSUM_OK, netsum_options_set_on_failure(
                           options,
                           [](void* context, netsum_status status) {
                             static_cast<decltype(told)*>(context)->set_value({status, netsum_last_error_aggregator()});
                           },
                           &told));
  netsum_communicator* c = nullptr;
  ASSERT_EQ(NETSUM_OK, netsum_connect(options, "mortal", 0, 1, &c)) << netsum_last_error();
  netsum_options_destroy(options);
  const std::string address = mortal->address();
  mortal.reset();
  EXPECT_EQ(std::pair(NETSUM_AGGREGATOR_LOST, address), told.get_future().get());
  netsum_destroy(c);
}

void expect_refused(netsum_status status, const char* text) {
  EXPECT_EQ(NETSUM_BAD_ARGUMENT, status);
  EXPECT_NE(nullptr, std::strstr(netsum_last_error(), text)) << netsum_last_error();
}

TEST_F(CApi, WrongArgumentsAreRefusedInWords) {
  netsum_options* const options = netsum_options_create();
  netsum_communicator* c = nullptr;
  expect_refused(netsum_connect(nullptr, "job", 0, 1, &c), "options is a null pointer");
  expect_refused(netsum_connect(options, "job", 0, 1, nullptr), "communicator is a null pointer");
  expect_refused(netsum_connect(options, "job", 0, 1, &c), "set NETSUM_SWITCH");
  expect_refused(netsum_options_set(options, nullptr, ""), "name is a null pointer");
  EXPECT_EQ(NETSUM_OK, netsum_options_set(options, "NETSUM_SWITCH", aggregator.address().c_str()));
  EXPECT_EQ(NETSUM_OK, netsum_options_set(options, "NETSUM_SWICH", "10.0.0.1:7170"));
  expect_refused(netsum_connect(options, "job", 0, 1, &c), "'NETSUM_SWICH' is not a setting");
  netsum_options_destroy(options);
  netsum_options* const others = netsum_options_create();
  EXPECT_EQ(NETSUM_OK, netsum_options_set(others, "NETSUM_SWITCH", aggregator.address().c_str()));
  EXPECT_EQ(NETSUM_OK, netsum_options_set(others, "NETSUM_MODE", "off"));
  expect_refused(netsum_connect(others, "job", 0, 1, &c), "'NETSUM_MODE' is not a setting");
  netsum_options_destroy(others);
  EXPECT_EQ(nullptr, c);

  on_ranks([&](std::uint32_t rank) {
    netsum_communicator* const own = connect(rank);
    ASSERT_NE(nullptr, own);
    float value = 1;
    expect_refused(netsum_all_reduce(own, &value, &value, 1, static_cast<netsum_dtype>(10), NETSUM_SUM, nullptr),
                   "is not an element type");
    expect_refused(netsum_all_reduce(own, &value, &value, 1, NETSUM_FLOAT32, static_cast<netsum_op>(300), nullptr),
                   "is not a reduction");
    expect_refused(netsum_all_gather(own, &value, &value, SIZE_MAX, NETSUM_FLOAT32, nullptr), "are too many");
    expect_refused(netsum_all_reduce_coalesced(own, nullptr, nullptr, 1, NETSUM_FLOAT32, NETSUM_SUM, nullptr),
                   "inout is a null pointer");
    const size_t wrap[ranks] = {SIZE_MAX, 2};
    expect_refused(netsum_all_gather_v(own, &value, &value, wrap, NETSUM_FLOAT32, nullptr), "all_gather_v: ");
    expect_refused(netsum_reduce_scatter_v(own, &value, &value, nullptr, NETSUM_FLOAT32, NETSUM_SUM, nullptr),
                   "counts is a null pointer");
    netsum_call call = NETSUM_CALL_INIT;
    call.size = 1;
    expect_refused(netsum_barrier(own, &call), "NETSUM_CALL_INIT");
    call = NETSUM_CALL_INIT;
    call.deadline_seconds = -1;
    expect_refused(netsum_barrier(own, &call), "deadline_seconds");
    std::uint64_t number = 0;
    expect_refused(netsum_statistic(own, "packets", &number), "'packets' is not a counter");
    expect_refused(netsum_barrier_async(own, nullptr, nullptr), "work is a null pointer");
    expect_refused(netsum_split(own, INT64_C(1) << 32, 0, &c), "color 4294967296 is not");
    expect_refused(netsum_split(own, 0, 0, nullptr), "group is a null pointer");
    EXPECT_EQ(NETSUM_OK, netsum_barrier(own, nullptr)) << "nothing was sent, and all go on";
    netsum_destroy(own);
  });
}

}  // namespace
}  // namespace netsum
