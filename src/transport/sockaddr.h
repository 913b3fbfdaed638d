// Endpoint <-> sockaddr.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "base/endpoint.h"

namespace netsum::transport {

[[nodiscard]] inline Endpoint endpoint_of(const sockaddr& address) {
  Endpoint endpoint;
  if (address.sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address, sizeof in);
    endpoint.address[10] = endpoint.address[11] = 0xff;
    std::memcpy(endpoint.address.data() + 12, &in.sin_addr, 4);
    endpoint.port = ntohs(in.sin_port);
  } else if (address.sa_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &address, sizeof in);
    std::memcpy(endpoint.address.data(), &in.sin6_addr, 16);
    endpoint.port = ntohs(in.sin6_port);
    endpoint.scope = in.sin6_scope_id;
  }
  return endpoint;
}

// The length of what was written to `storage`.
inline socklen_t to_sockaddr(const Endpoint& endpoint, bool ipv6, sockaddr_storage& storage) {
  storage = {};
  if (!ipv6) {
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
