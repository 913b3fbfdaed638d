// The bump in the wire (NetReduce §3.1, Fig. 3): Ethernet ports with hosts behind them, a learning bridge between the ports,
// and an accelerator that takes the gradients out of what the bridge carries. Hosts keep their transport and know of
// nothing; whatever is not a gradient leaves as it came. docs/operations.md tells operators how to run one.
//
// Frames come and go as ports have them (transport/port.h): behind a VirtioNetHeader, without FCS.
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

// Every frame that the bridge carries on counts in one of those, and in one of the accelerator's if it is RoCE.
struct BumpCounters {
  std::uint64_t others = 0;                                // no RoCE: bridged
  std::uint64_t trains = 0;                                // several packets in one frame, uncut: bridged unread
  std::uint64_t unreadable[wire::parse_error_kinds] = {};  // RoCE, but not of reliable connections: bridged
  std::uint64_t roce = 0;                                  // shown to the accelerator
  // Of gradient connections (and so not bridged: they would arrive unsummed).
  std::uint64_t dropped_trains = 0;
  std::uint64_t dropped_unreadable = 0;  // fragments too
};

class Bump {
 public:
  explicit Bump(const BridgeConfig& bridge);

  // Rings, known connections, and what became of them.
  [[nodiscard]] Accelerator& accelerator() { return accelerator_; }
  [[nodiscard]] const Accelerator& accelerator() const { return accelerator_; }
  [[nodiscard]] const Bridge& bridge() const { return bridge_; }
  [[nodiscard]] const BumpCounters& counters() const { return counters_; }

  // Frames that go on as they are do so by reference: they must stay until the sink was flushed.
  //
  // A gradient whose destination the bridge has not heard of yet is dropped, not flooded: the accelerator answers it later,
  // to where it was going, and so must know that. Its host repeats it; and as a sum needs a packet of every member, all of
  // them will have been heard of by then.
  void on_packets(std::span<const RxView> frames, Time now, Sink& sink);

 private:
  [[nodiscard]] bool is_gradient(std::span<const std::byte> ip_packet, std::size_t payload_at = 0) const;
  [[nodiscard]] bool train_has_gradients(std::span<const std::byte> ip_packet, std::size_t segment) const;
  [[nodiscard]] bool taken(const RxView& view, std::span<const Endpoint> to, Time now, Sink& sink);

  Bridge bridge_;
  Accelerator accelerator_;
  std::vector<std::byte> completed_;  // a frame whose checksum was computed
  BumpCounters counters_;
};

}  // namespace netsum::netreduce
