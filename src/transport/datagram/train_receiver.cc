#include "transport/datagram/train_receiver.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "transport/addresses/addresses.h"
#include "transport/system/caches.h"

namespace netsum::transport {
namespace {

constexpr std::size_t buffer_bytes = 65536;  // the longest datagram, and the longest train
// Consecutive buffers at a multiple of 64 KiB would compete for the same cache sets when each holds one short datagram.
constexpr std::size_t buffer_stride = buffer_bytes + 1088;
static_assert(buffer_stride % cache_line == 0, "each buffer lies as the first does (base/copied.h)");
// The most per call, as many as fill the cache: more would leave it before they are summed, and delay the answer to the
// first.
std::size_t trains_per_call() {
  return std::clamp<std::size_t>(level_2_cache_bytes() / buffer_bytes, 2, 16);
}
constexpr std::size_t datagrams_per_call = 64;       // without trains
constexpr std::size_t most_received_segments = 128;  // in one train, in newer kernels

struct TrainNotes {
  std::size_t segment = 0;                     // bytes; 0: one datagram
  bool congested = false;                      // applies to all its datagrams: the kernel coalesces none that differ in this
  std::optional<OwnAddresses::Address> own{};  // where it was sent to
};

// A train's control messages. Not const because CMSG_NXTHDR needs it; only read.
TrainNotes notes_of(msghdr& header) {
  TrainNotes notes;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    const auto is = [&](int level, int type) { return control->cmsg_level == level && control->cmsg_type == type; };
    const auto read = [&](auto value) {
      std::memcpy(&value, CMSG_DATA(control), sizeof value);
      return value;
    };
    if (is(SOL_UDP, UDP_GRO)) {
      notes.segment = static_cast<std::size_t>(std::max(read(int{}), 0));
    } else if (is(IPPROTO_IP, IP_TOS)) {
      notes.congested = IPTOS_ECN(read(std::uint8_t{})) == IPTOS_ECN_CE;
    } else if (is(IPPROTO_IPV6, IPV6_TCLASS)) {
      notes.congested = IPTOS_ECN(read(int{})) == IPTOS_ECN_CE;
    } else if (is(IPPROTO_IP, IP_PKTINFO)) {
      sockaddr_storage own{};
      auto& in = reinterpret_cast<sockaddr_in&>(own);
      in.sin_family = AF_INET;
      in.sin_addr = read(in_pktinfo{}).ipi_spec_dst;
      notes.own = endpoint_of(own).address;
    } else if (is(IPPROTO_IPV6, IPV6_PKTINFO)) {
      const in6_pktinfo info = read(in6_pktinfo{});
      std::memcpy(notes.own.emplace().data(), &info.ipi6_addr, sizeof info.ipi6_addr);
    }
  }
  return notes;
}

}  // namespace

TrainReceiver::TrainReceiver(int descriptor, bool coalescing, OwnAddresses* own_addresses, Counters& counters)
    : descriptor_(descriptor), own_addresses_(own_addresses), counters_(counters) {
  if (own_addresses_ != nullptr) known_addresses_.emplace(*own_addresses_);
  const std::size_t count = coalescing ? trains_per_call() : datagrams_per_call;
  buffers_ = CopiedMemory(Copied::into, count * buffer_stride);
  headers_.resize(count);
  messages_.resize(count);
  views_.reserve(coalescing ? count * most_received_segments : count);
  for (std::size_t i = 0; i < count; ++i) {
    messages_[i].buffer = {buffers_.data() + i * buffer_stride, buffer_bytes};
    msghdr& header = headers_[i].msg_hdr;
    header.msg_iov = &messages_[i].buffer;
    header.msg_iovlen = 1;
    header.msg_name = &messages_[i].source;
    header.msg_namelen = sizeof messages_[i].source;
    header.msg_control = messages_[i].control;
    header.msg_controllen = sizeof messages_[i].control;
  }
}

std::span<const RxView> TrainReceiver::receive() {
  views_.clear();
  int count = -1;
  // A connected socket reports the ICMP answer to an earlier datagram once, in place of data: then try again.
  for (int tries = 0; count < 0 && tries < 2; ++tries) {
    count = ::recvmmsg(descriptor_, headers_.data(), static_cast<unsigned>(headers_.size()), MSG_DONTWAIT, nullptr);
    if (count < 0 && errno == EAGAIN) break;
  }
  for (std::size_t i = 0; count > 0 && i < static_cast<std::size_t>(count); ++i) {
    msghdr& header = headers_[i].msg_hdr;
    split(header, messages_[i], headers_[i].msg_len);
    header.msg_namelen = sizeof messages_[i].source;
    header.msg_controllen = sizeof messages_[i].control;
  }
  counters_.packets_received += views_.size();
  return views_;
}

void TrainReceiver::split(msghdr& header, const Message& message, std::size_t bytes) {
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    ++counters_.truncated;
    return;
  }
  const TrainNotes notes = notes_of(header);
  const std::size_t segment = notes.segment > 0 ? notes.segment : bytes;
  const Endpoint source = endpoint_of(message.source);
  if (known_addresses_ && notes.own && known_addresses_->find(source) != notes.own)
    own_addresses_->learn(source, *notes.own);
  const auto* data = static_cast<const std::byte*>(message.buffer.iov_base);
  const std::size_t headers = header_bytes(source);
  std::size_t begin = 0;
  do {  // once for an empty datagram
    const std::size_t length = std::min(segment, bytes - begin);
    add_view(views_, {data + begin, length}, source, notes.congested);
    counters_.wire_bytes_received += headers + length;
    begin += length;
  } while (begin < bytes);
}

}  // namespace netsum::transport
