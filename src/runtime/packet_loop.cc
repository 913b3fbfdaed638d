#include "runtime/packet_loop.h"

#include <poll.h>
#include <sched.h>

#include <array>
#include <utility>
#include <vector>

#include "runtime/memory.h"

namespace netsum::runtime {

PacketLoop::PacketLoop(std::unique_ptr<transport::Transport> transport, std::uint32_t index, const ThreadOptions& threads,
                       OnPackets on_packets)
    : transport_(std::move(transport)),
      local_(transport_->local()),
      on_packets_(std::move(on_packets)),
      busy_poll_(threads.busy_poll, transport_->descriptor() >= 0) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this, index, cpu = threads.cpu(index)] {
    enter_thread("netsum-switch" + std::to_string(index), cpu);
    serves_packets = true;
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
  Time began = now();  // of this turn; with packets, where the last one ended: two readings of the clock a batch
  while (true) {
    if (mailbox_.waiting()) mailbox_.run_all();  // however many packets come: a load per batch
    if (stopping_) return;
    const std::span<const RxView> packets = transport_->receive();
    if (!packets.empty()) {
      busy_poll_.found();
      const Time received = now();
      const std::uint64_t strangers = on_packets_(packets, received, *transport_);
      sink.flush();
      if (gate_.received(strangers - strangers_, received)) filter();
      strangers_ = strangers;
      if (gate_.is_due(received)) look_at_flood(received);
      const Time ended = now();
      counters_.busy_nanoseconds += static_cast<std::uint64_t>((ended - began).count());
      began = ended;
    } else if (!mailbox_.waiting() && busy_poll_.look_again(began)) {
      if (busy_poll_.yields()) sched_yield();
      began = now();
    } else {
      wait_for(descriptors, busy_poll_.until(gate_.is_shut() ? began + FloodGate::look_again : never, began));
      began = now();
      if (gate_.is_shut() && gate_.is_due(began)) look_at_flood(began);
    }
  }
}

void PacketLoop::expect(std::uint64_t epoch) {
  guests_.epochs.push_back(epoch);
  filter();
}

void PacketLoop::expect_no_more(std::uint64_t epoch) {
  if (std::erase(guests_.epochs, epoch) != 0) filter();
}

void PacketLoop::expect_ring() {
  ++guests_.rings;
  filter();
}

void PacketLoop::expect_ring_no_more() {
  --guests_.rings;
  filter();
}

// If the kernel takes no filter, the lane receives the flood.
void PacketLoop::filter() {
  if (gate_.is_shut()) static_cast<void>(transport_->set_filter(filter_of(guests_)));
}

void PacketLoop::look_at_flood(Time now) {
  if (gate_.looked(transport_->dropped_kernel(), now)) static_cast<void>(transport_->set_filter({}));
}

}  // namespace netsum::runtime
