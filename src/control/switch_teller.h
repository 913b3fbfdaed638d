// Tells the switches below an aggregator or a parameter server of its jobs, repeatedly (session/installations.h decides what
// to send and when; this sends it). It has one thread, and a connection to each switch with at most one request at a time,
// which has a deadline. So a switch or a name server that answers slowly, or never, delays no other switch or job. Hooks and
// events run on that thread, and may block for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control/lookup.h"
#include "session/installations.h"
#include "session/job_view.h"
#include "session/registry.h"
#include "session/switch_message.h"

namespace netsum::control {

struct SwitchTellerOptions {
  std::string token, tls_ca, daemon_token;
  std::string own;                // this process in words, for errors
  bool in_wire = false;           // this process is a bump in the wire; so must be its switches, and no others may be
  std::vector<std::string> kept;  // switches to greet whether or not a job needs them yet
  Resolve resolve = &look_up;     // another one in tests
};

using session::SwitchLanes;

// Each may throw Error. This ends a job that cannot do without the switch; otherwise it is logged.
struct SwitchTellerHooks {
  // Fills in the address of data sockets on every address: the numeric one at which the switch was reached.
  std::function<void(std::vector<Endpoint>& lanes, const std::string& numeric_address)> complete;
  // The endpoints of a job's switches have changed, or become known. Also called for a job that has just been removed.
  std::function<void(const session::StartJob&, const SwitchLanes&)> place;
  // The message for a switch whose own lanes are known. `again`: it was told of the job before.
  std::function<session::SwitchMessage(const session::StartJob&, std::uint32_t switch_id, bool again, const SwitchLanes&)>
      describe;
};

// Events for the server, called without any lock. Each may call the teller back.
struct SwitchTellerEvents {
  std::function<void(std::uint64_t job_epoch)> ready;  // once per job: its ranks may be told that they are admitted
  // A switch that the job cannot do without is missing, for this reason; named if its ranks should go around it.
  std::function<void(std::uint64_t job_epoch, const std::string& switch_id, const std::string& why)> failed;
  std::function<void(const std::string& switch_id, const std::vector<session::Profile>& profiles)> greeted;
  std::function<void(const std::string& tenant, const std::string& line)> log;  // of a tenant's job
};

// Any thread. No call but stop() waits.
class SwitchTeller {
 public:
  SwitchTeller(SwitchTellerOptions options, SwitchTellerHooks hooks, SwitchTellerEvents events);
  ~SwitchTeller();
  SwitchTeller(const SwitchTeller&) = delete;
  SwitchTeller& operator=(const SwitchTeller&) = delete;

  // Removes all jobs; their switches are told, if they answer at once. Waits for that, and for the thread; afterwards no
  // hook or event is called.
  void stop();

  void add(const session::StartJob& start);  // no effect on a job without switches: it is ready at once
  void remove(std::uint64_t job_epoch);
  [[nodiscard]] bool ready(std::uint64_t job_epoch) const;  // true for a job that it does not know
  // A switch of the job that has not taken part for as long as it remembers a job, and why; empty: none.
  [[nodiscard]] std::string warning(std::uint64_t job_epoch) const;
  // The view, refined by the views of the job's switches.
  [[nodiscard]] session::JobView refined(std::uint64_t job_epoch, session::JobView view) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::control
