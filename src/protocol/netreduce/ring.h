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
#include "protocol/netreduce/learned_stream.h"
#include "protocol/netreduce/line_progress.h"
#include "protocol/netreduce/ring_config.h"
#include "protocol/netreduce/sum_store.h"
#include "protocol/netreduce/sum_writer.h"
#include "protocol/netreduce/switch_above.h"

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
  [[nodiscard]] const LearnedStream& stream() const { return stream_; }
  void bind(std::uint32_t line, const Connection& connection, bool held);
  void release(std::uint32_t line, Sink& sink);
  void begin(const RingLife& life, bool held);
  // Another stream, without connections and sums.
  void begin_again();
  [[nodiscard]] bool begins_another(std::uint64_t message_on_wire) const {
    return stream_.begins_another(message_on_wire, next().message);
  }
  [[nodiscard]] bool contributes(std::uint32_t line) const { return line < contributors_; }
  // The line of a rank's own connection. None: it is not at this switch.
  [[nodiscard]] std::optional<std::uint32_t> line_of(std::uint32_t rank) const;
  // Where the line's newest packet with a known next hop went; default-constructed: there was none.
  [[nodiscard]] const Endpoint& egress(std::uint32_t line) const { return egresses_[line]; }
  // Whether the next hop of the line's packets may be unknown: only headers go there, and none of the line's sums.
  [[nodiscard]] bool may_flood(std::uint32_t line) const { return lines_[line].way == Way::leaving; }
  // Whether the line's receiver asks for single packets; or goes back, and its NAKs come here. These do not change.
  [[nodiscard]] bool repeats_singly(std::uint32_t line) const { return lines_[line].repair.has_value(); }
  [[nodiscard]] bool answers(std::uint32_t line) const { return progress_[line].answers(); }

  [[nodiscard]] const RingCounters& counters() const { return counters_; }
  [[nodiscard]] const std::optional<RingMismatch>& mismatch() const { return mismatch_; }
  [[nodiscard]] std::optional<RingStall> stall() const;
  void append_state(std::vector<std::byte>& out) const;
  void check() const;

 private:
  [[nodiscard]] Place next() const;  // the first sum not yet sent to all
  [[nodiscard]] std::uint64_t seal_of(const Place& place) const;

  [[nodiscard]] std::optional<Place> place_first(std::uint32_t line, const Arrival& arrival, Sink& sink);
  [[nodiscard]] std::optional<Place> placed(const std::optional<Place>& place, const Arrival& arrival);
  void ask(std::uint32_t line, std::uint32_t psn, std::uint32_t count, Sink& sink);
  void ask_again(const Place& place, std::uint32_t of, Sink& sink);
  void on_repeat_request(std::uint32_t line, const Arrival& arrival, Sink& sink);
  void on_nak(std::uint32_t line, const Arrival& arrival, Sink& sink);
  void add_up(const Place& place, std::uint32_t last_line, const Arrival& last);
  void on_repeat(const Place& place, std::uint32_t line, const Arrival& arrival, Sink& sink);
  void on_complete(const Place& place, Sink& sink);
  void offer(const Place& place, std::uint32_t line, Sink& sink);
  void send_early(const std::optional<Place>& place, std::uint32_t line, Sink& sink);
  void send_header(const Place& place, const Arrival& arrival, Sink& sink);
  // The sum, at that aggregator, in a frame of the line.
  void send(const Place& place, std::size_t aggregator, std::uint32_t line, const Frame& frame, Sink& sink);
  void send_to(const Place& place, std::uint32_t line, Sink& sink);
  void send_twice(const Place& place, std::uint32_t line, Sink& sink);

  RingConfig config_;
  std::vector<Line> lines_;
  std::uint32_t contributors_;  // the first of lines_
  SumStore store_;
  std::vector<LineProgress> progress_;  // of each line
  std::vector<Endpoint> egresses_;
  LearnedStream stream_;
  SwitchAbove above_;
  SumWriter writer_;
  std::optional<RingMismatch> mismatch_;
  RingCounters counters_;
};

}  // namespace netsum::netreduce
