// One lane of a P4 switch: jobs put into its tables, and counters and bitmaps read from it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "dataplane/bmv2/target.h"
#include "protocol/switchml/chip_rule.h"
#include "service/chip_plane.h"
#include "transport/addresses/next_hop.h"

namespace netsum::dataplane::bmv2 {

// p4/common/constants.p4 has these too.
inline constexpr std::uint32_t register_entries = 8192, max_jobs = 256, outcomes_of_a_job = 16;
inline constexpr std::uint16_t flood_group = 1;

// The register entries of a job: those of its last 64 elements are the last of `quarters` ranges of `stride`.
struct Entries {
  std::uint32_t begin = 0, stride = 0, quarters = 0;
};

// A job as the switch showed it last.
struct Seen {
  switchml::JobCounters counters;
  // For each version of each slot: the gate of its last 64 elements, which says of whom it has all, and what opened its
  // round: the operation's lower half, and the chunk. Empty: unknown.
  std::vector<ChipGate> gates;
  std::vector<std::uint64_t> opened;
};

// A job that somebody looks at. Any thread.
class Watched {
 public:
  Watched(std::uint32_t job, std::size_t members, const Entries& entries)
      : job_(job), members_(members), entries_(entries) {}

  [[nodiscard]] std::shared_ptr<const Seen> seen() const;

  // `gates` and `opened`: the registers of all jobs. Throws Error: as Target.
  void look(Target& target, const std::vector<std::uint64_t>& gates, const std::vector<std::uint64_t>& opened);
  // The switch is silent: only what has been counted is still known.
  void lose_sight();

 private:
  void show(Seen seen);

  const std::uint32_t job_;
  const std::size_t members_;
  const Entries entries_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Seen> seen_ = std::make_shared<const Seen>();
};

// What a job holds of the switch.
struct Holding {
  std::uint64_t life = 0;  // of the switch, in which the job was put into its tables
  std::uint32_t job = 0;
  std::optional<std::uint32_t> entries;  // the first one
  std::optional<Target::Group> group;
  std::vector<std::int32_t> members, receivers;
  bool doubtful = false;  // a call was not answered: there may be more of it in the switch
};

// The switch behind all lanes: what of it is taken, and what it shows. Any thread; only the first group of functions waits
// for the switch.
class Switch {
 public:
  // Empties it. Throws Error: as Target.
  Switch(std::unique_ptr<Target> target, const std::vector<Endpoint>& lanes);
  ~Switch();

  // Takes jobs that have ended out of it, and sets it up again if it has begun anew. Throws Error: as Target.
  void tidy();
  // Reads what it shows of all jobs that are watched, and tidies up.
  void look() noexcept;
  // Where the switch has seen this address. Throws Error: unreachable, nowhere.
  [[nodiscard]] std::uint32_t port_of(const transport::EthernetAddress& address);
  [[nodiscard]] Target& target() const { return *target_; }

  // Throws Error: refused, none is free.
  [[nodiscard]] Holding take_job();
  // A range of register entries: its first. Throws Error: refused.
  [[nodiscard]] std::uint32_t take_entries(std::uint32_t count);
  // Whenever the switch answers, it forgets the job. Until then nobody else gets what it holds.
  void leave(Holding holding);
  [[nodiscard]] std::shared_ptr<Watched> watch(const Holding& holding, std::size_t members, const Entries& entries);
  // Datagrams of no job, and with a field out of its range.
  [[nodiscard]] switchml::SwitchCounters strangers() const;

 private:
  void set_up();
  void clear(Holding& holding);
  [[nodiscard]] std::vector<std::shared_ptr<Watched>> watched();

  const std::unique_ptr<Target> target_;
  const std::vector<Endpoint> lanes_;
  std::mutex tidying_;  // held while waiting for the switch
  std::atomic<std::uint64_t> life_ = 0;
  mutable std::mutex mutex_;                           // for all below; never wait while holding it
  std::set<std::uint32_t> free_jobs_, doubtful_jobs_;  // the latter are not given to anybody in this life
  std::map<std::uint32_t, std::uint32_t> entries_;     // taken ones: begin and end
  std::deque<Holding> left_;
  std::vector<std::weak_ptr<Watched>> watched_;
  switchml::SwitchCounters strangers_;
};

// Throws Error: unreachable, bad_argument.
using Route = std::function<transport::NextHop(const Endpoint& to)>;

class Plane final : public service::ChipPlane {
 public:
  Plane(std::shared_ptr<Switch> target, const Endpoint& lane, bool first, Route route);
  ~Plane() override;

  // The switch serves the job from here on, as its ranks learn of it later, until some time after the state's end.
  [[nodiscard]] JobState make_job(const switchml::SwitchJobConfig& config) override;
  [[nodiscard]] bool add_job(JobState&& job) override;
  JobState remove_job(std::uint64_t epoch) override;
  // What the switch showed last (Switch::look()): nobody who asks waits for it.
  [[nodiscard]] std::optional<switchml::JobCounters> job_counters(std::uint64_t epoch) const override;
  [[nodiscard]] switchml::SwitchCounters counters() const override;
  [[nodiscard]] std::uint32_t slots_in_use(std::uint64_t epoch) const override;
  [[nodiscard]] std::vector<switchml::StalledChunk> stalled(std::uint64_t epoch, std::size_t most) const override;

 private:
  class SwitchJob;

  [[nodiscard]] const SwitchJob* find(std::uint64_t epoch) const;

  const std::shared_ptr<Switch> switch_;
  const Endpoint lane_;
  const bool first_;  // which reports what belongs to no job
  const Route route_;
  std::map<std::uint64_t, JobState> jobs_;
};

}  // namespace netsum::dataplane::bmv2
