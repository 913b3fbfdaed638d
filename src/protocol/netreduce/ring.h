// One ring at an accelerator: the aggregators of two windows (NetReduce §3.1), the packet state of each of its connections
// (the CLT's PSN0, §3.2), the sums, and the order in which they leave. In a tree of switches (§3.3) also the partial sum
// that goes up, the total that comes down, and the headers of connections that cross racks. Part of the accelerator, which
// maps packets to connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/packet_io.h"
#include "protocol/netreduce/ring_config.h"
#include "protocol/netreduce/sum_store.h"
#include "protocol/netreduce/sum_writer.h"
#include "protocol/netreduce/switch_above.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::netreduce {

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
  [[nodiscard]] std::span<std::byte> memory() const { return store_.memory(); }
  // State is a value, apart from the memory: a copy refers to the same until this names another with the same content.
  void move_memory(std::span<std::byte> memory) { store_.move_memory(memory); }
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
  [[nodiscard]] Place next() const;  // the first sum not yet sent to all
  [[nodiscard]] std::uint64_t seal_of(const Place& place) const;

  [[nodiscard]] std::optional<Place> place_first(std::uint32_t line, const Arrival& arrival, Sink& sink);
  [[nodiscard]] bool follows(std::uint32_t line, const wire::netreduce::InaHeader& header, std::uint32_t psn);
  [[nodiscard]] std::optional<Place> placed(const std::optional<Place>& place, const Arrival& arrival);
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
  // The sum, at that aggregator, in a frame of the line.
  void send(const Place& place, std::size_t aggregator, std::uint32_t line, const Frame& frame, Sink& sink);
  void send_to(const Place& place, std::uint32_t line, Sink& sink);
  void send_twice(const Place& place, std::uint32_t line, Sink& sink);

  RingConfig config_;
  std::vector<Line> lines_;
  std::uint32_t contributors_;  // the first of lines_
  SumStore store_;
  std::vector<Peer> peers_;
  SwitchAbove above_;
  SumWriter writer_;
  std::optional<RingMismatch> mismatch_;
  std::optional<RingLife> life_;
  std::uint64_t attempt_ = 0;
  bool answered_ = false;
  RingCounters counters_;
};

}  // namespace netsum::netreduce
