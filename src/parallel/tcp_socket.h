// Non-blocking TCP sockets. Every wait has a deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/time.h"

namespace netsum::parallel {

// Bytes count Ethernet (14) + IP + TCP with its timestamps (52, over IPv6 72) + payload; acknowledgements and
// retransmissions too.
struct LinkTraffic {
  std::uint64_t bytes_sent = 0, bytes_received = 0;
};

class TcpSocket {
 public:
  explicit TcpSocket(int number = -1) : number_(number) {}
  TcpSocket(TcpSocket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~TcpSocket() { close(); }
  void close();

  // Throws Error: bad_argument, refused (in use). Binds an address that others have bound too, if they do not listen.
  [[nodiscard]] static TcpSocket bound_to(const std::string& address);
  // Retries until a peer listens. Throws Error: bad_argument, deadline.
  [[nodiscard]] static TcpSocket connected_to(const std::string& address, Time deadline);

  void listen();                                                 // throws Error: refused
  [[nodiscard]] std::optional<TcpSocket> accept(Time deadline);  // none: no connection in time

  // Transfers all bytes; false: the connection closed, or the deadline passed.
  [[nodiscard]] bool send_all(std::span<const std::byte> bytes, Time deadline);
  [[nodiscard]] bool receive_all(std::span<std::byte> bytes, Time deadline);

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] std::string local_address() const;
  [[nodiscard]] LinkTraffic traffic() const;

 private:
  int number_;
};

// Waits for one of these poll(2) events; false: the deadline came first.
bool wait_for(int socket, short events, Time deadline);
// For poll(2): milliseconds, rounded up, at most a minute.
[[nodiscard]] int milliseconds_until(Time deadline);

}  // namespace netsum::parallel
