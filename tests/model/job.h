// A SwitchML job as a system for explore(): the real workers, a switch (the real one, a chip's, or a variant that is wrong),
// and a network that may do anything.
//
// The network is the set of all packets that were ever sent. Each may arrive at any time, any number of times, or never:
// that is loss, duplication, reordering and delay without bound at once. Time-outs add nothing to it, because a
// retransmission is byte-identical to a packet that is in the set already; that this is so is checked in every state. Time
// stands still: it decides only when to repeat, and how often a repeat is told to wait.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/explore.h"
#include "model/host.h"
#include "model/slot_invariant.h"
#include "model/tree_invariant.h"
#include "protocol/switchml/in_flight.h"
#include "protocol/switchml/switch_job.h"
#include "protocol/switchml/worker.h"
#include "stream/operation.h"
#include "support/pads.h"
#include "wire/epochs.h"
#include "wire/switchml.h"
#include "wire/switchml_apart.h"

namespace netsum::model {

inline constexpr std::uint64_t job_epoch = 77;
inline constexpr std::uint32_t packet_elements = 256;  // a chunk is a stripe: a slot carries one chunk after the other

struct Call {
  std::uint64_t elements = 1;  // reduce_scatter: one for each rank
  DType dtype = DType::float32;
  stream::Collective collective = stream::Collective::all_reduce;
  // 16 bits: every other element is 2^40 times as large, so that sums are in parts. 8 and 4 bits: values, and sums of two,
  // that they have exactly.
  WireFormat wire = WireFormat::native;
};

struct Setup {
  std::uint32_t workers = 2, slots = 1;
  std::vector<Call> calls;
  std::uint64_t ahead = 1;                // operations that a rank may have under way; the next one comes after a result
  std::vector<std::uint32_t> racks = {};  // of a tree: how many ranks are at each leaf switch, in rank order
  bool restarts = false;                  // the first leaf may
  bool begins_anew = false;               // and takes the job again then, with empty slots
  bool is_private = false;                // the aggregator cannot read what it adds
  bool fast_workers = true;               // they have their fast path
  std::uint32_t group = 0;                // chunks that begin together; 0: each by itself, in windows as short as these
};

inline constexpr std::uint32_t switch_host = 255;

[[nodiscard]] inline std::vector<std::uint32_t> rank_epochs(std::uint32_t workers) {
  std::vector<std::uint32_t> epochs;
  for (std::uint32_t rank = 0; rank < workers; ++rank) epochs.push_back(100 + rank);
  return epochs;
}

// Of a job with one switch, for all ranks.
class OneSwitch {
 public:
  static Endpoint of_rank(std::uint32_t) { return host(switch_host); }
  static constexpr bool is_chip = false;
  static bool is_at(const Endpoint& endpoint) { return endpoint == host(switch_host); }
  static bool may_restart() { return false; }
  static void restart() {}
  static bool restarted() { return false; }
};

// The switch that is shipped.
class RealSwitch : public OneSwitch {
 public:
  explicit RealSwitch(const Setup& setup)
      : memory_(switchml::Switch::memory_bytes(packet_elements, setup.slots, setup.workers) / sizeof(Line)) {
    switchml::SwitchJobConfig config{job_epoch, packet_elements, setup.slots, {}};
    for (std::uint32_t rank = 0; rank < setup.workers; ++rank) config.members.push_back({100 + rank, host(rank)});
    if (!switch_.add_job(config, std::as_writable_bytes(std::span(memory_)))) throw std::logic_error("add_job");
  }
  RealSwitch(const RealSwitch& other) : memory_(other.memory_), switch_(other.switch_) {
    switch_.move_memory(job_epoch, std::as_writable_bytes(std::span(memory_)));
  }
  RealSwitch(RealSwitch&&) = default;  // the memory stays where it is
  RealSwitch& operator=(const RealSwitch&) = delete;
  RealSwitch& operator=(RealSwitch&&) = delete;

  void on_packet(const RxView& packet, const Endpoint&, Time now, Sink& sink) {
    switch_.on_packets({&packet, 1}, now, sink);
  }
  void check() const {
    const switchml::JobCounters& c = *switch_.job_counters(job_epoch);
    if (c.dropped_early + c.dropped_mismatch + c.dropped_shape + c.dropped_slot != 0)
      throw Wrong("the switch met a packet that no correct worker sends");
  }
  void append_state(std::vector<std::byte>& out) const { switch_.append_state(out); }
  void use_fast_path(bool use) { switch_.use_fast_path(use); }
  [[nodiscard]] const switchml::Switch::Job& job() const { return switch_.job(job_epoch); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
  switchml::Switch switch_;
};

// The same, and beside it one without its fast path, which does the same.
class BothPaths : public OneSwitch {
 public:
  explicit BothPaths(const Setup& setup) : fast_(setup), slow_(setup) { slow_.use_fast_path(false); }

  void on_packet(const RxView& packet, const Endpoint& to, Time now, Sink& sink) {
    testing::RecordingSink fast, slow;
    fast_.on_packet(packet, to, now, fast);
    slow_.on_packet(packet, to, now, slow);
    std::vector<std::byte> states[2];
    fast_.append_state(states[0]);
    slow_.append_state(states[1]);
    if (fast.sent() != slow.sent() || states[0] != states[1]) throw Wrong("the fast path does something else");
    for (const auto& item : fast.sent())
      std::copy(item.bytes.begin(), item.bytes.end(), sink.datagram(item.to, item.bytes.size()).begin());
  }
  void check() const { fast_.check(); }
  void append_state(std::vector<std::byte>& out) const { fast_.append_state(out); }
  [[nodiscard]] const switchml::Switch::Job& job() const { return fast_.job(); }

 private:
  RealSwitch fast_, slow_;
};

template <class SwitchType>
class Job {
 public:
  static constexpr std::size_t most_packets = 512;  // distinct ones, of all that can ever be sent

  struct Action {
    enum class Kind : std::uint8_t { submit, deliver, restart } kind = Kind::submit;
    std::uint16_t which = 0;  // rank; or the packet's number
  };

  explicit Job(const Setup& setup) : shared_(std::make_shared<Shared>(setup)), switch_(setup) {
    for (std::uint32_t rank = 0; rank < setup.workers; ++rank) {
      switchml::WorkerConfig config;
      config.job_epoch = job_epoch;
      config.rank = rank;
      config.world_size = setup.workers;
      config.rank_epoch = 100 + rank;
      config.folded_epochs = wire::fold_epochs(rank_epochs(setup.workers));
      config.packet_elements = packet_elements;
      config.slots = setup.slots;
      config.group = setup.group;
      config.aggregator = switch_.of_rank(rank);
      config.operations = setup.ahead + 1;
      if (setup.is_private) config.pads = testing::pads_of(setup.workers)[rank];
      if constexpr (SwitchType::is_chip) {
        config.chip = true;
        config.member = switch_.member_of(rank);
      }
      ranks_.emplace_back(config, setup.calls.size());
      ranks_.back().worker.use_fast_path(setup.fast_workers);
    }
  }
  Job(const Job& other)
      : shared_(other.shared_), switch_(other.switch_), ranks_(other.ranks_), network_(other.network_), now_(other.now_) {
    for (Rank& rank : ranks_) {
      for (std::uint64_t number = rank.front(); number < rank.submitted; ++number) {
        if (!rank.completed[number]) rank.worker.move_tensor(number, rank.tensors[number].data());
      }
    }
  }
  Job(Job&& other) = default;  // tensors and memory stay where they are
  Job& operator=(const Job&) = delete;

  [[nodiscard]] std::vector<Action> actions() const {
    std::vector<Action> actions;
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      if (may_submit(ranks_[rank])) actions.push_back({Action::Kind::submit, rank});
    }
    for (std::uint16_t number = 0; number < shared_->packets.size(); ++number) {
      if (network_[number]) actions.push_back({Action::Kind::deliver, number});
    }
    if (switch_.may_restart()) actions.push_back({Action::Kind::restart, 0});
    return actions;
  }

  void apply(const Action& action) {
    if (action.kind == Action::Kind::submit) return submit(action.which);
    if (action.kind == Action::Kind::restart) return switch_.restart();
    deliver(shared_->packets[action.which]);
  }

  void append_state(std::vector<std::byte>& out) const {
    switch_.append_state(out);
    for (const Rank& rank : ranks_) {
      append_bytes(out, rank.submitted);
      for (const bool completed : rank.completed) append_bytes(out, completed);
      rank.worker.append_state(out);
    }
    // The tensors need not be part of it: what the chunks that have a result contain was checked when they got it.
    for (std::size_t word = 0; word < most_packets; word += 64) {
      std::uint64_t bits = 0;
      for (std::size_t i = 0; i < 64; ++i) bits |= std::uint64_t{network_[word + i]} << i;
      append_bytes(out, bits);
    }
  }

  [[nodiscard]] std::string words(const Action& action) const {
    if (action.kind == Action::Kind::submit) return "rank " + std::to_string(action.which) + " issues its next operation";
    if (action.kind == Action::Kind::restart) return "the first leaf switch restarts";
    const Packet& packet = shared_->packets[action.which];
    const std::string number = std::to_string(packet.to.address[15]);
    const std::string to = !switch_.is_at(packet.to)        ? "rank " + number
                           : packet.to == host(switch_host) ? "the switch"
                                                            : "switch " + number;
    return to + " receives " + name_of(packet.bytes);
  }

  // Every retransmission that any worker could make now is in the network already.
  void check_retransmissions() const {
    Job copy(*this);
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!copy.ranks_[rank].worker.oldest_stall() || copy.ranks_[rank].worker.failure()) continue;
      RecordingSink out;
      copy.ranks_[rank].worker.on_timer(never - std::chrono::hours(1), out);
      if (out.sent().empty()) throw Wrong("a worker waits and never asks again");
      for (const auto& item : out.sent()) {
        const auto known = shared_->number_of(host(rank), item.to, item.bytes, false);
        if (!known || !network_[*known]) throw Wrong("a retransmission differs from the first transmission");
      }
    }
  }

  // What is proved of the rule holds of the objects.
  void check_slots() const {
    if constexpr (requires { switch_.job(); }) {
      const switchml::Switch::Job& job = switch_.job();
      for (std::size_t number = 0; number < std::size_t{shared_->setup.slots} * switchml::windows; ++number) {
        SlotState slot;
        for (std::size_t version = 0; version < 2; ++version) slot.versions[version] = version_of(job, number * 2 + version);
        for (const Rank& rank : ranks_) slot.ranks.push_back(place_of(rank, number));
        for (std::size_t i = 0; i < shared_->packets.size(); ++i) {
          if (network_[i] && shared_->packets[i].slot == number) slot.sent.push_back(&shared_->packets[i].about);
        }
        check_invariant(slot);
      }
    } else if constexpr (requires { switch_.jobs(); }) {
      if (switch_.restarted()) return;
      for (std::size_t number = 0; number < std::size_t{shared_->setup.slots} * switchml::windows; ++number)
        check_slot(switch_.jobs(), number);
    }
  }

  // If from now on every packet that is sent arrives, in order, and all that was sent before is lost, everything completes.
  void check_liveness() const {
    if (switch_.restarted()) return;  // the control plane ends the job
    Job kind(*this);
    kind.fresh_.emplace();
    for (int turn = 0; turn < 1000 && !kind.all_completed(); ++turn) {
      for (std::uint32_t rank = 0; rank < kind.ranks_.size(); ++rank) {
        while (kind.may_submit(kind.ranks_[rank])) kind.submit(rank);
      }
      if (kind.fresh_->empty()) {
        Time next = never;
        for (const Rank& rank : kind.ranks_) next = std::min(next, rank.worker.next_timeout());
        if (next == never) throw Wrong("nothing is under way, and not everything has completed");
        kind.now_ = std::max(kind.now_, next);
        for (std::uint32_t rank = 0; rank < kind.ranks_.size(); ++rank) {
          RecordingSink out;
          kind.ranks_[rank].worker.on_timer(kind.now_, out);
          kind.take(host(rank), out);
        }
      }
      const std::vector<Packet> arriving = std::move(*kind.fresh_);
      kind.fresh_.emplace();
      for (const Packet& packet : arriving) kind.deliver(packet);
    }
    if (!kind.all_completed()) throw Wrong("the network behaves, and still not everything completes");
  }

  [[nodiscard]] std::size_t distinct_packets() const { return shared_->packets.size(); }

 private:
  struct Packet {
    Endpoint from, to;
    std::vector<std::byte> bytes;
    std::optional<std::size_t> slot = {};  // of a chunk's packet
    SlotState::Packet about = {};
  };

  // The packets that came up in any state, by number.
  struct Shared {
    explicit Shared(const Setup& s) : setup(s) {}

    std::optional<std::uint16_t> number_of(const Endpoint& from, const Endpoint& to, const std::vector<std::byte>& bytes,
                                           bool add) {
      auto key = std::pair(std::pair(from, to), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      const auto found = numbers.find(key);
      if (found != numbers.end()) return found->second;
      if (!add) return std::nullopt;
      if (packets.size() == most_packets) throw std::logic_error("more distinct packets than expected");
      const auto number = static_cast<std::uint16_t>(packets.size());
      packets.push_back({from, to, bytes});
      read(packets.back());
      numbers.emplace(std::move(key), number);
      return number;
    }

    // What a worker repeats of a run.
    [[nodiscard]] static std::vector<std::vector<std::byte>> contributions_of(const std::vector<std::byte>& bytes) {
      wire::switchml::Common common;
      wire::switchml::RunPacket all;
      if (wire::switchml::parse_common(bytes, common) != wire::ParseError::none ||
          common.type != wire::switchml::Type::empty_contributions ||
          wire::switchml::parse_run(bytes, common, all) != wire::ParseError::none)
        return {};
      return wire::switchml::apart(all);
    }

    void read(Packet& packet) const {
      wire::switchml::Common common;
      wire::switchml::ChunkPacket chunk;
      if (wire::switchml::parse_common(packet.bytes, common) != wire::ParseError::none ||
          common.type >= wire::switchml::Type::empty_contributions ||
          wire::switchml::parse_chunk(packet.bytes, common, chunk) != wire::ParseError::none)
        return;
      using wire::switchml::Type;
      const wire::switchml::ChunkHeader& header = chunk.header;
      const bool exponents = common.type == Type::exponent_contribution || common.type == Type::exponent_result;
      const SlotState::Round round(header.operation, header.chunk, !exponents);
      packet.slot = header.slot;
      packet.about = {common.type != Type::contribution && common.type != Type::exponent_contribution, common.sender,
                      header.version, round};
      if (!is_plain_sum(round)) return;
      std::int32_t sum = 0;
      for (std::uint32_t rank = 0; rank < setup.workers; ++rank) {
        if (packet.about.is_result || is_from(packet, common.sender, rank)) sum += value_of(rank, round);
      }
      packet.about.sum_is_right = load_le<std::uint32_t>(chunk.payload.data()) == static_cast<std::uint32_t>(sum);
    }
    // Whether a contribution has the rank's values: its own, or those of all ranks below a leaf.
    [[nodiscard]] bool is_from(const Packet& packet, std::uint32_t sender, std::uint32_t rank) const {
      if (packet.from.address[15] < setup.workers) return rank == sender;
      std::uint32_t first = 0, rack = switch_host - 1 - packet.from.address[15];
      for (std::uint32_t i = 0; i < rack; ++i) first += setup.racks[i];
      return rank >= first && rank < first + setup.racks[rack];
    }
    // Of integers as they are, which all ranks give and take.
    [[nodiscard]] bool is_plain_sum(const SlotState::Round& round) const {
      const Call& call = setup.calls[std::get<0>(round)];
      return !setup.is_private && call.dtype == DType::int32 && call.collective == stream::Collective::all_reduce &&
             call.elements != 0;
    }

    Setup setup;
    std::deque<Packet> packets;  // more come while one is delivered, by reference
    std::map<std::pair<std::pair<Endpoint, Endpoint>, std::string>, std::uint16_t> numbers;
  };

  struct Rank {
    Rank(const switchml::WorkerConfig& config, std::size_t calls) : worker(config), completed(calls), tensors(calls) {}

    [[nodiscard]] std::uint64_t front() const {
      std::uint64_t number = 0;
      while (number < submitted && completed[number]) ++number;
      return number;
    }

    switchml::Worker worker;
    std::uint64_t submitted = 0;
    std::vector<bool> completed;
    std::vector<std::vector<std::uint32_t>> tensors;  // bits of int32 or float32
  };

  // Small whole numbers: their sums are exact in block fixed point. Another factor for each rank, chunk and operation, so
  // that a part that is missing, foreign or counted twice shows.
  [[nodiscard]] static std::int32_t value(std::uint32_t rank, std::uint64_t number, std::uint64_t i) {
    return static_cast<std::int32_t>((1 + 3 * (i / packet_elements) + 16 * number) << (7 * rank));
  }
  // In a wire format of 16 bits, or fewer, sums have 8.
  [[nodiscard]] static std::int32_t value(const Call& call, std::uint32_t rank, std::uint64_t number, std::uint64_t i) {
    if (call.wire == WireFormat::native) return value(rank, number, i);
    return static_cast<std::int32_t>((1 + (i / (2 * packet_elements) + 2 * number) % 3) << (3 * rank));
  }
  [[nodiscard]] static std::int32_t value_of(std::uint32_t rank, const SlotState::Round& round) {
    return value(rank, std::get<0>(round), std::uint64_t{std::get<1>(round)} * packet_elements);
  }
  [[nodiscard]] static std::uint32_t bits(DType dtype, std::int32_t value) {
    return dtype == DType::float32 ? std::bit_cast<std::uint32_t>(static_cast<float>(value))
                                   : static_cast<std::uint32_t>(value);
  }

  [[nodiscard]] SlotState::Version version_of(const switchml::Switch::Job& job, std::size_t number) const {
    const auto& held = job.slots[number];
    SlotState::Version version{held.used, held.complete, held.identity(), {}};
    std::int32_t sum = 0;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      version.seen.push_back(job.seen.contains(number, rank));
      if (held.used && version.seen.back()) sum += value_of(rank, version.held);
    }
    version.sum_is_right =
        !held.used || !shared_->is_plain_sum(version.held) ||
        load_le<std::uint32_t>(job.memory_of(held) + switchml::payload_at) == static_cast<std::uint32_t>(sum);
    return version;
  }

  // Of a tree.
  void check_slot(const std::vector<const switchml::Switch::Job*>& jobs, std::size_t number) const {
    const auto node_of = [&](const Endpoint& at) -> std::size_t {
      const std::size_t host = at.address[15];
      return switch_.is_at(at) ? switch_host - host : jobs.size() + host;
    };
    TreeState tree;
    tree.nodes.resize(jobs.size() + ranks_.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      for (const switchml::Member& member : jobs[i]->config.members) {
        const std::size_t child = node_of(member.endpoint);
        tree.nodes[i].children.push_back(child);
        tree.nodes[child].parent = i;
      }
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      for (std::size_t v = 0; v < 2; ++v) {
        const auto& held = jobs[i]->slots[number * 2 + v];
        if (held.used && held.ordered()) return;  // goes upstream unsummed: another rule
        tree.nodes[i].versions[v] = version_of(*jobs[i], number * 2 + v, tree.nodes[i].children.size());
      }
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) tree.nodes[jobs.size() + i].rank = place_of(ranks_[i], number);
    for (std::size_t i = 0; i < shared_->packets.size(); ++i) {
      const Packet& packet = shared_->packets[i];
      if (network_[i] && packet.slot == number) tree.sent.push_back({node_of(packet.from), &packet.about});
    }
    check_invariant(tree);
  }
  [[nodiscard]] static SlotState::Rank place_of(const Rank& rank, std::size_t number) {
    const switchml::Slot& own = rank.worker.slot(number);
    if (own.round == switchml::Round::idle) return {std::nullopt, own.version};
    return {SlotState::Round(own.header.operation, own.header.chunk, own.round == switchml::Round::values), own.version};
  }
  [[nodiscard]] TreeState::Version version_of(const switchml::Switch::Job& job, std::size_t number,
                                              std::size_t children) const {
    const auto& held = job.slots[number];
    TreeState::Version version{held.used, held.sent, held.complete, held.identity(), {}};
    std::int32_t sum = 0;
    for (std::size_t child = 0; child < children; ++child) {
      version.seen.push_back(job.seen.contains(number, child));
      if (!held.used || !version.seen.back() || held.complete) continue;
      job.config.tree->below[child].for_each([&](std::uint32_t rank) { sum += value_of(rank, version.held); });
    }
    for (std::uint32_t rank = 0; held.complete && rank < ranks_.size(); ++rank) sum += value_of(rank, version.held);
    version.sum_is_right =
        !held.used || !shared_->is_plain_sum(version.held) ||
        load_le<std::uint32_t>(job.memory_of(held) + switchml::payload_at) == static_cast<std::uint32_t>(sum);
    return version;
  }

  [[nodiscard]] bool may_submit(const Rank& rank) const {
    return rank.submitted < shared_->setup.calls.size() && rank.submitted - rank.front() <= shared_->setup.ahead;
  }

  void submit(std::uint32_t index) {
    Rank& rank = ranks_[index];
    const Call& call = shared_->setup.calls[rank.submitted];
    auto& tensor = rank.tensors[rank.submitted];
    tensor.resize(call.elements);
    for (std::uint64_t i = 0; i < call.elements; ++i) {
      const std::int32_t own = value(call, index, rank.submitted, i);
      const bool large = call.wire == WireFormat::bfloat16 && i % 2 == 1;
      tensor[i] = large ? std::bit_cast<std::uint32_t>(static_cast<float>(own) * 0x1p40F) : bits(call.dtype, own);
    }
    stream::Operation operation;
    operation.number = rank.submitted;
    operation.collective = call.collective;
    operation.dtype = call.dtype;
    operation.wire = call.wire;
    operation.elements = call.collective == stream::Collective::broadcast ? call.elements * 4 : call.elements;
    operation.data = tensor.data();
    operation.fixed_point = shared_->setup.is_private && is_float(call.dtype);
    if (call.collective == stream::Collective::reduce_scatter) operation.parts = static_cast<std::uint32_t>(ranks_.size());
    ++rank.submitted;
    RecordingSink out;
    if (!rank.worker.submit(operation, now_, out)) throw Wrong("an operation was not taken");
    take(host(index), out);
    settle(index);
  }

  void deliver(const Packet& packet) {
    const RxView view{packet.bytes, packet.from};
    RecordingSink out;
    if (switch_.is_at(packet.to)) {
      switch_.on_packet(view, packet.to, now_, out);
      switch_.check();
      take(packet.to, out);
      return;
    }
    const std::uint32_t index = packet.to.address[15];
    ranks_[index].worker.on_packets({&view, 1}, now_, out);
    take(host(index), out);
    settle(index);
  }

  void take(const Endpoint& from, RecordingSink& out) {
    for (auto& item : out.sent()) {
      // "Have yours" decides only when a worker asks again, as "missing" does: they need not be part of the network, but for
      // liveness.
      const auto type = static_cast<wire::switchml::Type>(item.bytes[1] & std::byte{wire::switchml::type_bits});
      const bool waiting = type == wire::switchml::Type::waiting || type == wire::switchml::Type::missing;
      if (fresh_) {
        fresh_->push_back({from, item.to, std::move(item.bytes)});
      } else if (!waiting) {
        network_[*shared_->number_of(from, item.to, item.bytes, true)] = true;
        for (const auto& repeat : Shared::contributions_of(item.bytes)) {
          network_[*shared_->number_of(from, item.to, repeat, true)] = true;
        }
      }
    }
  }

  void settle(std::uint32_t index) {
    Rank& rank = ranks_[index];
    if (rank.worker.failure() && !switch_.restarted()) throw Wrong("ranks that agree fail");
    for (const std::uint64_t number : rank.worker.take_completed()) {
      if (number >= rank.submitted || rank.completed[number])
        throw Wrong("operation " + std::to_string(number) + " completes twice on rank " + std::to_string(index));
      rank.completed[number] = true;
    }
    // In every state each element is still the rank's own, or the exact sum. After completion: the sum.
    for (std::uint64_t number = 0; number < rank.submitted; ++number) check_tensor(rank, index, number);
  }

  void check_tensor(const Rank& rank, std::uint32_t index, std::uint64_t number) const {
    const Call& call = shared_->setup.calls[number];
    // The first element of each chunk, and the last of all: values are the same within a chunk.
    const bool scattered = call.collective == stream::Collective::reduce_scatter;
    const std::uint64_t part = std::max<std::uint64_t>(1, call.elements / ranks_.size());
    for (std::uint64_t i = 0; i < call.elements;
         i += scattered ? std::min<std::uint64_t>(part, packet_elements) : packet_elements) {
      std::int32_t sum = 0;
      for (std::uint32_t each = 0; each < ranks_.size(); ++each) sum += value(call, each, number, i);
      const bool broadcast = call.collective == stream::Collective::broadcast;
      const std::uint32_t expected = bits(call.dtype, broadcast ? value(call, 0, number, i) : sum),
                          own = bits(call.dtype, value(call, index, number, i));
      const bool taken = scattered ? i / part == index : call.collective != stream::Collective::reduce || index == 0;
      const std::uint32_t got = rank.tensors[number][i];
      if (taken ? got == expected || (got == own && !rank.completed[number]) : got == own) continue;
      const auto shown = [&](std::uint32_t b) {
        return call.dtype == DType::float32 ? std::to_string(std::bit_cast<float>(b)) : std::to_string(b);
      };
      throw Wrong("rank " + std::to_string(index) + " receives " + shown(got) + " as element " + std::to_string(i) +
                  " of operation " + std::to_string(number) + ", not " + shown(taken ? expected : own));
    }
  }

  [[nodiscard]] bool all_completed() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return std::find(rank.completed.begin(), rank.completed.end(), false) == rank.completed.end();
    });
  }

  [[nodiscard]] static std::string name_of(const std::vector<std::byte>& bytes) {
    wire::switchml::Common common;
    wire::switchml::ChunkPacket chunk;
    if (wire::switchml::parse_common(bytes, common) != wire::ParseError::none) return "a packet";
    if (wire::switchml::SumPart part; wire::switchml::parse_sum_part(bytes, common, part) == wire::ParseError::none) {
      return "part " + std::to_string(part.part) + " of the sum of rank " + std::to_string(common.sender) +
             " and others for operation " + std::to_string(part.chunk.header.operation) + " chunk " +
             std::to_string(part.chunk.header.chunk);
    }
    if (common.type >= wire::switchml::Type::empty_contributions) {
      wire::switchml::RunPacket all;
      if (wire::switchml::parse_run(bytes, common, all) != wire::ParseError::none) return "a packet";
      std::string text = common.type == wire::switchml::Type::acknowledgements
                             ? "the acknowledgements"
                             : "the empty contributions of rank " + std::to_string(common.sender);
      text += " for operation " + std::to_string(all.run.first.operation) + " chunks";
      all.for_each([&](const wire::switchml::ChunkPacket& member) { text += ' ' + std::to_string(member.header.chunk); });
      return text;
    }
    if (wire::switchml::parse_chunk(bytes, common, chunk) != wire::ParseError::none) return "a packet";
    constexpr const char* names[] = {"", "contribution", "exponents", "result", "exponents' result"};
    std::string text = std::string("the ") + (common.type == wire::switchml::Type::acknowledgement
                                                  ? "acknowledgement"
                                                  : names[static_cast<std::size_t>(common.type)]);
    if (common.type <= wire::switchml::Type::exponent_contribution) text += " of rank " + std::to_string(common.sender);
    text += " for operation " + std::to_string(chunk.header.operation) + " chunk " + std::to_string(chunk.header.chunk) +
            " (slot " + std::to_string(chunk.header.slot) + "/" + std::to_string(chunk.header.version);
    if (chunk.header.ahead_operation == wire::switchml::no_ahead) return text + ")";
    return text + ", ahead " + std::to_string(chunk.header.operation + chunk.header.ahead_operation) + ":" +
           std::to_string(chunk.header.ahead_chunk) + ")";
  }

  std::shared_ptr<Shared> shared_;
  SwitchType switch_;
  std::vector<Rank> ranks_;
  std::bitset<most_packets> network_;
  std::optional<std::vector<Packet>> fresh_;  // liveness: what was sent and has not arrived
  Time now_{std::chrono::seconds(1)};
};

}  // namespace netsum::model
