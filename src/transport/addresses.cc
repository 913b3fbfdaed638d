#include "transport/addresses.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/numbers.h"
#include "netsum/error.h"

namespace netsum::transport {

bool is_ipv4(const Endpoint& endpoint) {
  constexpr std::array<std::uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(mapped.data(), endpoint.address.data(), mapped.size()) == 0;
}

bool is_unspecified(const Endpoint& endpoint) {
  const auto* begin = endpoint.address.begin() + (is_ipv4(endpoint) ? 12 : 0);
  return std::all_of(begin, endpoint.address.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool is_loopback(const Endpoint& endpoint) {
  constexpr std::array<std::uint8_t, 16> one = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return is_ipv4(endpoint) ? endpoint.address[12] == 127 : endpoint.address == one;
}

Endpoint resolve(const std::string& address) {
  const auto bad = [&] {
    return Error(ErrorCode::bad_argument, "'" + address + "' is not HOST:PORT (or [IPV6]:PORT), PORT 0 to 65535");
  };
  const std::size_t colon = address.rfind(':');
  // A TOML file can hold a NUL, which would cut the text short for getaddrinfo.
  if (address.find('\0') != std::string::npos)
    throw Error(ErrorCode::bad_argument, "an address is HOST:PORT, without a NUL");
  if (colon == std::string::npos || colon == 0) throw bad();
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.front() == '[') {
    if (host.back() != ']' || host.size() < 3) throw bad();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    throw bad();
  }
  if (!parse_number<std::uint16_t>(port)) throw bad();

  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &list); rc != 0) {
    throw Error(ErrorCode::unreachable, "cannot find host '" + host + "' of '" + address + "': " + gai_strerror(rc));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const addrinfo* chosen = list;
  while (chosen != nullptr && chosen->ai_family != AF_INET) chosen = chosen->ai_next;
  if (chosen == nullptr) chosen = list;
  sockaddr_storage storage{};
  std::memcpy(&storage, chosen->ai_addr, chosen->ai_addrlen);
  return endpoint_of(storage);
}

std::string to_string(const Endpoint& endpoint) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4(endpoint)) {
    inet_ntop(AF_INET, endpoint.address.data() + 12, text.data(), text.size());
    return std::string(text.data()) + ":" + std::to_string(endpoint.port);
  }
  inet_ntop(AF_INET6, endpoint.address.data(), text.data(), text.size());
  const std::string scope = endpoint.scope == 0 ? "" : "%" + std::to_string(endpoint.scope);
  return "[" + std::string(text.data()) + scope + "]:" + std::to_string(endpoint.port);
}

Endpoint endpoint_of(const sockaddr_storage& address) {
  Endpoint endpoint;
  if (address.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address, sizeof in);
    endpoint.address[10] = endpoint.address[11] = 0xff;
    std::memcpy(endpoint.address.data() + 12, &in.sin_addr, 4);
    endpoint.port = ntohs(in.sin_port);
  } else if (address.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &address, sizeof in);
    std::memcpy(endpoint.address.data(), &in.sin6_addr, 16);
    endpoint.port = ntohs(in.sin6_port);
    endpoint.scope = in.sin6_scope_id;
  }
  return endpoint;
}

socklen_t to_sockaddr(const Endpoint& endpoint, bool ipv6, sockaddr_storage& storage) {
  if (!ipv6) {
    if (!is_ipv4(endpoint) && !is_unspecified(endpoint)) return 0;
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(endpoint.port);
    std::memcpy(&in.sin_addr, endpoint.address.data() + 12, 4);
    std::memcpy(&storage, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(endpoint.port);
  in.sin6_scope_id = endpoint.scope;
  std::memcpy(&in.sin6_addr, endpoint.address.data(), 16);
  std::memcpy(&storage, &in, sizeof in);
  return sizeof in;
}

}  // namespace netsum::transport
