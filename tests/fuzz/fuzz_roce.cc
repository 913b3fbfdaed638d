// RoCEv2 packets: nothing is read or pointed to outside the bytes, and what parses is written again as the same bytes, but
// what a writer chooses: pads are zero, checksums are right, and an IPv4 checksum of 0 is not written as its other form,
// 0xffff. The input is a packet as it is, one whose lengths and IPv4 checksum are put right so that what is behind them is
// reached, the fields of a packet, or an Ethernet frame.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "base/bytes.h"
#include "fuzz/harness.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using wire::ParseError;
using wire::roce::Packet;

using Bytes = std::vector<std::byte>;

constexpr std::size_t at_ipv4_checksum = 10;

bool is_ipv6(const Bytes& bytes) {
  return std::to_integer<int>(bytes[0]) >> 4 == 6;
}

// By its definition, and not by the code under test.
void fix_ipv4_checksum(Bytes& bytes) {
  store_be(bytes.data() + at_ipv4_checksum, std::uint16_t{0});
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < wire::roce::ipv4_bytes; i += 2) sum += load_be<std::uint16_t>(bytes.data() + i);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  store_be(bytes.data() + at_ipv4_checksum, static_cast<std::uint16_t>(~sum));
}

void put_right(Bytes& bytes) {
  if (bytes.empty()) return;
  const std::size_t before_udp = is_ipv6(bytes) ? wire::roce::ipv6_bytes : wire::roce::ipv4_bytes;
  if (bytes.size() < before_udp + wire::roce::udp_bytes) return;
  std::byte* p = bytes.data();
  const std::size_t behind_ip = bytes.size() - before_udp;
  store_be(p + (is_ipv6(bytes) ? 4 : 2), static_cast<std::uint16_t>(is_ipv6(bytes) ? behind_ip : bytes.size()));
  p[is_ipv6(bytes) ? 6 : 9] = std::byte{17};
  store_be(p + before_udp + 2, wire::roce::udp_port);
  store_be(p + before_udp + 4, static_cast<std::uint16_t>(behind_ip));
  if (!is_ipv6(bytes)) fix_ipv4_checksum(bytes);
}

void parse(const Bytes& bytes) {
  const bool is_roce = wire::roce::is_roce(bytes);
  Packet packet;
  if (wire::roce::parse(bytes, packet) != ParseError::none) return;
  fuzz::check(is_roce, "what parses is RoCEv2");
  const std::size_t length = wire::roce::packet_bytes(std::span(bytes)), at = wire::roce::payload_offset(packet);
  fuzz::check(length <= bytes.size(), "a packet ends where its bytes do, or before");
  fuzz::check(packet.payload.data() == bytes.data() + at, "the payload is behind the headers");
  fuzz::check(at + packet.payload.size() + packet.bth.pad + wire::roce::icrc_bytes == length, "the lengths add up");
  fuzz::check(length == wire::roce::packet_bytes(packet), "a length follows from its fields");
  const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
  fuzz::check(shape.known && (shape.payload || packet.payload.empty()), "an opcode has what it may have");
  fuzz::check(packet.payload.size() <= wire::roce::max_mtu, "a payload fits into the largest MTU");

  Bytes canonical(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
  static_cast<void>(wire::roce::icrc_valid(canonical));
  std::fill_n(canonical.begin() + static_cast<std::ptrdiff_t>(at + packet.payload.size()), packet.bth.pad, std::byte{0});
  if (!packet.ip.v6) fix_ipv4_checksum(canonical);
  wire::roce::write_checksums(canonical);
  Bytes again(length, std::byte{0xaa});
  wire::roce::write(again, packet);
  fuzz::check(again == canonical, "what parses is written again as the same bytes");
  fuzz::check(wire::roce::icrc_valid(again), "what is written has a right ICRC");
  Packet second;
  fuzz::check(wire::roce::parse(again, second) == ParseError::none, "what is written parses");
  fuzz::check(second.ip == packet.ip && second.bth == packet.bth && second.reth == packet.reth &&
                  second.aeth == packet.aeth && second.immediate == packet.immediate &&
                  second.source_port == packet.source_port &&
                  std::equal(second.payload.begin(), second.payload.end(), packet.payload.begin(), packet.payload.end()),
              "and as the same packet");
}

// A packet from its fields, then some bytes of it changed.
Bytes compose(FuzzedDataProvider& input) {
  Packet packet;
  packet.ip.v6 = input.ConsumeBool();
  packet.ip.traffic_class = input.ConsumeIntegral<std::uint8_t>();
  packet.ip.flow_label = input.ConsumeIntegral<std::uint32_t>();
  packet.ip.identification = input.ConsumeIntegral<std::uint16_t>();
  packet.ip.fragment = input.PickValueInArray<std::uint16_t>({0, 0x4000, 0x8000, 0xc000, 0x2000, 1});
  packet.udp_checksum = input.ConsumeIntegral<std::uint16_t>();
  packet.bth.opcode = static_cast<wire::roce::Opcode>(input.ConsumeIntegral<std::uint8_t>());
  const auto flags = input.ConsumeIntegral<std::uint8_t>();
  packet.bth.solicited = (flags & 1) != 0;
  packet.bth.migration = (flags & 2) != 0;
  packet.bth.fecn = (flags & 4) != 0;
  packet.bth.becn = (flags & 8) != 0;
  packet.bth.ack_request = (flags & 16) != 0;
  packet.bth.destination_qp = input.ConsumeIntegral<std::uint32_t>();
  packet.bth.psn = input.ConsumeIntegral<std::uint32_t>();
  packet.reth = {input.ConsumeIntegral<std::uint64_t>(), input.ConsumeIntegral<std::uint32_t>(),
                 input.ConsumeIntegral<std::uint32_t>()};
  packet.aeth = {input.ConsumeIntegral<std::uint8_t>(), input.ConsumeIntegral<std::uint32_t>()};
  packet.immediate = input.ConsumeIntegral<std::uint32_t>();
  const Bytes payload(input.ConsumeBool() ? input.ConsumeIntegralInRange<std::size_t>(0, 40)
                                          : input.PickValueInArray<std::size_t>({256, 1023, 1024, 4096, 4097, 4100}));
  packet.payload = payload;
  Bytes bytes(wire::roce::packet_bytes(packet));
  wire::roce::write(bytes, packet);
  for (int changes = input.ConsumeIntegralInRange<int>(0, 4); changes > 0; --changes) {
    const auto at = input.ConsumeIntegralInRange<std::size_t>(0, std::min<std::size_t>(bytes.size() - 1, 100));
    bytes[at] = std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  const int cut = input.ConsumeIntegralInRange<int>(0, 15);
  if (cut < 4) bytes.resize(bytes.size() - static_cast<std::size_t>(cut));
  if (cut >= 12) bytes.resize(bytes.size() + static_cast<std::size_t>(cut - 11));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int kind = data[0] % 4;
  const auto given = std::as_bytes(std::span(data + 1, size - 1));
  Bytes bytes(given.begin(), given.end());
  if (kind == 1) put_right(bytes);
  if (kind == 2) {
    FuzzedDataProvider input(data + 1, size - 1);
    bytes = compose(input);
    if (input.ConsumeBool()) put_right(bytes);
  }
  if (kind == 3) {
    const auto header = wire::ethernet::parse(bytes);
    if (!header.has_value()) return 0;
    fuzz::check(header->bytes >= wire::ethernet::header_bytes && header->bytes <= bytes.size(), "a header lies inside");
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header->bytes));
  }
  parse(bytes);
  return 0;
}
