#include "dataplane/bmv2/plane.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "dataplane/bmv2/bmv2.h"
#include "netsum/error.h"
#include "netsum/version.h"
#include "protocol/switchml/chip_rule.h"
#include "protocol/switchml/chip_stalled.h"
#include "transport/addresses/addresses.h"
#include "wire/switchml_chip.h"

namespace netsum::dataplane::bmv2 {
namespace {

// A neighbour's Ethernet address is known as a rule: its control channel and its probes came from there.
constexpr std::chrono::seconds patience{1};

constexpr std::uint32_t frame_bytes = 42;       // of headers around a datagram
constexpr std::uint32_t queued_packets = 2048;  // of each port, and of packets between two passes: there are bursts
constexpr double strangers_answered_a_second = 100;
constexpr std::chrono::milliseconds look_interval{500};  // as often as the flight recorder looks

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

}  // namespace

std::shared_ptr<const Seen> Watched::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

void Watched::show(Seen seen) {
  auto shown = std::make_shared<const Seen>(std::move(seen));
  const std::lock_guard lock(mutex_);
  seen_.swap(shown);
}

void Watched::lose_sight() {
  show({seen()->counters, {}, {}});
}

void Watched::look(Target& target, const std::vector<std::uint64_t>& gates, const std::vector<std::uint64_t>& opened) {
  const auto outcome = [&](const char* counter, std::uint32_t which) {
    return target.count(counter, job_ * outcomes_of_a_job + which);
  };
  const Target::Count arrived = outcome("netsum_arrived", 0);
  Seen now;
  now.counters.packets = arrived.packets;
  now.counters.bytes = arrived.bytes - std::min(arrived.bytes, arrived.packets * frame_bytes);
  now.counters.contributions =
      outcome("netsum_outcomes", contribution).packets + outcome("netsum_outcomes", completed).packets;
  now.counters.chunks = outcome("netsum_outcomes", sent_to_all).packets;
  now.counters.repeats_answered = outcome("netsum_outcomes", answered).packets;
  now.counters.results_sent = now.counters.chunks * members_ + now.counters.repeats_answered;
  now.counters.repeats_silent = outcome("netsum_outcomes", silent).packets;
  now.counters.dropped_old = outcome("netsum_outcomes", old).packets;
  now.counters.dropped_early = outcome("netsum_outcomes", early).packets;
  now.counters.dropped_slot = outcome("netsum_arrived", other_slot).packets;
  now.counters.dropped_shape = outcome("netsum_arrived", other_shape).packets;
  const std::size_t last = entries_.begin + std::size_t{entries_.quarters - 1} * entries_.stride;
  if (gates.size() >= last + entries_.stride && opened.size() >= gates.size()) {
    for (std::size_t i = 0; i < entries_.stride; ++i) {
      const std::uint64_t gate = gates[last + i];
      now.gates.push_back({static_cast<std::uint32_t>(gate >> 32), static_cast<std::uint32_t>(gate)});
      now.opened.push_back(opened[entries_.begin + i]);
    }
  }
  show(std::move(now));
}

Switch::Switch(std::unique_ptr<Target> target, const std::vector<Endpoint>& lanes)
    : target_(std::move(target)), lanes_(lanes) {
  target_->reset();
  set_up();
  for (std::uint32_t job = 0; job < max_jobs; ++job) free_jobs_.insert(job);
}

// What remains in a switch that does not answer goes when a daemon starts.
Switch::~Switch() {
  try {
    tidy();
  } catch (const Error&) {
  }
}

void Switch::set_up() {
  target_->deepen_queues(queued_packets);
  static_cast<void>(target_->make_group(flood_group, {{0, target_->ports()}}));
  target_->limit_meter("netsum_answers_to_strangers", strangers_answered_a_second, 10);
  for (const Endpoint& lane : lanes_) {  // last: tidy() sees by them that all is there
    target_->add_entry("netsum_lanes", {address_bytes(lane), bytes_of(lane.port, 2)}, "netsum_own_lane", {});
  }
}

void Switch::tidy() {
  const std::lock_guard tidying(tidying_);
  if (target_->entries_of("netsum_lanes") < lanes_.size()) {
    target_->reset();
    ++life_;
    {
      const std::lock_guard lock(mutex_);
      free_jobs_.merge(doubtful_jobs_);
    }
    set_up();
  }
  while (true) {
    Holding holding;
    {
      const std::lock_guard lock(mutex_);
      if (left_.empty()) return;
      holding = std::move(left_.front());
      left_.pop_front();
    }
    try {
      clear(holding);
    } catch (const Error&) {
      holding.doubtful = true;
      leave(std::move(holding));
      throw;
    }
  }
}

void Switch::clear(Holding& holding) {
  // What it refuses is not there.
  const auto remove = [](const auto& removal) {
    try {
      removal();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::refused) throw;
    }
  };
  const auto empty = [&](const char* table, std::vector<std::int32_t>& entries) {
    for (; !entries.empty(); entries.pop_back()) remove([&] { target_->delete_entry(table, entries.back()); });
  };
  if (holding.life == life_) {  // else it went with the switch's former life
    empty("netsum_members", holding.members);
    empty("netsum_receivers", holding.receivers);
    if (holding.group) remove([&] { target_->destroy_group(*holding.group); });
    holding.group.reset();
  }
  const std::lock_guard lock(mutex_);
  if (holding.entries) entries_.erase(*holding.entries);
  (holding.doubtful && holding.life == life_ ? doubtful_jobs_ : free_jobs_).insert(holding.job);
}

void Switch::look() noexcept {
  try {
    tidy();
    switchml::SwitchCounters strangers;
    strangers.unknown_job = target_->count("netsum_strangers", 0).packets;
    strangers.malformed[chip_no_value] = target_->count("netsum_strangers", 1).packets;
    {
      const std::lock_guard lock(mutex_);
      strangers_ = strangers;
    }
    const auto jobs = watched();
    if (jobs.empty()) return;
    const std::vector<std::uint64_t> gates = target_->read_registers("netsum_gate");
    const std::vector<std::uint64_t> opened = target_->read_registers("netsum_opened");
    for (const auto& job : jobs) job->look(*target_, gates, opened);
  } catch (const Error&) {
    for (const auto& job : watched()) job->lose_sight();
  }
}

std::uint32_t Switch::port_of(const transport::EthernetAddress& address) {
  std::uint64_t wanted = 0;
  for (const std::uint8_t byte : address) wanted = wanted << 8 | byte;
  for (const std::uint64_t entry : target_->read_registers("netsum_learned")) {
    if ((entry & 0xffffffffffff) == wanted) return static_cast<std::uint32_t>(entry >> 48);
  }
  throw Error(ErrorCode::unreachable,
              "the P4 switch has not learned its Ethernet address at any port: connect this host and "
              "the ranks through that switch only");
}

Holding Switch::take_job() {
  const std::lock_guard lock(mutex_);
  if (free_jobs_.empty()) {
    throw Error(ErrorCode::refused,
                "the P4 switch already has " + std::to_string(max_jobs) + " jobs, its maximum: wait until one ends");
  }
  Holding holding;
  holding.life = life_;
  holding.job = free_jobs_.extract(free_jobs_.begin()).value();
  return holding;
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

void Switch::leave(Holding holding) {
  const std::lock_guard lock(mutex_);
  left_.push_back(std::move(holding));
}

std::shared_ptr<Watched> Switch::watch(const Holding& holding, std::size_t members, const Entries& entries) {
  auto job = std::make_shared<Watched>(holding.job, members, entries);
  const std::lock_guard lock(mutex_);
  watched_.push_back(job);
  return job;
}

std::vector<std::shared_ptr<Watched>> Switch::watched() {
  std::vector<std::shared_ptr<Watched>> jobs;
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const std::weak_ptr<Watched>& each) {
    const auto job = each.lock();
    if (job) jobs.push_back(job);
    return !job;
  });
  return jobs;
}

switchml::SwitchCounters Switch::strangers() const {
  const std::lock_guard lock(mutex_);
  return strangers_;
}

class Plane::SwitchJob final : public service::ChipPlane::Job {
 public:
  SwitchJob(std::shared_ptr<Switch> target, const Endpoint& lane, const switchml::SwitchJobConfig& config,
            const Route& route)
      : switch_(std::move(target)), config_(config) {
    switch_->tidy();
    holding_ = switch_->take_job();
    try {
      fill(lane, route);
    } catch (const Error& error) {
      holding_.doubtful = error.code() != ErrorCode::refused;
      switch_->leave(std::move(holding_));
      throw;
    }
  }
  ~SwitchJob() override { switch_->leave(std::move(holding_)); }
  SwitchJob(const SwitchJob&) = delete;
  SwitchJob& operator=(const SwitchJob&) = delete;

  [[nodiscard]] const switchml::SwitchJobConfig& config() const { return config_; }
  [[nodiscard]] std::shared_ptr<const Seen> seen() const { return watched_->seen(); }

 private:
  void fill(const Endpoint& lane, const Route& route) {
    Entries entries;
    entries.stride = 2 * config_.slots;
    entries.quarters = config_.packet_elements / chip_few_elements;
    const std::uint32_t count = entries.stride * entries.quarters;
    entries.begin = switch_->take_entries(count);
    holding_.entries = entries.begin;
    Target& target = switch_->target();
    target.fill_registers("netsum_gate", entries.begin, entries.begin + count, chip_accepted);
    target.fill_registers("netsum_done", entries.begin, entries.begin + count, 0);
    const std::uint32_t number = holding_.job;
    for (std::uint32_t i = 0; i < outcomes_of_a_job; ++i) {
      target.clear_count("netsum_outcomes", number * outcomes_of_a_job + i);
      target.clear_count("netsum_arrived", number * outcomes_of_a_job + i);
    }
    std::vector<Target::Replica> replicas;
    for (std::uint32_t member = 0; member < config_.members.size(); ++member) {
      const Endpoint& endpoint = config_.members[member].endpoint;
      try {
        const transport::NextHop hop = route(endpoint);
        replicas.push_back({static_cast<std::uint16_t>(member + 1), {switch_->port_of(hop.neighbour)}});
        holding_.receivers.push_back(
            target.add_entry("netsum_receivers", {bytes_of(number, 2), bytes_of(member + 1, 2)}, "netsum_address",
                             {bytes_of(hop.neighbour), bytes_of(hop.own), address_bytes(endpoint), address_bytes(lane),
                              bytes_of(endpoint.port, 2), bytes_of(lane.port, 2)}));
      } catch (const Error& error) {
        throw Error(error.code(),
                    "the bmv2 data plane cannot serve " + transport::to_string(endpoint) + ": " + error.what());
      }
    }
    const auto group = static_cast<std::uint16_t>(flood_group + 1 + number);
    holding_.group = target.make_group(group, replicas);
    const std::uint32_t everyone = chip_everyone(static_cast<std::uint32_t>(config_.members.size()));
    for (std::uint32_t member = 0; member < config_.members.size(); ++member) {
      const Endpoint& endpoint = config_.members[member].endpoint;
      holding_.members.push_back(target.add_entry(
          "netsum_members",
          {epoch_bytes(config_.epoch), bytes_of(member, 1), bytes_of(chip_contribution, 1), address_bytes(endpoint),
           bytes_of(endpoint.port, 2), address_bytes(lane), bytes_of(lane.port, 2)},
          "netsum_is_member",
          {bytes_of(number, 2), bytes_of(member + 1, 2), bytes_of(1U << member, 4), bytes_of(everyone, 4),
           bytes_of(entries.begin, 4), bytes_of(entries.stride, 4), bytes_of(config_.slots, 2),
           bytes_of(8 + chip_packet_bytes(config_.packet_elements), 2), bytes_of(entries.quarters - 1, 1),
           bytes_of(replicas[member].ports[0], 2), bytes_of(group, 2)}));
    }
    watched_ = switch_->watch(holding_, config_.members.size(), entries);
  }

  const std::shared_ptr<Switch> switch_;
  const switchml::SwitchJobConfig config_;
  Holding holding_;
  std::shared_ptr<Watched> watched_;
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
    throw Error(ErrorCode::refused, "the bmv2 data plane must be the root of a tree: it cannot be below another switch");
  }
  return std::make_unique<SwitchJob>(switch_, lane_, config, route_);
}

bool Plane::add_job(JobState&& job) {
  const std::uint64_t epoch = static_cast<const SwitchJob&>(*job).config().epoch;
  return jobs_.try_emplace(epoch, std::move(job)).second;
}

service::ChipPlane::JobState Plane::remove_job(std::uint64_t epoch) {
  auto removed = jobs_.extract(epoch);
  return removed.empty() ? nullptr : std::move(removed.mapped());
}

const Plane::SwitchJob* Plane::find(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : static_cast<const SwitchJob*>(found->second.get());
}

std::optional<switchml::JobCounters> Plane::job_counters(std::uint64_t epoch) const {
  const SwitchJob* const job = find(epoch);
  return job == nullptr ? std::nullopt : std::optional(job->seen()->counters);
}

switchml::SwitchCounters Plane::counters() const {
  return first_ ? switch_->strangers() : switchml::SwitchCounters{};
}

std::uint32_t Plane::slots_in_use(std::uint64_t epoch) const {
  const SwitchJob* const job = find(epoch);
  if (job == nullptr) return 0;
  const auto seen = job->seen();
  return static_cast<std::uint32_t>(
      std::count_if(seen->gates.begin(), seen->gates.end(), [](const ChipGate& gate) { return chip_is_open(&gate); }));
}

std::vector<switchml::StalledChunk> Plane::stalled(std::uint64_t epoch, std::size_t most) const {
  const SwitchJob* const job = find(epoch);
  if (job == nullptr) return {};
  const auto seen = job->seen();
  if (seen->gates.empty()) return {};
  const std::uint32_t everyone = chip_everyone(static_cast<std::uint32_t>(job->config().members.size()));
  return switchml::chip_stalled(job->config(), most, [&](std::size_t number) {
    return switchml::ChipWaiting{chip_missing(&seen->gates[number], everyone), seen->opened[number] >> 32,
                                 static_cast<std::uint32_t>(seen->opened[number])};
  });
}

namespace {

// Looks at a switch from time to time, on a thread of its own: it may be silent, and then each look takes seconds.
class Watcher {
 public:
  explicit Watcher(Switch& target)
      : thread_([this, &target](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            target.look();
            std::unique_lock lock(mutex_);
            stopped_.wait_for(lock, stop, look_interval, [] { return false; });
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;
};

struct WatchedSwitch {
  explicit WatchedSwitch(const Config& config) : target(connect(config.target), config.lanes) {}

  Switch target;
  Watcher watcher{target};
};

}  // namespace

}  // namespace netsum::dataplane::bmv2

// What bmv2.cc calls.
extern "C" void netsum_open_bmv2(const char* version, const netsum::dataplane::bmv2::Config& config,
                                 netsum::service::ChipPlanes& planes) {
  using namespace netsum;
  using namespace netsum::dataplane::bmv2;
  if (std::string_view(version) != NETSUM_VERSION) {
    throw Error(ErrorCode::refused,
                "the bmv2 plugin was built for netsum " NETSUM_VERSION ", but this is netsum " + std::string(version));
  }
  const auto watched = std::make_shared<WatchedSwitch>(config);
  const std::shared_ptr<Switch> target(watched, &watched->target);
  for (const Endpoint& lane : config.lanes) {
    planes.push_back(std::make_unique<Plane>(target, lane, planes.empty(),
                                             [](const Endpoint& to) { return transport::next_hop(to, patience); }));
  }
}
