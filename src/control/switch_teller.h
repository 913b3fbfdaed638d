// Tells the switches below an aggregator or a parameter server of its jobs, again and again (session/installations.h says
// what and when; this sends it). One thread of its own, and at most one call under way to each switch, with a deadline; gRPC
// looks names up. So a switch or a name server that answers slowly, or never, delays no other switch and no other job, and
// what is called from here on is called on that thread, and may wait for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "control/client.h"
#include "session/installations.h"
#include "session/job_view.h"
#include "session/netreduce_job.h"
#include "session/registry.h"

namespace netsum::control {

struct SwitchTellerOptions {
  std::string token, tls_ca, daemon_token;
  std::string own;                // what this process is, for errors
  std::size_t lanes = 1;          // that it has, and each switch must have
  std::vector<std::string> kept;  // switches to greet whether or not a job needs them yet
  // gRPC's name of an address; empty: the address itself. For tests.
  std::function<std::string(const std::string& address)> target;
};

// By switch of a placement: its data sockets, one a lane; none: not known yet.
using SwitchLanes = std::vector<std::vector<Endpoint>>;

// Each may throw Error, which ends a job that cannot do without the switch, and is logged otherwise.
struct SwitchTellerHooks {
  // The data sockets of a switch that listens on every address are at the one where it was reached, as text.
  std::function<void(std::vector<Endpoint>& lanes, const std::string& numeric_address)> complete;
  // A job's switches receive elsewhere than they did, or are known only now. Also for a job that has just been removed.
  std::function<void(const session::StartJob&, const SwitchLanes&)> place;
  // What a switch, whose own lanes are known, is to be told. `again`: it was told of the job before.
  using Message = std::variant<session::Installation, session::RingInstallation>;
  std::function<Message(const session::StartJob&, std::uint32_t a_switch, bool again, const SwitchLanes&)> describe;
};

// How it tells the server; without any lock. Each may call it back.
struct SwitchTellerEvents {
  std::function<void(std::uint64_t job_epoch)> ready;  // once a job: its ranks may be told that they are admitted
  // It cannot do without a switch, and this is why it has to.
  std::function<void(std::uint64_t job_epoch, const std::string& why)> failed;
  std::function<void(const std::string& a_switch, std::uint32_t pool_slots)> pool;  // of each lane, for ATP
  std::function<void(const std::string&)> log;
};

// Any thread. No call but stop() waits.
class SwitchTeller {
 public:
  SwitchTeller(SwitchTellerOptions options, SwitchTellerHooks hooks, SwitchTellerEvents events);
  ~SwitchTeller();
  SwitchTeller(const SwitchTeller&) = delete;
  SwitchTeller& operator=(const SwitchTeller&) = delete;

  // Removes all jobs; their switches hear of it, if they answer at once. Waits for that, and for the thread. From here on
  // nothing is called.
  void stop();

  void add(const session::StartJob& start);  // nothing, if it has no switches: then it is ready at once
  void remove(std::uint64_t job_epoch);
  [[nodiscard]] bool ready(std::uint64_t job_epoch) const;  // also of a job that it does not know
  // With what the job's switches have said.
  [[nodiscard]] session::JobView refined(std::uint64_t job_epoch, session::JobView view) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::control
