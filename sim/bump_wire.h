// A bump between the cables of simulated hosts, and what must hold of every frame: it leaves as it came, or is a gradient
// and leaves as a sum behind headers that its sender wrote; and no gradient of a recorded connection leaves as it came.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <unordered_set>
#include <vector>

#include "protocol/netreduce/bump.h"
#include "service/format.h"
#include "sim/faults.h"
#include "sim/frames.h"
#include "sim/nic.h"
#include "sim/random.h"

namespace netsum::sim {

// What bumps send each other is no frame.
[[nodiscard]] bool is_datagram(std::span<const std::byte> bytes);

// A disk with a bump's state file (daemon/connection_file.h), which outlives the bump's processes.
class StateFile {
 public:
  void write(const netreduce::ConnectionChange& change) { pending_.push_back(change); }
  void commit() { apply(pending_.size()); }
  // Its process has died. Some of what was not committed may be on the disk.
  void lose(Random& random) {
    apply(random.below(pending_.size() + 1));
    pending_.clear();
  }
  [[nodiscard]] std::vector<netreduce::KnownConnection> known() const { return {known_.begin(), known_.end()}; }

 private:
  void apply(std::size_t changes);

  std::set<netreduce::KnownConnection> known_;
  std::vector<netreduce::ConnectionChange> pending_;
};

class BumpWire final : public service::Format {
 public:
  // `learning`: the hosts of rings whose connections are learned; their changes are recorded, as a daemon does.
  BumpWire(const netreduce::BridgeConfig& bridge, netreduce::LearningConfig learning, StateFile& file, Duration commits_take,
           const ForeignFrames& foreign);

  // Of rings whose connections are learned: from and to these hosts, which are in different racks.
  void expect_crossing(const netreduce::HostAddress& from, const netreduce::HostAddress& to) {
    crossing_hosts_.emplace(from, to);
  }
  // Of a ring that ranks have named. What is told is on the disk before they send.
  void record(const netreduce::RingConfig& ring);
  void bypass(bool on) { bypassed_ = on; }

  [[nodiscard]] netreduce::Tunnel& tunnel() { return bump_.tunnel(); }
  [[nodiscard]] netreduce::LearnedRacks& learned_racks() { return bump_.learned_racks(); }
  [[nodiscard]] netreduce::Accelerator& accelerator() { return bump_.accelerator(); }
  [[nodiscard]] const netreduce::Accelerator& accelerator() const { return bump_.accelerator(); }
  void check(std::uint64_t received) const;  // throws Violation
  void count_events(Tally& tally) const;

  [[nodiscard]] bool takes(std::uint8_t) const override { return true; }
  void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) override;
  [[nodiscard]] std::uint64_t strangers() const override { return 0; }

 private:
  struct Written {
    netreduce::Connection connection;
    Time committed{};
  };

  [[nodiscard]] bool crosses(const netreduce::Connection& connection) const {
    return crossing_.contains(connection) || crossing_hosts_.contains({connection.source, connection.destination});
  }
  void commit(Time now, Sink& sink);
  // A mark that a datagram has is in a frame's IP header.
  [[nodiscard]] RxView as_ports_mark(const RxView& view);
  void carry(const RxView& view, Time now, Sink& sink);
  void take(const RxView& datagram, Time now, Sink& sink);
  void judge_passed(const RxView& view, std::span<const std::byte> passed, std::span<const Endpoint> to);
  void judge_made(std::span<const std::byte> frame) const;

  netreduce::Bump bump_;
  netreduce::Bridge cable_;  // in place of the bump, while frames go around it
  StateFile& file_;
  const Duration commits_take_;
  const ForeignFrames& foreign_;
  bool bypassed_ = false;
  Time now_{};
  std::vector<Written> writing_;
  std::deque<Frame> marked_;                  // until the sink is flushed
  std::set<netreduce::Connection> recorded_;  // connections of which the disk knows
  std::set<netreduce::Connection> crossing_;  // of rings in several racks: those that leave this one or come to it
  std::set<std::pair<netreduce::HostAddress, netreduce::HostAddress>> crossing_hosts_;
  std::unordered_set<std::uint64_t> headers_;  // of contributions
  std::uint64_t given_ = 0, datagrams_ = 0, past_ = 0, foreign_passed_ = 0, known_again_ = 0, learned_ = 0, restarted_ = 0;
};

}  // namespace netsum::sim
