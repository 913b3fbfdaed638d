#include "transport/packet_port.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "netsum/error.h"

namespace netsum::transport {
namespace {

constexpr std::size_t tag_bytes = 4, addresses_bytes = 12;  // of a VLAN tag, and of the addresses before it

Error refused(const std::string& interface, const std::string& why) {
  return {ErrorCode::refused, "port eth:" + interface + ": " + why};
}

int open_socket(const std::string& interface) {
  // Protocol 0 receives nothing: until it is bound, the socket would receive from all interfaces.
  const int number = ::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (number >= 0) return number;
  const bool permission = errno == EPERM || errno == EACCES;
  throw refused(interface, "cannot open a packet socket: " + errno_text() +
                               (permission ? ": run as root, or give the program CAP_NET_RAW" : ""));
}

// The interface's index; throws Error unless it is an Ethernet interface that is up.
int index_of(int socket, const std::string& interface) {
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
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) throw bad("the interface is not an Ethernet one");
  if (ask(SIOCGIFFLAGS) && (request.ifr_flags & IFF_UP) == 0) {
    throw refused(interface, "the interface is down: ip link set " + interface + " up");
  }
  if (!ask(SIOCGIFINDEX)) throw bad("the interface has just gone");
  return request.ifr_ifindex;
}

// The VLAN tag that the kernel moved from a frame to a control message. Not const because CMSG_NXTHDR needs it; only read.
std::optional<tpacket_auxdata> stripped_tag(msghdr& header) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_PACKET || control->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata notes{};
    std::memcpy(&notes, CMSG_DATA(control), sizeof notes);
    if ((notes.tp_status & TP_STATUS_VLAN_VALID) != 0) return notes;
  }
  return {};
}

// Puts a tag back in its place. The frame then begins tag_bytes earlier, and its header's offsets are right again.
std::byte* restore_tag(std::byte* frame, const tpacket_auxdata& notes) {
  const bool named = (notes.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0;
  std::byte* const begin = frame - tag_bytes;
  std::memmove(begin, frame, virtio_net_header_bytes + addresses_bytes);
  std::byte* const tag = begin + virtio_net_header_bytes + addresses_bytes;
  store_le(tag, htons(named ? notes.tp_vlan_tpid : std::uint16_t{ETHERTYPE_VLAN}));
  store_le(tag + 2, htons(notes.tp_vlan_tci));
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

PacketPort::PacketPort(const std::string& interface, const PortOptions& options)
    : interface_(interface),
      socket_(open_socket(interface)),
      receiver_(tag_bytes, virtio_net_header_bytes + max_frame_bytes, CMSG_SPACE(sizeof(tpacket_auxdata))) {
  const int socket = socket_.number();
  const int index = index_of(socket, interface);
  const bool done = set_option(socket, SOL_PACKET, PACKET_VNET_HDR, 1) &&
                    set_option(socket, SOL_PACKET, PACKET_AUXDATA, 1) &&
                    set_option(socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
  if (!done) throw refused(interface, "cannot set up the packet socket: " + errno_text());
  warning_ = size_buffers(socket, "the packet socket of " + interface + " a", options.buffer_bytes);
  attach(index);
}

void PacketPort::attach(int index) {
  packet_mreq all{};
  all.mr_ifindex = index;
  all.mr_type = PACKET_MR_PROMISC;
  if (::setsockopt(socket_.number(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) {
    throw refused(interface_, "cannot make the interface promiscuous: " + errno_text());
  }
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = index;
  if (::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
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
    return "port eth:" + interface_ + ": the interface has gone: nothing passes until there is one of that name again";
  }
  try {
    attach(index_of(socket_.number(), interface_));
    return "port eth:" + interface_ + ": the interface was made again, and is open again";
  } catch (const Error&) {
    return {};  // not up yet: try again next time
  }
}

void PacketPort::receive(std::vector<RxView>& into, const Endpoint& source) {
  const FrameReceiver::Result result = receiver_.receive(socket_.number());
  // A frame that PACKET_VNET_HDR cannot describe, such as a newer kind of train. It is lost; the frames after it come with
  // the next call.
  if (result.error == EINVAL) ++counters_.dropped_unreadable;
  for (const FrameReceiver::Frame& frame : result.frames) {
    if ((frame.header->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
      ++counters_.dropped_unreadable;
      continue;
    }
    const std::optional<tpacket_auxdata> tag = stripped_tag(*frame.header);
    const std::byte* const begin = tag ? restore_tag(frame.bytes, *tag) : frame.bytes;
    const std::size_t bytes = frame.size + (tag ? tag_bytes : 0);
    into.push_back({{begin, bytes}, source});
    ++counters_.frames_received;
    counters_.bytes_received += bytes - virtio_net_header_bytes;
  }
}

// Like a switch, this drops frames that the link does not take; hosts retransmit.
void PacketPort::send(std::span<iovec> frames) {
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

PortCounters PacketPort::counters() const {
  tpacket_stats statistics{};  // since they were last read
  socklen_t size = sizeof statistics;
  if (::getsockopt(socket_.number(), SOL_PACKET, PACKET_STATISTICS, &statistics, &size) == 0) {
    counters_.dropped_overrun += statistics.tp_drops;
  }
  return counters_;
}

}  // namespace netsum::transport
