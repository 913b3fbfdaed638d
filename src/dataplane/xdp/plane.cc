#include "dataplane/xdp/plane.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "dataplane/xdp/watcher.h"
#include "netsum/error.h"
#include "protocol/switchml/chip_stalled.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"
#include "wire/switchml_chip.h"

namespace netsum::dataplane::xdp {
namespace {

// A neighbour's Ethernet address is known as a rule: its control channel and its probes came from there.
constexpr std::chrono::seconds patience{1};

constexpr std::pair<XdpCounter, std::uint64_t switchml::JobCounters::*> counted[] = {
    {xdp_packets, &switchml::JobCounters::packets},
    {xdp_bytes, &switchml::JobCounters::bytes},
    {xdp_contributions, &switchml::JobCounters::contributions},
    {xdp_chunks, &switchml::JobCounters::chunks},
    {xdp_results_sent, &switchml::JobCounters::results_sent},
    {xdp_repeats_answered, &switchml::JobCounters::repeats_answered},
    {xdp_repeats_silent, &switchml::JobCounters::repeats_silent},
    {xdp_repeats_passed_up, &switchml::JobCounters::repeats_passed_up},
    {xdp_sums_sent, &switchml::JobCounters::sums_sent},
    {xdp_sums_repeated, &switchml::JobCounters::sums_repeated},
    {xdp_results_taken, &switchml::JobCounters::results_taken},
    {xdp_dropped_stale, &switchml::JobCounters::dropped_stale},
    {xdp_dropped_old, &switchml::JobCounters::dropped_old},
    {xdp_dropped_early, &switchml::JobCounters::dropped_early},
    {xdp_dropped_rank, &switchml::JobCounters::dropped_rank},
    {xdp_dropped_source, &switchml::JobCounters::dropped_source},
    {xdp_dropped_slot, &switchml::JobCounters::dropped_slot},
    {xdp_dropped_shape, &switchml::JobCounters::dropped_shape},
    {xdp_dropped_trains, &switchml::JobCounters::dropped_trains},
};
static_assert(std::size(counted) == xdp_counters);

int made_map(bpf_map_type type, const char* name, std::size_t value_bytes, std::size_t entries, std::uint32_t flags) {
  bpf_map_create_opts options{};
  options.sz = sizeof options;
  options.map_flags = flags;
  const int map = bpf_map_create(type, name, sizeof(std::uint32_t), static_cast<std::uint32_t>(value_bytes),
                                 static_cast<std::uint32_t>(entries), &options);
  if (map == -ENOMEM) throw std::bad_alloc();
  if (map < 0) throw refused("making a map of the XDP program", -map);
  return map;
}

// In a map of the program until this object's end. If the map is one of maps, no program holds what was in it afterwards:
// the kernel waits for them.
class Entry {
 public:
  template <class Key, class Value>
  Entry(int map, const Key& key, const Value& value)
      : map_(map), key_(reinterpret_cast<const std::byte*>(&key), reinterpret_cast<const std::byte*>(&key + 1)) {
    const int result = bpf_map_update_elem(map, &key, &value, BPF_NOEXIST);
    if (result == -ENOMEM || result == -E2BIG) throw std::bad_alloc();
    if (result < 0) throw refused("writing a job to the XDP program's maps", -result);
  }
  ~Entry() { bpf_map_delete_elem(map_, key_.data()); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  const int map_;
  const std::vector<std::byte> key_;
};

bool same(const XdpWay& one, const XdpWay& other) {
  return std::memcmp(&one, &other, sizeof one) == 0;
}

// Where a job's results go: its interfaces, and the headers that results have there.
class Audience {
 public:
  Audience(const Program& program, const XdpLaneOfJob& key, std::uint32_t most)
      : program_(program),
        key_(key),
        most_(most),
        interfaces_(made_map(BPF_MAP_TYPE_DEVMAP, "netsum_audience", sizeof(bpf_devmap_val), most, 0)) {}
  ~Audience() {
    for (const auto& [interface, way] : told_) forget(interface);
  }
  Audience(const Audience&) = delete;
  Audience& operator=(const Audience&) = delete;

  [[nodiscard]] int map() const { return interfaces_.number(); }
  // From now on. At most one interface for each member.
  void tell(const std::map<std::uint32_t, XdpWay>& results) {
    for (const auto& [interface, way] : results) {
      if (const auto told = told_.find(interface); told != told_.end() && same(told->second, way)) continue;
      const XdpPortOfJob key = key_of(interface);
      const int result = bpf_map_update_elem(program_.map("ways"), &key, &way, BPF_ANY);
      if (result == -ENOMEM || result == -E2BIG) throw std::bad_alloc();
      if (result < 0) throw refused("writing the ports of a job to the XDP program's maps", -result);
      told_[interface] = way;
    }
    auto next = results.begin();
    std::string gone;  // an interface that was just removed; the others get their results
    for (std::uint32_t number = 0; number < most_; ++number) {
      if (next == results.end()) {
        bpf_map_delete_elem(map(), &number);
        continue;
      }
      bpf_devmap_val value{};
      value.ifindex = next->first;
      value.bpf_prog.fd = program_.function("leave");
      if (bpf_map_update_elem(map(), &number, &value, BPF_ANY) < 0) {
        bpf_map_delete_elem(map(), &number);
        gone = transport::interface_name(next->first);
      }
      ++next;
    }
    std::erase_if(told_, [&](const auto& told) {
      const bool ends = !results.contains(told.first);
      if (ends) forget(told.first);
      return ends;
    });
    if (!gone.empty()) throw Error(ErrorCode::refused, "results cannot leave by " + gone);
  }

 private:
  [[nodiscard]] XdpPortOfJob key_of(std::uint32_t interface) const { return {key_.job_epoch, key_.port, interface}; }
  void forget(std::uint32_t interface) const {
    const XdpPortOfJob key = key_of(interface);
    bpf_map_delete_elem(program_.map("ways"), &key);
  }

  const Program& program_;
  const XdpLaneOfJob key_;
  const std::uint32_t most_;
  const transport::Descriptor interfaces_;
  std::map<std::uint32_t, XdpWay> told_;
};

// A job's slots, which the program writes and this process reads.
class Slots {
 public:
  Slots(std::uint32_t elements, std::uint32_t slots)
      : each_(elements == chip_many_elements ? sizeof(XdpManySlot) : sizeof(XdpFewSlot)),
        count_(std::size_t{slots} * 2),
        map_(made_map(BPF_MAP_TYPE_ARRAY, "netsum_slots", each_, count_, BPF_F_INNER_MAP | BPF_F_MMAPABLE)),
        memory_(mmap(nullptr, each_ * count_, PROT_READ | PROT_WRITE, MAP_SHARED, map_.number(), 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    for (std::size_t number = 0; number < count_; ++number) {
      std::memcpy(at(number) + offsetof(XdpSlotHead, gate.bitmap), &chip_accepted, sizeof chip_accepted);
    }
  }
  ~Slots() { munmap(memory_, each_ * count_); }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  [[nodiscard]] int map() const { return map_.number(); }
  [[nodiscard]] std::size_t size() const { return count_; }
  // As it is, while the program goes on.
  [[nodiscard]] XdpSlotHead head(std::size_t number) const {
    XdpSlotHead head;
    std::memcpy(&head, at(number), sizeof head);
    return head;
  }

 private:
  [[nodiscard]] std::byte* at(std::size_t number) const { return static_cast<std::byte*>(memory_) + number * each_; }

  const std::size_t each_, count_;
  const transport::Descriptor map_;
  void* const memory_;
};

service::ChipPlane::Carried sum_of(service::ChipPlane::Carried sum, const std::optional<switchml::JobCounters>& job) {
  if (!job) return sum;
  return {sum.received + job->packets, sum.sent + job->results_sent + job->sums_sent};
}

}  // namespace

class Plane::KernelJob final : public service::ChipPlane::Job, public Follower {
 public:
  // Throws Error as WaysOfJob::find().
  KernelJob(std::shared_ptr<const Program> program, const XdpLaneOfJob& key, switchml::SwitchJobConfig config,
            const XdpJob& job, WaysOfJob asked)
      : program_(std::move(program)),
        key_(key),
        config_(std::move(config)),
        asked_(std::move(asked)),
        ways_(asked_.find(patience)),
        job_(job),
        slots_(config_.packet_elements, config_.slots),
        audience_(*program_, key, job.members),
        of_slots_(program_->map(config_.packet_elements == chip_many_elements ? "slots_of_256" : "slots_of_64"), key,
                  slots_.map()),
        of_audience_(program_->map("audiences"), key, audience_.map()) {
    for (std::uint32_t i = 0; i < ways_.neighbours.size(); ++i) job_.neighbour[number_of(i)] = ways_.neighbours[i];
    audience_.tell(ways_.results);
    program_->followers().add(*this);
  }
  ~KernelJob() override { program_->followers().remove(*this); }
  KernelJob(const KernelJob&) = delete;
  KernelJob& operator=(const KernelJob&) = delete;

  void follow() override {
    const std::lock_guard lock(mutex_);
    Ways now = asked_.find_again(ways_);
    try {
      for (std::uint32_t i = 0; i < now.neighbours.size(); ++i) {
        if (same(now.neighbours[i], ways_.neighbours[i])) continue;
        job_.neighbour[number_of(i)] = now.neighbours[i];
        program_->set_way({key_, number_of(i), 0, now.neighbours[i]});
      }
      audience_.tell(now.results);
    } catch (const std::exception&) {  // an interface has just gone: that is told, too
    }
    ways_ = std::move(now);
  }

  [[nodiscard]] const switchml::SwitchJobConfig& config() const { return config_; }
  [[nodiscard]] const Slots& slots() const { return slots_; }
  [[nodiscard]] std::uint32_t missing(std::size_t number) const {
    const XdpSlotHead head = slots_.head(number);
    return chip_missing(&head.gate, job_.everyone);
  }

  // The program serves it in between.
  [[nodiscard]] bool begin() const {
    const std::lock_guard lock(mutex_);
    return bpf_map_update_elem(program_->map("jobs"), &key_, &job_, BPF_NOEXIST) == 0;
  }
  void end() const { bpf_map_delete_elem(program_->map("jobs"), &key_); }

 private:
  [[nodiscard]] std::uint32_t number_of(std::uint32_t neighbour) const {
    return neighbour < job_.members ? neighbour : std::uint32_t{xdp_parent};
  }

  const std::shared_ptr<const Program> program_;
  const XdpLaneOfJob key_;
  const switchml::SwitchJobConfig config_;
  const WaysOfJob asked_;
  mutable std::mutex mutex_;  // of what changes
  Ways ways_;
  XdpJob job_;  // as it begins
  const Slots slots_;
  Audience audience_;
  const Entry of_slots_, of_audience_;  // end before what they hold
};

Plane::Plane(std::shared_ptr<const Program> program, std::size_t lane, Route route)
    : program_(std::move(program)), number_(lane), lane_(program_->lanes()[lane]), route_(std::move(route)) {}
Plane::~Plane() = default;

XdpLaneOfJob Plane::key_of(std::uint64_t epoch) const {
  return {epoch, chip_host16(lane_.local.port), 0};
}

service::ChipPlane::JobState Plane::make_job(const switchml::SwitchJobConfig& config) {
  if (config.members.empty() || config.members.size() > chip_max_members ||
      !wire::chip::possible_packet(config.packet_elements)) {
    throw Error(ErrorCode::internal, "a chip cannot serve a job that was admitted");
  }
  XdpJob job{};
  job.cpu = static_cast<std::uint32_t>(lane_.cpu);
  job.members = static_cast<std::uint32_t>(config.members.size());
  job.everyone = chip_everyone(job.members);
  job.root = !config.tree || !config.tree->parent;
  job.elements = config.packet_elements;
  job.slots = config.slots;
  if (job.root == 0) job.number = static_cast<std::uint32_t>(config.tree->number);
  auto made = std::make_unique<KernelJob>(
      program_, key_of(config.epoch), config, job,
      WaysOfJob(config, lane_.local,
                {route_, [program = program_](std::uint32_t interface) { return program->is_on(interface); },
                 [program = program_](std::uint32_t interface) { return program->reaches(interface); }}));
  made->follow();  // what changed while it was made
  return made;
}

bool Plane::add_job(JobState&& job) {
  const auto& added = static_cast<const KernelJob&>(*job);
  const std::uint64_t epoch = added.config().epoch;
  if (jobs_.contains(epoch) || !added.begin()) return false;
  jobs_.emplace(epoch, std::move(job));
  return true;
}

service::ChipPlane::JobState Plane::remove_job(std::uint64_t epoch) {
  auto removed = jobs_.extract(epoch);
  if (removed.empty()) return nullptr;
  by_ended_jobs_ = sum_of(by_ended_jobs_, counters_of(epoch));
  static_cast<const KernelJob&>(*removed.mapped()).end();
  return std::move(removed.mapped());
}

const Plane::KernelJob* Plane::find(std::uint64_t epoch) const {
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : static_cast<const KernelJob*>(found->second.get());
}

service::ChipPlane::Carried Plane::carried() const {
  Carried all = by_ended_jobs_;
  for (const auto& [epoch, job] : jobs_) all = sum_of(all, counters_of(epoch));
  return all;
}

std::optional<switchml::JobCounters> Plane::job_counters(std::uint64_t epoch) const {
  return find(epoch) == nullptr ? std::nullopt : counters_of(epoch);
}

std::optional<switchml::JobCounters> Plane::counters_of(std::uint64_t epoch) const {
  const XdpLaneOfJob key = key_of(epoch);
  XdpJob job;
  if (bpf_map_lookup_elem(program_->map("jobs"), &key, &job) != 0) return std::nullopt;
  switchml::JobCounters counters;
  for (const auto& [counter, field] : counted) counters.*field = job.counter[counter];
  return counters;
}

switchml::SwitchCounters Plane::counters() const {
  std::vector<XdpStrangers> of_processors(static_cast<std::size_t>(libbpf_num_possible_cpus()));
  const auto number = static_cast<std::uint32_t>(number_);
  switchml::SwitchCounters counters;
  if (bpf_map_lookup_elem(program_->map("strangers"), &number, of_processors.data()) != 0) return counters;
  for (const XdpStrangers& each : of_processors) {
    for (std::size_t fault = 0; fault < wire::parse_error_kinds; ++fault) counters.malformed[fault] += each.malformed[fault];
    counters.unknown_job += each.unknown_job;
    counters.unexpected_type += each.unexpected_type;
  }
  return counters;
}

std::uint32_t Plane::slots_in_use(std::uint64_t epoch) const {
  const KernelJob* const job = find(epoch);
  std::uint32_t open = 0;
  for (std::size_t number = 0; job != nullptr && number < job->slots().size(); ++number) {
    const XdpSlotHead head = job->slots().head(number);
    open += chip_is_open(&head.gate);
  }
  return open;
}

std::vector<switchml::StalledChunk> Plane::stalled(std::uint64_t epoch, std::size_t most) const {
  const KernelJob* const job = find(epoch);
  if (job == nullptr) return {};
  return switchml::chip_stalled(job->config(), most, [&](std::size_t number) {
    const XdpSlotHead head = job->slots().head(number);
    return switchml::ChipWaiting{job->missing(number), chip_host64(head.operation), chip_host32(head.chunk)};
  });
}

namespace {

// Follows its host.
struct WatchedProgram {
  explicit WatchedProgram(const Config& config) : program(config.lanes), attachments(config.attachments) {
    for (const std::string& interface : config.interfaces) program.attach(interface);
    follow();
    watcher.emplace([this] { follow(); });
  }

  Program program;
  const std::shared_ptr<transport::Attachments> attachments;
  std::optional<Watcher> watcher;

  void follow() {
    try {
      program.follow(*attachments);
    } catch (const Error&) {  // what it knew holds; the next change is another try
    }
    program.followers().follow_all();
  }
};

}  // namespace

service::ChipPlanes open(const Config& config) {
  const auto watched = std::make_shared<WatchedProgram>(config);
  const std::shared_ptr<const Program> program(watched, &watched->program);
  service::ChipPlanes planes;
  for (std::size_t lane = 0; lane < config.lanes.size(); ++lane) {
    planes.push_back(std::make_unique<Plane>(program, lane, &transport::next_hop));
  }
  return planes;
}

}  // namespace netsum::dataplane::xdp
