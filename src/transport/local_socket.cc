#include "transport/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "netsum/error.h"

namespace netsum::transport {
namespace {

struct Address {
  sockaddr_un at{};
  socklen_t length = 0;
};

Address address_of(const std::string& name) {
  Address address;
  address.at.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof address.at.sun_path - 1);
  std::memcpy(address.at.sun_path + 1, name.data(), bytes);  // after a zero: abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

std::shared_ptr<Descriptor> make_socket() {
  return std::make_shared<Descriptor>(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

std::shared_ptr<Descriptor> listen_local(const std::string& name) {
  auto socket = make_socket();
  const Address address = address_of(name);
  if (socket->number() < 0 ||
      ::bind(socket->number(), reinterpret_cast<const sockaddr*>(&address.at), address.length) != 0 ||
      ::listen(socket->number(), 1024) != 0) {
    throw Error(ErrorCode::internal, "cannot listen on a local socket: " + errno_text());
  }
  return socket;
}

std::shared_ptr<Descriptor> accept_local(const Descriptor& listener) {
  const int number = ::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  return number < 0 ? nullptr : std::make_shared<Descriptor>(number);
}

std::shared_ptr<Descriptor> connect_local(const std::string& name) {
  auto socket = make_socket();
  const Address address = address_of(name);
  if (socket->number() < 0 ||
      ::connect(socket->number(), reinterpret_cast<const sockaddr*>(&address.at), address.length) != 0) {
    return nullptr;
  }
  return socket;
}

LocalOutcome send_local(const Descriptor& socket, std::span<const std::byte> message, const Descriptor* attached) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::byte room[CMSG_SPACE(sizeof(int))] = {};
  if (attached != nullptr) {
    header.msg_control = room;
    header.msg_controllen = sizeof room;
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = attached->number();
    std::memcpy(CMSG_DATA(rights), &number, sizeof number);
  }
  if (::sendmsg(socket.number(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return LocalOutcome::done;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ETOOMANYREFS ? LocalOutcome::later
                                                                                            : LocalOutcome::closed;
}

LocalOutcome receive_local(const Descriptor& socket, std::span<std::byte> message, std::shared_ptr<Descriptor>& attached) {
  attached.reset();
  iovec part{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::byte room[CMSG_SPACE(sizeof(int))] = {};
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  const ssize_t bytes = ::recvmsg(socket.number(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return LocalOutcome::later;
  if (bytes > 0) {
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
        rights->cmsg_len == CMSG_LEN(sizeof(int))) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(rights), sizeof number);
      attached = std::make_shared<Descriptor>(number);
    }
  }
  // More descriptors than one do not fit, and the kernel closes them.
  return bytes == static_cast<ssize_t>(message.size()) && (header.msg_flags & MSG_TRUNC) == 0 ? LocalOutcome::done
                                                                                              : LocalOutcome::closed;
}

}  // namespace netsum::transport
