#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "netsum/error.h"
#include "transport/sockaddr.h"
#include "transport/udp.h"

namespace netsum::transport {

bool is_ipv4(const Endpoint& endpoint) {
  constexpr std::array<std::uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(mapped.begin(), mapped.end(), endpoint.address.begin());
}

bool is_unspecified(const Endpoint& endpoint) {
  const auto begin = endpoint.address.begin() + (is_ipv4(endpoint) ? 12 : 0);
  return std::all_of(begin, endpoint.address.end(), [](std::uint8_t byte) { return byte == 0; });
}

Endpoint resolve(const std::string& address) {
  const auto bad = [&] {
    return Error(ErrorCode::bad_argument, "'" + address + "' is not HOST:PORT (or [IPV6]:PORT)");
  };
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) throw bad();
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.front() == '[') {
    if (host.back() != ']') throw bad();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    throw bad();
  }
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc{} || end != port.data() + port.size()) throw bad();

  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &list); rc != 0) {
    throw Error(ErrorCode::unreachable, "cannot find host '" + host + "': " + gai_strerror(rc));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  return endpoint_of(*list->ai_addr);
}

std::string to_string(const Endpoint& endpoint) {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_ipv4(endpoint)) {
    inet_ntop(AF_INET, endpoint.address.data() + 12, text, sizeof text);
    return std::string(text) + ":" + std::to_string(endpoint.port);
  }
  inet_ntop(AF_INET6, endpoint.address.data(), text, sizeof text);
  return "[" + std::string(text) + "]:" + std::to_string(endpoint.port);
}

}  // namespace netsum::transport
