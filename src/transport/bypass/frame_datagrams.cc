#include "transport/bypass/frame_datagrams.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace netsum::transport {
namespace {

constexpr std::size_t most_ways = 16384;
constexpr int most_tries = 8;

}  // namespace

Time time_now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch());
}

Time recent_time() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);  // steady_clock's, as of the last tick
  return Time(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

Counters FrameDatagrams::counters() const {
  Counters all = counters_;
  all.dropped_kernel = dropped_kernel();
  return all;
}

// Empty means that there is nothing: a batch without a datagram of ours does not. A flood of them does not keep the caller.
void FrameDatagrams::take_frames() {
  int tries = 0;
  while (tries < most_tries && take() && received_.empty()) ++tries;
  if (received_.empty()) now_ = recent_time();
}

bool FrameDatagrams::accept(std::span<const std::byte> frame, const wire::UdpFrame& read) {
  if (peer_ && read.from != *peer_) return false;
  hand_out(read.datagram, read.from, ecn_ && read.congested);
  known_.remember(frame, received_.back());
  return true;
}

void FrameDatagrams::lead(Way& way, FramePlaces& places, std::size_t mtu, const wire::UdpWay& addresses) {
  way.places = &places;
  way.most = mtu - wire::ip_udp_bytes;
  wire::UdpWay marked = addresses;
  marked.ecn = ecn_ ? wire::Ecn::capable_0 : wire::Ecn::not_capable;
  way.head = wire::UdpHead(marked);
}

const FrameDatagrams::Way& FrameDatagrams::way_to(const Endpoint& to) {
  auto& [recent, known] = recent_[EndpointHash{}(to) >> (64 - recent_bits)];
  if (known != nullptr && recent == to && now_ < known->until) return *known;
  if (ways_.size() >= most_ways && !ways_.contains(to)) {
    ways_.clear();
    recent_ = {};
  }
  Way& way = ways_[to];
  if (now_ >= way.until) {
    way.places = nullptr;
    ask_way(to, way);
  }
  recent = to;
  known = &way;
  return way;
}

std::span<std::byte> FrameDatagrams::place(FramePlaces& places, std::size_t bytes) {
  const std::span<std::byte> frame = places.add(bytes);
  if (!frame.empty()) return frame;
  send();
  return places.add(bytes);
}

std::span<std::byte> FrameDatagrams::begin(const Way& way, std::size_t bytes) {
  const std::span<std::byte> frame = place(*way.places, wire::udp_head_bytes + bytes);
  if (frame.empty()) return frame;
  way.head.write(frame.first<wire::udp_head_bytes>(), bytes);
  ++counters_.packets_sent;
  counters_.wire_bytes_sent += frame.size();
  return frame;
}

std::span<std::byte> FrameDatagrams::Outbox::datagram(const Endpoint& to, std::size_t bytes) {
  const Way& way = owner_.way_to(to);
  if (way.places != nullptr && bytes <= way.most) {
    if (const std::span<std::byte> frame = owner_.begin(way, bytes); !frame.empty())
      return frame.subspan(wire::udp_head_bytes);
  } else if (beside_ != nullptr) {
    return beside_->datagram(to, bytes);
  }
  ++owner_.counters_.send_failures;
  unsent_.resize(std::max(unsent_.size(), bytes));
  return std::span(unsent_).first(bytes);
}

void FrameDatagrams::Outbox::multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const Way& way = owner_.way_to(to[i]);
    if (way.places != nullptr && packet.size() <= way.most) {
      if (const std::span<std::byte> frame = owner_.begin(way, packet.size()); !frame.empty()) {
        std::memcpy(frame.data() + wire::udp_head_bytes, packet.data(), packet.size());
        continue;
      }
    } else if (beside_ != nullptr) {
      beside_->multicast(packet, to.subspan(i, 1));
      continue;
    }
    ++owner_.counters_.send_failures;
  }
}

void FrameDatagrams::Outbox::flush() {
  owner_.send();
  if (beside_ != nullptr) beside_->flush();
  owner_.now_ = recent_time();
}

}  // namespace netsum::transport
