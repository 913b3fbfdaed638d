#include "service/service.h"

#include "netsum/error.h"

namespace netsum::service {
namespace {

[[nodiscard]] Error not_served(const char* what) {
  return Error(ErrorCode::internal, std::string("this service has no ") + what);
}

}  // namespace

std::unique_ptr<ServedJob> Service::start(const session::StartJob&) {
  throw not_served("jobs of its own");
}

session::SwitchMessage Service::describe(const session::StartJob&, std::uint32_t, bool, const session::SwitchLanes&,
                                         std::span<const Endpoint>) const {
  throw not_served("switches");
}

session::InstallationCost Service::cost(const session::SwitchMessage&) const {
  throw not_served("jobs of others");
}

InstalledJob Service::install(const session::SwitchMessage&, ServedJob*, const Prove&) {
  throw not_served("jobs of others");
}

InstalledJob installed_job(const jobs::TreeInstallation& installation, const RankSet& joined) {
  const session::Admission& admission = installation.start.admission;
  InstalledJob installed;
  installed.status.job = installation.start.job;
  installed.status.job_epoch = admission.job_epoch;
  installed.status.packet_elements = admission.packet_elements;
  installed.status.slots = admission.slots;
  installed.status.lanes = static_cast<std::uint32_t>(installation.root.size());
  installed.status.joined = joined;
  installed.known_as = jobs::known_as(installation);
  return installed;
}

void check_lanes(std::size_t needed, std::size_t lanes) {
  if (needed <= lanes) return;
  throw Error(ErrorCode::refused, "this switch has " + std::to_string(lanes) + " lanes, and the job needs " +
                                      std::to_string(needed) + ": raise the switch's --lanes");
}

}  // namespace netsum::service
