#include "transport/bypass/xdp_socket.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <xdp/libxdp.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/addresses/next_hop.h"

namespace netsum::transport {
namespace {

constexpr std::size_t page = 4096, least_frame = 2048;  // the kernel takes no others
constexpr std::size_t with_tags = ETH_HLEN + 2 * 4;     // in front of an IP packet
constexpr std::size_t least_frames = 64;                // each way
constexpr auto between_tries = std::chrono::milliseconds(5);
constexpr int calls_for_full_ring = 256;  // of 32 frames each

bool ask(const std::string& interface, unsigned long what, ifreq& request) {
  const Descriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  return ::ioctl(any.number(), what, &request) == 0;
}

// Drivers that cannot tell have one.
std::uint32_t receiving_queues(const std::string& interface) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request{};
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (!ask(interface, SIOCETHTOOL, request)) return 1;
  return std::max(1U, channels.rx_count + channels.combined_count);
}

int silent(libxdp_print_level, const char*, va_list) {
  return 0;
}

}  // namespace

Error xdp_refused(const std::string& what, int error) {
  const std::string reason = std::generic_category().message(error);
  if (error == EPERM || error == EACCES) {
    return {ErrorCode::refused, what +
                                    " requires CAP_NET_RAW, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run as root, or grant "
                                    "them (" +
                                    reason + ")"};
  }
  if (error == EAFNOSUPPORT) return {ErrorCode::refused, what + " failed: this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)"};
  return {ErrorCode::refused, what + " failed: " + reason};
}

int despite_predecessor(std::chrono::milliseconds patience, const std::function<int()>& attempt) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int error = attempt();
  while ((error == EBUSY || error == EEXIST) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(between_tries);
    error = attempt();
  }
  return error;
}

XdpInterface xdp_interface(const std::string& name) {
  XdpInterface interface { .name = name, .index = ethernet_interface(name).index };
  ifreq request{};
  if (ask(name, SIOCGIFFLAGS, request) && (request.ifr_flags & IFF_UP) == 0) {
    throw Error(ErrorCode::refused, "interface '" + name + "' is down: ip link set " + name + " up");
  }
  interface.queues = receiving_queues(name);
  request = {};
  if (!ask(name, SIOCGIFMTU, request)) throw Error(ErrorCode::bad_argument, "interface '" + name + "' was just removed");
  interface.mtu = static_cast<std::size_t>(std::max(0, request.ifr_mtu));
  interface.longest = std::min(interface.mtu, page - XdpSocket::headroom - with_tags);
  interface.frame_bytes = std::bit_ceil(std::max(XdpSocket::headroom + with_tags + interface.longest, least_frame));
  return interface;
}

std::size_t longest_frame(const XdpInterface& interface) {
  return interface.longest + with_tags;
}

void XdpSocket::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, bytes);
}

XdpSocket::XdpSocket(const XdpInterface& interface, std::uint32_t queue, std::size_t bytes)
    : frame_bytes_(interface.frame_bytes) {
  libxdp_set_print(&silent);
  const auto frames = static_cast<std::uint32_t>(std::bit_floor(std::max(bytes / frame_bytes_, least_frames)));
  const std::size_t all = 2 * frames * frame_bytes_;
  void* const memory = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) throw xdp_refused("getting " + std::to_string(all) + " bytes for an AF_XDP socket", errno);
  memory_ = {static_cast<std::byte*>(memory), Unmap{all}};
  const int error = despite_predecessor(interface.patience, [&] { return open(interface.name, queue); });
  const std::string place = "queue " + std::to_string(queue) + " of interface '" + interface.name + "'";
  if (error == EBUSY)
    throw Error(ErrorCode::refused, place + " has an AF_XDP socket already: one process at a time can have it");
  if (error == ENOBUFS) {
    throw Error(ErrorCode::refused, "an AF_XDP socket needs " + std::to_string(all) +
                                        " bytes of locked memory, more than is permitted: raise ulimit -l, or run as root");
  }
  if (error != 0) throw xdp_refused("opening an AF_XDP socket for " + place, error);
  xdp_options options{};
  socklen_t size = sizeof options;
  zero_copy_ =
      ::getsockopt(descriptor(), SOL_XDP, XDP_OPTIONS, &options, &size) == 0 && (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
  // Where the kernel makes packets, they count as the socket's until somebody has them. Frames are what is bounded here.
  static_cast<void>(size_send_buffer(xsk_socket__fd(sending_.get()), "", 2 * all));
  frames_.emplace(rings_, std::span(memory_.get(), all), frame_bytes_);
}

XdpSocket::~XdpSocket() = default;

// Returns 0 or errno.
int XdpSocket::open(const std::string& interface, std::uint32_t queue) {
  const std::size_t all = memory_.get_deleter().bytes;
  const auto frames = static_cast<std::uint32_t>(all / frame_bytes_ / 2);
  rings_ = {};
  const xsk_umem_config shared{.fill_size = frames,
                               .comp_size = frames,
                               .frame_size = static_cast<std::uint32_t>(frame_bytes_),
                               .frame_headroom = 0,  // beside that which it always leaves
                               .flags = 0};
  xsk_umem* registered = nullptr;
  const int refused = xsk_umem__create(&registered, memory_.get(), all, &rings_.fill, &rings_.completed, &shared);
  if (refused != 0) return -refused;
  std::unique_ptr<xsk_umem, Close> memory(registered);
  xsk_socket_config config{};
  config.rx_size = config.tx_size = frames;
  config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
  config.bind_flags = XDP_USE_NEED_WAKEUP;  // the kernel tries zero copy first
  const auto bind = [&](xsk_ring_cons* received, xsk_ring_prod* transmit, std::unique_ptr<xsk_socket, Close>& into) {
    xsk_socket* socket = nullptr;
    const int not_bound = xsk_socket__create(&socket, interface.c_str(), queue, registered, received, transmit, &config);
    into.reset(socket);
    return -not_bound;
  };
  std::unique_ptr<xsk_socket, Close> sending, receiving;
  // In this order: the kernel tells the first one alone that it must be woken up to send.
  int not_bound = bind(nullptr, &rings_.transmit, sending);
  if (not_bound == 0) not_bound = bind(&rings_.received, nullptr, receiving);
  if (not_bound != 0) return not_bound;
  registered_ = std::move(memory);
  sending_ = std::move(sending);
  receiving_ = std::move(receiving);
  return 0;
}

int XdpSocket::descriptor() const {
  return xsk_socket__fd(receiving_.get());
}

std::span<const iovec> XdpSocket::receive() {
  const std::span<const iovec> taken = frames_->take();
  // A driver that ran out of frames to receive into waits to be told of new ones.
  if (xsk_ring_prod__needs_wakeup(&rings_.fill) != 0) ::recvfrom(descriptor(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
  return taken;
}

std::uint64_t XdpSocket::overrun() const {
  xdp_statistics statistics{};
  socklen_t size = sizeof statistics;
  if (::getsockopt(descriptor(), SOL_XDP, XDP_STATISTICS, &statistics, &size) != 0) return 0;
  // rx_fill_ring_empty_descs counts how often it was empty, not frames, and those frames are in rx_dropped.
  return statistics.rx_dropped + statistics.rx_ring_full;
}

std::span<std::byte> XdpSocket::add(std::size_t bytes) {
  if (bytes > frame_bytes_) return {};
  const std::span<std::byte> place = frames_->add(bytes);
  if (!place.empty()) return place;
  send();
  return frames_->add(bytes);
}

void XdpSocket::send() {
  frames_->submit();
  if (xsk_ring_prod__needs_wakeup(&rings_.transmit) == 0) return;
  std::size_t before = frames_->unsent();
  for (int call = 0; before > 0 && call < calls_for_full_ring; ++call) {
    const ssize_t sent = ::sendto(xsk_socket__fd(sending_.get()), nullptr, 0, MSG_DONTWAIT, nullptr, 0);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return;  // a later call tries again
    const std::size_t left = frames_->unsent();
    if (left == before || zero_copy_) return;
    before = left;
  }
}

}  // namespace netsum::transport
