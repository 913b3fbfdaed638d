// Heads of frames that were read before. A peer's datagrams of one length have the same one, byte for byte, where netsum
// writes it (wire::UdpHead). What was found out about the last one then holds for the next: a comparison takes the place of
// checks, a checksum and addresses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"
#include "base/packet_io.h"
#include "wire/udp_frame.h"

namespace netsum::transport {

class KnownHeads {
 public:
  // What was read of a frame like it, whose bytes are gone. Null: the frame must be read.
  [[nodiscard]] const RxView* find(std::span<const std::byte> frame) const {
    if (frame.size() < wire::udp_head_bytes) return nullptr;
    const Known& known = known_[place_of(frame)];
    return known.frame_bytes == frame.size() && same(known.head, frame) ? &known.datagram : nullptr;
  }
  // The sender's last frame is known no more.
  void remember(std::span<const std::byte> frame, const RxView& datagram) {
    Known& known = known_[place_of(frame)];
    std::memcpy(known.head.data(), frame.data(), known.head.size());
    known.frame_bytes = frame.size();
    known.datagram = datagram;
  }
  void forget() { known_ = {}; }

 private:
  using Head = std::array<std::byte, wire::udp_head_bytes>;
  struct Known {
    Head head{};
    std::size_t frame_bytes = 0;  // 0: none
    RxView datagram{};
  };
  static constexpr int bits = 8;

  // One for each sender, or for several.
  static std::size_t place_of(std::span<const std::byte> frame) {
    const std::uint64_t source = load_le<std::uint32_t>(frame.data() + wire::at_source_address) |
                                 std::uint64_t{load_le<std::uint16_t>(frame.data() + wire::at_source_port)} << 32;
    return (source * 0x9e3779b97f4a7c15ULL) >> (64 - bits);
  }
  // By hand, as compilers call memcmp().
  static bool same(const Head& head, std::span<const std::byte> frame) {
    const auto differ = [&](std::size_t at) {
      return load_le<std::uint64_t>(head.data() + at) ^ load_le<std::uint64_t>(frame.data() + at);
    };
    static_assert(sizeof(Head) == 42);
    return (differ(0) | differ(8) | differ(16) | differ(24) | differ(32) | differ(34)) == 0;
  }

  std::array<Known, std::size_t{1} << bits> known_{};
};

}  // namespace netsum::transport
