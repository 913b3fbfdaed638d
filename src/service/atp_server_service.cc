#include "service/atp_server_service.h"

#include <utility>

#include "netsum/error.h"
#include "protocol/atp/sealed_hops.h"
#include "service/counters.h"
#include "service/stalled_chunks.h"
#include "session/installations.h"

namespace netsum::service {
namespace {

class GradientFormat final : public Format {
 public:
  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == wire::atp::version; }
  [[nodiscard]] std::uint64_t long_queue() const override { return machine.long_queue(); }
  void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) override {
    machine.count_unbelieved(seal::through(hops, packets, sink, [&](std::span<const RxView> believed, Sink& out) {
      machine.on_packets(believed, congested, now, out);
    }));
  }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

  atp::Server machine;
  seal::Hops hops = atp::no_hops();
};

}  // namespace

class AtpServerService::Job final : public ServedJob {
 public:
  Job(AtpServerService& service, std::uint64_t epoch) : service_(service), epoch_(epoch) {}
  ~Job() override { stop(); }

  // The switches' endpoints come later.
  void start(const session::StartJob& start) {
    for (std::size_t lane = 0; lane < session::lanes_of(start); ++lane) {
      const session::SwitchEndpoint unknown = session::switch_endpoints({});
      add(lane, config_of(start, lane, unknown), start.admission.security, jobs::server_neighbours(start, lane, unknown));
    }
  }

  void stop() override {
    for (; !memory_.empty(); memory_.pop_back()) {
      const std::size_t lane = memory_.size() - 1;
      atp::Server::JobState state;  // ends here, not on the lane
      service_.lanes_[lane]->run([&] {
        state = service_.servers_[lane]->remove_job(epoch_);
        service_.hops_[lane]->remove(epoch_);
        service_.lanes_[lane]->expect_no_more(epoch_);
      });
    }
  }

  void place(const session::StartJob& start, const session::SwitchLanes& switches) override {
    const session::SwitchEndpoint endpoint = session::switch_endpoints(switches);
    for (std::size_t lane = 0; lane < memory_.size(); ++lane) {
      const std::vector<Endpoint> roots = config_of(start, lane, endpoint).roots;
      const auto neighbours = jobs::server_neighbours(start, lane, endpoint);
      service_.lanes_[lane]->run([&] {
        service_.servers_[lane]->move_roots(epoch_, roots);
        if (!neighbours.empty()) service_.hops_[lane]->set(epoch_, start.admission.security, neighbours, {&epoch_, 1});
      });
    }
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const atp::Server& machine = service_.at(lane);
    const atp::ServerJobCounters* const counters = machine.job_counters(epoch_);
    report.counters.add(named(counters == nullptr ? atp::ServerJobCounters{} : *counters));
    report.counters.add("chunks_incomplete", counters == nullptr ? 0 : machine.incomplete(epoch_));
    if (const auto* const drops = machine.drop_sources(epoch_)) drops->add_to(report.dropped_from);
    add_stalled(report, machine.stalled(epoch_, stalled_shown));
  }

 private:
  [[nodiscard]] atp::ServerJobConfig config_of(const session::StartJob& start, std::size_t lane,
                                               const session::SwitchEndpoint& endpoint) const {
    return jobs::server_job(start, lane, service_.settings_(start.job), endpoint);
  }

  void add(std::size_t lane, const atp::ServerJobConfig& config, PacketSecurity security,
           const std::vector<seal::Neighbour>& neighbours) {
    Lane& on = *service_.lanes_[lane];
    auto memory =
        on.allocate(atp::Server::memory_bytes(config.packet_elements, config.window, config.topology.world_size()));
    atp::Server::JobState state = atp::Server::make_job(config, memory->bytes());
    bool added = false;
    on.run([&] {
      if (!neighbours.empty()) service_.hops_[lane]->set(epoch_, security, neighbours, {&epoch_, 1});
      added = service_.servers_[lane]->add_job(std::move(state));
      if (added) on.expect(epoch_);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
    memory_.push_back(std::move(memory));
  }

  AtpServerService& service_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<Memory>> memory_;  // of the first lanes, which serve the job
};

AtpServerService::AtpServerService(const Lanes& lanes, jobs::AtpSettingsOf settings, const jobs::AtpParts& parts)
    : lanes_(lanes), settings_(std::move(settings)), parts_(parts) {
  for (Lane* const lane : lanes_) {
    GradientFormat* const format = serve<GradientFormat>(*lane);
    servers_.push_back(&format->machine);
    hops_.push_back(&format->hops);
  }
}

void AtpServerService::report(std::size_t lane, Counters& counters) const {
  counters.add(counters_of_format(at(lane).counters()));
}

std::unique_ptr<ServedJob> AtpServerService::start(const session::StartJob& start) {
  auto job = std::make_unique<Job>(*this, start.admission.job_epoch);
  job->start(start);
  return job;
}

session::SwitchMessage AtpServerService::describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                  const session::SwitchLanes& switches,
                                                  std::span<const Endpoint> own) const {
  return jobs::message_of(
      jobs::installation_for(start, switch_id, settings_(start.job), session::switch_endpoints(switches), own, again));
}

}  // namespace netsum::service
