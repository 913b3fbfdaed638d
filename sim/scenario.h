// A scenario: everything that a simulation does, as data, drawn from one seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "oracle/reduction.h"
#include "sim/faults.h"
#include "stream/operation.h"

namespace netsum::sim {

// none: an ideal network. lossy: all link faults; every operation must produce its result. crash: nodes die and restart on a
// fair network. chaos: everything at once. The last three: one fault that never heals; sim/promises.h says what must
// complete.
enum class Profile : std::uint8_t { none, lossy, chaos, crash, leave, dead_link, slow_rank, lossy_lane };
[[nodiscard]] const char* to_string(Profile profile);
[[nodiscard]] std::optional<Profile> profile_of(const std::string& name);

struct Range {
  std::uint32_t least = 1, most = 1;
};

// What shrinking removes (sim/shrink.h). The defaults remove nothing.
struct Limits {
  static constexpr std::uint64_t unlimited = UINT64_MAX;

  std::uint64_t workers = unlimited, jobs = unlimited, operations = unlimited, elements = unlimited, slots = unlimited,
                lanes = unlimited, aggregators = unlimited, attempts = unlimited;
  std::uint64_t faults = unlimited;       // the number of link faults that happen, from the first
  std::uint64_t node_faults = unlimited;  // the same for node faults
  FaultSet kinds = FaultSet::all();

  // "workers=2,operations=1,without=loss+late"; empty if nothing is removed.
  [[nodiscard]] std::string text() const;
  // Throws std::invalid_argument with a message for the user.
  [[nodiscard]] static Limits parse(const std::string& text);
  bool operator==(const Limits&) const = default;
};

struct Settings {
  std::string protocol = "switchml";
  Profile profile = Profile::chaos;
  Range workers{2, 8}, jobs{1, 3};
  Limits limits;
};

struct LinkFaults {
  Duration least_delay{}, most_delay{};
  double loss = 0, burst = 0, duplicate = 0, late = 0, corrupt = 0, truncate = 0, forge = 0;
  Duration burst_length{};                // mean
  Duration latest{};                      // longest delay of a late packet
  bool in_order = false;                  // a datagram waits for those sent before it, as on an Ethernet
  std::uint64_t bytes_per_second = 0;     // of each host's port, each way; 0: unlimited
  std::uint64_t queue_bytes = 0;          // behind a port
  std::uint64_t mark_bytes = UINT64_MAX;  // packets behind a longer queue are marked
  double control_loss = 0, control_repeat = 0;
};

// A node fault and its time.
struct NodeFault {
  Fault kind{};
  bool aggregator = false;
  std::uint32_t job = 0, rank = 0;  // the worker
  std::uint32_t site = 0;           // the aggregator or switch below; a partition is between it and the worker
  bool below = false;               // a switch below the aggregators
  Time at{};
  Duration lasts{};  // of a pause, partition, silence, memory shortage, or until the restart; the delay of a slow switch
  bool same_ports = true;  // after a restart
  bool outward = true;     // partition: away from the worker
};

// A fault of one rank that never heals.
struct LastingFault {
  // Of a dead link. cable: everything between the rank and all others. path: everything between it and the node that its
  // packets go to. packets: its packets there alone, as behind a firewall.
  enum class Reach : std::uint8_t { cable, path, packets };

  Fault kind{};
  std::uint32_t job = 0, rank = 0;
  std::uint32_t site = 0;  // the aggregator, of a rank that is at no switch
  Reach reach = Reach::cable;
  bool outward = true, inward = true;  // seen from the rank
  bool trunk = false;                  // a lossy lane: between the rank's switch and the node above
  std::uint32_t lane = 0;              // a lossy lane: of the site
  Time at{};
  Duration turn{}, late{};  // a slow rank: its host runs so far apart, and it makes each call so late

  [[nodiscard]] bool is_of(std::uint32_t other_job, std::uint32_t other_rank) const {
    return job == other_job && rank == other_rank;
  }
};

using oracle::Numbers;

struct JobPlan {
  std::string name;
  std::uint64_t seed = 0;  // of its tensors
  std::uint32_t workers = 2, packet_elements = 64;
  std::uint32_t slots = 4;  // per lane; if measured, the number that the aggregators guarantee
  bool measured = false;    // the ranks measure the path and agree on a window
  std::vector<stream::Operation> calls;
  std::uint32_t window = 1;  // pending operations per rank
  Duration gap{};            // the longest between two calls of a rank
  double straggle = 0;       // probability that a call comes `straggle_for` late
  Duration straggle_for{};
  std::uint32_t attempts = 1;  // joins per rank before it gives up
  Duration operation_deadline{};
  bool recovers = false;                            // ranks rejoin after a failure and continue where they were
  std::uint32_t survivors = 0;                      // if so: fewest ranks with which the job goes on without others
  std::chrono::milliseconds straggler_deadline{0};  // with survivors: session::JoinRequest's; the last call waits for all
  std::vector<bool> admits{};                       // by call: before it the ranks let new processes in; empty: never
  std::uint32_t admit_again = 0;                    // and as often once more, while ranks are missing
  Duration admit_pause{};                           // after this time
  std::uint32_t standbys = 0;  // and how many aggregators, the last ones, serve only if the others cannot
  bool impatient = false;      // the deadline may be too short for the network
  // A rank that issues another call.
  struct Mismatch {
    std::uint32_t rank = 0;
    stream::Operation call;
  };
  std::optional<Mismatch> mismatch;
  Numbers numbers = Numbers::block_fixed_point;
  std::vector<std::uint32_t> aggregators;     // where it joins; empty: at all
  std::vector<std::uint32_t> switch_of_rank;  // for protocols with switches; empty: none
  bool private_sums = false;                  // SwitchML, NetReduce
  bool chip = false;                   // SwitchML at chips and over UC: a block with an element that is not finite is lost
  std::uint32_t block_elements = 256;  // SwitchML: that share an exponent
  std::uint32_t indexing = 0;          // ATP: atp::Indexing
  bool saturating = false;             // ATP
  bool paper_rules = false, chip_rules = false;      // ATP: atp::Rules
  bool congestion_control = true;                    // ATP, NetReduce
  std::uint32_t message_packets = 0, first_psn = 0;  // NetReduce
  bool unordered = false;                            // NetReduce: netreduce::Order::arrival
  bool learned = false;                              // at a bump: it learns the connections from their first packets

  [[nodiscard]] std::uint32_t units() const { return (packet_elements + 255) / 256; }  // of an aggregator's slots, per slot
};

// Of aggregators and of ranks: there are no connections whose end would tell of a death.
inline constexpr Duration heartbeat_timeout = std::chrono::seconds(3);

struct Scenario {
  std::uint64_t seed = 0;
  Settings settings;
  std::uint32_t aggregators = 1, lanes = 1;
  std::uint32_t spare_lanes = 0;                // of aggregators, switches, and every second rank; no job has them
  std::vector<std::uint32_t> parent_of_switch;  // switches below the aggregators; UINT32_MAX: directly below an aggregator
  std::uint32_t pool_slots = 0, pool_elements = 0;  // per lane of these switches
  std::uint32_t pool_parts = 0;                     // one for each job; 0: all jobs share all slots
  std::uint32_t switch_slots = 0;                   // of each aggregator
  bool scarce = false;                              // too few slots for all jobs at once
  LinkFaults links;
  std::vector<JobPlan> jobs;
  std::vector<NodeFault> node_faults;
  std::optional<LastingFault> lasting;
  Duration coalesce{};  // how long a host collects packets before it runs
  double skew = 0;      // clocks run fast or slow by up to this fraction
  Duration connect_deadline = std::chrono::seconds(5);
  PacketSecurity security = PacketSecurity::none;  // of all jobs' packets
  // Hosts check all that must hold as they go, which takes about as long as what they do; and results are judged.
  bool checked = true;

  [[nodiscard]] const JobPlan& plan_of(const std::string& job) const;
  [[nodiscard]] std::string summary() const;
};

class Protocol;

// Of packets, for protocols that seal them: half of the clusters have keys.
[[nodiscard]] PacketSecurity draw_security(std::uint64_t seed);

[[nodiscard]] Scenario generate(const Settings& settings, std::uint64_t seed);  // of a known protocol
[[nodiscard]] Scenario generate(const Settings& settings, std::uint64_t seed, const Protocol& protocol);

}  // namespace netsum::sim
