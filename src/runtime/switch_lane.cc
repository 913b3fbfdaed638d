#include "runtime/switch_lane.h"

#include <poll.h>

#include <array>
#include <utility>

namespace netsum::runtime {
namespace {

// Batches between two looks at the mailbox while packets keep coming.
constexpr int batches_per_turn = 256;

}  // namespace

SwitchLane::SwitchLane(std::unique_ptr<transport::Transport> transport, std::uint32_t index, bool pin)
    : transport_(std::move(transport)), local_(transport_->local()) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this, index, pin] {
    enter_thread("netsum-switch" + std::to_string(index), pin ? static_cast<int>(index) : -1);
    loop();
  });
}

SwitchLane::~SwitchLane() {
  mailbox_.post([this] { stopping_ = true; });
  thread_.join();
}

void SwitchLane::add_job(const switchml::SwitchJobConfig& config) {
  // Allocated and zeroed by the caller's thread: the lane goes on with other jobs meanwhile.
  const std::size_t bytes = switchml::Switch::memory_bytes(config.packet_elements, config.slots);
  std::vector<CacheLine> memory(bytes / sizeof(CacheLine));
  bool added = false;
  mailbox_.call([&] {
    auto& place = memory_[config.epoch] = std::move(memory);
    added = switch_.add_job(config, std::as_writable_bytes(std::span(place)));
  });
  if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
}

void SwitchLane::remove_job(std::uint64_t epoch) {
  mailbox_.call([&] {
    switch_.remove_job(epoch);
    memory_.erase(epoch);
  });
}

void SwitchLane::inspect(const std::function<void(const switchml::Switch&, const transport::Counters&)>& look) {
  mailbox_.call([&] { look(switch_, transport_->counters()); });
}

void SwitchLane::loop() {
  Sink& sink = transport_->sink();
  std::array<pollfd, 2> descriptors = {pollfd{transport_->descriptor(), POLLIN, 0},
                                       pollfd{mailbox_.descriptor(), POLLIN, 0}};
  while (!stopping_) {
    poll(descriptors.data(), descriptors.size(), -1);
    if (descriptors[1].revents != 0) mailbox_.run_all();
    for (int batch = 0; batch < batches_per_turn; ++batch) {
      const std::span<const RxView> packets = transport_->receive();
      if (packets.empty()) break;
      switch_.on_packets(packets, now(), sink);
      sink.flush();
    }
  }
}

}  // namespace netsum::runtime
