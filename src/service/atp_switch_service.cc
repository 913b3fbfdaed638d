#include "service/atp_switch_service.h"

#include <algorithm>
#include <utility>

#include "jobs/atp_job.h"
#include "netsum/error.h"
#include "protocol/atp/sealed_hops.h"
#include "service/counters.h"

namespace netsum::service {
namespace {

class PoolFormat final : public Format {
 public:
  PoolFormat(const atp::SwitchConfig& pool, std::unique_ptr<Memory> memory)
      : memory_(std::move(memory)), machine(pool, memory_->bytes()) {}

  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == wire::atp::version; }
  [[nodiscard]] std::uint64_t long_queue() const override { return machine.long_queue(); }
  void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) override {
    machine.count_unbelieved(seal::through(hops, packets, sink, [&](std::span<const RxView> believed, Sink& out) {
      machine.on_packets(believed, congested, now, out);
    }));
  }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

 private:
  std::unique_ptr<Memory> memory_;

 public:
  atp::Switch machine;
  seal::Hops hops = atp::no_hops();
};

}  // namespace

class AtpSwitchService::Job final : public ServedJob {
 public:
  Job(AtpSwitchService& service, std::uint64_t epoch) : service_(service), epoch_(epoch) {}
  ~Job() override { stop(); }

  void stop() override {
    if (stopped_) return;
    stopped_ = true;
    for (std::size_t lane = 0; lane < service_.lanes_.size(); ++lane) {
      service_.lanes_[lane]->run([&] {
        if (service_.switches_[lane] != nullptr) {
          service_.switches_[lane]->remove_job(epoch_);
          service_.hops_[lane]->remove(epoch_);
        }
        service_.lanes_[lane]->expect_no_more(epoch_);
      });
    }
    service_.parts_.release(epoch_);
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const atp::Switch* const machine = service_.at(lane);
    const atp::SwitchJobCounters* const counters = machine == nullptr ? nullptr : machine->job_counters(epoch_);
    report.counters.add(named(counters == nullptr ? atp::SwitchJobCounters{} : *counters));
    report.counters.add("slots_in_use", counters == nullptr ? 0 : machine->slots_in_use(epoch_));
    if (counters != nullptr) machine->drop_sources(epoch_)->add_to(report.dropped_from);
  }

 private:
  AtpSwitchService& service_;
  const std::uint64_t epoch_;
  bool stopped_ = false;
};

AtpSwitchService::AtpSwitchService(const Lanes& lanes, const atp::SwitchConfig& pool)
    : lanes_(lanes), pool_(pool), parts_(pool.slots), switches_(lanes.size()), hops_(lanes.size()) {}

void AtpSwitchService::report(std::size_t lane, Counters& counters) const {
  const atp::Switch* const machine = at(lane);
  counters.add(counters_of_format(machine == nullptr ? atp::SwitchCounters{} : machine->counters()));
  counters.add("pool_slots_in_use", machine == nullptr ? 0 : machine->slots_in_use());
}

void AtpSwitchService::make_pool(std::size_t lane) {
  if (switches_[lane] != nullptr) return;
  auto memory = lanes_[lane]->allocate(atp::Switch::memory_bytes(pool_), Pages::now);
  auto* const format = serve<PoolFormat>(*lanes_[lane], pool_, std::move(memory));
  lanes_[lane]->run([&] {
    switches_[lane] = &format->machine;
    hops_[lane] = &format->hops;
  });
}

void AtpSwitchService::install(std::size_t lane, const atp::SwitchJobConfig& config, PacketSecurity security,
                               std::span<const seal::Neighbour> neighbours) {
  make_pool(lane);
  bool known = false, fits = true;
  lanes_[lane]->run([&] {
    atp::Switch& machine = *switches_[lane];
    known = machine.job_counters(config.epoch) != nullptr;
    fits = known ? machine.move_job(config) : machine.add_job(config);
    if (fits && security != PacketSecurity::none) hops_[lane]->set(config.epoch, security, neighbours, {&config.epoch, 1});
    if (fits && !known) lanes_[lane]->expect(config.epoch);
  });
  if (fits) return;
  throw Error(ErrorCode::refused,
              known ? "the installation differs from the job's earlier one: an epoch must not be used for two jobs"
                    : "this switch's slots hold " + std::to_string(pool_.packet_elements) +
                          " elements, and the job's packets have " + std::to_string(config.packet_elements));
}

session::InstallationCost AtpSwitchService::cost(const session::SwitchMessage& message) const {
  const jobs::AtpInstallation installation = jobs::read_installation(message);
  const auto made = static_cast<std::size_t>(
      std::count_if(switches_.begin(), switches_.end(), [](const auto* pool) { return pool != nullptr; }));
  return {std::max(made, installation.lanes.size()) * atp::Switch::total_bytes(pool_), jobs::memory_bytes(installation)};
}

InstalledJob AtpSwitchService::install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) {
  const jobs::AtpInstallation installation = jobs::read_installation(message);
  const std::uint64_t epoch = installation.job_epoch;
  // This process may have been started again since it sealed packets of the job. What it has forgotten itself costs nothing:
  // its counters go on (seal/hops.h), also where its answer to the first installation is lost and nobody knows of that.
  if (former == nullptr && installation.security != PacketSecurity::none && installation.again) {
    throw Error(ErrorCode::refused, "this switch was restarted and has lost its packet numbers of job '" + installation.job +
                                        "': it must not use the job's keys again, so the job continues without this "
                                        "switch");
  }
  if (pool_.chip) {
    std::string why = atp::chip_refuses(jobs::switch_job(installation, 0));
    if (why.empty() && installation.security != PacketSecurity::none) why = "the chip profile has no packet keys";
    if (!why.empty())
      throw Error(ErrorCode::refused, why + ": job '" + installation.job + "' continues without this switch");
  }
  if (const std::string why = parts_.take(epoch, installation.job, installation.part); !why.empty()) {
    throw Error(ErrorCode::refused, why);
  }
  InstalledJob installed;
  if (former == nullptr) installed.job = std::make_unique<Job>(*this, epoch);  // its end releases the part
  check_lanes(installation.lanes.size(), lanes_.size());
  prove(jobs::destinations(installation));
  for (std::size_t lane = 0; lane < installation.lanes.size(); ++lane) {
    install(lane, jobs::switch_job(installation, lane), installation.security,
            jobs::switch_neighbours(installation.lanes[lane]));
  }
  installed.status.job = installation.job;
  installed.status.job_epoch = epoch;
  installed.status.packet_elements = installation.packet_elements;
  installed.status.slots = pool_.slots;
  installed.status.lanes = static_cast<std::uint32_t>(installation.lanes.size());
  for (const auto& child : installation.lanes.front().children) {
    for (const std::uint32_t rank : child.ranks) {
      if (rank < max_world_size) installed.status.joined.insert(rank);
    }
  }
  for (const auto& lane : installation.lanes) installed.known_as.push_back({lane.parent, lane.own});
  return installed;
}

}  // namespace netsum::service
