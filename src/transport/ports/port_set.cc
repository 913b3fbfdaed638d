#include "transport/ports/port_set.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <set>
#include <utility>

#include "base/copied.h"
#include "netsum/error.h"

namespace netsum::transport {
namespace {

constexpr std::size_t arena_bytes =
    16 * (virtio_net_header_bytes + max_frame_bytes);  // frames written in place between flushes
constexpr std::size_t frames_per_port = 256;           // between flushes

constexpr std::array<std::uint8_t, 16> port_address = {'p', 'o', 'r', 't'};
constexpr std::uint64_t event_beside = UINT64_MAX;  // in an epoll_event; ports have twice their numbers, and one more

}  // namespace

Endpoint port_endpoint(std::uint16_t number) {
  return {.address = port_address, .port = number};
}

bool is_port(const Endpoint& endpoint) {
  return endpoint.address == port_address;
}

class PortSet::Outbox final : public Sink {
 public:
  using Send = std::function<void(std::size_t number, std::span<iovec> frames)>;

  Outbox(std::span<const Endpoint> ports, Send send, Sink* beside)
      : ports_(ports), send_(std::move(send)), beside_(beside), arena_(Copied::from, arena_bytes), frames_(ports.size()) {
    for (auto& of_port : frames_) of_port.reserve(frames_per_port);
  }

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    if (beside_ != nullptr && !is_port(to)) return beside_->datagram(to, bytes);
    if (bytes > virtio_net_header_bytes + max_frame_bytes) {
      throw Error(ErrorCode::internal, "a frame longer than any was asked for");
    }
    if (used_ + bytes > arena_bytes) flush();
    const std::span<std::byte> place(arena_.data() + used_, bytes);
    used_ = whole_lines(used_ + bytes);
    put(to, place.data(), bytes);
    return place;
  }

  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    // An iovec serves both directions, so it points to mutable bytes; sending only reads them.
    for (const Endpoint& each : to) put(each, const_cast<std::byte*>(packet.data()), packet.size());
  }

  void flush() override {
    for (std::size_t number = 0; number < frames_.size(); ++number) send(number);
    used_ = 0;
    if (beside_ != nullptr) beside_->flush();
  }

  [[nodiscard]] std::uint64_t misdirected() const { return misdirected_; }

 private:
  void put(const Endpoint& to, std::byte* bytes, std::size_t size) {
    if (to.port >= frames_.size() || ports_[to.port] != to) {
      ++misdirected_;
      return;
    }
    std::vector<iovec>& frames = frames_[to.port];
    if (frames.size() == frames_per_port) send(to.port);
    frames.push_back({bytes, size});
  }

  void send(std::size_t number) {
    if (frames_[number].empty()) return;
    send_(number, frames_[number]);
    frames_[number].clear();
  }

  std::span<const Endpoint> ports_;
  Send send_;
  Sink* beside_;  // for what is not to a port; null: no such thing
  const CopiedMemory arena_;
  std::size_t used_ = 0;
  std::vector<std::vector<iovec>> frames_;  // by port
  std::uint64_t misdirected_ = 0;
};

PortSet::PortSet(std::vector<std::unique_ptr<Port>> ports, std::unique_ptr<Udp> beside)
    : ports_(std::move(ports)),
      beside_(std::move(beside)),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      room_watched_(ports_.size()) {
  if (poll_.number() < 0) throw Error(ErrorCode::refused, "cannot watch ports: " + errno_text());
  for (std::size_t number = 0; number < ports_.size(); ++number) {
    endpoints_.push_back(port_endpoint(static_cast<std::uint16_t>(number)));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 2 * number}};
    if (::epoll_ctl(poll_.number(), EPOLL_CTL_ADD, ports_[number]->descriptor(), &event) != 0) {
      throw Error(ErrorCode::refused, "cannot watch a port: " + errno_text());
    }
  }
  if (beside_ != nullptr) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = event_beside}};
    if (::epoll_ctl(poll_.number(), EPOLL_CTL_ADD, beside_->descriptor(), &event) != 0) {
      throw Error(ErrorCode::refused, "cannot watch a socket: " + errno_text());
    }
  }
  received_.reserve(64 * ports_.size());
  outbox_ = std::make_unique<Outbox>(
      endpoints_, [this](std::size_t number, std::span<iovec> frames) { send(number, frames); },
      beside_ != nullptr ? &beside_->sink() : nullptr);
}

PortSet::~PortSet() = default;

std::span<const RxView> PortSet::receive() {
  received_.clear();
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll_.number(), events.data(), static_cast<int>(events.size()), 0);
  bool datagrams = false;
  for (std::size_t i = 0; count > 0 && i < static_cast<std::size_t>(count); ++i) {
    if (events[i].data.u64 == event_beside) {
      datagrams = true;
      continue;
    }
    const std::size_t number = events[i].data.u64 / 2;
    if (events[i].data.u64 % 2 == 0) {
      ports_[number]->receive(received_, endpoints_[number]);
    } else {
      send(number, {});
    }
  }
  if (datagrams) {
    const std::span<const RxView> views = beside_->receive();
    received_.insert(received_.end(), views.begin(), views.end());
  }
  return received_;
}

void PortSet::send(std::size_t number, std::span<iovec> frames) {
  Port& port = *ports_[number];
  port.send(frames);
  if (port.waiting() == static_cast<bool>(room_watched_[number])) return;
  room_watched_[number] = static_cast<char>(port.waiting());
  epoll_event event{.events = EPOLLOUT, .data = {.u64 = 2 * number + 1}};
  ::epoll_ctl(poll_.number(), port.waiting() ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, port.room_descriptor(), &event);
}

Sink& PortSet::other_sink() {
  std::vector<std::unique_ptr<PortSender>> senders;
  for (std::size_t number = 0; number < ports_.size(); ++number) {
    senders.push_back(ports_[number]->another_sender());
    if (senders.back() == nullptr) {
      throw Error(
          ErrorCode::bad_argument,
          "port " + std::to_string(number) + " can be served by one thread only: use one thread, or only ports eth:IFNAME");
    }
  }
  Other& other = others_.emplace_back();
  other.senders = std::move(senders);
  other.outbox = std::make_unique<Outbox>(
      endpoints_, [&senders = other.senders](std::size_t number, std::span<iovec> frames) { senders[number]->send(frames); },
      beside_ != nullptr ? &beside_->other_sink() : nullptr);
  return *other.outbox;
}

PortCounters PortSet::port_counters(std::size_t number) const {
  PortCounters sum = ports_[number]->counters();
  for (const Other& other : others_) sum += other.senders[number]->counters();
  return sum;
}

std::vector<std::string> PortSet::look_after() {
  std::vector<std::string> said;
  for (const auto& port : ports_) {
    if (std::string words = port->look_after(); !words.empty()) said.push_back(std::move(words));
  }
  return said;
}

Sink& PortSet::sink() {
  return *outbox_;
}

Endpoint PortSet::local() const {
  return beside_ != nullptr ? beside_->local() : Endpoint{};
}

void PortSet::send_from(const Endpoint& to, const Endpoint& own) {
  if (beside_) beside_->send_from(to, own);
}
bool PortSet::set_filter(std::span<const sock_filter> program) {
  return beside_ != nullptr && beside_->set_filter(program);
}

int PortSet::descriptor() const {
  return poll_.number();
}

Counters PortSet::counters() const {
  Counters sum;
  if (beside_ != nullptr) sum = beside_->counters();
  sum.send_failures += outbox_->misdirected();
  for (const Other& other : others_) sum.send_failures += other.outbox->misdirected();
  for (std::size_t number = 0; number < ports_.size(); ++number) {
    const PortCounters counters = port_counters(number);
    sum.packets_received += counters.frames_received;
    sum.wire_bytes_received += counters.bytes_received;
    sum.packets_sent += counters.frames_sent;
    sum.wire_bytes_sent += counters.bytes_sent;
    sum.truncated += counters.dropped_unreadable;
    sum.send_failures +=
        counters.dropped_full + counters.dropped_refused + counters.dropped_train + counters.dropped_malformed;
  }
  return sum;
}

std::uint64_t PortSet::dropped_kernel() const {
  return beside_ != nullptr ? beside_->dropped_kernel() : 0;
}

std::uint64_t PortSet::queued_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& port : ports_) sum += port->queued_bytes();
  return sum;
}

std::vector<std::unique_ptr<Port>> open_ports(std::span<const std::string> texts, const PortOptions& options) {
  std::set<std::string> names;
  std::vector<std::unique_ptr<Port>> ports;
  for (const std::string& text : texts) {
    const bool is_interface = text.starts_with("eth:") || text.starts_with("xdp:");
    if (!names.insert(text.substr(is_interface ? 4 : 0)).second) {
      throw Error(ErrorCode::bad_argument, "port '" + text + "' is named twice");
    }
    ports.push_back(open_port(text, options));
  }
  return ports;
}

}  // namespace netsum::transport
