// Neighbours that the kernel is told of, since they answer neither ARP nor anything else that it would ask.
#pragma once

#include <cstdint>
#include <vector>

#include "base/endpoint.h"
#include "transport/addresses/next_hop.h"

namespace netsum::transport {

// Entries for IPv4 addresses at one interface, which end with this.
class NeighbourEntries {
 public:
  explicit NeighbourEntries(std::uint32_t interface) : interface_(interface) {}
  ~NeighbourEntries();
  NeighbourEntries(const NeighbourEntries&) = delete;
  NeighbourEntries& operator=(const NeighbourEntries&) = delete;

  // False: the kernel refuses, as this takes the right to administer the network.
  [[nodiscard]] bool set(const Endpoint& address, const EthernetAddress& at);

 private:
  [[nodiscard]] bool tell(std::uint16_t type, std::uint16_t flags, const Endpoint& address, const EthernetAddress& at) const;

  std::uint32_t interface_;
  std::vector<Endpoint> known_;
};

}  // namespace netsum::transport
