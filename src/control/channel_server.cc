#include "control/channel_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "control/broken.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::control {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds no_descriptors{100}, for_last_words{1000}, between_looks{50};
constexpr int backlog = 4096, accepts_per_turn = 64;
constexpr std::size_t read_bytes = 16384, unproved_read_bytes = 2048;
// In the kernel, which would take megabytes of answers that nobody reads and that no limit counts.
constexpr int unsent_bytes = 16384;

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

// What limits of hosts count: an IPv4 address, or a /64.
Endpoint host_of(Endpoint peer) {
  peer.port = 0;
  peer.scope = 0;
  if (!transport::is_ipv4(peer)) std::fill(peer.address.begin() + 8, peer.address.end(), 0);
  return peer;
}

std::string text_of_host(const Endpoint& peer) {
  const std::string text = transport::to_string(peer);
  return text.substr(0, text.rfind(':'));
}

}  // namespace

struct ChannelServer::Impl {
  struct Peer {
    Peer(int number, const Endpoint& from, const DaemonEnd::Manners& manners, std::unique_ptr<TlsStream> tls,
         Clock::time_point until)
        : socket(number),
          host(host_of(from)),
          address(transport::to_string(from)),
          end(manners, std::move(tls), address),
          deadline(until) {}

    const transport::Descriptor socket;
    const Endpoint host;
    const std::string address;
    DaemonEnd end;
    Clock::time_point deadline;
    enum class Waits : std::uint8_t { proof, frame, reader, nothing, request } waits = Waits::proof;
    bool proved = false, parting = false;
    std::size_t held = 0;
    std::string held_by;  // a tenant, or a host
    std::uint32_t watched = 0;
  };

  Impl(const std::string& listen, std::shared_ptr<const TlsContext> t, const ConnectionLimits& l, Hooks h)
      : limits(l), hooks(std::move(h)), tls(std::move(t)), listener(listening_socket(listen)) {
    if (events.number() < 0 || wake.number() < 0) {
      throw Error(ErrorCode::refused, "cannot listen on " + listen + ": " + transport::errno_text());
    }
    watch(EPOLL_CTL_ADD, wake.number(), EPOLLIN, wake_id);
  }

  const ConnectionLimits limits;
  const Hooks hooks;

  std::mutex mutex;  // guards the next four
  std::shared_ptr<const TlsContext> tls;
  std::vector<std::pair<Connection, Answer>> answers;
  bool accepting = true, stopping = false;

  // The thread's own.
  const transport::Descriptor listener, events{epoll_create1(EPOLL_CLOEXEC)}, wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  static constexpr Connection wake_id = 0, listener_id = 1;
  Connection last = listener_id;
  std::map<Connection, Peer> peers;                   // oldest first
  std::map<Endpoint, std::set<Connection>> unproved;  // by host
  std::size_t unproved_count = 0;
  std::map<Endpoint, std::uint32_t> of_host;
  std::map<std::string, std::uint32_t> of_tenant;
  std::map<std::string, std::size_t> held_of;
  std::size_t held = 0;
  bool listens = false;
  Clock::time_point listens_again{}, last_look{}, next_look = Clock::time_point::max();  // at deadlines
  std::thread thread;

  void watch(int what, int descriptor, std::uint32_t for_events, Connection id) const {
    epoll_event event{};
    event.events = for_events;
    event.data.u64 = id;
    epoll_ctl(events.number(), what, descriptor, &event);
  }
  void listen_now(bool now) {
    if (listens == now) return;
    watch(now ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener.number(), EPOLLIN, listener_id);
    listens = now;
  }

  void run() {
    listen_now(true);
    std::array<epoll_event, 256> ready{};
    while (true) {
      const int count = epoll_wait(events.number(), ready.data(), static_cast<int>(ready.size()), patience());
      const auto begin = ready.begin(), end = begin + std::max(count, 0);
      // Those who have proved themselves first: a stranger's handshake with TLS takes the time of many requests.
      std::partition(begin, end, [&](const epoll_event& event) {
        const Connection id = event.data.u64;  // a copy, as the event is packed
        const auto peer = peers.find(id);
        return peer == peers.end() || peer->second.proved;
      });
      for (auto event = begin; event != end; ++event) {
        if (event->data.u64 > listener_id) serve(event->data.u64, event->events);
      }
      if (!take_messages()) return part();
      if (std::any_of(begin, end, [](const epoll_event& event) { return event.data.u64 == listener_id; })) accept_some();
      const auto now = Clock::now();
      end_late(now);
      if (listens_again != Clock::time_point{} && listens_again <= now) {
        listens_again = {};
        listen_now(true);
      }
    }
  }

  [[nodiscard]] int patience() const {
    auto next = next_look;
    if (listens_again != Clock::time_point{}) next = std::min(next, listens_again);
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
  }

  // False: to stop.
  bool take_messages() {
    eventfd_t count = 0;
    static_cast<void>(eventfd_read(wake.number(), &count));
    std::vector<std::pair<Connection, Answer>> now;
    bool stop = false;
    {
      const std::lock_guard lock(mutex);
      now.swap(answers);
      stop = stopping;
      if (!accepting) listen_now(false);
    }
    for (auto& [id, answer] : now) {
      const auto found = peers.find(id);
      if (found == peers.end() || !found->second.end.busy()) continue;
      found->second.end.answer(answer);
      serve(id);
    }
    return !stop;
  }

  void part() {
    for (auto& [id, peer] : peers) send(peer);
    while (!peers.empty()) close(peers.begin());
  }

  void end_late(Clock::time_point now) {
    if (now < next_look) return;
    next_look = Clock::time_point::max();
    last_look = now;
    for (auto next = peers.begin(); next != peers.end();) {
      const auto each = next++;
      if (each->second.deadline > now) {
        look_by(each->second.deadline);
        continue;
      }
      const auto waits = each->second.waits;
      if (!each->second.parting && waits == Peer::Waits::proof) tell(each->second, "it did not prove a token in time");
      if (!each->second.parting && waits == Peer::Waits::frame)
        tell(each->second, "it sent part of a frame, and not the rest in time");
      if (!each->second.parting && waits == Peer::Waits::reader) tell(each->second, "it does not read its answer");
      close(each, true);
    }
  }

  // Not at each event: there may be thousands of connections.
  void look_by(Clock::time_point deadline) {
    if (deadline != Clock::time_point::max()) next_look = std::min(next_look, std::max(deadline, last_look + between_looks));
  }

  // ---- admission

  void accept_some() {
    std::shared_ptr<const TlsContext> context;
    {
      const std::lock_guard lock(mutex);
      if (!accepting) return;
      context = tls;
    }
    for (int i = 0; i < accepts_per_turn; ++i) {
      sockaddr_storage storage{};
      socklen_t length = sizeof storage;
      const int number =
          ::accept4(listener.number(), reinterpret_cast<sockaddr*>(&storage), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (number >= 0) {
        try {
          admit(number, transport::endpoint_of(storage), context.get());
        } catch (const std::bad_alloc&) {  // open connections stay open
          ::close(number);
        }
        continue;
      }
      if (errno == EAGAIN) return;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (drop_unproved(nullptr)) continue;
        listens_again = Clock::now() + no_descriptors;
        return listen_now(false);
      }
      // An error of one connection says nothing about the next.
    }
  }

  void admit(int number, const Endpoint& from, const TlsContext* context) {
    const Endpoint host = host_of(from);
    const auto known = of_host.find(host);
    const bool crowded = known != of_host.end() && known->second >= limits.of_one_host;
    if (crowded && !drop_unproved(&host) && !drop_idle(&host))
      return refuse(number, from, "its host has", limits.of_one_host);
    if (peers.size() >= limits.connections && !drop_unproved(nullptr) && !drop_idle(nullptr)) {
      return refuse(number, from, "this daemon has", limits.connections);
    }
    if (unproved_count >= limits.unproved) static_cast<void>(drop_unproved(nullptr));
    transport::set_option(number, IPPROTO_TCP, TCP_NODELAY, 1);
    transport::set_option(number, IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsent_bytes);
    auto stream = context == nullptr ? nullptr : std::make_unique<TlsStream>(*context);
    const Connection id = ++last;
    const auto made =
        peers.try_emplace(id, number, from, hooks.manners, std::move(stream), Clock::now() + limits.handshake).first;
    unproved[host].insert(id);
    ++unproved_count;
    ++of_host[host];
    made->second.held_by = text_of_host(from);
    look_by(made->second.deadline);
    made->second.watched = EPOLLIN | EPOLLRDHUP;
    watch(EPOLL_CTL_ADD, number, made->second.watched, id);
    serve(id);
  }
  void refuse(int number, const Endpoint& from, const std::string& who, std::uint32_t limit) const {
    ::close(number);
    if (hooks.on_refused) hooks.on_refused(text_of_host(from), who + " " + std::to_string(limit) + " connections already");
  }

  // The oldest of a host's connections without a proof; null: of the hosts that have the most of them. Strangers may have
  // many hosts with few connections each: those who prove themselves at once are done before so many others come.
  bool drop_unproved(const Endpoint* host) {
    const auto fewer = [](const auto& one, const auto& other) { return one.second.size() < other.second.size(); };
    const auto of = host != nullptr ? unproved.find(*host) : std::max_element(unproved.begin(), unproved.end(), fewer);
    if (of == unproved.end()) return false;
    const auto oldest = peers.find(*of->second.begin());
    tell(oldest->second, "there were too many connections that had not proved a token");
    close(oldest);
    return true;
  }
  void forget_unproved(Connection id, const Peer& peer) {
    const auto of = unproved.find(peer.host);
    if (of == unproved.end() || of->second.erase(id) == 0) return;
    --unproved_count;
    if (of->second.empty()) unproved.erase(of);
  }

  // One without a request, of a host or (null) of the hosts that have the most connections: the one whose time is over
  // first, as those that have begun a request and not ended it. Who means well connects again when it has something to ask.
  bool drop_idle(const Endpoint* host) {
    auto chosen = peers.end();
    std::pair<std::uint32_t, Clock::time_point> best;
    for (auto each = peers.begin(); each != peers.end(); ++each) {
      const Peer& peer = each->second;
      if (peer.end.busy() || (host != nullptr && peer.host != *host)) continue;
      const std::pair rank{UINT32_MAX - of_host.at(peer.host), peer.deadline};
      if (chosen != peers.end() && best <= rank) continue;
      chosen = each;
      best = rank;
    }
    if (chosen == peers.end()) return false;
    tell(chosen->second, "there were too many connections");
    close(chosen, true);
    return true;
  }

  // ---- one connection

  void serve(Connection id, std::uint32_t what = 0) {
    const auto found = peers.find(id);
    if (found == peers.end()) return;
    Peer& peer = found->second;
    // A caller that waits for an answer says nothing; but it may end.
    if ((what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0 && (peer.watched & EPOLLIN) == 0) return close(found);
    try {
      // Nothing more is done for who does not read what was said.
      if (!send(peer)) return close(found);
      if (!peer.parting && peer.end.outgoing().empty() && !proceed(id, peer)) return close(found);
      if (peer.parting && !drain(peer)) return close(found);
      if (!send(peer)) return close(found);
    } catch (const Broken& broken) {
      if (!broken.logged) tell(peer, broken.what());
      if (!send(peer)) return close(found);
      ::shutdown(peer.socket.number(), SHUT_WR);
      peer.parting = true;
      peer.deadline = Clock::now() + for_last_words;
      look_by(peer.deadline);
    } catch (const std::bad_alloc&) {
      return close(found, true);
    }
    if (!charge(id, peer)) return close(found, true);
    rewatch(id, peer);
    if (!peer.parting) set_deadline(peer);
  }

  // False: the peer has ended it.
  bool proceed(Connection id, Peer& peer) {
    if (!peer.end.busy()) {
      std::array<char, read_bytes> buffer;
      const ssize_t got = ::recv(peer.socket.number(), buffer.data(), peer.proved ? read_bytes : unproved_read_bytes, 0);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (got > 0) peer.end.received({buffer.data(), static_cast<std::size_t>(got)});
      if (!peer.proved && peer.end.principal()) on_proved(id, peer);
    }
    while (const auto frame = peer.end.take_request()) {
      const auto answer = hooks.on_request({id, *peer.end.principal(), peer.address, frame->kind, frame->payload});
      peer.end.forget_request();
      if (!answer) break;
      peer.end.answer(*answer);
      if (!send(peer)) return false;
      if (!peer.end.outgoing().empty()) break;
    }
    return true;
  }

  void on_proved(Connection id, Peer& peer) {
    const std::string& tenant = peer.end.principal()->tenant;
    if (!tenant.empty()) {
      if (std::uint32_t& count = of_tenant[tenant]; ++count > limits.of_one_tenant) {
        --count;
        throw Broken("tenant '" + tenant + "' has " + std::to_string(limits.of_one_tenant) + " connections already");
      }
      uncharge(peer);
      peer.held_by = "tenant " + tenant;
    }
    peer.proved = true;
    forget_unproved(id, peer);
  }

  // False: it has ended.
  static bool send(Peer& peer) {
    for (auto out = peer.end.outgoing(); !out.empty(); out = peer.end.outgoing()) {
      const ssize_t sent = ::send(peer.socket.number(), out.data(), out.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN;
      peer.end.sent(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Of a connection that this end has ended: closing it with input unread could lose the last words.
  static bool drain(const Peer& peer) {
    std::array<char, read_bytes> buffer;
    const ssize_t got = ::recv(peer.socket.number(), buffer.data(), buffer.size(), 0);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }

  void rewatch(Connection id, Peer& peer) const {
    std::uint32_t wanted = EPOLLRDHUP;
    const bool unread = !peer.end.outgoing().empty();
    if (unread) wanted |= EPOLLOUT;
    if (peer.parting || (!peer.end.busy() && !unread)) wanted |= EPOLLIN;
    if (wanted == peer.watched) return;
    peer.watched = wanted;
    watch(EPOLL_CTL_MOD, peer.socket.number(), wanted, id);
  }

  void set_deadline(Peer& peer) {
    using Waits = Peer::Waits;
    const Waits waits = !peer.proved                   ? Waits::proof
                        : !peer.end.outgoing().empty() ? Waits::reader
                        : peer.end.busy()              ? Waits::request
                        : peer.end.partial()           ? Waits::frame
                                                       : Waits::nothing;
    if (waits == peer.waits && waits != Waits::nothing) return;  // the time is that of the first byte
    peer.waits = waits;
    const auto now = Clock::now();
    switch (waits) {
      case Waits::proof:
        return;
      case Waits::frame:
      case Waits::reader:
        peer.deadline = now + limits.frame;
        break;
      case Waits::request:
        peer.deadline = Clock::time_point::max();
        return;
      case Waits::nothing:
        peer.deadline = now + limits.idle;
    }
    look_by(peer.deadline);
  }

  // Where more would be held than may be, the largest of the holder that has the most makes way. False: that is this one.
  bool charge(Connection id, Peer& peer) {
    const std::size_t now = peer.end.held_bytes();
    held_of[peer.held_by] += now - peer.held;
    held += now - peer.held;
    peer.held = now;
    while (true) {
      auto most = held_of.try_emplace(peer.held_by).first;
      if (most->second <= limits.held_of_one) {
        if (held <= limits.held_bytes) return true;
        const auto less = [](const auto& one, const auto& other) { return one.second < other.second; };
        most = std::max_element(held_of.begin(), held_of.end(), less);
      }
      auto largest = peers.end();
      for (auto each = peers.begin(); each != peers.end(); ++each) {
        if (each->second.held_by != most->first) continue;
        if (largest == peers.end() || each->second.held > largest->second.held) largest = each;
      }
      tell(largest->second, "too many bytes are queued for it or from it");
      if (largest->first == id) return false;
      close(largest, true);
    }
  }
  void uncharge(Peer& peer) {
    const auto of_holder = held_of.find(peer.held_by);
    if (of_holder != held_of.end() && (of_holder->second -= peer.held) == 0) held_of.erase(of_holder);
    held -= peer.held;
    peer.held = 0;
  }

  void tell(const Peer& peer, const std::string& why) const {
    if (!hooks.on_refused) return;
    hooks.on_refused(peer.address.substr(0, peer.address.rfind(':')), why);
  }

  void close(std::map<Connection, Peer>::iterator at, bool by_daemon = false) {
    Peer& peer = at->second;
    const Connection id = at->first;
    const bool was_proved = peer.proved;
    uncharge(peer);
    if (--of_host[peer.host] == 0) of_host.erase(peer.host);
    if (peer.proved && !peer.end.principal()->tenant.empty()) {
      if (--of_tenant[peer.end.principal()->tenant] == 0) of_tenant.erase(peer.end.principal()->tenant);
    }
    forget_unproved(id, peer);
    peers.erase(at);  // which also ends its watch
    if (was_proved && hooks.on_closed) hooks.on_closed(id, by_daemon);
  }

  void notify() const { static_cast<void>(eventfd_write(wake.number(), 1)); }
};

ChannelServer::ChannelServer(const std::string& listen, std::shared_ptr<const TlsContext> tls,
                             const ConnectionLimits& limits, Hooks hooks)
    : impl_(std::make_unique<Impl>(listen, std::move(tls), limits, std::move(hooks))) {}

ChannelServer::~ChannelServer() {
  stop();
}

std::uint16_t ChannelServer::port() const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  getsockname(impl_->listener.number(), reinterpret_cast<sockaddr*>(&storage), &length);
  return transport::endpoint_of(storage).port;
}

void ChannelServer::start() {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

void ChannelServer::answer(Connection connection, Answer answer) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->answers.emplace_back(connection, std::move(answer));
  }
  impl_->notify();
}

void ChannelServer::set_tls(std::shared_ptr<const TlsContext> tls) {
  const std::lock_guard lock(impl_->mutex);
  impl_->tls = std::move(tls);
}

void ChannelServer::stop_accepting() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->accepting = false;
  }
  impl_->notify();
}

void ChannelServer::stop() {
  if (!impl_->thread.joinable()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->accepting = false;
    impl_->stopping = true;
  }
  impl_->notify();
  impl_->thread.join();
}

}  // namespace netsum::control
