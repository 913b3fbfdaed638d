#include "protocol/netreduce/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32.h"
#include "wire/ecn.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::netreduce {
namespace {

using wire::netreduce::InaHeader;
using wire::roce::Packet;

// Contributing lines first, each kind by its lowest rank: the order of addition.
std::vector<Line> lines_of(const RingConfig& config) {
  std::vector<Line> lines = config.lines;
  if (lines.empty()) {
    lines.resize(config.members);
    for (std::uint32_t rank = 0; rank < config.members; ++rank) {
      if (!config.connections.empty()) lines[rank].connection = config.connections[rank];
      lines[rank].ranks.insert(rank);
    }
  }
  // No two keys are equal: a rank contributes once below this switch, and arrives from elsewhere on one connection.
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return std::pair(a.way == Way::arriving, a.ranks.front()) < std::pair(b.way == Way::arriving, b.ranks.front());
  });
  return lines;
}

std::uint32_t contributors_in(const std::vector<Line>& lines) {
  return static_cast<std::uint32_t>(
      std::count_if(lines.begin(), lines.end(), [](const Line& line) { return line.way != Way::arriving; }));
}

std::size_t lines_in(const RingConfig& config) {
  return config.lines.empty() ? config.members : config.lines.size();
}

}  // namespace

std::size_t Ring::memory_bytes(const RingConfig& config) {
  return SumStore::memory_bytes(config, lines_in(config));
}

Ring::Ring(const RingConfig& config, std::span<std::byte> memory)
    : config_(config),
      lines_(lines_of(config)),
      contributors_(contributors_in(lines_)),
      store_(config, static_cast<std::uint32_t>(lines_.size()), contributors_, memory),
      egresses_(lines_.size()),
      stream_(config, lines_.size(), contributors_),
      above_(config.uplink, config.layout.seals),
      writer_(config) {
  progress_.reserve(lines_.size());
  for (const Line& line : lines_) progress_.emplace_back(line, static_cast<std::uint32_t>(progress_.size()), config.order);
}

void Ring::serve(RingPacket kind, std::uint32_t line, const Arrival& arrival, Sink& sink) {
  switch (kind) {
    case RingPacket::gradient:
      return on_packet(line, arrival, sink);
    case RingPacket::total:
      return on_total(arrival, sink);
    case RingPacket::missing:
      return on_missing(line, arrival, sink);
  }
}

void Ring::bind(std::uint32_t line, const Connection& connection, bool held) {
  lines_[line].connection = connection;
  stream_.bind(line, held);
}

void Ring::release(std::uint32_t line, Sink& sink) {
  stream_.release(line);
  for (Place place = progress_[line].sent(); store_.holds(place); place = store_.after(place)) {
    if (store_.at(place).complete) offer(place, line, sink);
  }
}

void Ring::begin(const RingLife& life, bool held) {
  stream_.begin(life);
  above_.move_to(life.up);
  for (std::uint32_t line = contributors_; line < lines_.size(); ++line) bind(line, life.arriving.connection, held);
}

void Ring::begin_again() {
  Ring fresh(config_, memory());
  fresh.counters_ = counters_;
  fresh.stream_.follow(stream_);
  *this = std::move(fresh);
}

std::optional<std::uint32_t> Ring::line_of(std::uint32_t rank) const {
  for (std::uint32_t line = 0; line < lines_.size(); ++line) {
    if (lines_[line].way != Way::child && lines_[line].ranks.front() == rank) return line;
  }
  return std::nullopt;
}

Place Ring::next() const {
  Place least = progress_.front().sent();
  for (const LineProgress& each : progress_) least = std::min(least, each.sent());
  return least;
}

std::uint64_t Ring::seal_of(const Place& place) const {
  const std::uint64_t incarnation = stream_.life() ? stream_.life()->incarnation : config_.incarnation;
  return wire::netreduce::seal_of({incarnation, config_.ring, place.message, place.packet, config_.members});
}

// A packet that begins a message names it: it sets the connection's entry of the CLT (§3.2).
std::optional<Place> Ring::place_first(std::uint32_t line, const Arrival& arrival, Sink& sink) {
  const wire::netreduce::Layout& layout = config_.layout;
  std::optional<InaHeader> header = wire::netreduce::read_header(layout, arrival.packet.payload);
  if (header) {
    header->message = wire::netreduce::extend_message(header->message, 8 * layout.message.bytes, next().message);
    if (layout.packets.bytes == 0) header->packets = config_.message_packets;
    if (layout.dtype.bytes == 0) header->dtype = config_.dtype;
  }
  if (!header || header->ring != config_.ring || header->rank != lines_[line].ranks.front() || header->packets == 0 ||
      header->packets > config_.message_packets) {
    ++counters_.dropped_header;
    return std::nullopt;
  }
  const std::uint64_t message = header->message;
  const std::uint32_t psn = arrival.packet.bth.psn;
  const std::uint32_t slot = store_.slot_of(message);
  SumStore::Slot& s = store_.slot(slot);
  if (s.used && message < s.message) {
    ++counters_.dropped_old;
    return std::nullopt;
  }
  if (!s.used || message > s.message) {
    // The message's buffers are free once all ranks have the message two windows earlier. A host sends this one when it has
    // the result one window earlier, to which all ranks have contributed, and so had that message. The second condition
    // protects held sums from a host that violates this.
    const bool free =
        s.used ? message == s.message + store_.slots() && s.message < next().message : message < store_.slots();
    if (!free) {
      ++counters_.dropped_early;
      return std::nullopt;
    }
  }
  const bool known = s.used && s.message == message && store_.first_psn(slot, line) != SumStore::no_psn;
  if ((known && store_.first_psn(slot, line) != psn) || arrival.shape.last != (header->packets == 1) ||
      !(lines_[line].way == Way::child ? psn == store_.virtual_psn(message)
                                       : store_.follows(line, *header, psn, stream_.learned()))) {
    ++counters_.dropped_misplaced;
    return std::nullopt;
  }
  if (!s.used || s.message != message) store_.open(slot, *header, sink);
  if (s.packets != header->packets || s.signature != header->signature || s.dtype != header->dtype ||
      s.average != header->average) {
    ++counters_.dropped_mismatch;
    if (!mismatch_) mismatch_ = {message, std::min(s.first_rank, header->rank), std::max(s.first_rank, header->rank)};
    return std::nullopt;
  }
  store_.first_psn(slot, line) = psn;
  progress_[line].begin(slot);
  return Place{message, 0};
}

// Any other packet has only its PSN, and an opcode that must fit where that is.
std::optional<Place> Ring::placed(const std::optional<Place>& place, const Arrival& arrival) {
  if (!place) {
    ++counters_.dropped_unplaced;
    return std::nullopt;
  }
  const bool last = place->packet + 1 == store_.slot(store_.slot_of(place->message)).packets;
  if ((place->packet == 0) != arrival.shape.first || last != arrival.shape.last) {
    ++counters_.dropped_misplaced;
    return std::nullopt;
  }
  return place;
}

void Ring::add_up(const Place& place, std::uint32_t last_line, const Arrival& last) {
  const bool whole = !above_;
  store_.add_up(place, last_line, last.packet.payload, whole ? config_.members : 1);
  if (config_.layout.seals) {
    store_le(store_.sum_of(store_.index(place)), whole ? seal_of(place) : std::uint64_t{0});
  }
  ++counters_.sums;
}

void Ring::on_packet(std::uint32_t line, const Arrival& arrival, Sink& sink) {
  ++counters_.packets;
  counters_.bytes += arrival.ip_bytes;
  if (stream_.waits()) {
    ++counters_.dropped_before;
    return;
  }
  // Damaged packets must not enter: they would leave with a correct checksum.
  if (!wire::roce::icrc_valid(arrival.ip())) {
    ++counters_.dropped_icrc;
    return;
  }
  LineProgress& progress = progress_[line];
  const std::uint32_t psn = arrival.packet.bth.psn;
  const std::optional<Place> place =
      arrival.shape.first ? place_first(line, arrival, sink) : placed(progress.find(psn, store_), arrival);
  if (lines_[line].repair) {
    const auto [first, count] = progress.missing(psn, place.has_value(), store_);
    if (count > 0) ask(line, first, count, sink);
  }
  if (!place) return;
  if (!contributes(line) && arrival.packet.payload.size() != store_.skipped(place->packet)) {
    ++counters_.dropped_raw;
    return;
  }
  if (arrival.payload_at() > SumStore::headers_room ||
      (contributes(line) && !store_.fits(*place, arrival.packet.payload.size()))) {
    ++counters_.dropped_shape;
    return;
  }
  egresses_[line] = arrival.egress;
  progress.on_packet(*place);
  if (lines_[line].way == Way::leaving) send_header(*place, arrival, sink);
  const std::size_t aggregator = store_.index(*place);
  if (store_.arrived(aggregator, line)) return on_repeat(*place, line, arrival, sink);
  SumStore::Aggregator& a = store_.at(aggregator);
  const bool last = contributes(line) && a.arrived + 1U == contributors_;
  store_.store(aggregator, line, arrival, last ? arrival.packet.payload.size() - store_.skipped(place->packet) : 0);
  progress.on_stored(*place, store_);
  if (!contributes(line)) {
    ++counters_.headers;
    if (a.complete) offer(*place, line, sink);
    return;
  }
  ++counters_.contributions;
  a.payload = static_cast<std::uint16_t>(arrival.packet.payload.size());
  ++a.arrived;
  if (!last) return;
  add_up(*place, line, arrival);
  if (above_) return above_.send_up(*place, store_, counters_, sink);
  on_complete(*place, sink);
}

void Ring::ask(std::uint32_t line, std::uint32_t psn, std::uint32_t count, Sink& sink) {
  const Connection& answers = lines_[line].repair->answers;
  Packet packet;
  wire::roce::set_addresses(packet, answers.source, answers.destination);
  packet.source_port = wire::roce::udp_port;
  packet.bth.opcode = wire::roce::Opcode::rc_acknowledge;
  packet.bth.destination_qp = answers.destination_qp;
  packet.bth.psn = psn;
  packet.aeth = {wire::roce::Aeth::repeat_request, count};
  wire::roce::write(sink.datagram(lines_[line].repair->egress, wire::roce::packet_bytes(packet)), packet);
  counters_.asked += count;
}

// The receiver of `of` still misses this sum: what was asked of the senders, or the request, or the sum on its way up or the
// total on its way down was lost. What other switches lack is asked there by their own receivers.
void Ring::ask_again(const Place& place, std::uint32_t of, Sink& sink) {
  for (std::uint32_t line = 0; line < lines_.size(); ++line) {
    if (store_.has(place, line) || !lines_[line].repair || (line >= contributors_ && line != of)) continue;
    const std::uint32_t first = store_.first_psn(store_.slot_of(place.message), line);
    if (first != SumStore::no_psn) ask(line, (first + place.packet) & wire::roce::psn_mask, 1, sink);
  }
  above_.send_up_again(place, store_, counters_, sink);
}

void Ring::on_missing(std::uint32_t line, const Arrival& arrival, Sink& sink) {
  ++counters_.packets;
  counters_.bytes += arrival.ip_bytes;
  if (!wire::roce::icrc_valid(arrival.ip())) {
    ++counters_.dropped_icrc;
  } else if (arrival.packet.aeth.asks_for_repeats()) {
    on_repeat_request(line, arrival, sink);
  } else {
    on_nak(line, arrival, sink);
  }
}

// A receiver that goes back discards all that comes until it has what it names. If that has left here, it and all that has
// left behind it is sent again, and nobody else repeats anything. If not, the sender must repeat it, or already has: the NAK
// passes. It is not the accelerator's to send one: a NAK acknowledges all that is before it, and the sender would free what
// its receiver still lacks.
void Ring::on_nak(std::uint32_t line, const Arrival& arrival, Sink& sink) {
  LineProgress& progress = progress_[line];
  const auto place = progress.left(arrival.packet.bth.psn, store_);
  if (!place) {
    ++counters_.naks_passed;
    // It goes twice, as in send_twice(): a sender goes back once for both.
    const std::span<const std::byte> frame = arrival.frame.first(arrival.ip_at + arrival.ip_bytes);
    for (int copy = 0; copy < 2; ++copy) {
      std::copy(frame.begin(), frame.end(), sink.datagram(arrival.egress, frame.size()).begin());
    }
    return;
  }
  ++counters_.naks_answered;
  ++counters_.asked_for;
  send_twice(*place, line, sink);
  for (Place each = store_.after(*place); each < progress.sent() && store_.holds(each); each = store_.after(each)) {
    ++counters_.asked_for;
    send_to(each, line, sink);
  }
  send_early(progress.on_nak_answered(store_), line, sink);
}

void Ring::on_repeat_request(std::uint32_t line, const Arrival& arrival, Sink& sink) {
  ++counters_.repeat_requests;
  const wire::roce::Aeth& asked = arrival.packet.aeth;
  const std::uint32_t psn = arrival.packet.bth.psn;
  if (stream_.held(line)) return;
  const bool again = asked.syndrome == wire::roce::Aeth::repeat_again;
  const auto packets = static_cast<std::uint32_t>(std::min<std::size_t>(asked.msn, store_.size()));
  for (std::uint32_t i = 0; i < packets; ++i) {
    const auto place = progress_[line].find((psn + i) & wire::roce::psn_mask, store_);
    if (!place) {
      if (again) ask(line, (psn + i) & wire::roce::psn_mask, 1, sink);
    } else if (store_.at(*place).complete && store_.has(*place, line)) {
      ++counters_.asked_for;
      send_to(*place, line, sink);
    } else if (again) {  // a sum that is not there yet leaves when it is
      ask_again(*place, line, sink);
    }
  }
}

void Ring::on_repeat(const Place& place, std::uint32_t line, const Arrival& arrival, Sink& sink) {
  const SumStore::Aggregator& a = store_.at(place);
  if (!a.complete) {
    ++counters_.repeats_waiting;
    above_.send_up_again(place, store_, counters_, sink);
    return;
  }
  using enum LineProgress::Repeat;
  const LineProgress::Repeat repeat = stream_.held(line) ? held : progress_[line].on_repeat(place, store_);
  if (repeat != answered) {
    ++(repeat == held ? counters_.repeats_held : counters_.repeats_ignored);
    return;
  }
  ++counters_.repeats_answered;
  if (lines_[line].way != Way::leaving) {
    send(place, store_.index(place), line, {arrival.frame, arrival.ip_at, arrival.ip_bytes, arrival.payload_at()}, sink);
  }
}

void Ring::on_total(const Arrival& arrival, Sink& sink) {
  ++counters_.packets;
  counters_.bytes += arrival.ip_bytes;
  if (!wire::roce::icrc_valid(arrival.ip())) {
    ++counters_.dropped_icrc;
    return;
  }
  const auto place = placed(above_.find(arrival.packet.bth.psn, store_), arrival);
  if (!place) return;
  const std::size_t aggregator = store_.index(*place), skip = store_.skipped(place->packet);
  SumStore::Aggregator& a = store_.at(aggregator);
  const std::span<const std::byte> payload = arrival.packet.payload;
  if (!a.summed || (config_.layout.seals && wire::netreduce::read_seal(payload) != seal_of(*place))) {
    ++counters_.dropped_misplaced;
    return;
  }
  if (payload.size() != a.payload) {
    ++counters_.dropped_shape;
    return;
  }
  if (a.complete) {
    ++counters_.totals_repeated;
    return;
  }
  ++counters_.totals;
  if (config_.layout.seals) std::memcpy(store_.sum_of(aggregator), payload.data(), wire::netreduce::seal_bytes);
  std::memcpy(store_.sum_of(aggregator) + skip, payload.data() + skip, payload.size() - skip);
  // All lines share the way from above.
  if (wire::ecn_of(arrival.packet.ip.traffic_class) == wire::Ecn::congestion) {
    for (std::uint32_t line = 0; line < lines_.size(); ++line) {
      if (store_.has(*place, line)) store_.mark(aggregator, line);
    }
  }
  on_complete(*place, sink);
  above_.on_total(*place, store_, counters_, sink);
}

void Ring::on_complete(const Place& place, Sink& sink) {
  SumStore::Aggregator& a = store_.at(place);
  a.complete = true;
  const std::size_t skip = store_.skipped(place.packet);
  a.crc = crc32({store_.sum_of(store_.index(place)) + skip, a.payload - skip});
  for (std::uint32_t line = 0; line < lines_.size(); ++line) offer(place, line, sink);
}

// Sends the sums that can leave on the line, now that the sum of `place`, or the line's packet, is present.
void Ring::offer(const Place& place, std::uint32_t line, Sink& sink) {
  if (stream_.held(line)) return;
  send_early(progress_[line].advance(place, store_, [&](const Place& each) { send_to(each, line, sink); }), line, sink);
}

void Ring::send_early(const std::optional<Place>& place, std::uint32_t line, Sink& sink) {
  if (!place) return;
  ++counters_.early;
  send_twice(*place, line, sink);
}

// Forwards the packet's headers towards the connection's receiver, without the values, which are summed here.
void Ring::send_header(const Place& place, const Arrival& arrival, Sink& sink) {
  Packet packet = arrival.packet;
  packet.payload = packet.payload.first(store_.skipped(place.packet));
  for (const Endpoint& to : arrival.egress == Endpoint{} ? arrival.flood : std::span(&arrival.egress, 1)) {
    const std::span<std::byte> out = sink.datagram(to, arrival.ip_at + wire::roce::packet_bytes(packet));
    std::memcpy(out.data(), arrival.frame.data(), arrival.ip_at);
    wire::roce::write(out.subspan(arrival.ip_at), packet);
  }
  ++counters_.sent_headers;
}

void Ring::send(const Place& place, std::size_t aggregator, std::uint32_t line, const Frame& frame, Sink& sink) {
  ++counters_.results;
  stream_.on_sent();
  if (writer_.write(store_.sum(aggregator, place.packet), frame, lines_[line], egresses_[line], sink)) {
    store_.slot(store_.slot_of(place.message)).referenced = true;
  }
}

void Ring::send_to(const Place& place, std::uint32_t line, Sink& sink) {
  const std::size_t aggregator = store_.index(place);
  send(place, aggregator, line, store_.frame_of(aggregator, line), sink);
}

// What a repair hangs on goes twice: if it were lost, only a time-out would help.
void Ring::send_twice(const Place& place, std::uint32_t line, Sink& sink) {
  send_to(place, line, sink);
  send_to(place, line, sink);
}

std::optional<RingStall> Ring::stall() const {
  const Place place = next();
  if (!store_.holds(place)) return std::nullopt;
  RingStall stall{place.message, place.packet, {}};
  for (std::uint32_t line = 0; line < lines_.size(); ++line) {
    if (!store_.has(place, line)) stall.missing = stall.missing.united(lines_[line].ranks);
  }
  return stall;
}

void Ring::append_state(std::vector<std::byte>& out) const {
  append_bytes(out, config_.incarnation, above_.expected().message, above_.expected().packet,
               static_cast<std::uint8_t>(above_.asked()));
  stream_.append_state(out);
  for (const LineProgress& each : progress_) each.append_state(out);
  store_.append_state(
      [&](const Place& place, std::uint32_t line) { return answers(line) || place >= progress_[line].sent(); }, out);
}

void Ring::check() const {
  NETSUM_CHECK(counters_.packets == outcomes(counters_));
  for (std::uint32_t line = 0; line < lines_.size(); ++line) progress_[line].check(store_, stream_.held(line));
}

}  // namespace netsum::netreduce
