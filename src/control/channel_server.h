// A daemon's control connections: one thread accepts them, bounds what strangers and tenants may hold, and hands in
// requests. docs/security.md has the limits. A connection has one request at a time, so that what it may make a daemon hold
// is a frame and an answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "control/connection_limits.h"
#include "control/ends.h"
#include "control/tls.h"

namespace netsum::control {

class ChannelServer {
 public:
  using Connection = std::uint64_t;  // never used again

  struct Request {
    Connection connection = 0;
    const Principal& principal;
    const std::string& address;  // HOST:PORT of the caller
    Kind kind{};
    std::string_view payload;
  };
  // Called on the server's thread; none may wait.
  struct Hooks {
    DaemonEnd::Manners manners;
    std::function<std::optional<Answer>(const Request&)> on_request;  // nothing: answer() follows
    // One that had proved its token. `by_daemon`: a limit ended it, and its caller may well be there.
    std::function<void(Connection, bool by_daemon)> on_closed;
    // A connection was refused or ended; for the log. `host`: without a port.
    std::function<void(const std::string& host, const std::string& why)> on_refused;
  };

  // Listens at HOST:PORT; port 0: any. Nothing is accepted before start(). Throws Error: refused, or as resolve() does.
  ChannelServer(const std::string& listen, std::shared_ptr<const TlsContext> tls, const ConnectionLimits& limits,
                Hooks hooks);
  ~ChannelServer();
  ChannelServer(const ChannelServer&) = delete;
  ChannelServer& operator=(const ChannelServer&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  void start();
  // Sends the answer to a connection, which may have ended meanwhile. Any thread.
  void answer(Connection connection, Answer answer);
  void set_tls(std::shared_ptr<const TlsContext> tls);  // for connections from now on. Any thread.
  // Accepts no more; answers go on. Any thread.
  void stop_accepting();
  // Sends what is answered, as far as peers take it at once, and ends all connections.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::control
