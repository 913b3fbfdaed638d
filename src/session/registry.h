// Membership at one aggregator: admission, epochs, heartbeats, slots. A pure state machine: the control server hands in
// requests and the time, and carries out the actions that come back.
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
#include "protocol/netreduce/member.h"
#include "session/memory_account.h"
#include "session/protocol_rules.h"
#include "stream/operation_log.h"

namespace netsum::session {

enum class Refusal : std::uint8_t {
  none,
  protocol_version,   // the worker speaks another version
  protocol,           // this aggregator does not serve that protocol
  bad_parameters,     // world size, packet length, rank >= world size, lanes
  parameters_differ,  // from the rest of the job
  duplicate_rank,
  no_slots,
  no_memory,
  quota,              // of the tenant: jobs, joins or memory
  job_running,        // the job is complete and running: a rank cannot join it a second time
  results_forgotten,  // a job that recovers: nobody keeps what a rank still needs
  shutting_down,
};
[[nodiscard]] const char* to_string(Refusal refusal);

struct JoinRequest {
  std::uint32_t protocol_version = 0;
  std::string protocol;  // "switchml", "atp", "netreduce"
  std::string job;
  std::uint32_t rank = 0, world_size = 0;
  std::uint32_t packet_elements = 0;
  std::uint32_t slots_fixed = 0;     // per lane; 0: agree on what holds the largest of the measured windows
  std::uint32_t slots_measured = 0;  // per lane, of this rank's own packets
  std::vector<Endpoint> endpoints;   // one a lane: where results go, and where contributions come from
  std::uint32_t pool_slots = 0;      // of the switch below
  std::string switch_address;        // that the rank is at; empty: none, or the aggregator itself

  // Jobs that outlive their processes: ranks join again after one of them died, or an aggregator.
  bool recovers = false;
  stream::Progress progress;
  std::vector<std::string> aggregators;  // where this rank joins: all must do so at the same
  std::uint32_t former_epoch = 0;        // of this rank, in a life of the job that it has given up; 0: none

  // NetReduce: rings of queue pairs.
  std::uint32_t message_packets = 0;       // 0: as many as ProtocolRules say
  std::vector<netreduce::Member> members;  // this rank's, one a lane

  // Shared memory, of ranks that are all on the aggregator's host.
  std::uint64_t local_ticket = 0;  // 0: none, and why
  std::string why_not_local;
  bool needs_local = false;  // rather no job than one without

  bool listens = false;  // to the job's multicast groups

  std::string tenant;  // whose token the rank showed; empty: of a daemon without tenants

  bool packet_elements_measured = false;   // the path takes so many, and fewer will do: agree on the least
  std::uint64_t switch_receive_bytes = 0;  // of that switch, as RegistryConfig::receive_bytes

  // Show that the endpoints receive what the aggregator's lanes send there, and what the switch's do: one an endpoint.
  std::vector<std::uint64_t> cookies, switch_cookies;
};

// What one tenant may have at this aggregator.
struct Quota {
  std::uint64_t memory_bytes = UINT64_MAX;
  std::uint32_t jobs = UINT32_MAX;   // joining and running
  std::uint32_t joins = UINT32_MAX;  // ranks that wait for the rest of their job
};

struct Admission {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank_epoch = 0;
  std::vector<std::uint32_t> rank_epochs;  // of all ranks
  std::uint32_t packet_elements = 0;
  std::uint32_t slots = 0;  // per lane
  Placement placement;      // where the protocol has switches of its own
  stream::Resumption resumption;
  std::uint32_t message_packets = 0;                    // NetReduce
  std::vector<std::vector<netreduce::Member>> members;  // likewise: [rank][lane]
  bool local = false;                                   // the ranks sum in shared memory
  std::string why_not_local;                            // names a rank
};

// What a join came to: an admission (once all ranks are there), a refusal in words, or nothing yet.
struct JoinOutcome {
  Refusal refusal = Refusal::none;
  std::string reason;  // says what, and what to do
  std::optional<Admission> admission;
};

struct RegistryConfig {
  std::vector<ProtocolRules> protocols{switchml_rules()};  // that are served here
  std::uint32_t indexing = 0, scaling = 0;                 // for Placement
  std::uint32_t parts = 0;                            // jobs that share the pools by parts of their own; 0: slot by slot
  std::uint32_t first_part = 0, own_parts = 0;        // that this server gives away; own_parts 0: all from the first
  std::map<std::string, std::string> switch_parents;  // the next switch, for those that are not next to this aggregator
  std::uint32_t lanes = 1;
  std::uint32_t slots = 16384;              // of 256 elements, over all lanes
  std::uint64_t memory_bytes = UINT64_MAX;  // of all jobs
  std::uint32_t max_jobs = 1024;
  std::uint32_t max_joins = 16384;      // ranks that wait for the rest of their jobs
  std::map<std::string, Quota> quotas;  // of tenants; without one, the aggregator's own limits are all there is
  // Empty, or why nothing may be sent to a request's endpoints, which are one a lane. None: it may.
  std::function<std::string(const JoinRequest&)> check_endpoints;
  // What a lane's receive buffer holds, with what the kernel keeps around packets; 0: windows are not bounded by it.
  std::uint64_t receive_bytes = 0;
  Duration heartbeat_timeout = std::chrono::seconds(3);
  // For a job that never becomes complete. A worker's own connect deadline is to come first, however patient it is.
  Duration join_timeout = std::chrono::minutes(30);
  std::function<std::uint64_t()> random;  // epochs; the runtime gives a cryptographic source, tests a seeded one
};

// For the runtime: a complete job to put on the lanes, or one to take off.
struct StartJob {
  Admission admission;
  std::string job;
  std::string protocol;                                    // ProtocolRules::name
  std::vector<std::vector<Endpoint>> endpoints;            // [rank][lane]
  bool switches_needed = false;                            // it cannot do without any switch of its placement
  bool watched = false;                                    // ProtocolRules::watched
  std::vector<std::uint64_t> local_tickets;                // by rank, if it is local
  std::vector<bool> listens;                               // by rank: to the job's multicast groups
  std::vector<std::vector<std::uint64_t>> switch_cookies;  // [rank][lane]: for the switch that the rank is at
  std::string warning;                                     // of what was asked for, and may go badly; empty: nothing
};
struct StopJob {
  std::uint64_t job_epoch;
};
// For the log, once for each job that fails.
struct JobFailure {
  std::string job, reason;
};

struct HeartbeatReply {
  enum class State : std::uint8_t { running, failed, unknown } state = State::unknown;
  std::string reason;                 // failed: names the rank
  std::optional<std::uint32_t> lost;  // the dead rank
  RankSet left;                       // ranks that have left in good order
  bool mismatch = false;              // failed: ranks issued different calls; the reason names them
  RankSet missing{};                  // ranks that the oldest sum waits for, where the data plane cannot say it itself
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
  std::uint64_t memory_bytes = 0;  // charged
};

class Registry {
 public:
  explicit Registry(RegistryConfig config);
  ~Registry();
  Registry(Registry&&) noexcept;

  // Registers the rank; the returned ticket is polled with join_outcome() after this and after every later event.
  [[nodiscard]] std::uint64_t join(const JoinRequest& request, Time now);
  [[nodiscard]] std::optional<JoinOutcome> join_outcome(std::uint64_t ticket);  // once; then the ticket is gone
  // The rank's connect deadline ran out, or its connection went away before the job was complete.
  // Returns who is missing, for the error's text.
  RankSet cancel_join(std::uint64_t ticket, Time now);

  // The data plane could not take a job that was handed out as a start: its ranks are refused, and what it was charged is
  // free. No stop follows.
  void start_failed(std::uint64_t job_epoch, const std::string& reason, Time now);

  // The ranks of a job were told of their admission only now (its switches had to be told first): from here on they can be
  // heard. To be called for each job that needs switches.
  void admission_told(std::uint64_t job_epoch, Time now);
  // A switch that is a parent of others, and that no rank speaks of, has so many slots; for jobs that begin from now on.
  void on_pool(const std::string& a_switch, std::uint32_t slots);

  void leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now);
  [[nodiscard]] HeartbeatReply heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now);
  // The job cannot go on, whoever's fault it is.
  void fail(std::uint64_t job_epoch, const std::string& reason, Time now);
  // It is known that a rank has died, before it is missed.
  void lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how, Time now);
  // The data plane found that ranks of the job issued different calls.
  void fail_mismatch(std::uint64_t job_epoch, const std::string& reason, Time now);
  void on_timer(Time now);  // ranks that fell silent, jobs that never became complete, failed jobs to forget
  [[nodiscard]] Time next_timeout() const;
  void shut_down(Time now);  // every job fails with a reason that says so

  // Since the last call. Daemons and the simulator use take_changes().
  [[nodiscard]] std::vector<StartJob> take_starts();
  [[nodiscard]] std::vector<StopJob> take_stops();
  [[nodiscard]] std::vector<JobFailure> take_failures();

  // Whether a running or failed job is the tenant's. Nobody may see, or touch, another tenant's.
  [[nodiscard]] bool belongs(std::uint64_t job_epoch, const std::string& tenant) const;
  [[nodiscard]] const Quota& quota_of(const std::string& tenant) const;
  void set_quotas(std::map<std::string, Quota> quotas);  // for what is asked from now on
  // Joins that have an outcome which nobody has taken yet, and what it is.
  [[nodiscard]] std::vector<std::uint64_t> decided() const;
  [[nodiscard]] const JoinOutcome* look_at_outcome(std::uint64_t ticket) const;  // null: there is none
  [[nodiscard]] bool is_running(std::uint64_t job_epoch) const;
  // What jobs take here; whatever else the daemon gives to jobs is charged there too.
  [[nodiscard]] MemoryAccount& memory();
  [[nodiscard]] const MemoryAccount& memory() const;

  [[nodiscard]] std::uint32_t slots_free() const;  // of 256 elements
  [[nodiscard]] std::vector<JobStatus> jobs() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What the lanes have to do, before any outcome of a join is sent: first the stops, so that what a job frees is free before
// the next one takes it. A job that began and ended since the last call is in neither: no lane ever served it.
struct Changes {
  std::vector<StopJob> stops;
  std::vector<StartJob> starts;
};
[[nodiscard]] Changes take_changes(Registry& registry);

}  // namespace netsum::session
