// A host that runs one aggregator: its session machine, and its data lanes.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "session/installations.h"
#include "session/rendezvous.h"
#include "sim/host.h"
#include "sim/protocol.h"
#include "sim/scenario.h"

namespace netsum::sim {

inline constexpr std::string_view intruder = "intruder";  // a tenant of every aggregator; the jobs have no tenant

[[nodiscard]] inline HostId switch_host(const Scenario& scenario, std::uint32_t switch_id) {
  return scenario.aggregators + switch_id;
}

// The endpoints of a placement's switches; both arguments must outlive the result.
[[nodiscard]] session::SwitchEndpoint switch_endpoints(const Scenario& scenario, const session::Placement& placement);

class AggregatorHost final : public Host {
 public:
  // `life`: counts restarts; epochs of earlier lives are never reused.
  AggregatorHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                 std::uint32_t life);

  void turn(std::span<const Datagram> datagrams, Time now) override;
  void on_call(const ControlCall& call, Time now) override;
  void on_reply(const ControlReply& reply, Time now) override;
  [[nodiscard]] Time next_wake() const override { return wake_; }

  void bypass(bool on) { checked_->bypass(on); }

  // A job that begins before `until` finds no memory on one of the lanes.
  void lack_memory(Time until) { no_memory_until_ = std::max(no_memory_until_, until); }
  [[nodiscard]] std::vector<LeaveCall> memberships() const;  // of all running jobs

  void check() const;       // after each call, reply and timer; its lanes also now and then
  void check_idle() const;  // when all jobs have ended
  void count_events(Tally& tally) const;

 private:
  struct Join {
    HostId from;
    std::uint64_t number;  // the caller's call number
  };

  [[nodiscard]] session::JobView look(std::uint64_t epoch) const;
  void settle(Time now);  // executes the session machine's steps
  void install(Time now);
  void start(const session::StartJob& start, Time now);
  [[nodiscard]] std::unique_ptr<service::ServedJob> serve(const session::StartJob& start, Time now);  // null: no memory

  const Scenario& scenario_;
  HostLanes lanes_;
  std::unique_ptr<CheckedService> checked_;
  session::Rendezvous aggregator_;
  std::map<session::Rendezvous::Call, Join> joins_;
  session::Rendezvous::Call last_join_ = 0;
  struct Running {
    session::StartJob start;
    std::unique_ptr<service::ServedJob> served;
    std::uint32_t plan = 0;
    bool placed = false;
    std::map<std::string, session::JobView> views{};  // of the switches below
  };
  std::map<std::uint64_t, Running> jobs_;  // by epoch
  session::Installations installations_;
  std::uint64_t next_call_ = 1;
  Time wake_ = never, no_memory_until_{};
  std::uint64_t turns_ = 0;
};

}  // namespace netsum::sim
