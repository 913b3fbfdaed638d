// A whole NetReduce job under a virtual clock: the real hosts, with queue pairs of their own, and accelerators behind
// tunnels, on a virtual network.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "protocol/netreduce/racks.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/netreduce/tunnel.h"
#include "support/virtual_job.h"
#include "support/virtual_network.h"

namespace netsum::testing {

struct RingJobConfig {
  std::uint32_t ranks = 2, lanes = 1, window = 2, message_packets = 4, mtu = 256;
  std::uint32_t first_psn = 0xfffff0;  // of rank 0; the other ranks' are elsewhere
  netreduce::Order order = netreduce::Order::ring;
  bool selective = false;
  bool naks_pass = false;  // as those of foreign hosts do
  bool congestion_control = true;
  netreduce::Tree tree{};             // of switches; empty: one accelerator
  std::vector<seal::PadKeys> pads{};  // by rank: sums are private
  std::uint64_t seed = 1;
  Faults faults{};
};

class VirtualRing final : public VirtualJob {
 public:
  explicit VirtualRing(const RingJobConfig& config)
      : VirtualJob(config.ranks, config.lanes, config.seed, config.faults), config_(config) {
    for (std::uint32_t lane = 0; lane < config.lanes; ++lane) add_lane(lane);
  }

  void submit(std::uint32_t rank, const stream::Operation& operation) {
    for (Lane& lane : lanes_) lane.hosts[rank]->submit(operation);
  }

  // Runs until everybody has all that he may still need of others, or virtual time ends. Whether everybody has.
  bool drain(Duration limit = std::chrono::seconds(60)) {
    const auto drained = [](const Lane& lane) {
      return std::all_of(lane.hosts.begin(), lane.hosts.end(), [](const auto& host) { return host->host.drained(); });
    };
    return run_until([&] { return std::all_of(lanes_.begin(), lanes_.end(), drained); }, limit);
  }

  // Below one accelerator, of ranks that have all that they called for.
  void expect_counters_add_up() {
    const auto sum = [](const auto& kinds) { return std::accumulate(std::begin(kinds), std::end(kinds), std::uint64_t{0}); };
    for (std::uint32_t lane = 0; lane < config_.lanes; ++lane) {
      const netreduce::TunnelCounters& t = tunnel(lane).counters();
      EXPECT_EQ(lanes_[lane].switches[0]->received, sum(t.malformed) + t.unknown + t.dropped_source + t.passed + t.taken);
      const netreduce::RingCounters& c = counters(lane);
      EXPECT_EQ(t.taken, c.packets);
      EXPECT_EQ(c.contributions, c.sums * config_.ranks);
      // Hosts that keep to their rules.
      EXPECT_EQ(0U, c.dropped_header + c.dropped_early + c.dropped_misplaced + c.dropped_mismatch + c.dropped_shape);
      EXPECT_EQ(0U, tunnel(lane).accelerator().counters().dropped_known);
      for (const auto& node : lanes_[lane].hosts) {
        const netreduce::RoceHostCounters& h = node->host.counters();
        EXPECT_EQ(node->received, h.packets + sum(h.malformed) + h.dropped_icrc + h.foreign);
        EXPECT_EQ("", node->host.failure());
        EXPECT_TRUE(node->host.worker().idle());
      }
    }
  }

  [[nodiscard]] netreduce::RoceHost& host(std::uint32_t rank, std::uint32_t lane = 0) {
    return lanes_[lane].hosts[rank]->host;
  }
  // The root's; those of the tree's switches follow it.
  [[nodiscard]] netreduce::Tunnel& tunnel(std::uint32_t lane = 0, std::size_t switch_id = 0) {
    return lanes_[lane].switches[switch_id]->tunnel;
  }
  [[nodiscard]] const netreduce::RingCounters& counters(std::uint32_t lane = 0, std::size_t switch_id = 0) const {
    return *lanes_[lane].switches[switch_id]->tunnel.accelerator().ring_counters(incarnation_of(lane));
  }
  [[nodiscard]] static std::uint64_t incarnation_of(std::uint32_t lane) { return 0x1234567890abcdef + lane; }
  [[nodiscard]] static Endpoint address_of_switch(std::uint32_t switch_id, std::uint32_t lane = 0) {
    const std::uint32_t number = switch_id == netreduce::at_root ? 255 : 254 - switch_id;
    return endpoint_of(static_cast<std::uint8_t>(number), static_cast<std::uint16_t>(7170 + lane));
  }
  [[nodiscard]] static Endpoint address_of_host(std::uint32_t rank, std::uint32_t lane = 0) {
    return endpoint_of(static_cast<std::uint8_t>(rank), static_cast<std::uint16_t>(7170 + lane));
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Host final : VirtualNode {
    Host(VirtualRing& in, const Endpoint& self, const netreduce::RoceHostConfig& config)
        : VirtualNode(in.network, self), ring(in), rank(config.worker.rank), host(config) {}

    void submit(const stream::Operation& operation) {
      if (!host.submit(operation, now(), sink)) throw std::runtime_error("too many operations");
      sink.flush();
      ring.completed(rank, host.take_completed());
    }
    void receive(const RxView& packet) override {
      host.on_packets({&packet, 1}, now(), sink);
      ++received;
      ring.completed(rank, host.take_completed());
    }
    [[nodiscard]] Time next_timeout() const override { return host.next_timeout(); }
    void on_timer() override { host.on_timer(now(), sink); }

    VirtualRing& ring;
    std::uint32_t rank;
    netreduce::RoceHost host;
    std::uint64_t received = 0;
  };
  struct Switch final : VirtualNode {
    using VirtualNode::VirtualNode;
    void receive(const RxView& packet) override {
      tunnel.on_packets({&packet, 1}, now(), sink);
      tunnel.accelerator().check();
      ++received;
    }

    netreduce::Tunnel tunnel;
    std::vector<Line> memory;
    std::uint64_t received = 0;
  };
  struct Lane {
    std::vector<std::unique_ptr<Switch>> switches;  // the root, then the tree's
    std::vector<std::unique_ptr<Host>> hosts;
  };

  [[nodiscard]] std::unique_ptr<Switch> make_switch(std::uint32_t switch_id, std::uint32_t lane,
                                                    const netreduce::RingConfig& config,
                                                    const std::vector<netreduce::Member>& members,
                                                    const netreduce::Tree& tree) {
    auto made = std::make_unique<Switch>(network, address_of_switch(switch_id, lane));
    const netreduce::Places places{[&](std::uint32_t rank) { return address_of_host(rank, lane); },
                                   [&](std::uint32_t other) { return address_of_switch(other, lane); }};
    auto ring = netreduce::tunnel_ring(config, members, tree, switch_id, places);
    for (netreduce::Line& line : ring.ring.lines) {
      if (config_.naks_pass) line.answers.reset();
    }
    if (const std::string error = netreduce::check(ring.ring); !error.empty()) throw std::runtime_error(error);
    made->memory.resize(netreduce::Accelerator::memory_bytes(ring.ring) / sizeof(Line));
    if (!made->tunnel.add_ring(ring, std::as_writable_bytes(std::span(made->memory)))) {
      throw std::runtime_error("add_ring failed");
    }
    return made;
  }

  void add_lane(std::uint32_t number) {
    Lane& lane = lanes_.emplace_back();
    netreduce::RingConfig ring;
    ring.incarnation = incarnation_of(number);
    ring.ring = number;
    ring.members = config_.ranks;
    // As the product has it, whose own hosts repeat single packets.
    ring.window = config_.selective ? netreduce::roomy_window(config_.window, config_.message_packets) : config_.window;
    ring.message_packets = config_.message_packets;
    ring.mtu = config_.mtu;
    ring.tunnelled = true;
    ring.order = config_.order;
    ring.selective = config_.selective;
    std::vector<netreduce::Member> members;
    for (std::uint32_t rank = 0; rank < config_.ranks; ++rank) {
      netreduce::Member& member = members.emplace_back();
      member.address = address_of_host(rank, number).address;
      member.send_qp = 2 * number;  // equal numbers on all hosts are the normal case
      member.receive_qp = 2 * number + 1;
      member.send_psn = (config_.first_psn + rank * 0x333333) & wire::roce::psn_mask;
      member.memory_address = 0x10000001 * (rank + 1);
      member.memory_key = 77 + rank;
    }
    netreduce::Tree tree = config_.tree;
    tree.switch_of_rank.resize(config_.ranks, netreduce::at_root);
    lane.switches.push_back(make_switch(netreduce::at_root, number, ring, members, tree));
    for (std::uint32_t switch_id = 0; switch_id < tree.parent_of_switch.size(); ++switch_id) {
      lane.switches.push_back(make_switch(switch_id, number, ring, members, tree));
    }
    for (std::uint32_t rank = 0; rank < config_.ranks; ++rank) {
      netreduce::RoceHostConfig c;
      c.worker.incarnation = ring.incarnation;
      c.worker.ring = number;
      c.worker.rank = rank;
      if (!config_.pads.empty()) c.worker.pads = config_.pads[rank];
      c.worker.world_size = config_.ranks;
      c.worker.lane = number;
      c.worker.lanes = config_.lanes;
      c.worker.window = config_.window;
      c.worker.message_packets = config_.message_packets;
      c.worker.mtu = config_.mtu;
      c.selective = config_.selective;
      c.congestion_control = config_.congestion_control;
      c.self = members[rank];
      c.successor = members[(rank + 1) % config_.ranks];
      c.predecessor = members[(rank + config_.ranks - 1) % config_.ranks];
      c.buffers = 2 * ring.window;
      c.accelerator = address_of_switch(tree.switch_of_rank[rank], number);
      lane.hosts.push_back(std::make_unique<Host>(*this, address_of_host(rank, number), c));
    }
  }

  RingJobConfig config_;
  std::vector<Lane> lanes_;
};

}  // namespace netsum::testing
