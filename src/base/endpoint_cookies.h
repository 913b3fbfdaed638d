// Cookies of endpoints: a peer that shows one has received a packet that this process sent to the endpoint, because only
// this process can make it.
#pragma once

#include <cstring>

#include "base/endpoint.h"
#include "base/siphash.h"

namespace netsum {

class EndpointCookies {
 public:
  EndpointCookies() = default;
  explicit EndpointCookies(const SipKey& secret) : secret_(secret) {}

  // Without the scope: each host numbers its links differently.
  [[nodiscard]] std::uint64_t of(const Endpoint& endpoint) const {
    std::array<std::byte, sizeof endpoint.address + sizeof endpoint.port> message;
    std::memcpy(message.data(), endpoint.address.data(), sizeof endpoint.address);
    store_le(message.data() + sizeof endpoint.address, endpoint.port);
    return siphash(secret_, message);
  }

 private:
  SipKey secret_{};
};

}  // namespace netsum
