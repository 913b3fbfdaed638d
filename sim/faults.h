// The kinds of faults, and how often each was injected.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace netsum::sim {

enum class Fault : std::uint8_t {
  // of a link
  loss,
  burst,  // loss of consecutive packets
  duplicate,
  reorder,  // a packet arrives after one sent later
  late,     // heavy tail: up to seconds
  corrupt,
  truncate,
  partition,  // one direction of a link is dead for a while
  queue,      // tail drop
  mark,       // ECN
  forge,      // a stranger's datagram
  // of a node
  pause,
  straggle,  // issues an operation long after the others
  crash,
  restart,  // of a rank, the same or at another address
  aggregator_crash,
  aggregator_restart,  // with empty memory
  control_loss,
  control_repeat,
  skew,      // a clock that runs fast or slow
  mismatch,  // a rank issues another call
  bypass,    // packets go past the aggregator's sums (NetReduce)
  // of the control plane
  silent_switch,  // a switch below never answers
  slow_switch,    // a switch below answers late
  no_memory,      // a lane of an aggregator has no memory for a starting job
  intrude,        // another tenant joins under a job's name, and sends heartbeats and leaves for its ranks
  // that never heal, each in a profile of its own
  dead_link,
  slow_rank,
  lossy_lane,  // every third packet is lost
};
inline constexpr std::size_t fault_kinds = static_cast<std::size_t>(Fault::lossy_lane) + 1;
[[nodiscard]] constexpr bool heals(Fault fault) {
  return fault < Fault::dead_link;
}

[[nodiscard]] constexpr const char* to_string(Fault fault) {
  constexpr const char* names[fault_kinds] = {"loss",
                                              "burst",
                                              "duplicate",
                                              "reorder",
                                              "late",
                                              "corrupt",
                                              "truncate",
                                              "partition",
                                              "queue",
                                              "mark",
                                              "forge",
                                              "pause",
                                              "straggle",
                                              "crash",
                                              "restart",
                                              "aggregator_crash",
                                              "aggregator_restart",
                                              "control_loss",
                                              "control_repeat",
                                              "skew",
                                              "mismatch",
                                              "bypass",
                                              "silent_switch",
                                              "slow_switch",
                                              "no_memory",
                                              "intrude",
                                              "dead_link",
                                              "slow_rank",
                                              "lossy_lane"};
  return names[static_cast<std::size_t>(fault)];
}

// A bit per kind.
class FaultSet {
 public:
  [[nodiscard]] static constexpr FaultSet all() { return FaultSet((1U << fault_kinds) - 1); }
  constexpr FaultSet() = default;
  [[nodiscard]] constexpr bool contains(Fault fault) const { return (bits_ >> static_cast<unsigned>(fault) & 1) != 0; }
  constexpr void insert(Fault fault) { bits_ |= 1U << static_cast<unsigned>(fault); }
  constexpr void erase(Fault fault) { bits_ &= ~(1U << static_cast<unsigned>(fault)); }
  bool operator==(const FaultSet&) const = default;

 private:
  constexpr explicit FaultSet(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_ = 0;
};

// Statistics of a run, or sums over runs.
struct Tally {
  std::array<std::uint64_t, fault_kinds> faults{};
  std::uint64_t live_faults = 0;                // that hit a datagram of a running job
  std::uint64_t packets = 0;                    // datagrams sent
  std::uint64_t operations = 0;                 // delivered to a rank
  std::uint64_t errors = 0;                     // attempts that ended in an error
  std::map<std::string, std::uint64_t> events;  // rare events, by name
  double virtual_seconds = 0;

  void count(Fault fault) { ++faults[static_cast<std::size_t>(fault)]; }
  void add(const Tally& other) {
    for (std::size_t i = 0; i < fault_kinds; ++i) faults[i] += other.faults[i];
    live_faults += other.live_faults;
    packets += other.packets;
    operations += other.operations;
    errors += other.errors;
    virtual_seconds += other.virtual_seconds;
    for (const auto& [name, value] : other.events) events[name] += value;
  }
};

// An invariant was violated.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace netsum::sim
