#include "sim/switchml_rdma.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/mix.h"
#include "jobs/switchml_job.h"
#include "jobs/switchml_rdma.h"
#include "protocol/switchml/worker_lane.h"
#include "service/switchml_rdma_service.h"
#include "sim/checked_jobs.h"
#include "sim/events.h"
#include "sim/host.h"
#include "sim/labels.h"
#include "sim/random.h"
#include "wire/roce.h"
#include "wire/switchml_rdma.h"

namespace netsum::sim {
namespace {

using switchml::JobCounters;

class RdmaSums final : public CheckedJobs<JobCounters> {
 public:
  explicit RdmaSums(const service::Lanes& lanes) : CheckedJobs(lanes.size()), service_(lanes) {}

  [[nodiscard]] service::Service& service() override { return service_; }

  void check(std::span<const LaneCounts> counts) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const switchml::RdmaSwitch& machine = service_.at(lane);
      check_packets(lane, outcomes(machine.counters()), counts[lane].received, "the switch's");
      for (const auto& [epoch, job] : jobs()) {
        if (machine.job_counters(epoch) == nullptr) continue;
        if (job.agreed && machine.job_counters(epoch)->dropped_early != 0)
          throw Violation("a worker went on before its slots' round was complete");
        if (machine.slots_in_use(epoch) > 2 * job.slots * wire::rdma::max_packets)
          throw Violation("a job uses more slots than it owns");
      }
    }
  }

  void count_events(Tally& tally) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const JobCounters all = total(lane);
      tally.events["switch_chunks"] += all.chunks;
      tally.events["switch_repeats_answered"] += all.repeats_answered;
      tally.events["switch_repeats_silent"] += all.repeats_silent;
      tally.events["switch_dropped_gap"] += all.dropped_gap;
      tally.events["switch_dropped_old"] += all.dropped_old;
      tally.events["switch_dropped_source"] += all.dropped_source;
      tally.events["switch_dropped_mismatch"] += all.dropped_mismatch;
    }
  }

 private:
  [[nodiscard]] const JobCounters* job_counters(std::size_t lane, std::uint64_t epoch) const override {
    return service_.at(lane).job_counters(epoch);
  }

  service::SwitchMlRdmaService service_;
};

// As a NIC counts on: each packet's PSN is its queue pair's next, a message's packets follow each other, the ICRC is right.
// And a message that is sent again has the same content.
class RdmaTap final : public Tap {
 public:
  explicit RdmaTap(const Scenario& scenario) : aggregators_(scenario.aggregators) {}

  void on_send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) override {
    wire::roce::Packet packet;
    if (wire::roce::parse(bytes, packet) != wire::ParseError::none || !wire::roce::icrc_valid(bytes))
      throw Violation("a node sent a malformed packet");
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    Pair& pair = pairs_[{from, to, packet.bth.destination_qp}];
    // Far away: of another life, which has drawn the same number.
    if (std::abs(wire::roce::psn_distance(pair.psn, packet.bth.psn)) > 1 << 16) pair = {};
    if (pair.began && packet.bth.psn != pair.psn) throw Violation("a queue pair's PSNs do not follow each other");
    if (!shape.first && !pair.open) throw Violation("a message has no beginning");
    pair.began = true;
    pair.open = !shape.last;
    pair.psn = (packet.bth.psn + 1) & wire::roce::psn_mask;
    pair.packet = shape.first ? 0 : pair.packet + 1;
    if (shape.first) pair.key = packet.reth.key;
    if (shape.last && (pair.packet + 1) * wire::rdma::packet_bytes < pair.length && !shape.first)
      throw Violation("a message is shorter than it says");
    if (shape.first) pair.length = packet.reth.length;
    packets_of_messages_ += !shape.first;
    if (host_of(from) < aggregators_) return;  // results have the rank's key, whatever round they are of
    const std::uint32_t content = crc32c(packet.payload, packet.immediate);
    const std::uint64_t which =
        mix(mix(mix(pair.key ^ std::uint64_t{pair.packet} << 32) ^ packet.bth.destination_qp ^ EndpointHash()(from)) ^
            EndpointHash()(to));
    if (const auto [at, first] = sent_.emplace(which, content); !first && at->second != content)
      throw Violation("a message that was sent again differs from its first transmission");
  }

  void count_events(Tally& tally) const override { tally.events["packets_behind_the_first"] += packets_of_messages_; }

 private:
  struct Pair {
    bool began = false, open = false;
    std::uint32_t psn = 0, packet = 0, key = 0;
    std::uint32_t length = 0;
  };
  const HostId aggregators_;  // hosts below this
  std::map<std::tuple<Endpoint, Endpoint, std::uint32_t>, Pair> pairs_;
  std::unordered_map<std::uint64_t, std::uint32_t> sent_;
  std::uint64_t packets_of_messages_ = 0;
};

class SwitchmlRdma final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::switchml_rdma_rules(); }
  [[nodiscard]] bool measures() const override { return false; }
  [[nodiscard]] bool names_missing() const override { return false; }

  void draw(Scenario& scenario) const override {
    // Where packets overtake each other all the time, only short messages come through whole.
    Random order(derive(scenario.seed, Label::of_messages + 999));
    scenario.links.in_order = order.chance(0.7);
    if (scenario.links.in_order) scenario.links.late = 0;
    std::uint32_t need = 0;
    for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
      JobPlan& job = scenario.jobs[index];
      Random random(derive(scenario.seed, Label::of_messages + index));
      std::uint64_t lengths = scenario.links.in_order ? 5 : 2;
      // Nor does a message that is longer than a queue on the way.
      if (scenario.links.bytes_per_second != 0) {
        while (lengths > 1 && 1200ULL << lengths > scenario.links.queue_bytes) --lengths;
      }
      job.packet_elements = wire::rdma::packet_elements << random.below(lengths);
      // A message is lost with any of its packets.
      if (!job.impatient) job.operation_deadline *= 4;
      set_blocks(job);
      for (stream::Operation& call : job.calls) call.wire = WireFormat::float32;
      need += job.slots * job.units() * scenario.lanes;
    }
    scenario.switch_slots = scenario.scarce ? need - 1 : need;
  }

  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario&,
                                                                   const service::Lanes& lanes) const override {
    return std::make_unique<RdmaSums>(lanes);
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override {
    return std::make_unique<RdmaTap>(scenario);
  }
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }

  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    switchml::WorkerConfig config;
    config.job_epoch = plan.admission.job_epoch;
    config.rank = config.member = plan.rank;
    config.world_size = plan.world_size;
    config.packet_elements = plan.admission.packet_elements;
    config.slots = plan.admission.slots;
    config.lane = plan.lane;
    config.lanes = plan.lanes;
    config.aggregator = plan.aggregator;
    config.rdma = plan.own.address;
    return switchml::make_worker_lane(config);
  }

  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, true};
    auto& bytes = forgery.bytes;
    wire::roce::Packet packet;
    const bool is_whole = wire::roce::parse(bytes, packet) == wire::ParseError::none;
    switch (random.below(is_whole ? 6 : 1)) {
      case 0:
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
        return forgery;
      case 1:  // correct but for source and content
        forgery.spoofed = false;
        for (std::size_t i = wire::roce::payload_offset(packet); i < bytes.size(); ++i) bytes[i] ^= std::byte{1};
        break;
      case 2:
        bytes.back() ^= std::byte{1};
        return forgery;
      case 3:  // of InfiniBand's management: no job's
        packet.bth.destination_qp = static_cast<std::uint32_t>(random.below(2));
        break;
      case 4:
        packet.bth.opcode = static_cast<wire::roce::Opcode>(static_cast<std::uint8_t>(packet.bth.opcode) & 0x1f);  // RC
        break;
      default:  // long past
        packet.bth.psn =
            (packet.bth.psn - (1U << 20) - static_cast<std::uint32_t>(random.below(1U << 20))) & wire::roce::psn_mask;
        break;
    }
    wire::roce::write(bytes, packet);
    return forgery;
  }

  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    wire::roce::Packet packet;
    if (const auto error = wire::roce::parse(datagram, packet); error != wire::ParseError::none) {
      return std::string("malformed (") + wire::to_string(error) + "), " + std::to_string(datagram.size()) + " bytes";
    }
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    std::string text = shape.first  ? shape.last ? "whole message" : "message begins"
                       : shape.last ? "message ends"
                                    : "message";
    text += ", queue pair " + std::to_string(packet.bth.destination_qp) + " PSN " + std::to_string(packet.bth.psn);
    if (shape.reth)
      text += ", key " + std::to_string(packet.reth.key) + ", " + std::to_string(packet.reth.length) + " bytes";
    if (!shape.immediate) return text;
    const wire::rdma::Immediate immediate = wire::rdma::read_immediate(packet.immediate);
    return text + ", number " + std::to_string(immediate.number) + ", exponents " + std::to_string(immediate.exponents[0]) +
           " " + std::to_string(immediate.exponents[1]);
  }
};

}  // namespace

void set_blocks(JobPlan& job) {
  job.chip = true;
  job.block_elements =
      wire::rdma::packets_of_block(wire::rdma::packets_of(job.packet_elements)) * wire::rdma::packet_elements;
}

std::unique_ptr<Protocol> make_switchml_rdma() {
  return std::make_unique<SwitchmlRdma>();
}

}  // namespace netsum::sim
