#include "service/switchml_service.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "netsum/error.h"
#include "service/counters.h"
#include "session/switchml_job.h"

namespace netsum::service {
namespace {

constexpr std::size_t stalled_shown = 8;

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

  void start(const session::StartJob& start) {
    if (service_.surroundings_.starting) service_.surroundings_.starting(start);
    for (std::size_t lane = 0; lane < service_.lanes_.size(); ++lane) {
      switchml::SwitchJobConfig config = session::switchml_job(start, lane);
      if (service_.surroundings_.group) config.group = service_.surroundings_.group(start.job, lane);
      add(lane, config);
    }
  }

  void stop() override {
    if (stopped_) return;
    stopped_ = true;
    if (service_.surroundings_.stopping) service_.surroundings_.stopping(epoch_);
    for (; !memory_.empty(); memory_.pop_back()) {
      const std::size_t lane = memory_.size() - 1;
      switchml::Switch::JobState state;  // ends here, not on the lane
      service_.lanes_[lane]->run([&] {
        state = service_.switches_[lane]->remove_job(epoch_);
        service_.lanes_[lane]->expect_no_more(epoch_);
      });
    }
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const switchml::Switch& machine = service_.at(lane);
    const switchml::JobCounters* const counters = machine.job_counters(epoch_);
    report.counters.add(named(counters == nullptr ? switchml::JobCounters{} : *counters));
    report.counters.add("slots_in_use", counters == nullptr ? 0 : machine.slots_in_use(epoch_));
    if (counters == nullptr) return;
    for (const auto& chunk : machine.stalled(epoch_, stalled_shown)) {
      session::JobReport::Stalled stalled{chunk.operation, chunk.chunk, chunk.slot, {}};
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
  void add(std::size_t lane, const switchml::SwitchJobConfig& config) {
    Lane& on = *service_.lanes_[lane];
    auto memory = on.allocate(switchml::Switch::memory_bytes(config.packet_elements, config.slots, config.members.size()));
    switchml::Switch::JobState state = switchml::Switch::make_job(config, memory->bytes());
    bool added = false;
    on.run([&] {
      added = service_.switches_[lane]->add_job(std::move(state));
      if (added) on.expect(epoch_);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
    memory_.push_back(std::move(memory));
  }

  SwitchMlService& service_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<Memory>> memory_;  // of the first lanes, which serve the job
  bool stopped_ = false;
};

SwitchMlService::SwitchMlService(const Lanes& lanes, Surroundings surroundings)
    : lanes_(lanes), surroundings_(std::move(surroundings)) {
  for (Lane* const lane : lanes_) switches_.push_back(&serve<ChunkFormat>(*lane, surroundings_.cookies)->machine);
}

void SwitchMlService::report(std::size_t lane, Counters& counters) const {
  counters.add(counters_of_format(at(lane).counters()));
}

std::unique_ptr<ServedJob> SwitchMlService::start(const session::StartJob& start) {
  auto job = std::make_unique<Job>(*this, start.admission.job_epoch);
  job->start(start);
  return job;
}

}  // namespace netsum::service
