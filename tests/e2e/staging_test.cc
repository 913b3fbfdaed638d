// Staging, at a device that carries out its streams in any order that it may, and late.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "bindings/staging/staged_reducer.h"
#include "e2e/rank_threads.h"

namespace netsum::staging {
namespace {

using namespace netsum::testing;
using Random = std::mt19937;

std::size_t below(Random& random, std::size_t bound) {
  return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
}

class FakeDevice final : public Device {
 public:
  [[nodiscard]] std::shared_ptr<std::byte> pinned(std::size_t bytes) override {
    pinned_bytes += bytes;
    std::shared_ptr<std::byte> memory(new std::byte[bytes], std::default_delete<std::byte[]>());
    pinned_memory = memory;
    return memory;
  }
  [[nodiscard]] Stream begin_stream() override {
    streams_[++last_];
    return last_;
  }
  void end_stream(Stream stream) noexcept override { ended_.insert(stream); }
  void copy_out(Stream stream, std::byte* host, const std::byte* device, std::size_t bytes) override {
    copy(stream, host, device, bytes);
  }
  void copy_in(Stream stream, std::byte* device, const std::byte* host, std::size_t bytes) override {
    copy(stream, device, host, bytes);
  }
  [[nodiscard]] Event record(Stream stream) override {
    check();
    const Event event = ++last_;
    known.insert(event);
    run(stream, [this, event] { happened_.insert(event); });
    return event;
  }
  [[nodiscard]] bool has_happened(Event event) override {
    check();
    EXPECT_TRUE(known.contains(event));
    return happened_.contains(event);
  }
  void wait(Stream stream, Event event) override {
    check();
    EXPECT_TRUE(known.contains(event));
    streams_.at(stream).push_back({[] {}, event});
  }
  void forget(Event event) noexcept override { EXPECT_EQ(known.erase(event), 1U); }

  // What a caller gives to a stream of its own.
  void run(Stream stream, std::function<void()> what) { streams_.at(stream).push_back({std::move(what), 0}); }
  // Carries out the next task of some stream; false: there is none that may go on.
  bool step(Random& random) {
    std::vector<std::deque<Task>*> able;
    for (auto& [number, tasks] : streams_) {
      if (!tasks.empty() && (tasks.front().after == 0 || happened_.contains(tasks.front().after))) able.push_back(&tasks);
    }
    if (able.empty()) return false;
    std::deque<Task>& tasks = *able[below(random, able.size())];
    const Task task = std::move(tasks.front());
    tasks.pop_front();
    task.what();
    return true;
  }

  bool failed = false;
  std::size_t pinned_bytes = 0, copies_under_way = 0, copies_done = 0;
  std::weak_ptr<std::byte> pinned_memory;
  std::set<Event> known;

 private:
  struct Task {
    std::function<void()> what;
    Event after;
  };
  void check() const {
    if (failed) throw Error(ErrorCode::internal, "the device has failed");
  }
  void copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) {
    check();
    ++copies_under_way;
    run(stream, [=, this] {
      std::memcpy(to, from, bytes);
      --copies_under_way;
      ++copies_done;
    });
  }

  std::uint64_t last_ = 0;
  std::map<Stream, std::deque<Task>> streams_;
  std::set<Stream> ended_;
  std::set<Event> happened_;
};

// Sums of int32 at all ranks, each some time after the last rank has issued it, in any order.
class FakeSwitch {
 public:
  explicit FakeSwitch(std::size_t ranks) : issued_(ranks) {}

  struct Operation {
    TensorView view;
    bool done = false;
    std::optional<Error> error;
  };
  std::shared_ptr<Operation> issue(std::size_t rank, TensorView view) {
    issued_[rank].push_back(std::make_shared<Operation>(Operation{view, failure.has_value(), failure}));
    std::size_t under_way = 0;
    for (const auto& each : issued_[rank]) under_way += each->done ? 0 : 1;
    most_under_way = std::max(most_under_way, under_way);
    return issued_[rank].back();
  }
  bool step(Random& random) {
    std::vector<std::size_t> able;
    for (std::size_t number = 0; number < least_issued(); ++number) {
      if (!issued_[0][number]->done) able.push_back(number);
    }
    if (able.empty()) return false;
    complete(able[below(random, able.size())]);
    return true;
  }
  void fail(const Error& error) {
    failure = error;
    for (auto& operations : issued_) {
      for (auto& each : operations) {
        if (!std::exchange(each->done, true)) each->error = error;
      }
    }
  }

  void complete(std::size_t number) {
    const std::size_t elements = issued_[0][number]->view.elements;
    std::vector<std::int32_t> sum(elements);
    for (const auto& operations : issued_) {
      ASSERT_EQ(operations[number]->view.elements, elements) << "ranks issue different operations";
      const auto* const values = static_cast<const std::int32_t*>(operations[number]->view.data);
      for (std::size_t i = 0; i < elements; ++i) sum[i] += values[i];
    }
    for (const auto& operations : issued_) {
      std::memcpy(operations[number]->view.data, sum.data(), elements * sizeof(std::int32_t));
      operations[number]->done = true;
    }
  }

  std::optional<Error> failure;
  std::size_t most_under_way = 0;

 private:
  [[nodiscard]] std::size_t least_issued() const {
    const auto least =
        std::min_element(issued_.begin(), issued_.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    return least->size();
  }
  std::vector<std::vector<std::shared_ptr<Operation>>> issued_;  // by rank
};

class FakeNetwork final : public Network {
 public:
  FakeNetwork(FakeSwitch& at, std::size_t rank) : switch_(at), rank_(rank) {}
  [[nodiscard]] std::unique_ptr<Pending> all_reduce(TensorView inout, ReduceOp op) override {
    EXPECT_EQ(op, ReduceOp::sum);
    EXPECT_EQ(inout.dtype, DType::int32);
    return std::make_unique<Sum>(switch_.issue(rank_, inout));
  }

 private:
  struct Sum final : Pending {
    explicit Sum(std::shared_ptr<FakeSwitch::Operation> o) : operation(std::move(o)) {}
    ~Sum() override { EXPECT_TRUE(operation->done) << "its memory is still lent"; }
    [[nodiscard]] bool done() const override { return operation->done; }
    void finish() override {
      if (operation->error) throw Error(*operation->error);
    }
    std::shared_ptr<FakeSwitch::Operation> operation;
  };
  FakeSwitch& switch_;
  std::size_t rank_;
};

std::int32_t value(std::size_t rank, std::size_t tensor, std::size_t at) {
  return static_cast<std::int32_t>((rank + 1) * 1'000'003U + tensor * 10'007U + at * 31U);
}

// A rank whose tensors a stream of its own writes late, and another one reads as soon as it may.
struct Rank {
  Rank(FakeSwitch& at, std::size_t n, const StagingConfig& config)
      : number(n), network(at, n), reducer(std::make_unique<StagedReducer>(device, network, config)) {}

  void issue(const std::vector<std::size_t>& lengths) {
    memory.resize(lengths.size());
    for (std::size_t tensor = 0; tensor < lengths.size(); ++tensor) {
      memory[tensor].assign(lengths[tensor], -1);
      device.run(producer, [this, tensor] {
        for (std::size_t i = 0; i < memory[tensor].size(); ++i) memory[tensor][i] = value(number, tensor, i);
      });
      ready.push_back(device.record(producer));
      staged.push_back(reducer->all_reduce(reinterpret_cast<std::byte*>(memory[tensor].data()), lengths[tensor],
                                           DType::int32, ReduceOp::sum, ready.back()));
    }
    consumed.resize(lengths.size());
    asked.resize(lengths.size());
  }
  void consume() {
    for (std::size_t tensor = 0; tensor < staged.size(); ++tensor) {
      if (!staged[tensor]->is_enqueued() || asked[tensor]) continue;
      asked[tensor] = true;
      staged[tensor]->wait_on(consumer);
      device.run(consumer, [this, tensor] { consumed[tensor] = memory[tensor]; });
    }
  }
  void forget() {
    for (const Device::Event each : ready) device.forget(each);
    staged.clear();
    reducer.reset();
  }
  [[nodiscard]] bool has_ended() const {
    return std::all_of(staged.begin(), staged.end(), [](const auto& each) { return each->has_ended(); });
  }

  const std::size_t number;
  FakeDevice device;
  FakeNetwork network;
  std::unique_ptr<StagedReducer> reducer;
  Device::Stream producer = device.begin_stream(), consumer = device.begin_stream();
  std::vector<std::vector<std::int32_t>> memory, consumed;  // the device's
  std::vector<bool> asked;
  std::vector<Device::Event> ready;
  std::vector<std::shared_ptr<Staged>> staged;
};

struct Cluster {
  explicit Cluster(unsigned seed) : random(seed), sums(2 + below(random, 2)), config{} {
    config.chunk_bytes = 16 * (1 + below(random, 4));
    config.buffers = 1 + below(random, 5);
    config.lanes = static_cast<std::uint32_t>(1 + below(random, 3));
    for (std::size_t n = 1 + below(random, 5); n > 0; --n) lengths.push_back(below(random, 4) == 0 ? 0 : below(random, 90));
    const std::size_t size = 2 + below(random, 2);
    sums = FakeSwitch(size);
    for (std::size_t rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<Rank>(sums, rank, config));
    for (auto& rank : ranks) rank->issue(lengths);
  }
  void step() {
    Rank& rank = *ranks[below(random, ranks.size())];
    switch (below(random, 4)) {
      case 0:
        rank.reducer->progress();
        break;
      case 1:
        sums.step(random);
        break;
      case 2:
        rank.consume();
        break;
      default:
        rank.device.step(random);
    }
  }
  [[nodiscard]] bool has_ended() const {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const auto& rank) { return rank->has_ended() && rank->reducer->is_idle(); });
  }

  Random random;
  FakeSwitch sums;
  StagingConfig config;
  std::vector<std::size_t> lengths;
  std::vector<std::unique_ptr<Rank>> ranks;
};

constexpr int most_steps = 100'000;

TEST(Staging, SumsWhateverTheOrder) {
  std::size_t most_under_way = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Cluster cluster(seed);
    for (int i = 0; i < most_steps && !cluster.has_ended(); ++i) cluster.step();
    ASSERT_TRUE(cluster.has_ended());
    most_under_way = std::max(most_under_way, cluster.sums.most_under_way);
    for (auto& rank : cluster.ranks) {
      rank->consume();
      while (rank->device.step(cluster.random)) {
      }
      for (std::size_t tensor = 0; tensor < cluster.lengths.size(); ++tensor) {
        ASSERT_FALSE(rank->staged[tensor]->error());
        for (std::size_t i = 0; i < cluster.lengths[tensor]; ++i) {
          std::int32_t sum = 0;
          for (std::size_t each = 0; each < cluster.ranks.size(); ++each) sum += value(each, tensor, i);
          ASSERT_EQ(rank->consumed[tensor][i], sum) << "tensor " << tensor << ", element " << i;
        }
      }
      EXPECT_EQ(rank->device.pinned_bytes, cluster.config.chunk_bytes * cluster.config.buffers);
      rank->forget();
      EXPECT_TRUE(rank->device.known.empty()) << "events are left";
      EXPECT_TRUE(rank->device.pinned_memory.expired());
    }
  }
  EXPECT_EQ(most_under_way, 5U);  // all buffers
}

// What is copied while others are summed is what staging is for.
TEST(Staging, CopiesWhileItSums) {
  FakeSwitch sums(1);
  Random random(1);
  Rank rank(sums, 0, {.chunk_bytes = 64, .buffers = 4, .lanes = 2});
  rank.issue({16 * 6});
  const auto settle = [&] {
    while (rank.reducer->progress() || rank.device.step(random)) {
    }
  };
  settle();
  EXPECT_EQ(sums.most_under_way, 4U);  // all buffers are copied out, and nothing is summed yet
  EXPECT_EQ(rank.device.copies_done, 4U);
  sums.complete(0);
  settle();
  EXPECT_EQ(rank.device.copies_done, 6U);  // in, and the next one out, while three others are summed
  while (sums.step(random)) settle();
  EXPECT_TRUE(rank.has_ended());
  EXPECT_EQ(rank.device.copies_done, 12U);
  rank.forget();
}

TEST(Staging, EndsWithTheNetworksErrorOnceNothingTouchesMemory) {
  std::size_t failed = 0, whole = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Cluster cluster(seed);
    const std::size_t until = below(cluster.random, 400);
    for (std::size_t i = 0; i < until; ++i) cluster.step();
    cluster.sums.fail(Error(ErrorCode::worker_lost, "rank 1 died"));
    for (int i = 0; i < most_steps && !cluster.has_ended(); ++i) cluster.step();
    ASSERT_TRUE(cluster.has_ended());
    for (auto& rank : cluster.ranks) {
      EXPECT_EQ(rank->device.copies_under_way, 0U) << "memory was given back too early";
      for (const auto& each : rank->staged) {
        ASSERT_EQ(each->error().has_value(), !each->is_enqueued());
        ++(each->error() ? failed : whole);
        if (each->error()) {
          EXPECT_EQ(each->error()->code(), ErrorCode::worker_lost);
        }
      }
      while (rank->device.step(cluster.random)) {
      }
      rank->forget();
      EXPECT_TRUE(rank->device.known.empty()) << "events are left";
      EXPECT_TRUE(rank->device.pinned_memory.expired());
    }
  }
  EXPECT_GT(failed, 100U);
  EXPECT_GT(whole, 100U);
}

TEST(Staging, EndsWithTheDevicesError) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Cluster cluster(seed);
    const std::size_t until = below(cluster.random, 200);
    for (std::size_t i = 0; i < until; ++i) cluster.step();
    Rank& rank = *cluster.ranks.front();
    if (rank.has_ended()) continue;
    rank.device.failed = true;
    while (rank.reducer->progress()) {
    }
    cluster.sums.fail(Error(ErrorCode::closed, "aborted"));  // what the owner does then
    while (rank.reducer->progress()) {
    }
    EXPECT_TRUE(rank.reducer->is_idle());
    for (std::size_t tensor = 0; tensor < cluster.lengths.size(); ++tensor) ASSERT_TRUE(rank.staged[tensor]->has_ended());
    EXPECT_TRUE(
        std::any_of(rank.staged.begin(), rank.staged.end(), [](const auto& each) { return each->error().has_value(); }));
    const auto later =
        attempt([&] { static_cast<void>(rank.reducer->all_reduce(nullptr, 0, DType::int32, ReduceOp::sum, 0)); });
    ASSERT_TRUE(later);
    // The first cause: the device's error, or the owner's if nothing touched the device in between.
    expect_error(later, later->code() == ErrorCode::closed ? ErrorCode::closed : ErrorCode::internal,
                 {"staging failed earlier", later->code() == ErrorCode::closed ? "aborted" : "the device has failed"});
    for (auto& each : cluster.ranks) each->reducer.reset();  // of the others, with copies under way
  }
}

TEST(Staging, NeverFreesMemoryThatTheDeviceMayStillUse) {
  FakeSwitch sums(1);
  Random random(1);
  Rank rank(sums, 0, {.chunk_bytes = 64, .buffers = 2, .lanes = 1});
  rank.issue({100});
  rank.reducer->progress();
  EXPECT_GT(rank.device.copies_under_way, 0U);
  rank.forget();
  EXPECT_FALSE(rank.device.pinned_memory.expired());
  while (rank.device.step(random)) {  // into it
  }
}

TEST(Staging, RefusesWhatCannotBeStaged) {
  FakeSwitch sums(1);
  FakeDevice device;
  FakeNetwork network(sums, 0);
  for (const StagingConfig& config : {StagingConfig{.chunk_bytes = 0}, StagingConfig{.chunk_bytes = 24},
                                      StagingConfig{.buffers = 0}, StagingConfig{.lanes = 0}}) {
    expect_error(attempt([&] { const StagedReducer made(device, network, config); }), ErrorCode::bad_argument, {"staging"});
  }
  StagedReducer reducer(device, network, {.chunk_bytes = 64, .buffers = 1, .lanes = 1});
  expect_error(attempt([&] { static_cast<void>(reducer.all_reduce(nullptr, 1, DType::int32, ReduceOp::sum, 0)); }),
               ErrorCode::bad_argument, {"null"});
}

TEST(Staging, GoesThroughARealSwitch) {
  const Aggregator aggregator(small_aggregator());
  constexpr std::size_t elements = 50'000;
  expect_success(on_ranks(2, [&](std::uint32_t number) {
    auto communicator = Communicator::connect(rank_options({aggregator.address()}, number, 2));
    CommunicatorNetwork network(communicator);
    FakeDevice device;
    Random random(number);
    StagedReducer reducer(device, network, {.chunk_bytes = 16'384, .buffers = 4, .lanes = 2});
    std::vector<std::vector<std::int32_t>> tensors(3, std::vector<std::int32_t>(elements));
    const Device::Stream stream = device.begin_stream();
    std::vector<std::shared_ptr<Staged>> staged;
    const Device::Event ready = device.record(stream);
    for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      for (std::size_t i = 0; i < elements; ++i) tensors[tensor][i] = value(number, tensor, i);
      staged.push_back(reducer.all_reduce(reinterpret_cast<std::byte*>(tensors[tensor].data()), elements, DType::int32,
                                          ReduceOp::sum, ready));
    }
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!reducer.is_idle()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      if (!reducer.progress() && !device.step(random)) std::this_thread::yield();
    }
    for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      ASSERT_FALSE(staged[tensor]->error());
      for (std::size_t i = 0; i < elements; ++i) {
        ASSERT_EQ(tensors[tensor][i], value(0, tensor, i) + value(1, tensor, i));
      }
    }
  }));
}

}  // namespace
}  // namespace netsum::staging
