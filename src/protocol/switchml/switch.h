// The switch: SwitchML Algorithm 3 with the identity rule of docs/protocol-switchml.md, for any number of jobs. In a tree
// (§7) its members are ranks and other switches: it sends one sum upstream, and results downstream.
//
// One object serves one thread's share of the slots. No I/O, no clock, no allocation per packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bitmap.h"
#include "base/counter_list.h"
#include "base/drop_sources.h"
#include "base/packet_io.h"
#include "base/reply_budget.h"
#include "base/time.h"
#include "protocol/switchml/hop_keys.h"
#include "protocol/switchml/probe_answers.h"
#include "wire/switchml.h"

namespace netsum::switchml {

struct Member {
  std::uint32_t epoch = 0;  // of the rank's process
  Endpoint endpoint;        // destination of its results, and the only source accepted
  bool listens = false;     // to the job's group
  HopKeys keys{};           // of a job whose packets are sealed; none: the member is on this host
};

// A switch's place in a tree.
struct TreePlace {
  std::vector<wire::switchml::Ranks> below;  // by member: the rank itself, or the ranks below the switch; none is empty
  std::vector<bool> is_switch;               // by member; its Member::epoch is of no use
  std::optional<Endpoint> parent;            // none: the root
  std::vector<std::uint32_t> rank_epochs;    // of all ranks of the job
  HopKeys parent_keys{};                     // as Member::keys
  std::size_t number = 0;                    // of this switch among the parent's members
};

struct SwitchJobConfig {
  std::uint64_t epoch = 0;
  std::uint32_t packet_elements = 256;
  std::uint32_t slots = 64;         // of each window (windows.h)
  std::vector<Member> members;      // by rank, or as in `tree`
  std::optional<Endpoint> group{};  // IP multicast: one result for all listening ranks (audience.h)
  bool group_within_host = false;
  std::optional<TreePlace> tree{};  // none: the members are the ranks
  PacketSecurity security = PacketSecurity::none;
  seal::PacketKey results{};  // seals results, which are for all ranks
};

// Each received packet counts in exactly one outcome of its job, or, if no job is found, of SwitchCounters.
struct JobCounters {
  std::uint64_t packets = 0, bytes = 0;  // received for this job
  std::uint64_t contributions = 0;       // added
  std::uint64_t chunks = 0;              // completed rounds, exponent-only ones included
  std::uint64_t results_sent = 0;        // datagrams
  std::uint64_t acknowledgements = 0;    // of `results_sent`: without values, to those that want none
  std::uint64_t in_runs = 0;             // of several chunks' contributions in a packet, all but one
  std::uint64_t results_to_group = 0;    // of `results_sent`: one for all that listen to the group
  std::uint64_t group_unheard = 0;       // ranks taken out of the group: they do not receive it; no packets
  std::uint64_t repeats_answered = 0;    // a repeat of a complete chunk: unicast result
  std::uint64_t repeats_waiting = 0;     // a repeat of an incomplete chunk: "have yours"
  std::uint64_t repeats_silent = 0;      // either again within the interval
  std::uint64_t passed_up = 0;           // of `contributions`: sent to the parent unsummed, as they are
  std::uint64_t sums_sent = 0;           // upstream; no packets
  std::uint64_t sums_repeated = 0;       // of `sums_sent`
  std::uint64_t sums_in_runs = 0;        // of `sums_sent`: without values, several in a packet
  std::uint64_t sums_in_parts = 0;       // of `sums_sent`
  std::uint64_t parts_sent = 0;          // their packets
  std::uint64_t parts = 0;               // of a child switch's sum, all but the last
  std::uint64_t results_taken = 0;       // from the parent
  std::uint64_t told_by_parent = 0;      // "waiting", "mismatch" and "unknown job", and child switches' "missing"
  std::uint64_t repeats_passed_up = 0;   // a repeat of a chunk that waits for the parent
  std::uint64_t dropped_stale = 0;       // from the parent or a child switch, of no round that waits for it
  std::uint64_t losses_told = 0;         // ranks told that their contribution is missing (overtaken.h); counts no packet
  std::uint64_t dropped_old = 0;         // an identity older than the slot's
  std::uint64_t dropped_early = 0;       // a newer identity while the slot's chunk is incomplete (protocol error)
  std::uint64_t dropped_mismatch = 0;    // another signature
  std::uint64_t dropped_rank = 0, dropped_rank_epoch = 0, dropped_source = 0, dropped_slot = 0, dropped_shape = 0;
  std::uint64_t dropped_gap = 0;     // of a message over UC, with a packet before it missing
  std::uint64_t dropped_seal = 0;    // no seal, or one that is not a member's
  std::uint64_t dropped_trains = 0;  // several packets that the kernel merged, before an XDP program; counts no packet

  static constexpr auto fields() {
    using enum CounterKind;
    using C = JobCounters;
    return std::to_array<CounterField<C>>({
        {"packets", &C::packets, other},
        {"bytes", &C::bytes, other},
        {"contributions", &C::contributions, outcome},
        {"chunks", &C::chunks, other},
        {"results_sent", &C::results_sent, other},
        {"acknowledgements", &C::acknowledgements, other},
        {"in_runs", &C::in_runs, more},
        {"results_to_group", &C::results_to_group, other},
        {"group_unheard", &C::group_unheard, other},
        {"repeats_answered", &C::repeats_answered, outcome},
        {"repeats_waiting", &C::repeats_waiting, outcome},
        {"repeats_silent", &C::repeats_silent, outcome},
        {"repeats_passed_up", &C::repeats_passed_up, outcome},
        {"losses_told", &C::losses_told, other},
        {"passed_up", &C::passed_up, other},
        {"sums_sent", &C::sums_sent, other},
        {"sums_repeated", &C::sums_repeated, other},
        {"sums_in_runs", &C::sums_in_runs, other},
        {"sums_in_parts", &C::sums_in_parts, other},
        {"parts_sent", &C::parts_sent, other},
        {"parts", &C::parts, outcome},
        {"results_taken", &C::results_taken, outcome},
        {"told_by_parent", &C::told_by_parent, outcome},
        {"dropped_stale", &C::dropped_stale, outcome},
        {"dropped_old", &C::dropped_old, outcome},
        {"dropped_early", &C::dropped_early, outcome},
        {"dropped_mismatch", &C::dropped_mismatch, outcome},
        {"dropped_rank", &C::dropped_rank, outcome},
        {"dropped_rank_epoch", &C::dropped_rank_epoch, outcome},
        {"dropped_source", &C::dropped_source, outcome},
        {"dropped_slot", &C::dropped_slot, outcome},
        {"dropped_shape", &C::dropped_shape, outcome},
        {"dropped_gap", &C::dropped_gap, outcome},
        {"dropped_seal", &C::dropped_seal, outcome},
        {"dropped_trains", &C::dropped_trains, other},
    });
  }
};

struct SwitchCounters {
  std::uint64_t malformed[wire::parse_error_kinds] = {};  // by wire::ParseError
  std::uint64_t unknown_job = 0, unknown_job_replies = 0, probes = 0, unexpected_type = 0;

  static constexpr auto fields() {
    using enum CounterKind;
    using C = SwitchCounters;
    return std::to_array<CounterField<C>>({
        {"probes", &C::probes, outcome},
        {"dropped_unknown_job", &C::unknown_job, outcome},
        {"unknown_job_replies", &C::unknown_job_replies, other},
        {"dropped_unexpected_type", &C::unexpected_type, outcome},
    });
  }

  // Packets that belong to no job.
  [[nodiscard]] std::uint64_t strangers() const { return outcomes(*this) - probes; }
};

struct StalledChunk {
  std::uint64_t operation;
  std::uint32_t chunk;
  std::uint32_t slot;
  wire::switchml::Ranks missing;
};

class Switch {
 public:
  // Bytes of slot memory that a job of `ranks` ranks needs on this lane. Memory for floats lies at the end, for packets or
  // for exact sums: a switch below the root of a tree needs none for packets, ranks 0, and one without a tree none for sums,
  // members 0.
  [[nodiscard]] static std::size_t memory_bytes(std::uint32_t packet_elements, std::uint32_t slots, std::size_t ranks,
                                                std::size_t members_in_tree = 0);
  // Including all state but seals. `ranks`: of the job; `members`: of this switch.
  enum class Role : std::uint8_t { alone, root, below };
  [[nodiscard]] static std::size_t total_bytes(std::uint32_t packet_elements, std::uint32_t slots, std::size_t ranks,
                                               std::size_t members, Role role);
  [[nodiscard]] static std::size_t memory_bytes(const SwitchJobConfig& config);

  explicit Switch(const EndpointCookies& cookies = EndpointCookies());
  ~Switch();
  Switch(Switch&&) noexcept;
  Switch& operator=(Switch&&) noexcept;
  // State is a value. A copy refers to the original's slot memory until move_memory() assigns new memory to each job.
  Switch(const Switch& other);
  Switch& operator=(const Switch& other);
  void move_memory(std::uint64_t epoch, std::span<std::byte> memory);  // copies the content

  // All state that determines responses to packets, for comparing and hashing: no times (they only limit how often a repeat
  // is answered with "have yours"), no counters, and not the order of rounds (a rank told of a loss does the same as after a
  // time-out).
  void append_state(std::vector<std::byte>& out) const;

  // A job's state is large: it is created and destroyed off the thread that serves packets.
  struct Job;
  [[nodiscard]] const Job& job(std::uint64_t epoch) const { return *jobs_.at(epoch); }  // for tests (switch_job.h)
  struct Destroy {
    void operator()(Job* job) const;
  };
  using JobState = std::unique_ptr<Job, Destroy>;
  // `memory` (memory_bytes, zeroed, 64-byte aligned) stays with the job until it is destroyed. Null: too little memory.
  [[nodiscard]] static JobState make_job(const SwitchJobConfig& config, std::span<std::byte> memory);
  // False: the epoch is in use; `job` is untouched.
  [[nodiscard]] bool add_job(JobState&& job);
  [[nodiscard]] bool add_job(const SwitchJobConfig& config, std::span<std::byte> memory) {
    JobState job = make_job(config, memory);
    return job && add_job(std::move(job));
  }
  JobState remove_job(std::uint64_t epoch);  // null: unknown

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);

  // Without the fast path (switch_fast.cc) everything is the same, and slower: tests compare both.
  void use_fast_path(bool use) { fast_ = use; }
  [[nodiscard]] std::uint64_t added_fast() const { return added_fast_; }  // contributions

  [[nodiscard]] const JobCounters* job_counters(std::uint64_t epoch) const;
  [[nodiscard]] const DropSources<JobCounters>* drop_sources(std::uint64_t epoch) const;
  [[nodiscard]] const SwitchCounters& counters() const { return counters_; }
  [[nodiscard]] std::uint32_t slots_in_use(std::uint64_t epoch) const;                           // incomplete chunks
  [[nodiscard]] std::vector<StalledChunk> stalled(std::uint64_t epoch, std::size_t most) const;  // oldest identity first

 private:
  struct SlotState;
  using Identity = std::tuple<std::uint64_t, std::uint32_t, bool>;  // of a round: operation, chunk, values

  void on_packet(const RxView& packet, Time now, Sink& sink);
  void on_unknown_job(const RxView& packet, const wire::switchml::Common& common, Time now, Sink& sink);
  // From whom a contribution is: for itself, or (`summed`) for all ranks below it.
  struct Sender {
    std::uint16_t rank;
    std::size_t member;
    bool from_switch, summed, in_run;
  };
  [[nodiscard]] bool add_fast(const RxView& packet, Time now, Sink& sink);  // false: nothing was done
  void on_contribution(Job& job, RxView packet, const wire::switchml::Common& common, Time now, Sink& sink);
  void on_run(Job& job, const Sender& sender, const RxView& packet, const wire::switchml::Common& common, Time now,
              Sink& sink);
  void on_sum_part(Job& job, Sender sender, const RxView& packet, const wire::switchml::Common& common, Time now,
                   Sink& sink);
  // The round that it belongs to; null: it was dropped.
  SlotState* take(Job& job, const Sender& sender, const RxView& packet, const wire::switchml::ChunkPacket& chunk, Time now,
                  Sink& sink);
  // Nothing, false and null: the packet is dropped, and counted. believe() takes the seal off.
  [[nodiscard]] static std::optional<Sender> believe(Job& job, RxView& packet, const wire::switchml::Common& common);
  [[nodiscard]] static bool has_shape(Job& job, const Sender& sender, const RxView& packet,
                                      const wire::switchml::Common& common, wire::switchml::ChunkPacket& chunk);
  [[nodiscard]] static bool says_its_own(const Job& job, const Sender& sender, const wire::switchml::ChunkHeader& header);
  [[nodiscard]] static bool has_room(const Job& job, const wire::switchml::ChunkHeader& header);
  [[nodiscard]] SlotState* place(Job& job, const RxView& packet, const wire::switchml::Common& common,
                                 const wire::switchml::ChunkHeader& header, Sink& sink);
  void open(Job& job, std::size_t number, const wire::switchml::ChunkHeader& header, bool values, std::uint16_t rank,
            Sink& sink);
  void answer_repeat(Job& job, SlotState& slot, const Sender& sender, const RxView& packet,
                     const wire::switchml::Common& common, const wire::switchml::ChunkHeader& header, Time now, Sink& sink);
  void add_contribution(Job& job, SlotState& slot, const Sender& sender, const RxView& packet,
                        const wire::switchml::ChunkPacket& chunk, Time now, Sink& sink);
  void count_contribution(Job& job, SlotState& slot, const Sender& sender, const RxView& packet,
                          const wire::switchml::ChunkPacket& chunk, Time now, Sink& sink);
  [[nodiscard]] static wire::switchml::ChunkHeader header_of(const Job& job, const SlotState& slot);
  [[nodiscard]] static bool accumulate(Job& job, SlotState& slot, const wire::switchml::ChunkPacket& chunk);
  static void sum_gathered(const Job& job, SlotState& slot);
  void complete(Job& job, SlotState& slot, Sink& sink);
  static void end_exact(const Job& job, SlotState& slot);
  static void write_packet(Job& job, SlotState& slot);
  void send_result(Job& job, SlotState& slot, Sink& sink);
  static void owe(Job& job, const SlotState& slot, std::size_t member, Sink& sink);
  static void owe_no_more(Job& job, std::size_t number, std::size_t member, Sink& sink);
  static void acknowledge(Job& job, std::span<const std::uint32_t> rounds, std::size_t member, Sink& sink);
  void answer_result(Job& job, SlotState& slot, const Sender& sender, const wire::switchml::ChunkHeader& repeat, Time now,
                     Sink& sink);
  [[nodiscard]] static bool may_tell(Job& job, SlotState& slot, std::size_t member, Time now);
  static void tell_losses(Job& job, std::size_t number, std::uint64_t place, const Identity& behind, bool in_run,
                          std::size_t member, Time now, Sink& sink);
  static void tell_waiting(Job& job, const SlotState& slot, std::size_t member, Sink& sink,
                           std::uint32_t overtaken_by = wire::switchml::WaitingPacket::not_overtaken);
  static void answer_waiting(Job& job, SlotState& slot, std::size_t member, Time now, Sink& sink);
  static void answer_mismatch(Job& job, SlotState& slot, const RxView& packet, std::uint16_t rank, std::uint32_t signature,
                              Time now, Sink& sink);
  static void tell_mismatch(const Job& job, const SlotState& slot, const Endpoint& to, Sink& sink);

  // In a tree (switch_tree.cc): from the parent, and what only child switches send.
  void on_tree_packet(Job& job, const RxView& received, const wire::switchml::Common& common, Time now, Sink& sink);
  void on_result(Job& job, const RxView& packet, std::span<const std::byte> received, const wire::switchml::Common& common,
                 Sink& sink);
  static void pass_down(const Job& job, std::size_t member, const wire::switchml::WaitingPacket& waiting, Sink& sink);
  void on_waiting(Job& job, const wire::switchml::WaitingPacket& waiting, Time now, Sink& sink);
  static void on_missing(Job& job, const wire::switchml::WaitingPacket& missing);
  static void relay_failure(Job& job, const RxView& packet, const wire::switchml::Common& common, Time now, Sink& sink);
  void on_acknowledgements(Job& job, const RxView& packet, const wire::switchml::Common& common, Sink& sink);
  void take_result(Job& job, const wire::switchml::ChunkPacket& chunk, const RxView& packet,
                   std::span<const std::byte> received, Sink& sink);
  void send_sum(Job& job, SlotState& slot, Sink& sink);
  void send_together(Job& job, Sink& sink);
  static void send_parts(Job& job, const SlotState& slot, Sink& sink);
  void repeat_sum(Job& job, SlotState& slot, Time now, Sink& sink);
  void repeat_if_lost(Job& job, SlotState& slot, std::uint32_t overtaken_by, Sink& sink);
  void pass_up_repeat(Job& job, SlotState& slot, const RxView& packet, const wire::switchml::Common& common, Time now,
                      Sink& sink);
  static void pass_up(const Job& job, const RxView& packet, Sink& sink);
  static void ask_children(Job& job, SlotState& slot, Time now, Sink& sink);
  [[nodiscard]] Job* find(std::uint64_t epoch);

  std::unordered_map<std::uint64_t, JobState> jobs_;
  Job* last_ = nullptr;  // the job of the previous packet: packets of one job come in trains
  bool fast_ = true;
  SwitchCounters counters_;
  std::uint64_t batch_ = 0, added_fast_ = 0;
  Time batch_at_{};
  ReplyBudget unknown_job_budget_;
  ProbeAnswers probe_answers_;
};

}  // namespace netsum::switchml
