#include "service/switchml_chip_service.h"

#include <utility>

#include "netsum/error.h"
#include "service/counters.h"
#include "service/stalled_chunks.h"
#include "session/switchml_job.h"

namespace netsum::service {
namespace {

class ChipFormat final : public Format {
 public:
  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == wire::chip::format; }
  void on_packets(std::span<const RxView> packets, bool, Time, Sink& sink) override { machine.on_packets(packets, sink); }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

  switchml::ChipSwitch machine;
};

}  // namespace

class SwitchMlChipService::Job final : public ServedJob {
 public:
  Job(SwitchMlChipService& service, std::uint64_t epoch) : service_(service), epoch_(epoch) {}
  ~Job() override { stop(); }

  void start(const session::StartJob& start) {
    for (std::size_t lane = 0; lane < service_.lanes_.size(); ++lane) add(lane, session::switchml_job(start, lane));
  }

  void stop() override {
    if (stopped_) return;
    stopped_ = true;
    for (; !memory_.empty(); memory_.pop_back()) {
      const std::size_t lane = memory_.size() - 1;
      switchml::ChipSwitch::JobState state;  // ends here, not on the lane
      service_.lanes_[lane]->run([&] {
        state = service_.switches_[lane]->remove_job(epoch_);
        service_.lanes_[lane]->expect_no_more(epoch_);
      });
    }
  }

  // A chip tells ranks of no straggler; its control plane reads the registers.
  [[nodiscard]] session::JobView look() const override {
    session::JobView view;
    for (std::size_t lane = 0; lane < service_.lanes_.size(); ++lane) {
      session::JobView of_lane;
      service_.lanes_[lane]->run([&] {
        for (const auto& chunk : service_.at(lane).stalled(epoch_, 1)) {
          chunk.missing.for_each([&](std::uint32_t rank) { of_lane.missing.insert(rank); });
        }
      });
      view.merge(of_lane);
    }
    return view;
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const switchml::ChipSwitch& machine = service_.at(lane);
    const switchml::JobCounters* const counters = machine.job_counters(epoch_);
    report.counters.add(named(counters == nullptr ? switchml::JobCounters{} : *counters));
    report.counters.add("slots_in_use", counters == nullptr ? 0 : machine.slots_in_use(epoch_));
    if (counters != nullptr) add_stalled(report, machine.stalled(epoch_, stalled_shown));
  }

 private:
  void add(std::size_t lane, const switchml::SwitchJobConfig& config) {
    Lane& on = *service_.lanes_[lane];
    auto memory = on.allocate(switchml::ChipSwitch::memory_bytes(config.packet_elements, config.slots));
    switchml::ChipSwitch::JobState state = switchml::ChipSwitch::make_job(config, memory->bytes());
    if (!state) throw Error(ErrorCode::internal, "the chip cannot serve a job that was admitted");
    bool added = false;
    on.run([&] {
      added = service_.switches_[lane]->add_job(std::move(state));
      if (added) on.expect(epoch_);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
    memory_.push_back(std::move(memory));
  }

  SwitchMlChipService& service_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<Memory>> memory_;  // of the first lanes, which serve the job
  bool stopped_ = false;
};

SwitchMlChipService::SwitchMlChipService(const Lanes& lanes) : lanes_(lanes) {
  for (Lane* const lane : lanes_) switches_.push_back(&serve<ChipFormat>(*lane)->machine);
}

void SwitchMlChipService::report(std::size_t lane, Counters& counters) const {
  counters.add(counters_of_format(at(lane).counters()));
}

std::unique_ptr<ServedJob> SwitchMlChipService::start(const session::StartJob& start) {
  auto job = std::make_unique<Job>(*this, start.admission.job_epoch);
  job->start(start);
  return job;
}

}  // namespace netsum::service
