#include "protocol/netreduce/accelerator.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/kernels.h"

namespace netsum::netreduce {
namespace {

using wire::netreduce::InaHeader;
using wire::roce::Packet;
using wire::roce::Shape;

// A packet's buffer: its frame, placed so that the payload begins at a cache line.
constexpr std::size_t headers_room = 128;  // virtio, Ethernet with two tags, IPv6, UDP, BTH, RETH, immediate: 112
constexpr std::size_t cache_line = 64;
constexpr std::uint32_t max_pad = 3;

constexpr std::size_t stride_of(std::uint32_t mtu) {
  const std::size_t bytes = headers_room + mtu + max_pad + wire::roce::icrc_bytes;
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

constexpr std::uint32_t none = UINT32_MAX;  // no PSN has so many bits

// A packet's place in the ring's stream, in order.
struct Place {
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
  auto operator<=>(const Place&) const = default;
};

}  // namespace

std::string check(const RingConfig& config) {
  const auto between = [](const char* what, std::uint64_t value, std::uint64_t least, std::uint64_t most) -> std::string {
    if (value >= least && value <= most) return "";
    return std::string(what) + " " + std::to_string(value) + " is not between " + std::to_string(least) + " and " +
           std::to_string(most);
  };
  for (const std::string& error :
       {between("ring size", config.members, 1, wire::netreduce::max_workers),
        between("window", config.window, 1, wire::netreduce::max_window),
        between("message length", config.message_packets, 1, wire::netreduce::max_message_packets),
        between("MTU", config.mtu, 256, wire::roce::max_mtu)}) {
    if (!error.empty()) return error;
  }
  const std::uint32_t message_bytes = config.layout.message.bytes;
  if (message_bytes < 4 && std::uint64_t{4} * config.window > std::uint64_t{1} << (8 * message_bytes)) {
    return "message IDs of " + std::to_string(message_bytes) + " bytes are too short to tell four windows of " +
           std::to_string(config.window) + " messages apart";
  }
  if (!config.connections.empty() && config.connections.size() != config.members) {
    return std::to_string(config.connections.size()) + " connections for " + std::to_string(config.members) + " members";
  }
  // Two windows must be far from half of the PSNs, or old and new could not be told apart.
  if (std::uint64_t{2} * config.window * config.message_packets > (wire::roce::psn_mask + 1) / 4) {
    return "two windows of " + std::to_string(config.window) + " messages of " + std::to_string(config.message_packets) +
           " packets are too much for 24-bit packet numbers";
  }
  return "";
}

// What a frame turned out to be.
struct Accelerator::Arrival {
  std::span<const std::byte> frame;
  std::size_t ip_at = 0, ip_bytes = 0;
  const Packet& packet;
  Shape shape;
  const Endpoint& egress;

  [[nodiscard]] std::span<const std::byte> ip() const { return frame.subspan(ip_at, ip_bytes); }
  [[nodiscard]] std::size_t payload_at() const { return static_cast<std::size_t>(packet.payload.data() - frame.data()); }
};

struct Accelerator::Ring {
  // One message's aggregators; message m has those at m % 2N (§3.1).
  struct Slot {
    bool used = false;
    std::uint64_t message = 0;
    std::uint32_t packets = 0;
    std::uint32_t first_rank = 0, signature = 0;
    DType dtype = DType::float32;
    bool average = false;
  };
  struct Aggregator {
    std::uint16_t payload = 0;  // bytes; of all ranks alike
    std::uint16_t arrived = 0;  // ranks
    bool complete = false;      // its sum is in rank 0's buffer
  };
  struct Buffer {
    std::uint16_t bytes = 0;  // of the frame
    std::uint16_t ip_at = 0, ip_bytes = 0, payload_at = 0;
  };
  struct Peer {
    Connection connection;
    bool bound = false;
    Endpoint egress;     // of its newest packet
    Place expected;      // the first that has not arrived
    bool asked = false;  // a later sum was sent on, so that its receiver asks for that one
    std::uint32_t last_slot = 0;
  };

  Ring(const RingConfig& c, std::span<std::byte> m)
      : config(c),
        memory(m),
        slots(std::size_t{2} * c.window),
        aggregators(slots.size() * c.message_packets),
        words((c.members + 63) / 64),
        bitmaps(aggregators.size() * words),
        buffers(aggregators.size() * c.members),
        first_psns(slots.size() * c.members, none),
        peers(c.members),
        sources(c.members),
        stride(stride_of(c.mtu)),
        sum(c.mtu) {}

  [[nodiscard]] std::uint32_t slot_of(std::uint64_t message) const {
    return static_cast<std::uint32_t>(message % slots.size());
  }
  [[nodiscard]] std::size_t index(std::uint32_t slot, std::uint32_t packet) const {
    return std::size_t{slot} * config.message_packets + packet;
  }
  [[nodiscard]] bool holds(const Place& place) const {
    const Slot& slot = slots[slot_of(place.message)];
    return slot.used && slot.message == place.message && place.packet < slot.packets;
  }
  [[nodiscard]] const Aggregator& at(const Place& place) const {
    return aggregators[index(slot_of(place.message), place.packet)];
  }
  [[nodiscard]] bool has(const Place& place, std::uint32_t rank) const {
    return holds(place) && arrived(index(slot_of(place.message), place.packet), rank);
  }
  [[nodiscard]] bool arrived(std::size_t aggregator, std::uint32_t rank) const {
    return (bitmaps[aggregator * words + rank / 64] >> (rank % 64) & 1) != 0;
  }
  void mark(std::size_t aggregator, std::uint32_t rank) {
    bitmaps[aggregator * words + rank / 64] |= std::uint64_t{1} << (rank % 64);
  }
  [[nodiscard]] Place after(const Place& place) const {
    const Slot& slot = slots[slot_of(place.message)];
    return place.packet + 1 < slot.packets ? Place{place.message, place.packet + 1} : Place{place.message + 1, 0};
  }
  [[nodiscard]] std::uint32_t& first_psn(std::uint32_t slot, std::uint32_t rank) {
    return first_psns[std::size_t{slot} * config.members + rank];
  }
  [[nodiscard]] std::span<std::byte> frame_of(std::size_t aggregator, std::uint32_t rank) {
    const std::size_t buffer = aggregator * config.members + rank;
    return memory.subspan(buffer * stride + headers_room - buffers[buffer].payload_at, buffers[buffer].bytes);
  }
  [[nodiscard]] std::byte* payload_of(std::size_t aggregator, std::uint32_t rank) {
    return memory.data() + (aggregator * config.members + rank) * stride + headers_room;
  }
  // What is in front of the values: the INA header in a message's first packet, the seal in all.
  [[nodiscard]] std::size_t skipped(std::uint32_t packet) const {
    if (packet == 0) return config.layout.header_bytes;
    return config.layout.seals ? wire::netreduce::seal_bytes : 0;
  }
  [[nodiscard]] bool learned() const { return config.connections.empty(); }

  RingConfig config;
  std::span<std::byte> memory;
  std::vector<Slot> slots;
  std::vector<Aggregator> aggregators;  // [slot][packet]
  std::size_t words;
  std::vector<std::uint64_t> bitmaps;     // [slot][packet][word]
  std::vector<Buffer> buffers;            // [slot][packet][rank]
  std::vector<std::uint32_t> first_psns;  // [slot][rank]: PSN0 of the CLT; none: the first packet was not seen
  std::vector<Peer> peers;
  std::vector<const std::byte*> sources;  // of the sum being formed
  std::size_t stride;
  std::vector<std::byte> sum;  // likewise
  Place next;                  // the first sum that was not sent to all
  std::optional<RingMismatch> mismatch;
  RingCounters counters;

  void open(std::uint32_t slot, const InaHeader& header, std::uint32_t rank);
  [[nodiscard]] std::optional<Place> place_first(std::uint32_t rank, const Arrival& arrival);
  [[nodiscard]] std::optional<Place> place_other(std::uint32_t rank, const Arrival& arrival);
  void store(std::size_t aggregator, std::uint32_t rank, const Arrival& arrival);
  void add_up(std::uint32_t slot, std::uint32_t packet);
  void send_sums(Sink& sink);
  void ask_for_missing(const Place& place, Sink& sink);
  void send(const Place& place, std::uint32_t rank, std::span<const std::byte> frame, std::size_t ip_at,
            std::size_t ip_bytes, std::size_t payload_at, Sink& sink);
  void send_to(const Place& place, std::uint32_t rank, Sink& sink);
};

// The message's aggregators are empty from here on.
void Accelerator::Ring::open(std::uint32_t slot, const InaHeader& header, std::uint32_t rank) {
  Slot& s = slots[slot];
  s.used = true;
  s.message = header.message;
  s.packets = header.packets;
  s.first_rank = rank;
  s.signature = header.signature;
  s.dtype = header.dtype;
  s.average = header.average;
  const std::size_t begin = index(slot, 0);
  std::fill_n(aggregators.begin() + static_cast<std::ptrdiff_t>(begin), config.message_packets, Aggregator{});
  std::fill_n(bitmaps.begin() + static_cast<std::ptrdiff_t>(begin * words), config.message_packets * words, 0);
  std::fill_n(first_psns.begin() + static_cast<std::ptrdiff_t>(std::size_t{slot} * config.members), config.members, none);
}

// A packet that begins a message says which: it fills in the connection's entry of the CLT (§3.2).
std::optional<Place> Accelerator::Ring::place_first(std::uint32_t rank, const Arrival& arrival) {
  const wire::netreduce::Layout& layout = config.layout;
  std::optional<InaHeader> header = wire::netreduce::read_header(layout, arrival.packet.payload);
  if (header) {
    header->message = wire::netreduce::extend_message(header->message, 8 * layout.message.bytes, next.message);
    if (layout.packets.bytes == 0) header->packets = config.message_packets;
    if (layout.dtype.bytes == 0) header->dtype = config.dtype;
  }
  if (!header || header->ring != config.ring || header->rank != rank || header->packets == 0 ||
      header->packets > config.message_packets) {
    ++counters.dropped_header;
    return std::nullopt;
  }
  const std::uint64_t message = header->message;
  const std::uint32_t psn = arrival.packet.bth.psn;
  const std::uint32_t slot = slot_of(message);
  Slot& s = slots[slot];
  if (s.used && message < s.message) {
    ++counters.dropped_old;
    return std::nullopt;
  }
  if (!s.used || message > s.message) {
    // Its buffers are free once everybody has the message two windows earlier: a host sends this one when it has the result
    // one window earlier, to which all have contributed, and so had that. From a host that does not keep to that, sums that
    // wait for their turn are safe too.
    const bool free = s.used ? message == s.message + slots.size() && s.message < next.message : message < slots.size();
    if (!free) {
      ++counters.dropped_early;
      return std::nullopt;
    }
  }
  // Messages follow each other on a connection without a gap.
  const auto contradicts = [&](std::uint64_t neighbour, std::int32_t packets) {
    const std::uint32_t at = slot_of(neighbour);
    if (!slots[at].used || slots[at].message != neighbour || first_psn(at, rank) == none) return false;
    const std::int32_t distance = packets != 0 ? packets : -static_cast<std::int32_t>(slots[at].packets);
    return wire::roce::psn_distance(psn, first_psn(at, rank)) != distance;
  };
  const bool known = s.used && s.message == message && first_psn(slot, rank) != none;
  if ((known && first_psn(slot, rank) != psn) || arrival.shape.last != (header->packets == 1) ||
      contradicts(message + 1, static_cast<std::int32_t>(header->packets)) || (message > 0 && contradicts(message - 1, 0))) {
    ++counters.dropped_misplaced;
    return std::nullopt;
  }
  if (!s.used || s.message != message) open(slot, *header, rank);
  if (s.packets != header->packets || s.signature != header->signature || s.dtype != header->dtype ||
      s.average != header->average) {
    ++counters.dropped_mismatch;
    if (!mismatch) mismatch = {message, std::min(s.first_rank, rank), std::max(s.first_rank, rank)};
    return std::nullopt;
  }
  first_psn(slot, rank) = psn;
  peers[rank].last_slot = slot;
  return Place{message, 0};
}

// Any other packet says only its PSN. Go-back-N restarts in the middle of messages when first packets of later ones have
// long been seen, so every message of two windows is looked at, not only the newest.
std::optional<Place> Accelerator::Ring::place_other(std::uint32_t rank, const Arrival& arrival) {
  const auto within = [&](std::uint32_t slot) -> std::optional<Place> {
    const std::uint32_t first = first_psn(slot, rank);
    if (!slots[slot].used || first == none) return std::nullopt;
    const std::int32_t packet = wire::roce::psn_distance(first, arrival.packet.bth.psn);
    if (packet < 0 || packet >= static_cast<std::int32_t>(slots[slot].packets)) return std::nullopt;
    return Place{slots[slot].message, static_cast<std::uint32_t>(packet)};
  };
  std::optional<Place> place = within(peers[rank].last_slot);
  for (std::uint32_t slot = 0; !place && slot < slots.size(); ++slot) {
    place = within(slot);
    if (place) peers[rank].last_slot = slot;
  }
  if (!place) {
    ++counters.dropped_unplaced;
    return std::nullopt;
  }
  const bool last = place->packet + 1 == slots[slot_of(place->message)].packets;
  if (place->packet == 0 || last != arrival.shape.last) {
    ++counters.dropped_misplaced;
    return std::nullopt;
  }
  return place;
}

void Accelerator::Ring::store(std::size_t aggregator, std::uint32_t rank, const Arrival& arrival) {
  Buffer& buffer = buffers[aggregator * config.members + rank];
  buffer.bytes = static_cast<std::uint16_t>(arrival.ip_at + arrival.ip_bytes);
  buffer.ip_at = static_cast<std::uint16_t>(arrival.ip_at);
  buffer.ip_bytes = static_cast<std::uint16_t>(arrival.ip_bytes);
  buffer.payload_at = static_cast<std::uint16_t>(arrival.payload_at());
  const std::span<std::byte> to = frame_of(aggregator, rank);
  std::memcpy(to.data(), arrival.frame.data(), to.size());
  mark(aggregator, rank);
  ++aggregators[aggregator].arrived;
}

// In rank order, over what is buffered: a repeat can change nothing, and the same contributions give the same bits.
void Accelerator::Ring::add_up(std::uint32_t slot, std::uint32_t packet) {
  const std::size_t aggregator = index(slot, packet);
  Aggregator& a = aggregators[aggregator];
  const std::size_t skip = skipped(packet), bytes = a.payload - skip;
  for (std::uint32_t rank = 0; rank < config.members; ++rank) sources[rank] = payload_of(aggregator, rank) + skip;
  const Slot& s = slots[slot];
  kernels::sum_in_order(s.dtype, sum.data(), sources, bytes / bytes_of(s.dtype), s.average ? config.members : 1);
  if (config.layout.seals) {
    wire::netreduce::write_seal(std::span(payload_of(aggregator, 0), wire::netreduce::seal_bytes),
                                {config.incarnation, config.ring, s.message, packet, config.members});
  }
  std::memcpy(payload_of(aggregator, 0) + skip, sum.data(), bytes);
  a.complete = true;
  ++counters.sums;
}

// A frame as it came, but with the sum, the seal and new checksums.
void Accelerator::Ring::send(const Place& place, std::uint32_t rank, std::span<const std::byte> frame, std::size_t ip_at,
                             std::size_t ip_bytes, std::size_t payload_at, Sink& sink) {
  const std::size_t aggregator = index(slot_of(place.message), place.packet);
  const std::size_t skip = skipped(place.packet), bytes = aggregators[aggregator].payload;
  const std::span<std::byte> out = sink.datagram(peers[rank].egress, ip_at + ip_bytes);
  std::memcpy(out.data(), frame.data(), payload_at + skip);
  std::memcpy(out.data() + payload_at + skip, payload_of(aggregator, 0) + skip, bytes - skip);
  const std::size_t end = payload_at + bytes;
  std::memcpy(out.data() + end, frame.data() + end, ip_at + ip_bytes - end);  // pad
  if (config.layout.seals) std::memcpy(out.data() + payload_at, payload_of(aggregator, 0), wire::netreduce::seal_bytes);
  wire::roce::write_checksums(out.subspan(ip_at));
  ++counters.results;
}

void Accelerator::Ring::send_to(const Place& place, std::uint32_t rank, Sink& sink) {
  const std::size_t aggregator = index(slot_of(place.message), place.packet);
  const Buffer& buffer = buffers[aggregator * config.members + rank];
  send(place, rank, frame_of(aggregator, rank), buffer.ip_at, buffer.ip_bytes, buffer.payload_at, sink);
}

// All sums whose turn it is.
void Accelerator::Ring::send_sums(Sink& sink) {
  while (holds(next) && at(next).complete) {
    for (std::uint32_t rank = 0; rank < config.members; ++rank) send_to(next, rank, sink);
    next = after(next);
  }
}

// A sum that waits for its turn while a member's own packets have a gap before it: something of that member was lost on its
// way here, and its receiver, who alone can ask for it, sees nothing missing. It is sent this sum early: behind a gap it is
// not taken, but answered with a NAK.
void Accelerator::Ring::ask_for_missing(const Place& place, Sink& sink) {
  for (std::uint32_t rank = 0; rank < config.members; ++rank) {
    Peer& peer = peers[rank];
    if (peer.asked || peer.expected >= place) continue;
    peer.asked = true;
    ++counters.early;
    send_to(place, rank, sink);
  }
}

std::size_t Accelerator::memory_bytes(const RingConfig& config) {
  return std::size_t{2} * config.window * config.message_packets * config.members * stride_of(config.mtu);
}

Accelerator::Accelerator() = default;
Accelerator::~Accelerator() = default;
Accelerator::Accelerator(Accelerator&&) noexcept = default;
Accelerator& Accelerator::operator=(Accelerator&&) noexcept = default;

bool Accelerator::add_ring(const RingConfig& config, std::span<std::byte> memory) {
  if (rings_.contains(config.incarnation)) return false;
  for (const Connection& connection : config.connections) {
    const auto found = table_.find(connection);
    if (found != table_.end() && found->second.ring != nullptr) return false;
    if (std::count(config.connections.begin(), config.connections.end(), connection) != 1) return false;
  }
  auto ring = std::make_unique<Ring>(config, memory);
  for (std::uint32_t rank = 0; rank < config.connections.size(); ++rank) {
    ring->peers[rank].connection = config.connections[rank];
    ring->peers[rank].bound = true;
    table_[config.connections[rank]] = {ring.get(), rank, {}};
  }
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
    const auto header = wire::netreduce::read_header(ring->config.layout, arrival.packet.payload);
    if (!header || header->ring != ring->config.ring || header->rank >= ring->config.members) continue;
    if (!wire::roce::icrc_valid(arrival.ip())) return nullptr;  // passed on, and dropped by whoever checks it
    Entry& entry = table_[connection];
    if (header->message == 0) {
      if (ring->peers[header->rank].bound) begin_again(*ring);
      Ring::Peer& peer = ring->peers[header->rank];
      peer.connection = connection;
      peer.bound = true;
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
  const RingCounters counters = ring.counters;
  ring = Ring(ring.config, ring.memory);
  ring.counters = counters;
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
  on_gradient(*entry->ring, entry->rank, arrival, sink);
  return Verdict::taken;
}

void Accelerator::on_gradient(Ring& ring, std::uint32_t rank, const Arrival& arrival, Sink& sink) {
  RingCounters& counters = ring.counters;
  ++counters.packets;
  counters.bytes += arrival.ip_bytes;
  // What is damaged must not get in: it would leave with a checksum that is right.
  if (!wire::roce::icrc_valid(arrival.ip())) {
    ++counters.dropped_icrc;
    return;
  }
  const std::optional<Place> place = arrival.shape.first ? ring.place_first(rank, arrival) : ring.place_other(rank, arrival);
  if (!place) return;
  const std::uint32_t slot = ring.slot_of(place->message);
  const std::size_t aggregator = ring.index(slot, place->packet);
  Ring::Aggregator& a = ring.aggregators[aggregator];
  const std::size_t payload = arrival.packet.payload.size(), skip = ring.skipped(place->packet);
  const bool fits = payload <= ring.config.mtu && payload >= skip && arrival.payload_at() <= headers_room &&
                    (payload - skip) % bytes_of(ring.slots[slot].dtype) == 0;
  if (!fits || (a.arrived != 0 && payload != a.payload)) {
    ++counters.dropped_shape;
    return;
  }
  Ring::Peer& peer = ring.peers[rank];
  peer.egress = arrival.egress;
  if (ring.arrived(aggregator, rank)) {
    if (!a.complete) {
      ++counters.repeats_waiting;
    } else if (*place >= ring.next && ring.config.order == Order::ring) {
      ++counters.repeats_held;
    } else {
      ++counters.repeats_answered;
      ring.send(*place, rank, arrival.frame, arrival.ip_at, arrival.ip_bytes, arrival.payload_at(), sink);
    }
    return;
  }
  ++counters.contributions;
  a.payload = static_cast<std::uint16_t>(payload);
  ring.store(aggregator, rank, arrival);
  if (peer.expected == *place) peer.asked = false;
  while (ring.has(peer.expected, rank)) peer.expected = ring.after(peer.expected);
  if (a.arrived < ring.config.members) return;
  ring.add_up(slot, place->packet);
  if (ring.config.order == Order::arrival) {
    for (std::uint32_t to = 0; to < ring.config.members; ++to) ring.send_to(*place, to, sink);
    while (ring.holds(ring.next) && ring.at(ring.next).complete) ring.next = ring.after(ring.next);
    return;
  }
  ring.send_sums(sink);
  if (*place >= ring.next) ring.ask_for_missing(*place, sink);
}

std::optional<RingMismatch> Accelerator::mismatch(std::uint64_t incarnation) const {
  const auto found = rings_.find(incarnation);
  return found == rings_.end() ? std::nullopt : found->second->mismatch;
}

std::optional<RingStall> Accelerator::stall(std::uint64_t incarnation) const {
  const auto found = rings_.find(incarnation);
  if (found == rings_.end()) return std::nullopt;
  const Ring& ring = *found->second;
  if (!ring.holds(ring.next)) return std::nullopt;
  RingStall stall{ring.next.message, ring.next.packet, {}};
  for (std::uint32_t rank = 0; rank < ring.config.members; ++rank) {
    if (!ring.has(ring.next, rank)) stall.missing.insert(rank);
  }
  return stall;
}

const RingCounters* Accelerator::ring_counters(std::uint64_t incarnation) const {
  const auto found = rings_.find(incarnation);
  return found == rings_.end() ? nullptr : &found->second->counters;
}

void Accelerator::append_state(std::vector<std::byte>& out) const {
  std::vector<std::uint64_t> incarnations;
  for (const auto& [incarnation, ring] : rings_) incarnations.push_back(incarnation);
  std::sort(incarnations.begin(), incarnations.end());
  for (const std::uint64_t incarnation : incarnations) {
    const Ring& ring = *rings_.at(incarnation);
    append_bytes(out, incarnation, ring.next.message, ring.next.packet);
    for (const Ring::Peer& peer : ring.peers) {
      append_bytes(out, peer.expected.message, peer.expected.packet, static_cast<std::uint8_t>(peer.asked));
    }
    for (std::uint32_t slot = 0; slot < ring.slots.size(); ++slot) {
      const Ring::Slot& s = ring.slots[slot];
      append_bytes(out, static_cast<std::uint8_t>(s.used), s.message, s.packets, s.signature);
      for (std::uint32_t rank = 0; rank < ring.config.members; ++rank) {
        append_bytes(out, ring.first_psns[std::size_t{slot} * ring.config.members + rank]);
      }
      for (std::uint32_t packet = 0; s.used && packet < s.packets; ++packet) {
        const std::size_t aggregator = ring.index(slot, packet);
        const Ring::Aggregator& a = ring.aggregators[aggregator];
        append_bytes(out, a.payload, static_cast<std::uint8_t>(a.complete));
        for (std::uint32_t rank = 0; rank < ring.config.members; ++rank) {
          const std::size_t buffer = aggregator * ring.config.members + rank;
          if (!ring.arrived(aggregator, rank)) continue;
          append_bytes(out, rank);
          const auto payload = ring.memory.subspan(buffer * ring.stride + headers_room, a.payload);
          if (!a.complete || rank == 0) out.insert(out.end(), payload.begin(), payload.end());
        }
      }
    }
  }
  for (const Connection& connection : known()) {
    append_bytes(out, connection.source, connection.destination, connection.destination_qp);
  }
}

void Accelerator::check() const {
  for (const auto& [incarnation, ring] : rings_) {
    const RingCounters& c = ring->counters;
    NETSUM_CHECK(c.packets == c.contributions + c.repeats_answered + c.repeats_held + c.repeats_waiting + c.dropped_icrc +
                                  c.dropped_header + c.dropped_unplaced + c.dropped_old + c.dropped_early +
                                  c.dropped_misplaced + c.dropped_mismatch + c.dropped_shape);
    for (const Ring::Peer& peer : ring->peers) NETSUM_CHECK(peer.expected >= ring->next);
    NETSUM_CHECK(!ring->holds(ring->next) || !ring->at(ring->next).complete);
  }
}

}  // namespace netsum::netreduce
