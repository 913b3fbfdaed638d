// A datagram in IPv4 in Ethernet, for those who write and read whole frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/endpoint.h"
#include "wire/ecn.h"
#include "wire/ethernet.h"
#include "wire/internet_checksum.h"

namespace netsum::wire {

inline constexpr std::size_t ip_udp_bytes = 20 + 8, udp_head_bytes = ethernet::header_bytes + ip_udp_bytes;
// Where what is in a frame.
inline constexpr std::size_t at_ip_length = ethernet::header_bytes + 2, at_ip_checksum = ethernet::header_bytes + 10,
                             at_source_address = ethernet::header_bytes + 12, at_source_port = ethernet::header_bytes + 20,
                             at_udp_length = at_source_port + 4;

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
  void write(std::span<std::byte, udp_head_bytes> to, std::size_t datagram_bytes) const {
    std::memcpy(to.data(), head_.data(), head_.size());
    store_be(to.data() + at_ip_length, static_cast<std::uint16_t>(ip_udp_bytes + datagram_bytes));
    store_be(to.data() + at_udp_length, static_cast<std::uint16_t>(8 + datagram_bytes));
    // As everything else of the sum, in this host's byte order.
    store_le(to.data() + at_ip_checksum, checksum_of(sum_ + load_le<std::uint16_t>(to.data() + at_ip_length)));
  }

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
