// How long all-reduces take, packet by packet: many racks, and lost packets. Times are exact, and the same on every machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "sim/packet_level.h"
#include "small_experiments.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;

// Links of 200 Mbit/s, with a queue.
PortPlan slow(Duration delay, double loss = 0) {
  return {.bits_per_second = 200'000'000, .delay = delay, .buffer_bytes = 150'000, .loss = loss};
}

// How long an all-reduce takes in a tree of SwitchML's.
double seconds_in(const Topology& topology, std::uint64_t elements, std::uint32_t slots) {
  Experiment experiment = on(topology);
  add_job(experiment, hosts_of(topology), {{elements, {}, {}}}).plan.slots = slots;
  sum_below(experiment);
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  return report.jobs[0].operation_seconds.at(0);
}

// The paper's outlook (§7), with 64 racks of 16 ranks under 4 spines: as long per element as one rack.
TEST(Times, ManyRacksTakeAsLongAsOne) {
  constexpr std::uint64_t elements = 256 * 240;
  const Uniform all = links(slow(microseconds(20)));
  const double rack = seconds_in(star(16, all), elements, 32), racks = seconds_in(tree({4, 16, 16}, all), elements, 32);
  std::printf("16 ranks at one switch: %.4f s; 1024 ranks in 64 racks under 4 spines: %.4f s; ratio %.3f\n", rack, racks,
              racks / rack);
  EXPECT_LE(racks, 1.05 * rack);
}

// Of the time without. With 16 leaves each chunk loses a packet on one of its 104 ways over a link.
TEST(Times, LossesAreRepairedOnTheLinkThatTheyHappenOn) {
  struct Limit {
    std::vector<std::uint32_t> fan_out;
    double loss, ratio;
  };
  for (const Limit& limit : {Limit{{2, 2, 2}, 0.001, 1.1}, Limit{{2, 2, 2}, 0.01, 1.35}, Limit{{4, 4, 2}, 0.01, 1.7}}) {
    const auto seconds = [&](double loss) {
      return seconds_in(tree(limit.fan_out, links(slow(microseconds(50), loss))), 256 * 4000, 64);
    };
    const double without = seconds(0), with = seconds(limit.loss);
    std::printf("%u racks of %u, %g %% lost: %.3f s, %.3f s without; ratio %.3f\n", limit.fan_out[0], limit.fan_out[1],
                limit.loss * 100, with, without, with / without);
    EXPECT_LE(with, limit.ratio * without);
  }
}

// A window takes longer on its way than the first time-out, and than the round trips of packets of exponents.
TEST(Times, OfWindowsThatAreLongerThanTimeOuts) {
  for (const auto& [rate, slots] : {std::pair{gigabit / 10, 512U}, std::pair{10 * gigabit, 2048U}}) {
    Experiment experiment = on(star(4, links({.bits_per_second = rate, .delay = microseconds(5)})));
    ExperimentJob& job = add_job(experiment, hosts_of(experiment.topology), {{256 * 2 * std::uint64_t{slots}, {}, {}}});
    job.plan.slots = slots;
    job.training.iterations = 3;
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure);
    const std::vector<double>& seconds = report.jobs.at(0).operation_seconds;
    std::printf("%u slots at %.1f Gbit/s: %.4f s, then %.4f s, %lu repeats\n", slots, static_cast<double>(rate) * 1e-9,
                seconds.at(0), seconds.at(2), report.jobs[0].retransmissions);
    EXPECT_EQ(0U, report.jobs[0].retransmissions);
    EXPECT_LE(seconds.at(0), 1.01 * seconds.at(2));
  }
}

// ---- ATP

constexpr std::uint64_t elements_of_atp = 2'000'000;
constexpr std::uint32_t packet_of_atp = 353;  // fill 1500 bytes

// Ranks and the parameter server at a switch; queues mark.
Experiment atp(std::uint32_t ranks, PortPlan port) {
  Experiment experiment = on(star(ranks + 1, links(port)), "atp");
  std::vector<NodeId> nodes(ranks);
  std::iota(nodes.begin(), nodes.end(), NodeId{1});
  ExperimentJob& job = add_job(experiment, nodes, {{elements_of_atp, {}, {}}});
  job.plan.packet_elements = packet_of_atp;
  job.plan.slots = 256;
  add_server(experiment, ranks + 1);
  experiment.pool_slots = 4096;
  return experiment;
}
PortPlan marking(double loss = 0) {
  PortPlan port = slow(microseconds(50), loss);
  port.mark_bytes = 60'000;
  return port;
}

struct Outcome {
  double seconds = 0;
  double repeated = 0;  // packets of ranks over those that they sent first
};

Outcome outcome_of(const Experiment& experiment) {
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  const std::uint64_t packets = (elements_of_atp + packet_of_atp - 1) / packet_of_atp * report.jobs[0].ranks;
  return {report.jobs[0].operation_seconds.at(0),
          static_cast<double>(report.jobs[0].retransmissions) / static_cast<double>(packets)};
}

TEST(Times, OfAtpWithLossesOnAllLinks) {
  for (const auto& [ranks, limit] : {std::pair{4U, 1.25}, std::pair{8U, 1.3}}) {
    const double without = outcome_of(atp(ranks, marking())).seconds, with = outcome_of(atp(ranks, marking(0.01))).seconds;
    std::printf("%u ranks, 1 %% of all packets lost: %.3f s, %.3f s without; ratio %.3f\n", ranks, with, without,
                with / without);
    EXPECT_LE(with, limit * without);
  }
}

// §5.2.3: one worker drops packets; congestion control is off.
TEST(Times, OfAtpWithLossesOfOneRank) {
  const auto seconds = [](double loss) {
    Experiment experiment = atp(4, marking());
    experiment.jobs[0].plan.slots = 64;
    experiment.jobs[0].plan.congestion_control = false;
    experiment.topology[1].up.loss = loss;
    return outcome_of(experiment).seconds;
  };
  const double without = seconds(0);
  for (const auto& [loss, limit] : {std::pair{0.0001, 1.02}, std::pair{0.001, 1.03}, std::pair{0.01, 1.10}}) {
    const double with = seconds(loss);
    std::printf("%g %% of a rank's packets lost: %.3f s, %.3f s without; ratio %.3f\n", loss * 100, with, without,
                with / without);
    EXPECT_LE(with, limit * without);
  }
}

// Nothing is lost on the way, but a window that doubles would overrun these queues for all ranks at once.
TEST(Times, OfAtpWithQueuesThatDoNotMark) {
  for (const std::uint32_t ranks : {4U, 8U}) {
    const Outcome marked = outcome_of(atp(ranks, marking())), full = outcome_of(atp(ranks, slow(microseconds(50))));
    std::printf("%u ranks, queues that do not mark: %.3f s, %.2f %% repeated; %.3f s where they do\n", ranks, full.seconds,
                full.repeated * 100, marked.seconds);
    EXPECT_LE(full.seconds, 1.05 * marked.seconds);
    EXPECT_LE(full.repeated, 0.02);
  }
}

// §3.7: without slots at the switch all packets of all ranks meet at the parameter server, whose host takes 1.4 us for each,
// while its link brings one every 0.12 us. Its receive buffer has room for 3,000 of the 4,096 that the windows have.
TEST(Times, OfAtpWithAnOverloadedServer) {
  const auto report_of = [](bool congestion_control) {
    PortPlan port{.bits_per_second = 100 * gigabit, .delay = microseconds(5)};
    Experiment experiment = atp(16, port);
    experiment.pool_slots = 1;
    experiment.jobs[0].plan.congestion_control = congestion_control;
    NodePlan& server = experiment.topology[17];
    server.receive_cost = std::chrono::nanoseconds(1400);
    server.receive_packets = 3000;
    return run_packets(experiment);
  };
  const Report with = report_of(true), without = report_of(false);
  const auto dropped = [](const Report& report) {
    const auto found = report.counters.find("receiver_overrun");
    return found == report.counters.end() ? 0 : found->second;
  };
  std::printf("a server of 1.4 us a packet: %.4f s, %lu overran its buffer; %.4f s and %lu without congestion control\n",
              with.jobs[0].operation_seconds.at(0), dropped(with), without.jobs[0].operation_seconds.at(0),
              dropped(without));
  EXPECT_EQ(0U, dropped(with));
  EXPECT_LE(with.jobs[0].operation_seconds.at(0), 1.1 * 16 * 5666 * 1.4e-6);
  EXPECT_LT(0U, dropped(without));
}

// ---- at the end of a stream

// Eight ranks below one switch, or 16 racks of four; ATP's parameter server is at the root.
Experiment short_of(const std::string& protocol, bool racks, double loss) {
  const PortPlan port{.bits_per_second = 100 * gigabit, .delay = microseconds(1), .loss = loss};
  Experiment experiment = on(racks ? tree({16, 4}, links(port)) : star(8, links(port)), protocol);
  ExperimentJob& job = add_job(experiment, hosts_of(experiment.topology), {{500'000, {}, {}}});
  job.training.iterations = 8;
  job.plan.slots = protocol == "netreduce" ? 4 : 128;
  job.plan.message_packets = 32;
  if (protocol == "atp") {
    experiment.topology.add({.name = "ps", .above = 0, .up = port, .down = port});
    experiment.aggregators = {static_cast<NodeId>(experiment.topology.size() - 1)};
    experiment.pool_slots = 1024;
    job.plan.slots = 256;
    sum_below(experiment, 0);
  } else if (racks) {
    sum_below(experiment);
  }
  return experiment;
}

// 2 MB at 100 Gbit/s, with and without 0.1 % of all packets lost. The median of eight.
TEST(Times, OfLossesAtTheEndOfAStream) {
  for (const char* const protocol : {"switchml", "netreduce", "atp"}) {
    for (const bool racks : {false, true}) {
      const auto seconds = [&](double loss) {
        const Report report = run_packets(short_of(protocol, racks, loss));
        EXPECT_EQ("", report.failure);
        std::vector<double> each = report.jobs[0].operation_seconds;
        std::sort(each.begin(), each.end());
        return (each.at(3) + each.at(4)) / 2;
      };
      const double without = seconds(0), with = seconds(0.001);
      std::printf("%s%s: %.0f us, %.0f us without\n", protocol, racks ? " in racks" : "", with * 1e6, without * 1e6);
      EXPECT_LE(with, 2 * without);
    }
  }
}

// The last window has half of all chunks, and each rank lacks several results: one silence finds them all.
TEST(Times, OfLossesInALongLastWindow) {
  Experiment experiment = short_of("switchml", true, 0.001);
  experiment.jobs[0].plan.slots = 1024;
  experiment.jobs[0].training.iterations = 6;
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  std::vector<double> each = report.jobs[0].operation_seconds;
  std::sort(each.begin(), each.end());
  std::printf("a window of half of the tensor: %.0f us\n", each.at(each.size() / 2) * 1e6);
  EXPECT_LE(each.at(each.size() / 2), 540e-6);
}

// A repair in the window is as long as many round trips at the end, where queues are empty: it may not delay probes there.
// The median of 15 all-reduces of 2 MB at 10 Gbit/s.
TEST(Times, RepairsWithinAStreamDoNotDelayThoseAtItsEnd) {
  const auto seconds = [](double loss) {
    std::vector<double> each;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      Experiment experiment = on(star(8, links({.bits_per_second = 10 * gigabit, .delay = microseconds(1), .loss = loss})));
      experiment.seed = seed;
      ExperimentJob& job = add_job(experiment, hosts_of(experiment.topology), {{500'000, {}, {}}});
      job.training.iterations = 3;
      job.plan.slots = 256;
      const Report report = run_packets(experiment);
      EXPECT_EQ("", report.failure);
      each.insert(each.end(), report.jobs[0].operation_seconds.begin(), report.jobs[0].operation_seconds.end());
    }
    std::sort(each.begin(), each.end());
    return each.at(each.size() / 2);
  };
  const double without = seconds(0), with = seconds(0.001);
  std::printf("%.0f us, %.0f us without\n", with * 1e6, without * 1e6);
  EXPECT_LE(with, 1.15 * without);
}

// ---- NetReduce

// The paper's messages at 100 Gbit/s, with windows that its formula finds long enough (§3.2): acknowledgements, which come
// later than results, do not hold them up.
TEST(Times, OfNetreduceWithThePapersWindow) {
  for (const std::uint32_t delay : {1U, 10U}) {
    for (const std::uint32_t window : {2U, 8U}) {
      const PortPlan port{.bits_per_second = 100 * gigabit, .delay = microseconds(delay)};
      Experiment experiment = on(star(4, links(port)), "netreduce");
      JobPlan& plan = add_job(experiment, hosts_of(experiment.topology), {{2'500'000, {}, {}}}).plan;
      plan.slots = window;
      plan.message_packets = 170;
      const Report report = run_packets(experiment);
      ASSERT_EQ("", report.failure);
      // All of a rank's frames, and a round trip.
      const double least = static_cast<double>(report.ports.at(0).bytes) * 8 / 100e9 + 2e-6 * delay;
      const double seconds = report.jobs[0].operation_seconds.at(0);
      std::printf("%u us, %u messages: %.1f Gbit/s, %.3f of what the link allows\n", delay, window,
                  2'500'000 * 32e-9 / seconds, least / seconds);
      EXPECT_LE(seconds, least / 0.95);
    }
  }
}

// Two jobs over a trunk of 200 Mbit/s whose queue marks and is shorter than their windows. The second begins 0.1 s later.
// Both directions of the trunk are full, and each job goes at the lower one of two ranks' rates.
TEST(Times, OfNetreduceJobsThatShareATrunk) {
  struct Shared {
    double first = 0, second = 0;
    std::uint64_t dropped = 0, marked = 0;
  };
  const auto share = [](bool congestion_control) {
    Uniform all = links({.bits_per_second = gigabit, .delay = microseconds(50)});
    all.trunk = slow(microseconds(200));
    all.trunk.mark_bytes = 40'000;
    Experiment experiment = on(shared_bottleneck(2, 2, all), "netreduce");
    const std::vector<NodeId> hosts = hosts_of(experiment.topology);
    for (const std::size_t job : {0U, 1U}) {
      ExperimentJob& added = add_job(experiment, {hosts[job], hosts[job + 2]}, {{8'000'000, {}, {}}});
      added.plan.slots = 16;
      added.plan.congestion_control = congestion_control;
      added.start = job * std::chrono::milliseconds(100);
    }
    const Report report = run_packets(experiment);
    EXPECT_EQ("", report.failure);
    Shared shared{report.jobs.at(0).operation_seconds.at(0), report.jobs.at(1).operation_seconds.at(0)};
    for (const PortReport& port : report.ports) {
      shared.dropped += port.dropped;
      shared.marked += port.marked;
    }
    std::printf("two jobs%s: %.3f s and %.3f s, %lu packets dropped, %lu marked\n", congestion_control ? "" : ", without",
                shared.first, shared.second, shared.dropped, shared.marked);
    return shared;
  };
  const Shared with = share(true), without = share(false);
  EXPECT_GT(with.marked, 0U);
  EXPECT_LE(with.dropped * 10, without.dropped);
  EXPECT_LE(with.marked * 4, without.marked);
  EXPECT_LE(std::max(with.first, with.second), 1.1 * std::min(with.first, with.second));
  EXPECT_LE(1.5, without.first / without.second);
  EXPECT_LE(std::max(with.first, with.second), 1.2 * std::max(without.first, without.second)) << "the trunk is used";
}

}  // namespace
}  // namespace netsum::sim
