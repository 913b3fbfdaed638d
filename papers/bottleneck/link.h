// One direction of a bottleneck link: a queue that drains at a rate into a wire with a delay. It decides only: packets and
// the time come in, packets come out when they are due. papers/bottleneck/relay.cc does the I/O and knows the clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/quantity.h"
#include "base/time.h"

namespace netsum::bottleneck {

struct LinkSettings {
  std::uint64_t bits_per_second = 0;        // of IP packets: no Ethernet header, preamble or gap is added
  Duration delay{};                         // from when a packet's last bit left the queue until it is delivered
  std::uint64_t queue_bytes = 0;            // a packet that does not fit is dropped
  std::optional<std::uint64_t> mark_bytes;  // with more than this before it, an ECN-capable packet is marked; empty: none is
};

enum class Fate : std::uint8_t { queued, marked, dropped };

class Link {
 public:
  struct Counters {
    std::uint64_t packets = 0, bytes = 0;  // delivered
    std::uint64_t dropped = 0, marked = 0;
  };

  explicit Link(const LinkSettings& settings);  // throws std::invalid_argument if the rate is 0 or too high

  // A packet arrives. `now` never goes back, here and below.
  Fate push(Time now, std::span<const std::byte> packet);

  // When the next packet reaches the other end; `never` if none is under way.
  [[nodiscard]] Time due() const;

  // The next packet, if it is due. All come out in the order in which they came in.
  [[nodiscard]] std::optional<std::vector<std::byte>> pop(Time now);

  // Of packets whose last bit has not left; of the one that is leaving, all bytes count.
  [[nodiscard]] std::uint64_t queued_bytes(Time now);

  // The most that was queued since the last call. What a queue does between two looks at it is what marks and drops.
  [[nodiscard]] std::uint64_t take_peak(Time now);

  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  struct Packet {
    Time left;  // its last bit
    std::vector<std::byte> bytes;
  };
  void drain(Time now);

  const LinkSettings settings_;
  std::deque<Packet> packets_;      // queued and on the wire: the delay is one, so they arrive as they leave
  std::size_t on_wire_ = 0;         // so many at the front have left the queue
  std::uint64_t queued_bytes_ = 0;  // of the others
  std::uint64_t peak_ = 0;
  Time free_{};                  // when the last bit of the last packet leaves,
  std::uint64_t remainder_ = 0;  // and the part of a nanosecond after that, in 1/bits_per_second: without it fast links gain
  Counters counters_;
};

}  // namespace netsum::bottleneck
