#include "protocol/netreduce/learned_racks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "protocol/netreduce/racks.h"

namespace netsum::netreduce {
namespace {

using wire::netreduce::RingAgreement;

// The rack with ranks that comes before this one around the ring.
std::uint32_t before(const RingConfig& ring, std::uint32_t rack) {
  const auto racks = static_cast<std::uint32_t>(ring.racks.size());
  do {
    rack = (rack + racks - 1) % racks;
  } while (ring.racks[rack] == 0);
  return rack;
}

std::uint32_t first_rank(const RingConfig& ring, std::uint32_t rack) {
  return std::accumulate(ring.racks.begin(), ring.racks.begin() + rack, 0U);
}

Connection upwards(std::uint64_t life, std::uint32_t rack) {
  return {switch_address(life, rack), switch_address(life, at_root), up_qp};
}

void send(const Endpoint& to, const RingAgreement& message, Sink& sink) {
  write(sink.datagram(to, RingAgreement::bytes).first<RingAgreement::bytes>(), message);
}

}  // namespace

bool spans_racks(const RingConfig& ring) {
  return ring.racks.size() - static_cast<std::size_t>(std::count(ring.racks.begin(), ring.racks.end(), 0U)) > 1;
}

std::optional<RingConfig> rack_ring(const RingConfig& ring, std::uint32_t rack, const Endpoint& root) {
  if (rack >= ring.racks.size() || ring.racks[rack] == 0) return std::nullopt;
  if (!spans_racks(ring)) return ring;
  RingConfig part = ring;
  part.learned_lines = true;
  part.uplink = Uplink{{}, root};
  const std::uint32_t first = first_rank(ring, rack), last = first + ring.racks[rack] - 1;
  const auto add = [&](std::uint32_t rank, Way way) {
    Line& line = part.lines.emplace_back();
    line.ranks.insert(rank);
    line.way = way;
  };
  for (std::uint32_t rank = first; rank < last; ++rank) add(rank, Way::through);
  add(last, Way::leaving);
  add((first + ring.members - 1) % ring.members, Way::arriving);
  return part;
}

TunnelRing root_ring(const RingConfig& ring, std::span<const Endpoint> bumps, std::uint64_t life) {
  TunnelRing made{ring, {}};
  for (std::uint32_t rack = 0; rack < ring.racks.size(); ++rack) {
    if (ring.racks[rack] == 0) continue;
    Line& line = made.ring.lines.emplace_back();
    line.connection = upwards(life, rack);
    line.way = Way::child;
    const std::uint32_t first = first_rank(ring, rack);
    for (std::uint32_t rank = first; rank < first + ring.racks[rack]; ++rank) line.ranks.insert(rank);
    made.routes.push_back({line.connection, bumps[rack], bumps[rack]});
  }
  return made;
}

std::uint32_t digest_of(const RingConfig& ring) {
  std::vector<std::byte> bytes;
  append_bytes(bytes, ring.ring, ring.members, ring.window, ring.message_packets, ring.mtu,
               static_cast<std::uint32_t>(ring.dtype), static_cast<std::uint32_t>(ring.order));
  for (const std::uint32_t ranks : ring.racks) append_bytes(bytes, ranks);
  const wire::netreduce::Layout& layout = ring.layout;
  append_bytes(bytes, static_cast<std::uint32_t>(layout.seals), static_cast<std::uint32_t>(layout.big_endian),
               layout.magic_offset, layout.magic_bytes, layout.header_bytes);
  bytes.insert(bytes.end(), layout.magic.begin(), layout.magic.begin() + layout.magic_bytes);
  for (const auto& field :
       {layout.ring, layout.rank, layout.message, layout.packets, layout.signature, layout.dtype, layout.flags}) {
    append_bytes(bytes, field.offset, field.bytes);
  }
  return crc32c(bytes);
}

void LearnedRacks::add(const RingConfig& ring, const Rack& rack) {
  leaves_.push_back({ring, digest_of(ring), rack});
}

void LearnedRacks::add(const RingConfig& ring, Root root) {
  Top& top = tops_.emplace_back();
  top.ring = ring;
  top.digest = digest_of(ring);
  top.root = std::move(root);
  top.racks.resize(ring.racks.size());
}

template <class Ring>
Ring* LearnedRacks::find(std::vector<Ring>& rings, const Message& message) {
  bool differs = false;
  for (Ring& each : rings) {
    if (each.ring.ring != message.ring) continue;
    if (each.digest == message.digest) return &each;
    differs = true;
  }
  if (differs) differing_ = message;
  ++(differs ? counters_.differing : counters_.strangers);
  return nullptr;
}

void LearnedRacks::on_datagram(const RxView& datagram, Time now, Sink& sink) {
  const auto message = wire::netreduce::read_ring_agreement(datagram.bytes);
  if (!message) {
    ++counters_.malformed;
    return;
  }
  if (message->kind == Message::Kind::ready) {
    Top* const top = find(tops_, *message);
    if (top == nullptr) return;
    if (message->rack >= top->racks.size() || top->ring.racks[message->rack] == 0 ||
        datagram.source != top->root.bumps[message->rack]) {
      ++counters_.strangers;
      return;
    }
    ++counters_.ready;
    return on_ready(*top, *message, sink);
  }
  Leaf* const leaf = find(leaves_, *message);
  if (leaf == nullptr) return;
  if (message->rack != leaf->rack.rack || datagram.source != leaf->rack.root) {
    ++counters_.strangers;
    return;
  }
  ++(message->kind == Message::Kind::begin  ? counters_.begin
     : message->kind == Message::Kind::over ? counters_.over
                                            : counters_.ask);
  on_told(*leaf, *message, now, sink);
}

// ---- the root

void LearnedRacks::on_ready(Top& top, const Message& message, Sink& sink) {
  Said& said = top.racks[message.rack];
  const bool same_process = said.ready && said.ready->process == message.process;
  if (same_process && message.attempt < said.ready->attempt) return;  // late
  if (same_process && message.attempt == said.ready->attempt) {
    if (top.life != 0) return tell_begin(top, message.rack, sink);
    if (said.spent) tell_over(top, message, sink);
    return;
  }
  // Something has begun of which this process knows nothing: it was started since, and the sums are lost.
  if (message.begun) return tell_over(top, message, sink);
  // Anybody can send from the bump's address, but what is sent there comes to the bump only.
  if (!same_process && (said.challenge == 0 || message.challenge != said.challenge)) {
    while (said.challenge == 0) said.challenge = top.root.random();
    return ask(top, message, sink);
  }
  end(top, message.rack, sink);
  said.ready = message;
  said.spent = false;
  said.challenge = said.ready->challenge = 0;
  if (awaited(top.ring.incarnation).empty()) begin(top, sink);
}

std::vector<std::uint32_t> LearnedRacks::awaited(std::uint64_t incarnation) const {
  std::vector<std::uint32_t> racks;
  for (const Top& top : tops_) {
    if (top.ring.incarnation != incarnation) continue;
    for (std::uint32_t rack = 0; rack < top.racks.size(); ++rack) {
      if (top.ring.racks[rack] != 0 && (!top.racks[rack].ready || top.racks[rack].spent)) racks.push_back(rack);
    }
  }
  return racks;
}

void LearnedRacks::begin(Top& top, Sink& sink) {
  while (top.life == 0) top.life = top.root.random();
  ++counters_.lives;
  TunnelRing ring = root_ring(top.ring, top.root.bumps, top.life);
  // Their headers pass, where the root is in a wire between the racks.
  for (const Said& said : top.racks) {
    if (said.ready) ring.ring.passing.push_back({said.ready->source, said.ready->destination, said.ready->destination_qp});
  }
  if (!tunnel_.add_ring(ring, top.root.memory)) {  // a random number was issued twice: the hosts repeat, and so does this
    top.life = 0;
    return;
  }
  for (std::uint32_t rack = 0; rack < top.racks.size(); ++rack) {
    if (top.ring.racks[rack] != 0) tell_begin(top, rack, sink);
  }
}

// `by`: a rack whose connections have changed. In the others hosts may go on, where nothing has left yet.
void LearnedRacks::end(Top& top, std::uint32_t by, Sink& sink) {
  if (top.life == 0) return;
  top.life = 0;
  for (Said& said : top.racks) {
    said.spent = true;
    if (said.ready && said.ready->rack != by) tell_over(top, *said.ready, sink);
  }
  static_cast<void>(tunnel_.remove_ring(top.ring.incarnation));
}

void LearnedRacks::ask(const Top& top, Message ready, Sink& sink) const {
  ready.kind = Message::Kind::ask;
  ready.challenge = top.racks[ready.rack].challenge;
  send(top.root.bumps[ready.rack], ready, sink);
}

void LearnedRacks::tell_over(const Top& top, Message ready, Sink& sink) {
  ready.kind = Message::Kind::over;
  send(top.root.bumps[ready.rack], ready, sink);
}

void LearnedRacks::tell_begin(const Top& top, std::uint32_t rack, Sink& sink) const {
  Message message = *top.racks[rack].ready;
  const Message& arriving = *top.racks[before(top.ring, rack)].ready;
  message.kind = Message::Kind::begin;
  message.begun = false;
  message.source = arriving.source;
  message.destination = arriving.destination;
  message.destination_qp = arriving.destination_qp;
  message.first_psn = arriving.first_psn;
  message.life = top.life;
  message.incarnation = top.ring.incarnation;
  send(top.root.bumps[rack], message, sink);
}

bool LearnedRacks::is_root_of(std::uint64_t incarnation) const {
  return std::any_of(tops_.begin(), tops_.end(), [&](const Top& top) { return top.ring.incarnation == incarnation; });
}

// ---- a rack's bump

void LearnedRacks::announce(std::uint64_t incarnation, Sink& sink, std::uint64_t challenge) const {
  const auto leaf =
      std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& each) { return each.ring.incarnation == incarnation; });
  if (leaf == leaves_.end()) return;
  const Accelerator::Gathered gathered = tunnel_.accelerator().gathered(incarnation);
  if (!gathered.complete) return;
  Message message;
  message.kind = Message::Kind::ready;
  message.begun = gathered.begun;
  message.ring = leaf->ring.ring;
  message.digest = leaf->digest;
  message.rack = leaf->rack.rack;
  message.process = leaf->rack.process;
  message.attempt = gathered.attempt;
  message.source = gathered.leaving.connection.source;
  message.destination = gathered.leaving.connection.destination;
  message.destination_qp = gathered.leaving.connection.destination_qp;
  message.first_psn = *gathered.leaving.first_psn;
  message.challenge = challenge;
  send(leaf->rack.root, message, sink);
}

void LearnedRacks::on_told(const Leaf& leaf, const Message& message, Time now, Sink& sink) {
  const std::uint64_t incarnation = leaf.ring.incarnation;
  const Accelerator::Gathered gathered = tunnel_.accelerator().gathered(incarnation);
  // The message is about connections that have been replaced since.
  if (message.process != leaf.rack.process || message.attempt != gathered.attempt || !gathered.complete) return;
  if (message.kind == Message::Kind::ask) return announce(incarnation, sink, message.challenge);
  if (message.kind == Message::Kind::over) {
    tunnel_.accelerator().end_life(incarnation);
    tunnel_.reroute(incarnation, {});
    return announce(incarnation, sink);
  }
  if (gathered.begun) return;
  RingLife life;
  life.up = upwards(message.life, leaf.rack.rack);
  life.incarnation = message.incarnation;
  life.arriving = {{message.source, message.destination, message.destination_qp}, message.first_psn};
  if (!tunnel_.accelerator().begin_life(incarnation, life, now)) return;
  tunnel_.reroute(incarnation, {{Uplink{life.up, {}}.down(), leaf.rack.root, leaf.rack.root}});
}

// ---- for comparing states

void LearnedRacks::append_state(std::vector<std::byte>& out) const {
  for (const Top& top : tops_) {
    append_bytes(out, top.life);
    for (const Said& said : top.racks) {
      append_bytes(out, static_cast<std::uint8_t>(said.ready.has_value() | said.spent << 1), said.challenge);
      if (!said.ready) continue;
      append_bytes(out, said.ready->process, said.ready->attempt, said.ready->source, said.ready->destination,
                   said.ready->destination_qp, said.ready->first_psn);
    }
  }
}

}  // namespace netsum::netreduce
