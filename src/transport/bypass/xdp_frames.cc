#include "transport/bypass/xdp_frames.h"

#include <algorithm>
#include <bit>

#include "base/cache_line.h"

namespace netsum::transport {

XdpFrames::XdpFrames(XdpRings& rings, std::span<std::byte> memory, std::size_t frame_bytes)
    : FramePlaces(frame_bytes),
      rings_(rings),
      memory_(memory),
      frame_bytes_(frame_bytes),
      frames_(memory.size() / frame_bytes) {
  const std::size_t half = frames_ / 2;
  taken_.reserve(most_taken);
  addresses_.reserve(most_taken);
  for (std::size_t i = 0; i < half; ++i) addresses_.push_back(i * frame_bytes_);
  give_back();
  for (std::size_t i = frames_; i > half; --i) free_.push_back((i - 1) * frame_bytes_);
}

// There is always room: the ring has it for all frames that may be in it.
void XdpFrames::give_back() {
  std::uint32_t at = 0;
  const auto count = static_cast<std::uint32_t>(addresses_.size());
  if (count == 0 || xsk_ring_prod__reserve(&rings_.fill, count, &at) != count) return;
  // A whole frame, wherever in it the kernel had put what arrived.
  for (std::uint32_t i = 0; i < count; ++i) {
    *xsk_ring_prod__fill_addr(&rings_.fill, at + i) = addresses_[i] & ~(std::uint64_t{frame_bytes_} - 1);
  }
  xsk_ring_prod__submit(&rings_.fill, count);
  addresses_.clear();
}

std::span<const iovec> XdpFrames::take() {
  give_back();
  taken_.clear();
  std::uint32_t at = 0;
  const std::uint32_t count = xsk_ring_cons__peek(&rings_.received, most_taken, &at);
  for (std::uint32_t i = 0; i < count; ++i) {
    const xdp_desc& frame = *xsk_ring_cons__rx_desc(&rings_.received, at + i);
    std::byte* const begin = memory_.data() + frame.addr;
    // The kernel wrote it on another core, or long ago: all are on their way before the first one is read, with what is
    // written in front of them.
    for (std::uint32_t line = 0; line < frame.len; line += cache_line) __builtin_prefetch(begin + line, 0, 2);
    __builtin_prefetch(begin - 1, 1);
    taken_.push_back({begin, frame.len});
    addresses_.push_back(frame.addr);
  }
  if (count > 0) xsk_ring_cons__release(&rings_.received, count);
  return taken_;
}

std::size_t XdpFrames::waiting() const {
  return __atomic_load_n(rings_.received.producer, __ATOMIC_RELAXED) - rings_.received.cached_cons;
}

void XdpFrames::collect() {
  std::uint32_t at = 0;
  const std::uint32_t count = xsk_ring_cons__peek(&rings_.completed, static_cast<std::uint32_t>(places()), &at);
  for (std::uint32_t i = 0; i < count; ++i) free_.push_back(*xsk_ring_cons__comp_addr(&rings_.completed, at + i));
  if (count > 0) xsk_ring_cons__release(&rings_.completed, count);
}

bool XdpFrames::get_more() {
  if (free_.empty()) collect();
  const std::size_t count = std::min(free_.size(), most_taken);
  for (std::size_t i = 0; i < count; ++i) {
    append(memory_.data() + free_.back());
    free_.pop_back();
  }
  return count > 0;
}

// There is always room: the ring has it for all frames that may be in it.
void XdpFrames::submit() {
  const std::span<const Place> frames = filled();
  const auto count = static_cast<std::uint32_t>(frames.size());
  std::uint32_t at = 0;
  if (count == 0 || xsk_ring_prod__reserve(&rings_.transmit, count, &at) != count) return;
  for (const Place& frame : frames) {
    *xsk_ring_prod__tx_desc(&rings_.transmit, at++) = {static_cast<std::uint64_t>(frame.begin - memory_.data()),
                                                       static_cast<std::uint32_t>(frame.bytes), 0};
  }
  xsk_ring_prod__submit(&rings_.transmit, count);
  leave(count);
}

std::size_t XdpFrames::unsent() const {
  return *rings_.transmit.producer - __atomic_load_n(rings_.transmit.consumer, __ATOMIC_ACQUIRE);
}

std::size_t XdpFrames::outgoing() const {
  const std::uint32_t completed =
      __atomic_load_n(rings_.completed.producer, __ATOMIC_RELAXED) - rings_.completed.cached_cons;
  return places() - free_.size() - empty().size() - completed;
}

}  // namespace netsum::transport
