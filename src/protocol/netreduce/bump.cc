#include "protocol/netreduce/bump.h"

#include <algorithm>

#include "base/virtio_net.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace netsum::netreduce {
namespace {

// More than any RoCE packet: the payload is at most a path MTU, plus all headers.
constexpr std::size_t longest_frame = wire::roce::max_mtu + 256;

}  // namespace

Bump::Bump(const BridgeConfig& bridge) : one_arm_(bridge.one_arm), bridge_(bridge), completed_(Copied::into, longest_frame) {
  accelerator().on_gathered([this](std::uint64_t incarnation, Sink& sink) { learned_racks_.announce(incarnation, sink); });
}

void Bump::on_datagrams(std::span<const RxView> datagrams, Time now, Sink& sink) {
  for (auto next = datagrams.begin(); next != datagrams.end();) {
    const bool agreement = LearnedRacks::takes(next->bytes);
    const auto end = std::find_if(next, datagrams.end(),
                                  [&](const RxView& each) { return LearnedRacks::takes(each.bytes) != agreement; });
    if (!agreement) tunnel_.on_packets({next, end}, now, sink);
    for (; agreement && next != end; ++next) learned_racks_.on_datagram(*next, now, sink);
    next = end;
  }
}

void Bump::on_packets(std::span<const RxView> frames, Time now, Sink& sink) {
  for (const RxView& view : frames) {
    // A buffer shorter than its virtio header holds no frame; the bridge counts it.
    const std::size_t skip = std::min(view.bytes.size(), virtio_net_header_bytes);
    const std::span<const Endpoint> to = bridge_.route(view.bytes.subspan(skip), view.source, now);
    if (!to.empty() && !taken(view, to, now, sink)) sink.multicast(view.bytes, to);
  }
}

bool Bump::is_gradient(std::span<const std::byte> ip_packet, std::size_t payload_at) const {
  const auto seen = wire::roce::glance(ip_packet, payload_at);
  return seen && accelerator().may_be_gradient({seen->source, seen->destination, seen->destination_qp}, seen->beginning);
}

// A train may contain several connections, if they share a source port.
bool Bump::train_has_gradients(std::span<const std::byte> ip_packet, std::size_t segment) const {
  if (segment == 0) return is_gradient(ip_packet);
  for (std::size_t at = 0; at < ip_packet.size(); at += segment) {
    if (is_gradient(ip_packet, at)) return true;
  }
  return false;
}

bool Bump::taken(const RxView& view, std::span<const Endpoint> to, Time now, Sink& sink) {
  std::span<const std::byte> bytes = view.bytes;
  const auto ethernet = wire::ethernet::parse(bytes.subspan(virtio_net_header_bytes));
  if (!ethernet || (ethernet->type != wire::ethernet::ipv4 && ethernet->type != wire::ethernet::ipv6)) {
    ++counters_.others;
    return one_arm_;
  }
  const std::size_t ip_at = virtio_net_header_bytes + ethernet->bytes;
  const std::span<const std::byte> as_it_came = bytes.subspan(ip_at);
  const auto unreadable = [&](std::uint64_t& count) {
    const bool gradient = is_gradient(as_it_came);
    ++(gradient ? counters_.dropped_unreadable : count);
    return gradient;
  };
  if (!wire::roce::is_roce(as_it_came)) return unreadable(counters_.others) || one_arm_;
  const VirtioNetHeader header = read_virtio_net_header(bytes);
  if (header.gso_type != VirtioNetHeader::gso_none) {
    const bool gradients = train_has_gradients(as_it_came, header.gso_size);
    ++(gradients ? counters_.dropped_trains : counters_.trains);
    return gradients;
  }
  // The accelerator sends frames with complete checksums. So its input must have them too, or the next device computes
  // another on top.
  if ((header.flags & VirtioNetHeader::needs_checksum) != 0) {
    const std::span<std::byte> copy = completed_.first(std::min(bytes.size(), completed_.size()));
    std::copy_n(bytes.begin(), copy.size(), copy.begin());
    if (copy.size() < bytes.size() || !complete_checksum(copy)) {
      return unreadable(counters_.unreadable[static_cast<std::size_t>(wire::ParseError::checksum)]);
    }
    bytes = copy;
  }
  wire::roce::Packet packet;
  if (const auto error = wire::roce::parse(bytes.subspan(ip_at), packet); error != wire::ParseError::none) {
    return unreadable(counters_.unreadable[static_cast<std::size_t>(error)]);
  }
  const std::uint32_t qp = packet.bth.destination_qp;
  if ((qp == up_qp || qp == down_qp) && tunnel_.carries({packet.ip.source, packet.ip.destination, qp})) {
    ++counters_.dropped_virtual;
    return true;
  }
  ++counters_.roce;
  const Endpoint egress = to.size() == 1 ? to.front() : Endpoint{};
  return accelerator().on_packet(packet, bytes, ip_at, egress, now, sink, to) == Accelerator::Verdict::taken;
}

}  // namespace netsum::netreduce
