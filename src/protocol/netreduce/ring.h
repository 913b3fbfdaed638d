// One ring at an accelerator: the aggregators of two windows (NetReduce §3.1), the packet state of each of its connections
// (the CLT's PSN0, §3.2), the sums, and the order in which they leave. In a tree of switches (§3.3) also the partial sum
// that goes up, the total that comes down, and the headers of connections that cross racks. Part of the accelerator, which
// maps packets to connections.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/packet_io.h"
#include "protocol/netreduce/ring_config.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::netreduce {

// A frame with its parsed packet.
struct Arrival {
  std::span<const std::byte> frame;
  std::size_t ip_at = 0, ip_bytes = 0;
  const wire::roce::Packet& packet;
  wire::roce::Shape shape;
  Endpoint egress;
  std::span<const Endpoint> flood{};  // where it goes if `egress` is unknown

  [[nodiscard]] std::span<const std::byte> ip() const { return frame.subspan(ip_at, ip_bytes); }
  [[nodiscard]] std::size_t payload_at() const { return static_cast<std::size_t>(packet.payload.data() - frame.data()); }
};

// A packet's place in the ring's stream, in order.
struct Place {
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
  auto operator<=>(const Place&) const = default;
};

// How a packet concerns a ring.
enum class RingPacket : std::uint8_t {
  gradient,  // of one of its lines
  total,     // from the switch above
  missing,   // from a line's receiver
};

class Ring {
 public:
  [[nodiscard]] static std::size_t memory_bytes(const RingConfig& config);

  Ring(const RingConfig& config, std::span<std::byte> memory);

  void serve(RingPacket kind, std::uint32_t line, const Arrival& arrival, Sink& sink);
  // A packet of line `line`.
  void on_packet(std::uint32_t line, const Arrival& arrival, Sink& sink);
  // The line's receiver says what it misses, as repeats_singly() or answers().
  void on_missing(std::uint32_t line, const Arrival& arrival, Sink& sink);
  // A packet from the switch above.
  void on_total(const Arrival& arrival, Sink& sink);

  [[nodiscard]] const RingConfig& config() const { return config_; }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  // State is a value, apart from the memory: a copy refers to the same until this names another with the same content.
  void move_memory(std::span<std::byte> memory) { memory_ = memory; }
  // The connections of config().lines in this ring's order: first those that contribute, by their lowest ranks, then the
  // others.
  [[nodiscard]] const std::vector<Line>& lines() const { return lines_; }
  // Whether connections are learned (foreign hosts).
  [[nodiscard]] bool learned() const {
    return config_.connections.empty() && (config_.lines.empty() || config_.learned_lines);
  }
  // Whether it is a rack's part of a learned ring. Its ranks' packets are dropped until begin(): a host that has died since
  // must not contribute, and those that live repeat theirs.
  [[nodiscard]] bool in_racks() const { return config_.learned_lines; }
  [[nodiscard]] const std::optional<RingLife>& life() const { return life_; }
  // Grows whenever the rack's connections change.
  [[nodiscard]] std::uint64_t attempt() const { return attempt_; }
  void set_attempt(std::uint64_t attempt) { attempt_ = attempt; }
  void begin(const RingLife& life, bool held);
  // Whether all of the rack's ranks are bound, and recorded.
  [[nodiscard]] bool gathered() const;
  [[nodiscard]] bool contributes(std::uint32_t line) const { return peers_[line].contributes; }
  // The line of a rank's own connection. None: it is not at this switch.
  [[nodiscard]] std::optional<std::uint32_t> line_of(std::uint32_t rank) const;
  // Where the line's newest packet with a known next hop went; default-constructed: there was none.
  [[nodiscard]] const Endpoint& egress(std::uint32_t line) const { return peers_[line].egress; }
  [[nodiscard]] bool bound(std::uint32_t line) const { return peers_[line].bound; }
  // Whether the next hop of the line's packets may be unknown: only headers go there, and none of the line's sums.
  [[nodiscard]] bool may_flood(std::uint32_t line) const { return lines_[line].way == Way::leaving; }
  // Whether the line's receiver asks for single packets; or goes back, and its NAKs come here. These do not change.
  [[nodiscard]] bool repeats_singly(std::uint32_t line) const { return lines_[line].repair.has_value(); }
  [[nodiscard]] bool answers(std::uint32_t line) const { return peers_[line].answers; }
  // `held`: no sum leaves on it before release().
  void bind(std::uint32_t line, const Connection& connection, bool held);
  void release(std::uint32_t line, Sink& sink);
  // Whether any sum has left: then the ring's stream cannot begin again with the same connections.
  [[nodiscard]] bool answered() const { return answered_; }
  // Whether a header with message 0, whose PSN is not that of this ring's message 0, begins another stream. If not, its
  // message number has wrapped.
  [[nodiscard]] bool begins_another(std::uint64_t message_on_wire) const;

  [[nodiscard]] const RingCounters& counters() const { return counters_; }
  void set_counters(const RingCounters& counters) { counters_ = counters; }
  [[nodiscard]] const std::optional<RingMismatch>& mismatch() const { return mismatch_; }
  [[nodiscard]] std::optional<RingStall> stall() const;
  void append_state(std::vector<std::byte>& out) const;
  void check() const;

 private:
  // One message's aggregators; message m uses slot m % 2N (§3.1).
  struct Slot {
    bool used = false;
    std::uint64_t message = 0;
    std::uint32_t packets = 0;
    std::uint32_t first_rank = 0, signature = 0;
    DType dtype = DType::float32;
    bool average = false;
    bool referenced = false;  // the sink may refer to its sums
  };
  struct Aggregator {
    std::uint16_t payload = 0;   // bytes; the same for all contributions
    std::uint16_t arrived = 0;   // contributions
    bool summed = false;         // contributions from below this switch are complete: `sum_line`'s buffer holds their sum,
    bool complete = false;       // or the sum of all: the same one at the root, the total from above elsewhere
    std::uint32_t sum_line = 0;  // whose contribution was the last
    std::uint32_t crc = 0;       // of the complete sum's values
  };
  struct Buffer {
    std::uint16_t bytes = 0;  // of the frame
    std::uint16_t ip_at = 0, ip_bytes = 0, payload_at = 0;
  };
  struct Peer {
    bool bound = false;
    bool held = false;
    bool contributes = true, in_order = true;
    bool answers = false;  // its receiver goes back, and its NAKs are answered from here
    Endpoint egress;       // of the newest packet
    Place expected;        // the first not yet arrived
    Place sent;            // the first whose sum was not yet sent to it
    bool asked = false;    // a later sum was sent, so that the receiver asks for the missing one
    Place newest;          // the one that came last
    Place repeated;        // the first whose sum had not been sent to it when its sender last went back
    std::uint32_t last_slot = 0;
    std::uint32_t heard = 0;  // with repair: the PSN behind all that came
  };
  // The connection from above.
  struct Totals {
    Place expected;      // the first not yet arrived
    bool asked = false;  // a later one arrived: the missing ones were sent up again
    std::uint32_t last_slot = 0;
  };

  [[nodiscard]] std::uint32_t slot_of(std::uint64_t message) const {
    return static_cast<std::uint32_t>(message % slots_.size());
  }
  [[nodiscard]] std::size_t index(const Place& place) const {
    return std::size_t{slot_of(place.message)} * config_.message_packets + place.packet;
  }
  [[nodiscard]] bool holds(const Place& place) const {
    const Slot& slot = slots_[slot_of(place.message)];
    return slot.used && slot.message == place.message && place.packet < slot.packets;
  }
  [[nodiscard]] const Aggregator& at(const Place& place) const { return aggregators_[index(place)]; }
  [[nodiscard]] Aggregator& at(const Place& place) { return aggregators_[index(place)]; }
  [[nodiscard]] bool has(const Place& place, std::uint32_t line) const {
    return holds(place) && arrived(index(place), line);
  }
  [[nodiscard]] bool arrived(std::size_t aggregator, std::uint32_t line) const {
    return (bitmaps_[aggregator * words_ + line / 64] >> (line % 64) & 1) != 0;
  }
  [[nodiscard]] Place after(const Place& place) const {
    const Slot& slot = slots_[slot_of(place.message)];
    return place.packet + 1 < slot.packets ? Place{place.message, place.packet + 1} : Place{place.message + 1, 0};
  }
  [[nodiscard]] Place next() const;  // the first sum not yet sent to all
  [[nodiscard]] std::uint32_t& first_psn(std::uint32_t slot, std::uint32_t line) {
    return first_psns_[std::size_t{slot} * lines_.size() + line];
  }
  // On virtual connections packet i of message m has PSN m · MsgLen + i, so both ends derive it.
  [[nodiscard]] std::uint32_t virtual_psn(std::uint64_t message) const {
    return static_cast<std::uint32_t>(message * config_.message_packets) & wire::roce::psn_mask;
  }
  [[nodiscard]] std::span<std::byte> frame_of(std::size_t aggregator, std::uint32_t line);
  [[nodiscard]] std::byte* payload_of(std::size_t aggregator, std::uint32_t line);
  [[nodiscard]] std::byte* sum_of(std::size_t aggregator) {
    return payload_of(aggregator, aggregators_[aggregator].sum_line);
  }
  // Bytes in front of the values: the INA header in a message's first packet, the seal in all.
  [[nodiscard]] std::size_t skipped(std::uint32_t packet) const {
    if (packet == 0) return config_.layout.header_bytes;
    return config_.layout.seals ? wire::netreduce::seal_bytes : 0;
  }
  [[nodiscard]] std::uint64_t seal_of(const Place& place) const;

  void open(std::uint32_t slot, const wire::netreduce::InaHeader& header, Sink& sink);
  [[nodiscard]] std::optional<Place> place_first(std::uint32_t line, const Arrival& arrival, Sink& sink);
  [[nodiscard]] bool follows(std::uint32_t line, const wire::netreduce::InaHeader& header, std::uint32_t psn);
  template <class FirstPsn>
  [[nodiscard]] std::optional<Place> find(std::uint32_t psn, std::uint32_t& last_slot, const FirstPsn& first_psn_in) const;
  template <class FirstPsn>
  [[nodiscard]] std::optional<Place> place_by_psn(const Arrival& arrival, std::uint32_t& last_slot,
                                                  const FirstPsn& first_psn_in);
  [[nodiscard]] bool fits(const Place& place, const Arrival& arrival) const;
  void store(std::size_t aggregator, std::uint32_t line, const Arrival& arrival, std::size_t left_out);
  void ask(std::uint32_t line, std::uint32_t psn, std::uint32_t count, Sink& sink);
  void ask_again(const Place& place, std::uint32_t of, Sink& sink);
  void on_repeat_request(std::uint32_t line, const Arrival& arrival, Sink& sink);
  void on_nak(std::uint32_t line, const Arrival& arrival, Sink& sink);
  void ask_for_missing(std::uint32_t line, std::uint32_t psn, bool placed, Sink& sink);
  void add_up(const Place& place, std::uint32_t last_line, const Arrival& last);
  void on_repeat(const Place& place, std::uint32_t line, const Arrival& arrival, Sink& sink);
  void on_complete(const Place& place, Sink& sink);
  void offer(const Place& place, std::uint32_t line, Sink& sink);
  void send_early(std::uint32_t line, Sink& sink);
  void send_again(const Place& from, std::uint32_t line, Sink& sink);
  void send_header(const Place& place, const Arrival& arrival, Sink& sink);
  void send_up(const Place& place, Sink& sink);
  void send_up_missing(const Place& before, Sink& sink);
  void send(const Place& place, std::uint32_t line, std::span<const std::byte> frame, std::size_t ip_at,
            std::size_t ip_bytes, std::size_t payload_at, Sink& sink);
  void send_to(const Place& place, std::uint32_t line, Sink& sink);
  void send_twice(const Place& place, std::uint32_t line, Sink& sink);

  RingConfig config_;
  std::span<std::byte> memory_;
  std::vector<Line> lines_;
  std::uint32_t contributors_ = 0;  // the first of lines_
  std::vector<Slot> slots_;
  std::vector<Aggregator> aggregators_;  // [slot][packet]
  std::size_t words_;
  std::vector<std::uint64_t> bitmaps_;     // [slot][packet][word]
  std::vector<Buffer> buffers_;            // [slot][packet][line]
  std::vector<std::uint32_t> first_psns_;  // [slot][line]: PSN0 of the CLT; none: the first packet was not seen
  std::vector<Peer> peers_;
  Totals totals_;
  std::vector<const std::byte*> sources_;  // of the sum being formed
  std::size_t stride_;
  // The common ends of packets: of a message's first packet, and of the others. Their lengths rarely change.
  std::array<wire::roce::CommonEnd, 2> ends_;
  std::optional<RingMismatch> mismatch_;
  std::optional<RingLife> life_;
  std::uint64_t attempt_ = 0;
  bool answered_ = false;
  RingCounters counters_;
};

}  // namespace netsum::netreduce
