// An I/O thread of an aggregator: sockets, and for each a callback that answers its packets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "runtime/busy_poll.h"
#include "runtime/flood_gate.h"
#include "runtime/thread.h"
#include "transport/datagram/transport.h"

namespace netsum::runtime {

struct PacketLoopCounters {
  std::uint64_t busy_nanoseconds = 0;  // with packets in hand; a thread that polls runs all the time

  static constexpr auto fields() {
    using C = PacketLoopCounters;
    return std::to_array<CounterField<C>>({{"busy_nanoseconds", &C::busy_nanoseconds, CounterKind::other}});
  }
};

class PacketLoop {
 public:
  // Called on the loop's thread with each batch; the transport's sink is flushed afterwards. Returns how many of all packets
  // so far were strangers: malformed, or of no job here. The kernel drops floods of them (flood_gate.h).
  using OnPackets = std::function<std::uint64_t(std::span<const RxView> packets, Time now, transport::Transport& transport)>;

  PacketLoop(std::unique_ptr<transport::Transport> transport, std::uint32_t index, const ThreadOptions& threads,
             OnPackets on_packets);
  ~PacketLoop();
  PacketLoop(const PacketLoop&) = delete;
  PacketLoop& operator=(const PacketLoop&) = delete;

  // Another socket, as the first one. Returns its number, from 1 on. Before other threads than the caller know the loop.
  std::size_t add(std::unique_ptr<transport::Transport> transport, OnPackets on_packets);
  // Its callback is not called from then on.
  void forget(std::size_t socket);

  // `socket`: the number of one.
  [[nodiscard]] Endpoint local(std::size_t socket = 0) const { return sockets_[socket]->local; }
  // Runs `command` on the loop's thread, between batches, and waits for it.
  void call(const std::function<void()>& command) { mailbox_.call(command); }
  void send_from(const Endpoint& to, const Endpoint& own, std::size_t socket = 0) {  // Transport's
    sockets_[socket]->transport->send_from(to, own);
  }
  // On the loop's thread:
  [[nodiscard]] const transport::Transport& transport(std::size_t socket = 0) const { return *sockets_[socket]->transport; }
  [[nodiscard]] const PacketLoopCounters& counters(std::size_t socket = 0) const { return sockets_[socket]->counters; }
  // Which packets are expected from now on: jobs' by epoch, and rings'.
  void expect(std::uint64_t epoch, std::size_t socket = 0);
  void expect_no_more(std::uint64_t epoch, std::size_t socket = 0);
  void expect_ring(std::size_t socket = 0);
  void expect_ring_no_more(std::size_t socket = 0);

 private:
  struct Socket {
    Socket(std::unique_ptr<transport::Transport> of_socket, OnPackets callback)
        : transport(std::move(of_socket)), local(transport->local()), on_packets(std::move(callback)) {}

    std::unique_ptr<transport::Transport> transport;
    Endpoint local;
    OnPackets on_packets;
    FloodGate gate{};
    Guests guests{};
    std::uint64_t strangers = 0;  // so far
    PacketLoopCounters counters{};
    std::uint32_t looks = 0;  // in a row that found nothing, while others found something
  };

  void loop();
  [[nodiscard]] bool serve(Socket& socket, Time& time);  // whether there were packets
  [[nodiscard]] bool serve_all(Time& time);
  void look_at_quiet_ones(Time& time);
  void wait(Time until, Time& time);  // and looks at floods
  void filter(Socket& socket);        // renews the filter if the gate is shut
  void look_at_flood(Socket& socket, Time now);

  std::vector<std::unique_ptr<Socket>> sockets_;
  std::vector<pollfd> descriptors_;  // of the sockets, and the mailbox's behind them
  Mailbox mailbox_;
  BusyPoll busy_poll_;
  Time looked_{};  // at those that are quiet
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace netsum::runtime
