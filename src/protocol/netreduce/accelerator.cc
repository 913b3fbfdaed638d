#include "protocol/netreduce/accelerator.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "protocol/netreduce/ring.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {
namespace {

using wire::roce::Packet;

constexpr std::uint32_t from_above = UINT32_MAX;
// In PSNs: more than a connection's host may repeat (two windows, see check() of a ring).
constexpr std::uint32_t far_away = (wire::roce::psn_mask + 1) / 4;

std::size_t lines_of(const Ring& ring) {
  return ring.lines().size() + (ring.config().uplink ? 1 : 0);
}

}  // namespace

std::size_t Accelerator::memory_bytes(const RingConfig& config) {
  return Ring::memory_bytes(config);
}

Accelerator::Accelerator() {
  add_layout(wire::netreduce::netsum_layout, false);
  add_layout(wire::netreduce::nrtv_layout, false);
}
Accelerator::~Accelerator() = default;
Accelerator::Accelerator(Accelerator&&) noexcept = default;
Accelerator& Accelerator::operator=(Accelerator&&) noexcept = default;

Accelerator::Accelerator(const Accelerator& other)
    : answers_(other.answers_),
      passing_(other.passing_),
      table_(other.table_),
      lines_(other.lines_),
      layouts_(other.layouts_),
      learning_(other.learning_),
      counters_(other.counters_),
      examples_(other.examples_) {
  std::unordered_map<const Ring*, Ring*> copies;
  for (const auto& [incarnation, ring] : other.rings_) {
    RingState copy(new Ring(*ring));
    copies[ring.get()] = copy.get();
    rings_.emplace(incarnation, std::move(copy));
  }
  for (auto& [connection, answer] : answers_) answer.first = copies.at(answer.first);
  for (auto& [connection, entry] : table_) {
    if (entry.ring != nullptr) entry.ring = copies.at(entry.ring);
  }
}

void Accelerator::move_memory(std::uint64_t incarnation, std::span<std::byte> memory) {
  rings_.at(incarnation)->move_memory(memory);
}

void Accelerator::Destroy::operator()(Ring* ring) const {
  delete ring;
}

Accelerator::RingState Accelerator::make_ring(const RingConfig& config, std::span<std::byte> memory) {
  return RingState(new Ring(config, memory));
}

bool Accelerator::add_ring(RingState&& ring) {
  const RingConfig& config = ring->config();
  if (rings_.contains(config.incarnation)) return false;
  std::vector<std::pair<Connection, std::uint32_t>> connections;
  if (!ring->learned()) {
    for (std::uint32_t line = 0; line < ring->lines().size(); ++line) {
      connections.emplace_back(ring->lines()[line].connection, line);
    }
  }
  if (config.uplink) connections.emplace_back(config.uplink->down(), from_above);
  std::sort(connections.begin(), connections.end());
  for (std::size_t i = 0; i < connections.size(); ++i) {
    const auto found = table_.find(connections[i].first);
    if (found != table_.end() && found->second.ring != nullptr) return false;
    if (i > 0 && connections[i - 1].first == connections[i].first) return false;
  }
  for (const auto& [connection, line] : connections) {
    Entry entry;
    entry.ring = ring.get();
    entry.line = line;
    entry.sealed = config.layout.seals;
    table_[connection] = std::move(entry);
  }
  for (std::uint32_t line = 0; line < ring->lines().size(); ++line) {
    if (const auto& answers = ring->lines()[line].answers) answers_[*answers] = {ring.get(), line};
  }
  passing_.insert(config.passing.begin(), config.passing.end());
  lines_ += lines_of(*ring);
  add_layout(config.layout, ring->learned());
  rings_.emplace(config.incarnation, std::move(ring));
  last_ = nullptr;
  return true;
}

Accelerator::RingState Accelerator::remove_ring(std::uint64_t incarnation) {
  const auto found = rings_.find(incarnation);
  if (found == rings_.end()) return nullptr;
  const auto leave = [&](const Connection& connection) {
    const auto entry = table_.find(connection);
    if (entry != table_.end() && entry->second.ring == found->second.get()) entry->second.ring = nullptr;
  };
  for (const Line& line : found->second->lines()) leave(line.connection);
  if (const auto& uplink = found->second->config().uplink) leave(uplink->down());
  std::erase_if(answers_, [&](const auto& item) { return item.second.first == found->second.get(); });
  for (const Connection& connection : found->second->config().passing) passing_.erase(connection);
  lines_ -= lines_of(*found->second);
  if (servers_ != nullptr) servers_->forget(*found->second);
  RingState ring = std::move(found->second);
  rings_.erase(found);
  trim();
  return ring;
}

void Accelerator::learn(LearningConfig config) {
  learning_ = std::move(config);
  std::sort(learning_.hosts.begin(), learning_.hosts.end());
}

void Accelerator::add_layout(const wire::netreduce::Layout& layout, bool learned) {
  const auto same = std::find_if(layouts_.begin(), layouts_.end(), [&](const MarkedLayout& other) {
    return other.layout.magic == layout.magic && other.layout.magic_bytes == layout.magic_bytes &&
           other.layout.magic_offset == layout.magic_offset;
  });
  if (same == layouts_.end()) {
    layouts_.push_back({layout, learned});
  } else {
    same->learned = same->learned || learned;
  }
}

void Accelerator::know(const KnownConnection& connection, Time now) {
  Entry entry;
  entry.heard = now;
  entry.first_psn = connection.first_psn;
  entry.recorded = true;
  table_.try_emplace(connection.connection, std::move(entry));
  trim();
}

std::vector<Connection> Accelerator::known() const {
  std::vector<Connection> connections;
  connections.reserve(table_.size());
  for (const auto& [connection, entry] : table_) connections.push_back(connection);
  std::sort(connections.begin(), connections.end());
  return connections;
}

void Accelerator::recorded(const Connection& connection, Sink& sink) {
  const auto found = table_.find(connection);
  if (found == table_.end() || found->second.recorded) return;
  found->second.recorded = true;
  if (found->second.ring != nullptr && found->second.ring->learned()) found->second.ring->release(found->second.line, sink);
}

void Accelerator::forget(Time silent_since) {
  for (auto item = table_.begin(); item != table_.end();) {
    const auto here = item++;
    if (here->second.ring == nullptr && here->second.heard < silent_since) erase(here);
  }
}

void Accelerator::erase(Table::iterator entry) {
  last_ = nullptr;
  ConnectionChange change;
  change.kind = ConnectionChange::Kind::forgotten;
  change.known.connection = entry->first;
  table_.erase(entry);
  if (changed_) changed_(change);
}

// Removes many at once, so that the scan is rare.
void Accelerator::trim() {
  if (table_.size() <= most_past + lines_) return;
  std::vector<Table::iterator> past;
  for (auto item = table_.begin(); item != table_.end(); ++item) {
    if (item->second.ring == nullptr) past.push_back(item);
  }
  const std::size_t count = std::min(past.size(), most_past / 8);
  std::partial_sort(past.begin(), past.begin() + static_cast<std::ptrdiff_t>(count), past.end(), [](auto a, auto b) {
    return std::pair(!a->second.sealed, a->second.heard) < std::pair(!b->second.sealed, b->second.heard);
  });
  past.resize(count);
  for (const Table::iterator& item : past) erase(item);
}

Accelerator::Entry* Accelerator::find(const Connection& connection) {
  if (last_ != nullptr && last_connection_ == connection) return last_;
  const auto found = table_.find(connection);
  if (found == table_.end()) return nullptr;
  last_ = &found->second;
  last_connection_ = connection;
  return last_;
}

bool Accelerator::is_host(const HostAddress& address) const {
  return std::binary_search(learning_.hosts.begin(), learning_.hosts.end(), address);
}

const Accelerator::MarkedLayout* Accelerator::mark_of(std::span<const std::byte> payload) const {
  for (const MarkedLayout& each : layouts_) {
    if (wire::netreduce::has_mark(each.layout, payload)) return &each;
  }
  return nullptr;
}

// For messages on unknown connections. Configured hosts that send a mark of no ring were given the wrong ring; gradients of
// other hosts may belong to another accelerator, as do those of a ring's connections that only pass here.
bool Accelerator::has_mark_of_concern(const Connection& connection, std::span<const std::byte> payload) const {
  const MarkedLayout* const mark = mark_of(payload);
  return mark != nullptr && (mark->learned || (is_host(connection.source) && is_host(connection.destination))) &&
         !passing_.contains(connection);
}

Accelerator::Judgement Accelerator::refuse(Misfit misfit, const Connection& connection,
                                           const wire::netreduce::InaHeader& header) {
  ++counters_.dropped_misfit[static_cast<std::size_t>(misfit)];
  examples_[static_cast<std::size_t>(misfit)] = {connection, header};
  return Judgement::drop;
}

// Classifies a request on an unknown or learned connection: foreign hosts register nothing, so first packets show which
// connection belongs to which ring.
Accelerator::Judgement Accelerator::judge(const Connection& connection, Entry*& entry, const Arrival& arrival, Time now) {
  const std::uint32_t psn = arrival.packet.bth.psn;
  const std::span<const std::byte> payload = arrival.packet.payload;
  const bool marked =
      arrival.shape.first && (entry != nullptr ? mark_of(payload) != nullptr : has_mark_of_concern(connection, payload));
  if (!arrival.shape.reliable) {
    return entry == nullptr && !marked ? Judgement::pass : refuse(Misfit::service, connection);
  }
  if (!arrival.shape.first) {
    if (entry == nullptr) return Judgement::pass;
    if (entry->others.holds(psn, arrival.shape.last)) {
      ++counters_.passed_other;
      if (entry->ring != nullptr) recall(*entry->ring);  // what passes keeps its place among the sums
      return Judgement::pass;
    }
    if (entry->ring != nullptr) return Judgement::gradient;
    entry->heard = now;
    entry->newest_psn = psn;
    ++counters_.dropped_known;
    return Judgement::drop;
  }
  if (!marked) return judge_unmarked(connection, entry, arrival);
  if (entry != nullptr) entry->others.end_at(psn);
  if (entry != nullptr && entry->ring != nullptr) {
    // The ring checks whether the packet fits, except for the beginning of another stream on a reused queue pair number.
    const auto header = wire::netreduce::read_header(entry->ring->config().layout, arrival.packet.payload);
    if (!header || psn == entry->first_psn || header->message != 0) return Judgement::gradient;
    recall(*entry->ring);
    if (!entry->ring->begins_another(header->message)) return Judgement::gradient;
  }
  return begin(connection, entry, arrival, now);
}

Accelerator::Judgement Accelerator::judge_unmarked(const Connection& connection, Entry* entry, const Arrival& arrival) {
  if (entry == nullptr) {
    if (is_host(connection.source) && is_host(connection.destination)) ++counters_.unmarked;
    return Judgement::pass;
  }
  // In a damaged packet the mark may be damaged too.
  if (!wire::roce::icrc_valid(arrival.ip())) {
    ++counters_.dropped_damaged;
    return Judgement::drop;
  }
  const std::uint32_t psn = arrival.packet.bth.psn;
  ++counters_.passed_other;
  if (entry->ring != nullptr) recall(*entry->ring);  // as in judge()
  if (entry->ring == nullptr && entry->newest_psn &&
      static_cast<std::uint32_t>(std::abs(wire::roce::psn_distance(*entry->newest_psn, psn))) > far_away) {
    erase(table_.find(connection));  // its queue pair number was reused
    return Judgement::pass;
  }
  const std::size_t bytes = arrival.packet.payload.size();
  const std::uint32_t length = arrival.packet.reth.length;
  const bool counted = arrival.shape.reth && bytes != 0 && length / bytes < far_away;
  entry->others.begin(psn, counted ? static_cast<std::uint32_t>((length + bytes - 1) / bytes) : 0, arrival.shape.last);
  return Judgement::pass;
}

// The first packet of a message with a mark, on a connection that has no ring, or whose queue pair number may have been
// reused.
Accelerator::Judgement Accelerator::begin(const Connection& connection, Entry*& entry, const Arrival& arrival, Time now) {
  if (!wire::roce::icrc_valid(arrival.ip())) {
    ++counters_.dropped_damaged;
    return Judgement::drop;
  }
  std::optional<wire::netreduce::InaHeader> header;
  Ring* ring = nullptr;
  Misfit misfit = Misfit::layout;
  for (const auto& [incarnation, each] : rings_) {
    if (!each->learned() || !wire::netreduce::has_mark(each->config().layout, arrival.packet.payload)) continue;
    misfit = std::max(misfit, Misfit::header);
    const auto read = wire::netreduce::read_header(each->config().layout, arrival.packet.payload);
    if (!read) continue;
    misfit = Misfit::ring;
    header = read;
    if (read->ring != each->config().ring) continue;
    ring = each.get();
    break;
  }
  const std::uint32_t psn = arrival.packet.bth.psn;
  // A former ring's packet: long in flight, or from a host that does not know yet that the ring has ended.
  if (entry != nullptr && entry->ring == nullptr &&
      (!header || header->message != 0 || entry->first_psn == psn || learning_.hosts.empty())) {
    entry->heard = now;
    entry->newest_psn = psn;
    ++counters_.dropped_known;
    return Judgement::drop;
  }
  if (!header) header.emplace();
  if (!is_host(connection.source) || !is_host(connection.destination)) return refuse(Misfit::host, connection, *header);
  if (ring == nullptr) return refuse(misfit, connection, *header);
  if (header->rank >= ring->config().members) return refuse(Misfit::rank, connection, *header);
  const std::uint32_t rank = header->rank;
  if (header->message != 0) return refuse(Misfit::beginning, connection, *header);

  // This connection may have been another rank's before. (A bound connection is always in the table: callers of erase()
  // check.)
  const auto live = [&](const Entry* of) { return of != nullptr && of->ring != nullptr && now - of->heard < restart_after; };
  const auto present = ring->bound(rank) ? table_.find(ring->lines()[rank].connection) : table_.end();
  if (live(entry) || (present != table_.end() && live(&present->second))) {
    ++counters_.dropped_restart;
    return Judgement::drop;
  }
  recall(*ring);
  if (entry != nullptr && entry->ring != nullptr) recall(*entry->ring);
  const bool alone = ring->bound(rank) && ring->answered();  // the other ranks must start again too
  if (!alone && !closes(*ring, rank, connection)) return refuse(Misfit::open, connection, *header);
  if (entry != nullptr && entry->ring != nullptr && entry->ring != ring) begin_again(*entry->ring, entry->line);
  const bool again = ring->bound(rank) || (entry != nullptr && entry->ring == ring);
  if (entry != nullptr && entry->ring == ring && entry->line != rank) begin_again(*ring, entry->line);
  if (ring->bound(rank)) begin_again(*ring, rank);

  Entry fresh;
  fresh.ring = ring;
  fresh.line = rank;
  fresh.heard = now;
  fresh.first_psn = psn;
  fresh.sealed = ring->config().layout.seals;
  fresh.recorded = !learning_.record;
  ring->bind(rank, connection, learning_.record);
  entry = &(table_[connection] = std::move(fresh));
  last_ = nullptr;
  ConnectionChange change;
  change.kind = again ? ConnectionChange::Kind::restarted : ConnectionChange::Kind::learned;
  change.known = {connection, psn};
  change.incarnation = ring->config().incarnation;
  change.rank = rank;
  if (changed_) changed_(change);
  trim();
  return Judgement::gradient;
}

// Whether the ring's connections form a closed ring of all ranks, if this is the last of them.
bool Accelerator::closes(const Ring& ring, std::uint32_t rank, const Connection& connection) const {
  std::vector<HostAddress> from, to;
  for (std::uint32_t line = 0; line < ring.lines().size(); ++line) {
    if (line != rank && !ring.bound(line)) return true;
    const Connection& each = line == rank ? connection : ring.lines()[line].connection;
    from.push_back(each.source);
    to.push_back(each.destination);
  }
  std::sort(from.begin(), from.end());
  std::sort(to.begin(), to.end());
  return from == to;
}

// Restarts the ring without the connection of `rank`. If no sum was sent, the other hosts repeat message 0 and stay bound;
// otherwise they cannot take part in another stream of the ring.
void Accelerator::begin_again(Ring& ring, std::uint32_t rank) {
  const bool stay = !ring.answered();
  std::vector<std::pair<std::uint32_t, Table::iterator>> bound;
  for (std::uint32_t line = 0; line < ring.lines().size(); ++line) {
    if (ring.bound(line)) bound.emplace_back(line, table_.find(ring.lines()[line].connection));
  }
  const RingCounters counters = ring.counters();
  ring = Ring(ring.config(), ring.memory());
  ring.set_counters(counters);
  for (const auto& [line, item] : bound) {
    if (stay && line != rank) {
      ring.bind(line, item->first, !item->second.recorded);
    } else {
      item->second.ring = nullptr;
    }
  }
}

Accelerator::Verdict Accelerator::on_packet(const Packet& packet, std::span<const std::byte> frame, std::size_t ip_at,
                                            const Endpoint& egress, Time now, Sink& sink, std::span<const Endpoint> flood) {
  Arrival arrival{frame, ip_at, 0, packet, wire::roce::shape_of(packet.bth.opcode), egress, flood};
  if (!arrival.shape.request) {
    if (packet.bth.opcode == wire::roce::Opcode::rc_acknowledge && packet.aeth.says_what_is_missing()) {
      return on_missing(arrival, sink);
    }
    ++counters_.passed;
    return Verdict::pass;
  }
  arrival.ip_bytes = wire::roce::packet_bytes(frame.subspan(ip_at));
  const Connection connection{arrival.packet.ip.source, arrival.packet.ip.destination, arrival.packet.bth.destination_qp};
  Entry* entry = find(connection);
  if (entry == nullptr || entry->ring == nullptr || entry->ring->learned()) {
    const bool known = entry != nullptr;
    switch (judge(connection, entry, arrival, now)) {
      case Judgement::pass:
        if (!known) ++counters_.passed;
        return Verdict::pass;
      case Judgement::drop:
        return Verdict::taken;
      case Judgement::gradient:
        break;
    }
  }
  entry->heard = now;
  entry->newest_psn = packet.bth.psn;
  // A receiver may have nothing to send for longer than a bridge remembers it, and need this packet's sum to go on.
  if (egress == Endpoint{} && entry->line != from_above) arrival.egress = entry->ring->egress(entry->line);
  if (arrival.egress == Endpoint{} && (flood.empty() || !entry->ring->may_flood(entry->line))) {
    ++counters_.dropped_nowhere;
    return Verdict::taken;
  }
  serve(*entry->ring, entry->line == from_above ? RingPacket::total : RingPacket::gradient, entry->line, arrival, sink);
  return Verdict::taken;
}

void Accelerator::serve(Ring& ring, RingPacket kind, std::uint32_t line, const Arrival& arrival, Sink& sink) {
  if (servers_ == nullptr || !servers_->hand_over(ring, kind, line, arrival)) ring.serve(kind, line, arrival, sink);
}

void Accelerator::recall(Ring& ring) {
  if (servers_ != nullptr) servers_->recall(ring);
}

Accelerator::Verdict Accelerator::on_missing(Arrival& arrival, Sink& sink) {
  const Packet& packet = arrival.packet;
  const auto found = answers_.find({packet.ip.source, packet.ip.destination, packet.bth.destination_qp});
  if (found != answers_.end()) {
    const auto& [ring, line] = found->second;
    if (packet.aeth.asks_for_repeats() ? ring->repeats_singly(line) : ring->answers(line) && arrival.egress != Endpoint{}) {
      arrival.ip_bytes = wire::roce::packet_bytes(arrival.frame.subspan(arrival.ip_at));
      serve(*ring, RingPacket::missing, line, arrival, sink);
      return Verdict::taken;
    }
  }
  ++counters_.passed;
  return Verdict::pass;
}

// ---- messages of learned connections that are no gradients

void Accelerator::OtherMessages::end_at(std::uint32_t psn) {
  if (messages_.empty()) return;
  // PSNs wrap: distant messages ended long ago.
  std::erase_if(messages_, [&](const Message& message) {
    const std::int32_t distance = wire::roce::psn_distance(message.first, psn);
    return distance == 0 || static_cast<std::uint32_t>(std::abs(distance)) > far_away;
  });
  for (Message& message : messages_) {
    const std::int32_t distance = wire::roce::psn_distance(message.first, psn);
    if (distance <= 0 || static_cast<std::uint32_t>(distance) >= message.packets) continue;
    message.packets = static_cast<std::uint32_t>(distance);
    message.open = false;
  }
}

void Accelerator::OtherMessages::begin(std::uint32_t psn, std::uint32_t packets, bool last) {
  end_at(psn);
  const Message message{psn, std::max(packets, 1U), packets == 0 && !last};
  if (messages_.size() < most) {
    if (messages_.empty()) messages_.reserve(most);
    messages_.push_back(message);
    return;
  }
  next_ = (next_ + 1) % most;
  messages_[next_] = message;
}

bool Accelerator::OtherMessages::holds(std::uint32_t psn, bool last) {
  for (Message& message : messages_) {
    const auto distance = static_cast<std::uint32_t>(wire::roce::psn_distance(message.first, psn));
    if (distance < message.packets) return true;
    if (!message.open || distance != message.packets) continue;
    ++message.packets;
    message.open = !last;
    return true;
  }
  return false;
}

void Accelerator::OtherMessages::append_state(std::vector<std::byte>& out) const {
  append_bytes(out, messages_.size(), next_);
  for (const Message& message : messages_) append_bytes(out, message.first, message.packets, message.open);
}

Connection Accelerator::connection_of(std::uint64_t incarnation, std::uint32_t rank) const {
  const auto found = rings_.find(incarnation);
  return found == rings_.end() || !found->second->bound(rank) ? Connection{} : found->second->lines()[rank].connection;
}

std::optional<RingMismatch> Accelerator::mismatch(std::uint64_t incarnation) const {
  const auto found = rings_.find(incarnation);
  return found == rings_.end() ? std::nullopt : found->second->mismatch();
}

std::optional<RingStall> Accelerator::stall(std::uint64_t incarnation) const {
  const auto found = rings_.find(incarnation);
  return found == rings_.end() ? std::nullopt : found->second->stall();
}

RankSet Accelerator::bound(std::uint64_t incarnation) const {
  RankSet ranks;
  const auto found = rings_.find(incarnation);
  if (found == rings_.end()) return ranks;
  for (std::uint32_t rank = 0; rank < found->second->config().members; ++rank) {
    if (found->second->bound(rank)) ranks.insert(rank);
  }
  return ranks;
}

const RingCounters* Accelerator::ring_counters(std::uint64_t incarnation) const {
  const auto found = rings_.find(incarnation);
  return found == rings_.end() ? nullptr : &found->second->counters();
}

void Accelerator::append_state(std::vector<std::byte>& out) const {
  std::vector<std::uint64_t> incarnations;
  for (const auto& [incarnation, ring] : rings_) incarnations.push_back(incarnation);
  std::sort(incarnations.begin(), incarnations.end());
  for (const std::uint64_t incarnation : incarnations) rings_.at(incarnation)->append_state(out);
  for (const Connection& connection : known()) {
    append_bytes(out, connection.source, connection.destination, connection.destination_qp);
    const Entry& entry = table_.at(connection);
    const std::uint64_t none = UINT64_MAX;
    append_bytes(out, entry.ring != nullptr ? entry.ring->config().incarnation : none, entry.line,
                 static_cast<std::uint8_t>(entry.sealed | entry.recorded << 1),
                 entry.first_psn ? std::uint64_t{*entry.first_psn} : none,
                 entry.ring == nullptr && entry.newest_psn ? std::uint64_t{*entry.newest_psn} : none);
    entry.others.append_state(out);
  }
}

void Accelerator::check() const {
  for (const auto& [incarnation, ring] : rings_) ring->check();
}

}  // namespace netsum::netreduce
