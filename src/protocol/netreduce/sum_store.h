// The aggregators of a ring's two windows (NetReduce §3.1), and the packets that are added there: where a packet belongs, by
// the first PSN of its message on its line (the CLT's PSN0, §3.2), whose have arrived, and their sum. Part of a ring, which
// says what enters and what leaves.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/packet_io.h"
#include "protocol/netreduce/ring_config.h"
#include "wire/ecn.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::netreduce {

// A frame with its parsed packet.
struct Arrival {
  std::span<const std::byte> frame;
  std::size_t ip_at = 0, ip_bytes = 0;
  const wire::roce::Packet& packet;
  wire::roce::Shape shape;
  Endpoint egress;
  std::span<const Endpoint> flood{};  // where it goes if `egress` is unknown

  [[nodiscard]] std::span<const std::byte> ip() const { return frame.subspan(ip_at, ip_bytes); }
  [[nodiscard]] std::size_t payload_at() const { return static_cast<std::size_t>(packet.payload.data() - frame.data()); }
};

// A frame as it came, and where in it a packet is.
struct Frame {
  std::span<const std::byte> bytes;
  std::size_t ip_at = 0, ip_bytes = 0, payload_at = 0;
};

// A packet's place in the ring's stream, in order.
struct Place {
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
  auto operator<=>(const Place&) const = default;
};

// The sum of a place, in a payload: behind `skip` bytes, which are not of it but for the seal.
struct Sum {
  std::uint32_t packet = 0;  // of its message
  std::span<const std::byte> payload;
  std::size_t skip = 0;
  std::uint32_t crc = 0;  // of the values, once it is complete
};

// Parses an IP packet that was parsed successfully before.
[[nodiscard]] inline wire::roce::Packet parsed_again(std::span<const std::byte> ip) {
  wire::roce::Packet packet;
  static_cast<void>(wire::roce::parse(ip, packet, wire::roce::max_tunnel_mtu));
  return packet;
}

class SumStore {
 public:
  // One message's aggregators; message m uses slot m % 2N (§3.1).
  struct Slot {
    bool used = false;
    std::uint64_t message = 0;
    std::uint32_t packets = 0;
    std::uint32_t first_rank = 0, signature = 0;
    DType dtype = DType::float32;
    bool average = false;
    bool referenced = false;  // the sink may refer to its sums
  };
  struct Aggregator {
    std::uint16_t payload = 0;   // bytes; the same for all contributions
    std::uint16_t arrived = 0;   // contributions
    bool summed = false;         // contributions from below this switch are complete: `sum_line`'s buffer holds their sum,
    bool complete = false;       // or the sum of all: the same one at the root, the total from above elsewhere
    std::uint32_t sum_line = 0;  // whose contribution was the last
    std::uint32_t crc = 0;       // of the complete sum's values
  };
  static constexpr std::uint32_t no_psn = UINT32_MAX;  // more than 24 bits
  static constexpr std::size_t headers_room = 128;  // virtio, Ethernet with two tags, IPv6, UDP, BTH, RETH, immediate: 112

  [[nodiscard]] static std::size_t memory_bytes(const RingConfig& config, std::size_t lines);

  // The first `contributors` of the lines have values.
  SumStore(const RingConfig& config, std::uint32_t lines, std::uint32_t contributors, std::span<std::byte> memory);

  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  void move_memory(std::span<std::byte> memory) { memory_ = memory; }

  // ---- places

  [[nodiscard]] std::size_t slots() const { return slots_.size(); }
  [[nodiscard]] std::size_t size() const { return aggregators_.size(); }
  [[nodiscard]] std::uint32_t slot_of(std::uint64_t message) const {
    return static_cast<std::uint32_t>(message % slots_.size());
  }
  [[nodiscard]] Slot& slot(std::uint32_t number) { return slots_[number]; }
  [[nodiscard]] const Slot& slot(std::uint32_t number) const { return slots_[number]; }
  [[nodiscard]] std::size_t index(const Place& place) const {
    return std::size_t{slot_of(place.message)} * message_packets_ + place.packet;
  }
  [[nodiscard]] bool holds(const Place& place) const {
    const Slot& slot = slots_[slot_of(place.message)];
    return slot.used && slot.message == place.message && place.packet < slot.packets;
  }
  [[nodiscard]] Place after(const Place& place) const {
    const Slot& slot = slots_[slot_of(place.message)];
    return place.packet + 1 < slot.packets ? Place{place.message, place.packet + 1} : Place{place.message + 1, 0};
  }
  // Empties the message's aggregators.
  void open(std::uint32_t slot, const wire::netreduce::InaHeader& header, Sink& sink);

  [[nodiscard]] std::uint32_t& first_psn(std::uint32_t slot, std::uint32_t line) {
    return first_psns_[std::size_t{slot} * lines_ + line];
  }
  // Whether a message that begins at `psn` of the line lies between its neighbours: messages are consecutive on a host's
  // connection, unless there may be `others` in between (accelerator.h).
  [[nodiscard]] bool follows(std::uint32_t line, const wire::netreduce::InaHeader& header, std::uint32_t psn,
                             bool others) const;
  // On virtual connections packet i of message m has PSN m · MsgLen + i, so both ends derive it.
  [[nodiscard]] std::uint32_t virtual_psn(std::uint64_t message) const {
    return static_cast<std::uint32_t>(message * message_packets_) & wire::roce::psn_mask;
  }
  // The place of a PSN of the line, or of a virtual connection. `last_slot`: where the search begins, and where it ended.
  [[nodiscard]] std::optional<Place> find(std::uint32_t line, std::uint32_t psn, std::uint32_t& last_slot) const;
  [[nodiscard]] std::optional<Place> find_virtual(std::uint32_t psn, std::uint32_t& last_slot) const;

  // ---- what is there

  [[nodiscard]] const Aggregator& at(const Place& place) const { return aggregators_[index(place)]; }
  [[nodiscard]] Aggregator& at(const Place& place) { return aggregators_[index(place)]; }
  [[nodiscard]] Aggregator& at(std::size_t aggregator) { return aggregators_[aggregator]; }
  [[nodiscard]] bool has(const Place& place, std::uint32_t line) const {
    return holds(place) && arrived(index(place), line);
  }
  [[nodiscard]] bool arrived(std::size_t aggregator, std::uint32_t line) const {
    return (bitmaps_[aggregator * words_ + line / 64] >> (line % 64) & 1) != 0;
  }
  // Bytes in front of the values: the INA header in a message's first packet, the seal in all.
  [[nodiscard]] std::size_t skipped(std::uint32_t packet) const {
    if (packet == 0) return layout_.header_bytes;
    return layout_.seals ? wire::netreduce::seal_bytes : 0;
  }
  // Whether a contribution has a length that can be added.
  [[nodiscard]] bool fits(const Place& place, std::size_t payload) const;

  // Takes in the line's frame, all but the last bytes of the payload that are left out.
  void store(std::size_t aggregator, std::uint32_t line, const Arrival& arrival, std::size_t left_out);
  [[nodiscard]] Frame frame_of(std::size_t aggregator, std::uint32_t line) const;
  // The sum leaves on the line with the mark of congestion.
  void mark(std::size_t aggregator, std::uint32_t line);
  [[nodiscard]] std::byte* payload_of(std::size_t aggregator, std::uint32_t line) {
    return memory_.data() + (aggregator * lines_ + line) * stride_ + headers_room;
  }
  // Adds in rank order, over the buffered packets and the last one, in whose buffer the sum is formed: a repeat changes
  // nothing, and the same contributions give the same bits. An average is divided by `ranks`.
  void add_up(const Place& place, std::uint32_t last_line, std::span<const std::byte> last, std::uint32_t ranks);
  [[nodiscard]] std::byte* sum_of(std::size_t aggregator) {
    return payload_of(aggregator, aggregators_[aggregator].sum_line);
  }

  [[nodiscard]] Sum sum(std::size_t aggregator, std::uint32_t packet) {
    const Aggregator& a = aggregators_[aggregator];
    return {packet, {sum_of(aggregator), a.payload}, skipped(packet), a.crc};
  }

  // `leaves`: whether a line's frame leaves with the sum of its place; else a repeat brings its own.
  void append_state(const std::function<bool(const Place&, std::uint32_t line)>& leaves, std::vector<std::byte>& out) const;

 private:
  struct Buffer {
    std::uint16_t bytes = 0;  // of the frame
    std::uint16_t ip_at = 0, ip_bytes = 0, payload_at = 0;
  };
  template <class FirstPsn>
  [[nodiscard]] std::optional<Place> search(std::uint32_t psn, std::uint32_t& last_slot, const FirstPsn& first_psn_in) const;

  std::span<std::byte> memory_;
  wire::netreduce::Layout layout_;
  std::uint32_t message_packets_, mtu_;
  std::uint32_t lines_, contributors_;
  std::vector<Slot> slots_;
  std::vector<Aggregator> aggregators_;  // [slot][packet]
  std::size_t words_;
  std::vector<std::uint64_t> bitmaps_;     // [slot][packet][word]
  std::vector<Buffer> buffers_;            // [slot][packet][line]
  std::vector<std::uint32_t> first_psns_;  // [slot][line]; none: the first packet was not seen
  std::vector<const std::byte*> sources_;  // of the sum being formed
  std::size_t stride_;
};

// ---- once a packet

// A packet that begins no message has only its PSN. Go-back-N restarts in the middle of messages when first packets of later
// ones were seen long ago, so all messages of two windows are searched, beginning with the last match.
template <class FirstPsn>
std::optional<Place> SumStore::search(std::uint32_t psn, std::uint32_t& last_slot, const FirstPsn& first_psn_in) const {
  const auto within = [&](std::uint32_t slot) -> std::optional<Place> {
    if (!slots_[slot].used) return std::nullopt;
    const std::uint32_t first = first_psn_in(slot);
    if (first == no_psn) return std::nullopt;
    const std::int32_t packet = wire::roce::psn_distance(first, psn);
    if (packet < 0 || packet >= static_cast<std::int32_t>(slots_[slot].packets)) return std::nullopt;
    return Place{slots_[slot].message, static_cast<std::uint32_t>(packet)};
  };
  std::optional<Place> place = within(last_slot);
  for (std::uint32_t slot = 0; !place && slot < slots_.size(); ++slot) {
    place = within(slot);
    if (place) last_slot = slot;
  }
  return place;
}

inline std::optional<Place> SumStore::find(std::uint32_t line, std::uint32_t psn, std::uint32_t& last_slot) const {
  return search(psn, last_slot, [&](std::uint32_t slot) { return first_psns_[std::size_t{slot} * lines_ + line]; });
}

inline std::optional<Place> SumStore::find_virtual(std::uint32_t psn, std::uint32_t& last_slot) const {
  return search(psn, last_slot, [&](std::uint32_t slot) { return virtual_psn(slots_[slot].message); });
}

inline bool SumStore::fits(const Place& place, std::size_t payload) const {
  const std::size_t skip = skipped(place.packet);
  const Aggregator& a = at(place);
  return payload <= mtu_ && payload >= skip && (payload - skip) % bytes_of(slots_[slot_of(place.message)].dtype) == 0 &&
         (a.arrived == 0 || payload == a.payload);
}

inline void SumStore::store(std::size_t aggregator, std::uint32_t line, const Arrival& arrival, std::size_t left_out) {
  Buffer& buffer = buffers_[aggregator * lines_ + line];
  buffer.bytes = static_cast<std::uint16_t>(arrival.ip_at + arrival.ip_bytes);
  buffer.ip_at = static_cast<std::uint16_t>(arrival.ip_at);
  buffer.ip_bytes = static_cast<std::uint16_t>(arrival.ip_bytes);
  buffer.payload_at = static_cast<std::uint16_t>(arrival.payload_at());
  const std::span<std::byte> to =
      memory_.subspan((aggregator * lines_ + line) * stride_ + headers_room - buffer.payload_at, buffer.bytes);
  const std::size_t end = arrival.payload_at() + arrival.packet.payload.size(), head = end - left_out;
  std::memcpy(to.data(), arrival.frame.data(), head);
  std::memcpy(to.data() + end, arrival.frame.data() + end, to.size() - end);
  // In a tunnel the mark is not in the frame.
  if (wire::ecn_of(arrival.packet.ip.traffic_class) == wire::Ecn::congestion) mark(aggregator, line);
  bitmaps_[aggregator * words_ + line / 64] |= std::uint64_t{1} << (line % 64);
}

inline void SumStore::mark(std::size_t aggregator, std::uint32_t line) {
  const std::size_t number = aggregator * lines_ + line;
  const Buffer& buffer = buffers_[number];
  wire::mark_congestion(
      memory_.subspan(number * stride_ + headers_room - buffer.payload_at + buffer.ip_at, buffer.ip_bytes));
}

inline Frame SumStore::frame_of(std::size_t aggregator, std::uint32_t line) const {
  const std::size_t number = aggregator * lines_ + line;
  const Buffer& buffer = buffers_[number];
  const auto bytes = memory_.subspan(number * stride_ + headers_room - buffer.payload_at, buffer.bytes);
  return {bytes, buffer.ip_at, buffer.ip_bytes, buffer.payload_at};
}

}  // namespace netsum::netreduce
