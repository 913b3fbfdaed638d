// A protocol at an aggregator: it serves jobs on the aggregator's lanes. Daemons and the simulator keep the jobs
// (daemon/node.h, sim/aggregator_host.h, sim/switch_host.h), and know no protocol by name.
//
// Pure: what a service does where packets are processed, it does by way of Lane::run(). Functions that change a service or
// its jobs are called by one thread at a time, except ServedJob::place().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/counters.h"
#include "base/endpoint.h"
#include "jobs/tree.h"
#include "session/job_report.h"
#include "session/job_view.h"
#include "session/protocol_rules.h"
#include "session/registry.h"
#include "session/switch_message.h"

namespace netsum::service {

// A job that lanes serve, until it is stopped. It ends before its service and the lanes.
class ServedJob {
 public:
  virtual ~ServedJob() = default;

  // Returns once no lane serves it. Afterwards no lane does, even if place() is called.
  virtual void stop() = 0;
  // The lanes of the job's switches have become known, or have changed. Neither while stop() runs, nor twice at a time, but
  // at the same time as anything of other jobs. Throws Error: the job cannot go on.
  virtual void place(const session::StartJob&, const session::SwitchLanes&) {}
  // Facts that ranks cannot be told in packets.
  [[nodiscard]] virtual session::JobView look() const { return {}; }
  // Adds lane `lane`'s counters of the job. Within the lane's run().
  virtual void report(std::size_t lane, session::JobReport& report) const = 0;
};

// A job whose ranks join elsewhere, and its status.
struct InstalledJob {
  std::unique_ptr<ServedJob> job;  // null: it is the one that was there
  session::JobStatus status;
  std::vector<session::KnownAs> known_as;
};

class Service {
 public:
  // Throws Error: nothing shows that one of them receives what is sent there.
  using Prove = std::function<void(const std::vector<session::Destination>&)>;

  virtual ~Service() = default;

  // Adds lane `lane`'s counters, without its jobs'. Within the lane's run().
  virtual void report(std::size_t lane, Counters& counters) const = 0;
  // What the daemon says of itself before anybody joins.
  [[nodiscard]] virtual std::optional<session::Profile> profile() const { return std::nullopt; }

  // ---- jobs whose ranks join here

  // None: no ranks join.
  [[nodiscard]] virtual std::optional<session::ProtocolRules> rules() const { return std::nullopt; }
  // Returns once every lane serves the job, or is ready for place(). Throws Error, std::bad_alloc: then no lane does.
  [[nodiscard]] virtual std::unique_ptr<ServedJob> start(const session::StartJob& start);
  // For a switch of the job's placement, whose own lanes are known. `own`: this aggregator's lanes. `again`: it was told
  // before.
  [[nodiscard]] virtual session::SwitchMessage describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                        const session::SwitchLanes& switches,
                                                        std::span<const Endpoint> own) const;

  // ---- jobs whose ranks join elsewhere

  // The protocol whose jobs it takes; empty: none.
  [[nodiscard]] virtual std::string takes() const { return {}; }
  // Each throws Error: refused, for a message without sense.
  [[nodiscard]] virtual session::InstallationCost cost(const session::SwitchMessage& message) const;
  // Idempotent. `former`: the same job as it was installed before; null: it is new. Throws as start().
  [[nodiscard]] virtual InstalledJob install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove);
};

// What a switch in a tree says of a job; `joined`: the ranks below it.
[[nodiscard]] InstalledJob installed_job(const jobs::TreeInstallation& installation, const RankSet& joined);

// Throws Error: refused, for a job of more lanes than this switch has.
void check_lanes(std::size_t needed, std::size_t lanes);

}  // namespace netsum::service
