#include "dataplane/xdp/frames.h"

#include <span>

#include "wire/udp_frame.h"

namespace netsum::dataplane::xdp {
namespace {

static_assert(sizeof(XdpWay::XdpFrame) == xdp_frame_bytes);
static_assert(sizeof(XdpSlotHead) == 64);

XdpWay way(const Endpoint& to, const Endpoint& from, const transport::NextHop& hop,
           const transport::EthernetAddress& destination, std::uint8_t time_to_live, std::uint32_t elements) {
  XdpWay way{};
  way.interface = hop.interface;
  static_assert(xdp_frame_bytes == wire::udp_head_bytes);
  const wire::UdpHead head({.next = destination, .own = hop.own, .from = from, .to = to, .time_to_live = time_to_live});
  head.write(std::as_writable_bytes(std::span(&way.frame, 1)).first<wire::udp_head_bytes>(), chip_packet_bytes(elements));
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
