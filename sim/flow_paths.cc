#include "sim/flow_paths.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/wire_types.h"
#include "protocol/atp/congestion.h"
#include "sim/fabric.h"
#include "wire/atp.h"
#include "wire/netreduce.h"
#include "wire/roce.h"
#include "wire/switchml.h"

namespace netsum::sim {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

// Of NetReduce's packets.
constexpr std::size_t headers =
    wire::roce::ipv4_bytes + wire::roce::udp_bytes + wire::roce::bth_bytes + wire::roce::icrc_bytes;
constexpr double first_header_bytes = datagram_header_bytes + headers + wire::roce::reth_bytes +
                                      wire::roce::immediate_bytes + wire::netreduce::netsum_layout.header_bytes;
constexpr double acknowledgement_bytes = headers + wire::roce::aeth_bytes + datagram_header_bytes;

template <class Span>
double seconds_of(Span duration) {
  return std::chrono::duration<double>(duration).count();
}

// What a packet holds. SwitchML's and NetReduce's packets have as many bytes whatever the width of their values, or as many
// blocks as fit; of NetReduce's payload headers take a part, above all in a message's first packet.
struct Payload {
  double elements = 0;
  double up = 0, down = 0;  // bytes of values
};

Payload payload_of(const std::string& protocol, const JobPlan& plan, WireFormat wire) {
  const double width = wire == WireFormat::native ? 4 : 2;
  const std::size_t bytes = std::size_t{4} * plan.packet_elements;
  if (rounds_blocks(wire)) {
    const std::size_t elements = block_values_in(bytes);
    const auto of = [&](DType blocks) { return static_cast<double>(block_bytes(blocks, elements)); };
    return {static_cast<double>(elements), of(wire == WireFormat::int4 ? block4 : block8), of(block8)};
  }
  double elements = plan.packet_elements;
  if (protocol == "switchml") elements *= 4 / width;
  if (protocol == "netreduce") {
    const double first = wire::netreduce::netsum_layout.header_bytes, more = wire::netreduce::seal_bytes;
    elements = (static_cast<double>(bytes) - (first + (plan.message_packets - 1) * more) / plan.message_packets) / width;
  }
  return {elements, elements * width, elements * width};
}

// The bytes of a packet's frames, each way, with its share of what is sent once for several, and how many frames these are.
struct Frames {
  double up = 0, down = 0;
  double packets = 1;
};

Frames frames_of(const std::string& protocol, const JobPlan& plan, WireFormat wire, const Payload& payload) {
  const auto frame = [](std::size_t header) { return static_cast<double>(header + datagram_header_bytes); };
  if (protocol == "atp") {
    return {frame(wire::atp::gradient_header_bytes) + payload.up, frame(wire::atp::parameter_header_bytes) + payload.down};
  }
  if (protocol == "netreduce") {
    using namespace wire::roce;
    const double once = acknowledgement_bytes + reth_bytes + immediate_bytes;  // of a message
    const double packet = frame(headers) + 4.0 * plan.packet_elements + once / plan.message_packets;
    return {packet, packet, 1 + 1.0 / plan.message_packets};
  }
  const std::size_t exponents =
      wire == WireFormat::native ? wire::switchml::padded_exponents(wire::switchml::blocks_of_packet(plan.packet_elements))
                                 : 0;
  const double rest = frame(wire::switchml::chunk_header_bytes + exponents);
  return {rest + payload.up, rest + payload.down};
}

class Builder {
 public:
  Builder(const Experiment& experiment, const ExperimentJob& job, const Resources& resources)
      : experiment_(experiment),
        topology_(experiment.topology),
        job_(job),
        resources_(resources),
        payload_(payload_of(protocol_of(experiment, job), job.plan, job.training.wire)),
        elements_(payload_.elements),
        frames_(frames_of(protocol_of(experiment, job), job.plan, job.training.wire, payload_)),
        arrivals_(experiment.aggregators.size() + experiment.switches.size()),
        children_(experiment.aggregators.size() + experiment.switches.size()),
        up_(resources.size()),
        down_(resources.size()),
        work_(resources.size()) {
    aggregators_ = job.plan.aggregators;
    if (aggregators_.empty()) {
      aggregators_.resize(experiment.aggregators.size());
      std::iota(aggregators_.begin(), aggregators_.end(), 0U);
    }
  }

  FlowPaths build() {
    for (std::uint32_t rank = 0; rank < job_.plan.workers; ++rank) join(job_.nodes[rank], switch_of(rank));
    const double lanes = static_cast<double>(experiment_.lanes) * static_cast<double>(aggregators_.size());
    paths_.packet = elements_;
    find_loads(lanes);
    const double with_acknowledgements = std::exchange(frames_.packets, 1);
    if (with_acknowledgements > 1) {  // a message's first packet
      frames_.up = frames_.down = first_header_bytes + payload_.up;
    }
    paths_.round_trip = longest_round_trip();
    const std::uint32_t slot_packets = protocol_of(experiment_, job_) == "netreduce" ? job_.plan.message_packets : 1;
    paths_.window = lanes * job_.plan.slots * slot_packets * elements_;
    paths_.first_window = paths_.window;
    if (protocol_of(experiment_, job_) == "atp" && job_.plan.congestion_control) {
      const std::size_t bytes = wire::atp::gradient_header_bytes + std::size_t{job_.plan.packet_elements} * 4;
      const atp::CongestionWindow window(true, job_.plan.slots, bytes);
      paths_.first_window = lanes * window.packets() * elements_;
      paths_.growth = 1 + window.step();
    }
    frames_.up -= payload_.up;
    frames_.down -= payload_.down;
    const double empty_trip = longest_round_trip();
    paths_.of_element = (paths_.round_trip - empty_trip) / elements_;
    // SwitchML agrees on the first exponents before it sends values (§4.6), in packets that are as long but for these.
    if (protocol_of(experiment_, job_) == "switchml" && job_.training.wire == WireFormat::native) {
      paths_.exponent_trip = empty_trip;
      paths_.exponent_sent = slowest_rank(lanes, true);
      paths_.exponent_received = slowest_rank(lanes, false) - paths_.exponent_sent;
      for (std::size_t i = 0; i < resources_.size(); ++i) {
        const double each = up_[i] * frames_.up + down_[i] * frames_.down + work_[i];
        double& slowest = i < resources_.process(0) ? paths_.exponent_at_port : paths_.exponent_at_process;
        slowest = std::max(slowest, each / resources_.capacity(i));
      }
    }
    if (with_acknowledgements > 1) {
      frames_.up = frames_.down = acknowledgement_bytes;
      paths_.acknowledged_after = longest_round_trip();
      paths_.acknowledging = slowest_rank(lanes, true);
      for (std::size_t process = 0; process < children_.size(); ++process) {
        if (children_[process] != 0)
          paths_.acknowledging = std::max(paths_.acknowledging, children_[process] * cost(node_of(process)));
      }
      for (std::size_t i = 0; i < resources_.size(); ++i)
        paths_.acknowledging =
            std::max(paths_.acknowledging, (up_[i] + down_[i]) * acknowledgement_bytes / resources_.capacity(i));
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
  void find_loads(double lanes) {
    std::vector<double> first_work(resources_.size());
    for (std::size_t process = 0; process < children_.size(); ++process) {
      if (children_[process] == 0) continue;
      const NodePlan& node = topology_[node_of(process)];
      const bool below = process >= experiment_.aggregators.size();
      const double in = frames_.packets * seconds_of(node.receive_cost), out = frames_.packets * seconds_of(node.send_cost);
      const double part = below ? 1 : share();
      // A switch has a parent as well.
      const double up = arrivals_[process] * in + (below ? out : 0);
      const double down = children_[process] * out + (below ? in : 0);
      work_[resources_.process(process)] = (up + down) * part;
      paths_.switch_costs |= below && up + down > 0;
      first_work[resources_.process(process)] = below ? std::max(up, down) : (up + down) * part;
    }
    for (std::size_t i = 0; i < resources_.size(); ++i) {
      const double bytes = up_[i] * frames_.up + down_[i] * frames_.down;
      paths_.load.push_back((bytes + work_[i]) / elements_);
      paths_.first_load.push_back((bytes + first_work[i]) / elements_);
      paths_.first_at_slowest = std::max(paths_.first_at_slowest, paths_.first_load.back() / resources_.capacity(i));
    }
    const auto rate = [&](double packet) { return packet > 0 ? elements_ / packet : unlimited; };
    paths_.most = rate(slowest_rank(lanes, false));
    paths_.costs =
        std::isfinite(paths_.most) || std::any_of(work_.begin(), work_.end(), [](double work) { return work > 0; });
    paths_.first_most = rate(slowest_rank(lanes, true));
  }

  // Seconds of a packet, sent and received; or, at first, of what takes longer.
  [[nodiscard]] double slowest_rank(double lanes, bool first) const {
    double most = 0;
    for (std::uint32_t rank = 0; rank < job_.plan.workers; ++rank) {
      const NodePlan& host = topology_[job_.nodes[rank]];
      const double in = seconds_of(host.receive_cost), out = seconds_of(host.send_cost);
      most = std::max(most, frames_.packets * (first ? std::max(in, out) : in + out) /
                                std::min(lanes, static_cast<double>(host.threads)));
    }
    return most;
  }

  [[nodiscard]] double longest_round_trip() const {
    double most = 0;
    for (std::uint32_t rank = 0; rank < job_.plan.workers; ++rank) {
      for (const std::uint32_t aggregator : aggregators_)
        most = std::max(most, round_trip(job_.nodes[rank], switch_of(rank), aggregator));
    }
    return most;
  }
  [[nodiscard]] double share() const { return 1.0 / static_cast<double>(aggregators_.size()); }

  // A rank's chunks go up to a switch, or to all aggregators in turn; so do those of a switch.
  void join(NodeId node, std::uint32_t switch_id) {
    while (true) {
      const auto reach = [&](std::size_t process, double part) {
        ++arrivals_[process];
        ++children_[process];
        const NodeId upper = node_of(process);
        Resources::along(topology_, node, upper, [&](std::size_t port, const PortPlan&) { up_[port] += part; });
        Resources::along(topology_, upper, node, [&](std::size_t port, const PortPlan&) { down_[port] += part; });
      };
      if (switch_id == none) {
        for (const std::uint32_t aggregator : aggregators_) reach(aggregator, share());
        return;
      }
      const std::size_t process = below(switch_id);
      const bool had_some = arrivals_[process] != 0;
      reach(process, 1);
      if (had_some) return;  // it has its way up
      node = node_of(process);
      switch_id = experiment_.parent_of_switch[switch_id];
    }
  }

  [[nodiscard]] double there_and_back(NodeId lower, NodeId upper) const {
    double time = 0;
    const auto pass = [&](double bytes) {
      return [&time, bytes](std::size_t, const PortPlan& port) {
        const double each = port.bits_per_second == 0 ? 0 : bytes * 8 / static_cast<double>(port.bits_per_second);
        time += seconds_of(port.delay) + each;
      };
    };
    Resources::along(topology_, lower, upper, pass(frames_.up));
    Resources::along(topology_, upper, lower, pass(frames_.down));
    return time;
  }

  [[nodiscard]] double round_trip(NodeId node, std::uint32_t switch_id, std::uint32_t aggregator) const {
    double time = cost(node);
    while (true) {
      const bool at_root = switch_id == none;
      const std::size_t process = at_root ? aggregator : below(switch_id);
      const NodeId upper = node_of(process);
      const double in = seconds_of(topology_[upper].receive_cost), out = seconds_of(topology_[upper].send_cost);
      time += there_and_back(node, upper) + arrivals_[process] * in + children_[process] * out;
      if (at_root) return time;
      time += out + in;
      node = upper;
      switch_id = experiment_.parent_of_switch[switch_id];
    }
  }

  const Experiment& experiment_;
  const Topology& topology_;
  const ExperimentJob& job_;
  const Resources& resources_;
  const Payload payload_;  // of a packet
  const double elements_;
  Frames frames_;
  std::vector<std::uint32_t> aggregators_;
  std::vector<std::uint32_t> arrivals_;   // of each process: packets of a chunk
  std::vector<std::uint32_t> children_;   // of each process: who gets its result
  std::vector<double> up_, down_, work_;  // of each resource, for a packet: frames of each way; seconds
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

double FlowPaths::exponents(double elements, double rate) const {
  if (exponent_trip == 0 && exponent_at_port == 0 && exponent_at_process == 0) return 0;
  const double packets = std::min(std::ceil(elements / packet), window / packet);
  // A rank receives exponents between the values that it sends, if it has no time left.
  const double between =
      (packets - 1) * std::clamp(exponent_sent + exponent_received - packet / rate, 0.0, exponent_received);
  // The first values are on their way while a switch still has exponents to do.
  const double on_its_way = of_element * std::min(elements, packet) / 2;
  return std::max({exponent_trip + between, packets * (exponent_sent + exponent_received), packets * exponent_at_port,
                   packets * exponent_at_process - on_its_way});
}

bool has_flows(const std::string& protocol) {
  return protocol == "switchml" || protocol == "atp" || protocol == "netreduce";
}

FlowPaths paths_of(const Experiment& experiment, const ExperimentJob& job, const Resources& resources) {
  return Builder(experiment, job, resources).build();
}

}  // namespace netsum::sim
