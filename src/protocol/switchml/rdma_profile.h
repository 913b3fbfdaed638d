// A rank's end of UC queue pairs (docs/protocol-switchml-rdma.md): a slot's round travels as a message, on a queue pair of
// the slot's own. Rounds have numbers, and values and verdicts are as at chips.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/mix.h"
#include "protocol/roce/uc_receiver.h"
#include "protocol/switchml/answer.h"
#include "protocol/switchml/chip_codec.h"
#include "protocol/switchml/chip_profile.h"
#include "protocol/switchml/chunk_codec.h"
#include "protocol/switchml/in_flight.h"
#include "protocol/switchml/rdma_ends.h"
#include "protocol/switchml/worker.h"
#include "wire/roce.h"
#include "wire/switchml_chip.h"
#include "wire/switchml_rdma.h"

namespace netsum::switchml {

class RdmaProfile {
 public:
  explicit RdmaProfile(const WorkerConfig& config)
      : config_(config),
        longest_(wire::rdma::packets_of(config.packet_elements)),
        ends_(rdma_ends(config.job_epoch, config.world_size, config.member, config.slots)),
        codec_(config.rank, config.world_size, config.packet_elements, {.pads = config.pads}),
        chip_codec_(wire::rdma::packet_elements),
        memory_(message_bytes() * config.slots) {
    for (std::uint32_t queue = 0; queue < config.slots; ++queue) {
      pairs_.push_back({rdma_psn(config.job_epoch, ends_.switch_qp + queue),
                        roce::UcReceiver(rdma_psn(config.job_epoch, ends_.rank_qp + queue))});
    }
  }

  [[nodiscard]] ChunkCodec& codec() { return codec_; }

  [[nodiscard]] stream::Operation offered(const stream::Operation& operation) const { return for_chip(operation); }
  [[nodiscard]] bool has_number(const Slot& slot) const { return slot.number <= config_.last_round; }

  void examine(const Slot& slot, const Place& place) {
    for_each_packet(slot, [&](std::uint32_t packet, std::uint32_t elements) {
      const std::uint8_t& exponent = exponent_of(slot, packet);
      if (slot.header.elements == 0 || exponent == wire::chip::not_finite) return;  // no value is sent
      codec_.examine(place.given(config_.rank), offset_of(slot, packet), elements, &exponent);
    });
  }

  // The message, whose packets have new numbers each time.
  void send(const Slot& slot, const Place& place, const InFlight& in_flight, Sink& sink) {
    Pair& pair = pairs_[slot.header.slot];
    wire::roce::Packet packet;
    wire::roce::set_addresses(packet, *config_.rdma, config_.aggregator.address);
    packet.source_port = static_cast<std::uint16_t>(0xc000 | slot.header.slot);  // one way for each queue pair
    packet.bth.destination_qp = ends_.switch_qp + slot.header.slot;
    packet.reth = {wire::rdma::address_of({call_of(slot), offset_in_memory(slot)}), number_of(slot), bytes_of(slot)};
    packet.immediate = wire::rdma::immediate_of({number_of(slot), ahead_exponents(slot, in_flight)});
    const std::size_t payload = packet.reth.length == 0 ? 0 : wire::rdma::packet_bytes;
    for_each_packet(slot, [&](std::uint32_t number, std::uint32_t elements) {
      packet.bth.opcode = wire::rdma::opcode_of(number, packets_of(slot));
      packet.bth.psn = pair.psn;
      packet.ip.identification = static_cast<std::uint16_t>(pair.psn);
      pair.psn = (pair.psn + 1) & wire::roce::psn_mask;
      const std::size_t at = wire::roce::payload_offset(packet);
      const std::span<std::byte> whole = sink.datagram(config_.aggregator, at + payload + wire::roce::icrc_bytes);
      packet.payload = whole.subspan(at, payload);
      if (payload != 0) {
        const std::uint32_t in_use = slot.header.elements == 0 ? 0 : elements;
        chip_codec_.encode(codec_, place.given(config_.rank), offset_of(slot, number), in_use, exponent_of(slot, number),
                           whole.subspan(at, payload));
      }
      wire::roce::write(whole, packet);
    });
  }

  // Nothing: read() is short.
  [[nodiscard]] RoundResult read_fast(const RxView&, InFlight&) const { return {}; }

  [[nodiscard]] Answer read(RxView from, InFlight& in_flight, bool failed, WorkerCounters& counters) {
    wire::roce::Packet packet;
    const wire::ParseError error = wire::roce::parse(from.bytes, packet);
    if (error != wire::ParseError::none) return malformed(counters, error);
    if (!wire::roce::icrc_valid(from.bytes.first(wire::roce::packet_bytes(from.bytes)))) {
      return malformed(counters, wire::ParseError::checksum);
    }
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    if (!shape.write || shape.reliable) return malformed(counters, wire::ParseError::type);
    const std::uint32_t queue = packet.bth.destination_qp - ends_.rank_qp;
    if (from.source != config_.aggregator || queue >= config_.slots) return nothing(counters.foreign);
    Slot& slot = in_flight.slots[queue];
    Pair& pair = pairs_[queue];
    const roce::UcReceiver::Finding finding = pair.receiver.take(packet.bth.psn, shape.first);
    if (finding == roce::UcReceiver::Finding::late) return nothing(counters.stale);
    if (finding == roce::UcReceiver::Finding::behind_gap) return nothing(counters.gaps);
    if (slot.round == Round::idle || failed) {
      pair.receiver.give_up();
      return nothing(counters.stale);
    }
    const wire::roce::Reth expected{ends_.memory_address + offset_in_memory(slot), ends_.memory_key, bytes_of(slot)};
    const std::uint32_t number = pair.receiver.packet();
    const bool last = number + 1 == packets_of(slot);
    const std::size_t payload = expected.length == 0 ? 0 : wire::rdma::packet_bytes;
    if ((shape.first && packet.reth != expected) || last != shape.last || last != shape.immediate ||
        packet.payload.size() != payload) {
      pair.receiver.give_up();
      return nothing(counters.stale);  // of a round before, as a rule
    }
    if (payload != 0) {
      std::memcpy(memory_of(slot).data() + number * wire::rdma::packet_bytes, packet.payload.data(), payload);
    }
    if (!last) return nothing(counters.message_packets);
    pair.receiver.give_up();  // nothing follows
    return read_result(wire::rdma::read_immediate(packet.immediate), slot, in_flight, counters);
  }

  [[nodiscard]] bool decode(const Slot& slot, const Place& place, const RoundResult& result) {
    for_each_packet(slot, [&](std::uint32_t packet, std::uint32_t elements) {
      if (elements == 0) return;
      chip_codec_.decode(codec_, place.taken(config_.rank), offset_of(slot, packet), elements, exponent_of(slot, packet),
                         result.payload.subspan(packet * wire::rdma::packet_bytes, wire::rdma::packet_bytes));
    });
    return true;
  }

  [[nodiscard]] bool tells_of_losses() const { return false; }
  [[nodiscard]] std::size_t moment(const Slot& slot) const { return moment_of(config_, slot); }
  void append_state(const Slot& slot, std::vector<std::byte>& out) const { append_bytes(out, slot.number); }

 private:
  struct Pair {
    std::uint32_t psn;  // of the next packet
    roce::UcReceiver receiver;
  };

  [[nodiscard]] std::size_t message_bytes() const { return std::size_t{longest_} * wire::rdma::packet_bytes; }
  [[nodiscard]] std::uint64_t offset_in_memory(const Slot& slot) const { return slot.header.slot * message_bytes(); }
  [[nodiscard]] std::span<std::byte> memory_of(const Slot& slot) {
    return std::span(memory_).subspan(offset_in_memory(slot), message_bytes());
  }

  // Of the slot's message; a round of exponents has no elements.
  [[nodiscard]] static std::uint32_t elements_of(const Slot& slot) {
    return slot.round == Round::values ? slot.chunk.elements : 0;
  }
  [[nodiscard]] static std::uint32_t packets_of(const Slot& slot) {
    return std::max(1U, wire::rdma::packets_of(elements_of(slot)));
  }
  [[nodiscard]] static std::uint32_t bytes_of(const Slot& slot) {
    return wire::rdma::packets_of(elements_of(slot)) * static_cast<std::uint32_t>(wire::rdma::packet_bytes);
  }
  template <class Do>
  static void for_each_packet(const Slot& slot, const Do& call) {
    for (std::uint32_t packet = 0, left = elements_of(slot); packet < packets_of(slot); ++packet) {
      const std::uint32_t elements = std::min(left, wire::rdma::packet_elements);
      call(packet, elements);
      left -= elements;
    }
  }
  [[nodiscard]] static std::uint64_t offset_of(const Slot& slot, std::uint32_t packet) {
    return slot.chunk.offset + std::uint64_t{packet} * wire::rdma::packet_elements;
  }
  // Of all ranks. A slot has those of its message's two blocks.
  [[nodiscard]] const std::uint8_t& exponent_of(const Slot& slot, std::uint32_t packet) const {
    return slot.all[packet / wire::rdma::packets_of_block(longest_)];
  }

  [[nodiscard]] static std::uint32_t number_of(const Slot& slot) { return wire::rdma::number_of(slot.number, slot.version); }
  // What all ranks must have meant by the round.
  [[nodiscard]] static std::uint32_t call_of(const Slot& slot) {
    const wire::switchml::ChunkHeader& h = slot.header;
    const bool values = slot.round == Round::values;
    return static_cast<std::uint32_t>(mix(mix(h.operation + 1) ^ mix(std::uint64_t{h.chunk} << 32 | h.signature) ^ values) >>
                                      wire::rdma::offset_bits);
  }

  // This rank's, of the blocks of the message that the one in flight names.
  [[nodiscard]] std::array<std::uint16_t, 2> ahead_exponents(const Slot& slot, const InFlight& in_flight) {
    if (slot.header.exponents == 0) return {wire::chip::unknown, wire::chip::unknown};
    const ActiveOperation& ahead = in_flight.ahead_of(slot);
    const bool finite = !ahead.nonfinite[ahead.stripes.stripe(slot.ahead.index)];  // a stripe is a message
    const std::uint32_t packets = wire::rdma::packets_of_block(longest_);
    std::array<std::uint16_t, 2> largest{};
    for (std::uint32_t packet = 0; packet < slot.ahead.blocks; ++packet) {  // a packet has a block of the scan
      std::uint16_t& of_block = largest[packet / packets];
      of_block = std::max<std::uint16_t>(of_block, ahead.exponents[slot.ahead.first_block + packet]);
      if (!finite && !is_finite(ahead, slot.ahead, packet)) of_block = wire::chip::not_finite;
    }
    return largest;
  }
  [[nodiscard]] bool is_finite(const ActiveOperation& active, const Chunk& chunk, std::uint32_t packet) {
    const std::uint32_t begin = packet * wire::rdma::packet_elements;
    std::uint8_t exponent = 0;
    return !codec_.scan(stream::Seen(active.operation, config_.rank, chunk.part, false), chunk.offset + begin,
                        std::min(wire::rdma::packet_elements, chunk.elements - begin), {&exponent, 1});
  }

  [[nodiscard]] Answer read_result(const wire::rdma::Immediate& immediate, Slot& slot, InFlight& in_flight,
                                   WorkerCounters& counters) {
    if (immediate.number != (number_of(slot) & wire::rdma::number_mask)) return nothing(counters.stale);
    if (immediate.exponents[0] >= wire::rdma::differing) {
      ++counters.mismatch;
      return WorkerFailure{WorkerFailure::Kind::mismatch, slot.header.operation,
                           static_cast<std::uint32_t>(immediate.exponents[0] - wire::rdma::differing),
                           immediate.exponents[1]};
    }
    const bool ahead_known = immediate.exponents[0] < wire::chip::unknown;
    if ((immediate.exponents[1] < wire::chip::unknown) != ahead_known || (slot.round == Round::exponents && !ahead_known)) {
      return malformed(counters, wire::ParseError::field);
    }
    for (std::size_t i = 0; i < known_.size(); ++i) known_[i] = static_cast<std::byte>(immediate.exponents[i]);
    return RoundResult{&slot,
                       in_flight.place_of(slot),
                       std::span(known_).first(ahead_known ? known_.size() : 0),
                       std::span(memory_of(slot)).first(bytes_of(slot)),
                       {}};
  }

  WorkerConfig config_;
  std::uint32_t longest_;  // packets of a message
  RdmaEnds ends_;
  ChunkCodec codec_;
  ChipCodec chip_codec_;
  std::vector<std::byte> memory_;     // that the switch writes to, a message for each queue pair
  std::vector<Pair> pairs_;           // by slot
  std::array<std::byte, 2> known_{};  // exponents of the newest result
};

}  // namespace netsum::switchml
