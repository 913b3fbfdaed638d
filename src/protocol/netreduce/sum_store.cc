#include "protocol/netreduce/sum_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/cache_line.h"
#include "kernels/kernels.h"

namespace netsum::netreduce {
namespace {

constexpr std::uint32_t max_pad = 3;

// Of a packet's buffer: its frame, placed so that the payload begins at a cache line.
constexpr std::size_t stride_of(std::uint32_t mtu) {
  return whole_lines(SumStore::headers_room + mtu + max_pad + wire::roce::icrc_bytes);
}

}  // namespace

std::size_t SumStore::memory_bytes(const RingConfig& config, std::size_t lines) {
  return std::size_t{2} * config.window * config.message_packets * lines * stride_of(config.mtu);
}

SumStore::SumStore(const RingConfig& config, std::uint32_t lines, std::uint32_t contributors, std::span<std::byte> memory)
    : memory_(memory),
      layout_(config.layout),
      message_packets_(config.message_packets),
      mtu_(config.mtu),
      lines_(lines),
      contributors_(contributors),
      slots_(std::size_t{2} * config.window),
      aggregators_(slots_.size() * config.message_packets),
      words_((lines + 63) / 64),
      bitmaps_(aggregators_.size() * words_),
      buffers_(aggregators_.size() * lines),
      first_psns_(slots_.size() * lines, no_psn),
      sources_(contributors),
      stride_(stride_of(config.mtu)) {}

void SumStore::open(std::uint32_t slot, const wire::netreduce::InaHeader& header, Sink& sink) {
  Slot& s = slots_[slot];
  if (std::exchange(s.referenced, false)) sink.flush();
  s.used = true;
  s.message = header.message;
  s.packets = header.packets;
  s.first_rank = header.rank;
  s.signature = header.signature;
  s.dtype = header.dtype;
  s.average = header.average;
  const std::size_t begin = std::size_t{slot} * message_packets_;
  std::fill_n(aggregators_.begin() + static_cast<std::ptrdiff_t>(begin), message_packets_, Aggregator{});
  std::fill_n(bitmaps_.begin() + static_cast<std::ptrdiff_t>(begin * words_), message_packets_ * words_, 0);
  std::fill_n(first_psns_.begin() + static_cast<std::ptrdiff_t>(std::size_t{slot} * lines_), lines_, no_psn);
}

bool SumStore::follows(std::uint32_t line, const wire::netreduce::InaHeader& header, std::uint32_t psn, bool others) const {
  const auto distance_to = [&](std::uint64_t neighbour) -> std::optional<std::int32_t> {
    const std::uint32_t slot = slot_of(neighbour), first = first_psns_[std::size_t{slot} * lines_ + line];
    if (!holds({neighbour, 0}) || first == no_psn) return std::nullopt;
    return wire::roce::psn_distance(psn, first);
  };
  const auto far_enough = [&](std::int32_t distance, std::uint32_t packets) {
    const auto least = static_cast<std::int32_t>(packets);
    return others ? distance >= least : distance == least;
  };
  const auto to_next = distance_to(header.message + 1);
  if (to_next && !far_enough(*to_next, header.packets)) return false;
  if (header.message == 0) return true;
  const auto to_last = distance_to(header.message - 1);
  return !to_last || far_enough(-*to_last, slots_[slot_of(header.message - 1)].packets);
}

void SumStore::add_up(const Place& place, std::uint32_t last_line, std::span<const std::byte> last, std::uint32_t ranks) {
  const std::size_t aggregator = index(place), skip = skipped(place.packet);
  Aggregator& a = aggregators_[aggregator];
  const std::size_t bytes = a.payload - skip;
  for (std::uint32_t line = 0; line < contributors_; ++line) {
    sources_[line] = (line == last_line ? last.data() : payload_of(aggregator, line)) + skip;
  }
  a.sum_line = last_line;
  const Slot& s = slots_[slot_of(place.message)];
  kernels::sum_in_order(s.dtype, sum_of(aggregator) + skip, sources_, bytes / bytes_of(s.dtype), s.average ? ranks : 1);
  a.summed = true;
}

void SumStore::append_state(const std::function<bool(const Place&, std::uint32_t line)>& leaves,
                            std::vector<std::byte>& out) const {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const Slot& s = slots_[slot];
    append_bytes(out, static_cast<std::uint8_t>(s.used), s.message, s.packets, s.signature);
    for (std::uint32_t line = 0; line < lines_; ++line) append_bytes(out, first_psns_[slot * lines_ + line]);
    for (std::uint32_t packet = 0; s.used && packet < s.packets; ++packet) {
      const std::size_t aggregator = index({s.message, packet});
      const Aggregator& a = aggregators_[aggregator];
      append_bytes(out, a.payload, static_cast<std::uint8_t>(a.summed), static_cast<std::uint8_t>(a.complete));
      for (std::uint32_t line = 0; line < lines_; ++line) {
        const std::size_t buffer = aggregator * lines_ + line;
        if (!arrived(aggregator, line)) continue;
        append_bytes(out, line);
        if (leaves({s.message, packet}, line)) {
          const Buffer& b = buffers_[buffer];
          const auto head = memory_.subspan(buffer * stride_ + headers_room - b.payload_at, b.payload_at + skipped(packet));
          const auto seal = head.begin() + b.payload_at;  // the sum's, when it leaves
          out.insert(out.end(), head.begin(), seal);
          out.insert(out.end(), seal + (layout_.seals ? wire::netreduce::seal_bytes : 0), head.end());
        }
        const auto payload = memory_.subspan(buffer * stride_ + headers_room, a.payload);
        if (line < contributors_ && !a.summed) out.insert(out.end(), payload.begin(), payload.end());
      }
      if (!a.summed) continue;
      const auto sum = memory_.subspan((aggregator * lines_ + a.sum_line) * stride_ + headers_room, a.payload);
      out.insert(out.end(), sum.begin() + static_cast<std::ptrdiff_t>(skipped(packet)), sum.end());
    }
  }
}

}  // namespace netsum::netreduce
