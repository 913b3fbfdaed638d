// How a NetReduce job shares a link whose queue marks with one flow of TCP, CUBIC's, under a virtual clock. A rank and one
// end of the flow are behind the link, and at its other end the other ranks, the accelerator and the flow's other end.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "support/cubic_flow.h"
#include "support/shared_link.h"
#include "support/virtual_ring.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;

struct Setting {
  const char* name;
  std::size_t elements = 100'000;
  std::uint32_t message_packets = 8;
  std::uint32_t lanes = 1;
  bool congestion_control = true;
  bool selective = true;
  bool down = false;  // the flow comes by the link, as sums do; else it leaves, as gradients do
  // papers/bottleneck/testbed's for scripts/reproduce atp-congestion
  Link link{.bytes_per_second = 6.25e6, .queue = 128e3, .mark = 32e3, .delay = 1ms};
  Duration before = 2s, during = 3s;
};

constexpr std::uint32_t ranks = 3, mtu = 1024;

// NetReduce's share of what both get through, in tensors and in TCP's payload.
double share_of(const Setting& s, std::uint64_t seed) {
  RingJobConfig config;
  config.ranks = ranks;
  config.lanes = s.lanes;
  config.window = 4;
  config.message_packets = s.message_packets;
  config.mtu = mtu;
  config.selective = s.selective;
  config.congestion_control = s.congestion_control;
  config.seed = seed;
  config.faults.least_delay = config.faults.most_delay = 20us;
  VirtualRing ring(config);
  VirtualNetwork& network = ring.network;
  Random random(seed);
  const Endpoint sender_host = endpoint_of(240, 1), receiver_host = endpoint_of(241, 1);
  CubicReceiver receiver(network, receiver_host, sender_host);
  CubicSender sender(network, sender_host, receiver_host);
  std::vector<Endpoint> behind{s.down ? receiver_host : sender_host};
  for (std::uint32_t lane = 0; lane < s.lanes; ++lane) behind.push_back(VirtualRing::address_of_host(0, lane));
  network.shape(behind, s.link);

  std::vector<std::vector<float>> tensors(ranks, std::vector<float>(s.elements, 1));
  std::uint64_t operations = 0;
  const Reducing job{.done = [&] { return ring.all_completed(operations); },
                     .begin =
                         [&] {
                           for (std::uint32_t rank = 0; rank < ranks; ++rank) {
                             ring.submit(rank, {.number = operations, .elements = s.elements, .data = tensors[rank].data()});
                           }
                           ++operations;
                         },
                     .bytes =
                         [&] {
                           double bytes = 0;
                           for (std::uint32_t lane = 0; lane < s.lanes; ++lane) {
                             bytes += static_cast<double>(ring.counters(lane).sums) * (mtu - 8);
                           }
                           return bytes;
                         }};
  const Shared shared = share_link(network, random, sender, receiver, job, s.before, s.during);
  const roce::QueuePairCounters& c = ring.host(s.down ? ranks - 1 : 0).sending();
  const double seconds = std::chrono::duration<double>(s.during).count();
  std::printf("%s, seed %lu: NetReduce %.1f Mbit/s, TCP %.1f; share %.3f; %lu notifications, %lu of %lu repeated\n", s.name,
              seed, shared.job * 8e-6 / seconds, shared.tcp * 8e-6 / seconds, shared.share(), c.notifications_received,
              c.retransmissions, c.packets_sent);
  return shared.share();
}

void expect_fair(const Setting& s) {
  testing::expect_fair([&](std::uint64_t seed) { return share_of(s, seed); });
}

TEST(NetreduceShare, OfShortTensors) {
  expect_fair({.name = "short tensors"});
}
TEST(NetreduceShare, OfLongTensors) {
  expect_fair({.name = "long tensors", .elements = 8'000'000});
}
// The successor of the rank before is told, and slows that one down: the sums of all come later.
TEST(NetreduceShare, OfTheWayOfSums) {
  expect_fair({.name = "the way of sums", .message_packets = 16, .down = true});
}
TEST(NetreduceShare, OfHostsThatGoBackWithLongWindows) {
  expect_fair(
      {.name = "go-back-N, windows of 256 packets", .elements = 8'000'000, .message_packets = 64, .selective = false});
}
TEST(NetreduceShare, OfFourLanes) {
  expect_fair({.name = "four lanes", .elements = 8'000'000, .lanes = 4});
}
TEST(NetreduceShare, OfAFasterLink) {
  expect_fair({.name = "100 Mbit/s",
               .elements = 8'000'000,
               .message_packets = 16,
               .link = {.bytes_per_second = 12.5e6, .queue = 256e3, .mark = 64e3, .delay = 1ms}});
}
TEST(NetreduceShare, OfAFastLink) {
  expect_fair({.name = "1 Gbit/s",
               .elements = 80'000'000,
               .message_packets = 64,
               .link = {.bytes_per_second = 125e6, .queue = 512e3, .mark = 128e3, .delay = 250us},
               .before = 1s,
               .during = 1s});
}
TEST(NetreduceShare, WithoutCongestionControlItIsMostOfTheLink) {
  EXPECT_LE(0.75, share_of({.name = "without", .elements = 8'000'000, .congestion_control = false}, 1));
}

}  // namespace
}  // namespace netsum::testing
