#include "protocol/p4app/switch.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"

namespace netsum::p4app {

using wire::p4app::Header;

void Switch::begin(std::uint32_t workers, std::uint32_t elements) {
  elements_ = elements;
  members_.assign(workers, {});
  slots_.assign(wire::p4app::max_slots, {});
  sums_.resize(std::size_t{wire::p4app::max_slots} * 2 * elements * 4);
}

void Switch::set_worker(std::uint32_t rank, const Endpoint& address) {
  members_[rank] = {address, true};
}

void Switch::on_packets(std::span<const RxView> packets, Time /*now*/, Sink& sink) {
  for (const RxView& view : packets) on_packet(view, sink);
}

const Switch::Member* Switch::find(const Endpoint& source) const {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
    return member.known && member.address.address == source.address;
  });
  return found == members_.end() ? nullptr : &*found;
}

std::byte* Switch::sum_of(const Header& header) {
  return sums_.data() + (std::size_t{header.slot} * 2 + header.set) * elements_ * 4;
}

void Switch::on_packet(const RxView& view, Sink& sink) {
  ++counters_.packets;
  wire::p4app::Packet packet;
  if (const auto error = wire::p4app::parse(view.bytes, packet); error != wire::ParseError::none) {
    ++counters_.malformed[static_cast<std::size_t>(error)];
    return;
  }
  const Header& header = packet.header;
  const Member* const from = find(view.source);
  if (from == nullptr) return void(++counters_.dropped_strangers);
  if (header.elements != elements_) return void(++counters_.dropped_sizes);
  if (header.slot >= slots_.size()) return void(++counters_.dropped_slots);

  const std::uint32_t worker = 1U << (from - members_.data());
  Set& set = slots_[header.slot][header.set ? 1 : 0];
  Set& other = slots_[header.slot][header.set ? 0 : 1];
  const std::uint32_t before = set.seen;
  set.seen |= worker;
  other.seen &= ~worker;  // the hole: a late copy of the other set's packet counts again
  const bool another = set.job != header.job || set.packet != header.packet;
  if ((before & worker) != 0) {
    if (set.left != 0) return void(++counters_.repeats_ignored);
    ++counters_.repeats_answered;
    if (another) ++counters_.answered_by_another;
    return send(*from, view.source.port, header, sink);
  }

  ++counters_.added;
  if (!another && (set.contributors & worker) != 0 && (before != 0 || set.left != 0)) ++counters_.added_twice;
  set.contributors = (before == 0 ? 0 : set.contributors) | worker;
  if (before == 0) {
    set.job = header.job;
    set.packet = header.packet;
    set.exponents = header.exponents;
    std::memcpy(sum_of(header), packet.payload.data(), packet.payload.size());
  } else {
    if (another) ++counters_.added_to_another;
    for (std::size_t i = 0; i < set.exponents.size(); ++i)
      set.exponents[i] = std::max(set.exponents[i], header.exponents[i]);
    kernels::add_int32_network(sum_of(header), packet.payload.data(), elements_);
  }
  set.left = (set.left == 0 ? static_cast<std::uint32_t>(members_.size()) : set.left) - 1;
  if (set.left != 0) return;
  ++counters_.completed;
  for (const Member& member : members_) {
    if (member.known) send(member, view.source.port, header, sink);
  }
}

// With the job and the number of the packet that is answered, and to its port, whoever it is sent to.
void Switch::send(const Member& to, std::uint16_t port, const Header& header, Sink& sink) {
  ++counters_.results_sent;
  Endpoint endpoint = to.address;
  endpoint.port = port;
  Header result = header;
  result.exponents = slots_[header.slot][header.set ? 1 : 0].exponents;
  const std::span<std::byte> out = sink.datagram(endpoint, wire::p4app::packet_bytes(elements_));
  wire::p4app::write_header(out, result);
  std::memcpy(out.data() + wire::p4app::header_bytes, sum_of(header), std::size_t{elements_} * 4);
}

}  // namespace netsum::p4app
