#include "runtime/packet_loop.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "runtime/memory.h"

namespace netsum::runtime {
namespace {

// A socket that has had nothing for so many turns is quiet: each look is a system call, and lanes without jobs would cost
// those with jobs one a turn. One call tells of all quiet ones, before the thread sleeps, or now and then if it never does.
constexpr std::uint32_t looks_in_vain = 16;
constexpr std::chrono::microseconds looks_apart{100};

}  // namespace

PacketLoop::PacketLoop(std::unique_ptr<transport::Transport> transport, std::uint32_t index, const ThreadOptions& threads,
                       OnPackets on_packets)
    : busy_poll_(threads.busy_poll, transport->descriptor() >= 0) {
  descriptors_.push_back({mailbox_.descriptor(), POLLIN, 0});
  sockets_.push_back(std::make_unique<Socket>(std::move(transport), std::move(on_packets)));
  descriptors_.insert(descriptors_.begin(), {sockets_.front()->transport->descriptor(), POLLIN, 0});
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

std::size_t PacketLoop::add(std::unique_ptr<transport::Transport> transport, OnPackets on_packets) {
  auto socket = std::make_unique<Socket>(std::move(transport), std::move(on_packets));
  std::size_t number = 0;
  call([&] {
    number = sockets_.size();
    descriptors_.insert(descriptors_.end() - 1, {socket->transport->descriptor(), POLLIN, 0});
    sockets_.push_back(std::move(socket));
  });
  return number;
}

void PacketLoop::forget(std::size_t socket) {
  call([&] { sockets_[socket]->on_packets = [](const auto&...) { return std::uint64_t{0}; }; });
}

void PacketLoop::loop() {
  Time time = now();  // at the end of the last turn: one reading of the clock a batch
  while (true) {
    if (mailbox_.waiting()) {  // however many packets come: a load per batch
      mailbox_.run_all();
      time = now();
    }
    if (stopping_) return;
    if (serve_all(time)) {
      busy_poll_.found();
    } else if (!mailbox_.waiting() && busy_poll_.look_again(time)) {
      if (busy_poll_.yields()) sched_yield();
      time = now();
    } else {
      const bool shut =
          std::any_of(sockets_.begin(), sockets_.end(), [](const auto& socket) { return socket->gate.is_shut(); });
      wait(busy_poll_.until(shut ? time + FloodGate::look_again : never, time), time);
    }
  }
}

bool PacketLoop::serve_all(Time& time) {
  if (sockets_.size() == 1) return serve(*sockets_.front(), time);
  if (time - looked_ >= looks_apart) {
    looked_ = time;
    look_at_quiet_ones(time);
  }
  bool found = false;
  for (const auto& socket : sockets_) {
    if (socket->looks >= looks_in_vain) continue;
    const bool has = serve(*socket, time);
    socket->looks = has ? 0 : socket->looks + 1;
    found |= has;
  }
  return found;
}

bool PacketLoop::serve(Socket& socket, Time& time) {
  transport::Transport& transport = *socket.transport;
  const std::span<const RxView> packets = transport.receive();
  if (packets.empty()) return false;
  const std::uint64_t strangers = socket.on_packets(packets, time, transport);
  transport.sink().flush();
  if (socket.gate.received(strangers - socket.strangers, time)) filter(socket);
  socket.strangers = strangers;
  if (socket.gate.is_due(time)) look_at_flood(socket, time);
  const Time ended = now();
  socket.counters.busy_nanoseconds += static_cast<std::uint64_t>((ended - time).count());
  time = ended;
  return true;
}

void PacketLoop::look_at_quiet_ones(Time& time) {
  const auto quiet = [](const auto& socket) { return socket->looks >= looks_in_vain; };
  if (std::any_of(sockets_.begin(), sockets_.end(), quiet)) wait(Time{}, time);
}

void PacketLoop::wait(Time until, Time& time) {
  wait_for(descriptors_, until);
  time = now();
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    Socket& socket = *sockets_[i];
    if (descriptors_[i].revents != 0) socket.looks = 0;
    if (socket.gate.is_due(time)) look_at_flood(socket, time);
  }
}

void PacketLoop::expect(std::uint64_t epoch, std::size_t socket) {
  sockets_[socket]->guests.epochs.push_back(epoch);
  filter(*sockets_[socket]);
}

void PacketLoop::expect_no_more(std::uint64_t epoch, std::size_t socket) {
  if (std::erase(sockets_[socket]->guests.epochs, epoch) != 0) filter(*sockets_[socket]);
}

void PacketLoop::expect_ring(std::size_t socket) {
  ++sockets_[socket]->guests.rings;
  filter(*sockets_[socket]);
}

void PacketLoop::expect_ring_no_more(std::size_t socket) {
  --sockets_[socket]->guests.rings;
  filter(*sockets_[socket]);
}

// If the kernel takes no filter, the lane receives the flood.
void PacketLoop::filter(Socket& socket) {
  if (socket.gate.is_shut()) static_cast<void>(socket.transport->set_filter(filter_of(socket.guests)));
}

void PacketLoop::look_at_flood(Socket& socket, Time now) {
  if (socket.gate.looked(socket.transport->dropped_kernel(), now)) static_cast<void>(socket.transport->set_filter({}));
}

}  // namespace netsum::runtime
