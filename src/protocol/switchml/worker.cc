#include "protocol/switchml/worker.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "protocol/switchml/chip_codec.h"
#include "protocol/switchml/chunk_codec.h"
#include "protocol/switchml/seal_packet.h"
#include "protocol/switchml/stripes.h"
#include "protocol/switchml/worker_seals.h"
#include "seal/uncopied.h"
#include "stream/overtaken.h"
#include "stream/retransmission_timer.h"
#include "stream/tensor.h"

namespace netsum::switchml {
namespace {

// An operation and this lane's share of it.
struct ActiveOperation {
  stream::Operation operation;
  std::uint32_t signature = 0;
  stream::OnWire wire;
  Stripes stripes;
  std::uint64_t base = 0;       // position of its first chunk in the lane's stream
  std::uint64_t remaining = 0;  // chunks without a result
  bool together = false;        // there has been a result: all ranks have begun it
  // This rank's largest exponents, by the lane's blocks, and the stripes with elements that are not finite. A stripe is
  // scanned when its first chunk is named, because results of one chunk overwrite part of a block shared with another.
  std::vector<std::uint8_t> exponents;
  std::vector<bool> nonfinite;
};

inline constexpr std::uint8_t not_scanned = 0xff;

// A chunk of the lane's stream.
struct Place {
  ActiveOperation* active = nullptr;
  std::uint64_t chunk = 0;  // of the operation, on this lane
};

enum class Round : std::uint8_t { idle, exponents, values };

// One slot carries the chunks at positions i, i + s, i + 2s, ... (Alg. 4, l. 13); both versions alternate with each round.
struct Slot {
  std::uint64_t position = 0;
  Round round = Round::idle;
  std::uint8_t version = 0;  // of the round in flight, or of the next one
  std::uint32_t number = 0;  // of that round among those of its version (chip profile)

  // The packet in flight; together with the tensor, all data for a byte-identical retransmission.
  wire::switchml::ChunkHeader header;
  std::array<std::uint8_t, wire::switchml::max_blocks> all{};  // exponents of the chunk's blocks, the largest over all ranks
  std::uint64_t ahead = 0;  // the chunk whose exponents the packet carries: of its operation, on this lane

  Time sent{}, repeated{}, deadline = never;  // first and last transmission, next one
  std::uint32_t transmissions = 0;
  bool together = false;  // it was sent when all ranks had begun the operation
  bool held = false;      // the switch has our contribution and waits for others
  Time told{};            // when the switch named those others (Impl::missing); before: it has not
};

}  // namespace

struct Worker::Impl {
  explicit Impl(const WorkerConfig& c)
      : config(c),
        codec(c.rank, c.world_size, c.packet_elements),
        chip_codec(c.packet_elements),
        slots(c.slots),
        missing(c.slots),
        timer(c.initial_timeout, c.min_timeout, c.max_timeout, c.in_tree ? stream::answers_in_tree : 1),
        operations(c.operations) {
    for (std::uint32_t i = 0; i < c.slots; ++i) slots[i].position = i;
    if (c.security != PacketSecurity::none) seals.reset(new WorkerSeals(c));
    completed.reserve(c.operations);
  }

  WorkerConfig config;
  seal::Uncopied<WorkerSeals> seals;  // null: nothing is sealed
  ChunkCodec codec;
  ChipCodec chip_codec;
  std::vector<Slot> slots;
  std::vector<wire::switchml::Ranks> missing;  // by slot, since Slot::told
  stream::RetransmissionTimer timer;
  bool values_answered = false;             // round trips of values have been measured
  Time next_timeout = never;                // lower bound of all deadlines; made exact by the scan in on_timer
  std::vector<ActiveOperation> operations;  // ring by operation number
  std::uint64_t front = 0, back = 0;        // pending numbers: [front, back)
  std::uint64_t end_position = 0;
  std::uint32_t held = 0;
  std::vector<std::uint64_t> completed;
  std::optional<WorkerFailure> failure;
  WorkerCounters counters;

  [[nodiscard]] ActiveOperation& at(std::uint64_t number) { return operations[number % operations.size()]; }
  [[nodiscard]] const ActiveOperation& at(std::uint64_t number) const { return operations[number % operations.size()]; }

  [[nodiscard]] Place find(std::uint64_t position, std::uint64_t from) {
    for (std::uint64_t number = std::max(from, front); number < back; ++number) {
      ActiveOperation& active = at(number);
      if (position < active.base + active.stripes.chunks()) return {&active, position - active.base};
    }
    return {};
  }

  [[nodiscard]] static std::uint32_t part(const Place& place) { return place.active->stripes.part(place.chunk); }
  // The operation, or the part of it that a chunk belongs to, as the codec sees it.
  [[nodiscard]] stream::Operation given(const Place& place) const { return seen(place, false); }
  [[nodiscard]] stream::Operation taken(const Place& place) const { return seen(place, true); }
  [[nodiscard]] stream::Operation seen(const Place& place, bool as_taken) const {
    const stream::Operation& operation = place.active->operation;
    return stream::whole(operation) ? operation : stream::part_of(operation, config.rank, part(place), as_taken);
  }

  [[nodiscard]] static std::uint32_t elements(const Place& place) { return place.active->stripes.elements(place.chunk); }
  [[nodiscard]] static std::uint64_t offset(const Place& place) { return place.active->stripes.offset(place.chunk); }

  // Scans a chunk's stripe for exponents, once.
  void scan(const Place& place) {
    const auto& stripes = place.active->stripes;
    const std::uint64_t stripe = stripes.stripe(place.chunk);
    std::uint8_t* const exponents = place.active->exponents.data() + stripes.first_block_of(stripe);
    if (*exponents != not_scanned) return;
    const std::uint32_t length = stripes.stripe_length(stripe);
    const std::size_t blocks = (length + wire::switchml::block_elements - 1) / wire::switchml::block_elements;
    place.active->nonfinite[stripe] = codec.scan(given(place), stripes.stripe_offset(stripe), length, {exponents, blocks});
  }

  // ---- sending

  // Opens the round that the slot's next chunk needs: exponents first, unless the look-ahead brought them.
  void start_chunk(Slot& slot, const Place& place, bool exponents_known, Time now, Sink& sink) {
    NETSUM_CHECK(place.chunk < place.active->stripes.chunks() && slot.position == place.active->base + place.chunk);
    slot.header = {.operation = place.active->operation.number,
                   .chunk = place.active->stripes.chunk(place.chunk),
                   .signature = place.active->signature,
                   .slot = static_cast<std::uint16_t>(&slot - slots.data())};
    if (needs_exponents(place) && !exponents_known) {
      ++counters.exponent_rounds;
      slot.round = Round::exponents;
      name_ahead(slot, place);
    } else {
      start_values(slot, place);
    }
    transmit_first(slot, place, now, sink);
  }

  // The last chunks of a part may be empty.
  [[nodiscard]] static bool needs_exponents(const Place& place) {
    return stream::uses_exponents(place.active->operation) && elements(place) != 0;
  }

  void start_values(Slot& slot, const Place& place) {
    const ActiveOperation& active = *place.active;
    const std::uint32_t of_part = part(place);
    slot.round = Round::values;
    slot.header.elements =
        stream::contributes(active.operation, config.rank, of_part) ? static_cast<std::uint16_t>(elements(place)) : 0;
    slot.header.masks = needs_exponents(place) && active.nonfinite[active.stripes.stripe(place.chunk)];
    slot.header.dtype = active.wire.dtype;
    slot.header.op = active.wire.op;
    slot.header.acknowledge_only = !stream::takes(active.operation, config.rank, of_part);
    // §4.6, look-ahead: this slot's next chunk, if its operation was already submitted.
    if (const Place next = after(slot, place); names_ahead(slot, next)) {
      name_ahead(slot, next);
    } else {
      slot.header.ahead_operation = wire::switchml::no_ahead;
      slot.header.ahead_chunk = 0;
      slot.header.exponents = 0;
    }
  }

  [[nodiscard]] static bool names_ahead(const Slot& slot, const Place& next) {
    return next.active != nullptr && needs_exponents(next) &&
           next.active->operation.number - slot.header.operation < wire::switchml::no_ahead;
  }

  void name_ahead(Slot& slot, const Place& ahead) {
    scan(ahead);
    slot.ahead = ahead.chunk;
    slot.header.ahead_operation = static_cast<std::uint8_t>(ahead.active->operation.number - slot.header.operation);
    slot.header.ahead_chunk = ahead.active->stripes.chunk(ahead.chunk);
    slot.header.exponents = static_cast<std::uint8_t>(ahead.active->stripes.blocks_of(ahead.chunk));
  }

  [[nodiscard]] Place after(const Slot& slot, const Place& place) {
    return find(slot.position + config.slots, place.active->operation.number);
  }

  void transmit_first(Slot& slot, const Place& place, Time now, Sink& sink) {
    slot.header.version = slot.version;
    if (config.chip && slot.number > config.last_round) return use_up(slot);
    slot.sent = now;
    slot.together = place.active->together;
    slot.transmissions = 0;
    slot.told = {};
    set_held(slot, false);
    ++counters.contributions;
    if (slot.round == Round::values && !(config.chip && slot.all[0] == wire::chip::not_finite)) {
      codec.examine(given(place), offset(place), slot.header.elements, slot.all.data());
    }
    transmit(slot, place, now, sink);
  }

  void transmit(Slot& slot, const Place& place, Time now, Sink& sink) {
    if (config.chip) {
      write_chip_packet(slot, place, sink);
    } else {
      write_packet(slot, place, sink);
    }
    ++slot.transmissions;
    slot.repeated = now;
    arm(slot, now + patience(slot));
  }

  void write_packet(const Slot& slot, const Place& place, Sink& sink) {
    const auto type =
        slot.round == Round::exponents ? wire::switchml::Type::exponent_contribution : wire::switchml::Type::contribution;
    seal::Sealer* const sealer = seals ? seals->up() : nullptr;
    const std::size_t bytes = wire::switchml::chunk_packet_bytes(slot.header);
    const std::span<std::byte> whole = sink.datagram(config.aggregator, bytes + (sealer != nullptr ? sealer->trailer() : 0));
    const std::span<std::byte> packet = whole.first(bytes);
    if (slot.header.exponents > 0) {
      const ActiveOperation& ahead = at(slot.header.operation + slot.header.ahead_operation);
      std::memcpy(packet.data() + wire::switchml::chunk_header_bytes,
                  ahead.exponents.data() + ahead.stripes.first_block(slot.ahead), slot.header.exponents);
    }
    wire::switchml::write_chunk_header(
        packet, {type, static_cast<std::uint16_t>(config.rank), config.job_epoch, config.rank_epoch, config.checksums},
        slot.header);
    const std::size_t payload = wire::switchml::chunk_header_bytes + wire::switchml::padded_exponents(slot.header.exponents);
    codec.encode(given(place), offset(place), slot.header.elements, slot.all.data(), packet.data() + payload,
                 packet.subspan(payload + slot.header.elements * bytes_of(slot.header.dtype)));
    seal_packet(whole, sealer);
  }

  void write_chip_packet(const Slot& slot, const Place& place, Sink& sink) {
    const std::span<std::byte> packet = sink.datagram(config.aggregator, wire::chip::packet_bytes(config.packet_elements));
    wire::chip::write_header(packet, {.type = wire::chip::Type::contribution,
                                      .member = static_cast<std::uint8_t>(config.member),
                                      .version = slot.version,
                                      .slot = slot.header.slot,
                                      .rank = static_cast<std::uint16_t>(config.rank),
                                      .job_epoch = config.job_epoch,
                                      .round = slot.number,
                                      .exponents = {ahead_exponent(slot), 0},
                                      .echoed = echoed(slot)});
    const std::uint32_t in_use = slot.round == Round::values ? slot.header.elements : 0;
    chip_codec.encode(codec, place.active->operation, offset(place), in_use, slot.all[0],
                      packet.subspan(wire::chip::header_bytes));
  }

  // This rank's, of the block that the packet in flight names.
  [[nodiscard]] std::uint16_t ahead_exponent(const Slot& slot) const {
    if (slot.header.exponents == 0) return wire::chip::unknown;
    const ActiveOperation& ahead = at(slot.header.operation + slot.header.ahead_operation);
    const bool finite = !ahead.nonfinite[ahead.stripes.stripe(slot.ahead)];  // a stripe is a block
    return finite ? ahead.exponents[ahead.stripes.first_block(slot.ahead)] : wire::chip::not_finite;
  }

  [[nodiscard]] static wire::chip::Echoed echoed(const Slot& slot) {
    const wire::switchml::ChunkHeader& h = slot.header;
    const auto kind = slot.round == Round::exponents ? wire::chip::Kind::exponents : wire::chip::Kind::values;
    return {h.operation, h.chunk, h.signature, h.ahead_chunk, h.ahead_operation, static_cast<std::uint16_t>(kind)};
  }

  // The registers' numbers have come to their end.
  void use_up(Slot& slot) {
    slot.deadline = never;
    if (!failure) failure = WorkerFailure{WorkerFailure::Kind::rounds_used_up, slot.header.operation, 0, 0};
  }

  [[nodiscard]] Duration patience(const Slot& slot) const {
    // A rank is usually told of a loss, and repeats: two round trips, or three if a result was lost. Before that, repeats by
    // the other ranks would be useless, one per rank and loss. (A chip tells nobody.)
    const bool told = !config.chip && config.slots > stream::Overtaken::reordering;
    const Duration repair = told ? 3 * timer.smoothed_round_trip() : Duration::zero();
    const Duration timeout = std::min(config.max_timeout, timer.timeout(slot.transmissions) + repair);
    if (slot.transmissions == 1) return timeout;
    return stream::spread(timeout, config.chip ? moment(slot) : static_cast<std::size_t>(&slot - slots.data()));
  }

  // At a chip all ranks repeat whatever waits, as nobody is told that only others are missing. Each does so at another
  // moment, and at another one each time: a short queue would drop the same ranks' packets for ever.
  [[nodiscard]] std::size_t moment(const Slot& slot) const {
    const std::uint64_t which = std::uint64_t{config.rank} << 48 | std::uint64_t{config.lane} << 40 |
                                std::uint64_t{slot.header.slot} << 20 | slot.transmissions;
    return static_cast<std::size_t>(which * 0x9e3779b97f4a7c15ULL >> 59);
  }

  void arm(Slot& slot, Time deadline) {
    slot.deadline = deadline;
    next_timeout = std::min(next_timeout, deadline);
  }

  void set_held(Slot& slot, bool value) {
    if (slot.held != value) held = value ? held + 1 : held - 1;
    slot.held = value;
  }

  // ---- receiving

  // The packet as it may be believed, without its seal; false: it may not.
  [[nodiscard]] bool believe(RxView& packet, const wire::switchml::Common& common) {
    if (!seals) return common.security == PacketSecurity::none;
    packet.bytes = seals->open(packet.bytes, common);
    return !packet.bytes.empty();
  }

  void on_packet(RxView packet, Time now, Sink& sink) {
    if (config.chip) return on_chip_packet(packet, now, sink);
    wire::switchml::Common common;
    if (const auto error = wire::switchml::parse_common(packet.bytes, common); error != wire::ParseError::none) {
      ++counters.malformed[static_cast<std::size_t>(error)];
      return;
    }
    if (!common.checked && config.checksums) {
      return void(++counters.malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
    }
    if (packet.source != config.aggregator || common.job_epoch != config.job_epoch) return void(++counters.foreign);
    if (!believe(packet, common)) return void(++counters.unbelieved);
    if (common.type == wire::switchml::Type::unknown_job) {
      if (packet.bytes.size() != wire::switchml::common_bytes) {
        return void(++counters.malformed[static_cast<std::size_t>(wire::ParseError::length)]);
      }
      if (common.rank_epoch != config.rank_epoch) return void(++counters.foreign);
      ++counters.unknown_job;
      if (!failure) failure = WorkerFailure{WorkerFailure::Kind::unknown_job, front, 0, 0};
      return;
    }
    if (common.rank_epoch != config.folded_epochs) return void(++counters.foreign);

    auto error = wire::ParseError::type;
    switch (common.type) {
      case wire::switchml::Type::result:
      case wire::switchml::Type::exponent_result:
      case wire::switchml::Type::acknowledgement: {
        wire::switchml::ChunkPacket chunk;
        error = wire::switchml::parse_chunk(packet.bytes, common, chunk);
        if (error == wire::ParseError::none) error = on_result(chunk, now, sink);
        break;
      }
      case wire::switchml::Type::waiting: {
        wire::switchml::WaitingPacket waiting{};
        error = wire::switchml::parse_waiting(packet.bytes, common, waiting);
        if (error == wire::ParseError::none) error = on_waiting(waiting, now, sink);
        break;
      }
      case wire::switchml::Type::mismatch: {
        wire::switchml::MismatchPacket mismatch{};
        error = wire::switchml::parse_mismatch(packet.bytes, common, mismatch);
        if (error != wire::ParseError::none) break;
        ++counters.mismatch;
        if (!failure) {
          failure =
              WorkerFailure{WorkerFailure::Kind::mismatch, mismatch.operation, mismatch.first_rank, mismatch.second_rank};
        }
        break;
      }
      default:
        break;
    }
    if (error != wire::ParseError::none) ++counters.malformed[static_cast<std::size_t>(error)];
  }

  // Alg. 4, l. 10-18.
  wire::ParseError on_result(const wire::switchml::ChunkPacket& chunk, Time now, Sink& sink) {
    const wire::switchml::ChunkHeader& header = chunk.header;
    if (header.slot >= config.slots) return wire::ParseError::field;
    Slot& slot = slots[header.slot];
    const Round round = chunk.common.type == wire::switchml::Type::exponent_result ? Round::exponents : Round::values;
    const bool acknowledged = chunk.common.type == wire::switchml::Type::acknowledgement;
    if (slot.round != round || header.operation != slot.header.operation || header.chunk != slot.header.chunk ||
        header.version != slot.header.version) {
      ++counters.stale;
      return wire::ParseError::none;
    }
    ActiveOperation& active = at(slot.header.operation);
    const Place place{&active, slot.position - active.base};
    const bool ahead_known = header.ahead_operation != wire::switchml::no_ahead;
    const bool ahead_ours = header.ahead_operation == slot.header.ahead_operation &&
                            header.ahead_chunk == slot.header.ahead_chunk && header.exponents == slot.header.exponents;
    if (header.signature != slot.header.signature || (ahead_known && !ahead_ours) || header.dtype != slot.header.dtype ||
        header.op != slot.header.op || (acknowledged && !slot.header.acknowledge_only) ||
        (round == Round::values && !acknowledged && header.elements != elements(place)) ||
        (round == Round::exponents && !ahead_known)) {
      return wire::ParseError::field;
    }
    take_result(slot, place, chunk.exponents, now, sink, [&] {
      // IP multicast also brings values to a rank that does not want them.
      if (slot.header.acknowledge_only) {
        return stream::keep_own(active.operation, part(place), offset(place) * 4, std::uint64_t{elements(place)} * 4);
      }
      codec.decode(taken(place), offset(place), header.elements, slot.all.data(), chunk.payload.data(), chunk.masks);
    });
    return wire::ParseError::none;
  }

  // What a chip does not compare, ranks do: a result echoes the call of the rank that was last.
  void on_chip_packet(const RxView& packet, Time now, Sink& sink) {
    const auto malformed = [&](wire::ParseError error) { ++counters.malformed[static_cast<std::size_t>(error)]; };
    wire::chip::Packet parsed;
    if (const auto error = wire::chip::parse(packet.bytes, parsed); error != wire::ParseError::none) return malformed(error);
    const wire::chip::Header& header = parsed.header;
    if (packet.source != config.aggregator || header.job_epoch != config.job_epoch) return void(++counters.foreign);
    if (header.type != wire::chip::Type::result) return malformed(wire::ParseError::type);
    if (parsed.payload.size() != std::size_t{config.packet_elements} * 4) return malformed(wire::ParseError::length);
    if (header.slot >= config.slots || header.rank >= config.world_size) return malformed(wire::ParseError::field);
    Slot& slot = slots[header.slot];
    if (slot.round == Round::idle || header.version != slot.version || header.round != slot.number || failure) {
      return void(++counters.stale);
    }
    // What is ahead is echoed as the last rank knew it, and counts only if all knew it.
    const wire::chip::Echoed own = echoed(slot);
    wire::chip::Echoed theirs = header.echoed;
    const bool ahead_known = header.exponents[0] != wire::chip::unknown;
    if (!ahead_known) {
      theirs.ahead_operation = own.ahead_operation;
      theirs.ahead_chunk = own.ahead_chunk;
    }
    if (theirs != own) {
      ++counters.mismatch;
      failure = WorkerFailure{WorkerFailure::Kind::mismatch, slot.header.operation, config.rank, header.rank};
      return;
    }
    if (slot.round == Round::exponents && !ahead_known) return malformed(wire::ParseError::field);

    ActiveOperation& active = at(slot.header.operation);
    const Place place{&active, slot.position - active.base};
    const std::byte largest{static_cast<std::uint8_t>(header.exponents[0])};
    take_result(slot, place, std::span(&largest, ahead_known ? 1 : 0), now, sink, [&] {
      chip_codec.decode(codec, active.operation, offset(place), elements(place), slot.all[0], parsed.payload);
    });
  }

  // The round in flight has its result: `exponents` are of what it named, if all ranks did; decode() writes the values.
  template <class Decode>
  void take_result(Slot& slot, const Place& place, std::span<const std::byte> exponents, Time now, Sink& sink,
                   const Decode& decode) {
    ActiveOperation& active = *place.active;
    NETSUM_CHECK(slot.header.operation >= front && slot.header.operation < back && active.remaining > 0);
    ++counters.results;
    // Packets of exponents alone are short: where bandwidth counts, their round trips are too short for packets of values.
    values_answered = values_answered || slot.round == Round::values;
    if (slot.round == Round::values || !values_answered) {
      timer.answered(now - slot.sent, now - slot.repeated, slot.together);
    }
    active.together = true;
    slot.version ^= 1;
    if (slot.version == 0) ++slot.number;

    if (slot.round == Round::exponents) {
      take_exponents(slot, exponents);
      start_values(slot, place);
      transmit_first(slot, place, now, sink);
      return;
    }
    decode();

    // From here on the look-ahead's exponents belong to the next chunk.
    const Place next = after(slot, place);
    const bool ahead_known = !exponents.empty();
    if (ahead_known) take_exponents(slot, exponents);
    slot.position += config.slots;
    if (--active.remaining == 0) finish(active.operation.number);
    if (next.active == nullptr) {
      slot.round = Round::idle;
      slot.deadline = never;
      set_held(slot, false);
    } else {
      start_chunk(slot, next, ahead_known, now, sink);
    }
  }

  static void take_exponents(Slot& slot, std::span<const std::byte> exponents) {
    std::memcpy(slot.all.data(), exponents.data(), exponents.size());
  }

  wire::ParseError on_waiting(const wire::switchml::WaitingPacket& waiting, Time now, Sink& sink) {
    if (waiting.slot >= config.slots) return wire::ParseError::field;
    Slot& slot = slots[waiting.slot];
    const Round round = waiting.exponent_round ? Round::exponents : Round::values;
    if (waiting.missing.contains(config.rank)) {
      on_loss(slot, std::tuple(waiting.operation, waiting.chunk, round), now, sink);
      return wire::ParseError::none;
    }
    if (slot.round != round || waiting.operation != slot.header.operation || waiting.chunk != slot.header.chunk) {
      ++counters.stale;
      return wire::ParseError::none;
    }
    ++counters.waiting;
    missing[waiting.slot] = waiting.missing;
    slot.told = now;
    set_held(slot, true);
    // A straggler must not cause repeats on every slot: only the oldest keeps asking, with backoff, in case its result is
    // lost; the first result that any slot receives wakes the others (on_packets).
    arm(slot, now + (is_oldest(slot) ? timer.timeout(slot.transmissions + 1) : config.held_timeout));
    return wire::ParseError::none;
  }

  // The switch has received later packets of this rank than this slot's: this rank's packet was lost, or, if the switch is
  // one round ahead, its answer. If that may still be in flight, reordered, another quarter of a round trip is allowed
  // (RACK).
  void on_loss(Slot& slot, const std::tuple<std::uint64_t, std::uint32_t, Round>& waiting_for, Time now, Sink& sink) {
    const bool ours =
        slot.round != Round::idle && waiting_for >= std::tuple(slot.header.operation, slot.header.chunk, slot.round);
    if (!ours || failure) return void(++counters.stale);
    ++counters.losses;
    const Time due = slot.repeated + timer.smoothed_round_trip() * 5 / 4;
    if (now >= due) {
      repeat(slot, now, sink);
    } else {
      arm(slot, std::min(slot.deadline, due));
    }
  }

  void repeat(Slot& slot, Time now, Sink& sink) {
    ActiveOperation& active = at(slot.header.operation);
    ++counters.retransmissions;
    transmit(slot, {&active, slot.position - active.base}, now, sink);
  }

  [[nodiscard]] bool is_oldest(const Slot& slot) const {
    return std::none_of(slots.begin(), slots.end(),
                        [&](const Slot& other) { return other.round != Round::idle && other.position < slot.position; });
  }

  void finish(std::uint64_t number) {
    NETSUM_CHECK(number >= front && number < back);
    completed.push_back(number);
    while (front < back && at(front).remaining == 0) ++front;
  }
};

Worker::Worker(const WorkerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Worker::~Worker() = default;
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;
Worker::Worker(const Worker& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}

Worker& Worker::operator=(const Worker& other) {
  return *this = Worker(other);
}

void Worker::move_tensor(std::uint64_t operation, void* data) {
  NETSUM_CHECK(operation >= impl_->front && operation < impl_->back);
  impl_->at(operation).operation.data = data;
}

void Worker::append_state(std::vector<std::byte>& out) const {
  const Impl& w = *impl_;
  append_bytes(out, w.front, w.back, w.end_position, w.failure.has_value());
  for (std::uint64_t number = w.front; number < w.back; ++number) {
    const ActiveOperation& active = w.at(number);
    append_bytes(out, active.remaining);
    for (const std::uint8_t exponent : active.exponents) append_bytes(out, exponent);
    for (const bool nonfinite : active.nonfinite) append_bytes(out, nonfinite);
  }
  for (const Slot& slot : w.slots) {
    append_bytes(out, slot.position, slot.round, slot.version);
    if (w.config.chip) append_bytes(out, slot.number);
    if (slot.round == Round::idle) continue;
    const wire::switchml::ChunkHeader& h = slot.header;
    append_bytes(out, h.operation, h.chunk, h.signature, h.masks, h.exponents, h.elements, h.ahead_operation, h.ahead_chunk,
                 h.dtype, h.op, h.acknowledge_only, slot.all);
  }
}

bool Worker::submit(const stream::Operation& operation, Time now, Sink& sink) {
  Impl& w = *impl_;
  if (w.front == w.back) w.front = w.back = operation.number;
  if (w.back - w.front == w.operations.size() || w.completed.size() >= w.operations.size()) return false;
  ActiveOperation& active = w.at(operation.number);
  active.operation = w.config.chip ? for_chip(operation) : operation;
  active.signature = stream::signature_of(active.operation, w.config.packet_elements);
  active.wire = stream::on_wire(active.operation);
  const auto width = static_cast<std::uint32_t>(bytes_of(active.wire.dtype));
  const bool scanned = stream::uses_exponents(active.operation);
  active.stripes = Stripes(stream::wire_elements(operation), operation.number, w.config.packet_elements * 4 / width,
                           w.config.lane, w.config.lanes, scanned, active.operation.parts);
  active.base = w.end_position;
  active.remaining = active.stripes.chunks();
  active.together = false;
  active.exponents.assign(scanned ? active.stripes.blocks() : 0, not_scanned);
  active.nonfinite.assign(scanned ? active.stripes.count() : 0, false);
  w.back = operation.number + 1;
  w.end_position += active.remaining;
  if (active.remaining == 0) {
    w.finish(operation.number);
    return true;
  }
  // Alg. 4, l. 1-8: idle slots resume the stream.
  const std::uint64_t last = std::min<std::uint64_t>(w.end_position, active.base + w.config.slots);
  for (std::uint64_t position = active.base; position < last; ++position) {
    Slot& slot = w.slots[position % w.config.slots];
    if (slot.round != Round::idle) continue;
    NETSUM_CHECK(slot.position == position);  // the next chunk of an idle slot
    w.start_chunk(slot, {&active, position - active.base}, false, now, sink);
  }
  return true;
}

void Worker::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  Impl& w = *impl_;
  const std::uint64_t results_before = w.counters.results;
  for (const RxView& packet : packets) w.on_packet(packet, now, sink);

  // A result shows that the stragglers are back: from now on silence indicates loss.
  if (w.held != 0 && w.counters.results > results_before) {
    for (Slot& slot : w.slots) {
      if (slot.held) {
        w.set_held(slot, false);
        w.arm(slot, now + w.timer.timeout(slot.transmissions));
      }
    }
  }
}

// Alg. 4, l. 20-22.
void Worker::on_timer(Time now, Sink& sink) {
  Impl& w = *impl_;
  if (now < w.next_timeout) return;
  w.next_timeout = never;
  for (Slot& slot : w.slots) {
    if (slot.round == Round::idle) continue;
    if (slot.deadline > now || w.failure) {
      w.next_timeout = w.failure ? never : std::min(w.next_timeout, slot.deadline);
      continue;
    }
    if (!slot.held) w.timer.expired(slot.repeated, now);  // else it waits for ranks, not for packets
    w.repeat(slot, now, sink);
    if (slot.held && !w.is_oldest(slot)) w.arm(slot, now + w.config.held_timeout);
  }
}

Time Worker::next_timeout() const {
  return impl_->next_timeout;
}

std::vector<std::uint64_t> Worker::take_completed() {
  if (impl_->completed.empty()) return {};
  std::vector<std::uint64_t> completed;
  completed.reserve(impl_->operations.size());
  completed.swap(impl_->completed);
  return completed;
}

bool Worker::idle() const {
  return impl_->front == impl_->back;
}

const std::optional<WorkerFailure>& Worker::failure() const {
  return impl_->failure;
}

std::optional<WorkerStall> Worker::oldest_stall() const {
  const Slot* oldest = nullptr;
  for (const Slot& slot : impl_->slots) {
    if (slot.round == Round::idle) continue;
    if (oldest == nullptr ||
        std::pair(slot.header.operation, slot.header.chunk) < std::pair(oldest->header.operation, oldest->header.chunk)) {
      oldest = &slot;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  WorkerStall stall{oldest->header.operation, oldest->header.chunk, {}, oldest->told};
  if (oldest->told != Time{}) stall.missing = impl_->missing[static_cast<std::size_t>(oldest - impl_->slots.data())];
  return stall;
}

const WorkerCounters& Worker::counters() const {
  return impl_->counters;
}

const stream::Underflow& Worker::underflow() const {
  return impl_->codec.underflow();
}

}  // namespace netsum::switchml
