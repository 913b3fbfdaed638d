#include "protocol/switchml/switch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/cache_line.h"
#include "base/check.h"
#include "kernels/kernels.h"
#include "protocol/switchml/switch_job.h"
#include "protocol/switchml/windows.h"
#include "wire/epochs.h"

namespace netsum::switchml {
namespace {

// A repeat of an incomplete chunk is answered at most this often, per chunk and rank: the workers' shortest time-out. So is
// one that is shorter than its answer.
constexpr Duration waiting_interval = std::chrono::milliseconds(1);

// int32 sums are what nearly all packets are.
void add(const auto& slot, std::byte* sum, const std::byte* values) {
  if (slot.dtype == DType::int32 && slot.op == ReduceOp::sum) return kernels::add_int32(sum, values, slot.elements);
  kernels::combine(slot.op, slot.dtype, sum, values, slot.elements);
}

// Whether nobody below wants values.
bool all_quiet(const auto& job, const auto& slot) {
  return slot.quiet && job.quiet.count(job.number_of(slot)) == job.config.members.size();
}

// Whether somebody below waits with this round for acknowledgements of others.
bool has_due(const auto& job, const auto& slot) {
  const std::size_t number = job.number_of(slot);
  return slot.due || (slot.quiet && job.later.count(number) != job.quiet.count(number));
}

std::size_t slot_bytes(std::uint32_t packet_elements) {
  const std::uint32_t words = packet_elements + wire::switchml::check_words;
  return whole_lines(payload_at + std::size_t{words} * 4 + 2 * wire::switchml::mask_bytes(words) + seal::longest_trailer);
}

// Of a slot: unconverted floats of so many ranks, which are kept until all ranks' are there, or their exact sum.
std::size_t gathering_bytes(std::uint32_t packet_elements, std::size_t ranks, std::size_t members_in_tree) {
  const std::size_t payload = std::size_t{packet_elements} * 4;
  const std::size_t sum =
      members_in_tree == 0 ? 0 : PartsThere::bytes(members_in_tree) + kernels::ExactSum::memory_bytes(payload);
  return std::max(whole_lines(payload) * ranks, sum);
}

}  // namespace

wire::switchml::Ranks Switch::Job::missing(const SlotState& slot) const {
  wire::switchml::Ranks all;
  if (slot.sent) return all;
  if (!config.tree || slot.ordered()) {
    ranks.for_each([&](std::uint32_t rank) {
      if (!has(slot, rank)) all.insert(rank);
    });
    return all;
  }
  for (std::size_t i = 0; i < config.members.size(); ++i) {
    if (seen.contains(number_of(slot), i)) continue;
    const bool known = config.tree->is_switch[i] &&
                       std::tuple(reported[i].operation, reported[i].chunk, reported[i].values) == slot.identity() &&
                       !reported[i].missing.empty();
    all = all.united(known ? reported[i].missing : config.tree->below[i]);
  }
  return all;
}

std::size_t Switch::memory_bytes(std::uint32_t packet_elements, std::uint32_t slots, std::size_t ranks,
                                 std::size_t members_in_tree) {
  return (slot_bytes(packet_elements) * 2 * windows + gathering_bytes(packet_elements, ranks, members_in_tree)) * slots;
}

std::size_t Switch::memory_bytes(const SwitchJobConfig& config) {
  const std::size_t members = config.members.size();
  if (!config.tree) return memory_bytes(config.packet_elements, config.slots, members);
  return memory_bytes(config.packet_elements, config.slots, config.tree->parent ? 0 : config.tree->rank_epochs.size(),
                      members);
}

std::size_t Switch::total_bytes(std::uint32_t packet_elements, std::uint32_t slots, std::size_t ranks, std::size_t members,
                                Role role) {
  const std::size_t row = (std::max(ranks, members) + 63) / 64 * sizeof(std::uint64_t);
  // Rows of seen, told, quiet, later, due and asked; two places of Overtaken.
  const std::size_t round = sizeof(SlotState) + sizeof(SlotRest) + 6 * row + 2 * sizeof(std::uint32_t);
  // Twice in an audience; newest and checked of Overtaken; what is below, and what is missing there.
  const std::size_t member = sizeof(Member) + 2 * sizeof(Endpoint) + 4 * sizeof(std::uint64_t) + windows * sizeof(Owed) +
                             sizeof(wire::switchml::Ranks) + sizeof(Job::Reported);
  const std::size_t rank = sizeof(std::uint32_t) + sizeof(Origin);  // its epoch, and where it is
  return memory_bytes(packet_elements, slots, role == Role::below ? 0 : ranks, role == Role::alone ? 0 : members) +
         sizeof(Job) + std::size_t{slots} * windows * 2 * round + members * member + ranks * rank;
}

Switch::Switch(const EndpointCookies& cookies) : probe_answers_(cookies) {}
Switch::~Switch() = default;
Switch::Switch(Switch&&) noexcept = default;
Switch& Switch::operator=(Switch&&) noexcept = default;

Switch::Switch(const Switch& other)
    : fast_(other.fast_),
      counters_(other.counters_),
      batch_(other.batch_),
      added_fast_(other.added_fast_),
      unknown_job_budget_(other.unknown_job_budget_),
      probe_answers_(other.probe_answers_) {
  for (const auto& [epoch, job] : other.jobs_) {
    Job* const copy = jobs_.emplace(epoch, JobState(new Job(*job))).first->second.get();
    if (job.get() == other.last_) last_ = copy;
  }
}

Switch& Switch::operator=(const Switch& other) {
  return *this = Switch(other);
}

void Switch::move_memory(std::uint64_t epoch, std::span<std::byte> memory) {
  Job& job = *jobs_.at(epoch);
  const std::size_t bytes = memory_bytes(job.config);
  NETSUM_CHECK(memory.size() >= bytes);
  std::memcpy(memory.data(), job.memory.data(), bytes);
  job.memory = memory;
}

void Switch::append_state(std::vector<std::byte>& out) const {
  std::vector<const Job*> jobs;
  for (const auto& [epoch, job] : jobs_) jobs.push_back(job.get());
  std::sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) { return a->config.epoch < b->config.epoch; });
  for (const Job* job : jobs) {
    append_bytes(out, job->config.epoch);
    for (const std::uint32_t unheard : job->audience.unheard()) append_bytes(out, unheard);
    for (const std::uint64_t asked : job->audience.asked().words()) append_bytes(out, asked);
    for (const Owed& owed : job->owed) {
      append_bytes(out, owed.count, owed.newest.has_value());
      if (owed.newest) append_bytes(out, owed.newest->first, owed.newest->second);
      for (std::uint32_t i = 0; i < owed.count; ++i) append_bytes(out, owed.rounds[i]);
    }
    for (const SlotState& slot : job->slots) {
      append_bytes(out, slot.used);
      if (!slot.used) continue;
      append_bytes(out, slot.operation, slot.chunk, slot.values, slot.sent, slot.complete, slot.mismatch, slot.checked,
                   slot.masks, slot.exponents, slot.elements, slot.ahead_operation, slot.ahead_chunk, slot.signature,
                   slot.first_rank, slot.other_rank, slot.mismatch ? job->rest_of(slot).other_signature : 0, slot.dtype,
                   slot.op, slot.quiet, slot.due);
      for (std::size_t i = 0; slot.quiet && i < job->config.members.size(); ++i) {
        append_bytes(out, job->quiet.contains(job->number_of(slot), i), job->later.contains(job->number_of(slot), i));
      }
      for (std::size_t i = 0; slot.due && i < job->config.members.size(); ++i) {
        append_bytes(out, job->due.contains(job->number_of(slot), i));
      }
      for (std::size_t bit = 0; bit < job->expected(slot); ++bit) {
        append_bytes(out, job->seen.contains(job->number_of(slot), bit));
      }
      const std::byte* const payload = job->memory_of(slot) + payload_at;
      const std::size_t masks = slot.masks ? 2 * wire::switchml::mask_bytes(slot.elements) : 0;
      const std::size_t bytes = slot.elements * bytes_of(slot.dtype);
      const std::byte* const end = payload + (slot.gathers() ? 0 : bytes + masks);
      out.insert(out.end(), payload - wire::switchml::padded_exponents(slot.exponents), end);
      if (slot.gathers() && slot.exact) {
        const auto there = std::as_bytes(job->parts_there(slot));
        out.insert(out.end(), there.begin(), there.end());
        job->sum_of(slot).append_state(out);
      }
      if (!slot.gathers() || slot.exact || !job->is_root()) continue;
      for (std::uint32_t rank = 0; rank < job->rank_count; ++rank) {
        const std::byte* const gathered = job->gathered(slot, rank);
        if (job->has(slot, rank)) out.insert(out.end(), gathered, gathered + bytes);
      }
    }
  }
}

void Switch::Destroy::operator()(Job* job) const {
  delete job;
}

Switch::JobState Switch::make_job(const SwitchJobConfig& config, std::span<std::byte> memory) {
  if (memory.size() < memory_bytes(config)) return nullptr;
  JobState job(new Job);
  job->config = config;
  const std::size_t members = config.members.size();
  std::vector<std::uint32_t> epochs;
  std::vector<Endpoint> endpoints;
  std::vector<bool> listeners;
  for (const Member& member : config.members) {
    epochs.push_back(member.epoch);
    endpoints.push_back(member.endpoint);
    listeners.push_back(member.listens);
  }
  job->origins.resize(config.tree ? config.tree->rank_epochs.size() : members);
  for (std::uint32_t i = 0; i < members; ++i) {
    const bool is_switch = config.tree && config.tree->is_switch[i];
    const auto below = [&](std::uint32_t rank) {
      job->ranks.insert(rank);
      job->origins[rank] = {.endpoint = endpoints[i],
                            .epoch = is_switch ? config.tree->rank_epochs[rank] : epochs[i],
                            .member = static_cast<std::uint16_t>(i),
                            .is_switch = is_switch};
    };
    config.tree ? config.tree->below[i].for_each(below) : below(i);
  }
  job->rank_count = job->ranks.size();
  if (config.tree) {
    const auto& switches = config.tree->is_switch;
    if (std::find(switches.begin(), switches.end(), true) != switches.end()) job->reported.resize(members);
  }
  job->folded_epochs = wire::fold_epochs(config.tree ? config.tree->rank_epochs : epochs);
  job->audience = Audience(std::move(endpoints), config.group, config.group_within_host, listeners, config.slots * windows);
  job->slots.resize(std::size_t{config.slots} * windows * 2);
  job->rest.resize(job->slots.size());
  job->seen = BitRows(job->slots.size(), job->origins.size());
  job->told = BitRows(job->slots.size(), members);
  job->quiet = BitRows(job->slots.size(), members);
  job->later = BitRows(job->slots.size(), members);
  job->due = BitRows(job->slots.size(), members);
  job->owed.resize(members * windows);
  if (!job->is_root()) job->asked = BitRows(job->slots.size(), members);
  for (Job::Window& window : job->of_window) window.overtaken = stream::Overtaken(config.slots, members);
  job->memory = memory;
  job->slot_bytes = slot_bytes(config.packet_elements);
  if (config.security != PacketSecurity::none) job->seals.reset(new SwitchSeals(config));
  job->gathered_at = job->slot_bytes * job->slots.size();
  job->gathering_bytes =
      gathering_bytes(config.packet_elements, job->is_root() ? job->rank_count : 0, config.tree ? members : 0);
  return job;
}

bool Switch::add_job(JobState&& job) {
  return jobs_.try_emplace(job->config.epoch, std::move(job)).second;
}

Switch::JobState Switch::remove_job(std::uint64_t epoch) {
  last_ = nullptr;
  auto removed = jobs_.extract(epoch);
  return removed.empty() ? nullptr : std::move(removed.mapped());
}

Switch::Job* Switch::find(std::uint64_t epoch) {
  if (last_ != nullptr && last_->config.epoch == epoch) return last_;
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return nullptr;
  return last_ = found->second.get();
}

void Switch::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  ++batch_;
  batch_at_ = now;
  for (const RxView& packet : packets) {
    if (!fast_ || !add_fast(packet, now, sink)) on_packet(packet, now, sink);
  }
}

void Switch::on_packet(const RxView& packet, Time now, Sink& sink) {
  wire::switchml::Common common;
  if (const auto error = wire::switchml::parse_common(packet.bytes, common); error != wire::ParseError::none) {
    ++counters_.malformed[static_cast<std::size_t>(error)];
    return;
  }
  switch (common.type) {
    case wire::switchml::Type::contribution:
    case wire::switchml::Type::exponent_contribution:
    case wire::switchml::Type::empty_contributions:
    case wire::switchml::Type::sum_part:
      if (Job* const job = find(common.job_epoch)) {
        on_contribution(*job, packet, common, now, sink);
      } else {
        on_unknown_job(packet, common, now, sink);
      }
      break;
    case wire::switchml::Type::probe: {
      const wire::ParseError error = probe_answers_.answer(packet, common, sink);
      ++(error == wire::ParseError::none ? counters_.probes : counters_.malformed[static_cast<std::size_t>(error)]);
      break;
    }
    default:
      if (Job* const job = find(common.job_epoch); job != nullptr && job->config.tree) {
        on_tree_packet(*job, packet, common, now, sink);
      } else {
        ++counters_.unexpected_type;
      }
      break;
  }
}

void Switch::on_unknown_job(const RxView& packet, const wire::switchml::Common& common, Time now, Sink& sink) {
  ++counters_.unknown_job;
  // The job's key is gone with the job, and a rank that has one believes no answer without: heartbeats tell it.
  if (common.security != PacketSecurity::none) return;
  if (!unknown_job_budget_.take(now)) return;
  ++counters_.unknown_job_replies;
  wire::switchml::write_unknown_job(sink.datagram(packet.source, wire::switchml::common_bytes), common);
}

// A contribution passes four steps: believe, place, and then add, or answer where its rank's is there already.
void Switch::on_contribution(Job& job, RxView packet, const wire::switchml::Common& common, Time now, Sink& sink) {
  JobCounters& counters = job.counters;
  ++counters.packets;
  counters.bytes += packet.bytes.size();
  const auto sender = believe(job, packet, common);
  if (!sender) return;
  if (common.type == wire::switchml::Type::empty_contributions) return on_run(job, *sender, packet, common, now, sink);
  if (common.type == wire::switchml::Type::sum_part) return on_sum_part(job, *sender, packet, common, now, sink);
  wire::switchml::ChunkPacket chunk;
  if (has_shape(job, *sender, packet, common, chunk)) take(job, *sender, packet, chunk, now, sink);
}

// A rank's, of what it begins at a time; or a child switch's, of what it had together. A rank sends a run in the place of
// the first member, so behind all chunks before that.
void Switch::on_run(Job& job, const Sender& sender, const RxView& packet, const wire::switchml::Common& common, Time now,
                    Sink& sink) {
  wire::switchml::RunPacket all;
  if (sender.from_switch != sender.summed || wire::switchml::parse_run(packet.bytes, common, all) != wire::ParseError::none)
    return job.drop(job.counters.dropped_shape, packet);
  if (!says_its_own(job, sender, all.run.first)) return job.drop(job.counters.dropped_rank, packet);
  const wire::switchml::ChunkHeader& first = all.run.first;
  if (!job.has_slot(all.run.last_slot())) return job.drop(job.counters.dropped_slot, packet);
  job.counters.in_runs += all.run.size() - 1;
  Sender each = sender;
  each.in_run = true;
  std::uint64_t latest = 0;
  std::size_t number = std::size_t{first.slot} * 2;
  job.in_run = !job.is_root();
  all.for_each([&](const wire::switchml::ChunkPacket& chunk) {
    const SlotState* const slot = take(job, each, packet, chunk, now, sink);
    if (slot == nullptr || slot->place < latest) return;
    latest = slot->place;
    if (sender.from_switch) number = job.number_of(*slot);
  });
  job.in_run = false;
  send_together(job, sink);
  tell_losses(job, number, latest, {first.operation, first.chunk, true}, true, sender.member, now, sink);
}

// Of a child switch's sum. It counts as a contribution with its last part, whichever that is.
void Switch::on_sum_part(Job& job, Sender sender, const RxView& packet, const wire::switchml::Common& common, Time now,
                         Sink& sink) {
  JobCounters& counters = job.counters;
  wire::switchml::SumPart part;
  const auto error = wire::switchml::parse_sum_part(packet.bytes, common, part);
  const wire::switchml::ChunkHeader& header = part.chunk.header;
  if (error != wire::ParseError::none || !sender.summed || !has_room(job, header))
    return job.drop(counters.dropped_shape, packet);
  if (header.slot >= job.config.slots) return job.drop(counters.dropped_slot, packet);
  if (sender.rank != job.config.tree->below[sender.member].front()) return job.drop(counters.dropped_rank, packet);
  part.chunk.common.type = wire::switchml::Type::contribution;
  SlotState* const slot = place(job, packet, part.chunk.common, header, sink);
  if (slot == nullptr) return;
  if (slot->mismatch || slot->signature != header.signature)
    return answer_mismatch(job, *slot, packet, sender.rank, header.signature, now, sink);
  if (job.has(*slot, sender.rank)) {
    sender.in_run = true;  // all its parts are answered once
    return answer_repeat(job, *slot, sender, packet, part.chunk.common, header, now, sink);
  }
  const auto bit = std::uint64_t{1} << part.part;
  PartsThere& there = job.parts_there(*slot)[sender.member];
  if (!slot->fits(header) || (there.parts != 0 && there.all != part.parts)) return job.drop(counters.dropped_shape, packet);
  if ((there.parts & bit) != 0) return void(++counters.repeats_silent);
  slot->elements = header.elements;
  kernels::ExactSum sum = job.sum_of(*slot);
  sum.add_part(part.place, part.chunk.payload.data());
  there.parts |= bit;
  there.all = part.parts;
  if (part.place == SumParts::masks) there.masks = 1;
  if (!there.complete()) return void(++counters.parts);
  if (there.masks == 0) sum.add_no_masks();
  slot->take_ahead(header.ahead_operation, header.ahead_chunk, part.chunk.exponents, job.memory_of(*slot) + payload_at);
  count_contribution(job, *slot, sender, packet, part.chunk, now, sink);
  // The other parts of a sum that was repeated for this one are on their way, and ask for nothing.
  if (slot->sent && !slot->complete) job.rest_of(*slot).repeated_at = now;
}

Switch::SlotState* Switch::take(Job& job, const Sender& sender, const RxView& packet,
                                const wire::switchml::ChunkPacket& chunk, Time now, Sink& sink) {
  SlotState* const slot = place(job, packet, chunk.common, chunk.header, sink);
  if (slot == nullptr) return nullptr;
  if (slot->arrived == 0) slot->by_run = sender.in_run;
  if (slot->mismatch || slot->signature != chunk.header.signature) {
    answer_mismatch(job, *slot, packet, sender.rank, chunk.header.signature, now, sink);
  } else if (job.has(*slot, sender.rank)) {
    answer_repeat(job, *slot, sender, packet, chunk.common, chunk.header, now, sink);
  } else {
    add_contribution(job, *slot, sender, packet, chunk, now, sink);
  }
  return slot;
}

std::optional<Switch::Sender> Switch::believe(Job& job, RxView& packet, const wire::switchml::Common& common) {
  JobCounters& counters = job.counters;
  const auto drop = [&](std::uint64_t& counter) {
    job.drop(counter, packet);
    return std::nullopt;
  };
  const std::uint16_t rank = common.sender;
  if (rank >= job.origins.size() || job.origins[rank].member == Origin::no_member) return drop(counters.dropped_rank);
  const Origin& origin = job.origins[rank];
  const bool summed = origin.is_switch && common.rank_epoch == job.folded_epochs;
  const std::uint32_t epoch = summed ? job.folded_epochs : origin.epoch;
  if (common.rank_epoch != epoch) return drop(counters.dropped_rank_epoch);
  if (packet.source != origin.endpoint) return drop(counters.dropped_source);
  if (!job.believe_member(origin.member, packet, common)) return drop(counters.dropped_seal);
  return Sender{rank, origin.member, origin.is_switch, summed, false};
}

bool Switch::has_room(const Job& job, const wire::switchml::ChunkHeader& header) {
  return elements_of_sum(header.dtype, header.elements) * bytes_of(header.dtype) <=
         wire::switchml::most_payload_bytes(job.config.packet_elements, header.dtype, header.op);
}

bool Switch::has_shape(Job& job, const Sender& sender, const RxView& packet, const wire::switchml::Common& common,
                       wire::switchml::ChunkPacket& chunk) {
  JobCounters& counters = job.counters;
  const auto drop = [&](std::uint64_t& counter) {
    job.drop(counter, packet);
    return false;
  };
  if (wire::switchml::parse_chunk(packet.bytes, common, chunk) != wire::ParseError::none)
    return drop(counters.dropped_shape);
  if (!job.has_slot(chunk.header.slot)) return drop(counters.dropped_slot);
  const DType dtype = chunk.header.dtype;
  if (!has_room(job, chunk.header)) return drop(counters.dropped_shape);
  // What spreads values carries words, and there is no memory to gather floats.
  if (chunk.header.slot >= job.config.slots && added_in_order(dtype)) return drop(counters.dropped_slot);
  // A switch sums integers, and short floats in parts; other floats it passes on.
  if (sender.from_switch && (SumParts::of(dtype, chunk.header.op) || sender.summed == added_in_order(dtype)))
    return drop(counters.dropped_shape);
  if (!says_its_own(job, sender, chunk.header)) return drop(counters.dropped_rank);
  return true;
}

// A sum has the number of its lowest rank; ranks wait for no other rank's acknowledgements.
bool Switch::says_its_own(const Job& job, const Sender& sender, const wire::switchml::ChunkHeader& header) {
  return sender.summed ? sender.rank == job.config.tree->below[sender.member].front() : !header.due;
}

// docs/protocol-switchml.md: the identity decides; the other version's state is never touched (Alg. 3, l. 7 does, and is
// wrong). Of the same identity, signatures may differ.
Switch::SlotState* Switch::place(Job& job, const RxView& packet, const wire::switchml::Common& common,
                                 const wire::switchml::ChunkHeader& header, Sink& sink) {
  JobCounters& counters = job.counters;
  const auto drop = [&](std::uint64_t& counter) {
    job.drop(counter, packet);
    return nullptr;
  };
  SlotState& slot = job.slots[std::size_t{header.slot} * 2 + header.version];
  const bool values = common.type == wire::switchml::Type::contribution;
  const auto identity = std::tuple(header.operation, header.chunk, values);
  if (slot.used && slot.operation == header.operation && slot.chunk == header.chunk && slot.signature != header.signature) {
    return &slot;
  }
  if (slot.used && identity < slot.identity()) return drop(counters.dropped_old);
  if (slot.used && identity == slot.identity()) return &slot;
  if (slot.used && !slot.complete) return drop(counters.dropped_early);
  // A slot gathers floats for one version at a time.
  const std::size_t number = job.number_of(slot);
  const SlotState& other = job.slots[number ^ 1U];
  if (added_in_order(header.dtype) && other.gathers()) return drop(counters.dropped_early);
  if (SlotState* const clash = job.another_call(number, header.operation)) return clash;
  open(job, number, header, values, common.sender, sink);
  return &slot;
}

void Switch::open(Job& job, std::size_t number, const wire::switchml::ChunkHeader& header, bool values, std::uint16_t rank,
                  Sink& sink) {
  SlotState& slot = job.slots[number];
  Job::Window& window = job.of_window[job.window_of(number)];
  if (slot.sent_in_batch == batch_) sink.flush();  // its memory is still referenced
  if (slot.quiet) {
    job.quiet.clear(number);
    job.later.clear(number);
  }
  if (slot.due) job.due.clear(number);
  slot = {.operation = header.operation,
          .chunk = header.chunk,
          .signature = header.signature,
          .values = values,
          .used = true,
          .exact = values && job.config.tree && SumParts::of(header.dtype, header.op),
          .dtype = header.dtype,
          .op = header.op,
          .exponents = header.exponents,
          .ahead_operation = header.ahead_operation,
          .ahead_chunk = header.ahead_chunk,
          .first_rank = rank,
          .place = window.overtaken.open(static_cast<std::uint32_t>(number))};
  window.newest = header.operation;
  ++window.open;
  job.seen.clear(number);
  if (slot.exact) {
    std::ranges::fill(job.parts_there(slot), PartsThere());
    job.sum_of(slot).clear();
  }
  if (!job.is_root()) {
    job.rest[number] = {};
    job.rest[number].opened_at = batch_at_;
    job.asked.clear(number);
  }
}

// Alg. 3, l. 18-23
void Switch::answer_repeat(Job& job, SlotState& slot, const Sender& sender, const RxView& packet,
                           const wire::switchml::Common& common, const wire::switchml::ChunkHeader& header, Time now,
                           Sink& sink) {
  if (slot.complete) {
    answer_result(job, slot, sender, header, now, sink);
  } else if (job.is_root() || !(slot.sent || slot.ordered())) {
    answer_waiting(job, slot, sender.member, now, sink);
  } else if (slot.fits(header)) {
    pass_up_repeat(job, slot, packet, common, now, sink);
  } else {
    job.drop(job.counters.dropped_shape, packet);
  }
}

void Switch::add_contribution(Job& job, SlotState& slot, const Sender& sender, const RxView& packet,
                              const wire::switchml::ChunkPacket& chunk, Time now, Sink& sink) {
  if (!accumulate(job, slot, chunk)) return job.drop(job.counters.dropped_shape, packet);
  count_contribution(job, slot, sender, packet, chunk, now, sink);
}

// Its values are in the slot.
void Switch::count_contribution(Job& job, SlotState& slot, const Sender& sender, const RxView& packet,
                                const wire::switchml::ChunkPacket& chunk, Time now, Sink& sink) {
  // What a child switch passes on unsummed says nothing of its other ranks.
  if (chunk.header.acknowledge_only && (!sender.from_switch || sender.summed)) {
    slot.quiet = true;
    job.quiet.insert(job.number_of(slot), sender.member);
    if (chunk.header.later) job.later.insert(job.number_of(slot), sender.member);
  }
  if (chunk.header.due) {
    slot.due = true;
    job.due.insert(job.number_of(slot), sender.member);
  }
  if (job.may_learn(chunk.common, chunk.header)) job.alike.learn(packet.bytes);
  job.count_in(slot, job.bit_of(slot, sender.rank), sender.member, chunk.common.checked);
  if (slot.ordered() && !job.is_root()) {
    pass_up(job, packet, sink);
    ++job.counters.passed_up;
  } else if (slot.arrived == job.expected(slot)) {
    complete(job, slot, sink);
  }
  const bool tells = !sender.in_run && !(sender.from_switch && slot.ordered());
  if (tells) tell_losses(job, job.number_of(slot), slot.place, slot.identity(), false, sender.member, now, sink);
}

// One packet for one, however soon: the last answer may be lost, and its rank finds that out by other results.
void Switch::answer_result(Job& job, SlotState& slot, const Sender& sender, const wire::switchml::ChunkHeader& repeat,
                           Time now, Sink& sink) {
  const std::size_t member = sender.member;
  const bool quiet = slot.quiet && job.quiet.contains(job.number_of(slot), member);
  const bool longer = sender.in_run || (!quiet && repeat.elements < slot.elements);
  if (longer && !may_tell(job, slot, member, now)) return void(++job.counters.repeats_silent);
  ++job.counters.repeats_answered;
  const auto number = static_cast<std::uint32_t>(job.number_of(slot));
  if (quiet) return acknowledge(job, {&number, 1}, member, sink);
  ++job.counters.results_sent;
  slot.sent_in_batch = batch_;
  sink.multicast(job.packet_of(slot), job.audience.rank(member));
  if (job.audience.asked(member, job.number_of(slot))) {
    sink.flush();  // what refers to the destinations leaves before they change
    job.audience.take_out(member);
    ++job.counters.group_unheard;
  }
}

// Alg. 3, l. 8-12. False if the packet does not match the slot's content.
bool Switch::accumulate(Job& job, SlotState& slot, const wire::switchml::ChunkPacket& chunk) {
  const wire::switchml::ChunkHeader& header = chunk.header;
  std::byte* const payload = job.memory_of(slot) + payload_at;
  if (!slot.fits(header)) return false;
  if (slot.exact) {
    slot.elements = header.elements;
    job.sum_of(slot).add(chunk.payload.data());
  } else if (slot.ordered()) {
    slot.elements = header.elements;
    if (job.is_root()) std::memcpy(job.gathered(slot, chunk.common.sender), chunk.payload.data(), chunk.payload.size());
  } else if (header.elements != 0) {
    if (slot.elements == 0) {
      std::memcpy(payload, chunk.payload.data(), chunk.payload.size());
      slot.elements = header.elements;
    } else if (slot.elements == header.elements) {
      add(slot, payload, chunk.payload.data());
    } else {
      return false;
    }
  }
  if (header.masks) {
    std::byte* const masks = payload + std::size_t{slot.elements} * 4;  // of int32
    if (slot.masks) {
      kernels::or_bytes(masks, chunk.masks.data(), chunk.masks.size());
    } else {
      std::memcpy(masks, chunk.masks.data(), chunk.masks.size());
      slot.masks = true;
    }
  }
  slot.take_ahead(header.ahead_operation, header.ahead_chunk, chunk.exponents, payload);
  return true;
}

// In rank order, regardless of the order of arrival: the same bits in every run (docs/numerics.md).
void Switch::sum_gathered(const Job& job, SlotState& slot) {
  std::array<const std::byte*, wire::switchml::max_workers> sources;
  const std::size_t ranks = job.rank_count;
  for (std::size_t rank = 0; rank < ranks; ++rank) sources[rank] = job.gathered(slot, rank);
  std::byte* const out = job.memory_of(slot) + payload_at;
  kernels::combine_in_order(slot.op, slot.dtype, out, std::span(sources).first(ranks), slot.elements,
                            slot.op == ReduceOp::avg ? static_cast<std::uint32_t>(ranks) : 1);
  slot.elements = static_cast<std::uint16_t>(elements_of_sum(slot.dtype, slot.elements));
}

wire::switchml::ChunkHeader Switch::header_of(const Job& job, const SlotState& slot) {
  const std::size_t number = job.number_of(slot);
  const bool below = !job.is_root(), quiet = below && all_quiet(job, slot), due = below && has_due(job, slot);
  return {.operation = slot.operation,
          .chunk = slot.chunk,
          .signature = slot.signature,
          .slot = static_cast<std::uint16_t>(number / 2),
          .version = static_cast<std::uint8_t>(number & 1),
          .masks = slot.masks,
          .exponents = slot.exponents,
          .elements = slot.elements,
          .ahead_operation = slot.ahead_operation,
          .ahead_chunk = slot.ahead_chunk,
          .dtype = slot.dtype,
          .op = slot.op,
          .acknowledge_only = quiet,
          .later = quiet && !due,
          .due = !quiet && due};
}

// Alg. 3, l. 13-15; below the root, the sum goes upstream in place of the result.
void Switch::complete(Job& job, SlotState& slot, Sink& sink) {
  NETSUM_CHECK(job.seen.count(job.number_of(slot)) == job.expected(slot));
  if (slot.ordered()) sum_gathered(job, slot);
  if (slot.exact) end_exact(job, slot);
  if (job.is_root() || !slot.exact) write_packet(job, slot);
  ++job.counters.chunks;
  if (!job.is_root()) {
    slot.sent = true;
    if (!job.in_run || !slot.values || slot.elements != 0) return send_sum(job, slot, sink);
    return void(job.together[job.together_count++] = static_cast<std::uint32_t>(job.number_of(slot)));
  }
  job.finish(slot);
  send_result(job, slot, sink);
}

// The result at the root; else the sum is ready for its parts.
void Switch::end_exact(const Job& job, SlotState& slot) {
  kernels::ExactSum sum = job.sum_of(slot);
  if (!job.is_root()) return sum.settle();
  sum.round(job.memory_of(slot) + payload_at, slot.op == ReduceOp::avg ? static_cast<std::uint32_t>(job.rank_count) : 1);
  slot.elements = static_cast<std::uint16_t>(elements_of_sum(slot.dtype, slot.elements));
}

// What goes upstream, or the result, around the values in the slot's memory.
void Switch::write_packet(Job& job, SlotState& slot) {
  using wire::switchml::Type;
  const bool root = job.is_root();
  const wire::switchml::ChunkHeader header = header_of(job, slot);
  if (root ? slot.quiet : job.in_run) {
    std::memcpy(job.rest_of(slot).exponents.data(),
                job.memory_of(slot) + payload_at - wire::switchml::padded_exponents(slot.exponents), slot.exponents);
  }
  seal::Sealer* const sealer = !job.seals ? nullptr : root ? job.seals->results() : job.seals->to(*job.config.tree->parent);
  slot.result_bytes =
      static_cast<std::uint32_t>(wire::switchml::chunk_packet_bytes(header) + (sealer != nullptr ? sealer->trailer() : 0));
  const std::span<std::byte> packet = job.packet_of(slot);
  const Type type = root ? (slot.values ? Type::result : Type::exponent_result)
                         : (slot.values ? Type::contribution : Type::exponent_contribution);
  const auto sender = static_cast<std::uint16_t>(root ? 0 : job.ranks.front());
  wire::switchml::write_chunk_header(packet, {type, sender, job.config.epoch, job.folded_epochs, slot.checked}, header);
  seal_packet(packet, sealer);
}

void Switch::send_result(Job& job, SlotState& slot, Sink& sink) {
  slot.sent_in_batch = batch_;
  if (slot.told) job.told.clear(job.number_of(slot));  // of what they were told until now
  const std::size_t members = job.config.members.size();
  const std::size_t quiet = slot.quiet ? job.quiet.count(job.number_of(slot)) : 0;
  // Before the result, so that a child switch has both when it ends this round.
  for (std::size_t i = 0; slot.due && i < members; ++i) {
    if (!job.due.contains(job.number_of(slot), i)) continue;
    Owed& owed = job.owed_to(i, job.number_of(slot));
    owed.newest = std::max(owed.newest, std::optional(std::pair(slot.operation, slot.chunk)));
    owe_no_more(job, job.number_of(slot), i, sink);
  }
  // A group's packet is one for all, also for those that want no values.
  if (quiet == 0 || (job.audience.grouped() && members - quiet > 1)) {
    job.counters.results_sent += job.audience.everyone().size();
    if (job.audience.grouped()) ++job.counters.results_to_group;
    sink.multicast(job.packet_of(slot), job.audience.everyone());
    return;
  }
  job.counters.results_sent += members - quiet;
  for (std::size_t i = 0; i < members; ++i) {
    if (job.quiet.contains(job.number_of(slot), i)) {
      owe(job, slot, i, sink);
    } else {
      sink.multicast(job.packet_of(slot), job.audience.rank(i));
    }
  }
}

// The round is complete, and the member wants no values of it.
void Switch::owe(Job& job, const SlotState& slot, std::size_t member, Sink& sink) {
  const auto number = static_cast<std::uint32_t>(job.number_of(slot));
  const std::pair identity(slot.operation, slot.chunk);
  Owed& owed = job.owed_to(member, number);
  const auto end = owed.rounds.begin() + owed.count;
  if (std::find(owed.rounds.begin(), end, number) == end) owed.rounds[owed.count++] = number;
  const bool later = job.later.contains(number, member);
  if (later && identity > owed.newest && owed.count < owed.rounds.size()) return;
  if (!later) owed.newest = std::max(owed.newest, std::optional(identity));
  owe_no_more(job, number, member, sink);
}

void Switch::owe_no_more(Job& job, std::size_t number, std::size_t member, Sink& sink) {
  Owed& owed = job.owed_to(member, number);
  const std::span rounds = std::span(owed.rounds).first(std::exchange(owed.count, 0));
  std::sort(rounds.begin(), rounds.end(),
            [&](std::uint32_t a, std::uint32_t b) { return job.slots[a].identity() < job.slots[b].identity(); });
  acknowledge(job, rounds, member, sink);
}

// The rounds' results without their values, in the order of their identities. One that has gone on since was answered.
void Switch::acknowledge(Job& job, std::span<const std::uint32_t> rounds, std::size_t member, Sink& sink) {
  using wire::switchml::Type;
  wire::switchml::Run run;
  std::array<const std::byte*, wire::switchml::Run::most> exponents;
  bool checked = false;
  const auto send = [&] {
    const bool alone = run.size() == 1;
    const wire::switchml::Common common{alone ? Type::acknowledgement : Type::acknowledgements, 0, job.config.epoch,
                                        job.folded_epochs, std::exchange(checked, false)};
    const wire::switchml::ChunkHeader only = run.member(0);
    const std::size_t header = alone ? wire::switchml::chunk_header_bytes : wire::switchml::run_header_bytes;
    ++job.counters.results_sent;
    ++job.counters.acknowledgements;
    job.send(job.member(member).endpoint, header + wire::switchml::padded_exponents(run.size() * only.exponents), sink,
             [&](std::span<std::byte> packet) {
               alone ? wire::switchml::write_chunk_header(packet, common, only)
                     : wire::switchml::write_run_header(packet, common, run);
               for (std::size_t i = 0; i < run.size(); ++i) {
                 std::memcpy(packet.data() + header + i * only.exponents, exponents[i], only.exponents);
               }
               wire::switchml::seal(packet);
             });
    run = {};
  };
  for (const std::uint32_t number : rounds) {
    const SlotState& slot = job.slots[number];
    if (!slot.complete || !slot.quiet || !job.quiet.contains(number, member)) continue;
    const wire::switchml::ChunkHeader header{.operation = slot.operation,
                                             .chunk = slot.chunk,
                                             .signature = slot.signature,
                                             .slot = static_cast<std::uint16_t>(number / 2),
                                             .version = static_cast<std::uint8_t>(number % 2),
                                             .exponents = slot.exponents,
                                             .ahead_operation = slot.ahead_operation,
                                             .ahead_chunk = slot.ahead_chunk,
                                             .dtype = slot.dtype,
                                             .op = slot.op};
    if (!run.take(header)) {
      send();
      static_cast<void>(run.take(header));
    }
    exponents[run.size() - 1] = job.rest[number].exponents.data();
    checked |= slot.checked;
  }
  if (run.size() != 0) send();
}

bool Switch::may_tell(Job& job, SlotState& slot, std::size_t member, Time now) {
  const std::size_t number = job.number_of(slot);
  Time& told_since = job.rest[number].told_since;
  if (!std::exchange(slot.told, true)) {
    job.told.clear(number);
    told_since = {};
  }
  if (now - told_since >= waiting_interval) {
    job.told.clear(number);
    told_since = now;
  }
  if (job.told.contains(number, member)) return false;
  job.told.insert(number, member);
  return true;
}

// By the contribution at a place, which the member sends behind all rounds before `behind`. Not for child switches: they
// decide by themselves, as they send sums in the order in which their ranks let them.
void Switch::tell_losses(Job& job, std::size_t number, std::uint64_t place, const Identity& behind, bool in_run,
                         std::size_t member, Time now, Sink& sink) {
  stream::Overtaken& overtaken = job.of_window[job.window_of(number)].overtaken;
  overtaken.contributed(static_cast<std::uint32_t>(member), place, [&](std::uint32_t round, std::uint64_t opened) {
    SlotState& other = job.slots[round];
    const std::uint32_t rank = job.config.tree ? job.config.tree->below[member].front() : static_cast<std::uint32_t>(member);
    if (other.place != opened || other.complete || other.mismatch || job.has(other, rank)) return true;
    const bool from_switch = job.config.tree && job.config.tree->is_switch[member];
    if (from_switch && other.ordered()) return true;  // one bit says nothing of its ranks
    // Of two ranks' runs either may be sooner, and so may values that a run's own rank sends behind it.
    if ((in_run || other.by_run) && other.identity() > behind) return false;
    if (!may_tell(job, other, member, now)) return true;
    ++job.counters.losses_told;
    tell_waiting(job, other, member, sink,
                 from_switch ? static_cast<std::uint32_t>(number) : wire::switchml::WaitingPacket::not_overtaken);
    return true;
  });
}

void Switch::answer_waiting(Job& job, SlotState& slot, std::size_t member, Time now, Sink& sink) {
  if (!may_tell(job, slot, member, now)) return void(++job.counters.repeats_silent);
  ++job.counters.repeats_waiting;
  tell_waiting(job, slot, member, sink);
  if (!job.reported.empty()) ask_children(job, slot, now, sink);
}

void Switch::tell_waiting(Job& job, const SlotState& slot, std::size_t member, Sink& sink, std::uint32_t overtaken_by) {
  const wire::switchml::Common common{wire::switchml::Type::waiting, 0, job.config.epoch, job.folded_epochs};
  const wire::switchml::Ranks missing = job.missing(slot);
  job.send(job.member(member).endpoint, wire::switchml::waiting_bytes(missing), sink, [&](std::span<std::byte> packet) {
    wire::switchml::write_waiting(
        packet, {common, slot.operation, slot.chunk, static_cast<std::uint16_t>(job.number_of(slot) / 2), !slot.values,
                 missing, overtaken_by});
  });
}

// Tells everybody once; after that, who contributes again is told alone, as the first answer may be lost.
void Switch::answer_mismatch(Job& job, SlotState& slot, const RxView& packet, std::uint16_t rank, std::uint32_t signature,
                             Time now, Sink& sink) {
  job.drop(job.counters.dropped_mismatch, packet);
  const bool first = !slot.mismatch;
  if (first) {
    slot.mismatch = true;
    slot.complete = false;
    slot.other_rank = rank;
    job.rest_of(slot).other_signature = signature;
  }
  const std::size_t member = job.origins[rank].member;
  if (!first) {
    if (may_tell(job, slot, member, now)) tell_mismatch(job, slot, job.member(member).endpoint, sink);
    return;
  }
  for (const Endpoint& endpoint : job.audience.ranks()) tell_mismatch(job, slot, endpoint, sink);
  if (!job.is_root()) tell_mismatch(job, slot, *job.config.tree->parent, sink);
}

void Switch::tell_mismatch(const Job& job, const SlotState& slot, const Endpoint& to, Sink& sink) {
  const wire::switchml::MismatchPacket mismatch{{wire::switchml::Type::mismatch, 0, job.config.epoch, job.folded_epochs},
                                                slot.operation,
                                                slot.chunk,
                                                slot.signature,
                                                job.rest_of(slot).other_signature,
                                                slot.first_rank,
                                                slot.other_rank};
  job.send(to, wire::switchml::mismatch_bytes, sink,
           [&](std::span<std::byte> packet) { wire::switchml::write_mismatch(packet, mismatch); });
}

const JobCounters* Switch::job_counters(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->counters;
}

const DropSources<JobCounters>* Switch::drop_sources(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->drops;
}

std::uint32_t Switch::slots_in_use(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return 0;
  const auto& slots = found->second->slots;
  return static_cast<std::uint32_t>(
      std::count_if(slots.begin(), slots.end(), [](const SlotState& slot) { return slot.used && !slot.complete; }));
}

std::vector<StalledChunk> Switch::stalled(std::uint64_t epoch, std::size_t most) const {
  std::vector<StalledChunk> chunks;
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return chunks;
  const Job& job = *found->second;
  for (std::size_t i = 0; i < job.slots.size(); ++i) {
    const SlotState& slot = job.slots[i];
    if (slot.used && !slot.complete && !slot.sent) {
      chunks.push_back({slot.operation, slot.chunk, static_cast<std::uint32_t>(i / 2), job.missing(slot)});
    }
  }
  std::sort(chunks.begin(), chunks.end(), [](const StalledChunk& a, const StalledChunk& b) {
    return std::tie(a.operation, a.chunk) < std::tie(b.operation, b.chunk);
  });
  if (chunks.size() > most) chunks.resize(most);
  return chunks;
}

}  // namespace netsum::switchml
