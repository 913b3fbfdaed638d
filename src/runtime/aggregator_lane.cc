#include "runtime/aggregator_lane.h"

#include <algorithm>
#include <utility>

#include "runtime/memory.h"
#include "transport/system/numa.h"

namespace netsum::runtime {

AggregatorLane::AggregatorLane(std::unique_ptr<transport::Transport> transport, std::uint64_t most_waiting,
                               std::uint32_t index, const ThreadOptions& threads, std::shared_ptr<PacketLoop> thread)
    : node_(threads.node), loop_(std::move(thread)) {
  const auto on_packets = [this, most_waiting](std::span<const RxView> packets, Time now, transport::Transport& from) {
    return formats_.on_packets(packets, now, from.sink(),
                               [&](std::uint64_t bytes) { return from.queued_bytes() > std::min(bytes, most_waiting); });
  };
  if (loop_) {
    socket_ = loop_->add(std::move(transport), on_packets);
  } else {
    loop_ = std::make_shared<PacketLoop>(std::move(transport), index, threads, on_packets);
  }
}

AggregatorLane::~AggregatorLane() {
  loop_->forget(socket_);
}

void AggregatorLane::serve(std::unique_ptr<service::Format> format) {
  loop_->call([&] { formats_.add(std::move(format)); });
}

std::unique_ptr<service::Memory> AggregatorLane::allocate(std::size_t bytes, service::Pages pages) {
  const transport::MemoryOf near(node_);  // of Pages::now; else the lane's thread touches them first
  return std::make_unique<MappedMemory>(bytes, pages);
}

}  // namespace netsum::runtime
