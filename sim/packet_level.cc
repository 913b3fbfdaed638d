#include "sim/packet_level.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <stdexcept>
#include <utility>
#include <variant>

#include "sim/aggregator_host.h"
#include "sim/fabric_medium.h"
#include "sim/queued_medium.h"
#include "sim/sampler.h"
#include "sim/switch_host.h"
#include "sim/tcp.h"
#include "sim/trace.h"
#include "sim/worker_host.h"

namespace netsum::sim {
namespace {

constexpr std::uint32_t pool_slots_of_slot = 4;  // of a job, by default: few of its chunks then collide
constexpr HostId nobody = UINT32_MAX;            // a background packet's receiver

std::string key_of(const char* list, std::size_t index, const char* key) {
  return std::string(list) + "[" + std::to_string(index) + "]." + key;
}

// The cluster of one protocol's jobs, as hosts know it.
Scenario cluster_of(const Experiment& experiment, const std::string& protocol, bool has_switches) {
  Scenario cluster;
  cluster.seed = experiment.seed;
  cluster.settings.protocol = protocol;
  cluster.settings.profile = Profile::none;
  cluster.aggregators = static_cast<std::uint32_t>(experiment.aggregators.size());
  cluster.lanes = experiment.lanes;
  if (has_switches) cluster.parent_of_switch = experiment.parent_of_switch;
  cluster.pool_slots = experiment.pool_slots;
  cluster.pool_parts = experiment.pool_parts;
  cluster.switch_slots = 1U << 30;  // experiments are about time; what jobs share is the pool of ATP's switches
  cluster.checked = false;
  for (const ExperimentJob& job : experiment.jobs) {
    if (protocol_of(experiment, job) != protocol) continue;
    if (experiment.pool_slots == 0) cluster.pool_slots += pool_slots_of_slot * job.plan.slots;
    cluster.jobs.push_back(job.plan);
    cluster.jobs.back().window = static_cast<std::uint32_t>(job.training.buckets.size());
    if (!has_switches) cluster.jobs.back().switch_of_rank.clear();
    cluster.pool_elements = std::max(cluster.pool_elements, job.plan.packet_elements);
  }
  return cluster;
}

std::unique_ptr<Protocol> known_protocol(const std::string& name) {
  std::unique_ptr<Protocol> protocol = make_protocol(name);
  if (!protocol) throw std::invalid_argument("there is no protocol '" + name + "'");
  return protocol;
}

class PacketLevel final : private Medium::User {
 public:
  PacketLevel(const Experiment& experiment, Medium& medium, Report& report, std::ostream* pcap)
      : experiment_(experiment),
        topology_(experiment.topology),
        report_(report),
        medium_(medium),
        trace_(nullptr, pcap),
        origin_(medium.now()) {
    first_host_.resize(experiment.jobs.size());
    for (std::uint32_t job = 0; job < experiment.jobs.size(); ++job) {
      const ExperimentJob& plan = experiment.jobs[job];
      trainings_.emplace_back(plan.training, plan.plan.workers, origin_);
      sums_.emplace_back(plan.plan.workers, plan.training.wire);
    }
    for (const ExperimentJob& job : experiment.jobs) {
      const std::string& protocol = protocol_of(experiment, job);
      const bool known = std::any_of(clusters_.begin(), clusters_.end(),
                                     [&](const Cluster& cluster) { return cluster.scenario.settings.protocol == protocol; });
      if (!known) add_cluster(clusters_.emplace_back(*this, protocol, static_cast<HostId>(processes_.size())));
    }
    if (processes_.size() > UINT16_MAX)
      throw std::invalid_argument("more than 65535 processes: only --level flow has so many");
    for (std::uint32_t flow = 0; flow < experiment.background.size(); ++flow) {
      const BackgroundFlow& plan = experiment.background[flow];
      background_.push_back({});
      if (plan.tcp.empty()) {
        add(origin_ + plan.start, Kind::background, flow);
      } else {
        background_[flow].tcp = medium_.add_tcp({plan.from, plan.to, plan.tcp, plan.start, plan.stop});
        if (!background_[flow].tcp) add_tcp(flow);
      }
    }
    add_sampler();
  }

  void run() {
    const Time end = after(origin_, experiment_.end);
    for (HostId id = 0; id < processes_.size(); ++id) schedule(id);
    const bool over = running_ == 0 || medium_.run(*this, end);
    if (over && running_ != 0) throw Violation("a rank waits for ever");
    ended_ = over ? medium_.now() : end;
  }

  void finish() {
    const double seconds = std::chrono::duration<double>(ended_.value_or(medium_.now()) - origin_).count();
    report_.seconds = seconds;
    report_.hops = medium_.hops();
    report_.events = medium_.events();
    for (std::size_t job = 0; job < trainings_.size(); ++job) {
      report_.jobs.push_back(report_of(experiment_.jobs[job], trainings_[job], origin_));
      for (HostId id = first_host_[job]; id < first_host_[job] + experiment_.jobs[job].plan.workers; ++id) {
        report_.jobs.back().retransmissions += processes_[id].retransmissions;
      }
    }
    for (LinkId link = 0; link < topology_.links(); ++link) {
      if (topology_.upper(link) == no_node) continue;
      for (const Fabric::Way way : {Fabric::Way::up, Fabric::Way::down}) {
        const PortCounts& c = medium_.counts(link, way);
        if (c.packets + c.dropped == 0) continue;
        const auto left = static_cast<double>(medium_.left_bytes(link, way));
        const auto rate = static_cast<double>(topology_.port(link, way == Fabric::Way::up).bits_per_second);
        report_.ports.push_back({port_name(topology_, link, way), c.packets, c.bytes, c.dropped, c.lost, c.marked,
                                 c.longest_queue, c.pauses, std::chrono::duration<double>(c.paused).count(),
                                 rate == 0 || seconds == 0 ? 0 : std::min(1.0, left * 8 / rate / seconds)});
        report_.lost += c.dropped + c.lost;
      }
    }
    report_.lost += overrun_;
    Tally tally;
    for (const Process& process : processes_) count_events(process, tally);
    report_.counters.insert(tally.events.begin(), tally.events.end());
    if (overrun_ != 0) report_.counters["receiver_overrun"] = overrun_;
    if (sampler_) report_.series = sampler_->take();
  }

 private:
  enum class Kind : std::uint32_t { handled, turn, control, background, tcp, sample };
  struct Thread {
    Time free{};        // when it is done with what it has,
    PacketCost rest{};  // and this, shorter than a nanosecond, later
    std::uint64_t waiting_bytes = 0;
  };
  // The jobs of one protocol, and its aggregators and switches at the experiment's nodes: processes of their own, which know
  // each other by numbers of their own.
  struct Cluster final : public Surroundings, public Witness {
    Cluster(PacketLevel& of_level, const std::string& name, HostId first_process)
        : level(of_level),
          protocol(known_protocol(name)),
          scenario(cluster_of(of_level.experiment_, name, protocol->rules().switches)),
          first(first_process) {}

    void send(HostId from, const Endpoint& source, const Endpoint& destination, std::span<const std::byte> bytes) override {
      level.send(*this, from, source, destination, bytes);
    }
    void call(HostId, HostId to, ControlCall call) override { level.add_control(CallDue{first + to, std::move(call)}); }
    void reply(HostId, HostId to, ControlReply reply) override { level.add_control(ReplyDue{first + to, std::move(reply)}); }
    void say(HostId, const std::string&) override {}
    std::uint64_t waiting(HostId host, const Endpoint& self) const override {
      return level.processes_[first + host].thread_of(self.port).waiting_bytes * 3 / 2;  // as a kernel counts its memory
    }

    void began(std::uint32_t, std::uint32_t, std::span<const std::uint64_t>, std::uint32_t, const RankSet&,
               std::uint32_t) override {}
    void delivered(std::uint32_t, std::uint32_t, const stream::Operation&, std::span<const std::byte>,
                   std::span<const std::uint64_t>, const RankSet&) override {}
    void forgot(std::uint32_t, std::uint32_t) override {}
    void failed(std::uint32_t, std::uint32_t, const Error& error, std::optional<std::uint64_t>) override {
      throw Violation(error.what());
    }
    void straggled() override {}

    PacketLevel& level;
    const std::unique_ptr<Protocol> protocol;
    const Scenario scenario;
    const HostId first;  // the process that is its number 0
    HostId size = 0;
  };
  enum class Role : std::uint8_t { aggregator, below, rank };
  struct Process {
    NodeId node = 0;
    Role role = Role::rank;
    std::unique_ptr<Host> host;
    std::vector<Thread> threads;
    Time turn_at = never;  // the earliest queued turn
    std::uint32_t job = 0, rank = 0;
    bool ended = false;
    std::uint64_t retransmissions = 0;
    std::uint8_t priority = 0;  // of what it sends: its job's, or that of what came last

    [[nodiscard]] Thread& thread_of(std::uint16_t port) { return threads[port % threads.size()]; }
  };
  struct Packet {
    Datagram datagram;
    HostId to = nobody;
    std::uint32_t frame_bytes = 0;
    std::uint32_t flow = 0;  // background
    std::uint8_t priority = 0;
  };
  struct CallDue {
    HostId to = 0;
    ControlCall call;
  };
  struct ReplyDue {
    HostId to = 0;
    ControlReply reply;
  };
  struct Tcp {
    TcpSender sender;
    TcpReceiver receiver;
    Time due = never;  // the earliest event
  };
  struct Flow {
    std::uint64_t delivered = 0;     // bytes
    std::uint64_t rest = 0;          // of a nanosecond until the next frame: over the flow's bits a second
    std::optional<std::size_t> tcp;  // the medium's own
    std::unique_ptr<Tcp> own_tcp;
  };

  // ---- setting up

  void add_process(NodeId node, Role role) {
    Process process;
    process.node = node;
    process.role = role;
    process.threads.resize(std::max(1U, topology_[node].threads));
    processes_.push_back(std::move(process));
  }

  void check_job(const Cluster& cluster, std::size_t job) const {
    const JobPlan& plan = experiment_.jobs[job].plan;
    const std::string& protocol = cluster.scenario.settings.protocol;
    const std::uint32_t most = cluster.protocol->rules().max_world_size;
    if (plan.workers > most) {
      throw ImpossibleExperiment(key_of("job", job, "hosts"), "are " + std::to_string(plan.workers) + ", and a job of " +
                                                                  protocol + " has at most " + std::to_string(most) +
                                                                  " ranks: only --level flow has more");
    }
    const WireFormat wire = experiment_.jobs[job].training.wire;
    if (wire != WireFormat::native && protocol != "switchml") {
      throw ImpossibleExperiment(key_of("job", job, "wire"), "is SwitchML's: packets of " + protocol +
                                                                 " have 32 bits an element" +
                                                                 (rounds_blocks(wire) ? "" : ", but at --level flow"));
    }
  }

  // Of a network that drops every packet of values nobody would learn more than that a job did not end.
  void check_buffers(std::size_t job) const {
    const ExperimentJob& of = experiment_.jobs[job];
    const std::uint64_t bytes = std::uint64_t{of.plan.packet_elements} * 4;
    for (const NodeId host : of.nodes) {
      for (const PortPlan* const port : {&topology_[host].up, &topology_[host].down}) {
        if (of.training.wire != WireFormat::native || port->buffer_bytes >= bytes) continue;
        throw ImpossibleExperiment(
            "network.link", "has a buffer of " + std::to_string(port->buffer_bytes) + " bytes at " + topology_[host].name +
                                ", and packets of job '" + of.plan.name + "' have " + std::to_string(bytes) +
                                " bytes of values: give a longer buffer, or a shorter packet_elements");
      }
    }
  }

  void add_cluster(Cluster& cluster) {
    for (const NodeId node : experiment_.aggregators) add_process(node, Role::aggregator);
    if (!cluster.scenario.parent_of_switch.empty()) {
      for (const NodeId node : experiment_.switches) add_process(node, Role::below);
    }
    for (auto id = cluster.first; id < processes_.size(); ++id) {
      const HostId own = id - cluster.first;
      if (processes_[id].role == Role::aggregator) {
        processes_[id].host = std::make_unique<AggregatorHost>(cluster, own, cluster.scenario, *cluster.protocol, 0);
      } else {
        processes_[id].host = std::make_unique<SwitchHost>(cluster, own, cluster.scenario, *cluster.protocol, 0);
      }
    }
    std::uint32_t own_job = 0;  // the cluster's number of it
    for (std::uint32_t job = 0; job < experiment_.jobs.size(); ++job) {
      if (protocol_of(experiment_, experiment_.jobs[job]) == cluster.scenario.settings.protocol)
        add_workers(cluster, job, own_job++);
    }
    cluster.size = static_cast<HostId>(processes_.size()) - cluster.first;
  }

  void add_workers(Cluster& cluster, std::uint32_t job, std::uint32_t own_job) {
    check_job(cluster, job);
    check_buffers(job);
    const ExperimentJob& plan = experiment_.jobs[job];
    first_host_[job] = static_cast<HostId>(processes_.size());
    for (std::uint32_t rank = 0; rank < plan.plan.workers; ++rank) {
      const auto id = static_cast<HostId>(processes_.size());
      add_process(plan.nodes[rank], Role::rank);
      processes_[id].job = job;
      processes_[id].rank = rank;
      processes_[id].priority = plan.priority;
      auto program = std::make_unique<Trainer>(trainings_[job], sums_[job], rank,
                                               Random(derive(derive(experiment_.seed, 2 + job), rank)));
      processes_[id].host = std::make_unique<WorkerHost>(
          cluster, id - cluster.first, cluster.scenario, *cluster.protocol, cluster, tally_,
          WorkerHost::Place{own_job, rank, 0, 0, first_worker_port}, std::move(program), origin_ + plan.start);
      ++running_;
    }
  }

  void add_sampler() {
    if (experiment_.series.empty()) return;
    sampler_.emplace();
    for (const std::string& name : experiment_.series) {
      try {
        for (const std::string& each : names_of(name)) add_series(each);
      } catch (const std::invalid_argument& why) {
        throw ImpossibleExperiment("output.series", why.what());
      }
    }
    add(origin_ + experiment_.bin, Kind::sample, 0);
  }

  // Of all links, jobs, nodes or flows, if `*` stands in the place of one's name.
  [[nodiscard]] std::vector<std::string> names_of(const std::string& name) const {
    const CounterName parts(name);
    if (parts.whose != "*") return {name};
    std::vector<std::string> names;
    const auto add_name = [&](const std::string& whose) { names.push_back(parts.of + "." + whose + "." + parts.what); };
    if (parts.of == "link") {
      for (LinkId link = 0; link < topology_.links(); ++link) {
        if (topology_.upper(link) == no_node) continue;
        for (const Fabric::Way way : {Fabric::Way::up, Fabric::Way::down}) add_name(port_name(topology_, link, way));
      }
    } else if (parts.of == "job") {
      for (const ExperimentJob& job : experiment_.jobs) add_name(job.plan.name);
    } else if (parts.of == "background") {
      for (const BackgroundFlow& flow : experiment_.background) add_name(flow.name);
    } else if (parts.of == "switch" || parts.of == "aggregator") {
      for (const NodeId node : parts.of == "switch" ? experiment_.switches : experiment_.aggregators)
        add_name(topology_[node].name);
    }
    if (names.empty()) return {name};
    return names;
  }

  void add_series(const std::string& name) {
    const CounterName parts(name);
    if (parts.of == "link") return sampler_->add(name, port_value(topology_, medium_, parts));
    if (parts.of == "background") {
      for (std::size_t flow = 0; flow < background_.size(); ++flow) {
        if (experiment_.background[flow].name != parts.whose) continue;
        if (parts.what == "bytes")
          return sampler_->add(name, {[this, flow] { return static_cast<double>(delivered(background_[flow])); }, false});
        const TcpSender* const sender = background_[flow].own_tcp ? &background_[flow].own_tcp->sender : nullptr;
        if (sender != nullptr && parts.what == "window")
          return sampler_->add(name, {[sender] { return sender->window(); }, true});
        if (sender != nullptr && parts.what == "retransmissions")
          return sampler_->add(name, {[sender] { return static_cast<double>(sender->repeated()); }, false});
      }
    }
    if (parts.of == "job") {
      for (std::uint32_t job = 0; job < experiment_.jobs.size(); ++job) {
        if (experiment_.jobs[job].plan.name == parts.whose) return sampler_->add(name, job_value(job, parts.what));
      }
    }
    if (parts.of == "switch" || parts.of == "aggregator") {
      // Of every protocol there.
      const Role role = parts.of == "switch" ? Role::below : Role::aggregator;
      std::vector<HostId> there;
      for (HostId id = 0; id < processes_.size(); ++id) {
        if (processes_[id].role == role && topology_[processes_[id].node].name == parts.whose) there.push_back(id);
      }
      const auto events = [this, there] {
        Tally tally;
        for (const HostId id : there) count_events(processes_[id], tally);
        return tally.events;
      };
      if (events().contains(parts.what))
        return sampler_->add(name, {[events, what = parts.what] { return static_cast<double>(events().at(what)); }, false});
    }
    throw std::invalid_argument("has no counter '" + name + "'");
  }

  [[nodiscard]] std::uint64_t delivered(const Flow& flow) const {
    if (flow.own_tcp) return flow.own_tcp->receiver.segments() * tcp_segment_bytes;
    return flow.tcp ? medium_.tcp_bytes(*flow.tcp) : flow.delivered;
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
    const std::vector<CounterValue> known =
        make_protocol(protocol_of(experiment_, experiment_.jobs[job]))->worker_counters();
    if (std::none_of(known.begin(), known.end(), [&](const CounterValue& counter) { return counter.name == what; }))
      throw std::invalid_argument("has no counter of ranks '" + what + "'");
    return {[over_ranks, what] {
              return over_ranks([&](const WorkerHost& rank) {
                const std::vector<CounterValue> counters = rank.counters();
                const auto found =
                    std::find_if(counters.begin(), counters.end(), [&](const CounterValue& c) { return c.name == what; });
                if (found == counters.end() && !counters.empty()) throw Violation("ranks do not count '" + what + "'");
                return found == counters.end() ? 0.0 : static_cast<double>(found->value);
              });
            },
            false};
  }

  [[nodiscard]] Time now() const { return medium_.now(); }
  [[nodiscard]] WorkerHost& worker(HostId id) { return static_cast<WorkerHost&>(*processes_[id].host); }
  static void count_events(const Process& process, Tally& tally) {
    if (process.role == Role::aggregator) static_cast<AggregatorHost&>(*process.host).count_events(tally);
    if (process.role == Role::below) static_cast<SwitchHost&>(*process.host).count_events(tally);
  }

  // ---- what is due

  void add(Time at, Kind kind, std::uint32_t index) { medium_.add(at, {static_cast<std::uint32_t>(kind), index}); }

  void due(Due what) override {
    const std::uint32_t index = what.index;
    switch (static_cast<Kind>(what.kind)) {
      case Kind::handled: {
        const Packet& packet = packets_[index];
        processes_[packet.to].thread_of(packet.datagram.to.port).waiting_bytes -= packet.datagram.bytes.size();
        return deliver(index);
      }
      case Kind::turn:
        return turn(index);
      case Kind::control:
        return control(index);
      case Kind::background:
        return send_background(index);
      case Kind::tcp:
        return tcp_due(index);
      case Kind::sample:
        sampler_->sample();
        add(now() + experiment_.bin, Kind::sample, 0);
        return;
    }
  }

  void schedule(HostId id) {
    Process& process = processes_[id];
    const Time wake = std::max(process.host->next_wake(), now());
    if (wake == never || wake >= process.turn_at) return;
    process.turn_at = wake;
    add(wake, Kind::turn, id);
  }

  void turn(HostId id) {
    Process& process = processes_[id];
    if (process.turn_at != now()) return;
    process.turn_at = never;
    run_turn(id, {});
  }

  void run_turn(HostId id, std::span<const Datagram> datagrams) {
    Process& process = processes_[id];
    process.host->turn(datagrams, now());
    if (process.role == Role::rank && !process.ended) {
      const WorkerHost& rank = worker(id);
      if (rank.running()) process.retransmissions = std::max(process.retransmissions, rank.totals().retransmissions);
      process.ended = rank.ended();
      running_ -= process.ended ? 1 : 0;
      if (running_ == 0) medium_.stop();
    }
    schedule(id);
  }

  void control(std::uint32_t index) {
    auto message = std::exchange(control_[index], {});
    unused_control_.push_back(index);
    if (auto* const call = std::get_if<CallDue>(&message)) {
      processes_[call->to].host->on_call(call->call, now());
      schedule(call->to);
    } else {
      const auto& reply = std::get<ReplyDue>(message);
      processes_[reply.to].host->on_reply(reply.reply, now());
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
  [[nodiscard]] static Time work(Process& process, std::uint16_t port, PacketCost cost, Time now) {
    Thread& thread = process.thread_of(port);
    if (thread.free < now) {
      thread.free = now;
      thread.rest = {};
    }
    thread.rest += cost;
    const auto whole = std::chrono::floor<Duration>(thread.rest);
    thread.free += whole;
    thread.rest -= whole;
    return thread.free + std::chrono::ceil<Duration>(thread.rest);
  }

  void send(const Cluster& cluster, HostId from, const Endpoint& source, const Endpoint& destination,
            std::span<const std::byte> bytes) {
    const bool frames = cluster.protocol->sends_frames();
    if (host_of(destination) >= cluster.size) {
      if (frames) return;  // flooded to the stranger's cable
      throw Violation("a datagram to nobody");
    }
    const HostId to = cluster.first + host_of(destination);
    Process& sender = processes_[cluster.first + from];
    const std::uint32_t index = new_packet();
    Packet& packet = packets_[index];
    packet.datagram.from = source;
    packet.datagram.to = destination;
    packet.datagram.bytes.assign(bytes.begin(), bytes.end());
    packet.to = to;
    packet.frame_bytes = static_cast<std::uint32_t>(bytes.size() + (frames ? 0 : datagram_header_bytes));
    const PacketCost cost = topology_[sender.node].send_cost;
    const Time leaves = cost == PacketCost::zero() ? now() : work(sender, source.port, cost, now());
    trace_.datagram(leaves, endpoint_of(cluster.first + from, source.port), endpoint_of(to, destination.port), bytes, false);
    packet.priority = sender.priority;
    const std::uint32_t flow = topology_.is_tree() ? 0 : flow_of(cluster.first + from, source.port, to, destination.port);
    if (!medium_.carry(leaves, index, sender.node, processes_[to].node, packet.frame_bytes, {flow, packet.priority}))
      gone(index);
  }

  // What switches choose a path by.
  [[nodiscard]] static std::uint32_t flow_of(HostId from, std::uint16_t from_port, HostId to, std::uint16_t to_port) {
    const std::uint64_t ends = std::uint64_t{from} << 32 | to, ports = std::uint64_t{from_port} << 16 | to_port;
    return static_cast<std::uint32_t>(mix(ends ^ mix(ports)));
  }

  void gone(std::uint32_t index) override { unused_packets_.push_back(index); }

  void arrived(std::uint32_t index, bool marked) override {
    Packet& packet = packets_[index];
    if (packet.to == nobody) {
      unused_packets_.push_back(index);
      if (background_[packet.flow].own_tcp) return tcp_arrived(packet.flow, tcp_frames_[index], marked);
      background_[packet.flow].delivered += packet.frame_bytes;
      return;
    }
    packet.datagram.marked = marked;
    Process& process = processes_[packet.to];
    const NodePlan& node = topology_[process.node];
    if (node.receive_cost == PacketCost::zero()) return deliver(index);
    using Nanoseconds = std::chrono::duration<double, std::nano>;
    Thread& thread = process.thread_of(packet.datagram.to.port);
    const Nanoseconds waiting = thread.free - now();
    if (waiting >= Nanoseconds(node.receive_cost) * node.receive_packets) {
      ++overrun_;
      return unused_packets_.push_back(index);
    }
    thread.waiting_bytes += packet.datagram.bytes.size();
    add(work(process, packet.datagram.to.port, node.receive_cost, now()), Kind::handled, index);
  }

  void deliver(std::uint32_t index) {
    // Elsewhere during the turn, in which packets may be added.
    std::swap(delivered_, packets_[index].datagram);
    const HostId to = packets_[index].to;
    if (processes_[to].role != Role::rank) processes_[to].priority = packets_[index].priority;
    run_turn(to, {&delivered_, 1});
    std::swap(delivered_, packets_[index].datagram);  // its memory is for the next
    unused_packets_.push_back(index);
  }

  void send_background(std::uint32_t flow) {
    const BackgroundFlow& plan = experiment_.background[flow];
    const Duration since = now() - origin_ - plan.start;
    if (now() - origin_ >= plan.stop) return;
    if (plan.off > Duration::zero()) {
      const Duration within = since % (plan.on + plan.off);
      if (within >= plan.on) return add(now() + (plan.on + plan.off - within), Kind::background, flow);
    }
    const std::uint32_t index = new_packet();
    Packet& packet = packets_[index];
    packet.to = nobody;
    packet.frame_bytes = plan.frame_bytes;
    packet.flow = flow;
    if (!medium_.carry(now(), index, plan.from, plan.to, plan.frame_bytes, {flow, plan.priority})) gone(index);
    // What the division leaves counts for the next gap, so that the rate is exact over many.
    std::uint64_t& rest = background_[flow].rest;
    rest += std::uint64_t{plan.frame_bytes} * 8'000'000'000;
    add(now() + Duration(static_cast<std::int64_t>(rest / plan.bits_per_second)), Kind::background, flow);
    rest %= plan.bits_per_second;
  }

  // ---- TCP

  void add_tcp(std::uint32_t flow) {
    const BackgroundFlow& plan = experiment_.background[flow];
    const TcpWindow::Control control = tcp_control_of(plan.tcp);
    background_[flow].own_tcp.reset(new Tcp{TcpSender(control), TcpReceiver(control), after(origin_, plan.start)});
    add(after(origin_, plan.start), Kind::tcp, flow);
  }

  void tcp_due(std::uint32_t flow) {
    Tcp& tcp = *background_[flow].own_tcp;
    if (tcp.due != now()) return;
    tcp.due = never;
    tcp.sender.on_timer(now());
    if (const auto answer = tcp.receiver.on_timer(now())) send_tcp(flow, *answer);
    tcp_turn(flow);
  }

  void tcp_arrived(std::uint32_t flow, TcpFrame frame, bool marked) {
    Tcp& tcp = *background_[flow].own_tcp;
    if (frame.acknowledges) {
      tcp.sender.on_acknowledgement(frame, now());
    } else if (const auto answer = tcp.receiver.on_segment(frame, marked, now())) {
      send_tcp(flow, *answer);
    }
    tcp_turn(flow);
  }

  void tcp_turn(std::uint32_t flow) {
    Tcp& tcp = *background_[flow].own_tcp;
    const bool open = now() - origin_ < experiment_.background[flow].stop;
    while (const auto segment = tcp.sender.next(now(), open)) send_tcp(flow, *segment);
    const Time next = std::min(tcp.sender.next_timeout(), tcp.receiver.next_timeout());
    if (next >= tcp.due) return;
    tcp.due = next;
    add(next, Kind::tcp, flow);
  }

  void send_tcp(std::uint32_t flow, const TcpFrame& frame) {
    const BackgroundFlow& plan = experiment_.background[flow];
    const std::uint32_t index = new_packet();
    Packet& packet = packets_[index];
    packet.to = nobody;
    packet.frame_bytes = frame.bytes();
    packet.flow = flow;
    if (index >= tcp_frames_.size()) tcp_frames_.resize(packets_.size());
    tcp_frames_[index] = frame;
    const auto [from, to] = frame.acknowledges ? std::pair(plan.to, plan.from) : std::pair(plan.from, plan.to);
    if (!medium_.carry(now(), index, from, to, packet.frame_bytes, {flow, plan.priority})) gone(index);
  }

  // ---- the control plane

  void add_control(std::variant<CallDue, ReplyDue> message) {
    if (unused_control_.empty()) {
      unused_control_.push_back(static_cast<std::uint32_t>(control_.size()));
      control_.emplace_back();
    }
    const std::uint32_t index = unused_control_.back();
    unused_control_.pop_back();
    control_[index] = std::move(message);
    add(now() + experiment_.control_delay, Kind::control, index);
  }

  const Experiment& experiment_;
  const Topology& topology_;
  Report& report_;
  Medium& medium_;
  Trace trace_;
  const Time origin_;  // when the experiment begins
  std::optional<Time> ended_;
  Tally tally_;
  std::deque<Cluster> clusters_;
  std::vector<Process> processes_;  // by cluster: aggregators, switches, ranks by job
  std::vector<HostId> first_host_;  // of each job
  std::deque<TrainingJob> trainings_;
  std::deque<KnownSums> sums_;
  std::uint64_t running_ = 0;  // ranks
  std::optional<Sampler> sampler_;
  std::vector<Flow> background_;
  std::deque<Packet> packets_;
  std::vector<std::uint32_t> unused_packets_;
  std::vector<TcpFrame> tcp_frames_;  // by packet
  Datagram delivered_;
  std::deque<std::variant<CallDue, ReplyDue>> control_;
  std::vector<std::uint32_t> unused_control_;
  std::uint64_t overrun_ = 0;  // packets for which a receiver had no room
};

}  // namespace

Report run_packets(const Experiment& experiment, std::ostream* pcap) {
  const std::uint64_t seed = derive(experiment.seed, 1);
  if (needs_disciplines(experiment)) {
    QueuedMedium medium(experiment.topology, seed, packet_level_origin, experiment.random_ties);
    return run_packets(experiment, medium, pcap);
  }
  FabricMedium medium(experiment.topology, seed, packet_level_origin, experiment.random_ties);
  return run_packets(experiment, medium, pcap);
}

Report run_packets(const Experiment& experiment, Medium& medium, std::ostream* pcap) {
  if (experiment.random_ties && !medium.breaks_ties())
    throw ImpossibleExperiment("ties", "are in ns-3's own order there: leave it out");
  Report report;
  PacketLevel level(experiment, medium, report, pcap);
  try {
    level.run();
  } catch (const Violation& violation) {
    report.failure = violation.what();
  }
  level.finish();
  return report;
}

}  // namespace netsum::sim
