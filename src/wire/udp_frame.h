// A datagram in IPv4 in Ethernet, for those who write and read whole frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/endpoint.h"
#include "wire/ecn.h"
#include "wire/ethernet.h"

namespace netsum::wire {

inline constexpr std::size_t ip_udp_bytes = 20 + 8, udp_head_bytes = ethernet::header_bytes + ip_udp_bytes;

// From where to where, of IPv4 addresses.
struct UdpWay {
  ethernet::Address next{}, own{};  // the frame's destination and source
  Endpoint from{}, to{};
  std::uint8_t time_to_live = 64;
  Ecn ecn = Ecn::not_capable;
};

// The headers of all datagrams of a way. Without a UDP checksum, which IPv4 allows.
class UdpHead {
 public:
  UdpHead() = default;
  explicit UdpHead(const UdpWay& way);

  // In front of a datagram of that many bytes.
  void write(std::span<std::byte, udp_head_bytes> to, std::size_t datagram_bytes) const;

 private:
  std::array<std::byte, udp_head_bytes> head_{};
  std::uint64_t sum_ = 0;  // of the IP header without its length
};

struct UdpFrame {
  Endpoint from{}, to{};
  bool congested = false;
  std::span<const std::byte> datagram{};
};

// None: no whole UDP datagram in IPv4 without options, fragments and VLAN tags, or a wrong IP header, or one that says that
// the frame came from the host that it went to. UDP's checksum is not looked at: where a frame is read before the kernel has
// it, a sender on the same machine may have left it to a device.
[[nodiscard]] std::optional<UdpFrame> read_udp_frame(std::span<const std::byte> frame);

}  // namespace netsum::wire
