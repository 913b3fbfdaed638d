// A bump in the wire, and any frames at its ports: noise, VLAN tags, virtio headers that promise anything, gradients whole,
// cut, merged and damaged. It is a bridge: what it carries on leaves as it came, at other ports than it came from, each
// once; every frame is counted in one place; and no gradient of a ring's known connection leaves unsummed.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/virtio_net.h"
#include "fuzz/harness.h"
#include "protocol/netreduce/bump.h"
#include "wire/ethernet.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using netreduce::Bump;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t members = 3, mtu = 256, queue_pair = 17;

Endpoint port(std::uint8_t number) {
  return {.address = {'p'}, .port = number};
}
std::array<std::uint8_t, 16> host(std::uint8_t number) {
  return fuzz::endpoint_of(number).address;
}

// The checksum of RFC 1071, a byte at a time.
std::uint32_t folded_sum(std::span<const std::byte> bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return sum;
}

void checksums(FuzzedDataProvider& input) {
  const auto given = input.ConsumeBytes<std::uint8_t>(input.ConsumeIntegralInRange<std::size_t>(0, 120));
  Bytes frame(given.size());
  std::transform(given.begin(), given.end(), frame.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
  if (frame.size() >= virtio_net_header_bytes) {
    VirtioNetHeader header = read_virtio_net_header(frame);
    if (input.ConsumeBool()) {
      header = {VirtioNetHeader::needs_checksum,      VirtioNetHeader::gso_none, 0, 0, input.ConsumeIntegral<std::uint8_t>(),
                input.ConsumeIntegral<std::uint8_t>()};
      write_virtio_net_header(frame, header);
    }
    fuzz::check(read_virtio_net_header(frame) == header, "a header that was written is read");
  }
  const Bytes before = frame;
  if (!complete_checksum(frame)) return fuzz::check(frame == before, "what is refused stays");
  const VirtioNetHeader asked = read_virtio_net_header(before);
  if ((asked.flags & VirtioNetHeader::needs_checksum) == 0) return fuzz::check(frame == before, "none was asked for");
  const auto packet = std::span<const std::byte>(frame).subspan(virtio_net_header_bytes);
  const auto was = std::span<const std::byte>(before).subspan(virtio_net_header_bytes);
  const std::size_t place = std::size_t{asked.csum_start} + asked.csum_offset;
  for (std::size_t i = 0; i < packet.size(); ++i) {
    fuzz::check(i == place || i == place + 1 || packet[i] == was[i], "nothing but the checksum is another");
  }
  // What was in its place, and all that it is of with the checksum in there, give zero. At an odd place its bytes are
  // swapped.
  const auto seed = folded_sum(was.subspan(place, 2));
  const std::uint32_t all =
      folded_sum(packet.subspan(asked.csum_start)) + (asked.csum_offset % 2 == 0 ? seed : ((seed & 0xff) << 8 | seed >> 8));
  if (asked.csum_offset % 2 == 0) fuzz::check((all & 0xffff) + (all >> 16) == 0xffff, "the checksum is right");
  fuzz::check((read_virtio_net_header(frame).flags & VirtioNetHeader::needs_checksum) == 0, "it is there now");
}

struct Harness {
  Harness() : bump(netreduce::BridgeConfig{.ports = {port(0), port(1), port(2)}, .addresses = 16}) {
    netreduce::RingConfig ring;
    ring.incarnation = 1;
    ring.members = members;
    ring.message_packets = 2;
    ring.mtu = mtu;
    for (std::uint8_t rank = 0; rank < members; ++rank) {
      ring.connections.push_back({host(rank), host(static_cast<std::uint8_t>((rank + 1) % members)), queue_pair});
    }
    lines.resize(netreduce::Accelerator::memory_bytes(ring) / sizeof(fuzz::CacheLine));
    fuzz::check(bump.accelerator().add_ring(ring, std::as_writable_bytes(std::span(lines))), "a ring is made");
  }

  static Bytes ip_packet(FuzzedDataProvider& input, bool& gradient) {
    const auto rank = input.ConsumeIntegralInRange<std::uint8_t>(0, members - 1);
    wire::roce::Packet packet;
    packet.ip.source = host(rank);
    packet.ip.destination = host(static_cast<std::uint8_t>((rank + 1) % members));
    packet.bth.destination_qp = input.ConsumeIntegralInRange<int>(0, 3) == 0 ? queue_pair + 1 : queue_pair;
    packet.bth.psn = input.ConsumeIntegralInRange<std::uint32_t>(0, 5);
    const bool first = input.ConsumeBool();
    packet.bth.opcode = first ? wire::roce::Opcode::rc_write_first : wire::roce::Opcode::rc_write_last_immediate;
    Bytes payload(wire::netreduce::netsum_layout.header_bytes + 16);
    wire::netreduce::InaHeader header;
    header.rank = rank;
    header.packets = 2;
    header.dtype = DType::int32;
    if (first) wire::netreduce::write_header(wire::netreduce::netsum_layout, payload, header);
    packet.payload = payload;
    Bytes bytes(wire::roce::packet_bytes(packet));
    wire::roce::write(bytes, packet);
    gradient = packet.bth.destination_qp == queue_pair;
    switch (input.ConsumeIntegralInRange<int>(0, 5)) {
      case 0:  // damaged behind what says whose it is
        bytes[input.ConsumeIntegralInRange<std::size_t>(44, bytes.size() - 1)] ^= std::byte{1};
        break;
      case 1:  // cut behind it
        bytes.resize(input.ConsumeIntegralInRange<std::size_t>(44, bytes.size()));
        break;
      case 2:  // anywhere: it may be nobody's any more
        bytes[input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] ^=
            std::byte{input.ConsumeIntegral<std::uint8_t>()};
        gradient = false;
        break;
      default:
        break;
    }
    return bytes;
  }

  void step(FuzzedDataProvider& input) {
    bool gradient = false;
    Bytes behind;
    std::uint16_t type = input.PickValueInArray<std::uint16_t>({wire::ethernet::ipv4, wire::ethernet::ipv6, 0x0806});
    if (input.ConsumeIntegralInRange<int>(0, 3) == 0) {
      for (const std::uint8_t byte : input.ConsumeBytes<std::uint8_t>(input.ConsumeIntegralInRange<std::size_t>(0, 90))) {
        behind.push_back(std::byte{byte});
      }
    } else {
      behind = ip_packet(input, gradient);
      type = wire::ethernet::ipv4;
    }
    VirtioNetHeader header;
    if (input.ConsumeIntegralInRange<int>(0, 3) == 0) {
      header = {input.ConsumeIntegral<std::uint8_t>(),
                input.ConsumeIntegral<std::uint8_t>(),
                0,
                input.ConsumeIntegral<std::uint16_t>(),
                input.ConsumeIntegralInRange<std::uint16_t>(0, 200),
                input.ConsumeIntegralInRange<std::uint16_t>(0, 200)};
    }
    Bytes frame(virtio_net_header_bytes);
    write_virtio_net_header(frame, header);
    for (int side = 0; side < 2; ++side) {  // who it is to, and from
      const auto who = input.ConsumeIntegralInRange<std::uint8_t>(0, 31);
      for (int i = 0; i < 5; ++i) frame.push_back(std::byte{who == 31 ? std::uint8_t{0xff} : std::uint8_t{0}});
      frame.push_back(std::byte{who});
    }
    for (int tags = input.ConsumeIntegralInRange<int>(0, 6); tags > 4; --tags) {
      for (const std::uint8_t byte :
           {std::uint8_t{0x81}, std::uint8_t{0}, std::uint8_t{0}, input.ConsumeIntegral<std::uint8_t>()}) {
        frame.push_back(std::byte{byte});
      }
    }
    frame.push_back(std::byte(type >> 8));
    frame.push_back(std::byte(type & 0xff));
    const std::size_t whole = frame.size() + behind.size();
    frame.insert(frame.end(), behind.begin(), behind.end());
    if (input.ConsumeIntegralInRange<int>(0, 15) == 0)
      frame.resize(input.ConsumeIntegralInRange<std::size_t>(0, frame.size()));
    // A checksum may be asked for where a packet says whose it is.
    gradient = gradient && frame.size() == whole && (header.flags & VirtioNetHeader::needs_checksum) == 0;
    give(frame, port(input.ConsumeIntegralInRange<std::uint8_t>(0, 3)), gradient);
    if (input.ConsumeIntegralInRange<int>(0, 15) == 0) now += std::chrono::minutes(3);
  }

  void give(const Bytes& frame, const Endpoint& from, bool gradient) {
    multicasts = 0;
    const Bytes exact = frame;  // as long as it is: whoever reads beyond is found
    const RxView view{exact, from};
    bump.on_packets({&view, 1}, now, ports);
    ++given;
    auto& carried = ports.sent();
    std::erase_if(carried, [](const fuzz::Datagram& each) { return !each.multicast; });  // sums are new frames
    fuzz::check(!gradient || carried.empty(), "no gradient is carried on");
    for (std::size_t i = 0; i < carried.size(); ++i) {
      fuzz::check(carried[i].bytes == frame, "it leaves as it came");
      fuzz::check(carried[i].to != from && carried[i].to.port < 3, "at another port");
      for (std::size_t j = 0; j < i; ++j) fuzz::check(carried[i].to != carried[j].to, "and there once");
    }
    ports.clear();
    const netreduce::BridgeCounters& bridge = bump.bridge().counters();
    fuzz::check(bridge.forwarded + bridge.flooded + bridge.filtered + bridge.malformed + bridge.no_such_port == given,
                "the bridge counts every frame once");
    const netreduce::BumpCounters& counted = bump.counters();
    std::uint64_t sum = counted.others + counted.trains + counted.roce + counted.dropped_trains + counted.dropped_unreadable;
    for (const std::uint64_t unreadable : counted.unreadable) sum += unreadable;
    fuzz::check(sum == bridge.forwarded + bridge.flooded, "and so does the bump");
    fuzz::check(bump.bridge().known(now) <= 16, "a flood of addresses has a bound");
  }

  std::vector<fuzz::CacheLine> lines;
  Bump bump;
  Time now{};
  std::uint64_t given = 0, multicasts = 0;
  fuzz::RecordingSink ports{[this](std::span<const Endpoint>, bool multicast) {
    fuzz::check(!multicast || ++multicasts == 1, "a frame is carried on once");
  }};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {
    checksums(input);
    return 0;
  }
  Harness harness;
  while (input.remaining_bytes() > 0) harness.step(input);
  return 0;
}
