#include "runtime/server_lane.h"

#include <utility>

#include "netsum/error.h"

namespace netsum::runtime {

ServerLane::ServerLane(std::unique_ptr<transport::Transport> transport, std::uint64_t mark_bytes, std::uint32_t index,
                       const ThreadOptions& threads)
    : mark_bytes_(mark_bytes) {
  loop_ = std::make_unique<PacketLoop>(std::move(transport), index, threads,
                                       [this](std::span<const RxView> packets, Time now, transport::Transport& from) {
                                         server_.on_packets(packets, from.queued_bytes() > mark_bytes_, now, from.sink());
                                       });
}

void ServerLane::add_job(const atp::ServerJobConfig& config) {
  PacketMemory memory(atp::Server::memory_bytes(config.packet_elements, config.window, config.topology.world_size()));
  bool added = false;
  loop_->call([&] {
    auto& place = memory_[config.epoch] = std::move(memory);
    added = server_.add_job(config, place.bytes());
  });
  if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
}

void ServerLane::remove_job(std::uint64_t epoch) {
  loop_->call([&] {
    server_.remove_job(epoch);
    memory_.erase(epoch);
  });
}

void ServerLane::inspect(const std::function<void(const atp::Server&, const transport::Counters&)>& look) {
  loop_->call([&] { look(server_, loop_->transport().counters()); });
}

}  // namespace netsum::runtime
