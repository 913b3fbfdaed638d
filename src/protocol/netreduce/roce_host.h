// A host without RDMA hardware in a ring: the worker over two queue pairs of our own, whose RoCEv2 packets, IP header to
// ICRC, travel inside UDP datagrams to the accelerator and from it. (A socket on UDP port 4791 could know neither the IP
// identification that the ICRC covers nor keep the destination's address.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/member.h"
#include "protocol/netreduce/worker.h"
#include "protocol/roce/queue_pair.h"
#include "wire/parse_error.h"

namespace netsum::netreduce {

struct RoceHostConfig {
  WorkerConfig worker;  // its memory is the host's own: not to be given
  Member self, successor, predecessor;
  Endpoint accelerator;
  Duration initial_timeout = std::chrono::milliseconds(20);
  Duration min_timeout = std::chrono::milliseconds(1);
  Duration max_timeout = std::chrono::milliseconds(250);
};

// Every received datagram counts in one of those.
struct RoceHostCounters {
  std::uint64_t packets = 0;  // handed to a queue pair
  std::uint64_t malformed[wire::parse_error_kinds] = {};
  std::uint64_t dropped_icrc = 0;
  std::uint64_t foreign = 0;  // not from the accelerator, or for none of the queue pairs
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
  // Whether the successor has everything that it may still need of this rank.
  [[nodiscard]] bool drained() const;
  [[nodiscard]] std::string failure() const;  // why it cannot go on, in words; empty: it can
  [[nodiscard]] const roce::QueuePairCounters& sending() const;
  [[nodiscard]] const roce::QueuePairCounters& receiving() const;
  [[nodiscard]] const RoceHostCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::netreduce
