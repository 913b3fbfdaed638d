#include "bindings/nccl/stripes.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "runtime/thread.h"

namespace netsum::nccl {

using runtime::ProcessWide;
using runtime::ProgressThread;

StripeSockets::StripeSockets(std::uint32_t thread, Direction direction,
                             std::vector<std::unique_ptr<transport::Descriptor>> sockets, std::atomic<Time>& last_moved)
    : direction_(direction), last_moved_(last_moved) {
  for (auto& each : sockets) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->socket = std::move(each);
  }
  thread_ = ProcessWide::get<ProgressThread>({.kind = ProcessWide::Kind::messages, .index = thread});
  thread_->add(*this);
}

StripeSockets::~StripeSockets() {
  stop();
}

void StripeSockets::stop() {
  if (!thread_) return;
  thread_->remove(*this);
  thread_.reset();
}

void StripeSockets::add(std::size_t socket, const Stripe& stripe) {
  Lane& lane = *lanes_[socket];
  const std::uint64_t number = lane.added.load(std::memory_order_relaxed);
  lane.stripes[number % lane.stripes.size()] = stripe;
  // Either this sees that the thread has fallen asleep, or the thread sees the stripe before it sleeps (prepare()).
  lane.added.store(number + 1, std::memory_order_seq_cst);
  if (is_asleep_.exchange(false, std::memory_order_seq_cst) && thread_) thread_->notify();
}

// One stripe of each socket, as the thread has other connections too.
void StripeSockets::serve() {
  if (error_ != 0) return;
  is_asleep_.store(false, std::memory_order_relaxed);
  for (const auto& each : lanes_) {
    if (each->served != each->added.load(std::memory_order_acquire)) move(*each);
  }
}

void StripeSockets::move(Lane& lane) {
  const Stripe& stripe = lane.stripes[lane.served % lane.stripes.size()];
  std::byte* const at = stripe.data + lane.moved;
  const std::size_t left = stripe.bytes - lane.moved;
  const int socket = lane.socket->number();
  const ssize_t bytes = direction_ == Direction::send ? ::send(socket, at, left, MSG_NOSIGNAL) : ::recv(socket, at, left, 0);
  lane.is_blocked = bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (lane.is_blocked || (bytes < 0 && errno == EINTR)) return;
  if (bytes <= 0) {
    error_ = bytes == 0 ? closed_by_peer : errno;
    return;
  }
  last_moved_.store(runtime::now(), std::memory_order_relaxed);
  lane.moved += static_cast<std::size_t>(bytes);
  if (lane.moved < stripe.bytes) return;
  std::atomic<std::uint32_t>& under_way = *stripe.under_way;  // the caller may add to the ring once it is taken off
  lane.moved = 0;
  ++lane.served;
  under_way.fetch_sub(1, std::memory_order_release);
}

void StripeSockets::prepare(ProgressThread::Wait& wait) {
  if (error_ != 0) return;
  is_asleep_.store(true, std::memory_order_seq_cst);
  for (const auto& each : lanes_) {
    if (each->served == each->added.load(std::memory_order_seq_cst)) continue;
    if (each->is_blocked) {
      const short events = direction_ == Direction::send ? POLLOUT : POLLIN;
      wait.descriptors.push_back({each->socket->number(), events, 0});
    } else {
      wait.again = true;
    }
  }
}

}  // namespace netsum::nccl
