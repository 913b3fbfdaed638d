#include "sim/switchml.h"

#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "protocol/switchml/probe.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "wire/epochs.h"
#include "wire/switchml.h"

namespace netsum::sim {
namespace {

using switchml::JobCounters;
using switchml::SwitchCounters;
using switchml::WorkerCounters;

// Offsets of docs/protocol-switchml.md.
constexpr std::size_t reserved_byte = 3, checksum_bytes = 4, job_epoch_bytes = 8, exponents_byte = 46;

std::uint64_t sum(const std::uint64_t (&values)[wire::parse_error_kinds]) {
  return std::accumulate(std::begin(values), std::end(values), std::uint64_t{0});
}

std::uint64_t accounted(const JobCounters& c) {
  return c.contributions + c.repeats_answered + c.repeats_waiting + c.repeats_silent + c.dropped_old + c.dropped_early +
         c.dropped_mismatch + c.dropped_rank + c.dropped_rank_epoch + c.dropped_source + c.dropped_slot + c.dropped_shape;
}

void count_malformed(Tally& tally, const std::string& where, const std::uint64_t (&malformed)[wire::parse_error_kinds]) {
  for (std::size_t i = 1; i < wire::parse_error_kinds; ++i) {
    if (where == "switch" && i == static_cast<std::size_t>(wire::ParseError::length))
      continue;  // probes may have any length
    tally.events[where + "_malformed_" + wire::to_string(static_cast<wire::ParseError>(i))] += malformed[i];
  }
}

// Results are sent by reference, everything else as separate datagrams.
class CountingSink final : public Sink {
 public:
  explicit CountingSink(Sink& inner) : inner_(inner) {}
  ~CountingSink() = default;
  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    ++datagrams;
    return inner_.datagram(to, bytes);
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    results += to.size();
    inner_.multicast(packet, to);
  }
  void flush() override { inner_.flush(); }

  std::uint64_t datagrams = 0, results = 0;

 private:
  Sink& inner_;
};

class SwitchmlLane final : public AggregatorLane {
 public:
  void start_job(const LaneStart& lane_start) override {
    const session::StartJob& start = lane_start.start;
    switchml::SwitchJobConfig config;
    config.epoch = start.admission.job_epoch;
    config.packet_elements = start.admission.packet_elements;
    config.slots = start.admission.slots;
    for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
      config.members.push_back({start.admission.rank_epochs[rank], start.endpoints[rank][lane_start.lane]});
    }
    Memory& memory = memory_[config.epoch];
    memory.lines.resize(switchml::Switch::memory_bytes(config.packet_elements, config.slots, config.members.size()) /
                        sizeof(CacheLine));
    memory.slots = config.slots;
    memory.agreed = lane_start.agreed();
    if (!switch_.add_job(config, std::as_writable_bytes(std::span(memory.lines)))) {
      throw Violation("a job epoch was issued twice");
    }
  }

  void stop_job(std::uint64_t epoch) override {
    if (const JobCounters* counters = switch_.job_counters(epoch)) {
      ended_received_ += counters->packets;
      add(*counters);
    }
    switch_.remove_job(epoch);
    memory_.erase(epoch);
  }

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    received_ += packets.size();
    CountingSink counting(sink);
    switch_.on_packets(packets, now, counting);
    results_sent_ += counting.results;
  }
  void on_timer(Time, Sink&) override {}
  [[nodiscard]] Time next_timeout() const override { return never; }

  void check() const override {
    ++checks_;  // checks of every slot run only now and then
    const SwitchCounters& c = switch_.counters();
    std::uint64_t results = ended_.results_sent;
    std::uint64_t seen = sum(c.malformed) + c.unknown_job + c.probes + c.unexpected_type + ended_received_;
    for (const auto& [epoch, memory] : memory_) {
      const JobCounters& job = *switch_.job_counters(epoch);
      seen += job.packets;
      results += job.results_sent;
      if (job.packets != accounted(job)) throw Violation("the switch's counters of a job do not add up to its packets");
      if (memory.agreed && job.dropped_early != 0) throw Violation("a worker went on before its slot's chunk was complete");
      if (memory.agreed && job.dropped_mismatch != 0) throw Violation("a mismatch was found in calls that agree");
      if (checks_ % 64 == 0 && switch_.slots_in_use(epoch) > 2 * memory.slots)
        throw Violation("a job uses more slots than it owns");
    }
    if (results != results_sent_) throw Violation("the switch's counters do not add up to the results that it sent");
    if (seen != received_) throw Violation("the switch's counters do not add up to what it received");
  }
  [[nodiscard]] std::size_t jobs() const override { return memory_.size(); }

  void count_events(Tally& tally) const override {
    JobCounters total = ended_;
    for (const auto& [epoch, memory] : memory_) add(total, *switch_.job_counters(epoch));
    const SwitchCounters& c = switch_.counters();
    auto& e = tally.events;
    e["result_answered_again"] += total.repeats_answered;
    e["repeat_told_to_wait"] += total.repeats_waiting;
    e["repeat_unanswered"] += total.repeats_silent;
    e["loss_told"] += total.losses_told;
    e["switch_dropped_old"] += total.dropped_old;
    e["switch_dropped_mismatch"] += total.dropped_mismatch;
    e["switch_dropped_rank"] += total.dropped_rank;
    e["switch_dropped_rank_epoch"] += total.dropped_rank_epoch;
    e["switch_dropped_source"] += total.dropped_source;
    e["switch_dropped_slot"] += total.dropped_slot;
    e["switch_dropped_shape"] += total.dropped_shape;
    e["switch_unknown_job"] += c.unknown_job;
    e["switch_probe"] += c.probes;
    e["switch_unexpected_type"] += c.unexpected_type;
    count_malformed(tally, "switch", c.malformed);
  }

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  struct Memory {
    std::vector<CacheLine> lines;
    std::uint32_t slots = 0;
    bool agreed = true;
  };

  static void add(JobCounters& total, const JobCounters& c) {
    total.results_sent += c.results_sent;
    total.repeats_answered += c.repeats_answered;
    total.repeats_waiting += c.repeats_waiting;
    total.repeats_silent += c.repeats_silent;
    total.losses_told += c.losses_told;
    total.dropped_old += c.dropped_old;
    total.dropped_mismatch += c.dropped_mismatch;
    total.dropped_rank += c.dropped_rank;
    total.dropped_rank_epoch += c.dropped_rank_epoch;
    total.dropped_source += c.dropped_source;
    total.dropped_slot += c.dropped_slot;
    total.dropped_shape += c.dropped_shape;
  }
  void add(const JobCounters& c) { add(ended_, c); }

  std::map<std::uint64_t, Memory> memory_;  // by job epoch
  switchml::Switch switch_;
  std::uint64_t received_ = 0, ended_received_ = 0, results_sent_ = 0;
  mutable std::uint64_t checks_ = 0;
  JobCounters ended_;
};

class Worker final : public WorkerLane {
 public:
  explicit Worker(const switchml::WorkerConfig& config) : worker_(config) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return worker_.submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    received_ += packets.size();
    worker_.on_packets(packets, now, sink);
  }
  void on_timer(Time now, Sink& sink) override { worker_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return worker_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return worker_.take_completed(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    const auto& failure = worker_.failure();
    if (!failure) return std::nullopt;
    const bool mismatch = failure->kind == switchml::WorkerFailure::Kind::mismatch;
    return LaneFailure{mismatch, failure->operation, failure->first_rank, failure->second_rank};
  }
  [[nodiscard]] std::optional<session::Stall> oldest_stall() const override {
    const auto stall = worker_.oldest_stall();
    if (!stall) return std::nullopt;
    RankSet missing;
    stall->missing.for_each([&](std::uint32_t rank) { missing.insert(rank); });
    return session::Stall{0, stall->operation, stall->chunk, missing, stall->told};
  }

  void check() const override {
    const WorkerCounters& c = worker_.counters();
    if (received_ !=
        c.results + c.waiting + c.losses + c.stale + c.mismatch + c.unknown_job + sum(c.malformed) + c.foreign) {
      throw Violation("a worker's counters do not add up to what it received");
    }
    if (worker_.idle() && worker_.oldest_stall()) throw Violation("a worker without operations has a chunk in flight");
  }

  void count_events(Tally& tally) const override {
    const WorkerCounters& c = worker_.counters();
    auto& e = tally.events;
    e["worker_result"] += c.results;
    e["worker_retransmission"] += c.retransmissions;
    e["worker_exponent_round"] += c.exponent_rounds;
    e["worker_stale"] += c.stale;
    e["worker_waiting"] += c.waiting;
    e["worker_loss"] += c.losses;
    e["worker_mismatch"] += c.mismatch;
    e["worker_unknown_job"] += c.unknown_job;
    e["worker_foreign"] += c.foreign;
    count_malformed(tally, "worker", c.malformed);
  }

 private:
  switchml::Worker worker_;
  std::uint64_t received_ = 0;
};

class SwitchmlProbe final : public PathProbe {
 public:
  explicit SwitchmlProbe(const switchml::ProbeConfig& config) : probe_(config) {}
  void start(Time now, Sink& sink) override { probe_.start(now, sink); }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { probe_.on_packets(packets, now, sink); }
  void on_timer(Time now, Sink& sink) override { probe_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return probe_.next_timeout(); }
  [[nodiscard]] bool done() const override { return probe_.done(); }
  [[nodiscard]] std::optional<std::uint32_t> slots() const override {
    return probe_.answered() ? std::optional(probe_.slots()) : std::nullopt;
  }

 private:
  switchml::Probe probe_;
};

[[nodiscard]] bool is_chunk(wire::switchml::Type type) {
  return type >= wire::switchml::Type::contribution && type <= wire::switchml::Type::exponent_result;
}

// Checks that repeats are byte-identical: a contribution to the same rank's first one, a result to all ranks'.
class SwitchmlTap final : public Tap {
 public:
  void on_send(const Endpoint&, const Endpoint&, std::span<const std::byte> bytes) override {
    wire::switchml::Common common;
    if (wire::switchml::parse_common(bytes, common) != wire::ParseError::none)
      throw Violation("a node sent a malformed datagram");
    if (!is_chunk(common.type)) return;
    wire::switchml::ChunkPacket chunk;
    if (wire::switchml::parse_chunk(bytes, common, chunk) != wire::ParseError::none)
      throw Violation("a node sent a malformed chunk");
    const wire::switchml::ChunkHeader& header = chunk.header;
    const bool contribution = common.type <= wire::switchml::Type::exponent_contribution;
    const std::uint64_t identity = mix(common.job_epoch ^ mix(header.operation ^ mix(header.chunk)));
    const std::uint64_t key =
        mix(identity ^ static_cast<std::uint64_t>(common.type) << 32 ^ (contribution ? common.rank_epoch : 0));
    const std::uint64_t content = load_le<std::uint32_t>(bytes.data() + checksum_bytes) ^ std::uint64_t{bytes.size()} << 32;
    if (const auto [at, first] = sent_.emplace(key, content); !first && at->second != content) {
      throw Violation(
          "a repeat of operation " + std::to_string(header.operation) + ", chunk " + std::to_string(header.chunk) +
          (contribution ? " differs from its first transmission" : " differs from the result that was sent before"));
    } else if (first && common.type == wire::switchml::Type::contribution) {
      (header.ahead_operation == wire::switchml::no_ahead ? ahead_[identity].unknown : ahead_[identity].known) = true;
    } else if (first && common.type == wire::switchml::Type::result) {
      const Ahead ahead = ahead_[identity];
      if (ahead.known && ahead.unknown) {
        ++unknown_won_;
        if (header.ahead_operation != wire::switchml::no_ahead)
          throw Violation("a look-ahead was answered that lacks a rank's block");
      }
      if (header.masks) ++masks_;
    }
  }

  void count_events(Tally& tally) const override {
    tally.events["look_ahead_unknown_won"] += unknown_won_;
    tally.events["result_with_nonfinite"] += masks_;
  }

 private:
  struct Ahead {
    bool known = false, unknown = false;
  };
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
  std::unordered_map<std::uint64_t, Ahead> ahead_;
  std::uint64_t unknown_won_ = 0, masks_ = 0;
};

class Switchml final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return session::switchml_rules(); }
  [[nodiscard]] std::unique_ptr<AggregatorLane> aggregator_lane() const override { return std::make_unique<SwitchmlLane>(); }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario&) const override { return std::make_unique<SwitchmlTap>(); }

  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint& aggregator,
                                                      std::uint32_t packet_elements) const override {
    switchml::ProbeConfig config;
    config.aggregator = aggregator;
    wire::switchml::ChunkHeader header;
    header.elements = static_cast<std::uint16_t>(packet_elements);
    config.packet_bytes = static_cast<std::uint32_t>(wire::switchml::chunk_packet_bytes(header));
    return std::make_unique<SwitchmlProbe>(config);
  }

  [[nodiscard]] std::unique_ptr<WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    switchml::WorkerConfig config;
    config.job_epoch = plan.admission.job_epoch;
    config.rank = plan.rank;
    config.world_size = plan.world_size;
    config.rank_epoch = plan.admission.rank_epoch;
    config.folded_epochs = wire::fold_epochs(plan.admission.rank_epochs);
    config.packet_elements = plan.admission.packet_elements;
    config.slots = plan.admission.slots;
    config.lane = plan.lane;
    config.lanes = plan.lanes;
    config.aggregator = plan.aggregator;
    return std::make_unique<Worker>(config);
  }

  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, true};
    auto& bytes = forgery.bytes;
    wire::switchml::Common common;
    wire::switchml::ChunkPacket chunk;
    const bool is_chunk_packet = wire::switchml::parse_common(bytes, common) == wire::ParseError::none &&
                                 is_chunk(common.type) &&
                                 wire::switchml::parse_chunk(bytes, common, chunk) == wire::ParseError::none;
    wire::switchml::ChunkHeader header = chunk.header;
    const std::uint64_t kind = random.below(is_chunk_packet ? 10 : 3);
    switch (kind) {
      case 0:  // correct but for source and content
        forgery.spoofed = false;
        for (std::size_t i = bytes.size(); i-- > wire::switchml::chunk_header_bytes + 4;) bytes[i] ^= std::byte{1};
        break;
      case 1:
        common.job_epoch ^= 1 + random.below(UINT32_MAX);
        break;
      case 2:
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
        return forgery;
      case 3:
        common.rank = static_cast<std::uint8_t>(200 + random.below(56));
        break;
      case 4:
        common.rank_epoch ^= static_cast<std::uint32_t>(1 + random.below(UINT32_MAX));
        break;
      case 5:
        header.slot = static_cast<std::uint16_t>(4096 + random.below(1000));
        break;
      case 6:
        common.type = static_cast<wire::switchml::Type>(random.between(1, 9));  // the other side's, or of another length
        common.rank_epoch ^= 1;
        break;
      case 7:
        bytes[exponents_byte] = static_cast<std::byte>(random.between(wire::switchml::max_blocks + 1, 255));
        break;
      case 8:
        bytes[reserved_byte] = std::byte{2};  // 1 would mean no checksum
        break;
      default:
        header.elements = 1024;  // more than any job's packets have
        header.masks = false;
        bytes.resize(wire::switchml::chunk_packet_bytes(header));
        break;
    }
    if (kind >= 3 && kind != 7 && kind != 8) {
      wire::switchml::write_chunk_header(bytes, common, header);
    } else if (kind == 1) {
      store_le(bytes.data() + job_epoch_bytes, common.job_epoch);
    }
    wire::switchml::seal(bytes);
    return forgery;
  }

  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    wire::switchml::Common common;
    if (const auto error = wire::switchml::parse_common(datagram, common); error != wire::ParseError::none) {
      return std::string("malformed (") + wire::to_string(error) + "), " + std::to_string(datagram.size()) + " bytes";
    }
    constexpr const char* names[] = {"?",       "contribution", "exponent contribution", "result", "exponent result",
                                     "waiting", "mismatch",     "unknown job",           "probe",  "probe reply"};
    std::string text = names[static_cast<std::size_t>(common.type)];
    wire::switchml::ChunkPacket chunk;
    wire::switchml::WaitingPacket waiting{};
    if (wire::switchml::parse_chunk(datagram, common, chunk) == wire::ParseError::none) {
      const wire::switchml::ChunkHeader& h = chunk.header;
      if (common.type <= wire::switchml::Type::exponent_contribution) text += " of rank " + std::to_string(common.rank);
      text += ", operation " + std::to_string(h.operation) + " chunk " + std::to_string(h.chunk) + ", slot " +
              std::to_string(h.slot) + "/" + std::to_string(h.version) + ", " + std::to_string(h.elements) + " elements";
      if (h.ahead_operation == wire::switchml::no_ahead) return text + ", ahead unknown";
      return text + ", ahead operation " + std::to_string(h.operation + h.ahead_operation) + " chunk " +
             std::to_string(h.ahead_chunk);
    }
    if (wire::switchml::parse_waiting(datagram, common, waiting) == wire::ParseError::none) {
      text += ", operation " + std::to_string(waiting.operation) + " chunk " + std::to_string(waiting.chunk) + ", for " +
              std::to_string(waiting.missing.size()) + " ranks";
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Protocol> make_switchml() {
  return std::make_unique<Switchml>();
}

}  // namespace netsum::sim
