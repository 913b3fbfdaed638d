// The simulator as a whole: a seed is a run, and a protocol with a bug does not pass.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "sim/cluster.h"
#include "sim/protocol.h"

namespace netsum::sim {
namespace {

Settings settings(Profile profile) {
  Settings s;
  s.profile = profile;
  return s;
}

TEST(Cluster, TheSameSeedIsTheSameRun) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Scenario scenario = generate(settings(Profile::chaos), seed);
    const Outcome first = run(scenario), second = run(scenario);
    EXPECT_EQ("", first.failure);
    EXPECT_EQ(first.trace_hash, second.trace_hash);
    EXPECT_EQ(first.tally.packets, second.tally.packets);
  }
  EXPECT_NE(run(generate(settings(Profile::chaos), 1)).trace_hash, run(generate(settings(Profile::chaos), 2)).trace_hash);
}

TEST(Cluster, ATraceChangesNothingAndHoldsEveryPacket) {
  const Scenario scenario = generate(settings(Profile::lossy), 3);
  std::ostringstream text, pcap;
  const Outcome traced = run(scenario, {&text, &pcap, nullptr});
  EXPECT_EQ(run(scenario).trace_hash, traced.trace_hash);
  EXPECT_NE(std::string::npos, text.str().find("contribution of rank"));
  EXPECT_NE(std::string::npos, text.str().find("LOST (loss)"));

  const std::string bytes = pcap.str();
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, 4);
    return value;
  };
  ASSERT_EQ(0xa1b23c4dU, word(0));
  std::uint64_t records = 0;
  std::size_t at = 24;
  for (; at + 16 <= bytes.size(); at += 16 + word(at + 8)) {
    ++records;
    EXPECT_EQ(0x45, bytes[at + 16]);    // IPv4
    EXPECT_EQ(17, bytes[at + 16 + 9]);  // UDP
  }
  EXPECT_EQ(bytes.size(), at);
  EXPECT_EQ(traced.tally.packets, records);
}

// Hands everything on to SwitchML; the derived ones have a bug.
class Wrapped : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return inner_->rules(); }
  void complete(session::JoinRequest& request, const Scenario& scenario, const JobPlan& plan,
                std::uint32_t life) const override {
    inner_->complete(request, scenario, plan, life);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario& scenario,
                                                                   const service::Lanes& lanes) const override {
    return inner_->aggregator_service(scenario, lanes);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> switch_service(const Scenario& scenario, std::uint32_t switch_id,
                                                               const service::Lanes& lanes) const override {
    return inner_->switch_service(scenario, switch_id, lanes);
  }
  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    return inner_->worker_lane(plan);
  }
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint& aggregator, std::uint32_t elements) const override {
    return inner_->path_probe(aggregator, elements);
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override { return inner_->tap(scenario); }
  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    return inner_->forge(overheard, random);
  }
  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    return inner_->describe(datagram);
  }

 private:
  std::unique_ptr<Protocol> inner_ = make_protocol("switchml");
};

class LaneAround : public protocol::WorkerLane {
 public:
  explicit LaneAround(std::unique_ptr<protocol::WorkerLane> inner) : inner_(std::move(inner)) {}
  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return inner_->submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { inner_->on_packets(packets, now, sink); }
  void on_timer(Time now, Sink& sink) override { inner_->on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return inner_->next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return inner_->take_completed(); }
  [[nodiscard]] std::optional<protocol::LaneFailure> failure() const override { return inner_->failure(); }
  [[nodiscard]] bool idle() const override { return inner_->idle(); }
  [[nodiscard]] std::optional<protocol::ChunkStall> oldest_stall() const override { return inner_->oldest_stall(); }
  [[nodiscard]] protocol::LaneTotals totals() const override { return inner_->totals(); }
  [[nodiscard]] std::vector<CounterValue> counters() const override { return inner_->counters(); }
  [[nodiscard]] std::uint64_t received() const override { return inner_->received(); }

 private:
  std::unique_ptr<protocol::WorkerLane> inner_;
};

template <class Lane>
class WithLane final : public Wrapped {
 public:
  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    auto inner = Wrapped::worker_lane(plan);
    if (plan.rank != 1) return inner;
    return std::make_unique<Lane>(std::move(inner));
  }
};

// The seeds out of 20 that fail, and the words of the first.
std::pair<int, std::string> failures(Profile profile, const Protocol& protocol) {
  int failed = 0;
  std::string words;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome outcome = run(generate(settings(profile), seed), {nullptr, nullptr, &protocol});
    if (outcome.failure.empty()) continue;
    if (failed++ == 0) words = outcome.failure;
  }
  return {failed, words};
}

TEST(Cluster, WithoutABugNothingFails) {
  EXPECT_EQ(0, failures(Profile::lossy, Wrapped()).first);
}

// What a part of the protocol was handed, and how much of it the network had marked.
struct Handed {
  std::uint64_t datagrams = 0, congested = 0;
  void count(std::span<const RxView> packets) {
    datagrams += packets.size();
    congested += static_cast<std::uint64_t>(std::ranges::count_if(packets, &RxView::congested));
  }
};

class CountedFormat final : public service::Format {
 public:
  CountedFormat(std::unique_ptr<service::Format> inner, Handed& handed) : inner_(std::move(inner)), handed_(handed) {}
  [[nodiscard]] bool takes(std::uint8_t first) const override { return inner_->takes(first); }
  void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) override {
    handed_.count(packets);
    inner_->on_packets(packets, congested, now, sink);
  }
  [[nodiscard]] std::uint64_t strangers() const override { return inner_->strangers(); }

 private:
  std::unique_ptr<service::Format> inner_;
  Handed& handed_;
};

class CountedWorkerLane final : public LaneAround {
 public:
  CountedWorkerLane(std::unique_ptr<protocol::WorkerLane> inner, Handed& handed)
      : LaneAround(std::move(inner)), handed_(handed) {}
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    handed_.count(packets);
    LaneAround::on_packets(packets, now, sink);
  }

 private:
  Handed& handed_;
};

class CountedProbe final : public PathProbe {
 public:
  CountedProbe(std::unique_ptr<PathProbe> inner, Handed& handed) : inner_(std::move(inner)), handed_(handed) {}
  void start(Time now, Sink& sink) override { inner_->start(now, sink); }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    handed_.count(packets);
    inner_->on_packets(packets, now, sink);
  }
  void on_timer(Time now, Sink& sink) override { inner_->on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return inner_->next_timeout(); }
  [[nodiscard]] bool done() const override { return inner_->done(); }
  [[nodiscard]] std::optional<std::uint32_t> slots() const override { return inner_->slots(); }

 private:
  std::unique_ptr<PathProbe> inner_;
  Handed& handed_;
};

class Counted final : public Wrapped {
 public:
  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario& scenario,
                                                                   const service::Lanes& lanes) const override {
    service::Lanes counted;
    for (service::Lane* const lane : lanes) {
      counted.push_back(
          wrapped_
              .emplace_back(std::make_unique<WrappingLane>(
                  *lane, [this](auto format) { return std::make_unique<CountedFormat>(std::move(format), aggregators); }))
              .get());
    }
    return Wrapped::aggregator_service(scenario, counted);
  }
  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    return std::make_unique<CountedWorkerLane>(Wrapped::worker_lane(plan), workers);
  }
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint& aggregator, std::uint32_t elements) const override {
    return std::make_unique<CountedProbe>(Wrapped::path_probe(aggregator, elements), probes);
  }

  mutable Handed aggregators, workers, probes;

 private:
  mutable std::vector<std::unique_ptr<WrappingLane>> wrapped_;
};

TEST(Cluster, ProtocolsSeeWhichDatagramsTheNetworkMarked) {
  for (const bool marks : {true, false}) {
    Scenario scenario = generate(settings(Profile::none), 1);
    for (JobPlan& job : scenario.jobs) job.measured = true;
    scenario.links.bytes_per_second = 100'000'000;
    scenario.links.queue_bytes = UINT32_MAX;
    scenario.links.mark_bytes = marks ? 0 : UINT32_MAX;  // whatever has to wait, or nothing
    const Counted protocol;
    EXPECT_EQ("", run(scenario, {nullptr, nullptr, &protocol}).failure);
    for (const Handed* handed : {&protocol.aggregators, &protocol.workers, &protocol.probes}) {
      EXPECT_GT(handed->datagrams, handed->congested);
      EXPECT_EQ(marks, handed->congested > 0);
    }
  }
}

// One rank's values reach the lane with a bit flipped.
class WrongInput final : public LaneAround {
 public:
  using LaneAround::LaneAround;
  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    if (operation.elements != 0 && operation.collective == stream::Collective::all_reduce)
      *static_cast<unsigned char*>(operation.data) ^= 0x20;
    return LaneAround::submit(operation, now, sink);
  }
};

TEST(Cluster, AWrongSumIsFound) {
  const auto [failed, words] = failures(Profile::none, WithLane<WrongInput>());
  EXPECT_GE(failed, 15);
  EXPECT_NE(std::string::npos, words.find("operation")) << words;
}

// Never says that it has finished.
class Silent final : public LaneAround {
 public:
  using LaneAround::LaneAround;
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return {}; }
};

TEST(Cluster, AnOperationThatDoesNotEndIsFound) {
  const auto [failed, words] = failures(Profile::lossy, WithLane<Silent>());
  EXPECT_GE(failed, 15);
  EXPECT_NE(std::string::npos, words.find("an error although no node failed")) << words;
}

// Counts a packet that it was not handed.
class Miscounting final : public LaneAround {
 public:
  using LaneAround::LaneAround;
  [[nodiscard]] std::uint64_t received() const override { return LaneAround::received() + 1; }
};

// Waits for a chunk of no operation.
class Waiting final : public LaneAround {
 public:
  using LaneAround::LaneAround;
  [[nodiscard]] std::optional<protocol::ChunkStall> oldest_stall() const override { return protocol::ChunkStall{}; }
};

// Sends more than the job's window.
class Pushing final : public LaneAround {
 public:
  using LaneAround::LaneAround;
  [[nodiscard]] protocol::LaneTotals totals() const override { return {0, LaneAround::totals().window + 1}; }
};

TEST(Cluster, ChecksRunAtEveryStep) {
  EXPECT_EQ("a worker's counters do not add up to what it received",
            failures(Profile::none, WithLane<Miscounting>()).second);
  EXPECT_EQ("a worker without operations has a chunk in flight", failures(Profile::none, WithLane<Waiting>()).second);
  EXPECT_EQ("a worker's window is empty, or longer than the job's", failures(Profile::none, WithLane<Pushing>()).second);
}

// Says a failure that did not happen.
class Panicking final : public LaneAround {
 public:
  using LaneAround::LaneAround;
  [[nodiscard]] std::optional<protocol::LaneFailure> failure() const override {
    return protocol::LaneFailure{protocol::LaneFailure::Kind::mismatch, 0, 0, 1, {}};
  }
};

TEST(Cluster, AnErrorWithoutACauseIsFound) {
  EXPECT_GE(failures(Profile::crash, WithLane<Panicking>()).first, 8);  // the others had ended before the error
}

// Repeats nothing by itself.
class Lazy final : public LaneAround {
 public:
  using LaneAround::LaneAround;
  void on_timer(Time, Sink&) override {}
  [[nodiscard]] Time next_timeout() const override { return never; }
};

TEST(Cluster, APromiseThatIsNotKeptIsFound) {
  EXPECT_EQ(0, failures(Profile::lossy_lane, Wrapped()).first);
  const auto [failed, words] = failures(Profile::lossy_lane, WithLane<Lazy>());
  EXPECT_GE(failed, 4);  // where it is this rank's lane
  EXPECT_NE(std::string::npos, words.find("by the time that was promised")) << words;
}

}  // namespace
}  // namespace netsum::sim
