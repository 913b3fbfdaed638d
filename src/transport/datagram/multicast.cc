#include "transport/datagram/multicast.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/crc32c.h"
#include "base/numbers.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/train_receiver.h"
#include "transport/datagram/udp.h"
#include "transport/system/socket.h"

namespace netsum::transport {
namespace {

int open_group_socket() {
  const int number = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (number < 0) throw Error(ErrorCode::refused, "cannot open a UDP socket for IPv4: " + errno_text());
  return number;
}

class WithGroup final : public Transport {
 public:
  WithGroup(std::unique_ptr<Transport> own, std::unique_ptr<GroupSocket> group)
      : own_(std::move(own)), group_(std::move(group)), poll_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (const int descriptor : {own_->descriptor(), group_->descriptor()}) {
      epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
      if (::epoll_ctl(poll_.number(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
        throw Error(ErrorCode::refused, "cannot watch a multicast group's socket: " + errno_text());
      }
    }
  }

  std::span<const RxView> receive() override {
    const std::span<const RxView> results = group_->receive();
    return results.empty() ? own_->receive() : results;
  }
  Sink& sink() override { return own_->sink(); }
  int descriptor() const override { return poll_.number(); }
  Endpoint local() const override { return own_->local(); }
  Counters counters() const override {
    Counters sum = own_->counters();
    const Counters& more = group_->counters();
    sum.packets_received += more.packets_received;
    sum.wire_bytes_received += more.wire_bytes_received;
    sum.truncated += more.truncated;
    return sum;
  }
  std::uint64_t queued_bytes() const override { return own_->queued_bytes() + group_->queued_bytes(); }

 private:
  std::unique_ptr<Transport> own_;
  std::unique_ptr<GroupSocket> group_;
  Descriptor poll_;  // epoll
};

}  // namespace

GroupRange::GroupRange(const std::string& text) {
  const auto bad = [&](const std::string& why) {
    return Error(ErrorCode::bad_argument,
                 "'" + text + "' is not a range of multicast groups such as 239.192.0.0/16:7180: " + why);
  };
  const std::size_t colon = text.rfind(':');
  if (text.find(':') != colon || text.starts_with('[')) throw bad("IPv6 groups are not supported");
  if (colon == std::string::npos) throw bad("it has no port");
  const auto port = parse_number<std::uint16_t>(std::string_view(text).substr(colon + 1), 1);
  if (!port) throw bad("the port is not 1 to 65535");
  std::uint32_t bits = 32;
  std::string group = text.substr(0, colon);
  if (const std::size_t slash = group.find('/'); slash != std::string::npos) {
    const auto given = parse_number<std::uint32_t>(std::string_view(group).substr(slash + 1), 4, 32);
    if (!given) throw bad("the bits are not 4 to 32");
    bits = *given;
    group.resize(slash);
  }
  in_addr address{};
  if (group.find('\0') != std::string::npos || ::inet_pton(AF_INET, group.c_str(), &address) != 1) {
    throw bad("'" + group + "' is not an IPv4 address");
  }
  mask_ = bits == 32 ? 0 : UINT32_MAX >> bits;
  first_ = ntohl(address.s_addr) & ~mask_;
  port_ = *port;
  if (!IN_MULTICAST(first_)) throw bad("groups are 224.0.0.0 to 239.255.255.255");
}

Endpoint GroupRange::group_of(std::string_view job, std::size_t lane) const {
  const std::uint32_t address = htonl(first_ | (crc32c(std::as_bytes(std::span(job))) & mask_));
  Endpoint group;
  group.address[10] = group.address[11] = 0xff;
  std::memcpy(group.address.data() + 12, &address, sizeof address);
  group.port = static_cast<std::uint16_t>(port_ + lane);
  return group;
}

std::optional<GroupRange> loopback_groups() try {
  // Of the scope that stays local (RFC 2365); the ports are no ephemeral ones.
  const GroupRange range("239.255.0.0/16:61170");
  UdpOptions options;
  options.bind = resolve("127.0.0.1:0");
  options.multicast_from_here = true;
  Udp sender(options);
  const Endpoint group = range.group_of("loopback_groups", 0);
  GroupSocket receiver(group, sender.local(), sender.local(), 1 << 16);
  sender.sink().datagram(group, 1)[0] = std::byte{0};
  sender.sink().flush();
  constexpr int patience_ms = 100;  // it is there when the call has returned, if the processor is not very busy
  pollfd arrives{receiver.descriptor(), POLLIN, 0};
  if (::poll(&arrives, 1, patience_ms) != 1) return std::nullopt;
  return range;
} catch (const Error&) {
  return std::nullopt;
}

struct GroupSocket::Impl {
  Impl(const Endpoint& group, const Endpoint& local, const Endpoint& source, std::size_t buffer_bytes)
      : socket(open_group_socket()) {
    const int descriptor = socket.number();
    sockaddr_storage address{};
    ip_mreqn membership{};
    if (!is_ipv4(group) || !is_ipv4(local) || !is_ipv4(source)) {
      throw Error(ErrorCode::bad_argument,
                  "multicast group " + to_string(group) +
                      " requires IPv4: the group, this host's address or the aggregator's address is not IPv4");
    }
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorCode::refused, "cannot " + what + " multicast group " + to_string(group) + ": " + errno_text());
    };
    // Bound to the group's address, so that it receives no other group's packets; connected, so that it receives only the
    // source's. Without the last option it would receive packets on interfaces where other processes of this host joined.
    set_option(descriptor, SOL_SOCKET, SO_REUSEADDR, 1);
    socklen_t size = to_sockaddr(group, false, address);
    if (::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), size) != 0) fail("bind a socket to");
    size = to_sockaddr(source, false, address);
    if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), size) != 0) fail("connect to the aggregator in");
    std::memcpy(&membership.imr_multiaddr, group.address.data() + 12, 4);
    std::memcpy(&membership.imr_address, local.address.data() + 12, 4);
    if (::setsockopt(descriptor, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership) != 0 ||
        !set_option(descriptor, IPPROTO_IP, IP_MULTICAST_ALL, 0)) {
      fail("join");
    }
    static_cast<void>(size_buffers(descriptor, "a UDP socket", buffer_bytes));  // the lane's own socket warns
    receiver.emplace(descriptor, set_option(descriptor, SOL_UDP, UDP_GRO, 1), nullptr, counters);
  }

  Descriptor socket;
  Counters counters;
  std::optional<TrainReceiver> receiver;
};

GroupSocket::GroupSocket(const Endpoint& group, const Endpoint& local, const Endpoint& source, std::size_t buffer_bytes)
    : impl_(std::make_unique<Impl>(group, local, source, buffer_bytes)) {}
GroupSocket::~GroupSocket() = default;

std::span<const RxView> GroupSocket::receive() {
  return impl_->receiver->receive();
}
int GroupSocket::descriptor() const {
  return impl_->socket.number();
}
const Counters& GroupSocket::counters() const {
  return impl_->counters;
}
std::uint64_t GroupSocket::queued_bytes() const {
  return receive_memory(impl_->socket.number());
}

std::unique_ptr<Transport> with_group(std::unique_ptr<Transport> own, std::unique_ptr<GroupSocket> group) {
  if (!group) return own;
  return std::make_unique<WithGroup>(std::move(own), std::move(group));
}

}  // namespace netsum::transport
