#include "protocol/netreduce/accelerator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "protocol/netreduce/ring.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {
namespace {

using wire::roce::Packet;

constexpr std::uint32_t from_above = UINT32_MAX;

}  // namespace

std::size_t Accelerator::memory_bytes(const RingConfig& config) {
  return Ring::memory_bytes(config);
}

Accelerator::Accelerator() = default;
Accelerator::~Accelerator() = default;
Accelerator::Accelerator(Accelerator&&) noexcept = default;
Accelerator& Accelerator::operator=(Accelerator&&) noexcept = default;

bool Accelerator::add_ring(const RingConfig& config, std::span<std::byte> memory) {
  if (rings_.contains(config.incarnation)) return false;
  auto ring = std::make_unique<Ring>(config, memory);
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
  for (const auto& [connection, line] : connections) table_[connection] = {ring.get(), line, {}};
  rings_.emplace(config.incarnation, std::move(ring));
  last_ = nullptr;
  return true;
}

void Accelerator::remove_ring(std::uint64_t incarnation) {
  const auto found = rings_.find(incarnation);
  if (found == rings_.end()) return;
  for (auto& [connection, entry] : table_) {
    if (entry.ring == found->second.get()) entry.ring = nullptr;
  }
  rings_.erase(found);
}

void Accelerator::know(const Connection& connection, Time now) {
  table_.try_emplace(connection, Entry{nullptr, 0, now});
}

std::vector<Connection> Accelerator::known() const {
  std::vector<Connection> connections;
  connections.reserve(table_.size());
  for (const auto& [connection, entry] : table_) connections.push_back(connection);
  std::sort(connections.begin(), connections.end());
  return connections;
}

void Accelerator::forget(Time silent_since) {
  last_ = nullptr;
  std::erase_if(table_, [&](const auto& item) { return item.second.ring == nullptr && item.second.heard < silent_since; });
}

Accelerator::Entry* Accelerator::find(const Connection& connection) {
  if (last_ != nullptr && last_connection_ == connection) return last_;
  const auto found = table_.find(connection);
  if (found == table_.end()) return nullptr;
  last_ = &found->second;
  last_connection_ = connection;
  return last_;
}

// Foreign hosts register nothing: the first packet of a ring's first message shows whose connection it is. A member that
// comes with another connection begins the ring's stream anew.
Accelerator::Entry* Accelerator::learn(const Connection& connection, const Arrival& arrival) {
  if (!arrival.shape.first) return nullptr;
  for (auto& [incarnation, ring] : rings_) {
    if (!ring->learned()) continue;
    const auto header = wire::netreduce::read_header(ring->config().layout, arrival.packet.payload);
    if (!header || header->ring != ring->config().ring || header->rank >= ring->config().members) continue;
    if (!wire::roce::icrc_valid(arrival.ip())) return nullptr;  // passed on, and dropped by whoever checks it
    const auto [found, is_new] = table_.try_emplace(connection);
    if (is_new && learned_) learned_(connection);
    Entry& entry = found->second;
    if (header->message == 0) {
      if (ring->bound(header->rank)) begin_again(*ring);
      ring->bind(header->rank);
      entry = {ring.get(), header->rank, {}};
    }
    last_ = nullptr;
    return &entry;
  }
  return nullptr;
}

void Accelerator::begin_again(Ring& ring) {
  for (auto& [connection, entry] : table_) {
    if (entry.ring == &ring) entry.ring = nullptr;
  }
  const RingCounters counters = ring.counters();
  ring = Ring(ring.config(), ring.memory());
  ring.set_counters(counters);
}

Accelerator::Verdict Accelerator::on_packet(const Packet& packet, std::span<const std::byte> frame, std::size_t ip_at,
                                            const Endpoint& egress, Time now, Sink& sink) {
  Arrival arrival{frame, ip_at, 0, packet, wire::roce::shape_of(packet.bth.opcode), egress};
  if (!arrival.shape.request) {
    ++counters_.passed;
    return Verdict::pass;
  }
  arrival.ip_bytes = wire::roce::packet_bytes(frame.subspan(ip_at));
  const Connection connection{arrival.packet.ip.source, arrival.packet.ip.destination, arrival.packet.bth.destination_qp};
  Entry* entry = find(connection);
  if (entry == nullptr || entry->ring == nullptr) {
    if (Entry* const learned = learn(connection, arrival)) entry = learned;
  }
  if (entry == nullptr) {
    ++counters_.passed;
    return Verdict::pass;
  }
  entry->heard = now;
  if (entry->ring == nullptr) {
    ++counters_.dropped_known;
    return Verdict::taken;
  }
  if (egress == Endpoint{}) {
    ++counters_.dropped_nowhere;
    return Verdict::taken;
  }
  if (entry->line == from_above) {
    entry->ring->on_total(arrival, sink);
  } else {
    entry->ring->on_packet(entry->line, arrival, sink);
  }
  return Verdict::taken;
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
  }
}

void Accelerator::check() const {
  for (const auto& [incarnation, ring] : rings_) ring->check();
}

}  // namespace netsum::netreduce
