// The door of a switch that sums elsewhere than in this process: the chip profile (docs/protocol-switchml-chip.md) in the
// kernel (dataplane/xdp) or on a chip. The control plane here admits jobs, tells it of them, and asks it what it counted.
//
// An object is one lane of it. SwitchMlJobs drives it as it drives a switch in C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocol/switchml/switch.h"

namespace netsum::service {

class ChipPlane {
 public:
  // What a job has there. Its end may take long: not within the lane's run().
  class Job {
   public:
    virtual ~Job() = default;
  };
  using JobState = std::unique_ptr<Job>;

  virtual ~ChipPlane() = default;

  // Of the lane.
  [[nodiscard]] static std::size_t memory_bytes(const switchml::SwitchJobConfig&) { return 0; }

  // Everything that add_job() needs. May take long: not within the lane's run(). Throws Error: the job cannot be served
  // there, and why.
  [[nodiscard]] virtual JobState make_job(const switchml::SwitchJobConfig& config) = 0;
  [[nodiscard]] JobState make_job(const switchml::SwitchJobConfig& config, std::span<std::byte>) { return make_job(config); }

  // Within the lane's run(). The first two as switchml::ChipSwitch's: from add_job() until remove_job() it serves the job.
  [[nodiscard]] virtual bool add_job(JobState&& job) = 0;
  virtual JobState remove_job(std::uint64_t epoch) = 0;
  [[nodiscard]] virtual std::optional<switchml::JobCounters> job_counters(std::uint64_t epoch) const = 0;
  // It does not say where packets came from.
  [[nodiscard]] static const DropSources<switchml::JobCounters>* drop_sources(std::uint64_t) { return nullptr; }
  [[nodiscard]] virtual switchml::SwitchCounters counters() const = 0;
  // Packets of all jobs so far that this host received and sent there, by no socket.
  struct Carried {
    std::uint64_t received = 0, sent = 0;
  };
  [[nodiscard]] virtual Carried carried() const { return {}; }
  [[nodiscard]] virtual std::uint32_t slots_in_use(std::uint64_t epoch) const = 0;
  [[nodiscard]] virtual std::vector<switchml::StalledChunk> stalled(std::uint64_t epoch, std::size_t most) const = 0;
};

using ChipPlanes = std::vector<std::unique_ptr<ChipPlane>>;  // by lane

}  // namespace netsum::service
