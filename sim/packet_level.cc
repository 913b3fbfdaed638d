#include "sim/packet_level.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <stdexcept>
#include <utility>
#include <variant>

#include "sim/aggregator_host.h"
#include "sim/event_queue.h"
#include "sim/fabric.h"
#include "sim/sampler.h"
#include "sim/switch_host.h"
#include "sim/worker_host.h"

namespace netsum::sim {
namespace {

constexpr Time origin{std::chrono::seconds(1)};  // zero stands for "never yet" in places
constexpr HostId nobody = UINT32_MAX;            // a background packet's receiver

// The cluster as hosts know it.
Scenario cluster_of(const Experiment& experiment) {
  Scenario cluster;
  cluster.seed = experiment.seed;
  cluster.settings.protocol = experiment.protocol;
  cluster.settings.profile = Profile::none;
  cluster.aggregators = static_cast<std::uint32_t>(experiment.aggregators.size());
  cluster.lanes = experiment.lanes;
  cluster.parent_of_switch = experiment.parent_of_switch;
  cluster.pool_slots = experiment.pool_slots;
  cluster.switch_slots = 1U << 30;  // experiments are about time; what jobs share is the pool of ATP's switches
  cluster.checked = false;
  for (const ExperimentJob& job : experiment.jobs) {
    cluster.jobs.push_back(job.plan);
    cluster.pool_elements = std::max(cluster.pool_elements, job.plan.packet_elements);
  }
  return cluster;
}

class PacketLevel final : public Surroundings, public Witness {
 public:
  PacketLevel(const Experiment& experiment, Report& report)
      : experiment_(experiment),
        topology_(experiment.topology),
        report_(report),
        cluster_(cluster_of(experiment)),
        protocol_(make_protocol(experiment.protocol)),
        fabric_(experiment.topology, derive(experiment.seed, 1)) {
    if (!protocol_) throw std::invalid_argument("there is no protocol '" + experiment.protocol + "'");
    const auto switches = static_cast<HostId>(experiment.aggregators.size());
    first_worker_ = switches + static_cast<HostId>(experiment.switches.size());
    for (const NodeId node : experiment.aggregators) add_process(node);
    for (const NodeId node : experiment.switches) add_process(node);
    for (const ExperimentJob& job : experiment.jobs) {
      for (const NodeId node : job.nodes) add_process(node);
    }
    if (processes_.size() > UINT16_MAX)
      throw std::invalid_argument("more than 65535 processes: only --level flow has so many");
    for (HostId id = 0; id < switches; ++id) {
      processes_[id].host = std::make_unique<AggregatorHost>(*this, id, cluster_, *protocol_, 0);
    }
    for (HostId id = switches; id < first_worker_; ++id) {
      processes_[id].host = std::make_unique<SwitchHost>(*this, id, cluster_, *protocol_, 0);
    }
    add_workers();
    for (std::uint32_t flow = 0; flow < experiment.background.size(); ++flow) {
      background_.push_back({});
      queue_.add(origin + experiment.background[flow].start, {Kind::background, flow});
    }
    add_sampler();
  }

  void run() {
    const Time end = after(origin, experiment_.end);
    for (HostId id = 0; id < processes_.size(); ++id) schedule(id);
    while (!queue_.empty() && running_ != 0 && queue_.first().at <= end) step();
    if (running_ != 0 && queue_.empty()) throw Violation("a rank waits for ever");
    if (running_ != 0) now_ = end;
  }

  void finish() {
    const double seconds = std::chrono::duration<double>(now_ - origin).count();
    report_.seconds = seconds;
    for (std::size_t job = 0; job < trainings_.size(); ++job) {
      report_.jobs.push_back(report_of(experiment_.jobs[job], trainings_[job], origin));
      for (HostId id = first_host_[job]; id < first_host_[job] + experiment_.jobs[job].plan.workers; ++id) {
        report_.jobs.back().retransmissions += processes_[id].retransmissions;
      }
    }
    for (NodeId node = 0; node < topology_.size(); ++node) {
      if (topology_[node].above == no_node) continue;
      for (const Fabric::Way way : {Fabric::Way::up, Fabric::Way::down}) {
        const PortCounts& c = fabric_.counts(node, way);
        if (c.packets + c.dropped == 0) continue;
        const auto rate =
            static_cast<double>((way == Fabric::Way::up ? topology_[node].up : topology_[node].down).bits_per_second);
        report_.ports.push_back({port_name(topology_, node, way), c.packets, c.bytes, c.dropped, c.lost, c.marked,
                                 c.longest_queue,
                                 rate == 0 || seconds == 0 ? 0 : static_cast<double>(c.bytes) * 8 / rate / seconds});
        report_.lost += c.dropped + c.lost;
      }
    }
    report_.lost += overrun_;
    Tally tally;
    for (HostId id = 0; id < first_worker_; ++id) count_events(id, tally);
    report_.counters.insert(tally.events.begin(), tally.events.end());
    if (overrun_ != 0) report_.counters["receiver_overrun"] = overrun_;
    if (sampler_) report_.series = sampler_->take();
  }

 private:
  enum class Kind : std::uint32_t { hop, handled, turn, control, background, sample };
  struct What {
    Kind kind;
    std::uint32_t index;
  };
  struct Process {
    NodeId node = 0;
    std::unique_ptr<Host> host;
    std::vector<Time> threads;  // when each is free
    Time turn_at = never;       // the earliest queued turn
    std::uint32_t job = 0, rank = 0;
    bool ended = false;
    std::uint64_t retransmissions = 0;
  };
  struct Packet {
    Datagram datagram;
    HostId to = nobody;
    NodeId at = 0, destination = 0;
    std::uint32_t frame_bytes = 0;
    std::uint32_t flow = 0;  // background
  };
  struct CallDue {
    HostId to = 0;
    ControlCall call;
  };
  struct ReplyDue {
    HostId to = 0;
    ControlReply reply;
  };
  struct Flow {
    std::uint64_t delivered = 0;  // bytes
  };

  // ---- setting up

  void add_process(NodeId node) {
    Process process;
    process.node = node;
    process.threads.resize(std::max(1U, topology_[node].threads));
    processes_.push_back(std::move(process));
  }

  void add_workers() {
    HostId id = first_worker_;
    for (std::uint32_t job = 0; job < experiment_.jobs.size(); ++job) {
      const ExperimentJob& plan = experiment_.jobs[job];
      first_host_.push_back(id);
      trainings_.emplace_back(plan.training, plan.plan.workers, origin);
      sums_.emplace_back(plan.plan.workers, plan.training.wire);
      for (std::uint32_t rank = 0; rank < plan.plan.workers; ++rank, ++id) {
        processes_[id].job = job;
        processes_[id].rank = rank;
        auto program = std::make_unique<Trainer>(trainings_.back(), sums_.back(), rank,
                                                 Random(derive(derive(experiment_.seed, 2 + job), rank)));
        processes_[id].host = std::make_unique<WorkerHost>(*this, id, cluster_, *protocol_, *this, tally_,
                                                           WorkerHost::Place{job, rank, 0, 0, first_worker_port},
                                                           std::move(program), origin + plan.start);
        ++running_;
      }
    }
  }

  void add_sampler() {
    if (experiment_.series.empty()) return;
    sampler_.emplace();
    for (const std::string& name : experiment_.series) add_series(name);
    queue_.add(origin + experiment_.bin, {Kind::sample, 0});
  }

  void add_series(const std::string& name) {
    const CounterName parts(name);
    if (parts.of == "link") return sampler_->add(name, port_value(topology_, fabric_, parts, now_));
    if (parts.of == "background") {
      for (std::size_t flow = 0; flow < background_.size(); ++flow) {
        if (experiment_.background[flow].name != parts.whose || parts.what != "bytes") continue;
        return sampler_->add(name, {[this, flow] { return static_cast<double>(background_[flow].delivered); }, false});
      }
    }
    if (parts.of == "job") {
      for (std::uint32_t job = 0; job < experiment_.jobs.size(); ++job) {
        if (experiment_.jobs[job].plan.name == parts.whose) return sampler_->add(name, job_value(job, parts.what));
      }
    }
    if (parts.of == "switch" || parts.of == "aggregator") {
      const bool below = parts.of == "switch";
      const std::vector<NodeId>& nodes = below ? experiment_.switches : experiment_.aggregators;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (topology_[nodes[i]].name != parts.whose) continue;
        const auto id = static_cast<HostId>(i + (below ? experiment_.aggregators.size() : 0));
        return sampler_->add(name, {[this, id, what = parts.what] {
                                      Tally tally;
                                      count_events(id, tally);
                                      const auto found = tally.events.find(what);
                                      if (found == tally.events.end())
                                        throw std::invalid_argument("there is no counter '" + what + "'");
                                      return static_cast<double>(found->second);
                                    },
                                    false});
      }
    }
    throw std::invalid_argument("there is no counter '" + name + "'");
  }

  Sampler::Value job_value(std::uint32_t job, const std::string& what) {
    if (what == "bytes") return {[this, job] { return static_cast<double>(trainings_[job].bytes_reduced()); }, false};
    if (what == "results") return {[this, job] { return static_cast<double>(trainings_[job].results()); }, false};
    const auto over_ranks = [this, job](const auto& of) {
      double sum = 0;
      for (HostId id = first_host_[job]; id < first_host_[job] + experiment_.jobs[job].plan.workers; ++id)
        sum += of(worker(id));
      return sum;
    };
    if (what == "window") {
      const double ranks = experiment_.jobs[job].plan.workers;
      return {[over_ranks, ranks] {
                return over_ranks([](const WorkerHost& rank) { return static_cast<double>(rank.totals().window); }) / ranks;
              },
              true};
    }
    if (what == "retransmissions") {
      return {[over_ranks] {
                return over_ranks([](const WorkerHost& rank) { return static_cast<double>(rank.totals().retransmissions); });
              },
              false};
    }
    return {[over_ranks, what] {
              return over_ranks([&](const WorkerHost& rank) {
                const std::vector<CounterValue> counters = rank.counters();
                const auto found =
                    std::find_if(counters.begin(), counters.end(), [&](const CounterValue& c) { return c.name == what; });
                if (found == counters.end() && !counters.empty())
                  throw std::invalid_argument("there is no counter '" + what + "'");
                return found == counters.end() ? 0.0 : static_cast<double>(found->value);
              });
            },
            false};
  }

  [[nodiscard]] WorkerHost& worker(HostId id) { return static_cast<WorkerHost&>(*processes_[id].host); }
  void count_events(HostId id, Tally& tally) {
    if (id < experiment_.aggregators.size()) {
      static_cast<AggregatorHost&>(*processes_[id].host).count_events(tally);
    } else {
      static_cast<SwitchHost&>(*processes_[id].host).count_events(tally);
    }
  }

  // ---- what is due

  void step() {
    const auto event = queue_.take();
    now_ = event.at;
    ++report_.events;
    const std::uint32_t index = event.what.index;
    switch (event.what.kind) {
      case Kind::hop:
        return arrive(index);
      case Kind::handled:
        return deliver(index);
      case Kind::turn:
        return turn(index);
      case Kind::control:
        return control(index);
      case Kind::background:
        return send_background(index);
      case Kind::sample:
        sampler_->sample();
        queue_.add(now_ + experiment_.bin, {Kind::sample, 0});
        return;
    }
  }

  void schedule(HostId id) {
    Process& process = processes_[id];
    const Time wake = std::max(process.host->next_wake(), now_);
    if (wake == never || wake >= process.turn_at) return;
    process.turn_at = wake;
    queue_.add(wake, {Kind::turn, id});
  }

  void turn(HostId id) {
    Process& process = processes_[id];
    if (process.turn_at != now_) return;
    process.turn_at = never;
    run_turn(id, {});
  }

  void run_turn(HostId id, std::span<const Datagram> datagrams) {
    Process& process = processes_[id];
    process.host->turn(datagrams, now_);
    if (id >= first_worker_ && !process.ended) {
      const WorkerHost& rank = worker(id);
      if (rank.running()) process.retransmissions = std::max(process.retransmissions, rank.totals().retransmissions);
      process.ended = rank.ended();
      running_ -= process.ended ? 1 : 0;
    }
    schedule(id);
  }

  void control(std::uint32_t index) {
    auto message = std::exchange(control_[index], {});
    unused_control_.push_back(index);
    if (auto* const call = std::get_if<CallDue>(&message)) {
      processes_[call->to].host->on_call(call->call, now_);
      schedule(call->to);
    } else {
      const auto& reply = std::get<ReplyDue>(message);
      processes_[reply.to].host->on_reply(reply.reply, now_);
      schedule(reply.to);
    }
  }

  // ---- packets

  [[nodiscard]] std::uint32_t new_packet() {
    ++report_.packets;
    if (unused_packets_.empty()) {
      packets_.emplace_back();
      return static_cast<std::uint32_t>(packets_.size() - 1);
    }
    const std::uint32_t index = unused_packets_.back();
    unused_packets_.pop_back();
    return index;
  }

  // When a thread of the process is done with one more packet.
  [[nodiscard]] static Time work(Process& process, std::uint16_t port, Duration cost, Time now) {
    Time& free = process.threads[port % process.threads.size()];
    return free = std::max(free, now) + cost;
  }

  void send(HostId from, const Endpoint& source, const Endpoint& destination, std::span<const std::byte> bytes) override {
    const HostId to = host_of(destination);
    if (to >= processes_.size()) throw Violation("a datagram to nobody");
    Process& sender = processes_[from];
    const std::uint32_t index = new_packet();
    Packet& packet = packets_[index];
    packet.datagram.from = source;
    packet.datagram.to = destination;
    packet.datagram.bytes.assign(bytes.begin(), bytes.end());
    packet.datagram.marked = false;
    packet.to = to;
    packet.at = sender.node;
    packet.destination = processes_[to].node;
    packet.frame_bytes = static_cast<std::uint32_t>(bytes.size() + datagram_header_bytes);
    const Duration cost = topology_[sender.node].send_cost;
    const Time leaves = cost == Duration::zero() ? now_ : work(sender, source.port, cost, now_);
    if (packet.at == packet.destination) return queue_.add(leaves, {Kind::hop, index});
    forward(index, leaves);
  }

  void forward(std::uint32_t index, Time at) {
    Packet& packet = packets_[index];
    ++report_.hops;
    const auto hop = fabric_.forward(at, packet.at, packet.destination, packet.frame_bytes);
    if (!hop) return unused_packets_.push_back(index);
    packet.at = hop->node;
    packet.datagram.marked |= hop->marked;
    queue_.add(hop->at, {Kind::hop, index});
  }

  void arrive(std::uint32_t index) {
    Packet& packet = packets_[index];
    if (packet.at != packet.destination) return forward(index, now_);
    if (packet.to == nobody) {
      background_[packet.flow].delivered += packet.frame_bytes;
      return unused_packets_.push_back(index);
    }
    const NodePlan& node = topology_[packet.at];
    if (node.receive_cost == Duration::zero()) return deliver(index);
    Process& process = processes_[packet.to];
    const Duration waiting = process.threads[packet.datagram.to.port % process.threads.size()] - now_;
    if (waiting / node.receive_cost >= node.receive_packets) {
      ++overrun_;
      return unused_packets_.push_back(index);
    }
    queue_.add(work(process, packet.datagram.to.port, node.receive_cost, now_), {Kind::handled, index});
  }

  void deliver(std::uint32_t index) {
    // Elsewhere during the turn, in which packets may be added.
    std::swap(delivered_, packets_[index].datagram);
    const HostId to = packets_[index].to;
    run_turn(to, {&delivered_, 1});
    std::swap(delivered_, packets_[index].datagram);  // its memory is for the next
    unused_packets_.push_back(index);
  }

  void send_background(std::uint32_t flow) {
    const BackgroundFlow& plan = experiment_.background[flow];
    const Duration since = now_ - origin - plan.start;
    if (now_ - origin >= plan.stop) return;
    if (plan.off > Duration::zero()) {
      const Duration within = since % (plan.on + plan.off);
      if (within >= plan.on) return queue_.add(now_ + (plan.on + plan.off - within), {Kind::background, flow});
    }
    const std::uint32_t index = new_packet();
    Packet& packet = packets_[index];
    packet.datagram.marked = false;
    packet.to = nobody;
    packet.at = plan.from;
    packet.destination = plan.to;
    packet.frame_bytes = plan.frame_bytes;
    packet.flow = flow;
    forward(index, now_);
    const auto gap =
        Duration(static_cast<std::int64_t>(std::uint64_t{plan.frame_bytes} * 8'000'000'000 / plan.bits_per_second));
    queue_.add(now_ + std::max(gap, Duration(1)), {Kind::background, flow});
  }

  // ---- Surroundings, beside packets

  void add_control(std::variant<CallDue, ReplyDue> message) {
    if (unused_control_.empty()) {
      unused_control_.push_back(static_cast<std::uint32_t>(control_.size()));
      control_.emplace_back();
    }
    const std::uint32_t index = unused_control_.back();
    unused_control_.pop_back();
    control_[index] = std::move(message);
    queue_.add(now_ + experiment_.control_delay, {Kind::control, index});
  }
  void call(HostId, HostId to, ControlCall call) override { add_control(CallDue{to, std::move(call)}); }
  void reply(HostId, HostId to, ControlReply reply) override { add_control(ReplyDue{to, std::move(reply)}); }
  void say(HostId, const std::string&) override {}

  // ---- Witness

  void began(std::uint32_t, std::uint32_t, std::span<const std::uint64_t>, std::uint32_t) override {}
  void delivered(std::uint32_t, std::uint32_t, const stream::Operation&, std::span<const std::byte>,
                 std::span<const std::uint64_t>) override {}
  void forgot(std::uint32_t, std::uint32_t) override {}
  void failed(std::uint32_t, std::uint32_t, const Error& error, std::optional<std::uint64_t>) override {
    throw Violation(error.what());
  }
  void straggled() override {}

  const Experiment& experiment_;
  const Topology& topology_;
  Report& report_;
  const Scenario cluster_;
  const std::unique_ptr<Protocol> protocol_;
  Fabric fabric_;
  Tally tally_;
  HostId first_worker_ = 0;
  std::vector<Process> processes_;  // aggregators, switches, ranks by job
  std::vector<HostId> first_host_;  // of each job
  std::deque<TrainingJob> trainings_;
  std::deque<KnownSums> sums_;
  std::uint64_t running_ = 0;  // ranks
  std::optional<Sampler> sampler_;
  std::vector<Flow> background_;
  EventQueue<What> queue_;
  std::deque<Packet> packets_;
  std::vector<std::uint32_t> unused_packets_;
  Datagram delivered_;
  std::deque<std::variant<CallDue, ReplyDue>> control_;
  std::vector<std::uint32_t> unused_control_;
  std::uint64_t overrun_ = 0;  // packets for which a receiver had no room
  Time now_ = origin;
};

}  // namespace

Report run_packets(const Experiment& experiment) {
  Report report;
  PacketLevel level(experiment, report);
  try {
    level.run();
  } catch (const Violation& violation) {
    report.failure = violation.what();
  }
  level.finish();
  return report;
}

}  // namespace netsum::sim
