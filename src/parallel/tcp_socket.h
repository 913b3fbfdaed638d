// TCP sockets whose every wait has a deadline. None of them blocks by itself.
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

  // Throws Error: bad_argument, refused (in use). Binds what others hold too, if they do not listen.
  [[nodiscard]] static TcpSocket bound_to(const std::string& address);
  // Tries until somebody listens. Throws Error: bad_argument, deadline.
  [[nodiscard]] static TcpSocket connected_to(const std::string& address, Time deadline);

  void listen();                                                 // throws Error: refused
  [[nodiscard]] std::optional<TcpSocket> accept(Time deadline);  // none: nobody came in time

  // All of it, or false: closed, or not in time.
  [[nodiscard]] bool send_all(std::span<const std::byte> bytes, Time deadline);
  [[nodiscard]] bool receive_all(std::span<std::byte> bytes, Time deadline);

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] std::string local_address() const;
  [[nodiscard]] LinkTraffic traffic() const;

 private:
  int number_;
};

// Until one of these poll(2) events, or the deadline; false: that came first.
bool wait_for(int socket, short events, Time deadline);
// For poll(2): milliseconds, rounded up, at most a minute.
[[nodiscard]] int milliseconds_until(Time deadline);

}  // namespace netsum::parallel
