// A whole NetReduce job under a virtual clock: the real hosts, with queue pairs of their own, and accelerators behind
// tunnels, on a virtual network.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "protocol/netreduce/racks.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/netreduce/tunnel.h"
#include "support/virtual_network.h"

namespace netsum::testing {

struct RingJobConfig {
  std::uint32_t ranks = 2, lanes = 1, window = 2, message_packets = 4, mtu = 256;
  std::uint32_t first_psn = 0xfffff0;  // of rank 0; the other ranks' are elsewhere
  netreduce::Order order = netreduce::Order::ring;
  netreduce::Tree tree{};  // of switches; empty: one accelerator
  std::uint64_t seed = 1;
  Faults faults{};
};

class VirtualRing {
 public:
  explicit VirtualRing(const RingJobConfig& config) : network(config.seed, config.faults), config_(config) {
    for (std::uint32_t lane = 0; lane < config.lanes; ++lane) add_lane(lane);
    completed_.resize(config.ranks);
  }

  void submit(std::uint32_t rank, const stream::Operation& operation) {
    for (Lane& lane : lanes_) {
      Host& host = lane.hosts[rank];
      host.sink->now = now;
      if (!host.host->submit(operation, now, *host.sink)) throw std::runtime_error("too many operations");
      host.sink->flush();
      collect(rank, host);
    }
  }

  // Runs until every rank has completed `operations` operations on every lane, or virtual time ends. Whether it did.
  bool run(std::size_t operations, Duration limit = std::chrono::seconds(60)) {
    const Time end = now + limit;
    while (!all_completed(operations)) {
      if (!step(end)) return false;
    }
    return true;
  }
  // Likewise, until everybody has all that he may still need of others.
  bool drain(Duration limit = std::chrono::seconds(60)) {
    const Time end = now + limit;
    const auto drained = [](const Lane& lane) {
      return std::all_of(lane.hosts.begin(), lane.hosts.end(), [](const Host& host) { return host.host->drained(); });
    };
    while (!std::all_of(lanes_.begin(), lanes_.end(), drained)) {
      if (!step(end)) return false;
    }
    return true;
  }

  // Delivers or times out the next thing; false if there is none before `end` (time then stands at `end`).
  bool step(Time end) {
    Time next = network.next();
    Host* timed = nullptr;
    for (Lane& lane : lanes_) {
      for (Host& host : lane.hosts) {
        if (host.host->next_timeout() >= next) continue;
        next = host.host->next_timeout();
        timed = &host;
      }
    }
    if (next > end || next == never) {
      now = end;
      return false;
    }
    now = std::max(now, next);
    if (timed != nullptr) {
      timed->sink->now = now;
      timed->host->on_timer(now, *timed->sink);
      timed->sink->flush();
      return true;
    }
    const auto delivery = network.take();
    const RxView view{delivery.bytes, delivery.from};
    for (Lane& lane : lanes_) {
      for (Switch& each : lane.switches) {
        if (each.self != delivery.to) continue;
        each.sink->now = now;
        each.tunnel->on_packets({&view, 1}, now, *each.sink);
        each.sink->flush();
        each.tunnel->accelerator().check();
        ++each.received;
      }
      for (std::uint32_t rank = 0; rank < config_.ranks; ++rank) {
        Host& host = lane.hosts[rank];
        if (host.self != delivery.to) continue;
        host.sink->now = now;
        host.host->on_packets({&view, 1}, now, *host.sink);
        host.sink->flush();
        ++host.received;
        collect(rank, host);
      }
    }
    return true;
  }

  [[nodiscard]] bool all_completed(std::size_t operations) const {
    return std::all_of(completed_.begin(), completed_.end(), [&](const auto& counts) {
      return static_cast<std::size_t>(std::count(counts.begin(), counts.end(), config_.lanes)) >= operations;
    });
  }

  [[nodiscard]] netreduce::RoceHost& host(std::uint32_t rank, std::uint32_t lane = 0) {
    return *lanes_[lane].hosts[rank].host;
  }
  // The root's; those of the tree's switches follow it.
  [[nodiscard]] netreduce::Tunnel& tunnel(std::uint32_t lane = 0, std::size_t a_switch = 0) {
    return *lanes_[lane].switches[a_switch].tunnel;
  }
  [[nodiscard]] const netreduce::RingCounters& counters(std::uint32_t lane = 0, std::size_t a_switch = 0) const {
    return *lanes_[lane].switches[a_switch].tunnel->accelerator().ring_counters(incarnation_of(lane));
  }
  // Datagrams that were delivered to them.
  [[nodiscard]] std::uint64_t received_by_tunnel(std::uint32_t lane = 0) const { return lanes_[lane].switches[0].received; }
  [[nodiscard]] std::uint64_t received_by_host(std::uint32_t rank, std::uint32_t lane = 0) const {
    return lanes_[lane].hosts[rank].received;
  }
  [[nodiscard]] static std::uint64_t incarnation_of(std::uint32_t lane) { return 0x1234567890abcdef + lane; }
  [[nodiscard]] static Endpoint address_of_switch(std::uint32_t a_switch, std::uint32_t lane = 0) {
    const std::uint32_t number = a_switch == netreduce::at_root ? 255 : 254 - a_switch;
    return endpoint_of(static_cast<std::uint8_t>(number), static_cast<std::uint16_t>(7170 + lane));
  }
  [[nodiscard]] static Endpoint address_of_host(std::uint32_t rank, std::uint32_t lane = 0) {
    return endpoint_of(static_cast<std::uint8_t>(rank), static_cast<std::uint16_t>(7170 + lane));
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Host {
    Endpoint self;
    std::unique_ptr<VirtualSink> sink;
    std::unique_ptr<netreduce::RoceHost> host;
    std::uint64_t received = 0;
  };
  struct Switch {
    Endpoint self;
    std::unique_ptr<VirtualSink> sink;
    std::unique_ptr<netreduce::Tunnel> tunnel;
    std::vector<Line> memory;
    std::uint64_t received = 0;
  };
  struct Lane {
    std::vector<Switch> switches;  // the root, then the tree's
    std::vector<Host> hosts;
  };

  [[nodiscard]] Switch make_switch(std::uint32_t a_switch, std::uint32_t lane, const netreduce::RingConfig& config,
                                   const std::vector<netreduce::Member>& members, const netreduce::Tree& tree) {
    Switch made;
    made.self = address_of_switch(a_switch, lane);
    made.sink = std::make_unique<VirtualSink>(network, made.self);
    made.tunnel = std::make_unique<netreduce::Tunnel>();
    const netreduce::Places places{[&](std::uint32_t rank) { return address_of_host(rank, lane); },
                                   [&](std::uint32_t other) { return address_of_switch(other, lane); }};
    const auto ring = netreduce::tunnel_ring(config, members, tree, a_switch, places);
    if (const std::string error = netreduce::check(ring.ring); !error.empty()) throw std::runtime_error(error);
    made.memory.resize(netreduce::Accelerator::memory_bytes(ring.ring) / sizeof(Line));
    if (!made.tunnel->add_ring(ring, std::as_writable_bytes(std::span(made.memory)))) {
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
    ring.window = config_.window;
    ring.message_packets = config_.message_packets;
    ring.mtu = config_.mtu;
    ring.order = config_.order;
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
    for (std::uint32_t a_switch = 0; a_switch < tree.parent_of_switch.size(); ++a_switch) {
      lane.switches.push_back(make_switch(a_switch, number, ring, members, tree));
    }
    for (std::uint32_t rank = 0; rank < config_.ranks; ++rank) {
      netreduce::RoceHostConfig c;
      c.worker.incarnation = ring.incarnation;
      c.worker.ring = number;
      c.worker.rank = rank;
      c.worker.world_size = config_.ranks;
      c.worker.lane = number;
      c.worker.lanes = config_.lanes;
      c.worker.window = config_.window;
      c.worker.message_packets = config_.message_packets;
      c.worker.mtu = config_.mtu;
      c.self = members[rank];
      c.successor = members[(rank + 1) % config_.ranks];
      c.predecessor = members[(rank + config_.ranks - 1) % config_.ranks];
      c.accelerator = address_of_switch(tree.switch_of_rank[rank], number);
      Host host;
      host.self = address_of_host(rank, number);
      host.sink = std::make_unique<VirtualSink>(network, host.self);
      host.host = std::make_unique<netreduce::RoceHost>(c);
      lane.hosts.push_back(std::move(host));
    }
  }

  void collect(std::uint32_t rank, Host& host) {
    for (const std::uint64_t number : host.host->take_completed()) {
      if (completed_[rank].size() <= number) completed_[rank].resize(number + 1);
      ++completed_[rank][number];
    }
  }

 public:
  VirtualNetwork network;
  Time now{};

 private:
  RingJobConfig config_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<std::uint32_t>> completed_;  // [rank][operation]: lanes that are done
};

}  // namespace netsum::testing
