// A learning bridge (IEEE 802.1Q, clause 8): what an accelerator does with frames that are none of its business. It stands
// in the wire of every worker, so that all of their other traffic passes it too: ARP, TCP, another job's RoCE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"

namespace netsum::netreduce {

struct BridgeConfig {
  std::vector<Endpoint> ports;                 // as RxView::source names them; each once
  std::size_t addresses = 8192;                // that it remembers at most; made a power of two
  Duration max_age = std::chrono::minutes(5);  // 802.1Q's: an address that was silent for so long is forgotten
};

// Every frame counts in exactly one of the first five.
struct BridgeCounters {
  std::uint64_t forwarded = 0;     // to the one port where its destination is
  std::uint64_t flooded = 0;       // to all others: multicast, broadcast, or nobody knows where
  std::uint64_t filtered = 0;      // to nobody: its destination is at the port that it came from
  std::uint64_t malformed = 0;     // shorter than its Ethernet header
  std::uint64_t no_such_port = 0;  // from something that is no port of this bridge
  std::uint64_t moved = 0;         // an address was seen at another port than before
  std::uint64_t not_learned = 0;   // there was no room for an address; frames to it are flooded
};

class Bridge {
 public:
  explicit Bridge(const BridgeConfig& config);

  // Where a frame that begins with its Ethernet header and came from `source` goes: to one port, to all others, or nowhere;
  // never back. Learns where its sender is. Valid as long as the bridge.
  [[nodiscard]] std::span<const Endpoint> route(std::span<const std::byte> frame, const Endpoint& source, Time now);

  [[nodiscard]] const BridgeCounters& counters() const { return counters_; }
  [[nodiscard]] std::size_t known(Time now) const;  // addresses

 private:
  struct Entry {
    std::uint64_t key = 0;  // 0: free
    Time seen{};
    std::uint32_t port = 0;
  };
  // One set of the table: an address is in it or nowhere, so a look-up reads these few however full the table is.
  static constexpr std::size_t ways = 8;

  [[nodiscard]] std::span<Entry> set_of(std::uint64_t key);
  [[nodiscard]] bool alive(const Entry& entry, Time now) const { return entry.key != 0 && now - entry.seen < max_age_; }
  void learn(std::uint64_t key, std::uint32_t port, Time now);

  std::vector<Endpoint> ports_;  // twice over, so that all but one of them are contiguous
  std::size_t count_;
  Duration max_age_;
  std::vector<Entry> table_;
  BridgeCounters counters_;
};

}  // namespace netsum::netreduce
