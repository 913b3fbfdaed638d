#include "sim/flow_paths.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "sim/fabric.h"
#include "wire/atp.h"
#include "wire/netreduce.h"
#include "wire/roce.h"
#include "wire/switchml.h"

namespace netsum::sim {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

template <class Span>
double seconds_of(Span duration) {
  return std::chrono::duration<double>(duration).count();
}

// The bytes of a chunk's frames, each way, with its share of what is sent once for several.
struct Frames {
  double up = 0, down = 0;
};

Frames frames_of(const std::string& protocol, const JobPlan& plan, WireFormat wire) {
  const double payload = static_cast<double>(plan.packet_elements) * (wire == WireFormat::native ? 4 : 2);
  const auto frame = [](std::size_t header) { return static_cast<double>(header + datagram_header_bytes); };
  if (protocol == "atp") {
    return {frame(wire::atp::gradient_header_bytes) + payload, frame(wire::atp::parameter_header_bytes) + payload};
  }
  if (protocol == "netreduce") {
    using namespace wire::roce;
    constexpr std::size_t headers = ipv4_bytes + udp_bytes + bth_bytes + icrc_bytes;
    const double once = frame(headers + aeth_bytes) + reth_bytes;  // of a message: its acknowledgement, and where it goes
    const double packet = frame(headers + wire::netreduce::seal_bytes) + payload + once / plan.message_packets;
    return {packet, packet};
  }
  const std::size_t exponents =
      wire == WireFormat::native ? wire::switchml::padded_exponents(wire::switchml::blocks_of_packet(plan.packet_elements))
                                 : 0;
  const double packet = frame(wire::switchml::chunk_header_bytes + exponents) + payload;
  return {packet, packet};
}

class Builder {
 public:
  Builder(const Experiment& experiment, const ExperimentJob& job, const Resources& resources)
      : experiment_(experiment),
        topology_(experiment.topology),
        job_(job),
        resources_(resources),
        elements_(job.plan.packet_elements),
        frames_(frames_of(experiment.protocol, job.plan, job.training.wire)),
        children_(experiment.aggregators.size() + experiment.switches.size()) {
    paths_.load.resize(resources.size());
    aggregators_ = job.plan.aggregators;
    if (aggregators_.empty()) {
      aggregators_.resize(experiment.aggregators.size());
      std::iota(aggregators_.begin(), aggregators_.end(), 0U);
    }
  }

  FlowPaths build() {
    for (std::uint32_t rank = 0; rank < job_.plan.workers; ++rank) join(job_.nodes[rank], switch_of(rank));
    for (std::size_t process = 0; process < children_.size(); ++process) {
      if (children_[process] == 0) continue;
      const bool below = process >= experiment_.aggregators.size();
      const double packets = children_[process] + (below ? 1 : 0);  // a switch has a parent as well
      paths_.load[resources_.process(process)] += packets * cost(node_of(process)) * (below ? 1 : share()) / elements_;
    }
    const double lanes = static_cast<double>(experiment_.lanes) * static_cast<double>(aggregators_.size());
    paths_.most = unlimited;
    for (std::uint32_t rank = 0; rank < job_.plan.workers; ++rank) {
      const NodePlan& host = topology_[job_.nodes[rank]];
      const double each = cost(job_.nodes[rank]) / elements_;
      if (each > 0) paths_.most = std::min(paths_.most, std::min(lanes, static_cast<double>(host.threads)) / each);
      for (const std::uint32_t aggregator : aggregators_) {
        paths_.round_trip = std::max(paths_.round_trip, round_trip(job_.nodes[rank], switch_of(rank), aggregator));
      }
    }
    // NetReduce's window is of whole messages: the next begins when one has all its results.
    const double packets = experiment_.protocol == "netreduce" ? job_.plan.message_packets : 1;
    paths_.window = lanes * job_.plan.slots * packets * elements_;
    if (paths_.round_trip > 0) {
      const double turn = paths_.round_trip + (packets - 1) * slowest_packet();
      paths_.most = std::min(paths_.most, paths_.window / turn);
    }
    // SwitchML agrees on the first exponents before it sends values (§4.6): with short packets, so without their bytes.
    if (experiment_.protocol == "switchml" && job_.training.wire == WireFormat::native) {
      frames_ = {};
      for (std::uint32_t rank = 0; rank < job_.plan.workers; ++rank) {
        paths_.first_round =
            std::max(paths_.first_round, round_trip(job_.nodes[rank], switch_of(rank), aggregators_.front()));
      }
    }
    return std::move(paths_);
  }

 private:
  static constexpr std::uint32_t none = UINT32_MAX;

  [[nodiscard]] std::uint32_t switch_of(std::uint32_t rank) const {
    return job_.plan.switch_of_rank.empty() ? none : job_.plan.switch_of_rank[rank];
  }
  [[nodiscard]] NodeId node_of(std::size_t process) const {
    const std::size_t aggregators = experiment_.aggregators.size();
    return process < aggregators ? experiment_.aggregators[process] : experiment_.switches[process - aggregators];
  }
  [[nodiscard]] std::size_t below(std::uint32_t switch_id) const { return experiment_.aggregators.size() + switch_id; }
  [[nodiscard]] double cost(NodeId node) const {  // of a packet in and one out
    return seconds_of(topology_[node].send_cost) + seconds_of(topology_[node].receive_cost);
  }
  // Seconds that the fullest port of the job takes for one of its packets.
  [[nodiscard]] double slowest_packet() const {
    double most = 0;
    for (std::size_t i = 0; i < paths_.load.size(); ++i) {
      most = std::max(most, paths_.load[i] * elements_ / resources_.capacity(i));
    }
    return most;
  }
  [[nodiscard]] double share() const { return 1.0 / static_cast<double>(aggregators_.size()); }

  // A rank's chunks go up to a switch, or to all aggregators in turn; so do, once each, those of a switch.
  void join(NodeId node, std::uint32_t switch_id) {
    for (;;) {
      if (switch_id == none) {
        for (const std::uint32_t aggregator : aggregators_) {
          ++children_[aggregator];
          exchange(node, node_of(aggregator), share());
        }
        return;
      }
      exchange(node, node_of(below(switch_id)), 1);
      if (children_[below(switch_id)]++ != 0) return;  // it has its way up
      node = node_of(below(switch_id));
      switch_id = experiment_.parent_of_switch[switch_id];
    }
  }

  void exchange(NodeId lower, NodeId upper, double part) {
    Resources::along(topology_, lower, upper,
                     [&](std::size_t port, const PortPlan&) { paths_.load[port] += part * frames_.up / elements_; });
    Resources::along(topology_, upper, lower,
                     [&](std::size_t port, const PortPlan&) { paths_.load[port] += part * frames_.down / elements_; });
  }

  [[nodiscard]] double there_and_back(NodeId lower, NodeId upper) const {
    double time = 0;
    const auto pass = [&](double bytes) {
      return [&time, bytes](std::size_t, const PortPlan& port) {
        time +=
            seconds_of(port.delay) + (port.bits_per_second == 0 ? 0 : bytes * 8 / static_cast<double>(port.bits_per_second));
      };
    };
    Resources::along(topology_, lower, upper, pass(frames_.up));
    Resources::along(topology_, upper, lower, pass(frames_.down));
    return time;
  }

  [[nodiscard]] double round_trip(NodeId node, std::uint32_t switch_id, std::uint32_t aggregator) const {
    double time = cost(node);
    for (;;) {
      const std::size_t process = switch_id == none ? aggregator : below(switch_id);
      const NodeId upper = node_of(process);
      time += there_and_back(node, upper) + children_[process] * cost(upper) + (switch_id == none ? 0 : cost(upper));
      if (switch_id == none) return time;
      node = upper;
      switch_id = experiment_.parent_of_switch[switch_id];
    }
  }

  const Experiment& experiment_;
  const Topology& topology_;
  const ExperimentJob& job_;
  const Resources& resources_;
  const double elements_;  // of a packet
  Frames frames_;
  std::vector<std::uint32_t> aggregators_;
  std::vector<std::uint32_t> children_;  // of each process
  FlowPaths paths_;
};

}  // namespace

Resources::Resources(const Experiment& experiment) : first_process_(2 * experiment.topology.size()) {
  const Topology& topology = experiment.topology;
  const auto rate = [](const PortPlan& port) {
    return port.bits_per_second == 0 ? unlimited : static_cast<double>(port.bits_per_second) / 8;
  };
  for (NodeId node = 0; node < topology.size(); ++node) {
    capacity_.push_back(rate(topology[node].up));
    capacity_.push_back(rate(topology[node].down));
  }
  const auto threads = [&](NodeId node) { capacity_.push_back(std::min(topology[node].threads, experiment.lanes)); };
  for (const NodeId node : experiment.aggregators) threads(node);
  for (const NodeId node : experiment.switches) threads(node);
}

FlowPaths paths_of(const Experiment& experiment, const ExperimentJob& job, const Resources& resources) {
  return Builder(experiment, job, resources).build();
}

}  // namespace netsum::sim
