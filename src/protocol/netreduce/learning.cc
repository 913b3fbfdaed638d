// How the accelerator learns the connections of foreign hosts' rings: from the first packets of their streams.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "protocol/netreduce/accelerator.h"
#include "protocol/netreduce/ring.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {
namespace {

// In PSNs: more than a connection's host may repeat (two windows, see check() of a ring).
constexpr std::uint32_t far_away = (wire::roce::psn_mask + 1) / 4;

}  // namespace

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
    if (!each->stream().learned() || !wire::netreduce::has_mark(each->config().layout, arrival.packet.payload)) continue;
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
  const std::optional<std::uint32_t> line_of = ring->line_of(header->rank);
  if (!line_of) return refuse(Misfit::rank, connection, *header);
  const std::uint32_t line = *line_of;
  if (header->message != 0) return refuse(Misfit::beginning, connection, *header);

  if (!ring->contributes(line)) return await(connection, entry, psn, now);

  // This connection may have been another rank's before. (A bound connection is always in the table: callers of erase()
  // check.)
  const auto live = [&](const Entry* of) { return of != nullptr && of->ring != nullptr && now - of->heard < restart_after; };
  const auto present = ring->stream().bound(line) ? table_.find(ring->lines()[line].connection) : table_.end();
  if (live(entry) || (present != table_.end() && live(&present->second))) {
    ++counters_.dropped_restart;
    return Judgement::drop;
  }
  recall(*ring);
  if (entry != nullptr && entry->ring != nullptr) recall(*entry->ring);
  const bool alone = ring->stream().bound(line) && ring->stream().answered();  // the other ranks must start again too
  if (!alone && !closes(*ring, line, connection)) return refuse(Misfit::open, connection, *header);
  if (entry != nullptr && entry->ring != nullptr && entry->ring != ring) begin_again(*entry->ring, entry->line);
  const bool again = ring->stream().bound(line) || (entry != nullptr && entry->ring == ring);
  if (entry != nullptr && entry->ring == ring && entry->line != line) begin_again(*ring, entry->line);
  if (ring->stream().bound(line)) begin_again(*ring, line);

  Entry fresh;
  fresh.ring = ring;
  fresh.line = line;
  fresh.heard = now;
  fresh.first_psn = psn;
  fresh.sealed = ring->config().layout.seals;
  fresh.recorded = !learning_.record;
  ring->bind(line, connection, learning_.record);
  entry = &(table_[connection] = std::move(fresh));
  last_ = nullptr;
  ConnectionChange change;
  change.kind = again ? ConnectionChange::Kind::restarted : ConnectionChange::Kind::learned;
  change.known = {connection, psn};
  change.incarnation = ring->config().incarnation;
  change.rank = header->rank;
  if (changed_) changed_(change);
  trim();
  return Judgement::gradient;
}

// A header from another rack, of which the root has not told yet. Until it does, nothing of its connection passes.
Accelerator::Judgement Accelerator::await(const Connection& connection, const Entry* entry, std::uint32_t psn, Time now) {
  ++counters_.dropped_known;
  if (entry != nullptr && entry->ring != nullptr) return Judgement::drop;
  Entry awaited;
  awaited.heard = now;
  awaited.first_psn = awaited.newest_psn = psn;
  awaited.recorded = true;
  table_[connection] = std::move(awaited);
  last_ = nullptr;
  trim();
  return Judgement::drop;
}

// Whether the ring's connections form a closed ring of all ranks, if this is the last of them; in several racks, whether
// they lead from each rank of this one to the next.
bool Accelerator::closes(const Ring& ring, std::uint32_t line, const Connection& connection) {
  std::vector<HostAddress> from, to;
  for (std::uint32_t other = 0; other < ring.lines().size(); ++other) {
    if (ring.stream().in_racks() && !ring.contributes(other)) continue;
    if (other != line && !ring.stream().bound(other)) return true;
    const Connection& each = other == line ? connection : ring.lines()[other].connection;
    from.push_back(each.source);
    to.push_back(each.destination);
  }
  if (ring.stream().in_racks()) return std::equal(from.begin() + 1, from.end(), to.begin());
  std::sort(from.begin(), from.end());
  std::sort(to.begin(), to.end());
  return from == to;
}

// Restarts the ring without the connection of a line. If no sum was sent, the other hosts repeat message 0 and stay bound;
// otherwise they cannot take part in another stream of the ring. Across racks another life brings what arrives.
void Accelerator::begin_again(Ring& ring, std::optional<std::uint32_t> without) {
  const bool stay = !ring.stream().answered();
  std::vector<std::pair<std::uint32_t, Table::iterator>> bound;
  for (std::uint32_t line = 0; line < ring.lines().size(); ++line) {
    if (ring.stream().bound(line)) bound.emplace_back(line, table_.find(ring.lines()[line].connection));
  }
  if (const auto& life = ring.stream().life()) {
    const auto down = table_.find(Uplink{life->up, {}}.down());
    if (down != table_.end()) down->second.ring = nullptr;
  }
  ring.begin_again();
  for (const auto& [line, item] : bound) {
    if (stay && line != without && ring.contributes(line)) {
      ring.bind(line, item->first, !item->second.recorded);
    } else {
      item->second.ring = nullptr;
    }
  }
}

// ---- rings in several racks

void Accelerator::announce(const Ring& ring, Sink& sink) const {
  if (ring.stream().in_racks() && ring.stream().gathered() && gathered_) gathered_(ring.config().incarnation, sink);
}

Accelerator::Gathered Accelerator::gathered(std::uint64_t incarnation) const {
  Gathered gathered;
  const auto found = rings_.find(incarnation);
  if (found == rings_.end()) return gathered;
  const Ring& ring = *found->second;
  gathered.complete = ring.stream().in_racks() && ring.stream().gathered();
  gathered.begun = ring.stream().life().has_value();
  gathered.attempt = ring.stream().attempt();
  for (std::uint32_t line = 0; gathered.complete && line < ring.lines().size(); ++line) {
    if (ring.lines()[line].way != Way::leaving) continue;
    gathered.leaving = {ring.lines()[line].connection, table_.at(ring.lines()[line].connection).first_psn};
  }
  return gathered;
}

bool Accelerator::begin_life(std::uint64_t incarnation, const RingLife& life, Time now) {
  const auto found = rings_.find(incarnation);
  if (found == rings_.end() || !found->second->stream().in_racks() || found->second->stream().life() ||
      !found->second->stream().gathered())
    return false;
  Ring& ring = *found->second;
  recall(ring);
  const Connection &arriving = life.arriving.connection, down = Uplink{life.up, {}}.down();
  if (arriving.destination != ring.lines().front().connection.source || !is_host(arriving.source)) {
    static_cast<void>(refuse(Misfit::open, arriving, {.ring = ring.config().ring}));
    return false;
  }
  for (const Connection& connection : {arriving, down}) {
    const auto other = table_.find(connection);
    if (other != table_.end() && other->second.ring != nullptr) return false;
  }
  Entry fresh;
  fresh.ring = &ring;
  fresh.line = static_cast<std::uint32_t>(ring.lines().size() - 1);  // the only one that does not contribute
  fresh.heard = now;
  fresh.first_psn = life.arriving.first_psn;
  fresh.sealed = ring.config().layout.seals;
  fresh.recorded = !learning_.record;
  table_[arriving] = std::move(fresh);
  Entry above;
  above.ring = &ring;
  above.line = from_above;
  above.recorded = true;
  table_[down] = std::move(above);
  last_ = nullptr;
  ring.begin(life, learning_.record);
  ConnectionChange change;
  change.known = life.arriving;
  change.incarnation = incarnation;
  change.rank = ring.lines().back().ranks.front();
  if (changed_) changed_(change);
  trim();
  return true;
}

void Accelerator::end_life(std::uint64_t incarnation) {
  const auto found = rings_.find(incarnation);
  if (found == rings_.end() || !found->second->stream().in_racks()) return;
  recall(*found->second);
  begin_again(*found->second, std::nullopt);
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

}  // namespace netsum::netreduce
