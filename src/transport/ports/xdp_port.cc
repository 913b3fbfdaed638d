#include "transport/ports/xdp_port.h"

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/cache_line.h"
#include "base/copied.h"
#include "netsum/error.h"
#include "transport/addresses/next_hop.h"
#include "transport/bypass/xdp_socket.h"
#include "transport/bypass/xdp_steering.h"
#include "transport/system/socket.h"

namespace netsum::transport {
namespace {

constexpr std::size_t longest_tags = 8;

XdpInterface interface_of(const std::string& name, bool waits) {
  XdpInterface interface = xdp_interface(name);
  if (!waits) interface.patience = {};
  if (interface.longest < interface.mtu) {
    throw Error(ErrorCode::bad_argument, "the MTU of interface '" + name + "', " + std::to_string(interface.mtu) +
                                             ", is too long for AF_XDP, where a frame must fit into a page: ip link set " +
                                             name + " mtu 3000");
  }
  return interface;
}

// What is there as long as the interface is. It is promiscuous as long as a packet socket, which receives nothing, wants
// that.
class Attached {
 public:
  // `waits`: for what an ended process had there.
  Attached(const std::string& name, std::size_t bytes, int poll, bool waits)
      : interface_(interface_of(name, waits)),
        steering_(interface_, XdpSteering::Takes::every_frame),
        promiscuous_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)) {
    steering_.attach();  // first: a second port on the interface finds out here
    for (std::uint32_t queue = 0; queue < interface_.queues; ++queue) {
      sockets_.push_back(std::make_unique<XdpSocket>(interface_, queue, bytes / interface_.queues));
      steering_.add_socket(queue, *sockets_.back());
      epoll_event event{.events = EPOLLIN, .data = {.u64 = queue}};
      if (::epoll_ctl(poll, EPOLL_CTL_ADD, sockets_.back()->descriptor(), &event) != 0) {
        throw xdp_refused("watching an AF_XDP socket", errno);
      }
    }
    packet_mreq all{};
    all.mr_ifindex = static_cast<int>(interface_.index);
    all.mr_type = PACKET_MR_PROMISC;
    if (::setsockopt(promiscuous_.number(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) {
      throw xdp_refused("making interface '" + name + "' promiscuous", errno);
    }
    address_ = ethernet_interface(name).address;
  }

  [[nodiscard]] const XdpInterface& interface() const { return interface_; }
  [[nodiscard]] const EthernetAddress& address() const { return address_; }
  [[nodiscard]] std::span<const std::unique_ptr<XdpSocket>> sockets() const { return sockets_; }
  [[nodiscard]] XdpSocket& sending() const { return *sockets_.front(); }
  [[nodiscard]] XdpLimit limit() const { return steering_.limit(); }
  [[nodiscard]] std::uint64_t overrun() const {
    std::uint64_t sum = 0;
    for (const auto& socket : sockets_) sum += socket->overrun();
    return sum;
  }

 private:
  const XdpInterface interface_;
  std::vector<std::unique_ptr<XdpSocket>> sockets_;  // by queue
  XdpSteering steering_;
  Descriptor promiscuous_;
  EthernetAddress address_{};
};

class XdpPort final : public Port {
 public:
  XdpPort(const std::string& interface, const PortOptions& options)
      : name_(interface), options_(options), poll_(::epoll_create1(EPOLL_CLOEXEC)), completed_(Copied::into, max_completed) {
    if (poll_.number() < 0) throw xdp_refused("watching AF_XDP sockets", errno);
    attached_.emplace(name_, options_.buffer_bytes, poll_.number(), true);
  }

  void receive(std::vector<RxView>& into, const Endpoint& source) override;
  void send(std::span<iovec> frames) override;
  int descriptor() const override { return poll_.number(); }
  PortCounters counters() const override {
    PortCounters all = counters_;
    if (attached_) all.dropped_overrun += attached_->overrun();
    if (attached_) all.dropped_unreadable += attached_->limit().dropped;
    return all;
  }
  std::uint64_t queued_bytes() const override {
    std::uint64_t sum = 0;
    if (!attached_) return 0;
    for (const auto& socket : attached_->sockets()) sum += socket->waiting() * socket->frame_bytes();
    return sum;
  }
  std::string warning() const override { return {}; }  // its memory is its own
  std::string look_after() override;
  bool attached() const override { return attached_.has_value(); }

 private:
  static constexpr std::size_t max_completed = virtio_net_header_bytes + 4096;

  // False: not a frame that can be sent; counted.
  bool prepare(std::span<std::byte>& frame);
  std::string words_of_length();

  const std::string name_;
  const PortOptions options_;
  Descriptor poll_;
  std::optional<Attached> attached_;  // none: the interface is gone
  CopiedMemory completed_;            // a frame whose checksum was computed
  PortCounters counters_;
  bool told_of_length_ = false;
};

void XdpPort::receive(std::vector<RxView>& into, const Endpoint& source) {
  if (!attached_) return;
  for (const auto& socket : attached_->sockets()) {
    const bool late = options_.mark != nullptr && socket->waiting() > long_from(socket->capacity());
    for (const iovec& frame : socket->receive()) {
      auto* const begin = static_cast<std::byte*>(frame.iov_base) - virtio_net_header_bytes;
      std::memset(begin, 0, virtio_net_header_bytes);
      if (late && options_.mark({begin + virtio_net_header_bytes, frame.iov_len})) ++counters_.marked;
      add_view(into, {begin, virtio_net_header_bytes + frame.iov_len}, source);
      ++counters_.frames_received;
      counters_.bytes_received += frame.iov_len;
    }
  }
}

bool XdpPort::prepare(std::span<std::byte>& frame) {
  if (frame.size() < virtio_net_header_bytes + ETH_HLEN) {
    ++counters_.dropped_malformed;
    return false;
  }
  const VirtioNetHeader header = read_virtio_net_header(frame);
  if (header.gso_type != VirtioNetHeader::gso_none) {
    ++counters_.dropped_train;
    return false;
  }
  if (frame.size() > virtio_net_header_bytes + ETH_HLEN + longest_tags + attached_->interface().mtu) {
    ++counters_.dropped_refused;
    return false;
  }
  if ((header.flags & VirtioNetHeader::needs_checksum) != 0) {
    // In a copy: the same frame may be sent to several ports.
    const auto copy = completed_.first(frame.size());
    std::copy(frame.begin(), frame.end(), copy.begin());
    if (!complete_checksum(copy)) {
      ++counters_.dropped_malformed;
      return false;
    }
    frame = copy;
  }
  frame = frame.subspan(virtio_net_header_bytes);
  return true;
}

void prefetch(const iovec& frame) {
  const auto* const begin = static_cast<const std::byte*>(frame.iov_base);
  for (std::size_t line = 0; line < frame.iov_len; line += cache_line) __builtin_prefetch(begin + line);
}

// Like a switch, this drops frames that the link does not take; hosts retransmit.
void XdpPort::send(std::span<iovec> frames) {
  if (!attached_) {
    counters_.dropped_refused += frames.size();
    return;
  }
  XdpSocket& socket = attached_->sending();
  const bool late = options_.mark != nullptr && socket.outgoing() > long_from(socket.capacity());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (i + 1 < frames.size()) prefetch(frames[i + 1]);
    std::span<std::byte> frame(static_cast<std::byte*>(frames[i].iov_base), frames[i].iov_len);
    if (!prepare(frame)) continue;
    const std::span<std::byte> place = socket.add(frame.size());
    if (place.empty()) {
      ++counters_.dropped_full;
      continue;
    }
    std::memcpy(place.data(), frame.data(), frame.size());
    if (options_.own_source) std::memcpy(place.data() + ETH_ALEN, attached_->address().data(), ETH_ALEN);
    if (late && options_.mark(place)) ++counters_.marked;
    ++counters_.frames_sent;
    counters_.bytes_sent += frame.size();
  }
  socket.send();
}

// Once.
std::string XdpPort::words_of_length() {
  const XdpLimit limit = attached_->limit();
  if (limit.dropped == 0 || std::exchange(told_of_length_, true)) return {};
  return "warning: port xdp:" + name_ + " drops frames that are too long: one has " + std::to_string(limit.longest_seen) +
         " bytes, and the MTU was " + std::to_string(attached_->interface().mtu) +
         " when the port was opened: give the bump's ports and the hosts one MTU, and start the bump again";
}

std::string XdpPort::look_after() {
  const std::uint32_t index = ::if_nametoindex(name_.c_str());
  if (attached_ && index == attached_->interface().index) return words_of_length();
  if (!attached_ && index == 0) return {};
  if (attached_) {
    counters_.dropped_overrun += attached_->overrun();
    counters_.dropped_unreadable += attached_->limit().dropped;
    attached_.reset();
  }
  if (index == 0) {
    return removed_line("xdp:" + name_);
  }
  try {
    attached_.emplace(name_, options_.buffer_bytes, poll_.number(), false);  // other ports' frames are waiting
    return returned_line("xdp:" + name_);
  } catch (const Error&) {
    return {};  // not up yet: try again next time
  }
}

}  // namespace

std::unique_ptr<Port> open_xdp_port(const std::string& interface, const PortOptions& options) {
  try {
    return std::make_unique<XdpPort>(interface, options);
  } catch (const Error& error) {
    throw Error(error.code(), "port xdp:" + interface + ": " + error.what());
  }
}

}  // namespace netsum::transport
