// The switches of a job in a tree of two levels, as they are shipped: a root, and a leaf for each rack. The first leaf may
// restart once, and has then lost the job.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/job.h"
#include "protocol/switchml/chip_switch.h"

namespace netsum::model {

// `Machine`: switchml::Switch or switchml::ChipSwitch.
template <class Machine>
class TreeSwitches {
 public:
  static constexpr bool is_chip = std::is_same_v<Machine, switchml::ChipSwitch>;

  explicit TreeSwitches(const Setup& setup) : may_restart_(setup.restarts), begins_anew_(setup.begins_anew) {
    const std::vector<std::uint32_t> epochs = rank_epochs(setup.workers);
    switchml::SwitchJobConfig root = config_of(setup);
    root.tree->rank_epochs = epochs;
    std::uint32_t rank = 0;
    for (std::uint32_t rack = 0; rack < setup.racks.size(); ++rack) {
      switchml::SwitchJobConfig leaf = config_of(setup);
      leaf.tree->parent = host(switch_host);
      leaf.tree->number = rack;
      leaf.tree->rank_epochs = epochs;
      wire::switchml::Ranks below;
      for (const std::uint32_t end = rank + setup.racks[rack]; rank < end; ++rank) {
        below.insert(rank);
        add_rank(leaf, rank, leaf_host(rack));
      }
      nodes_.emplace_back(leaf_host(rack), leaf);
      root.members.push_back({0, leaf_host(rack)});
      root.tree->below.push_back(below);
      root.tree->is_switch.push_back(true);
    }
    for (; rank < setup.workers; ++rank) {
      add_rank(root, rank, host(switch_host));
    }
    nodes_.emplace_back(host(switch_host), root);
  }

  [[nodiscard]] Endpoint of_rank(std::uint32_t rank) const { return places_[rank].first; }
  [[nodiscard]] std::uint32_t member_of(std::uint32_t rank) const { return places_[rank].second; }
  [[nodiscard]] bool is_at(const Endpoint& endpoint) const {
    return endpoint.address[15] > switch_host - nodes_.size() && endpoint.address[15] <= switch_host;
  }
  // The root, then the leaves.
  [[nodiscard]] std::vector<const switchml::Switch::Job*> jobs() const requires(!is_chip) {
    std::vector<const switchml::Switch::Job*> all{&nodes_.back().machine.job(job_epoch)};
    for (std::size_t i = 0; i + 1 < nodes_.size(); ++i) all.push_back(&nodes_[i].machine.job(job_epoch));
    return all;
  }
  [[nodiscard]] bool may_restart() const { return may_restart_; }
  [[nodiscard]] bool restarted() const { return restarted_; }
  void restart() {
    Node& leaf = nodes_.front();
    static_cast<void>(leaf.machine.remove_job(job_epoch));
    may_restart_ = false;
    if (begins_anew_) {
      leaf.add_job();
    } else {
      restarted_ = true;
    }
  }

  void on_packet(const RxView& packet, const Endpoint& to, Time now, Sink& sink) {
    for (Node& node : nodes_) {
      if (node.at == to) node.machine.on_packets({&packet, 1}, now, sink);
    }
  }
  void check() const {
    for (const Node& node : nodes_) {
      const switchml::JobCounters* const c = node.machine.job_counters(job_epoch);
      if (c != nullptr && c->dropped_early + c->dropped_mismatch + c->dropped_shape + c->dropped_slot +
                                  malformed_packets(node.machine.counters()) !=
                              0)
        throw Wrong("a switch met a packet that no correct worker or switch sends");
    }
  }
  void append_state(std::vector<std::byte>& out) const {
    append_bytes(out, may_restart_, restarted_);
    for (const Node& node : nodes_) node.machine.append_state(out);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Node {
    Node(const Endpoint& endpoint, const switchml::SwitchJobConfig& job)
        : at(endpoint), config(job), memory(Machine::memory_bytes(job) / sizeof(Line)) {
      add_job();
    }
    Node(const Node& other) : at(other.at), config(other.config), memory(other.memory), machine(other.machine) {
      if (machine.job_counters(job_epoch) != nullptr) {
        machine.move_memory(job_epoch, std::as_writable_bytes(std::span(memory)));
      }
    }
    Node(Node&&) = default;  // the memory stays where it is
    Node& operator=(const Node&) = delete;
    Node& operator=(Node&&) = delete;

    void add_job() {
      if (!machine.add_job(config, std::as_writable_bytes(std::span(memory)))) throw std::logic_error("add_job");
    }

    Endpoint at;
    switchml::SwitchJobConfig config;
    std::vector<Line> memory;
    Machine machine;
  };

  [[nodiscard]] static switchml::SwitchJobConfig config_of(const Setup& setup) {
    switchml::SwitchJobConfig config{job_epoch, packet_elements, setup.slots, {}};
    config.tree.emplace();
    return config;
  }
  void add_rank(switchml::SwitchJobConfig& config, std::uint32_t rank, const Endpoint& at) {
    places_.emplace_back(at, static_cast<std::uint32_t>(config.members.size()));
    wire::switchml::Ranks alone;
    alone.insert(rank);
    config.members.push_back({100 + rank, host(rank)});
    config.tree->below.push_back(alone);
    config.tree->is_switch.push_back(false);
  }
  [[nodiscard]] static Endpoint leaf_host(std::uint32_t rack) { return host(switch_host - 1 - rack); }

  std::vector<Node> nodes_;                                 // leaves, then the root
  std::vector<std::pair<Endpoint, std::uint32_t>> places_;  // by rank: its switch, and its number there
  bool may_restart_, begins_anew_, restarted_ = false;
};

}  // namespace netsum::model
