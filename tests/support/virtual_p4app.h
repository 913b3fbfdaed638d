// A job of p4lang/p4app-switchML under a virtual clock: our switch and workers on a virtual network.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "protocol/p4app/switch.h"
#include "protocol/p4app/worker.h"
#include "support/virtual_network.h"

namespace netsum::testing {

struct P4appConfig {
  std::uint32_t workers = 2, window = 4, elements = 64;
  std::uint64_t seed = 1;
  Faults faults{};
};

class VirtualP4app {
 public:
  explicit VirtualP4app(const P4appConfig& config)
      : network(config.seed, config.faults), switch_node_(network, endpoint_of(255, wire::p4app::switch_port)) {
    aggregator().begin(config.workers, config.elements);
    for (std::uint32_t rank = 0; rank < config.workers; ++rank) {
      p4app::WorkerConfig worker;
      worker.world_size = config.workers;
      worker.elements = config.elements;
      worker.window = config.window;
      worker.aggregator = switch_node_.self();
      const Endpoint self = endpoint_of(static_cast<std::uint8_t>(rank), wire::p4app::first_worker_port);
      aggregator().set_worker(rank, self);
      workers_.push_back(std::make_unique<WorkerNode>(network, self, worker));
    }
  }

  // In their places. False: it did not end within a virtual minute.
  template <class Element>
  bool all_reduce(std::vector<std::vector<Element>>& tensors, DType dtype) {
    for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
      WorkerNode& node = *workers_[rank];
      node.worker.begin(dtype, std::as_writable_bytes(std::span(tensors[rank])), node.now(), node.sink);
      node.sink.flush();
    }
    const Time end = network.now + std::chrono::minutes(1);
    const auto busy = [](const auto& node) { return node->worker.busy(); };
    while (std::any_of(workers_.begin(), workers_.end(), busy)) {
      if (!network.step(end)) return false;
    }
    return true;
  }

  [[nodiscard]] p4app::Switch& aggregator() { return switch_node_.lane_switch; }
  [[nodiscard]] const p4app::Worker& worker(std::uint32_t rank) const { return workers_[rank]->worker; }

  VirtualNetwork network;

 private:
  struct SwitchNode final : VirtualNode {
    using VirtualNode::VirtualNode;
    void receive(const RxView& packet) override { lane_switch.on_packets({&packet, 1}, now(), sink); }

    p4app::Switch lane_switch;
  };
  struct WorkerNode final : VirtualNode {
    WorkerNode(VirtualNetwork& in, const Endpoint& self, const p4app::WorkerConfig& config)
        : VirtualNode(in, self), worker(config) {}
    void receive(const RxView& packet) override { worker.on_packets({&packet, 1}, now(), sink); }
    [[nodiscard]] Time next_timeout() const override { return worker.next_timeout(); }
    void on_timer() override { worker.on_timer(now(), sink); }

    p4app::Worker worker;
  };

  SwitchNode switch_node_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;
};

}  // namespace netsum::testing
