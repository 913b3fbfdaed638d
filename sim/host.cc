#include "sim/host.h"

namespace netsum::sim {

std::span<std::byte> Host::HostSink::datagram(const Endpoint& to, std::size_t bytes) {
  const std::size_t begin = owned_.size();
  owned_.resize(begin + bytes);
  items_.push_back({begin, bytes, {}, {}, to});
  return std::span(owned_).subspan(begin);
}

void Host::HostSink::multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) {
  items_.push_back({0, 0, packet, to, {}});
}

void Host::HostSink::flush() {
  for (const Item& item : items_) {
    if (item.to.empty()) {
      if (item.referenced.empty())
        surroundings_.send(host_, self_, item.one, std::span(owned_).subspan(item.begin, item.bytes));
      continue;
    }
    for (const Endpoint& to : item.to) surroundings_.send(host_, self_, to, item.referenced);
  }
  items_.clear();
  owned_.clear();
}

Endpoint endpoint_of(HostId host, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address = {0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0xff,
                      0xff,
                      10,
                      0,
                      static_cast<std::uint8_t>(host >> 8),
                      static_cast<std::uint8_t>(host)};
  endpoint.port = port;
  return endpoint;
}

HostId host_of(const Endpoint& endpoint) {
  return static_cast<HostId>(endpoint.address[14]) << 8 | endpoint.address[15];
}

}  // namespace netsum::sim
