#include "transport/ports/frame_io.h"

#include <algorithm>
#include <cerrno>

namespace netsum::transport {
namespace {

constexpr std::size_t frames_sent_per_call = 64;
// As in train_receiver.cc: short frames in buffers at a multiple of 64 KiB would compete for the same cache sets.
constexpr std::size_t spread = 1088;

}  // namespace

FrameReceiver::FrameReceiver(std::size_t headroom, std::size_t bytes) : pieces_(most), headers_(most) {
  const std::size_t stride = whole_lines(headroom) + whole_lines(bytes) + spread;
  buffers_ = CopiedMemory(Copied::into, most * stride);
  frames_.reserve(most);
  for (std::size_t i = 0; i < most; ++i) {
    pieces_[i] = {buffers_.data() + i * stride + whole_lines(headroom), bytes};
    msghdr& header = headers_[i].msg_hdr;
    header.msg_iov = &pieces_[i];
    header.msg_iovlen = 1;
  }
}

FrameReceiver::Result FrameReceiver::receive(int socket) {
  frames_.clear();
  const int error = receive_more(socket, most);
  return {frames_, error};
}

std::span<const FrameReceiver::Frame> FrameReceiver::receive(int socket, std::size_t count) {
  frames_.clear();
  // An error of the interface comes once, in place of a frame.
  for (int errors = 0; frames_.size() < count && errors < 2;) errors += receive_more(socket, count) != 0 ? 1 : 0;
  return frames_;
}

// One system call, for `limit` frames in all. Returns 0 or errno.
int FrameReceiver::receive_more(int socket, std::size_t limit) {
  const std::size_t here = frames_.size();
  const int count = ::recvmmsg(socket, &headers_[here], static_cast<unsigned>(limit - here), MSG_DONTWAIT, nullptr);
  if (count < 0) return errno;
  for (std::size_t i = here; i < here + static_cast<std::size_t>(count); ++i) {
    const bool cut = (headers_[i].msg_hdr.msg_flags & MSG_TRUNC) != 0;
    frames_.push_back({static_cast<std::byte*>(pieces_[i].iov_base), headers_[i].msg_len, cut});
  }
  return 0;
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
