// Experiments packet by packet: sums over trees, sharing, compute models, series; and that a run is its seed.

#include "sim/packet_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "sim/flow_level.h"
#include "sim/protocol.h"
#include "sim/random.h"
#include "sim/workload.h"
#include "small_experiments.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class EachProtocol : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(PacketLevel, EachProtocol, testing::Values("switchml", "atp", "netreduce"),
                         [](const auto& test) { return std::string(test.param); });

// A million bytes at a gigabit a second take 8 ms, and headers a little more.
TEST_P(EachProtocol, AStarTakesAsLongAsAWorkersLinkNeeds) {
  Experiment experiment =
      on(star(5, links({.bits_per_second = gigabit, .delay = microseconds(5), .buffer_bytes = 1'000'000})), GetParam());
  add_job(experiment, {1, 2, 3, 4}, {{250'000, {}, {}}});
  if (experiment.protocol == "atp") add_server(experiment, 5);
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  ASSERT_EQ(1U, report.jobs[0].operation_seconds.size());
  EXPECT_GT(report.jobs[0].operation_seconds[0], 8.0e-3);
  EXPECT_LT(report.jobs[0].operation_seconds[0], 9.5e-3);
  EXPECT_EQ(1'000'000U, report.jobs[0].bytes);
}

// Packets are as many, as long and as late as those of values.
TEST_P(EachProtocol, TensorsBySizeTakeAsLongAsThoseWithValues) {
  Experiment experiment =
      on(star(5, links({.bits_per_second = gigabit, .buffer_bytes = 300'000, .loss = 1e-3})), GetParam());
  ExperimentJob& job = add_job(experiment, {1, 2, 3, 4}, {{50'001, {}, microseconds(10)}, {20'000, {}, microseconds(10)}});
  job.training.iterations = 3;
  if (experiment.protocol == "atp") add_server(experiment, 5);
  const Report values = run_packets(experiment);
  experiment.jobs[0].training.values = false;
  const Report sizes = run_packets(experiment);
  EXPECT_EQ("", values.failure);
  EXPECT_EQ("", sizes.failure);
  EXPECT_EQ(values.jobs[0].operation_seconds, sizes.jobs[0].operation_seconds);
  EXPECT_EQ(6U, sizes.jobs[0].operation_seconds.size());
  EXPECT_EQ(values.packets, sizes.packets);
  EXPECT_EQ(values.lost, sizes.lost);
  EXPECT_GT(sizes.lost, 0U);
}

// A switch without slots divided by their number.
TEST(PacketLevel, SwitchesOfAtpHaveSlotsForAllJobsByDefault) {
  Experiment experiment = on(star(5, links({.bits_per_second = gigabit})), "atp");
  add_job(experiment, {1, 2, 3, 4}, {{10'000, {}, {}}});
  add_server(experiment, 5);
  experiment.pool_slots = 0;
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_EQ(1U, report.jobs[0].operation_seconds.size());
}

// A window takes 6 ms of this link, and the first packets, short and alone, a fraction of it: time-outs that followed from
// those would send each packet twice, for ever.
TEST_P(EachProtocol, AWindowThatWaitsInItsOwnQueueIsNotSentAgain) {
  Experiment experiment = on(star(5, links({.bits_per_second = gigabit / 10, .buffer_bytes = 150'000})), GetParam());
  constexpr std::uint32_t window = 64;  // packets
  ExperimentJob& job = add_job(experiment, {1, 2, 3, 4}, {{500'000, {}, {}}});
  job.training.iterations = 3;
  job.plan.slots = experiment.protocol == "netreduce" ? window / job.plan.message_packets : window;
  if (experiment.protocol == "atp") add_server(experiment, 5);
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_LE(report.jobs[0].retransmissions, 4 * 4 * window);                                // of some 24,000
  for (const double seconds : report.jobs[0].operation_seconds) EXPECT_LT(seconds, 0.195);  // the link needs 0.172
}

TEST_P(EachProtocol, NothingIsRepeatedWithoutLoss) {
  Random random(1);
  constexpr std::uint32_t lengths[] = {64, 128, 256}, windows[] = {1, 2, 4, 8};
  for (int round = 0; round < 60; ++round) {
    const auto ranks = static_cast<std::uint32_t>(random.between(1, 5));
    const Uniform all = links({.bits_per_second = gigabit, .delay = microseconds(random.between(1, 200))});
    Experiment experiment = on(star(ranks + 1, all), GetParam());
    std::vector<NodeId> nodes(ranks);
    std::iota(nodes.begin(), nodes.end(), NodeId{1});
    ExperimentJob& job = add_job(experiment, nodes, {{1 + random.below(20'000), {}, {}}, {1 + random.below(50), {}, {}}});
    job.plan.packet_elements = random.pick(lengths);
    job.plan.slots = random.pick(windows);
    job.plan.message_packets = static_cast<std::uint32_t>(random.between(1, 6));
    job.plan.unordered = random.chance(0.3);
    job.training.iterations = 3;
    if (experiment.protocol == "atp") add_server(experiment, ranks + 1);
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure);
    EXPECT_EQ(0U, report.jobs[0].retransmissions) << "round " << round;
  }
}

// Slow start overruns these queues, and all ranks lose the same packets. Repairs meet at the parameter server, whose
// questions must not let a rank take its switch for dead, and go past it alone.
TEST(PacketLevel, ShallowQueuesCostAtpLittle) {
  for (const std::uint64_t buffer : {40'000U, 50'000U, 60'000U}) {
    Experiment experiment = on(star(5, links({.bits_per_second = gigabit / 20, .buffer_bytes = buffer})), "atp");
    ExperimentJob& job = add_job(experiment, {1, 2, 3, 4}, {{1'000'000, {}, {}}});
    job.plan.slots = 256;
    job.plan.packet_elements = 320;
    add_server(experiment, 5);
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure);
    EXPECT_LT(report.jobs[0].operation_seconds[0], 0.8) << "the link needs 0.69 s";
  }
}

// Two jobs with slots for one: what finds none, and what is lost, is repeated by all.
TEST(PacketLevel, ByThePapersRulesLossesAndCollisionsCostTimeAndNoSum) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Experiment experiment =
        on(star(9, links({.bits_per_second = gigabit, .delay = microseconds(5), .buffer_bytes = 1'000'000, .loss = 0.01})),
           "atp");
    experiment.seed = seed;
    add_job(experiment, {1, 2, 3, 4}, {{100'000, {}, {}}}).plan.paper_rules = true;
    add_job(experiment, {5, 6, 7, 8}, {{100'000, {}, {}}}).plan.paper_rules = true;
    add_server(experiment, 9);
    experiment.pool_slots = 64;
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure) << "seed " << seed;
    EXPECT_GT(report.jobs[0].retransmissions, 0U);
  }
}

TEST(PacketLevel, JobsWithPartsOfTheirOwnDoNotMeet) {
  const auto collisions = [](std::uint32_t parts) {
    Experiment experiment = on(star(9, links({.bits_per_second = gigabit, .delay = microseconds(5)})), "atp");
    for (const NodeId first : {1U, 5U}) add_job(experiment, {first, first + 1, first + 2, first + 3}, {{100'000, {}, {}}});
    add_server(experiment, 9);
    experiment.pool_slots = 64;
    experiment.pool_parts = parts;
    experiment.series = {"switch." + experiment.topology[0].name + ".switch_collisions"};
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure);
    const std::vector<double>& values = report.series.begin()->second;
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  EXPECT_LT(0, collisions(0));
  EXPECT_EQ(0, collisions(2));
}

TEST_P(EachProtocol, LossesCostTimeAndNoSum) {
  Experiment experiment =
      on(star(5, links({.bits_per_second = gigabit, .buffer_bytes = 1'000'000, .loss = 0.01})), GetParam());
  add_job(experiment, {1, 2, 3, 4}, {{100'000, {}, {}}}).training.iterations = 2;
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_GT(report.lost, 20U);
  EXPECT_GT(report.jobs[0].retransmissions, 0U);
  EXPECT_EQ(800'000U, report.jobs[0].bytes);
}

TEST(PacketLevel, ATreeOfThreeLevelsSendsOneSumUpEachLink) {
  Experiment experiment =
      on(tree({2, 2, 4}, links({.bits_per_second = 10 * gigabit, .delay = microseconds(1), .buffer_bytes = 1'000'000})));
  add_job(experiment, hosts_of(experiment.topology), {{100'000, {}, {}}});
  sum_below(experiment);
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  std::uint64_t of_host = 0, of_trunk = 0;
  for (const PortReport& port : report.ports) {
    if (port.link == "h0.up") of_host = port.packets;
    if (port.link == "s0.up") of_trunk = port.packets;
  }
  EXPECT_GE(of_host, 391U);
  EXPECT_NEAR(static_cast<double>(of_host), static_cast<double>(of_trunk), 5);
}

// However many ranks are below it. The first window's exponents go up as well.
TEST(PacketLevel, ASwitchSendsEachSumUpstreamOnce) {
  for (const char* protocol : {"switchml", "switchml-chip"}) {
    for (const std::uint32_t ranks : {1U, 2U, 4U}) {
      Experiment experiment = on(tree({2, ranks}, links({.delay = microseconds(10)})), protocol);
      ExperimentJob& job = add_job(experiment, hosts_of(experiment.topology), {{256 * 20, {}, {}}});
      job.plan.slots = 4;
      job.plan.chip = experiment.protocol == "switchml-chip";
      sum_below(experiment);
      const Report report = run_packets(experiment);
      EXPECT_EQ("", report.failure);
      EXPECT_EQ(2 * (20U + job.plan.slots), report.counters.at("switch_sums_sent")) << protocol << ", " << ranks << " ranks";
    }
  }
}

TEST(PacketLevel, AnExperimentIsItsSeed) {
  Experiment experiment = on(star(4, links({.bits_per_second = gigabit, .buffer_bytes = 1'000'000, .loss = 0.02})));
  add_job(experiment, {1, 2, 3, 4}, {{50'000, microseconds(50), microseconds(100)}}).training.iterations = 3;
  experiment.jobs[0].training.jitter = 0.1;
  const Report first = run_packets(experiment), again = run_packets(experiment);
  experiment.seed = 2;
  const Report other = run_packets(experiment);
  EXPECT_EQ(first.events, again.events);
  EXPECT_EQ(first.jobs[0].iteration_seconds, again.jobs[0].iteration_seconds);
  EXPECT_NE(first.jobs[0].iteration_seconds, other.jobs[0].iteration_seconds);
}

TEST(PacketLevel, CommunicationHidesBehindBackwardPasses) {
  const auto iteration = [](std::vector<Bucket> buckets) {
    Experiment experiment = on(star(2, links({.bits_per_second = gigabit, .buffer_bytes = 1'000'000})));
    ExperimentJob& job = add_job(experiment, {1, 2}, std::move(buckets));
    job.training.iterations = 4;
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure);
    return report.jobs[0].iteration_seconds[2] * 1e3;
  };
  // Each bucket's 400 kB take 3.4 ms; passes take 12.
  const std::vector<Bucket> two{{100'000, milliseconds(2), milliseconds(4)}, {100'000, milliseconds(2), milliseconds(4)}};
  EXPECT_NEAR(12 + 3.5, iteration(two), 0.5);
  const std::vector<Bucket> last{{200'000, milliseconds(2), milliseconds(1)}, {1'000, milliseconds(5), milliseconds(4)}};
  EXPECT_NEAR(12 + 2.9, iteration(last), 0.5);
}

TEST(PacketLevel, JobsStartPauseAndStopWhenTheyAreTold) {
  Experiment experiment = on(star(2, links({.bits_per_second = gigabit, .buffer_bytes = 1'000'000})));
  ExperimentJob& job = add_job(experiment, {1, 2}, {{10'000, milliseconds(1), milliseconds(1)}});
  job.start = milliseconds(5);
  job.training.iterations = 0;
  job.training.stop = milliseconds(60);
  job.training.pauses = {{milliseconds(20), milliseconds(40)}};
  experiment.series = {"job.job0.bytes"};
  experiment.bin = milliseconds(10);
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_NEAR(5e-3, report.jobs[0].first, 1e-3);
  EXPECT_NEAR(60e-3, report.jobs[0].last, 5e-3);
  const auto& bins = report.series.at("job.job0.bytes");
  ASSERT_GE(bins.size(), 6U);
  EXPECT_GT(bins[1], 0);
  EXPECT_LE(bins[2], 40'000) << "only the iteration that was under way";
  EXPECT_EQ(0, bins[3]);
  EXPECT_GT(bins[4], 0);
  for (const double seconds : report.jobs[0].iteration_seconds) EXPECT_LT(seconds, 4e-3) << "a pause is no iteration";
}

TEST(PacketLevel, BackgroundTrafficTakesItsShareOfALink) {
  Experiment experiment = on(star(3, links({.bits_per_second = gigabit, .buffer_bytes = 1'000'000})));
  add_job(experiment, {1, 2}, {{250'000, {}, {}}});
  const double alone = run_packets(experiment).jobs[0].operation_seconds[0];
  experiment.background.push_back({.name = "noise", .from = 3, .to = 1, .bits_per_second = gigabit / 2});
  experiment.series = {"background.noise.bytes", "link.h0.down.queue"};
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_NEAR(2, report.jobs[0].operation_seconds[0] / alone, 0.2);
  const auto& noise = report.series.at("background.noise.bytes");
  EXPECT_NEAR(62'500, noise[noise.size() / 2], 3'000);
}

TEST(PacketLevel, HostsAndSwitchesTakeTheirTimeForEachPacket) {
  Uniform all = links({.bits_per_second = 100 * gigabit});
  const auto time = [&] {
    Experiment experiment = on(star(2, all));
    add_job(experiment, {1, 2}, {{256'000, {}, {}}}).plan.slots = 256;
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure);
    return report.jobs[0].operation_seconds[0] * 1e3;
  };
  const double fast = time();
  all.host.send_cost = microseconds(1);
  all.host.receive_cost = microseconds(2);
  // 1000 packets of numbers, and one for each of the 256 slots that agrees on the first exponents.
  EXPECT_NEAR(1.256 * 3, time(), 0.1);
  all.host.send_cost = all.host.receive_cost = {};
  all.switch_plan.receive_cost = microseconds(3);
  EXPECT_NEAR(1.256 * 6, time(), 0.3);  // the packets of both
  all.switch_plan.threads = 4;          // one lane keeps one of them busy
  EXPECT_NEAR(1.256 * 6, time(), 0.3);
  EXPECT_LT(fast, 1);
}

// Whole nanoseconds made a billion packets a second of 700 million.
TEST(PacketLevel, PacketsTakeFractionsOfANanosecond) {
  constexpr std::uint64_t packets = 100'000;
  Uniform all;
  all.switch_plan.receive_cost = PacketCost(std::chrono::seconds(1)) / 700'000'000;
  Experiment experiment = on(star(2, all));
  add_job(experiment, {1, 2}, {{256 * packets, {}, {}}}).plan.slots = 1024;
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  // Both ranks' packets, and those that agree on the first exponents.
  EXPECT_NEAR(2 * (packets + 1024) / 700e6, report.jobs[0].operation_seconds.at(0), 1e-4 * packets / 700e6);
}

TEST(PacketLevel, BackgroundTrafficHasItsRate) {
  Experiment experiment = on(star(3, links({.bits_per_second = 1000 * gigabit})));
  add_job(experiment, {1, 2}, {{1000, milliseconds(2), {}}});
  experiment.background.push_back({.name = "noise", .from = 3, .to = 1, .bits_per_second = 900 * gigabit});
  experiment.end = milliseconds(1);
  const Report report = run_packets(experiment);
  for (const PortReport& port : report.ports) {
    if (port.link != "h2.up") continue;
    EXPECT_NEAR(900e9 / 8 * 1e-3, static_cast<double>(port.bytes), 2 * 1514);
  }
}

// What waits at a port has not left it: a link was 1.0058 busy.
TEST(PacketLevel, ALinkIsNeverMoreThanBusy) {
  Experiment experiment = on(star(3, links({.bits_per_second = gigabit})));
  add_job(experiment, {1, 2}, {{100'000, {}, {}}});
  experiment.background.push_back({.name = "noise", .from = 3, .to = 1, .bits_per_second = 2 * gigabit});
  experiment.end = milliseconds(2);
  for (const PortReport& port : run_packets(experiment).ports) {
    EXPECT_LE(port.utilisation, 1) << port.link;
    if (port.link != "h2.up") continue;
    EXPECT_NEAR(1, port.utilisation, 1e-4);
  }
}

TEST(PacketLevel, ACounterThatThereIsNotIsAnError) {
  for (const char* name : {"link.h9.up.bytes", "link.h0.up.colour", "job.job7.bytes", "nothing", "switch.sw.packets",
                           "job.job0.colour", "aggregator.sw.colour"}) {
    Experiment experiment = on(star(2, {}));
    add_job(experiment, {1, 2}, {{1000, {}, {}}});
    experiment.series = {name};  // of a run that ends within the first bin
    EXPECT_THROW((void)run_packets(experiment), ImpossibleExperiment) << name;
  }
}

TEST_P(EachProtocol, RanksHaveTheCountersThatAreKnownBefore) {
  Experiment experiment = on(star(3, links({.bits_per_second = gigabit})), GetParam());
  add_job(experiment, {1, 2}, {{100'000, {}, {}}});
  experiment.bin = microseconds(100);
  const std::vector<CounterValue> counters = make_protocol(GetParam())->worker_counters();
  EXPECT_FALSE(counters.empty());
  for (const CounterValue& counter : counters) experiment.series.push_back(std::string("job.job0.") + counter.name);
  EXPECT_EQ("", run_packets(experiment).failure);
}

// As in the product, which has no other of ATP and NetReduce: it was ignored.
TEST_P(EachProtocol, AWireFormatIsSwitchMLs) {
  Experiment experiment = on(star(2, links({.bits_per_second = gigabit})), GetParam());
  add_job(experiment, {1, 2}, {{1000, {}, {}}}).training.wire = WireFormat::float16;
  if (experiment.protocol == "switchml") {
    EXPECT_EQ("", run_packets(experiment).failure);
  } else {
    EXPECT_THROW((void)run_packets(experiment), ImpossibleExperiment);
  }
}

TEST_P(EachProtocol, MoreRanksThanAJobHasAreRefused) {
  Experiment experiment = on(star(4097, {}), GetParam());
  add_job(experiment, hosts_of(experiment.topology), {{1000, {}, {}}});
  EXPECT_THROW((void)run_packets(experiment), ImpossibleExperiment);
}

TEST(PacketLevel, AnAggregatorThatRefusesEndsTheRunWithItsWords) {
  Experiment experiment = on(star(2, {}), "netreduce");
  add_job(experiment, {1, 2}, {{1000, {}, {}}}).plan.packet_elements = 300;  // no path MTU
  EXPECT_NE(std::string::npos, run_packets(experiment).failure.find("packets of 300 elements"))
      << run_packets(experiment).failure;
}

Workload three_layers() {
  return {.name = "three",
          .layers = {{"in", 1000, 1}, {"middle", 400'000, 2}, {"out", 2'000'000, 1}},
          .iteration = milliseconds(12)};
}

TEST(Workload, BucketsKeepAllParametersAndAllTime) {
  for (const Bucketing bucketing : {Bucketing::layers, Bucketing::buckets, Bucketing::pieces, Bucketing::whole}) {
    std::uint64_t elements = 0;
    Duration time{};
    for (const Bucket& bucket : buckets_of(three_layers(), bucketing, 1'000'000)) {
      elements += bucket.elements;
      time += bucket.forward + bucket.backward;
    }
    EXPECT_EQ(2'401'000U, elements);
    EXPECT_NEAR(12e6, static_cast<double>(time.count()), 10);
  }
}

TEST(Workload, FrameworksDivideItDifferently) {
  const auto sizes = [](Bucketing bucketing, std::uint64_t bytes) {
    std::vector<std::uint64_t> all;
    for (const Bucket& bucket : buckets_of(three_layers(), bucketing, bytes)) all.push_back(bucket.elements);
    return all;
  };
  using Sizes = std::vector<std::uint64_t>;
  EXPECT_EQ((Sizes{2'000'000, 400'000, 1'000}), sizes(Bucketing::layers, 0));
  EXPECT_EQ((Sizes{2'000'000, 401'000}), sizes(Bucketing::buckets, 25 << 20));
  EXPECT_EQ((Sizes{666'666, 666'667, 666'667, 400'000, 1'000}), sizes(Bucketing::pieces, 3'000'000));
  EXPECT_EQ((Sizes{2'401'000}), sizes(Bucketing::whole, 0));
}

// Four steady flows of 4 Gbit/s into 10 Gbit/s: in order, two lose nothing and one nearly everything.
TEST(PacketLevel, DrawsTheOrderOfFramesThatComeAtOneTime) {
  const auto shares = [](bool random_ties, std::uint64_t seed) {
    Experiment experiment = on(star(5, links({.bits_per_second = 10 * gigabit, .buffer_bytes = 100'000})));
    experiment.random_ties = random_ties;
    experiment.seed = seed;
    experiment.end = std::chrono::milliseconds(5);
    for (NodeId host = 1; host <= 4; ++host)
      experiment.background.push_back(
          {.name = "flow" + std::to_string(host), .from = host, .to = 5, .bits_per_second = 4 * gigabit});
    for (const BackgroundFlow& flow : experiment.background)
      experiment.series.push_back("background." + flow.name + ".bytes");
    add_job(experiment, {1, 2}, {{1, {}, {}}}).start = std::chrono::milliseconds(10);
    std::vector<double> bytes;
    for (const auto& [name, values] : run_packets(experiment).series)
      bytes.push_back(std::accumulate(values.begin(), values.end(), 0.0));
    return bytes;
  };
  const std::vector<double> locked = shares(false, 1), drawn = shares(true, 1);
  const auto spread = [](const std::vector<double>& of) {
    return *std::max_element(of.begin(), of.end()) / (1 + *std::min_element(of.begin(), of.end()));
  };
  EXPECT_GT(spread(locked), 10);
  EXPECT_LT(spread(drawn), 1.2);
  EXPECT_EQ(drawn, shares(true, 1));
  EXPECT_NE(drawn, shares(true, 2));
}

TEST(PacketLevel, StragglersAndLateStartsAreWaitedFor) {
  const auto seconds = [](const TrainingPlan& plan, std::uint64_t seed = 1) {
    Experiment experiment = on(star(4, links({.bits_per_second = gigabit})));
    experiment.seed = seed;
    ExperimentJob& job = add_job(experiment, hosts_of(experiment.topology), {{10'000, std::chrono::milliseconds(1), {}}});
    job.training.stragglers = plan.stragglers;
    job.training.start_jitter = plan.start_jitter;
    const Report packets = run_packets(experiment), flows = run_flows(experiment);
    EXPECT_NEAR(packets.seconds, flows.seconds, 0.05 * packets.seconds);
    return packets.seconds;
  };
  TrainingPlan plan;
  const double even = seconds(plan);
  plan.stragglers = {{.rank = 2, .slower = 3, .late = std::chrono::milliseconds(4)}};
  EXPECT_NEAR(even + 6e-3, seconds(plan), 1e-5);
  plan.stragglers.clear();
  plan.start_jitter = std::chrono::milliseconds(10);
  EXPECT_GT(seconds(plan), even + 1e-3);
  EXPECT_NE(seconds(plan), seconds(plan, 2));
}

}  // namespace
}  // namespace netsum::sim
