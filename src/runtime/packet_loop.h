// An I/O thread of an aggregator: one socket, and a callback that answers its packets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

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

  [[nodiscard]] Endpoint local() const { return local_; }
  // Runs `command` on the loop's thread, between batches, and waits for it.
  void call(const std::function<void()>& command) { mailbox_.call(command); }
  void send_from(const Endpoint& to, const Endpoint& own) { transport_->send_from(to, own); }  // Transport's
  // On the loop's thread:
  [[nodiscard]] const transport::Transport& transport() const { return *transport_; }
  [[nodiscard]] const PacketLoopCounters& counters() const { return counters_; }
  // Which packets are expected from now on: jobs' by epoch, and rings'.
  void expect(std::uint64_t epoch);
  void expect_no_more(std::uint64_t epoch);
  void expect_ring();
  void expect_ring_no_more();

 private:
  void loop();
  void filter();  // renews the filter if the gate is shut
  void look_at_flood(Time now);

  std::unique_ptr<transport::Transport> transport_;
  Endpoint local_;
  OnPackets on_packets_;
  Mailbox mailbox_;
  BusyPoll busy_poll_;
  FloodGate gate_;
  Guests guests_;
  std::uint64_t strangers_ = 0;  // so far
  PacketLoopCounters counters_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace netsum::runtime
