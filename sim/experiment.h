// An experiment: a network, jobs that train over it, and what is measured. Data, from a scenario file
// (apps/netsum/scenario_file.h) or a test. Runs packet by packet (sim/packet_level.h) or as flows (sim/flow_level.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/scenario.h"
#include "sim/topology.h"
#include "sim/training.h"

namespace netsum::sim {

struct ExperimentJob {
  std::string protocol;  // empty: the experiment's
  // The protocol's side; its aggregators count those of the experiment. Without calls: the training makes them.
  JobPlan plan;
  std::vector<NodeId> nodes;  // of each rank
  Duration start{};           // the ranks' processes
  std::uint8_t priority = 0;  // of its packets
  TrainingPlan training;
};

// Packets at a steady rate, from one node to another, that answer to nobody; or a TCP connection.
struct BackgroundFlow {
  std::string name;
  NodeId from = 0, to = 0;
  std::uint64_t bits_per_second = 0;  // of frames
  std::uint32_t frame_bytes = 1514;
  Duration start{}, stop = Duration::max();
  Duration on{}, off{};  // in turns, from the start; off 0: always on
  std::string tcp{};     // its congestion control; empty: packets at a steady rate
  std::uint8_t priority = 0;
};

struct Experiment {
  std::string name;
  std::uint64_t seed = 1;
  Topology topology;
  bool random_ties = false;  // frames that come to a node at one time, by different links: in an order that the seed draws
  std::string protocol = "switchml";  // of jobs that have none of their own
  std::uint32_t lanes = 1;
  std::vector<NodeId> aggregators;  // where each runs
  // Switches below the aggregators: where each runs, and its parent among them (UINT32_MAX: an aggregator).
  std::vector<NodeId> switches;
  std::vector<std::uint32_t> parent_of_switch;
  std::uint32_t pool_slots = 0;  // per lane of these switches (ATP); 0: four for each slot of the jobs
  std::uint32_t pool_parts = 0;  // one for each job; 0: all jobs share all slots
  std::vector<ExperimentJob> jobs;
  std::vector<BackgroundFlow> background;
  Duration control_delay = std::chrono::microseconds(100);  // of each message of the control plane, one way
  Duration end = Duration::max();                           // if the jobs do not end before
  // Counters by name, as docs/simulator.md lists them, in bins of this length.
  std::vector<std::string> series;
  Duration bin = std::chrono::milliseconds(1);
};

[[nodiscard]] inline const std::string& protocol_of(const Experiment& experiment, const ExperimentJob& job) {
  return job.protocol.empty() ? experiment.protocol : job.protocol;
}

// What an experiment has that a run cannot do.
struct ImpossibleExperiment : std::invalid_argument {
  ImpossibleExperiment(std::string key_of_file, const std::string& why)
      : std::invalid_argument(why), key(std::move(key_of_file)) {}
  std::string key;  // of a scenario file: "job[0].wire"
};

// What networks of queues that are first in, first out, on one path, do not have (sim/queued_medium.h). None: the experiment
// does without. `why`: of those, for the message. `has_red`: except random early detection, which these have.
[[nodiscard]] std::optional<ImpossibleExperiment> needs_disciplines(const Experiment& experiment,
                                                                    const std::string& why = "", bool has_red = false);

struct JobReport {
  std::string name;
  std::uint32_t ranks = 0;
  double first = 0, last = 0;  // seconds: the first iteration's begin, the last result or pass
  std::uint64_t bytes = 0;     // of results, at each rank
  std::vector<double> iteration_seconds, operation_seconds;
  std::uint64_t retransmissions = 0;
  std::vector<RankTime> times;  // since the experiment's begin, if they are kept; as flows, all ranks are rank 0
};

struct PortReport {
  std::string link;  // "h0.up"
  std::uint64_t packets = 0, bytes = 0, dropped = 0, lost = 0, marked = 0, longest_queue = 0, pauses = 0;
  double paused = 0;       // seconds
  double utilisation = 0;  // of the rate, over the whole time, by what is past the port; 0 if unlimited
};

struct Report {
  std::string failure;                                        // empty: everything went as it should
  std::vector<std::string> warnings;                          // of what the numbers are not good for
  double seconds = 0;                                         // virtual
  std::uint64_t packets = 0, hops = 0, events = 0, lost = 0;  // packets: datagrams sent; lost: anywhere
  std::vector<JobReport> jobs;
  std::vector<PortReport> ports;                      // those that sent something
  std::map<std::string, std::vector<double>> series;  // a value for each bin; counters: the growth, gauges: at its end
  std::map<std::string, std::uint64_t> counters;      // of aggregators and switches
};

[[nodiscard]] JobReport report_of(const ExperimentJob& job, const TrainingJob& training, Time origin);

}  // namespace netsum::sim
