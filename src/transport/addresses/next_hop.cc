#include "transport/addresses/next_hop.h"

#include <linux/if_ether.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/netlink.h"
#include "transport/system/socket.h"
#include "wire/ipv4.h"

namespace netsum::transport {
namespace {

using wire::Ipv4, wire::ipv4_of;

std::optional<EthernetAddress> neighbour_of(std::uint32_t interface, const Ipv4& address) {
  ndmsg kind{};
  kind.ndm_family = AF_INET;
  kind.ndm_ifindex = static_cast<int>(interface);
  NetlinkMessage request(RTM_GETNEIGH, 0, kind);
  const auto answer = ask_kernel<ndmsg>(request.add(NDA_DST, address.data(), address.size()), RTM_NEWNEIGH);
  if (!answer || (answer->kind.ndm_state & (NUD_INCOMPLETE | NUD_FAILED)) != 0) return std::nullopt;
  return answer->find<EthernetAddress>(NDA_LLADDR);
}

// Has the kernel ask who has the address.
void look_for(std::uint32_t interface, const Ipv4& address) {
  ndmsg kind{};
  kind.ndm_family = AF_INET;
  kind.ndm_ifindex = static_cast<int>(interface);
  kind.ndm_flags = NTF_USE;
  NetlinkMessage request(RTM_NEWNEIGH, NLM_F_CREATE, kind);
  static_cast<void>(ask_kernel<ndmsg>(request.add(NDA_DST, address.data(), address.size()), RTM_NEWNEIGH));
}

EthernetAddress found_neighbour(std::uint32_t interface, const Ipv4& address, Duration patience) {
  if (const auto known = neighbour_of(interface, address)) return *known;
  // Listens first: the kernel tells of neighbours that it finds.
  const Descriptor news(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  sockaddr_nl group{};
  group.nl_family = AF_NETLINK;
  group.nl_groups = RTMGRP_NEIGH;
  if (::bind(news.number(), reinterpret_cast<const sockaddr*>(&group), sizeof group) != 0) {
    throw Error(ErrorCode::internal, "cannot watch the neighbour table: " + errno_text());
  }
  look_for(interface, address);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    if (const auto known = neighbour_of(interface, address)) return *known;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd readable{news.number(), POLLIN, 0};
    if (left <= 0 || ::poll(&readable, 1, static_cast<int>(left)) <= 0) {
      throw Error(ErrorCode::unreachable, "no host on " + interface_name(interface) + " answers for the address (ARP)");
    }
    std::array<std::byte, 8192> unread{};
    while (::recv(news.number(), unread.data(), unread.size(), 0) > 0) {
    }
  }
}

struct Route {
  std::uint32_t interface = 0;
  Ipv4 source{}, next{};
};

Route route_to(const Endpoint& to) {
  if (!is_ipv4(to)) throw Error(ErrorCode::unreachable, "data path xdp supports IPv4 addresses only");
  const Ipv4 address = ipv4_of(to);
  rtmsg kind{};
  kind.rtm_family = AF_INET;
  kind.rtm_dst_len = 32;
  NetlinkMessage request(RTM_GETROUTE, 0, kind);
  const auto route = ask_kernel<rtmsg>(request.add(RTA_DST, address.data(), address.size()), RTM_NEWROUTE);
  const auto interface = route ? route->find<std::uint32_t>(RTA_OIF) : std::nullopt;
  if (!interface) throw Error(ErrorCode::unreachable, "there is no route to it");
  if (route->kind.rtm_type != RTN_UNICAST) throw Error(ErrorCode::bad_argument, "the address belongs to this host");
  return {*interface, route->find<Ipv4>(RTA_PREFSRC).value_or(Ipv4{}), route->find<Ipv4>(RTA_GATEWAY).value_or(address)};
}

}  // namespace

std::string interface_name(std::uint32_t index) {
  std::array<char, IF_NAMESIZE> name{};
  return ::if_indextoname(index, name.data()) == nullptr ? "interface " + std::to_string(index) : name.data();
}

EthernetInterface ethernet_interface(const std::string& name) {
  const Descriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  if (name.empty() || name.size() >= sizeof request.ifr_name) {
    throw Error(ErrorCode::bad_argument, "there is no interface '" + name + "'");
  }
  std::memcpy(request.ifr_name, name.data(), name.size());
  if (::ioctl(any.number(), SIOCGIFHWADDR, &request) != 0) {
    throw Error(ErrorCode::bad_argument, "there is no interface '" + name + "'");
  }
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) {
    throw Error(ErrorCode::bad_argument, "interface '" + name + "' is not Ethernet");
  }
  EthernetInterface interface;
  interface.index = ::if_nametoindex(name.c_str());
  std::memcpy(interface.address.data(), request.ifr_hwaddr.sa_data, interface.address.size());
  return interface;
}

std::string interface_towards(const Endpoint& to) {
  return interface_name(route_to(to).interface);
}

NextHop next_hop(const Endpoint& to, Duration patience) {
  const Route route = route_to(to);
  NextHop hop;
  hop.interface = route.interface;
  hop.own = ethernet_interface(interface_name(hop.interface)).address;
  hop.source = route.source;
  hop.neighbour = found_neighbour(hop.interface, route.next, patience);
  return hop;
}

}  // namespace netsum::transport
