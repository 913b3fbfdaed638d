// A rank that sums with p4lang/p4app-switchML's switch, or with one that speaks its protocol: sockets and a clock around its
// workers. It is for `netsum bench all-reduce --compat p4app`, and no communicator: calls wait, and all ranks make the same.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "netsum/types.h"
#include "protocol/p4app/worker.h"
#include "transport/datagram/transport.h"

namespace netsum::p4app {

struct RankOptions {
  std::string controller;  // "HOST:PORT" of the control service
  std::string bind;        // "HOST:PORT" of this rank's first thread; empty: where the controller is reached from
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t packet_elements = 256, window = 256;  // of all threads together; the same on all ranks, like the next
  std::uint32_t threads = 1;                          // ports and windows of their own; here one thread serves all
  std::chrono::milliseconds connect_deadline{10'000}, deadline{60'000};  // of a call
  double loss = 0;
  std::uint64_t loss_seed = 1;
};

class Rank {
 public:
  // Begins a session with all ranks. Throws Error: bad_argument, unreachable, refused, deadline.
  explicit Rank(const RankOptions& options);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Sums a tensor of int32 or float32 in its place. Throws Error: deadline.
  void all_reduce(DType dtype, std::span<std::byte> tensor);
  void barrier();  // throws Error: deadline, aggregator_lost

  [[nodiscard]] WorkerCounters worker_counters() const;          // of all threads
  [[nodiscard]] transport::Counters transport_counters() const;  // likewise

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::p4app
