#include "sim/switchml_chip.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "jobs/chip_profile.h"
#include "jobs/switchml_job.h"
#include "jobs/switchml_terms.h"
#include "protocol/switchml/worker_lane.h"
#include "service/switchml_chip_service.h"
#include "sim/aggregator_host.h"
#include "sim/checked_jobs.h"
#include "sim/events.h"
#include "sim/host.h"
#include "sim/private_jobs.h"
#include "sim/racks.h"
#include "wire/switchml_chip.h"

namespace netsum::sim {
namespace {

using switchml::JobCounters;

// Offsets of docs/protocol-switchml-chip.md.
constexpr std::size_t round_bytes = 16, exponent_bytes = 20;

class ChipSums final : public CheckedJobs<JobCounters> {
 public:
  explicit ChipSums(const service::Lanes& lanes) : CheckedJobs(lanes.size()), service_(lanes) {}

  [[nodiscard]] service::Service& service() override { return service_; }
  [[nodiscard]] std::uint32_t slots_of(const session::SwitchMessage& message) const override {
    return jobs::read_switchml(message, *service_.rules()).start.admission.slots;
  }

  void check(std::span<const LaneCounts> counts) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const switchml::ChipSwitch& machine = service_.at(lane);
      check_packets(lane, outcomes(machine.counters()), counts[lane].received, "the switch's");
      const JobCounters all = total(lane);
      if (all.results_sent - all.repeats_answered + all.sums_sent != counts[lane].results)
        throw Violation("the switch's counters do not add up to the results and sums that it sent");
      for (const auto& [epoch, job] : jobs()) {
        if (machine.job_counters(epoch) == nullptr) continue;
        const JobCounters& c = *machine.job_counters(epoch);
        if (c.dropped_early != 0) throw Violation("a worker went on before its slot's round was complete");
        if (machine.slots_in_use(epoch) > 2 * job.slots) throw Violation("a job uses more slots than it owns");
      }
    }
  }

  void count_events(Tally& tally) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const JobCounters all = total(lane);
      tally.events["switch_chunks"] += all.chunks;
      tally.events["switch_repeats_answered"] += all.repeats_answered;
      tally.events["switch_repeats_silent"] += all.repeats_silent;
      tally.events["switch_dropped_old"] += all.dropped_old;
      tally.events["switch_dropped_source"] += all.dropped_source;
      tally.events["switch_sums_sent"] += all.sums_sent;
      tally.events["switch_sums_repeated"] += all.sums_repeated;
      tally.events["switch_dropped_stale"] += all.dropped_stale;
    }
  }

 private:
  [[nodiscard]] const JobCounters* job_counters(std::size_t lane, std::uint64_t epoch) const override {
    return service_.at(lane).job_counters(epoch);
  }

  service::SwitchMlChipService service_;
};

// Checks that repeats of a contribution are byte-identical to the first; of a switch's sum, but for what it echoes of the
// rank that asked. (Results need not be: late copies are answered with what the slot holds by then. That no worker takes
// those, the sums show.)
class ChipTap final : public Tap {
 public:
  explicit ChipTap(const Scenario& scenario)
      : switches_(scenario.aggregators + static_cast<HostId>(scenario.parent_of_switch.size())) {}

  void on_send(const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) override {
    wire::chip::Packet packet;
    if (wire::chip::parse(bytes, packet) != wire::ParseError::none) throw Violation("a node sent a malformed datagram");
    const wire::chip::Header& h = packet.header;
    if (h.type == wire::chip::Type::result) {
      ++(h.exponents[0] == wire::chip::not_finite ? not_finite_ : h.exponents[0] == wire::chip::unknown ? unknown_ : known_);
      return;
    }
    const std::uint64_t chunk = mix(h.echoed.operation ^ mix(std::uint64_t{h.echoed.chunk} << 16 | h.echoed.kind));
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    if (host_of(from) < switches_) {
      wire::chip::Header summed = h;
      summed.rank = 0;
      summed.echoed = {};
      wire::chip::write_header(copy, summed);
    }
    const std::uint64_t content = crc32c(copy) | std::uint64_t{bytes.size()} << 32;
    if (const auto [at, first] = sent_.emplace(mix(mix(h.job_epoch ^ mix(host_of(from))) ^ chunk), content);
        !first && at->second != content) {
      throw Violation("a repeat of operation " + std::to_string(h.echoed.operation) + ", chunk " +
                      std::to_string(h.echoed.chunk) + " differs from its first transmission");
    }
  }

  void count_events(Tally& tally) const override {
    tally.events["look_ahead_known"] += known_;
    tally.events["look_ahead_unknown"] += unknown_;
    tally.events["look_ahead_not_finite"] += not_finite_;
  }

 private:
  const HostId switches_;  // hosts below this are switches
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
  std::uint64_t known_ = 0, unknown_ = 0, not_finite_ = 0;
};

class SwitchmlChip final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::switchml_chip_rules(); }
  [[nodiscard]] bool measures() const override { return false; }
  [[nodiscard]] bool names_missing() const override { return false; }

  void draw(Scenario& scenario) const override {
    draw_racks(scenario, wire::chip::max_members);
    scenario.links.corrupt = 0;  // Ethernet drops these
    for (JobPlan& job : scenario.jobs) {
      job.chip = true;
      job.packet_elements = job.packet_elements < 256 ? 64 : 256;
      job.mismatch.reset();  // the last rank of a round may be given a wrong sum, and return with it
      for (stream::Operation& call : job.calls) call.wire = WireFormat::float32;
    }
    draw_private(scenario, true);
  }
  void complete(session::JoinRequest& request, const Scenario& scenario, const JobPlan& plan,
                std::uint32_t life) const override {
    jobs::SwitchMlAsk ask;
    ask.privacy = privacy_of(scenario, plan, request.rank, life);
    request.own = jobs::own_part(ask);
  }

  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario&,
                                                                   const service::Lanes& lanes) const override {
    return std::make_unique<ChipSums>(lanes);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> switch_service(const Scenario&, std::uint32_t,
                                                               const service::Lanes& lanes) const override {
    return std::make_unique<ChipSums>(lanes);
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override {
    return std::make_unique<ChipTap>(scenario);
  }
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }

  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    switchml::WorkerConfig config;
    config.job_epoch = plan.admission.job_epoch;
    config.rank = plan.rank;
    config.world_size = plan.world_size;
    config.packet_elements = plan.admission.packet_elements;
    config.slots = plan.admission.slots;
    config.lane = plan.lane;
    config.lanes = plan.lanes;
    const session::Placement& placement = plan.admission.placement;
    const std::uint32_t at = placement.switch_of_rank[plan.rank];
    config.in_tree = at != session::Placement::at_server;
    config.aggregator =
        config.in_tree ? switch_endpoints(*plan.scenario, placement)(at, plan.lane % plan.scenario->lanes) : plan.aggregator;
    config.chip = true;
    config.member = jobs::member_of(placement, plan.rank);
    config.pads = pads_of(plan, jobs::public_keys(plan.admission));
    return switchml::make_worker_lane(config);
  }

  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, true};
    auto& bytes = forgery.bytes;
    wire::chip::Packet packet;
    const bool is_whole = wire::chip::parse(bytes, packet) == wire::ParseError::none;
    wire::chip::Header& header = packet.header;
    switch (random.below(is_whole ? 8 : 2)) {
      case 0:  // correct but for source and content
        forgery.spoofed = false;
        for (std::size_t i = bytes.size(); i-- > wire::chip::header_bytes;) bytes[i] ^= std::byte{1};
        return forgery;
      case 1:
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
        return forgery;
      case 2:
        header.job_epoch ^= 1 + random.below(UINT32_MAX);
        break;
      case 3:
        header.slot = static_cast<std::uint16_t>(4096 + random.below(1000));
        break;
      case 4:  // the other side's
        header.type = header.type == wire::chip::Type::result ? wire::chip::Type::contribution : wire::chip::Type::result;
        break;
      case 5:
        store_be(bytes.data() + round_bytes, static_cast<std::uint32_t>(wire::chip::max_round + 1 + random.below(1000)));
        return forgery;
      case 6:
        store_be(bytes.data() + exponent_bytes,
                 static_cast<std::uint16_t>(random.between(wire::chip::unknown + 1U, UINT16_MAX)));
        return forgery;
      default:  // another length than the job's
        bytes.resize(wire::chip::packet_bytes(bytes.size() == wire::chip::packet_bytes(64) ? 256 : 64));
        break;
    }
    wire::chip::write_header(bytes, header);
    return forgery;
  }

  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    wire::chip::Packet packet;
    if (const auto error = wire::chip::parse(datagram, packet); error != wire::ParseError::none) {
      return std::string("malformed (") + wire::to_string(error) + "), " + std::to_string(datagram.size()) + " bytes";
    }
    const wire::chip::Header& h = packet.header;
    std::string text = h.type == wire::chip::Type::result ? "result, last of rank " : "contribution of rank ";
    text += std::to_string(h.rank) + ", operation " + std::to_string(h.echoed.operation) + " chunk " +
            std::to_string(h.echoed.chunk) + ", slot " + std::to_string(h.slot) + "/" + std::to_string(h.version) +
            " round " + std::to_string(h.round) + ", exponent " + std::to_string(h.exponents[0]);
    return h.echoed.kind == 0 ? text : text + ", exponents only";
  }
};

}  // namespace

std::unique_ptr<Protocol> make_switchml_chip() {
  return std::make_unique<SwitchmlChip>();
}

}  // namespace netsum::sim
