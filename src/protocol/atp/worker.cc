#include "protocol/atp/worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "protocol/atp/congestion.h"
#include "protocol/atp/scaled_codec.h"
#include "protocol/atp/shares.h"
#include "stream/overtaken.h"
#include "stream/retransmission_timer.h"
#include "stream/silence.h"
#include "stream/tail_probe.h"
#include "stream/tensor.h"

namespace netsum::atp {

using wire::ParseError;
using wire::atp::Common;
using wire::atp::Ranks;
using wire::atp::Type;

namespace {

constexpr std::uint32_t silences =
    4;  // time-outs of one chunk in a row, without any answer, before the switches are bypassed

// An operation and this lane's share of it.
struct ActiveOperation {
  stream::Operation operation;
  std::vector<Piece> pieces;
  std::uint64_t first = 0, end = 0;  // its sequence numbers on this lane
  std::uint64_t remaining = 0;       // chunks without a result
  std::uint64_t dealt = 0;           // pieces that all lanes got of earlier operations
  std::uint32_t signature = 0;
};

// The piece that is being sent. Chunks are sent in order, so it only moves on.
struct Cursor {
  std::uint64_t operation = 0;  // number
  std::size_t piece = 0;
  std::uint64_t first = 0;  // the piece's first sequence number
};

// A chunk in flight.
struct Chunk {
  std::uint64_t sequence = 0;
  std::uint64_t operation = 0;  // number
  std::uint64_t offset = 0;     // in its wire elements
  std::uint16_t elements = 0;
  std::uint8_t exponent = 0;   // decides its scale
  std::uint8_t own = 0;        // this rank's exponent of its block, where the scale is dynamic
  std::uint8_t ahead = 0;      // this rank's exponent of the block of the chunk one window later
  bool in_flight = false;      // sent, and no result yet
  bool held = false;           // waits for other ranks
  bool told = false;           // for which: Impl::missing
  bool overtaken = false;      // by results of later transmissions: lost, unless the result comes within a round trip
  bool direct = false;         // directly to the server, bypassing all slots
  bool floats = false;         // the original values were asked for (§3.8); implies direct
  bool together = false;       // sent when the operation had a result: all ranks had begun it
  bool past_switches = false;  // its last transmission, because they were bypassed
  std::uint32_t index = 0;
  std::uint64_t first = 0, order = 0;  // of its first and last transmission, among all of the lane's
  std::uint32_t transmissions = 0;
  std::uint32_t probes = 0;      // of them
  std::uint32_t timeouts = 0;    // after which it was sent again: each doubles the next
  std::uint32_t unanswered = 0;  // of them, and of asks for a direct packet: the last ones without another answer
  Time sent{}, repeated{}, deadline = never;  // first and last transmission, next one
  Time told_at{};                             // the last time
};

// Whether no value is beyond what a chip can add up without looking (largest_of()).
bool all_within(const std::byte* values, std::uint32_t elements, std::uint32_t ranks) {
  const auto most = static_cast<std::int32_t>(largest_of(ranks));
  for (std::uint32_t i = 0; i < elements; ++i) {
    const auto value = static_cast<std::int32_t>(load_le<std::uint32_t>(values + std::size_t{i} * 4));
    if (value > most || value < -most) return false;
  }
  return true;
}

// Whether results hold the sums of several switches.
bool in_tree(const wire::atp::Directions& path) {
  return std::any_of(path.fan_in().begin() + path.level + 1, path.fan_in().end(),
                     [](std::uint16_t children) { return children > 1; });
}

// Sequence numbers between the oldest without a result and the newest sent. With a slot partition, they never exceed the
// partition, as in SwitchML: no chunk collides.
std::uint32_t most_ahead(const WorkerConfig& config) {
  if (config.indexing != Indexing::partition) return config.window;
  return std::clamp(config.partition_count, 1U, config.window);
}

std::unique_ptr<CongestionControl> control_of(const WorkerConfig& config) {
  const ControlledLane lane{most_ahead(config),
                            wire::atp::header_bytes(config.path) + std::size_t{config.packet_elements} * 4};
  if (config.control != nullptr && config.congestion_control) return config.control(lane);
  return std::make_unique<CongestionWindow>(config.congestion_control, lane.most, lane.packet_bytes, config.rules);
}

}  // namespace

struct Worker::Impl {
  explicit Impl(const WorkerConfig& c)
      : config(c),
        codec(c.rank, c.world_size, std::max(c.packet_elements, scale_block)),
        shares(c.lane, c.lanes),
        indices({c.indexing, c.job_epoch, c.lane, c.switch_slots, c.window, c.partition_first, c.partition_count}),
        window(control_of(c)),
        timer(c.initial_timeout, c.min_timeout, c.max_timeout, in_tree(c.path) ? stream::answers_in_tree : 1),
        chunks(c.window),
        asked(c.window, none_asked),
        overtaken(c.window, 1),
        exponents(c.window),
        blocks(Shares::piece_elements / scale_block),
        operations(c.operations),
        bypass(c.bypass) {
    completed.reserve(c.operations);
  }

  static constexpr std::uint64_t none_asked = UINT64_MAX;

  WorkerConfig config;
  ScaledCodec codec;
  Shares shares;
  Indices indices;
  OwnedControl window;
  stream::RetransmissionTimer timer;
  std::vector<Chunk> chunks;                  // ring by sequence number
  std::vector<Ranks> missing;                 // as last told of each; none before the first one is told
  std::vector<std::uint64_t> asked;           // ring: sequence numbers asked for before they were sent
  stream::Overtaken overtaken;                // transmissions, by results
  std::vector<std::uint8_t> exponents;        // ring: exponents in results, of the chunks one window later
  std::vector<std::uint8_t> blocks;           // this rank's exponents, of the blocks of the cursor's piece; 0: not known yet
  std::uint64_t base = 0, next = 0, end = 0;  // [base, next): in flight or out of order; [next, end): to be sent
  std::uint32_t in_flight = 0;                // chunks
  bool window_limited = false;                // chunks wait for the window
  std::vector<ActiveOperation> operations;    // ring by operation number
  std::uint64_t front = 0, back = 0;          // pending numbers: [front, back)
  std::uint64_t dealt = 0;                    // pieces that all lanes got
  Cursor cursor;
  stream::Silence silence;
  stream::TailProbe tail{4, false};
  Time answered{};            // arrival of the last result
  Time next_timeout = never;  // lower bound of all deadlines; made exact by the scan in on_timer
  std::uint32_t held = 0;
  bool bypassing = false;  // all packets go directly to the server
  Duration bypass;         // the least length of the next bypass
  Time bypass_until{};     // of this one
  std::vector<std::uint64_t> completed;
  std::optional<WorkerFailure> failure;
  WorkerCounters counters;

  [[nodiscard]] ActiveOperation& at(std::uint64_t number) { return operations[number % operations.size()]; }
  [[nodiscard]] Chunk& chunk_at(std::uint64_t sequence) { return chunks[sequence % chunks.size()]; }

  // Lanes that have something to send, as far as this one knows: pieces of what is pending here.
  [[nodiscard]] std::uint32_t busy_lanes() {
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(dealt - at(front).dealt, 1, config.lanes));
  }

  // ---- sending

  // Sends what the window allows (§3.6). It counts the packets in flight; a chunk without a result delays no other until the
  // rings of sequence numbers are full.
  void send_more(Time now, Sink& sink) {
    if (failure) return;
    const std::uint64_t limit = std::min(end, base + most_ahead(config));
    while (next < limit && in_flight < window->packets()) {
      Chunk& chunk = chunk_at(next);
      NETSUM_CHECK(!chunk.in_flight);
      place(chunk, next);
      chunk.direct = asked[next % asked.size()] == next;
      ++next;
      ++in_flight;
      ++counters.gradients;
      transmit(chunk, false, now, sink);
    }
    window_limited = next < end && in_flight >= window->packets();
  }

  void place(Chunk& chunk, std::uint64_t sequence) {
    if (cursor.operation < front) cursor = {front, 0, at(front).first};
    while (sequence >= at(cursor.operation).end) {
      ++cursor.operation;
      cursor = {cursor.operation, 0, at(cursor.operation).first};
    }
    const ActiveOperation& active = at(cursor.operation);
    const bool scaled = is_scaled(active.operation);
    while (sequence - cursor.first >= chunks_of(active.pieces[cursor.piece], scaled)) {
      cursor.first += chunks_of(active.pieces[cursor.piece++], scaled);
    }
    const Piece& piece = active.pieces[cursor.piece];
    const std::uint64_t in_piece = sequence - cursor.first;
    if (in_piece == 0) std::fill(blocks.begin(), blocks.end(), std::uint8_t{0});
    const Piece range = range_of(piece, in_piece, scaled);
    chunk = {.sequence = sequence,
             .operation = cursor.operation,
             .offset = range.offset,
             .elements = static_cast<std::uint16_t>(range.elements),
             .exponent = exponents[sequence % exponents.size()],
             .in_flight = true,
             .index = indices.of(sequence)};
    if (chunk.exponent != 0 && scale_for(chunk.exponent, config.world_size) != largest_scale) {
      ++counters.rescaled;
    }
    if (!scaled) return;
    chunk.own = block_exponent(active.operation, piece, range.offset);
    // Exponents are not announced across pieces: the next piece depends on the lanes and on earlier assignments.
    const std::uint64_t later = in_piece + config.window;
    if (later < chunks_of(piece, scaled)) {
      chunk.ahead = block_exponent(active.operation, piece, range_of(piece, later, scaled).offset);
    }
  }

  // Whether its blocks have a scale each.
  [[nodiscard]] bool is_scaled(const stream::Operation& operation) const {
    return config.scaling == Scaling::dynamic && uses_scale(operation);
  }

  // Read before a chunk of the block is sent: results may be written where the values are.
  [[nodiscard]] std::uint8_t block_exponent(const stream::Operation& operation, const Piece& piece, std::uint64_t offset) {
    static_assert(Shares::piece_elements % scale_block == 0);
    const std::uint64_t block = (offset - piece.offset) / scale_block, begin = block * scale_block;
    std::uint8_t& exponent = blocks[block];
    if (exponent == 0) {
      const std::uint64_t elements = std::min<std::uint64_t>(scale_block, piece.elements - begin);
      exponent = codec.exponent_of(operation, piece.offset + begin, static_cast<std::uint32_t>(elements));
    }
    return exponent;
  }

  // Chunks begin anew with each part.
  [[nodiscard]] static std::uint64_t part_of(const Piece& piece, bool scaled) {
    return scaled ? scale_block : std::max<std::uint64_t>(1, piece.elements);
  }

  // Where a piece's chunk lies in the tensor.
  [[nodiscard]] Piece range_of(const Piece& piece, std::uint64_t chunk, bool scaled) const {
    const std::uint64_t part = part_of(piece, scaled), each = chunks_in(part);
    const std::uint64_t in_part = chunk % each * config.packet_elements, begin = chunk / each * part + in_part;
    return {piece.offset + begin, std::min({std::uint64_t{config.packet_elements}, part - in_part, piece.elements - begin})};
  }

  [[nodiscard]] std::uint64_t chunks_of(const Piece& piece, bool scaled) const {
    const std::uint64_t part = part_of(piece, scaled);
    return std::max<std::uint64_t>(1, piece.elements / part * chunks_in(part) + chunks_in(piece.elements % part));
  }
  [[nodiscard]] std::uint64_t chunks_in(std::uint64_t elements) const {
    return (elements + config.packet_elements - 1) / config.packet_elements;
  }

  void transmit(Chunk& chunk, bool resend, Time now, Sink& sink) {
    const ActiveOperation& active = at(chunk.operation);
    Common common;
    common.type = Type::gradient;
    common.resend = resend;
    common.direct = chunk.direct || bypassing;
    common.floats = chunk.floats;
    common.average = chunk.floats && active.operation.op == ReduceOp::avg;
    common.integers = !uses_scale(active.operation);
    common.unchecked = !config.checksums;
    common.job_epoch = config.job_epoch;
    common.sequence = chunk.sequence;
    common.rank_epoch = config.rank_epoch;
    common.signature = active.signature;
    common.index = chunk.index;
    const std::uint16_t given = stream::contributes(active.operation, config.rank) ? chunk.elements : std::uint16_t{0};
    common.elements = sent_of(given);
    common.exponent = chunk.floats ? chunk.own : chunk.ahead;
    const std::span<std::byte> packet =
        sink.datagram(bypassing ? config.server : config.first_hop, wire::atp::gradient_bytes(common, config.path));
    std::byte* const payload = packet.data() + wire::atp::header_bytes(config.path);
    if (chunk.floats) {
      codec.encode_floats(active.operation, chunk.offset, given, payload);
      ++counters.floats_sent;
    } else {
      // Where the ranks have not announced their exponents, all send at the largest scale, and one that knows better says
      // so.
      if (chunk.transmissions == 0) codec.examine(active.operation, chunk.offset, given, chunk.exponent);
      const bool fits = chunk.exponent != 0 || scale_for(chunk.own, config.world_size) == largest_scale;
      common.overflow = !codec.encode(active.operation, chunk.offset, given, chunk.exponent, payload) || !fits ||
                        (for_chip() && uses_scale(active.operation) && !all_within(payload, given, config.world_size));
    }
    std::memset(payload + std::size_t{given} * 4, 0, std::size_t{common.elements} * 4 - std::size_t{given} * 4);
    wire::atp::write_gradient_header(packet, common, config.path);
    wire::atp::seal(packet);
    chunk.order = overtaken.open(static_cast<std::uint32_t>(&chunk - chunks.data()));
    if (chunk.transmissions == 0) {
      chunk.first = chunk.order;
      chunk.sent = now;
      chunk.together = active.remaining < active.end - active.first;
    }
    chunk.repeated = now;
    tail.on_sent(now);
    chunk.overtaken = false;
    chunk.past_switches = bypassing;
    ++chunk.transmissions;
    arm(chunk, now + patience(chunk));
  }

  void retransmit(Chunk& chunk, bool resend, Time now, Sink& sink) {
    ++counters.retransmissions;
    if (resend) ++counters.resends;
    transmit(chunk, resend, now, sink);
  }

  // Repeats that later results, a switch or the server asked for are no reason to wait longer: what they found is lost.
  [[nodiscard]] Duration timeout_of(const Chunk& chunk) const { return timer.timeout(chunk.timeouts + 1); }

  [[nodiscard]] Duration patience(const Chunk& chunk) const {
    const Duration timeout = timeout_of(chunk);
    return chunk.transmissions == 1 ? timeout : stream::spread(timeout, chunk.sequence);
  }

  // Results arrive in the order in which chunks were sent. A chunk sent after the newest result's chunk times out only when
  // results stop, however long its queue: round trips through shorter queues do not predict it. A gap before the newest
  // result is a loss.
  [[nodiscard]] Time due(const Chunk& chunk) const {
    if (!silence.ahead(chunk.first) || chunk.deadline == never) return chunk.deadline;
    return std::max(chunk.deadline, answered + timeout_of(chunk));
  }

  void arm(Chunk& chunk, Time deadline) {
    chunk.deadline = deadline;
    next_timeout = std::min(next_timeout, deadline);
  }

  void set_held(Chunk& chunk, bool value) {
    if (chunk.held != value) held = value ? held + 1 : held - 1;
    chunk.held = value;
  }

  [[nodiscard]] bool plain() const { return config.rules == Rules::paper; }
  [[nodiscard]] bool for_chip() const { return config.rules == Rules::chip; }
  // A chip takes packets of one length, from ranks that give nothing too: what is behind their values is 0.
  [[nodiscard]] std::uint16_t sent_of(std::uint16_t given) const {
    return for_chip() ? static_cast<std::uint16_t>(config.packet_elements) : given;
  }

  void leave_switches_out(Time now) {
    if (bypassing || config.first_hop == config.server) return;
    ++counters.bypasses;
    bypassing = true;
    bypass_until = now + bypass;
    bypass = std::min(bypass * 2, config.longest_bypass);
  }

  // ---- receiving

  void on_packet(const RxView& packet, Time now, Sink& sink) {
    Common common;
    if (const auto error = wire::atp::parse_common(packet.bytes, common); error != ParseError::none) {
      ++counters.malformed[static_cast<std::size_t>(error)];
      return;
    }
    if (common.unchecked && config.checksums) {
      ++counters.malformed[static_cast<std::size_t>(ParseError::checksum)];
      return;
    }
    const bool from_server = packet.source == config.server;
    if ((!from_server && packet.source != config.first_hop) || common.job_epoch != config.job_epoch) {
      return void(++counters.foreign);
    }
    if (common.type == Type::unknown_job) {
      if (common.rank_epoch != config.rank_epoch) return void(++counters.foreign);
      ++counters.unknown_job;
      // A switch that forgot the job lost nothing that the server cannot sum.
      if (!from_server) return leave_switches_out(now);
      if (!failure) failure = WorkerFailure{WorkerFailure::Kind::unknown_job, front, 0, 0};
      return;
    }
    if (common.rank_epoch != config.folded_epochs) return void(++counters.foreign);

    auto error = ParseError::type;
    switch (common.type) {
      case Type::parameter: {
        wire::atp::ParameterPacket parameter;
        error = wire::atp::parse_parameter(packet.bytes, common, parameter);
        // The server sends every result through the switches, also while ranks bypass them: one from there shows that they
        // know the job again.
        if (error == ParseError::none && !from_server && now >= bypass_until) bypassing = false;
        if (error == ParseError::none) error = on_parameter(parameter, packet.congested, from_server, now);
        break;
      }
      case Type::ask: {
        wire::atp::ParameterPacket ask;
        error = wire::atp::parse_parameter(packet.bytes, common, ask);
        if (error == ParseError::none) on_ask(common, now, sink);
        break;
      }
      case Type::waiting: {
        wire::atp::WaitingPacket waiting;
        error = wire::atp::parse_waiting(packet.bytes, common, waiting);
        if (error == ParseError::none) on_waiting(waiting, now, sink);
        break;
      }
      case Type::mismatch: {
        wire::atp::MismatchPacket mismatch;
        error = wire::atp::parse_mismatch(packet.bytes, common, mismatch);
        if (error != ParseError::none) break;
        ++counters.mismatch;
        if (!failure) {
          failure = WorkerFailure{WorkerFailure::Kind::mismatch, operation_of(common.sequence), mismatch.first_rank,
                                  mismatch.second_rank};
        }
        break;
      }
      default:
        break;
    }
    if (error != ParseError::none) ++counters.malformed[static_cast<std::size_t>(error)];
  }

  // The operation that a sequence number belongs to at this rank; other ranks' assignment is unknown.
  [[nodiscard]] std::uint64_t operation_of(std::uint64_t sequence) {
    std::uint64_t number = front;
    while (number < back && sequence >= at(number).end) ++number;
    return number;
  }

  // The chunk in flight that a packet refers to; null if there is none.
  [[nodiscard]] Chunk* find(const Common& common) {
    if (common.sequence < base || common.sequence >= next) return nullptr;
    Chunk& chunk = chunk_at(common.sequence);
    return chunk.in_flight ? &chunk : nullptr;
  }

  // §3.6, Worker Receiving Parameters.
  ParseError on_parameter(const wire::atp::ParameterPacket& parameter, bool congested, bool from_server, Time now) {
    const Common& common = parameter.common;
    Chunk* const chunk = find(common);
    if (chunk == nullptr) {
      ++counters.stale;
      return ParseError::none;
    }
    ActiveOperation& active = at(chunk->operation);
    if (common.signature != active.signature || common.elements != sent_of(chunk->elements) ||
        ((common.floats || common.exponent != 0) && !uses_scale(active.operation))) {
      return ParseError::field;
    }
    NETSUM_CHECK(active.remaining > 0);
    ++counters.parameters;
    const bool ecn = common.ecn || congested;
    if (ecn) ++counters.marked;
    timer.answered(now - chunk->sent, now - chunk->repeated, chunk->together);
    // Which transmission of several was answered is unknown; it may have been the first.
    const std::optional<std::uint64_t> answered_order =
        chunk->transmissions == 1 ? std::optional(chunk->order) : std::nullopt;
    silence.answered(chunk->first, chunk->order);
    answered = now;
    tail.on_answer(now);
    // Those that stood back behind it have a time-out again.
    if (chunk->transmissions > 1) next_timeout = std::min(next_timeout, now + timer.timeout());
    if (!from_server && !chunk->past_switches) bypass = config.bypass;  // the switches work
    if (parameter.next_index != chunk->index) ++counters.remapped;
    indices.learn(common.sequence, parameter.next_index);
    exponents[common.sequence % exponents.size()] = common.exponent;
    const stream::Seen taken(active.operation, config.rank, 0, true);
    codec.decode(taken, chunk->offset, chunk->elements, chunk->exponent, parameter.payload.data(), common.floats);
    set_held(*chunk, false);
    chunk->in_flight = false;
    chunk->deadline = never;
    --in_flight;
    if (answered_order) window->on_round_trip(common.sequence, next, now - chunk->sent);
    window->on_parameter(common.sequence, next, ecn, window_limited, busy_lanes());
    if (--active.remaining == 0) finish(active.operation.number);

    while (base < next && !chunk_at(base).in_flight) ++base;
    if (answered_order) expect_overtaken(*answered_order, now);
    return ParseError::none;
  }

  // Three parameter packets out of order show that one before them is lost, or a gradient packet (§3.7). A gradient packet
  // is repeated by its own sender, as the switch told it (on_lost); if its result does not come within a round trip, the
  // result is lost, or the packet was lost behind the switch. The paper's ranks all resend at once, for each loss of any of
  // them, and their packets meet at the parameter server.
  void expect_overtaken(std::uint64_t answered_order, Time now) {
    overtaken.contributed(0, answered_order, [&](std::uint32_t place, std::uint64_t order) {
      Chunk& chunk = chunks[place];
      if (!chunk.in_flight || chunk.held || chunk.order != order) return true;
      chunk.overtaken = true;
      arm(chunk, plain() ? now : std::min(chunk.deadline, now + timer.smoothed_round_trip()));
      return true;
    });
  }

  // The switch has later packets of this rank, and not this one. A plain repeat completes its sum.
  void on_lost(Chunk& chunk, Time now, Sink& sink) {
    if (chunk.direct || chunk.transmissions > 1) return void(++counters.stale);
    ++counters.losses;
    window->on_loss(chunk.sequence, next);
    retransmit(chunk, false, now, sink);
  }

  // The server asks for this chunk directly, bypassing all switches, or for its float values.
  void on_ask(const Common& common, Time now, Sink& sink) {
    Chunk* const chunk = find(common);
    if (chunk == nullptr) {
      if (common.sequence >= next && common.sequence < base + config.window) {
        ++counters.asks;
        asked[common.sequence % asked.size()] = common.sequence;
      } else {
        ++counters.stale;
      }
      return;
    }
    const ActiveOperation& active = at(chunk->operation);
    if (common.floats && !uses_scale(active.operation)) return void(++counters.stale);
    // The server asks whenever a part overlaps what it has: what it asked for may be on its way.
    const bool again = chunk->direct && (chunk->floats || !common.floats);
    if (again && now - chunk->repeated < timer.smoothed_round_trip()) return void(++counters.stale);
    ++counters.asks;
    // An ask after a time-out means that the direct packet was lost: the server is reachable, but this rank's packets do not
    // arrive. A switch further up may be dead without the first one reporting it. (Where a queue overflows, it is not, and a
    // rank that went past the switches alone would leave all others' sums without its part.)
    if (!again) {
      chunk->unanswered = 0;
    } else if (now - chunk->repeated >= timer.timeout() && ++chunk->unanswered >= silences) {
      leave_switches_out(now);
    }
    chunk->direct = true;
    chunk->floats |= common.floats;
    set_held(*chunk, false);
    retransmit(*chunk, false, now, sink);
  }

  void on_waiting(const wire::atp::WaitingPacket& waiting, Time now, Sink& sink) {
    Chunk* const chunk = find(waiting.common);
    if (chunk == nullptr) return void(++counters.stale);
    if (waiting.missing.contains(config.rank)) return on_lost(*chunk, now, sink);
    ++counters.waiting;
    chunk->unanswered = 0;
    if (!waiting.missing.empty()) {
      if (missing.empty()) missing.resize(chunks.size());
      missing[static_cast<std::size_t>(chunk - chunks.data())] = waiting.missing;
      chunk->told = true;
      chunk->told_at = now;
    }
    set_held(*chunk, true);
    // A straggler must not cause repeats of every chunk: only the oldest keeps asking, with backoff; the first result wakes
    // the others (on_packets).
    arm(*chunk, now + (chunk->sequence == base ? timer.timeout(chunk->timeouts + 2) : config.held_timeout));
  }

  void finish(std::uint64_t number) {
    NETSUM_CHECK(number >= front && number < back);
    completed.push_back(number);
    while (front < back && at(front).remaining == 0) ++front;
  }

  // Not for an operation that has no result yet, which a rank may not have begun, nor for what waits for other ranks. A
  // chunk's first probe has `resend`: whatever was lost, it is repaired, and the slot keeps the sum. A second one would
  // empty the slot.
  void probe(Time now, Sink& sink) {
    std::size_t left = in_flight > stream::TailProbe::packets ? 1 : stream::TailProbe::packets;
    for (std::uint64_t sequence = next; sequence > base && left > 0; --sequence) {
      Chunk& chunk = chunk_at(sequence - 1);
      const ActiveOperation& active = at(chunk.operation);
      if (!chunk.in_flight || active.remaining == active.end - active.first) continue;
      --left;
      if (chunk.held) continue;
      const Time deadline = chunk.deadline;  // which goes on
      retransmit(chunk, chunk.probes++ == 0, now, sink);
      arm(chunk, deadline);
    }
  }
  [[nodiscard]] bool waits() const { return base < next && !failure && !plain(); }

  void on_deadlines(Time now, Sink& sink) {
    next_timeout = never;
    if (failure) return;
    bool asks = false;  // the oldest chunk ahead of the newest result, also for the others
    for (std::uint64_t sequence = base; sequence < next; ++sequence) {
      Chunk& chunk = chunk_at(sequence);
      if (!chunk.in_flight) continue;
      const bool alone = !silence.ahead(chunk.first) || !std::exchange(asks, true);
      if (!alone && chunk.transmissions == 1 && !chunk.held && silence.stands_back(chunk.first)) continue;
      if (const Time then = due(chunk); then > now) {
        next_timeout = std::min(next_timeout, then);
      } else {
        on_deadline(chunk, now, sink);
      }
    }
  }

  void on_deadline(Chunk& chunk, Time now, Sink& sink) {
    if (chunk.overtaken) {
      ++counters.fast_resends;
    } else {
      ++chunk.timeouts;
      // The paper's switch and server drop repeats: silence says nothing.
      if (++chunk.unanswered >= silences && !plain()) leave_switches_out(now);
    }
    // The first time-out may be due to a straggler, for which a smaller window does not help.
    if (!chunk.held && (chunk.overtaken || chunk.timeouts > 1)) window->on_loss(chunk.sequence, next);
    // The first repeat is a plain one: it repairs a lost packet and detects a straggler, and switches may still add it.
    // Later ones assume that the switches' state is wrong (§3.7). So does a repeat of a chunk before the newest result: its
    // result is probably lost, and a plain packet would take a slot that nothing frees.
    const bool resend = plain() || chunk.transmissions > 1 + chunk.probes || chunk.held || !silence.ahead(chunk.first);
    retransmit(chunk, resend, now, sink);
    if (chunk.held && chunk.sequence != base) arm(chunk, now + config.held_timeout);
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
  Impl& w = *impl_;
  append_bytes(out, w.front, w.back, w.base, w.next, w.end, w.failure.has_value());
  for (std::uint64_t number = w.front; number < w.back; ++number) append_bytes(out, w.at(number).remaining);
  for (std::uint64_t sequence = w.base; sequence < w.next; ++sequence) {
    const Chunk& chunk = w.chunk_at(sequence);
    append_bytes(out, chunk.in_flight, chunk.direct, chunk.floats, chunk.index, chunk.exponent, chunk.own, chunk.ahead);
  }
  for (std::uint64_t sequence = w.base; sequence < w.base + w.config.window; ++sequence) {
    append_bytes(out, w.indices.of(sequence), w.exponents[sequence % w.exponents.size()]);
    if (sequence >= w.next) append_bytes(out, w.asked[sequence % w.asked.size()] == sequence);
  }
}

bool Worker::submit(const stream::Operation& operation, Time now, Sink& sink) {
  Impl& w = *impl_;
  if (w.front == w.back) w.front = w.back = operation.number;
  if (w.back - w.front == w.operations.size() || w.completed.size() >= w.operations.size()) return false;
  ActiveOperation& active = w.at(operation.number);
  active.operation = operation;
  active.dealt = w.dealt;
  w.dealt += w.shares.deal(stream::wire_elements(operation), active.pieces);
  active.first = w.end;
  for (const Piece& piece : active.pieces) w.end += w.chunks_of(piece, w.is_scaled(operation));
  active.end = w.end;
  active.remaining = active.end - active.first;
  // Signs the call and its position: ranks that disagree about an earlier call are detected at the next one, whatever it is.
  std::vector<std::byte> text;
  append_bytes(text, stream::signature_of(operation, w.config.packet_elements), operation.number, active.first);
  active.signature = crc32c(text);
  w.back = operation.number + 1;
  if (active.remaining == 0) {
    w.finish(operation.number);
    return true;
  }
  w.send_more(now, sink);
  return true;
}

void Worker::count_unbelieved(std::uint64_t packets) {
  impl_->counters.unbelieved += packets;
}

void Worker::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  Impl& w = *impl_;
  const std::uint64_t parameters_before = w.counters.parameters;
  for (const RxView& packet : packets) w.on_packet(packet, now, sink);
  if (w.waits()) w.tail.listen(w.timer);
  if (w.counters.parameters == parameters_before) return;
  // A result shows that the stragglers are back: from now on silence indicates loss.
  if (w.held != 0) {
    for (std::uint64_t sequence = w.base; sequence < w.next; ++sequence) {
      Chunk& chunk = w.chunk_at(sequence);
      if (!chunk.in_flight || !chunk.held) continue;
      w.set_held(chunk, false);
      w.arm(chunk, now + w.timeout_of(chunk));
    }
  }
  w.send_more(now, sink);
}

void Worker::on_timer(Time now, Sink& sink) {
  Impl& w = *impl_;
  if (now >= w.next_timeout) w.on_deadlines(now, sink);
  if (w.waits() && now >= w.tail.next()) {
    if (w.tail.due(w.timer, now)) w.probe(now, sink);
    w.tail.listen(w.timer);
  }
}

Time Worker::next_timeout() const {
  return std::min(impl_->next_timeout, impl_->waits() ? impl_->tail.next() : never);
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
  Impl& w = *impl_;
  if (w.base == w.next) return std::nullopt;
  const Chunk& chunk = w.chunk_at(w.base);
  return WorkerStall{chunk.operation, static_cast<std::uint32_t>(chunk.offset / w.config.packet_elements),
                     chunk.told ? w.missing[static_cast<std::size_t>(&chunk - w.chunks.data())] : Ranks(), chunk.told_at};
}

std::uint32_t Worker::congestion_window() const {
  return impl_->window->packets();
}

const WorkerCounters& Worker::counters() const {
  return impl_->counters;
}

const stream::Underflow& Worker::underflow() const {
  return impl_->codec.underflow();
}

}  // namespace netsum::atp
