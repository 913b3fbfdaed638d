#include "bindings/settings/reach.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/switch_list.h"
#include "transport/system/socket.h"

namespace netsum::settings {
namespace {

// errno of a connection to `endpoint`, or 0.
int try_to_connect(const Endpoint& endpoint, std::chrono::milliseconds patience) {
  const bool ipv6 = !transport::is_ipv4(endpoint);
  sockaddr_storage storage{};
  const socklen_t size = transport::to_sockaddr(endpoint, ipv6, storage);
  const transport::Descriptor socket(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.number() < 0) return errno;
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&storage), size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wanted{socket.number(), POLLOUT, 0};
  if (::poll(&wanted, 1, static_cast<int>(patience.count())) <= 0) return ETIMEDOUT;
  return transport::get_option(socket.number(), SOL_SOCKET, SO_ERROR);
}

}  // namespace

std::string unreachable(const Settings& settings, std::chrono::milliseconds patience) {
  std::vector<std::string> addresses = settings.options.aggregators;
  if (!settings.above.empty()) addresses.insert(addresses.end(), settings.switches.begin(), settings.switches.end());
  for (const std::string& named : addresses) {
    try {
      for (const std::string& address : transport::switch_list(named)) {
        errno = try_to_connect(transport::resolve(address), patience);
        if (errno != 0) return "cannot reach the aggregator " + address + ": " + transport::errno_text();
      }
    } catch (const Error& error) {
      return error.what();
    }
  }
  return {};
}

}  // namespace netsum::settings
