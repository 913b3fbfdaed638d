// One lane of a P4 switch: jobs put into its tables, and counters and bitmaps read from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "dataplane/bmv2/target.h"
#include "service/chip_plane.h"
#include "transport/next_hop.h"

namespace netsum::dataplane::bmv2 {

// p4/common/constants.p4 has these too.
inline constexpr std::uint32_t register_entries = 8192, max_jobs = 256, outcomes_of_a_job = 16;
inline constexpr std::uint16_t flood_group = 1;

// The switch behind all lanes: what of it is taken. Any thread.
class Switch {
 public:
  // Empties it. Throws Error: as Target.
  Switch(std::unique_ptr<Target> target, const std::vector<Endpoint>& lanes);

  [[nodiscard]] Target& target() const { return *target_; }
  // Throws Error: refused, none is free.
  [[nodiscard]] std::uint32_t take_job();
  void give_job(std::uint32_t job);
  // A range of register entries: its first. Throws Error: refused.
  [[nodiscard]] std::uint32_t take_entries(std::uint32_t count);
  void give_entries(std::uint32_t begin);
  // Where the switch has seen this address. Throws Error: unreachable, nowhere.
  [[nodiscard]] std::uint32_t port_of(const transport::EthernetAddress& address);

 private:
  const std::unique_ptr<Target> target_;
  std::mutex mutex_;
  std::set<std::uint32_t> free_jobs_;
  std::map<std::uint32_t, std::uint32_t> entries_;  // taken ones: begin and end
};

// Throws Error: unreachable, bad_argument.
using Route = std::function<transport::NextHop(const Endpoint& to)>;

class Plane final : public service::ChipPlane {
 public:
  Plane(std::shared_ptr<Switch> target, const Endpoint& lane, bool first, Route route);
  ~Plane() override;

  // The switch serves the job from here on: its ranks learn of it later.
  [[nodiscard]] JobState make_job(const switchml::SwitchJobConfig& config) override;
  [[nodiscard]] bool add_job(JobState&& job) override;
  JobState remove_job(std::uint64_t epoch) override;
  // If the switch does not answer: what it said last.
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
  mutable switchml::SwitchCounters counters_;
  std::map<std::uint64_t, JobState> jobs_;
};

}  // namespace netsum::dataplane::bmv2
