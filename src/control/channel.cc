#include "control/channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "control/broken.h"
#include "session/words.h"
#include "transport/addresses/addresses.h"

namespace netsum::control {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds between_tries{100}, between_lookups{10};
constexpr milliseconds connect_patience{1000};  // with one address, if there is another: a busy host answers late

std::string host_named_in(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

Channel::Channel(ClientOptions options, std::shared_ptr<const TlsContext> tls, Resolve resolve)
    : options_(std::move(options)), tls_(std::move(tls)), resolve_(std::move(resolve)) {}

void Channel::request(Kind kind, Bytes payload, Clock::time_point deadline, bool keeps_trying) {
  if (busy_) forget();
  busy_ = true;
  keeps_trying_ = keeps_trying;
  kind_ = kind;
  payload_ = std::move(payload);
  deadline_ = deadline;
  why_.clear();
  refused_ = false;
  reused_ = socket_.has_value() && end_.has_value();
  if (reused_) {
    end_->request(kind_, payload_);
  } else {
    connect(Clock::now());
  }
}

void Channel::give_up() {
  busy_ = false;
  end_.reset();
  socket_.reset();
  lookup_.reset();
  addresses_.clear();
}

void Channel::forget() {
  if (!end_ || !end_->welcome()) return give_up();
  end_->skip_answer();
  busy_ = false;
}

// To the next address, or else to those that a new lookup finds.
void Channel::connect(Clock::time_point now) {
  end_.reset();
  socket_.reset();
  reused_ = false;
  try_again_ = {};
  try {
    if (addresses_.empty()) {
      if (!lookup_) lookup_ = resolve_(options_.address);
      auto found = lookup_->result();
      if (!found) return;  // step() looks again
      lookup_.reset();
      addresses_ = std::move(*found);
      std::reverse(addresses_.begin(), addresses_.end());
    }
  } catch (const Error& error) {
    lookup_.reset();
    return lose(error.what(), now);
  }
  peer_ = addresses_.back();
  addresses_.pop_back();
  const bool ipv6 = !transport::is_ipv4(peer_);
  socket_.emplace(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket_->number() < 0) return lose(transport::errno_text(), now);
  transport::set_option(socket_->number(), IPPROTO_TCP, TCP_NODELAY, 1);
  sockaddr_storage address{};
  const socklen_t length = transport::to_sockaddr(peer_, ipv6, address);
  connected_by_ = addresses_.empty() ? Clock::time_point::max() : now + connect_patience;
  if (::connect(socket_->number(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINPROGRESS) {
      connecting_ = true;
      return;
    }
    refused_ = errno == ECONNREFUSED;
    return lose(errno == ECONNREFUSED ? "the connection was refused: is netsum running there, at this port?"
                                      : transport::errno_text() + ": is that the right address?",
                now);
  }
  on_connected();
}

void Channel::on_connected() {
  connecting_ = false;
  end_.emplace(Credentials{options_.token, options_.daemon_token},
               tls_ ? std::make_unique<TlsStream>(*tls_, host_named_in(options_.address)) : nullptr);
  end_->request(kind_, payload_);
}

// This connection cannot go on.
void Channel::lose(const std::string& why, Clock::time_point now) {
  why_ = why;
  end_.reset();
  socket_.reset();
  connecting_ = false;
  if (!busy_) return;
  if (!addresses_.empty()) return connect(now);
  try_again_ = keeps_trying_ ? now + between_tries : now;
}

short Channel::events() {
  if (!socket_) return 0;
  if (connecting_) return POLLOUT;
  return static_cast<short>(POLLIN | (end_ && !end_->outgoing().empty() ? POLLOUT : 0));
}

Channel::Clock::time_point Channel::wake_by() const {
  if (!busy_) return Clock::time_point::max();
  Clock::time_point next = deadline_;
  if (lookup_) next = std::min(next, Clock::now() + between_lookups);
  if (!socket_ && try_again_ != Clock::time_point{}) next = std::min(next, try_again_);
  if (connecting_) next = std::min(next, connected_by_);
  return next;
}

std::optional<Channel::Outcome> Channel::step(Clock::time_point now) {
  if (lookup_) connect(now);
  if (socket_) {
    std::optional<Broken> broken;
    try {
      exchange();
    } catch (const Broken& error) {
      broken.emplace(error);
    }
    if (auto answer = end_ && busy_ ? end_->take_answer() : std::nullopt) {
      busy_ = false;
      if (broken || !end_->welcome()) {
        end_.reset();
        socket_.reset();
      }
      return Outcome{std::move(*answer)};
    }
    if (broken) {
      const bool stale = reused_;  // the daemon may have ended it before the request
      lose(broken->what(), now);
      if (!busy_) return std::nullopt;
      if (stale && !socket_) {
        connect(now);
      } else if (broken->final) {
        give_up();
        return failed();
      }
    }
  }
  if (!busy_) return std::nullopt;
  if (now >= deadline_) {
    Outcome outcome = why_.empty() || socket_ ? late() : failed();
    // A daemon takes the end of a connection for that of its caller; where it is only slow, the answer will be skipped.
    kind_ == Kind::heartbeat ? forget() : give_up();
    return outcome;
  }
  if (connecting_ && now >= connected_by_) lose("no answer on TCP", now);
  if (!socket_ && !lookup_ && now >= try_again_) {
    if (!keeps_trying_) {
      busy_ = false;
      return failed();
    }
    connect(now);
  }
  return std::nullopt;
}

void Channel::exchange() {
  if (connecting_) {
    pollfd descriptor{socket_->number(), POLLOUT, 0};
    if (::poll(&descriptor, 1, 0) != 1) return;
    const int error = transport::get_option(socket_->number(), SOL_SOCKET, SO_ERROR);
    refused_ = error == ECONNREFUSED;
    if (error != 0) {
      errno = error;
      throw Broken(error == ECONNREFUSED ? "the connection was refused: is netsum running there, at this port?"
                                         : transport::errno_text() + ": is that the right address?");
    }
    on_connected();
  }
  const auto send = [&] {
    for (auto out = end_->outgoing(); !out.empty(); out = end_->outgoing()) {
      const ssize_t sent = ::send(socket_->number(), out.data(), out.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) break;
      if (sent < 0) break;  // what the daemon said last may still be read
      end_->sent(static_cast<std::size_t>(sent));
    }
  };
  send();
  std::array<char, 16384> buffer;
  for (int turns = 0; turns < 64; ++turns) {
    const ssize_t got = ::recv(socket_->number(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      if (!end_->heard()) {
        throw Broken(tls_ ? "it closed the connection during the TLS handshake: start the daemon with --tls-cert and "
                            "--tls-key, or omit --tls-ca"
                          : "it closed the connection at once: is another service at this port, or does the daemon have "
                            "--tls-cert? Then pass --tls-ca FILE");
      }
      throw Broken("it has ended the connection");
    }
    end_->received({buffer.data(), static_cast<std::size_t>(got)});
  }
  send();
}

Channel::Outcome Channel::late() const {
  if (connecting_ || !socket_) {
    return {{},
            Error(ErrorCode::unreachable,
                  "aggregator " + options_.address + " is not reachable: " +
                      (lookup_ ? "no name server knows its host name, or no name server answered in time"
                               : "no answer on TCP: is that host up, and does a firewall drop packets to this port?"))};
  }
  if (end_ && !end_->heard()) {
    return {{},
            Error(ErrorCode::unreachable, "aggregator " + options_.address +
                                              " is not reachable: it takes connections, but does not answer: is it busy, "
                                              "or stopped?")};
  }
  return {{}, Error(ErrorCode::deadline, "aggregator " + options_.address + ": no answer in time")};
}

Channel::Outcome Channel::failed() const {
  return {{}, Error(ErrorCode::unreachable, "aggregator " + options_.address + " is not reachable: " + why_)};
}

std::string Channel::numeric_address() const {
  return transport::to_string(peer_);
}

}  // namespace netsum::control
