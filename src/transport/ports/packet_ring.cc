#include "transport/ports/packet_ring.h"

#include <net/ethernet.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "base/copied.h"
#include "base/virtio_net.h"

namespace netsum::transport {
namespace {

constexpr std::size_t least_slot = 2048;
constexpr std::size_t block = 64 << 10;  // slots are in blocks, which the kernel gets page by page if it must
// In a slot, and so behind a page or its half. The kernel puts its header and an address in front, aligns them together with
// room for an Ethernet header, and leaves what is reserved and a virtio header.
constexpr auto frame_at = static_cast<std::size_t>(Copied::into);
constexpr std::size_t reserved =
    frame_at + ETH_HLEN - virtio_net_header_bytes - TPACKET_ALIGN(TPACKET2_HDRLEN + TPACKET_ALIGNMENT);

void set(int socket, int name, const auto& value) {
  if (::setsockopt(socket, SOL_PACKET, name, &value, sizeof value) != 0) {
    throw std::system_error(errno, std::generic_category());
  }
}

std::optional<VlanTag> tag_of(const tpacket2_hdr& header, std::uint32_t status) {
  if ((status & TP_STATUS_VLAN_VALID) == 0) return {};
  const bool named = (status & TP_STATUS_VLAN_TPID_VALID) != 0;
  return VlanTag{named ? header.tp_vlan_tpid : std::uint16_t{ETHERTYPE_VLAN}, header.tp_vlan_tci};
}

// Only the kernel and this process's one thread write it.
std::atomic_ref<std::uint32_t> status_of(tpacket2_hdr& header) {
  return std::atomic_ref<std::uint32_t>(header.tp_status);
}

}  // namespace

void PacketRing::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, bytes);
}

PacketRing::PacketRing(int socket, std::size_t frame_bytes, std::size_t headroom, std::size_t bytes) {
  frames_.reserve(most_taken);
  NETSUM_CHECK(headroom <= reserved);
  slot_bytes_ = std::bit_ceil(std::max(frame_at + frame_bytes, least_slot));
  const std::size_t block_bytes = std::max(block, slot_bytes_), blocks = std::max<std::size_t>(1, bytes / block_bytes);
  slots_ = blocks * (block_bytes / slot_bytes_);
  set(socket, PACKET_VERSION, int{TPACKET_V2});
  set(socket, PACKET_RESERVE, static_cast<unsigned>(reserved));
  set(socket, PACKET_COPY_THRESH, 1);  // frames longer than a slot are queued
  const tpacket_req request{static_cast<unsigned>(block_bytes), static_cast<unsigned>(blocks),
                            static_cast<unsigned>(slot_bytes_), static_cast<unsigned>(slots_)};
  set(socket, PACKET_RX_RING, request);
  const std::size_t all = slots_ * slot_bytes_;
  void* const memory = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, socket, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category());
  memory_ = {static_cast<std::byte*>(memory), Unmap{all}};
}

tpacket2_hdr& PacketRing::slot(std::size_t number) const {
  return *reinterpret_cast<tpacket2_hdr*>(memory_.get() + number % slots_ * slot_bytes_);
}

bool PacketRing::is_filled(std::size_t ahead) const {
  return (status_of(slot(next_ + ahead)).load(std::memory_order_acquire) & TP_STATUS_USER) != 0;
}

std::span<const PacketRing::Frame> PacketRing::take(std::size_t most_queued) {
  for (std::size_t i = frames_.size(); i > 0; --i) {
    status_of(slot(next_ + slots_ - i)).store(TP_STATUS_KERNEL, std::memory_order_release);
  }
  frames_.clear();
  const std::size_t most = std::min(most_taken, slots_);
  for (std::size_t queued = 0; frames_.size() < most && queued < most_queued; ++next_) {
    tpacket2_hdr& header = slot(next_);
    const std::uint32_t status = status_of(header).load(std::memory_order_acquire);
    if ((status & TP_STATUS_USER) == 0) break;
    Frame& frame = frames_.emplace_back();
    frame.begin = reinterpret_cast<std::byte*>(&header) + header.tp_mac - virtio_net_header_bytes;
    frame.bytes = virtio_net_header_bytes + header.tp_snaplen;
    frame.tag = tag_of(header, status);
    frame.cut = header.tp_snaplen < header.tp_len;
    frame.queued = (status & TP_STATUS_COPY) != 0;
    if (frame.queued) ++queued;
  }
  next_ %= slots_;
  return frames_;
}

bool PacketRing::holds_more_than(std::size_t frames) const {
  return frames + frames_.size() < slots_ && is_filled(frames);
}

// The kernel fills slots in turn.
std::size_t PacketRing::waiting() const {
  std::size_t least = 0, most = slots_ - frames_.size();
  while (least < most) {
    const std::size_t middle = (least + most) / 2;
    if (is_filled(middle)) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return least;
}

}  // namespace netsum::transport
