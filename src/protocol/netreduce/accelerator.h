// The accelerator: NetReduce §3.1-§3.2, a bump in the wire between hosts that form rings of RoCEv2 reliable connections. It
// finds gradient packets, adds them over the connections of their ring, and sends each on to where it was going with the sum
// in place of its payload. docs/protocol-netreduce.md has the rules, and where and why they depart from the paper.
//
// One object serves one thread's share of the rings. No I/O, no clock, no allocation per packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/bitmap.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "netsum/types.h"
#include "protocol/netreduce/connection.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::netreduce {

// When a finished sum leaves.
enum class Order : std::uint8_t {
  ring,     // after all that precede it in the ring's stream: one loss makes one connection go back
  arrival,  // at once, as the paper has it: then every receiver sees a gap
};

struct RingConfig {
  std::uint64_t incarnation = 0;        // random, never issued again
  std::uint32_t ring = 0;               // RingID
  std::uint32_t members = 0;            // ranks
  std::uint32_t window = 2;             // N: messages of a rank that are under way
  std::uint32_t message_packets = 170;  // the most of a message (MsgLen)
  std::uint32_t mtu = 1024;             // the most payload of a packet
  wire::netreduce::Layout layout = wire::netreduce::netsum_layout;
  DType dtype = DType::float32;  // where the layout does not say
  Order order = Order::ring;
  std::vector<Connection> connections;  // each rank's to its successor. Empty: learned from first packets (foreign hosts)
};
// Empty, or why there can be no such ring.
[[nodiscard]] std::string check(const RingConfig& config);

// Every packet of a ring's connections counts in exactly one of those from `contributions` on.
struct RingCounters {
  std::uint64_t packets = 0, bytes = 0;
  std::uint64_t sums = 0;     // positions completed
  std::uint64_t results = 0;  // packets sent: sums to all members, repeats, early ones
  std::uint64_t early = 0;    // sent out of order on a connection with a gap, so that its receiver asks for what is missing

  std::uint64_t contributions = 0;
  std::uint64_t repeats_answered = 0;   // of a sum that was sent: once more, on this connection only
  std::uint64_t repeats_held = 0;       // of a sum that waits for its turn
  std::uint64_t repeats_waiting = 0;    // of a sum that lacks other ranks
  std::uint64_t dropped_icrc = 0;       // damaged
  std::uint64_t dropped_header = 0;     // begins a message, and is none of this rank in this ring
  std::uint64_t dropped_unplaced = 0;   // the first packet of its message was not seen, or its buffers are another's by now
  std::uint64_t dropped_old = 0;        // a message whose buffers are another's by now
  std::uint64_t dropped_early = 0;      // a message whose buffers are still in use (a host exceeds its window)
  std::uint64_t dropped_misplaced = 0;  // PSN or opcode contradict what is known of the message
  std::uint64_t dropped_mismatch = 0;   // another call than the other ranks'
  std::uint64_t dropped_shape = 0;      // longer than a buffer, or of another length than the other ranks'
};

struct AcceleratorCounters {
  std::uint64_t passed = 0;         // not gradients
  std::uint64_t dropped_known = 0;  // of gradient connections of which nothing but that is known
};

// Two ranks issued different calls as the same message.
struct RingMismatch {
  std::uint64_t message = 0;
  std::uint32_t first_rank = 0, second_rank = 0;
};

// The oldest sum that is not complete, of which something is there.
struct RingStall {
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
  RankSet missing;
};

class Accelerator {
 public:
  // Bytes of packet buffers that a ring needs.
  [[nodiscard]] static std::size_t memory_bytes(const RingConfig& config);

  Accelerator();
  ~Accelerator();
  Accelerator(Accelerator&&) noexcept;
  Accelerator& operator=(Accelerator&&) noexcept;

  // `memory` (memory_bytes, zeroed, 64-byte aligned) stays with the ring until remove_ring. False: the incarnation or a
  // connection is in use, or two ranks have the same. Connections become known.
  [[nodiscard]] bool add_ring(const RingConfig& config, std::span<std::byte> memory);
  // Its connections stay known: a packet of theirs that is still on its way does not pass as it is.
  void remove_ring(std::uint64_t incarnation);

  // Gradient connections of which nothing but that is known, from before a restart.
  void know(const Connection& connection, Time now);
  [[nodiscard]] std::vector<Connection> known() const;  // those and the rings' own, for the next life
  // Forgets connections without a ring of which nothing was heard since.
  void forget(Time silent_since);

  enum class Verdict : std::uint8_t { pass, taken };
  // `packet` was parsed from `ip_at` of a frame on; `egress`: where the frame goes. `pass`: it is to be sent there as it is.
  [[nodiscard]] Verdict on_packet(const wire::roce::Packet& packet, std::span<const std::byte> frame, std::size_t ip_at,
                                  const Endpoint& egress, Time now, Sink& sink);

  [[nodiscard]] std::optional<RingMismatch> mismatch(std::uint64_t incarnation) const;  // the first
  [[nodiscard]] std::optional<RingStall> stall(std::uint64_t incarnation) const;
  [[nodiscard]] const RingCounters* ring_counters(std::uint64_t incarnation) const;
  [[nodiscard]] const AcceleratorCounters& counters() const { return counters_; }

  // All that decides which packet it answers how, for comparing and hashing: not times and not counters.
  void append_state(std::vector<std::byte>& out) const;
  void check() const;  // its own invariants; throws std::logic_error in checked builds

 private:
  struct Ring;
  struct Arrival;
  struct Entry {
    Ring* ring = nullptr;  // null: known, no state
    std::uint32_t rank = 0;
    Time heard{};
  };
  using Table = std::unordered_map<Connection, Entry, ConnectionHash>;

  [[nodiscard]] Entry* find(const Connection& connection);
  [[nodiscard]] Entry* learn(const Connection& connection, const Arrival& arrival);
  void begin_again(Ring& ring);
  void on_gradient(Ring& ring, std::uint32_t rank, const Arrival& arrival, Sink& sink);

  std::unordered_map<std::uint64_t, std::unique_ptr<Ring>> rings_;
  Table table_;            // the CLT: connections stay where they are while others come and go
  Entry* last_ = nullptr;  // of the previous packet: packets of one connection come in trains
  Connection last_connection_;
  AcceleratorCounters counters_;
};

}  // namespace netsum::netreduce
