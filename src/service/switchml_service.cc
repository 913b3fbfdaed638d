#include "service/switchml_service.h"

#include <utility>

#include "netsum/error.h"
#include "service/counters.h"
#include "service/stalled_chunks.h"
#include "session/installations.h"
#include "session/switchml_job.h"

namespace netsum::service {
namespace {

class ChunkFormat final : public Format {
 public:
  explicit ChunkFormat(const EndpointCookies& cookies) : machine(cookies) {}

  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == wire::switchml::version; }
  void on_packets(std::span<const RxView> packets, bool, Time now, Sink& sink) override {
    machine.on_packets(packets, now, sink);
  }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

  switchml::Switch machine;
};

}  // namespace

class SwitchMlService::Job final : public ServedJob {
 public:
  Job(SwitchMlService& service, std::uint64_t epoch) : service_(service), epoch_(epoch) {}
  ~Job() override { stop(); }

  // Later the job does not lack memory.
  void reserve(const std::vector<switchml::SwitchJobConfig>& configs) {
    for (std::size_t lane = 0; lane < configs.size(); ++lane) {
      memory_.push_back(service_.lanes_[lane]->allocate(switchml::Switch::memory_bytes(configs[lane])));
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
      switchml::Switch::JobState state;  // ends here, not on the lane
      service_.lanes_[lane]->run([&] {
        state = service_.switches_[lane]->remove_job(epoch_);
        service_.lanes_[lane]->expect_no_more(epoch_);
      });
    }
    memory_.clear();
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const switchml::Switch& machine = service_.at(lane);
    const switchml::JobCounters* const counters = machine.job_counters(epoch_);
    report.counters.add(named(counters == nullptr ? switchml::JobCounters{} : *counters));
    report.counters.add("slots_in_use", counters == nullptr ? 0 : machine.slots_in_use(epoch_));
    if (counters != nullptr) add_stalled(report, machine.stalled(epoch_, stalled_shown));
  }

 private:
  void add(std::size_t lane, const switchml::SwitchJobConfig& config) {
    Lane& on = *service_.lanes_[lane];
    switchml::Switch::JobState state = switchml::Switch::make_job(config, memory_[lane]->bytes());
    bool added = false;
    on.run([&] {
      added = service_.switches_[lane]->add_job(std::move(state));
      if (added) on.expect(epoch_);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
  }

  SwitchMlService& service_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<Memory>> memory_;  // by lane
  std::size_t placed_ = 0;                       // the first lanes, which serve the job
  bool stopped_ = false;
};

SwitchMlService::SwitchMlService(const Lanes& lanes, Surroundings surroundings)
    : lanes_(lanes), surroundings_(std::move(surroundings)) {
  for (Lane* const lane : lanes_) switches_.push_back(&serve<ChunkFormat>(*lane, surroundings_.cookies)->machine);
}

void SwitchMlService::report(std::size_t lane, Counters& counters) const {
  counters.add(counters_of_format(at(lane).counters()));
}

std::vector<switchml::SwitchJobConfig> SwitchMlService::configs_of(const session::StartJob& start,
                                                                   const session::SwitchEndpoint& switches) const {
  std::vector<switchml::SwitchJobConfig> configs;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    switchml::SwitchJobConfig& config = configs.emplace_back(session::switchml_job(start, lane, switches));
    if (!config.tree && surroundings_.group) config.group = surroundings_.group(start.job, lane);
  }
  return configs;
}

std::unique_ptr<ServedJob> SwitchMlService::start(const session::StartJob& start) {
  auto job = std::make_unique<Job>(*this, start.admission.job_epoch);
  if (surroundings_.starting) surroundings_.starting(start);
  const auto configs = configs_of(start, [](std::uint32_t, std::size_t) { return Endpoint{}; });
  job->reserve(configs);
  if (start.admission.placement.switches.empty()) job->add(configs);  // else place() does
  return job;
}

session::SwitchMessage SwitchMlService::describe(const session::StartJob& start, std::uint32_t a_switch, bool again,
                                                 const session::SwitchLanes& switches, std::span<const Endpoint> own) const {
  return session::TreeInstallation{
      session::for_switch(start, a_switch), a_switch, again, switches, {own.begin(), own.end()}};
}

bool SwitchMlService::takes(const session::SwitchMessage& message) const {
  const auto* const installation = std::get_if<session::TreeInstallation>(&message);
  return installation != nullptr && installation->start.protocol == session::switchml_rules().name;
}

Part SwitchMlService::install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) {
  const auto& installation = std::get<session::TreeInstallation>(message);
  const session::Admission& admission = installation.start.admission;
  RankSet joined;
  std::vector<switchml::SwitchJobConfig> configs;
  for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
    configs.push_back(session::switchml_job(installation, lane));
  }
  for (const wire::switchml::Ranks& ranks : configs.front().tree->below) {
    joined = joined.united(ranks);
  }
  Part part = part_of(installation, joined);
  if (former != nullptr) return part;
  session::refuse_again(installation);
  check_lanes(configs.size(), lanes_.size());
  prove(message);
  auto job = std::make_unique<Job>(*this, admission.job_epoch);
  job->reserve(configs);
  job->add(configs);
  part.job = std::move(job);
  return part;
}

}  // namespace netsum::service
