// ATP at an aggregator: a switch below the parameter servers where the job's ranks join.
#include "daemon/proved_endpoints.h"
#include "daemon/service.h"
#include "session/atp_job.h"

namespace netsum::daemon {
namespace {

using telemetry::Counters;

Counters counters_of(const atp::SwitchJobCounters& c, std::uint32_t slots_in_use) {
  return {{"packets", c.packets},
          {"bytes", c.bytes},
          {"added", c.added},
          {"completed", c.completed},
          {"allocated", c.allocated},
          {"deallocated", c.deallocated},
          {"collisions", c.collisions},
          {"repeats_waiting", c.repeats_waiting},
          {"repeats_silent", c.repeats_silent},
          {"resends_merged", c.resends_merged},
          {"resends_passed", c.resends_passed},
          {"direct_passed", c.direct_passed},
          {"mismatch_passed", c.mismatch_passed},
          {"marked", c.marked},
          {"parameters", c.parameters},
          {"asks", c.asks},
          {"dones", c.dones},
          {"dropped_source", c.dropped_source},
          {"dropped_rank_epoch", c.dropped_rank_epoch},
          {"dropped_shape", c.dropped_shape},
          {"slots_in_use", slots_in_use}};
}

class Job final : public ServedJob {
 public:
  Job(DataPlane& plane, std::uint64_t epoch) : plane_(plane), epoch_(epoch) {}

  void stop() override {
    for (const auto& lane : plane_.lanes) lane->uninstall(epoch_);
  }

  void report(std::size_t, const runtime::SwitchLane::State& state, telemetry::JobReport& report) const override {
    const atp::SwitchJobCounters* const counters = state.atp == nullptr ? nullptr : state.atp->job_counters(epoch_);
    report.counters.add(counters == nullptr ? counters_of(atp::SwitchJobCounters{}, 0)
                                            : counters_of(*counters, state.atp->slots_in_use(epoch_)));
  }

 private:
  DataPlane& plane_;
  const std::uint64_t epoch_;
};

}  // namespace

Part install_part(DataPlane& plane, const session::Installation& installation, const control::Caller& caller,
                  const std::shared_ptr<ServedJob>& former) {
  if (installation.lanes.size() > plane.lanes.size()) {
    throw Error(ErrorCode::refused, "this switch has " + std::to_string(plane.lanes.size()) +
                                        " threads, and the job needs " + std::to_string(installation.lanes.size()) +
                                        ": raise the switch's --threads");
  }
  check_endpoints(installation, caller, plane.cookies);
  Part part;
  part.job = former ? former : std::make_shared<Job>(plane, installation.job_epoch);
  try {
    for (std::size_t lane = 0; lane < installation.lanes.size(); ++lane) {
      plane.lanes[session::switch_lane(installation.job_epoch, lane, plane.lanes.size())]->install(
          session::switch_job(installation, lane));
    }
  } catch (...) {
    if (!former) part.job->stop();
    throw;
  }
  part.status.job = installation.job;
  part.status.job_epoch = installation.job_epoch;
  part.status.packet_elements = installation.packet_elements;
  part.status.slots = plane.pool_slots;
  for (const auto& child : installation.lanes.front().children) {
    for (const std::uint32_t rank : child.ranks) {
      if (rank < max_world_size) part.status.joined.insert(rank);
    }
  }
  return part;
}

}  // namespace netsum::daemon
