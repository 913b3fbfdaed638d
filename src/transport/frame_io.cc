#include "transport/frame_io.h"

#include <algorithm>
#include <cerrno>

namespace netsum::transport {
namespace {

// More trains of 64 kB would leave the L2 cache before they are sent on; more short frames are no faster.
constexpr std::size_t frames_received_per_call = 16;
constexpr std::size_t frames_sent_per_call = 64;
// As in train_receiver.cc: short frames in buffers at a multiple of 64 KiB would compete for the same cache sets.
constexpr std::size_t spread = 1088;

}  // namespace

FrameReceiver::FrameReceiver(std::size_t headroom, std::size_t bytes, std::size_t control_bytes)
    : control_bytes_(control_bytes), pieces_(frames_received_per_call), headers_(frames_received_per_call) {
  const std::size_t stride = (headroom + bytes + 63) / 64 * 64 + spread;
  buffers_ = std::make_unique_for_overwrite<std::byte[]>(frames_received_per_call * stride);
  controls_ = std::make_unique<std::byte[]>(frames_received_per_call * control_bytes);
  frames_.reserve(frames_received_per_call);
  for (std::size_t i = 0; i < frames_received_per_call; ++i) {
    pieces_[i] = {buffers_.get() + i * stride + headroom, bytes};
    msghdr& header = headers_[i].msg_hdr;
    header.msg_iov = &pieces_[i];
    header.msg_iovlen = 1;
    header.msg_control = controls_.get() + i * control_bytes;
    header.msg_controllen = control_bytes;
  }
}

FrameReceiver::Result FrameReceiver::receive(int socket) {
  // The last call overwrote these with the lengths used.
  for (std::size_t i = 0; i < frames_.size(); ++i) headers_[i].msg_hdr.msg_controllen = control_bytes_;
  frames_.clear();
  const int count = ::recvmmsg(socket, headers_.data(), static_cast<unsigned>(headers_.size()), MSG_DONTWAIT, nullptr);
  if (count < 0) return {{}, errno};
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    frames_.push_back({static_cast<std::byte*>(pieces_[i].iov_base), headers_[i].msg_len, &headers_[i].msg_hdr});
  }
  return {frames_, 0};
}

FrameSender::FrameSender() : headers_(frames_sent_per_call) {
  for (mmsghdr& header : headers_) header.msg_hdr.msg_iovlen = 1;
}

FrameSender::Result FrameSender::send(int socket, std::span<iovec> frames) {
  std::size_t sent = 0;
  while (sent < frames.size()) {
    const std::size_t count = std::min(headers_.size(), frames.size() - sent);
    for (std::size_t i = 0; i < count; ++i) headers_[i].msg_hdr.msg_iov = &frames[sent + i];
    const int taken = ::sendmmsg(socket, headers_.data(), static_cast<unsigned>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken > 0) {
      sent += static_cast<std::size_t>(taken);
    } else if (errno != EINTR) {
      return {sent, errno};
    }
  }
  return {sent, 0};
}

}  // namespace netsum::transport
