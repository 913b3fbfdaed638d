// A ring's configuration at an accelerator, and its reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/counter_list.h"
#include "base/endpoint.h"
#include "netsum/types.h"
#include "protocol/netreduce/connection.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {

// When a finished sum leaves.
enum class Order : std::uint8_t {
  ring,     // in the ring's stream order: one loss makes one connection go back
  arrival,  // at once, as in the paper: a loss makes every receiver see a gap
};

// A connection's role at a switch of a tree (§3.3).
enum class Way : std::uint8_t {
  through,   // both ends are next to this switch: its packets are summed, and leave with the sum of all
  leaving,   // its receiver is at another switch: its packets are summed, and their headers forwarded to it
  arriving,  // its sender is at another switch: the headers from there leave with the sum of all
  child,     // virtual, from the switch below: its packets are summed and returned with the sum of all
};
// How a line's sender, which repeats single packets, is asked for them.
struct Repair {
  Endpoint egress;              // next hop towards it
  std::uint32_t first_psn = 0;  // of its first packet
  Connection answers{};         // from the line's receiver to it
};
struct Line {
  Connection connection;
  RankSet ranks;  // represented ranks; the lowest is in its messages' headers
  Way way = Way::through;
  // From its receiver, to which its sums leave here, to its sender. What the receiver misses is answered from here. None:
  // not known, and whatever the receiver says passes.
  std::optional<Connection> answers{};
  std::optional<Repair> repair{};  // none: its hosts go back
};

// Queue pairs of the virtual connections between a switch and the one above it.
inline constexpr std::uint32_t up_qp = 0x10, down_qp = 0x11;
struct Uplink {
  Connection up;    // from this switch to the one above
  Endpoint egress;  // next hop towards it
  [[nodiscard]] Connection down() const { return {up.destination, up.source, down_qp}; }
};

// One stream of a ring of foreign hosts in several racks, at a rack's bump (learned_racks.h).
struct RingLife {
  Connection up;                  // from this bump to the root; of no other life
  std::uint64_t incarnation = 0;  // the root's, in seals
  KnownConnection arriving;       // from the rack before
};

// Packets of two windows, which must be far less than half of the PSN space, or old and new PSNs could not be
// distinguished.
inline constexpr std::uint32_t most_buffers = 1U << 22;

struct RingConfig {
  std::uint64_t incarnation = 0;        // random, never reused
  std::uint32_t ring = 0;               // RingID
  std::uint32_t members = 0;            // ranks
  std::uint32_t window = 2;             // N: messages in flight per rank
  std::uint32_t message_packets = 170;  // the most per message (MsgLen)
  std::uint32_t mtu = 1024;             // the most payload of a packet
  bool tunnelled = false;               // packets come in datagrams of their own, and may be longer than RoCE's
  wire::netreduce::Layout layout = wire::netreduce::netsum_layout;
  DType dtype = DType::float32;  // used if the layout has no type field
  Order order = Order::ring;
  // Hosts keep what comes behind a gap and repeat single packets: sums leave at once, a missing packet is asked of its
  // sender, and what a receiver misses is answered from here.
  bool selective = false;
  std::vector<Connection> connections{};  // each rank's to its successor. Empty: learned from first packets (foreign hosts),
  std::vector<Line> lines{};              // used instead at a switch of a tree
  std::optional<Uplink> uplink{};         // at all switches but the root
  std::vector<Connection> passing{};      // of ranks elsewhere: their headers pass this switch
  std::vector<std::uint32_t> racks{};     // of foreign hosts: ranks in each, in the ring's order; empty: one rack
  bool learned_lines = false;             // foreign hosts: the connections of `lines` and of `uplink` are not known yet
};
// The window of a ring whose accelerators have room for N messages that are sent without a result, and for acknowledgements:
// these leave behind up to N messages of the successor's, and so come after two windows at most. That is 3N, and two
// messages of which a part is under way; fewer where no ring may have so many.
[[nodiscard]] std::uint32_t roomy_window(std::uint32_t messages, std::uint32_t message_packets);
// Empty if the configuration is valid, else the reason.
[[nodiscard]] std::string check(const RingConfig& config);

struct RingCounters {
  std::uint64_t packets = 0, bytes = 0;
  std::uint64_t sums = 0;          // packet positions whose contributions from below this switch are complete
  std::uint64_t results = 0;       // packets sent: sums to members, repeats, early ones
  std::uint64_t early = 0;         // sent out of order on a connection with a gap, so its receiver asks for missing packets
  std::uint64_t sent_up = 0;       // sums, to the switch above
  std::uint64_t sent_headers = 0;  // of connections that leave the rack
  std::uint64_t asked = 0;         // packets that did not arrive, of their senders
  std::uint64_t asked_for = 0;     // sums sent again because a receiver missed them, or what was before them

  std::uint64_t contributions = 0;
  std::uint64_t headers = 0;            // of connections from another rack
  std::uint64_t totals = 0;             // from the switch above
  std::uint64_t repeat_requests = 0;    // of receivers
  std::uint64_t naks_answered = 0;      // of receivers, with sums that had left
  std::uint64_t naks_passed = 0;        // to senders, which are to go back
  std::uint64_t repeats_answered = 0;   // of a sent sum: sent again, on this connection only
  std::uint64_t repeats_ignored = 0;    // of a sum that left after its sender had gone back
  std::uint64_t repeats_held = 0;       // of a sum held back to keep the order
  std::uint64_t repeats_waiting = 0;    // of a sum that lacks other ranks
  std::uint64_t totals_repeated = 0;    // from above, of a sum already present
  std::uint64_t dropped_icrc = 0;       // damaged
  std::uint64_t dropped_before = 0;     // other racks' ranks are not there yet
  std::uint64_t dropped_header = 0;     // begins a message, but the header does not fit this rank and ring
  std::uint64_t dropped_unplaced = 0;   // the first packet of its message was not seen, or its buffers have been reused
  std::uint64_t dropped_old = 0;        // a message whose buffers have been reused
  std::uint64_t dropped_early = 0;      // a message whose buffers are still in use (a host exceeds its window)
  std::uint64_t dropped_misplaced = 0;  // PSN or opcode contradicts the message's state
  std::uint64_t dropped_mismatch = 0;   // another call than the other ranks'
  std::uint64_t dropped_raw = 0;        // from another rack, with values: the switch there let it pass
  std::uint64_t dropped_shape = 0;      // longer than a buffer, or of another length than the other ranks'

  static constexpr auto fields() {
    using enum CounterKind;
    using C = RingCounters;
    return std::to_array<CounterField<C>>({
        {"packets", &C::packets, other},
        {"bytes", &C::bytes, other},
        {"contributions", &C::contributions, outcome},
        {"sums", &C::sums, other},
        {"results", &C::results, other},
        {"early_results", &C::early, other},
        {"sums_sent_up", &C::sent_up, other},
        {"totals", &C::totals, outcome},
        {"totals_repeated", &C::totals_repeated, outcome},
        {"headers", &C::headers, outcome},
        {"headers_sent_on", &C::sent_headers, other},
        {"packets_asked_of_senders", &C::asked, other},
        {"sums_asked_for", &C::asked_for, other},
        {"repeat_requests", &C::repeat_requests, outcome},
        {"naks_answered", &C::naks_answered, outcome},
        {"naks_passed", &C::naks_passed, outcome},
        {"repeats_answered", &C::repeats_answered, outcome},
        {"repeats_ignored", &C::repeats_ignored, outcome},
        {"repeats_held", &C::repeats_held, outcome},
        {"repeats_waiting", &C::repeats_waiting, outcome},
        {"dropped_icrc", &C::dropped_icrc, outcome},
        {"dropped_before_all_racks", &C::dropped_before, outcome},
        {"dropped_header", &C::dropped_header, outcome},
        {"dropped_unplaced", &C::dropped_unplaced, outcome},
        {"dropped_old", &C::dropped_old, outcome},
        {"dropped_early", &C::dropped_early, outcome},
        {"dropped_misplaced", &C::dropped_misplaced, outcome},
        {"dropped_mismatch", &C::dropped_mismatch, outcome},
        {"dropped_raw", &C::dropped_raw, outcome},
        {"dropped_shape", &C::dropped_shape, outcome},
    });
  }
};

// Two ranks issued different calls as the same message.
struct RingMismatch {
  std::uint64_t message = 0;
  std::uint32_t first_rank = 0, second_rank = 0;
};

// The oldest sum that was not sent to all and has at least one contribution.
struct RingStall {
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
  RankSet missing;  // empty: it waits for the switch above
};

}  // namespace netsum::netreduce
