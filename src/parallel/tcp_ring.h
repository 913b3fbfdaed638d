// A ring all-reduce over TCP: what FR and TA are made of, and PR, with which aggregation in the network is compared
// (NetReduce §3.4). Reduce-scatter, then all-gather: in step s rank r sends piece r - s to its successor and takes piece r -
// s - 1 from its predecessor, and what it took in one step it sends in the next. So each connection carries one stream, and
// bytes go on as soon as they are added.
//
// On the wire: a connection begins with a Hello each way, an all-reduce with its header; then come the pieces as they lie in
// memory. No authentication, as in MPI and Gloo: for trusted networks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "netsum/error.h"
#include "parallel/tcp_socket.h"

namespace netsum::parallel {

struct TcpRingOptions {
  std::string name;  // the ring's, for messages and to know its members
  std::uint32_t rank = 0, size = 2;
  std::string next;  // "host:port" where the successor listens
};

class TcpRing {
 public:
  // `listener`: bound. Returns when both neighbours are there. Throws Error: deadline, refused (somebody else answers).
  TcpRing(TcpSocket listener, const TcpRingOptions& options, Time deadline);

  // Over connections that there are already, of any stream sockets that do not block. Likewise.
  TcpRing(TcpSocket next, TcpSocket previous, const TcpRingOptions& options, Time deadline);

  // In place, on all ranks, in the same order: the same bits everywhere. Piece k is added from rank k on around the ring.
  // Throws Error: deadline, worker_lost (a neighbour closed its connection), mismatch; then the ring is closed, which its
  // neighbours notice.
  void all_reduce(std::span<float> inout, Time deadline);
  void barrier(Time deadline);
  void close();  // its neighbours notice

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
  std::uint32_t rank_, size_;
  TcpSocket next_, previous_;
  std::vector<std::byte> scratch_;
  std::uint64_t operations_ = 0;
  bool failed_ = false;
};

}  // namespace netsum::parallel
