// What this folder's sockets have in common.
#pragma once

#include <cstddef>
#include <string>

namespace netsum::transport {

// A file descriptor that is closed with it.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int number() const { return number_; }

 protected:
  void close() noexcept;

 private:
  int number_;
};

[[nodiscard]] std::string errno_text();
bool set_option(int socket, int level, int name, int value);
[[nodiscard]] int get_option(int socket, int level, int name);  // -1: there is no such

// Asks for room for `bytes` in a socket's receive and send buffers. Returns a warning, or nothing; `what` begins like
// "a UDP socket".
[[nodiscard]] std::string size_buffers(int socket, const std::string& what, std::size_t bytes);

// Bytes that wait to be received, with the memory around them.
[[nodiscard]] std::size_t receive_memory(int socket);
// What the kernel has dropped of what came: there was no room, or the socket's filter refused it.
[[nodiscard]] std::size_t dropped_datagrams(int socket);

}  // namespace netsum::transport
