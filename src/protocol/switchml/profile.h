// What a kind of switch asks of its workers: how a round travels, and what the switch's packets say. Set once; the worker
// knows the stream, its rounds and its time-outs, and no packet. Internal to the worker.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/packet_io.h"
#include "protocol/switchml/answer.h"
#include "protocol/switchml/chip_profile.h"
#include "protocol/switchml/chunk_codec.h"
#include "protocol/switchml/in_flight.h"
#include "protocol/switchml/rdma_profile.h"
#include "protocol/switchml/software_profile.h"
#include "stream/operation.h"

namespace netsum::switchml {

class Profile {
 public:
  explicit Profile(const WorkerConfig& config) : kind_(kind_of(config)) {}

  // The same call, as its values travel.
  [[nodiscard]] stream::Operation offered(const stream::Operation& operation) const {
    return std::visit([&](const auto& kind) { return kind.offered(operation); }, kind_);
  }
  // Whether the slot's next round can be told from those before it.
  [[nodiscard]] bool has_number(const Slot& slot) const {
    return std::visit([&](const auto& kind) { return kind.has_number(slot); }, kind_);
  }
  // Before its first packet leaves: counts, in a sample, the values that are sent as 0.
  void examine(const Slot& slot, const Place& place) {
    std::visit([&](auto& kind) { kind.examine(slot, place); }, kind_);
  }
  // The slot's packet; the same bytes each time.
  void send(const Slot& slot, const Place& place, const InFlight& in_flight, Sink& sink) {
    std::visit([&](auto& kind) { kind.send(slot, place, in_flight, sink); }, kind_);
  }
  // The packets of rounds without values, in one. `slots` have the run's members.
  void send_run(const wire::switchml::Run& run, std::span<Slot* const> slots, const InFlight& in_flight, Sink& sink) {
    if (auto* const kind = std::get_if<SoftwareProfile>(&kind_)) kind->send_run(run, slots, in_flight, sink);
  }
  // The answer that read() gives to nearly all packets, in fewer steps; without a slot: read() shall tell.
  [[nodiscard]] RoundResult read_fast(const RxView& packet, InFlight& in_flight) const {
    return std::visit([&](const auto& kind) { return kind.read_fast(packet, in_flight); }, kind_);
  }
  // `failed`: the lane.
  [[nodiscard]] Answer read(RxView packet, InFlight& in_flight, bool failed, WorkerCounters& counters) {
    return std::visit([&](auto& kind) { return kind.read(packet, in_flight, failed, counters); }, kind_);
  }
  // The values of a round's result, into the tensor. False: they are not the ranks' sum (private sums).
  [[nodiscard]] bool decode(const Slot& slot, const Place& place, const RoundResult& result) {
    return std::visit([&](auto& kind) { return kind.decode(slot, place, result); }, kind_);
  }
  // Whether a rank is told that a packet of its own was lost.
  [[nodiscard]] bool tells_of_losses() const {
    return std::visit([](const auto& kind) { return kind.tells_of_losses(); }, kind_);
  }
  // Spreads the repeats of packets that were lost together (stream::spread).
  [[nodiscard]] std::size_t moment(const Slot& slot) const {
    return std::visit([&](const auto& kind) { return kind.moment(slot); }, kind_);
  }
  // Beyond what all slots have.
  void append_state(const Slot& slot, std::vector<std::byte>& out) const {
    std::visit([&](const auto& kind) { kind.append_state(slot, out); }, kind_);
  }
  [[nodiscard]] ChunkCodec& codec() {
    return std::visit([](auto& kind) -> ChunkCodec& { return kind.codec(); }, kind_);
  }

 private:
  using Kind = std::variant<SoftwareProfile, ChipProfile, RdmaProfile>;

  [[nodiscard]] static Kind kind_of(const WorkerConfig& config) {
    if (config.rdma) return Kind(std::in_place_type<RdmaProfile>, config);
    if (config.chip) return Kind(std::in_place_type<ChipProfile>, config);
    return Kind(std::in_place_type<SoftwareProfile>, config);
  }
  Kind kind_;
};

}  // namespace netsum::switchml
