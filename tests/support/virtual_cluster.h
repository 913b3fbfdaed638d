// A whole SwitchML job under a virtual clock: the real switch and worker objects on a virtual network.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "support/virtual_network.h"

namespace netsum::testing {

struct ClusterConfig {
  std::uint32_t workers = 2, lanes = 1, slots = 4, packet_elements = 256;
  std::uint64_t seed = 1;
  Faults faults{};
};

class VirtualCluster {
 public:
  explicit VirtualCluster(const ClusterConfig& config) : config_(config), network(config.seed, config.faults) {
    for (std::uint32_t rank = 0; rank < config.workers; ++rank) rank_epochs_.push_back(1000 + rank);
    for (std::uint32_t lane = 0; lane < config.lanes; ++lane) add_lane(lane);
    completed_.resize(config.workers);
  }

  void submit(std::uint32_t rank, const stream::Operation& operation) {
    for (std::uint32_t lane = 0; lane < config_.lanes; ++lane) {
      Node& node = worker_node(lane, rank);
      node.sink->now = now;
      if (!node.worker->submit(operation, now, *node.sink)) throw std::runtime_error("too many operations");
      node.sink->flush();
      collect(rank, node);
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

  // Delivers or times out the next thing; false if there is none before `end` (time then stands at `end`).
  bool step(Time end) {
    Time next = network.next();
    Node* timed = nullptr;
    for (auto& node : nodes_) {
      if (node->worker && !node->paused && node->worker->next_timeout() < next) {
        next = node->worker->next_timeout();
        timed = node.get();
      }
    }
    if (next > end || next == never) {
      now = end;
      return false;
    }
    now = std::max(now, next);
    if (timed != nullptr) {
      timed->sink->now = now;
      timed->worker->on_timer(now, *timed->sink);
      timed->sink->flush();
      return true;
    }
    const auto delivery = network.take();
    for (auto& node : nodes_) {
      if (node->self != delivery.to) continue;
      node->sink->now = now;
      const RxView view{delivery.bytes, delivery.from};
      if (node->worker) {
        node->worker->on_packets({&view, 1}, now, *node->sink);
        collect(node->rank, *node);
      } else {
        node->lane_switch->on_packets({&view, 1}, now, *node->sink);
      }
      node->sink->flush();
    }
    return true;
  }

  [[nodiscard]] bool all_completed(std::size_t operations) const {
    return std::all_of(completed_.begin(), completed_.end(), [&](const auto& counts) {
      return static_cast<std::size_t>(std::count(counts.begin(), counts.end(), config_.lanes)) >= operations;
    });
  }

  [[nodiscard]] switchml::Worker& worker(std::uint32_t rank, std::uint32_t lane = 0) {
    return *worker_node(lane, rank).worker;
  }
  [[nodiscard]] switchml::Switch& lane_switch(std::uint32_t lane = 0) {
    return *nodes_[lane * (config_.workers + 1)]->lane_switch;
  }
  [[nodiscard]] VirtualSink& sink_of_switch(std::uint32_t lane = 0) { return *nodes_[lane * (config_.workers + 1)]->sink; }

  static constexpr std::uint64_t job_epoch = 0x1234567890abcdef;

 private:
  struct Node {
    Endpoint self;
    std::uint32_t rank = 0;
    bool paused = false;
    std::unique_ptr<VirtualSink> sink;
    std::unique_ptr<switchml::Switch> lane_switch;
    std::unique_ptr<switchml::Worker> worker;
  };

  Node& worker_node(std::uint32_t lane, std::uint32_t rank) { return *nodes_[lane * (config_.workers + 1) + 1 + rank]; }

  void add_lane(std::uint32_t lane) {
    auto node = std::make_unique<Node>();
    const auto port = static_cast<std::uint16_t>(7170 + lane);
    node->self = endpoint_of(255, port);
    node->sink = std::make_unique<VirtualSink>(network, node->self);
    node->lane_switch = std::make_unique<switchml::Switch>();
    switchml::SwitchJobConfig job{job_epoch, config_.packet_elements, config_.slots, {}};
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
      job.members.push_back({rank_epochs_[rank], endpoint_of(static_cast<std::uint8_t>(rank), port)});
    }
    memory_.push_back(std::make_unique<Memory>(
        switchml::Switch::memory_bytes(config_.packet_elements, config_.slots, config_.workers) / sizeof(CacheLine)));
    if (!node->lane_switch->add_job(job, std::as_writable_bytes(std::span(*memory_.back())))) {
      throw std::runtime_error("add_job failed");
    }
    const Endpoint aggregator = node->self;
    nodes_.push_back(std::move(node));
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
      auto worker = std::make_unique<Node>();
      worker->self = job.members[rank].endpoint;
      worker->rank = rank;
      worker->sink = std::make_unique<VirtualSink>(network, worker->self);
      switchml::WorkerConfig w;
      w.job_epoch = job_epoch;
      w.rank = rank;
      w.world_size = config_.workers;
      w.rank_epoch = rank_epochs_[rank];
      w.folded_epochs = wire::fold_epochs(rank_epochs_);
      w.packet_elements = config_.packet_elements;
      w.slots = config_.slots;
      w.lane = lane;
      w.lanes = config_.lanes;
      w.aggregator = aggregator;
      worker->worker = std::make_unique<switchml::Worker>(w);
      nodes_.push_back(std::move(worker));
    }
  }

  void collect(std::uint32_t rank, Node& node) {
    for (const std::uint64_t number : node.worker->take_completed()) {
      if (completed_[rank].size() <= number) completed_[rank].resize(number + 1);
      ++completed_[rank][number];
    }
  }

  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  using Memory = std::vector<CacheLine>;

  ClusterConfig config_;

 public:
  VirtualNetwork network;
  Time now{};

 private:
  std::vector<std::uint32_t> rank_epochs_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::vector<std::uint32_t>> completed_;  // [rank][operation]: lanes that are done
};

}  // namespace netsum::testing
