#include "papers/bottleneck/link.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "wire/ecn.h"

namespace netsum::bottleneck {

Link::Link(const LinkSettings& settings) : settings_(settings) {
  if (settings.bits_per_second == 0 || settings.bits_per_second > most_bits_per_second) {
    throw std::invalid_argument("a link's rate is between 1 bit and 1 Tbit a second");
  }
}

void Link::drain(Time now) {
  for (; on_wire_ < packets_.size() && packets_[on_wire_].left <= now; ++on_wire_) {
    queued_bytes_ -= packets_[on_wire_].bytes.size();
  }
}

Fate Link::push(Time now, std::span<const std::byte> packet) {
  drain(now);
  if (queued_bytes_ + packet.size() > settings_.queue_bytes) {
    ++counters_.dropped;
    return Fate::dropped;
  }
  std::vector<std::byte> bytes(packet.begin(), packet.end());
  const bool marked = settings_.mark_bytes && queued_bytes_ > *settings_.mark_bytes && wire::mark_congestion(bytes);
  if (marked) ++counters_.marked;

  if (free_ < now) {
    free_ = now;
    remainder_ = 0;
  }
  const std::uint64_t scaled = bytes.size() * 8 * std::uint64_t{Duration::period::den} + remainder_;
  free_ += Duration(scaled / settings_.bits_per_second);
  remainder_ = scaled % settings_.bits_per_second;

  queued_bytes_ += bytes.size();
  peak_ = std::max(peak_, queued_bytes_);
  packets_.push_back({free_, std::move(bytes)});
  return marked ? Fate::marked : Fate::queued;
}

Time Link::due() const {
  return packets_.empty() ? never : packets_.front().left + settings_.delay;
}

std::optional<std::vector<std::byte>> Link::pop(Time now) {
  if (now < due()) return std::nullopt;
  drain(now);  // the front left before it was due, so it is not counted as queued any more
  std::vector<std::byte> bytes = std::move(packets_.front().bytes);
  packets_.pop_front();
  --on_wire_;
  ++counters_.packets;
  counters_.bytes += bytes.size();
  return bytes;
}

std::uint64_t Link::queued_bytes(Time now) {
  drain(now);
  return queued_bytes_;
}

std::uint64_t Link::take_peak(Time now) {
  return std::exchange(peak_, queued_bytes(now));
}

}  // namespace netsum::bottleneck
