// A whole SwitchML job under a virtual clock: the real switch and worker objects on a virtual network.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/switchml/chip_switch.h"
#include "protocol/switchml/rdma_switch.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "support/virtual_job.h"
#include "support/virtual_network.h"
#include "wire/epochs.h"

namespace netsum::testing {

struct ClusterConfig {
  std::uint32_t workers = 2, lanes = 1, slots = 4, packet_elements = 256;
  std::uint64_t seed = 1;
  Faults faults{};
  bool chip = false;                  // profile
  bool rdma = false;                  // over UC: slots are messages of `packet_elements`
  std::vector<seal::PadKeys> pads{};  // by rank: sums are private
  std::optional<std::uint8_t> fixed_exponent{};
};

class VirtualCluster final : public VirtualJob {
 public:
  explicit VirtualCluster(const ClusterConfig& config)
      : VirtualJob(config.workers, config.lanes, config.seed, config.faults), config_(config) {
    for (std::uint32_t rank = 0; rank < config.workers; ++rank) rank_epochs_.push_back(1000 + rank);
    for (std::uint32_t lane = 0; lane < config.lanes; ++lane) add_lane(lane);
  }

  void submit(std::uint32_t rank, const stream::Operation& operation) {
    for (Lane& lane : lanes_) lane.workers[rank]->submit(operation);
  }

  [[nodiscard]] switchml::Worker& worker(std::uint32_t rank, std::uint32_t lane = 0) {
    return lanes_[lane].workers[rank]->worker;
  }
  [[nodiscard]] switchml::Switch& lane_switch(std::uint32_t lane = 0) { return lanes_[lane].aggregator->lane_switch; }
  [[nodiscard]] switchml::ChipSwitch& chip_switch(std::uint32_t lane = 0) { return lanes_[lane].aggregator->chip_switch; }
  [[nodiscard]] switchml::RdmaSwitch& rdma_switch(std::uint32_t lane = 0) { return lanes_[lane].aggregator->rdma_switch; }

  static constexpr std::uint64_t job_epoch = 0x1234567890abcdef;

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  struct SwitchNode final : VirtualNode {
    using VirtualNode::VirtualNode;
    void receive(const RxView& packet) override {
      if (rdma) return rdma_switch.on_packets({&packet, 1}, now(), sink);
      if (chip) return chip_switch.on_packets({&packet, 1}, now(), sink);
      lane_switch.on_packets({&packet, 1}, now(), sink);
    }

    bool chip = false, rdma = false;
    switchml::Switch lane_switch;
    switchml::ChipSwitch chip_switch;
    switchml::RdmaSwitch rdma_switch;
    std::vector<CacheLine> memory;
  };
  struct WorkerNode final : VirtualNode {
    WorkerNode(VirtualCluster& in, const Endpoint& self, const switchml::WorkerConfig& config)
        : VirtualNode(in.network, self), cluster(in), rank(config.rank), worker(config) {}

    void submit(const stream::Operation& operation) {
      if (!worker.submit(operation, now(), sink)) throw std::runtime_error("too many operations");
      sink.flush();
      cluster.completed(rank, worker.take_completed());
    }
    void receive(const RxView& packet) override {
      worker.on_packets({&packet, 1}, now(), sink);
      cluster.completed(rank, worker.take_completed());
    }
    [[nodiscard]] Time next_timeout() const override { return worker.next_timeout(); }
    void on_timer() override { worker.on_timer(now(), sink); }

    VirtualCluster& cluster;
    std::uint32_t rank;
    switchml::Worker worker;
  };
  struct Lane {
    std::unique_ptr<SwitchNode> aggregator;
    std::vector<std::unique_ptr<WorkerNode>> workers;
  };

  void add_lane(std::uint32_t number) {
    Lane& lane = lanes_.emplace_back();
    const auto port = static_cast<std::uint16_t>(7170 + number);
    lane.aggregator = std::make_unique<SwitchNode>(network, endpoint_of(255, port));
    switchml::SwitchJobConfig job{job_epoch, config_.packet_elements, config_.slots, {}};
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
      job.members.push_back({rank_epochs_[rank], endpoint_of(static_cast<std::uint8_t>(rank), port)});
    }
    lane.aggregator->chip = config_.chip;
    lane.aggregator->rdma = config_.rdma;
    auto& memory = lane.aggregator->memory;
    memory.resize((config_.rdma ? switchml::RdmaSwitch::memory_bytes(config_.packet_elements, config_.slots)
                   : config_.chip
                       ? switchml::ChipSwitch::memory_bytes(config_.packet_elements, config_.slots)
                       : switchml::Switch::memory_bytes(config_.packet_elements, config_.slots, config_.workers)) /
                  sizeof(CacheLine));
    const auto bytes = std::as_writable_bytes(std::span(memory));
    if (!(config_.rdma   ? lane.aggregator->rdma_switch.add_job(job, bytes)
          : config_.chip ? lane.aggregator->chip_switch.add_job(job, bytes)
                         : lane.aggregator->lane_switch.add_job(job, bytes))) {
      throw std::runtime_error("add_job failed");
    }
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
      switchml::WorkerConfig w;
      w.job_epoch = job_epoch;
      w.rank = rank;
      w.world_size = config_.workers;
      w.rank_epoch = rank_epochs_[rank];
      w.folded_epochs = wire::fold_epochs(rank_epochs_);
      w.packet_elements = config_.packet_elements;
      w.slots = config_.slots;
      w.lane = number;
      w.lanes = config_.lanes;
      w.aggregator = lane.aggregator->self();
      w.chip = config_.chip;
      if (config_.rdma) w.rdma = job.members[rank].endpoint.address;
      w.member = rank;
      if (!config_.pads.empty()) w.pads = config_.pads[rank];
      w.fixed_exponent = config_.fixed_exponent;
      lane.workers.push_back(std::make_unique<WorkerNode>(*this, job.members[rank].endpoint, w));
    }
  }

  ClusterConfig config_;
  std::vector<std::uint32_t> rank_epochs_;
  std::vector<Lane> lanes_;
};

}  // namespace netsum::testing
