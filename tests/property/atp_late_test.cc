// What ATP repeats where threads are late: on hosts that are busy elsewhere no packet is lost, and every thread stops now
// and then, for longer than a time-out.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "support/virtual_atp.h"

namespace netsum::testing {
namespace {

TEST(AtpLate, FewRepeatsWhereThreadsAreLate) {
  for (const std::uint32_t ranks : {4U, 8U}) {
    Faults faults;
    faults.least_delay = faults.most_delay = std::chrono::microseconds(50);
    VirtualNetwork network(1, faults);
    const AtpJob job{.ranks = ranks};
    AtpCluster cluster(network, {.stops = {.chance = 0.002, .longest = std::chrono::milliseconds(8)}}, {job});
    const Link link{.bytes_per_second = 2.5e9, .queue = 8e6, .mark = 8e6};
    network.shape(atp_endpoint(atp_server_host, 0), link);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) network.shape(atp_endpoint(job.host(rank), 0), link);
    cluster.begin(job);
    while (!cluster.done(job) && network.step(Time(std::chrono::minutes(5)))) {
    }
    EXPECT_TRUE(cluster.done(job));
    cluster.expect_right(job);
    const double repeated =
        cluster.count(job, &atp::WorkerCounters::retransmissions) / cluster.count(job, &atp::WorkerCounters::gradients);
    std::printf("%u ranks, threads late: %.2f %% repeated\n", ranks, repeated * 100);
    EXPECT_LE(repeated, 0.02);
  }
}

}  // namespace
}  // namespace netsum::testing
