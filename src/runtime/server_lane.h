// One I/O thread of a parameter server (ATP): a socket, and its lane of every job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "protocol/atp/server.h"
#include "runtime/memory.h"
#include "runtime/packet_loop.h"

namespace netsum::runtime {

class ServerLane {
 public:
  ServerLane(std::unique_ptr<transport::Transport> transport, std::uint64_t mark_bytes, std::uint32_t index,
             const ThreadOptions& threads);

  [[nodiscard]] Endpoint local() const { return loop_->local(); }
  void add_job(const atp::ServerJobConfig& config);  // returns once the lane serves it
  void remove_job(std::uint64_t epoch);
  // `look` sees the lane's state on its own thread, between batches.
  void inspect(const std::function<void(const atp::Server&, const transport::Counters&)>& look);

 private:
  const std::uint64_t mark_bytes_;
  atp::Server server_;
  std::unordered_map<std::uint64_t, PacketMemory> memory_;  // of each job
  std::unique_ptr<PacketLoop> loop_;                        // last: its thread uses all above
};

}  // namespace netsum::runtime
