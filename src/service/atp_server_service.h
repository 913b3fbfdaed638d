// ATP at a parameter server: each lane has a part of each job's chunks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "protocol/atp/server.h"
#include "seal/hops.h"
#include "service/lane.h"
#include "service/service.h"
#include "session/atp_job.h"

namespace netsum::service {

class AtpServerService final : public Service {
 public:
  using Settings = std::function<session::AtpSettings(const std::string& job)>;
  AtpServerService(const Lanes& lanes, Settings settings);

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return session::atp_rules(); }
  [[nodiscard]] std::unique_ptr<ServedJob> start(const session::StartJob& start) override;
  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t a_switch, bool again,
                                                const session::SwitchLanes& switches,
                                                std::span<const Endpoint> own) const override;

  [[nodiscard]] const atp::Server& at(std::size_t lane) const { return *servers_[lane]; }  // within its run()

 private:
  class Job;

  const Lanes lanes_;
  const Settings settings_;
  std::vector<atp::Server*> servers_;  // the lanes own them
  std::vector<seal::Hops*> hops_;      // as these
};

}  // namespace netsum::service
