// A switch in a tree (SwitchML §7): what its parent and its child switches say, and what goes upstream.
//
// A switch has no timer. Ranks repeat what is not answered, and a repeat that reaches a switch with nothing to answer goes
// one switch further up, once for all members that ask.
#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "protocol/switchml/switch_job.h"

namespace netsum::switchml {

using wire::switchml::Type;

namespace {

// An error goes downstream again at most this often, and a sum upstream again no later: the workers' shortest time-out.
constexpr Duration repeat_interval = std::chrono::milliseconds(1);

}  // namespace

void Switch::on_tree_packet(Job& job, const RxView& received, const wire::switchml::Common& common, Time now, Sink& sink) {
  JobCounters& counters = job.counters;
  ++counters.packets;
  counters.bytes += received.bytes.size();
  const bool from_parent = !job.is_root() && received.source == *job.config.tree->parent;
  std::optional<std::size_t> child;
  if (!from_parent && (common.type == Type::missing || common.type == Type::mismatch)) {
    for (std::size_t i = 0; i < job.config.members.size() && !child; ++i) {
      if (job.config.tree->is_switch[i] && received.source == job.member(i).endpoint) child = i;
    }
  }
  if (!from_parent && !child) return job.drop(counters.dropped_source, received);
  if (common.rank_epoch != job.folded_epochs) return job.drop(counters.dropped_rank_epoch, received);
  RxView packet = received;
  const bool believed = from_parent ? job.believe_parent(packet, common) : job.believe_member(*child, packet, common);
  if (!believed) return job.drop(counters.dropped_seal, received);
  switch (common.type) {
    case Type::result:
    case Type::exponent_result:
    case Type::acknowledgement:
      return on_result(job, packet, received.bytes, common, sink);
    case Type::acknowledgements:
      return on_acknowledgements(job, packet, common, sink);
    case Type::waiting:
    case Type::missing: {
      wire::switchml::WaitingPacket waiting{};
      if (wire::switchml::parse_waiting(packet.bytes, common, waiting) != wire::ParseError::none)
        return job.drop(counters.dropped_shape, received);
      if (!job.has_slot(waiting.slot)) return job.drop(counters.dropped_slot, received);
      if ((common.type == Type::waiting) != from_parent) return job.drop(counters.dropped_source, received);
      ++counters.told_by_parent;
      return from_parent ? on_waiting(job, waiting, now, sink) : on_missing(job, waiting);
    }
    case Type::mismatch:
    case Type::unknown_job:
      return relay_failure(job, packet, common, now, sink);
    default:
      return job.drop(counters.dropped_shape, received);
  }
}

void Switch::on_result(Job& job, const RxView& packet, std::span<const std::byte> received,
                       const wire::switchml::Common& common, Sink& sink) {
  wire::switchml::ChunkPacket chunk;
  if (wire::switchml::parse_chunk(packet.bytes, common, chunk) != wire::ParseError::none)
    return job.drop(job.counters.dropped_shape, packet);
  take_result(job, chunk, packet, received, sink);
}

void Switch::on_acknowledgements(Job& job, const RxView& packet, const wire::switchml::Common& common, Sink& sink) {
  wire::switchml::RunPacket all;
  if (wire::switchml::parse_run(packet.bytes, common, all) != wire::ParseError::none)
    return job.drop(job.counters.dropped_shape, packet);
  job.counters.in_runs += all.run.size() - 1;
  all.for_each([&](const wire::switchml::ChunkPacket& chunk) { take_result(job, chunk, packet, {}, sink); });
}

// Ends a round whose contributions are all upstream: the result is passed on as it was received, to all members. It is
// sealed by the root, for all ranks. An acknowledgement is not: each member gets one of its own.
void Switch::take_result(Job& job, const wire::switchml::ChunkPacket& chunk, const RxView& packet,
                         std::span<const std::byte> received, Sink& sink) {
  JobCounters& counters = job.counters;
  const wire::switchml::Common& common = chunk.common;
  const wire::switchml::ChunkHeader& header = chunk.header;
  if (!job.has_slot(header.slot)) return job.drop(counters.dropped_slot, packet);
  SlotState& slot = job.slots[std::size_t{header.slot} * 2 + header.version];
  const bool values = common.type != wire::switchml::Type::exponent_result;
  const bool acknowledged = common.type == wire::switchml::Type::acknowledgement;
  const bool waits = slot.used && !slot.complete && !slot.mismatch &&
                     (slot.ordered() ? slot.arrived == job.expected(slot) : slot.sent) &&
                     std::tuple(header.operation, header.chunk, values) == slot.identity();
  if (!waits) return void(++counters.dropped_stale);
  const bool ahead_ours = header.ahead_operation == slot.ahead_operation && header.ahead_chunk == slot.ahead_chunk &&
                          header.exponents == slot.exponents;
  if (header.signature != slot.signature || header.dtype != slot.dtype || header.op != slot.op ||
      (acknowledged &&
       (slot.ordered() || !slot.quiet || job.quiet.count(job.number_of(slot)) != job.config.members.size())) ||
      (header.ahead_operation != wire::switchml::no_ahead && !ahead_ours) ||
      (slot.elements != 0 && !acknowledged && header.elements != elements_of_sum(slot.dtype, slot.elements)) ||
      chunk.payload.size() > wire::switchml::most_payload_bytes(job.config.packet_elements, header.dtype, header.op)) {
    return job.drop(counters.dropped_shape, packet);
  }
  ++counters.results_taken;
  if (slot.sent_in_batch == batch_) sink.flush();  // the sum is still referenced
  job.finish(slot);
  slot.masks = header.masks;
  slot.exponents = header.exponents;
  slot.elements = header.elements;
  slot.ahead_operation = header.ahead_operation;
  slot.ahead_chunk = header.ahead_chunk;
  if (!acknowledged) {
    slot.result_bytes = static_cast<std::uint32_t>(received.size());
    std::memcpy(job.packet_of(slot).data(), received.data(), received.size());
  }
  if (slot.quiet) std::copy(chunk.exponents.begin(), chunk.exponents.end(), job.rest_of(slot).exponents.begin());
  send_result(job, slot, sink);
}

void Switch::send_sum(Job& job, SlotState& slot, Sink& sink) {
  ++job.counters.sums_sent;
  job.rest_of(slot).order = ++job.sums;
  if (slot.exact) return send_parts(job, slot, sink);
  slot.sent_in_batch = batch_;
  sink.multicast(job.packet_of(slot), {&*job.config.tree->parent, 1});
}

// As many in one packet as differ in nothing else. Repeats go alone, as they are in the slots' memory.
void Switch::send_together(Job& job, Sink& sink) {
  const std::span numbers = std::span(job.together).first(std::exchange(job.together_count, 0));
  const auto sender = static_cast<std::uint16_t>(job.ranks.front());
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    wire::switchml::Run run;
    bool checked = false;
    for (; end < numbers.size() && run.take(header_of(job, job.slots[numbers[end]])); ++end) {
      checked |= job.slots[numbers[end]].checked;
    }
    if (run.size() == 1) {
      send_sum(job, job.slots[numbers[begin]], sink);
      continue;
    }
    for (std::size_t i = begin; i < end; ++i) {
      ++job.counters.sums_sent;
      ++job.counters.sums_in_runs;
      job.rest[numbers[i]].order = ++job.sums;
    }
    job.send(*job.config.tree->parent, wire::switchml::run_bytes(run), sink, [&](std::span<std::byte> packet) {
      wire::switchml::write_run_header(
          packet, {Type::empty_contributions, sender, job.config.epoch, job.folded_epochs, checked}, run);
      for (std::size_t i = begin; i < end; ++i) {
        std::memcpy(packet.data() + wire::switchml::run_header_bytes + (i - begin) * run.first.exponents,
                    job.rest[numbers[i]].exponents.data(), run.first.exponents);
      }
      wire::switchml::seal(packet);
    });
  }
}

void Switch::send_parts(Job& job, const SlotState& slot, Sink& sink) {
  const kernels::ExactSum sum = job.sum_of(slot);
  const auto sender = static_cast<std::uint16_t>(job.ranks.front());
  const std::byte* const payload = job.memory_of(slot) + payload_at;
  const std::size_t padded = wire::switchml::padded_exponents(slot.exponents);
  wire::switchml::SumPart part;
  part.chunk.common = {wire::switchml::Type::sum_part, sender, job.config.epoch, job.folded_epochs, slot.checked};
  part.chunk.header = header_of(job, slot);
  part.chunk.exponents = {payload - padded, slot.exponents};
  part.parts = static_cast<std::uint8_t>(sum.parts());
  // A repeat begins with another: of a burst that is longer than a queue on the way, the last ones are lost.
  const std::uint32_t first = job.rest_of(slot).first_part++;
  for (std::uint32_t i = 0; i < part.parts; ++i) {
    part.part = static_cast<std::uint8_t>((first + i) % part.parts);
    part.place = static_cast<std::uint16_t>(sum.place_of(part.part));
    job.send(*job.config.tree->parent, wire::switchml::sum_part_bytes(part.chunk.header, part.place), sink,
             [&](std::span<std::byte> up) {
               wire::switchml::write_sum_part_header(up, part);
               sum.write_part(part.part, up.data() + wire::switchml::sum_part_header_bytes + padded);
               wire::switchml::seal(up);
             });
  }
  ++job.counters.sums_in_parts;
  job.counters.parts_sent += part.parts;
}

void Switch::pass_up(const Job& job, const RxView& packet, Sink& sink) {
  job.send(*job.config.tree->parent, packet.bytes.size(), sink, [&](std::span<std::byte> up) {
    std::memcpy(up.data(), packet.bytes.data(), packet.bytes.size());
    if (job.seals) wire::switchml::reseal(up, PacketSecurity::none);  // for a parent on this host
  });
}

// The parent answers with the result, or with "waiting" for those that asked.
void Switch::pass_up_repeat(Job& job, SlotState& slot, const RxView& packet, const wire::switchml::Common& common, Time now,
                            Sink& sink) {
  const std::size_t member = job.origins[common.sender].member;
  job.asked.insert(job.number_of(slot), member);
  ++job.counters.repeats_passed_up;
  if (slot.ordered()) {
    // A child switch's repeats are of several ranks, and it has counted them.
    if (job.config.tree->is_switch[member] || may_tell(job, slot, member, now)) pass_up(job, packet, sink);
    return;
  }
  repeat_sum(job, slot, now, sink);
}

// Once for all that ask at a time: again after as long as the first time took, and then twice as long.
void Switch::repeat_sum(Job& job, SlotState& slot, Time now, Sink& sink) {
  Time& repeated_at = job.rest_of(slot).repeated_at;
  const Duration after = std::min(repeat_interval, repeated_at - job.rest_of(slot).opened_at);
  if (repeated_at != Time{} && now - repeated_at <= after) return;
  repeated_at = now;
  ++job.counters.sums_repeated;
  send_sum(job, slot, sink);
}

// The parent has had a later sum: it comes out of order, unless this switch sent it long after the one that is missing.
void Switch::repeat_if_lost(Job& job, SlotState& slot, std::uint32_t overtaken_by, Sink& sink) {
  if (job.rest[overtaken_by].order <= job.rest_of(slot).order) return;
  ++job.counters.sums_repeated;
  send_sum(job, slot, sink);
}

void Switch::pass_down(const Job& job, std::size_t member, const wire::switchml::WaitingPacket& waiting, Sink& sink) {
  wire::switchml::WaitingPacket down = waiting;
  down.common.security = PacketSecurity::none;  // until the hop's key seals it
  job.send(job.member(member).endpoint, wire::switchml::waiting_bytes(waiting.missing), sink,
           [&](std::span<std::byte> packet) { wire::switchml::write_waiting(packet, down); });
}

void Switch::on_waiting(Job& job, const wire::switchml::WaitingPacket& waiting, Time now, Sink& sink) {
  const auto identity = std::tuple(waiting.operation, waiting.chunk, !waiting.exponent_round);
  const bool ours = waiting.missing.intersects(job.ranks);
  const bool overtaken = ours && waiting.overtaken_by < job.slots.size();
  SlotState* found = nullptr;
  for (std::size_t version = 0; version < 2; ++version) {
    SlotState& slot = job.slots[std::size_t{waiting.slot} * 2 + version];
    if (!slot.used) continue;
    if (slot.identity() == identity) found = &slot;
    // The parent is a round ahead: the result was lost.
    if (ours && slot.sent && !slot.complete && slot.identity() < identity) return repeat_sum(job, slot, now, sink);
  }
  if (found != nullptr && found->complete) return;
  if (found != nullptr && found->mismatch) {  // the parent was told, and does not know
    if (ours) tell_mismatch(job, *found, *job.config.tree->parent, sink);
    return;
  }
  if (overtaken) {
    if (found != nullptr && found->sent) repeat_if_lost(job, *found, waiting.overtaken_by, sink);
    return;
  }
  if (ours && found != nullptr && found->sent) return repeat_sum(job, *found, now, sink);
  if (ours && found != nullptr && found->ordered()) {
    // What a rank sent was lost above this switch: the rank has it.
    for (std::size_t i = 0; i < job.config.members.size(); ++i) {
      if (!waiting.missing.intersects(job.config.tree->below[i])) continue;
      pass_down(job, i, waiting, sink);
    }
    return;
  }
  if (ours) {
    const wire::switchml::Ranks missing = found == nullptr ? job.ranks : job.missing(*found);
    const auto sender = static_cast<std::uint16_t>(job.ranks.front());
    wire::switchml::WaitingPacket answer = waiting;
    answer.common = {wire::switchml::Type::missing, sender, job.config.epoch, job.folded_epochs};
    answer.missing = missing;
    answer.overtaken_by = wire::switchml::WaitingPacket::not_overtaken;
    job.send(*job.config.tree->parent, wire::switchml::waiting_bytes(missing), sink,
             [&](std::span<std::byte> up) { wire::switchml::write_waiting(up, answer); });
    if (found != nullptr && !job.reported.empty()) ask_children(job, *found, now, sink);
    return;
  }
  if (found == nullptr) return;
  const std::size_t number = job.number_of(*found);
  for (std::size_t i = 0; i < job.config.members.size(); ++i) {
    if (job.asked.contains(number, i)) pass_down(job, i, waiting, sink);
  }
  job.asked.clear(number);
}

// So that errors name ranks, and sums that were lost come again.
void Switch::ask_children(Job& job, SlotState& slot, Time now, Sink& sink) {
  for (std::size_t i = 0; i < job.config.members.size(); ++i) {
    if (!job.config.tree->is_switch[i] || (!slot.ordered() && job.seen.contains(job.number_of(slot), i))) continue;
    if (may_tell(job, slot, i, now)) tell_waiting(job, slot, i, sink);
  }
}

void Switch::on_missing(Job& job, const wire::switchml::WaitingPacket& missing) {
  const std::uint16_t rank = missing.common.sender;
  if (rank >= job.origins.size() || job.origins[rank].member == Origin::no_member) return;
  const std::size_t member = job.origins[rank].member;
  if (!job.config.tree->is_switch[member] ||
      missing.missing.minus(job.config.tree->below[member]) != wire::switchml::Ranks())
    return;
  job.reported[member] = {missing.operation, missing.chunk, !missing.exponent_round, missing.missing};
}

// "Mismatch" goes to everyone, from wherever it was found; "unknown job", from a parent that has lost the job, to all below.
void Switch::relay_failure(Job& job, const RxView& packet, const wire::switchml::Common& common, Time now, Sink& sink) {
  const bool unknown = common.type == wire::switchml::Type::unknown_job;
  const bool from_parent = !job.is_root() && packet.source == *job.config.tree->parent;
  wire::switchml::MismatchPacket mismatch{};
  const bool right = unknown ? from_parent && packet.bytes.size() == wire::switchml::common_bytes
                             : wire::switchml::parse_mismatch(packet.bytes, common, mismatch) == wire::ParseError::none;
  if (!right) return job.drop(job.counters.dropped_shape, packet);
  ++job.counters.told_by_parent;
  if (job.relayed != Time{} && now - job.relayed < repeat_interval) return;
  job.relayed = now;
  mismatch.common.security = PacketSecurity::none;  // until the hop's key seals it
  const auto tell = [&](const Endpoint& to) {
    job.send(to, wire::switchml::mismatch_bytes, sink,
             [&](std::span<std::byte> bytes) { wire::switchml::write_mismatch(bytes, mismatch); });
  };
  for (std::size_t i = 0; i < job.config.members.size(); ++i) {
    const Endpoint& to = job.member(i).endpoint;
    if (unknown) {
      wire::switchml::Common asked = common;
      if (!job.config.tree->is_switch[i]) asked.rank_epoch = job.member(i).epoch;
      wire::switchml::write_unknown_job(sink.datagram(to, wire::switchml::common_bytes), asked);
    } else if (to != packet.source) {
      tell(to);
    }
  }
  if (!unknown && !from_parent && !job.is_root()) {
    tell(*job.config.tree->parent);
  }
}

}  // namespace netsum::switchml
