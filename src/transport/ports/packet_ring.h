// The frames of a packet socket in memory that the kernel writes and this process reads (packet(7), PACKET_RX_RING): to
// receive them takes no system call.
//
// The version is TPACKET_V2. TPACKET_V3 packs frames closer, but hands them over in blocks, and holds a block back until it
// is full or a millisecond has passed.
#pragma once

#include <linux/if_packet.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace netsum::transport {

// A VLAN tag that the kernel took out of a frame, in the host's byte order.
struct VlanTag {
  std::uint16_t type = 0, control = 0;
};

class PacketRing {
 public:
  struct Frame {
    std::byte* begin = nullptr;  // its virtio header; VLAN-tag's length before it is writable
    std::size_t bytes = 0;       // with the virtio header
    std::optional<VlanTag> tag;
    // Longer than a slot. `queued`: the whole frame waits in the socket's receive queue, behind those of earlier frames that
    // are there; otherwise that queue was full.
    bool cut = false, queued = false;
  };
  static constexpr std::size_t most_taken = 64;  // with frames of 2 KiB, half of a small L2 cache

  // Slots hold frames of `frame_bytes`, headroom not counted. The socket has PACKET_VNET_HDR set, and is bound to nothing.
  // Throws std::system_error.
  PacketRing(int socket, std::size_t frame_bytes, std::size_t headroom, std::size_t bytes);

  // The frames that are there, until `most_taken`, or `most_queued` that are queued. Those of the last call go back to the
  // kernel.
  [[nodiscard]] std::span<const Frame> take(std::size_t most_queued);
  [[nodiscard]] std::size_t waiting() const;  // frames not yet taken
  [[nodiscard]] bool holds_more_than(std::size_t frames) const;
  [[nodiscard]] std::size_t slots() const { return slots_; }
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  [[nodiscard]] tpacket2_hdr& slot(std::size_t number) const;
  [[nodiscard]] bool is_filled(std::size_t ahead) const;

  std::size_t slot_bytes_ = 0, slots_ = 0;
  std::unique_ptr<std::byte, Unmap> memory_;
  std::size_t next_ = 0;  // the first slot not yet taken
  std::vector<Frame> frames_;
};

}  // namespace netsum::transport
