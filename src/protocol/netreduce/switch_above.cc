#include "protocol/netreduce/switch_above.h"

#include <cstddef>
#include <cstring>
#include <span>

#include "wire/ecn.h"

namespace netsum::netreduce {

void address(wire::roce::Packet& packet, const Connection& connection) {
  packet.ip.v6 = true;
  packet.ip.source = connection.source;
  packet.ip.destination = connection.destination;
  packet.bth.destination_qp = connection.destination_qp;
}

void SwitchAbove::send_up(const Place& place, SumStore& store, RingCounters& counters, Sink& sink) const {
  const std::size_t aggregator = store.index(place);
  const Frame frame = store.frame_of(aggregator, 0);
  wire::roce::Packet packet = parsed_again(frame.bytes.subspan(frame.ip_at, frame.ip_bytes));
  address(packet, uplink_->up);
  // Its mark leaves on its own line, and is not the other lines'.
  if (wire::ecn_of(packet.ip.traffic_class) == wire::Ecn::congestion) packet.ip.traffic_class ^= 1;
  packet.bth.psn = (store.virtual_psn(place.message) + place.packet) & wire::roce::psn_mask;
  // What is in front of the values is line 0's, but for the seal.
  const std::size_t skip = store.skipped(place.packet), bytes = store.at(aggregator).payload;
  packet.payload = {store.sum_of(aggregator), bytes};
  const std::span<std::byte> out = sink.datagram(uplink_->egress, wire::roce::packet_bytes(packet));
  const std::span<std::byte> to = out.subspan(wire::roce::payload_offset(packet), bytes);
  std::memcpy(to.data(), store.payload_of(aggregator, 0), skip);
  if (seals_) std::memcpy(to.data(), store.sum_of(aggregator), wire::netreduce::seal_bytes);
  std::memcpy(to.data() + skip, store.sum_of(aggregator) + skip, bytes - skip);
  packet.payload = to;
  wire::roce::write(out, packet);
  ++counters.sent_up;
}

void SwitchAbove::send_up_again(const Place& place, SumStore& store, RingCounters& counters, Sink& sink) const {
  const SumStore::Aggregator& a = store.at(place);
  if (a.summed && !a.complete) send_up(place, store, counters, sink);
}

void SwitchAbove::on_total(const Place& place, SumStore& store, RingCounters& counters, Sink& sink) {
  if (expected_ == place) asked_ = false;
  while (store.holds(expected_) && store.at(expected_).complete) expected_ = store.after(expected_);
  if (expected_ >= place || asked_) return;
  asked_ = true;
  for (Place each = expected_; each < place && store.holds(each); each = store.after(each)) {
    send_up_again(each, store, counters, sink);
  }
}

}  // namespace netsum::netreduce
