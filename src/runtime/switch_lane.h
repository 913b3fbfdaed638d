// One I/O thread of an aggregator: a socket, SwitchML's switch with its share of the slots, ATP's switch with a separate
// pool, and NetReduce's accelerator. All three formats arrive at the same socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "protocol/atp/switch.h"
#include "protocol/netreduce/tunnel.h"
#include "protocol/switchml/switch.h"
#include "runtime/memory.h"
#include "runtime/packet_loop.h"
#include "transport/transport.h"

namespace netsum::runtime {

// Functions that change its jobs are called by one thread at a time. They do all slow work, as large memory is made and
// freed. If one throws (Error, std::bad_alloc), the lane is unchanged.
class SwitchLane {
 public:
  // The pool is allocated for the first ATP job.
  SwitchLane(std::unique_ptr<transport::Transport> transport, const atp::SwitchConfig& pool, std::uint64_t mark_bytes,
             std::uint32_t index, const ThreadOptions& threads, const EndpointCookies& cookies = EndpointCookies());

  [[nodiscard]] Endpoint local() const { return loop_->local(); }
  void add_job(const switchml::SwitchJobConfig& config);  // returns once the lane serves the job
  void remove_job(std::uint64_t epoch);
  // May be repeated with new neighbours. Throws Error: chunks longer than a slot, or a different job of that epoch.
  void install(const atp::SwitchJobConfig& config);
  void uninstall(std::uint64_t epoch);
  void add_ring(const netreduce::TunnelRing& ring);  // returns once the lane serves the ring
  void remove_ring(std::uint64_t incarnation);

  struct State {
    const switchml::Switch& switchml;
    const atp::Switch* atp;  // null: no ATP job yet
    netreduce::Tunnel& netreduce;
    const transport::Counters& transport;
  };
  // `look` sees the lane's state on its own thread, between batches.
  void inspect(const std::function<void(const State&)>& look);

 private:
  std::uint64_t on_packets(std::span<const RxView> packets, Time now, transport::Transport& transport);

  const atp::SwitchConfig pool_;
  const std::uint64_t mark_bytes_;
  switchml::Switch switch_;
  JobMemory memory_;  // zeroed: nothing of a former owner remains
  PacketMemory pool_memory_;
  bool has_pool_ = false;  // the callers' view
  std::optional<atp::Switch> atp_;
  netreduce::Tunnel tunnel_;
  JobMemory ring_memory_;
  std::unique_ptr<PacketLoop> loop_;  // last: its thread uses all members above
};

}  // namespace netsum::runtime
