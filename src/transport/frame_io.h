// Frames to and from a port's socket, many with one system call.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace netsum::transport {

class FrameReceiver {
 public:
  struct Frame {
    std::byte* bytes = nullptr;  // the `headroom` bytes before these are writable
    std::size_t size = 0;
    msghdr* header = nullptr;  // flags and control messages
  };
  struct Result {
    std::span<const Frame> frames;
    int error = 0;  // errno, if there are no frames
  };

  // Takes up to `bytes` of each message and `control_bytes` of control messages.
  FrameReceiver(std::size_t headroom, std::size_t bytes, std::size_t control_bytes);

  // One system call's worth, without waiting; valid until the next call.
  [[nodiscard]] Result receive(int socket);

 private:
  std::size_t control_bytes_;
  std::unique_ptr<std::byte[]> buffers_, controls_;
  std::vector<iovec> pieces_;
  std::vector<mmsghdr> headers_;
  std::vector<Frame> frames_;
};

class FrameSender {
 public:
  struct Result {
    std::size_t sent = 0;
    int error = 0;  // errno of the next frame
  };

  FrameSender();

  // Sends until the socket refuses a frame. Does not wait.
  Result send(int socket, std::span<iovec> frames);

 private:
  std::vector<mmsghdr> headers_;
};

}  // namespace netsum::transport
