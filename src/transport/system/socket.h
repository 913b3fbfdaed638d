// Common parts of this folder's sockets.
#pragma once

#include <cstddef>
#include <string>

namespace netsum::transport {

// Owns a file descriptor.
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
[[nodiscard]] int get_option(int socket, int level, int name);  // -1: no such option

// Requests `bytes` for each of a socket's receive and send buffers. Returns a warning, or nothing; it names the socket as
// `what`, such as "a UDP socket".
[[nodiscard]] std::string size_buffers(int socket, const std::string& what, std::size_t bytes);
// The same for one of them.
[[nodiscard]] std::string size_receive_buffer(int socket, const std::string& what, std::size_t bytes);
[[nodiscard]] std::string size_send_buffer(int socket, const std::string& what, std::size_t bytes);

// Memory of the datagrams queued for receiving, the kernel's overhead included.
[[nodiscard]] std::size_t receive_memory(int socket);
// Received datagrams that the kernel dropped: buffer full, or refused by the socket's filter.
[[nodiscard]] std::size_t dropped_datagrams(int socket);

}  // namespace netsum::transport
