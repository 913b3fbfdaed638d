// The bump in the wire (NetReduce §3.1, Fig. 3): Ethernet ports with hosts behind them, a learning bridge between the ports,
// and an accelerator that takes the gradients out of the bridged traffic. Hosts keep their transport and are unaware of it;
// frames other than gradients are forwarded unchanged. docs/operate-bump.md tells operators how to run one.
//
// Frames have the ports' format (transport/ports/port.h): behind a VirtioNetHeader, without FCS.
//
// Where hosts of a ring are in several racks, there is a bump in each (§3.3, racks.h). What bumps send each other, sums and
// totals, are datagrams, and come from no port; the headers of connections between racks are frames, as hosts sent them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/copied.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/accelerator.h"
#include "protocol/netreduce/bridge.h"
#include "protocol/netreduce/learned_racks.h"
#include "protocol/netreduce/tunnel.h"
#include "wire/parse_error.h"

namespace netsum::netreduce {

// Each frame that the bridge forwards counts in one of these, and, if it is RoCE, in one of the accelerator's.
struct BumpCounters {
  std::uint64_t others = 0;                                // no RoCE: bridged, but for one arm, where the switch bridges it
  std::uint64_t trains = 0;                                // several packets in one frame, unsegmented: bridged unread
  std::uint64_t unreadable[wire::parse_error_kinds] = {};  // RoCE, but not of reliable connections: bridged
  std::uint64_t roce = 0;                                  // handed to the accelerator
  // Frames of gradient connections that were dropped: bridged, they would arrive unsummed.
  std::uint64_t dropped_trains = 0;
  std::uint64_t dropped_unreadable = 0;  // including fragments
  std::uint64_t dropped_virtual = 0;     // of connections between bumps, which are not in frames
};

class Bump {
 public:
  explicit Bump(const BridgeConfig& bridge);
  Bump(const Bump&) = delete;
  Bump& operator=(const Bump&) = delete;

  // Rings, known connections and their changes.
  [[nodiscard]] Accelerator& accelerator() { return tunnel_.accelerator(); }
  [[nodiscard]] const Accelerator& accelerator() const { return tunnel_.accelerator(); }
  // Rings with connections to other bumps; those alone are routed.
  [[nodiscard]] Tunnel& tunnel() { return tunnel_; }
  [[nodiscard]] const Tunnel& tunnel() const { return tunnel_; }
  // Rings of foreign hosts in several racks.
  [[nodiscard]] LearnedRacks& learned_racks() { return learned_racks_; }
  [[nodiscard]] const LearnedRacks& learned_racks() const { return learned_racks_; }
  [[nodiscard]] const Bridge& bridge() const { return bridge_; }
  [[nodiscard]] const BumpCounters& counters() const { return counters_; }

  // Frames that are forwarded unchanged are sent by reference: they must stay valid until the sink is flushed.
  //
  // A gradient to a destination that the bridge has never learned is dropped, not flooded: the accelerator sends the sum
  // there later, and so must know the port. Its host repeats it; and as a sum needs a packet of every member, all members
  // will have been learned by then. A ring remembers its members' ports when the bridge has forgotten them. (A member in
  // another rack may never send anything here: towards it a header is flooded.)
  void on_packets(std::span<const RxView> frames, Time now, Sink& sink);
  // From other bumps.
  void on_datagrams(std::span<const RxView> datagrams, Time now, Sink& sink);

 private:
  [[nodiscard]] bool is_gradient(std::span<const std::byte> ip_packet, std::size_t payload_at = 0) const;
  [[nodiscard]] bool train_has_gradients(std::span<const std::byte> ip_packet, std::size_t segment) const;
  [[nodiscard]] bool taken(const RxView& view, std::span<const Endpoint> to, Time now, Sink& sink);

  bool one_arm_;
  Bridge bridge_;
  Tunnel tunnel_;
  LearnedRacks learned_racks_{tunnel_};
  CopiedMemory completed_;  // a frame whose checksum was computed
  BumpCounters counters_;
};

}  // namespace netsum::netreduce
