// The sockets beside a connection's first one, which carry the stripes of its long messages. Threads move them, as one
// thread cannot fill a fast network.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.h"
#include "bindings/nccl/abi.h"
#include "runtime/progress_thread.h"
#include "transport/system/socket.h"

namespace netsum::nccl {

// A part of a message.
struct Stripe {
  std::byte* data = nullptr;
  std::size_t bytes = 0;                            // at least one
  std::atomic<std::uint32_t>* under_way = nullptr;  // of the message's stripes; the thread takes this one off
};

enum class Direction : std::uint8_t { send, receive };

// Those sockets of a connection that one thread serves. Threads are shared by the process's connections.
class StripeSockets final : private runtime::ProgressThread::Participant {
 public:
  static constexpr int closed_by_peer = -1;

  // `thread`: a number, as of all connections. `last_moved` is set whenever bytes were moved.
  StripeSockets(std::uint32_t thread, Direction direction, std::vector<std::unique_ptr<transport::Descriptor>> sockets,
                std::atomic<Time>& last_moved);
  ~StripeSockets();
  StripeSockets(const StripeSockets&) = delete;
  StripeSockets& operator=(const StripeSockets&) = delete;

  // A socket carries its stripes in the order in which they are added; at most most_requests are under way.
  void add(std::size_t socket, const Stripe& stripe);
  void stop();                                        // on return no stripe's memory is touched any more
  [[nodiscard]] int error() const { return error_; }  // 0: none; an errno, or closed_by_peer

 private:
  struct Lane {
    std::unique_ptr<transport::Descriptor> socket;
    std::array<Stripe, most_requests> stripes{};
    std::atomic<std::uint64_t> added = 0;
    // The thread's own.
    std::uint64_t served = 0;
    std::size_t moved = 0;  // of the stripe that is served
    bool is_blocked = false;
  };

  void serve() override;
  void prepare(runtime::ProgressThread::Wait& wait) override;
  void move(Lane& lane);

  const Direction direction_;
  std::atomic<Time>& last_moved_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::atomic<int> error_ = 0;
  std::atomic<bool> is_asleep_ = true;               // the thread looks at `added` again after it was notified only
  std::shared_ptr<runtime::ProgressThread> thread_;  // null: stopped
};

}  // namespace netsum::nccl
