#include "protocol/netreduce/sum_writer.h"

#include <cstring>

#include "base/bytes.h"
#include "base/crc32.h"
#include "protocol/netreduce/switch_above.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {

bool SumWriter::write(const Sum& sum, const Frame& frame, const Line& line, const Endpoint& egress, Sink& sink) {
  if (line.way != Way::through) {
    write_anew(sum, frame, line, egress, sink);
    return false;
  }
  const std::size_t pad = frame.ip_at + frame.ip_bytes - wire::roce::icrc_bytes - frame.payload_at - sum.payload.size();
  if (tunnelled_ && pad == 0 && !wire::roce::has_udp_checksum(frame.bytes.subspan(frame.ip_at))) {
    write_around(sum, frame, egress, sink);
    return true;
  }
  write_copy(sum, frame, pad, egress, sink);
  return false;
}

// Most of the packet is the same on all connections, and its CRC is computed once.
const wire::roce::CommonEnd& SumWriter::common_end(const Sum& sum) {
  wire::roce::CommonEnd& common = ends_[sum.packet == 0 ? 0 : 1];
  const std::size_t bytes = sum.payload.size() - sum.skip;
  if (common.bytes != bytes) common = {bytes, 0, Crc32Shift(bytes)};
  common.crc = sum.crc;
  return common;
}

void SumWriter::write_around(const Sum& sum, const Frame& frame, const Endpoint& egress, Sink& sink) {
  const auto [head, tail] =
      sink.around(egress, frame.payload_at + sum.skip, sum.payload.subspan(sum.skip), wire::roce::icrc_bytes);
  std::memcpy(head.data(), frame.bytes.data(), head.size());
  if (seals_) std::memcpy(head.data() + frame.payload_at, sum.payload.data(), wire::netreduce::seal_bytes);
  store_le(tail.data(), wire::roce::icrc_of(head.subspan(frame.ip_at), common_end(sum)));
}

void SumWriter::write_copy(const Sum& sum, const Frame& frame, std::size_t pad, const Endpoint& egress, Sink& sink) {
  const std::size_t at = frame.payload_at, bytes = sum.payload.size(), end = at + bytes;
  const std::span<std::byte> out = sink.datagram(egress, frame.ip_at + frame.ip_bytes);
  std::memcpy(out.data(), frame.bytes.data(), at + sum.skip);
  std::memcpy(out.data() + at + sum.skip, sum.payload.data() + sum.skip, bytes - sum.skip);
  std::memcpy(out.data() + end, frame.bytes.data() + end, pad);
  if (seals_) std::memcpy(out.data() + at, sum.payload.data(), wire::netreduce::seal_bytes);
  if (pad != 0) return wire::roce::write_checksums(out.subspan(frame.ip_at));
  wire::roce::write_checksums(out.subspan(frame.ip_at), common_end(sum));
}

// With headers that may be of other lengths.
void SumWriter::write_anew(const Sum& sum, const Frame& frame, const Line& line, const Endpoint& egress, Sink& sink) const {
  const std::size_t bytes = sum.payload.size();
  wire::roce::Packet packet = parsed_again(frame.bytes.subspan(frame.ip_at, frame.ip_bytes));
  if (line.way == Way::child) {  // back to its sender
    const Connection& up = line.connection;
    address(packet, {up.destination, up.source, down_qp});
  }
  packet.payload = sum.payload;
  const std::span<std::byte> out = sink.datagram(egress, frame.ip_at + wire::roce::packet_bytes(packet));
  std::memcpy(out.data(), frame.bytes.data(), frame.ip_at);
  // The bytes in front of the values come from the sender's message.
  const std::span<std::byte> to = out.subspan(frame.ip_at + wire::roce::payload_offset(packet), bytes);
  std::memcpy(to.data(), frame.bytes.data() + frame.payload_at, sum.skip);
  std::memcpy(to.data() + sum.skip, sum.payload.data() + sum.skip, bytes - sum.skip);
  if (seals_) std::memcpy(to.data(), sum.payload.data(), wire::netreduce::seal_bytes);
  packet.payload = to;
  wire::roce::write(out.subspan(frame.ip_at), packet);
}

}  // namespace netsum::netreduce
