#include "dataplane/xdp/frames.h"

#include <cstring>

#include "wire/ethernet.h"
#include "wire/internet_checksum.h"

namespace netsum::dataplane::xdp {
namespace {

static_assert(sizeof(XdpWay::XdpFrame) == xdp_frame_bytes);
static_assert(sizeof(XdpSlotHead) == 64);

constexpr std::uint16_t ip_bytes = 20, udp_bytes = 8, unfragmented = 0x4000;

XdpWay way(const Endpoint& to, const Endpoint& from, const transport::NextHop& hop,
           const transport::EthernetAddress& destination, std::uint8_t time_to_live, std::uint32_t elements) {
  XdpWay way{};
  way.interface = hop.interface;
  auto& [ethernet, ip, udp] = way.frame;
  std::memcpy(ethernet.destination, destination.data(), destination.size());
  std::memcpy(ethernet.source, hop.own.data(), hop.own.size());
  ethernet.type = chip_host16(wire::ethernet::ipv4);
  const auto datagram = static_cast<std::uint16_t>(udp_bytes + chip_packet_bytes(elements));
  ip.version = 0x45;
  ip.length = chip_host16(static_cast<std::uint16_t>(ip_bytes + datagram));
  ip.fragment = chip_host16(unfragmented);
  ip.time_to_live = time_to_live;
  ip.protocol = 17;
  std::memcpy(ip.source, from.address.data() + 12, sizeof ip.source);
  std::memcpy(ip.destination, to.address.data() + 12, sizeof ip.destination);
  ip.checksum = wire::checksum_of(wire::sum_words(std::as_bytes(std::span(&ip, 1))));
  udp.source = chip_host16(from.port);
  udp.destination = chip_host16(to.port);
  udp.length = chip_host16(datagram);
  return way;
}

}  // namespace

XdpWay way_to(const Endpoint& to, const Endpoint& from, const transport::NextHop& hop, std::uint32_t elements) {
  return way(to, from, hop, hop.neighbour, 64, elements);
}

XdpWay way_to_group(const Endpoint& group, const Endpoint& from, const transport::NextHop& hop, std::uint32_t elements) {
  const std::uint8_t* const address = group.address.data() + 12;
  const auto low = static_cast<std::uint8_t>(address[1] & 0x7f);  // RFC 1112, §6.4: the group's lowest 23 bits
  return way(group, from, hop, {0x01, 0x00, 0x5e, low, address[2], address[3]}, 1, elements);
}

}  // namespace netsum::dataplane::xdp
