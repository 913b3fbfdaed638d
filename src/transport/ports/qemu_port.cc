#include "transport/ports/qemu_port.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"

namespace netsum::transport {
namespace {

constexpr std::size_t least_frame_bytes = 14;

bool is_path(const std::string& text) {
  return text.find('/') != std::string::npos;
}

int open_socket(int family) {
  const int number = ::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (number < 0) throw Error(ErrorCode::refused, "cannot open a socket for a QEMU port: " + errno_text());
  return number;
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw Error(ErrorCode::bad_argument, "the path of a QEMU port's socket is too long: " + path);
  }
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

bool attach(int (*call)(int, const sockaddr*, socklen_t), int socket, const std::string& path) {
  const sockaddr_un address = unix_address(path);
  return call(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Whether `path` is the socket of a process that has ended.
bool left_behind(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  const Descriptor probe(open_socket(AF_UNIX));
  return !attach(::connect, probe.number(), path) && errno == ECONNREFUSED;
}

int open_path(const std::string& path) {
  const int socket = open_socket(AF_UNIX);
  if (attach(::bind, socket, path)) return socket;
  int error = errno;
  if (error == EADDRINUSE && left_behind(path)) {
    ::unlink(path.c_str());
    if (attach(::bind, socket, path)) return socket;
    error = errno;
  }
  ::close(socket);
  throw Error(ErrorCode::refused,
              "cannot bind the QEMU port's socket " + path + ": " + std::generic_category().message(error));
}

int open_udp(const std::string& local, const std::string& remote) {
  const Endpoint from = resolve(local), to = resolve(remote);
  const bool ipv6 = !is_ipv4(from);
  sockaddr_storage address{};
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  if (to.port == 0 || is_ipv4(to) == ipv6) {
    throw Error(ErrorCode::bad_argument, "a QEMU port at " + local + " cannot send to " + remote);
  }
  const int socket = open_socket(ipv6 ? AF_INET6 : AF_INET);
  if (::bind(socket, generic, to_sockaddr(from, ipv6, address)) != 0 ||
      ::connect(socket, generic, to_sockaddr(to, ipv6, address)) != 0) {
    const int error = errno;
    ::close(socket);
    throw Error(ErrorCode::refused,
                "cannot use UDP " + local + " to " + remote + " as a QEMU port: " + std::generic_category().message(error));
  }
  return socket;
}

int open_local(const std::string& local, const std::string& remote) {
  for (const std::string& text : {local, remote}) {
    if (!is_path(text) && text.find(':') == std::string::npos) {
      throw Error(ErrorCode::bad_argument,
                  "'" + text + "' of a QEMU port is neither a path (those have a '/' in them) nor HOST:PORT");
    }
  }
  if (is_path(local) != is_path(remote)) {
    throw Error(ErrorCode::bad_argument,
                "the ends '" + local + "' and '" + remote + "' of a QEMU port must both be paths, or both HOST:PORT");
  }
  if (!is_path(local)) return open_udp(local, remote);
  static_cast<void>(unix_address(remote));  // throws if too long
  return open_path(local);
}

}  // namespace

QemuPort::QemuPort(const std::string& local, const std::string& remote, const PortOptions& options)
    : local_(local),
      remote_(remote),
      receive_(open_local(local, remote)),
      send_(is_path(local) ? open_socket(AF_UNIX) : ::fcntl(receive_.number(), F_DUPFD_CLOEXEC, 0)),
      mark_(options.mark),
      receiver_(virtio_net_header_bytes, max_frame_bytes),
      queue_(options.queue_bytes),
      completed_(Copied::into, virtio_net_header_bytes + max_frame_bytes) {
  warning_ = size_buffers(receive_.number(), "a QEMU port's socket a", options.buffer_bytes);
  receive_buffer_ = static_cast<std::size_t>(std::max(0, get_option(receive_.number(), SOL_SOCKET, SO_RCVBUF)));
  if (is_path(local)) {
    static_cast<void>(size_buffers(send_.number(), "", options.buffer_bytes));  // the same limits, and so the same warning
    attach(::connect, send_.number(), remote);                                  // if the guest is there already
  }
}

QemuPort::~QemuPort() {
  if (is_path(local_)) ::unlink(local_.c_str());
}

void QemuPort::receive(std::vector<RxView>& into, const Endpoint& source) {
  const bool late = mark_ != nullptr && receive_memory(receive_.number()) > long_from(receive_buffer_);
  // An error reports an earlier frame that no guest was there to take.
  for (const FrameReceiver::Frame& frame : receiver_.receive(receive_.number()).frames) {
    if (frame.cut) {
      ++counters_.dropped_unreadable;
      continue;
    }
    std::byte* const begin = frame.bytes - virtio_net_header_bytes;
    std::memset(begin, 0, virtio_net_header_bytes);
    if (late && mark_({frame.bytes, frame.size})) ++counters_.marked;
    into.push_back({{begin, virtio_net_header_bytes + frame.size}, source});
    ++counters_.frames_received;
    counters_.bytes_received += frame.size;
  }
}

void QemuPort::send(std::span<iovec> frames) {
  while (!queue_.empty()) {
    const std::span<std::byte> first = queue_.front();
    iovec piece{first.data(), first.size()};
    if (offer({&piece, 1}) == 0) break;
    queue_.pop();
  }
  const bool late = mark_ != nullptr && queue_.bytes() > long_from(queue_.capacity());
  // Frames that need no change are sent in runs.
  std::size_t run = 0;
  const auto end_run = [&](std::size_t end) {
    transmit(frames.subspan(run, end - run));
    run = end + 1;
  };
  for (std::size_t i = 0; i < frames.size(); ++i) {
    iovec& frame = frames[i];
    const std::span<std::byte> bytes(static_cast<std::byte*>(frame.iov_base), frame.iov_len);
    if (bytes.size() < virtio_net_header_bytes + least_frame_bytes || bytes.size() > completed_.size()) {
      end_run(i);
      ++counters_.dropped_malformed;
      continue;
    }
    const VirtioNetHeader header = read_virtio_net_header(bytes);
    frame = {bytes.data() + virtio_net_header_bytes, bytes.size() - virtio_net_header_bytes};
    if (late && mark_(bytes.subspan(virtio_net_header_bytes))) ++counters_.marked;
    if (header.gso_type != VirtioNetHeader::gso_none) {
      end_run(i);
      ++counters_.dropped_train;
    } else if ((header.flags & VirtioNetHeader::needs_checksum) != 0) {
      end_run(i);
      // In a copy: the same frame may be sent to several ports.
      const auto copy = completed_.first(bytes.size());
      std::copy(bytes.begin(), bytes.end(), copy.begin());
      if (complete_checksum(copy)) {
        iovec piece{copy.data() + virtio_net_header_bytes, copy.size() - virtio_net_header_bytes};
        transmit({&piece, 1});
      } else {
        ++counters_.dropped_malformed;
      }
    }
  }
  end_run(frames.size());
}

void QemuPort::transmit(std::span<iovec> frames) {
  if (queue_.empty()) frames = frames.subspan(offer(frames));
  for (const iovec& frame : frames) {
    if (!queue_.push({static_cast<const std::byte*>(frame.iov_base), frame.iov_len})) ++counters_.dropped_full;
  }
}

// Sends frames, and drops those that can never be sent. Returns how many are done: the others wait for room.
std::size_t QemuPort::offer(std::span<iovec> frames) {
  std::size_t done = 0;
  bool again = true;
  while (done < frames.size()) {
    const FrameSender::Result result = sender_.send(send_.number(), frames.subspan(done));
    counters_.frames_sent += result.sent;
    for (const iovec& frame : frames.subspan(done, result.sent)) counters_.bytes_sent += frame.iov_len;
    done += result.sent;
    if (result.error == 0 || result.error == EAGAIN) break;
    if (result.error == EMSGSIZE || result.error == ENOBUFS) {
      ++counters_.dropped_refused;
      ++done;
      continue;
    }
    // The guest is gone or has restarted. UDP reports this once, for an earlier frame, so just try again.
    if (again && (!is_path(local_) || attach(::connect, send_.number(), remote_))) {
      again = false;
      continue;
    }
    counters_.dropped_refused += frames.size() - done;
    done = frames.size();
  }
  return done;
}

}  // namespace netsum::transport
