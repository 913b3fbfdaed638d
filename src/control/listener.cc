#include "control/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <new>
#include <set>
#include <system_error>
#include <utility>

#include "netsum/error.h"
#include "transport/addresses.h"

namespace netsum::control {
namespace {

constexpr std::chrono::milliseconds between_counts{50}, no_descriptors{100};
constexpr int backlog = 4096;

int listening_socket(const std::string& address) {
  const Endpoint endpoint = transport::resolve(address);
  const bool ipv6 = !transport::is_ipv4(endpoint);
  const int number = ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  transport::set_option(number, SOL_SOCKET, SO_REUSEADDR, 1);  // connections of a former process may linger
  if (ipv6) transport::set_option(number, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  sockaddr_storage storage{};
  const socklen_t length = transport::to_sockaddr(endpoint, ipv6, storage);
  if (number >= 0 && ::bind(number, reinterpret_cast<const sockaddr*>(&storage), length) == 0 &&
      ::listen(number, backlog) == 0) {
    return number;
  }
  const std::string why = transport::errno_text();
  if (number >= 0) ::close(number);
  throw Error(ErrorCode::refused, "cannot listen on " + address + ": " + why);
}

std::set<ino_t> open_sockets() {
  std::set<ino_t> inodes;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    int number = -1;
    struct stat status {};
    if (std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc() && fstat(number, &status) == 0 &&
        S_ISSOCK(status.st_mode)) {
      inodes.insert(status.st_ino);
    }
  }
  return inodes;
}

}  // namespace

Listener::Listener(const std::string& address, const ConnectionLimits& limits, std::function<void(const std::string&)> log)
    : limits_(limits),
      log_(std::move(log)),
      socket_(listening_socket(address)),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (events_.number() < 0 || stop_.number() < 0) {
    throw Error(ErrorCode::refused, "cannot listen on " + address + ": " + transport::errno_text());
  }
  watch(socket_.number());
  watch(stop_.number());
}

Listener::~Listener() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  while (::write(stop_.number(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

std::uint16_t Listener::port() const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&storage), &length);
  return transport::endpoint_of(storage).port;
}

void Listener::start(std::function<void(int socket)> take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { run(); });
}

void Listener::watch(int socket) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = socket;
  epoll_ctl(events_.number(), EPOLL_CTL_ADD, socket, &event);
}

// Until the oldest silent connection's deadline, or the next try to get descriptors.
int Listener::patience() const {
  Clock::time_point wake = Clock::time_point::max();
  if (!silent_.empty()) wake = silent_.front().deadline;
  if (listens_again_ != Clock::time_point{}) wake = std::min(wake, listens_again_);
  if (wake == Clock::time_point::max()) return -1;
  return static_cast<int>(
      std::max(std::chrono::ceil<std::chrono::milliseconds>(wake - Clock::now()), std::chrono::milliseconds(0)).count());
}

void Listener::run() {
  std::array<epoll_event, 64> events{};
  while (true) {
    const int count = epoll_wait(events_.number(), events.data(), static_cast<int>(events.size()), patience());
    for (int i = 0; i < count; ++i) {
      const int number = events[static_cast<std::size_t>(i)].data.fd;
      if (number == stop_.number()) {
        while (!silent_.empty()) end(silent_.begin());
        return;
      }
      try {
        if (number == socket_.number()) {
          accept_all();
        } else {
          static_cast<void>(hear(number));
        }
      } catch (const std::bad_alloc&) {
        // A connection not heard for lack of memory is heard again, or reaches its deadline.
      }
    }
    const Clock::time_point now = Clock::now();
    while (!silent_.empty() && silent_.front().deadline <= now) end(silent_.begin());
    if (listens_again_ != Clock::time_point{} && listens_again_ <= now) {
      listens_again_ = {};
      watch(socket_.number());
    }
  }
}

void Listener::accept_all() {
  while (true) {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    const int number =
        ::accept4(socket_.number(), reinterpret_cast<sockaddr*>(&storage), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (number >= 0) {
      admit(number, transport::endpoint_of(storage).address);
      continue;
    }
    if (errno == EAGAIN) return;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (end_silent(nullptr)) continue;
      listens_again_ = Clock::now() + no_descriptors;
      epoll_ctl(events_.number(), EPOLL_CTL_DEL, socket_.number(), nullptr);
      return;
    }
    // An error of one connection says nothing about the next.
  }
}

void Listener::admit(int socket, const Peer& peer) {
  if (!has_room(peer)) {
    ::close(socket);
    return tell_refused(peer);
  }
  auto place = silent_.end();
  try {
    std::uint32_t& count = counts_[peer];
    place = silent_.insert(place, {socket, peer, Clock::now() + limits_.silence});
    by_socket_[socket] = place;
    ++count;
  } catch (const std::bad_alloc&) {  // open connections stay open
    if (place != silent_.end()) silent_.erase(place);
    ::close(socket);
    return;
  }
  watch(socket);
}

// If there is none, a silent connection is closed: the peer's own, or any if there are too many in all.
bool Listener::has_room(const Peer& peer) {
  const auto of_all = [&] { return silent_.size() + taken_.size() < limits_.connections; };
  const auto of_peer = [&] {
    const auto found = counts_.find(peer);
    return found == counts_.end() || found->second < limits_.of_one_peer;
  };
  if (of_all() && of_peer()) return true;
  count_taken();
  if (!of_peer() && end_silent(&peer)) tell_refused(peer);
  if (!of_all()) static_cast<void>(end_silent(nullptr));
  return of_all() && of_peer();
}

// Ends the oldest silent connection; false: there is none.
bool Listener::end_silent(const Peer* of) {
  for (auto next = silent_.begin(); next != silent_.end();) {
    const auto each = next++;
    if (of != nullptr && each->peer != *of) continue;
    const Heard heard = hear(each->socket);  // it may have sent something not read yet
    if (heard == Heard::nothing) end(each);
    if (heard != Heard::something) return true;
  }
  return false;
}

void Listener::end(std::list<Silent>::iterator silent) {
  ::close(silent->socket);  // which also ends its watch
  forget(silent->peer);
  by_socket_.erase(silent->socket);
  silent_.erase(silent);
}

void Listener::forget(const Peer& peer) {
  const auto count = counts_.find(peer);
  if (--count->second == 0) counts_.erase(count);
}

Listener::Heard Listener::hear(int socket) {
  const auto found = by_socket_.find(socket);
  if (found == by_socket_.end()) return Heard::nothing;  // closed earlier in this round
  const auto silent = found->second;
  char byte = 0;
  const ssize_t heard = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (heard < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::nothing;
  struct stat status {};
  if (heard <= 0 || fstat(socket, &status) != 0) {
    end(silent);
    return Heard::its_end;
  }
  // A repeated inode means that its former connection has ended.
  if (const auto former = taken_.find(status.st_ino); former != taken_.end()) forget(former->second);
  taken_[status.st_ino] = silent->peer;
  epoll_ctl(events_.number(), EPOLL_CTL_DEL, socket, nullptr);
  transport::set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  by_socket_.erase(found);
  silent_.erase(silent);
  take_(socket);
  return Heard::something;
}

// gRPC does not report closed connections.
void Listener::count_taken() {
  const Clock::time_point now = Clock::now();
  if (now - counted_ < between_counts) return;
  counted_ = now;
  const std::set<ino_t> open = open_sockets();
  for (auto it = taken_.begin(); it != taken_.end();) {
    if (open.contains(it->first)) {
      ++it;
    } else {
      forget(it->second);
      it = taken_.erase(it);
    }
  }
}

void Listener::tell_refused(const Peer& peer) {
  if (!std::has_single_bit(++refused_) || !log_) return;  // a flood must not fill the log
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, peer.data(), text.data(), text.size());
  log_(std::string("warning: closed a control connection from ") + text.data() + ": the limits are " +
       std::to_string(limits_.of_one_peer) + " per peer and " + std::to_string(limits_.connections) +
       " in all (closed so far: " + std::to_string(refused_) + ")");
}

}  // namespace netsum::control
