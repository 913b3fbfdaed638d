// A SwitchML job in a tree of switches under a virtual clock: the real switch and worker objects on a virtual network, whose
// links all have the same rate: from each rank to its switch, and from each switch to its parent.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "protocol/switchml/chip_switch.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "support/virtual_job.h"
#include "support/virtual_network.h"
#include "wire/epochs.h"

namespace netsum::testing {

struct TreeConfig {
  // How many switches each level has, from the root's children downwards, and the ranks at each switch of the last level.
  // Empty: all ranks are at the root.
  std::vector<std::uint32_t> levels{};
  std::uint32_t ranks_per_switch = 2;
  std::uint32_t slots = 4, packet_elements = 256;
  std::uint64_t seed = 1;
  Faults faults{};
  Link link{};
};

// `Machine`: switchml::Switch or switchml::ChipSwitch.
template <class Machine>
class VirtualTreeOf final : public VirtualJob {
 public:
  explicit VirtualTreeOf(const TreeConfig& config)
      : VirtualJob(ranks_of(config), 1, config.seed, config.faults), config_(config) {
    const std::uint32_t ranks = ranks_of(config);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) rank_epochs_.push_back(1000 + rank);
    add_switches(0, 0, 0, ranks, nullptr, 0);
  }

  void submit(std::uint32_t rank, const stream::Operation& operation) { workers_.at(rank)->submit(operation); }
  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(rank_epochs_.size()); }
  [[nodiscard]] const switchml::WorkerCounters& counters(std::uint32_t rank) const {
    return workers_.at(rank)->worker.counters();
  }
  // The root first, then each with the switches below it.
  [[nodiscard]] std::size_t switches() const { return switches_.size(); }
  [[nodiscard]] const switchml::JobCounters& switch_counters(std::size_t number) const {
    return *switches_.at(number)->machine.job_counters(job_epoch);
  }

 private:
  static constexpr std::uint64_t job_epoch = 0x1234567890abcdef;
  static constexpr std::uint8_t of_rank = 1, of_switch = 2;

  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  struct SwitchNode final : VirtualNode {
    using VirtualNode::VirtualNode;
    void receive(const RxView& packet) override { machine.on_packets({&packet, 1}, now(), sink); }

    Machine machine;
    std::vector<CacheLine> memory;
  };
  struct WorkerNode final : VirtualNode {
    WorkerNode(VirtualTreeOf& in, const Endpoint& self, const switchml::WorkerConfig& config)
        : VirtualNode(in.network, self), tree(in), rank(config.rank), worker(config) {}

    void submit(const stream::Operation& operation) {
      if (!worker.submit(operation, now(), sink)) throw std::runtime_error("too many operations");
      sink.flush();
    }
    void receive(const RxView& packet) override {
      worker.on_packets({&packet, 1}, now(), sink);
      tree.completed(rank, worker.take_completed());
    }
    [[nodiscard]] Time next_timeout() const override { return worker.next_timeout(); }
    void on_timer() override { worker.on_timer(now(), sink); }

    VirtualTreeOf& tree;
    std::uint32_t rank;
    switchml::Worker worker;
  };

  [[nodiscard]] static std::uint32_t ranks_of(const TreeConfig& config) {
    return (config.levels.empty() ? 1 : config.levels.back()) * config.ranks_per_switch;
  }
  [[nodiscard]] static Endpoint endpoint(std::uint8_t kind, std::uint32_t number) {
    return {.address = {0xfd, kind, static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)},
            .port = 7170};
  }

  // The switch at this place of its level, with all below it, for the ranks [first, first + count).
  Endpoint add_switches(std::size_t level, std::uint32_t number, std::uint32_t first, std::uint32_t count,
                        const Endpoint* parent, std::uint32_t number_there) {
    const Endpoint self = endpoint(of_switch, static_cast<std::uint32_t>(level << 8) | number);
    SwitchNode& node = *switches_.emplace_back(std::make_unique<SwitchNode>(network, self));
    switchml::SwitchJobConfig job{job_epoch, config_.packet_elements, config_.slots, {}};
    job.tree.emplace();
    job.tree->rank_epochs = rank_epochs_;
    if (parent != nullptr) {
      job.tree->parent = *parent;
      job.tree->number = number_there;
      network.shape_between(self, *parent, config_.link);
    }
    const bool last = level == config_.levels.size();
    const std::uint32_t above = level == 0 ? 1 : config_.levels[level - 1];
    const std::uint32_t members = last ? count : config_.levels[level] / above;
    for (std::uint32_t i = 0; i < members; ++i) {
      const std::uint32_t each = count / members, from = first + i * each;
      wire::switchml::Ranks below;
      for (std::uint32_t rank = from; rank < from + each; ++rank) below.insert(rank);
      const Endpoint member =
          last ? endpoint(of_rank, from) : add_switches(level + 1, number * members + i, from, each, &self, i);
      job.members.push_back({last ? rank_epochs_[from] : 0, member});
      job.tree->below.push_back(below);
      job.tree->is_switch.push_back(!last);
      if (last) add_rank(from, member, self, i);
    }
    node.memory.resize(Machine::memory_bytes(job) / sizeof(CacheLine));
    if (!node.machine.add_job(job, std::as_writable_bytes(std::span(node.memory)))) throw std::runtime_error("add_job");
    return self;
  }

  void add_rank(std::uint32_t rank, const Endpoint& self, const Endpoint& at, std::uint32_t number_there) {
    switchml::WorkerConfig w;
    w.job_epoch = job_epoch;
    w.rank = rank;
    w.world_size = ranks();
    w.rank_epoch = rank_epochs_[rank];
    w.folded_epochs = wire::fold_epochs(rank_epochs_);
    w.packet_elements = config_.packet_elements;
    w.slots = config_.slots;
    w.aggregator = at;
    w.in_tree = !config_.levels.empty();
    w.chip = std::is_same_v<Machine, switchml::ChipSwitch>;
    w.member = number_there;
    workers_.push_back(std::make_unique<WorkerNode>(*this, self, w));
    network.shape_between(self, at, config_.link);
  }

  TreeConfig config_;
  std::vector<std::uint32_t> rank_epochs_;
  std::vector<std::unique_ptr<SwitchNode>> switches_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;
};

using VirtualTree = VirtualTreeOf<switchml::Switch>;
using VirtualChips = VirtualTreeOf<switchml::ChipSwitch>;

}  // namespace netsum::testing
