#include "sim/atp.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "jobs/atp_job.h"
#include "protocol/atp/worker_lane.h"
#include "seal/sealer.h"
#include "service/atp_server_service.h"
#include "service/atp_switch_service.h"
#include "sim/aggregator_host.h"
#include "sim/checked_jobs.h"
#include "sim/events.h"
#include "sim/forgeries.h"
#include "sim/labels.h"
#include "wire/atp.h"

namespace netsum::sim {
namespace {

using wire::ParseError;
using wire::atp::Common;
using wire::atp::Type;

// Offsets of docs/protocol-atp.md.
constexpr std::size_t job_epoch_bytes = 8, exponent_byte = 39;

jobs::AtpSettings settings_of(const JobPlan& plan) {
  return {static_cast<atp::Indexing>(plan.indexing), plan.saturating ? atp::Overflow::saturating : atp::Overflow::exact,
          plan.numbers == Numbers::rescaled ? atp::Scaling::dynamic : atp::Scaling::fixed,
          plan.paper_rules  ? atp::Rules::paper
          : plan.chip_rules ? atp::Rules::chip
                            : atp::Rules::netsum};
}

class AtpSumsAtServer final : public CheckedJobs<atp::ServerJobCounters> {
 public:
  AtpSumsAtServer(const Scenario& scenario, const service::Lanes& lanes)
      : CheckedJobs(lanes.size()),
        service_(lanes, [&scenario](const std::string& job) { return settings_of(scenario.plan_of(job)); },
                 {.count = scenario.pool_parts}) {}

  [[nodiscard]] service::Service& service() override { return service_; }

  void check(std::span<const LaneCounts> counts) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const atp::Server& machine = service_.at(lane);
      check_packets(lane, outcomes(machine.counters()), counts[lane].received, "the server's");
      for (const auto& [epoch, job] : jobs()) {
        if (machine.job_counters(epoch) == nullptr) continue;  // a lane that the job does not have
        const atp::ServerJobCounters& c = *machine.job_counters(epoch);
        if (job.agreed && c.dropped_early != 0) throw Violation("a worker went on before it had what it needs");
        if (job.agreed && c.dropped_mismatch != 0) throw Violation("a mismatch was found in calls that agree");
        if (machine.incomplete(epoch) > job.slots) throw Violation("more chunks are under way than a window has");
      }
    }
  }

  void count_events(Tally& tally) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      sim::count_events(tally, "server_", wire::counter_values(total(lane)), {"dropped_early"});
      // Gradient length errors count per job, as "dropped_shape".
      sim::count_events(tally, "server_", wire::counter_values(service_.at(lane).counters()), {"malformed_length"});
    }
  }

 private:
  [[nodiscard]] const atp::ServerJobCounters* job_counters(std::size_t lane, std::uint64_t epoch) const override {
    return service_.at(lane).job_counters(epoch);
  }

  service::AtpServerService service_;
};

atp::SwitchConfig switch_config(const Scenario& scenario, bool chip) {
  atp::SwitchConfig config;
  config.chip = chip;
  config.slots = scenario.pool_slots;
  config.packet_elements = scenario.pool_elements;
  return config;
}

class AtpSumsAtSwitch final : public CheckedJobs<atp::SwitchJobCounters> {
 public:
  // With pools from the start: a switch that was started again answers that it does not know a job.
  AtpSumsAtSwitch(const Scenario& scenario, bool chip, const service::Lanes& lanes)
      : CheckedJobs(lanes.size()), slots_(scenario.pool_slots), service_(lanes, switch_config(scenario, chip)) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) service_.make_pool(lane);
  }

  [[nodiscard]] service::Service& service() override { return service_; }

  void check(std::span<const LaneCounts> counts) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const atp::Switch& machine = *service_.at(lane);
      check_packets(lane, outcomes(machine.counters()), counts[lane].received, "a switch's");
      std::uint32_t in_use = 0;
      for (const auto& [epoch, job] : jobs()) in_use += machine.slots_in_use(epoch);
      if (in_use != machine.slots_in_use() || in_use > slots_) throw Violation("slots were lost or given out twice");
    }
  }
  void check_idle() const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      if (service_.at(lane)->slots_in_use() != 0) throw Violation("slots are in use after all jobs have ended");
    }
  }

  void count_events(Tally& tally) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      sim::count_events(tally, "switch_", wire::counter_values(total(lane)));
      sim::count_events(tally, "switch_", wire::counter_values(service_.at(lane)->counters()), {"malformed_length"});
    }
  }

 private:
  [[nodiscard]] const atp::SwitchJobCounters* job_counters(std::size_t lane, std::uint64_t epoch) const override {
    return service_.at(lane)->job_counters(epoch);
  }

  const std::uint32_t slots_;
  service::AtpSwitchService service_;
};

// Checks that repeats have the same content: a rank's values as in the first transmission, results as sent to all ranks.
class AtpTap final : public Tap {
 public:
  AtpTap(HostId first_worker, PacketSecurity security) : first_worker_(first_worker), security_(security) {}

  void on_send(const Endpoint& from, const Endpoint&, std::span<const std::byte> sent) override {
    Common common;
    std::span<const std::byte> bytes = sent;
    const bool unknown = sent.size() == wire::atp::common_bytes;  // "unknown job": nobody has a key
    if (security_ == PacketSecurity::encrypt && !unknown) return;
    if (!unknown) bytes = sent.first(sent.size() - seal::trailer_bytes(security_));
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
  // Each lane has separate sequence numbers; a parameter packet is the same from all hosts that pass it on.
  [[nodiscard]] static std::uint64_t lane_of(const Endpoint& from, const Common& common) {
    if (common.type == Type::gradient) return 0;
    return static_cast<std::uint64_t>(from.port - aggregator_port);
  }

  HostId first_worker_;
  PacketSecurity security_;
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
  std::uint64_t wide_ = 0;
};

constexpr std::uint32_t small_job = 24;  // ranks that may be placed anywhere

// A tree of switches, rarely enough slots, and the placement of ranks.
void draw_switches(Scenario& scenario, bool chip) {
  Random random(derive(scenario.seed, Label::switches));
  std::uint64_t racks = random.between(1, 4);
  bool second_level = random.chance(0.5);
  // A switch takes so many children, and no more: large jobs fill racks evenly, under a second level. Where they do not fit
  // into one rack of a chip's 32, half of them have racks as large as they may be, or no switch at all.
  std::uint32_t largest = 0;
  for (const JobPlan& job : scenario.jobs) largest = std::max(largest, job.workers);
  const bool large = largest > small_job;
  bool at_servers = false;
  if (large) {
    const bool broad = !chip && largest > wire::atp::word_bits && random.chance(0.5);
    const std::uint32_t rack_ranks = broad ? wire::atp::max_fan_in : wire::atp::word_bits;
    racks = (largest + rack_ranks - 1) / rack_ranks;
    second_level = true;
    at_servers = broad && racks == 1 && random.chance(0.3);
  }
  for (std::uint64_t i = 0; i < racks; ++i) scenario.parent_of_switch.push_back(UINT32_MAX);
  if (second_level) {
    const auto top = static_cast<std::uint32_t>(racks);
    scenario.parent_of_switch.push_back(UINT32_MAX);
    for (std::uint32_t i = 0; i < top; ++i) {
      if (large || random.chance(0.8)) scenario.parent_of_switch[i] = top;
    }
  }
  std::uint32_t need = 0;
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random place(derive(scenario.seed, Label::of_placement + index));
    job.numbers = Numbers::scaled;
    job.measured = false;
    job.indexing = static_cast<std::uint32_t>(place.below(3));
    job.saturating = place.chance(0.2);
    job.congestion_control = place.chance(0.7);
    if (Random(derive(scenario.seed, Label::of_scaling + index)).chance(0.4)) job.numbers = Numbers::rescaled;
    // Loss shrinks windows to a few packets, and overflowing floats take a second round, in which each rank may lose packets
    // again. Where links lose a quarter of all packets, that is four chunks a second.
    if (!job.impatient) job.operation_deadline *= std::max(8U, job.workers);
    need += job.slots * scenario.aggregators;
    scenario.pool_elements = std::max(scenario.pool_elements, job.packet_elements);
    const auto all = static_cast<std::uint32_t>(scenario.parent_of_switch.size());
    for (std::uint32_t rank = 0; rank < job.workers; ++rank) {
      if (large) {
        job.switch_of_rank.push_back(at_servers ? UINT32_MAX : rank % static_cast<std::uint32_t>(racks));
        continue;
      }
      // Only few ranks directly at the parameter server: its bitmap is as long as a switch's.
      const bool at_server = rank < 4 && place.chance(0.1);
      job.switch_of_rank.push_back(at_server ? UINT32_MAX : static_cast<std::uint32_t>((place.below(all) + rank) % all));
    }
  }
  const std::uint64_t share = random.below(4);  // fraction of the total demand at once
  scenario.pool_slots = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(need * (share == 3 ? 6 : share) / 3));
}

class Atp final : public Protocol {
 public:
  explicit Atp(atp::MakeCongestionControl control, bool chip = false) : control_(control), chip_(chip) {}
  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::atp_rules(); }
  [[nodiscard]] bool losses_hold_up_others() const override { return true; }
  void draw(Scenario& scenario) const override {
    for (JobPlan& job : scenario.jobs) {
      job.chip_rules = chip_;
      if (chip_) job.packet_elements = job.packet_elements < 256 ? 64 : 256;
    }
    draw_switches(scenario, chip_);
    if (!chip_) scenario.security = draw_security(scenario.seed);
    if (chip_) scenario.links.corrupt = 0;  // Ethernet drops these
  }
  void complete(session::JoinRequest& request, const Scenario& scenario, const JobPlan&, std::uint32_t) const override {
    request.own = jobs::own_part(jobs::AtpAsk{scenario.pool_slots});
  }
  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario& scenario,
                                                                   const service::Lanes& lanes) const override {
    return std::make_unique<AtpSumsAtServer>(scenario, lanes);
  }
  // Every fourth is software, and sums the same packets.
  [[nodiscard]] std::unique_ptr<CheckedService> switch_service(const Scenario& scenario, std::uint32_t number,
                                                               const service::Lanes& lanes) const override {
    return std::make_unique<AtpSumsAtSwitch>(scenario, chip_ && (scenario.seed + number) % 4 != 0, lanes);
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override {
    return std::make_unique<AtpTap>(switch_host(scenario, static_cast<std::uint32_t>(scenario.parent_of_switch.size())),
                                    scenario.security);
  }
  // Nothing is measured: the congestion window adapts.
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }

  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    const session::Placement& placement = plan.admission.placement;
    const std::uint32_t at = placement.switch_of_rank[plan.rank];
    const Endpoint first_hop = at == session::Placement::at_server
                                   ? plan.aggregator
                                   : switch_endpoints(*plan.scenario, placement)(at, plan.lane % plan.scenario->lanes);
    atp::WorkerConfig config = jobs::worker_config(plan.admission, plan.rank, plan.aggregator, first_hop);
    config.lane = plan.lane;
    config.lanes = plan.lanes;
    config.congestion_control = plan.plan->congestion_control;
    config.control = control_;
    config.checksums = plan.admission.security == PacketSecurity::none && !chip_;
    return atp::make_worker_lane(
        config, jobs::lane_keys(plan.admission, plan.lane % plan.scenario->lanes, config.server, config.first_hop));
  }

  [[nodiscard]] std::vector<CounterValue> worker_counters() const override {
    return wire::counter_values(atp::WorkerCounters{});
  }

  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, true};
    auto& bytes = forgery.bytes;
    Common common;
    wire::atp::GradientPacket gradient;
    const bool known = wire::atp::parse_common(bytes, common) == ParseError::none;
    // A seal does not show, and would be where it is taken for one. What is done here to it is refused of a packet without,
    // too: the damage shows in the checksum.
    if (!chip_ && bytes.size() > wire::atp::common_bytes && random.chance(0.3)) {
      forge_sealed(bytes, PacketSecurity::tag, wire::atp::common_bytes, wire::atp::common_bytes, random);
      return forgery;
    }
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
        for (std::size_t i = 0; i < wire::atp::max_levels; ++i) {  // other fan-ins, in as many bytes
          std::byte& fan_in = bytes[wire::atp::common_bytes + (gradient.directions.broad() ? 2 * i : i)];
          fan_in = static_cast<std::byte>(32 - std::to_integer<unsigned>(fan_in) / 2);
        }
        break;
      case 7:
        common.elements = 5000;  // more than any job's packets have
        bytes.resize(wire::atp::gradient_bytes(common, gradient.directions));
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
        const std::uint32_t fan_in = gradient.directions.fan_in()[i];
        if (fan_in == 0) continue;
        for (std::uint32_t row = wire::atp::words_of(fan_in); row-- > 0;) {
          text += " " + std::to_string(gradient.directions.word(i, row));
        }
        text += "/" + std::to_string(fan_in);
      }
    }
    wire::atp::WaitingPacket waiting;
    if (c.type == Type::waiting && wire::atp::parse_waiting(datagram, c, waiting) == ParseError::none) {
      text += ", for " + std::to_string(waiting.missing.size()) + " ranks";
    }
    return text;
  }

 private:
  atp::MakeCongestionControl control_;
  bool chip_;
};

}  // namespace

std::unique_ptr<Protocol> make_atp() {
  return make_atp(nullptr);
}

std::unique_ptr<Protocol> make_atp_chip() {
  return std::make_unique<Atp>(nullptr, true);
}

std::unique_ptr<Protocol> make_atp(atp::MakeCongestionControl control) {
  return std::make_unique<Atp>(control);
}

}  // namespace netsum::sim
