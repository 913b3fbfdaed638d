#include "protocol/switchml/rdma_switch.h"

#include <algorithm>
#include <array>

#include "base/cache_line.h"
#include "protocol/roce/uc_receiver.h"
#include "protocol/switchml/chip_slots.h"
#include "protocol/switchml/chip_stalled.h"
#include "protocol/switchml/rdma_ends.h"
#include "wire/roce.h"
#include "wire/switchml_chip.h"
#include "wire/switchml_rdma.h"

namespace netsum::switchml {

using roce::UcReceiver;
namespace rdma = wire::rdma;

namespace {

// What a rank's message says in its first packet.
struct Message {
  std::uint32_t number = 0;   // of the round
  std::uint32_t packets = 0;  // 0: there was none yet
  rdma::Target target;
  std::uint32_t bytes = 0;

  [[nodiscard]] ChipRound round_of(std::uint32_t slot) const {
    return {slot, static_cast<std::uint8_t>(number & 1), number >> 1};
  }
};

}  // namespace

struct RdmaSwitch::End {
  std::uint32_t member = 0, queue = 0;
  UcReceiver receiver{0};
  Message coming;  // the message under way

  std::uint32_t rank_qp = 0, psn = 0;  // where results go, and the next one's PSN
  // The newest message, which asks for a result; how much of that has been sent, and between which addresses. A NIC writes
  // packets one behind the other, whatever slots they are of: so the next one is always that of slot `sent`.
  Message asked;
  std::uint32_t sent = 0;
  wire::roce::Ip way;
};

struct RdmaSwitch::Job {
  // Of one version of one slot, beside its registers.
  struct Note {
    std::uint32_t number = 0, call = 0;  // of the round's first packet
    std::uint32_t member = 0;            // who sent that
    std::uint32_t differs = none;        // a member whose call is another
    std::uint64_t sent_in_batch = 0;     // the last batch in which the sink referenced the memory
    static constexpr std::uint32_t none = UINT32_MAX;
  };

  SwitchJobConfig config;      // with slots of packets
  std::uint32_t longest = 1;   // packets of a message
  std::uint32_t queues = 0;    // of each member
  std::vector<RdmaEnds> ends;  // by member
  std::vector<End> pairs;      // [member * queues + queue]
  ChipSlots slots;
  std::vector<Note> notes;  // [slot * 2 + version]
  std::span<std::byte> memory;
  JobCounters counters;
  DropSources<JobCounters> drops;

  void drop(std::uint64_t& counter, const RxView& packet) { drops.drop(counters, counter, packet.source); }
  [[nodiscard]] std::uint32_t first_pair() const { return ends.front().switch_qp; }
  [[nodiscard]] End& pair(std::uint32_t member, std::uint32_t queue) { return pairs[member * queues + queue]; }
  [[nodiscard]] std::span<std::byte> sums_of(const ChipRound& of) const {
    return memory.subspan(ChipSlots::index(of) * rdma::packet_bytes, rdma::packet_bytes);
  }
  [[nodiscard]] std::uint64_t memory_of_rank() const { return std::uint64_t{config.slots} * rdma::packet_bytes; }
};

std::size_t RdmaSwitch::memory_bytes(std::uint32_t packet_elements, std::uint32_t slots) {
  return std::size_t{slots} * rdma::packets_of(packet_elements) * 2 * rdma::packet_bytes;
}

std::size_t RdmaSwitch::total_bytes(std::uint32_t packet_elements, std::uint32_t slots, std::size_t members) {
  return memory_bytes(packet_elements, slots) + sizeof(Job) +
         std::size_t{slots} * rdma::packets_of(packet_elements) * 2 * (sizeof(Job::Note) + ChipSlots::bytes_of_one) +
         members * slots * (sizeof(End) + sizeof(std::pair<const std::uint32_t, Job*>));
}

RdmaSwitch::RdmaSwitch() = default;
RdmaSwitch::~RdmaSwitch() = default;
RdmaSwitch::RdmaSwitch(RdmaSwitch&&) noexcept = default;
RdmaSwitch& RdmaSwitch::operator=(RdmaSwitch&&) noexcept = default;

void RdmaSwitch::Destroy::operator()(Job* job) const {
  delete job;
}

RdmaSwitch::JobState RdmaSwitch::make_job(const SwitchJobConfig& config, std::span<std::byte> memory) {
  if (!rdma::possible_message(config.packet_elements) || config.members.size() > wire::chip::max_members ||
      memory.size() < memory_bytes(config)) {
    return nullptr;
  }
  JobState job(new Job);
  job->config = config;
  job->longest = rdma::packets_of(config.packet_elements);
  job->queues = config.slots;
  job->config.slots *= job->longest;
  const auto members = static_cast<std::uint32_t>(config.members.size());
  job->slots = ChipSlots(job->config.slots, members);
  job->notes.resize(job->slots.size());
  job->memory = memory;
  for (std::uint32_t member = 0; member < members; ++member) {
    const RdmaEnds ends = job->ends.emplace_back(rdma_ends(config.epoch, members, member, job->queues));
    for (std::uint32_t queue = 0; queue < job->queues; ++queue) {
      End& end = job->pairs.emplace_back();
      end.member = member;
      end.queue = queue;
      end.receiver = UcReceiver(rdma_psn(config.epoch, ends.switch_qp + queue));
      end.rank_qp = ends.rank_qp + queue;
      end.psn = rdma_psn(config.epoch, end.rank_qp);
    }
  }
  return job;
}

bool RdmaSwitch::add_job(JobState&& job) {
  const auto pairs = static_cast<std::uint32_t>(job->pairs.size());
  for (std::uint32_t i = 0; i < pairs; ++i) {
    if (job_of_pair_.contains(job->first_pair() + i)) return false;
  }
  Job* const added = job.get();
  if (!jobs_.try_emplace(job->config.epoch, std::move(job)).second) return false;
  for (std::uint32_t i = 0; i < pairs; ++i) job_of_pair_.emplace(added->first_pair() + i, added);
  return true;
}

RdmaSwitch::JobState RdmaSwitch::remove_job(std::uint64_t epoch) {
  auto removed = jobs_.extract(epoch);
  if (removed.empty()) return nullptr;
  std::erase_if(job_of_pair_, [&](const auto& each) { return each.second == removed.mapped().get(); });
  return std::move(removed.mapped());
}

void RdmaSwitch::on_packets(std::span<const RxView> packets, Time, Sink& sink) {
  ++batch_;
  for (const RxView& packet : packets) on_packet(packet, sink);
}

void RdmaSwitch::on_packet(const RxView& from, Sink& sink) {
  const auto malformed = [&](wire::ParseError why) { ++counters_.malformed[static_cast<std::size_t>(why)]; };
  wire::roce::Packet packet;
  if (const auto error = wire::roce::parse(from.bytes, packet); error != wire::ParseError::none) return malformed(error);
  if (!wire::roce::icrc_valid(from.bytes.first(wire::roce::packet_bytes(from.bytes)))) {
    return malformed(wire::ParseError::checksum);
  }
  const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
  if (!shape.write || shape.reliable) return void(++counters_.unexpected_type);
  const auto found = job_of_pair_.find(packet.bth.destination_qp);
  if (found == job_of_pair_.end()) return void(++counters_.unknown_job);

  Job& job = *found->second;
  End& end = job.pairs[packet.bth.destination_qp - job.first_pair()];
  ++job.counters.packets;
  job.counters.bytes += from.bytes.size();
  if (from.source != job.config.members[end.member].endpoint) return job.drop(job.counters.dropped_source, from);
  switch (end.receiver.take(packet.bth.psn, shape.first)) {
    case UcReceiver::Finding::late:
      return job.drop(job.counters.dropped_old, from);
    case UcReceiver::Finding::behind_gap:
      return job.drop(job.counters.dropped_gap, from);
    case UcReceiver::Finding::begins:
      if (!begin(job, end, from, packet, shape.last)) return end.receiver.give_up();
      break;
    case UcReceiver::Finding::continues:
      break;
  }
  // A message's packets are full, and its last one has an immediate.
  const bool last = end.receiver.packet() + 1 == end.coming.packets;
  const std::size_t full = end.coming.bytes == 0 ? 0 : rdma::packet_bytes;
  if (last != shape.last || last != shape.immediate || packet.payload.size() != full) {
    end.receiver.give_up();
    return job.drop(job.counters.dropped_shape, from);
  }
  if (last) end.receiver.give_up();  // nothing follows
  contribute(job, end, from, packet, sink);
}

bool RdmaSwitch::begin(Job& job, End& end, const RxView& from, const wire::roce::Packet& packet, bool only) {
  Message message{packet.reth.key, 1, rdma::target_of(packet.reth.address), packet.reth.length};
  if (!only) message.packets = packet.reth.length / rdma::packet_bytes;
  const bool whole = packet.reth.length % rdma::packet_bytes == 0 && (only || message.packets > 1);
  if (!whole || message.packets > job.longest || (only && packet.reth.length > rdma::packet_bytes)) {
    job.drop(job.counters.dropped_shape, from);
    return false;
  }
  if (message.target.offset > job.memory_of_rank() || message.bytes > job.memory_of_rank() - message.target.offset) {
    job.drop(job.counters.dropped_slot, from);
    return false;
  }
  end.coming = message;
  // A worker's rounds only grow, as PSNs do.
  if (end.asked.packets == 0 || message.number > end.asked.number) {
    end.asked = message;
    end.sent = 0;
    end.way = packet.ip;
    std::swap(end.way.source, end.way.destination);
    end.way.traffic_class &= 0xfc;  // without the marks of queues on the way here
  }
  return true;
}

void RdmaSwitch::contribute(Job& job, End& end, const RxView& from, const wire::roce::Packet& packet, Sink& sink) {
  JobCounters& counters = job.counters;
  const Message& message = end.coming;
  const std::uint32_t number = end.receiver.packet();
  const bool last = number + 1 == message.packets;
  const ChipRound of = message.round_of(end.queue * job.longest + number);
  Job::Note& note = job.notes[ChipSlots::index(of)];
  const auto entry = job.slots.consume(of, end.member);
  if (entry.adds) {
    if (entry.first) {
      if (note.sent_in_batch == batch_) sink.flush();  // its memory is still referenced
      note = {message.number, message.target.call, end.member};
    }
    const bool differs = note.call != message.target.call;
    if (differs) note.differs = end.member;
    ++(differs ? counters.dropped_mismatch : counters.contributions);
    const auto exponents = last ? rdma::read_immediate(packet.immediate).exponents : ChipSlots::Exponents{};
    job.slots.add(of, entry, exponents, packet.payload, job.sums_of(of).data());
  }
  // The second pass comes at once, as in chip_switch.cc.
  if (entry.again == ChipPass::answer && job.slots.harvest(of)) {
    ++counters.chunks;
    // A round is in all of a message's slots, also where this one is shorter: then it passes through the others empty.
    for (std::uint32_t rest = number + 1; last && rest < job.longest; ++rest) {
      const ChipRound empty = message.round_of(of.slot + rest - number);
      const auto left_out = job.slots.consume(empty, end.member);
      Job::Note& other = job.notes[ChipSlots::index(empty)];
      if (left_out.first) other = {message.number, note.call, note.member, note.differs, other.sent_in_batch};
      // Somebody's message is longer, so the calls differ, and what is in the slot is no sum.
      if (left_out.accepted && !left_out.first && other.number == message.number) other.differs = end.member;
      if (left_out.accepted) static_cast<void>(job.slots.harvest(empty));
    }
    for (std::uint32_t member = 0; member < job.ends.size(); ++member) {
      End& other = job.pair(member, end.queue);
      if (other.asked.packets != 0 && other.asked.number == message.number) send_results(job, other, sink);
    }
  } else if (entry.again == ChipPass::answer && number == 0 && end.asked.number == message.number) {
    end.sent = 0;
    send_results(job, end, sink);
    return void(++counters.repeats_answered);
  }
  if (entry.adds) return;
  if (entry.accepted || end.asked.number == message.number) return void(++counters.repeats_silent);
  job.drop(job.slots.is_early(of) ? counters.dropped_early : counters.dropped_old, from);
}

// As much as is complete.
void RdmaSwitch::send_results(Job& job, End& end, Sink& sink) const {
  const RdmaEnds& ends = job.ends[end.member];
  for (; end.sent < end.asked.packets; ++end.sent) {
    const ChipRound of = end.asked.round_of(end.queue * job.longest + end.sent);
    if (!job.slots.is_done(of)) return;
    Job::Note& note = job.notes[ChipSlots::index(of)];
    wire::roce::Packet packet;
    packet.ip = end.way;
    packet.ip.identification = static_cast<std::uint16_t>(end.psn);
    packet.ip.hop_limit = wire::roce::Ip().hop_limit;
    packet.source_port = static_cast<std::uint16_t>(0xc000 | (end.rank_qp & 0x3fff));  // one way for each queue pair
    packet.bth.opcode = rdma::opcode_of(end.sent, end.asked.packets);
    packet.bth.destination_qp = end.rank_qp;
    packet.bth.psn = end.psn;
    packet.reth = {ends.memory_address + end.asked.target.offset, ends.memory_key, end.asked.bytes};
    rdma::Immediate immediate{end.asked.number, job.slots.exponents(of)};
    if (note.differs != Job::Note::none) {
      immediate.exponents = {static_cast<std::uint16_t>(rdma::differing + note.member),
                             static_cast<std::uint16_t>(note.differs)};
    }
    packet.immediate = rdma::immediate_of(immediate);
    if (end.asked.bytes != 0) packet.payload = job.sums_of(of);
    end.psn = (end.psn + 1) & wire::roce::psn_mask;
    const auto around = sink.around(job.config.members[end.member].endpoint, wire::roce::payload_offset(packet),
                                    packet.payload, wire::roce::icrc_bytes);
    wire::roce::write_around(around.head, around.tail, packet);
    note.sent_in_batch = batch_;
    ++job.counters.results_sent;
  }
}

const JobCounters* RdmaSwitch::job_counters(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->counters;
}

const DropSources<JobCounters>* RdmaSwitch::drop_sources(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->drops;
}

std::uint32_t RdmaSwitch::slots_in_use(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? 0 : found->second->slots.open();
}

std::vector<StalledChunk> RdmaSwitch::stalled(std::uint64_t epoch, std::size_t most) const {
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return {};
  const Job& job = *found->second;
  return chip_stalled(job.config, most, [&](std::size_t number) {
    return ChipWaiting{job.slots.missing(number), job.notes[number].number, static_cast<std::uint32_t>(number / 2)};
  });
}

}  // namespace netsum::switchml
