// What the hostile proxy does to datagrams: decisions alone, from a seed. flows.h carries them out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "sim/random.h"

namespace netsum::hostile {

using Bytes = std::vector<std::byte>;
using sim::Random;

enum class Way : std::uint8_t { up, down };  // worker -> switch, switch -> worker

enum class Fault : std::uint8_t {
  loss,
  burst,            // loss of all for some milliseconds
  duplicate,        // one to three copies, up to seconds later
  delay,            // milliseconds
  late,             // seconds: several phases of the protocol
  reorder,          // sent after a packet that came later
  corrupt,          // some bits, or a run of bytes
  truncate,         // any shorter length, 0 included
  garbage,          // a datagram of random bytes, or of random bytes behind a right version and type
  reflect,          // back to its sender
  misshape,         // one field wrong, and a right checksum over it
  replay_old,       // a captured packet of the same rank and life
  replay_rank,      // of another rank of the job
  replay_life,      // of an earlier life of the job
  replay_job,       // of another job
  beat_lost,        // a heartbeat that is not carried out
  beat_unanswered,  // one that is, and whose answer comes when nobody waits for it any more
  beat_repeated,
  beat_delayed,
  beat_stale,  // one of another rank's or job's earlier heartbeats comes again
  leave_unanswered,
  leave_repeated,
  leave_forged,  // of a rank that is there, with the epoch of another life
};
inline constexpr std::size_t fault_kinds = static_cast<std::size_t>(Fault::leave_forged) + 1;
inline constexpr Fault first_control_fault = Fault::beat_lost;
[[nodiscard]] const char* to_string(Fault fault);

using Counts = std::array<std::uint64_t, fault_kinds>;

// Whose datagrams a flow carries. `epoch` 0: the worker has not joined yet.
struct Owner {
  std::string job;
  std::uint64_t epoch = 0;
  std::uint32_t rank = 0, lane = 0;
};

// Datagrams of all jobs and lives that went one way, to be replayed: a bounded sample of each rank's.
class Captures {
 public:
  void add(const Owner& owner, std::span<const std::byte> packet, Random& random);
  struct Capture {
    Fault kind;  // what replaying it into the owner's flow is
    const Bytes* packet;
  };
  // One of a random rank of a random job and life; false if none was captured, or if it is the owner's own of another lane:
  // no network brings it to this one's port, from this one's port.
  [[nodiscard]] bool pick(const Owner& owner, Random& random, Capture& out) const;

 private:
  struct Sample {
    Owner owner;
    std::vector<Bytes> packets;
    std::uint64_t seen = 0;
  };
  std::vector<Sample> samples_;
};

// One direction of one worker's lane.
class Meddler {
 public:
  // `intensity` multiplies every probability; 0 forwards faithfully.
  Meddler(std::uint64_t seed, Way way, double intensity) : random_(seed), way_(way), intensity_(intensity) {}

  struct Send {
    Bytes packet;
    Duration delay{};
    bool back = false;     // to where the packet came from
    bool genuine = false;  // the packet itself: if a later one overtakes it, that is a reordering
  };
  void meddle(std::span<const std::byte> packet, Time now, const Owner& owner, Captures& captures, std::vector<Send>& out);

  void count(Fault fault) { ++counts_[static_cast<std::size_t>(fault)]; }
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  [[nodiscard]] bool happens(Fault fault, double probability);
  [[nodiscard]] Bytes corrupted(std::span<const std::byte> packet);
  [[nodiscard]] Bytes garbage();
  [[nodiscard]] Bytes misshapen(std::span<const std::byte> packet);

  Random random_;
  Way way_;
  double intensity_;
  Time burst_ends_{};
  Counts counts_{};
};

}  // namespace netsum::hostile
