// The connection between a ring's part at one switch and the switch above it (NetReduce §3.3): partial sums go up on it,
// totals come down. Part of a ring.
#pragma once

#include <cstdint>
#include <optional>

#include "base/packet_io.h"
#include "protocol/netreduce/ring_config.h"
#include "protocol/netreduce/sum_store.h"
#include "wire/roce.h"

namespace netsum::netreduce {

// Virtual connections use IPv6 addresses, whatever the hosts use.
void address(wire::roce::Packet& packet, const Connection& connection);

class SwitchAbove {
 public:
  SwitchAbove(const std::optional<Uplink>& uplink, bool seals) : uplink_(uplink), seals_(seals) {}

  // Whether there is one; the root has none.
  explicit operator bool() const { return uplink_.has_value(); }
  // Another connection, with the same next hop; nothing at the root.
  void move_to(const Connection& up) {
    if (uplink_) uplink_->up = up;
  }

  // Sends the sum of this subtree, in line 0's packet, translated to the connection (the CTT).
  void send_up(const Place& place, SumStore& store, RingCounters& counters, Sink& sink) const;
  // That, if its total has not come: either may be lost.
  void send_up_again(const Place& place, SumStore& store, RingCounters& counters, Sink& sink) const;

  // The place of a packet from there.
  [[nodiscard]] std::optional<Place> find(std::uint32_t psn, const SumStore& store) {
    return store.find_virtual(psn, last_slot_);
  }
  // Its total is complete. Totals arrive in order of completion, so a gap may be a loss: sends up again, once, all sums in
  // it that are present.
  void on_total(const Place& place, SumStore& store, RingCounters& counters, Sink& sink);

  // For append_state() of the ring.
  [[nodiscard]] const Place& expected() const { return expected_; }
  [[nodiscard]] bool asked() const { return asked_; }

 private:
  std::optional<Uplink> uplink_;
  bool seals_;
  Place expected_;      // the first total not yet arrived
  bool asked_ = false;  // a later one arrived: the missing ones were sent up again
  std::uint32_t last_slot_ = 0;
};

}  // namespace netsum::netreduce
