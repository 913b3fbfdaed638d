// SwitchML at an aggregator: each lane has a part of each job's slots; ranks on one host may share memory instead.
#include <algorithm>
#include <utility>

#include "daemon/broker.h"
#include "daemon/service.h"
#include "transport/addresses.h"

namespace netsum::daemon {
namespace {

using telemetry::Counters;

constexpr std::size_t stalled_shown = 8;

Counters counters_of(const switchml::JobCounters& c, std::uint32_t slots_in_use) {
  return {{"packets", c.packets},
          {"bytes", c.bytes},
          {"contributions", c.contributions},
          {"chunks", c.chunks},
          {"results_sent", c.results_sent},
          {"results_to_group", c.results_to_group},
          {"group_unheard", c.group_unheard},
          {"repeats_answered", c.repeats_answered},
          {"repeats_waiting", c.repeats_waiting},
          {"repeats_silent", c.repeats_silent},
          {"losses_told", c.losses_told},
          {"dropped_old", c.dropped_old},
          {"dropped_early", c.dropped_early},
          {"dropped_mismatch", c.dropped_mismatch},
          {"dropped_rank", c.dropped_rank},
          {"dropped_rank_epoch", c.dropped_rank_epoch},
          {"dropped_source", c.dropped_source},
          {"dropped_slot", c.dropped_slot},
          {"dropped_shape", c.dropped_shape},
          {"slots_in_use", slots_in_use}};
}

class Job final : public ServedJob {
 public:
  Job(DataPlane& plane, std::uint64_t epoch) : plane_(plane), epoch_(epoch) {}

  void start(const session::StartJob& start) {
    if (start.admission.local) plane_.broker->start_job(epoch_, start.local_tickets);
    for (std::size_t lane = 0; lane < plane_.lanes.size(); ++lane) {
      switchml::SwitchJobConfig config;
      config.epoch = epoch_;
      config.packet_elements = start.admission.packet_elements;
      config.slots = start.admission.slots;
      for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
        config.members.push_back({start.admission.rank_epochs[rank], start.endpoints[rank][lane], start.listens[rank]});
      }
      if (plane_.groups != nullptr) config.group = plane_.groups->group_of(start.job, lane);
      plane_.lanes[lane]->add_job(config);
    }
  }

  void stop() override {
    plane_.broker->stop_job(epoch_);
    for (const auto& lane : plane_.lanes) lane->remove_job(epoch_);
  }

  void report(std::size_t, const runtime::SwitchLane::State& state, telemetry::JobReport& report) const override {
    const switchml::JobCounters* const counters = state.switchml.job_counters(epoch_);
    if (counters == nullptr) {
      report.counters.add(counters_of(switchml::JobCounters{}, 0));
      return;
    }
    report.counters.add(counters_of(*counters, state.switchml.slots_in_use(epoch_)));
    for (const auto& chunk : state.switchml.stalled(epoch_, stalled_shown)) {
      telemetry::JobReport::Stalled stalled{chunk.operation, chunk.chunk, chunk.slot, {}};
      for (std::uint32_t rank = 0; rank < report.job.world_size; ++rank) {
        if (chunk.missing.contains(rank)) stalled.missing.push_back(rank);
      }
      report.stalled.push_back(std::move(stalled));
    }
    std::sort(report.stalled.begin(), report.stalled.end(),
              [](const auto& a, const auto& b) { return std::tie(a.operation, a.chunk) < std::tie(b.operation, b.chunk); });
    if (report.stalled.size() > stalled_shown) report.stalled.resize(stalled_shown);
  }

 private:
  DataPlane& plane_;
  const std::uint64_t epoch_;
};

class SwitchMlService final : public Service {
 public:
  explicit SwitchMlService(DataPlane& plane) : plane_(plane) {}

  [[nodiscard]] session::ProtocolRules rules() const override { return session::switchml_rules(); }

  [[nodiscard]] std::shared_ptr<ServedJob> start(const session::StartJob& start) override {
    auto job = std::make_shared<Job>(plane_, start.admission.job_epoch);
    if (!start.admission.local && plane_.groups != nullptr) log_group(start);
    try {
      job->start(start);
    } catch (...) {
      job->stop();
      throw;
    }
    return job;
  }

 private:
  void log_group(const session::StartJob& start) const {
    const std::string group = transport::to_string(plane_.groups->group_of(start.job, 0));
    if (std::count(start.listens.begin(), start.listens.end(), true) < 2) {
      return plane_.log("job '" + start.job + "': each rank has its own results, as fewer than two have joined " + group);
    }
    std::string others;
    for (std::size_t rank = 0; rank < start.listens.size(); ++rank) {
      if (!start.listens[rank]) others += (others.empty() ? "" : ", ") + std::to_string(rank);
    }
    plane_.log("job '" + start.job + "': results go to " + group +
               (others.empty() ? "" : ", and by themselves to ranks " + others + ", which have not joined it"));
  }

  DataPlane& plane_;
};

}  // namespace

std::unique_ptr<Service> make_switchml_service(DataPlane& plane) {
  return std::make_unique<SwitchMlService>(plane);
}

}  // namespace netsum::daemon
