// ATP at a switch below the parameter servers where the jobs' ranks join: jobs share each lane's pool of slots.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/atp_job.h"
#include "protocol/atp/switch.h"
#include "seal/hops.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::service {

class AtpSwitchService final : public Service {
 public:
  // Each lane gets its pool with its first job: many switches never have an ATP job.
  AtpSwitchService(const Lanes& lanes, const atp::SwitchConfig& pool);

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::Profile> profile() const override {
    return jobs::pool_profile({pool_.slots, pool_.packet_elements});
  }
  [[nodiscard]] std::string takes() const override { return jobs::atp_rules().name; }
  [[nodiscard]] session::InstallationCost cost(const session::SwitchMessage& message) const override;
  [[nodiscard]] InstalledJob install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) override;

  void make_pool(std::size_t lane);  // unless it has one; throws std::bad_alloc
  [[nodiscard]] const atp::Switch* at(std::size_t lane) const { return switches_[lane]; }  // null: no pool; within its run()

 private:
  class Job;

  void install(std::size_t lane, const atp::SwitchJobConfig& config, PacketSecurity security,
               std::span<const seal::Neighbour> neighbours);

  const Lanes lanes_;
  const atp::SwitchConfig pool_;
  jobs::SlotParts parts_;
  std::vector<atp::Switch*> switches_;  // the lanes own them
  std::vector<seal::Hops*> hops_;       // as these
};

}  // namespace netsum::service
