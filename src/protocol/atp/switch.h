// The switch: ATP §3.5 (Figure 7) and §A.1 (Figure 17), for any number of jobs that share one pool of aggregator slots.
//
// All state is soft: chunks whose state is lost are summed at the parameter server. One object serves one thread's share of
// the slots. No I/O, no clock, no allocation per packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/counter_list.h"
#include "base/drop_sources.h"
#include "base/packet_io.h"
#include "base/reply_budget.h"
#include "base/time.h"
#include "protocol/atp/chip_slots.h"
#include "protocol/atp/numbers.h"
#include "wire/atp.h"

namespace netsum::atp {

struct SwitchConfig {
  std::uint32_t slots = 1024;                          // shared by all jobs
  std::uint32_t packet_elements = 2048;                // the longest chunk that a slot holds
  Duration abandoned_after = std::chrono::seconds(1);  // §3.7: the age at which any parameter packet frees a slot
  bool chip = false;                                   // chip_slots.h in place of Figures 7 and 17 in software
};

// A contributor to a switch: a rank or another switch.
struct SwitchChild {
  Endpoint endpoint;  // without a port: not known yet
  bool is_switch = false;
  std::uint32_t rank_epoch = 0;  // of a rank
  wire::atp::Ranks ranks;        // the rank, or all ranks below the switch
};

struct SwitchJobConfig {
  std::uint64_t epoch = 0;
  std::uint32_t folded_epochs = 0;  // of all ranks
  std::uint32_t packet_elements = 256;
  std::uint32_t window = 256;         // the most chunks in flight per rank
  std::uint8_t level = 0;             // of this switch
  std::uint8_t next_level = 1;        // of `parent`
  Endpoint parent;                    // the next switch, or the parameter server
  std::vector<SwitchChild> children;  // by position
  Overflow overflow = Overflow::exact;
  Rules rules = Rules::netsum;
};

// Each packet of a job counts, as it arrived, in exactly one outcome.
struct SwitchJobCounters {
  std::uint64_t packets = 0, bytes = 0;
  std::uint64_t added = 0;
  std::uint64_t repeats_waiting = 0, repeats_silent = 0;  // in the sum already: answered, or answered recently
  std::uint64_t collisions = 0;                           // no slot; passed on
  std::uint64_t rest_passed = 0;                          // passed on, as another packet of the chunk collided
  std::uint64_t resends_merged = 0;                       // merged with the slot's content and passed on (Fig. 17, 6 and 7)
  std::uint64_t resends_passed = 0;
  std::uint64_t direct_passed = 0;
  std::uint64_t mismatch_passed = 0;  // another call under the same sequence number; the parameter server reports it
  std::uint64_t parameters = 0, asks = 0, dones = 0;
  std::uint64_t dropped_source = 0, dropped_rank_epoch = 0, dropped_shape = 0;

  std::uint64_t completed = 0;    // sums of all children, sent up
  std::uint64_t losses_told = 0;  // ranks told that their packet is missing (gaps.h)
  std::uint64_t deallocated = 0;  // slots freed by a parameter packet, an ask or a resend
  std::uint64_t allocated = 0;
  std::uint64_t marked = 0;  // packets with congestion here or earlier on the path

  static constexpr auto fields() {
    using enum CounterKind;
    using C = SwitchJobCounters;
    return std::to_array<CounterField<C>>({
        {"packets", &C::packets, other},
        {"bytes", &C::bytes, other},
        {"added", &C::added, outcome},
        {"completed", &C::completed, other},
        {"allocated", &C::allocated, other},
        {"losses_told", &C::losses_told, other},
        {"deallocated", &C::deallocated, other},
        {"collisions", &C::collisions, outcome},
        {"rest_passed", &C::rest_passed, outcome},
        {"repeats_waiting", &C::repeats_waiting, outcome},
        {"repeats_silent", &C::repeats_silent, outcome},
        {"resends_merged", &C::resends_merged, outcome},
        {"resends_passed", &C::resends_passed, outcome},
        {"direct_passed", &C::direct_passed, outcome},
        {"mismatch_passed", &C::mismatch_passed, outcome},
        {"marked", &C::marked, other},
        {"parameters", &C::parameters, outcome},
        {"asks", &C::asks, outcome},
        {"dones", &C::dones, outcome},
        {"dropped_source", &C::dropped_source, outcome},
        {"dropped_rank_epoch", &C::dropped_rank_epoch, outcome},
        {"dropped_shape", &C::dropped_shape, outcome},
    });
  }
};

struct SwitchCounters {
  std::uint64_t malformed[wire::parse_error_kinds] = {};  // by wire::ParseError
  std::uint64_t unknown_job = 0, unknown_job_replies = 0, unexpected_type = 0;
  std::uint64_t unbelieved = 0;  // packets of a job with keys, without a neighbour's seal
  std::uint64_t reclaimed = 0;   // abandoned slots, and slots of a chunk from an earlier window

  static constexpr auto fields() {
    using enum CounterKind;
    using C = SwitchCounters;
    return std::to_array<CounterField<C>>({
        {"dropped_unknown_job", &C::unknown_job, outcome},
        {"unknown_job_replies", &C::unknown_job_replies, other},
        {"dropped_unexpected_type", &C::unexpected_type, outcome},
        {"dropped_seal", &C::unbelieved, outcome},
        {"pool_slots_reclaimed", &C::reclaimed, other},
    });
  }

  // Packets that belong to no job.
  [[nodiscard]] std::uint64_t strangers() const { return outcomes(*this); }
};

// Why a chip cannot sum this job's packets; empty: it can.
[[nodiscard]] std::string chip_refuses(const SwitchJobConfig& config);

class Switch {
 public:
  [[nodiscard]] static std::size_t memory_bytes(const SwitchConfig& config);
  // With all else that it takes; a job takes job_bytes() more.
  [[nodiscard]] static std::size_t total_bytes(const SwitchConfig& config);
  [[nodiscard]] static std::size_t job_bytes(std::size_t children, std::uint32_t window);

  // `memory`: memory_bytes, zeroed, 64-byte aligned; stays with the switch.
  Switch(const SwitchConfig& config, std::span<std::byte> memory);
  ~Switch();
  Switch(Switch&&) noexcept;
  Switch& operator=(Switch&&) noexcept;
  // State is a value. A copy refers to the original's memory until move_memory() assigns new memory.
  Switch(const Switch& other);
  Switch& operator=(const Switch& other);
  void move_memory(std::span<std::byte> memory);
  // All state that determines responses to packets, for comparing and hashing: no times, no counters.
  void append_state(std::vector<std::byte>& out) const;

  // False: the epoch is in use, or the job's chunks do not fit into a slot. At a chip: or it has too many children.
  [[nodiscard]] bool add_job(const SwitchJobConfig& config);
  // The job's parent or children have new endpoints, or first become known. False: the job is unknown, or another field of
  // the configuration differs. Safe at any time between two calls of on_packets: slots know children by position, and
  // positions do not change. A restarted child has lost its slots, but any sum received from it before the restart was
  // complete, and it never sends another sum of that chunk than this; so nothing is added twice or left out.
  [[nodiscard]] bool move_job(const SwitchJobConfig& config);
  void remove_job(std::uint64_t epoch);  // frees its slots

  // From so many waiting bytes on its own queue is long; 0: it has no job.
  [[nodiscard]] std::uint64_t long_queue() const { return long_queue_; }
  // `congested`: the switch's own queue is long; packets that arrive now are marked (§3.7).
  void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink);
  // Packets that came, and were kept from it (seal/hops.h).
  void count_unbelieved(std::uint64_t packets) { counters_.unbelieved += packets; }

  [[nodiscard]] const SwitchJobCounters* job_counters(std::uint64_t epoch) const;
  [[nodiscard]] const DropSources<SwitchJobCounters>* drop_sources(std::uint64_t epoch) const;
  [[nodiscard]] const SwitchCounters& counters() const { return counters_; }
  [[nodiscard]] std::uint32_t slots_in_use() const { return config_.chip ? chip_.in_use() : in_use_; }
  [[nodiscard]] std::uint32_t slots_in_use(std::uint64_t epoch) const;

 private:
  struct SlotState;
  struct Job;

  void on_gradient(const RxView& packet, const wire::atp::Common& common, bool congested, Time now, Sink& sink);
  // Nothing: the packet is dropped, and counted.
  [[nodiscard]] static std::optional<std::uint32_t> believe(Job& job, const RxView& packet, const wire::atp::Common& common,
                                                            wire::atp::GradientPacket& gradient);
  [[nodiscard]] SlotState& slot_of(const Job& job, const wire::atp::Common& common);
  void on_gradient_at_chip(Job& job, const RxView& packet, wire::atp::GradientPacket& gradient, std::uint32_t position,
                           Time now, Sink& sink);
  void send_up_at_chip(const Job& job, std::size_t slot, const wire::atp::GradientPacket& gradient, std::uint32_t bitmap,
                       Sink& sink) const;
  [[nodiscard]] std::uint32_t next_chip_number();
  void free_chip_slot(Job& job, const wire::atp::Common& common);
  void free_slot(Job& job, SlotState& slot, const wire::atp::Common& common, Time now);
  void on_resend(Job& job, SlotState& slot, const RxView& packet, const wire::atp::GradientPacket& gradient,
                 std::uint32_t position, Time now, Sink& sink);
  void on_plain_resend(Job& job, SlotState& slot, const RxView& packet, const wire::atp::GradientPacket& gradient,
                       std::uint32_t position, Time now, Sink& sink);
  static void pass_collided(Job& job, const SlotState& slot, const RxView& packet, wire::atp::GradientPacket& gradient,
                            Sink& sink);
  void add_gradient(Job& job, SlotState& slot, const RxView& packet, const wire::atp::GradientPacket& gradient,
                    std::uint32_t position, Time now, Sink& sink);
  void on_parameter(const RxView& packet, const wire::atp::Common& common, bool congested, Time now, Sink& sink);
  void on_unknown_job(const RxView& packet, const wire::atp::Common& common, Time now, Sink& sink);
  // `position`: of the child.
  void allocate(Job& job, SlotState& slot, const wire::atp::GradientPacket& gradient, std::uint32_t position, Time now,
                Sink& sink);
  [[nodiscard]] bool add(const Job& job, SlotState& slot, const wire::atp::GradientPacket& gradient, std::uint32_t position,
                         Time now);
  // `last`: the header of the packet that is the reason.
  void complete(Job& job, SlotState& slot, const wire::atp::Common& last, bool resend, Sink& sink);
  void send_up(Job& job, SlotState& slot, const wire::atp::Common& last, bool resend, Sink& sink);
  static void pass_on(const Job& job, const RxView& packet, const wire::atp::GradientPacket& gradient, Sink& sink);
  static void answer_waiting(Job& job, SlotState& slot, std::uint32_t position, Time now, Sink& sink);
  [[nodiscard]] static bool may_tell(const Job& job, SlotState& slot, std::uint32_t position, Time now);
  void tell_losses(Job& job, std::uint32_t position, std::uint64_t sequence, Sink& sink);
  void tell_loss(Job& job, SlotState& slot, std::uint32_t position, Sink& sink);
  static void tell_waiting(const Job& job, const SlotState& slot, const SwitchChild& child, Sink& sink);
  void deallocate(SlotState& slot);
  [[nodiscard]] std::byte* memory_of(const SlotState& slot) const;
  [[nodiscard]] Job* find(std::uint64_t epoch);

  SwitchConfig config_;
  std::span<std::byte> memory_;
  std::size_t slot_bytes_ = 0;
  std::vector<SlotState> slots_;
  std::uint32_t in_use_ = 0;
  ChipSlots chip_;  // in place of slots_
  std::uint32_t chip_jobs_ = 0;
  Time swept_{};
  std::unordered_map<std::uint64_t, std::unique_ptr<Job>> jobs_;
  Job* last_ = nullptr;  // the job of the previous packet: packets of one job come in trains
  SwitchCounters counters_;
  std::uint64_t batch_ = 0;
  std::uint64_t long_queue_ = 0;
  std::size_t marked_bytes_ = 0;   // of a copy
  std::vector<std::byte> marked_;  // copies of parameter packets, marked here, that the sink references
  std::size_t marked_in_use_ = 0;  // copies, in this batch
  ReplyBudget unknown_job_budget_;
};

}  // namespace netsum::atp
