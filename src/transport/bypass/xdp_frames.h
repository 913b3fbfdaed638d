// Who has which frame of the memory that an AF_XDP socket shares with the kernel: four rings say so (if_xdp.h), of which
// each side writes two. No system call is made here.
#pragma once

#include <sys/uio.h>
#include <xdp/xsk.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/bypass/frame_places.h"

namespace netsum::transport {

struct XdpRings {
  xsk_ring_prod fill{}, transmit{};       // to the kernel: frames to receive into; frames to send
  xsk_ring_cons received{}, completed{};  // from the kernel: received; sent, or dropped
};

// The first half of the frames is for receiving, the second for sending. Belongs to one thread.
class XdpFrames final : public FramePlaces {
 public:
  static constexpr std::size_t most_taken = 64;  // as PacketRing's

  // `memory` is of frames of `frame_bytes`, a power of two; each ring has room for half of them, also a power of two. Gives
  // the kernel those for receiving.
  XdpFrames(XdpRings& rings, std::span<std::byte> memory, std::size_t frame_bytes);

  // The frames that have arrived, until `most_taken`. Those of the last call go back to the kernel. Before each are as many
  // bytes as the kernel was asked to leave.
  [[nodiscard]] std::span<const iovec> take();
  [[nodiscard]] std::size_t waiting() const;  // frames not yet taken

  // Hands the frames added to the kernel, which sends them when it is woken up.
  void submit();
  [[nodiscard]] std::size_t unsent() const;                         // submitted, and the kernel has not looked at them yet
  [[nodiscard]] std::size_t places() const { return frames_ / 2; }  // for frames to send
  [[nodiscard]] std::size_t outgoing() const;                       // places that are not free

 private:
  void give_back();
  void collect();
  bool get_more() override;

  XdpRings& rings_;
  std::span<std::byte> memory_;
  const std::size_t frame_bytes_, frames_;
  std::vector<iovec> taken_;
  std::vector<std::uint64_t> addresses_;  // of those
  std::vector<std::uint64_t> free_;       // frames for sending; the last one is taken first: it is the likeliest in a cache
};

}  // namespace netsum::transport
