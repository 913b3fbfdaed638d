// A protocol at an aggregator: it serves jobs on the aggregator's lanes. The aggregator (aggregator.cc) keeps the jobs, and
// knows no protocol by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint_cookies.h"
#include "control/server.h"
#include "control/switch_teller.h"
#include "runtime/switch_lane.h"
#include "session/job_view.h"
#include "session/protocol_rules.h"
#include "session/registry.h"
#include "telemetry/report.h"
#include "transport/multicast.h"

namespace netsum::daemon {

class Broker;

// The lanes of an aggregator, and what services need beside them; outlives services and jobs.
struct DataPlane {
  std::vector<std::unique_ptr<runtime::SwitchLane>> lanes;
  std::uint32_t pool_slots = 0;                   // ATP: of each lane
  const transport::GroupRange* groups = nullptr;  // of IP multicast; null: unicast to each rank
  EndpointCookies cookies;
  Broker* broker = nullptr;
  std::function<void(const std::string&)> log;
};

// A job that lanes serve. Functions that change it are called by one thread at a time, except place().
class ServedJob {
 public:
  virtual ~ServedJob() = default;

  // Returns once no lane serves it. Afterwards no lane does, even if place() is called.
  virtual void stop() = 0;
  // The sockets of the job's switches have become known, or have changed. Any thread. Throws Error: the job cannot go on.
  virtual void place(const session::StartJob&, const control::SwitchLanes&) {}
  // Facts that ranks cannot be told in packets.
  [[nodiscard]] virtual session::JobView look() const { return {}; }
  // Adds lane `lane`'s counters of the job. Called on the lane's thread; must not wait.
  virtual void report(std::size_t lane, const runtime::SwitchLane::State& state, telemetry::JobReport& report) const = 0;
};

class Service {
 public:
  virtual ~Service() = default;
  [[nodiscard]] virtual session::ProtocolRules rules() const = 0;
  // Returns once every lane serves the job, or is ready for place(). Throws Error, std::bad_alloc: then no lane does.
  [[nodiscard]] virtual std::shared_ptr<ServedJob> start(const session::StartJob& start) = 0;
};

[[nodiscard]] std::unique_ptr<Service> make_switchml_service(DataPlane& plane);
[[nodiscard]] std::unique_ptr<Service> make_netreduce_service(DataPlane& plane);

// A job whose ranks join elsewhere, as an aggregator is told of it, and its status. Each function throws as start().
struct Part {
  std::shared_ptr<ServedJob> job;
  session::JobStatus status;
};
// ATP. `former`: the same job as it was installed before; null: it is new.
[[nodiscard]] Part install_part(DataPlane& plane, const session::Installation& installation, const control::Caller& caller,
                                const std::shared_ptr<ServedJob>& former);
// NetReduce, in a tree.
[[nodiscard]] Part install_part(DataPlane& plane, const session::RingInstallation& installation,
                                const control::Caller& caller);

}  // namespace netsum::daemon
