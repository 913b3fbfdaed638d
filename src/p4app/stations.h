// Addresses as the control service has them: numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/endpoint.h"
#include "transport/addresses/next_hop.h"

namespace netsum::p4app {

[[nodiscard]] inline std::uint32_t ipv4_of(const Endpoint& endpoint) {
  return load_be<std::uint32_t>(reinterpret_cast<const std::byte*>(endpoint.address.data()) + 12);
}

[[nodiscard]] inline Endpoint endpoint_of_ipv4(std::uint32_t ipv4) {
  Endpoint endpoint;
  endpoint.address[10] = endpoint.address[11] = 0xff;
  store_be(reinterpret_cast<std::byte*>(endpoint.address.data()) + 12, ipv4);
  return endpoint;
}

[[nodiscard]] inline std::uint64_t number_of_mac(const transport::EthernetAddress& mac) {
  std::uint64_t number = 0;
  for (const std::uint8_t byte : mac) number = number << 8 | byte;
  return number;
}

[[nodiscard]] inline transport::EthernetAddress mac_of(std::uint64_t number) {
  transport::EthernetAddress mac{};
  for (std::size_t i = mac.size(); i-- > 0; number >>= 8) mac[i] = static_cast<std::uint8_t>(number);
  return mac;
}

}  // namespace netsum::p4app
