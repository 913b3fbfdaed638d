// A host without RDMA hardware in a ring: the worker over two software queue pairs, whose RoCEv2 packets, IP header to ICRC,
// travel inside UDP datagrams to and from the accelerator. (A socket on UDP port 4791 could neither know the IP
// identification that the ICRC covers nor keep the destination's address.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/member.h"
#include "protocol/netreduce/worker.h"
#include "protocol/roce/queue_pair.h"
#include "wire/parse_error.h"

namespace netsum::netreduce {

struct RoceHostConfig {
  WorkerConfig worker;  // leave its memory unset: the host has its own
  Member self, successor, predecessor;
  Endpoint accelerator;
  // Messages that the accelerator has buffers for (roomy_window). 0: 2N. With more, N messages may be sent without a result,
  // packet by packet, and acknowledgements hold none of them up.
  std::uint32_t buffers = 0;
  bool selective = false;          // the ring's packets are repeated singly (RingConfig)
  bool congestion_control = true;  // of both queue pairs
  Duration initial_timeout = std::chrono::milliseconds(20);
  Duration min_timeout = std::chrono::milliseconds(1);
  Duration max_timeout = std::chrono::milliseconds(250);
};

struct RoceHostCounters {
  std::uint64_t packets = 0;  // delivered to a queue pair
  std::uint64_t malformed[wire::parse_error_kinds] = {};
  std::uint64_t dropped_icrc = 0;
  std::uint64_t foreign = 0;     // not from the accelerator, or for neither queue pair
  std::uint64_t unbelieved = 0;  // of a ring with keys, without the accelerator's seal

  static constexpr auto fields() {
    using enum CounterKind;
    using C = RoceHostCounters;
    return std::to_array<CounterField<C>>({
        {"delivered", &C::packets, outcome},
        {"dropped_icrc", &C::dropped_icrc, outcome},
        {"foreign", &C::foreign, outcome},
        {"unbelieved", &C::unbelieved, outcome},
    });
  }
};

class RoceHost {
 public:
  explicit RoceHost(const RoceHostConfig& config);
  ~RoceHost();
  RoceHost(RoceHost&&) noexcept;
  RoceHost& operator=(RoceHost&&) noexcept;

  [[nodiscard]] bool submit(const stream::Operation& operation, Time now, Sink& sink);
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);
  void on_timer(Time now, Sink& sink);
  [[nodiscard]] Time next_timeout() const;

  [[nodiscard]] const Worker& worker() const;
  [[nodiscard]] std::vector<std::uint64_t> take_completed();
  // Whether the successor has received all data that it needs from this rank.
  [[nodiscard]] bool drained() const;
  [[nodiscard]] std::string failure() const;  // the error in words; empty: none
  [[nodiscard]] const roce::QueuePairCounters& sending() const;
  [[nodiscard]] const roce::QueuePairCounters& receiving() const;
  [[nodiscard]] const RoceHostCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::netreduce
