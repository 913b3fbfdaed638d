// SwitchML at an aggregator, or at a switch below it: each lane has a part of each job's slots.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/endpoint_cookies.h"
#include "protocol/switchml/switch.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::service {

class SwitchMlService final : public Service {
 public:
  // What an aggregator's process has beside lanes; each may be empty.
  struct Surroundings {
    EndpointCookies cookies;                                                  // told in answers to probes
    std::function<Endpoint(const std::string& job, std::size_t lane)> group;  // of IP multicast, for the job's results
    // Before the first lane serves a job, and before the first one ends it.
    std::function<void(const session::StartJob&)> starting;
    std::function<void(std::uint64_t job_epoch)> stopping;
  };
  explicit SwitchMlService(const Lanes& lanes, Surroundings surroundings = {});

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return session::switchml_rules(); }
  [[nodiscard]] std::unique_ptr<ServedJob> start(const session::StartJob& start) override;
  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t a_switch, bool again,
                                                const session::SwitchLanes& switches,
                                                std::span<const Endpoint> own) const override;
  [[nodiscard]] bool takes(const session::SwitchMessage& message) const override;
  [[nodiscard]] Part install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) override;

  [[nodiscard]] const switchml::Switch& at(std::size_t lane) const { return *switches_[lane]; }  // within its run()

 private:
  class Job;

  // Of each lane, where the job's ranks join.
  [[nodiscard]] std::vector<switchml::SwitchJobConfig> configs_of(const session::StartJob& start,
                                                                  const session::SwitchEndpoint& switches) const;

  const Lanes lanes_;
  const Surroundings surroundings_;
  std::vector<switchml::Switch*> switches_;  // the lanes own them
};

}  // namespace netsum::service
