// Which switches must know of which jobs (ATP's dynamic job setup, §3.2; NetReduce's trees, §3.3). A switch's knowledge is
// soft state with a lease: it is told again and again while the job runs, so that one that restarts learns it anew, and
// forgets a job whose aggregator fell silent.
//
// A switch is greeted first, and says where it receives. Then it is told of its jobs; after its parent in each, so that it
// never passes on what nobody takes: until then it answers "unknown job", and its ranks go past it at once. Whoever is next
// to a switch that comes back at other places is told of these at once.
//
// Pure: the caller sends what is due, one message to a switch at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "session/protocol_rules.h"

namespace netsum::session {

inline constexpr Duration installation_interval = std::chrono::milliseconds(500);  // from an answer to the next telling
inline constexpr Duration installation_retry = std::chrono::milliseconds(125);     // after a message without an answer: at
inline constexpr Duration installation_rest = std::chrono::milliseconds(250);      // first, and at last
inline constexpr Duration installation_deadline = std::chrono::seconds(1);         // of a message
inline constexpr Duration installation_lease = std::chrono::seconds(3);            // what a switch grants
inline constexpr Duration installation_patience = std::chrono::milliseconds(500);  // what a new job waits for a switch

class Installations {
 public:
  static constexpr std::size_t most_switches = 1024;  // whose jobs are remembered, and that messages are under way to

  enum class Ask : std::uint8_t { greet, install, uninstall };
  struct Due {
    Ask what{};
    std::string a_switch;
    std::uint64_t job_epoch = 0;  // not of a greeting
    std::uint32_t index = 0;      // install: of the switch in the job's placement
    bool again = false;           // install: it has answered before
  };

  // It is greeted whether or not a job needs it now.
  void keep(const std::string& a_switch, Time now);
  // `needed`: the job cannot do without any of its switches, and waits for all. A switch that answers only later might have
  // been told before, and have lost sums since. False: there are too many switches, and none of the job's is told.
  [[nodiscard]] bool add(std::uint64_t job_epoch, const Placement& placement, Time now, bool needed = false);
  void remove(std::uint64_t job_epoch);

  // Answers of a switch. `instance`: drawn when it started.
  void on_greeted(const std::string& a_switch, const std::vector<Endpoint>& lanes, std::uint64_t instance, Time now);
  void on_installed(std::uint64_t job_epoch, const std::string& a_switch, std::uint64_t instance, Time now);
  void on_refused(std::uint64_t job_epoch, const std::string& a_switch, Time now);  // it cannot, or does not want to
  void on_uninstalled(const std::string& a_switch);
  void on_failure(const std::string& a_switch, Time now);  // none in time, to whatever, or none that makes sense

  // Jobs whose switches receive elsewhere than when this was last asked. Those that need all of them are here only once
  // all are known. To be asked, and carried out, before take_due.
  [[nodiscard]] std::vector<std::uint64_t> take_moved();
  // By switch of the job's placement; empty: unknown.
  [[nodiscard]] std::vector<std::vector<Endpoint>> lanes_of(std::uint64_t job_epoch) const;

  // To be sent now; each is due again if it is not answered.
  [[nodiscard]] std::vector<Due> take_due(Time now);

  // Whether the job's ranks may start: every switch knows it, or, where the job can do without, has been waited for long
  // enough. Without it they would only find out by themselves that it does not answer.
  [[nodiscard]] bool ready(std::uint64_t job_epoch, Time now) const;
  [[nodiscard]] std::vector<std::uint64_t> take_ready(Time now);  // jobs that have become so, each once
  // Switches that their jobs need, and that have not answered for as long as they would remember them; each once.
  [[nodiscard]] std::vector<Due> take_silent(Time now);

  [[nodiscard]] Time next_timeout(Time now) const;
  [[nodiscard]] bool knows(const std::string& a_switch) const { return switches_.contains(a_switch); }
  [[nodiscard]] bool parting() const;  // some are yet to be told that a job has ended

 private:
  struct Switch {
    std::size_t users = 0;        // jobs; and one if it is kept
    bool reached = false;         // its last answer was one
    std::vector<Endpoint> lanes;  // as last heard
    std::uint64_t instance = 0;
    std::optional<Time> busy_until;  // a message is under way
    Time rests_until{};
    Duration rest = installation_retry;  // after the next failure
    std::vector<std::uint64_t> parting;  // jobs that have ended
  };
  struct Member {
    std::string name;
    std::uint32_t parent = Placement::at_server;
    Time due{}, heard{};
    bool told = false;    // it has answered once
    bool silent = false;  // and that it does not has been said
  };
  struct Job {
    Time ready_at{};
    bool needed = false, said_ready = false, moved = false;
    std::vector<Member> members;
  };

  [[nodiscard]] Member* find(std::uint64_t job_epoch, const std::string& a_switch);
  [[nodiscard]] bool all_known(const Job& job) const;
  [[nodiscard]] bool may_be_told(const Job& job, const Member& member) const;
  [[nodiscard]] static bool ready(const Job& job, Time now);
  void answered(Switch& a_switch);
  void leave(const std::string& a_switch);

  std::map<std::string, Switch> switches_;
  std::map<std::uint64_t, Job> jobs_;
};

// Where a job's switches receive on its lanes, from what they said of themselves. Of one that has said nothing: no place,
// an endpoint without a port. NetReduce's rings are on the lanes of their numbers; ATP's jobs are spread (switch_lane).
[[nodiscard]] SwitchEndpoint switch_endpoints(std::vector<std::vector<Endpoint>> lanes);
[[nodiscard]] SwitchEndpoint spread_switch_endpoints(std::vector<std::vector<Endpoint>> lanes, std::uint64_t job_epoch);

}  // namespace netsum::session
