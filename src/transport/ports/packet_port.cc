#include "transport/ports/packet_port.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/bytes.h"
#include "netsum/error.h"

namespace netsum::transport {
namespace {

constexpr std::size_t tag_bytes = 4, addresses_bytes = 12;  // of a VLAN tag, and of the addresses before it

Error refused(const std::string& interface, const std::string& why) {
  return {ErrorCode::refused, "port eth:" + interface + ": " + why};
}

int open_socket(const std::string& interface) {
  // Until it is bound, a socket with another protocol would receive from all interfaces.
  const int number = ::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (number >= 0) return number;
  const bool permission = errno == EPERM || errno == EACCES;
  throw refused(interface, "cannot open a packet socket: " + errno_text() +
                               (permission ? ": run as root, or give the program CAP_NET_RAW" : ""));
}

// Protocol 0 receives nothing.
bool bind_to(int socket, int index, std::uint16_t protocol) {
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(protocol);
  address.sll_ifindex = index;
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

struct PortInterface {
  int index = 0;
  std::size_t mtu = 0;
};

// Throws Error unless it is an Ethernet interface that is up.
PortInterface find_interface(int socket, const std::string& interface) {
  const auto bad = [&](const std::string& why) {
    return Error(ErrorCode::bad_argument, "port eth:" + interface + ": " + why);
  };
  ifreq request{};
  if (interface.size() >= sizeof request.ifr_name) throw bad("an interface's name has 15 characters at most");
  const auto ask = [&](unsigned long what) {
    request = {};
    interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
    return ::ioctl(socket, what, &request) == 0;
  };
  if (!ask(SIOCGIFHWADDR)) throw bad("no such interface here (ip link shows those of this network namespace)");
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) throw bad("the interface is not Ethernet");
  if (ask(SIOCGIFFLAGS) && (request.ifr_flags & IFF_UP) == 0) {
    throw refused(interface, "the interface is down: ip link set " + interface + " up");
  }
  PortInterface found;
  if (ask(SIOCGIFMTU)) found.mtu = static_cast<std::size_t>(std::max(0, request.ifr_mtu));
  if (!ask(SIOCGIFINDEX)) throw bad("the interface was just removed");
  found.index = request.ifr_ifindex;
  return found;
}

// Puts a tag back in its place. The frame then begins tag_bytes earlier, and its header's offsets are right again.
std::byte* restore_tag(std::byte* frame, const VlanTag& stripped) {
  std::byte* const begin = frame - tag_bytes;
  std::memmove(begin, frame, virtio_net_header_bytes + addresses_bytes);
  std::byte* const tag = begin + virtio_net_header_bytes + addresses_bytes;
  store_be(tag, stripped.type);
  store_be(tag + 2, stripped.control);
  const std::span<std::byte> place(begin, virtio_net_header_bytes);
  VirtioNetHeader header = read_virtio_net_header(place);
  constexpr auto more = static_cast<std::uint16_t>(tag_bytes);
  if (header.hdr_len != 0) header.hdr_len = static_cast<std::uint16_t>(header.hdr_len + more);
  if ((header.flags & VirtioNetHeader::needs_checksum) != 0) {
    header.csum_start = static_cast<std::uint16_t>(header.csum_start + more);
  }
  write_virtio_net_header(place, header);
  return begin;
}

}  // namespace

PacketSender::PacketSender(const std::string& interface, const std::atomic<int>& index, const PortOptions& options)
    : interface_(interface),
      index_(index),
      socket_(open_socket(interface)),
      mark_(options.mark),
      own_source_(options.own_source) {
  const int socket = socket_.number();
  if (!set_option(socket, SOL_PACKET, PACKET_VNET_HDR, 1)) {
    throw refused(interface, "setting up the packet socket failed: " + errno_text());
  }
  warning_ = size_send_buffer(socket, "the packet socket of " + interface + " a", options.buffer_bytes);
  buffer_bytes_ = static_cast<std::size_t>(std::max(0, get_option(socket, SOL_SOCKET, SO_SNDBUF)));
  follow();
  if (bound_ == 0) throw refused(interface, "binding the packet socket to the interface failed: " + errno_text());
}

// Binds to the interface that is there now.
void PacketSender::follow() {
  const int index = index_.load(std::memory_order_relaxed);
  if (index == 0 || !bind_to(socket_.number(), index, 0)) return;
  bound_ = index;
  ifreq request{};
  interface_.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (::ioctl(socket_.number(), SIOCGIFHWADDR, &request) == 0) {
    std::memcpy(address_.data(), request.ifr_hwaddr.sa_data, address_.size());
  }
}

// Like a switch, this drops frames that the link does not take; hosts retransmit.
void PacketSender::send(std::span<iovec> frames) {
  if (frames.empty()) return;
  if (index_.load(std::memory_order_relaxed) != bound_) follow();
  int queued = 0;
  const bool late = mark_ != nullptr && ::ioctl(socket_.number(), SIOCOUTQ, &queued) == 0 &&
                    static_cast<std::size_t>(queued) > long_from(buffer_bytes_);
  if (late || own_source_) {
    for (const iovec& frame : frames) {
      if (frame.iov_len < virtio_net_header_bytes + ETH_HLEN) continue;
      const auto bytes = std::span(static_cast<std::byte*>(frame.iov_base), frame.iov_len).subspan(virtio_net_header_bytes);
      if (own_source_) std::copy(address_.begin(), address_.end(), bytes.begin() + ETH_ALEN);
      if (late && mark_(bytes)) ++counters_.marked;
    }
  }
  while (!frames.empty()) {
    const FrameSender::Result result = sender_.send(socket_.number(), frames);
    counters_.frames_sent += result.sent;
    for (const iovec& frame : frames.first(result.sent)) counters_.bytes_sent += frame.iov_len - virtio_net_header_bytes;
    frames = frames.subspan(result.sent);
    if (result.error == 0) return;
    if (result.error == EAGAIN || result.error == ENOBUFS) {
      ++counters_.dropped_full;
    } else if (result.error == EINVAL) {
      ++counters_.dropped_malformed;
    } else {
      ++counters_.dropped_refused;
    }
    frames = frames.subspan(1);
  }
}

PacketPort::PacketPort(const std::string& interface, const PortOptions& options)
    : interface_(interface),
      options_(options),
      socket_(open_socket(interface)),
      long_frames_(tag_bytes, virtio_net_header_bytes + max_frame_bytes) {
  const int socket = socket_.number();
  const PortInterface found = find_interface(socket, interface);
  const bool done =
      set_option(socket, SOL_PACKET, PACKET_VNET_HDR, 1) && set_option(socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
  if (!done) throw refused(interface, "setting up the packet socket failed: " + errno_text());
  warning_ = size_receive_buffer(socket, "the packet socket of " + interface + " a", options.buffer_bytes);
  try {
    ring_.emplace(socket, found.mtu + ETH_HLEN + 2 * tag_bytes, tag_bytes, options.buffer_bytes);
  } catch (const std::system_error& error) {
    throw refused(interface, "cannot set up a ring of " + std::to_string(options.buffer_bytes) +
                                 " bytes for received frames: " + error.code().message());
  }
  attach(found.index);
  sender_.emplace(interface, index_, options);
}

void PacketPort::attach(int index) {
  packet_mreq all{};
  all.mr_ifindex = index;
  all.mr_type = PACKET_MR_PROMISC;
  if (::setsockopt(socket_.number(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) {
    throw refused(interface_, "cannot make the interface promiscuous: " + errno_text());
  }
  if (!bind_to(socket_.number(), index, ETH_P_ALL)) {
    throw refused(interface_, "cannot bind the packet socket: " + errno_text());
  }
  index_ = index;
}

std::string PacketPort::look_after() {
  ifreq request{};
  interface_.copy(request.ifr_name, sizeof request.ifr_name - 1);
  const bool is_there = ::ioctl(socket_.number(), SIOCGIFINDEX, &request) == 0;
  if (is_there ? request.ifr_ifindex == index_ : index_ == 0) return {};
  if (!is_there) {
    index_ = 0;
    return removed_line("eth:" + interface_);
  }
  try {
    attach(find_interface(socket_.number(), interface_).index);
    return returned_line("eth:" + interface_);
  } catch (const Error&) {
    return {};  // not up yet: try again next time
  }
}

std::unique_ptr<PortSender> PacketPort::another_sender() {
  return std::make_unique<PacketSender>(interface_, index_, options_);
}

void PacketPort::receive(std::vector<RxView>& into, const Endpoint& source) {
  const std::span<const PacketRing::Frame> frames = ring_->take(FrameReceiver::most);
  if (frames.empty()) {
    static_cast<void>(get_option(socket_.number(), SOL_SOCKET, SO_ERROR));  // or poll() would report it for ever
    return;
  }
  const bool late = options_.mark != nullptr && ring_->holds_more_than(long_from(ring_->slots()));
  const auto queued = static_cast<std::size_t>(
      std::count_if(frames.begin(), frames.end(), [](const PacketRing::Frame& frame) { return frame.queued; }));
  const std::span<const FrameReceiver::Frame> whole =
      queued > 0 ? long_frames_.receive(socket_.number(), queued) : std::span<const FrameReceiver::Frame>();
  std::size_t next = 0;
  for (const PacketRing::Frame& frame : frames) {
    std::byte* begin = frame.begin;
    std::size_t bytes = frame.bytes;
    if (frame.queued) {
      if (next == whole.size() || whole[next].cut) {
        ++counters_.dropped_unreadable;
        next = std::min(next + 1, whole.size());
        continue;
      }
      begin = whole[next].bytes;
      bytes = whole[next].size;
      ++next;
    } else if (frame.cut) {
      ++counters_.dropped_overrun;
      continue;
    }
    if (frame.tag) {
      begin = restore_tag(begin, *frame.tag);
      bytes += tag_bytes;
    }
    if (late && options_.mark({begin + virtio_net_header_bytes, bytes - virtio_net_header_bytes})) ++counters_.marked;
    add_view(into, {begin, bytes}, source);
    ++counters_.frames_received;
    counters_.bytes_received += bytes - virtio_net_header_bytes;
  }
}

PortCounters PacketPort::counters() const {
  tpacket_stats statistics{};  // since they were last read
  socklen_t size = sizeof statistics;
  if (::getsockopt(socket_.number(), SOL_PACKET, PACKET_STATISTICS, &statistics, &size) == 0) {
    counters_.dropped_overrun += statistics.tp_drops;
  }
  PortCounters all = counters_;
  all += sender_->counters();
  return all;
}

std::string PacketPort::warning() const {
  const bool both = !warning_.empty() && !sender_->warning().empty();
  return warning_ + (both ? "; " : "") + sender_->warning();
}

}  // namespace netsum::transport
