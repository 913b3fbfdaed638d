// A learning bridge (IEEE 802.1Q, clause 8): forwards the frames that the accelerator does not handle. It stands in the wire
// of every worker, so all of their other traffic passes through it: ARP, TCP, another job's RoCE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"

namespace netsum::netreduce {

struct BridgeConfig {
  std::vector<Endpoint> ports;                 // as RxView::source names them; distinct
  std::size_t addresses = 8192;                // the most that it remembers; rounded to a power of two
  Duration max_age = std::chrono::minutes(5);  // 802.1Q's; an address silent for longer is forgotten
  // All ports are on a switch that redirects frames to them (NetReduce Fig. 10B): each goes back through the port that it
  // came from, and the switch knows where to. Frames for many are not sent: the switch has sent them to all.
  bool one_arm = false;
};

// Every frame counts in exactly one of the first five.
struct BridgeCounters {
  std::uint64_t forwarded = 0;     // to the one port of its destination
  std::uint64_t flooded = 0;       // to all other ports: multicast, broadcast, or unknown destination
  std::uint64_t filtered = 0;      // not sent: its destination is at the port that it came from, or many
  std::uint64_t malformed = 0;     // shorter than its Ethernet header
  std::uint64_t no_such_port = 0;  // from no port of this bridge
  std::uint64_t moved = 0;         // addresses seen at another port than before
  std::uint64_t not_learned = 0;   // no room for the address; frames to it are flooded
};

class Bridge {
 public:
  explicit Bridge(const BridgeConfig& config);

  // The ports for a frame from `source`, given from its Ethernet header on: one port, all others, or none; never the port
  // that it came from, unless with one arm. Learns the sender's port. The result is valid as long as the bridge.
  [[nodiscard]] std::span<const Endpoint> route(std::span<const std::byte> frame, const Endpoint& source, Time now);

  [[nodiscard]] const BridgeCounters& counters() const { return counters_; }
  [[nodiscard]] std::size_t known(Time now) const;  // addresses

 private:
  struct Entry {
    std::uint64_t key = 0;  // 0: free
    Time seen{};
    std::uint32_t port = 0;
  };
  // One set of the table: an address is in its set or absent, so a look-up reads these few entries however full the table
  // is.
  static constexpr std::size_t ways = 8;

  [[nodiscard]] std::span<Entry> set_of(std::uint64_t key);
  [[nodiscard]] bool alive(const Entry& entry, Time now) const { return entry.key != 0 && now - entry.seen < max_age_; }
  void learn(std::uint64_t key, std::uint32_t port, Time now);

  std::vector<Endpoint> ports_;  // stored twice, so that all ports but one are contiguous
  std::size_t count_;
  Duration max_age_;
  bool one_arm_;
  std::vector<Entry> table_;
  BridgeCounters counters_;
};

}  // namespace netsum::netreduce
