#include "bindings/nccl/devices.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "bindings/settings/settings.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::nccl {
namespace {

constexpr std::size_t most_devices = 16;
constexpr int speed_if_unknown = 10'000;  // virtual interfaces do not tell theirs

struct Address {
  std::string interface;
  Endpoint endpoint;
  bool loopback = false;
};

std::vector<Address> addresses_of_this_host(int family) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error(ErrorCode::internal, "cannot list the network interfaces: " + transport::errno_text());
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  std::vector<Address> found;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int its_family = each->ifa_addr->sa_family;
    if ((its_family != AF_INET && its_family != AF_INET6) || (family != AF_UNSPEC && its_family != family)) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, each->ifa_addr, its_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    found.push_back({each->ifa_name, transport::endpoint_of(storage), (each->ifa_flags & IFF_LOOPBACK) != 0});
  }
  // An interface's first address is the one that is used: IPv4 before IPv6, and link-local addresses last.
  std::stable_sort(found.begin(), found.end(), [](const Address& a, const Address& b) {
    const auto rank = [](const Endpoint& at) { return transport::is_ipv4(at) ? 0 : at.scope == 0 ? 1 : 2; };
    return rank(a.endpoint) < rank(b.endpoint);
  });
  return found;
}

int speed_of(const std::string& interface) {
  int speed = 0;
  std::ifstream("/sys/class/net/" + interface + "/speed") >> speed;
  return speed > 0 ? speed : speed_if_unknown;
}

std::string pci_path_of(const std::string& interface) {
  std::error_code none;
  return std::filesystem::canonical("/sys/class/net/" + interface + "/device", none).string();
}

int chosen_family() {
  const std::string name = settings::from_environment("NCCL_SOCKET_FAMILY");
  if (name.empty()) return AF_UNSPEC;
  if (name == "AF_INET") return AF_INET;
  if (name == "AF_INET6") return AF_INET6;
  throw Error(ErrorCode::bad_argument, "NCCL_SOCKET_FAMILY='" + name + "': must be AF_INET or AF_INET6");
}

std::vector<Device> find_devices() {
  const bool own = !settings::from_environment("NETSUM_SOCKET_IFNAME").empty();
  const std::string variable = own ? "NETSUM_SOCKET_IFNAME" : "NCCL_SOCKET_IFNAME";
  const std::string choice = settings::from_environment(variable);
  const std::vector<Address> addresses = addresses_of_this_host(chosen_family());
  // Without a choice: what reaches other hosts, or else whatever there is.
  const bool anything = choice.empty() && std::none_of(addresses.begin(), addresses.end(), [](const Address& each) {
                          return !each.loopback && is_chosen("^docker", each.interface);
                        });
  std::vector<Device> found;
  std::string seen;
  for (const Address& each : addresses) {
    seen += (seen.empty() ? "" : ", ") + each.interface;
    const bool wanted = !choice.empty() ? is_chosen(choice, each.interface)
                                        : anything || (!each.loopback && is_chosen("^docker", each.interface));
    const bool known =
        std::any_of(found.begin(), found.end(), [&](const Device& device) { return device.name == each.interface; });
    if (!wanted || known || found.size() == most_devices) continue;
    found.push_back({each.interface, pci_path_of(each.interface), each.endpoint, ::if_nametoindex(each.interface.c_str()),
                     speed_of(each.interface)});
  }
  if (found.empty()) {
    throw Error(ErrorCode::bad_argument, (choice.empty() ? "no network interface is up" : variable + "='" + choice + "'") +
                                             ": none of the interfaces with an address is chosen (" + seen + ")");
  }
  // The kernel's order, which all processes of a host see.
  std::sort(found.begin(), found.end(), [](const Device& a, const Device& b) { return a.index < b.index; });
  return found;
}

}  // namespace

bool is_chosen(std::string_view choice, std::string_view name) {
  const bool except = choice.starts_with('^');
  if (except) choice.remove_prefix(1);
  const bool whole = choice.starts_with('=');
  if (whole) choice.remove_prefix(1);
  while (!choice.empty()) {
    const std::string_view each = choice.substr(0, choice.find(','));
    choice.remove_prefix(std::min(each.size() + 1, choice.size()));
    if (!each.empty() && (whole ? name == each : name.starts_with(each))) return !except;
  }
  return except;
}

std::span<const Device> devices() {
  static const std::vector<Device> found = find_devices();
  return found;
}

const Device& device_at(int number) {
  const std::span<const Device> all = devices();
  if (number >= 0 && static_cast<std::size_t>(number) < all.size()) return all[static_cast<std::size_t>(number)];
  throw Error(ErrorCode::bad_argument,
              "device " + std::to_string(number) + " of " + std::to_string(all.size()) + " network devices");
}

}  // namespace netsum::nccl
