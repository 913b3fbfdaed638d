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
  Time time = now();  // at the end of the last turn: one reading of the clock a batch
  while (true) {
    if (mailbox_.waiting()) {  // however many packets come: a load per batch
      mailbox_.run_all();
      time = now();
    }
    if (stopping_) return;
    const std::span<const RxView> packets = transport_->receive();
    if (!packets.empty()) {
      busy_poll_.found();
      const std::uint64_t strangers = on_packets_(packets, time, *transport_);
      sink.flush();
      if (gate_.received(strangers - strangers_, time)) filter();
      strangers_ = strangers;
      if (gate_.is_due(time)) look_at_flood(time);
      const Time ended = now();
      counters_.busy_nanoseconds += static_cast<std::uint64_t>((ended - time).count());
      time = ended;
    } else if (!mailbox_.waiting() && busy_poll_.look_again(time)) {
      if (busy_poll_.yields()) sched_yield();
      time = now();
    } else {
      wait_for(descriptors, busy_poll_.until(gate_.is_shut() ? time + FloodGate::look_again : never, time));
      time = now();
      if (gate_.is_shut() && gate_.is_due(time)) look_at_flood(time);
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
