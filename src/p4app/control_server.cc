#include "p4app/control_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "netsum/error.h"
#include "p4app/grpc.h"
#include "runtime/thread.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::p4app {
namespace {

constexpr std::size_t most_connections = 128, most_unsent_bytes = 1 << 16;
constexpr int backlog = 128;
constexpr Duration between_looks = std::chrono::seconds(1), no_descriptors = std::chrono::milliseconds(100);

}  // namespace

struct ControlServer::Impl {
  struct Peer {
    explicit Peer(int number) : socket(number) {}
    const transport::Descriptor socket;
    GrpcServerEnd end;
    std::string unsent;
    Time heard = runtime::now();
  };

  Impl(const Endpoint& listen, std::unique_ptr<Controller> c, std::function<void()> l)
      : controller(std::move(c)),
        look(std::move(l)),
        listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_storage storage{};
    const socklen_t length = transport::to_sockaddr(listen, false, storage);
    transport::set_option(listener.number(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (::bind(listener.number(), reinterpret_cast<const sockaddr*>(&storage), length) != 0 ||
        ::listen(listener.number(), backlog) != 0) {
      throw Error(ErrorCode::refused, "cannot listen on " + transport::to_string(listen) + ": " + transport::errno_text());
    }
    const runtime::SignalsBlocked blocked;
    thread = std::thread([this] { run(); });
  }
  ~Impl() {
    stopping = true;
    wakeup.notify();
    thread.join();
  }

  const std::unique_ptr<Controller> controller;
  const std::function<void()> look;
  const transport::Descriptor listener;
  const runtime::Wakeup wakeup;
  std::atomic<bool> stopping = false;
  std::map<std::uint32_t, Peer> peers;  // the thread's, as is the next one
  std::uint32_t last = 0;
  Time listens_again{};
  std::thread thread;

  static Controller::Call call_of(std::uint32_t peer, std::int32_t stream) {
    return std::uint64_t{peer} << 32 | static_cast<std::uint32_t>(stream);
  }

  void run() {
    runtime::enter_thread("p4app-control");
    Time next_look = runtime::now() + between_looks;
    while (!stopping) {
      const bool listens = runtime::now() >= listens_again;
      std::vector<pollfd> descriptors{{wakeup.descriptor(), POLLIN, 0}, {listens ? listener.number() : -1, POLLIN, 0}};
      for (const auto& [id, peer] : peers)
        descriptors.push_back(
            {peer.socket.number(), static_cast<short>(peer.unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      runtime::wait_for(descriptors, listens ? next_look : std::min(next_look, listens_again));
      std::size_t place = 2;
      std::vector<std::uint32_t> over;
      for (auto& [id, peer] : peers) {
        if (descriptors[place++].revents != 0 && !serve(id, peer)) over.push_back(id);
      }
      hand_out();
      for (const std::uint32_t id : over) peers.erase(id);
      if (descriptors[1].revents != 0) accept();
      if (runtime::now() < next_look) continue;
      look();
      next_look = runtime::now() + between_looks;
    }
  }

  void accept() {
    const int number = ::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (number < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        listens_again = runtime::now() + no_descriptors;
      return;
    }
    if (peers.size() >= most_connections && !drop_idle()) {
      ::close(number);
      return;
    }
    transport::set_option(number, IPPROTO_TCP, TCP_NODELAY, 1);
    send(peers.try_emplace(++last, number).first->second);
  }

  // The one without a call that was heard the longest ago: a client may hold connections open for ever.
  bool drop_idle() {
    auto idle = peers.end();
    for (auto peer = peers.begin(); peer != peers.end(); ++peer) {
      if (peer->second.end.open().empty() && (idle == peers.end() || peer->second.heard < idle->second.heard)) idle = peer;
    }
    if (idle == peers.end()) return false;
    peers.erase(idle);
    return true;
  }

  // False: it is over, and its calls are given up.
  bool serve(std::uint32_t id, Peer& peer) {
    std::array<char, 4096> bytes;
    const ssize_t count = ::recv(peer.socket.number(), bytes.data(), bytes.size(), 0);
    if (count > 0) peer.heard = runtime::now();
    const bool nothing = count < 0 && (errno == EAGAIN || errno == EINTR);
    const bool lives = nothing || (count > 0 && peer.end.receive({bytes.data(), static_cast<std::size_t>(count)}));
    for (const GrpcServerEnd::Call& call : peer.end.take_calls()) {
      try {
        controller->on_call(call_of(id, call.stream), call.path, call.payload);
      } catch (const std::exception&
                   error) {  // no descriptor for the kernel, or no memory: the caller hears it, and the daemon lives
        peer.end.answer(call.stream, GrpcStatus::internal, error.what());
      }
    }
    for (const std::int32_t stream : peer.end.take_gone()) controller->on_gone(call_of(id, stream));
    if (lives && send(peer)) return true;
    for (const std::int32_t stream : peer.end.open()) controller->on_gone(call_of(id, stream));
    return false;
  }

  void hand_out() {
    for (const Controller::Answer& each : controller->take_answers()) {
      const auto found = peers.find(static_cast<std::uint32_t>(each.call >> 32));
      if (found == peers.end()) continue;
      found->second.end.answer(static_cast<std::int32_t>(each.call), each.status, each.bytes);
      send(found->second);
    }
  }

  bool send(Peer& peer) {
    peer.unsent += peer.end.take_output();
    const ssize_t sent = ::send(peer.socket.number(), peer.unsent.data(), peer.unsent.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    peer.unsent.erase(0, static_cast<std::size_t>(sent));
    return peer.unsent.size() <= most_unsent_bytes;
  }
};

ControlServer::ControlServer(const Endpoint& listen, std::unique_ptr<Controller> controller, std::function<void()> look)
    : impl_(std::make_unique<Impl>(listen, std::move(controller), std::move(look))) {}

ControlServer::~ControlServer() = default;

std::string ControlServer::address() const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  ::getsockname(impl_->listener.number(), reinterpret_cast<sockaddr*>(&storage), &length);
  return transport::to_string(transport::endpoint_of(storage));
}

}  // namespace netsum::p4app
