// The profile of a chip: packets of one length, rounds with numbers, and nobody told of anything. What a chip does not
// compare, ranks do: a result echoes the call of the rank that was last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "protocol/switchml/answer.h"
#include "protocol/switchml/chip_codec.h"
#include "protocol/switchml/chunk_codec.h"
#include "protocol/switchml/in_flight.h"
#include "protocol/switchml/worker.h"
#include "wire/switchml_chip.h"
#include "wire/switchml_chip_layout.h"

namespace netsum::switchml {

// All ranks repeat whatever waits, as nobody is told that only others are missing. Each does so at another moment, and at
// another one each time: a short queue would drop the same ranks' packets for ever.
[[nodiscard]] inline std::size_t moment_of(const WorkerConfig& config, const Slot& slot) {
  const std::uint64_t which = std::uint64_t{config.rank} << 48 | std::uint64_t{config.lane} << 40 |
                              std::uint64_t{slot.header.slot} << 20 | slot.transmissions;
  return static_cast<std::size_t>(which * 0x9e3779b97f4a7c15ULL >> 59);
}

class ChipProfile {
 public:
  explicit ChipProfile(const WorkerConfig& config)
      : config_(config),
        codec_(config.rank, config.world_size, config.packet_elements, {.pads = config.pads}),
        chip_codec_(config.packet_elements) {}

  [[nodiscard]] ChunkCodec& codec() { return codec_; }

  [[nodiscard]] stream::Operation offered(const stream::Operation& operation) const { return for_chip(operation); }
  // A chip's registers have no room for more.
  [[nodiscard]] bool has_number(const Slot& slot) const { return slot.number <= config_.last_round; }

  void examine(const Slot& slot, const Place& place) {
    if (slot.all[0] == wire::chip::not_finite) return;  // no value is sent
    codec_.examine(place.given(config_.rank), place.chunk->offset, slot.header.elements, slot.all.data());
  }

  void send(const Slot& slot, const Place& place, const InFlight& in_flight, Sink& sink) {
    const std::span<std::byte> packet = sink.datagram(config_.aggregator, wire::chip::packet_bytes(config_.packet_elements));
    wire::chip::write_header(packet, {.type = wire::chip::Type::contribution,
                                      .member = static_cast<std::uint8_t>(config_.member),
                                      .version = slot.version,
                                      .slot = slot.header.slot,
                                      .rank = static_cast<std::uint16_t>(config_.rank),
                                      .job_epoch = config_.job_epoch,
                                      .round = slot.number,
                                      .exponents = {ahead_exponent(slot, in_flight), 0},
                                      .echoed = echoed(slot)});
    const std::uint32_t in_use = slot.round == Round::values ? slot.header.elements : 0;
    chip_codec_.encode(codec_, place.active->operation, place.chunk->offset, in_use, slot.all[0],
                       packet.subspan(wire::chip::header_bytes));
  }

  // Nothing: read() is short.
  [[nodiscard]] RoundResult read_fast(const RxView&, InFlight&) const { return {}; }

  [[nodiscard]] Answer read(RxView packet, InFlight& in_flight, bool failed, WorkerCounters& counters) {
    wire::chip::Packet parsed;
    const wire::ParseError error = wire::chip::parse(packet.bytes, parsed);
    if (error != wire::ParseError::none) return malformed(counters, error);
    const wire::chip::Header& header = parsed.header;
    if (packet.source != config_.aggregator || header.job_epoch != config_.job_epoch) return nothing(counters.foreign);
    if (header.type != wire::chip::Type::result) return malformed(counters, wire::ParseError::type);
    const std::size_t bytes = std::size_t{config_.packet_elements} * 4;
    if (parsed.payload.size() != bytes) return malformed(counters, wire::ParseError::length);
    if (header.slot >= in_flight.slots.size() || header.rank >= config_.world_size) {
      return malformed(counters, wire::ParseError::field);
    }
    Slot& slot = in_flight.slots[header.slot];
    if (slot.round == Round::idle || header.version != slot.version || header.round != slot.number || failed) {
      return nothing(counters.stale);
    }
    // What is ahead is echoed as the last rank knew it, and counts only if all knew it.
    const wire::chip::Echoed own = echoed(slot);
    wire::chip::Echoed theirs = header.echoed;
    const bool ahead_known = header.exponents[0] != wire::chip::unknown;
    if (!ahead_known) {
      theirs.ahead_operation = own.ahead_operation;
      theirs.ahead_chunk = own.ahead_chunk;
    }
    if (theirs != own) {
      ++counters.mismatch;
      return WorkerFailure{WorkerFailure::Kind::mismatch, slot.header.operation, config_.rank, header.rank};
    }
    if (slot.round == Round::exponents && !ahead_known) return malformed(counters, wire::ParseError::field);
    // The low byte of the first exponent, which is all of one that is known.
    const auto exponents = packet.bytes.subspan(offsetof(ChipHeader, exponents) + 1, ahead_known ? 1 : 0);
    return RoundResult{&slot, in_flight.place_of(slot), exponents, parsed.payload, {}};
  }

  // A chip's packets have no room for more than their values.
  [[nodiscard]] bool decode(const Slot& slot, const Place& place, const RoundResult& result) {
    chip_codec_.decode(codec_, place.taken(config_.rank), place.chunk->offset, place.chunk->elements, slot.all[0],
                       result.payload);
    return true;
  }

  [[nodiscard]] bool tells_of_losses() const { return false; }
  [[nodiscard]] std::size_t moment(const Slot& slot) const { return moment_of(config_, slot); }

  // Which a result must have; another profile's has the chunk's name.
  void append_state(const Slot& slot, std::vector<std::byte>& out) const { append_bytes(out, slot.number); }

 private:
  // Of the call, and what is ahead.
  [[nodiscard]] static wire::chip::Echoed echoed(const Slot& slot) {
    const wire::switchml::ChunkHeader& h = slot.header;
    const auto kind = slot.round == Round::exponents ? wire::chip::Kind::exponents : wire::chip::Kind::values;
    return {h.operation, h.chunk, h.signature, h.ahead_chunk, h.ahead_operation, static_cast<std::uint16_t>(kind)};
  }

  // This rank's, of the block that the packet in flight names.
  [[nodiscard]] static std::uint16_t ahead_exponent(const Slot& slot, const InFlight& in_flight) {
    if (slot.header.exponents == 0) return wire::chip::unknown;
    const ActiveOperation& ahead = in_flight.ahead_of(slot);
    const bool finite = !ahead.nonfinite[ahead.stripes.stripe(slot.ahead.index)];  // a stripe is a block
    return finite ? ahead.exponents[slot.ahead.first_block] : wire::chip::not_finite;
  }

  WorkerConfig config_;
  ChunkCodec codec_;
  ChipCodec chip_codec_;
};

}  // namespace netsum::switchml
