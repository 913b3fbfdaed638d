// One I/O thread of an aggregator: a socket, SwitchML's switch and its share of the slots, ATP's switch with a pool of its
// own, and NetReduce's accelerator. All three formats come to the same socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "protocol/atp/switch.h"
#include "protocol/netreduce/tunnel.h"
#include "protocol/switchml/switch.h"
#include "runtime/memory.h"
#include "runtime/packet_loop.h"
#include "transport/transport.h"

namespace netsum::runtime {

class SwitchLane {
 public:
  // The pool is made when the first ATP job comes.
  SwitchLane(std::unique_ptr<transport::Transport> transport, const atp::SwitchConfig& pool, std::uint64_t mark_bytes,
             std::uint32_t index, const ThreadOptions& threads);

  [[nodiscard]] Endpoint local() const { return loop_->local(); }
  void add_job(const switchml::SwitchJobConfig& config);  // returns once the lane serves it
  void remove_job(std::uint64_t epoch);
  void install(const atp::SwitchJobConfig& config);  // idempotent; throws Error if its chunks are longer than a slot
  void uninstall(std::uint64_t epoch);
  void add_ring(const netreduce::TunnelRing& ring);  // returns once the lane serves it
  void remove_ring(std::uint64_t incarnation);

  // `look` sees the lane's state on its own thread, between batches. No ATP job yet: null.
  using Look =
      std::function<void(const switchml::Switch&, const atp::Switch*, netreduce::Tunnel&, const transport::Counters&)>;
  void inspect(const Look& look);

 private:
  void on_packets(std::span<const RxView> packets, Time now, transport::Transport& transport);

  const atp::SwitchConfig pool_;
  const std::uint64_t mark_bytes_;
  switchml::Switch switch_;
  std::unordered_map<std::uint64_t, PacketMemory> memory_;  // of each job; nothing of a former owner is in it
  PacketMemory pool_memory_;
  std::optional<atp::Switch> atp_;
  netreduce::Tunnel tunnel_;
  std::unordered_map<std::uint64_t, PacketMemory> ring_memory_;
  std::unique_ptr<PacketLoop> loop_;  // last: its thread uses all above
};

}  // namespace netsum::runtime
