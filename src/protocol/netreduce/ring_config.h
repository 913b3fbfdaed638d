// What an accelerator must be told of a ring, and what it can say of one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/endpoint.h"
#include "netsum/types.h"
#include "protocol/netreduce/connection.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {

// When a finished sum leaves.
enum class Order : std::uint8_t {
  ring,     // after all that precede it in the ring's stream: one loss makes one connection go back
  arrival,  // at once, as the paper has it: then every receiver sees a gap
};

// What a connection is to a switch of a tree (§3.3).
enum class Way : std::uint8_t {
  through,   // both ends are next to this switch: its packets are summed, and leave with the sum of all
  leaving,   // its receiver is elsewhere: its packets are summed, and their headers go there
  arriving,  // its sender is elsewhere: the headers that come from there leave with the sum of all
  child,     // a virtual one, from the switch below: its packets are summed, and turn back with the sum of all
};
struct Line {
  Connection connection;
  RankSet ranks;  // that it stands for. The lowest is in its messages' headers
  Way way = Way::through;
};

// Virtual connections between a switch and the one above it.
inline constexpr std::uint32_t up_qp = 0x10, down_qp = 0x11;
struct Uplink {
  Connection up;    // what this switch sends there
  Endpoint egress;  // where that is
  [[nodiscard]] Connection down() const { return {up.destination, up.source, down_qp}; }
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
  std::vector<Connection> connections{};  // each rank's to its successor. Empty: learned from first packets (foreign hosts),
  std::vector<Line> lines{};              // or, at a switch of a tree, those
  std::optional<Uplink> uplink{};         // of all but the root
};
// Empty, or why there can be no such ring.
[[nodiscard]] std::string check(const RingConfig& config);

// Every packet of a ring's connections counts in exactly one of those from `contributions` on.
struct RingCounters {
  std::uint64_t packets = 0, bytes = 0;
  std::uint64_t sums = 0;     // positions of which all that is below this switch was added
  std::uint64_t results = 0;  // packets sent: sums to all members, repeats, early ones
  std::uint64_t early = 0;    // sent out of order on a connection with a gap, so that its receiver asks for what is missing
  std::uint64_t sent_up = 0;  // sums, to the switch above
  std::uint64_t sent_headers = 0;  // of connections that leave the rack

  std::uint64_t contributions = 0;
  std::uint64_t headers = 0;            // of connections that come from another rack
  std::uint64_t totals = 0;             // from the switch above
  std::uint64_t repeats_answered = 0;   // of a sum that was sent: once more, on this connection only
  std::uint64_t repeats_held = 0;       // of a sum that waits for its turn
  std::uint64_t repeats_waiting = 0;    // of a sum that lacks other ranks
  std::uint64_t repeats_total = 0;      // from above, of a sum that is there
  std::uint64_t dropped_icrc = 0;       // damaged
  std::uint64_t dropped_header = 0;     // begins a message, and is none of this rank in this ring
  std::uint64_t dropped_unplaced = 0;   // the first packet of its message was not seen, or its buffers are another's by now
  std::uint64_t dropped_old = 0;        // a message whose buffers are another's by now
  std::uint64_t dropped_early = 0;      // a message whose buffers are still in use (a host exceeds its window)
  std::uint64_t dropped_misplaced = 0;  // PSN or opcode contradict what is known of the message
  std::uint64_t dropped_mismatch = 0;   // another call than the other ranks'
  std::uint64_t dropped_raw = 0;        // from another rack, with values in it: the switch there let it pass
  std::uint64_t dropped_shape = 0;      // longer than a buffer, or of another length than the other ranks'
};

// Two ranks issued different calls as the same message.
struct RingMismatch {
  std::uint64_t message = 0;
  std::uint32_t first_rank = 0, second_rank = 0;
};

// The oldest sum that was not sent to all, of which something is there.
struct RingStall {
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
  RankSet missing;  // empty: it waits for the switch above
};

}  // namespace netsum::netreduce
