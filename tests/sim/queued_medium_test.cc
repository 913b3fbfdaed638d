// Priorities, random early detection, priority flow control and several paths, each beside what theory says of it.
#include "sim/queued_medium.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "sim/fabric_medium.h"
#include "sim/flow_level.h"
#include "sim/packet_level.h"
#include "small_experiments.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr PortPlan ten_gigabit{.bits_per_second = 10 * gigabit, .delay = microseconds(1), .buffer_bytes = 100'000};

BackgroundFlow flow(const std::string& name, NodeId from, NodeId to, std::uint64_t rate, std::uint8_t priority = 0) {
  BackgroundFlow flow{.name = name, .from = from, .to = to, .bits_per_second = rate};
  flow.frame_bytes = 1000;
  flow.stop = milliseconds(20);
  flow.priority = priority;
  return flow;
}

// Of background flows for 20 ms, beside a job of one rank that waits for as long.
struct Flows {
  Experiment experiment;

  explicit Flows(Topology topology, NodeId rank) : experiment(on(std::move(topology))) {
    ExperimentJob& job = add_job(experiment, {rank}, {{1000, {}, milliseconds(21)}});
    job.plan.slots = 4;
    experiment.bin = milliseconds(20);
  }
  Report run() {
    experiment.series.clear();
    for (const BackgroundFlow& each : experiment.background)
      experiment.series.push_back("background." + each.name + ".bytes");
    return run_packets(experiment);
  }
};

double gigabits(const Report& report, const std::string& name) {
  return report.series.at("background." + name + ".bytes").at(0) * 8 / 20e-3 / 1e9;
}
std::uint64_t dropped(const Report& report) {
  return std::accumulate(report.ports.begin(), report.ports.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const PortReport& port) { return sum + port.dropped; });
}

class SameAsTheFabric : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(QueuedMedium, SameAsTheFabric, testing::Values("switchml", "atp", "netreduce"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(SameAsTheFabric, WhereNoneOfThemIsAskedFor) {
  Uniform all = links({.bits_per_second = 7 * gigabit,
                       .delay = microseconds(3),
                       .buffer_bytes = 60'000,
                       .mark_bytes = 20'000,
                       .loss = 1e-3,
                       .loss_burst = 3});
  all.switch_plan.shared_buffer_bytes = 80'000;
  Experiment experiment = on(tree({2, 3}, all), GetParam());
  ExperimentJob& job = add_job(experiment, hosts_of(experiment.topology), {{60'000, {}, microseconds(10)}});
  job.training.iterations = 3;
  sum_below(experiment);
  experiment.background = {flow("noise", 3, 8, 3 * gigabit)};
  experiment.random_ties = true;
  FabricMedium fabric(experiment.topology, 5, packet_level_origin, true);
  QueuedMedium queues(experiment.topology, 5, packet_level_origin, true);
  const Report expected = run_packets(experiment, fabric), report = run_packets(experiment, queues);
  EXPECT_EQ("", report.failure);
  EXPECT_EQ(expected.jobs[0].operation_seconds, report.jobs[0].operation_seconds);
  EXPECT_EQ(expected.packets, report.packets);
  EXPECT_GT(report.lost, 0U);
  ASSERT_EQ(expected.ports.size(), report.ports.size());
  for (std::size_t i = 0; i < report.ports.size(); ++i) {
    EXPECT_EQ(expected.ports[i].dropped, report.ports[i].dropped) << report.ports[i].link;
    EXPECT_EQ(expected.ports[i].marked, report.ports[i].marked) << report.ports[i].link;
    EXPECT_EQ(expected.ports[i].longest_queue, report.ports[i].longest_queue) << report.ports[i].link;
  }
}

TEST(Priorities, TheHighestTakesWhatItNeedsAndTheOthersTheRest) {
  Flows flows(star(4, links(ten_gigabit)), 4);
  flows.experiment.background = {flow("high", 1, 3, 6 * gigabit, 5), flow("low", 2, 3, 10 * gigabit)};
  const Report report = flows.run();
  EXPECT_NEAR(6, gigabits(report, "high"), 0.01);
  EXPECT_NEAR(4, gigabits(report, "low"), 0.05);
}

TEST(Priorities, TheHighestStarvesTheOthersIfItTakesAll) {
  Flows flows(star(4, links(ten_gigabit)), 4);
  flows.experiment.background = {flow("high", 1, 3, 10 * gigabit, 1), flow("low", 2, 3, 10 * gigabit)};
  const Report report = flows.run();
  EXPECT_NEAR(10, gigabits(report, "high"), 0.02);
  EXPECT_LT(gigabits(report, "low"), 0.06);  // what the port's queue holds, at the end
}

// The ranks' packets and the switch's.
TEST(Priorities, AJobOfAHighOneTakesAsLongAsAlone) {
  Experiment experiment =
      on(star(5, links({.bits_per_second = gigabit, .delay = microseconds(5), .buffer_bytes = 500'000})));
  add_job(experiment, {1, 2, 3}, {{250'000, {}, {}}});
  const double alone = run_packets(experiment).jobs[0].operation_seconds.at(0);
  experiment.background = {flow("noise", 4, 1, gigabit), flow("answers", 1, 4, gigabit)};
  EXPECT_GT(run_packets(experiment).jobs[0].operation_seconds.at(0), 1.5 * alone);
  experiment.jobs[0].priority = 3;
  EXPECT_NEAR(1, run_packets(experiment).jobs[0].operation_seconds.at(0) / alone, 0.02);
}

// Refusals are apart by 1 to 1 / p packets, all as likely: (1 / p + 1) / 2 on average.
TEST(Red, RefusesAsManyAsItsChanceSays) {
  const RedPlan plan{.least_bytes = 10'000, .most_bytes = 50'000, .most_chance = 0.1, .weight = 1};
  Red red(7);
  constexpr int packets = 400'000;
  const double chance = 0.1 * 10'000 / 40'000;
  int refused = 0, gap = 0, longest = 0;
  for (int i = 0; i < packets; ++i) {
    ++gap;
    if (!red.refuses(plan, 20'000, 0)) continue;
    ++refused;
    longest = std::max(longest, gap);
    gap = 0;
  }
  EXPECT_NEAR(1, refused * (1 / chance + 1) / 2 / packets, 0.02);
  EXPECT_EQ(40, longest);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(red.refuses(plan, 9'999, 0));
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(red.refuses(plan, 100'000, 0));  // gentle: all from twice the second length on
}

TEST(Red, FollowsTheQueueByItsWeightAndForgetsItWhileIdle) {
  const RedPlan plan{.least_bytes = 10'000, .most_bytes = 50'000, .most_chance = 0.1, .weight = 0.01};
  Red red(7);
  for (int i = 0; i < 100; ++i) (void)red.refuses(plan, 8'000, 0);
  EXPECT_NEAR(8'000 * (1 - std::pow(0.99, 100)), red.average(), 1e-6);
  const double before = red.average();
  (void)red.refuses(plan, 0, 50);
  EXPECT_NEAR(before * std::pow(0.99, 51), red.average(), 1e-6);
}

// 12 Gbit/s into 10: a sixth is refused, so p = 1/11, and the queue is as long as that takes.
TEST(Red, HoldsTheQueueWhereItsChanceFitsTheLoad) {
  for (const bool marks : {false, true}) {
    PortPlan port = ten_gigabit;
    port.buffer_bytes = 1'000'000;
    Topology topology = star(4, links(port));
    topology[3].down.red =
        RedPlan{.least_bytes = 50'000, .most_bytes = 150'000, .most_chance = 0.2, .weight = 0.02, .marks = marks};
    Flows flows(std::move(topology), 4);
    flows.experiment.background = {flow("a", 1, 3, 6 * gigabit), flow("b", 2, 3, 6 * gigabit)};
    flows.experiment.bin = microseconds(5);
    flows.experiment.series = {"link.h2.down.queue"};
    const Report report = run_packets(flows.experiment);
    const std::vector<double>& queue = report.series.at("link.h2.down.queue");
    const double mean = std::accumulate(queue.begin() + 1000, queue.begin() + 4000, 0.0) / 3000;
    const auto port_report =
        std::find_if(report.ports.begin(), report.ports.end(), [](const auto& p) { return p.link == "h2.down"; });
    if (marks) {
      EXPECT_GT(port_report->marked, 1000U);
      EXPECT_GT(mean, 500'000);  // marks slow these flows down by nothing
      continue;
    }
    EXPECT_NEAR(50'000 + 100'000 * (1.0 / 11) / 0.2, mean, 3'000);
    EXPECT_NEAR(1.0 / 6,
                static_cast<double>(port_report->dropped) / static_cast<double>(port_report->dropped + port_report->packets),
                0.01);
  }
}

// Two flows of a leaf, and two spines.
TEST(Paths, FlowsThatCollideShareALinkAndOthersHaveOneEach) {
  int collisions = 0;
  constexpr int seeds = 60;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Topology topology = leaf_spine(2, 2, 3, links(ten_gigabit));
    const NodeId first = *topology.find("h0");
    Flows flows(topology, first + 2);
    flows.experiment.seed = static_cast<std::uint64_t>(seed);
    flows.experiment.background = {flow("a", first, first + 3, 10 * gigabit), flow("b", first + 1, first + 4, 10 * gigabit)};
    const Report report = flows.run();
    std::set<std::string> used;
    for (const PortReport& port : report.ports) {
      if (port.link.starts_with("leaf0-spine") && port.link.ends_with(".up") && port.packets > 100) used.insert(port.link);
    }
    if (used.size() == 1) {
      ++collisions;
      EXPECT_NEAR(10, gigabits(report, "a") + gigabits(report, "b"), 0.1);
    } else {
      EXPECT_NEAR(10, gigabits(report, "a"), 0.02);
      EXPECT_NEAR(10, gigabits(report, "b"), 0.02);
    }
  }
  EXPECT_NEAR(0.5, static_cast<double>(collisions) / seeds, 0.2);
}

TEST(Paths, TheyAreTheShortestAndReachEveryNode) {
  const Topology topology = leaf_spine(3, 4, 2, {});
  Routes routes(topology, 1);
  std::set<NodeId> spines;
  for (NodeId from = 0; from < topology.size(); ++from) {
    for (NodeId to = 0; to < topology.size(); ++to) {
      for (std::uint32_t flow = 0; from != to && flow < 20; ++flow) {
        NodeId at = from;
        std::uint32_t steps = 0;
        for (; at != to && steps < 10; ++steps) {
          at = routes.next(at, to, flow).node;
          if (from == *topology.find("h0") && to == *topology.find("h7") && at < 3) spines.insert(at);
        }
        EXPECT_EQ(to, at);
        EXPECT_LE(steps, 4U);
      }
    }
  }
  EXPECT_EQ(3U, spines.size());
}

TEST(Paths, JobsSumAtLeavesAndSpines) {
  PortPlan port = ten_gigabit;
  port.buffer_bytes = 1'000'000;
  Experiment experiment = on(leaf_spine(2, 3, 4, links(port)));
  add_job(experiment, hosts_of(experiment.topology), {{250'000, {}, {}}});
  experiment.aggregators = {0, 1};
  for (NodeId leaf = 2; leaf < 5; ++leaf) {
    experiment.switches.push_back(leaf);
    experiment.parent_of_switch.push_back(UINT32_MAX);
  }
  for (std::uint32_t i = 0; i < 12; ++i) experiment.jobs[0].plan.switch_of_rank.push_back(i / 4);
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_NEAR(0.9e-3, report.jobs[0].operation_seconds.at(0), 0.05e-3);
  for (const PortReport& of : report.ports) {
    if (of.link.find("-spine") == std::string::npos) continue;
    EXPECT_NEAR(560'000, static_cast<double>(of.bytes), 20'000) << of.link;
  }
}

// h0 and h1 send to h4 by a trunk four times as fast as its link, and the victim, h2, to h5. Queues are first in, first out:
// of what the trunk takes each has a third, and h4's link takes 10 Gbit/s of it, so the victim gets 5.
struct Incast : Flows {
  Incast() : Flows(network(), 5) {
    experiment.background = {flow("a", 2, 6, 10 * gigabit), flow("b", 3, 6, 10 * gigabit),
                             flow("victim", 4, 7, 10 * gigabit)};
  }
  static Topology network() {
    Topology topology = shared_bottleneck(4, 2, links(ten_gigabit));  // nodes 2 to 5 at the left, 6 and 7 at the right
    topology[1].up.bits_per_second = topology[1].down.bits_per_second = 40 * gigabit;
    return topology;
  }
};

TEST(Pfc, NothingIsDroppedAndAVictimIsSlowed) {
  Incast lossy;
  const Report without = lossy.run();
  EXPECT_GT(dropped(without), 1000U);
  EXPECT_NEAR(10, gigabits(without, "victim"), 0.05);

  Incast incast;
  incast.experiment.topology.pfc = PfcPlan{.of = 1, .off = 40'000, .on = 20'000, .headroom = {}};
  const Report report = incast.run();
  EXPECT_EQ(0U, dropped(report));
  EXPECT_NEAR(10, gigabits(report, "a") + gigabits(report, "b"), 0.1);
  EXPECT_NEAR(5, gigabits(report, "victim"), 0.3);
  for (const PortReport& port : report.ports) {
    if (port.link != "right.down" && port.link != "h2.up") continue;
    EXPECT_GT(port.pauses, 10U) << port.link;
    if (port.link == "h2.up") {
      EXPECT_NEAR(10e-3, port.paused, 2e-3);  // half of the time
    }
  }
}

TEST(Pfc, OfOnePriorityLeavesTheOthersAlone) {
  Incast incast;
  incast.experiment.topology.pfc = PfcPlan{.of = 1, .off = 40'000, .on = 20'000, .headroom = {}};
  incast.experiment.background[2].priority = 4;
  EXPECT_NEAR(10, gigabits(incast.run(), "victim"), 0.05);
}

TEST(Pfc, TooLittleHeadroomLoses) {
  Incast incast;
  incast.experiment.topology.pfc = PfcPlan{.of = 1, .off = 40'000, .on = 20'000, .headroom = 500};
  EXPECT_GT(dropped(incast.run()), 10U);
}

// What would come between a word to wait and its effect on a long wire has room.
TEST(Pfc, HeadroomGrowsWithTheWire) {
  Incast incast;
  for (NodeId node = 1; node < incast.experiment.topology.size(); ++node)
    incast.experiment.topology[node].up.delay = incast.experiment.topology[node].down.delay = microseconds(50);
  incast.experiment.topology.pfc = PfcPlan{.of = 1, .off = 40'000, .on = 20'000, .headroom = {}};
  EXPECT_EQ(0U, dropped(incast.run()));
}

TEST(Disciplines, AreRefusedWhereTheyAreNot) {
  const auto refused = [](const auto& change, const char* key) {
    Experiment experiment = on(star(3, links(ten_gigabit)));
    add_job(experiment, {1, 2}, {{1000, {}, {}}});
    experiment.background = {flow("noise", 3, 1, gigabit)};
    change(experiment);
    try {
      (void)run_flows(experiment);
      ADD_FAILURE() << key;
    } catch (const ImpossibleExperiment& why) {
      EXPECT_EQ(key, why.key);
    }
  };
  refused([](Experiment& e) { e.jobs[0].priority = 1; }, "job[0].priority");
  refused([](Experiment& e) { e.background[0].priority = 1; }, "background[0].priority");
  refused([](Experiment& e) { e.topology.pfc.emplace(); }, "network.pfc");
  refused([](Experiment& e) { e.topology[1].up.red.emplace(); }, "network");
  refused([](Experiment& e) { e.topology.add_link({1, 0, {}, {}}); }, "network.kind");
}

}  // namespace
}  // namespace netsum::sim
