// Accepts the control plane's TCP connections. A connection costs gRPC far more than the kernel, and each open one costs a
// descriptor; so gRPC gets only connections whose clients have sent something (clients speak first), and only a limited
// number in all and per peer. Without limits, one host that opens connections keeps every other host out.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <thread>

#include "transport/socket.h"

namespace netsum::control {

struct ConnectionLimits {
  std::uint32_t connections = 4096;
  std::uint32_t of_one_peer = 1024;
  std::chrono::milliseconds silence{5000};  // a connection that has sent nothing for so long is closed
};

class Listener {
 public:
  // Listens at HOST:PORT; port 0: any. No connection is accepted before start(). Throws Error: refused, or as resolve()
  // does.
  Listener(const std::string& address, const ConnectionLimits& limits, std::function<void(const std::string&)> log);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  // Accepts from now on, on the listener's thread. `take` owns each connection it gets; `log` is called on that thread too.
  void start(std::function<void(int socket)> take);

 private:
  using Clock = std::chrono::steady_clock;
  using Peer = std::array<std::uint8_t, 16>;  // its IP address; IPv4 as IPv6 maps it
  struct Silent {
    int socket;
    Peer peer;
    Clock::time_point deadline;
  };

  enum class Heard : std::uint8_t { nothing, something, its_end };

  void run();
  void accept_all();
  void admit(int socket, const Peer& peer);
  [[nodiscard]] bool has_room(const Peer& peer);
  [[nodiscard]] bool end_silent(const Peer* of);
  Heard hear(int socket);
  void end(std::list<Silent>::iterator silent);
  void forget(const Peer& peer);
  void count_taken();
  void watch(int socket) const;
  void tell_refused(const Peer& peer);
  [[nodiscard]] int patience() const;

  const ConnectionLimits limits_;
  const std::function<void(const std::string&)> log_;
  const transport::Descriptor socket_, events_, stop_;
  std::function<void(int)> take_;
  std::list<Silent> silent_;  // oldest first
  std::map<int, std::list<Silent>::iterator> by_socket_;
  std::map<ino_t, Peer> taken_;           // by the sockets' inodes; some may have ended since
  std::map<Peer, std::uint32_t> counts_;  // of both kinds
  Clock::time_point counted_{}, listens_again_{};
  std::uint64_t refused_ = 0;
  std::thread thread_;
};

}  // namespace netsum::control
