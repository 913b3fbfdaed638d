// A protocol's interface to the simulator. Each protocol implements it in a separate file (sim/switchml.h); nothing else in
// sim/ knows which protocol runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/worker_lane.h"
#include "service/lane.h"
#include "service/service.h"
#include "session/registry.h"
#include "session/supervisor.h"
#include "sim/faults.h"
#include "sim/lane.h"
#include "sim/random.h"
#include "sim/scenario.h"
#include "stream/operation.h"

namespace netsum::sim {

// Counters only grow, so what does not add up still does not some turns later; and checks of every slot take long.
inline constexpr std::uint64_t turns_per_check = 16;

// The product's service at an aggregator or at a switch below it, and what must hold of it.
class CheckedService {
 public:
  virtual ~CheckedService() = default;
  [[nodiscard]] virtual service::Service& service() = 0;

  // The service has a job of this plan now, whose ranks have joined here or elsewhere.
  virtual void on_start(const session::StartJob&, const JobPlan&) {}
  virtual void on_install(const session::SwitchMessage&, const JobPlan&) {}
  virtual void on_stop(std::uint64_t epoch) = 0;  // the lanes still serve it
  // Whether a job of this plan needs memory to begin.
  [[nodiscard]] virtual bool needs_memory(const JobPlan&) const { return true; }
  [[nodiscard]] virtual std::size_t lanes_serving(std::uint64_t epoch) const = 0;

  // Throws Violation if the counters do not account for all packets that went through the lanes, or if a job exceeds its
  // memory.
  virtual void check(std::span<const LaneCounts> lanes) const = 0;
  virtual void check_idle() const {}  // when no job is left
  virtual void bypass(bool) {}        // while on, packets pass unchanged (NetReduce)
  virtual void count_events(Tally& tally) const = 0;
};

// One rank's share of one aggregator lane.
struct WorkerLanePlan {
  session::Admission admission;
  std::uint32_t rank = 0, world_size = 1;  // its place among the members, and how many these are
  std::uint32_t number = 0;                // the rank
  std::uint32_t lane = 0, lanes = 1;       // over all aggregators
  std::uint32_t life = 0;                  // as in Protocol::complete()
  Endpoint aggregator, own;
  const Scenario* scenario = nullptr;
  const JobPlan* plan = nullptr;
};

// Measures the path to an aggregator before a rank joins, for a job without a configured window.
class PathProbe {
 public:
  virtual ~PathProbe() = default;
  virtual void start(Time now, Sink& sink) = 0;
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void on_timer(Time now, Sink& sink) = 0;
  [[nodiscard]] virtual Time next_timeout() const = 0;
  [[nodiscard]] virtual bool done() const = 0;
  [[nodiscard]] virtual std::optional<std::uint32_t> slots() const = 0;  // none: no answer
};

// Observes every datagram as it is sent, before the network processes it.
class Tap {
 public:
  virtual ~Tap() = default;
  // Throws Violation, e.g. if a retransmission differs from the first transmission.
  virtual void on_send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) = 0;
  virtual void count_events(Tally& tally) const = 0;
};

// A datagram from a stranger who has overheard another one and knows the format, the job and the checksum, but must not be
// able to do harm.
struct Forgery {
  std::vector<std::byte> bytes;
  bool spoofed = false;  // its source is the sender of the overheard one
};

class Protocol {
 public:
  virtual ~Protocol() = default;
  [[nodiscard]] virtual session::ProtocolRules rules() const = 0;
  // Whether ranks may measure the path for their window.
  [[nodiscard]] virtual bool measures() const { return true; }
  // Whether what it sends are whole Ethernet frames, which a bridge also floods to a cable that a stranger may have, in
  // place of datagrams.
  [[nodiscard]] virtual bool sends_frames() const { return false; }
  // Whether an aggregator may pass packets on unsummed (Fault::bypass).
  [[nodiscard]] virtual bool can_bypass() const { return false; }
  // Whether losses make packets of a window wait for each other: it shrinks, or hosts go back.
  [[nodiscard]] virtual bool losses_hold_up_others() const { return false; }
  // Whether an operation's deadline always names a rank whose packets, and theirs alone, do not come through.
  [[nodiscard]] virtual bool names_missing() const { return true; }
  // Draws what belongs to the protocol: numbers, switches, formats. From streams of its own (sim/labels.h).
  virtual void draw(Scenario&) const {}

  // The rank whose connection brings a rank its results, if that is not the aggregator's own.
  [[nodiscard]] virtual std::optional<std::uint32_t> predecessor(std::uint32_t /*rank*/,
                                                                 std::uint32_t /*world_size*/) const {
    return std::nullopt;
  }
  // Adds the protocol's fields to a rank's join, whose endpoints are set. `life`: differs between all attempts of all
  // processes of a rank.
  virtual void complete(session::JoinRequest&, const Scenario&, const JobPlan&, std::uint32_t /*life*/) const {}
  // Packets per admitted slot.
  [[nodiscard]] virtual std::uint32_t packets_of_slot(const session::Admission&) const { return 1; }
  // The lanes outlive it; so does the scenario.
  [[nodiscard]] virtual std::unique_ptr<CheckedService> aggregator_service(const Scenario& scenario,
                                                                           const service::Lanes& lanes) const = 0;
  // For protocols with switches below the aggregators; `switch_id` of the scenario's.
  [[nodiscard]] virtual std::unique_ptr<CheckedService> switch_service(const Scenario&, std::uint32_t /*switch_id*/,
                                                                       const service::Lanes&) const {
    return nullptr;
  }
  [[nodiscard]] virtual std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const = 0;
  // The counters that its lanes have, all 0.
  [[nodiscard]] virtual std::vector<CounterValue> worker_counters() const { return {}; }
  [[nodiscard]] virtual std::unique_ptr<PathProbe> path_probe(const Endpoint& aggregator,
                                                              std::uint32_t packet_elements) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Tap> tap(const Scenario& scenario) const = 0;
  [[nodiscard]] virtual Forgery forge(std::span<const std::byte> overheard, Random& random) const = 0;
  [[nodiscard]] virtual std::string describe(std::span<const std::byte> datagram) const = 0;
};

using MakeProtocol = std::unique_ptr<Protocol> (*)();

// Another protocol beside the product's, for all that finds protocols by name: before anything runs (docs/extending.md).
// Throws std::invalid_argument if the name is taken.
void register_protocol(const std::string& name, MakeProtocol make);

// Null if the name is unknown.
[[nodiscard]] std::unique_ptr<Protocol> make_protocol(const std::string& name);
// Of those that clusters from seeds, and that scenario files may name.
[[nodiscard]] std::vector<std::string> seeds_protocol_names();
[[nodiscard]] std::vector<std::string> scenario_protocol_names();

}  // namespace netsum::sim
