#include "transport/udp.h"

#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include "netsum/error.h"
#include "transport/sockaddr.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace netsum::transport {
namespace {

constexpr std::size_t buffer_size = 65536;      // one train, as the kernel coalesces it
constexpr std::size_t receive_messages = 16;    // trains per system call: more would leave the cache
constexpr std::size_t send_messages = 64;       // trains per system call
constexpr std::size_t max_segments = 64;        // UDP_MAX_SEGMENTS of older kernels
constexpr std::size_t max_train = 65000;        // below 65535 - headers, both families
constexpr std::size_t send_arena = 2 << 20;     // bytes of datagrams written in place between flushes
constexpr std::size_t max_iovecs = 8192;
constexpr std::size_t control_bytes = CMSG_SPACE(sizeof(int));

[[nodiscard]] std::string errno_text(int error) { return std::strerror(error); }

int set_option(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof value); }

int get_option(int fd, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}

}  // namespace

// Collects trains: consecutive datagrams of equal size to the same destinations, of which the last may be shorter.
class UdpSink final : public Sink {
 public:
  UdpSink(int fd, bool ipv6, bool connected, bool segmentation)
      : fd_(fd), ipv6_(ipv6), connected_(connected), segmentation_(segmentation), arena_(send_arena) {
    iovecs_.reserve(max_iovecs);
    trains_.reserve(send_messages);
    messages_.resize(send_messages);
    controls_.resize(send_messages);
    addresses_.resize(send_messages);
  }
  ~UdpSink() = default;

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    if (arena_used_ + bytes > arena_.size()) flush();
    const std::span<std::byte> place(arena_.data() + arena_used_, bytes);
    if (trains_.empty() || trains_.back().destinations != nullptr || trains_.back().single != to) {
      open_train(nullptr, to, {});
    }
    arena_used_ += bytes;
    append(place);
    return place;
  }

  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    if (to.empty()) return;
    if (trains_.empty() || trains_.back().destinations != to.data() || trains_.back().count != to.size()) {
      open_train(to.data(), {}, to);
    }
    append(packet);
  }

  void flush() override {
    std::size_t messages = 0;
    for (const Train& train : trains_) {
      const std::size_t destinations = train.destinations == nullptr ? 1 : train.count;
      for (std::size_t i = 0; i < destinations; ++i) {
        const Endpoint& to = train.destinations == nullptr ? train.single : train.destinations[i];
        if (segmentation_ && unsegmented_.empty()) {
          if (messages == send_messages) messages = send(messages);
          prepare(messages++, to, train.first, train.segments, train);
          continue;
        }
        const bool whole = segmentation_ && !unsegmented_.contains(train.segment_bytes);
        const std::size_t step = whole ? train.segments : 1;
        for (std::size_t k = 0; k < train.segments; k += step) {
          if (messages == send_messages) messages = send(messages);
          prepare(messages++, to, train.first + k, step, train);
        }
      }
    }
    send(messages);
    trains_.clear();
    iovecs_.clear();
    arena_used_ = 0;
  }

  Counters counters;

 private:
  struct Train {
    const Endpoint* destinations;  // a multicast's, or null: `single`
    std::size_t count;
    Endpoint single;
    std::size_t first, segments;   // in iovecs_
    std::size_t segment_bytes, bytes;
    bool closed;                   // a shorter segment ended it
  };

  void open_train(const Endpoint* destinations, const Endpoint& single, std::span<const Endpoint> to) {
    if (iovecs_.size() + max_segments > max_iovecs) flush_keeping_arena();
    trains_.push_back({destinations, to.size(), single, iovecs_.size(), 0, 0, 0, false});
  }

  // The iovec table is full: what is in it goes out, but places handed out of the arena stay valid.
  void flush_keeping_arena() {
    const std::size_t used = arena_used_;
    flush();
    arena_used_ = used;
  }

  void append(std::span<const std::byte> packet) {
    Train* train = &trains_.back();
    if (train->segments > 0 && (train->closed || packet.size() > train->segment_bytes || train->segments == max_segments ||
                                train->bytes + packet.size() > max_train)) {
      const Train last = *train;
      open_train(last.destinations, last.single, {last.destinations, last.count});
      train = &trains_.back();
    }
    if (train->segments == 0) train->segment_bytes = packet.size();
    train->closed = packet.size() < train->segment_bytes;
    train->bytes += packet.size();
    ++train->segments;
    // sendmsg takes no pointer to const.
    iovecs_.push_back({const_cast<std::byte*>(packet.data()), packet.size()});
  }

  void prepare(std::size_t at, const Endpoint& to, std::size_t first, std::size_t segments, const Train& train) {
    msghdr& header = messages_[at].msg_hdr;
    header = {};
    if (!connected_) {
      header.msg_namelen = to_sockaddr(to, ipv6_, addresses_[at]);
      header.msg_name = &addresses_[at];
    }
    header.msg_iov = iovecs_.data() + first;
    header.msg_iovlen = segments;
    if (segments > 1) {
      header.msg_control = controls_[at].data();
      header.msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
      cmsghdr* control = CMSG_FIRSTHDR(&header);
      control->cmsg_level = SOL_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
      const auto bytes = static_cast<std::uint16_t>(train.segment_bytes);
      std::memcpy(CMSG_DATA(control), &bytes, sizeof bytes);
    }
  }

  // Sends messages_[0, count). UDP may lose: what the kernel refuses is counted and left to the protocol's repeats.
  std::size_t send(std::size_t count) {
    std::size_t done = 0;
    bool retried = false;
    while (done < count) {
      const int sent = sendmmsg(fd_, messages_.data() + done, static_cast<unsigned>(count - done), MSG_DONTWAIT);
      if (sent > 0) {
        for (std::size_t i = done; i < done + static_cast<std::size_t>(sent); ++i) count_sent(messages_[i].msg_hdr);
        done += static_cast<std::size_t>(sent);
        retried = false;
        continue;
      }
      if (errno == EINTR) continue;
      const bool pending = errno == ECONNREFUSED;  // an earlier datagram's ICMP answer: this one was not tried
      if (pending && !retried) {
        retried = true;
        continue;
      }
      const msghdr& header = messages_[done].msg_hdr;
      if ((errno == EINVAL || errno == EMSGSIZE || errno == EIO) && header.msg_iovlen > 1) {
        unsegmented_.insert(header.msg_iov[0].iov_len);  // longer than the path takes unfragmented: single from now on
        send_singly(header);
      } else {
        counters.send_failures += header.msg_iovlen;
      }
      ++done;
      retried = false;
    }
    return 0;
  }

  void send_singly(const msghdr& train) {
    msghdr single = train;
    single.msg_control = nullptr;
    single.msg_controllen = 0;
    single.msg_iovlen = 1;
    for (std::size_t i = 0; i < train.msg_iovlen; ++i) {
      single.msg_iov = train.msg_iov + i;
      if (sendmsg(fd_, &single, MSG_DONTWAIT) >= 0) count_sent(single);
      else ++counters.send_failures;
    }
  }

  void count_sent(const msghdr& header) {
    const std::uint64_t overhead = ipv6_ ? 62 : 42;
    counters.packets_sent += header.msg_iovlen;
    for (std::size_t i = 0; i < header.msg_iovlen; ++i) counters.wire_bytes_sent += overhead + header.msg_iov[i].iov_len;
  }

  int fd_;
  bool ipv6_, connected_, segmentation_;
  std::vector<std::byte> arena_;
  std::size_t arena_used_ = 0;
  std::vector<iovec> iovecs_;
  std::vector<Train> trains_;
  std::set<std::size_t> unsegmented_;
  std::vector<mmsghdr> messages_;
  struct alignas(cmsghdr) Control : std::array<char, control_bytes> {};
  std::vector<Control> controls_;
  std::vector<sockaddr_storage> addresses_;
};

struct Udp::Impl {
  int fd = -1;
  bool ipv6 = false;
  std::unique_ptr<UdpSink> sink;
  std::string warning;
  Counters received;

  std::vector<std::byte> buffers = std::vector<std::byte>(receive_messages * buffer_size);
  std::array<mmsghdr, receive_messages> messages{};
  std::array<iovec, receive_messages> iovecs{};
  std::array<sockaddr_storage, receive_messages> sources{};
  struct alignas(cmsghdr) Control : std::array<char, control_bytes> {};
  std::array<Control, receive_messages> controls{};
  std::vector<RxView> views;

  ~Impl() {
    if (fd >= 0) close(fd);
  }

  void size_buffer(int forced, int plain, const char* sysctl, std::size_t bytes) {
    const int wanted = static_cast<int>(bytes);
    if (set_option(fd, SOL_SOCKET, forced, wanted) != 0) set_option(fd, SOL_SOCKET, plain, wanted);
    const int got = get_option(fd, SOL_SOCKET, plain) / 2;  // the kernel doubles it for its own bookkeeping
    if (got >= wanted) return;
    if (!warning.empty()) warning += "; ";
    warning += "the kernel gave a socket buffer of " + std::to_string(got) + " bytes where " + std::to_string(wanted) +
               " were asked for: losses are likely; raise it with: sysctl -w " + sysctl + "=" + std::to_string(wanted);
  }
};

Udp::Udp(const UdpOptions& options) : impl_(std::make_unique<Impl>()) {
  const Endpoint& family = options.peer ? *options.peer : options.bind;
  const bool any = !options.peer && is_unspecified(options.bind);
  impl_->ipv6 = any ? options.ipv6 : !is_ipv4(family);
  impl_->fd = socket(impl_->ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (impl_->fd < 0) throw Error(ErrorCode::refused, "cannot open a UDP socket: " + errno_text(errno));
  const int fd = impl_->fd;

  sockaddr_storage address{};
  socklen_t size = to_sockaddr(options.bind, impl_->ipv6, address);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (bind(fd, generic, size) != 0) {
    throw Error(ErrorCode::refused, "cannot bind UDP " + to_string(options.bind) + ": " + errno_text(errno));
  }
  if (options.peer) {
    size = to_sockaddr(*options.peer, impl_->ipv6, address);
    if (connect(fd, generic, size) != 0) {
      throw Error(ErrorCode::unreachable, "no route to UDP " + to_string(*options.peer) + ": " + errno_text(errno));
    }
  }
  impl_->size_buffer(SO_RCVBUFFORCE, SO_RCVBUF, "net.core.rmem_max", options.buffer_bytes);
  impl_->size_buffer(SO_SNDBUFFORCE, SO_SNDBUF, "net.core.wmem_max", options.buffer_bytes);
  const bool segments = options.segmentation && get_option(fd, SOL_UDP, UDP_SEGMENT) >= 0;
  if (options.segmentation) set_option(fd, SOL_UDP, UDP_GRO, 1);

  impl_->sink = std::make_unique<UdpSink>(fd, impl_->ipv6, options.peer.has_value(), segments);
  impl_->views.reserve(receive_messages * max_segments);
  for (std::size_t i = 0; i < receive_messages; ++i) {
    impl_->iovecs[i] = {impl_->buffers.data() + i * buffer_size, buffer_size};
    msghdr& header = impl_->messages[i].msg_hdr;
    header.msg_iov = &impl_->iovecs[i];
    header.msg_iovlen = 1;
    header.msg_name = &impl_->sources[i];
    header.msg_control = impl_->controls[i].data();
  }
}

Udp::~Udp() = default;

std::span<const RxView> Udp::receive() {
  Impl& u = *impl_;
  u.views.clear();
  for (auto& message : u.messages) {
    message.msg_hdr.msg_namelen = sizeof(sockaddr_storage);
    message.msg_hdr.msg_controllen = control_bytes;
  }
  int count = -1;
  for (int tries = 0; count < 0 && tries < 2; ++tries) {
    // An error that an earlier datagram met (ICMP) is reported once, in place of data: ask again.
    count = recvmmsg(u.fd, u.messages.data(), receive_messages, MSG_DONTWAIT, nullptr);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
  }
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    msghdr& header = u.messages[at].msg_hdr;
    const std::size_t bytes = u.messages[at].msg_len;
    if ((header.msg_flags & MSG_TRUNC) != 0) {
      ++u.received.truncated;
      continue;
    }
    std::size_t segment = bytes;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_UDP || c->cmsg_type != UDP_GRO) continue;
      int value = 0;
      std::memcpy(&value, CMSG_DATA(c), sizeof value);
      if (value > 0) segment = static_cast<std::size_t>(value);
    }
    const Endpoint source = endpoint_of(*reinterpret_cast<const sockaddr*>(&u.sources[at]));
    const std::byte* data = u.buffers.data() + at * buffer_size;
    std::size_t begin = 0;
    do {
      const std::size_t length = std::min(segment, bytes - begin);
      u.views.push_back({{data + begin, length}, source});
      u.received.wire_bytes_received += (u.ipv6 ? 62 : 42) + length;
      begin += length;
    } while (begin < bytes);
  }
  u.received.packets_received += u.views.size();
  return u.views;
}

Sink& Udp::sink() { return *impl_->sink; }
int Udp::descriptor() const { return impl_->fd; }

Endpoint Udp::local() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(impl_->fd, reinterpret_cast<sockaddr*>(&address), &size);
  return endpoint_of(*reinterpret_cast<const sockaddr*>(&address));
}

Counters Udp::counters() const {
  Counters sum = impl_->received;
  const Counters& sent = impl_->sink->counters;
  sum.packets_sent = sent.packets_sent;
  sum.wire_bytes_sent = sent.wire_bytes_sent;
  sum.send_failures = sent.send_failures;
  return sum;
}

std::uint32_t Udp::mtu() const {
  const int value = impl_->ipv6 ? get_option(impl_->fd, IPPROTO_IPV6, IPV6_MTU) : get_option(impl_->fd, IPPROTO_IP, IP_MTU);
  return value > 0 ? static_cast<std::uint32_t>(value) : 1500;
}

std::string Udp::buffer_warning() const { return impl_->warning; }

}  // namespace netsum::transport
