#include "transport/datagram/udp.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "netsum/error.h"
#include "transport/datagram/segment_trains.h"
#include "transport/datagram/train_receiver.h"
#include "transport/system/socket.h"

namespace netsum::transport {
namespace {

int open_socket(bool ipv6) {
  const int number = ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (number < 0) {
    throw Error(ErrorCode::refused,
                std::string("cannot open a UDP socket for ") + (ipv6 ? "IPv6: " : "IPv4: ") + errno_text());
  }
  return number;
}

bool wants_ipv6(const UdpOptions& options) {
  if (options.peer) return !is_ipv4(*options.peer);
  return is_unspecified(options.bind) ? options.ipv6 : !is_ipv4(options.bind);
}

// An IPv6 socket needs both families' options: it sends and reports IPv4 datagrams like an IPv4 socket.
void use_ecn(int socket, bool ipv6) {
  const bool done = set_option(socket, IPPROTO_IP, IP_TOS, IPTOS_ECN_ECT0) &&
                    set_option(socket, IPPROTO_IP, IP_RECVTOS, 1) &&
                    (!ipv6 || (set_option(socket, IPPROTO_IPV6, IPV6_TCLASS, IPTOS_ECN_ECT0) &&
                               set_option(socket, IPPROTO_IPV6, IPV6_RECVTCLASS, 1)));
  if (!done) throw Error(ErrorCode::refused, "cannot use ECN on a UDP socket: " + errno_text());
}

// An IPv6 socket tells of IPv4 datagrams too, as mapped addresses. Before bind(), as the answer to the first datagram needs
// it.
void tell_destinations(int socket, bool ipv6) {
  if (ipv6 ? set_option(socket, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) : set_option(socket, IPPROTO_IP, IP_PKTINFO, 1)) return;
  throw Error(ErrorCode::refused, "cannot enable the destination address of UDP datagrams: " + errno_text());
}

void send_groups_from(int socket, const Endpoint& local) {
  ip_mreqn interface {};
  std::memcpy(&interface.imr_address, local.address.data() + 12, 4);
  if (::setsockopt(socket, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface) != 0) {
    throw Error(ErrorCode::refused, "cannot send to multicast groups from " + to_string(local) + ": " + errno_text());
  }
}

}  // namespace

struct Udp::Impl {
  explicit Impl(const UdpOptions& options) : ipv6(wants_ipv6(options)), socket(open_socket(ipv6)) {
    const int descriptor = socket.number();
    sockaddr_storage address{};
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (ipv6) set_option(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (options.ecn) use_ecn(descriptor, ipv6);  // before bind(), and so before any datagram
    if (is_unspecified(options.bind) && !options.peer) {
      tell_destinations(descriptor, ipv6);
      own_addresses.emplace();
    }
    socklen_t size =
        to_sockaddr(is_unspecified(options.bind) ? Endpoint{.port = options.bind.port} : options.bind, ipv6, address);
    if (size == 0) {
      throw Error(ErrorCode::bad_argument, "a UDP socket cannot be bound to " + to_string(options.bind) +
                                               " (IPv6) and reach " + to_string(*options.peer) + " (IPv4)");
    }
    if (::bind(descriptor, generic, size) != 0) {
      throw Error(ErrorCode::refused, "cannot bind UDP " + to_string(options.bind) + ": " + errno_text());
    }
    if (options.multicast_from_here && is_ipv4(options.bind) && !is_unspecified(options.bind))
      send_groups_from(descriptor, options.bind);
    if (options.peer) {
      size = to_sockaddr(*options.peer, ipv6, address);
      if (::connect(descriptor, generic, size) != 0) {
        throw Error(ErrorCode::unreachable, "no route to UDP " + to_string(*options.peer) + ": " + errno_text());
      }
    }
    warning = size_buffers(descriptor, "a UDP socket", options.buffer_bytes);
    const bool segments = options.segmentation && get_option(descriptor, SOL_UDP, UDP_SEGMENT) >= 0;
    const bool coalesces = options.segmentation && options.coalesced && set_option(descriptor, SOL_UDP, UDP_GRO, 1);
    sender.emplace(descriptor, ipv6, options.peer, segments, own(), counters);
    peer = options.peer;
    segmentation = segments;
    receiver.emplace(descriptor, coalesces, own(), counters);
  }

  [[nodiscard]] OwnAddresses* own() { return own_addresses ? &*own_addresses : nullptr; }

  const bool ipv6;
  Descriptor socket;
  std::string warning;
  Counters counters;
  std::optional<OwnAddresses> own_addresses;
  std::optional<SegmentTrains> sender;
  std::optional<TrainReceiver> receiver;

  struct Other {
    Other(int descriptor, bool v6, const std::optional<Endpoint>& to, bool segments, const OwnAddresses* own)
        : sender(descriptor, v6, to, segments, own, counters) {}
    Counters counters;
    SegmentTrains sender;
  };
  std::optional<Endpoint> peer;
  bool segmentation = false;
  std::deque<Other> others;
};

Udp::Udp(const UdpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Udp::~Udp() = default;

std::span<const RxView> Udp::receive() {
  return impl_->receiver->receive();
}
Sink& Udp::sink() {
  return *impl_->sender;
}
Sink& Udp::other_sink() {
  Impl& i = *impl_;
  return i.others.emplace_back(i.socket.number(), i.ipv6, i.peer, i.segmentation, i.own()).sender;
}
int Udp::descriptor() const {
  return impl_->socket.number();
}
Counters Udp::counters() const {
  Counters counters = impl_->counters;
  for (const Impl::Other& other : impl_->others) {
    counters.packets_sent += other.counters.packets_sent;
    counters.wire_bytes_sent += other.counters.wire_bytes_sent;
    counters.send_failures += other.counters.send_failures;
  }
  counters.dropped_kernel = dropped_kernel();
  return counters;
}
std::uint64_t Udp::dropped_kernel() const {
  return dropped_datagrams(impl_->socket.number());
}
std::uint64_t Udp::queued_bytes() const {
  return receive_memory(impl_->socket.number());
}
std::uint64_t Udp::receive_buffer_bytes() const {
  return static_cast<std::uint64_t>(std::max(0, get_option(impl_->socket.number(), SOL_SOCKET, SO_RCVBUF)));
}
void Udp::send_from(const Endpoint& to, const Endpoint& own) {
  if (impl_->own_addresses) impl_->own_addresses->learn(to, own.address);
}
void Udp::allow_fragments(bool allowed) {
  const int socket = impl_->socket.number();
  set_option(socket, IPPROTO_IP, IP_MTU_DISCOVER, allowed ? IP_PMTUDISC_WANT : IP_PMTUDISC_PROBE);
  if (impl_->ipv6) set_option(socket, IPPROTO_IPV6, IPV6_MTU_DISCOVER, allowed ? IPV6_PMTUDISC_WANT : IPV6_PMTUDISC_PROBE);
}
OwnAddresses* Udp::own_addresses() const {
  return impl_->own();
}
bool Udp::set_filter(std::span<const sock_filter> program) {
  const int socket = impl_->socket.number();
  if (program.empty()) return set_option(socket, SOL_SOCKET, SO_DETACH_FILTER, 0) || errno == ENOENT;
  // The kernel copies the program.
  sock_fprog filter{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  return ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}
std::string Udp::buffer_warning() const {
  return impl_->warning;
}

Endpoint Udp::local() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(impl_->socket.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return endpoint_of(address);
}

std::uint32_t Udp::mtu() const {
  const int socket = impl_->socket.number();
  const int value = impl_->ipv6 ? get_option(socket, IPPROTO_IPV6, IPV6_MTU) : get_option(socket, IPPROTO_IP, IP_MTU);
  return value > 0 ? static_cast<std::uint32_t>(value) : 1500;
}

}  // namespace netsum::transport
