#include "sim/switchml.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "jobs/switchml_job.h"
#include "jobs/switchml_terms.h"
#include "protocol/switchml/probe.h"
#include "protocol/switchml/windows.h"
#include "protocol/switchml/worker_lane.h"
#include "seal/sealer.h"
#include "service/switchml_service.h"
#include "sim/aggregator_host.h"
#include "sim/checked_jobs.h"
#include "sim/events.h"
#include "sim/forgeries.h"
#include "sim/host.h"
#include "sim/labels.h"
#include "sim/private_jobs.h"
#include "sim/racks.h"
#include "wire/epochs.h"
#include "wire/switchml.h"
#include "wire/switchml_apart.h"

namespace netsum::sim {
namespace {

using switchml::JobCounters;

constexpr std::size_t least_operations = 16;  // that a lane has room for
// Offsets of docs/protocol-switchml.md.
constexpr std::size_t type_byte = 1, job_epoch_bytes = 8, exponents_byte = 46;

class SwitchmlSums final : public CheckedJobs<JobCounters> {
 public:
  explicit SwitchmlSums(const service::Lanes& lanes) : CheckedJobs(lanes.size()), service_(lanes) {}

  [[nodiscard]] service::Service& service() override { return service_; }
  [[nodiscard]] std::uint32_t slots_of(const session::SwitchMessage& message) const override {
    return jobs::read_switchml(message, *service_.rules()).start.admission.slots;
  }

  void check(std::span<const LaneCounts> counts) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const switchml::Switch& machine = service_.at(lane);
      check_packets(lane, outcomes(machine.counters()), counts[lane].received, "the switch's");
      const JobCounters& all = total(lane);
      if (all.results_sent - all.acknowledgements + all.sums_sent - all.sums_in_parts - all.sums_in_runs !=
          counts[lane].results)
        throw Violation("the switch's counters do not add up to the results and sums that it sent");
      for (const auto& [epoch, job] : jobs()) {
        if (machine.job_counters(epoch) == nullptr) continue;
        const JobCounters& c = *machine.job_counters(epoch);
        if (job.agreed && c.dropped_early != 0) throw Violation("a worker went on before its slot's chunk was complete");
        if (job.agreed && c.dropped_mismatch != 0) throw Violation("a mismatch was found in calls that agree");
        if (machine.slots_in_use(epoch) > 2 * switchml::windows * job.slots)
          throw Violation("a job uses more slots than it owns");
      }
    }
  }

  void count_events(Tally& tally) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      sim::count_events(tally, "switch_", wire::counter_values(total(lane)),
                        {"results_to_group", "group_unheard", "dropped_early", "dropped_trains", "dropped_gap"});
      // Probes may have any length.
      sim::count_events(tally, "switch_", wire::counter_values(service_.at(lane).counters()), {"malformed_length"});
    }
  }

 private:
  [[nodiscard]] const JobCounters* job_counters(std::size_t lane, std::uint64_t epoch) const override {
    return service_.at(lane).job_counters(epoch);
  }

  service::SwitchMlService service_;
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
  return (type >= wire::switchml::Type::contribution && type <= wire::switchml::Type::exponent_result) ||
         type == wire::switchml::Type::acknowledgement;
}

[[nodiscard]] bool is_run(wire::switchml::Type type) {
  return type == wire::switchml::Type::empty_contributions || type == wire::switchml::Type::acknowledgements;
}

// Checks that repeats are byte-identical: a contribution to its sender's first one, a result to everybody's.
class SwitchmlTap final : public Tap {
 public:
  void on_send(const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) override {
    wire::switchml::Common common;
    if (wire::switchml::parse_common(bytes, common) != wire::ParseError::none)
      throw Violation("a node sent a malformed datagram");
    if (common.security == PacketSecurity::encrypt) return;
    const auto content = bytes.first(bytes.size() - seal::trailer_bytes(common.security));
    if (is_chunk(common.type)) return check(from, common, content);
    if (common.type == wire::switchml::Type::sum_part) return check_part(from, common, content);
    if (!is_run(common.type)) return;
    wire::switchml::RunPacket all;
    if (wire::switchml::parse_run(content, common, all) != wire::ParseError::none || all.run.size() < 2)
      throw Violation("a node sent a malformed run");
    for (const auto& member : wire::switchml::apart(all)) {
      ++(common.type == wire::switchml::Type::acknowledgements ? acknowledged_ : contributed_);
      if (wire::switchml::parse_common(member, common) != wire::ParseError::none)
        throw Violation("a run has a malformed member");
      check(from, common, member);
    }
  }

  void count_events(Tally& tally) const override {
    tally.events["look_ahead_unknown_won"] += unknown_won_;
    tally.events["result_with_nonfinite"] += masks_;
    tally.events["contributed_in_runs"] += contributed_;
    tally.events["sum_parts"] += parts_;
    tally.events["acknowledged_in_runs"] += acknowledged_;
  }

 private:
  void check_part(const Endpoint& from, const wire::switchml::Common& common, std::span<const std::byte> content) {
    wire::switchml::SumPart part;
    if (wire::switchml::parse_sum_part(content, common, part) != wire::ParseError::none)
      throw Violation("a node sent a malformed part of a sum");
    ++parts_;
    const wire::switchml::ChunkHeader& header = part.chunk.header;
    const std::uint64_t key = mix(common.job_epoch ^ mix(header.operation ^ mix(header.chunk))) ^
                              mix(std::uint64_t{part.part} << 40 ^ std::uint64_t{common.sender} << 8 ^
                                  static_cast<std::uint64_t>(common.type) ^ mix(host_of(from)));
    check_repeat(key, content, header, " differs from its first transmission");
  }

  // Whether it is the first; throws where it is not as the first was.
  bool check_repeat(std::uint64_t key, std::span<const std::byte> bytes, const wire::switchml::ChunkHeader& header,
                    const char* differs) {
    const std::uint64_t content = crc32c(bytes) ^ std::uint64_t{bytes.size()} << 32;
    const auto [at, first] = sent_.emplace(key, content);
    if (at->second == content) return first;
    throw Violation("a repeat of operation " + std::to_string(header.operation) + ", chunk " + std::to_string(header.chunk) +
                    differs);
  }

  // What is sent about a chunk, alone or in a run.
  void check(const Endpoint& from, const wire::switchml::Common& common, std::span<const std::byte> content_bytes) {
    wire::switchml::ChunkPacket chunk;
    if (wire::switchml::parse_chunk(content_bytes, common, chunk) != wire::ParseError::none)
      throw Violation("a node sent a malformed chunk");
    const wire::switchml::ChunkHeader& header = chunk.header;
    const bool contribution = common.type <= wire::switchml::Type::exponent_contribution;
    // A switch in a tree hears only of values that someone below wants; it acknowledges what it has not.
    if (common.type == wire::switchml::Type::acknowledgement && header.elements != 0)
      throw Violation("values in an acknowledgement");
    const std::uint64_t identity = mix(common.job_epoch ^ mix(header.operation ^ mix(header.chunk)));
    // Each switch acknowledges by itself; results are the root's.
    const bool own = contribution || common.type == wire::switchml::Type::acknowledgement;
    const std::uint64_t key = mix(identity ^ static_cast<std::uint64_t>(common.type) << 32 ^
                                  (own ? mix(common.rank_epoch ^ std::uint64_t{common.sender} << 32) ^ host_of(from) : 0));
    const bool first = check_repeat(
        key, content_bytes, header,
        contribution ? " differs from its first transmission" : " differs from the result that was sent before");
    if (first && common.type == wire::switchml::Type::contribution) {
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

  struct Ahead {
    bool known = false, unknown = false;
  };
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
  std::unordered_map<std::uint64_t, Ahead> ahead_;
  std::uint64_t unknown_won_ = 0, masks_ = 0, contributed_ = 0, acknowledged_ = 0, parts_ = 0;
};

// The wire format of floats. A rank with a bug may use another format, and has no other bug.
void draw_wires(Scenario& scenario) {
  using enum WireFormat;
  constexpr WireFormat formats[] = {native, native, native, float32, float16, bfloat16,
                                    native, int8,   int4,   float32, float16, bfloat16};
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random random(derive(scenario.seed, Label::of_wire + index));
    for (stream::Operation& call : job.calls) {
      call.wire = random.pick(formats);
      call.nearest = call.number % 4 == 3;
    }
    if (!job.mismatch) continue;
    stream::Operation& other = job.mismatch->call;
    const stream::Operation& right = job.calls[other.number];
    other.wire = right.wire;
    stream::Operation differs = right;
    differs.wire = random.pick(formats);
    if (stream::wire_dtype(differs) != stream::wire_dtype(right)) other = differs;
  }
}

// Operations, types and collectives that this protocol alone has. Not where a rank may need another's result again.
void draw_reductions(Scenario& scenario) {
  using stream::Collective;
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    if (job.recovers) continue;
    for (stream::Operation& call : job.calls) {
      Random random(derive(derive(scenario.seed, Label::of_reductions + index), call.number));
      if (call.collective != Collective::all_reduce) continue;
      if (random.chance(0.4)) {
        call.dtype = random.pick(dtypes);
        const ReduceOp op = random.pick(reduce_ops);
        call.op = applies_to(op, call.dtype) ? op : ReduceOp::sum;
      }
      const std::uint64_t kind = random.below(8);
      call.root = static_cast<std::uint32_t>(random.below(job.workers));
      if (kind == 0) {
        call.collective = Collective::reduce;
        continue;
      }
      call.root = 0;
      if (kind > 2) continue;
      call.collective = kind == 1 ? Collective::reduce_scatter : Collective::all_gather;
      call.parts = job.workers;
      call.elements = call.elements / job.workers * job.workers;
      if (kind == 1) continue;
      call.op = ReduceOp::sum;
      call.dtype = DType::float32;
      call.wire = WireFormat::native;
    }
    if (!job.mismatch) continue;
    stream::Operation& other = job.mismatch->call;
    if (stream::signature_of(other, 0) == stream::signature_of(job.calls[other.number], 0)) other.tag += 3;
  }
}

class Switchml final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::switchml_rules(); }
  void draw(Scenario& scenario) const override {
    draw_wires(scenario);
    draw_reductions(scenario);
    draw_racks(scenario);
    draw_private(scenario, true);
    scenario.security = draw_security(scenario.seed);
  }
  void complete(session::JoinRequest& request, const Scenario& scenario, const JobPlan& plan,
                std::uint32_t life) const override {
    jobs::SwitchMlAsk ask;
    ask.privacy = privacy_of(scenario, plan, request.rank, life);
    request.own = jobs::own_part(ask);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario&,
                                                                   const service::Lanes& lanes) const override {
    return std::make_unique<SwitchmlSums>(lanes);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> switch_service(const Scenario&, std::uint32_t,
                                                               const service::Lanes& lanes) const override {
    return std::make_unique<SwitchmlSums>(lanes);
  }
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

  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
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
    config.operations = std::min(config.operations, std::max(least_operations, std::size_t{plan.plan->window}));
    const session::Placement& placement = plan.admission.placement;
    const std::uint32_t at =
        placement.switches.empty() ? session::Placement::at_server : placement.switch_of_rank[plan.rank];
    config.in_tree = at != session::Placement::at_server;
    config.aggregator = at == session::Placement::at_server
                            ? plan.aggregator
                            : switch_endpoints(*plan.scenario, placement)(at, plan.lane % plan.scenario->lanes);
    jobs::take_keys(plan.admission, plan.lane % plan.scenario->lanes, config);
    config.pads = pads_of(plan, jobs::public_keys(plan.admission));
    return switchml::make_worker_lane(config);
  }

  [[nodiscard]] std::vector<CounterValue> worker_counters() const override {
    return wire::counter_values(switchml::WorkerCounters{});
  }

  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, true};
    auto& bytes = forgery.bytes;
    wire::switchml::Common common;
    wire::switchml::ChunkPacket chunk;
    const bool is_chunk_packet = wire::switchml::parse_common(bytes, common) == wire::ParseError::none &&
                                 is_chunk(common.type) &&
                                 wire::switchml::parse_chunk(bytes, common, chunk) == wire::ParseError::none;
    if (common.security != PacketSecurity::none) return forge_without_key(overheard, common, random);
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
        common.sender = static_cast<std::uint16_t>(2048 + random.below(2048));
        break;
      case 4:
        common.rank_epoch ^= static_cast<std::uint32_t>(1 + random.below(UINT32_MAX));
        break;
      case 5:
        header.slot = static_cast<std::uint16_t>(4096 + random.below(1000));
        break;
      case 6:
        common.type = static_cast<wire::switchml::Type>(random.between(1, 14));  // the other side's, or of another length
        common.rank_epoch ^= 1;
        break;
      case 7:
        bytes[exponents_byte] = static_cast<std::byte>(random.between(wire::switchml::max_blocks + 1, 255));
        break;
      case 8:
        bytes[type_byte] |= std::byte{0xc0};  // protected in a way that there is not
        break;
      default:
        header.elements = static_cast<std::uint16_t>(4096 / bytes_of(header.dtype));  // more than any job's packets have
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

  // All from the address that is believed: as everywhere, or without the seal, as a rank without keys sends.
  [[nodiscard]] static Forgery forge_without_key(std::span<const std::byte> overheard, const wire::switchml::Common& common,
                                                 Random& random) {
    Forgery forgery{{overheard.begin(), overheard.end()}, true};
    auto& bytes = forgery.bytes;
    switch (random.below(7)) {
      case 0:
      case 1:
        bytes.resize(bytes.size() - seal::trailer_bytes(common.security));
        bytes.back() ^= std::byte{1};
        wire::switchml::reseal(bytes, PacketSecurity::none);
        break;
      case 2: {
        wire::switchml::Common failure = common;
        failure.type = wire::switchml::Type::mismatch;
        failure.sender = 0;
        failure.security = PacketSecurity::none;
        bytes.resize(wire::switchml::mismatch_bytes);
        wire::switchml::write_mismatch(bytes, {failure, 0, 0, 1, 2, 0, 1});
        break;
      }
      default:
        forge_sealed(bytes, common.security, wire::switchml::common_bytes, 0, random);
        break;
    }
    return forgery;
  }

  [[nodiscard]] std::string describe(std::span<const std::byte> sent) const override {
    std::span<const std::byte> datagram = sent;
    wire::switchml::Common common;
    if (const auto error = wire::switchml::parse_common(datagram, common); error != wire::ParseError::none) {
      return std::string("malformed (") + wire::to_string(error) + "), " + std::to_string(datagram.size()) + " bytes";
    }
    constexpr const char* names[] = {"?",
                                     "contribution",
                                     "exponent contribution",
                                     "result",
                                     "exponent result",
                                     "waiting",
                                     "mismatch",
                                     "unknown job",
                                     "probe",
                                     "probe reply",
                                     "missing",
                                     "acknowledgement",
                                     "empty contributions",
                                     "acknowledgements",
                                     "part of a sum"};
    std::string text = names[static_cast<std::size_t>(common.type)];
    if (common.security == PacketSecurity::encrypt) return text + ", encrypted";
    datagram = datagram.first(datagram.size() - std::min(datagram.size(), seal::trailer_bytes(common.security)));
    if (is_run(common.type)) {
      wire::switchml::RunPacket all;
      if (wire::switchml::parse_run(datagram, common, all) != wire::ParseError::none) return text;
      all.for_each([&](const wire::switchml::ChunkPacket& member) { text += ' ' + std::to_string(member.header.chunk); });
      return text + " of operation " + std::to_string(all.run.first.operation);
    }
    wire::switchml::ChunkPacket chunk;
    wire::switchml::WaitingPacket waiting{};
    if (wire::switchml::SumPart part; wire::switchml::parse_sum_part(datagram, common, part) == wire::ParseError::none) {
      const wire::switchml::ChunkHeader& h = part.chunk.header;
      return text + " of rank " + std::to_string(common.sender) + " and others, operation " + std::to_string(h.operation) +
             " chunk " + std::to_string(h.chunk) + ", " + std::to_string(part.part + 1) + " of " +
             std::to_string(part.parts);
    }
    if (wire::switchml::parse_chunk(datagram, common, chunk) == wire::ParseError::none) {
      const wire::switchml::ChunkHeader& h = chunk.header;
      if (common.type <= wire::switchml::Type::exponent_contribution) text += " of rank " + std::to_string(common.sender);
      text += ", operation " + std::to_string(h.operation) + " chunk " + std::to_string(h.chunk) + ", slot " +
              std::to_string(h.slot) + "/" + std::to_string(h.version) + ", " + std::to_string(h.elements) + ' ' +
              (h.dtype == block8   ? "8-bit"
               : h.dtype == block4 ? "4-bit"
                                   : netsum::to_string(h.dtype)) +
              ' ' + netsum::to_string(h.op);
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
