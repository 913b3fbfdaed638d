// The accelerator: NetReduce §3.1-§3.2, a bump in the wire between hosts that form rings of RoCEv2 reliable connections. It
// finds gradient packets, adds them over the connections of their ring, and sends each on to where it was going with the sum
// in place of its payload. docs/protocol-netreduce.md has the rules, and where and why they depart from the paper.
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
#include <utility>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/connection.h"
#include "protocol/netreduce/ring_config.h"
#include "wire/roce.h"

namespace netsum::netreduce {

// Why a packet that has the mark of a layout belongs to no ring. Nobody would add it, so that it must not arrive.
enum class Misfit : std::uint8_t {
  service,    // of a connection that is not reliable (UC)
  host,       // from or to an address that is none of the hosts
  layout,     // no ring has this layout,
  header,     // or the header is cut off or impossible,
  ring,       // or no ring has this ID,
  rank,       // or its ring not so many ranks
  beginning,  // not message 0, of a connection whose message 0 was not seen
  open,       // with it all ranks are there, and their connections form no closed ring
};
inline constexpr std::size_t misfits = static_cast<std::size_t>(Misfit::open) + 1;

struct AcceleratorCounters {
  std::uint64_t passed = 0;           // not gradients
  std::uint64_t passed_other = 0;     // nor those, but on gradient connections whose ring was learned
  std::uint64_t dropped_known = 0;    // of gradient connections of which nothing but that is known
  std::uint64_t dropped_nowhere = 0;  // gradients without an egress
  std::uint64_t dropped_damaged = 0;  // that would have told whose connection, or that a message is no gradient
  std::uint64_t dropped_restart = 0;  // message 0 of a rank, while another connection of that rank was heard
  std::uint64_t dropped_misfit[misfits] = {};
  std::uint64_t unmarked = 0;  // of `passed`: messages from host to host that have no mark
};

// The newest of its kind.
struct MisfitExample {
  Connection connection;
  wire::netreduce::InaHeader header;  // as far as it could be read
};

// What becomes of connections.
struct ConnectionChange {
  enum class Kind : std::uint8_t {
    learned,    // as that of a rank
    forgotten,  // no ring has it, and it was silent for long, or its queue pair's number was used for something else
    restarted,  // likewise learned; its rank had another one, with which the ring's stream has ended
  };
  Kind kind = Kind::learned;
  KnownConnection known;
  std::uint64_t incarnation = 0;  // of the ring
  std::uint32_t rank = 0;
};

struct LearningConfig {
  std::vector<HostAddress> hosts;  // only between these connections are learned
  // Who waits for a connection to be written down calls recorded(); until then no sum leaves on it. For after a restart
  // whoever has taken the first packets of a message's sum would take the others' raw ones for the rest of it.
  bool record = false;
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

  // A ring's state is large: it is made, and given up, away from the thread that serves packets.
  struct Destroy {
    void operator()(Ring* ring) const;
  };
  using RingState = std::unique_ptr<Ring, Destroy>;
  // `memory` (memory_bytes, zeroed, 64-byte aligned) stays with the ring until it is destroyed.
  [[nodiscard]] static RingState make_ring(const RingConfig& config, std::span<std::byte> memory);
  // False, and `ring` untouched: the incarnation or a connection is in use, or two ranks have the same. Connections become
  // known.
  [[nodiscard]] bool add_ring(RingState&& ring);
  [[nodiscard]] bool add_ring(const RingConfig& config, std::span<std::byte> memory) {
    return add_ring(make_ring(config, memory));
  }
  // Its connections stay known: a packet of theirs that is still on its way does not pass as it is. Null: there is none.
  RingState remove_ring(std::uint64_t incarnation);

  // Of rings whose connections are not registered (foreign hosts). Without this nothing is learned.
  //
  // A ring's stream begins with message 0, and a packet that begins it shows whose connection it comes on. It begins a
  // stream only if it is newer than what is known: a repeat of the message 0 of a connection that was superseded is not, nor
  // is any while the rank's present connection is heard of (restart_after). Hosts repeat what is dropped.
  void learn(LearningConfig config);
  static constexpr Duration restart_after = std::chrono::seconds(1);

  // Gradient connections of which nothing but that is known, from before a restart.
  void know(const KnownConnection& connection, Time now);
  [[nodiscard]] std::vector<Connection> known() const;  // those and the rings' own
  // Of what cannot be read: is it of a gradient connection, or has the message that begins there a mark?
  [[nodiscard]] bool may_be_gradient(const Connection& connection, std::span<const std::byte> beginning) const {
    return table_.contains(connection) || has_mark_of_concern(connection, beginning);
  }
  void on_change(std::function<void(const ConnectionChange&)> hook) { changed_ = std::move(hook); }
  void recorded(const Connection& connection, Sink& sink);
  // Forgets connections without a ring of which no gradient was heard since.
  void forget(Time silent_since);
  // Of those it remembers no more than so many; then it forgets the oldest, and those of sealed packets first, as hosts see
  // of such by themselves that they hold no sum.
  static constexpr std::size_t most_past = 4096;

  enum class Verdict : std::uint8_t { pass, taken };
  // `packet` was parsed from `ip_at` of a frame on; `egress`: where the frame goes; default-constructed: nobody knows where,
  // so that a gradient is dropped. `pass`: it is to be sent there as it is.
  [[nodiscard]] Verdict on_packet(const wire::roce::Packet& packet, std::span<const std::byte> frame, std::size_t ip_at,
                                  const Endpoint& egress, Time now, Sink& sink);

  [[nodiscard]] std::optional<RingMismatch> mismatch(std::uint64_t incarnation) const;  // the first
  [[nodiscard]] std::optional<RingStall> stall(std::uint64_t incarnation) const;
  [[nodiscard]] RankSet bound(std::uint64_t incarnation) const;  // ranks whose connection is known
  [[nodiscard]] const RingCounters* ring_counters(std::uint64_t incarnation) const;
  [[nodiscard]] Connection connection_of(std::uint64_t incarnation, std::uint32_t rank) const;  // if it is bound
  [[nodiscard]] const AcceleratorCounters& counters() const { return counters_; }
  [[nodiscard]] const MisfitExample& example(Misfit misfit) const { return examples_[static_cast<std::size_t>(misfit)]; }

  // All that decides which packet it answers how, for comparing and hashing: not times and not counters.
  void append_state(std::vector<std::byte>& out) const;
  void check() const;  // its own invariants; throws std::logic_error in checked builds

 private:
  // Messages of a learned connection that are no gradients, by their PSNs: the newest ones. They pass.
  class OtherMessages {
   public:
    // One begins here, or a gradient: whatever was thought to reach beyond has ended.
    void end_at(std::uint32_t psn);
    // Of as many packets as a WRITE says, and as far as it goes on without a gap otherwise (0).
    void begin(std::uint32_t psn, std::uint32_t packets, bool last);
    [[nodiscard]] bool holds(std::uint32_t psn, bool last);

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
    Ring* ring = nullptr;    // null: known, no state
    std::uint32_t line = 0;  // of the ring, or from_above
    Time heard{};            // when the newest gradient came
    std::optional<std::uint32_t> first_psn{}, newest_psn{};
    bool sealed = false;
    bool recorded = false;
    OtherMessages others{};
  };
  struct MarkedLayout {
    wire::netreduce::Layout layout;
    bool learned = false;  // of a ring whose connections are learned
  };
  using Table = std::unordered_map<Connection, Entry, ConnectionHash>;
  enum class Judgement : std::uint8_t { pass, drop, gradient };

  [[nodiscard]] Entry* find(const Connection& connection);
  [[nodiscard]] Judgement judge(const Connection& connection, Entry*& entry, const Arrival& arrival, Time now);
  [[nodiscard]] Judgement judge_unmarked(const Connection& connection, Entry* entry, const Arrival& arrival);
  [[nodiscard]] Judgement begin(const Connection& connection, Entry*& entry, const Arrival& arrival, Time now);
  [[nodiscard]] const MarkedLayout* mark_of(std::span<const std::byte> payload) const;
  [[nodiscard]] bool has_mark_of_concern(const Connection& connection, std::span<const std::byte> payload) const;
  void add_layout(const wire::netreduce::Layout& layout, bool learned);
  [[nodiscard]] bool is_host(const HostAddress& address) const;
  [[nodiscard]] bool closes(const Ring& ring, std::uint32_t rank, const Connection& connection) const;
  [[nodiscard]] Judgement refuse(Misfit misfit, const Connection& connection, const wire::netreduce::InaHeader& header = {});
  void begin_again(Ring& ring, std::uint32_t rank);
  void erase(Table::iterator entry);
  void trim();

  std::unordered_map<std::uint64_t, RingState> rings_;
  Table table_;            // the CLT: connections stay where they are while others come and go
  Entry* last_ = nullptr;  // of the previous packet: packets of one connection come in trains
  Connection last_connection_;
  std::size_t lines_ = 0;              // of all rings
  std::vector<MarkedLayout> layouts_;  // of all rings, and those with a name
  LearningConfig learning_;
  AcceleratorCounters counters_;
  std::array<MisfitExample, misfits> examples_;
  std::function<void(const ConnectionChange&)> changed_;
};

}  // namespace netsum::netreduce
