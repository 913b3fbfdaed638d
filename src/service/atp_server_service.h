// ATP at a parameter server: each lane has a part of each job's chunks.
#pragma once

#include <vector>

#include "jobs/atp_job.h"
#include "protocol/atp/server.h"
#include "seal/hops.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::service {

class AtpServerService final : public Service {
 public:
  AtpServerService(const Lanes& lanes, jobs::AtpSettingsOf settings, const jobs::AtpParts& parts = {});

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return jobs::atp_rules(settings_, parts_); }
  [[nodiscard]] std::unique_ptr<ServedJob> start(const session::StartJob& start) override;
  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                const session::SwitchLanes& switches,
                                                std::span<const Endpoint> own) const override;

  [[nodiscard]] const atp::Server& at(std::size_t lane) const { return *servers_[lane]; }  // within its run()

 private:
  class Job;

  const Lanes lanes_;
  const jobs::AtpSettingsOf settings_;
  const jobs::AtpParts parts_;
  std::vector<atp::Server*> servers_;  // the lanes own them
  std::vector<seal::Hops*> hops_;      // as these
};

}  // namespace netsum::service
