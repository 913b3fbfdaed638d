// How a job shares a bottleneck with one flow of TCP: a rank and a sender with CUBIC behind one link, the other ranks, the
// switch, the parameter server and the receiver at its other end, under a virtual clock. The link's queue marks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "support/cubic_flow.h"
#include "support/virtual_atp.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;

struct Setting {
  const char* name;
  std::size_t elements = 100'000;
  std::uint32_t lanes = 1;
  Stops stops{};
  // bench/bottleneck/testbed's for scripts/reproduce atp-congestion
  Link link{.bytes_per_second = 6.25e6, .queue = 128e3, .mark = 32e3, .delay = 1ms};
};

// ATP's share of what both get through, in tensors and in TCP's payload.
double share_of(const Setting& s, std::uint64_t seed) {
  Faults faults;
  faults.least_delay = faults.most_delay = 20us;  // of a switch between two hosts
  VirtualNetwork network(seed, faults);
  Random random(seed);
  const AtpJob job{.ranks = 3, .elements = s.elements};
  const AtpHosts hosts{.lanes = s.lanes, .stops = s.stops};
  AtpCluster cluster(network, hosts, {job});
  const Endpoint sender_host = endpoint_of(240, 1), receiver_host = endpoint_of(241, 1);
  CubicReceiver receiver(network, receiver_host, sender_host);
  CubicSender sender(network, sender_host, receiver_host);
  std::vector<Endpoint> behind{sender_host};
  for (std::uint32_t lane = 0; lane < s.lanes; ++lane) behind.push_back(atp_endpoint(job.host(0), lane));
  network.shape(behind, s.link);

  const auto run_for = [&](Duration duration) {
    const Time end = network.now + duration;
    while (network.step(end)) {
    }
  };
  // All-reduces one after the other, with pauses of about 2 ms: how many chunks.
  const auto reduce_for = [&](Duration duration) {
    const Time end = network.now + duration;
    const double before = cluster.count(job, &atp::ServerJobCounters::chunks);
    while (network.now < end) {
      if (cluster.done(job)) {
        run_for(1ms + Duration(random.below(2'000'000)));
        cluster.begin(job);
      }
      while (!cluster.done(job) && network.step(end)) {
      }
    }
    return cluster.count(job, &atp::ServerJobCounters::chunks) - before;
  };

  sender.begin();
  run_for(500ms + Duration(random.below(100'000'000)));
  reduce_for(1500ms);
  const std::uint64_t before = receiver.delivered();
  const double atp = reduce_for(3s) * atp_packet_elements * sizeof(float);
  const double tcp = static_cast<double>((receiver.delivered() - before) * cubic_payload);
  std::printf("%s, seed %lu: ATP %.1f Mbit/s, TCP %.1f; share %.3f\n", s.name, seed, atp * 8 / 3e6, tcp * 8 / 3e6,
              atp / (atp + tcp));
  return atp / (atp + tcp);
}

void expect_fair(const Setting& s) {
  double sum = 0;
  constexpr std::uint64_t seeds = 2;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) sum += share_of(s, seed);
  EXPECT_LE(0.4, sum / seeds);
  EXPECT_GE(0.6, sum / seeds);
}

TEST(AtpShare, OfShortTensors) {
  expect_fair({.name = "short tensors"});
}
TEST(AtpShare, OfLongTensors) {
  expect_fair({.name = "long tensors", .elements = 8'000'000});
}
// Each has a window of its own, and all fill the same queue.
TEST(AtpShare, OfTwoLanes) {
  expect_fair({.name = "two lanes", .elements = 8'000'000, .lanes = 2});
}
TEST(AtpShare, WhereThreadsAreLate) {
  expect_fair({.name = "threads late", .lanes = 2, .stops = {.chance = 0.05, .longest = 2ms}});
}
TEST(AtpShare, OfAFasterLink) {
  expect_fair({.name = "100 Mbit/s", .link = {.bytes_per_second = 12.5e6, .queue = 256e3, .mark = 64e3, .delay = 1ms}});
}

}  // namespace
}  // namespace netsum::testing
