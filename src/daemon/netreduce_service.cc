// NetReduce at an aggregator: rings of RoCEv2 connections, one per lane, whole or as part of a tree of switches.
#include <mutex>
#include <utility>

#include "daemon/counters.h"
#include "daemon/proved_endpoints.h"
#include "daemon/service.h"
#include "session/netreduce_job.h"

namespace netsum::daemon {
namespace {

class Job final : public ServedJob {
 public:
  Job(DataPlane& plane, std::uint64_t epoch) : plane_(plane), epoch_(epoch) {}

  // Adds ring_of(lane) to each of the first `lanes` lanes; no effect if the job has its rings or has ended: a switch's sums
  // are lost with its ring. The job's ranks are told of their admission only afterwards, so no packet comes earlier.
  template <class RingOf>
  void add_rings(std::size_t lanes, const RingOf& ring_of) {
    const std::lock_guard lock(mutex_);
    if (lanes_ != 0 || stopped_) return;
    for (; lanes_ < lanes; ++lanes_) plane_.lanes[lanes_]->add_ring(ring_of(lanes_));
  }

  void stop() override {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (; lanes_ > 0; --lanes_) plane_.lanes[lanes_ - 1]->remove_ring(session::incarnation_of(epoch_, lanes_ - 1));
  }

  void place(const session::StartJob& start, const control::SwitchLanes& switches) override {
    add_rings(plane_.lanes.size(), [&](std::size_t lane) {
      return session::tunnel_ring(start, lane, netreduce::at_root, session::switch_endpoints(switches));
    });
  }

  // All lanes' views merged; `missing` is the first stalled lane's.
  [[nodiscard]] session::JobView look() const override {
    session::JobView view;
    for (std::size_t lane = 0; lane < plane_.lanes.size(); ++lane) {
      plane_.lanes[lane]->inspect([&](const runtime::SwitchLane::State& state) {
        netreduce::Accelerator& accelerator = state.netreduce.accelerator();
        const std::uint64_t incarnation = session::incarnation_of(epoch_, lane);
        if (const auto mismatch = accelerator.mismatch(incarnation)) {
          view.mismatch = "ranks " + std::to_string(mismatch->first_rank) + " and " + std::to_string(mismatch->second_rank) +
                          " issued different calls as message " + std::to_string(mismatch->message) + " of ring " +
                          std::to_string(lane);
        }
        const auto stall = accelerator.stall(incarnation);
        if (stall && view.missing.empty()) view.missing = stall->missing;
      });
    }
    return view;
  }

  void report(std::size_t lane, const runtime::SwitchLane::State& state, telemetry::JobReport& report) const override {
    const auto* const ring = state.netreduce.accelerator().ring_counters(session::incarnation_of(epoch_, lane));
    report.counters.add(counters_of(ring == nullptr ? netreduce::RingCounters{} : *ring));
  }

 private:
  DataPlane& plane_;
  const std::uint64_t epoch_;
  std::mutex mutex_;       // guards the members below
  std::size_t lanes_ = 0;  // the first lanes, which have their ring
  bool stopped_ = false;
};

class NetReduceService final : public Service {
 public:
  explicit NetReduceService(DataPlane& plane) : plane_(plane) {}

  [[nodiscard]] session::ProtocolRules rules() const override { return session::netreduce_rules(); }

  [[nodiscard]] std::shared_ptr<ServedJob> start(const session::StartJob& start) override {
    auto job = std::make_shared<Job>(plane_, start.admission.job_epoch);
    if (!start.admission.placement.switches.empty()) return job;  // until place()
    try {
      job->place(start, {});
    } catch (...) {
      job->stop();
      throw;
    }
    return job;
  }

 private:
  DataPlane& plane_;
};

}  // namespace

std::unique_ptr<Service> make_netreduce_service(DataPlane& plane) {
  return std::make_unique<NetReduceService>(plane);
}

Part install_part(DataPlane& plane, const session::RingInstallation& installation, const control::Caller& caller) {
  const session::Admission& admission = installation.start.admission;
  if (installation.again) {
    throw Error(ErrorCode::refused, "it was restarted, or could not be reached for a while, and has lost the job's sums");
  }
  const std::size_t used = installation.root.size();
  if (used > plane.lanes.size()) {
    throw Error(ErrorCode::refused, "this switch has " + std::to_string(plane.lanes.size()) +
                                        " threads, and the job needs " + std::to_string(used) +
                                        ": raise the switch's --threads");
  }
  std::vector<netreduce::TunnelRing> made;
  for (std::size_t lane = 0; lane < used; ++lane) {
    made.push_back(session::tunnel_ring(installation, lane));
    check_endpoints(made.back(), installation, lane, caller, plane.cookies);
  }
  const auto job = std::make_shared<Job>(plane, admission.job_epoch);
  try {
    job->add_rings(used, [&](std::size_t lane) { return made[lane]; });
  } catch (...) {
    job->stop();
    throw;
  }
  Part part;
  part.job = job;
  part.status.job = installation.start.job;
  part.status.job_epoch = admission.job_epoch;
  part.status.packet_elements = admission.packet_elements;
  part.status.slots = admission.slots;
  for (const netreduce::Line& line : made.front().ring.lines) {
    if (line.way != netreduce::Way::arriving) part.status.joined = part.status.joined.united(line.ranks);
  }
  return part;
}

}  // namespace netsum::daemon
