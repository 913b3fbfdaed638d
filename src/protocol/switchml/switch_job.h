// A job's state at one lane of a switch. Internal to the switch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bit_rows.h"
#include "base/cache_line.h"
#include "base/check.h"
#include "base/drop_sources.h"
#include "base/wire_types.h"
#include "kernels/exact_sum.h"
#include "protocol/switchml/audience.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/switch_seals.h"
#include "protocol/switchml/windows.h"
#include "seal/uncopied.h"
#include "stream/overtaken.h"
#include "wire/switchml_alike.h"

namespace netsum::switchml {

// A slot's memory is a packet in place: the header and exponents end where the payload begins, at a cache line.
inline constexpr std::size_t payload_at = 128;
static_assert(payload_at >=
              wire::switchml::chunk_header_bytes + wire::switchml::padded_exponents(wire::switchml::max_blocks));

// One version of one slot: what each contribution looks at, on one line.
struct alignas(cache_line) Switch::SlotState {
  // Identity of the round that the slot holds: (operation, chunk, exponent-only round before values).
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;
  std::uint32_t signature = 0;
  bool values = false;
  bool used = false;  // the identity is valid

  // A round gathers; is sent upstream, unless this switch is the root; is complete, with the result in the slot's memory.
  bool sent = false;
  bool complete = false;
  bool mismatch = false;
  bool checked = false;  // a contribution had a checksum: a rank is on another host
  bool masks : 1 = false;
  bool due : 1 = false;    // some child switches are to be told now what waits for them (Job::due)
  bool exact : 1 = false;  // in a tree: sums of short floats, which every switch adds without rounding (Job::sum_of)
  bool quiet = false;      // some members want no values (Job::quiet)
  bool by_run = false;     // a rank opened it with others in one packet, before chunks in front of it
  bool told = false;       // a member was told something of this round: Job::told, and SlotRest::told_since
  DType dtype = DType::int32;
  ReduceOp op = ReduceOp::sum;
  std::uint8_t exponents = 0;
  std::uint8_t ahead_operation = wire::switchml::no_ahead;
  std::uint16_t elements = 0;
  std::uint32_t ahead_chunk = 0;
  std::uint32_t arrived = 0;
  std::uint16_t first_rank = 0, other_rank = 0;  // mismatch: the first rank, and the one with another call
  std::uint32_t result_bytes = 0;                // of the packet in the slot's memory, once sent or complete
  std::uint64_t place = 0;                       // in the order in which rounds were opened
  std::uint64_t sent_in_batch = 0;               // the last batch in which the sink referenced the memory

  [[nodiscard]] auto identity() const { return std::tuple(operation, chunk, values); }
  // Floats that are summed only when all ranks' are there, in rank order: switches below the root pass them on unsummed.
  [[nodiscard]] bool ordered() const { return added_in_order(dtype) && !exact; }
  // Whether a contribution has what the others have. A rank may be without integers (broadcast), not without floats.
  [[nodiscard]] bool fits(const wire::switchml::ChunkHeader& header) const {
    const bool same = !added_in_order(dtype) || elements == 0 || header.elements == elements;
    return header.dtype == dtype && header.op == op && same;
  }
  // It has the memory in which a slot gathers floats, or their exact sum.
  [[nodiscard]] bool gathers() const { return used && !complete && added_in_order(dtype); }

  // The look-ahead is valid only if every rank knew the same next block; one that did not makes it "unknown" for all. The
  // largest exponents are in front of the payload.
  void take_ahead(std::uint8_t its_operation, std::uint32_t its_chunk, std::span<const std::byte> its_exponents,
                  std::byte* payload) {
    std::byte* const largest = payload - wire::switchml::padded_exponents(its_exponents.size());
    if (arrived == 0) {  // who opened the round may be another, with a part of a sum
      ahead_operation = its_operation;
      ahead_chunk = its_chunk;
      exponents = static_cast<std::uint8_t>(its_exponents.size());
      std::copy(its_exponents.begin(), its_exponents.end(), largest);
    } else if (its_operation != ahead_operation || its_chunk != ahead_chunk || its_exponents.size() != exponents) {
      ahead_operation = wire::switchml::no_ahead;
      ahead_chunk = 0;
      exponents = 0;
    } else {
      for (std::size_t i = 0; i < exponents; ++i) largest[i] = std::max(largest[i], its_exponents[i]);
    }
  }
};

// What few rounds need of a slot's version.
struct SlotRest {
  Time told_since{};             // Job::told is of the interval that began then, if the slot says that somebody was told
  Time opened_at{};              // with the round's first contribution
  Time repeated_at{};            // upstream, for the last time
  std::uint32_t first_part = 0;  // of a sum in parts, that the next transmission begins with
  std::uint64_t order = 0;       // among all sums that this switch has sent upstream
  std::uint32_t other_signature = 0;  // of a mismatch
  // Of a complete round, for acknowledgements: the slot's memory may hold an encrypted packet.
  std::array<std::byte, wire::switchml::max_blocks> exponents{};
};

// Of a member and a window. Acknowledgements that may come with a later one wait for it.
struct Owed {
  std::array<std::uint32_t, wire::switchml::Run::most> rounds{};  // by number of their slots' states
  std::uint32_t count = 0;
  // The newest round, as (operation, chunk), that the member was acknowledged at once: nothing before waits for it.
  std::optional<std::pair<std::uint64_t, std::uint32_t>> newest;
};

// Of a child switch's sum that comes in parts.
struct PartsThere {
  std::uint64_t parts = 0;  // a bit for each
  std::uint32_t all = 0;    // how many there are
  std::uint32_t masks = 0;  // 1: one of those there has masks
  static_assert(SumParts::most <= 64);

  [[nodiscard]] static std::size_t bytes(std::size_t members) { return whole_lines(members * sizeof(PartsThere)); }
  [[nodiscard]] bool complete() const { return static_cast<std::uint32_t>(std::popcount(parts)) == all; }
};

// From where a rank's contributions are taken: from itself, or from the switch that it is below.
struct alignas(32) Origin {
  static constexpr std::uint16_t no_member = UINT16_MAX;

  Endpoint endpoint;
  std::uint32_t epoch = 0;           // of the rank's process
  std::uint16_t member = no_member;  // the rank is not below this switch
  bool is_switch = false;
};
static_assert(sizeof(Origin) == 32);

struct alignas(cache_line) Switch::Job {
  static_assert(sizeof(SlotState) == cache_line);

  // First what every contribution needs, on as few lines as it takes.
  wire::switchml::AlikeContributions alike;
  std::vector<SlotState> slots;  // [slot * 2 + version]
  // By slot state. A member's bit, or a rank's in a round whose floats are summed in rank order.
  BitRows seen;
  std::span<std::byte> memory;
  std::size_t slot_bytes = 0;
  std::vector<Origin> origins;  // by rank
  std::uint32_t rank_count = 0;
  std::uint32_t folded_epochs = 0;
  struct Window {
    stream::Overtaken overtaken;
    std::uint64_t newest = 0;  // the operation of the round that was opened last
    std::uint32_t open = 0;    // rounds without a result
  };
  std::array<Window, switchml::windows> of_window;
  Audience audience;  // of the members
  JobCounters counters;
  SwitchJobConfig config;
  seal::Uncopied<SwitchSeals> seals;  // null: nothing is sealed

  std::vector<SlotRest> rest;  // by slot state
  BitRows told;                // by member: answered, with whatever it was, since told_since
  BitRows quiet;               // by member: wants no values; of a child switch, all below it. Of use in slots that say so
  BitRows later;               // by member: is content if it is told with a later round. As `quiet`
  BitRows due;                 // by member: a child switch that wants values, and is told of other rounds now
  std::vector<Owed> owed;      // [member * windows + window]
  BitRows asked;  // by member, at a switch with a parent: repeated a contribution, and waits for what the parent says
  std::size_t gathered_at = 0, gathering_bytes = 0;  // behind all slots' results; of each slot, for either version
  DropSources<JobCounters> drops;

  void drop(std::uint64_t& counter, const RxView& packet) { drops.drop(counters, counter, packet.source); }
  // The packet as it may be believed, without its seal; false: it may not.
  [[nodiscard]] bool believe_member(std::size_t number, RxView& packet, const wire::switchml::Common& common) const {
    if (!seals) return common.security == PacketSecurity::none;
    packet.bytes = seals->from_member(number, packet, common);
    return !packet.bytes.empty();
  }
  [[nodiscard]] bool believe_parent(RxView& packet, const wire::switchml::Common& common) const {
    if (!seals) return common.security == PacketSecurity::none;
    packet.bytes = seals->from_parent(packet, common);
    return !packet.bytes.empty();
  }
  // A packet to a neighbour that `write` fills in.
  template <class Write>
  void send(const Endpoint& to, std::size_t bytes, Sink& sink, const Write& write) const {
    seal::Sealer* const sealer = seals ? seals->to(to) : nullptr;
    const std::span<std::byte> packet = sink.datagram(to, bytes + (sealer != nullptr ? sealer->trailer() : 0));
    write(packet.first(bytes));
    if (sealer != nullptr) seal_packet(packet, sealer);
  }

  wire::switchml::Ranks ranks;  // below this switch
  // What a child switch said of the sum that it lacks. Only the oldest stalled chunks are asked for, so the last word is
  // enough.
  struct Reported {
    std::uint64_t operation = 0;
    std::uint32_t chunk = 0;
    bool values = false;
    wire::switchml::Ranks missing;
  };
  std::vector<Reported> reported;  // by member; empty without child switches
  std::uint64_t sums = 0;          // sent upstream
  // Sums without values that what has come in one packet completes: they go upstream in one.
  std::array<std::uint32_t, wire::switchml::Run::most> together{};  // by number of their slots' states
  std::uint32_t together_count = 0;
  bool in_run = false;
  Time relayed{};  // "mismatch" or "unknown job", for the last time

  [[nodiscard]] bool is_root() const { return !config.tree || !config.tree->parent; }
  [[nodiscard]] std::size_t number_of(const SlotState& slot) const { return static_cast<std::size_t>(&slot - slots.data()); }
  [[nodiscard]] std::byte* memory_of(const SlotState& slot) const { return memory.data() + number_of(slot) * slot_bytes; }
  [[nodiscard]] SlotRest& rest_of(const SlotState& slot) { return rest[number_of(slot)]; }
  [[nodiscard]] const SlotRest& rest_of(const SlotState& slot) const { return rest[number_of(slot)]; }
  // A rank's floats of the round that the slot gathers, for either version. Packed by their actual length: memory that a few
  // floats do not need is never touched.
  [[nodiscard]] std::byte* gathered(const SlotState& slot, std::size_t rank) const {
    const std::size_t each = whole_lines(slot.elements * bytes_of(slot.dtype));
    return gathering(slot) + rank * each;
  }
  [[nodiscard]] std::byte* gathering(const SlotState& slot) const {
    return memory.data() + gathered_at + number_of(slot) / 2 * gathering_bytes;
  }
  // In the same memory, of an exact slot: which parts of each member's sum are there, and the sum.
  [[nodiscard]] std::span<PartsThere> parts_there(const SlotState& slot) const {
    return {reinterpret_cast<PartsThere*>(gathering(slot)), config.members.size()};
  }
  [[nodiscard]] kernels::ExactSum sum_of(const SlotState& slot) const {
    return {slot.dtype, slot.elements, gathering(slot) + PartsThere::bytes(config.members.size())};
  }
  // The packet in the slot's memory: what went upstream, or the result.
  [[nodiscard]] std::span<std::byte> packet_of(const SlotState& slot) const {
    const std::size_t before = wire::switchml::chunk_header_bytes + wire::switchml::padded_exponents(slot.exponents);
    return {memory_of(slot) + payload_at - before, slot.result_bytes};
  }

  [[nodiscard]] bool has_slot(std::uint32_t number) const { return number < config.slots * switchml::windows; }
  [[nodiscard]] std::size_t window_of(std::size_t number) const { return number < config.slots * 2 ? 0 : 1; }
  [[nodiscard]] Owed& owed_to(std::size_t member, std::size_t number) {
    return owed[member * switchml::windows + window_of(number)];
  }

  // A rank whose call with this number is of the other kind has its chunks in the other window. They are met when an
  // operation begins in this one: their rounds cannot end.
  [[nodiscard]] bool may_clash(std::size_t number, std::uint64_t operation) const {
    const std::size_t window = window_of(number);
    return of_window[window ^ 1].open != 0 && of_window[window].newest != operation;
  }
  [[nodiscard]] SlotState* another_call(std::size_t number, std::uint64_t operation) {
    if (!may_clash(number, operation)) return nullptr;
    const auto first = slots.begin() + static_cast<std::ptrdiff_t>(window_of(number) == 0 ? config.slots * 2 : 0);
    const auto last = first + static_cast<std::ptrdiff_t>(config.slots * 2);
    const auto found = std::find_if(
        first, last, [&](const SlotState& slot) { return slot.used && !slot.complete && slot.operation == operation; });
    return found == last ? nullptr : &*found;
  }

  // The slot's round has its result.
  void finish(SlotState& slot) {
    slot.complete = true;
    --of_window[window_of(number_of(slot))].open;
  }

  // The slot has the contribution of whoever has this bit.
  void count_in(SlotState& slot, std::size_t bit, std::size_t member, bool checked) {
    NETSUM_CHECK(!slot.complete && !slot.sent);
    seen.insert(number_of(slot), bit);
    slot.checked |= checked;
    ++counters.contributions;
    audience.heard(member, number_of(slot));
    ++slot.arrived;
  }
  // Whether the fast path may take contributions like this one, which the slow path has taken.
  [[nodiscard]] bool may_learn(const wire::switchml::Common& common, const wire::switchml::ChunkHeader& header) const {
    return !config.tree && !seals && common.type == wire::switchml::Type::contribution && header.dtype == DType::int32 &&
           header.op == ReduceOp::sum && header.elements != 0 && !header.masks && !header.acknowledge_only;
  }
  [[nodiscard]] const Member& member(std::size_t number) const { return config.members[number]; }
  // What a sender's bit in `seen` is, and how many there are.
  [[nodiscard]] std::size_t bit_of(const SlotState& slot, std::uint32_t rank) const {
    return slot.ordered() ? rank : origins[rank].member;
  }
  [[nodiscard]] std::size_t expected(const SlotState& slot) const {
    return slot.ordered() ? rank_count : config.members.size();
  }
  [[nodiscard]] bool has(const SlotState& slot, std::uint32_t rank) const {
    return seen.contains(number_of(slot), bit_of(slot, rank));
  }
  // The ranks that the slot waits for, as far as this switch and its children know.
  [[nodiscard]] wire::switchml::Ranks missing(const SlotState& slot) const;
};

}  // namespace netsum::switchml
