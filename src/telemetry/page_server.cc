#include "telemetry/page_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <list>
#include <map>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::telemetry {
namespace {

using Clock = std::chrono::steady_clock;
using transport::Descriptor;
using Answer = std::shared_ptr<const std::string>;  // headers and page: many slow readers of one page share it

constexpr std::chrono::milliseconds farewell{1000};       // for a client to close after its answer
constexpr std::chrono::milliseconds no_descriptors{100};  // until the next accept

struct Connection {
  Connection(int descriptor, const Endpoint& from, Clock::time_point until)
      : socket(descriptor), peer(from), deadline(until) {}

  Descriptor socket;
  Endpoint peer;  // without its port
  Clock::time_point deadline;
  std::string request;
  Answer answer;
  std::size_t sent = 0;
  bool answered = false;
};

// A page may ask this server and nobody else, and nobody may frame it.
constexpr char for_browsers[] =
    "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer"
    "\r\nContent-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// The value of a header in a request's head; `name`: in small letters. Empty: there is no such header.
std::string_view header_in(std::string_view head, std::string_view name) {
  constexpr std::string_view blanks = " \t";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  for (std::size_t end = head.find("\r\n"); end != head.npos; end = head.find("\r\n")) {
    head.remove_prefix(end + 2);
    std::string_view line = head.substr(0, head.find("\r\n"));
    const std::string_view key = line.substr(0, line.find(':'));
    if (key.size() == line.size() || !std::equal(key.begin(), key.end(), name.begin(), name.end(), same)) continue;
    line.remove_prefix(key.size() + 1);
    line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
    return line.substr(0, line.find_last_not_of(blanks) + 1);
  }
  return {};
}

Answer answer_of(const char* status, const std::string& page, const std::string& type = "text/plain; charset=utf-8",
                 bool head = false) {
  return std::make_shared<const std::string>(std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type +
                                             "\r\nContent-Length: " + std::to_string(page.size()) + for_browsers +
                                             "\r\nConnection: close\r\n\r\n" + (head ? "" : page));
}

}  // namespace

struct PageServer::Impl {
  const std::vector<Page> pages;
  const PageServerLimits limits;
  const bool ipv6;
  const Descriptor listener{::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const Descriptor wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::list<Connection> connections;  // oldest first
  struct Cached {
    Answer answer;
    Clock::time_point at;
  };
  std::map<std::pair<const Page*, std::string>, Cached> cache;  // by viewer
  Clock::time_point accept_again;
  std::thread thread;

  Impl(const Endpoint& endpoint, std::vector<Page> some_pages, const PageServerLimits& some_limits)
      : pages(std::move(some_pages)), limits(some_limits), ipv6(!transport::is_ipv4(endpoint)) {
    transport::set_option(listener.number(), SOL_SOCKET, SO_REUSEADDR, 1);  // connections of a former process may linger
    sockaddr_storage address{};
    const socklen_t length = transport::to_sockaddr(endpoint, ipv6, address);
    if (bind(listener.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        listen(listener.number(), SOMAXCONN) != 0) {
      throw Error(ErrorCode::refused, "cannot serve " + pages.front().path + " on " + transport::to_string(endpoint) + ": " +
                                          transport::errno_text());
    }
  }

  void serve() {
    std::vector<pollfd> watched;
    while (true) {
      const auto began = Clock::now();
      watched.assign({{wake.number(), POLLIN, 0}, {began < accept_again ? -1 : listener.number(), POLLIN, 0}});
      auto next = Clock::time_point::max();
      if (began < accept_again) next = accept_again;
      for (const Connection& each : connections) {
        const bool sends = each.answer != nullptr && !each.answered;
        watched.push_back({each.socket.number(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
        next = std::min(next, each.deadline);
      }
      int wait = -1;
      if (next != Clock::time_point::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - began).count();
        wait = static_cast<int>(std::max<std::int64_t>(left, 0));
      }
      if (poll(watched.data(), watched.size(), wait) < 0 && errno != EINTR) return;
      if (watched[0].revents != 0) return;
      const auto now = Clock::now();
      std::size_t index = 2;
      std::erase_if(connections, [&](Connection& each) {
        const bool ready = watched[index++].revents != 0;
        return now >= each.deadline || (ready && !proceed(each, now));
      });
      if (watched[1].revents != 0) accept_some(now);
    }
  }

  // False: the connection has ended.
  bool proceed(Connection& connection, Clock::time_point now) {
    const int socket = connection.socket.number();
    if (connection.answer == nullptr || connection.answered) {
      char part[4096];
      const ssize_t size = recv(socket, part, sizeof part, 0);
      if (size < 0) return errno == EAGAIN || errno == EINTR;
      if (size == 0) return false;
      if (connection.answered) return true;
      connection.request.append(part, static_cast<std::size_t>(size));
      const std::size_t end = connection.request.find("\r\n\r\n");
      if (end == std::string::npos && connection.request.size() < limits.request_bytes) return true;
      connection.answer = end == std::string::npos ? answer_of("431 Request Header Fields Too Large", "")
                                                   : answer_to(connection.request, now);
    }
    const std::string_view rest = std::string_view(*connection.answer).substr(connection.sent);
    const ssize_t size = send(socket, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += static_cast<std::size_t>(size);
    if (connection.sent == connection.answer->size()) {
      // Closing at once, with input unread, could lose the answer in flight.
      connection.answered = true;
      connection.deadline = std::min(connection.deadline, now + farewell);
      shutdown(socket, SHUT_WR);
    }
    return true;
  }

  Answer answer_to(std::string_view request, Clock::time_point now) {
    const std::string_view line = request.substr(0, request.find("\r\n"));
    const std::size_t first = line.find(' '), second = line.rfind(' ');
    if (first == second || !line.substr(second + 1).starts_with("HTTP/1.")) return answer_of("400 Bad Request", "");
    const std::string_view method = line.substr(0, first), target = line.substr(first + 1, second - first - 1);
    const std::size_t mark = target.find('?');
    const auto page =
        std::find_if(pages.begin(), pages.end(), [&](const Page& each) { return each.path == target.substr(0, mark); });
    if (page == pages.end()) return answer_of("404 Not Found", "See " + pages.front().path + "\n");
    if (method == "HEAD") return answer_of("200 OK", "", page->type, true);
    if (method != "GET") return answer_of("405 Method Not Allowed", "");
    try {
      return cached(*page, header_in(request, "netsum-proof"), now);
    } catch (const std::exception& e) {
      return answer_of("500 Internal Server Error", std::string(e.what()) + "\n");
    }
  }

  Answer cached(const Page& page, std::string_view proof, Clock::time_point now) {
    std::pair<const Page*, std::string> key{&page, page.viewer ? page.viewer(proof) : ""};
    std::erase_if(cache, [&](const auto& entry) { return now >= entry.second.at + limits.page; });
    if (const auto found = cache.find(key); found != cache.end()) return found->second.answer;
    Answer answer = answer_of("200 OK", page.make(key.second), page.type);
    cache[std::move(key)] = {answer, Clock::now()};
    return answer;
  }

  void accept_some(Clock::time_point now) {
    for (std::size_t i = 0; i < limits.connections; ++i) {
      sockaddr_storage address{};
      socklen_t length = sizeof address;
      const int socket =
          accept4(listener.number(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (socket < 0) {
        const bool none_free = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (none_free) accept_again = now + no_descriptors;
        return;
      }
      Endpoint peer = transport::endpoint_of(address);
      peer.port = 0;
      if (!transport::is_ipv4(peer)) std::fill(peer.address.begin() + 8, peer.address.end(), 0);  // one host may have a /64
      connections.emplace_back(socket, peer, now + limits.connection);
      if (connections.size() > limits.connections) drop_one();
    }
  }

  // The oldest connection of the addresses that have the most. Strangers may have many addresses with one connection each;
  // who asks at once is answered before so many others come.
  void drop_one() {
    std::map<Endpoint, std::size_t> of_peer;
    std::size_t most = 0;
    for (const Connection& each : connections) most = std::max(most, ++of_peer[each.peer]);
    connections.erase(std::find_if(connections.begin(), connections.end(),
                                   [&](const Connection& each) { return of_peer[each.peer] == most; }));
  }
};

PageServer::PageServer(const std::string& listen, std::vector<Page> pages, PageServerLimits limits)
    : impl_(std::make_unique<Impl>(transport::resolve(listen), std::move(pages), limits)) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->serve(); });
}

PageServer::~PageServer() {
  static_cast<void>(eventfd_write(impl_->wake.number(), 1));
  impl_->thread.join();
}

std::string PageServer::address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(impl_->listener.number(), reinterpret_cast<sockaddr*>(&address), &length);
  return transport::to_string(transport::endpoint_of(address));
}

}  // namespace netsum::telemetry
