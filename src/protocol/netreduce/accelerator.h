// The accelerator: NetReduce §3.1-§3.2, a bump in the wire between hosts that form rings of RoCEv2 reliable connections. It
// detects gradient packets, adds them over the connections of their ring, and forwards each to its destination with the sum
// as payload. docs/protocol-netreduce.md has the rules, and where and why they depart from the paper.
//
// One object serves one thread's share of the rings. No I/O, no clock, no allocation per packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/connection.h"
#include "protocol/netreduce/ring_config.h"
#include "wire/roce.h"

namespace netsum::netreduce {

// Why a packet with the mark of a layout belongs to no ring. No accelerator would add it, so it must not arrive.
enum class Misfit : std::uint8_t {
  service,    // of a connection that is not reliable (UC)
  host,       // from or to an address outside of the hosts
  layout,     // no ring has this layout
  header,     // the header is truncated or impossible
  ring,       // no ring has this ID
  rank,       // the rank exceeds its ring's size
  beginning,  // not message 0, on a connection whose message 0 was not seen
  open,       // completes a ring whose connections are not closed
};
inline constexpr std::size_t misfits = static_cast<std::size_t>(Misfit::open) + 1;

struct AcceleratorCounters {
  std::uint64_t passed = 0;           // not gradients
  std::uint64_t passed_other = 0;     // no gradients, but on connections of a learned ring
  std::uint64_t dropped_known = 0;    // of known gradient connections without state
  std::uint64_t dropped_nowhere = 0;  // gradients with unknown egress
  std::uint64_t dropped_damaged = 0;  // damaged: would have bound a connection, or decided that a message is no gradient
  std::uint64_t dropped_restart = 0;  // message 0 of a rank while another connection of that rank was active
  std::uint64_t dropped_misfit[misfits] = {};
  std::uint64_t unmarked = 0;  // of `passed`: messages from host to host that have no mark
};

// The newest example of a misfit.
struct MisfitExample {
  Connection connection;
  wire::netreduce::InaHeader header;  // as far as it could be read
};

// A change of a connection's state.
struct ConnectionChange {
  enum class Kind : std::uint8_t {
    learned,    // bound to a rank
    forgotten,  // without a ring, and silent for long or its queue pair number reused for something else
    restarted,  // learned, replacing the rank's previous connection, with which the ring's stream has ended
  };
  Kind kind = Kind::learned;
  KnownConnection known;
  std::uint64_t incarnation = 0;  // of the ring
  std::uint32_t rank = 0;
};

struct LearningConfig {
  std::vector<HostAddress> hosts;  // connections are learned only between these
  // True: the caller records connections persistently and then calls recorded(); until then no sum leaves on them.
  // Otherwise, after a restart, a receiver that has the first packets of a message's sum would take the other ranks' raw
  // packets for the rest.
  bool record = false;
};

class Ring;
struct Arrival;
enum class RingPacket : std::uint8_t;

// Threads that serve rings in place of the accelerator's own (runtime/ring_threads.h). The accelerator keeps the table of
// connections, and rings only sum: each is served by one thread at a time.
class RingServers {
 public:
  // Takes the packet over, in a copy. False: the caller serves it, as it has recalled the ring.
  [[nodiscard]] virtual bool hand_over(Ring& ring, RingPacket kind, std::uint32_t line, const Arrival& arrival) = 0;
  // Waits until all that was handed over of the ring has left. From then on the caller serves it, until its sink is flushed.
  virtual void recall(Ring& ring) = 0;
  virtual void forget(const Ring& ring) = 0;  // it is removed

 protected:
  ~RingServers() = default;
};

class Accelerator {
 public:
  // Bytes of a ring's packet buffers.
  [[nodiscard]] static std::size_t memory_bytes(const RingConfig& config);

  Accelerator();
  ~Accelerator();
  Accelerator(Accelerator&&) noexcept;
  Accelerator& operator=(Accelerator&&) noexcept;
  // State is a value. A copy refers to the rings' memory until move_memory() names another with the same content, and tells
  // nobody of changes.
  Accelerator(const Accelerator& other);
  Accelerator& operator=(const Accelerator&) = delete;
  void move_memory(std::uint64_t incarnation, std::span<std::byte> memory);

  // A ring's state is large: it is created and destroyed off the thread that serves packets.
  struct Destroy {
    void operator()(Ring* ring) const;
  };
  using RingState = std::unique_ptr<Ring, Destroy>;
  // `memory` (memory_bytes, zeroed, 64-byte aligned) stays with the ring until it is destroyed.
  [[nodiscard]] static RingState make_ring(const RingConfig& config, std::span<std::byte> memory);
  // False, and `ring` is untouched: the incarnation or a connection is in use, or two ranks have the same connection. The
  // ring's connections become known.
  [[nodiscard]] bool add_ring(RingState&& ring);
  [[nodiscard]] bool add_ring(const RingConfig& config, std::span<std::byte> memory) {
    return add_ring(make_ring(config, memory));
  }
  // The ring's connections stay known, so their packets in flight are not passed unsummed. Null: no such ring.
  RingState remove_ring(std::uint64_t incarnation);

  // Enables learning of the connections of rings that do not register them (foreign hosts).
  //
  // A ring's stream begins with message 0, and its first packet identifies the rank of the connection. It begins a stream
  // only if it is newer than the known one: neither a repeat of message 0 on a superseded connection, nor any message 0
  // while the rank's present connection is active (restart_after). Hosts repeat dropped packets.
  void learn(LearningConfig config);
  static constexpr Duration restart_after = std::chrono::seconds(1);

  // Registers a gradient connection without state, from before a restart.
  void know(const KnownConnection& connection, Time now);
  [[nodiscard]] std::vector<Connection> known() const;  // including the rings' connections
  // For an unparsable packet: whether it belongs to a gradient connection, or the message that begins there has a mark.
  [[nodiscard]] bool may_be_gradient(const Connection& connection, std::span<const std::byte> beginning) const {
    return table_.contains(connection) || has_mark_of_concern(connection, beginning);
  }
  // Null: this serves all rings itself. All calls but on_packet() need rings that no other thread serves now.
  void serve_by(RingServers* servers) { servers_ = servers; }
  void on_change(std::function<void(const ConnectionChange&)> hook) { changed_ = std::move(hook); }
  void recorded(const Connection& connection, Sink& sink);
  // ---- a rack's part of a learned ring (learned_racks.h)

  struct Gathered {
    bool complete = false;  // all of the rack's ranks are bound, and recorded
    bool begun = false;
    std::uint64_t attempt = 0;  // grows whenever connections change
    KnownConnection leaving;    // if complete: of the rack's last rank
  };
  [[nodiscard]] Gathered gathered(std::uint64_t incarnation) const;
  // Called when a rack is complete, and again whenever a host repeats the beginning of its stream there.
  void on_gathered(std::function<void(std::uint64_t incarnation, Sink& sink)> hook) { gathered_ = std::move(hook); }
  // False, and nothing changes: the arriving connection does not fit the rack's own.
  [[nodiscard]] bool begin_life(std::uint64_t incarnation, const RingLife& life, Time now);
  // The ring gathers its ranks anew: with the same connections, if nothing has left on any.
  void end_life(std::uint64_t incarnation);

  // Forgets connections without a ring that had no gradient since `silent_since`.
  void forget(Time silent_since);
  // The most connections without a ring that are remembered. Beyond that the oldest are forgotten, sealed ones first: their
  // hosts detect packets without a sum themselves.
  static constexpr std::size_t most_past = 4096;

  enum class Verdict : std::uint8_t { pass, taken };
  // `packet` was parsed from `ip_at` of a frame on; `egress` is the frame's next hop; default-constructed: unknown, so a
  // gradient is dropped if its connection never had one. But one whose sum does not leave here needs none: its header goes
  // to all of `flood`, which stay valid as long as the ring. `pass`: the frame is to be forwarded unchanged.
  [[nodiscard]] Verdict on_packet(const wire::roce::Packet& packet, std::span<const std::byte> frame, std::size_t ip_at,
                                  const Endpoint& egress, Time now, Sink& sink, std::span<const Endpoint> flood = {});

  [[nodiscard]] std::optional<RingMismatch> mismatch(std::uint64_t incarnation) const;  // the first
  [[nodiscard]] std::optional<RingStall> stall(std::uint64_t incarnation) const;
  [[nodiscard]] RankSet bound(std::uint64_t incarnation) const;  // ranks whose connection is known
  [[nodiscard]] const RingCounters* ring_counters(std::uint64_t incarnation) const;
  [[nodiscard]] Connection connection_of(std::uint64_t incarnation, std::uint32_t rank) const;  // if bound
  [[nodiscard]] const AcceleratorCounters& counters() const { return counters_; }
  [[nodiscard]] const MisfitExample& example(Misfit misfit) const { return examples_[static_cast<std::size_t>(misfit)]; }

  // All state that determines responses to packets, for comparing and hashing: no times, no counters, and of a connection
  // with a ring not the newest PSN, which matters once the ring is removed.
  void append_state(std::vector<std::byte>& out) const;
  void check() const;  // the invariants (NETSUM_CHECK)

 private:
  // The newest messages of a learned connection that are no gradients, by PSN. They pass.
  class OtherMessages {
   public:
    // A message or a gradient begins at `psn`: ends any earlier message that was assumed to extend beyond.
    void end_at(std::uint32_t psn);
    // Begins a message of `packets` packets (from a WRITE's length); 0: it extends as long as PSNs continue without a gap.
    void begin(std::uint32_t psn, std::uint32_t packets, bool last);
    [[nodiscard]] bool holds(std::uint32_t psn, bool last);
    void append_state(std::vector<std::byte>& out) const;

   private:
    struct Message {
      std::uint32_t first = 0, packets = 0;
      bool open = false;  // its end is not known
    };
    static constexpr std::size_t most = 16;
    std::vector<Message> messages_;
    std::size_t next_ = 0;
  };
  struct Entry {
    Ring* ring = nullptr;    // null: known, without state
    std::uint32_t line = 0;  // of the ring, or from_above
    Time heard{};            // when the newest gradient came
    std::optional<std::uint32_t> first_psn{}, newest_psn{};
    bool sealed = false;
    bool recorded = false;
    OtherMessages others{};
  };
  struct MarkedLayout {
    wire::netreduce::Layout layout;
    bool learned = false;  // used by a ring whose connections are learned
  };
  static constexpr std::uint32_t from_above = UINT32_MAX;  // in place of a line
  using Table = std::unordered_map<Connection, Entry, ConnectionHash>;
  enum class Judgement : std::uint8_t { pass, drop, gradient };

  [[nodiscard]] Entry* find(const Connection& connection);
  [[nodiscard]] Verdict on_missing(Arrival& arrival, Sink& sink);
  void serve(Ring& ring, RingPacket kind, std::uint32_t line, const Arrival& arrival, Sink& sink);
  void recall(Ring& ring);
  [[nodiscard]] Judgement judge(const Connection& connection, Entry*& entry, const Arrival& arrival, Time now);
  [[nodiscard]] Judgement judge_unmarked(const Connection& connection, Entry* entry, const Arrival& arrival);
  [[nodiscard]] Judgement begin(const Connection& connection, Entry*& entry, const Arrival& arrival, Time now);
  [[nodiscard]] Judgement await(const Connection& connection, const Entry* entry, std::uint32_t psn, Time now);
  [[nodiscard]] const MarkedLayout* mark_of(std::span<const std::byte> payload) const;
  [[nodiscard]] bool has_mark_of_concern(const Connection& connection, std::span<const std::byte> payload) const;
  void add_layout(const wire::netreduce::Layout& layout, bool learned);
  [[nodiscard]] bool is_host(const HostAddress& address) const;
  [[nodiscard]] static bool closes(const Ring& ring, std::uint32_t line, const Connection& connection);
  [[nodiscard]] Judgement refuse(Misfit misfit, const Connection& connection, const wire::netreduce::InaHeader& header = {});
  void begin_again(Ring& ring, std::optional<std::uint32_t> without);
  void announce(const Ring& ring, Sink& sink) const;
  void erase(Table::iterator entry);
  void trim();

  std::unordered_map<std::uint64_t, RingState> rings_;
  // Connections on which receivers say what they miss.
  std::unordered_map<Connection, std::pair<Ring*, std::uint32_t>, ConnectionHash> answers_;
  std::unordered_set<Connection, ConnectionHash> passing_;  // of all rings
  Table table_;                                             // the CLT: entries do not move when others are added or removed
  Entry* last_ = nullptr;  // of the previous packet: packets of one connection come in trains
  Connection last_connection_;
  std::size_t lines_ = 0;              // of all rings
  std::vector<MarkedLayout> layouts_;  // of all rings, and the named layouts
  LearningConfig learning_;
  AcceleratorCounters counters_;
  std::array<MisfitExample, misfits> examples_;
  std::function<void(const ConnectionChange&)> changed_;
  std::function<void(std::uint64_t, Sink&)> gathered_;
  RingServers* servers_ = nullptr;
};

}  // namespace netsum::netreduce
