#include "protocol/netreduce/accelerator.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "protocol/netreduce/ring.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {
namespace {

using wire::roce::Packet;

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
  if (!ring->stream().learned()) {
    for (std::uint32_t line = 0; line < ring->lines().size(); ++line) {
      connections.emplace_back(ring->lines()[line].connection, line);
    }
  }
  if (config.uplink && !ring->stream().learned()) connections.emplace_back(config.uplink->down(), from_above);
  std::sort(connections.begin(), connections.end());
  for (std::size_t i = 0; i < connections.size(); ++i) {
    const auto found = table_.find(connections[i].first);
    if (found != table_.end() && found->second.ring != nullptr) return false;
    if (i > 0 && connections[i - 1].first == connections[i].first) return false;
  }
  // A queue pair number may have been that of a connection of an earlier ring, which was summed here.
  for (const Connection& connection : config.passing) {
    const auto past = table_.find(connection);
    if (past != table_.end() && past->second.ring == nullptr) erase(past);
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
  add_layout(config.layout, ring->stream().learned());
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
  if (const auto& life = found->second->stream().life()) leave(Uplink{life->up, {}}.down());
  std::erase_if(answers_, [&](const auto& item) { return item.second.first == found->second.get(); });
  for (const Connection& connection : found->second->config().passing) passing_.erase(connection);
  lines_ -= lines_of(*found->second);
  recall(*found->second);
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
  Ring* const ring = found->second.ring;
  if (ring == nullptr || !ring->stream().learned()) return;
  ring->release(found->second.line, sink);
  announce(*ring, sink);
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
  if (entry != nullptr && entry->line == from_above && entry->ring == nullptr) {  // a total of a life that has ended
    ++counters_.dropped_known;
    return Verdict::taken;
  }
  if (entry == nullptr || entry->ring == nullptr || (entry->ring->stream().learned() && entry->line != from_above)) {
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
  Ring& ring = *entry->ring;
  const RingPacket kind = entry->line == from_above ? RingPacket::total : RingPacket::gradient;
  const bool in_racks = ring.stream().in_racks() && kind == RingPacket::gradient;
  // The beginning of a stream, which hosts repeat as long as nothing comes back.
  const bool beginning = in_racks && entry->first_psn == packet.bth.psn && ring.contributes(entry->line);
  if (in_racks && (beginning || !ring.stream().life())) recall(ring);
  serve(ring, kind, entry->line, arrival, sink);
  if (beginning) announce(ring, sink);
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

Connection Accelerator::connection_of(std::uint64_t incarnation, std::uint32_t rank) const {
  const auto found = rings_.find(incarnation);
  const auto line = found == rings_.end() ? std::nullopt : found->second->line_of(rank);
  return !line || !found->second->stream().bound(*line) ? Connection{} : found->second->lines()[*line].connection;
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
  for (std::uint32_t line = 0; line < found->second->lines().size(); ++line) {
    if (found->second->stream().bound(line)) ranks = ranks.united(found->second->lines()[line].ranks);
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
