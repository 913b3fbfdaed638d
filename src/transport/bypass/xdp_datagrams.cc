#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/addresses/next_hop.h"
#include "transport/bypass/xdp_queues.h"
#include "transport/system/socket.h"
#include "wire/ipv4.h"
#include "wire/udp_frame.h"

namespace netsum::transport {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How long the kernel's word about the way somewhere holds. Where there is none yet, its own socket sends, and finds it.
constexpr std::chrono::milliseconds way_holds{2000}, ask_again{100};
constexpr std::size_t most_ways = 16384, most_own = 256;
// The kernel's socket is looked at once in so many batches from the queues, and whenever those are empty.
constexpr int batches_between = 32, most_tries = 8;

struct Way {
  XdpSocket* socket = nullptr;                 // null: by the kernel's socket
  std::size_t most = 0;                        // bytes of a datagram
  std::optional<OwnAddresses::Address> own{};  // where the peer sends to, if the kernel's socket is bound to no address
  SteadyClock::time_point until{};
  wire::UdpHead head{};
};

class XdpDatagrams final : public Transport {
 public:
  XdpDatagrams(std::unique_ptr<XdpQueues> queues, std::unique_ptr<Udp> beside, const UdpOptions& options)
      : beside_(std::move(beside)),
        queues_(std::move(queues)),
        peer_(options.peer),
        local_(beside_->local()),
        own_addresses_(beside_->own_addresses()),
        ecn_(options.ecn),
        poll_(::epoll_create1(EPOLL_CLOEXEC)),
        outbox_(*this) {
    if (own_addresses_ != nullptr) known_addresses_.emplace(*own_addresses_);
    if (poll_.number() < 0) throw Error(ErrorCode::refused, "cannot watch sockets: " + errno_text());
    watch(beside_->descriptor());
    for (const auto& share : queues_->shares()) {
      for (const auto& socket : share->sockets()) {
        watch(socket->descriptor());
        sockets_.push_back(socket.get());
      }
      share->open(local_);
    }
  }

  std::span<const RxView> receive() override;
  Sink& sink() override { return outbox_; }
  int descriptor() const override { return poll_.number(); }
  Endpoint local() const override { return local_; }
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
  // Frames are written where they leave from.
  class Outbox final : public Sink {
   public:
    explicit Outbox(XdpDatagrams& owner) : owner_(owner) {}

    std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
      const Way& way = owner_.way_to(to);
      if (way.socket == nullptr || bytes > way.most) return owner_.beside_->sink().datagram(to, bytes);
      if (const std::span<std::byte> place = owner_.begin(way, bytes); !place.empty())
        return place.subspan(wire::udp_head_bytes);
      ++owner_.counters_.send_failures;
      unsent_.resize(std::max(unsent_.size(), bytes));
      return std::span(unsent_).first(bytes);
    }
    void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
      for (std::size_t i = 0; i < to.size(); ++i) {
        const Way& way = owner_.way_to(to[i]);
        if (way.socket == nullptr || packet.size() > way.most) {
          owner_.beside_->sink().multicast(packet, to.subspan(i, 1));
        } else if (const std::span<std::byte> place = owner_.begin(way, packet.size()); !place.empty()) {
          std::memcpy(place.data() + wire::udp_head_bytes, packet.data(), packet.size());
        } else {
          ++owner_.counters_.send_failures;
        }
      }
    }
    void flush() override { owner_.flush(); }

   private:
    XdpDatagrams& owner_;
    std::vector<std::byte> unsent_;
  };

  void watch(int descriptor) {
    epoll_event event{.events = EPOLLIN, .data = {}};
    if (::epoll_ctl(poll_.number(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      throw Error(ErrorCode::refused, "cannot watch a socket: " + errno_text());
    }
  }
  void read(const iovec& frame);
  [[nodiscard]] bool is_own(const Endpoint& to);
  [[nodiscard]] const Way& way_to(const Endpoint& to);
  [[nodiscard]] std::optional<OwnAddresses::Address> own_of(const Endpoint& peer) {
    return known_addresses_ ? known_addresses_->find(peer) : std::nullopt;
  }
  void ask_way(const Endpoint& to, Way& way);
  [[nodiscard]] std::span<std::byte> begin(const Way& way, std::size_t bytes);
  void flush();

  std::unique_ptr<Udp> beside_;
  std::unique_ptr<XdpQueues> queues_;
  std::vector<XdpSocket*> sockets_;
  const std::optional<Endpoint> peer_;
  const Endpoint local_;
  OwnAddresses* const own_addresses_;  // null: `local_` says it
  std::optional<OwnAddressesView> known_addresses_;
  std::uint64_t own_version_ = 0;
  std::map<OwnAddresses::Address, bool> own_;  // whether they are this host's
  SteadyClock::time_point own_until_{};
  const bool ecn_;
  Descriptor poll_;
  Outbox outbox_;
  std::vector<RxView> received_;
  int batches_ = 0;
  std::unordered_map<Endpoint, Way, EndpointHash> ways_;
  std::pair<Endpoint, Way*> last_{};  // of ways_; null: none
  SteadyClock::time_point now_{SteadyClock::now()};
  Counters counters_;
};

// What is not ours is dropped, as the kernel would.
void XdpDatagrams::read(const iovec& frame) {
  const auto found = wire::read_udp_frame({static_cast<const std::byte*>(frame.iov_base), frame.iov_len});
  if (!found || found->to.port != local_.port || (peer_ && found->from != *peer_)) return;
  ++counters_.packets_received;
  counters_.wire_bytes_received += wire::udp_head_bytes + found->datagram.size();
  if (own_addresses_ != nullptr && own_of(found->from) != found->to.address) {
    if (!is_own(found->to)) return;
    own_addresses_->learn(found->from, found->to.address);
  }
  received_.push_back({found->datagram, found->from, ecn_ && found->congested});
}

// As the kernel says now and then: frames to other hosts come too.
bool XdpDatagrams::is_own(const Endpoint& to) {
  if (now_ >= own_until_) {
    own_until_ = now_ + way_holds;
    own_.clear();
  }
  const auto known = own_.find(to.address);
  if (known != own_.end()) return known->second;
  return own_.size() < most_own && own_.emplace(to.address, is_of_this_host(to)).first->second;
}

std::span<const RxView> XdpDatagrams::receive() {
  received_.clear();
  // Empty means that there is nothing: a batch without a datagram of ours does not. A flood of them does not keep the
  // caller.
  bool any = true;
  for (int tries = 0; received_.empty() && any && tries < most_tries; ++tries) {
    any = false;
    for (XdpSocket* const socket : sockets_) {
      const std::span<const iovec> frames = socket->receive();
      any = any || !frames.empty();
      for (const iovec& frame : frames) read(frame);
    }
  }
  if (!received_.empty() && ++batches_ < batches_between) return received_;
  batches_ = 0;
  const std::span<const RxView> datagrams = beside_->receive();
  received_.insert(received_.end(), datagrams.begin(), datagrams.end());
  return received_;
}

const Way& XdpDatagrams::way_to(const Endpoint& to) {
  if (own_addresses_ != nullptr && std::exchange(own_version_, own_addresses_->version()) != own_version_) last_ = {};
  if (last_.second != nullptr && last_.first == to && now_ < last_.second->until) return *last_.second;
  if (ways_.size() >= most_ways && !ways_.contains(to)) ways_.clear();
  Way& way = ways_[to];
  if (now_ >= way.until || own_of(to) != way.own) ask_way(to, way);
  last_ = {to, &way};
  return way;
}

void XdpDatagrams::ask_way(const Endpoint& to, Way& way) {
  way.socket = nullptr;
  way.until = now_ + ask_again;
  way.own = own_of(to);
  NextHop hop;
  try {
    hop = next_hop(to, Duration(0));
  } catch (const Error&) {
    return;  // the kernel's socket says what is wrong, if it cannot send either
  }
  const auto& shares = queues_->shares();
  const auto share =
      std::find_if(shares.begin(), shares.end(), [&](const auto& each) { return each->interface().index == hop.interface; });
  if (share == shares.end()) return;
  Endpoint from = local_;
  if (own_addresses_ != nullptr) {
    from = wire::ipv4_endpoint(hop.source, local_.port);
    if (way.own) from.address = *way.own;
  }
  if (!is_ipv4(from)) return;
  way.socket = (*share)->sockets().front().get();
  way.most = (*share)->interface().mtu - wire::ip_udp_bytes;
  way.until = now_ + way_holds;
  way.head = wire::UdpHead({.next = hop.neighbour,
                            .own = hop.own,
                            .from = from,
                            .to = to,
                            .ecn = ecn_ ? wire::Ecn::capable_0 : wire::Ecn::not_capable});
}

// The whole frame's place; empty: there is none.
std::span<std::byte> XdpDatagrams::begin(const Way& way, std::size_t bytes) {
  const std::span<std::byte> place = way.socket->add(wire::udp_head_bytes + bytes);
  if (place.empty()) return place;
  way.head.write(place.first<wire::udp_head_bytes>(), bytes);
  ++counters_.packets_sent;
  counters_.wire_bytes_sent += place.size();
  return place;
}

void XdpDatagrams::flush() {
  for (XdpSocket* const socket : sockets_) socket->send();
  beside_->sink().flush();
  now_ = SteadyClock::now();
}

Counters XdpDatagrams::counters() const {
  Counters all = beside_->counters();
  all.packets_sent += counters_.packets_sent;
  all.packets_received += counters_.packets_received;
  all.wire_bytes_sent += counters_.wire_bytes_sent;
  all.wire_bytes_received += counters_.wire_bytes_received;
  all.send_failures += counters_.send_failures;
  all.dropped_kernel = dropped_kernel();
  return all;
}

}  // namespace

std::unique_ptr<Transport> over_xdp(std::unique_ptr<XdpQueues> queues, std::unique_ptr<Udp> socket,
                                    const UdpOptions& options) {
  return std::make_unique<XdpDatagrams>(std::move(queues), std::move(socket), options);
}

}  // namespace netsum::transport
