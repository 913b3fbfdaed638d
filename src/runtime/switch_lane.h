// One I/O thread of an aggregator: a socket, SwitchML's switch and its share of the slots, ATP's switch with a pool of its
// own, and NetReduce's accelerator. All three formats come to the same socket.
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

// What changes its jobs is called by one thread at a time. Theirs is all that takes long: what is made and freed is large.
// What throws (Error, std::bad_alloc) leaves the lane as it was.
class SwitchLane {
 public:
  // The pool is made when the first ATP job comes.
  SwitchLane(std::unique_ptr<transport::Transport> transport, const atp::SwitchConfig& pool, std::uint64_t mark_bytes,
             std::uint32_t index, const ThreadOptions& threads, const EndpointCookies& cookies = EndpointCookies());

  [[nodiscard]] Endpoint local() const { return loop_->local(); }
  void add_job(const switchml::SwitchJobConfig& config);  // returns once the lane serves it
  void remove_job(std::uint64_t epoch);
  // Again: its neighbours may be elsewhere now. Throws Error if its chunks are longer than a slot, or it is another job.
  void install(const atp::SwitchJobConfig& config);
  void uninstall(std::uint64_t epoch);
  void add_ring(const netreduce::TunnelRing& ring);  // returns once the lane serves it
  void remove_ring(std::uint64_t incarnation);

  struct State {
    const switchml::Switch& switchml;
    const atp::Switch* atp;  // null: there was no ATP job yet
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
  JobMemory memory_;  // nothing of a former owner is in it
  PacketMemory pool_memory_;
  bool has_pool_ = false;  // as its callers know
  std::optional<atp::Switch> atp_;
  netreduce::Tunnel tunnel_;
  JobMemory ring_memory_;
  std::unique_ptr<PacketLoop> loop_;  // last: its thread uses all above
};

}  // namespace netsum::runtime
