// An ATP job as a system for Search: the real workers, switches and parameter server (or one that is wrong on purpose).
//
// Times are no part of it, nor is congestion. A worker's time-outs may come at any moment, so its clock stands still, and
// what they send is there at once. A rate limit must not decide anything, so the server's clock is past all of them at each
// step. A switch looks at the time for one thing, whether a slot was abandoned: where a job says so, it may or may not have
// been.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "model/nodes.h"
#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/topology.h"
#include "protocol/atp/worker.h"
#include "wire/atp.h"

namespace netsum::model::atp {

using netsum::atp::at_server;
using netsum::atp::Overflow;
using netsum::atp::Ranks;
using netsum::atp::Rules;
using netsum::atp::Scaling;
using netsum::atp::Topology;
using netsum::atp::TopologyConfig;
using wire::atp::Common;
using wire::atp::Type;

enum class Values : std::uint8_t {
  ints,
  floats,           // that fit, as does their sum
  sum_overflows,    // fit, and their sum does not
  value_overflows,  // that of rank 0 does not fit
  cancels,          // some sums of some of them do not fit, and the sum of all does
};

enum class Wrongly : std::uint8_t {
  no,
  server_adds_overlaps,  // a sum that holds some ranks' values that are here already is added all the same
  root_merges_resends,   // the second level treats a resend as the first does
};

struct JobSetup {
  TopologyConfig topology;                 // without switches that nobody uses
  std::vector<std::vector<Values>> calls;  // by operation: one for each of its chunks, all ints or all floats
  std::uint32_t window = 2, slots = 1;
  std::uint64_t ahead = 1;   // operations that a rank may have under way beside one
  bool abandons = false;     // slots may be abandoned at any time
  std::uint32_t losses = 0;  // how often the first switch forgets the job and all that it holds
  Overflow overflow = Overflow::exact;
  Scaling scaling = Scaling::fixed;
  Rules rules = Rules::netsum;  // chip: switches are chips
  Wrongly wrongly = Wrongly::no;
};

inline constexpr std::uint64_t job_epoch = 77;
inline constexpr std::uint32_t folded_epochs = 99;
inline constexpr Time start = Time{} + std::chrono::hours(1);
inline constexpr Duration abandoned_after = std::chrono::hours(1000);  // and no search of liveness lasts as long

struct Job;

struct alignas(64) Line {
  std::byte bytes[64];
};
[[nodiscard]] inline std::vector<Line> memory_for(std::size_t bytes) {
  return std::vector<Line>((bytes + sizeof(Line) - 1) / sizeof(Line));
}
[[nodiscard]] inline std::span<std::byte> bytes_of(std::vector<Line>& lines) {
  return std::as_writable_bytes(std::span(lines));
}

// What all nodes know. Nodes: the ranks, the switches, the parameter server.
struct Job {
  explicit Job(const JobSetup& s) : setup(s), topology(s.topology) {}

  [[nodiscard]] std::uint32_t ranks() const { return topology.world_size(); }
  [[nodiscard]] std::uint32_t switch_node(std::uint32_t switch_id) const { return ranks() + switch_id; }
  [[nodiscard]] std::uint32_t server_node() const { return ranks() + static_cast<std::uint32_t>(topology.switches()); }
  [[nodiscard]] std::uint32_t node_of(const Topology::Child& child) const {
    return child.is_switch ? switch_node(child.index) : child.index;
  }
  [[nodiscard]] static std::uint32_t epoch_of(std::uint32_t rank) { return 100 + rank; }
  [[nodiscard]] bool integers(std::size_t call) const { return setup.calls[call].front() == Values::ints; }

  // Each rank, chunk and operation has another value, and each set of ranks another sum: a part that is missing, foreign or
  // counted twice shows. All of them, and their sums, are exact as float32 and, scaled, as integers.
  [[nodiscard]] double value(std::uint32_t rank, std::size_t call, std::size_t chunk) const {
    const auto place = static_cast<double>(1 + 3 * chunk + 16 * call);
    switch (setup.calls[call][chunk]) {
      case Values::ints:
        return place * std::exp2(7 * rank);
      case Values::floats:
        return (1 + static_cast<double>(chunk) + 2 * static_cast<double>(call)) / 8 * std::exp2(2 * rank);
      case Values::sum_overflows:
        return 15 - rank;
      case Values::value_overflows:
        return rank == 0 ? 30 + static_cast<double>(chunk) : 1 + static_cast<double>(rank);
      case Values::cancels:
        return rank == 0 ? 20 : rank == 1 ? 15 : -17;
    }
    return 0;
  }
  [[nodiscard]] double sum(const Ranks& of, std::size_t call, std::size_t chunk) const {
    double sum = 0;
    of.for_each([&](std::uint32_t rank) { sum += value(rank, call, chunk); });
    return sum;
  }
  // Whether all ranks know a scale for it that cannot overflow (§B.3): the chunk one window before is of the same call.
  [[nodiscard]] bool has_own_scale(std::size_t call, std::size_t chunk) const {
    return setup.scaling == Scaling::dynamic && !integers(call) && chunk >= setup.window;
  }
  [[nodiscard]] double scale(std::size_t call, std::size_t chunk) const {
    if (integers(call)) return 1;
    constexpr double most = 1e8;  // ATP §B.1
    if (!has_own_scale(call, chunk)) return most;
    double bits = 31;  // of a sum
    for (double all = 1; all < ranks(); all *= 2) --bits;
    double largest = 0;  // a call is one block
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      for (std::size_t each = 0; each < setup.calls[call].size(); ++each) {
        largest = std::max(largest, std::fabs(value(rank, call, each)));
      }
    }
    return std::min(most, std::exp2(bits - std::floor(std::log2(largest)) - 1));
  }
  [[nodiscard]] std::pair<std::size_t, std::size_t> place_of(std::uint64_t sequence) const {  // call, chunk
    std::size_t call = 0;
    while (call < setup.calls.size() && sequence >= setup.calls[call].size()) sequence -= setup.calls[call++].size();
    return {call, sequence};
  }

  JobSetup setup;
  Topology topology;
};

using JobPointer = std::shared_ptr<const Job>;

[[nodiscard]] inline Common common_of(std::span<const std::byte> bytes) {
  Common common;
  if (wire::atp::parse_common(bytes, common) != wire::ParseError::none) throw Wrong("a packet that cannot be read is sent");
  return common;
}

class WorkerNode final : public Node {
 public:
  WorkerNode(JobPointer job, std::uint32_t rank)
      : job_(std::move(job)),
        rank_(rank),
        worker_(config(*job_, rank)),
        tensors_(job_->setup.calls.size()),
        completed_(job_->setup.calls.size()) {}
  WorkerNode(const WorkerNode& other) = default;

  [[nodiscard]] std::unique_ptr<Node> clone() const override {
    auto copy = std::make_unique<WorkerNode>(*this);
    for (std::size_t call = front(); call < submitted_; ++call) {
      if (!completed_[call]) copy->worker_.move_tensor(call, copy->tensors_[call].data());
    }
    return copy;
  }
  void append_state(std::vector<std::byte>& out) const override {
    append_bytes(out, submitted_);
    for (const bool completed : completed_) append_bytes(out, completed);
    worker_.append_state(out);
    // The tensors need not be part of it: what the chunks that have a result contain was checked when they got it.
  }
  void check() const override {
    if (worker_.failure()) throw Wrong("ranks that agree fail");
    const netsum::atp::WorkerCounters& counters = worker_.counters();
    for (const std::uint64_t malformed : counters.malformed) {
      if (malformed != 0) throw Wrong("rank " + std::to_string(rank_) + " gets what it cannot read");
    }
    if (counters.foreign != 0) throw Wrong("rank " + std::to_string(rank_) + " gets what is not for it");
    for (std::size_t call = 0; call < submitted_; ++call) check_tensor(call);
  }

  void receive(const RxView& packet, Time now, RecordingSink& out) override {
    worker_.on_packets({&packet, 1}, now, out);
    settle();
  }
  [[nodiscard]] Time when(std::size_t) override { return start; }
  [[nodiscard]] std::vector<std::string> choices() const override {
    if (!may_submit()) return {};
    return {"issues its next operation"};
  }
  void choose(std::size_t, RecordingSink& out) override { submit(start, out); }

  // Time-outs without an answer: each chunk as it was sent first, as a resend, and past the switches. One packet is missing:
  // a chunk that is sent for the first time while the switches are left out. It differs from the third in the resend flag
  // alone, and goes straight to the server, which does not look at that.
  void time_outs(RecordingSink& out) const override {
    if (!worker_.oldest_stall()) return;
    const std::unique_ptr<Node> node = clone();
    auto& copy = static_cast<WorkerNode&>(*node);
    const std::size_t before = out.sent().size();
    for (int i = 0; i < 10; ++i) {
      if (copy.worker_.next_timeout() == never) throw Wrong("a worker waits and never asks again");
      copy.worker_.on_timer(copy.worker_.next_timeout(), out);
    }
    if (out.sent().size() == before) throw Wrong("a worker waits and never asks again");
  }
  // What is about a chunk that it has the result of.
  [[nodiscard]] bool is_past(const Packet& packet) const override {
    const auto [call, chunk] = job_->place_of(common_of(packet.bytes).sequence);
    return has_result(call, chunk);
  }

  [[nodiscard]] bool finished() const override {
    return std::find(completed_.begin(), completed_.end(), false) == completed_.end();
  }
  void begin(Time now, RecordingSink& out) override {
    while (may_submit()) submit(now, out);
  }
  [[nodiscard]] Time next_timeout() const override { return worker_.next_timeout(); }
  void on_timer(Time now, RecordingSink& out) override { worker_.on_timer(now, out); }

 private:
  static netsum::atp::WorkerConfig config(const Job& job, std::uint32_t rank) {
    netsum::atp::WorkerConfig config;
    config.job_epoch = job_epoch;
    config.rank = rank;
    config.world_size = job.ranks();
    config.rank_epoch = Job::epoch_of(rank);
    config.folded_epochs = folded_epochs;
    config.packet_elements = 1;
    config.window = job.setup.window;
    config.server = host(job.server_node());
    const std::uint32_t at = job.setup.topology.switch_of_rank[rank];
    config.first_hop = at == at_server ? config.server : host(job.switch_node(at));
    config.path = job.topology.path(rank);
    config.switch_slots = job.setup.slots;
    config.scaling = job.setup.scaling;
    config.rules = job.setup.rules;
    config.checksums = job.setup.rules != Rules::chip;
    config.congestion_control = false;  // a smaller window does later what a larger one may do later too
    config.operations = job.setup.ahead + 1;
    return config;
  }

  [[nodiscard]] std::size_t front() const {
    std::size_t call = 0;
    while (call < submitted_ && completed_[call]) ++call;
    return call;
  }
  [[nodiscard]] bool may_submit() const {
    return submitted_ < completed_.size() && submitted_ - front() <= job_->setup.ahead;
  }
  void submit(Time now, RecordingSink& out) {
    const std::size_t call = submitted_++;
    std::vector<std::uint32_t>& tensor = tensors_[call];
    for (std::size_t chunk = 0; chunk < job_->setup.calls[call].size(); ++chunk) {
      tensor.push_back(bits(call, job_->value(rank_, call, chunk)));
    }
    stream::Operation operation;
    operation.number = call;
    operation.dtype = job_->integers(call) ? DType::int32 : DType::float32;
    operation.elements = tensor.size();
    operation.data = tensor.data();
    if (!worker_.submit(operation, now, out)) throw Wrong("an operation was not taken");
    settle();
  }
  void settle() {
    for (const std::uint64_t call : worker_.take_completed()) {
      if (call >= submitted_ || completed_[call])
        throw Wrong("an operation completes twice on rank " + std::to_string(rank_));
      completed_[call] = true;
    }
  }

  [[nodiscard]] std::uint32_t bits(std::size_t call, double value) const {
    return job_->integers(call) ? static_cast<std::uint32_t>(static_cast<std::int64_t>(value))
                                : std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
  [[nodiscard]] bool has_result(std::size_t call, std::size_t chunk) const {
    return call < submitted_ && tensors_[call][chunk] == bits(call, job_->sum(Ranks::first(job_->ranks()), call, chunk));
  }
  // In every state each element is still the rank's own, or the exact sum. After completion: the sum.
  void check_tensor(std::size_t call) const {
    for (std::size_t chunk = 0; chunk < tensors_[call].size(); ++chunk) {
      const std::uint32_t got = tensors_[call][chunk], own = bits(call, job_->value(rank_, call, chunk));
      if (has_result(call, chunk) || (got == own && !completed_[call])) continue;
      const auto shown = [&](std::uint32_t b) {
        return job_->integers(call) ? std::to_string(b) : std::to_string(std::bit_cast<float>(b));
      };
      throw Wrong("rank " + std::to_string(rank_) + " receives " + shown(got) + " as chunk " + std::to_string(chunk) +
                  " of operation " + std::to_string(call) + ", not " +
                  shown(bits(call, job_->sum(Ranks::first(job_->ranks()), call, chunk))));
    }
  }

  JobPointer job_;
  std::uint32_t rank_;
  netsum::atp::Worker worker_;
  std::uint64_t submitted_ = 0;
  std::vector<std::vector<std::uint32_t>> tensors_;  // bits of int32 or float32
  std::vector<bool> completed_;
};

class SwitchNode final : public Node {
 public:
  SwitchNode(JobPointer job, std::uint32_t switch_id)
      : job_(std::move(job)),
        which_(switch_id),
        merges_(job_->setup.wrongly == Wrongly::root_merges_resends && job_->topology.level(switch_id) == 1),
        losses_left_(switch_id == 0 ? job_->setup.losses : 0),
        memory_(memory_for(netsum::atp::Switch::memory_bytes(config(*job_)))),
        switch_(config(*job_), bytes_of(memory_)) {
    learn();
  }
  SwitchNode(const SwitchNode& other) : SwitchNode(other, other.memory_) {}

  [[nodiscard]] std::unique_ptr<Node> clone() const override { return std::make_unique<SwitchNode>(*this); }
  void append_state(std::vector<std::byte>& out) const override {
    append_bytes(out, knows_, losses_left_);
    switch_.append_state(out);
  }
  void check() const override {
    const netsum::atp::SwitchJobCounters* const c = switch_.job_counters(job_epoch);
    if (c == nullptr) return;
    if (c->dropped_source + c->dropped_rank_epoch + c->dropped_shape + c->mismatch_passed != 0)
      throw Wrong("a switch meets a packet that no correct node sends");
  }

  void receive(const RxView& packet, Time now, RecordingSink& out) override {
    if (!merges_) return switch_.on_packets({&packet, 1}, false, now, out);
    // Its bits where the first level has them: then it does as the first level.
    std::vector<std::byte> bytes(packet.bytes.begin(), packet.bytes.end());
    swap_levels(bytes);
    RxView changed = packet;
    changed.bytes = bytes;
    switch_.on_packets({&changed, 1}, false, now, out);
    for (auto& item : out.sent()) swap_levels(item.bytes);
  }
  [[nodiscard]] std::size_t ways() const override { return job_->setup.abandons ? 2 : 1; }
  [[nodiscard]] Time when(std::size_t way) override { return way == 0 ? start : start + abandoned_after; }

  [[nodiscard]] std::vector<std::string> choices() const override {
    if (!knows_) return {"is told of the job again"};
    if (losses_left_ == 0) return {};
    return {"restarts, and knows nothing"};
  }
  void choose(std::size_t, RecordingSink&) override {
    if (!knows_) return learn();
    --losses_left_;
    knows_ = false;
    switch_.remove_job(job_epoch);
  }

 private:
  SwitchNode(const SwitchNode& other, std::vector<Line> memory)
      : job_(other.job_),
        which_(other.which_),
        merges_(other.merges_),
        knows_(other.knows_),
        losses_left_(other.losses_left_),
        memory_(std::move(memory)),
        switch_(other.switch_) {
    switch_.move_memory(bytes_of(memory_));
  }

  static netsum::atp::SwitchConfig config(const Job& job) {
    return {job.setup.slots, 1, abandoned_after, job.setup.rules == Rules::chip};
  }

  void learn() {
    const Topology& topology = job_->topology;
    netsum::atp::SwitchJobConfig config;
    config.epoch = job_epoch;
    config.folded_epochs = folded_epochs;
    config.packet_elements = 1;
    config.window = job_->setup.window;
    config.level = merges_ ? 0 : topology.level(which_);
    const std::uint32_t parent = topology.parent(which_);
    config.next_level = parent == at_server ? topology.server_level() : topology.level(parent);
    config.parent = host(parent == at_server ? job_->server_node() : job_->switch_node(parent));
    for (const auto& child : topology.children(which_)) {
      config.children.push_back({host(job_->node_of(child)), child.is_switch,
                                 child.is_switch ? 0 : Job::epoch_of(child.index), topology.below(child)});
    }
    config.overflow = job_->setup.overflow;
    config.rules = job_->setup.rules;
    if (!switch_.add_job(config)) throw std::logic_error("add_job");
    knows_ = true;
  }

  static void swap_levels(std::vector<std::byte>& bytes) {
    wire::atp::GradientPacket gradient;
    const Common common = common_of(bytes);
    if (common.type != Type::gradient) return;
    if (wire::atp::parse_gradient(bytes, common, gradient) != wire::ParseError::none) throw std::logic_error("gradient");
    const wire::atp::Directions& was = gradient.directions;
    auto fan_in = was.fan_in();
    std::swap(fan_in[0], fan_in[1]);
    const wire::atp::Directions directions(was.level < 2 ? static_cast<std::uint8_t>(1 - was.level) : was.level, fan_in,
                                           {was.word(1), was.word(0), was.word(2), was.word(3)});
    wire::atp::write_gradient_header(bytes, common, directions);
    wire::atp::seal(bytes);
  }

  JobPointer job_;
  std::uint32_t which_;
  bool merges_;
  bool knows_ = false;
  std::uint32_t losses_left_;
  std::vector<Line> memory_;
  netsum::atp::Switch switch_;
};

class ServerNode final : public Node {
 public:
  explicit ServerNode(JobPointer job)
      : job_(std::move(job)), memory_(memory_for(netsum::atp::Server::memory_bytes(1, job_->setup.window, job_->ranks()))) {
    netsum::atp::ServerJobConfig config;
    config.epoch = job_epoch;
    config.folded_epochs = folded_epochs;
    config.packet_elements = 1;
    config.window = job_->setup.window;
    config.switch_slots = job_->setup.slots;
    config.overflow = job_->setup.overflow;
    config.rules = job_->setup.rules;
    config.topology = job_->topology;
    for (std::uint32_t rank = 0; rank < job_->ranks(); ++rank) config.members.push_back({Job::epoch_of(rank), host(rank)});
    for (const auto& child : job_->topology.server_children()) config.roots.push_back(host(job_->node_of(child)));
    if (!server_.add_job(config, bytes_of(memory_))) throw std::logic_error("add_job");
  }
  ServerNode(const ServerNode& other)
      : Node(other),
        job_(other.job_),
        clock_(other.clock_),
        added_(other.added_),
        memory_(other.memory_),
        server_(other.server_) {
    server_.move_memory(job_epoch, bytes_of(memory_));
  }

  [[nodiscard]] std::unique_ptr<Node> clone() const override { return std::make_unique<ServerNode>(*this); }
  void append_state(std::vector<std::byte>& out) const override {
    for (const auto& [sequence, ranks] : added_) {
      append_bytes(out, sequence, ranks.words().size());
      for (const std::uint64_t word : ranks.words()) append_bytes(out, word);
    }
    server_.append_state(out);
  }
  void check() const override {
    const netsum::atp::ServerJobCounters& c = *server_.job_counters(job_epoch);
    if (c.dropped_early + c.dropped_mismatch + c.dropped_source + c.dropped_rank_epoch + c.dropped_shape != 0)
      throw Wrong("the server meets a packet that no correct node sends");
  }

  void receive(const RxView& packet, Time now, RecordingSink& out) override {
    if (job_->setup.wrongly != Wrongly::server_adds_overlaps) return server_.on_packets({&packet, 1}, false, now, out);
    // The real one adds a sum that says to hold only the ranks that it misses.
    std::vector<std::byte> bytes(packet.bytes.begin(), packet.bytes.end());
    claim_what_is_missing(bytes);
    RxView changed = packet;
    changed.bytes = bytes;
    server_.on_packets({&changed, 1}, false, now, out);
  }
  [[nodiscard]] Time when(std::size_t) override { return clock_ += std::chrono::seconds(1); }

 private:
  void claim_what_is_missing(std::vector<std::byte>& bytes) {
    wire::atp::GradientPacket gradient;
    const Common common = common_of(bytes);
    if (common.type != Type::gradient || wire::atp::parse_gradient(bytes, common, gradient) != wire::ParseError::none)
      return;
    const auto ranks = job_->topology.decode(gradient.directions);
    if (!ranks) return;
    Ranks& added = added_[common.sequence];
    const Ranks missing = ranks->minus(added);
    added = added.united(*ranks);
    if (missing.empty() || missing == *ranks) return;
    wire::atp::Directions directions = gradient.directions;  // one switch: a bit is a rank
    directions.set(0, wire::atp::Children::from_words({missing.words()[0]}));
    wire::atp::write_gradient_header(bytes, common, directions);
    wire::atp::seal(bytes);
  }

  JobPointer job_;
  Time clock_ = start;
  std::map<std::uint64_t, Ranks> added_;  // by sequence number; the wrong one's
  std::vector<Line> memory_;
  netsum::atp::Server server_;
};

class JobSystem final : public System {
 public:
  explicit JobSystem(const JobSetup& setup) : job_(std::make_shared<Job>(setup)) {
    if (const std::string error = netsum::atp::check(setup.topology); !error.empty()) throw std::logic_error(error);
    for (std::uint32_t rank = 0; rank < job_->ranks(); ++rank) nodes.push_back(std::make_unique<WorkerNode>(job_, rank));
    for (std::uint32_t i = 0; i < job_->topology.switches(); ++i) nodes.push_back(std::make_unique<SwitchNode>(job_, i));
    nodes.push_back(std::make_unique<ServerNode>(job_));
  }

  // Every sum, partial or complete, is that of exactly the ranks that it names; whatever one rank sends of a chunk has the
  // same values.
  void inspect(const Packet& packet) override {
    if (job_->setup.wrongly != Wrongly::no) return;  // until a rank has a wrong result
    const Common common = common_of(packet.bytes);
    const auto [call, chunk] = job_->place_of(common.sequence);
    if (common.type == Type::gradient) {
      wire::atp::GradientPacket gradient;
      if (wire::atp::parse_gradient(packet.bytes, common, gradient) != wire::ParseError::none)
        throw Wrong("a gradient that cannot be read is sent");
      const auto ranks = job_->topology.decode(gradient.directions);
      if (!ranks) throw Wrong("a gradient that names no ranks is sent");
      std::int64_t value = load_le<std::uint32_t>(gradient.payload.data());
      const double sum = job_->sum(*ranks, call, chunk);
      if (common.floats && job_->has_own_scale(call, chunk)) return expect(false, packet);
      if (common.floats) return expect(value == std::bit_cast<std::uint32_t>(static_cast<float>(sum)), packet);
      if (common.overflow) return expect(!job_->has_own_scale(call, chunk), packet);  // of no use but for the bitmap
      value = static_cast<std::int32_t>(value);
      if (common.wide) value += std::int64_t{static_cast<std::int16_t>(load_le<std::uint16_t>(gradient.high.data()))} << 32;
      expect(value == scaled(call, chunk, sum), packet);
    } else if (common.type == Type::parameter) {
      wire::atp::ParameterPacket parameter;
      if (wire::atp::parse_parameter(packet.bytes, common, parameter) != wire::ParseError::none)
        throw Wrong("a result that cannot be read is sent");
      const std::uint32_t value = load_le<std::uint32_t>(parameter.payload.data());
      const double sum = job_->sum(Ranks::first(job_->ranks()), call, chunk);
      expect(common.floats ? value == std::bit_cast<std::uint32_t>(static_cast<float>(sum))
                           : static_cast<std::int32_t>(value) == scaled(call, chunk, sum),
             packet);
    }
  }
  // "Have yours" and "unknown job" (of a switch) decide only when a worker sends again, and whether past the switches.
  [[nodiscard]] bool in_network(const Packet& packet) const override {
    const Common common = common_of(packet.bytes);
    if (common.type == Type::mismatch) throw Wrong("ranks that agree are told that they do not");
    if (common.type == Type::unknown_job && packet.from == job_->server_node()) throw Wrong("the server forgets the job");
    return common.type != Type::waiting && common.type != Type::unknown_job;
  }

  [[nodiscard]] std::string name(std::size_t node) const override {
    if (node < job_->ranks()) return "rank " + std::to_string(node);
    if (node == job_->server_node()) return "the server";
    if (job_->topology.switches() == 1) return "the switch";
    return "switch " + std::to_string(node - job_->ranks());
  }
  [[nodiscard]] std::string words(const Packet& packet) const override {
    const Common common = common_of(packet.bytes);
    std::string text;
    wire::atp::GradientPacket gradient;
    if (common.type == Type::gradient &&
        wire::atp::parse_gradient(packet.bytes, common, gradient) == wire::ParseError::none) {
      const auto ranks = job_->topology.decode(gradient.directions);
      std::string list;
      const auto add = [&](std::uint32_t rank) {
        if (!list.empty()) list += '+';
        list += std::to_string(rank);
      };
      if (ranks) ranks->for_each(add);
      text = (common.floats ? "the floats of " : "the values of ") + list;
    } else {
      constexpr const char* names[] = {"", "", "the result", "the question", "the end"};
      text = common.type <= Type::done ? names[static_cast<std::size_t>(common.type)] : "a packet";
    }
    text += " for chunk " + std::to_string(common.sequence) + " from " + name(packet.from);
    if (common.type == Type::ask && common.floats) text += ", floats";
    if (common.resend) text += ", resend";
    if (common.collision) text += ", collision";
    if (common.direct) text += ", direct";
    return text;
  }

 private:
  [[nodiscard]] std::int64_t scaled(std::size_t call, std::size_t chunk, double sum) const {
    return static_cast<std::int64_t>(sum * job_->scale(call, chunk));
  }
  void expect(bool right, const Packet& packet) const {
    if (!right) throw Wrong("wrong values are sent: " + words(packet) + " to " + name(packet.to));
  }

  JobPointer job_;
};

}  // namespace netsum::model::atp
