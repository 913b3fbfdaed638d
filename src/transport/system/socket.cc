#include "transport/system/socket.h"

#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace netsum::transport {
namespace {

// The forced option needs CAP_NET_ADMIN and ignores the sysctl limit.
std::string size_buffer(int socket, const std::string& what, int forced, int plain, const char* sysctl, std::size_t bytes) {
  const int wanted = static_cast<int>(bytes);
  if (!set_option(socket, SOL_SOCKET, forced, wanted)) set_option(socket, SOL_SOCKET, plain, wanted);
  const int got = get_option(socket, SOL_SOCKET, plain) / 2;  // the kernel doubles it for its own bookkeeping
  if (got >= wanted) return "";
  return "the kernel gave " + what + " buffer of " + std::to_string(got) + " bytes where " + std::to_string(wanted) +
         " were asked for, so bursts will be lost; raise it with: sysctl -w " + sysctl + "=" + std::to_string(wanted);
}

std::array<std::uint32_t, SK_MEMINFO_VARS> memory_info(int socket) {
  std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
  socklen_t size = sizeof memory;
  ::getsockopt(socket, SOL_SOCKET, SO_MEMINFO, memory.data(), &size);
  return memory;
}

}  // namespace

Descriptor::~Descriptor() {
  close();
}

void Descriptor::close() noexcept {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

std::string errno_text() {
  return std::generic_category().message(errno);
}

bool set_option(int socket, int level, int name, int value) {
  return ::setsockopt(socket, level, name, &value, sizeof value) == 0;
}

int get_option(int socket, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, level, name, &value, &size) == 0 ? value : -1;
}

std::string size_receive_buffer(int socket, const std::string& what, std::size_t bytes) {
  return size_buffer(socket, what, SO_RCVBUFFORCE, SO_RCVBUF, "net.core.rmem_max", bytes);
}

std::string size_send_buffer(int socket, const std::string& what, std::size_t bytes) {
  return size_buffer(socket, what, SO_SNDBUFFORCE, SO_SNDBUF, "net.core.wmem_max", bytes);
}

std::string size_buffers(int socket, const std::string& what, std::size_t bytes) {
  std::string warning = size_receive_buffer(socket, what, bytes);
  const std::string send = size_send_buffer(socket, what, bytes);
  if (!warning.empty() && !send.empty()) warning += "; ";
  return warning + send;
}

std::size_t receive_memory(int socket) {
  return memory_info(socket)[SK_MEMINFO_RMEM_ALLOC];
}

std::size_t dropped_datagrams(int socket) {
  return memory_info(socket)[SK_MEMINFO_DROPS];
}

}  // namespace netsum::transport
