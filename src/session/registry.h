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
#include "netsum/types.h"
#include "protocol/netreduce/member.h"
#include "seal/packet_key.h"
#include "session/job_event.h"
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
  results_forgotten,  // a job that recovers: no rank keeps the results that this one still needs
  superseded,         // a later generation of the job is here
  shutting_down,
  draining,  // no new jobs until an operator says otherwise
  ended_by_operator,
};
[[nodiscard]] const char* to_string(Refusal refusal);

// A process of a job, as it says itself: for people.
struct Process {
  std::string host{};    // its name; empty: unknown
  std::uint32_t id = 0;  // of the process on that host; 0: unknown
};

// The job that a person means. No tenant: whosever it is.
struct NamedJob {
  std::string job;
  std::optional<std::string> tenant{};
};

struct JoinRequest {
  std::uint32_t protocol_version = 0;
  std::string protocol;  // "switchml", "atp", "netreduce"
  std::string job;
  std::uint32_t rank = 0, world_size = 0;
  std::uint32_t packet_elements = 0;
  std::uint32_t slots_fixed = 0;     // per lane; 0: agree on enough for the largest measured window
  std::uint32_t slots_measured = 0;  // per lane, in this rank's packets
  std::vector<Endpoint> endpoints;   // one per lane: where results go, and contributions come from
  std::uint32_t pool_slots = 0;      // of the rank's switch
  std::string switch_address;        // the switch that the rank is at; empty: none, or the aggregator itself
  // Of the job: its processes that were started together. A greater one ends a smaller one at once.
  std::uint64_t generation = 0;

  // Jobs that outlive their processes: ranks join again after a rank or an aggregator died.
  bool recovers = false;
  stream::Progress progress;
  std::vector<std::string> aggregators;  // where this rank joins; the same for all ranks
  std::uint32_t former_epoch = 0;        // of this rank, in a life of the job that it gave up; 0: none

  // NetReduce: rings of queue pairs.
  std::uint32_t message_packets = 0;       // 0: ProtocolRules::messages
  std::vector<netreduce::Member> members;  // this rank's, one per lane

  // Shared memory, if all ranks are on the aggregator's host.
  std::uint64_t local_ticket = 0;  // 0: none; why_not_local says why
  std::string why_not_local;
  bool needs_local = false;  // refuse the job rather than run without

  bool listens = false;  // to the job's multicast groups

  std::string tenant;  // the tenant whose token the rank showed; empty: the daemon has no tenants
  Process process;     // that joins

  bool packet_elements_measured = false;   // the path carries so many, and fewer will do: agree on the least
  std::uint64_t switch_receive_bytes = 0;  // of the rank's switch, as RegistryConfig::receive_bytes

  PacketSecurity security = PacketSecurity::none;  // the least that this rank puts up with
  // All packets between the rank and the aggregator take the loopback device: it does without seals.
  bool near = false;

  // Proof that the endpoints receive packets from the aggregator's lanes, and from the switch's: one per endpoint.
  std::vector<std::uint64_t> cookies, switch_cookies;
};

// One tenant's limits at this aggregator.
struct Quota {
  std::uint64_t memory_bytes = UINT64_MAX;
  std::uint32_t jobs = UINT32_MAX;   // joining and running
  std::uint32_t joins = UINT32_MAX;  // ranks that wait for the rest of their job
};

// What seals a rank's packets: to the aggregator, and from it to this rank alone. No other rank has them.
using RankKeys = HopKeys;

struct Admission {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank_epoch = 0;
  std::vector<std::uint32_t> rank_epochs;  // of all ranks
  std::uint32_t packet_elements = 0;
  std::uint32_t slots = 0;  // per lane
  Placement placement;      // if the protocol has switches
  stream::Resumption resumption;
  std::uint32_t message_packets = 0;                    // NetReduce
  std::vector<std::vector<netreduce::Member>> members;  // NetReduce: [rank][lane]
  bool local = false;                                   // the ranks sum in shared memory
  std::string why_not_local;                            // names a rank
  PacketSecurity security = PacketSecurity::none;       // of packets between hosts
  seal::PacketKey results;                              // seals what goes to all ranks, which all have it
  RankKeys keys;                                        // this rank's; none: its packets do without, as it is near
};

// A join's outcome: an admission (once all ranks are there), a refusal with its reason, or nothing yet.
struct JoinOutcome {
  Refusal refusal = Refusal::none;
  std::string reason;  // what is wrong, and what to do
  std::optional<Admission> admission;
};

struct RegistryConfig {
  std::vector<ProtocolRules> protocols{switchml_rules()};  // served here
  std::uint32_t indexing = 0, scaling = 0;                 // for Placement
  std::uint32_t parts = 0;                      // number of parts of each pool, one per job; 0: jobs share slot by slot
  std::uint32_t first_part = 0, own_parts = 0;  // this server's parts; own_parts 0: all from the first
  std::map<std::string, std::string> switch_parents;  // the next switch upstream, for switches not next to this aggregator
  std::uint32_t lanes = 1;
  std::uint32_t slots = default_slots;      // of 256 elements, over all lanes
  std::uint64_t memory_bytes = UINT64_MAX;  // of all jobs
  std::uint32_t max_jobs = 1024;
  std::uint32_t max_joins = 16384;      // ranks that wait for the rest of their jobs
  std::map<std::string, Quota> quotas;  // by tenant; without one, only the aggregator's own limits apply
  // Empty, or why nothing may be sent to a request's endpoints, one per lane. No function: all may be sent to.
  std::function<std::string(const JoinRequest&)> check_endpoints;
  // A lane's receive buffer, including the kernel's overhead per packet; 0: it does not bound windows.
  std::uint64_t receive_bytes = 0;
  Duration heartbeat_timeout = std::chrono::milliseconds(default_heartbeat_timeout_ms);  // of a silent rank (liveness.h)
  // For a job that never becomes complete. Longer than any worker's connect deadline should be.
  Duration join_timeout = std::chrono::minutes(30);
  // Of jobs' packets, where `keys` may be told to ranks: the control channel is secret. A rank may ask for more.
  PacketSecurity security = PacketSecurity::none;
  bool keys = false;
  bool keys_below = false;                // and to the switches below
  bool keys_required = false;             // no job without
  std::function<std::uint64_t()> random;  // epochs and keys; the runtime gives a cryptographic source, tests a seeded one
};

// For the runtime: a complete job to start on the lanes, or one to stop.
struct StartJob {
  Admission admission;
  std::string job, tenant;
  std::string protocol;                                    // ProtocolRules::name
  std::vector<std::vector<Endpoint>> endpoints;            // [rank][lane]
  bool switches_needed = false;                            // the job cannot do without any switch of its placement
  bool watched = false;                                    // ProtocolRules::watched
  std::vector<std::uint64_t> local_tickets;                // by rank, if it is local
  std::vector<bool> listens;                               // by rank: to the job's multicast groups
  std::vector<RankKeys> keys;                              // by rank, if the job's packets are sealed; none: it is near
  std::vector<RankKeys> switch_keys;                       // by switch of the placement: of the switch and its parent
  std::vector<std::vector<std::uint64_t>> switch_cookies;  // [rank][lane]: for the switch that the rank is at
  std::string warning;                                     // about a request that may perform badly; empty: none
};
struct StopJob {
  std::uint64_t job_epoch;
};

struct HeartbeatReply {
  enum class State : std::uint8_t { running, failed, unknown } state = State::unknown;
  std::string reason;                 // failed: names the rank
  std::optional<std::uint32_t> lost;  // the dead rank
  RankSet left;                       // ranks that have left in good order
  bool mismatch = false;              // failed: ranks issued different calls; the reason names them
  RankSet missing{};                  // ranks that the oldest sum waits for, if the data plane cannot tell ranks itself
  bool ended_by_operator = false;     // failed: and must not go on
  std::string warning{};              // running: what the job does without; empty: nothing
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
  // The pool of a switch that is a parent of others, and that no rank names; for jobs that begin from now on.
  void on_pool(const std::string& a_switch, std::uint32_t slots);

  // The job has failed if a rank leaves for a reason: the first one's is the job's, once all have left.
  void leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, const Farewell& why, Time now);
  [[nodiscard]] HeartbeatReply heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now);
  // The job cannot go on, whatever the cause.
  void fail(std::uint64_t job_epoch, const std::string& reason, Time now);
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
