#include "wire/udp_frame.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "wire/internet_checksum.h"
#include "wire/ipv4.h"

namespace netsum::wire {
namespace {

// What else is where in a frame.
namespace in_frame {

constexpr std::size_t ip = ethernet::header_bytes, at_service = ip + 1, at_fragment = ip + 6, at_time = ip + 8,
                      at_protocol = ip + 9, at_to = ip + 16, at_to_port = at_source_port + 2;
constexpr std::uint8_t four_without_options = 0x45, of_udp = 17;
constexpr std::uint16_t unfragmented = 0x4000, any_fragment = 0x3fff;

}  // namespace in_frame

Endpoint endpoint_at(const std::byte* from, const std::byte* port) {
  Ipv4 address;
  std::memcpy(address.data(), from, address.size());
  return ipv4_endpoint(address, load_be<std::uint16_t>(port));
}

}  // namespace

UdpHead::UdpHead(const UdpWay& way) {
  std::byte* const head = head_.data();
  std::memcpy(head, way.next.data(), way.next.size());
  std::memcpy(head + way.next.size(), way.own.data(), way.own.size());
  store_be(head + 12, ethernet::ipv4);
  head[in_frame::ip] = std::byte{in_frame::four_without_options};
  head[in_frame::at_service] = static_cast<std::byte>(way.ecn);
  store_be(head + in_frame::at_fragment, in_frame::unfragmented);
  head[in_frame::at_time] = std::byte{way.time_to_live};
  head[in_frame::at_protocol] = std::byte{in_frame::of_udp};
  std::memcpy(head + at_source_address, way.from.address.data() + ipv4_in_endpoint, 4);
  std::memcpy(head + in_frame::at_to, way.to.address.data() + ipv4_in_endpoint, 4);
  store_be(head + at_source_port, way.from.port);
  store_be(head + in_frame::at_to_port, way.to.port);
  sum_ = sum_words(std::span(head_).subspan(in_frame::ip, 20));
}

std::optional<UdpFrame> read_udp_frame(std::span<const std::byte> frame) {
  if (frame.size() < udp_head_bytes) return std::nullopt;
  const std::byte* const head = frame.data();
  if (load_be<std::uint16_t>(head + 12) != ethernet::ipv4 ||
      head[in_frame::ip] != std::byte{in_frame::four_without_options} ||
      head[in_frame::at_protocol] != std::byte{in_frame::of_udp} ||
      (load_be<std::uint16_t>(head + in_frame::at_fragment) & in_frame::any_fragment) != 0) {
    return std::nullopt;
  }
  const std::size_t packet = load_be<std::uint16_t>(head + at_ip_length),
                    datagram = load_be<std::uint16_t>(head + at_udp_length);
  // Behind a short packet there is padding.
  if (packet > frame.size() - in_frame::ip || datagram < 8 || packet < 20 + datagram) return std::nullopt;
  if (checksum_of(sum_words(frame.subspan(in_frame::ip, 20))) != 0) return std::nullopt;
  // As the kernel drops what comes from a link and says that it does not.
  if (head[at_source_address] == std::byte{127} ||
      std::equal(head + at_source_address, head + at_source_address + 4, head + in_frame::at_to)) {
    return std::nullopt;
  }
  UdpFrame found;
  found.from = endpoint_at(head + at_source_address, head + at_source_port);
  found.to = endpoint_at(head + in_frame::at_to, head + in_frame::at_to_port);
  found.congested =
      (std::to_integer<std::uint8_t>(head[in_frame::at_service]) & 3) == static_cast<std::uint8_t>(Ecn::congestion);
  found.datagram = frame.subspan(udp_head_bytes, datagram - 8);
  return found;
}

}  // namespace netsum::wire
