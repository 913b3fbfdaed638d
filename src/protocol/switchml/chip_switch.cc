#include "protocol/switchml/chip_switch.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/cache_line.h"
#include "base/check.h"
#include "protocol/switchml/chip_slots.h"
#include "protocol/switchml/chip_stalled.h"

namespace netsum::switchml {
namespace {

using wire::chip::header_bytes;

// A slot's memory is a packet in place: the header ends where the sums begin, at a cache line.
constexpr std::size_t sums_at = cache_line;
static_assert(sums_at >= header_bytes);

ChipRound round_of(const wire::chip::Header& header) {
  return {header.slot, header.version, header.round};
}

std::size_t chip_slot_bytes(std::uint32_t packet_elements) {
  return whole_lines(sums_at + std::size_t{packet_elements} * 4);
}

}  // namespace

struct ChipSwitch::Job {
  // Of one version of one slot, beside its registers.
  struct Note {
    std::uint64_t operation = 0;  // of the round's first packet, for reports
    std::uint32_t chunk = 0;
    std::uint64_t sent_in_batch = 0;  // the last batch in which the sink referenced the memory
  };

  SwitchJobConfig config;
  std::vector<Endpoint> members;
  ChipSlots slots;
  std::vector<Note> notes;  // [slot * 2 + version]
  std::span<std::byte> memory;
  std::size_t slot_bytes = 0;
  JobCounters counters;
  DropSources<JobCounters> drops;

  void drop(std::uint64_t& counter, const RxView& packet) { drops.drop(counters, counter, packet.source); }
  [[nodiscard]] const std::optional<Endpoint>& parent() const { return config.tree->parent; }
  [[nodiscard]] bool is_root() const { return !config.tree || !parent(); }
  [[nodiscard]] std::byte* sums_of(std::size_t number) const { return memory.data() + number * slot_bytes + sums_at; }
  [[nodiscard]] std::byte* sums_of(const ChipRound& of) const { return sums_of(ChipSlots::index(of)); }
  [[nodiscard]] std::size_t payload_bytes() const { return std::size_t{config.packet_elements} * 4; }
};

std::size_t ChipSwitch::memory_bytes(std::uint32_t packet_elements, std::uint32_t slots) {
  return chip_slot_bytes(packet_elements) * 2 * slots;
}

std::size_t ChipSwitch::total_bytes(std::uint32_t packet_elements, std::uint32_t slots) {
  return memory_bytes(packet_elements, slots) + sizeof(Job) +
         std::size_t{slots} * 2 * (sizeof(Job::Note) + ChipSlots::bytes_of_one);
}

ChipSwitch::ChipSwitch() = default;
ChipSwitch::~ChipSwitch() = default;
ChipSwitch::ChipSwitch(ChipSwitch&&) noexcept = default;
ChipSwitch& ChipSwitch::operator=(ChipSwitch&&) noexcept = default;

ChipSwitch::ChipSwitch(const ChipSwitch& other) : counters_(other.counters_), batch_(other.batch_) {
  for (const auto& [epoch, job] : other.jobs_) jobs_.emplace(epoch, JobState(new Job(*job)));
}

ChipSwitch& ChipSwitch::operator=(const ChipSwitch& other) {
  return *this = ChipSwitch(other);
}

void ChipSwitch::move_memory(std::uint64_t epoch, std::span<std::byte> memory) {
  Job& job = *jobs_.at(epoch);
  const std::size_t bytes = memory_bytes(job.config.packet_elements, job.config.slots);
  NETSUM_CHECK(memory.size() >= bytes);
  std::memcpy(memory.data(), job.memory.data(), bytes);
  job.memory = memory;
}

void ChipSwitch::append_state(std::vector<std::byte>& out) const {
  std::vector<const Job*> jobs;
  for (const auto& [epoch, job] : jobs_) jobs.push_back(job.get());
  std::sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) { return a->config.epoch < b->config.epoch; });
  for (const Job* job : jobs) {
    append_bytes(out, job->config.epoch);
    job->slots.append_state(out);
    for (std::size_t number = 0; number < job->slots.size(); ++number) {
      if (!job->slots.was_used(number)) continue;
      const std::byte* const sums = job->sums_of(number);
      out.insert(out.end(), sums, sums + job->payload_bytes());
    }
  }
}

void ChipSwitch::Destroy::operator()(Job* job) const {
  delete job;
}

ChipSwitch::JobState ChipSwitch::make_job(const SwitchJobConfig& config, std::span<std::byte> memory) {
  if (!wire::chip::possible_packet(config.packet_elements) || config.members.size() > wire::chip::max_members ||
      memory.size() < memory_bytes(config.packet_elements, config.slots)) {
    return nullptr;
  }
  JobState job(new Job);
  job->config = config;
  for (const Member& member : config.members) job->members.push_back(member.endpoint);
  job->slots = ChipSlots(config.slots, static_cast<std::uint32_t>(config.members.size()), job->is_root());
  job->notes.resize(job->slots.size());
  job->memory = memory;
  job->slot_bytes = chip_slot_bytes(config.packet_elements);
  return job;
}

bool ChipSwitch::add_job(JobState&& job) {
  return jobs_.try_emplace(job->config.epoch, std::move(job)).second;
}

ChipSwitch::JobState ChipSwitch::remove_job(std::uint64_t epoch) {
  last_ = nullptr;
  auto removed = jobs_.extract(epoch);
  return removed.empty() ? nullptr : std::move(removed.mapped());
}

ChipSwitch::Job* ChipSwitch::find(std::uint64_t epoch) {
  if (last_ != nullptr && last_->config.epoch == epoch) return last_;
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return nullptr;
  return last_ = found->second.get();
}

void ChipSwitch::on_packets(std::span<const RxView> packets, Time, Sink& sink) {
  ++batch_;
  for (const RxView& packet : packets) on_packet(packet, sink);
}

void ChipSwitch::on_packet(const RxView& packet, Sink& sink) {
  wire::chip::Packet parsed;
  if (const auto error = wire::chip::parse(packet.bytes, parsed); error != wire::ParseError::none) {
    return void(++counters_.malformed[static_cast<std::size_t>(error)]);
  }
  const wire::chip::Header& header = parsed.header;
  Job* const job = find(header.job_epoch);
  if (job == nullptr) return void(++counters_.unknown_job);
  const bool is_result = header.type == wire::chip::Type::result;
  if (is_result && job->is_root()) return void(++counters_.unexpected_type);

  JobCounters& counters = job->counters;
  ++counters.packets;
  counters.bytes += packet.bytes.size();
  if (!is_result && header.member >= job->members.size()) return job->drop(counters.dropped_rank, packet);
  if (packet.source != (is_result ? *job->parent() : job->members[header.member]))
    return job->drop(counters.dropped_source, packet);
  if (header.slot >= job->config.slots) return job->drop(counters.dropped_slot, packet);
  if (parsed.payload.size() != job->payload_bytes()) return job->drop(counters.dropped_shape, packet);
  if (is_result) return on_result(*job, packet, parsed, sink);

  const ChipRound of = round_of(header);
  Job::Note& note = job->notes[ChipSlots::index(of)];
  const auto entry = job->slots.consume(of, header.member);
  if (entry.adds) {
    ++counters.contributions;
    if (entry.first) {
      if (note.sent_in_batch == batch_) sink.flush();  // its memory is still referenced
      note = {header.echoed.operation, header.echoed.chunk, 0};
    }
    job->slots.add(of, entry, header.exponents, parsed.payload, job->sums_of(of));
  }
  // The second pass comes at once: nothing is lost or late between the two.
  if (entry.again != ChipPass::none) return second_pass(*job, packet, header, entry.again, !entry.adds, sink);
  if (entry.adds) return;
  if (entry.accepted) return void(++counters.repeats_silent);
  job->drop(job->slots.is_early(of) ? counters.dropped_early : counters.dropped_old, packet);
}

// `repeats`: the packet, whose outcome is not counted yet.
void ChipSwitch::second_pass(Job& job, const RxView& packet, wire::chip::Header header, ChipPass pass, bool repeats,
                             Sink& sink) {
  JobCounters& counters = job.counters;
  const ChipRound of = round_of(header);
  std::byte* const sums = job.sums_of(of);
  const std::span<std::byte> in_place(sums - header_bytes, header_bytes + job.payload_bytes());
  header.exponents = job.slots.exponents(of);
  if (pass == ChipPass::upstream) {
    header.member = static_cast<std::uint8_t>(job.config.tree->number);
    wire::chip::write_header(in_place, header);
    ++(repeats ? counters.repeats_passed_up : counters.chunks);
    ++counters.sums_sent;
    if (repeats) ++counters.sums_repeated;
    job.notes[ChipSlots::index(of)].sent_in_batch = batch_;
    return sink.multicast(in_place, {&*job.parent(), 1});
  }
  header.type = wire::chip::Type::result;
  if (job.slots.harvest(of)) {
    wire::chip::write_header(in_place, header);
    ++counters.chunks;
    return send_to_all(job, of, in_place, sink);
  }
  const std::span<std::byte> result = sink.datagram(packet.source, in_place.size());
  wire::chip::write_header(result, header);
  std::memcpy(result.data() + header_bytes, sums, job.payload_bytes());
  ++counters.repeats_answered;
  ++counters.results_sent;
}

// From the parent.
void ChipSwitch::on_result(Job& job, const RxView& packet, const wire::chip::Packet& parsed, Sink& sink) {
  const ChipRound of = round_of(parsed.header);
  if (!job.slots.close(of)) return void(++job.counters.dropped_stale);
  ++job.counters.results_taken;
  if (job.notes[ChipSlots::index(of)].sent_in_batch == batch_) sink.flush();  // the sum is still referenced
  std::byte* const sums = job.sums_of(of);
  job.slots.store(of, parsed.header.exponents, parsed.payload, sums);
  std::memcpy(sums - header_bytes, packet.bytes.data(), header_bytes);
  send_to_all(job, of, {sums - header_bytes, packet.bytes.size()}, sink);
}

void ChipSwitch::send_to_all(Job& job, const ChipRound& of, std::span<const std::byte> result, Sink& sink) {
  job.counters.results_sent += job.members.size();
  job.notes[ChipSlots::index(of)].sent_in_batch = batch_;
  sink.multicast(result, job.members);
}

const JobCounters* ChipSwitch::job_counters(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->counters;
}

const DropSources<JobCounters>* ChipSwitch::drop_sources(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->drops;
}

std::uint32_t ChipSwitch::slots_in_use(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? 0 : found->second->slots.open();
}

std::vector<StalledChunk> ChipSwitch::stalled(std::uint64_t epoch, std::size_t most) const {
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return {};
  const Job& job = *found->second;
  return chip_stalled(job.config, most, [&](std::size_t number) {
    return ChipWaiting{job.slots.missing(number), job.notes[number].operation, job.notes[number].chunk};
  });
}

}  // namespace netsum::switchml
