// The bump in the wire (NetReduce §3.1, Fig. 3): Ethernet ports with hosts behind them, a learning bridge between the ports,
// and an accelerator that takes the gradients out of the bridged traffic. Hosts keep their transport and are unaware of it;
// frames other than gradients are forwarded unchanged. docs/operations.md tells operators how to run one.
//
// Frames have the ports' format (transport/port.h): behind a VirtioNetHeader, without FCS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/accelerator.h"
#include "protocol/netreduce/bridge.h"
#include "wire/parse_error.h"

namespace netsum::netreduce {

// Each frame that the bridge forwards counts in one of these, and, if it is RoCE, in one of the accelerator's.
struct BumpCounters {
  std::uint64_t others = 0;                                // no RoCE: bridged, but for one arm, where the switch bridges it
  std::uint64_t trains = 0;                                // several packets in one frame, unsegmented: bridged unread
  std::uint64_t unreadable[wire::parse_error_kinds] = {};  // RoCE, but not of reliable connections: bridged
  std::uint64_t roce = 0;                                  // handed to the accelerator
  // Of gradient connections; not bridged, as they would arrive unsummed.
  std::uint64_t dropped_trains = 0;
  std::uint64_t dropped_unreadable = 0;  // including fragments
};

class Bump {
 public:
  explicit Bump(const BridgeConfig& bridge);

  // Rings, known connections and their changes.
  [[nodiscard]] Accelerator& accelerator() { return accelerator_; }
  [[nodiscard]] const Accelerator& accelerator() const { return accelerator_; }
  [[nodiscard]] const Bridge& bridge() const { return bridge_; }
  [[nodiscard]] const BumpCounters& counters() const { return counters_; }

  // Frames that are forwarded unchanged are sent by reference: they must stay valid until the sink is flushed.
  //
  // A gradient to a destination that the bridge has never learned is dropped, not flooded: the accelerator sends the sum
  // there later, and so must know the port. Its host repeats it; and as a sum needs a packet of every member, all members
  // will have been learned by then. A ring remembers its members' ports when the bridge has forgotten them.
  void on_packets(std::span<const RxView> frames, Time now, Sink& sink);

 private:
  [[nodiscard]] bool is_gradient(std::span<const std::byte> ip_packet, std::size_t payload_at = 0) const;
  [[nodiscard]] bool train_has_gradients(std::span<const std::byte> ip_packet, std::size_t segment) const;
  [[nodiscard]] bool taken(const RxView& view, std::span<const Endpoint> to, Time now, Sink& sink);

  bool one_arm_;
  Bridge bridge_;
  Accelerator accelerator_;
  std::vector<std::byte> completed_;  // a frame whose checksum was computed
  BumpCounters counters_;
};

}  // namespace netsum::netreduce
