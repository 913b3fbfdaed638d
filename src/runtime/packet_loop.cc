#include "runtime/packet_loop.h"

#include <poll.h>
#include <sched.h>

#include <array>
#include <utility>

namespace netsum::runtime {
namespace {

// Batches between two looks at the mailbox while packets keep coming.
constexpr int batches_per_turn = 256;

}  // namespace

PacketLoop::PacketLoop(std::unique_ptr<transport::Transport> transport, std::uint32_t index, const ThreadOptions& threads,
                       OnPackets on_packets)
    : transport_(std::move(transport)),
      local_(transport_->local()),
      on_packets_(std::move(on_packets)),
      busy_poll_(threads.busy_poll) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this, index, pin = threads.pin] {
    enter_thread("netsum-switch" + std::to_string(index), pin ? static_cast<int>(index) : -1);
    loop();
  });
}

PacketLoop::~PacketLoop() {
  mailbox_.post([this] { stopping_ = true; });
  thread_.join();
}

void PacketLoop::loop() {
  Sink& sink = transport_->sink();
  std::array<pollfd, 2> descriptors = {pollfd{transport_->descriptor(), POLLIN, 0},
                                       pollfd{mailbox_.descriptor(), POLLIN, 0}};
  while (!stopping_) {
    if (!mailbox_.waiting() && busy_poll_.look_again(now())) {
      sched_yield();
    } else {
      poll(descriptors.data(), descriptors.size(), -1);
      if (descriptors[1].revents != 0) mailbox_.run_all();
    }
    for (int batch = 0; batch < batches_per_turn; ++batch) {
      const std::span<const RxView> packets = transport_->receive();
      if (packets.empty()) break;
      busy_poll_.found();
      on_packets_(packets, now(), *transport_);
      sink.flush();
    }
  }
}

}  // namespace netsum::runtime
