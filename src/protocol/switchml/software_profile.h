// The profile of the switch in software: packets with as many values as a chunk has, of their own type, with a checksum or a
// seal; told of losses, mismatches and other lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "protocol/switchml/answer.h"
#include "protocol/switchml/chunk_codec.h"
#include "protocol/switchml/in_flight.h"
#include "protocol/switchml/seal_packet.h"
#include "protocol/switchml/worker.h"
#include "protocol/switchml/worker_seals.h"
#include "seal/uncopied.h"
#include "stream/overtaken.h"
#include "wire/switchml_alike.h"

namespace netsum::switchml {

class SoftwareProfile {
 public:
  explicit SoftwareProfile(const WorkerConfig& config)
      : config_(config),
        codec_(config.rank, config.world_size, config.packet_elements, {config.pads, true, config.fixed_exponent}) {
    if (config.security != PacketSecurity::none) seals_.reset(new WorkerSeals(config));
  }

  [[nodiscard]] ChunkCodec& codec() { return codec_; }

  [[nodiscard]] stream::Operation offered(const stream::Operation& operation) const { return operation; }
  // Chunks have names of their own.
  [[nodiscard]] bool has_number(const Slot&) const { return true; }

  void examine(const Slot& slot, const Place& place) {
    codec_.examine(place.given(config_.rank), place.chunk->offset, place.chunk->elements, slot.all.data());
  }

  void send(const Slot& slot, const Place& place, const InFlight& in_flight, Sink& sink) {
    const wire::switchml::Type type =
        slot.round == Round::exponents ? wire::switchml::Type::exponent_contribution : wire::switchml::Type::contribution;
    seal::Sealer* const sealer = seals_ ? seals_->up() : nullptr;
    const std::size_t bytes = wire::switchml::chunk_packet_bytes(slot.header);
    const std::span<std::byte> whole =
        sink.datagram(config_.aggregator, bytes + (sealer != nullptr ? sealer->trailer() : 0));
    const std::span<std::byte> packet = whole.first(bytes);
    if (slot.header.exponents > 0) {
      const ActiveOperation& ahead = in_flight.ahead_of(slot);
      std::memcpy(packet.data() + wire::switchml::chunk_header_bytes, ahead.exponents.data() + slot.ahead.first_block,
                  slot.header.exponents);
    }
    wire::switchml::write_chunk_header(packet, own(type), slot.header);
    const std::size_t payload = wire::switchml::chunk_header_bytes + wire::switchml::padded_exponents(slot.header.exponents);
    const std::uint32_t values = slot.header.elements == 0 ? 0 : place.chunk->elements;
    codec_.encode(place.given(config_.rank), place.chunk->offset, values, slot.all.data(), packet.data() + payload,
                  packet.subspan(payload + slot.header.elements * bytes_of(slot.header.dtype)));
    seal_packet(whole, sealer);
  }

  void send_run(const wire::switchml::Run& run, std::span<Slot* const> slots, const InFlight& in_flight, Sink& sink) {
    seal::Sealer* const sealer = seals_ ? seals_->up() : nullptr;
    const std::size_t bytes = wire::switchml::run_bytes(run), each = run.first.exponents;
    const std::span<std::byte> whole =
        sink.datagram(config_.aggregator, bytes + (sealer != nullptr ? sealer->trailer() : 0));
    wire::switchml::write_run_header(whole.first(bytes), own(wire::switchml::Type::empty_contributions), run);
    for (std::size_t i = 0; each != 0 && i < slots.size(); ++i) {
      std::memcpy(whole.data() + wire::switchml::run_header_bytes + i * each,
                  in_flight.ahead_of(*slots[i]).exponents.data() + slots[i]->ahead.first_block, each);
    }
    seal_packet(whole, sealer);
  }

  // The fast path: what nearly all packets are, the result of a contribution whose values are all finite, with the same
  // header. read() would take it too, or it is nothing.
  [[nodiscard]] RoundResult read_fast(const RxView& packet, InFlight& in_flight) const {
    if (packet.bytes.size() < wire::switchml::chunk_header_bytes) return {};
    const wire::switchml::ChunkFields fields{packet.bytes.data()};
    const std::size_t number = fields.round() / 2;
    if (number >= in_flight.slots.size()) return {};
    Slot& slot = in_flight.slots[number];
    const wire::switchml::ChunkHeader& header = slot.header;
    const bool alike = slot.round == Round::values && !header.masks && !header.acknowledge_only && header.elements != 0 &&
                       header.elements == in_flight.place_of(slot).elements_of_result() &&
                       packet.source == config_.aggregator;
    const bool checked = config_.checksums || fields.checked();
    if (!alike || seals_ || !wire::switchml::has_header(packet.bytes, expected(checked), header)) return {};
    const std::size_t payload = wire::switchml::chunk_header_bytes + wire::switchml::padded_exponents(header.exponents);
    return {&slot,
            in_flight.place_of(slot),
            packet.bytes.subspan(wire::switchml::chunk_header_bytes, header.exponents),
            packet.bytes.subspan(payload),
            {}};
  }

  [[nodiscard]] Answer read(RxView packet, InFlight& in_flight, bool, WorkerCounters& counters) {
    wire::switchml::Common common;
    const wire::ParseError error = wire::switchml::parse_common(packet.bytes, common);
    if (error != wire::ParseError::none) return malformed(counters, error);
    if (!common.checked && config_.checksums) return malformed(counters, wire::ParseError::checksum);
    if (packet.source != config_.aggregator || common.job_epoch != config_.job_epoch) return nothing(counters.foreign);
    if (!believe(packet, common)) return nothing(counters.unbelieved);
    if (common.type == wire::switchml::Type::unknown_job) {
      if (packet.bytes.size() != wire::switchml::common_bytes) return malformed(counters, wire::ParseError::length);
      if (common.rank_epoch != config_.rank_epoch) return nothing(counters.foreign);
      ++counters.unknown_job;
      return WorkerFailure{WorkerFailure::Kind::unknown_job, in_flight.front, 0, 0};
    }
    if (common.rank_epoch != config_.folded_epochs) return nothing(counters.foreign);
    switch (common.type) {
      case wire::switchml::Type::result:
      case wire::switchml::Type::exponent_result:
      case wire::switchml::Type::acknowledgement:
        return read_result(packet.bytes, common, in_flight, counters);
      case wire::switchml::Type::acknowledgements:
        return read_run(packet.bytes, common, in_flight, counters);
      case wire::switchml::Type::waiting:
        return read_waiting(packet.bytes, common, in_flight, counters);
      case wire::switchml::Type::mismatch:
        return read_mismatch(packet.bytes, common, counters);
      default:
        return malformed(counters, wire::ParseError::type);
    }
  }

  // What is in a packet about one chunk, of a round in flight and of what this rank has sent to it.
  [[nodiscard]] static Answer compare(const wire::switchml::ChunkPacket& chunk, InFlight& in_flight,
                                      WorkerCounters& counters) {
    const wire::switchml::ChunkHeader& header = chunk.header;
    Slot& slot = in_flight.slots[header.slot];
    const Round round = chunk.common.type == wire::switchml::Type::exponent_result ? Round::exponents : Round::values;
    const bool acknowledged = chunk.common.type == wire::switchml::Type::acknowledgement;
    if (slot.round != round || header.operation != slot.header.operation || header.chunk != slot.header.chunk ||
        header.version != slot.header.version) {
      return nothing(counters.stale);
    }
    const Place place = in_flight.place_of(slot);
    const bool ahead_known = header.ahead_operation != wire::switchml::no_ahead;
    const bool ahead_ours = header.ahead_operation == slot.header.ahead_operation &&
                            header.ahead_chunk == slot.header.ahead_chunk && header.exponents == slot.header.exponents;
    if (header.signature != slot.header.signature || (ahead_known && !ahead_ours) || header.dtype != slot.header.dtype ||
        header.op != slot.header.op || (acknowledged && !slot.header.acknowledge_only) ||
        (round == Round::values && !acknowledged && header.elements != place.elements_of_result()) ||
        (round == Round::exponents && !ahead_known)) {
      return malformed(counters, wire::ParseError::field);
    }
    return RoundResult{&slot, place, chunk.exponents, chunk.payload, chunk.masks};
  }

  [[nodiscard]] bool decode(const Slot& slot, const Place& place, const RoundResult& result) {
    // IP multicast also brings values to a rank that does not want them.
    if (slot.header.acknowledge_only) {
      stream::keep_own(place.active->operation, place.chunk->part, place.chunk->offset * 4,
                       std::uint64_t{place.chunk->elements} * 4);
      return true;
    }
    const stream::Seen taken = place.taken(config_.rank);
    const Chunk& chunk = *place.chunk;
    if (!place.keeps(config_.rank, config_.world_size)) {
      return codec_.decode(taken, chunk.offset, chunk.elements, slot.all.data(), result.payload.data(), result.masks);
    }
    const ChunkCodec::Values sum = codec_.with_own(place.given(config_.rank), chunk.offset, chunk.elements, slot.all.data(),
                                                   {result.payload, result.masks}, place.nonfinite());
    return codec_.decode(taken, chunk.offset, chunk.elements, slot.all.data(), sum.payload.data(), sum.masks);
  }

  // As soon as there are packets behind it.
  [[nodiscard]] bool tells_of_losses() const { return config_.slots > stream::Overtaken::reordering; }
  [[nodiscard]] std::size_t moment(const Slot& slot) const { return slot.header.slot; }
  void append_state(const Slot&, std::vector<std::byte>&) const {}

 private:
  [[nodiscard]] wire::switchml::Common expected(bool checked) const {
    return {wire::switchml::Type::result, 0, config_.job_epoch, config_.folded_epochs, checked};
  }
  [[nodiscard]] wire::switchml::Common own(wire::switchml::Type type) const {
    return {type, static_cast<std::uint16_t>(config_.rank), config_.job_epoch, config_.rank_epoch, config_.checksums};
  }
  // The packet as it may be believed, without its seal; false: it may not.
  [[nodiscard]] bool believe(RxView& packet, const wire::switchml::Common& common) {
    if (!seals_) return common.security == PacketSecurity::none;
    packet.bytes = seals_->open(packet.bytes, common);
    return !packet.bytes.empty();
  }

  [[nodiscard]] static Answer read_result(std::span<const std::byte> bytes, const wire::switchml::Common& common,
                                          InFlight& in_flight, WorkerCounters& counters) {
    wire::switchml::ChunkPacket chunk;
    const wire::ParseError error = wire::switchml::parse_chunk(bytes, common, chunk);
    if (error != wire::ParseError::none) return malformed(counters, error);
    if (chunk.header.slot >= in_flight.slots.size()) return malformed(counters, wire::ParseError::field);
    return compare(chunk, in_flight, counters);
  }

  [[nodiscard]] static Answer read_run(std::span<const std::byte> bytes, const wire::switchml::Common& common,
                                       const InFlight& in_flight, WorkerCounters& counters) {
    wire::switchml::RunPacket all;
    const wire::ParseError error = wire::switchml::parse_run(bytes, common, all);
    if (error != wire::ParseError::none) return malformed(counters, error);
    if (all.run.last_slot() >= in_flight.slots.size()) return malformed(counters, wire::ParseError::field);
    counters.in_runs += all.run.size() - 1;
    return all;
  }

  [[nodiscard]] static Answer read_waiting(std::span<const std::byte> bytes, const wire::switchml::Common& common,
                                           const InFlight& in_flight, WorkerCounters& counters) {
    wire::switchml::WaitingPacket waiting{};
    const wire::ParseError error = wire::switchml::parse_waiting(bytes, common, waiting);
    if (error != wire::ParseError::none) return malformed(counters, error);
    if (waiting.slot >= in_flight.slots.size()) return malformed(counters, wire::ParseError::field);
    return waiting;
  }

  [[nodiscard]] static Answer read_mismatch(std::span<const std::byte> bytes, const wire::switchml::Common& common,
                                            WorkerCounters& counters) {
    wire::switchml::MismatchPacket mismatch{};
    const wire::ParseError error = wire::switchml::parse_mismatch(bytes, common, mismatch);
    if (error != wire::ParseError::none) return malformed(counters, error);
    ++counters.mismatch;
    return WorkerFailure{WorkerFailure::Kind::mismatch, mismatch.operation, mismatch.first_rank, mismatch.second_rank};
  }

  WorkerConfig config_;
  ChunkCodec codec_;
  seal::Uncopied<WorkerSeals> seals_;  // null: nothing is sealed
};

}  // namespace netsum::switchml
