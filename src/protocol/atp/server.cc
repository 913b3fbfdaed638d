#include "protocol/atp/server.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/kernels.h"
#include "protocol/atp/packet_memory.h"
#include "protocol/atp/scaled_codec.h"

namespace netsum::atp {

using wire::ParseError;
using wire::atp::Common;
using wire::atp::GradientPacket;
using wire::atp::Type;

namespace {

// A repeat of an incomplete chunk is answered at most this often, per chunk and rank: the workers' shortest time-out. The
// same limit applies to repeats that are shorter than their answer, to repeated sums and to asks.
constexpr Duration answer_interval = std::chrono::milliseconds(1);

// Float values are buffered until all ranks' have arrived, because they are added in rank order. As many chunks as fit do
// that at once; the others queue.
constexpr std::size_t float_bytes = 16 << 20;
constexpr std::size_t most_float_buffers = 8;

constexpr std::uint32_t no_buffer = UINT32_MAX;

void append_ranks(std::vector<std::byte>& out, const Ranks& ranks) {
  append_bytes(out, ranks.words().size());
  for (const std::uint64_t word : ranks.words()) append_bytes(out, word);
}

std::size_t float_buffer_bytes(std::uint32_t packet_elements, std::uint32_t world_size) {
  return whole_lines(std::size_t{packet_elements} * 4 * world_size);
}
std::size_t float_buffers(std::uint32_t packet_elements, std::uint32_t world_size) {
  return std::clamp<std::size_t>(float_bytes / float_buffer_bytes(packet_elements, world_size), 1, most_float_buffers);
}

}  // namespace

// The sum of one sequence number, later its result.
struct Server::Entry {
  enum class State : std::uint8_t {
    unused,
    collecting,
    queued,  // overflowed; waiting for a buffer
    floats,  // overflowed; collecting float values
    complete,
    mismatch,
  } state = State::unused;
  std::uint64_t sequence = 0;
  std::uint32_t signature = 0, index = 0;
  std::uint16_t elements = 0;
  std::uint8_t exponent = 0;        // of the chunk one window later
  std::uint8_t float_exponent = 0;  // of this one, from the packets of floats
  bool wide = false, overflow = false, ecn = false, collision = false, as_floats = false;
  bool checked = false;  // a packet in it had a checksum
  Ranks seen{};
  Ranks float_seen{};
  std::uint32_t buffer = no_buffer;
  std::uint32_t other_rank = 0, other_signature = 0, first_rank = 0;  // mismatch
  Ranks told{};  // ranks answered since told_since, with whatever it was
  Time told_since{}, completed{}, repeated{}, asked{};
  std::uint64_t sent_in_batch = 0;  // the last batch in which the sink referenced the memory
  std::uint32_t result_bytes = 0;   // once complete
};

struct Server::Job {
  ServerJobConfig config;
  Ranks all;
  std::vector<Entry> ring;  // by sequence number
  std::span<std::byte> memory;
  std::size_t entry_bytes = 0, buffer_bytes = 0;
  std::vector<std::uint32_t> free_buffers;
  std::deque<std::uint64_t> queue;  // sequence numbers waiting for a float buffer
  std::vector<double> float_sum, scaled_sum;
  Ranks direct;  // ranks without a switch on the path: results are sent to them directly
  std::vector<Endpoint> direct_endpoints;
  std::vector<Endpoint> known_roots;  // roots with a known endpoint
  ServerJobCounters counters;
  DropSources<ServerJobCounters> drops;

  void drop(std::uint64_t& counter, const RxView& packet) { drops.drop(counters, counter, packet.source); }

  void move(const std::vector<Endpoint>& roots) {
    config.roots = roots;
    known_roots.clear();
    for (const Endpoint& root : roots) {
      if (root.port != 0) known_roots.push_back(root);
    }
  }
  [[nodiscard]] std::uint64_t long_queue() const {
    return long_queue_bytes(config.topology.world_size(), config.packet_elements, config.window);
  }
  [[nodiscard]] Entry& at(std::uint64_t sequence) { return ring[sequence % ring.size()]; }
  [[nodiscard]] std::byte* memory_of(const Entry& entry) const {
    return memory.data() + static_cast<std::size_t>(&entry - ring.data()) * entry_bytes;
  }
  [[nodiscard]] std::byte* buffer_of(std::uint32_t buffer, std::uint32_t rank) const {
    return memory.data() + ring.size() * entry_bytes + buffer * buffer_bytes +
           std::size_t{rank} * config.packet_elements * 4;
  }
  [[nodiscard]] std::span<std::byte> result_of(const Entry& entry) const {
    return {memory_of(entry) + parameter_at - wire::atp::parameter_header_bytes, entry.result_bytes};
  }
  [[nodiscard]] Common answer(Type type, const Entry& entry) const {
    Common common;
    common.type = type;
    common.job_epoch = config.epoch;
    common.rank_epoch = config.folded_epochs;
    common.sequence = entry.sequence;
    common.signature = entry.signature;
    common.index = entry.index;
    return common;
  }
};

std::size_t Server::memory_bytes(std::uint32_t packet_elements, std::uint32_t window, std::uint32_t world_size) {
  return packet_memory(parameter_at, packet_elements) * 2 * window +
         float_buffers(packet_elements, world_size) * float_buffer_bytes(packet_elements, world_size);
}

std::size_t Server::total_bytes(std::uint32_t packet_elements, std::uint32_t window, std::uint32_t world_size) {
  return memory_bytes(packet_elements, window, world_size) + sizeof(Job) + std::size_t{window} * 2 * sizeof(Entry) +
         packet_elements * 2 * sizeof(double) + world_size * (sizeof(ServerMember) + 4 * sizeof(Endpoint));
}

Server::Server() = default;
Server::~Server() = default;
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;

Server::Server(const Server& other)
    : counters_(other.counters_),
      batch_(other.batch_),
      long_queue_(other.long_queue_),
      unknown_job_budget_(other.unknown_job_budget_) {
  for (const auto& [epoch, job] : other.jobs_) jobs_.emplace(epoch, JobState(new Job(*job)));
}

Server& Server::operator=(const Server& other) {
  return *this = Server(other);
}

void Server::move_memory(std::uint64_t epoch, std::span<std::byte> memory) {
  Job& job = *jobs_.at(epoch);
  const ServerJobConfig& c = job.config;
  const std::size_t bytes = memory_bytes(c.packet_elements, c.window, c.topology.world_size());
  NETSUM_CHECK(memory.size() >= bytes);
  std::memcpy(memory.data(), job.memory.data(), bytes);
  job.memory = memory;
}

void Server::append_state(std::vector<std::byte>& out) const {
  std::vector<const Job*> jobs;
  for (const auto& [epoch, job] : jobs_) jobs.push_back(job.get());
  std::sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) { return a->config.epoch < b->config.epoch; });
  for (const Job* job : jobs) {
    append_bytes(out, job->config.epoch);
    append_ranks(out, job->direct);
    for (const std::uint64_t sequence : job->queue) append_bytes(out, sequence);
    for (const Entry& entry : job->ring) {
      append_bytes(out, entry.state);
      if (entry.state == Entry::State::unused) continue;
      append_bytes(out, entry.sequence, entry.signature, entry.index, entry.elements, entry.exponent, entry.float_exponent,
                   entry.wide, entry.overflow, entry.ecn, entry.collision, entry.as_floats, entry.checked, entry.buffer,
                   entry.other_rank, entry.other_signature, entry.first_rank, entry.result_bytes);
      append_ranks(out, entry.seen);
      append_ranks(out, entry.float_seen);
      const std::byte* const payload = job->memory_of(entry) + parameter_at;
      const bool wide = entry.wide && entry.state == Entry::State::collecting;
      out.insert(out.end(), payload,
                 payload + std::size_t{entry.elements} * 4 + (wide ? wire::atp::high_bytes(entry.elements) : 0));
      entry.float_seen.for_each([&](std::uint32_t rank) {
        if (entry.buffer == no_buffer) return;
        const std::byte* const values = job->buffer_of(entry.buffer, rank);
        out.insert(out.end(), values, values + std::size_t{entry.elements} * 4);
      });
    }
  }
}

void Server::Destroy::operator()(Job* job) const {
  delete job;
}

Server::JobState Server::make_job(const ServerJobConfig& config, std::span<std::byte> memory) {
  const std::uint32_t world_size = config.topology.world_size();
  if (memory.size() < memory_bytes(config.packet_elements, config.window, world_size)) return nullptr;
  JobState job(new Job);
  job->config = config;
  job->move(config.roots);
  job->all = Ranks::first(world_size);
  job->ring.resize(std::size_t{config.window} * 2);
  job->memory = memory;
  job->entry_bytes = packet_memory(parameter_at, config.packet_elements);
  job->buffer_bytes = float_buffer_bytes(config.packet_elements, world_size);
  for (std::size_t i = float_buffers(config.packet_elements, world_size); i > 0; --i) {
    job->free_buffers.push_back(static_cast<std::uint32_t>(i - 1));
  }
  job->float_sum.resize(config.packet_elements);
  job->scaled_sum.resize(config.packet_elements);
  job->direct_endpoints.reserve(world_size);
  return job;
}

bool Server::add_job(JobState&& job) {
  const auto [added, unknown] = jobs_.try_emplace(job->config.epoch, std::move(job));
  if (unknown) long_queue_ += added->second->long_queue();
  return unknown;
}

Server::JobState Server::remove_job(std::uint64_t epoch) {
  last_ = nullptr;
  auto removed = jobs_.extract(epoch);
  if (removed.empty()) return nullptr;
  long_queue_ -= removed.mapped()->long_queue();
  return std::move(removed.mapped());
}

void Server::move_roots(std::uint64_t epoch, const std::vector<Endpoint>& roots) {
  Job* const job = find(epoch);
  if (job != nullptr && roots.size() == job->config.roots.size()) job->move(roots);
}

Server::Job* Server::find(std::uint64_t epoch) {
  if (last_ != nullptr && last_->config.epoch == epoch) return last_;
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return nullptr;
  return last_ = found->second.get();
}

void Server::on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) {
  ++batch_;
  batch_at_ = now;
  for (const RxView& packet : packets) {
    Common common;
    if (const auto error = wire::atp::parse_common(packet.bytes, common); error != ParseError::none) {
      ++counters_.malformed[static_cast<std::size_t>(error)];
      continue;
    }
    if (common.type == Type::gradient) {
      on_gradient(packet, common, congested, now, sink);
    } else {
      ++counters_.unexpected_type;
    }
  }
}

void Server::on_unknown_job(const RxView& packet, const Common& common, Time now, Sink& sink) {
  ++counters_.unknown_job;
  if (!unknown_job_budget_.take(now)) return;
  ++counters_.unknown_job_replies;
  wire::atp::write_unknown_job(sink.datagram(packet.source, wire::atp::common_bytes), common);
}

void Server::on_gradient(const RxView& packet, const Common& common, bool congested, Time now, Sink& sink) {
  Job* const job = find(common.job_epoch);
  if (job == nullptr) return on_unknown_job(packet, common, now, sink);
  ++job->counters.packets;
  job->counters.bytes += packet.bytes.size();
  const std::optional<Gradient> gradient = believe(*job, packet, common);
  if (!gradient) return;
  learn_path(*job, *gradient, sink);
  if (common.collision) ++job->counters.collisions;

  Entry* const entry = place(*job, packet, *gradient, sink);
  if (entry == nullptr) return;
  if (entry->signature != common.signature || entry->state == Entry::State::mismatch) {
    return answer_mismatch(*job, *entry, packet, gradient->rank, common.signature, now, sink);
  }
  entry->collision |= common.collision;
  if (entry->state != Entry::State::complete) entry->ecn |= common.ecn || packet.congested || congested;
  if (common.floats) return on_floats(*job, *entry, packet, gradient->packet, gradient->rank, now, sink);
  add(*job, *entry, packet, *gradient, now, sink);
}

// Accepted sources: the job's switches, and each rank for itself.
std::optional<Server::Gradient> Server::believe(Job& job, const RxView& packet, const Common& common) {
  ServerJobCounters& counters = job.counters;
  const ServerJobConfig& config = job.config;
  const auto drop = [&](std::uint64_t& counter) {
    job.drop(counter, packet);
    return std::nullopt;
  };
  Gradient gradient;
  if (wire::atp::parse_gradient(packet.bytes, common, gradient.packet) != ParseError::none) {
    return drop(counters.dropped_shape);
  }
  if (!possible(common, config.packet_elements, config.overflow)) return drop(counters.dropped_shape);
  auto ranks = config.topology.decode(gradient.packet.directions);
  if (!ranks) return drop(counters.dropped_shape);
  gradient.ranks = std::move(*ranks);
  gradient.single = gradient.ranks.size() == 1;
  gradient.rank = gradient.ranks.front();
  gradient.position = gradient.packet.directions.only(config.topology.server_level()).value();  // decoded

  const ServerMember& member = config.members[gradient.rank];
  gradient.by_itself = gradient.single && packet.source == member.endpoint;
  if (!gradient.by_itself && packet.source != config.roots[gradient.position]) return drop(counters.dropped_source);
  if (!(gradient.single && common.rank_epoch == member.epoch) &&
      (gradient.by_itself || common.rank_epoch != config.folded_epochs)) {
    return drop(counters.dropped_rank_epoch);
  }
  return gradient;
}

void Server::learn_path(Job& job, const Gradient& gradient, Sink& sink) {
  const ServerJobConfig& config = job.config;
  const bool past_switches = gradient.by_itself && config.topology.server_children()[gradient.position].is_switch;
  const Ranks direct = past_switches ? job.direct.united(gradient.ranks) : job.direct.minus(gradient.ranks);
  if (direct == job.direct) return;
  sink.flush();  // packets sent by reference leave with the list unchanged
  job.direct = direct;
  job.direct_endpoints.clear();
  direct.for_each([&](std::uint32_t r) { job.direct_endpoints.push_back(config.members[r].endpoint); });
}

Server::Entry* Server::place(Job& job, const RxView& packet, const Gradient& gradient, Sink& sink) {
  const Common& common = gradient.packet.common;
  Entry& entry = job.at(common.sequence);
  if (entry.state != Entry::State::unused && common.sequence < entry.sequence) {
    ++job.counters.old;
    if (gradient.by_itself) return nullptr;  // a late copy, and nothing to free
    Common done;
    done.type = Type::done;
    done.job_epoch = job.config.epoch;
    done.rank_epoch = job.config.folded_epochs;
    done.sequence = common.sequence;
    done.signature = common.signature;
    done.index = common.index;
    const std::span<std::byte> answer = sink.datagram(packet.source, wire::atp::parameter_bytes(done));
    wire::atp::write_parameter_header(answer, done, 0);
    wire::atp::seal(answer);
    return nullptr;
  }
  if (entry.state == Entry::State::unused ? common.sequence >= job.ring.size() : common.sequence > entry.sequence) {
    // Two windows later: the sender has the result of one window later, for which all ranks had this entry's result.
    if (entry.state != Entry::State::complete || common.sequence != entry.sequence + job.ring.size()) {
      job.drop(job.counters.dropped_early, packet);
      return nullptr;
    }
  }
  if (entry.state == Entry::State::unused || common.sequence > entry.sequence) {
    open(job, entry, common, sink);
    entry.first_rank = gradient.rank;
  }
  return &entry;
}

void Server::add(Job& job, Entry& entry, const RxView& packet, const Gradient& gradient, Time now, Sink& sink) {
  ServerJobCounters& counters = job.counters;
  const Ranks& ranks = gradient.ranks;
  const Common& common = gradient.packet.common;
  if (entry.seen.intersects(ranks)) {
    const Ranks missing = ranks.minus(entry.seen);
    if (missing.empty()) {
      return answer_repeat(job, entry, ranks, common.elements, job.config.roots[gradient.position], now, sink);
    }
    ++counters.overlaps;
    if (job.config.rules == Rules::paper) return;  // its ranks go on to resend
    return ask(job, entry, missing, false, now, sink);
  }
  NETSUM_CHECK(entry.state == Entry::State::collecting);
  Sum sum{job.memory_of(entry) + parameter_at, entry.elements, entry.wide, entry.overflow, entry.exponent};
  if (!add_to(sum, gradient.packet, job.config.overflow)) return job.drop(counters.dropped_shape, packet);
  entry.elements = sum.elements;
  entry.wide = sum.wide;
  entry.overflow = sum.overflow;
  entry.exponent = sum.exponent;
  entry.checked |= !common.unchecked;
  entry.seen = entry.seen.united(ranks);
  if (ranks == job.all && !gradient.single) {
    ++counters.added_complete;
  } else {
    ++(gradient.single ? counters.added_single : counters.added_partial);
  }
  if (entry.seen == job.all) complete(job, entry, sink);
}

void Server::open(Job& job, Entry& entry, const Common& common, Sink& sink) {
  if (entry.sent_in_batch == batch_) sink.flush();  // its memory is still referenced
  const std::uint64_t sent_in_batch = entry.sent_in_batch;
  entry = {.state = Entry::State::collecting,
           .sequence = common.sequence,
           .signature = common.signature,
           .index = common.index,
           .sent_in_batch = sent_in_batch};
  NETSUM_CHECK(&job.at(common.sequence) == &entry);
}

// All ranks' values are in the sum.
void Server::complete(Job& job, Entry& entry, Sink& sink) {
  const Sum sum{job.memory_of(entry) + parameter_at, entry.elements, entry.wide, entry.overflow, entry.exponent};
  const bool fits = !sum.wide || kernels::all_zero(sum.high(), std::size_t{sum.elements} * sizeof(std::int16_t));  // §3.8
  if (fits && !entry.overflow) return send_parameter(job, entry, false, sink);
  entry.wide = false;  // the sum is no longer used
  if (job.free_buffers.empty()) {
    entry.state = Entry::State::queued;
    job.queue.push_back(entry.sequence);
    return;
  }
  begin_floats(job, entry, sink);
}

// §3.8: asks for the original values.
void Server::begin_floats(Job& job, Entry& entry, Sink& sink) {
  entry.state = Entry::State::floats;
  entry.buffer = job.free_buffers.back();
  job.free_buffers.pop_back();
  Common common = job.answer(Type::ask, entry);
  common.floats = true;
  // Built in the entry's memory: the integers are no longer needed.
  if (entry.sent_in_batch == batch_) sink.flush();
  const std::span<std::byte> packet(job.memory_of(entry) + parameter_at - wire::atp::parameter_header_bytes,
                                    wire::atp::parameter_bytes(common));
  wire::atp::write_parameter_header(packet, common, 0);
  wire::atp::seal(packet);
  entry.sent_in_batch = batch_;
  to_everybody(job, packet, sink);
}

void Server::on_floats(Job& job, Entry& entry, const RxView& packet, const GradientPacket& gradient, std::uint32_t rank,
                       Time now, Sink& sink) {
  if (entry.state == Entry::State::collecting || entry.state == Entry::State::queued) {
    return job.drop(job.counters.dropped_early, packet);  // not asked for
  }
  if (entry.state == Entry::State::complete || entry.float_seen.contains(rank)) {
    Ranks one;
    one.insert(rank);
    return answer_repeat(job, entry, one, gradient.common.elements, job.config.members[rank].endpoint, now, sink);
  }
  if (gradient.common.elements != entry.elements) return job.drop(job.counters.dropped_shape, packet);
  ++job.counters.floats;
  entry.checked |= !gradient.common.unchecked;
  std::memcpy(job.buffer_of(entry.buffer, rank), gradient.payload.data(), gradient.payload.size());
  entry.float_seen.insert(rank);
  entry.float_exponent = std::max(entry.float_exponent, gradient.common.exponent);
  if (entry.float_seen != job.all) return;

  // In rank order, regardless of the order of arrival: the same bits in every run.
  const std::uint32_t ranks = job.config.topology.world_size();
  const double scale = scale_for(entry.float_exponent, ranks);
  std::fill(job.float_sum.begin(), job.float_sum.end(), 0.0);
  std::fill(job.scaled_sum.begin(), job.scaled_sum.end(), 0.0);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    kernels::add_floats(job.float_sum.data(), job.buffer_of(entry.buffer, r), entry.elements);
    kernels::add_scaled(job.scaled_sum.data(), job.buffer_of(entry.buffer, r), entry.elements, scale);
  }
  // Divides before the sum is rounded: an average may be finite where the sum is not.
  const double divisor = gradient.common.average ? ranks : 1;
  if (divisor != 1) {
    for (double& value : job.float_sum) value /= divisor;
  }
  if (entry.sent_in_batch == batch_) sink.flush();  // the memory holds the question, if it was sent in this batch
  // Elements that fit are what they are in a packet that fits: which others a packet has must not matter.
  kernels::round_to_floats(job.memory_of(entry) + parameter_at, job.float_sum.data(), job.scaled_sum.data(), entry.elements,
                           scale * divisor);
  job.free_buffers.push_back(entry.buffer);
  entry.buffer = no_buffer;
  ++job.counters.fallbacks;
  send_parameter(job, entry, true, sink);
  if (!job.queue.empty()) {
    Entry& next = job.at(job.queue.front());
    job.queue.pop_front();
    NETSUM_CHECK(next.state == Entry::State::queued);
    begin_floats(job, next, sink);
  }
}

// §3.6: the result goes to all ranks, with another index if this one collided, and is kept for repeats.
void Server::send_parameter(Job& job, Entry& entry, bool floats, Sink& sink) {
  Common common = job.answer(Type::parameter, entry);
  common.ecn = entry.ecn;
  common.floats = floats;
  common.unchecked = !entry.checked;
  common.elements = entry.elements;
  common.exponent = entry.exponent;
  std::uint32_t next = entry.index;
  if (entry.collision && job.config.indexing == Indexing::rehash) {
    const std::uint64_t position = entry.sequence % job.config.window;
    next = rehashed(job.config.epoch, position, entry.index, job.config.switch_slots);
    ++job.counters.remapped;
  }
  entry.state = Entry::State::complete;
  entry.completed = batch_at_;
  entry.as_floats = floats;
  entry.told.clear();  // of what they were told until now
  entry.result_bytes = static_cast<std::uint32_t>(wire::atp::parameter_bytes(common));
  if (entry.sent_in_batch == batch_) sink.flush();  // its memory is still referenced
  const std::span<std::byte> packet = job.result_of(entry);
  wire::atp::write_parameter_header(packet, common, next);
  wire::atp::seal(packet);
  entry.sent_in_batch = batch_;
  ++job.counters.chunks;
  to_everybody(job, packet, sink);
}

void Server::to_everybody(Job& job, std::span<const std::byte> packet, Sink& sink) {
  if (!job.known_roots.empty()) sink.multicast(packet, job.known_roots);
  if (!job.direct_endpoints.empty()) sink.multicast(packet, job.direct_endpoints);
}

bool Server::may_tell(Entry& entry, std::uint32_t rank, Time now) {
  if (now - entry.told_since >= answer_interval) {
    entry.told.clear();
    entry.told_since = now;
  }
  if (entry.told.contains(rank)) return false;
  entry.told.insert(rank);
  return true;
}

// A repeat of values that are already in the sum.
void Server::answer_repeat(Job& job, Entry& entry, const Ranks& ranks, std::size_t elements, const Endpoint& root, Time now,
                           Sink& sink) {
  ServerJobCounters& counters = job.counters;
  if (entry.state == Entry::State::complete && ranks.size() > 1) {  // which of the ranks lacks the result is unknown
    // Again after as long as the first repeat took, and then twice as long: as soon as probes come (stream/tail_probe.h).
    const Duration after = std::min(answer_interval, entry.repeated - entry.completed);
    if (entry.repeated != Time{} && now - entry.repeated < after) return void(++counters.repeats_silent);
    entry.repeated = now;
    entry.sent_in_batch = batch_;
    ++counters.repeats_answered;
    return sink.multicast(job.result_of(entry), {&root, 1});
  }
  if (job.config.rules == Rules::paper && entry.state == Entry::State::collecting) return void(++counters.repeats_silent);
  const std::uint32_t rank = ranks.front();
  const std::span<const Endpoint> to(&job.config.members[rank].endpoint, 1);
  // One packet for one, however soon: the last answer may be lost, and its rank finds that out by other results.
  const bool answered = entry.state == Entry::State::complete && elements >= entry.elements;
  if (!answered && !may_tell(entry, rank, now)) return void(++counters.repeats_silent);
  if (entry.state == Entry::State::complete) {
    ++counters.repeats_answered;
    entry.sent_in_batch = batch_;
    return sink.multicast(job.result_of(entry), to);
  }
  switch (entry.state) {
    case Entry::State::floats:
      ++counters.repeats_waiting;
      if (!entry.float_seen.contains(rank)) return ask(job, entry, ranks, true, now, sink);
      break;
    default:
      ++counters.repeats_waiting;
      break;
  }
  const Ranks missing = job.all.minus(entry.state == Entry::State::floats ? entry.float_seen : entry.seen);
  wire::atp::write_waiting(sink.datagram(to.front(), wire::atp::waiting_bytes(missing)),
                           {job.answer(Type::waiting, entry), missing});
  // The other ranks' values may be held at a switch that waits for this rank's values, which are already here (§3.6): the
  // others are asked to send theirs here directly.
  if (entry.state == Entry::State::collecting) ask(job, entry, missing, false, now, sink);
  if (entry.state == Entry::State::floats) ask(job, entry, missing, true, now, sink);
}

void Server::ask(Job& job, Entry& entry, const Ranks& ranks, bool floats, Time now, Sink& sink) {
  const bool one = floats && ranks.size() == 1;  // which has just sent
  if (!one) {
    if (now - entry.asked < answer_interval) return;
    entry.asked = now;
  }
  Common common = job.answer(Type::ask, entry);
  common.floats = floats;
  ranks.for_each([&](std::uint32_t rank) {
    ++job.counters.asks;
    const std::span<std::byte> packet = sink.datagram(job.config.members[rank].endpoint, wire::atp::parameter_bytes(common));
    wire::atp::write_parameter_header(packet, common, 0);
    wire::atp::seal(packet);
  });
}

// Tells every rank once; after that, who contributes again is told alone, as the first answer may be lost.
void Server::answer_mismatch(Job& job, Entry& entry, const RxView& packet, std::uint32_t rank, std::uint32_t signature,
                             Time now, Sink& sink) {
  job.drop(job.counters.dropped_mismatch, packet);
  const bool first = entry.state != Entry::State::mismatch;
  if (first) {
    if (entry.state != Entry::State::collecting) return;  // every rank has sent this call: no rank of the job sends another
    entry.state = Entry::State::mismatch;
    entry.other_rank = rank;
    entry.other_signature = signature;
  }
  if (!first && !may_tell(entry, rank, now)) return;
  const wire::atp::MismatchPacket mismatch{job.answer(Type::mismatch, entry), entry.signature, entry.other_signature,
                                           static_cast<std::uint16_t>(entry.first_rank),
                                           static_cast<std::uint16_t>(entry.other_rank)};
  const std::span<const ServerMember> members(job.config.members);
  for (const ServerMember& member : first ? members : members.subspan(rank, 1)) {
    wire::atp::write_mismatch(sink.datagram(member.endpoint, wire::atp::mismatch_bytes), mismatch);
  }
}

const DropSources<ServerJobCounters>* Server::drop_sources(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->drops;
}

const ServerJobCounters* Server::job_counters(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->counters;
}

std::uint32_t Server::incomplete(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return 0;
  const auto& ring = found->second->ring;
  return static_cast<std::uint32_t>(std::count_if(ring.begin(), ring.end(), [](const Entry& entry) {
    return entry.state != Entry::State::unused && entry.state != Entry::State::complete;
  }));
}

std::vector<StalledSequence> Server::stalled(std::uint64_t epoch, std::size_t most) const {
  std::vector<StalledSequence> list;
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return list;
  const Job& job = *found->second;
  for (const Entry& entry : job.ring) {
    if (entry.state == Entry::State::unused || entry.state == Entry::State::complete) continue;
    list.push_back({entry.sequence, job.all.minus(entry.state == Entry::State::floats ? entry.float_seen : entry.seen)});
  }
  std::sort(list.begin(), list.end(),
            [](const StalledSequence& a, const StalledSequence& b) { return a.sequence < b.sequence; });
  if (list.size() > most) list.resize(most);
  return list;
}

}  // namespace netsum::atp
