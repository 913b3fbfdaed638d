#include "transport/bypass/frame_host.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/bypass/frame_datagrams.h"
#include "transport/system/random.h"
#include "wire/ipv4.h"
#include "wire/udp_frame.h"

namespace netsum::transport {
namespace {

constexpr std::size_t most_handed = 512 << 10;  // bytes of frames that wait for a lane whose queue they did not come to
// A lane with queues of its own looks at the others so rarely, for frames that the NIC puts there nevertheless.
constexpr std::uint32_t looks_between = 32;
constexpr std::uint16_t first_free_port = 49152;

std::uint32_t number_of(const wire::Ipv4& address) {
  return std::uint32_t{address[0]} << 24 | std::uint32_t{address[1]} << 16 | std::uint32_t{address[2]} << 8 | address[3];
}

std::optional<wire::Ipv4> address_in(std::string_view text) {
  wire::Ipv4 address{};
  if (inet_pton(AF_INET, std::string(text).c_str(), address.data()) != 1) return std::nullopt;
  return address;
}

}  // namespace

bool HostAddress::has(const wire::Ipv4& address) const {
  return ((number_of(own) ^ number_of(address)) & ~std::uint32_t{0} << (32 - bits)) == 0;
}

std::optional<wire::Ipv4> HostAddress::next_of(const wire::Ipv4& to) const {
  return has(to) ? to : gateway;
}

HostAddress host_address(const std::string& text) {
  const Error bad(ErrorCode::bad_argument, "'" + text +
                                               "' is not ADDRESS/BITS[,GATEWAY] of IPv4, for example 10.0.0.1/24 or "
                                               "10.0.0.1/24,10.0.0.254");
  std::string_view rest = text;
  const auto slash = rest.find('/');
  if (slash == std::string_view::npos) throw bad;
  const auto own = address_in(rest.substr(0, slash));
  rest.remove_prefix(slash + 1);
  const auto comma = rest.find(',');
  const std::string_view length = rest.substr(0, comma);
  HostAddress address;
  const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), address.bits);
  if (!own || error != std::errc() || end != length.data() + length.size() || address.bits < 1 || address.bits > 32)
    throw bad;
  address.own = *own;
  // Neither "any" nor a group is a host's.
  if (number_of(address.own) == 0 || address.own[0] >= 224) throw bad;
  if (comma == std::string_view::npos) return address;
  address.gateway = address_in(rest.substr(comma + 1));
  if (!address.gateway || !address.has(*address.gateway) || *address.gateway == address.own) throw bad;
  return address;
}

struct FrameHost::Inbox {
  std::atomic<bool> any = false;
  std::mutex mutex;
  std::vector<std::byte> bytes;
  std::vector<std::size_t> lengths;
  std::atomic<std::uint64_t> overrun = 0;  // frames that did not fit
};

class FrameHost::Lane final : public FrameDatagrams {
 public:
  Lane(std::shared_ptr<FrameHost> host, const Endpoint& local, std::shared_ptr<Inbox> inbox, std::size_t number,
       std::unique_ptr<LaneQueues> lane_queues, const HostLaneOptions& options)
      : FrameDatagrams(local, options.peer, options.ecn, nullptr),
        host_(std::move(host)),
        lane_queues_(std::move(lane_queues)),
        inbox_(std::move(inbox)),
        number_(number) {
    const auto& ports = host_->ports_->ports();
    for (std::uint32_t port = 0; port < ports.size(); ++port) {
      const auto own = static_cast<std::uint32_t>(number_ % ports[port].queues);
      // A queue alone needs no rule.
      const bool steered = ports[port].queues > 1 && host_->ports_->steer(port, local_.port, own);
      ends_.push_back({own, ports[port].queues, steered, &lane_queues_->places(port)});
    }
  }
  ~Lane() override {
    host_->ports_->steer_no_more(local_.port);
    host_->close(local_.port, number_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  std::span<const RxView> receive() override;
  int descriptor() const override { return -1; }
  // The ports' frames are all lanes': one lane counts them.
  std::uint64_t dropped_kernel() const override {
    return inbox_->overrun.load(std::memory_order_relaxed) + (number_ == 0 ? host_->ports_->overrun() : 0);
  }
  std::uint64_t queued_bytes() const override {
    std::uint64_t most = 0;
    for (std::uint32_t port = 0; port < ends_.size(); ++port) {
      most = std::max(most, host_->ports_->waiting(port, ends_[port].queue));
    }
    return most;
  }
  std::uint64_t receive_buffer_bytes() const override { return host_->ports_->capacity(); }

 private:
  // Of a port.
  struct End {
    std::uint32_t queue = 0;  // this lane's
    std::uint32_t queues = 1;
    bool steered = false;  // what is for this lane comes to its queue
    FramePlaces* places = nullptr;
  };
  void take_handed();
  bool take(std::uint32_t port, std::uint32_t queue);
  void read(std::uint32_t port, std::span<const std::byte> frame);
  void say(std::uint32_t port, wire::Arp arp);
  void send(std::uint32_t port);
  bool take() override;
  void ask_way(const Endpoint& to, Way& way) override;
  void send() override {
    for (std::uint32_t port = 0; port < ends_.size(); ++port) {
      if (ends_[port].places->added() > 0) send(port);
    }
  }

  const std::shared_ptr<FrameHost> host_;
  std::unique_ptr<LaneQueues> lane_queues_;
  const std::shared_ptr<Inbox> inbox_;
  const std::size_t number_;
  std::vector<End> ends_;          // by port
  std::vector<std::byte> handed_;  // frames of the inbox
  std::vector<std::size_t> lengths_;
  std::uint32_t looks_ = 0;
};

void FrameHost::Lane::read(std::uint32_t port, std::span<const std::byte> frame) {
  if (accept_known(frame)) return;
  const auto found = wire::read_udp_frame(frame);
  if (!found) {
    if (const auto arp = wire::read_arp(frame)) {
      if (const auto answer = host_->hear(*arp, port)) say(port, *answer);
    }
    return;
  }
  if (found->to.address != local_.address) return;
  if (found->to.port != local_.port) return host_->hand_over(found->to.port, frame);
  accept(frame, *found);
}

void FrameHost::Lane::take_handed() {
  if (!inbox_->any.load(std::memory_order_acquire)) return;
  handed_.clear();
  lengths_.clear();
  {
    const std::lock_guard lock(inbox_->mutex);
    handed_.swap(inbox_->bytes);
    lengths_.swap(inbox_->lengths);
    inbox_->any.store(false, std::memory_order_relaxed);
  }
  std::span<const std::byte> rest = handed_;
  for (const std::size_t length : lengths_) {
    read(0, rest.first(length));
    rest = rest.subspan(length);
  }
}

// Whether there was any frame. Another lane that takes from the queue hands over what is for this one.
bool FrameHost::Lane::take(std::uint32_t port, std::uint32_t queue) {
  std::span<const iovec> frames;
  {
    const std::unique_lock lock(host_->queue(port, queue).receiving, std::try_to_lock);
    if (!lock) return false;
    frames = lane_queues_->receive(port, queue);
  }
  for (const iovec& frame : frames) read(port, {static_cast<const std::byte*>(frame.iov_base), frame.iov_len});
  return !frames.empty();
}

bool FrameHost::Lane::take() {
  lane_queues_->release();
  bool any = false;
  const bool everywhere = ++looks_ % looks_between == 0;
  for (std::uint32_t port = 0; port < ends_.size(); ++port) {
    const End& end = ends_[port];
    any |= take(port, end.queue);
    if (end.queues == 1 || (end.steered && !everywhere)) continue;
    for (std::uint32_t queue = 0; queue < end.queues; ++queue) any |= queue != end.queue && take(port, queue);
  }
  return any;
}

std::span<const RxView> FrameHost::Lane::receive() {
  received_.clear();
  take_handed();
  take_frames();
  // What did not fit, and answers of ARP.
  send();
  return received_;
}

void FrameHost::Lane::ask_way(const Endpoint& to, Way& way) {
  way.until = now_;
  if (!is_ipv4(to)) return;
  const auto next = host_->address_.next_of(wire::ipv4_of(to));
  if (!next || *next == host_->address_.own) return;
  const Neighbours::Found found = host_->find(*next);
  if (found.ask) {
    wire::Arp question;
    question.of_target = *next;
    for (std::uint32_t port = 0; port < ends_.size(); ++port) say(port, question);
  }
  if (!found.place) return;
  const FramePorts::Port& port = host_->ports_->ports()[found.place->port];
  // Asked again once a batch at most, and less often as long as answers come.
  way.until = found.ask ? after(now_, Neighbours::ask_again) : after(now_, Neighbours::holds / 2);
  lead(way, *ends_[found.place->port].places, port.mtu,
       {.next = found.place->address, .own = port.address, .from = local_, .to = to});
}

void FrameHost::Lane::say(std::uint32_t port, wire::Arp arp) {
  arp.sender = host_->ports_->ports()[port].address;
  arp.of_sender = host_->address_.own;
  const auto frame = wire::arp_frame(arp);
  const std::span<std::byte> to = place(*ends_[port].places, frame.size());
  if (!to.empty()) std::copy(frame.begin(), frame.end(), to.begin());
}

void FrameHost::Lane::send(std::uint32_t port) {
  const std::lock_guard lock(host_->queue(port, ends_[port].queue).sending);
  lane_queues_->send(port, ends_[port].queue);
}

FrameHost::FrameHost(std::unique_ptr<FramePorts> ports, const HostAddress& address)
    : ports_(std::move(ports)),
      address_(address),
      // A process that starts again does not begin with the ports of the former one, whose packets may be on their way.
      next_port_(static_cast<std::uint16_t>(first_free_port + random_number() % (65536 - first_free_port))) {
  for (const FramePorts::Port& port : ports_->ports()) {
    auto& queues = queues_.emplace_back();
    for (std::uint32_t i = 0; i < port.queues; ++i) queues.push_back(std::make_unique<Queue>());
  }
}

FrameHost::~FrameHost() = default;

std::uint32_t FrameHost::mtu() const {
  std::size_t least = 65535;
  for (const FramePorts::Port& port : ports_->ports()) least = std::min(least, port.mtu);
  return static_cast<std::uint32_t>(least);
}

bool FrameHost::find_link() {
  const std::lock_guard lock(lanes_mutex_);  // no lane is opened meanwhile
  bool any = false;
  for (std::uint32_t port = 0; port < ports_->ports().size(); ++port) {
    if (!ports_->has_link(port) && lanes_.empty()) ports_->look_for_link(port);
    any = any || ports_->has_link(port);
  }
  return any;
}

std::string FrameHost::description() const {
  std::string words;
  for (const FramePorts::Port& port : ports_->ports()) {
    words +=
        (words.empty() ? "" : ", ") + port.name + (port.queues == 1 ? "" : " (" + std::to_string(port.queues) + " queues)");
  }
  return words;
}

std::uint16_t FrameHost::free_port() {
  for (int tries = 0; tries < 65536 - first_free_port; ++tries) {
    const std::uint16_t port = next_port_;
    next_port_ = port == 65535 ? first_free_port : static_cast<std::uint16_t>(port + 1);
    if (!lanes_.contains(port)) return port;
  }
  throw Error(ErrorCode::refused, "all UDP ports are in use");
}

std::unique_ptr<Transport> FrameHost::open(const HostLaneOptions& options) {
  std::unique_ptr<LaneQueues> lane_queues = ports_->lane_queues();
  if (!lane_queues) throw Error(ErrorCode::refused, "cannot allocate packet buffers for another lane");
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
  std::uint16_t port = options.port;
  std::size_t number = 0;
  {
    const std::lock_guard lock(lanes_mutex_);
    if (port == 0) port = free_port();
    if (!lanes_.emplace(port, inbox).second) {
      throw Error(ErrorCode::refused, "UDP port " + std::to_string(port) + " is in use by another lane of this process");
    }
    number = static_cast<std::size_t>(std::find(numbers_.begin(), numbers_.end(), false) - numbers_.begin());
    if (number == numbers_.size()) numbers_.push_back(true);
    numbers_[number] = true;
  }
  return std::make_unique<Lane>(shared_from_this(), wire::ipv4_endpoint(address_.own, port), std::move(inbox), number,
                                std::move(lane_queues), options);
}

void FrameHost::close(std::uint16_t port, std::size_t number) {
  const std::lock_guard lock(lanes_mutex_);
  lanes_.erase(port);
  numbers_[number] = false;
}

void FrameHost::hand_over(std::uint16_t to, std::span<const std::byte> frame) {
  std::shared_ptr<Inbox> inbox;
  {
    const std::lock_guard lock(lanes_mutex_);
    const auto found = lanes_.find(to);
    if (found == lanes_.end()) return;  // nobody's: dropped, as a kernel would
    inbox = found->second;
  }
  const std::lock_guard lock(inbox->mutex);
  if (inbox->bytes.size() + frame.size() > most_handed) {
    ++inbox->overrun;
    return;
  }
  inbox->bytes.insert(inbox->bytes.end(), frame.begin(), frame.end());
  inbox->lengths.push_back(frame.size());
  inbox->any.store(true, std::memory_order_release);
}

std::optional<wire::Arp> FrameHost::hear(const wire::Arp& arp, std::uint32_t port) {
  if (arp.of_sender == address_.own) return std::nullopt;  // one's own question, or somebody with the same address
  const bool to_us = arp.of_target == address_.own;
  {
    const std::lock_guard lock(neighbours_mutex_);
    neighbours_.learn(arp.of_sender, {arp.sender, port}, to_us, time_now());
  }
  if (!to_us || arp.reply) return std::nullopt;
  wire::Arp answer;
  answer.reply = true;
  answer.target = arp.sender;
  answer.of_target = arp.of_sender;
  return answer;
}

Neighbours::Found FrameHost::find(const wire::Ipv4& address) {
  const std::lock_guard lock(neighbours_mutex_);
  return neighbours_.find(address, time_now());
}

}  // namespace netsum::transport
