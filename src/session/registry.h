// Membership at one aggregator: admission, epochs, heartbeats, slots. A pure state machine: the control server hands in
// requests and the time, and carries out the returned actions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/endpoint.h"
#include "base/time.h"
#include "netsum/error.h"
#include "netsum/types.h"
#include "session/job_event.h"
#include "session/membership.h"
#include "session/memory_account.h"
#include "session/protocol_rules.h"

namespace netsum::session {

// One tenant's limits at this aggregator.
struct Quota {
  std::uint64_t memory_bytes = UINT64_MAX;
  std::uint32_t jobs = UINT32_MAX;   // joining and running
  std::uint32_t joins = UINT32_MAX;  // ranks that wait for the rest of their job
};

struct RegistryConfig {
  std::vector<ProtocolRules> protocols;               // served here
  std::map<std::string, std::string> switch_parents;  // the next switch upstream, for switches not next to this aggregator
  std::uint32_t lanes = 1;                            // the most that a job has
  std::uint32_t slots = default_slots;                // of 256 elements, over all lanes
  std::uint64_t memory_bytes = UINT64_MAX;            // of all jobs
  std::uint32_t max_jobs = 1024;
  std::uint32_t max_joins = 16384;      // ranks that wait for the rest of their jobs
  std::map<std::string, Quota> quotas;  // by tenant; without one, only the aggregator's own limits apply
  // Empty, or why nothing may be sent to a request's endpoints, one per lane. No function: all may be sent to.
  std::function<std::string(const JoinRequest&)> check_endpoints;
  // A lane's receive buffer, including the kernel's overhead per packet; 0: it does not bound windows.
  std::uint64_t receive_bytes = 0;
  Duration heartbeat_timeout = std::chrono::milliseconds(default_heartbeat_timeout_ms);  // of a silent rank (liveness.h)
  // Likewise, in a job that goes on without it, once it has begun to send heartbeats.
  Duration survivor_timeout = std::chrono::milliseconds(default_survivor_timeout_ms);
  // For a job that never becomes complete. Longer than any worker's connect deadline should be.
  Duration join_timeout = std::chrono::minutes(30);
  // How packets are protected, where `keys` may be told to ranks: the control channel is secret. A rank may ask for more.
  PacketSecurity security = PacketSecurity::none;
  bool keys = false;
  bool keys_below = false;                // and to the switches below
  bool keys_required = false;             // no job without
  std::function<std::uint64_t()> random;  // epochs and keys; the runtime gives a cryptographic source, tests a seeded one
};

struct HeartbeatReply {
  enum class State : std::uint8_t { running, failed, unknown } state = State::unknown;
  std::string reason;                 // failed: names the rank; running: of the first rank that left, if it gave one
  std::optional<std::uint32_t> lost;  // the dead rank
  RankSet left;                       // ranks that have left
  bool mismatch = false;              // failed: ranks issued different calls; the reason names them
  RankSet missing{};                  // ranks that the oldest sum waits for, if the data plane cannot tell ranks itself
  bool ended_by_operator = false;     // failed: and must not go on
  std::string warning{};              // running: what the job does without; empty: nothing
  std::vector<RankCall> calls{};      // that ranks have stated because they differ: each different one, once
  RankSet waiting{};                  // ranks that died, and wait to be let in again
  std::string lost_switch{};          // failed: because of this one
  SiteSet returned{};                 // running: aggregators that do not serve the job, and answer all its ranks
  bool straggler = false;             // failed: the next life begins without late ranks, or with one that was late
};

struct JobStatus {
  std::string job;
  std::uint64_t job_epoch = 0;
  std::uint32_t world_size = 0, packet_elements = 0, slots = 0;
  RankSet joined, left;
  bool running = false;
  std::string failure;
  std::uint32_t charged = 0;  // of the aggregator's slots
  std::string tenant;
  std::uint64_t memory_bytes = 0;     // charged
  std::string protocol{};             // ProtocolRules::name
  std::vector<Endpoint> endpoints{};  // of lane 0, by rank of `joined`, in order: where the ranks are
  std::vector<Process> processes{};   // in the same order
  Placement placement{};              // of a job that runs or has run
  std::uint32_t lanes = 0;            // of a job that runs or has run
  std::vector<std::string> absent{};  // aggregators of the job that do not serve this life; standbys are none of them
  RankSet late{};                     // ranks that this life began without, as they were late
};

class Registry {
 public:
  explicit Registry(RegistryConfig config);
  ~Registry();
  Registry(Registry&&) noexcept;
  Registry& operator=(Registry&&) noexcept;

  // Registers the rank; the returned ticket is polled with join_outcome() after this and after every later event.
  [[nodiscard]] std::uint64_t join(const JoinRequest& request, Time now);
  [[nodiscard]] std::optional<JoinOutcome> join_outcome(std::uint64_t ticket);  // once; then the ticket is gone
  // The rank's connect deadline passed, or its connection ended before the job was complete.
  // Returns the missing ranks, for the error's text.
  RankSet cancel_join(std::uint64_t ticket, Time now);

  // The data plane could not start a job from take_starts(): its ranks are refused, and its charge is released. No stop
  // follows.
  void start_failed(std::uint64_t job_epoch, const std::string& reason, Time now);

  // A job's ranks have been told of their admission only now (its switches had to be told first): heartbeats are due from
  // now on. Call this for each job that needs switches.
  void admission_told(std::uint64_t job_epoch, Time now);
  // What a switch says of itself: of those that are parents of others, and that no rank names; for jobs that begin from now
  // on.
  void on_greeted(const std::string& switch_id, const std::vector<Profile>& profiles);

  // The job has failed if a rank leaves for a reason: the first one's is the job's, once all have left.
  void leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, const Farewell& why, Time now);
  // `call`: the rank has been told that calls differ, and made this one (in words); empty: it has not. `seen`: aggregators
  // that do not serve the job, and answer this rank. `pace`: in a job that goes on without stragglers.
  [[nodiscard]] HeartbeatReply heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now,
                                         const std::string& call = {}, const SiteSet& seen = {}, const Pace& pace = {});
  // The job cannot go on, whatever the cause; `lost_switch`: its ranks should go around this one.
  void fail(std::uint64_t job_epoch, const std::string& reason, Time now, const std::string& lost_switch = {});
  // The connection over which the rank was heard has ended.
  void closed(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now);
  // A rank is known to have died, before its heartbeats are missed.
  void lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how, Time now);
  // The data plane found that ranks of the job issued different calls.
  void fail_mismatch(std::uint64_t job_epoch, const std::string& reason, Time now);
  // Ends a job for the operator at `by`, a host. Empty, or why not.
  [[nodiscard]] std::string end(const NamedJob& named, const std::string& by, Time now);
  // Jobs whose ranks are not all there are refused, and new ones are; those that run go on, also when they recover.
  void set_draining(bool draining, Time now);
  [[nodiscard]] bool draining() const;
  void on_timer(Time now);  // ranks that fell silent, jobs that never became complete, failed jobs to forget
  [[nodiscard]] Time next_timeout() const;
  void shut_down(Time now);  // every job fails with a reason that says so

  // Those since the last call. Daemons and the simulator use take_changes().
  [[nodiscard]] std::vector<StartJob> take_starts();
  [[nodiscard]] std::vector<StopJob> take_stops();
  // For the log and the flight recorder. Past some thousands that nobody takes, later ones are lost.
  [[nodiscard]] std::vector<JobEvent> take_events();

  // The members of a running or failed job.
  [[nodiscard]] RankSet members(std::uint64_t job_epoch) const;
  // Whether a running or failed job is the tenant's. No tenant may see or touch another's jobs.
  [[nodiscard]] bool belongs(std::uint64_t job_epoch, const std::string& tenant) const;
  [[nodiscard]] const Quota& quota_of(const std::string& tenant) const;
  void set_quotas(std::map<std::string, Quota> quotas);  // for requests from now on
  // Joins whose outcome has not been taken yet, and a look at the outcome.
  [[nodiscard]] std::vector<std::uint64_t> decided() const;
  [[nodiscard]] const JoinOutcome* look_at_outcome(std::uint64_t ticket) const;  // null: none yet
  [[nodiscard]] bool is_running(std::uint64_t job_epoch) const;
  // Memory charged to jobs here; the daemon charges its other allocations for jobs to the same account.
  [[nodiscard]] MemoryAccount& memory();
  [[nodiscard]] const MemoryAccount& memory() const;

  [[nodiscard]] std::uint32_t slots_free() const;  // of 256 elements
  [[nodiscard]] std::vector<JobStatus> jobs() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Changes for the lanes, to be made before any outcome of a join is sent: stops first, so that the next job can take what
// they free. A job that began and ended since the last call is in neither list: no lane ever served it.
struct Changes {
  std::vector<StopJob> stops;
  std::vector<StartJob> starts;
};
[[nodiscard]] Changes take_changes(Registry& registry);

}  // namespace netsum::session
