// Experiments as tests put them together: a job over a star or a tree.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/experiment.h"
#include "sim/topology.h"

namespace netsum::sim {

inline constexpr std::uint64_t gigabit = 1'000'000'000;

inline Experiment on(Topology topology, const std::string& protocol = "switchml") {
  Experiment experiment;
  experiment.topology = std::move(topology);
  experiment.protocol = protocol;
  experiment.aggregators = {0};
  return experiment;
}

inline Uniform links(PortPlan port) {
  Uniform all;
  all.link = all.trunk = port;
  return all;
}

inline ExperimentJob& add_job(Experiment& experiment, std::vector<NodeId> nodes, std::vector<Bucket> buckets) {
  ExperimentJob job;
  job.plan.name = "job" + std::to_string(experiment.jobs.size());
  job.plan.workers = static_cast<std::uint32_t>(nodes.size());
  job.plan.packet_elements = 256;
  job.plan.slots = 64;
  job.plan.operation_deadline = std::chrono::seconds(60);
  job.plan.message_packets = 8;
  job.nodes = std::move(nodes);
  job.training.buckets = std::move(buckets);
  experiment.jobs.push_back(std::move(job));
  return experiment.jobs.back();
}

inline std::vector<NodeId> hosts_of(const Topology& topology) {
  std::vector<NodeId> hosts;
  for (NodeId node = 0; node < topology.size(); ++node) {
    if (!topology[node].is_switch) hosts.push_back(node);
  }
  return hosts;
}

// All switches from `first` on sum for those below: without the root, where it is the aggregator.
inline void sum_below(Experiment& experiment, NodeId first = 1) {
  const Topology& topology = experiment.topology;
  std::vector<std::uint32_t> index(topology.size(), UINT32_MAX);
  for (NodeId node = first; node < topology.size(); ++node) {
    if (!topology[node].is_switch) continue;
    index[node] = static_cast<std::uint32_t>(experiment.switches.size());
    experiment.switches.push_back(node);
    experiment.parent_of_switch.push_back(node == 0 ? UINT32_MAX : index[topology[node].above]);
  }
  for (ExperimentJob& job : experiment.jobs) {
    for (const NodeId node : job.nodes) job.plan.switch_of_rank.push_back(index[topology[node].above]);
  }
}

// ATP's parameter server at `node`, and slots for it at the root of a star.
inline void add_server(Experiment& experiment, NodeId node) {
  experiment.aggregators = {node};
  experiment.switches = {0};
  experiment.parent_of_switch = {UINT32_MAX};
  experiment.pool_slots = 256;
  for (ExperimentJob& job : experiment.jobs) job.plan.switch_of_rank.assign(job.nodes.size(), 0);
}

}  // namespace netsum::sim
