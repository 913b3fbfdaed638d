#include "transport/addresses/interfaces.h"

#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::transport {
namespace {

[[nodiscard]] bool is_at(const sockaddr* address, const Endpoint& wanted) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return false;
  sockaddr_storage storage{};
  std::memcpy(&storage, address, address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return endpoint_of(storage).address == wanted.address;
}

using Addresses = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;
// None: the kernel does not say.
[[nodiscard]] Addresses addresses_of_this_host() {
  ifaddrs* first = nullptr;
  return {::getifaddrs(&first) == 0 ? first : nullptr, &::freeifaddrs};
}

// Asks for the route to one address.
struct RouteRequest {
  nlmsghdr header{};
  rtmsg route{};
  rtattr attribute{};
  std::array<std::uint8_t, 16> address{};
  rtattr scope_attribute{};
  std::uint32_t scope = 0;
};
static_assert(sizeof(RouteRequest) == sizeof(nlmsghdr) + sizeof(rtmsg) + 2 * sizeof(rtattr) + 20);

[[nodiscard]] RouteRequest route_request(const Endpoint& to) {
  RouteRequest request;
  const bool ipv4 = is_ipv4(to);
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = RTM_GETROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.route.rtm_family = ipv4 ? AF_INET : AF_INET6;
  request.route.rtm_dst_len = ipv4 ? 32 : 128;
  request.attribute.rta_type = RTA_DST;
  request.attribute.rta_len = static_cast<unsigned short>(RTA_LENGTH(ipv4 ? 4 : 16));
  std::memcpy(request.address.data(), to.address.data() + (ipv4 ? 12 : 0), ipv4 ? 4 : 16);
  if (ipv4 || to.scope == 0) {
    request.header.nlmsg_len = static_cast<std::uint32_t>(sizeof(nlmsghdr) + sizeof(rtmsg) + request.attribute.rta_len);
    return request;
  }
  request.scope_attribute.rta_type = RTA_OIF;
  request.scope_attribute.rta_len = static_cast<unsigned short>(RTA_LENGTH(sizeof request.scope));
  request.scope = to.scope;
  return request;
}

}  // namespace

bool is_of_this_host(const Endpoint& address) {
  const Descriptor netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  const RouteRequest request = route_request(address);
  // The kernel answers before send() returns, so this does not wait.
  if (::send(netlink.number(), &request, request.header.nlmsg_len, 0) < 0) return false;
  alignas(nlmsghdr) std::array<std::byte, 4096> answer{};
  const ssize_t bytes = ::recv(netlink.number(), answer.data(), answer.size(), MSG_DONTWAIT);
  nlmsghdr header{};
  rtmsg route{};
  if (bytes < static_cast<ssize_t>(sizeof header + sizeof route)) return false;
  std::memcpy(&header, answer.data(), sizeof header);
  std::memcpy(&route, answer.data() + sizeof header, sizeof route);
  return header.nlmsg_type == RTM_NEWROUTE && route.rtm_type == RTN_LOCAL;
}

std::optional<Interface> interface_of(const Endpoint& address) {
  const Addresses all = addresses_of_this_host();
  for (const ifaddrs* each = all.get(); each != nullptr; each = each->ifa_next) {
    if (!is_at(each->ifa_addr, address)) continue;
    const Descriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, each->ifa_name, sizeof request.ifr_name - 1);
    if (::ioctl(any.number(), SIOCGIFMTU, &request) != 0 || request.ifr_mtu <= 0) return std::nullopt;
    return Interface{each->ifa_name, static_cast<std::uint32_t>(request.ifr_mtu), (each->ifa_flags & IFF_LOOPBACK) != 0};
  }
  return std::nullopt;
}

OwnStations own_stations() {
  const Addresses all = addresses_of_this_host();
  if (!all) throw Error(ErrorCode::internal, "cannot read this host's addresses: " + errno_text());
  OwnStations own;
  for (const ifaddrs* each = all.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    if (each->ifa_addr->sa_family == AF_INET) {
      sockaddr_in address;
      std::memcpy(&address, each->ifa_addr, sizeof address);
      std::array<std::uint8_t, 4> ipv4;
      std::memcpy(ipv4.data(), &address.sin_addr, sizeof ipv4);
      own.ipv4.insert(ipv4);
    } else if (each->ifa_addr->sa_family == AF_PACKET) {
      sockaddr_ll station;
      std::memcpy(&station, each->ifa_addr, sizeof station);
      if (station.sll_hatype != ARPHRD_ETHER) continue;
      std::memcpy(own.ethernet[static_cast<std::uint32_t>(station.sll_ifindex)].data(), station.sll_addr, 6);
    }
  }
  return own;
}

}  // namespace netsum::transport
