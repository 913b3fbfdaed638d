#include "transport/addresses/addresses.h"

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

namespace {

struct HostAndPort {
  std::string host, port;
};

HostAndPort split(const std::string& address) {
  const auto bad = [&] {
    return Error(ErrorCode::bad_argument, "'" + address + "' is not HOST:PORT (or [IPV6]:PORT), PORT 0 to 65535");
  };
  const std::size_t colon = address.rfind(':');
  // A TOML file can hold a NUL, which would cut the text short for getaddrinfo.
  if (address.find('\0') != std::string::npos)
    throw Error(ErrorCode::bad_argument, "an address must be HOST:PORT without a NUL byte");
  if (colon == std::string::npos || colon == 0) throw bad();
  std::string host = address.substr(0, colon), port = address.substr(colon + 1);
  if (host.front() == '[') {
    if (host.back() != ']' || host.size() < 3) throw bad();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    throw bad();
  }
  if (!parse_number<std::uint16_t>(port)) throw bad();
  return {std::move(host), std::move(port)};
}

// Empty: `error` says why.
std::vector<Endpoint> ask(const HostAndPort& of, int flags, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  error = getaddrinfo(of.host.c_str(), of.port.c_str(), &hints, &list);
  if (error != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<Endpoint> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
      if (each->ai_family != family) continue;
      sockaddr_storage storage{};
      std::memcpy(&storage, each->ai_addr, each->ai_addrlen);
      found.push_back(endpoint_of(storage));
    }
  }
  return found;
}

}  // namespace

std::vector<Endpoint> resolve_all(const std::string& address) {
  const HostAndPort of = split(address);
  int error = 0;
  std::vector<Endpoint> found = ask(of, 0, error);
  if (found.empty()) {
    throw Error(ErrorCode::unreachable, "cannot find host '" + of.host + "' of '" + address + "': " + gai_strerror(error));
  }
  return found;
}

Endpoint resolve(const std::string& address) {
  return resolve_all(address).front();
}

std::optional<Endpoint> resolve_numeric(const std::string& address) {
  int error = 0;
  const std::vector<Endpoint> found = ask(split(address), AI_NUMERICHOST, error);
  return found.empty() ? std::nullopt : std::optional(found.front());
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
