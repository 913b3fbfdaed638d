#include "parallel/tcp_socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "netsum/error.h"
#include "runtime/thread.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::parallel {
namespace {

using transport::errno_text;

constexpr Duration socket_retry_interval = std::chrono::milliseconds(10);
constexpr Duration patience_of_a_try = std::chrono::seconds(1);  // SYNs are lost, too

struct Address {
  explicit Address(const std::string& text) {
    const Endpoint endpoint = transport::resolve(text);
    ipv6 = !transport::is_ipv4(endpoint);
    size = transport::to_sockaddr(endpoint, ipv6, storage);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  bool ipv6 = false;
  sockaddr_storage storage{};
  socklen_t size = 0;
};

TcpSocket new_socket(bool ipv6) {
  const int number = ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (number < 0) throw Error(ErrorCode::internal, "cannot open a TCP socket: " + errno_text());
  return TcpSocket(number);
}

}  // namespace

int milliseconds_until(Time deadline) {
  const Duration left = std::clamp<Duration>(deadline - runtime::now(), Duration::zero(), std::chrono::minutes(1));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

bool wait_for(int socket, short events, Time deadline) {
  for (;;) {
    pollfd wanted{socket, events, 0};
    if (::poll(&wanted, 1, milliseconds_until(deadline)) > 0) return true;
    if (runtime::now() >= deadline) return false;
  }
}

void TcpSocket::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

TcpSocket TcpSocket::bound_to(const std::string& address) {
  const Address local(address);
  TcpSocket socket = new_socket(local.ipv6);
  transport::set_option(socket.number_, SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket.number_, local.get(), local.size) != 0) {
    throw Error(ErrorCode::refused, "cannot bind TCP " + address + ": " + errno_text());
  }
  return socket;
}

TcpSocket TcpSocket::connected_to(const std::string& address, Time deadline) {
  const Address remote(address);
  for (;;) {
    TcpSocket socket = new_socket(remote.ipv6);
    transport::set_option(socket.number_, IPPROTO_TCP, TCP_NODELAY, 1);
    int error = ::connect(socket.number_, remote.get(), remote.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      const bool ended = wait_for(socket.number_, POLLOUT, std::min(deadline, runtime::now() + patience_of_a_try));
      error = ended ? transport::get_option(socket.number_, SOL_SOCKET, SO_ERROR) : ETIMEDOUT;
    }
    if (error == 0) return socket;
    if (runtime::now() >= deadline) {
      errno = error;
      throw Error(ErrorCode::deadline, "TCP " + address + " could not be reached in time: " + errno_text());
    }
    wait_for(-1, 0, std::min(deadline, runtime::now() + socket_retry_interval));
  }
}

void TcpSocket::listen() {
  if (::listen(number_, 16) != 0)
    throw Error(ErrorCode::refused, "cannot listen on TCP " + local_address() + ": " + errno_text());
}

std::optional<TcpSocket> TcpSocket::accept(Time deadline) {
  while (wait_for(number_, POLLIN, deadline)) {
    const int accepted = ::accept4(number_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted < 0) {  // the peer has closed, or no descriptor is free: then the listening socket stays readable
      if (errno == EMFILE || errno == ENFILE) wait_for(-1, 0, std::min(deadline, runtime::now() + socket_retry_interval));
      continue;
    }
    transport::set_option(accepted, IPPROTO_TCP, TCP_NODELAY, 1);
    return TcpSocket(accepted);
  }
  return std::nullopt;
}

bool TcpSocket::send_all(std::span<const std::byte> bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(number_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(number_, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

bool TcpSocket::receive_all(std::span<std::byte> bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(number_, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(number_, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

std::string TcpSocket::local_address() const {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  ::getsockname(number_, reinterpret_cast<sockaddr*>(&storage), &size);
  return transport::to_string(transport::endpoint_of(storage));
}

LinkTraffic TcpSocket::traffic() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (number_ < 0 || ::getsockopt(number_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  sockaddr_storage storage{};
  socklen_t address = sizeof storage;
  ::getsockname(number_, reinterpret_cast<sockaddr*>(&storage), &address);
  const std::uint64_t headers = 14 + (transport::is_ipv4(transport::endpoint_of(storage)) ? 52u : 72u);
  return {info.tcpi_bytes_sent + headers * info.tcpi_segs_out, info.tcpi_bytes_received + headers * info.tcpi_segs_in};
}

}  // namespace netsum::parallel
