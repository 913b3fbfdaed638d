// How jobs share what they do not have for themselves, under a virtual clock. A job and one flow of TCP share a link whose
// queue marks: a rank and a sender with CUBIC are behind it, and at its other end the other ranks, the switch, the parameter
// server and the receiver. Three jobs share a switch with fewer slots than they need.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "support/cubic_flow.h"
#include "support/shared_link.h"
#include "support/virtual_atp.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;

struct Setting {
  const char* name;
  std::size_t elements = 100'000;
  std::uint32_t lanes = 1;
  Stops stops{};
  // papers/bottleneck/testbed's for scripts/reproduce atp-congestion
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

  const Reducing reducing{
      .done = [&] { return cluster.done(job); },
      .begin = [&] { cluster.begin(job); },
      .bytes = [&] { return cluster.count(job, &atp::ServerJobCounters::chunks) * atp_packet_elements * sizeof(float); }};
  const Shared shared = share_link(network, random, sender, receiver, reducing, 1500ms, 3s);
  std::printf("%s, seed %lu: ATP %.1f Mbit/s, TCP %.1f; share %.3f\n", s.name, seed, shared.job * 8 / 3e6,
              shared.tcp * 8 / 3e6, shared.share());
  return shared.share();
}

void expect_fair(const Setting& s) {
  testing::expect_fair([&](std::uint64_t seed) { return share_of(s, seed); });
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

// Three jobs of two ranks, with windows that fill an empty link of 100 Mbit/s and 10 ms to the parameter server, and two
// thirds of as many slots. What each gets through, in Mbit/s.
double rate_of(bool parts, std::uint64_t seed) {
  constexpr std::uint32_t jobs = 3, window = 28, slots = 55;
  Faults faults;
  faults.least_delay = faults.most_delay = 20us;
  VirtualNetwork network(seed, faults);
  Random random(seed);
  std::vector<AtpJob> all;
  for (std::uint32_t number = 0; number < jobs; ++number) {
    AtpJob& job = all.emplace_back(AtpJob{.number = number, .ranks = 2, .window = window, .elements = 50'000});
    if (!parts) continue;
    job.indexing = atp::Indexing::partition;
    job.slots = slots / jobs;
    job.first_slot = number * job.slots;
  }
  AtpCluster cluster(network, {.slots = slots, .stops = {.chance = 0.1, .longest = 2ms}}, all);
  network.shape(atp_endpoint(atp_server_host, 0), {.bytes_per_second = 12.5e6, .queue = 500e3, .mark = 125e3, .delay = 5ms});
  const auto count = [&] {
    double chunks = 0;
    for (const AtpJob& job : all) chunks += cluster.count(job, &atp::ServerJobCounters::chunks);
    return chunks;
  };
  std::vector<Time> begins(jobs);  // of the next all-reduce
  const auto reduce_until = [&](Time end) {
    while (network.now < end) {
      Time next = end;
      for (const AtpJob& job : all) {
        if (!cluster.done(job)) continue;
        if (begins[job.number] == never) {
          cluster.expect_right(job);
          begins[job.number] = network.now + 1ms + Duration(random.below(4'000'000));
        }
        if (begins[job.number] > network.now) {
          next = std::min(next, begins[job.number]);
        } else {
          begins[job.number] = never;
          cluster.begin(job);
        }
      }
      network.step(next);
    }
  };
  reduce_until(Time(500ms));
  const double before = count();
  reduce_until(Time(2500ms));
  return (count() - before) * atp_packet_elements * 32 / 2e6 / jobs;
}

// Slots that are everybody's are of more use than parts, as chunks that find none go over the link (Figure 13a).
TEST(AtpShare, OfTooFewSlots) {
  const double shared = rate_of(false, 1), parts = rate_of(true, 1);
  std::printf("two thirds of the slots: %.1f Mbit/s for each job, %.1f in parts; ratio %.2f\n", shared, parts,
              shared / parts);
  EXPECT_LE(1.15, shared / parts);
}

}  // namespace
}  // namespace netsum::testing
