#include "sim/atp.h"

#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/worker.h"
#include "session/atp_job.h"
#include "session/installations.h"
#include "sim/aggregator_host.h"
#include "wire/atp.h"

namespace netsum::sim {
namespace {

using wire::ParseError;
using wire::atp::Common;
using wire::atp::Type;

// Offsets of docs/protocol-atp.md.
constexpr std::size_t job_epoch_bytes = 8, exponent_byte = 39;

constexpr std::size_t long_queue = 48;  // datagrams in one turn from which a queue marks

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

std::uint64_t sum(const std::uint64_t (&values)[wire::parse_error_kinds]) {
  return std::accumulate(std::begin(values), std::end(values), std::uint64_t{0});
}

void count_malformed(Tally& tally, const std::string& where, const std::uint64_t (&malformed)[wire::parse_error_kinds]) {
  for (std::size_t i = 1; i < wire::parse_error_kinds; ++i) {
    // Gradient length errors count per job, as "shape".
    if (where != "worker" && i == static_cast<std::size_t>(ParseError::length)) continue;
    tally.events[where + "_malformed_" + wire::to_string(static_cast<ParseError>(i))] += malformed[i];
  }
}

session::AtpSettings settings_of(const JobPlan& plan) {
  return {static_cast<atp::Indexing>(plan.indexing), plan.saturating ? atp::Overflow::saturating : atp::Overflow::exact,
          plan.rescaled ? atp::Scaling::dynamic : atp::Scaling::fixed};
}

std::uint64_t accounted(const atp::ServerJobCounters& c) {
  return c.added_single + c.added_partial + c.added_complete + c.floats + c.repeats_answered + c.repeats_waiting +
         c.repeats_silent + c.overlaps + c.old + c.dropped_early + c.dropped_mismatch + c.dropped_source +
         c.dropped_rank_epoch + c.dropped_shape;
}

std::uint64_t accounted(const atp::SwitchJobCounters& c) {
  return c.added + c.repeats_waiting + c.repeats_silent + c.collisions + c.resends_merged + c.resends_passed +
         c.direct_passed + c.mismatch_passed + c.parameters + c.asks + c.dones + c.dropped_source + c.dropped_rank_epoch +
         c.dropped_shape;
}

class ServerLane final : public AggregatorLane {
 public:
  void start_job(const LaneStart& lane_start) override {
    const session::StartJob& start = lane_start.start;
    const atp::ServerJobConfig config =
        session::server_job(start, lane_start.lane, settings_of(lane_start.plan), session::switch_endpoints({}));
    Memory& memory = memory_[config.epoch];
    memory.lines.resize(atp::Server::memory_bytes(config.packet_elements, config.window, config.topology.world_size()) /
                        sizeof(CacheLine));
    memory.window = config.window;
    memory.agreed = lane_start.agreed();
    if (!server_.add_job(config, std::as_writable_bytes(std::span(memory.lines)))) {
      throw Violation("a job epoch was issued twice");
    }
  }

  void place(const LaneStart& start, const session::SwitchEndpoint& endpoints) override {
    server_.move_roots(start.start.admission.job_epoch,
                       session::server_job(start.start, start.lane, settings_of(start.plan), endpoints).roots);
  }

  void stop_job(std::uint64_t epoch) override {
    if (const auto* counters = server_.job_counters(epoch)) {
      ended_received_ += counters->packets;
      add(ended_, *counters);
    }
    server_.remove_job(epoch);
    memory_.erase(epoch);
  }

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    received_ += packets.size();
    server_.on_packets(packets, packets.size() >= long_queue, now, sink);
  }
  void on_timer(Time, Sink&) override {}
  [[nodiscard]] Time next_timeout() const override { return never; }

  void check() const override {
    const atp::ServerCounters& c = server_.counters();
    std::uint64_t seen = sum(c.malformed) + c.unknown_job + c.unexpected_type + ended_received_;
    for (const auto& [epoch, memory] : memory_) {
      const atp::ServerJobCounters& job = *server_.job_counters(epoch);
      seen += job.packets;
      if (job.packets != accounted(job)) throw Violation("the server's counters of a job do not add up to its packets");
      if (memory.agreed && job.dropped_early != 0) throw Violation("a worker went on before it had what it needs");
      if (memory.agreed && job.dropped_mismatch != 0) throw Violation("a mismatch was found in calls that agree");
      if (server_.incomplete(epoch) > memory.window) throw Violation("more chunks are under way than a window has");
    }
    if (seen != received_) throw Violation("the server's counters do not add up to what it received");
  }
  [[nodiscard]] std::size_t jobs() const override { return memory_.size(); }

  void count_events(Tally& tally) const override {
    atp::ServerJobCounters total = ended_;
    for (const auto& [epoch, memory] : memory_) add(total, *server_.job_counters(epoch));
    const atp::ServerCounters& c = server_.counters();
    auto& e = tally.events;
    e["server_added_single"] += total.added_single;
    e["server_added_partial"] += total.added_partial;
    e["server_added_complete"] += total.added_complete;
    e["server_float_fallback"] += total.fallbacks;
    e["server_repeat_answered"] += total.repeats_answered;
    e["server_repeat_told_to_wait"] += total.repeats_waiting;
    e["server_repeat_unanswered"] += total.repeats_silent;
    e["server_overlap_refused"] += total.overlaps;
    e["server_old_answered_done"] += total.old;
    e["server_index_remapped"] += total.remapped;
    e["server_asked_again"] += total.asks;
    e["server_dropped_mismatch"] += total.dropped_mismatch;
    e["server_dropped_source"] += total.dropped_source;
    e["server_dropped_rank_epoch"] += total.dropped_rank_epoch;
    e["server_dropped_shape"] += total.dropped_shape;
    e["server_unknown_job"] += c.unknown_job;
    e["server_unexpected_type"] += c.unexpected_type;
    count_malformed(tally, "server", c.malformed);
  }

 private:
  struct Memory {
    std::vector<CacheLine> lines;
    std::uint32_t window = 0;
    bool agreed = true;
  };

  static void add(atp::ServerJobCounters& total, const atp::ServerJobCounters& c) {
    total.added_single += c.added_single;
    total.added_partial += c.added_partial;
    total.added_complete += c.added_complete;
    total.fallbacks += c.fallbacks;
    total.repeats_answered += c.repeats_answered;
    total.repeats_waiting += c.repeats_waiting;
    total.repeats_silent += c.repeats_silent;
    total.overlaps += c.overlaps;
    total.old += c.old;
    total.remapped += c.remapped;
    total.asks += c.asks;
    total.dropped_mismatch += c.dropped_mismatch;
    total.dropped_source += c.dropped_source;
    total.dropped_rank_epoch += c.dropped_rank_epoch;
    total.dropped_shape += c.dropped_shape;
  }

  std::map<std::uint64_t, Memory> memory_;  // by job epoch
  atp::Server server_;
  std::uint64_t received_ = 0, ended_received_ = 0;
  atp::ServerJobCounters ended_;
};

atp::SwitchConfig switch_config(const Scenario& scenario) {
  atp::SwitchConfig config;
  config.slots = scenario.pool_slots;
  config.packet_elements = scenario.pool_elements;
  config.abandoned_after = std::chrono::milliseconds(200);
  return config;
}

class AtpSwitchLane final : public SwitchLane {
 public:
  explicit AtpSwitchLane(const Scenario& scenario)
      : memory_(atp::Switch::memory_bytes(switch_config(scenario)) / sizeof(CacheLine)),
        slots_(scenario.pool_slots),
        switch_(switch_config(scenario), std::as_writable_bytes(std::span(memory_))) {}

  [[nodiscard]] bool install(const LaneStart& start, const InstallCall& call) override {
    std::vector<Endpoint> server(start.lane + 1);
    server.back() = start.aggregator;
    const auto installation =
        session::installation_for(start.start, call.a_switch, settings_of(start.plan),
                                  session::spread_switch_endpoints(call.lanes, start.start.admission.job_epoch), server);
    const atp::SwitchJobConfig config = session::switch_job(installation, start.lane);
    const bool known = switch_.job_counters(config.epoch) != nullptr;
    if (!(known ? switch_.move_job(config) : switch_.add_job(config)))
      throw Violation("a switch cannot take a job that it should");
    if (!known) epochs_.push_back(config.epoch);
    return true;
  }

  void remove(std::uint64_t epoch) override {
    if (const auto* counters = switch_.job_counters(epoch)) {
      ended_received_ += counters->packets;
      add(ended_, *counters);
    }
    switch_.remove_job(epoch);
    std::erase(epochs_, epoch);
  }

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    received_ += packets.size();
    switch_.on_packets(packets, packets.size() >= long_queue, now, sink);
  }

  void check() const override {
    const atp::SwitchCounters& c = switch_.counters();
    std::uint64_t seen = sum(c.malformed) + c.unknown_job + c.unexpected_type + ended_received_;
    std::uint32_t in_use = 0;
    for (const std::uint64_t epoch : epochs_) {
      const atp::SwitchJobCounters& job = *switch_.job_counters(epoch);
      seen += job.packets;
      in_use += switch_.slots_in_use(epoch);
      if (job.packets != accounted(job)) throw Violation("a switch's counters of a job do not add up to its packets");
    }
    if (seen != received_) throw Violation("a switch's counters do not add up to what it received");
    if (in_use != switch_.slots_in_use() || in_use > slots_) throw Violation("slots were lost or given out twice");
  }
  void check_idle() const override {
    check();
    if (switch_.slots_in_use() != 0) throw Violation("slots are in use after all jobs have ended");
  }

  void count_events(Tally& tally) const override {
    atp::SwitchJobCounters total = ended_;
    for (const std::uint64_t epoch : epochs_) add(total, *switch_.job_counters(epoch));
    const atp::SwitchCounters& c = switch_.counters();
    auto& e = tally.events;
    e["switch_added"] += total.added;
    e["switch_completed"] += total.completed;
    e["switch_collision"] += total.collisions;
    e["switch_resend_merged"] += total.resends_merged;
    e["switch_resend_passed"] += total.resends_passed;
    e["switch_direct_passed"] += total.direct_passed;
    e["switch_mismatch_passed"] += total.mismatch_passed;
    e["switch_repeat_told_to_wait"] += total.repeats_waiting;
    e["switch_repeat_unanswered"] += total.repeats_silent;
    e["switch_ask_passed_down"] += total.asks;
    e["switch_done_passed_down"] += total.dones;
    e["switch_slot_deallocated"] += total.deallocated;
    e["switch_slot_reclaimed"] += c.reclaimed;
    e["switch_marked"] += total.marked;
    e["switch_dropped_source"] += total.dropped_source;
    e["switch_dropped_rank_epoch"] += total.dropped_rank_epoch;
    e["switch_dropped_shape"] += total.dropped_shape;
    e["switch_unknown_job"] += c.unknown_job;
    e["switch_unexpected_type"] += c.unexpected_type;
    count_malformed(tally, "switch", c.malformed);
  }

 private:
  static void add(atp::SwitchJobCounters& total, const atp::SwitchJobCounters& c) {
    total.added += c.added;
    total.completed += c.completed;
    total.collisions += c.collisions;
    total.resends_merged += c.resends_merged;
    total.resends_passed += c.resends_passed;
    total.direct_passed += c.direct_passed;
    total.mismatch_passed += c.mismatch_passed;
    total.repeats_waiting += c.repeats_waiting;
    total.repeats_silent += c.repeats_silent;
    total.asks += c.asks;
    total.dones += c.dones;
    total.deallocated += c.deallocated;
    total.marked += c.marked;
    total.dropped_source += c.dropped_source;
    total.dropped_rank_epoch += c.dropped_rank_epoch;
    total.dropped_shape += c.dropped_shape;
  }

  std::vector<CacheLine> memory_;
  std::uint32_t slots_;
  atp::Switch switch_;
  std::vector<std::uint64_t> epochs_;
  std::uint64_t received_ = 0, ended_received_ = 0;
  atp::SwitchJobCounters ended_;
};

class AtpWorker final : public WorkerLane {
 public:
  explicit AtpWorker(const atp::WorkerConfig& config) : worker_(config), window_(config.window) {}

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
    const bool mismatch = failure->kind == atp::WorkerFailure::Kind::mismatch;
    return LaneFailure{mismatch, failure->operation, failure->first_rank, failure->second_rank};
  }
  [[nodiscard]] std::optional<session::Stall> oldest_stall() const override {
    const auto stall = worker_.oldest_stall();
    if (!stall) return std::nullopt;
    return session::Stall{0, stall->operation, stall->chunk, stall->missing, stall->told};
  }

  void check() const override {
    const atp::WorkerCounters& c = worker_.counters();
    if (received_ !=
        c.parameters + c.asks + c.waiting + c.stale + c.mismatch + c.unknown_job + sum(c.malformed) + c.foreign) {
      throw Violation("a worker's counters do not add up to what it received");
    }
    if (worker_.idle() && worker_.oldest_stall()) throw Violation("a worker without operations has a chunk in flight");
    if (worker_.congestion_window() == 0 || worker_.congestion_window() > window_)
      throw Violation("a congestion window is empty, or longer than the job's");
  }

  void count_events(Tally& tally) const override {
    const atp::WorkerCounters& c = worker_.counters();
    auto& e = tally.events;
    e["worker_parameter"] += c.parameters;
    e["worker_retransmission"] += c.retransmissions;
    e["worker_resend"] += c.resends;
    e["worker_fast_resend"] += c.fast_resends;
    e["worker_floats_sent"] += c.floats_sent;
    e["worker_bypass"] += c.bypasses;
    e["worker_index_remapped"] += c.remapped;
    e["worker_rescaled"] += c.rescaled;
    e["worker_marked"] += c.marked;
    e["worker_stale"] += c.stale;
    e["worker_waiting"] += c.waiting;
    e["worker_asked"] += c.asks;
    e["worker_mismatch"] += c.mismatch;
    e["worker_unknown_job"] += c.unknown_job;
    e["worker_foreign"] += c.foreign;
    count_malformed(tally, "worker", c.malformed);
  }

 private:
  atp::Worker worker_;
  std::uint32_t window_;
  std::uint64_t received_ = 0;
};

// Checks that repeats have the same content: a rank's values as in the first transmission, results as sent to all ranks.
class AtpTap final : public Tap {
 public:
  AtpTap(HostId first_switch, HostId first_worker, std::uint32_t lanes)
      : first_switch_(first_switch), first_worker_(first_worker), lanes_(lanes) {}

  void on_send(const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) override {
    Common common;
    if (wire::atp::parse_common(bytes, common) != ParseError::none) throw Violation("a node sent a malformed datagram");
    std::span<const std::byte> values;
    if (common.type == Type::gradient) {
      wire::atp::GradientPacket gradient;
      if (wire::atp::parse_gradient(bytes, common, gradient) != ParseError::none)
        throw Violation("a node sent a malformed gradient packet");
      if (gradient.common.wide) ++wide_;
      if (host_of(from) < first_worker_) return;  // partial sums differ by their contributors
      values = gradient.payload;
    } else if (common.type == Type::parameter) {
      wire::atp::ParameterPacket parameter;
      if (wire::atp::parse_parameter(bytes, common, parameter) != ParseError::none)
        throw Violation("a node sent a malformed parameter packet");
      values = parameter.payload;
    } else {
      return;
    }
    const bool gradient = common.type == Type::gradient;
    const std::uint64_t key =
        mix(common.job_epoch ^ mix(common.sequence ^ mix(gradient ? mix(host_of(from)) ^ from.port : 0) ^
                                   mix(std::uint64_t{gradient && common.floats} + 2 * lane_of(from, common))));
    const std::uint64_t content =
        mix(common.exponent) ^ crc32c(values) ^ std::uint64_t{common.signature} << 32 ^ values.size();
    if (const auto [at, first] = sent_.emplace(key, content); !first && at->second != content) {
      throw Violation("a repeat of sequence number " + std::to_string(common.sequence) +
                      (gradient ? " differs from its first transmission" : " differs from the result that was sent before"));
    }
  }

  void count_events(Tally& tally) const override { tally.events["gradient_wide"] += wide_; }

 private:
  // Each lane has separate sequence numbers; a parameter packet is the same from all hosts that pass it on. A switch numbers
  // a job's lanes differently.
  [[nodiscard]] std::uint64_t lane_of(const Endpoint& from, const Common& common) const {
    if (common.type == Type::gradient) return 0;
    const std::size_t at = from.port - aggregator_port;
    if (host_of(from) < first_switch_) return at;
    std::size_t lane = 0;
    while (lane + 1 < lanes_ && session::switch_lane(common.job_epoch, lane, lanes_) != at) ++lane;
    return lane;
  }

  HostId first_switch_, first_worker_;
  std::uint32_t lanes_;
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
  std::uint64_t wide_ = 0;
};

class Atp final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return session::atp_rules(); }
  [[nodiscard]] std::unique_ptr<AggregatorLane> aggregator_lane() const override { return std::make_unique<ServerLane>(); }
  [[nodiscard]] std::unique_ptr<SwitchLane> switch_lane(const Scenario& scenario) const override {
    return std::make_unique<AtpSwitchLane>(scenario);
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override {
    return std::make_unique<AtpTap>(switch_host(scenario, 0),
                                    switch_host(scenario, static_cast<std::uint32_t>(scenario.parent_of_switch.size())),
                                    scenario.lanes);
  }
  // Nothing is measured: the congestion window adapts.
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }

  [[nodiscard]] std::unique_ptr<WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    const session::Placement& placement = plan.admission.placement;
    const std::uint32_t at = placement.switch_of_rank[plan.rank];
    const Endpoint first_hop = at == session::Placement::at_server
                                   ? plan.aggregator
                                   : switch_endpoints(*plan.scenario, placement)(
                                         at, session::switch_lane(plan.admission.job_epoch, plan.lane % plan.scenario->lanes,
                                                                  plan.scenario->lanes));
    atp::WorkerConfig config =
        session::worker_config(plan.admission, plan.rank, settings_of(*plan.plan), plan.aggregator, first_hop);
    config.lane = plan.lane;
    config.lanes = plan.lanes;
    config.congestion_control = plan.plan->congestion_control;
    return std::make_unique<AtpWorker>(config);
  }

  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, true};
    auto& bytes = forgery.bytes;
    Common common;
    wire::atp::GradientPacket gradient;
    const bool known = wire::atp::parse_common(bytes, common) == ParseError::none;
    const bool is_gradient =
        known && common.type == Type::gradient && wire::atp::parse_gradient(bytes, common, gradient) == ParseError::none;
    const std::uint64_t kind = random.below(is_gradient ? 9 : 5);
    switch (kind) {
      case 0:  // correct but for source and content
        forgery.spoofed = false;
        for (std::size_t i = bytes.size(); i-- > wire::atp::gradient_header_bytes;) bytes[i] ^= std::byte{1};
        break;
      case 1:
        store_le(bytes.data() + job_epoch_bytes, common.job_epoch ^ (1 + random.below(UINT32_MAX)));
        break;
      case 2:
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
        return forgery;
      case 3:
        bytes[exponent_byte] = std::byte{255};
        break;
      case 4:
        bytes.resize(wire::atp::common_bytes + random.below(3));
        break;
      case 5:
        common.rank_epoch ^= static_cast<std::uint32_t>(1 + random.below(UINT32_MAX));
        wire::atp::write_gradient_header(bytes, common, gradient.directions);
        break;
      case 6:
        for (auto& fan_in : gradient.directions.fan_in) fan_in = static_cast<std::uint8_t>(32 - fan_in / 2);
        wire::atp::write_gradient_header(bytes, common, gradient.directions);
        break;
      case 7:
        common.elements = 5000;  // more than any job's packets have
        bytes.resize(wire::atp::gradient_bytes(common));
        wire::atp::write_gradient_header(bytes, common, gradient.directions);
        break;
      default:
        common = {.type = static_cast<Type>(random.between(3, 6)),  // types of the opposite direction
                  .job_epoch = common.job_epoch,
                  .sequence = common.sequence,
                  .rank_epoch = common.rank_epoch ^ 1};
        bytes.resize(wire::atp::parameter_header_bytes);
        wire::atp::write_parameter_header(bytes, common, 0);
        break;
    }
    wire::atp::seal(bytes);
    return forgery;
  }

  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    Common c;
    if (const auto error = wire::atp::parse_common(datagram, c); error != ParseError::none) {
      return std::string("malformed (") + wire::to_string(error) + "), " + std::to_string(datagram.size()) + " bytes";
    }
    constexpr const char* names[] = {"?", "gradient", "parameter", "ask", "done", "waiting", "mismatch", "unknown job"};
    std::string text = names[static_cast<std::size_t>(c.type)];
    text += " " + std::to_string(c.sequence) + ", index " + std::to_string(c.index) + ", " + std::to_string(c.elements) +
            " elements";
    if (c.exponent != 0) text += ", exponent " + std::to_string(c.exponent);
    const std::pair<bool, const char*> flags[] = {
        {c.resend, "resend"}, {c.ecn, "ecn"},       {c.collision, "collision"}, {c.overflow, "overflow"},
        {c.wide, "wide"},     {c.direct, "direct"}, {c.floats, "floats"},       {c.integers, "integers"}};
    for (const auto& [set, name] : flags) {
      if (set) text += std::string(", ") + name;
    }
    wire::atp::GradientPacket gradient;
    if (c.type == Type::gradient && wire::atp::parse_gradient(datagram, c, gradient) == ParseError::none) {
      text += ", level " + std::to_string(gradient.directions.level) + " bitmaps";
      for (std::size_t i = 0; i < wire::atp::max_levels; ++i) {
        if (gradient.directions.fan_in[i] == 0) continue;
        text += " " + std::to_string(gradient.directions.bitmap[i]) + "/" + std::to_string(gradient.directions.fan_in[i]);
      }
    }
    wire::atp::WaitingPacket waiting;
    if (c.type == Type::waiting && wire::atp::parse_waiting(datagram, c, waiting) == ParseError::none) {
      text += ", for " + std::to_string(waiting.missing.size()) + " ranks";
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Protocol> make_atp() {
  return std::make_unique<Atp>();
}

}  // namespace netsum::sim
