// A ring all-reduce over TCP: FR, TA and PR use it, and in-network aggregation is compared with these (NetReduce §3.4).
// Reduce-scatter, then all-gather: in step s rank r sends piece r - s to its successor and receives piece r - s - 1 from its
// predecessor, which it sends in the next step. So each connection carries one stream, and bytes are forwarded as soon as
// they are added.
//
// On the wire: a connection begins with a Hello each way, an all-reduce with its header; then come the pieces as they lie in
// memory. Who has not the members' secret does not get in; who reads or changes the packets on their way is not kept out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/copied.h"
#include "base/time.h"
#include "netsum/error.h"
#include "parallel/tcp_socket.h"

namespace netsum::parallel {

struct TcpRingOptions {
  std::string name;  // the ring's, for messages and to recognize its members
  std::uint32_t rank = 0, size = 2;
  std::string next;      // "host:port" where the successor listens
  std::string secret{};  // of the members; empty: the ring's name is all that they show
};

class TcpRing {
 public:
  // `listener`: bound. Returns when both neighbours are connected. Throws Error: deadline, refused (another process
  // answers).
  TcpRing(TcpSocket listener, const TcpRingOptions& options, Time deadline);

  // Over existing connections, of any non-blocking stream sockets. Returns and throws as above.
  TcpRing(TcpSocket next, TcpSocket previous, const TcpRingOptions& options, Time deadline);

  // In place; all ranks make the same calls in the same order. The bits are the same on all ranks: piece k is summed from
  // rank k on around the ring. Throws Error: deadline, worker_lost (a neighbour closed its connection), mismatch; then the
  // ring is closed, which the neighbours notice.
  void all_reduce(std::span<float> inout, Time deadline);
  void barrier(Time deadline);
  void close();  // the neighbours notice

  [[nodiscard]] LinkTraffic to_next() const { return next_.traffic(); }
  [[nodiscard]] LinkTraffic to_previous() const { return previous_.traffic(); }

 private:
  class Transfer;

  explicit TcpRing(const TcpRingOptions& options);
  void accept(TcpSocket& listener, Time deadline);
  void say_hello(TcpSocket& to, Time deadline) const;
  void hear_next(const std::string& address, Time deadline);
  [[nodiscard]] std::uint32_t rank_after() const { return (rank_ + 1) % size_; }
  [[nodiscard]] std::uint32_t rank_before() const { return (rank_ + size_ - 1) % size_; }
  [[noreturn]] void fail(ErrorCode code, const std::string& what);

  std::string name_;
  std::uint64_t shown_;  // in Hellos: what the name and the secret make
  std::uint32_t rank_, size_;
  TcpSocket next_, previous_;
  CopiedMemory scratch_;
  std::uint64_t operations_ = 0;
  std::optional<Error> failure_;
};

}  // namespace netsum::parallel
