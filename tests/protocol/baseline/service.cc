#include "protocol/baseline/service.h"

#include <algorithm>
#include <utility>

#include "netsum/error.h"
#include "protocol/baseline/joining.h"

namespace netsum::baseline {
namespace {

class ServerFormat final : public service::Format {
 public:
  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == magic; }
  void on_packets(std::span<const RxView> packets, bool, Time, Sink& sink) override { machine.on_packets(packets, sink); }
  [[nodiscard]] std::uint64_t strangers() const override { return outcomes(machine.counters()); }

  Server machine;
};

ServerJobConfig config_of(const session::StartJob& start, std::size_t lane) {
  ServerJobConfig config;
  config.epoch = start.admission.job_epoch;
  config.packet_elements = start.admission.packet_elements;
  config.window = start.admission.slots;
  for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
    config.members.push_back({start.admission.rank_epochs[rank], start.endpoints[rank][lane]});
  }
  return config;
}

std::string check_patience(const session::OwnPart& own) {
  const auto patience = encoding::parsed<Patience>(own);
  if (!patience) return patience.why();
  return patience->milliseconds == 0 ? "a rank without patience" : "";
}

}  // namespace

session::ProtocolRules rules() {
  session::ProtocolRules rules;
  rules.name = "ps";
  rules.version = 1;
  rules.max_world_size = max_workers;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (elements > 0 && elements <= max_packet_elements) return "";
    return "packets have 1 to " + std::to_string(max_packet_elements) + " elements, not " + std::to_string(elements);
  };
  rules.check_placement = [](const session::Placement&) { return std::string(); };
  rules.cost = [](const session::Terms& terms) -> session::Cost {
    return {session::units_of_packet(terms.packet_elements),
            std::uint64_t{Server::memory_bytes(terms.packet_elements, terms.slots)} +
                std::uint64_t{2} * terms.slots * sizeof(Server::Job::Chunk)};
  };
  session::ProtocolRules::Own& own = rules.own.emplace();
  own.check_request = [](const session::JoinRequest& request) { return check_patience(request.own); };
  own.agree = [](const session::Gathered& gathered) {
    session::Agreement agreement;
    agreement.slots = gathered.window;
    Patience shortest = jobs::checked_part<Patience>(gathered.ranks.front()->own);
    for (const session::JoinRequest* const rank : gathered.ranks) {
      const Patience asked = jobs::checked_part<Patience>(rank->own);
      shortest.milliseconds = std::min(shortest.milliseconds, asked.milliseconds);
    }
    agreement.own = jobs::written(shortest);
    return agreement;
  };
  own.check_admission = [](const session::Admission& admission, const session::JoinRequest& asked) {
    std::string error = check_patience(admission.own);
    if (!error.empty()) return error;
    const Patience granted = jobs::checked_part<Patience>(admission.own);
    const bool longer = granted.milliseconds > jobs::checked_part<Patience>(asked.own).milliseconds;
    return longer ? std::string("a longer patience than was asked for") : error;
  };
  return rules;
}

class Service::Job final : public service::ServedJob {
 public:
  Job(Service& service, std::uint64_t epoch) : service_(service), epoch_(epoch) {}
  ~Job() override { stop(); }

  void start(const session::StartJob& start) {
    for (std::size_t lane = 0; lane < session::lanes_of(start); ++lane) add(lane, config_of(start, lane));
  }

  void stop() override {
    for (; !memory_.empty(); memory_.pop_back()) {
      const std::size_t lane = memory_.size() - 1;
      std::map<std::uint64_t, Server::Job>::node_type job;  // ends here, not on the lane
      service_.lanes_[lane]->run([&] {
        job = service_.servers_[lane]->remove_job(epoch_);
        service_.lanes_[lane]->expect_no_more(epoch_);
      });
    }
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const auto found = service_.at(lane).jobs().find(epoch_);
    report.counters.add(named(found == service_.at(lane).jobs().end() ? JobCounters{} : found->second.counters));
  }

 private:
  void add(std::size_t lane, const ServerJobConfig& config) {
    service::Lane& on = *service_.lanes_[lane];
    auto memory = on.allocate(Server::memory_bytes(config.packet_elements, config.window));
    Server::Job job(config, memory->bytes());
    bool added = false;
    on.run([&] {
      added = service_.servers_[lane]->add_job(std::move(job));
      if (added) on.expect(epoch_);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
    memory_.push_back(std::move(memory));
  }

  Service& service_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<service::Memory>> memory_;  // of the first lanes, which serve the job
};

Service::Service(const service::Lanes& lanes) : lanes_(lanes) {
  for (service::Lane* const lane : lanes_) servers_.push_back(&service::serve<ServerFormat>(*lane)->machine);
}

void Service::report(std::size_t lane, Counters& counters) const {
  counters.add(named(at(lane).counters()));
}

std::unique_ptr<service::ServedJob> Service::start(const session::StartJob& start) {
  auto job = std::make_unique<Job>(*this, start.admission.job_epoch);
  job->start(start);
  return job;
}

}  // namespace netsum::baseline
