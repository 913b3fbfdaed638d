#include "transport/datagram/segment_trains.h"

#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/system/caches.h"

namespace netsum::transport {
namespace {

constexpr std::size_t max_segments = 64;        // UDP_MAX_SEGMENTS of every kernel since 4.18 (newer ones: 128)
constexpr std::size_t max_train_bytes = 65487;  // one IP packet of either family: the kernel checks before it splits
// Datagrams written in place between flushes: trains, as many as fill half of the cache.
std::size_t trains_bytes() {
  return std::clamp<std::size_t>(level_2_cache_bytes() / 2, 2 * 65536, 8 * 65536);
}
constexpr std::size_t max_trains = 256;      // between flushes
constexpr std::size_t max_pieces = 2048;     // between flushes
constexpr std::size_t worth_a_piece = 2048;  // bytes: shorter ones are copied
constexpr std::size_t messages_per_call = 64;

// One more control message, behind those that the header has; `control`: the memory of all.
template <class Value>
void add_note(msghdr& header, std::byte* control, int level, int type, const Value& value) {
  header.msg_control = control;
  std::byte* const at = control + header.msg_controllen;
  const cmsghdr note{CMSG_LEN(sizeof value), level, type};
  std::memcpy(at, &note, sizeof note);
  std::memcpy(at + CMSG_LEN(0), &value, sizeof value);
  header.msg_controllen += CMSG_SPACE(sizeof value);
}

}  // namespace

bool SegmentTrains::Train::takes(std::size_t more) const {
  return !closed && datagrams < max_segments && more > 0 && more <= segment_bytes && bytes + more <= max_train_bytes;
}

void SegmentTrains::Train::add(std::size_t more) {
  if (datagrams == 0) segment_bytes = more;
  closed = more < segment_bytes;
  bytes += more;
  ++datagrams;
}

SegmentTrains::SegmentTrains(int descriptor, bool ipv6, std::optional<Endpoint> peer, bool segmentation,
                             const OwnAddresses* own_addresses, Counters& counters)
    : descriptor_(descriptor),
      ipv6_(ipv6),
      peer_(peer),
      unsegmentable_from_(segmentation ? std::numeric_limits<std::size_t>::max() : 0),
      counters_(counters),
      arena_(Copied::from, trains_bytes()),
      batch_(messages_per_call),
      singles_(messages_per_call) {
  if (own_addresses != nullptr) own_addresses_.emplace(*own_addresses);
  trains_.reserve(max_trains);
  pieces_.reserve(max_pieces);
}

std::span<std::byte> SegmentTrains::datagram(const Endpoint& to, std::size_t bytes) {
  if (bytes > max_datagram_bytes) throw Error(ErrorCode::internal, "a datagram of more than 65507 bytes was asked for");
  if (whole_lines(arena_used_) + bytes > arena_.size()) flush();
  Train& train = train_to(to, bytes, 0);
  if (train.datagrams == 0) {
    arena_used_ = whole_lines(arena_used_);
    train.whole.iov_base = arena_.data() + arena_used_;
  }
  train.add(bytes);
  train.whole.iov_len = train.bytes;
  const std::span<std::byte> place(arena_.data() + arena_used_, bytes);
  arena_used_ += bytes;
  return place;
}

Sink::Around SegmentTrains::around(const Endpoint& to, std::size_t head, std::span<const std::byte> body, std::size_t tail) {
  if (body.size() < worth_a_piece) return Sink::around(to, head, body, tail);
  const std::size_t bytes = head + body.size() + tail;
  if (bytes > max_datagram_bytes) throw Error(ErrorCode::internal, "a datagram of more than 65507 bytes was asked for");
  constexpr std::size_t pieces_each = 3;
  if (arena_used_ + head + tail > arena_.size() || pieces_.size() + pieces_each > max_pieces) flush();
  Train& train = train_to(to, bytes, pieces_each);
  if (train.datagrams == 0) train.first_piece = pieces_.size();
  train.add(bytes);
  std::byte* const place = arena_.data() + arena_used_;
  arena_used_ += head + tail;
  pieces_.push_back({place, head});
  pieces_.push_back({const_cast<std::byte*>(body.data()), body.size()});  // sendmmsg only reads it
  pieces_.push_back({place + head, tail});
  return {{place, head}, {place + head, tail}};
}

// The open one, if it can grow by this datagram, or another. Pieces of a train are consecutive: a multicast's end it.
SegmentTrains::Train& SegmentTrains::train_to(const Endpoint& to, std::size_t bytes, std::size_t pieces_each) {
  if (open_single_ != no_train) {
    Train& open = trains_[open_single_];
    const bool follows = pieces_each == 0 || open.first_piece + open.datagrams * pieces_each == pieces_.size();
    if (open.single == to && open.pieces_each == pieces_each && follows && open.takes(bytes)) return open;
  }
  if (trains_.size() == max_trains) flush();
  open_single_ = trains_.size();
  Train& train = trains_.emplace_back();
  train.single = to;
  train.pieces_each = pieces_each;
  return train;
}

void SegmentTrains::multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) {
  if (packet.size() > max_datagram_bytes)
    throw Error(ErrorCode::internal, "a datagram of more than 65507 bytes was asked for");
  if (to.empty()) return;
  if (pieces_.size() == max_pieces) flush();
  const bool grows = open_multicast_ != no_train && trains_[open_multicast_].group.data() == to.data() &&
                     trains_[open_multicast_].group.size() == to.size() &&
                     trains_[open_multicast_].first_piece + trains_[open_multicast_].datagrams == pieces_.size() &&
                     trains_[open_multicast_].takes(packet.size());
  if (!grows) {
    if (trains_.size() == max_trains) flush();
    open_multicast_ = trains_.size();
    Train& train = trains_.emplace_back();
    train.group = to;
    train.pieces_each = 1;
    train.first_piece = pieces_.size();
  }
  trains_[open_multicast_].add(packet.size());
  // An iovec serves both directions, so it points to mutable bytes; sendmmsg only reads them.
  pieces_.push_back({const_cast<std::byte*>(packet.data()), packet.size()});
}

void SegmentTrains::flush() {
  for (const Train& train : trains_) {
    for (const Endpoint& to : train.destinations()) {
      if (train.datagrams == 1 || train.segment_bytes < unsegmentable_from_) {
        put_train(batch_, train, to);
      } else {
        put_datagrams(batch_, train, to);
      }
    }
  }
  send(batch_);
  trains_.clear();
  pieces_.clear();
  arena_used_ = 0;
  open_single_ = open_multicast_ = no_train;
}

void SegmentTrains::put_train(Batch& batch, const Train& train, const Endpoint& to) {
  if (batch.full()) send(batch);
  if (train.pieces_each == 0) {
    batch.messages[batch.count].piece = train.whole;
    put(batch, train, to, train.datagrams, train.bytes, &batch.messages[batch.count].piece, 1);
  } else {
    put(batch, train, to, train.datagrams, train.bytes, &pieces_[train.first_piece], train.datagrams * train.pieces_each);
  }
}

void SegmentTrains::put_datagrams(Batch& batch, const Train& train, const Endpoint& to) {
  for (std::size_t i = 0; i < train.datagrams; ++i) {
    if (batch.full()) send(batch);
    const std::size_t begin = i * train.segment_bytes;
    const std::size_t bytes = std::min(train.segment_bytes, train.bytes - begin);
    if (train.pieces_each == 0) {
      iovec& piece = batch.messages[batch.count].piece;
      piece = {static_cast<std::byte*>(train.whole.iov_base) + begin, bytes};
      put(batch, train, to, 1, bytes, &piece, 1);
    } else {
      put(batch, train, to, 1, bytes, &pieces_[train.first_piece + i * train.pieces_each], train.pieces_each);
    }
  }
}

void SegmentTrains::put(Batch& batch, const Train& train, const Endpoint& to, std::size_t datagrams, std::size_t bytes,
                        iovec* pieces, std::size_t piece_count) {
  Message& message = batch.messages[batch.count];
  msghdr& header = batch.headers[batch.count].msg_hdr;
  header = {};
  if (!peer_ || *peer_ != to) {  // a connected socket has already looked up its route
    header.msg_namelen = to_sockaddr(to, ipv6_, message.name);
    if (header.msg_namelen == 0) {
      counters_.send_failures += datagrams;
      return;
    }
    header.msg_name = &message.name;
  }
  message.train = &train;
  message.to = &to;
  message.datagrams = datagrams;
  message.bytes = bytes;
  header.msg_iov = pieces;
  header.msg_iovlen = piece_count;
  if (datagrams > 1) {
    const auto segment = static_cast<std::uint16_t>(train.segment_bytes);
    add_note(header, message.control, SOL_UDP, UDP_SEGMENT, segment);
  }
  if (own_addresses_) name_source(to, header, message.control);
  ++batch.count;
}

void SegmentTrains::name_source(const Endpoint& to, msghdr& header, std::byte* control) {
  const auto own = own_addresses_->find(to);
  if (!own) return;
  if (ipv6_) {  // also of an IPv4 datagram
    in6_pktinfo info{};
    std::memcpy(&info.ipi6_addr, own->data(), own->size());
    add_note(header, control, IPPROTO_IPV6, IPV6_PKTINFO, info);
  } else {
    in_pktinfo info{};
    std::memcpy(&info.ipi_spec_dst, own->data() + 12, sizeof info.ipi_spec_dst);
    add_note(header, control, IPPROTO_IP, IP_PKTINFO, info);
  }
}

// UDP may lose packets, and this never waits: datagrams that the kernel refuses are counted and left to the protocol's
// retransmission.
std::size_t SegmentTrains::send(Batch& batch) {
  std::size_t taken = 0, next = 0;
  bool retried = false;
  while (next < batch.count) {
    const int sent = ::sendmmsg(descriptor_, &batch.headers[next], static_cast<unsigned>(batch.count - next),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      for (const std::size_t end = next + static_cast<std::size_t>(sent); next < end; ++next) {
        const Message& message = batch.messages[next];
        taken += message.datagrams;
        counters_.wire_bytes_sent += message.bytes + message.datagrams * header_bytes(*message.to);
      }
      retried = false;
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    // The next call reports an ICMP answer to an earlier datagram, and then sends nothing.
    if (!retried && error != EAGAIN && error != ENOBUFS) {
      retried = true;
      continue;
    }
    retried = false;
    const Message& message = batch.messages[next++];
    const bool train_refused = error == EINVAL || error == EMSGSIZE || error == EIO;
    if (message.datagrams == 1 || !train_refused) {
      counters_.send_failures += message.datagrams;
      continue;
    }
    // A segment longer than the path's MTU, or an interface without checksum offload. If single datagrams pass, the segment
    // size was at fault and not the destination.
    put_datagrams(singles_, *message.train, *message.to);
    if (send(singles_) > 0) unsegmentable_from_ = std::min(unsegmentable_from_, message.train->segment_bytes);
  }
  counters_.packets_sent += taken;
  batch.count = 0;
  return taken;
}

}  // namespace netsum::transport
