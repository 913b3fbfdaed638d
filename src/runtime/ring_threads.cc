#include "runtime/ring_threads.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "base/virtio_net.h"
#include "runtime/busy_poll.h"
#include "runtime/memory.h"
#include "transport/ports/port.h"
#include "wire/roce.h"

namespace netsum::runtime {
namespace {

using netreduce::Arrival;
using netreduce::Ring;
using netreduce::RingPacket;

constexpr std::size_t records_per_flush = 64;

// In front of a frame in the queue.
struct Record {
  Ring* ring;
  Endpoint egress;
  std::span<const Endpoint> flood;
  std::uint32_t line;
  std::uint32_t ip_at;
  RingPacket kind;
};
constexpr std::size_t frame_at = HandoverQueue::alignment;
static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) <= frame_at);

void serve(std::span<std::byte> bytes, Sink& sink) {
  Record record;
  std::memcpy(&record, bytes.data(), sizeof record);
  const std::span<const std::byte> frame = bytes.subspan(frame_at);
  wire::roce::Packet packet;
  const wire::ParseError error = wire::roce::parse(frame.subspan(record.ip_at), packet);
  NETSUM_CHECK(error == wire::ParseError::none);  // as it was parsed before it was handed over
  Arrival arrival{frame,
                  record.ip_at,
                  wire::roce::packet_bytes(frame.subspan(record.ip_at)),
                  packet,
                  wire::roce::shape_of(packet.bth.opcode),
                  record.egress,
                  record.flood};
  record.ring->serve(record.kind, record.line, arrival, sink);
}

}  // namespace

RingThreads::RingThreads(std::span<Sink* const> sinks, const Options& options) : options_(options) {
  const SignalsBlocked blocked;
  int index = 1;  // 0 is the accelerator's
  for (Sink* const sink : sinks) {
    Worker& worker = workers_.emplace_back(*sink, options.queue_bytes);
    worker.thread = std::thread([&worker, index, threads = options.threads] {
      enter_thread("netsum-ring" + std::to_string(index), threads.cpu(static_cast<std::size_t>(index)));
      serves_packets = true;
      run(worker, threads.busy_poll);
    });
    ++index;
  }
}

RingThreads::~RingThreads() {
  for (Worker& worker : workers_) {
    worker.stopping = true;
    worker.wakeup.notify();
  }
  for (Worker& worker : workers_) worker.thread.join();
}

RingThreads::Place& RingThreads::place_of(const Ring& ring) {
  if (&ring != last_ring_) {
    const auto [place, is_new] = places_.try_emplace(&ring);
    if (is_new) {  // to the thread with the fewest
      const auto rings_of = [&](const Worker& worker) {
        return std::count_if(places_.begin(), places_.end(),
                             [&](const auto& item) { return item.second.worker == &worker; });
      };
      const auto least = std::min_element(workers_.begin(), workers_.end(),
                                          [&](const Worker& a, const Worker& b) { return rings_of(a) < rings_of(b); });
      place->second.worker = &*least;
    }
    last_ring_ = &ring;
    last_place_ = &place->second;
  }
  return *last_place_;
}

bool RingThreads::hand_over(Ring& ring, RingPacket kind, std::uint32_t line, const Arrival& arrival) {
  Place& place = place_of(ring);
  if (place.recalled) return false;
  Worker& worker = *place.worker;
  const std::size_t bytes = arrival.ip_at + arrival.ip_bytes;
  const std::span<std::byte> to = worker.queue.reserve(frame_at + bytes);
  if (to.empty()) {
    ++counters_.dropped_full;
    return true;
  }
  const Record record{&ring, arrival.egress, arrival.flood, line, static_cast<std::uint32_t>(arrival.ip_at), kind};
  std::memcpy(to.data(), &record, sizeof record);
  const std::span<std::byte> frame = to.subspan(frame_at);
  std::memcpy(frame.data(), arrival.frame.data(), bytes);
  const std::size_t long_queue = transport::long_from(worker.queue.capacity());
  if (options_.mark != nullptr && worker.queue.bytes_seen() > long_queue) {
    worker.queue.look();
    if (worker.queue.bytes_seen() > long_queue && options_.mark(frame.subspan(virtio_net_header_bytes))) ++counters_.marked;
  }
  worker.queue.push();
  worker.busy = true;
  return true;
}

void RingThreads::recall(Ring& ring) {
  Place& place = place_of(ring);
  if (place.recalled) return;
  wait_until_idle(*place.worker);
  place.recalled = true;
  recalled_.push_back(&place);
}

void RingThreads::forget(const Ring& ring) {
  const auto place = places_.find(&ring);
  if (place == places_.end()) return;
  std::erase(recalled_, &place->second);
  places_.erase(place);
  last_ring_ = nullptr;
}

void RingThreads::end_batch() {
  for (Place* const place : recalled_) place->recalled = false;
  recalled_.clear();
  for (Worker& worker : workers_) {
    if (worker.busy) wake(worker);
    worker.busy = false;
  }
}

void RingThreads::wait_until_idle() {
  for (Worker& worker : workers_) wait_until_idle(worker);
}

// The worker waits for nobody, so this ends.
void RingThreads::wait_until_idle(Worker& worker) {
  if (worker.queue.is_drained()) return;
  wake(worker);
  while (!worker.queue.is_drained()) sched_yield();
}

void RingThreads::wake(Worker& worker) {
  worker.queue.announce();
  if (worker.sleeps.load(std::memory_order_seq_cst)) worker.wakeup.notify();
}

void RingThreads::run(Worker& worker, bool busy_poll_allowed) {
  BusyPoll busy_poll(busy_poll_allowed);
  pollfd woken{worker.wakeup.descriptor(), POLLIN, 0};
  while (true) {
    std::size_t served = 0;
    for (std::span<std::byte> record; served < records_per_flush && !(record = worker.queue.next()).empty(); ++served) {
      serve(record, worker.sink);
    }
    if (served > 0) {
      busy_poll.found();
      worker.sink.flush();
      worker.queue.release();  // only now: what is drained has left
    } else if (worker.stopping) {
      return;
    } else if (busy_poll.look_again(now())) {
      sched_yield();
    } else {
      // Either this sees what was pushed, or the pusher sees that this sleeps.
      worker.sleeps.store(true, std::memory_order_seq_cst);
      if (!worker.queue.has_more() && !worker.stopping) {
        poll(&woken, 1, -1);
        worker.wakeup.drain();
      }
      worker.sleeps.store(false, std::memory_order_relaxed);
    }
  }
}

}  // namespace netsum::runtime
