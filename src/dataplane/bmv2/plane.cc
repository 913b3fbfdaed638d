#include "dataplane/bmv2/plane.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "dataplane/bmv2/bmv2.h"
#include "netsum/error.h"
#include "protocol/switchml/chip_rule.h"
#include "protocol/switchml/chip_stalled.h"
#include "transport/addresses.h"
#include "wire/switchml_chip.h"

namespace netsum::dataplane::bmv2 {
namespace {

// A neighbour's Ethernet address is known as a rule: its control channel and its probes came from there.
constexpr std::chrono::seconds patience{1};

constexpr std::uint32_t frame_bytes = 42;       // of headers around a datagram
constexpr std::uint32_t queued_packets = 2048;  // of each port, and of packets between two passes: there are bursts
constexpr double strangers_answered_a_second = 100;

// p4/common/constants.p4.
enum Outcome : std::uint32_t {
  contribution,
  completed,
  silent,
  old,
  early,
  other_slot,
  other_shape,
  sent_to_all,
  answered,
};

// The lowest bytes, in network order.
Target::Bytes bytes_of(std::uint64_t value, std::size_t size) {
  Target::Bytes bytes(size, '\0');
  for (std::size_t i = size; i-- > 0; value >>= 8) bytes[i] = static_cast<char>(value & 0xff);
  return bytes;
}
Target::Bytes epoch_bytes(std::uint64_t epoch) {  // as it is in packets
  return bytes_of(__builtin_bswap64(epoch), 8);
}
Target::Bytes address_bytes(const Endpoint& of) {
  return {of.address.begin() + 12, of.address.end()};
}
template <std::size_t size>
Target::Bytes bytes_of(const std::array<std::uint8_t, size>& address) {
  return {address.begin(), address.end()};
}

// At its end: what remains in a switch that no longer answers is of an epoch that is never issued again, and goes when a
// daemon starts.
template <class Call>
void try_to(const Call& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

}  // namespace

Switch::Switch(std::unique_ptr<Target> target, const std::vector<Endpoint>& lanes) : target_(std::move(target)) {
  target_->reset();
  target_->deepen_queues(queued_packets);
  static_cast<void>(target_->make_group(flood_group, {{0, target_->ports()}}));
  target_->limit_meter("netsum_answers_to_strangers", strangers_answered_a_second, 10);
  for (const Endpoint& lane : lanes) {
    target_->add_entry("netsum_lanes", {address_bytes(lane), bytes_of(lane.port, 2)}, "netsum_own_lane", {});
  }
  for (std::uint32_t job = 0; job < max_jobs; ++job) free_jobs_.insert(job);
}

std::uint32_t Switch::take_job() {
  const std::lock_guard lock(mutex_);
  if (free_jobs_.empty()) {
    throw Error(ErrorCode::refused, "the P4 switch has " + std::to_string(max_jobs) + " jobs, and can have no more");
  }
  return free_jobs_.extract(free_jobs_.begin()).value();
}

void Switch::give_job(std::uint32_t job) {
  const std::lock_guard lock(mutex_);
  free_jobs_.insert(job);
}

std::uint32_t Switch::take_entries(std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  std::uint32_t begin = 0;
  for (const auto& [taken, end] : entries_) {
    if (taken - begin >= count) break;
    begin = end;
  }
  if (count > register_entries || begin > register_entries - count) {
    throw Error(ErrorCode::refused, "too few register entries are free at the P4 switch, which has " +
                                        std::to_string(register_entries / 8) +
                                        " slots of 256 elements for all jobs: lower --slots");
  }
  entries_.emplace(begin, begin + count);
  return begin;
}

void Switch::give_entries(std::uint32_t begin) {
  const std::lock_guard lock(mutex_);
  entries_.erase(begin);
}

std::uint32_t Switch::port_of(const transport::EthernetAddress& address) {
  std::uint64_t wanted = 0;
  for (const std::uint8_t byte : address) wanted = wanted << 8 | byte;
  for (const std::uint64_t entry : target_->read_registers("netsum_learned")) {
    if (entry >> 16 == wanted) return static_cast<std::uint32_t>(entry & 0x1ff);
  }
  throw Error(ErrorCode::unreachable,
              "the P4 switch has not seen its Ethernet address at any port: are this host and the "
              "ranks connected by that switch alone?");
}

class Plane::SwitchJob final : public service::ChipPlane::Job {
 public:
  SwitchJob(std::shared_ptr<Switch> target, const Endpoint& lane, const switchml::SwitchJobConfig& config,
            const Route& route)
      : switch_(std::move(target)),
        config_(config),
        quarters_(config.packet_elements / chip_few_elements),
        number_(switch_->take_job()) {
    try {
      base_ = switch_->take_entries(entries());
      fill(lane, route);
    } catch (...) {
      end();
      throw;
    }
  }
  ~SwitchJob() override { end(); }
  SwitchJob(const SwitchJob&) = delete;
  SwitchJob& operator=(const SwitchJob&) = delete;

  [[nodiscard]] const switchml::SwitchJobConfig& config() const { return config_; }

  void stop_serving() {
    for (const std::int32_t entry : members_) try_to([&] { switch_->target().delete_entry("netsum_members", entry); });
    members_.clear();
  }

  void read_counters() {
    Target& target = switch_->target();
    const auto outcome = [&](const char* counter, std::uint32_t which) {
      return target.count(counter, number_ * outcomes_of_a_job + which);
    };
    const Target::Count arrived = outcome("netsum_arrived", 0);
    switchml::JobCounters now;
    now.packets = arrived.packets;
    now.bytes = arrived.bytes - std::min(arrived.bytes, arrived.packets * frame_bytes);
    now.contributions = outcome("netsum_outcomes", contribution).packets + outcome("netsum_outcomes", completed).packets;
    now.chunks = outcome("netsum_outcomes", sent_to_all).packets;
    now.repeats_answered = outcome("netsum_outcomes", answered).packets;
    now.results_sent = now.chunks * config_.members.size() + now.repeats_answered;
    now.repeats_silent = outcome("netsum_outcomes", silent).packets;
    now.dropped_old = outcome("netsum_outcomes", old).packets;
    now.dropped_early = outcome("netsum_outcomes", early).packets;
    now.dropped_slot = outcome("netsum_arrived", other_slot).packets;
    now.dropped_shape = outcome("netsum_arrived", other_shape).packets;
    counters = now;
  }
  switchml::JobCounters counters;  // as they were read last

  // Of each version of each slot, the register of its last 64 elements: what it says of all. Nothing if the switch is
  // silent.
  [[nodiscard]] std::vector<ChipGate> gates() const {
    std::vector<ChipGate> gates;
    try_to([&] {
      const std::vector<std::uint64_t> units = switch_->target().read_registers("netsum_gate");
      const std::uint32_t begin = *base_ + (quarters_ - 1) * stride();
      for (std::uint32_t i = begin; i < begin + stride() && i < units.size(); ++i) {
        gates.push_back({static_cast<std::uint32_t>(units[i] >> 32), static_cast<std::uint32_t>(units[i])});
      }
    });
    return gates;
  }
  // Likewise, of the packet that opened the round: the operation's lower half, and the chunk.
  [[nodiscard]] std::vector<std::uint64_t> opened() const {
    std::vector<std::uint64_t> opened(stride());
    try_to([&] {
      const std::vector<std::uint64_t> units = switch_->target().read_registers("netsum_opened");
      for (std::uint32_t i = 0; i < stride() && *base_ + i < units.size(); ++i) opened[i] = units[*base_ + i];
    });
    return opened;
  }

 private:
  [[nodiscard]] std::uint32_t stride() const { return 2 * config_.slots; }
  [[nodiscard]] std::uint32_t entries() const { return stride() * quarters_; }

  void fill(const Endpoint& lane, const Route& route) {
    Target& target = switch_->target();
    target.fill_registers("netsum_gate", *base_, *base_ + entries(), chip_accepted);
    target.fill_registers("netsum_done", *base_, *base_ + entries(), 0);
    for (std::uint32_t i = 0; i < outcomes_of_a_job; ++i) {
      target.clear_count("netsum_outcomes", number_ * outcomes_of_a_job + i);
      target.clear_count("netsum_arrived", number_ * outcomes_of_a_job + i);
    }
    const auto group = static_cast<std::uint16_t>(flood_group + 1 + number_);
    std::vector<Target::Replica> replicas;
    for (std::uint32_t member = 0; member < config_.members.size(); ++member) {
      const Endpoint& endpoint = config_.members[member].endpoint;
      try {
        const transport::NextHop hop = route(endpoint);
        replicas.push_back({static_cast<std::uint16_t>(member + 1), {switch_->port_of(hop.neighbour)}});
        receivers_.push_back(target.add_entry("netsum_receivers", {bytes_of(number_, 2), bytes_of(member + 1, 2)},
                                              "netsum_address",
                                              {bytes_of(hop.neighbour), bytes_of(hop.own), address_bytes(endpoint),
                                               address_bytes(lane), bytes_of(endpoint.port, 2), bytes_of(lane.port, 2)}));
      } catch (const Error& error) {
        throw Error(error.code(),
                    "the bmv2 data plane cannot serve " + transport::to_string(endpoint) + ": " + error.what());
      }
    }
    group_ = target.make_group(group, replicas);
    const std::uint32_t everyone = chip_everyone(static_cast<std::uint32_t>(config_.members.size()));
    for (std::uint32_t member = 0; member < config_.members.size(); ++member) {
      const Endpoint& endpoint = config_.members[member].endpoint;
      members_.push_back(target.add_entry(
          "netsum_members",
          {epoch_bytes(config_.epoch), bytes_of(member, 1), bytes_of(chip_contribution, 1), address_bytes(endpoint),
           bytes_of(endpoint.port, 2), address_bytes(lane), bytes_of(lane.port, 2)},
          "netsum_is_member",
          {bytes_of(number_, 2), bytes_of(member + 1, 2), bytes_of(1U << member, 4), bytes_of(everyone, 4),
           bytes_of(*base_, 4), bytes_of(stride(), 4), bytes_of(config_.slots, 2),
           bytes_of(8 + chip_packet_bytes(config_.packet_elements), 2), bytes_of(quarters_ - 1, 1),
           bytes_of(replicas[member].ports[0], 2), bytes_of(group, 2)}));
    }
  }

  void end() {
    stop_serving();
    Target& target = switch_->target();
    for (const std::int32_t entry : receivers_) try_to([&] { target.delete_entry("netsum_receivers", entry); });
    if (group_) try_to([&] { target.destroy_group(*group_); });
    if (base_) switch_->give_entries(*base_);
    switch_->give_job(number_);
  }

  const std::shared_ptr<Switch> switch_;
  const switchml::SwitchJobConfig config_;
  const std::uint32_t quarters_, number_;
  std::optional<std::uint32_t> base_;
  std::optional<Target::Group> group_;
  std::vector<std::int32_t> members_, receivers_;
};

Plane::Plane(std::shared_ptr<Switch> target, const Endpoint& lane, bool first, Route route)
    : switch_(std::move(target)), lane_(lane), first_(first), route_(std::move(route)) {}
Plane::~Plane() = default;

service::ChipPlane::JobState Plane::make_job(const switchml::SwitchJobConfig& config) {
  if (config.members.empty() || config.members.size() > chip_max_members ||
      !wire::chip::possible_packet(config.packet_elements)) {
    throw Error(ErrorCode::internal, "a chip cannot serve a job that was admitted");
  }
  if (config.tree && config.tree->parent) {
    throw Error(ErrorCode::refused, "the bmv2 data plane is the root of a tree, and not below another switch");
  }
  return std::make_unique<SwitchJob>(switch_, lane_, config, route_);
}

bool Plane::add_job(JobState&& job) {
  const std::uint64_t epoch = static_cast<const SwitchJob&>(*job).config().epoch;
  return jobs_.try_emplace(epoch, std::move(job)).second;
}

service::ChipPlane::JobState Plane::remove_job(std::uint64_t epoch) {
  auto removed = jobs_.extract(epoch);
  if (removed.empty()) return nullptr;
  static_cast<SwitchJob&>(*removed.mapped()).stop_serving();
  return std::move(removed.mapped());
}

const Plane::SwitchJob* Plane::find(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : static_cast<const SwitchJob*>(found->second.get());
}

std::optional<switchml::JobCounters> Plane::job_counters(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  if (found == jobs_.end()) return std::nullopt;
  auto& job = static_cast<SwitchJob&>(*found->second);
  try_to([&] { job.read_counters(); });
  return job.counters;
}

switchml::SwitchCounters Plane::counters() const {
  if (!first_) return {};
  try_to([&] {
    counters_.unknown_job = switch_->target().count("netsum_strangers", 0).packets;
    counters_.malformed[chip_no_value] = switch_->target().count("netsum_strangers", 1).packets;
  });
  return counters_;
}

std::uint32_t Plane::slots_in_use(std::uint64_t epoch) const {
  const SwitchJob* const job = find(epoch);
  if (job == nullptr) return 0;
  const std::vector<ChipGate> gates = job->gates();
  return static_cast<std::uint32_t>(
      std::count_if(gates.begin(), gates.end(), [](const ChipGate& gate) { return chip_is_open(&gate); }));
}

std::vector<switchml::StalledChunk> Plane::stalled(std::uint64_t epoch, std::size_t most) const {
  const SwitchJob* const job = find(epoch);
  if (job == nullptr) return {};
  const std::vector<ChipGate> gates = job->gates();
  if (gates.size() != std::size_t{job->config().slots} * 2) return {};
  const std::uint32_t everyone = chip_everyone(static_cast<std::uint32_t>(job->config().members.size()));
  const std::vector<std::uint64_t> opened = job->opened();
  return switchml::chip_stalled(job->config(), most, [&](std::size_t number) {
    return switchml::ChipWaiting{chip_missing(&gates[number], everyone), opened[number] >> 32,
                                 static_cast<std::uint32_t>(opened[number])};
  });
}

service::ChipPlanes open(const Config& config) {
  const auto target = std::make_shared<Switch>(connect(config.target), config.lanes);
  service::ChipPlanes planes;
  for (const Endpoint& lane : config.lanes) {
    planes.push_back(std::make_unique<Plane>(target, lane, planes.empty(),
                                             [](const Endpoint& to) { return transport::next_hop(to, patience); }));
  }
  return planes;
}

}  // namespace netsum::dataplane::bmv2
