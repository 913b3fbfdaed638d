// One I/O thread of a parameter server (ATP): a socket, and its lane of every job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "protocol/atp/server.h"
#include "protocol/switchml/probe_answers.h"
#include "runtime/memory.h"
#include "runtime/packet_loop.h"

namespace netsum::runtime {

// add_job and remove_job are called by one thread at a time. They do all slow work, as large memory is made and freed.
class ServerLane {
 public:
  ServerLane(std::unique_ptr<transport::Transport> transport, std::uint64_t mark_bytes, std::uint32_t index,
             const ThreadOptions& threads, const EndpointCookies& cookies = EndpointCookies());

  [[nodiscard]] Endpoint local() const { return loop_->local(); }
  // Returns once the lane serves the job. Throws Error or std::bad_alloc and then leaves the lane unchanged.
  void add_job(const atp::ServerJobConfig& config);
  void remove_job(std::uint64_t epoch);
  void move_roots(std::uint64_t epoch, const std::vector<Endpoint>& roots);  // as Server::move_roots
  // `look` sees the lane's state on its own thread, between batches.
  void inspect(const std::function<void(const atp::Server&, const transport::Counters&)>& look);

 private:
  std::uint64_t on_packets(std::span<const RxView> packets, Time now, transport::Transport& transport);

  const std::uint64_t mark_bytes_;
  const switchml::ProbeAnswers probe_answers_;
  atp::Server server_;
  JobMemory memory_;
  std::unique_ptr<PacketLoop> loop_;  // last: its thread uses all members above
};

}  // namespace netsum::runtime
