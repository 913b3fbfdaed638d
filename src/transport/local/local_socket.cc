#include "transport/local/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "netsum/error.h"
#include "transport/system/own_descriptor.h"

namespace netsum::transport {
namespace {

struct Address {
  sockaddr_un at{};
  socklen_t length = 0;
};

constexpr int longest_queue = 1024;  // connections not yet accepted
constexpr int most_at_once = 16;     // accepted per call, so that other work gets its turn
constexpr std::size_t longest_name = sizeof(sockaddr_un::sun_path) - 1;

Address address_of(const std::string& name) {
  Address address;
  address.at.sun_family = AF_UNIX;
  std::memcpy(address.at.sun_path + 1, name.data(), name.size());  // after a zero: abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

int make_socket() {
  return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

// All descriptors that came with a message; those that the caller drops are closed.
std::vector<std::shared_ptr<Descriptor>> descriptors_of(msghdr& header) {
  std::vector<std::shared_ptr<Descriptor>> descriptors;
  for (const cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr;
       each = CMSG_NXTHDR(&header, const_cast<cmsghdr*>(each))) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= each->cmsg_len; at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, reinterpret_cast<const std::byte*>(each) + at, sizeof number);
      descriptors.push_back(std::make_shared<Descriptor>(number));
    }
  }
  return descriptors;
}

}  // namespace

std::shared_ptr<Descriptor> not_for_children(int number) {
  return std::make_shared<OwnDescriptor>(number);
}

LocalListener::LocalListener(const std::string& name, bool root_too, std::vector<uid_t> users)
    : socket_(not_for_children(make_socket())), users_(std::move(users)) {
  users_.push_back(::geteuid());
  if (root_too) users_.push_back(0);
  if (name.size() > longest_name)
    throw Error(ErrorCode::internal,
                "the name of local socket '" + name + "' is longer than " + std::to_string(longest_name) + " bytes");
  const Address address = address_of(name);
  if (socket_->number() < 0 ||
      ::bind(socket_->number(), reinterpret_cast<const sockaddr*>(&address.at), address.length) != 0 ||
      ::listen(socket_->number(), longest_queue) != 0) {
    const ErrorCode code = errno == EADDRINUSE ? ErrorCode::refused : ErrorCode::internal;
    throw Error(code, "cannot listen on a local socket: " + errno_text());
  }
}

std::vector<LocalPeer> LocalListener::accept() {
  std::vector<LocalPeer> peers;
  resting_ = false;
  for (int i = 0; i < most_at_once; ++i) {
    const int number = ::accept4(socket_->number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (number < 0) {
      resting_ |= errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      break;
    }
    auto socket = not_for_children(number);
    const auto user = user_of(*socket);
    if (user && std::find(users_.begin(), users_.end(), *user) != users_.end()) {
      peers.push_back({std::move(socket), *user});
    } else {
      resting_ = true;
    }
  }
  return peers;
}

LocalOutcome connect_local(const std::string& name, std::shared_ptr<Descriptor>& socket) {
  socket.reset();
  if (name.size() > longest_name) return LocalOutcome::closed;
  auto made = not_for_children(make_socket());
  const Address address = address_of(name);
  if (made->number() < 0) return LocalOutcome::closed;
  if (::connect(made->number(), reinterpret_cast<const sockaddr*>(&address.at), address.length) != 0) {
    return errno == EAGAIN || errno == EINTR ? LocalOutcome::later : LocalOutcome::closed;
  }
  socket = std::move(made);
  return LocalOutcome::done;
}

std::optional<uid_t> user_of(const Descriptor& socket) {
  ucred found{};
  socklen_t bytes = sizeof found;
  if (::getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &found, &bytes) != 0) return std::nullopt;
  return found.uid;
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
  if (bytes >= 0) {
    auto came = descriptors_of(header);
    if (came.size() == 1) attached = std::move(came.front());
  }
  if (bytes == static_cast<ssize_t>(message.size()) && (header.msg_flags & MSG_TRUNC) == 0) return LocalOutcome::done;
  attached.reset();
  return LocalOutcome::closed;
}

}  // namespace netsum::transport
