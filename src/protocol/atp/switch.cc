#include "protocol/atp/switch.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "protocol/atp/gaps.h"
#include "protocol/atp/packet_memory.h"

namespace netsum::atp {

using wire::ParseError;
using wire::atp::Children;
using wire::atp::Common;
using wire::atp::GradientPacket;
using wire::atp::Type;

namespace {

// A repeat of a contribution in a slot is answered at most this often, per chunk and rank: the workers' shortest time-out.
constexpr Duration waiting_interval = std::chrono::milliseconds(1);

// Parameter packets marked here in one batch, at most, before the sink is flushed.
constexpr std::size_t marked_copies = 16;
std::size_t marked_bytes(const SwitchConfig& config) {
  return wire::atp::parameter_header_bytes + std::size_t{config.packet_elements} * 4;
}

// Compares all fields but the neighbours' endpoints.
bool same_job(const SwitchJobConfig& a, const SwitchJobConfig& b) {
  const auto fields = [](const SwitchJobConfig& c) {
    return std::tuple(c.epoch, c.folded_epochs, c.packet_elements, c.window, c.level, c.next_level, c.overflow, c.rules);
  };
  return fields(a) == fields(b) && std::equal(a.children.begin(), a.children.end(), b.children.begin(), b.children.end(),
                                              [](const SwitchChild& x, const SwitchChild& y) {
                                                return x.is_switch == y.is_switch && x.rank_epoch == y.rank_epoch &&
                                                       x.ranks == y.ranks;
                                              });
}

// Whether a packet from below holds the values of all ranks there: all bits of each level that it has passed.
bool is_whole(const wire::atp::Directions& directions) {
  for (std::uint8_t level = 0; level < directions.level; ++level) {
    if (directions.count(level) != directions.fan_in()[level]) return false;
  }
  return true;
}

}  // namespace

struct Switch::SlotState {
  bool used = false;
  bool complete = false;  // sent up; kept until the parameter packet arrives, so that a late copy is recognised
  std::uint64_t job_epoch = 0, sequence = 0;
  std::uint32_t signature = 0;
  std::uint32_t counter = 0;
  std::uint32_t index = 0;  // as the first packet gave it
  bool again = false;       // taken once more for the same chunk
  bool ecn = false, overflow = false, wide = false;
  bool checked = false;  // a packet in it had a checksum
  std::uint16_t elements = 0;
  std::uint8_t exponent = 0;
  Time updated{};                   // §3.3: timestamp
  std::uint64_t sent_in_batch = 0;  // the last batch in which the sink referenced the memory
  Children bitmap{};
  wire::atp::Directions directions{};  // of the packet that was added last
  Children resent{};                   // whose first resend, of the sum as it is now, was merged
  Children told{};                     // answered with "have yours" since told_since
  Time told_since{};
};

struct Switch::Job {
  SwitchJobConfig config;
  SwitchJobCounters counters;
  DropSources<SwitchJobCounters> drops;
  Gaps gaps;
  std::vector<std::uint64_t> taken;           // ring: sequence numbers of chunks that have taken a slot
  std::vector<std::uint64_t> collided;        // ring: sequence numbers of which a packet did
  std::vector<Endpoint> everybody, switches;  // children with known endpoints; those that are switches
  std::uint32_t chip_number = 0;              // in a chip's slots

  [[nodiscard]] std::uint64_t long_queue() const {
    std::uint64_t ranks = 0;
    for (const SwitchChild& child : config.children) ranks += child.ranks.size();
    return long_queue_bytes(ranks, config.packet_elements, config.window);
  }
  [[nodiscard]] bool plain() const { return config.rules == Rules::paper; }
  [[nodiscard]] std::uint32_t chip_high(std::uint64_t sequence) const {
    return atp_chip_high(chip_number, static_cast<std::uint32_t>(sequence >> 32));
  }
  void drop(std::uint64_t& counter, const RxView& packet) { drops.drop(counters, counter, packet.source); }
  [[nodiscard]] std::uint64_t& collision(std::uint64_t sequence) { return collided[sequence % collided.size()]; }

  void move(const SwitchJobConfig& moved) {
    config = moved;
    everybody.clear();
    switches.clear();
    for (const SwitchChild& child : config.children) {
      if (child.endpoint.port == 0) continue;
      everybody.push_back(child.endpoint);
      if (child.is_switch) switches.push_back(child.endpoint);
    }
  }
};

std::size_t Switch::memory_bytes(const SwitchConfig& config) {
  return packet_memory(gradient_at, config.packet_elements) * config.slots;
}

std::size_t Switch::total_bytes(const SwitchConfig& config) {
  const std::size_t of_slot = config.chip ? ChipSlots::bytes_of_one : sizeof(SlotState);
  return memory_bytes(config) + config.slots * of_slot + marked_copies * marked_bytes(config);
}

std::size_t Switch::job_bytes(std::size_t children, std::uint32_t window) {
  // Rings of what was taken and of what collided; in everybody, and in switches.
  return sizeof(Job) + std::max(1U, window) * 2 * sizeof(std::uint64_t) + Gaps::bytes(window, children) +
         children * (sizeof(SwitchChild) + 2 * sizeof(Endpoint));
}

Switch::Switch(const SwitchConfig& config, std::span<std::byte> memory)
    : config_(config),
      memory_(memory),
      slot_bytes_(memory_bytes(config) / config.slots),
      slots_(config.chip ? 0 : config.slots),
      chip_(config.chip ? config.slots : 0),
      marked_bytes_(marked_bytes(config)),
      marked_(marked_copies * marked_bytes_) {
  NETSUM_CHECK(memory.size() >= memory_bytes(config));
}
Switch::~Switch() = default;
Switch::Switch(Switch&&) noexcept = default;
Switch& Switch::operator=(Switch&&) noexcept = default;

Switch::Switch(const Switch& other)
    : config_(other.config_),
      memory_(other.memory_),
      slot_bytes_(other.slot_bytes_),
      slots_(other.slots_),
      in_use_(other.in_use_),
      chip_(other.chip_),
      chip_jobs_(other.chip_jobs_),
      swept_(other.swept_),
      counters_(other.counters_),
      batch_(other.batch_),
      long_queue_(other.long_queue_),
      marked_bytes_(other.marked_bytes_),
      marked_(other.marked_.size()),
      unknown_job_budget_(other.unknown_job_budget_) {
  for (const auto& [epoch, job] : other.jobs_) jobs_.emplace(epoch, std::make_unique<Job>(*job));
}

Switch& Switch::operator=(const Switch& other) {
  return *this = Switch(other);
}

void Switch::move_memory(std::span<std::byte> memory) {
  std::memcpy(memory.data(), memory_.data(), memory_bytes(config_));
  memory_ = memory;
}

void Switch::append_state(std::vector<std::byte>& out) const {
  for (const SlotState& slot : slots_) {
    append_bytes(out, slot.used);
    if (!slot.used) continue;
    append_bytes(out, slot.complete, slot.job_epoch, slot.sequence, slot.signature, slot.bitmap.words(), slot.resent.words(),
                 slot.ecn, slot.overflow, slot.wide, slot.checked, slot.elements, slot.exponent);
    const std::byte* const payload = memory_of(slot) + gradient_at;
    const std::size_t bytes = std::size_t{slot.elements} * 4 + (slot.wide ? wire::atp::high_bytes(slot.elements) : 0);
    out.insert(out.end(), payload, payload + bytes);
  }
  chip_.append_state(out);
  for (std::size_t slot = 0; slot < chip_.size(); ++slot) {
    if (!chip_.has(slot, 1)) continue;
    const std::byte* const sums = memory_.data() + slot * slot_bytes_ + gradient_at;
    out.insert(out.end(), sums, sums + std::size_t{config_.packet_elements} * 4);
  }
  std::vector<const Job*> jobs;
  for (const auto& [epoch, job] : jobs_) jobs.push_back(job.get());
  std::sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) { return a->config.epoch < b->config.epoch; });
  for (const Job* job : jobs) {
    append_bytes(out, job->config.epoch);
    for (const std::uint64_t sequence : job->collided) append_bytes(out, sequence);
  }
}

bool Switch::add_job(const SwitchJobConfig& config) {
  if (config.packet_elements > config_.packet_elements) return false;
  if (config_.chip && config.children.size() > atp_chip_children) return false;
  auto job = std::make_unique<Job>();
  job->move(config);
  job->gaps = Gaps(config.window, config.children.size());
  job->taken.assign(std::max(1U, config.window), UINT64_MAX);
  job->collided = job->taken;
  if (config_.chip) job->chip_number = next_chip_number();
  const auto [added, unknown] = jobs_.emplace(config.epoch, std::move(job));
  if (unknown) long_queue_ += added->second->long_queue();
  return unknown;
}

bool Switch::move_job(const SwitchJobConfig& config) {
  Job* const job = find(config.epoch);
  if (job == nullptr || !same_job(job->config, config)) return false;
  job->move(config);
  return true;
}

void Switch::remove_job(std::uint64_t epoch) {
  last_ = nullptr;
  if (const auto removed = jobs_.extract(epoch)) {
    long_queue_ -= removed.mapped()->long_queue();
    if (config_.chip) chip_.free_job(removed.mapped()->chip_number);
  }
  for (SlotState& slot : slots_) {
    if (slot.used && slot.job_epoch == epoch) deallocate(slot);
  }
}

Switch::Job* Switch::find(std::uint64_t epoch) {
  if (last_ != nullptr && last_->config.epoch == epoch) return last_;
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return nullptr;
  return last_ = found->second.get();
}

std::byte* Switch::memory_of(const SlotState& slot) const {
  return memory_.data() + static_cast<std::size_t>(&slot - slots_.data()) * slot_bytes_;
}

void Switch::deallocate(SlotState& slot) {
  NETSUM_CHECK(slot.used && in_use_ > 0);
  slot.used = false;
  --in_use_;
}

void Switch::on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) {
  ++batch_;
  for (const RxView& packet : packets) {
    Common common;
    if (const auto error = wire::atp::parse_common(packet.bytes, common); error != ParseError::none) {
      ++counters_.malformed[static_cast<std::size_t>(error)];
      continue;
    }
    switch (common.type) {
      case Type::gradient:
        on_gradient(packet, common, congested, now, sink);
        break;
      case Type::parameter:
      case Type::ask:
      case Type::done:
        on_parameter(packet, common, congested, now, sink);
        break;
      default:
        ++counters_.unexpected_type;
        break;
    }
  }
  sink.flush();  // passed-on packets reference the received ones, or marked copies
  marked_in_use_ = 0;
}

void Switch::on_unknown_job(const RxView& packet, const Common& common, Time now, Sink& sink) {
  ++counters_.unknown_job;
  if (common.type != Type::gradient || config_.chip) return;
  if (!unknown_job_budget_.take(now)) return;
  ++counters_.unknown_job_replies;
  wire::atp::write_unknown_job(sink.datagram(packet.source, wire::atp::common_bytes), common);
}

// Fig. 7 and Fig. 17. A gradient passes three steps: believe; then, unless it only passes through, it finds its slot; and it
// is added, goes on to the parameter server, or is answered.
void Switch::on_gradient(const RxView& packet, const Common& common, bool congested, Time now, Sink& sink) {
  Job* const job = find(common.job_epoch);
  if (job == nullptr) return on_unknown_job(packet, common, now, sink);
  SwitchJobCounters& counters = job->counters;
  ++counters.packets;
  counters.bytes += packet.bytes.size();
  GradientPacket gradient;
  const auto position = believe(*job, packet, common, gradient);
  if (!position) return;
  // It can neither check a checksum nor write one, and reads one form of the header.
  if (config_.chip && (!common.unchecked || gradient.directions.broad())) return job->drop(counters.dropped_shape, packet);
  if (packet.congested || congested) gradient.common.ecn = true;
  if (gradient.common.ecn) ++counters.marked;
  if (common.direct) {
    ++counters.direct_passed;
    return pass_on(*job, packet, gradient, sink);
  }
  if (config_.chip) return on_gradient_at_chip(*job, packet, gradient, *position, now, sink);
  SlotState& slot = slot_of(*job, common);
  const bool ours = slot.used && slot.job_epoch == common.job_epoch && slot.sequence == common.sequence;  // Fig. 7, 1
  if (ours && slot.signature != common.signature) {
    ++counters.mismatch_passed;
    gradient.common.resend = true;
    pass_on(*job, packet, gradient, sink);
  } else if (common.resend && ours) {
    on_resend(*job, slot, packet, gradient, *position, now, sink);
  } else if (common.resend) {
    ++counters.resends_passed;
    pass_on(*job, packet, gradient, sink);
  } else if (!ours && (slot.used || job->collision(common.sequence) == common.sequence)) {
    pass_collided(*job, slot, packet, gradient, sink);
  } else {
    add_gradient(*job, slot, packet, gradient, *position, now, sink);
  }
}

// The position of the child that sent it.
std::optional<std::uint32_t> Switch::believe(Job& job, const RxView& packet, const Common& common,
                                             GradientPacket& gradient) {
  SwitchJobCounters& counters = job.counters;
  const SwitchJobConfig& config = job.config;
  const auto drop = [&](std::uint64_t& counter) {
    job.drop(counter, packet);
    return std::nullopt;
  };
  if (wire::atp::parse_gradient(packet.bytes, common, gradient) != ParseError::none) return drop(counters.dropped_shape);
  const wire::atp::Directions& directions = gradient.directions;
  const std::optional<std::uint32_t> only = directions.only(config.level);
  if (directions.level != config.level || !only || directions.fan_in()[config.level] != config.children.size() ||
      !possible(common, config.packet_elements, config.overflow)) {
    return drop(counters.dropped_shape);
  }
  const SwitchChild& child = config.children[*only];
  if (packet.source != child.endpoint) return drop(counters.dropped_source);
  // A packet from a switch has one rank's epoch or all ranks'; the parameter server checks it.
  if (!child.is_switch && common.rank_epoch != child.rank_epoch) return drop(counters.dropped_rank_epoch);
  return only;
}

Switch::SlotState& Switch::slot_of(const Job& job, const Common& common) {
  SlotState& slot = slots_[common.index % slots_.size()];
  // A repeat that arrived after its result allocated a slot that nothing frees. A sender of the chunk one window later has
  // that result.
  if (slot.used && !job.plain() && slot.job_epoch == common.job_epoch &&
      common.sequence >= slot.sequence + job.config.window) {
    deallocate(slot);
    ++counters_.reclaimed;
  }
  return slot;
}

// ---- at a chip

std::string chip_refuses(const SwitchJobConfig& config) {
  if (config.rules != Rules::chip) {
    return "the chip profile requires --rules chip at the job's parameter server";
  }
  if (config.packet_elements != 64 && config.packet_elements != 256) {
    return "the chip profile takes packets of 64 or 256 elements, and the job's have " +
           std::to_string(config.packet_elements);
  }
  if (config.children.size() > atp_chip_children) {
    return "the chip profile takes " + std::to_string(atp_chip_children) + " ranks and switches next to a switch, and " +
           std::to_string(config.children.size()) + " are next to this one";
  }
  return "";
}

// A chip's control plane gives a number again as late as possible.
std::uint32_t Switch::next_chip_number() {
  const auto taken = [&](std::uint32_t number) {
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) { return job.second->chip_number == number; });
  };
  do {
    chip_jobs_ = chip_jobs_ % UINT16_MAX + 1;
  } while (taken(chip_jobs_));
  return chip_jobs_;
}

void Switch::on_gradient_at_chip(Job& job, const RxView& packet, GradientPacket& gradient, std::uint32_t position, Time now,
                                 Sink& sink) {
  if (now - swept_ >= config_.abandoned_after) {  // the control plane
    swept_ = now;
    counters_.reclaimed += chip_.sweep();
  }
  SwitchJobCounters& counters = job.counters;
  const Common common = gradient.common;
  const std::size_t slot = common.index % chip_.size();
  const ChipPacket met{job.chip_high(common.sequence),
                       static_cast<std::uint32_t>(common.sequence),
                       common.signature,
                       std::uint32_t{1} << position,
                       job.config.window,
                       common.resend};
  if (common.sequence >= atp_chip_sequences || common.elements != job.config.packet_elements || common.wide ||
      (common.resend && job.config.level > 0)) {
    // Above the first level what is left of a sum goes past it: the others' bits stand for whole racks.
    if (common.resend) free_chip_slot(job, common);
    gradient.common.resend = true;
    ++counters.resends_passed;
    return pass_on(job, packet, gradient, sink);
  }
  // Both passes, one right after the other.
  std::byte* const sums = memory_.data() + slot * slot_bytes_ + gradient_at;
  const ChipSlots::Meeting first = chip_.meet(slot, 0, met);
  if (!first.joins) {
    ++(!first.agrees ? counters.mismatch_passed : common.resend ? counters.resends_passed : counters.collisions);
    gradient.common.resend = true;
    gradient.common.collision = first.agrees && !common.resend;
    return pass_on(job, packet, gradient, sink);
  }
  ChipSlots::add(0, first, gradient.payload, sums);
  const ChipSlots::Meeting second = chip_.meet(slot, 1, met);
  ChipSlots::add(1, second, gradient.payload, sums);
  chip_.note(slot, second, {common.ecn, common.overflow, common.exponent});
  ++(common.resend ? counters.resends_merged : first.adds ? counters.added : counters.repeats_silent);
  if (first.stores && !common.resend) ++counters.allocated;
  if (common.resend) ++counters.deallocated;
  const std::uint32_t everyone = atp_chip_everyone(static_cast<std::uint32_t>(job.config.children.size()));
  if (!ChipSlots::goes_up(first, second, common.resend, everyone)) return;
  if (second.bitmap == everyone) ++counters.completed;
  send_up_at_chip(job, slot, gradient, second.bitmap, sink);
}

// In the packet that came last.
void Switch::send_up_at_chip(const Job& job, std::size_t slot, const GradientPacket& gradient, std::uint32_t bitmap,
                             Sink& sink) const {
  Common common = gradient.common;
  const ChipSlots::Flags& flags = chip_.flags(slot);
  common.ecn = flags.ecn;
  common.overflow = flags.overflow;
  common.exponent = flags.exponent;
  common.rank_epoch = job.config.folded_epochs;
  wire::atp::Directions directions = gradient.directions;
  directions.set(job.config.level, Children::from_words({bitmap}));
  directions.level = job.config.next_level;
  const std::span<std::byte> sum = sink.datagram(job.config.parent, wire::atp::gradient_bytes(common, directions));
  wire::atp::write_gradient_header(sum, common, directions);
  std::memcpy(sum.data() + wire::atp::header_bytes(directions), memory_.data() + slot * slot_bytes_ + gradient_at,
              std::size_t{common.elements} * 4);
  wire::atp::seal(sum);
}

void Switch::free_chip_slot(Job& job, const Common& common) {
  const std::size_t slot = common.index % chip_.size();
  const auto low = static_cast<std::uint32_t>(common.sequence);
  bool held = false;
  for (std::size_t half = 0; half < 2; ++half) held |= chip_.leave(slot, half, job.chip_high(common.sequence), low);
  if (held) ++job.counters.deallocated;
}

// Fig. 17
void Switch::on_resend(Job& job, SlotState& slot, const RxView& packet, const GradientPacket& gradient,
                       std::uint32_t position, Time now, Sink& sink) {
  SwitchJobCounters& counters = job.counters;
  slot.ecn |= gradient.common.ecn;
  if (job.plain()) return on_plain_resend(job, slot, packet, gradient, position, now, sink);
  const bool first = !slot.resent.contains(position);
  if (slot.complete && first) {
    // The sum, or the parameter packet, was lost: every rank resends, and one repeat of the sum serves all of them. The
    // paper's switch forgets the sum with the first resend, and passes all others on, one by one.
    const bool by_nobody = slot.resent.empty();
    slot.resent.insert(position);
    ++counters.resends_merged;
    if (by_nobody) send_up(job, slot, gradient.common, true, sink);
    return;
  }
  // Above the first level bits stand for switches, and only a sum of all ranks below one may set its bit.
  const bool whole = is_whole(gradient.directions);
  if (whole && !slot.bitmap.contains(position) && !add(job, slot, gradient, position, now)) {
    return job.drop(counters.dropped_shape, packet);
  }
  if (whole) ++counters.resends_merged;
  if (whole && first) {
    // The paper's switch sends up what it has. But the others' packets may be on their way: each child repairs a loss of its
    // own, or waits for a rank.
    slot.resent.insert(position);
    if (slot.counter == job.config.children.size()) return complete(job, slot, gradient.common, true, sink);
    if (may_tell(job, slot, position, now)) tell_waiting(job, slot, job.config.children[position], sink);
    return;
  }
  send_up(job, slot, gradient.common, true, sink);
  deallocate(slot);
  ++counters.deallocated;
  // What comes yet finds no sum to be added to.
  if (job.config.level > 0) job.collision(gradient.common.sequence) = gradient.common.sequence;
  if (whole) return;
  ++counters.resends_passed;
  pass_on(job, packet, gradient, sink);
}

// As printed: the first resend empties the slot; above the first level its sum is lost.
void Switch::on_plain_resend(Job& job, SlotState& slot, const RxView& packet, const GradientPacket& gradient,
                             std::uint32_t position, Time now, Sink& sink) {
  SwitchJobCounters& counters = job.counters;
  if (job.config.level > 0) {
    ++counters.resends_passed;
    pass_on(job, packet, gradient, sink);
  } else {
    if (!slot.bitmap.contains(position) && !add(job, slot, gradient, position, now)) {
      return job.drop(counters.dropped_shape, packet);
    }
    ++counters.resends_merged;
    send_up(job, slot, gradient.common, true, sink);
  }
  deallocate(slot);
  ++counters.deallocated;
}

// Fig. 7, 2: no switch upstream adds it, and the parameter server is told of the collision. Where one packet of a chunk
// collided, a slot for the others would never be complete. So they go on too, whatever has become of the slot.
void Switch::pass_collided(Job& job, const SlotState& slot, const RxView& packet, GradientPacket& gradient, Sink& sink) {
  gradient.common.resend = true;
  gradient.common.collision = slot.used;
  ++(slot.used ? job.counters.collisions : job.counters.rest_passed);
  if (job.config.children.size() > 1 && !job.plain()) job.collision(gradient.common.sequence) = gradient.common.sequence;
  pass_on(job, packet, gradient, sink);
}

void Switch::add_gradient(Job& job, SlotState& slot, const RxView& packet, const GradientPacket& gradient,
                          std::uint32_t position, Time now, Sink& sink) {
  if (!slot.used) {
    allocate(job, slot, gradient, position, now, sink);
  } else if (slot.bitmap.contains(position)) {  // Fig. 7, 4 and 7
    slot.ecn |= gradient.common.ecn;
    return answer_waiting(job, slot, position, now, sink);
  } else if (!add(job, slot, gradient, position, now)) {
    return job.drop(job.counters.dropped_shape, packet);
  }
  slot.ecn |= gradient.common.ecn;
  ++job.counters.added;
  if (!job.config.children[position].is_switch && !slot.again && !job.plain())
    tell_losses(job, position, slot.sequence, sink);
  if (slot.counter == job.config.children.size()) complete(job, slot, gradient.common, false, sink);  // Fig. 7, 6
}

void Switch::complete(Job& job, SlotState& slot, const Common& last, bool resend, Sink& sink) {
  ++job.counters.completed;
  slot.complete = true;
  slot.resent.clear();
  send_up(job, slot, last, resend, sink);
}

void Switch::allocate(Job& job, SlotState& slot, const GradientPacket& gradient, std::uint32_t position, Time now,
                      Sink& sink) {
  if (slot.sent_in_batch == batch_) sink.flush();  // its memory is still referenced
  const std::uint64_t sent_in_batch = slot.sent_in_batch;
  const Common& common = gradient.common;
  std::uint64_t& taken = job.taken[common.sequence % job.taken.size()];
  slot = {.used = true,
          .job_epoch = common.job_epoch,
          .sequence = common.sequence,
          .signature = common.signature,
          .index = common.index,
          .again = std::exchange(taken, common.sequence) == common.sequence,
          .sent_in_batch = sent_in_batch};
  ++in_use_;
  ++job.counters.allocated;
  static_cast<void>(add(job, slot, gradient, position, now));  // an empty slot fits any packet
  // What takes a slot once more, after a resend emptied the first, tells nothing of ranks whose packets are gone with that.
  if (slot.again || job.plain()) return;
  job.gaps.opened(common.sequence, static_cast<std::uint32_t>(&slot - slots_.data()),
                  [&](std::uint32_t late) { tell_loss(job, slot, late, sink); });
}

// Fig. 7, 5. False if the packet does not match the slot's content.
bool Switch::add(const Job& job, SlotState& slot, const GradientPacket& gradient, std::uint32_t position, Time now) {
  const Common& common = gradient.common;
  Sum sum{memory_of(slot) + gradient_at, slot.elements, slot.wide, slot.overflow, slot.exponent};
  if (!add_to(sum, gradient, job.config.overflow)) return false;
  slot.elements = sum.elements;
  slot.wide = sum.wide;
  slot.overflow = sum.overflow;
  slot.exponent = sum.exponent;
  slot.ecn |= common.ecn;
  slot.checked |= !common.unchecked;
  slot.directions = gradient.directions;
  slot.bitmap.insert(position);
  ++slot.counter;
  slot.updated = now;
  NETSUM_CHECK(slot.counter == slot.bitmap.size());
  return true;
}

// Fig. 7, 8; Fig. 17, 7.
void Switch::send_up(Job& job, SlotState& slot, const Common& last, bool resend, Sink& sink) {
  if (slot.sent_in_batch == batch_) sink.flush();  // its memory is still referenced
  Common common = last;
  common.resend = resend;
  common.ecn = slot.ecn;
  common.overflow = slot.overflow;
  common.wide = slot.wide;
  common.unchecked = !slot.checked;
  common.rank_epoch = job.config.folded_epochs;
  common.elements = slot.elements;
  common.exponent = slot.exponent;
  wire::atp::Directions directions = slot.directions;
  directions.set(job.config.level, slot.bitmap);
  directions.level = job.config.next_level;
  const std::span<std::byte> packet(memory_of(slot) + gradient_at - wire::atp::header_bytes(directions),
                                    wire::atp::gradient_bytes(common, directions));
  wire::atp::write_gradient_header(packet, common, directions);
  wire::atp::seal(packet);
  slot.sent_in_batch = batch_;
  sink.multicast(packet, std::span(&job.config.parent, 1));
}

// The paper drops a repeat, and its sender goes on repeating; here the sender learns that its packet is not the missing one.
void Switch::answer_waiting(Job& job, SlotState& slot, std::uint32_t position, Time now, Sink& sink) {
  if (!may_tell(job, slot, position, now)) return void(++job.counters.repeats_silent);
  ++job.counters.repeats_waiting;
  tell_waiting(job, slot, job.config.children[position], sink);
}

bool Switch::may_tell(const Job& job, SlotState& slot, std::uint32_t position, Time now) {
  if (now - slot.told_since >= waiting_interval) {
    slot.told.clear();
    slot.told_since = now;
  }
  if (job.config.children[position].is_switch || job.plain() || slot.told.contains(position)) return false;
  slot.told.insert(position);
  return true;
}

// Tells the rank which chunks before this one it has lost. Slots are shared, and may hold other chunks by now.
void Switch::tell_losses(Job& job, std::uint32_t position, std::uint64_t sequence, Sink& sink) {
  job.gaps.contributed(position, sequence, [&](std::uint32_t index, std::uint64_t lost) {
    SlotState& slot = slots_[index];
    if (slot.used && slot.job_epoch == job.config.epoch && slot.sequence == lost && !slot.again) {
      tell_loss(job, slot, position, sink);
    }
  });
}

// The rank is told, and repeats that packet alone.
void Switch::tell_loss(Job& job, SlotState& slot, std::uint32_t position, Sink& sink) {
  if (slot.bitmap.contains(position)) return;
  ++job.counters.losses_told;
  tell_waiting(job, slot, job.config.children[position], sink);
}

// Which ranks' packets the sum lacks.
void Switch::tell_waiting(const Job& job, const SlotState& slot, const SwitchChild& child, Sink& sink) {
  wire::atp::WaitingPacket waiting;
  waiting.common.type = Type::waiting;
  waiting.common.job_epoch = job.config.epoch;
  waiting.common.rank_epoch = job.config.folded_epochs;
  waiting.common.sequence = slot.sequence;
  waiting.common.signature = slot.signature;
  waiting.common.index = slot.index;
  const auto& children = job.config.children;  // a complete sum was sent up; no child is missing
  for (std::uint32_t i = 0; i < children.size(); ++i) {
    if (!slot.bitmap.contains(i)) waiting.missing = waiting.missing.united(children[i].ranks);
  }
  wire::atp::write_waiting(sink.datagram(child.endpoint, wire::atp::waiting_bytes(waiting.missing)), waiting);
}

// Passes the packet on unchanged but for the directions and the flags set here.
void Switch::pass_on(const Job& job, const RxView& packet, const GradientPacket& gradient, Sink& sink) {
  wire::atp::Directions directions = gradient.directions;
  directions.level = job.config.next_level;
  const std::span<std::byte> copy = sink.datagram(job.config.parent, packet.bytes.size());
  std::memcpy(copy.data(), packet.bytes.data(), packet.bytes.size());
  wire::atp::write_gradient_header(copy, gradient.common, directions);
  wire::atp::seal(copy);
}

// Of the chunk that a parameter packet, an ask or a done is about; or an abandoned one.
void Switch::free_slot(Job& job, SlotState& slot, const Common& common, Time now) {
  if (!slot.used) return;
  if (slot.job_epoch == common.job_epoch && slot.sequence == common.sequence) {
    deallocate(slot);
    ++job.counters.deallocated;
  } else if (now - slot.updated >= config_.abandoned_after) {
    deallocate(slot);
    ++counters_.reclaimed;
  }
}

// Fig. 7, 8 and §3.7: a parameter packet frees its slot, or an abandoned one, and goes on to all children.
void Switch::on_parameter(const RxView& packet, const Common& common, bool congested, Time now, Sink& sink) {
  Job* const job = find(common.job_epoch);
  if (job == nullptr) return on_unknown_job(packet, common, now, sink);
  SwitchJobCounters& counters = job->counters;
  ++counters.packets;
  counters.bytes += packet.bytes.size();
  if (packet.source != job->config.parent) return job->drop(counters.dropped_source, packet);
  if (common.rank_epoch != job->config.folded_epochs) return job->drop(counters.dropped_rank_epoch, packet);
  wire::atp::ParameterPacket parameter;
  if (wire::atp::parse_parameter(packet.bytes, common, parameter) != ParseError::none ||
      common.elements > job->config.packet_elements) {
    return job->drop(counters.dropped_shape, packet);
  }
  if (config_.chip) {
    free_chip_slot(*job, common);
  } else {
    free_slot(*job, slots_[common.index % slots_.size()], common, now);
  }
  std::span<const Endpoint> to = job->everybody;
  switch (common.type) {
    case Type::parameter:
      ++counters.parameters;
      break;
    case Type::ask:
      ++counters.asks;
      break;
    default:  // done: no rank waits for it, but switches below may hold a slot
      ++counters.dones;
      to = job->switches;
      break;
  }
  if (common.type == Type::parameter && (congested || packet.congested) && !common.ecn) {
    ++counters.marked;
    Common marked = common;
    marked.ecn = true;
    if (to.empty()) return;
    if (marked_in_use_ == marked_copies) {
      sink.flush();  // the copies are still referenced
      marked_in_use_ = 0;
    }
    const std::span<std::byte> copy = std::span(marked_).subspan(marked_in_use_++ * marked_bytes_, packet.bytes.size());
    std::memcpy(copy.data(), packet.bytes.data(), packet.bytes.size());
    wire::atp::write_parameter_header(copy, marked, parameter.next_index);
    wire::atp::seal(copy);
    sink.multicast(copy, to);
    return;
  }
  if (!to.empty()) sink.multicast(packet.bytes, to);
}

const DropSources<SwitchJobCounters>* Switch::drop_sources(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->drops;
}

const SwitchJobCounters* Switch::job_counters(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : &found->second->counters;
}

std::uint32_t Switch::slots_in_use(std::uint64_t epoch) const {
  if (config_.chip) {
    const auto found = jobs_.find(epoch);
    return found == jobs_.end() ? 0 : chip_.in_use(found->second->chip_number);
  }
  return static_cast<std::uint32_t>(std::count_if(
      slots_.begin(), slots_.end(), [&](const SlotState& slot) { return slot.used && slot.job_epoch == epoch; }));
}

}  // namespace netsum::atp
