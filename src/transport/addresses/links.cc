#include "transport/addresses/links.h"

#include <linux/genetlink.h>
#include <linux/neighbour.h>
#include <net/if.h>

#include <array>
#include <cstring>
#include <memory>

#include "transport/addresses/netlink.h"

namespace netsum::transport {
namespace {

using Link = NetlinkAnswer<ifinfomsg>;

std::optional<Link> link_of(std::uint32_t interface) {
  ifinfomsg kind{};
  kind.ifi_index = static_cast<int>(interface);
  NetlinkMessage request(RTM_GETLINK, 0, kind);
  return ask_kernel<ifinfomsg>(request, RTM_NEWLINK);
}

// The names of the interfaces of which that is true.
template <class Predicate>
std::vector<std::string> interfaces_if(Predicate wanted) {
  std::vector<std::string> names;
  const std::unique_ptr<struct if_nameindex, decltype(&::if_freenameindex)> all(::if_nameindex(), &::if_freenameindex);
  for (const auto* each = all.get(); each != nullptr && each->if_index != 0; ++each) {
    const auto link = link_of(each->if_index);
    if (link && wanted(*link)) names.emplace_back(each->if_name);
  }
  return names;
}

}  // namespace

bool is_up(std::uint32_t interface) {
  constexpr unsigned up = IFF_UP | IFF_RUNNING;
  const auto link = link_of(interface);
  return link && (link->kind.ifi_flags & up) == up;
}

std::optional<std::uint32_t> master_of(std::uint32_t interface) {
  const auto link = link_of(interface);
  return link ? link->find<std::uint32_t>(IFLA_MASTER) : std::nullopt;
}

std::optional<EthernetAddress> station_at(std::uint32_t interface, const OwnStations& own) {
  for (const std::uint32_t each : {master_of(interface).value_or(interface), interface}) {
    if (const auto found = own.ethernet.find(each); found != own.ethernet.end()) return found->second;
  }
  return std::nullopt;
}

std::vector<std::string> parts_of(std::uint32_t master) {
  return interfaces_if([=](const Link& link) { return link.find<std::uint32_t>(IFLA_MASTER) == master; });
}

std::vector<std::string> vlans_above(std::uint32_t interface) {
  return interfaces_if([=](const Link& link) {
    constexpr std::array<char, 5> vlan = {'v', 'l', 'a', 'n', '\0'};
    return link.find<std::uint32_t>(IFLA_LINK) == interface && !link.find<std::uint32_t>(IFLA_LINK_NETNSID) &&
           link.find_in<std::array<char, 5>>(IFLA_LINKINFO, IFLA_INFO_KIND) == vlan;
  });
}

std::optional<std::uint32_t> bridge_port(std::uint32_t bridge, const EthernetAddress& to) {
  ndmsg kind{};
  kind.ndm_family = AF_BRIDGE;
  kind.ndm_flags = NTF_MASTER;
  NetlinkMessage request(RTM_GETNEIGH, 0, kind);
  request.add(NDA_LLADDR, to.data(), to.size()).add(NDA_MASTER, &bridge, sizeof bridge);
  const auto answer = ask_kernel<ndmsg>(request, RTM_NEWNEIGH);
  if (!answer || answer->kind.ndm_ifindex == static_cast<int>(bridge)) return std::nullopt;
  return static_cast<std::uint32_t>(answer->kind.ndm_ifindex);
}

// The kernel's "netdev" family, which headers before Linux 6.3 do not have (include/uapi/linux/netdev.h).
std::optional<bool> sends_for_drivers(std::uint32_t interface) {
  constexpr std::uint8_t get_device = 1;
  constexpr std::uint16_t index_attribute = 1, features_attribute = 3;
  constexpr std::uint64_t sends = 4;  // NETDEV_XDP_ACT_NDO_XMIT
  constexpr std::array<char, 7> name = {'n', 'e', 't', 'd', 'e', 'v', '\0'};
  NetlinkMessage which(GENL_ID_CTRL, 0, genlmsghdr{CTRL_CMD_GETFAMILY, 1, 0});
  const auto family =
      ask_kernel<genlmsghdr>(which.add(CTRL_ATTR_FAMILY_NAME, name.data(), name.size()), GENL_ID_CTRL, NETLINK_GENERIC);
  const auto number = family ? family->find<std::uint16_t>(CTRL_ATTR_FAMILY_ID) : std::nullopt;
  if (!number) return std::nullopt;
  NetlinkMessage request(*number, 0, genlmsghdr{get_device, 1, 0});
  const auto device =
      ask_kernel<genlmsghdr>(request.add(index_attribute, &interface, sizeof interface), *number, NETLINK_GENERIC);
  const auto features = device ? device->find<std::uint64_t>(features_attribute) : std::nullopt;
  if (!features) return std::nullopt;
  return (*features & sends) != 0;
}

}  // namespace netsum::transport
