// Threads that serve an accelerator's rings, each some of them. The accelerator's thread receives, forwards what is no
// gradient, and copies gradients into the queue of their ring's thread, which adds them and sends the sums.
//
// A ring is always served by one thread, which hands it over by the queue: what was pushed first has left before what was
// pushed later. So the packets of a connection keep their order.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/packet_io.h"
#include "protocol/netreduce/accelerator.h"
#include "protocol/netreduce/ring.h"
#include "runtime/handover_queue.h"
#include "runtime/thread.h"

namespace netsum::runtime {

struct RingThreadCounters {
  std::uint64_t dropped_full = 0;  // gradients: their ring's thread was slow, and its queue full
  std::uint64_t marked = 0;        // frames that met a long queue
};

class RingThreads final : public netreduce::RingServers {
 public:
  struct Options {
    std::size_t queue_bytes = 8 << 20;  // of each thread
    ThreadOptions threads;
    bool (*mark)(std::span<std::byte> frame) = nullptr;  // as transport::PortOptions'
  };
  // A thread for each sink.
  RingThreads(std::span<Sink* const> sinks, const Options& options);
  ~RingThreads();  // what was handed over is served first

  // ---- on the accelerator's thread

  bool hand_over(netreduce::Ring& ring, netreduce::RingPacket kind, std::uint32_t line,
                 const netreduce::Arrival& arrival) override;
  void recall(netreduce::Ring& ring) override;
  void forget(const netreduce::Ring& ring) override;
  // After each batch, when the accelerator's own sink was flushed: recalled rings go back to their threads.
  void end_batch();
  // Afterwards the caller may use all rings, until it hands over another packet.
  void wait_until_idle();
  [[nodiscard]] const RingThreadCounters& counters() const { return counters_; }

 private:
  struct Worker {
    Worker(Sink& s, std::size_t queue_bytes) : sink(s), queue(queue_bytes) {}
    Sink& sink;
    HandoverQueue queue;
    Wakeup wakeup;
    std::atomic<bool> sleeps = false, stopping = false;
    bool busy = false;  // the accelerator's thread: something was pushed in this batch
    std::thread thread;
  };
  struct Place {
    Worker* worker = nullptr;
    bool recalled = false;
  };

  [[nodiscard]] Place& place_of(const netreduce::Ring& ring);
  static void wake(Worker& worker);
  static void wait_until_idle(Worker& worker);
  static void run(Worker& worker, bool busy_poll);

  const Options options_;
  std::deque<Worker> workers_;
  std::unordered_map<const netreduce::Ring*, Place> places_;
  const netreduce::Ring* last_ring_ = nullptr;  // packets of one ring come in trains
  Place* last_place_ = nullptr;
  std::vector<Place*> recalled_;
  RingThreadCounters counters_;
};

}  // namespace netsum::runtime
