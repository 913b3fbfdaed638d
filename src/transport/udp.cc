#include "transport/udp.h"

#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "netsum/error.h"
#include "transport/segment_trains.h"
#include "transport/train_receiver.h"

namespace netsum::transport {
namespace {

[[nodiscard]] std::string errno_text() {
  return std::generic_category().message(errno);
}

bool set_option(int socket, int level, int name, int value) {
  return ::setsockopt(socket, level, name, &value, sizeof value) == 0;
}

int get_option(int socket, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, level, name, &value, &size) == 0 ? value : -1;
}

class Socket {
 public:
  explicit Socket(bool ipv6)
      : descriptor(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    if (descriptor < 0) {
      throw Error(ErrorCode::refused,
                  std::string("cannot open a UDP socket for ") + (ipv6 ? "IPv6: " : "IPv4: ") + errno_text());
    }
  }
  ~Socket() { ::close(descriptor); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  const int descriptor;
};

bool wants_ipv6(const UdpOptions& options) {
  if (options.peer) return !is_ipv4(*options.peer);
  return is_unspecified(options.bind) ? options.ipv6 : !is_ipv4(options.bind);
}

// The forced option needs CAP_NET_ADMIN and ignores the sysctl limit. Returns a warning, or nothing.
std::string size_buffer(int socket, int forced, int plain, const char* sysctl, std::size_t bytes) {
  const int wanted = static_cast<int>(bytes);
  if (!set_option(socket, SOL_SOCKET, forced, wanted)) set_option(socket, SOL_SOCKET, plain, wanted);
  const int got = get_option(socket, SOL_SOCKET, plain) / 2;  // the kernel doubles it for its own bookkeeping
  if (got >= wanted) return "";
  return "the kernel gave a UDP socket buffer of " + std::to_string(got) + " bytes where " + std::to_string(wanted) +
         " were asked for, so bursts will be lost; raise it with: sysctl -w " + sysctl + "=" + std::to_string(wanted);
}

// On a socket of IPv6 both families' options: its IPv4 datagrams are sent and reported as those of an IPv4 socket.
void use_ecn(int socket, bool ipv6) {
  const bool done = set_option(socket, IPPROTO_IP, IP_TOS, IPTOS_ECN_ECT0) &&
                    set_option(socket, IPPROTO_IP, IP_RECVTOS, 1) &&
                    (!ipv6 || (set_option(socket, IPPROTO_IPV6, IPV6_TCLASS, IPTOS_ECN_ECT0) &&
                               set_option(socket, IPPROTO_IPV6, IPV6_RECVTCLASS, 1)));
  if (!done) throw Error(ErrorCode::refused, "cannot use ECN on a UDP socket: " + errno_text());
}

}  // namespace

struct Udp::Impl {
  explicit Impl(const UdpOptions& options) : ipv6(wants_ipv6(options)), socket(ipv6) {
    const int descriptor = socket.descriptor;
    sockaddr_storage address{};
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (ipv6) set_option(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (options.ecn) use_ecn(descriptor, ipv6);  // before an address, and so before any datagram
    socklen_t size =
        to_sockaddr(is_unspecified(options.bind) ? Endpoint{.port = options.bind.port} : options.bind, ipv6, address);
    if (size == 0) {
      throw Error(ErrorCode::bad_argument, "a UDP socket cannot be bound to " + to_string(options.bind) +
                                               " (IPv6) and reach " + to_string(*options.peer) + " (IPv4)");
    }
    if (::bind(descriptor, generic, size) != 0) {
      throw Error(ErrorCode::refused, "cannot bind UDP " + to_string(options.bind) + ": " + errno_text());
    }
    if (options.peer) {
      size = to_sockaddr(*options.peer, ipv6, address);
      if (::connect(descriptor, generic, size) != 0) {
        throw Error(ErrorCode::unreachable, "no route to UDP " + to_string(*options.peer) + ": " + errno_text());
      }
    }
    warning = size_buffer(descriptor, SO_RCVBUFFORCE, SO_RCVBUF, "net.core.rmem_max", options.buffer_bytes);
    const std::string send = size_buffer(descriptor, SO_SNDBUFFORCE, SO_SNDBUF, "net.core.wmem_max", options.buffer_bytes);
    if (!warning.empty() && !send.empty()) warning += "; ";
    warning += send;
    const bool segments = options.segmentation && get_option(descriptor, SOL_UDP, UDP_SEGMENT) >= 0;
    const bool coalesces = options.segmentation && set_option(descriptor, SOL_UDP, UDP_GRO, 1);
    sender.emplace(descriptor, ipv6, options.peer, segments, counters);
    receiver.emplace(descriptor, coalesces, counters);
  }

  const bool ipv6;
  Socket socket;
  std::string warning;
  Counters counters;
  std::optional<SegmentTrains> sender;
  std::optional<TrainReceiver> receiver;
};

Udp::Udp(const UdpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Udp::~Udp() = default;

std::span<const RxView> Udp::receive() {
  return impl_->receiver->receive();
}
Sink& Udp::sink() {
  return *impl_->sender;
}
int Udp::descriptor() const {
  return impl_->socket.descriptor;
}
Counters Udp::counters() const {
  return impl_->counters;
}
std::uint64_t Udp::queued_bytes() const {
  std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
  socklen_t size = sizeof memory;
  ::getsockopt(impl_->socket.descriptor, SOL_SOCKET, SO_MEMINFO, memory.data(), &size);
  return memory[SK_MEMINFO_RMEM_ALLOC];
}
std::string Udp::buffer_warning() const {
  return impl_->warning;
}

Endpoint Udp::local() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(impl_->socket.descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  return endpoint_of(address);
}

std::uint32_t Udp::mtu() const {
  const int socket = impl_->socket.descriptor;
  const int value = impl_->ipv6 ? get_option(socket, IPPROTO_IPV6, IPV6_MTU) : get_option(socket, IPPROTO_IP, IP_MTU);
  return value > 0 ? static_cast<std::uint32_t>(value) : 1500;
}

}  // namespace netsum::transport
