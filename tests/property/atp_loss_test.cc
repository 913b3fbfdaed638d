// How much longer ATP takes where packets are lost, and what it repeats where threads are late: ranks and the parameter
// server behind links of 200 Mbit/s, a switch between them, under a virtual clock. Times are exact, and the same on every
// machine.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "support/virtual_atp.h"

namespace netsum::testing {
namespace {

struct Setting {
  AtpJob job{};
  double loss = 0;                // of each datagram
  bool only_from_rank_0 = false;  // is lost
  Link link{};
  Stops stops{};  // of every thread
};

struct Outcome {
  double seconds = 0;
  double repeated = 0;  // packets of ranks over those that they sent first
};

// Of an all-reduce.
Outcome outcome_of(const Setting& s) {
  Faults faults;
  faults.least_delay = faults.most_delay = std::chrono::microseconds(50);
  if (!s.only_from_rank_0) faults.loss = s.loss;
  VirtualNetwork network(1, faults);
  Random random(2);
  if (s.only_from_rank_0) {
    network.lose = [&](const Endpoint& from, const Endpoint&, std::span<const std::byte>) {
      return from == atp_endpoint(s.job.host(0), 0) && random.chance(s.loss);
    };
  }
  AtpCluster cluster(network, {.stops = s.stops}, {s.job});
  network.shape(atp_endpoint(atp_server_host, 0), s.link);
  for (std::uint32_t rank = 0; rank < s.job.ranks; ++rank) network.shape(atp_endpoint(s.job.host(rank), 0), s.link);
  cluster.begin(s.job);
  while (!cluster.done(s.job) && network.step(Time(std::chrono::minutes(5)))) {
  }
  EXPECT_TRUE(cluster.done(s.job));
  cluster.expect_right(s.job);
  return {
      std::chrono::duration<double>(network.now.time_since_epoch()).count(),
      cluster.count(s.job, &atp::WorkerCounters::retransmissions) / cluster.count(s.job, &atp::WorkerCounters::gradients)};
}

// The time with losses over the time without.
double ratio_of(Setting s, double loss) {
  s.loss = 0;
  const double without = outcome_of(s).seconds;
  s.loss = loss;
  const double with = outcome_of(s).seconds;
  std::printf("%u ranks, window of %u, congestion control %s, %g %% of %s lost: %.3f s, %.3f s without; ratio %.3f\n",
              s.job.ranks, s.job.window, s.job.congestion_control ? "on" : "off", loss * 100,
              s.only_from_rank_0 ? "a rank's packets" : "all packets", with, without, with / without);
  return with / without;
}

TEST(AtpLoss, OnAllLinks) {
  EXPECT_LE(ratio_of({.job = {.ranks = 4}}, 0.01), 1.25);
  EXPECT_LE(ratio_of({.job = {.ranks = 8}}, 0.01), 1.3);
}

// §5.2.3: one worker drops packets; congestion control is off.
TEST(AtpLoss, OfOneRank) {
  const Setting s{.job = {.window = 64, .congestion_control = false}, .only_from_rank_0 = true};
  EXPECT_LE(ratio_of(s, 0.0001), 1.02);
  EXPECT_LE(ratio_of(s, 0.001), 1.03);
  EXPECT_LE(ratio_of(s, 0.01), 1.10);
}

// Nothing is lost on the way, but a window that doubles would overrun these queues for all ranks at once.
TEST(AtpLoss, OfQueuesThatDoNotMark) {
  for (const std::uint32_t ranks : {4U, 8U}) {
    Setting s{.job = {.ranks = ranks}};
    const Outcome marked = outcome_of(s);
    s.link.mark = s.link.queue;
    const Outcome full = outcome_of(s);
    std::printf("%u ranks, queues that do not mark: %.3f s, %.2f %% repeated; %.3f s where they do\n", ranks, full.seconds,
                full.repeated * 100, marked.seconds);
    EXPECT_LE(full.seconds, 1.05 * marked.seconds);
    EXPECT_LE(full.repeated, 0.02);
  }
}

// On a host that is busy elsewhere: no packet is lost, and every thread stops now and then, for longer than a time-out.
TEST(AtpLoss, FewRepeatsWhereThreadsAreLate) {
  for (const std::uint32_t ranks : {4U, 8U}) {
    Setting s{.job = {.ranks = ranks}, .stops = {.chance = 0.002, .longest = std::chrono::milliseconds(8)}};
    s.link = {.bytes_per_second = 2.5e9, .queue = 8e6, .mark = 8e6};
    const Outcome outcome = outcome_of(s);
    std::printf("%u ranks, threads late: %.3f s, %.2f %% repeated\n", ranks, outcome.seconds, outcome.repeated * 100);
    EXPECT_LE(outcome.repeated, 0.02);
  }
}

}  // namespace
}  // namespace netsum::testing
