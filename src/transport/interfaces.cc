#include "transport/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <cstring>
#include <memory>

#include "transport/addresses.h"
#include "transport/socket.h"

namespace netsum::transport {
namespace {

[[nodiscard]] bool is_at(const sockaddr* address, const Endpoint& wanted) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return false;
  sockaddr_storage storage{};
  std::memcpy(&storage, address, address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return endpoint_of(storage).address == wanted.address;
}

}  // namespace

std::optional<std::uint32_t> mtu_of_interface(const Endpoint& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (!is_at(each->ifa_addr, address)) continue;
    const Descriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, each->ifa_name, sizeof request.ifr_name - 1);
    if (::ioctl(any.number(), SIOCGIFMTU, &request) != 0 || request.ifr_mtu <= 0) return std::nullopt;
    return static_cast<std::uint32_t>(request.ifr_mtu);
  }
  return std::nullopt;
}

}  // namespace netsum::transport
