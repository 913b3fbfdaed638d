// What SwitchML's services have in common, whatever the rule of their slots: each lane has a machine, with a part of each
// job's slots. Jobs' ranks join here, or at an aggregator above.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint_cookies.h"
#include "protocol/switchml/switch.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::service {

// What an aggregator's process has beside lanes; each may be empty.
struct SwitchMlSurroundings {
  EndpointCookies cookies;                                                  // told in answers to probes
  std::function<Endpoint(const std::string& job, std::size_t lane)> group;  // of IP multicast, for the job's results
  bool group_within_host = false;
  // Before the first lane serves a job, and before the first one ends it.
  std::function<void(const session::StartJob&)> starting;
  std::function<void(std::uint64_t job_epoch)> stopping;
};

// `Machine`: switchml::Switch, ChipSwitch, RdmaSwitch or ChipPlane.
template <class Machine>
class SwitchMlJobs : public Service {
 public:
  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return rules_; }
  [[nodiscard]] std::unique_ptr<ServedJob> start(const session::StartJob& start) override;
  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                const session::SwitchLanes& switches,
                                                std::span<const Endpoint> own) const override;
  [[nodiscard]] std::string takes() const override { return rules_.name; }
  [[nodiscard]] session::InstallationCost cost(const session::SwitchMessage& message) const override;
  [[nodiscard]] InstalledJob install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) override;

  [[nodiscard]] const Machine& at(std::size_t lane) const { return *machines_[lane]; }  // within its run()

 protected:
  // `machines`: by lane; the lanes own them, or the class derived from this one does.
  SwitchMlJobs(session::ProtocolRules rules, const Lanes& lanes, std::vector<Machine*> machines,
               SwitchMlSurroundings surroundings);

 private:
  class Job;

  // Of each lane, where the job's ranks join.
  [[nodiscard]] std::vector<switchml::SwitchJobConfig> configs_of(const session::StartJob& start,
                                                                  const session::SwitchEndpoint& switches) const;

  const session::ProtocolRules rules_;
  const Lanes lanes_;
  const std::vector<Machine*> machines_;
  const SwitchMlSurroundings surroundings_;
};

}  // namespace netsum::service
