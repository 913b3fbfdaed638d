#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/next_hop.h"
#include "transport/bypass/frame_datagrams.h"
#include "transport/bypass/xdp_queues.h"
#include "transport/system/socket.h"
#include "wire/ipv4.h"
#include "wire/udp_frame.h"

namespace netsum::transport {
namespace {

// How long the kernel's word about the way somewhere holds. Where there is none yet, its own socket sends, and finds it.
constexpr std::chrono::milliseconds way_holds{2000}, ask_again{100}, look_every{500};
// The kernel's socket is looked at once in so many batches from the queues, and whenever those are empty.
constexpr int batches_between = 32;

class XdpDatagrams final : public FrameDatagrams {
 public:
  XdpDatagrams(std::unique_ptr<XdpQueues> queues, std::unique_ptr<Udp> beside, const UdpOptions& options)
      : FrameDatagrams(beside->local(), options.peer, options.ecn, &beside->sink()),
        beside_(std::move(beside)),
        queues_(std::move(queues)),
        own_addresses_(beside_->own_addresses()),
        poll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (own_addresses_ != nullptr) known_addresses_.emplace(*own_addresses_);
    if (poll_.number() < 0) throw Error(ErrorCode::refused, "cannot watch sockets: " + errno_text());
    watch(beside_->descriptor());
    find_sockets();
  }

  std::span<const RxView> receive() override;
  int descriptor() const override { return poll_.number(); }
  Counters counters() const override;
  std::uint64_t dropped_kernel() const override {
    std::uint64_t sum = beside_->dropped_kernel();
    for (const XdpSocket* socket : sockets_) sum += socket->overrun();
    return sum;
  }
  // Where more is queued.
  std::uint64_t queued_bytes() const override {
    std::uint64_t most = beside_->queued_bytes();
    for (const XdpSocket* socket : sockets_) most = std::max<std::uint64_t>(most, socket->waiting() * socket->frame_bytes());
    return most;
  }
  std::uint64_t receive_buffer_bytes() const override {
    std::uint64_t least = beside_->receive_buffer_bytes();
    for (const XdpSocket* socket : sockets_)
      least = std::min<std::uint64_t>(least, socket->capacity() * socket->frame_bytes());
    return least;
  }
  // A filter of the kernel's socket would be for a part alone.
  void send_from(const Endpoint& to, const Endpoint& own) override { beside_->send_from(to, own); }
  bool set_filter(std::span<const sock_filter> program) override { return program.empty() && beside_->set_filter(program); }

 private:
  // A descriptor that is watched already stays so.
  void watch(int descriptor) {
    epoll_event event{.events = EPOLLIN, .data = {}};
    if (::epoll_ctl(poll_.number(), EPOLL_CTL_ADD, descriptor, &event) != 0 && errno != EEXIST) {
      throw Error(ErrorCode::refused, "cannot watch a socket: " + errno_text());
    }
  }
  void find_sockets();
  void look_after();
  bool take() override;
  void send() override {
    for (XdpSocket* const socket : sockets_) socket->send();
  }
  void ask_way(const Endpoint& to, Way& way) override;
  void read(const iovec& frame);
  [[nodiscard]] std::optional<OwnAddresses::Address> own_of(const Endpoint& peer) {
    return known_addresses_ ? known_addresses_->find(peer) : std::nullopt;
  }

  std::unique_ptr<Udp> beside_;
  std::unique_ptr<XdpQueues> queues_;
  std::vector<XdpSocket*> sockets_;
  OwnAddresses* const own_addresses_;  // null: `local_` says it
  std::optional<OwnAddressesView> known_addresses_;
  std::uint64_t own_version_ = 0;
  Descriptor poll_;
  int batches_ = 0;
  Time look_at_ = after(now_, look_every);
};

void XdpDatagrams::find_sockets() {
  sockets_.clear();
  for (const auto& share : queues_->shares()) {
    if (!share) continue;
    for (const auto& socket : share->sockets()) {
      watch(socket->descriptor());
      sockets_.push_back(socket.get());
    }
    if (!share->is_open()) share->open(local_);
  }
}

// Interfaces end, and are made again.
void XdpDatagrams::look_after() {
  look_at_ = after(now_, look_every);
  const bool changed = queues_->look_after(now_);
  try {
    find_sockets();
  } catch (const Error&) {  // as the kernel's socket goes on, the next look is soon enough
  }
  if (changed) expire_if([](const Endpoint&, const Way&) { return true; });
}

void XdpDatagrams::read(const iovec& frame) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(frame.iov_base), frame.iov_len);
  if (accept_known(bytes)) return;
  const auto found = wire::read_udp_frame(bytes);
  if (!found || found->to.port != local_.port || !accept(bytes, *found) || own_addresses_ == nullptr) return;
  if (own_of(found->from) != found->to.address) own_addresses_->learn(found->from, found->to.address);
}

bool XdpDatagrams::take() {
  bool any = false;
  for (XdpSocket* const socket : sockets_) {
    const std::span<const iovec> frames = socket->receive();
    any = any || !frames.empty();
    for (const iovec& frame : frames) read(frame);
  }
  return any;
}

std::span<const RxView> XdpDatagrams::receive() {
  received_.clear();
  if (now_ >= look_at_) look_after();
  take_frames();
  if (received_.empty() || ++batches_ >= batches_between) {
    batches_ = 0;
    const std::span<const RxView> datagrams = beside_->receive();
    received_.insert(received_.end(), datagrams.begin(), datagrams.end());
  }
  if (own_addresses_ != nullptr && std::exchange(own_version_, own_addresses_->version()) != own_version_) {
    expire_if([this](const Endpoint& to, const Way& way) { return own_of(to) != way.own; });
    read_again();  // a frame's head also says at which address it arrived
  }
  return received_;
}

void XdpDatagrams::ask_way(const Endpoint& to, Way& way) {
  way.until = after(now_, ask_again);
  way.own = own_of(to);
  NextHop hop;
  try {
    hop = next_hop(to, Duration(0));
  } catch (const Error&) {
    return;  // the kernel's socket says what is wrong, if it cannot send either
  }
  const auto& shares = queues_->shares();
  const auto share = std::find_if(shares.begin(), shares.end(),
                                  [&](const auto& each) { return each && each->interface().index == hop.interface; });
  if (share == shares.end()) return;
  Endpoint from = local_;
  if (own_addresses_ != nullptr) {
    from = wire::ipv4_endpoint(hop.source, local_.port);
    if (way.own) from.address = *way.own;
  }
  if (!is_ipv4(from)) return;
  way.until = after(now_, way_holds);
  lead(way, (*share)->sockets().front()->places(), std::min((*share)->interface().mtu, (*share)->interface().longest),
       {.next = hop.neighbour, .own = hop.own, .from = from, .to = to});
}

Counters XdpDatagrams::counters() const {
  Counters all = beside_->counters(), own = FrameDatagrams::counters();
  all.packets_sent += own.packets_sent;
  all.packets_received += own.packets_received;
  all.wire_bytes_sent += own.wire_bytes_sent;
  all.wire_bytes_received += own.wire_bytes_received;
  all.send_failures += own.send_failures;
  all.dropped_kernel = own.dropped_kernel;
  return all;
}

}  // namespace

std::unique_ptr<Transport> over_xdp(std::unique_ptr<XdpQueues> queues, std::unique_ptr<Udp> socket,
                                    const UdpOptions& options) {
  return std::make_unique<XdpDatagrams>(std::move(queues), std::move(socket), options);
}

}  // namespace netsum::transport
