#include "flows.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/crc32c.h"
#include "transport/addresses/addresses.h"

namespace netsum::hostile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t longest_datagram = 65535;
constexpr int buffer_bytes = 4 << 20;
constexpr int datagrams_per_turn = 64;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Of the loopback's address, any port. Without UDP_GRO: trains of segments arrive one by one.
int open_socket(const Endpoint* peer) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) fail("socket");
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  sockaddr_in local{};
  local.sin_family = AF_INET;
  local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0) fail("bind");
  if (peer != nullptr) {
    sockaddr_storage address{};
    const socklen_t size = transport::to_sockaddr(*peer, false, address);
    if (size == 0 || connect(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) fail("connect");
  }
  return socket;
}

Endpoint local_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return transport::endpoint_of(address);
}

[[nodiscard]] constexpr std::size_t index(Way way) {
  return static_cast<std::size_t>(way);
}

}  // namespace

Flows::Flows(std::uint64_t seed, double intensity) : seed_(seed), intensity_(intensity) {
  poll_ = epoll_create1(EPOLL_CLOEXEC);
  wakeup_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (poll_ < 0 || wakeup_ < 0) fail("epoll");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = ~std::uint64_t{0}}};
  epoll_ctl(poll_, EPOLL_CTL_ADD, wakeup_, &event);
  thread_ = std::thread([this] { loop(); });
}

Flows::~Flows() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  const std::uint64_t one = 1;
  if (write(wakeup_, &one, sizeof one) == sizeof one) thread_.join();
  for (const Flow& flow : flows_) {
    close(flow.worker_socket);
    close(flow.switch_socket);
  }
  close(wakeup_);
  close(poll_);
}

std::uint64_t Flows::seed_of(const Owner& owner, std::size_t flow, Way way) const {
  const std::uint64_t name = crc32c(std::as_bytes(std::span(owner.job)));
  const std::uint64_t who = owner.epoch == 0 ? ~flow : (std::uint64_t{owner.rank} << 32 | owner.lane);
  return sim::derive(sim::derive(sim::derive(seed_, name), who), index(way));
}

std::size_t Flows::open(const Endpoint& lane) {
  const int worker_socket = open_socket(nullptr), switch_socket = open_socket(&lane);
  const std::lock_guard lock(mutex_);
  const std::size_t number = flows_.size();
  flows_.push_back({.worker_socket = worker_socket,
                    .switch_socket = switch_socket,
                    .worker = {},
                    .owner = {},
                    .meddlers = {Meddler(seed_of({}, number, Way::up), Way::up, intensity_),
                                 Meddler(seed_of({}, number, Way::down), Way::down, intensity_)}});
  for (const Way way : {Way::up, Way::down}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = number * 2 + index(way)}};
    if (epoll_ctl(poll_, EPOLL_CTL_ADD, way == Way::up ? worker_socket : switch_socket, &event) != 0) fail("epoll_ctl");
  }
  return number;
}

Endpoint Flows::for_worker(std::size_t flow) const {
  const std::lock_guard lock(mutex_);
  return local_of(flows_.at(flow).worker_socket);
}

Endpoint Flows::for_switch(std::size_t flow) const {
  const std::lock_guard lock(mutex_);
  return local_of(flows_.at(flow).switch_socket);
}

std::optional<std::size_t> Flows::of_worker(const Endpoint& worker) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t number = flows_.size(); number-- > 0;) {  // its port may have been another worker's
    if (flows_[number].worker == worker) return number;
  }
  return std::nullopt;
}

void Flows::admit(std::size_t number, const Endpoint& worker, const Owner& owner) {
  const std::lock_guard lock(mutex_);
  Flow& flow = flows_.at(number);
  flow.worker = worker;
  flow.owner = owner;
  for (const Way way : {Way::up, Way::down}) {
    Meddler& meddler = flow.meddlers[index(way)];
    for (std::size_t i = 0; i < fault_kinds; ++i) past_[index(way)][i] += meddler.counts()[i];
    meddler = Meddler(seed_of(owner, number, way), way, intensity_);
  }
}

Flows::Totals Flows::totals() const {
  const std::lock_guard lock(mutex_);
  Totals totals;
  for (const Way way : {Way::up, Way::down}) {
    totals.forwarded[index(way)] = forwarded_[index(way)];
    totals.counts[index(way)] = past_[index(way)];
    for (const Flow& flow : flows_) {
      for (std::size_t i = 0; i < fault_kinds; ++i) {
        totals.counts[index(way)][i] += flow.meddlers[index(way)].counts()[i];
      }
    }
  }
  return totals;
}

void Flows::loop() {
  std::array<epoll_event, 64> events{};
  while (true) {
    int timeout_ms = -1;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (!due_.empty()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(due_.top().time - Clock::now());
        timeout_ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
      }
    }
    const int ready = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), timeout_ms);
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < ready; ++i) {
      const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
      if (number != ~std::uint64_t{0}) receive(number / 2, static_cast<Way>(number % 2));
    }
    while (!due_.empty() && due_.top().time <= Clock::now()) {
      transmit(due_.top());
      due_.pop();
    }
  }
}

void Flows::receive(std::size_t number, Way way) {
  Flow& flow = flows_[number];
  std::array<std::byte, longest_datagram> buffer;
  for (int i = 0; i < datagrams_per_turn; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const int socket = way == Way::up ? flow.worker_socket : flow.switch_socket;
    const ssize_t got = recvfrom(socket, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&address), &size);
    if (got < 0) return;
    if (way == Way::up) {  // before it joins a worker sends probes, and nobody else knows this socket
      const Endpoint source = transport::endpoint_of(address);
      if (flow.worker.port == 0) flow.worker = source;
      if (source != flow.worker) continue;
    }
    ++forwarded_[index(way)];
    sends_.clear();
    flow.meddlers[index(way)].meddle(std::span(buffer.data(), static_cast<std::size_t>(got)),
                                     Time(Clock::now().time_since_epoch()), flow.owner, captures_[index(way)], sends_);
    const std::uint64_t sequence = ++flow.next_sequence[index(way)];
    for (Meddler::Send& send : sends_) {
      Due due{Clock::now() + send.delay, order_++, number, way, send.genuine ? sequence : 0, std::move(send)};
      if (due.send.delay == Duration::zero()) {
        transmit(due);
      } else {
        due_.push(std::move(due));
      }
    }
  }
}

void Flows::transmit(const Due& due) {
  Flow& flow = flows_[due.flow];
  if (due.sequence != 0) {
    std::uint64_t& highest = flow.highest_sent[index(due.way)];
    if (due.sequence < highest) flow.meddlers[index(due.way)].count(Fault::reorder);
    highest = std::max(highest, due.sequence);
  }
  const Bytes& packet = due.send.packet;
  // A datagram that the kernel refuses is a loss more.
  if ((due.way == Way::up) != due.send.back) {
    static_cast<void>(::send(flow.switch_socket, packet.data(), packet.size(), 0));
  } else {
    sockaddr_storage address{};
    const socklen_t size = transport::to_sockaddr(flow.worker, false, address);
    static_cast<void>(
        sendto(flow.worker_socket, packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr*>(&address), size));
  }
}

}  // namespace netsum::hostile
