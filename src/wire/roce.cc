#include "wire/roce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/crc32.h"
#include "wire/internet_checksum.h"

namespace netsum::wire::roce {
namespace {

constexpr std::size_t at_traffic_class = 1, at_total_length = 2, at_identification = 4, at_fragment = 6, at_time_to_live = 8,
                      at_protocol = 9, at_ipv4_checksum = 10, at_ipv4_source = 12, at_ipv4_destination = 16;
constexpr std::size_t at_payload_length = 4, at_next_header = 6, at_hop_limit = 7, at_ipv6_source = 8,
                      at_ipv6_destination = 24;
constexpr std::size_t at_destination_port = 2, at_udp_length = 4, at_udp_checksum = 6;        // in the UDP header
constexpr std::size_t at_flags = 1, at_partition_key = 2, at_destination_qp = 4, at_psn = 8;  // in the BTH
constexpr std::size_t at_key = 8, at_length = 12;                                             // in the RETH

constexpr std::byte protocol_udp{17};
constexpr std::uint16_t fragment_offset = 0x1fff, fragmented = 0x3fff;  // fragmented: includes "more fragments"
constexpr std::size_t addresses_v4 = 8, addresses_v6 = 32;
constexpr std::array<std::uint8_t, 12> mapped_prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::uint8_t byte_at(const std::byte* at) {
  return std::to_integer<std::uint8_t>(*at);
}

std::byte flag(bool on, unsigned bit) {
  return std::byte{on} << bit;
}

std::uint32_t load_24(const std::byte* from) {
  return load_be<std::uint32_t>(from) & 0xffffff;
}

// A byte before 24 bits.
void store_8_24(std::byte* to, std::byte first, std::uint32_t value) {
  store_be(to, std::to_integer<std::uint32_t>(first) << 24 | (value & 0xffffff));
}

int ip_version(std::span<const std::byte> ip_packet) {
  return ip_packet.empty() ? 0 : byte_at(ip_packet.data()) >> 4;
}

std::size_t ip_bytes(bool v6) {
  return v6 ? ipv6_bytes : ipv4_bytes;
}

std::size_t ip_bytes(std::span<const std::byte> ip_packet) {
  return ip_bytes(ip_version(ip_packet) == 6);
}

// `udp`: from the UDP header to the end of the packet.
std::uint16_t udp_checksum_of(std::span<const std::byte> ip_packet, std::span<const std::byte> udp) {
  const bool v6 = ip_version(ip_packet) == 6;
  std::byte pseudo[8] = {};
  store_be(pseudo, static_cast<std::uint32_t>(udp.size()));
  pseudo[7] = protocol_udp;
  const auto addresses = ip_packet.subspan(v6 ? at_ipv6_source : at_ipv4_source, v6 ? addresses_v6 : addresses_v4);
  std::uint64_t sum = sum_words(udp, sum_words(addresses, sum_words(pseudo)));
  sum -= load_le<std::uint32_t>(udp.data() + at_udp_length) & 0xffff0000;  // the checksum field itself
  const std::uint16_t checksum = checksum_of(sum);
  return checksum == 0 ? 0xffff : checksum;  // 0 means no checksum (RFC 768)
}

using Address = std::array<std::uint8_t, 16>;

void read_ipv4_addresses(const std::byte* ip, Address& source, Address& destination) {
  for (const auto& [address, at] : {std::pair(&source, at_ipv4_source), std::pair(&destination, at_ipv4_destination)}) {
    std::memcpy(address->data(), mapped_prefix.data(), mapped_prefix.size());
    std::memcpy(address->data() + mapped_prefix.size(), ip + at, 4);
  }
}

// Where the UDP header of a packet to RoCE's port is. `not_fragmented`: bits of IPv4's fragment field that must not be set.
std::optional<std::size_t> find_udp(std::span<const std::byte> ip_packet, std::uint16_t not_fragmented) {
  std::size_t udp = 0;
  switch (ip_version(ip_packet)) {
    case 4:
      if (ip_packet.size() < ipv4_bytes || ip_packet[at_protocol] != protocol_udp) return std::nullopt;
      if ((load_be<std::uint16_t>(ip_packet.data() + at_fragment) & not_fragmented) != 0) return std::nullopt;
      udp = std::size_t{4} * (byte_at(ip_packet.data()) & 0xf);
      break;
    case 6:
      if (ip_packet.size() < ipv6_bytes || ip_packet[at_next_header] != protocol_udp) return std::nullopt;
      udp = ipv6_bytes;
      break;
    default:
      return std::nullopt;
  }
  if (udp < ipv4_bytes || ip_packet.size() < udp + udp_bytes ||
      load_be<std::uint16_t>(ip_packet.data() + udp + at_destination_port) != udp_port) {
    return std::nullopt;
  }
  return udp;
}

ParseError parse_ipv4(std::span<const std::byte> packet, Ip& ip, std::size_t& bytes) {
  if (packet.size() < ipv4_bytes) return ParseError::truncated;
  const std::byte* p = packet.data();
  if (p[0] != std::byte{0x45}) return ParseError::field;  // options
  bytes = load_be<std::uint16_t>(p + at_total_length);
  if (bytes > packet.size()) return ParseError::truncated;
  if (bytes < ipv4_bytes) return ParseError::length;
  if (checksum_of(sum_words(packet.first(ipv4_bytes))) != 0) return ParseError::checksum;
  ip.fragment = load_be<std::uint16_t>(p + at_fragment);
  if (p[at_protocol] != protocol_udp || (ip.fragment & fragmented) != 0) return ParseError::type;
  ip.v6 = false;
  ip.traffic_class = byte_at(p + at_traffic_class);
  ip.flow_label = 0;
  ip.identification = load_be<std::uint16_t>(p + at_identification);
  ip.hop_limit = byte_at(p + at_time_to_live);
  read_ipv4_addresses(p, ip.source, ip.destination);
  return ParseError::none;
}

ParseError parse_ipv6(std::span<const std::byte> packet, Ip& ip, std::size_t& bytes) {
  if (packet.size() < ipv6_bytes) return ParseError::truncated;
  const std::byte* p = packet.data();
  bytes = ipv6_bytes + load_be<std::uint16_t>(p + at_payload_length);
  if (bytes > packet.size()) return ParseError::truncated;
  if (p[at_next_header] != protocol_udp) return ParseError::type;
  const auto first = load_be<std::uint32_t>(p);
  ip.v6 = true;
  ip.identification = 0;
  ip.fragment = Ip().fragment;
  ip.traffic_class = static_cast<std::uint8_t>(first >> 20);
  ip.flow_label = first & 0xfffff;
  ip.hop_limit = byte_at(p + at_hop_limit);
  std::memcpy(ip.source.data(), p + at_ipv6_source, ip.source.size());
  std::memcpy(ip.destination.data(), p + at_ipv6_destination, ip.destination.size());
  return ParseError::none;
}

// The readers set the fields one by one: copying a whole struct from the stack would stall on store forwarding.
void read_bth(const std::byte* p, Bth& bth) {
  const std::byte flags = p[at_flags], congestion = p[at_destination_qp], request = p[at_psn];
  const auto has = [](std::byte byte, unsigned bit) { return (byte >> bit & std::byte{1}) != std::byte{0}; };
  bth.opcode = static_cast<Opcode>(p[0]);
  bth.solicited = has(flags, 7);
  bth.migration = has(flags, 6);
  bth.pad = std::to_integer<std::uint8_t>(flags >> 4 & std::byte{3});
  bth.version = std::to_integer<std::uint8_t>(flags & std::byte{0xf});
  bth.partition_key = load_be<std::uint16_t>(p + at_partition_key);
  bth.fecn = has(congestion, 7);
  bth.becn = has(congestion, 6);
  bth.reserved6 = std::to_integer<std::uint8_t>(congestion & std::byte{0x3f});
  bth.destination_qp = load_24(p + at_destination_qp);
  bth.ack_request = has(request, 7);
  bth.reserved7 = std::to_integer<std::uint8_t>(request & std::byte{0x7f});
  bth.psn = load_24(p + at_psn);
}

void write_bth(std::byte* p, const Bth& bth, std::size_t pad) {
  p[0] = static_cast<std::byte>(bth.opcode);
  p[at_flags] = flag(bth.solicited, 7) | flag(bth.migration, 6) | static_cast<std::byte>(pad) << 4 |
                (static_cast<std::byte>(bth.version) & std::byte{0xf});
  store_be(p + at_partition_key, bth.partition_key);
  store_8_24(p + at_destination_qp,
             flag(bth.fecn, 7) | flag(bth.becn, 6) | (static_cast<std::byte>(bth.reserved6) & std::byte{0x3f}),
             bth.destination_qp);
  store_8_24(p + at_psn, flag(bth.ack_request, 7) | (static_cast<std::byte>(bth.reserved7) & std::byte{0x7f}), bth.psn);
}

void write_ip(std::byte* p, const Ip& ip, std::size_t bytes) {
  if (ip.v6) {
    store_be(p, std::uint32_t{6} << 28 | std::uint32_t{ip.traffic_class} << 20 | (ip.flow_label & 0xfffff));
    store_be(p + at_payload_length, static_cast<std::uint16_t>(bytes - ipv6_bytes));
    p[at_next_header] = protocol_udp;
    p[at_hop_limit] = std::byte{ip.hop_limit};
    std::memcpy(p + at_ipv6_source, ip.source.data(), ip.source.size());
    std::memcpy(p + at_ipv6_destination, ip.destination.data(), ip.destination.size());
    return;
  }
  p[0] = std::byte{0x45};
  p[at_traffic_class] = std::byte{ip.traffic_class};
  store_be(p + at_total_length, static_cast<std::uint16_t>(bytes));
  store_be(p + at_identification, ip.identification);
  store_be(p + at_fragment, ip.fragment);
  p[at_time_to_live] = std::byte{ip.hop_limit};
  p[at_protocol] = protocol_udp;
  store_le(p + at_ipv4_checksum, std::uint16_t{0});
  std::memcpy(p + at_ipv4_source, ip.source.data() + mapped_prefix.size(), 4);
  std::memcpy(p + at_ipv4_destination, ip.destination.data() + mapped_prefix.size(), 4);
  store_le(p + at_ipv4_checksum, checksum_of(sum_words({p, ipv4_bytes})));
}

// The length of the headers between BTH and payload.
std::size_t extension_bytes(const Shape& shape) {
  return (shape.reth ? reth_bytes : 0) + (shape.aeth ? aeth_bytes : 0) + (shape.immediate ? immediate_bytes : 0);
}

std::size_t pad_of(std::size_t payload) {
  return -payload & 3;
}

constexpr auto shapes = [] {
  std::array<Shape, 256> table{};
  struct Service {
    unsigned first;
    bool reliable;
  };
  for (const Service service : {Service{0x00, true}, Service{0x20, false}}) {
    for (const bool write : {false, true}) {
      const unsigned base = service.first + (write ? 6 : 0);
      for (unsigned kind = 0; kind < 6; ++kind) {  // FIRST, MIDDLE, LAST, LAST with immediate, ONLY, ONLY with immediate
        Shape& shape = table[base + kind];
        shape.known = shape.request = shape.payload = true;
        shape.reliable = service.reliable;
        shape.write = write;
        shape.first = kind == 0 || kind >= 4;
        shape.last = kind >= 2;
        shape.immediate = kind == 3 || kind == 5;
        shape.reth = write && shape.first;
      }
    }
    if (!service.reliable) continue;
    Shape& read = table[0x0c];
    read.known = read.first = read.last = read.reth = true;
    for (unsigned kind = 0; kind < 4; ++kind) {  // responses: FIRST, MIDDLE, LAST, ONLY
      Shape& shape = table[0x0d + kind];
      shape.known = shape.payload = true;
      shape.first = kind == 0 || kind == 3;
      shape.last = kind >= 2;
      shape.aeth = kind != 1;
    }
    Shape& acknowledge = table[0x11];
    acknowledge.known = acknowledge.aeth = true;
  }
  Shape& notification = table[0x81];  // 16 reserved bytes after the BTH: treated as payload
  notification.known = notification.payload = true;
  return table;
}();

// The bits that the ICRC takes as ones because routers may change them (Annex A17.3.3), from the IP header to the BTH's end.
constexpr std::byte ones{0xff};
constexpr auto mask_v4 = [] {
  std::array<std::byte, ipv4_bytes + udp_bytes + bth_bytes> mask{};
  mask[at_traffic_class] = mask[at_time_to_live] = mask[at_ipv4_checksum] = mask[at_ipv4_checksum + 1] = ones;
  mask[ipv4_bytes + at_udp_checksum] = mask[ipv4_bytes + at_udp_checksum + 1] = ones;
  mask[ipv4_bytes + udp_bytes + at_destination_qp] = ones;  // the byte before it: congestion marks
  return mask;
}();
constexpr auto mask_v6 = [] {
  std::array<std::byte, ipv6_bytes + udp_bytes + bth_bytes> mask{};
  mask[0] = std::byte{0x0f};  // traffic class and flow label
  mask[1] = mask[2] = mask[3] = mask[at_hop_limit] = ones;
  mask[ipv6_bytes + at_udp_checksum] = mask[ipv6_bytes + at_udp_checksum + 1] = ones;
  mask[ipv6_bytes + udp_bytes + at_destination_qp] = ones;
  return mask;
}();

// The CRC of eight bytes of ones, in place of InfiniBand's local route header, and of the headers.
template <std::size_t bytes>
std::uint32_t masked_crc(const std::byte* headers, const std::array<std::byte, bytes>& mask) {
  constexpr std::size_t route = 8;
  std::array<std::byte, route + bytes> masked;
  std::fill_n(masked.data(), route, ones);
  for (std::size_t i = 0; i < bytes; ++i) masked[route + i] = headers[i] | mask[i];
  return crc32(masked);
}

// The ICRC's CRC over a packet except its last bytes.
std::uint32_t covered_crc(std::span<const std::byte> ip_packet, std::size_t but_for) {
  const bool v6 = ip_version(ip_packet) == 6;
  const std::size_t covered = ip_packet.size() - but_for, headers = v6 ? mask_v6.size() : mask_v4.size();
  const std::uint32_t start = v6 ? masked_crc(ip_packet.data(), mask_v6) : masked_crc(ip_packet.data(), mask_v4);
  return crc32(ip_packet.subspan(headers, covered - headers), start);
}

void write_udp_checksum(std::span<std::byte> ip_packet) {
  const auto udp = ip_packet.subspan(ip_bytes(ip_packet));
  std::byte* checksum = udp.data() + at_udp_checksum;
  if (load_le<std::uint16_t>(checksum) != 0) store_le(checksum, udp_checksum_of(ip_packet, udp));
}

}  // namespace

Shape shape_of(Opcode opcode) {
  return shapes[static_cast<std::uint8_t>(opcode)];
}

void set_addresses(Packet& packet, const std::array<std::uint8_t, 16>& source,
                   const std::array<std::uint8_t, 16>& destination) {
  constexpr std::array<std::uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const auto is_ipv4 = [&](const auto& address) { return std::equal(mapped.begin(), mapped.end(), address.begin()); };
  packet.ip.v6 = !is_ipv4(source) || !is_ipv4(destination);
  packet.ip.source = source;
  packet.ip.destination = destination;
}

bool is_roce(std::span<const std::byte> ip_packet) {
  return find_udp(ip_packet, fragmented).has_value();
}

std::optional<Glance> glance(std::span<const std::byte> ip_packet, std::size_t payload_at) {
  const std::optional<std::size_t> udp = find_udp(ip_packet, fragment_offset);
  if (!udp) return std::nullopt;
  const std::size_t bth = *udp + udp_bytes + payload_at;
  if (ip_packet.size() < bth + bth_bytes) return std::nullopt;
  Glance seen;
  if (ip_version(ip_packet) == 4) {
    read_ipv4_addresses(ip_packet.data(), seen.source, seen.destination);
  } else {
    std::memcpy(seen.source.data(), ip_packet.data() + at_ipv6_source, seen.source.size());
    std::memcpy(seen.destination.data(), ip_packet.data() + at_ipv6_destination, seen.destination.size());
  }
  seen.destination_qp = load_24(ip_packet.data() + bth + at_destination_qp);
  const Shape& shape = shapes[byte_at(ip_packet.data() + bth)];
  const std::size_t payload = bth + bth_bytes + extension_bytes(shape);
  if (shape.request && shape.first && ip_packet.size() > payload) seen.beginning = ip_packet.subspan(payload);
  return seen;
}

ParseError parse(std::span<const std::byte> ip_packet, Packet& out, std::uint32_t longest) {
  if (ip_packet.empty()) return ParseError::truncated;
  const int version = ip_version(ip_packet);
  if (version != 4 && version != 6) return ParseError::version;
  std::size_t bytes = 0;
  const ParseError error = version == 4 ? parse_ipv4(ip_packet, out.ip, bytes) : parse_ipv6(ip_packet, out.ip, bytes);
  if (error != ParseError::none) return error;

  const std::size_t before_udp = ip_bytes(out.ip.v6);
  if (bytes < before_udp + udp_bytes) return ParseError::length;
  const std::byte* p = ip_packet.data() + before_udp;
  if (load_be<std::uint16_t>(p + at_destination_port) != udp_port) return ParseError::type;
  if (bytes - before_udp < udp_bytes + bth_bytes + icrc_bytes) return ParseError::length;
  if (load_be<std::uint16_t>(p + at_udp_length) != bytes - before_udp) return ParseError::length;
  out.source_port = load_be<std::uint16_t>(p);
  out.udp_checksum = load_be<std::uint16_t>(p + at_udp_checksum);
  p += udp_bytes;

  read_bth(p, out.bth);
  if (out.bth.version != 0) return ParseError::version;
  const Shape& shape = shapes[static_cast<std::uint8_t>(out.bth.opcode)];
  if (!shape.known) return ParseError::type;
  const std::size_t headers = before_udp + udp_bytes + bth_bytes + extension_bytes(shape);
  if (bytes < headers + icrc_bytes) return ParseError::length;
  p += bth_bytes;
  const bool reth = shape.reth, aeth = shape.aeth;
  out.reth.address = reth ? load_be<std::uint64_t>(p) : 0;
  out.reth.key = reth ? load_be<std::uint32_t>(p + at_key) : 0;
  out.reth.length = reth ? load_be<std::uint32_t>(p + at_length) : 0;
  p += reth ? reth_bytes : 0;
  out.aeth.syndrome = aeth ? byte_at(p) : Aeth().syndrome;
  out.aeth.msn = aeth ? load_24(p) : 0;
  p += aeth ? aeth_bytes : 0;
  out.immediate = shape.immediate ? load_be<std::uint32_t>(p) : 0;

  const std::size_t padded = bytes - headers - icrc_bytes;
  if (padded % 4 != 0 || padded > longest || (!shape.payload && padded != 0)) return ParseError::length;
  if (out.bth.pad > padded) return ParseError::field;
  out.payload = ip_packet.subspan(headers, padded - out.bth.pad);
  return ParseError::none;
}

std::size_t packet_bytes(std::span<const std::byte> ip_packet) {
  const std::byte* p = ip_packet.data();
  return ip_version(ip_packet) == 6 ? ipv6_bytes + load_be<std::uint16_t>(p + at_payload_length)
                                    : load_be<std::uint16_t>(p + at_total_length);
}

std::size_t packet_bytes(const Packet& packet) {
  return payload_offset(packet) + packet.payload.size() + pad_of(packet.payload.size()) + icrc_bytes;
}

std::size_t payload_offset(const Packet& packet) {
  return ip_bytes(packet.ip.v6) + udp_bytes + bth_bytes + extension_bytes(shape_of(packet.bth.opcode));
}

std::uint32_t icrc_of(std::span<const std::byte> ip_packet) {
  return covered_crc(ip_packet, icrc_bytes);
}

bool icrc_valid(std::span<const std::byte> ip_packet) {
  return load_le<std::uint32_t>(ip_packet.last(icrc_bytes).data()) == icrc_of(ip_packet);
}

void write_icrc(std::span<std::byte> ip_packet) {
  store_le(ip_packet.last(icrc_bytes).data(), icrc_of(ip_packet));
}

namespace {

// `bytes`: of the whole packet.
void write_headers(std::byte* out, const Packet& packet, std::size_t bytes) {
  const Shape shape = shape_of(packet.bth.opcode);
  const std::size_t before_udp = ip_bytes(packet.ip.v6), pad = pad_of(packet.payload.size());
  write_ip(out, packet.ip, bytes);
  std::byte* p = out + before_udp;
  store_be(p, packet.source_port);
  store_be(p + at_destination_port, udp_port);
  store_be(p + at_udp_length, static_cast<std::uint16_t>(bytes - before_udp));
  store_be(p + at_udp_checksum, packet.udp_checksum);
  p += udp_bytes;
  write_bth(p, packet.bth, pad);
  p += bth_bytes;
  if (shape.reth) {
    store_be(p, packet.reth.address);
    store_be(p + at_key, packet.reth.key);
    store_be(p + at_length, packet.reth.length);
    p += reth_bytes;
  }
  if (shape.aeth) {
    store_8_24(p, std::byte{packet.aeth.syndrome}, packet.aeth.msn);
    p += aeth_bytes;
  }
  if (shape.immediate) store_be(p, packet.immediate);
}

}  // namespace

void write(std::span<std::byte> out, const Packet& packet) {
  const std::size_t pad = pad_of(packet.payload.size());
  std::byte* const p = out.data() + payload_offset(packet);
  if (!packet.payload.empty() && p != packet.payload.data()) std::memmove(p, packet.payload.data(), packet.payload.size());
  std::fill_n(p + packet.payload.size(), pad, std::byte{0});
  write_headers(out.data(), packet, out.size());
  write_checksums(out);
}

void write_around(std::span<std::byte> head, std::span<std::byte> tail, const Packet& packet) {
  const std::size_t pad = tail.size() - icrc_bytes;
  std::fill_n(tail.begin(), pad, std::byte{0});
  write_headers(head.data(), packet, head.size() + packet.payload.size() + tail.size());
  store_le(tail.data() + pad, crc32(tail.first(pad), crc32(packet.payload, covered_crc(head, 0))));
}

void write_checksums(std::span<std::byte> ip_packet) {
  write_icrc(ip_packet);  // first: the UDP checksum covers the ICRC, while the ICRC takes the UDP checksum as ones
  write_udp_checksum(ip_packet);
}

void write_checksums(std::span<std::byte> ip_packet, const CommonEnd& end) {
  store_le(ip_packet.last(icrc_bytes).data(), icrc_of(ip_packet.first(ip_packet.size() - end.bytes - icrc_bytes), end));
  write_udp_checksum(ip_packet);
}

std::uint32_t icrc_of(std::span<const std::byte> before, const CommonEnd& end) {
  return end.shift.combine(covered_crc(before, 0), end.crc);
}

bool has_udp_checksum(std::span<const std::byte> ip_packet) {
  return load_le<std::uint16_t>(ip_packet.data() + ip_bytes(ip_packet) + at_udp_checksum) != 0;
}

}  // namespace netsum::wire::roce
