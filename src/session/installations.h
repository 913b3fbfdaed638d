// Which switches must know which jobs (ATP's dynamic job setup, §3.2; NetReduce's trees, §3.3). A switch holds its jobs as
// soft state with a lease: installs are repeated while the job runs, so that a switch that restarts learns its jobs anew,
// and a switch whose aggregator fell silent forgets them.
//
// A switch is greeted first, and says where it receives. Then it is told of its jobs, in each after its parent, so that its
// packets are never sent to a parent that does not know the job: until then it answers "unknown job", and its ranks bypass
// it at once. When a switch comes back at other endpoints, its neighbours are told at once.
//
// Pure: the caller sends the messages that are due, one to a switch at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "session/membership.h"

namespace netsum::session {

inline constexpr Duration installation_interval = std::chrono::milliseconds(500);  // from an answer to the next install
inline constexpr Duration installation_retry = std::chrono::milliseconds(125);     // after an unanswered message, at first
inline constexpr Duration installation_rest = std::chrono::milliseconds(250);      // after an unanswered message, at most
inline constexpr Duration installation_deadline = std::chrono::seconds(1);         // per message
inline constexpr Duration installation_lease = std::chrono::seconds(3);            // granted by a switch
inline constexpr Duration installation_patience = std::chrono::milliseconds(500);  // how long a new job waits for a switch

class Installations {
 public:
  static constexpr std::size_t most_switches = 1024;  // known at a time, with jobs or pending messages

  enum class Ask : std::uint8_t { greet, install, uninstall };
  struct Due {
    Ask what{};
    std::string switch_id;
    std::uint64_t job_epoch = 0;  // not for a greeting
    std::uint32_t index = 0;      // install: the switch's index in the job's placement
    bool again = false;   // install: it has accepted the job before, or has been started again since it was first told
    Duration silence{};   // of take_silent()
    bool closed = false;  // likewise: its process has ended
  };

  // Greets the switch whether or not a job needs it now.
  void keep(const std::string& switch_id, Time now);
  // `needed`: the job cannot do without any of its switches, and waits for all of them. A switch that answers only later
  // might have been told before, and have lost sums since. `patience`: with one that has been told, and is silent; 0: a
  // lease. False: too many switches; none of the job's is told.
  [[nodiscard]] bool add(std::uint64_t job_epoch, const Placement& placement, Time now, bool needed = false,
                         Duration patience = {});
  void remove(std::uint64_t job_epoch);

  // Answers of a switch. `instance`: drawn at its start.
  void on_greeted(const std::string& switch_id, const std::vector<Endpoint>& lanes, std::uint64_t instance, Time now);
  void on_installed(std::uint64_t job_epoch, const std::string& switch_id, std::uint64_t instance, Time now);
  void on_refused(std::uint64_t job_epoch, const std::string& switch_id, Time now);  // it cannot take the job, or will not
  void on_uninstalled(const std::string& switch_id);
  // To any message: no answer in time, or an invalid one; `closed`: no process answers there any more.
  void on_failure(const std::string& switch_id, Time now, bool closed = false);

  // Jobs whose switches' endpoints have changed since the last call. A job that needs all its switches is listed only once
  // all are known. Call this, and act on it, before take_due().
  [[nodiscard]] std::vector<std::uint64_t> take_moved();
  // By switch of the job's placement; an empty element: unknown.
  [[nodiscard]] std::vector<std::vector<Endpoint>> lanes_of(std::uint64_t job_epoch) const;

  // Messages to send now; each is due again if it is not answered.
  [[nodiscard]] std::vector<Due> take_due(Time now);

  // Whether the job's ranks may start: every switch knows the job or, where the job can do without, the wait has lasted long
  // enough. Ranks that start earlier find out by themselves that a switch does not answer.
  [[nodiscard]] bool ready(std::uint64_t job_epoch, Time now) const;
  [[nodiscard]] std::vector<std::uint64_t> take_ready(Time now);  // jobs that have become ready, each once
  // Switches that their jobs need, and that have not answered for as long as these have patience; each once.
  [[nodiscard]] std::vector<Due> take_silent(Time now);

  [[nodiscard]] Time next_timeout(Time now) const;
  [[nodiscard]] bool knows(const std::string& switch_id) const { return switches_.contains(switch_id); }
  [[nodiscard]] bool parting() const;  // some switches are yet to be told that a job has ended

 private:
  struct Switch {
    std::size_t users = 0;        // jobs, plus one if it is kept
    bool reached = false;         // it has answered the greeting, and every message since
    std::vector<Endpoint> lanes;  // as last heard
    std::uint64_t instance = 0;
    std::optional<Time> busy_until;  // a message is pending
    Time rests_until{};
    Duration rest = installation_retry;  // after the next failure
    std::vector<std::uint64_t> parting;  // jobs that have ended
  };
  struct Member {
    std::string name;
    std::uint32_t parent = Placement::at_server;
    Time due{}, heard{};
    bool told = false;                          // it has accepted an install
    std::uint32_t news = 0;                     // times that what it is to be told has changed
    std::uint32_t sent = 0, known = 0;          // of them: in the last message to it, and in the last that it accepted
    std::optional<std::uint64_t> first_told{};  // the instance that was sent the first one
    bool closed = false;                        // where it was, no process answers
    bool silent = false;                        // and take_silent() has reported it
  };
  struct Job {
    Time ready_at{};
    bool needed = false, said_ready = false, moved = false;
    Duration patience{};
    std::vector<Member> members;
  };

  [[nodiscard]] Member* find(std::uint64_t job_epoch, const std::string& switch_id);
  [[nodiscard]] bool all_known(const Job& job) const;
  [[nodiscard]] static Time silent_at(const Job& job, const Member& member);
  [[nodiscard]] bool may_be_told(const Job& job, const Member& member) const;
  [[nodiscard]] static bool ready(const Job& job, Time now);
  void answered(Switch& node);
  void leave(const std::string& switch_id);

  std::map<std::string, Switch> switches_;
  std::map<std::uint64_t, Job> jobs_;
};

// Where a job's switches receive on its lanes, as they said themselves. For a switch that is not known yet: an endpoint
// without a port.
[[nodiscard]] SwitchEndpoint switch_endpoints(std::vector<std::vector<Endpoint>> lanes);

}  // namespace netsum::session
