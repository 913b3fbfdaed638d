// One lane of the switch in the kernel: jobs put in its program's maps, and counters read from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/xdp/maps.h"
#include "dataplane/xdp/program.h"
#include "dataplane/xdp/ways.h"
#include "service/chip_plane.h"

namespace netsum::dataplane::xdp {

class Plane final : public service::ChipPlane {
 public:
  Plane(std::shared_ptr<const Program> program, std::size_t lane, Route route);
  ~Plane() override;

  [[nodiscard]] JobState make_job(const switchml::SwitchJobConfig& config) override;
  [[nodiscard]] bool add_job(JobState&& job) override;
  JobState remove_job(std::uint64_t epoch) override;
  [[nodiscard]] std::optional<switchml::JobCounters> job_counters(std::uint64_t epoch) const override;
  [[nodiscard]] switchml::SwitchCounters counters() const override;
  [[nodiscard]] Carried carried() const override;
  [[nodiscard]] std::uint32_t slots_in_use(std::uint64_t epoch) const override;
  [[nodiscard]] std::vector<switchml::StalledChunk> stalled(std::uint64_t epoch, std::size_t most) const override;

 private:
  class KernelJob;

  [[nodiscard]] XdpLaneOfJob key_of(std::uint64_t epoch) const;
  [[nodiscard]] const KernelJob* find(std::uint64_t epoch) const;
  [[nodiscard]] std::optional<switchml::JobCounters> counters_of(std::uint64_t epoch) const;

  const std::shared_ptr<const Program> program_;
  const std::size_t number_;
  const Lane lane_;
  const Route route_;
  std::map<std::uint64_t, JobState> jobs_;
  Carried by_ended_jobs_;
};

}  // namespace netsum::dataplane::xdp
