#include "service/switchml_jobs.h"

#include <utility>

#include "jobs/switchml_job.h"
#include "netsum/error.h"
#include "protocol/switchml/chip_switch.h"
#include "protocol/switchml/rdma_switch.h"
#include "service/chip_plane.h"
#include "service/counters.h"
#include "service/stalled_chunks.h"
#include "session/installations.h"

namespace netsum::service {

namespace {

// A train now and then is as a loss. Where most packets are in trains, nothing ever completes.
std::string hopeless(const switchml::JobCounters& counters) {
  constexpr std::uint64_t few = 64;
  if (counters.dropped_trains < few + counters.chunks) return "";
  return "the kernel of the switch's host merges the job's packets before the XDP program, which cannot take them (" +
         std::to_string(counters.dropped_trains) +
         " dropped): ethtool -K INTERFACE gro off there, and tx-udp-segmentation off at ranks' veths, or use --data-plane "
         "sockets";
}

}  // namespace

template <class Machine>
class SwitchMlJobs<Machine>::Job final : public ServedJob {
 public:
  Job(SwitchMlJobs& service, std::uint64_t epoch) : service_(service), epoch_(epoch) {}
  ~Job() override { stop(); }

  // Later the job does not lack memory.
  void reserve(const std::vector<switchml::SwitchJobConfig>& configs) {
    for (std::size_t lane = 0; lane < configs.size(); ++lane) {
      memory_.push_back(service_.lanes_[lane]->allocate(Machine::memory_bytes(configs[lane])));
    }
  }

  // No effect if the job is on the lanes or has ended: a switch's sums are lost with it. The job's ranks are told of their
  // admission only afterwards, so no packet comes earlier.
  void add(const std::vector<switchml::SwitchJobConfig>& configs) {
    if (placed_ != 0 || stopped_) return;
    for (; placed_ < configs.size(); ++placed_) add(placed_, configs[placed_]);
  }

  void place(const session::StartJob& start, const session::SwitchLanes& switches) override {
    add(service_.configs_of(start, session::switch_endpoints(switches)));
  }

  void stop() override {
    if (stopped_) return;
    stopped_ = true;
    if (service_.surroundings_.stopping) service_.surroundings_.stopping(epoch_);
    for (; placed_ > 0; --placed_) {
      const std::size_t lane = placed_ - 1;
      typename Machine::JobState state;  // ends here, not on the lane
      service_.lanes_[lane]->run([&] {
        state = service_.machines_[lane]->remove_job(epoch_);
        service_.lanes_[lane]->expect_no_more(epoch_);
      });
    }
    memory_.clear();
  }

  // Where packets tell ranks of no straggler.
  [[nodiscard]] session::JobView look() const override {
    session::JobView view;
    if (!service_.rules_.watched) return view;
    for (std::size_t lane = 0; lane < service_.lanes_.size(); ++lane) {
      session::JobView of_lane;
      service_.lanes_[lane]->run([&] {
        for (const auto& chunk : service_.at(lane).stalled(epoch_, 1)) of_lane.missing = chunk.missing;
        if (const auto counters = service_.at(lane).job_counters(epoch_)) of_lane.hopeless = hopeless(*counters);
      });
      view.merge(of_lane);
    }
    return view;
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const Machine& machine = service_.at(lane);
    const auto counters = machine.job_counters(epoch_);
    report.counters.add(named(counters ? *counters : switchml::JobCounters{}));
    report.counters.add("slots_in_use", counters ? machine.slots_in_use(epoch_) : 0);
    if (const auto* const drops = machine.drop_sources(epoch_)) drops->add_to(report.dropped_from);
    if (counters) add_stalled(report, machine.stalled(epoch_, stalled_shown));
  }

 private:
  void add(std::size_t lane, const switchml::SwitchJobConfig& config) {
    Lane& on = *service_.lanes_[lane];
    typename Machine::JobState state = service_.machines_[lane]->make_job(config, memory_[lane]->bytes());
    if (!state) throw Error(ErrorCode::internal, "a switch cannot serve a job that was admitted");
    bool added = false;
    on.run([&] {
      added = service_.machines_[lane]->add_job(std::move(state));
      if (added) on.expect(epoch_);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
  }

  SwitchMlJobs& service_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<Memory>> memory_;  // by lane
  std::size_t placed_ = 0;                       // the first lanes, which serve the job
  bool stopped_ = false;
};

template <class Machine>
SwitchMlJobs<Machine>::SwitchMlJobs(session::ProtocolRules rules, const Lanes& lanes, std::vector<Machine*> machines,
                                    SwitchMlSurroundings surroundings)
    : rules_(std::move(rules)), lanes_(lanes), machines_(std::move(machines)), surroundings_(std::move(surroundings)) {}

template <class Machine>
void SwitchMlJobs<Machine>::report(std::size_t lane, Counters& counters) const {
  counters.add(counters_of_format(at(lane).counters()));
}

template <class Machine>
std::vector<switchml::SwitchJobConfig> SwitchMlJobs<Machine>::configs_of(const session::StartJob& start,
                                                                         const session::SwitchEndpoint& switches) const {
  std::vector<switchml::SwitchJobConfig> configs;
  for (std::size_t lane = 0; lane < session::lanes_of(start); ++lane) {
    switchml::SwitchJobConfig& config = configs.emplace_back(jobs::switchml_job(start, lane, switches));
    if (!config.tree && surroundings_.group) config.group = surroundings_.group(start.job, lane);
    config.group_within_host = surroundings_.group_within_host;
  }
  return configs;
}

template <class Machine>
std::unique_ptr<ServedJob> SwitchMlJobs<Machine>::start(const session::StartJob& start) {
  auto job = std::make_unique<Job>(*this, start.admission.job_epoch);
  if (surroundings_.starting) surroundings_.starting(start);
  const auto configs = configs_of(start, [](std::uint32_t, std::size_t) { return Endpoint{}; });
  job->reserve(configs);
  if (start.admission.placement.switches.empty()) job->add(configs);  // else place() does
  return job;
}

template <class Machine>
session::SwitchMessage SwitchMlJobs<Machine>::describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                       const session::SwitchLanes& switches,
                                                       std::span<const Endpoint> own) const {
  return jobs::tree_message(start, switch_id, again, switches, own);
}

template <class Machine>
session::InstallationCost SwitchMlJobs<Machine>::cost(const session::SwitchMessage& message) const {
  return {0, jobs::switchml_memory_bytes(jobs::read_switchml(message, rules_))};
}

template <class Machine>
InstalledJob SwitchMlJobs<Machine>::install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) {
  const jobs::TreeInstallation installation = jobs::read_switchml(message, rules_);
  const session::Admission& admission = installation.start.admission;
  RankSet joined;
  std::vector<switchml::SwitchJobConfig> configs;
  for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
    configs.push_back(jobs::switchml_job(installation, lane));
  }
  for (const wire::switchml::Ranks& ranks : configs.front().tree->below) {
    joined = joined.united(ranks);
  }
  InstalledJob installed = installed_job(installation, joined);
  if (former != nullptr) return installed;
  jobs::refuse_again(installation);
  check_lanes(configs.size(), lanes_.size());
  std::vector<session::Destination> destinations;
  for (std::size_t lane = 0; lane < configs.size(); ++lane) {
    for (const Endpoint& to : jobs::receivers(installation, lane)) {
      destinations.push_back(jobs::destination(installation, lane, to));
    }
  }
  prove(destinations);
  auto job = std::make_unique<Job>(*this, admission.job_epoch);
  job->reserve(configs);
  job->add(configs);
  installed.job = std::move(job);
  return installed;
}

template class SwitchMlJobs<switchml::Switch>;
template class SwitchMlJobs<switchml::ChipSwitch>;
template class SwitchMlJobs<switchml::RdmaSwitch>;
template class SwitchMlJobs<ChipPlane>;

}  // namespace netsum::service
