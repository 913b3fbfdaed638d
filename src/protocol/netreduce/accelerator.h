// The accelerator: NetReduce §3.1-§3.2, a bump in the wire between hosts that form rings of RoCEv2 reliable connections. It
// finds gradient packets, adds them over the connections of their ring, and sends each on to where it was going with the sum
// in place of its payload. docs/protocol-netreduce.md has the rules, and where and why they depart from the paper.
//
// One object serves one thread's share of the rings. No I/O, no clock, no allocation per packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/connection.h"
#include "protocol/netreduce/ring_config.h"
#include "wire/roce.h"

namespace netsum::netreduce {

struct AcceleratorCounters {
  std::uint64_t passed = 0;           // not gradients
  std::uint64_t dropped_known = 0;    // of gradient connections of which nothing but that is known
  std::uint64_t dropped_nowhere = 0;  // gradients without an egress
};

class Ring;
struct Arrival;

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
  // Called with each connection that is learned, before anything that follows from it is sent: whoever writes it down then
  // still knows it if this ends at any time after.
  void on_learned(std::function<void(const Connection&)> hook) { learned_ = std::move(hook); }
  // Forgets connections without a ring of which nothing was heard since.
  void forget(Time silent_since);

  enum class Verdict : std::uint8_t { pass, taken };
  // `packet` was parsed from `ip_at` of a frame on; `egress`: where the frame goes; default-constructed: nobody knows where,
  // so that a gradient is dropped. `pass`: it is to be sent there as it is.
  [[nodiscard]] Verdict on_packet(const wire::roce::Packet& packet, std::span<const std::byte> frame, std::size_t ip_at,
                                  const Endpoint& egress, Time now, Sink& sink);

  [[nodiscard]] std::optional<RingMismatch> mismatch(std::uint64_t incarnation) const;  // the first
  [[nodiscard]] std::optional<RingStall> stall(std::uint64_t incarnation) const;
  [[nodiscard]] RankSet bound(std::uint64_t incarnation) const;  // ranks whose connection is known
  [[nodiscard]] const RingCounters* ring_counters(std::uint64_t incarnation) const;
  [[nodiscard]] const AcceleratorCounters& counters() const { return counters_; }

  // All that decides which packet it answers how, for comparing and hashing: not times and not counters.
  void append_state(std::vector<std::byte>& out) const;
  void check() const;  // its own invariants; throws std::logic_error in checked builds

 private:
  struct Entry {
    Ring* ring = nullptr;    // null: known, no state
    std::uint32_t line = 0;  // of the ring, or from_above
    Time heard{};
  };
  using Table = std::unordered_map<Connection, Entry, ConnectionHash>;

  [[nodiscard]] Entry* find(const Connection& connection);
  [[nodiscard]] Entry* learn(const Connection& connection, const Arrival& arrival);
  void begin_again(Ring& ring);

  std::unordered_map<std::uint64_t, std::unique_ptr<Ring>> rings_;
  Table table_;            // the CLT: connections stay where they are while others come and go
  Entry* last_ = nullptr;  // of the previous packet: packets of one connection come in trains
  Connection last_connection_;
  AcceleratorCounters counters_;
  std::function<void(const Connection&)> learned_;
};

}  // namespace netsum::netreduce
