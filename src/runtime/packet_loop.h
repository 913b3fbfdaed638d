// An I/O thread of an aggregator: one socket, and whatever answers its packets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "base/packet_io.h"
#include "base/time.h"
#include "runtime/busy_poll.h"
#include "runtime/thread.h"
#include "transport/transport.h"

namespace netsum::runtime {

class PacketLoop {
 public:
  // Called on the loop's thread with each batch; the transport's sink is flushed after it.
  using OnPackets = std::function<void(std::span<const RxView> packets, Time now, transport::Transport& transport)>;

  PacketLoop(std::unique_ptr<transport::Transport> transport, std::uint32_t index, const ThreadOptions& threads,
             OnPackets on_packets);
  ~PacketLoop();
  PacketLoop(const PacketLoop&) = delete;
  PacketLoop& operator=(const PacketLoop&) = delete;

  [[nodiscard]] Endpoint local() const { return local_; }
  // Runs `command` on the loop's thread, between batches, and waits for it.
  void call(const std::function<void()>& command) { mailbox_.call(command); }
  [[nodiscard]] const transport::Transport& transport() const { return *transport_; }  // on the loop's thread

 private:
  void loop();

  std::unique_ptr<transport::Transport> transport_;
  Endpoint local_;
  OnPackets on_packets_;
  Mailbox mailbox_;
  BusyPoll busy_poll_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace netsum::runtime
