#include "protocol/switchml/worker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>
#include <variant>

#include "base/bytes.h"
#include "base/check.h"
#include "protocol/switchml/in_flight.h"
#include "protocol/switchml/profile.h"
#include "stream/overtaken.h"
#include "stream/retransmission_timer.h"
#include "stream/tail_probe.h"

namespace netsum::switchml {
namespace {

inline constexpr std::uint8_t not_scanned = 0xff;

}  // namespace

struct Worker::Impl {
  explicit Impl(const WorkerConfig& c)
      : config(c),
        profile(c),
        in_flight(c.slots, c.numbered() ? 1 : windows, c.operations),
        // A message is lost with any of its packets, as a packet on any of several links.
        samples(c.in_tree || c.rdma ? stream::answers_in_tree : 1),
        timer(c.initial_timeout, c.min_timeout, c.max_timeout, samples) {
    completed.reserve(c.operations);
  }

  WorkerConfig config;
  Profile profile;
  InFlight in_flight;
  std::vector<wire::switchml::Ranks> missing;  // by slot, since Slot::told; empty until one is told
  std::uint32_t samples;                       // answers that the timer takes one of
  stream::RetransmissionTimer timer;
  bool values_answered = false;  // round trips of values have been measured
  Time answered{};               // arrival of the last result of a packet sent once
  std::uint64_t newest = 0;      // of those with a result: its Slot::order
  // Since all operations were complete: the newest packet when the first result of values came (0: none has), and the
  // results of packets behind it.
  std::uint64_t first_window = 0, second_window = 0;
  std::uint32_t silence = 0;  // in which it probes, or did last
  stream::TailProbe tail{1};  // the window is the most that is in flight, whatever is repeated
  Time next_timeout = never;  // lower bound of all deadlines; made exact by the scan in on_timer
  std::uint32_t held = 0;
  bool fast = true;
  std::uint64_t fast_results = 0;
  std::vector<std::uint64_t> completed;
  std::optional<WorkerFailure> failure;
  WorkerCounters counters;

  // Packets have as many bytes whatever the width of their values.
  [[nodiscard]] std::uint32_t run_chunks() const {
    return std::bit_floor(std::max(1U, config.run_bytes / (config.packet_elements * 4)));
  }

  // Where some chunks travel without values. A loss holds up its whole group, so groups are as short as saves most of the
  // bytes, but in long windows, where more of them go on.
  [[nodiscard]] std::uint64_t group_of(const ActiveOperation& active) const {
    const stream::Collective collective = active.operation.collective;
    const bool to_some = collective == stream::Collective::reduce || collective == stream::Collective::reduce_scatter;
    if (config.numbered() || !(to_some || stream::spreads(active.operation))) return 1;
    const std::uint32_t suits = std::min({std::max(4U, config.slots / 16), config.slots / 4, wire::switchml::Run::most});
    const std::uint64_t most = std::max(1U, config.group != 0 ? config.group : suits);
    return std::bit_floor(std::min(most, active.stripes.in_a_row()));
  }

  // Scans a chunk's stripe for exponents, once.
  void scan(const Place& place) {
    const auto& stripes = place.active->stripes;
    const std::uint64_t stripe = stripes.stripe(place.chunk->index);
    std::uint8_t* const exponents = place.active->exponents.data() + stripes.first_block_of(stripe);
    if (*exponents != not_scanned) return;
    const std::uint32_t length = stripes.stripe_length(stripe);
    const std::size_t blocks = (length + wire::switchml::block_elements - 1) / wire::switchml::block_elements;
    place.active->nonfinite[stripe] =
        profile.codec().scan(place.given(config.rank), stripes.stripe_offset(stripe), length, {exponents, blocks});
  }

  // ---- sending

  // The slot is free for its chunk, which begins with its group.
  void start_chunk(Slot& slot, ActiveOperation& active, bool exponents_known, Time now, Sink& sink) {
    slot.exponents_known = exponents_known;
    if (active.group == 1) {
      open(slot, active);
      return transmit_first(slot, {&active, &slot.chunk}, now, sink);
    }
    rest(slot);
    slot.ready = true;
    const Group group(active, slot.chunk.index);
    // The last one is the last to be free, as a rule.
    for (std::uint64_t index = group.end; index-- > group.first;) {
      const Slot& member = in_flight.slot_at(active.window, active.base + index);
      if (!member.ready || member.position != active.base + index) return;
    }
    for (std::uint64_t index = group.first; index < group.end; ++index) {
      open(in_flight.slot_at(active.window, active.base + index), active);
    }
    for (std::uint64_t index = group.first; index < group.end; ++index) {
      Slot& member = in_flight.slot_at(active.window, active.base + index);
      if (member.transmissions == 0) transmit_group(member, active, group, now, sink);
    }
  }

  // The first transmission of a group's chunk; without values, of all behind it too that fit into its packet.
  void transmit_group(Slot& slot, ActiveOperation& active, const Group& group, Time now, Sink& sink) {
    wire::switchml::Run run;
    std::array<Slot*, wire::switchml::Run::most> slots;
    for (std::uint64_t index = slot.chunk.index; index < group.end; ++index) {
      Slot& member = in_flight.slot_at(active.window, active.base + index);
      if (member.round == Round::values && member.transmissions == 0 && member.header.elements == 0 &&
          run.take(member.header)) {
        slots[run.size() - 1] = &member;
      } else if (&member == &slot) {
        break;
      }
    }
    if (run.size() < 2) return transmit_first(slot, {&active, &slot.chunk}, now, sink);
    const std::span members = std::span(slots).first(run.size());
    ++counters.runs_sent;
    profile.send_run(run, members, in_flight, sink);
    for (Slot* const member : members) {
      begin(*member, {&active, &member->chunk}, now);
      sent(*member, now);
    }
  }

  // Opens the round that the slot's chunk needs: exponents first, unless the look-ahead brought them.
  void open(Slot& slot, ActiveOperation& active) {
    const Place place{&active, &slot.chunk};
    const bool exponents_known = slot.exponents_known;
    slot.ready = false;
    NETSUM_CHECK(slot.chunk.index < active.stripes.chunks() && slot.position == active.base + slot.chunk.index &&
                 slot.window == active.window);
    slot.header.operation = active.operation.number;
    slot.header.chunk = slot.chunk.number;
    slot.header.signature = active.signature;
    if (place.needs_exponents() && !exponents_known) {
      ++counters.exponent_rounds;
      slot.round = Round::exponents;
      slot.header.elements = 0;
      slot.header.masks = slot.header.acknowledge_only = slot.header.later = false;
      slot.header.dtype = DType::int32;
      slot.header.op = ReduceOp::sum;
      slot.ahead = slot.chunk;
      name_ahead(slot, active);
    } else {
      start_values(slot, place);
    }
    slot.transmissions = 0;
  }

  void start_values(Slot& slot, const Place& place) {
    const ActiveOperation& active = *place.active;
    const std::uint32_t of_part = slot.chunk.part;
    slot.round = Round::values;
    const bool sends =
        stream::contributes(active.operation, config.rank, of_part) && !place.keeps(config.rank, config.world_size);
    slot.header.elements = sends ? static_cast<std::uint16_t>(place.elements_on_wire()) : 0;
    const bool fixed_point = active.scanned && slot.chunk.elements != 0;
    if (fixed_point && !active.exchanged) {
      scan(place);
      slot.all.fill(*config.fixed_exponent);
    }
    slot.header.masks = slot.header.elements != 0 && place.nonfinite();
    slot.header.dtype = active.wire.dtype;
    slot.header.op = active.wire.op;
    slot.header.acknowledge_only = !stream::takes(active.operation, config.rank, of_part);
    slot.header.later = slot.header.acknowledge_only && another_without(active, slot.chunk.index);
    // §4.6, look-ahead: this slot's next chunk, if its operation was already submitted.
    in_flight.look_ahead(slot);
    if (slot.next != Slot::no_next && slot.next - slot.header.operation < wire::switchml::no_ahead &&
        Place{&in_flight.at(slot.next), &slot.ahead}.needs_exponents()) {
      name_ahead(slot, in_flight.at(slot.next));
    } else {
      slot.header.ahead_operation = wire::switchml::no_ahead;
      slot.header.ahead_chunk = 0;
      slot.header.exponents = 0;
    }
  }

  // Whether this rank takes no result of another chunk behind this one in its group.
  [[nodiscard]] bool another_without(const ActiveOperation& active, std::uint64_t index) const {
    for (const Group group(active, index); ++index < group.end;) {
      if (!stream::takes(active.operation, config.rank, active.stripes.at(index).part)) return true;
    }
    return false;
  }

  void name_ahead(Slot& slot, ActiveOperation& of) {
    scan({&of, &slot.ahead});
    slot.header.ahead_operation = static_cast<std::uint8_t>(of.operation.number - slot.header.operation);
    slot.header.ahead_chunk = slot.ahead.number;
    slot.header.exponents = static_cast<std::uint8_t>(slot.ahead.blocks);
  }

  void transmit_first(Slot& slot, const Place& place, Time now, Sink& sink) {
    if (!profile.has_number(slot)) return use_up(slot);
    begin(slot, place, now);
    transmit(slot, place, now, sink);
  }

  void begin(Slot& slot, const Place& place, Time now) {
    slot.sent = now;
    tail.on_sent(now);
    slot.together = place.active->together;
    slot.transmissions = 0;
    slot.told = {};
    slot.probed = 0;
    set_held(slot, false);
    slot.order = ++counters.contributions;
    if (slot.round == Round::values && place.active->scanned) profile.examine(slot, place);
  }

  void rest(Slot& slot) {
    slot.round = Round::idle;
    slot.deadline = never;
    set_held(slot, false);
  }

  void transmit(Slot& slot, const Place& place, Time now, Sink& sink) {
    profile.send(slot, place, in_flight, sink);
    sent(slot, now);
  }

  void sent(Slot& slot, Time now) {
    ++slot.transmissions;
    slot.lost = false;
    slot.repeated = now;
    arm(slot, now + patience(slot));
  }

  // The registers' numbers have come to their end.
  void use_up(Slot& slot) {
    slot.deadline = never;
    if (!failure) failure = WorkerFailure{WorkerFailure::Kind::rounds_used_up, slot.header.operation, 0, 0};
  }

  [[nodiscard]] Duration patience(const Slot& slot) const {
    // A rank that is told of a loss repeats: two round trips, or three if a result was lost. Before that, repeats by the
    // other ranks would be useless, one per rank and loss.
    const Duration repair = profile.tells_of_losses() ? 3 * timer.smoothed_round_trip() : Duration::zero();
    const Duration timeout = std::min(config.max_timeout, timer.timeout(slot.transmissions) + repair);
    if (slot.transmissions == 1) return timeout;
    return stream::spread(timeout, profile.moment(slot));
  }

  // The first window after a pause meets ever longer queues, and the second one the longest: time-outs that follow from the
  // first results would repeat both. Until the second's results come, a packet behind the newest result waits as long as
  // results come; and the time-outs that they give count for what was sent before, too.
  [[nodiscard]] Time due(const Slot& slot) const {
    if (slot.lost || slot.held || slot.transmissions > 1 || answered < slot.sent) return slot.deadline;
    const bool queued = second_window < samples && slot.order > newest;
    return std::max(slot.deadline, (queued ? answered : slot.sent) + patience(slot));
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

  void on_packet(const RxView& packet, Time now, Sink& sink) {
    if (fast) {
      if (const RoundResult result = profile.read_fast(packet, in_flight); result.slot != nullptr) {
        ++fast_results;
        return on_result(result, now, sink);
      }
    }
    const Answer answer = profile.read(packet, in_flight, failure.has_value(), counters);
    if (const auto* const result = std::get_if<RoundResult>(&answer)) return on_result(*result, now, sink);
    if (const auto* const run = std::get_if<wire::switchml::RunPacket>(&answer)) return on_run(*run, now, sink);
    if (const auto* const waiting = std::get_if<wire::switchml::WaitingPacket>(&answer)) {
      return on_waiting(*waiting, now, sink);
    }
    if (const auto* const why = std::get_if<WorkerFailure>(&answer); why != nullptr && !failure) failure = *why;
  }

  // One after the other: each may free the last slot of a group, and what is sent then is no news of this packet.
  void on_run(const wire::switchml::RunPacket& all, Time now, Sink& sink) {
    all.for_each([&](const wire::switchml::ChunkPacket& chunk) {
      const Answer answer = SoftwareProfile::compare(chunk, in_flight, counters);
      if (const auto* const result = std::get_if<RoundResult>(&answer)) on_result(*result, now, sink);
    });
  }

  // The round in flight has its result (Alg. 4, l. 10-18).
  void on_result(const RoundResult& result, Time now, Sink& sink) {
    Slot& slot = *result.slot;
    const Place& place = result.place;
    ActiveOperation& active = *place.active;
    NETSUM_CHECK(slot.header.operation >= in_flight.front && slot.header.operation < in_flight.back && active.remaining > 0);
    ++counters.results;
    tail.on_answer(now);
    // Packets of exponents alone are short: where bandwidth counts, their round trips are too short for packets of values.
    // What waits for a later chunk's answer may wait for the repair of that.
    values_answered = values_answered || slot.round == Round::values;
    if ((slot.round == Round::values && !slot.header.later) || !values_answered) {
      // In a tree most answers are, and the soonest of some is enough.
      const bool overtaken = !config.in_tree && slot.order + stream::Overtaken::reordering <= newest;
      timer.answered(now - slot.sent, now - slot.repeated, slot.together, overtaken);
    }
    if (slot.transmissions == 1) {
      answered = now;
      second_window += first_window != 0 && slot.order > first_window ? 1 : 0;
    }
    newest = std::max(newest, slot.order);
    probe_before(slot, sink);
    if (slot.round == Round::values && first_window == 0) first_window = counters.contributions;
    active.together = true;
    slot.header.version = slot.version ^= 1;
    if (slot.version == 0) ++slot.number;

    if (slot.round == Round::exponents) {
      take_exponents(slot, result.exponents);
      start_values(slot, place);
      transmit_first(slot, place, now, sink);
      return;
    }
    if (!profile.decode(slot, place, result)) {
      if (!failure) failure = WorkerFailure{WorkerFailure::Kind::changed_sum, active.operation.number, 0, 0};
      return;
    }

    // From here on the look-ahead's exponents belong to the next chunk.
    const bool ahead_known = !result.exponents.empty();
    if (ahead_known) take_exponents(slot, result.exponents);
    if (slot.next == Slot::no_next) in_flight.look_ahead(slot);  // it may have been submitted since
    slot.position += in_flight.each;
    if (--active.remaining == 0) finish(active.operation.number);
    if (slot.next == Slot::no_next) {
      rest(slot);
    } else {
      slot.chunk = slot.ahead;
      start_chunk(slot, in_flight.at(slot.next), ahead_known, now, sink);
    }
  }

  static void take_exponents(Slot& slot, std::span<const std::byte> exponents) {
    std::memcpy(slot.all.data(), exponents.data(), exponents.size());
  }

  void on_waiting(const wire::switchml::WaitingPacket& waiting, Time now, Sink& sink) {
    Slot& slot = in_flight.slots[waiting.slot];
    const Round round = waiting.exponent_round ? Round::exponents : Round::values;
    if (waiting.missing.contains(config.rank)) {
      return on_loss(slot, std::tuple(waiting.operation, waiting.chunk, round), now, sink);
    }
    if (slot.round != round || waiting.operation != slot.header.operation || waiting.chunk != slot.header.chunk) {
      return void(++counters.stale);
    }
    ++counters.waiting;
    missing.resize(in_flight.slots.size());
    missing[waiting.slot] = waiting.missing;
    slot.told = now;
    set_held(slot, true);
    // A straggler must not cause repeats on every slot: only the oldest keeps asking, with backoff, in case its result is
    // lost; the first result that any slot receives wakes the others (on_packets).
    arm(slot, now + (in_flight.is_oldest(slot) ? timer.timeout(slot.transmissions + 1) : config.held_timeout));
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
      slot.lost = true;
      arm(slot, std::min(slot.deadline, due));
    }
  }

  void repeat(Slot& slot, Time now, Sink& sink) {
    ++counters.retransmissions;
    transmit(slot, in_flight.place_of(slot), now, sink);
  }

  // Values take longer than exponents alone, so the first round trips are no measure of when to probe.
  [[nodiscard]] bool waits() const { return values_answered && in_flight.front != in_flight.back && !failure; }

  // Repeats the last packets of each window. Not those of an operation that a rank may not have begun.
  void probe_last(Sink& sink) {
    ++silence;
    probe(sink, [](const Slot&) { return true; });
  }

  // A probe has its result, and what was sent before it has none: that is lost too, as results come in the order of packets
  // also where a rank was late. Another silence for each three of them would be too long. (What is held is not lost.)
  void probe_before(const Slot& last, Sink& sink) {
    if (last.probed != silence || silence == 0) return;
    probe(sink, [&](const Slot& slot) {
      return slot.window == last.window && slot.order < last.order && slot.probed != silence && !slot.held;
    });
  }

  template <class Which>
  void probe(Sink& sink, const Which& which) {
    std::array<std::array<Slot*, stream::TailProbe::packets>, windows> last{};
    for (Slot& slot : in_flight.slots) {
      if (slot.round == Round::idle || !in_flight.at(slot.header.operation).together || !which(slot)) continue;
      Slot* newer = &slot;
      for (Slot*& each : last[slot.window]) {
        if (newer != nullptr && (each == nullptr || each->order < newer->order)) std::swap(each, newer);
      }
    }
    for (const auto& of_window : last) {
      for (Slot* const slot : of_window) {
        if (slot == nullptr) continue;
        // Its own time-out goes on, and its answer is a round trip: without, a time between probes that is too short for
        // this path would stay so.
        ++counters.retransmissions;
        slot->probed = silence;
        profile.send(*slot, in_flight.place_of(*slot), in_flight, sink);
      }
    }
  }

  void finish(std::uint64_t number) {
    NETSUM_CHECK(number >= in_flight.front && number < in_flight.back);
    completed.push_back(number);
    while (in_flight.front < in_flight.back && in_flight.at(in_flight.front).remaining == 0) ++in_flight.front;
  }
};

Worker::Worker(const WorkerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Worker::~Worker() = default;
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;
Worker::Worker(const Worker& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}

void Worker::use_fast_path(bool use) {
  impl_->fast = use;
}

std::uint64_t Worker::fast_results() const {
  return impl_->fast_results;
}

Worker& Worker::operator=(const Worker& other) {
  return *this = Worker(other);
}

void Worker::move_tensor(std::uint64_t operation, void* data) {
  InFlight& in_flight = impl_->in_flight;
  NETSUM_CHECK(operation >= in_flight.front && operation < in_flight.back);
  in_flight.at(operation).operation.data = data;
}

void Worker::append_state(std::vector<std::byte>& out) const {
  const Impl& w = *impl_;
  const InFlight& in_flight = w.in_flight;
  append_bytes(out, in_flight.front, in_flight.back, in_flight.end_position, w.failure.has_value());
  for (std::uint64_t number = in_flight.front; number < in_flight.back; ++number) {
    const ActiveOperation& active = in_flight.at(number);
    append_bytes(out, active.remaining);
    for (const std::uint8_t exponent : active.exponents) append_bytes(out, exponent);
    for (const bool nonfinite : active.nonfinite) append_bytes(out, nonfinite);
  }
  for (const Slot& slot : in_flight.slots) {
    append_bytes(out, slot.position, slot.round, slot.version, slot.ready);
    w.profile.append_state(slot, out);
    if (slot.ready) append_bytes(out, slot.exponents_known);
    if (slot.ready && slot.exponents_known) append_bytes(out, slot.all);
    if (slot.round == Round::idle) continue;
    const wire::switchml::ChunkHeader& h = slot.header;
    append_bytes(out, h.operation, h.chunk, h.signature, h.masks, h.exponents, h.elements, h.ahead_operation, h.ahead_chunk,
                 h.dtype, h.op, h.acknowledge_only, h.later, slot.all);
  }
}

const Slot& Worker::slot(std::size_t number) const {
  return impl_->in_flight.slots[number];
}

bool Worker::submit(const stream::Operation& operation, Time now, Sink& sink) {
  Impl& w = *impl_;
  InFlight& in_flight = w.in_flight;
  if (in_flight.front == in_flight.back) {
    in_flight.front = in_flight.back = operation.number;
    w.first_window = w.second_window = 0;
  }
  if (in_flight.back - in_flight.front == w.config.operations || w.completed.size() >= w.config.operations) return false;
  ActiveOperation& active = in_flight.at(operation.number);
  active.operation = w.profile.offered(operation);
  active.signature = stream::signature_of(active.operation, w.config.packet_elements);
  active.wire = stream::on_wire(active.operation);
  const std::size_t packet_bytes = std::size_t{w.config.packet_elements} * 4;
  const auto chunk_elements = static_cast<std::uint32_t>(
      has_blocks(active.wire.dtype) ? block_values_in(packet_bytes) : packet_bytes / bytes_of(active.wire.dtype));
  active.scanned = stream::uses_exponents(active.operation);
  active.check_words = w.profile.codec().check_words(active.operation);
  active.exchanged = active.scanned && !w.config.fixed_exponent;
  active.stripes = Stripes(stream::wire_elements(operation), operation.number, chunk_elements,
                           {w.config.lane, w.config.lanes, w.run_chunks()}, active.scanned, active.operation.parts);
  active.group = w.group_of(active);
  active.window = in_flight.slots.size() == in_flight.each ? 0 : window_of(active.operation);
  std::uint64_t& end_position = in_flight.end_position[active.window];
  active.base = end_position;
  active.remaining = active.stripes.chunks();
  active.together = false;
  active.exponents.assign(active.scanned ? active.stripes.blocks() : 0, not_scanned);
  active.nonfinite.assign(active.scanned ? active.stripes.count() : 0, false);
  in_flight.back = operation.number + 1;
  end_position += active.remaining;
  if (active.remaining == 0) {
    w.finish(operation.number);
    return true;
  }
  // Alg. 4, l. 1-8: idle slots resume the stream.
  const std::uint64_t last = std::min<std::uint64_t>(end_position, active.base + in_flight.each);
  for (std::uint64_t position = active.base; position < last; ++position) {
    Slot& slot = in_flight.slot_at(active.window, position);
    if (slot.round != Round::idle || slot.ready) continue;
    NETSUM_CHECK(slot.position == position);  // the next chunk of an idle slot
    slot.chunk = active.stripes.at(position - active.base);
    w.start_chunk(slot, active, false, now, sink);
  }
  return true;
}

void Worker::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  Impl& w = *impl_;
  const std::uint64_t results_before = w.counters.results;
  for (const RxView& packet : packets) w.on_packet(packet, now, sink);
  if (w.waits()) w.tail.listen(w.timer);

  // A result shows that the stragglers are back: from now on silence indicates loss.
  if (w.held != 0 && w.counters.results > results_before) {
    for (Slot& slot : w.in_flight.slots) {
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
  if (w.waits() && now >= w.tail.next()) {
    if (w.tail.due(w.timer, now)) w.probe_last(sink);
    w.tail.listen(w.timer);
  }
  if (now < w.next_timeout) return;
  w.next_timeout = never;
  for (Slot& slot : w.in_flight.slots) {
    if (slot.round == Round::idle) continue;
    if (const Time due = w.due(slot); due > now || w.failure) {
      w.next_timeout = w.failure ? never : std::min(w.next_timeout, due);
      continue;
    }
    if (!slot.held) w.timer.expired(slot.repeated, now);  // else it waits for ranks, not for packets
    w.repeat(slot, now, sink);
    if (slot.held && !w.in_flight.is_oldest(slot)) w.arm(slot, now + w.config.held_timeout);
  }
}

Time Worker::next_timeout() const {
  return std::min(impl_->next_timeout, impl_->waits() ? impl_->tail.next() : never);
}

std::vector<std::uint64_t> Worker::take_completed() {
  if (impl_->completed.empty()) return {};
  std::vector<std::uint64_t> completed;
  completed.reserve(impl_->config.operations);
  completed.swap(impl_->completed);
  return completed;
}

bool Worker::idle() const {
  return impl_->in_flight.front == impl_->in_flight.back;
}

const std::optional<WorkerFailure>& Worker::failure() const {
  return impl_->failure;
}

std::optional<WorkerStall> Worker::oldest_stall() const {
  const Slot* oldest = nullptr;
  for (const Slot& slot : impl_->in_flight.slots) {
    if (slot.round == Round::idle) continue;
    if (oldest == nullptr ||
        std::pair(slot.header.operation, slot.header.chunk) < std::pair(oldest->header.operation, oldest->header.chunk)) {
      oldest = &slot;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  WorkerStall stall{oldest->header.operation, oldest->header.chunk, {}, oldest->told};
  if (oldest->told != Time{})
    stall.missing = impl_->missing[static_cast<std::size_t>(oldest - impl_->in_flight.slots.data())];
  return stall;
}

const WorkerCounters& Worker::counters() const {
  return impl_->counters;
}

const stream::Underflow& Worker::underflow() const {
  return impl_->profile.codec().underflow();
}

}  // namespace netsum::switchml
