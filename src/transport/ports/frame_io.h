// Frames to and from a port's socket, many with one system call.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/copied.h"

namespace netsum::transport {

class FrameReceiver {
 public:
  struct Frame {
    std::byte* bytes = nullptr;  // the `headroom` bytes before these are writable
    std::size_t size = 0;
    bool cut = false;
  };
  struct Result {
    std::span<const Frame> frames;
    int error = 0;  // errno, if there are no frames
  };

  // Takes up to `bytes` of each message; of a longer one the rest is lost.
  FrameReceiver(std::size_t headroom, std::size_t bytes);

  static constexpr std::size_t most = 16;  // frames: more trains of 64 kB would leave the L2 cache before they are sent on

  // One system call's worth, without waiting; valid until the next call.
  [[nodiscard]] Result receive(int socket);
  // `count` frames (at most `most`) that are known to be there; fewer only after an error.
  [[nodiscard]] std::span<const Frame> receive(int socket, std::size_t count);

 private:
  [[nodiscard]] int receive_more(int socket, std::size_t limit);

  CopiedMemory buffers_;
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
