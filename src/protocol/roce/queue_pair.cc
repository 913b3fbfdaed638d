#include "protocol/roce/queue_pair.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "protocol/roce/dcqcn.h"
#include "stream/retransmission_timer.h"
#include "stream/tail_probe.h"
#include "wire/ecn.h"

namespace netsum::roce {
namespace {

using wire::roce::Aeth;
using wire::roce::Opcode;

constexpr std::size_t longest_message = std::size_t{1} << 31;
constexpr std::uint32_t longest_window = 1U << 22;  // packets; PSNs distinguish half of their 2^24 values

// Wait times of an RNR NAK's five bits (IBA, table of RNR NAK timers), in units of 10 us.
constexpr std::uint32_t rnr_waits[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                         48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                         2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

Duration rnr_wait(std::uint8_t syndrome) {
  return std::chrono::microseconds(10) * rnr_waits[syndrome & 31];
}

// A message posted and not completed.
struct Outgoing {
  std::span<const std::byte> bytes;
  std::uint64_t address = 0;
  std::uint32_t key = 0, immediate = 0;
  std::uint64_t first = 0;  // first packet
  std::uint32_t packets = 0;
};

// The message being received.
struct Incoming {
  std::uint64_t offset = 0;  // in the memory
  std::uint32_t bytes = 0, received = 0;
};

// A packet behind a gap. Its payload is in a memory of its own.
struct Kept {
  std::uint64_t number = ~std::uint64_t{0};
  Opcode opcode{};
  bool ack_request = false;
  wire::roce::Reth reth;
  std::uint32_t immediate = 0;
  std::size_t bytes = 0;
};

struct Range {
  std::uint64_t begin = 0, end = 0;  // packets
};

struct Timed {
  std::uint64_t packet = 0;
  Time sent{};
};

}  // namespace

// Packet numbers begin with 0 in each direction and do not wrap; they are converted to PSNs when sent, and received PSNs are
// compared with the expected one.
struct QueuePair::Impl {
  explicit Impl(const QueuePairConfig& c)
      : config(c),
        timer(c.initial_timeout, c.min_timeout, c.max_timeout),
        asking(c.initial_timeout, c.min_timeout, c.max_timeout),
        rate(c.mtu, std::max(1U, c.flows)),
        messages(std::max(1U, c.max_messages)) {
    NETSUM_CHECK(c.mtu > 0 && c.mtu <= wire::roce::max_tunnel_mtu && c.mtu % 4 == 0);
    NETSUM_CHECK(c.max_packets > 0 && c.max_messages > 0 && c.ack_interval > 0);
    config.max_packets = std::clamp(c.max_packets, 1U, longest_window);
    // At least two ACK requests per window, so that the sender never waits for an ACK that was not requested.
    config.ack_interval = std::clamp(c.ack_interval, 1U, std::max(1U, config.max_packets / 2));
    wire::roce::set_addresses(blank, c.local, c.remote);
    if (c.congestion_control) blank.ip.traffic_class = static_cast<std::uint8_t>(wire::Ecn::capable_0);
    blank.source_port = c.source_port;
    blank.bth.destination_qp = c.remote_qp & wire::roce::qp_mask;
    salt = config.local_qp;
    for (const std::uint8_t byte : config.local) salt = (salt ^ byte) * 0x01000193U;
    if (config.selective) {
      kept.resize(config.max_packets);
      repeats.resize(config.max_packets);
      missed.reserve(most_ranges);
    }
    fresh.reserve(messages.size());
    taken.reserve(messages.size());
  }

  QueuePairConfig config;
  wire::roce::Packet blank;            // common fields of all sent packets; the IP identification counts up
  stream::RetransmissionTimer timer;   // of own packets
  stream::RetransmissionTimer asking;  // from a repeat request to what it asked for
  QueuePairCounters counters;
  QueuePairError error = QueuePairError::none;

  // Requester.
  Dcqcn rate;
  std::uint64_t busiest = 0;                // packets in flight, the most since a notification counted
  std::vector<Outgoing> messages;           // ring by number
  std::uint64_t completed = 0, posted = 0;  // message numbers in flight: [completed, posted)
  std::uint64_t oldest = 0;                 // oldest unacknowledged packet
  std::uint64_t next = 0;                   // next packet to be sent or repeated
  std::uint64_t sent = 0;                   // first packet never sent
  std::uint64_t end = 0;                    // end of the posted packets
  std::uint64_t followed = 0;               // packets of the stream that clocks this one
  Time deadline = never;                    // `never` if nothing is unacknowledged
  // With `selective`: the peer, or who is between, asks for what it shows. Where queues drop, a probe too many is a loss
  // more.
  stream::TailProbe tail{4};
  bool peer_not_ready = false;              // nothing is sent until the deadline
  std::uint32_t salt = 0;                   // differs between queue pairs, even with equal numbers on different hosts
  std::uint32_t timeouts = 0;               // in a row
  bool probing = false, probe_due = false;  // the repeat of `oldest` after a time-out: unacknowledged; not yet sent
  std::optional<std::uint64_t> gone_back;   // the packet that the last sequence NAK asked for
  std::optional<Timed> timed;               // a first transmission that asked for an ACK
  std::uint64_t probe_end = 0;              // `sent` at the time-out
  std::vector<bool> repeats;                // packets to be repeated, by number, and where they are
  Range repeats_in;

  // Responder.
  std::uint64_t received = 0;  // packets, in order
  std::uint64_t gap_end = 0;   // packets from `received` to here were dropped or lost
  std::uint32_t msn = 0;
  std::optional<Incoming> incoming;
  bool gap_told = false;           // a NAK for the gap was sent
  bool gap_due = false;            // a NAK for the gap is to be sent
  std::uint8_t refusal = 0;        // syndrome of another NAK to be sent, or 0
  bool ack_due = false;            // an ACK of the packets before acked, with ack_msn, is to be sent
  bool duplicate_seen = false;     // an ACK of all packets is to be sent
  bool notify = false;             // a congestion notification is to be sent
  Time quiet_until = Time::min();  // no other one until then
  std::uint64_t acked = 0;
  std::uint32_t ack_msn = 0;
  std::vector<Received> fresh, taken;
  static constexpr std::size_t most_ranges = 16;
  std::uint64_t heard = 0;            // the first packet behind all that came
  std::vector<Kept> kept;             // by number
  std::vector<std::byte> kept_bytes;  // none before the first one behind a gap
  std::vector<Range> missed;          // to be asked for
  bool ask_again = false;             // they were asked for before
  Time ask_deadline = never;          // `never` if nothing is missing
  std::uint32_t asked_again = 0;      // in a row
  std::optional<Timed> asked;         // one that was asked for once

  // ---- requester

  [[nodiscard]] Outgoing& at(std::uint64_t number) { return messages[number % messages.size()]; }
  [[nodiscard]] const Outgoing& at(std::uint64_t number) const { return messages[number % messages.size()]; }

  [[nodiscard]] std::uint64_t message_of(std::uint64_t packet) const {
    NETSUM_CHECK(packet >= oldest && packet < end);
    std::uint64_t number = completed;
    while (packet >= at(number).first + at(number).packets) ++number;
    return number;
  }

  [[nodiscard]] bool asks(const Outgoing& message, std::uint64_t packet) const {
    const auto index = static_cast<std::uint32_t>(packet - message.first);
    return index + 1 == message.packets || (index + 1) % config.ack_interval == 0;
  }

  void emit(wire::roce::Packet& packet, PacketSink& sink) {
    packet.ip.identification = blank.ip.identification++;
    const std::size_t bytes = wire::roce::packet_bytes(packet);
    if (packet.payload.empty()) return wire::roce::write(sink.packet(bytes), packet);
    const std::size_t head = wire::roce::payload_offset(packet);
    const Sink::Around place = sink.around(head, packet.payload, bytes - head - packet.payload.size());
    wire::roce::write_around(place.head, place.tail, packet);
  }

  void transmit(const Outgoing& message, std::uint64_t number, bool ask, Time now, PacketSink& sink) {
    const auto index = static_cast<std::uint32_t>(number - message.first);
    const bool first = index == 0, last = index + 1 == message.packets;
    NETSUM_CHECK(number >= oldest && number <= sent && index < message.packets);

    wire::roce::Packet packet = blank;
    packet.bth.opcode = first ? (last ? Opcode::rc_write_only_immediate : Opcode::rc_write_first)
                              : (last ? Opcode::rc_write_last_immediate : Opcode::rc_write_middle);
    packet.bth.psn = static_cast<std::uint32_t>(config.send_psn + number) & wire::roce::psn_mask;
    packet.bth.ack_request = ask;
    if (first) packet.reth = {message.address, message.key, static_cast<std::uint32_t>(message.bytes.size())};
    if (last) packet.immediate = message.immediate;
    const std::size_t offset = std::size_t{index} * config.mtu;
    packet.payload = message.bytes.subspan(offset, std::min<std::size_t>(config.mtu, message.bytes.size() - offset));
    emit(packet, sink);

    rate.on_sent(now, packet.payload.size());
    ++counters.packets_sent;
    if (number < sent) {
      ++counters.retransmissions;
      return;
    }
    sent = number + 1;
    tail.on_sent(now);
    if (last) ++counters.messages_sent;
    if (ask && !timed) timed = Timed{number, now};
  }

  void send_requests(Time now, PacketSink& sink) {
    if (peer_not_ready) {
      if (now < deadline) return;
      peer_not_ready = false;
      deadline = never;
    }
    if (probe_due) {
      transmit(at(message_of(oldest)), oldest, true, now, sink);
      next = std::max(next, oldest + 1);
      probe_due = false;
    }
    for (std::uint64_t number = std::max(repeats_in.begin, oldest); number < repeats_in.end; ++number) {
      if (!repeats[number % repeats.size()]) continue;
      repeats[number % repeats.size()] = false;
      transmit(at(message_of(number)), number, true, now, sink);
    }
    repeats_in = {};
    if (rate.limits()) rate.advance(now);
    if (next < window_end()) {
      std::uint64_t number = message_of(next);
      for (const std::uint64_t stop = window_end(); next < stop && rate.may_send(now); ++next) {
        if (next == at(number).first + at(number).packets) ++number;
        transmit(at(number), next, asks(at(number), next), now, sink);
        // The packet that asks for an answer may be due later than a time-out.
        if (rate.limits()) deadline = now + timer.timeout(1 + timeouts);
      }
    }
    busiest = std::max(busiest, sent - oldest);
    if (deadline == never && oldest < sent) deadline = now + timer.timeout(1 + timeouts);
    if (config.selective && oldest < sent) tail.listen(timer);
    NETSUM_CHECK(oldest <= next && next <= sent && sent <= end && sent - oldest <= config.max_packets);
  }

  [[nodiscard]] std::uint64_t window_end() const {
    const std::uint64_t clocked = config.lead != 0 ? followed + config.lead : end;
    return std::min({end, oldest + config.max_packets, clocked});
  }

  // When the rate lets the next packet go, if nothing else holds it back.
  [[nodiscard]] Time paced() const {
    const bool waits = rate.limits() && next < window_end() && !peer_not_ready && error == QueuePairError::none;
    return waits ? rate.ready() : never;
  }

  // Before the first round trip there is no rate to reduce.
  void on_notification(Time now) {
    ++counters.notifications_received;
    const Duration round_trip = timer.smoothed_round_trip();
    if (!config.congestion_control || round_trip == Duration::zero()) return;
    const auto bytes = [&](std::uint64_t packets) { return static_cast<std::size_t>(packets) * config.mtu; };
    if (rate.on_notification(now, {round_trip, timer.least_round_trip(), bytes(busiest),
                                   bytes(config.lead != 0 ? config.lead : config.max_packets)})) {
      busiest = sent - oldest;
    }
  }

  // Restarts sending at `packet`. Later acknowledgements may be of repeats, so they give no round trip (Karn).
  void go_back(std::uint64_t packet) {
    next = std::min(next, packet);
    if (timed && timed->packet >= packet) timed.reset();
  }

  // The peer has all packets before `until`.
  void acknowledge(std::uint64_t until, Time now) {
    NETSUM_CHECK(until > oldest && until <= sent);
    if (timed && timed->packet < until) {
      timer.sample(now - timed->sent);
      timed.reset();
    }
    const bool answered = probing && !probe_due && (until == oldest + 1 || !asks(at(message_of(until - 1)), until - 1));
    if (answered && !config.selective) go_back(until);
    // The peer keeps what is behind a gap: only the next gap's packet is repeated.
    probing = probe_due = answered && config.selective && until < probe_end;
    for (std::uint64_t number = repeats_in.begin; number < std::min(until, repeats_in.end); ++number) {
      repeats[number % repeats.size()] = false;
    }
    repeats_in.begin = std::max(repeats_in.begin, until);
    oldest = until;
    next = std::max(next, until);
    while (completed < posted && at(completed).first + at(completed).packets <= oldest) ++completed;
    peer_not_ready = false;
    timeouts = 0;
    tail.on_answer(now);
    deadline = oldest < sent ? now + timer.timeout() : never;
  }

  void on_acknowledge(const wire::roce::Packet& packet, Time now) {
    if (config.selective && packet.aeth.asks_for_repeats()) return on_repeat_request(packet, now);
    const std::uint8_t syndrome = packet.aeth.syndrome, kind = syndrome & ~std::uint8_t{0x1f};
    const bool is_nak = kind == Aeth::rnr_nak || kind == Aeth::nak_sequence;
    if (!is_nak && kind != 0) return void(++counters.foreign);
    const std::uint32_t psn = static_cast<std::uint32_t>(config.send_psn + oldest) & wire::roce::psn_mask;
    const std::int32_t ahead = wire::roce::psn_distance(psn, packet.bth.psn);
    const std::uint64_t named = oldest + static_cast<std::uint64_t>(std::max(ahead, 0));
    if (ahead < 0 || named >= sent || error != QueuePairError::none) return void(++counters.stale_acks);
    if (!is_nak) {
      ++counters.acks_received;
      return acknowledge(named + 1, now);
    }
    if (on_nak(named, syndrome, now))
      ++counters.naks_received;
    else
      ++counters.stale_acks;
  }

  // Acknowledges nothing: a device on the path may ask for what the peer is not missing yet.
  void on_repeat_request(const wire::roce::Packet& packet, Time now) {
    const std::uint32_t psn = static_cast<std::uint32_t>(config.send_psn + oldest) & wire::roce::psn_mask;
    const std::int64_t ahead = wire::roce::psn_distance(psn, packet.bth.psn);
    const std::int64_t last = std::min(ahead + packet.aeth.msn, static_cast<std::int64_t>(sent - oldest));
    const Range range{oldest + static_cast<std::uint64_t>(std::max<std::int64_t>(ahead, 0)),
                      oldest + static_cast<std::uint64_t>(std::max<std::int64_t>(last, 0))};
    if (range.begin >= range.end || error != QueuePairError::none) return void(++counters.stale_acks);
    ++counters.repeat_requests_received;
    repeat(range);
    if (!peer_not_ready) deadline = now + timer.timeout(1 + timeouts);
  }

  void repeat(const Range& range) {
    for (std::uint64_t number = range.begin; number < range.end; ++number) repeats[number % repeats.size()] = true;
    if (repeats_in.begin >= repeats_in.end) {
      repeats_in = range;
    } else {
      repeats_in = {std::min(repeats_in.begin, range.begin), std::max(repeats_in.end, range.end)};
    }
    if (timed && timed->packet >= range.begin) timed.reset();
  }

  // False: the NAK is stale.
  bool on_nak(std::uint64_t named, std::uint8_t syndrome, Time now) {
    if (named > oldest) acknowledge(named, now);  // a NAK acknowledges the packets before it (IBA 9.7.5)
    if ((syndrome & Aeth::kind_mask) == Aeth::rnr_nak) {
      if (peer_not_ready) return false;
      peer_not_ready = true;
      deadline = now + rnr_wait(syndrome);
      timeouts = 0;
      gone_back.reset();
    } else if (syndrome == Aeth::nak_sequence) {
      if (peer_not_ready || gone_back == named) return false;
      gone_back = named;
      deadline = now + timer.timeout(1 + timeouts);
    } else {
      error = syndrome == Aeth::nak_invalid  ? QueuePairError::remote_invalid
              : syndrome == Aeth::nak_access ? QueuePairError::remote_access
                                             : QueuePairError::remote_operation;
      deadline = never;
      return true;
    }
    probing = probe_due = false;
    go_back(named);
    return true;
  }

  [[nodiscard]] Time probes_at() const {
    return oldest < sent && !peer_not_ready && error == QueuePairError::none ? tail.next() : never;
  }

  void on_timeout(Time now) {
    NETSUM_CHECK(oldest < sent);
    ++counters.timeouts;
    if (config.retries && timeouts >= *config.retries) {
      error = QueuePairError::retries_exceeded;
      deadline = never;
      return;
    }
    ++timeouts;
    probing = probe_due = true;
    probe_end = sent;
    timed.reset();
    gone_back.reset();
    deadline = now + spread(timer.timeout(1 + timeouts));
  }

  // Lengthens a time-out by up to a quarter, differently each time: otherwise many queue pairs whose packets were lost
  // together in a short queue would repeat them together, and lose the same ones again.
  [[nodiscard]] Duration spread(Duration timeout) const {
    const std::uint32_t mixed = (salt ^ timeouts * 0x85ebca6bU) * 0xc2b2ae35U;
    return timeout + timeout / 1024 * (mixed >> 24);
  }

  // ---- responder

  void on_request(const wire::roce::Packet& packet, const wire::roce::Shape& shape, Time now) {
    if (config.congestion_control && wire::ecn_of(packet.ip.traffic_class) == wire::Ecn::congestion) {
      ++counters.marked;
      if (now >= quiet_until) {
        notify = true;
        quiet_until = now + notification_interval;
      }
    }
    const std::uint32_t expected = static_cast<std::uint32_t>(config.receive_psn + received) & wire::roce::psn_mask;
    const std::int32_t ahead = wire::roce::psn_distance(expected, packet.bth.psn);
    if (ahead < 0) {
      // A packet never received is no duplicate, and must not be acknowledged.
      if (!shape.write || static_cast<std::uint64_t>(-std::int64_t{ahead}) > received) return void(++counters.foreign);
      ++counters.duplicates;
      duplicate_seen = true;
    } else if (ahead > 0) {
      if (config.selective) return keep(packet, received + static_cast<std::uint64_t>(ahead));
      ++counters.out_of_order;
      gap_end = std::max(gap_end, received + static_cast<std::uint64_t>(ahead) + 1);
      gap_due = gap_due || !gap_told;
    } else if (const std::uint8_t syndrome = shape.write ? take(packet, shape) : Aeth::nak_invalid; syndrome != 0) {
      ++counters.refused;
      refusal = syndrome;
    } else if (config.selective) {
      take_kept();
      on_progress(now);
    }
  }

  void on_progress(Time now) {
    if (asked && received > asked->packet) {
      asking.sample(now - asked->sent);
      asked.reset();
    }
    asked_again = 0;
    ask_deadline = received < heard ? now + ask_wait() : never;
  }

  // The first packets of the range that are missing; empty: none is.
  [[nodiscard]] Range hole_in(const Range& range) const {
    const auto is_kept = [&](std::uint64_t number) { return kept[number % kept.size()].number == number; };
    Range hole{std::max(range.begin, received), range.end};
    while (hole.begin < range.end && is_kept(hole.begin)) ++hole.begin;
    hole.end = hole.begin;
    while (hole.end < range.end && !is_kept(hole.end)) ++hole.end;
    return hole;
  }

  // As probes do: to ask once more costs a packet.
  [[nodiscard]] Duration ask_wait() const {
    return std::min(asking.probe_after(asked_again), asking.timeout(1 + asked_again));
  }

  void on_ask_timeout(Time now) {
    asked.reset();
    missed.clear();
    for (Range hole = hole_in({received, heard}); hole.begin < hole.end && missed.size() < most_ranges;
         hole = hole_in({hole.end, heard})) {
      missed.push_back(hole);
    }
    ask_again = true;
    ++asked_again;
    ask_deadline = now + spread(ask_wait());
  }

  // A packet behind a gap. What is missing is asked for when it is first missed.
  void keep(const wire::roce::Packet& packet, std::uint64_t number) {
    if (number - received >= kept.size() || packet.payload.size() > config.mtu) return void(++counters.out_of_order);
    if (number >= heard) {
      if (heard < received) heard = received;
      if (heard < number) miss({heard, number});
      heard = number + 1;
    }
    Kept& here = kept[number % kept.size()];
    if (here.number == number) return void(++counters.duplicates);
    here = {number, packet.bth.opcode, packet.bth.ack_request, packet.reth, packet.immediate, packet.payload.size()};
    if (kept_bytes.empty()) kept_bytes.resize(kept.size() * config.mtu);
    std::copy(packet.payload.begin(), packet.payload.end(), payload_of(number));
  }
  [[nodiscard]] std::byte* payload_of(std::uint64_t number) { return kept_bytes.data() + number % kept.size() * config.mtu; }

  void miss(const Range& range) {
    if (missed.size() < most_ranges) return missed.push_back(range);
    missed.back().end = range.end;
  }

  // Packets behind a gap that is no more.
  void take_kept() {
    while (kept[received % kept.size()].number == received) {
      Kept& here = kept[received % kept.size()];
      wire::roce::Packet packet;
      packet.bth.opcode = here.opcode;
      packet.bth.ack_request = here.ack_request;
      packet.reth = here.reth;
      packet.immediate = here.immediate;
      packet.payload = {payload_of(received), here.bytes};
      here.number = Kept{}.number;
      const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
      if (const std::uint8_t syndrome = shape.write ? take(packet, shape) : Aeth::nak_invalid; syndrome != 0) {
        ++counters.refused;
        refusal = syndrome;
        return;
      }
    }
  }

  // Processes the expected packet. Returns a NAK's syndrome if it is invalid; 0: valid.
  std::uint8_t take(const wire::roce::Packet& packet, const wire::roce::Shape& shape) {
    if (shape.first == incoming.has_value()) return Aeth::nak_invalid;
    Incoming message;
    if (shape.first) {
      const auto& [address, key, length] = packet.reth;
      if (length != 0) {
        if (key != config.memory_key || address < config.memory_address) return Aeth::nak_access;
        message.offset = address - config.memory_address;
        if (message.offset > config.memory.size() || length > config.memory.size() - message.offset) return Aeth::nak_access;
      }
      message.bytes = length;
    } else {
      message = *incoming;
    }
    const std::uint32_t missing = message.bytes - message.received;
    const std::size_t bytes = packet.payload.size();
    if (shape.last ? bytes != missing || missing > config.mtu : bytes != config.mtu || missing <= config.mtu) {
      return Aeth::nak_invalid;
    }
    NETSUM_CHECK(message.bytes == 0 || message.offset + message.bytes <= config.memory.size());
    const bool in_packet = config.singles_in_packets && shape.first && shape.last;
    if (bytes != 0 && !in_packet) {
      std::memcpy(config.memory.data() + message.offset + message.received, packet.payload.data(), bytes);
    }
    message.received += static_cast<std::uint32_t>(bytes);
    incoming = message;

    ++received;
    ++counters.packets_received;
    gap_told = false;
    refusal = 0;
    if (shape.last) {
      msn = (msn + 1) & wire::roce::psn_mask;
      ++counters.messages_received;
      if (shape.immediate) {
        fresh.push_back(
            {message.offset, message.bytes, packet.immediate, in_packet ? packet.payload : std::span<const std::byte>{}});
      }
      incoming.reset();
    }
    if (packet.bth.ack_request) {
      ack_due = true;
      acked = received;
      ack_msn = msn;
    }
    return 0;
  }

  // One answer to all packets since the last answer: a NAK acknowledges the packets before it.
  void send_answer(Time now, PacketSink& sink) {
    if (notify) {
      wire::roce::Packet packet = blank;
      packet.bth.opcode = Opcode::congestion_notification;
      packet.bth.becn = true;
      packet.payload = wire::roce::notification_payload;
      emit(packet, sink);
      ++counters.notifications_sent;
      notify = false;
    }
    const bool gap = gap_due && received < gap_end;
    if (refusal != 0 || gap) {
      answer(received, refusal != 0 ? refusal : Aeth::nak_sequence, msn, sink);
      ++counters.naks_sent;
      gap_told = true;  // no gap NAK behind a refused request either
    } else if (duplicate_seen || ack_due) {
      NETSUM_CHECK(received > 0 && acked <= received);
      const bool all = duplicate_seen;
      answer((all ? received : acked) - 1, Aeth::ack, all ? msn : ack_msn, sink);
      ++counters.acks_sent;
    }
    refusal = 0;
    gap_due = duplicate_seen = ack_due = false;
    for (const Range& range : missed) {
      // What came meanwhile was only overtaken.
      for (Range hole = hole_in(range); hole.begin < hole.end; hole = hole_in({hole.end, range.end})) {
        answer(hole.begin, ask_again ? Aeth::repeat_again : Aeth::repeat_request,
               static_cast<std::uint32_t>(hole.end - hole.begin), sink);
        ++counters.repeat_requests_sent;
        if (!asked && !ask_again) asked = Timed{hole.begin, now};
        if (ask_deadline == never) ask_deadline = now + ask_wait();
      }
    }
    missed.clear();
    ask_again = false;
  }

  void answer(std::uint64_t number, std::uint8_t syndrome, std::uint32_t messages_received, PacketSink& sink) {
    wire::roce::Packet packet = blank;
    packet.bth.opcode = Opcode::rc_acknowledge;
    packet.bth.psn = static_cast<std::uint32_t>(config.receive_psn + number) & wire::roce::psn_mask;
    packet.aeth = {syndrome, messages_received};
    emit(packet, sink);
  }
};

const char* to_string(QueuePairError error) {
  switch (error) {
    case QueuePairError::none:
      return "none";
    case QueuePairError::retries_exceeded:
      return "the peer does not answer";
    case QueuePairError::remote_access:
      return "the peer refused the address, the key or the length";
    case QueuePairError::remote_invalid:
      return "the peer does not support such requests";
    case QueuePairError::remote_operation:
      return "the peer failed";
  }
  return "unknown";
}

QueuePair::QueuePair(const QueuePairConfig& config) : impl_(std::make_unique<Impl>(config)) {}
QueuePair::~QueuePair() = default;
QueuePair::QueuePair(QueuePair&&) noexcept = default;
QueuePair& QueuePair::operator=(QueuePair&&) noexcept = default;
QueuePair::QueuePair(const QueuePair& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}

QueuePair& QueuePair::operator=(const QueuePair& other) {
  return *this = QueuePair(other);
}

void QueuePair::move_memory(std::span<std::byte> memory) {
  NETSUM_CHECK(memory.size() == impl_->config.memory.size());
  impl_->config.memory = memory;
}

void QueuePair::move_message(std::uint64_t number, std::span<const std::byte> message) {
  NETSUM_CHECK(number >= impl_->completed && number < impl_->posted);
  NETSUM_CHECK(message.size() == impl_->at(number).bytes.size());
  impl_->at(number).bytes = message;
}

void QueuePair::append_state(std::vector<std::byte>& out) const {
  const Impl& q = *impl_;
  append_bytes(out, q.error, q.completed, q.posted, q.oldest, q.next, q.sent, q.peer_not_ready, q.timeouts, q.probing,
               q.probe_due, q.gone_back.value_or(~std::uint64_t{0}));
  for (std::uint64_t number = q.completed; number < q.posted; ++number) {
    const Outgoing& message = q.at(number);
    append_bytes(out, message.bytes.size(), message.address, message.key, message.immediate);
  }
  const Incoming incoming = q.incoming.value_or(Incoming{});
  append_bytes(out, q.received, q.gap_end, q.msn, q.incoming.has_value(), incoming.offset, incoming.bytes, incoming.received,
               q.gap_told, q.gap_due, q.refusal, q.ack_due, q.duplicate_seen, q.notify, q.acked, q.ack_msn, q.fresh.size());
  for (const Received& message : q.fresh) append_bytes(out, message.offset, message.bytes, message.immediate);
  if (q.config.lead != 0) append_bytes(out, q.followed);
  if (!q.config.selective) return;
  append_bytes(out, q.heard, q.probe_end);
  for (std::uint64_t number = q.oldest; number < q.sent; ++number) {
    const bool due = number >= q.repeats_in.begin && number < q.repeats_in.end && q.repeats[number % q.repeats.size()];
    out.push_back(static_cast<std::byte>(due));
  }
  for (std::uint64_t number = q.received; number < q.heard; ++number) {
    const Kept& here = q.kept[number % q.kept.size()];
    if (here.number != number) continue;
    append_bytes(out, number, here.opcode, here.ack_request, here.reth.address, here.immediate, here.bytes);
    const auto payload = std::span(q.kept_bytes).subspan(number % q.kept.size() * q.config.mtu, here.bytes);
    out.insert(out.end(), payload.begin(), payload.end());
  }
  append_bytes(out, q.ask_again);
  for (const Range& range : q.missed) append_bytes(out, range.begin, range.end);
}

bool QueuePair::post_write(std::span<const std::byte> message, std::uint64_t address, std::uint32_t key,
                           std::uint32_t immediate) {
  Impl& q = *impl_;
  NETSUM_CHECK(!message.empty() && message.size() <= longest_message);
  if (message.empty() || message.size() > longest_message) return false;
  if (q.posted - q.completed == q.messages.size() || q.error != QueuePairError::none) return false;
  const auto packets = static_cast<std::uint32_t>((message.size() + q.config.mtu - 1) / q.config.mtu);
  q.at(q.posted++) = {message, address, key, immediate, q.end, packets};
  q.end += packets;
  return true;
}

void QueuePair::follow(std::uint64_t packets) {
  impl_->followed = std::max(impl_->followed, packets);
}

std::uint64_t QueuePair::heard() const {
  return std::max(impl_->received, impl_->heard);
}

void QueuePair::send(Time now, PacketSink& sink) {
  impl_->send_answer(now, sink);
  if (impl_->error == QueuePairError::none) impl_->send_requests(now, sink);
}

void QueuePair::on_packet(const wire::roce::Packet& packet, Time now) {
  Impl& q = *impl_;
  const Opcode opcode = packet.bth.opcode;
  const wire::roce::Shape shape = wire::roce::shape_of(opcode);
  const bool reliable = static_cast<std::uint8_t>(opcode) < 0x20;
  const bool ours = packet.ip.source == q.config.remote && packet.ip.destination == q.config.local &&
                    packet.bth.destination_qp == (q.config.local_qp & wire::roce::qp_mask);
  if (ours && opcode == Opcode::rc_acknowledge)
    q.on_acknowledge(packet, now);
  else if (ours && opcode == Opcode::congestion_notification)
    q.on_notification(now);
  else if (ours && reliable && (shape.request || opcode == Opcode::rc_read_request))
    q.on_request(packet, shape, now);
  else
    ++q.counters.foreign;
}

void QueuePair::on_timer(Time now) {
  Impl& q = *impl_;
  if (now >= q.ask_deadline) q.on_ask_timeout(now);
  if (now >= q.probes_at() && q.tail.due(q.timer, now)) q.repeat({q.sent - 1, q.sent});
  if (now < q.deadline) return;
  if (q.peer_not_ready) {  // the wait is over
    q.peer_not_ready = false;
    q.deadline = never;
  } else if (q.deadline != never) {
    q.on_timeout(now);
  }
}

Time QueuePair::next_timeout() const {
  return std::min({impl_->deadline, impl_->ask_deadline, impl_->probes_at(), impl_->paced()});
}

std::uint64_t QueuePair::completed() const {
  return impl_->completed;
}

std::span<const Received> QueuePair::take_received() {
  impl_->taken.clear();
  impl_->taken.swap(impl_->fresh);
  return impl_->taken;
}

QueuePairError QueuePair::error() const {
  return impl_->error;
}

const QueuePairConfig& QueuePair::config() const {
  return impl_->config;
}

const QueuePairCounters& QueuePair::counters() const {
  return impl_->counters;
}

}  // namespace netsum::roce
