// An accelerator, and whatever arrives: packets of hosts that keep to the rules, packets of hosts that lie about any field,
// on connections of a ring, known ones and others, whole and damaged. Nothing of a gradient connection leaves as it came;
// whatever leaves has the seal of one place of its ring and a right ICRC, the same values for everybody and every time, and
// each honest rank's contribution to that very place once, or nothing of it.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/bytes.h"
#include "fuzz/harness.h"
#include "protocol/netreduce/accelerator.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using netreduce::Accelerator;
using netreduce::Connection;
using netreduce::RingConfig;
using wire::netreduce::InaHeader;
using wire::roce::Opcode;

using Bytes = std::vector<std::byte>;

constexpr std::uint32_t members = 3, message_packets = 3, mtu = 256;
constexpr std::size_t header_bytes = wire::netreduce::netsum_layout.header_bytes;
constexpr std::uint32_t values = 4;  // of a packet; one that lies may have more

struct Place {
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
  auto operator<=>(const Place&) const = default;
};

// What an honest rank contributes, in bits of its own: the sum shows who is in it, and from which place.
std::uint32_t code_of(const Place& place) {
  return static_cast<std::uint32_t>(1 + (place.message * message_packets + place.packet) % 1000);
}

struct Harness {
  explicit Harness(FuzzedDataProvider& input) {
    config.window = input.ConsumeIntegralInRange<std::uint32_t>(1, 3);
    config.order = input.ConsumeBool() ? netreduce::Order::ring : netreduce::Order::arrival;
    config.incarnation = 7;
    config.ring = 5;
    config.members = members;
    config.message_packets = message_packets;
    config.mtu = mtu;
    for (std::uint8_t rank = 0; rank < members; ++rank) {
      const auto host = [](std::uint32_t r) { return fuzz::endpoint_of(static_cast<std::uint8_t>(r % members)).address; };
      connections.push_back({host(rank), host(rank + 1), 17});
      first_psns[rank] = input.ConsumeBool() ? 0xfffff8 : input.ConsumeIntegral<std::uint32_t>() & wire::roce::psn_mask;
    }
    if (input.ConsumeBool()) {
      config.connections = connections;
    } else {  // what receivers answer is known too
      for (std::uint32_t rank = 0; rank < members; ++rank) {
        netreduce::Line& line = config.lines.emplace_back();
        line.connection = connections[rank];
        line.ranks.insert(rank);
        line.answers = answers_of(rank);
      }
    }
    lines.resize(Accelerator::memory_bytes(config) / sizeof(fuzz::CacheLine));
    begin();
  }

  void begin() {
    std::fill(lines.begin(), lines.end(), fuzz::CacheLine{});
    fuzz::check(accelerator.add_ring(config, std::as_writable_bytes(std::span(lines))), "a ring is made");
    running = true;
    known = true;
    next.fill({});
    tainted.clear();
    sums.clear();
    places.clear();
    sealed = 0;
  }

  void end(FuzzedDataProvider& input) {
    accelerator.remove_ring(config.incarnation);
    running = false;
    ++config.incarnation;  // never issued again
    if (input.ConsumeBool()) {
      accelerator.forget(never);
      known = false;
    }
  }

  [[nodiscard]] std::uint32_t psn_of(std::uint32_t rank, const Place& place) const {
    const auto number = static_cast<std::uint32_t>(place.message * message_packets + place.packet);
    return (first_psns[rank] + number) & wire::roce::psn_mask;
  }

  [[nodiscard]] wire::roce::Packet packet_at(std::uint32_t rank, const Place& place) const {
    const bool first = place.packet == 0, last = place.packet + 1 == message_packets;
    wire::roce::Packet packet;
    packet.ip.source = connections[rank].source;
    packet.ip.destination = connections[rank].destination;
    packet.bth.destination_qp = connections[rank].destination_qp;
    packet.bth.opcode = first ? Opcode::rc_write_first : last ? Opcode::rc_write_last_immediate : Opcode::rc_write_middle;
    packet.bth.psn = psn_of(rank, place);
    return packet;
  }
  [[nodiscard]] InaHeader header_at(std::uint32_t rank, const Place& place) const {
    InaHeader header;
    header.ring = config.ring;
    header.rank = rank;
    header.message = place.message;
    header.packets = message_packets;
    header.dtype = DType::int32;
    return header;
  }
  [[nodiscard]] static Bytes payload_of(std::uint32_t packet, const InaHeader& header, std::uint32_t value,
                                        std::size_t count) {
    const std::size_t skip = packet == 0 ? header_bytes : wire::netreduce::seal_bytes;
    Bytes payload(skip + 4 * count);
    if (packet == 0) wire::netreduce::write_header(wire::netreduce::netsum_layout, payload, header);
    for (std::size_t i = 0; i < count; ++i) store_le(payload.data() + skip + 4 * i, value);
    return payload;
  }

  // As a host sends it: the next one, or one that it has sent before.
  void honest(FuzzedDataProvider& input) {
    const auto rank = input.ConsumeIntegralInRange<std::uint32_t>(0, members - 1);
    Place place = next[rank];
    if (const auto back = input.ConsumeIntegralInRange<std::uint64_t>(0, 15); back < 8) {
      const std::uint64_t number = place.message * message_packets + place.packet;
      const std::uint64_t repeated = number - std::min(number, back);
      place = {repeated / message_packets, static_cast<std::uint32_t>(repeated % message_packets)};
    }
    if (place == next[rank]) advance(rank);
    wire::roce::Packet packet = packet_at(rank, place);
    packet.bth.ack_request = input.ConsumeBool();
    const Bytes payload = payload_of(place.packet, header_at(rank, place), code_of(place) << (10 * rank), values);
    packet.payload = payload;
    give(packet, input);
  }

  void advance(std::uint32_t rank) {
    Place& place = next[rank];
    place = place.packet + 1 < message_packets ? Place{place.message, place.packet + 1} : Place{place.message + 1, 0};
  }

  // All honest packets of a message, so that rings get somewhere. Of more values than fit, too, which all ranks agree on.
  void message(FuzzedDataProvider& input, std::size_t count = values) {
    for (std::uint32_t packet = 0; packet < message_packets; ++packet) {
      for (std::uint32_t rank = 0; rank < members; ++rank) {
        const Place place = next[rank];
        const Bytes payload = payload_of(place.packet, header_at(rank, place), code_of(place) << (10 * rank), count);
        wire::roce::Packet p = packet_at(rank, place);
        p.payload = payload;
        advance(rank);
        give(p, input);
      }
    }
  }

  // A receiver misses a packet, or says so.
  void nak(FuzzedDataProvider& input) {
    const auto rank = input.ConsumeIntegralInRange<std::uint32_t>(0, members - 1);
    const Connection answers = answers_of(rank);
    wire::roce::Packet packet;
    packet.ip.source = answers.source;
    packet.ip.destination = answers.destination;
    packet.bth.destination_qp = answers.destination_qp;
    packet.bth.opcode = Opcode::rc_acknowledge;
    packet.bth.psn = (psn_of(rank, next[rank]) - input.ConsumeIntegralInRange<std::uint32_t>(0, 20)) & wire::roce::psn_mask;
    packet.aeth.syndrome = wire::roce::Aeth::nak_sequence;
    give(packet, input);
  }
  [[nodiscard]] Connection answers_of(std::uint32_t rank) const {
    return {connections[rank].destination, connections[rank].source, 16};
  }

  // Any field is another one. Its values are zeros: nothing of it can be taken for somebody's contribution.
  void lie(FuzzedDataProvider& input) {
    const auto rank = input.ConsumeIntegralInRange<std::uint32_t>(0, members - 1);
    Place place = next[rank];
    place.packet = input.ConsumeIntegralInRange<std::uint32_t>(0, message_packets - 1);
    wire::roce::Packet packet = packet_at(rank, place);
    InaHeader header = header_at(rank, place);
    const auto flags = input.ConsumeBool() ? 1U << input.ConsumeIntegralInRange<unsigned>(0, 12)  // one field, or several
                                           : input.ConsumeIntegral<std::uint16_t>();
    const auto small = static_cast<std::uint32_t>(input.ConsumeIntegralInRange<int>(-10, 10));
    if ((flags & 0x001) != 0) packet.bth.psn = (packet.bth.psn + small) & wire::roce::psn_mask;
    if ((flags & 0x002) != 0) header.message += static_cast<std::uint64_t>(static_cast<std::int32_t>(small));
    if ((flags & 0x004) != 0) header.packets = input.ConsumeIntegralInRange<std::uint32_t>(0, message_packets + 1);
    if ((flags & 0x008) != 0) header.rank = input.ConsumeIntegral<std::uint8_t>();
    if ((flags & 0x010) != 0) header.ring = input.ConsumeIntegral<std::uint8_t>();
    if ((flags & 0x020) != 0) header.dtype = static_cast<DType>(input.ConsumeIntegralInRange<int>(0, 5));
    if ((flags & 0x040) != 0) header.average = true;
    if ((flags & 0x080) != 0) header.signature = input.ConsumeIntegral<std::uint8_t>();
    if ((flags & 0x100) != 0) packet.bth.opcode = any_opcode(input);
    if ((flags & 0x200) != 0) packet.ip.source[15] = input.ConsumeIntegralInRange<std::uint8_t>(0, members);
    if ((flags & 0x400) != 0) packet.bth.destination_qp = input.ConsumeIntegralInRange<std::uint32_t>(15, 18);
    std::size_t count = values;
    if ((flags & 0x800) != 0) count = input.ConsumeIntegralInRange<std::size_t>(0, mtu / 4 + 2);
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    Bytes payload = payload_of(shape.first ? 0 : 1, header, 0, count);
    if ((flags & 0x1000) != 0) payload.resize(payload.size() - std::min<std::size_t>(payload.size(), small & 0x1f));
    if (!shape.payload) payload.clear();
    packet.payload = payload;
    // What it says of a message holds for the others' packets too: of the types of its values, and of where it begins.
    if (shape.first) tainted.insert(header.message);
    give(packet, input);
  }

  static Opcode any_opcode(FuzzedDataProvider& input) {
    constexpr Opcode opcodes[] = {Opcode::rc_send_first,          Opcode::rc_send_middle,
                                  Opcode::rc_send_last,           Opcode::rc_send_only,
                                  Opcode::rc_write_first,         Opcode::rc_write_middle,
                                  Opcode::rc_write_last,          Opcode::rc_write_last_immediate,
                                  Opcode::rc_write_only,          Opcode::rc_write_only_immediate,
                                  Opcode::rc_read_request,        Opcode::rc_read_response_middle,
                                  Opcode::rc_acknowledge,         Opcode::uc_write_middle,
                                  Opcode::congestion_notification};
    return opcodes[input.ConsumeIntegralInRange<std::size_t>(0, std::size(opcodes) - 1)];
  }

  // Any bytes that can be read as a packet.
  void anything(FuzzedDataProvider& input) {
    const auto bytes = input.ConsumeBytes<std::uint8_t>(input.ConsumeIntegralInRange<std::size_t>(0, 400));
    const auto frame = std::as_bytes(std::span(bytes));
    wire::roce::Packet packet;
    if (wire::roce::parse(frame, packet) != wire::ParseError::none) return;
    for (std::uint64_t message = 0; message < end_of_search(); ++message) tainted.insert(message);
    give(frame, 0);
  }

  void give(const wire::roce::Packet& packet, FuzzedDataProvider& input) {
    const std::size_t ip_at = input.ConsumeBool() ? 0 : input.ConsumeIntegralInRange<std::size_t>(0, 40);
    Bytes frame(ip_at + wire::roce::packet_bytes(packet));
    const auto ip = std::span(frame).subspan(ip_at);
    wire::roce::write(ip, packet);
    if (input.ConsumeIntegralInRange<int>(0, 15) == 15) {  // damaged behind the addresses
      constexpr std::size_t psn_at = wire::roce::ipv4_bytes + wire::roce::udp_bytes + 8;
      ip[input.ConsumeIntegralInRange<std::size_t>(psn_at, ip.size() - 1)] ^= std::byte{1};
    }
    give(frame, ip_at);
  }

  void give(std::span<const std::byte> frame, std::size_t ip_at) {
    wire::roce::Packet packet;
    if (wire::roce::parse(frame.subspan(ip_at), packet) != wire::ParseError::none) return;  // damaged
    const Connection connection{packet.ip.source, packet.ip.destination, packet.bth.destination_qp};
    const auto found = std::find(connections.begin(), connections.end(), connection);
    const bool gradient = found != connections.end() && known && wire::roce::shape_of(packet.bth.opcode).request;
    const Endpoint egress = fuzz::endpoint_of(packet.ip.destination[15]);
    const auto verdict = accelerator.on_packet(packet, frame, ip_at, egress, now, sink);
    const bool taken = verdict == Accelerator::Verdict::taken;
    const bool nak = packet.bth.opcode == Opcode::rc_acknowledge && taken;
    fuzz::check(gradient == taken || nak, "gradients are taken, and nothing else but NAKs");
    if (nak) answered(packet, frame.subspan(ip_at));
    accelerator.check();
    fuzz::check(running || sink.sent().empty(), "nothing leaves without a ring");
    if ((gradient || nak) && running) {
      const auto& c = *accelerator.ring_counters(config.incarnation);
      fuzz::check(c.packets == c.contributions + c.naks_answered + c.naks_passed + c.repeats_answered + c.repeats_ignored +
                                   c.repeats_held + c.repeats_waiting + c.dropped_icrc + c.dropped_header +
                                   c.dropped_unplaced + c.dropped_old + c.dropped_early + c.dropped_misplaced +
                                   c.dropped_mismatch + c.dropped_shape,
                  "every packet counts once");
    }
    for (const fuzz::Datagram& sent : sink.sent()) left(sent);
    sink.clear();
  }

  // With what is missing to the receiver; or it goes on to the sender. Nobody else hears of it.
  void answered(const wire::roce::Packet& nak, std::span<const std::byte> ip) {
    fuzz::check(running && !config.lines.empty() && nak.aeth.syndrome == wire::roce::Aeth::nak_sequence,
                "only NAKs of receivers that are known are answered");
    const bool valid = wire::roce::icrc_valid(ip.first(wire::roce::packet_bytes(ip)));
    fuzz::check(valid != sink.sent().empty(), "if they are not damaged");
    const auto goes_on = [&](const fuzz::Datagram& sent) { return sent.to == fuzz::endpoint_of(nak.ip.destination[15]); };
    const auto copies = std::count_if(sink.sent().begin(), sink.sent().end(), goes_on);
    fuzz::check(copies == 0 || (copies == 2 && sink.sent().size() == 2), "or pass, twice");
    if (copies != 0) return sink.clear();
    for (const fuzz::Datagram& sent : sink.sent()) {
      fuzz::check(sent.to == fuzz::endpoint_of(nak.ip.source[15]), "and nobody else hears of it");
    }
  }

  // Something left for a gradient connection.
  void left(const fuzz::Datagram& sent) {
    // Where its IP header begins is not said: the frame is as long as it was.
    std::size_t ip_at = 0;
    wire::roce::Packet packet;
    while (ip_at <= 40 && (ip_at >= sent.bytes.size() ||
                           wire::roce::parse(std::span(sent.bytes).subspan(ip_at), packet) != wire::ParseError::none ||
                           wire::roce::packet_bytes(std::span(sent.bytes).subspan(ip_at)) != sent.bytes.size() - ip_at)) {
      ++ip_at;
    }
    fuzz::check(ip_at <= 40, "what leaves is a packet");
    fuzz::check(wire::roce::icrc_valid(std::span(sent.bytes).subspan(ip_at)), "with a right ICRC");
    const Connection connection{packet.ip.source, packet.ip.destination, packet.bth.destination_qp};
    const auto found = std::find(connections.begin(), connections.end(), connection);
    fuzz::check(found != connections.end(), "of a connection of the ring");
    fuzz::check(sent.to == fuzz::endpoint_of(packet.ip.destination[15]), "on its way");
    fuzz::check(packet.payload.size() >= wire::netreduce::seal_bytes, "and has room for a seal");
    const std::optional<Place> place = place_of(wire::netreduce::read_seal(packet.payload));
    fuzz::check(place.has_value(), "the seal is that of a place of the ring");
    const std::size_t skip = place->packet == 0 ? header_bytes : wire::netreduce::seal_bytes;
    fuzz::check(wire::roce::shape_of(packet.bth.opcode).first == (place->packet == 0), "of a first packet or not");
    fuzz::check(packet.payload.size() >= skip, "and has room for the header");
    if (place->packet == 0) {
      const auto header = wire::netreduce::read_header(wire::netreduce::netsum_layout, packet.payload);
      fuzz::check(header && header->ring == config.ring && header->message == place->message &&
                      header->rank == static_cast<std::uint32_t>(found - connections.begin()),
                  "which says what it is");
    }
    const Bytes sum(packet.payload.begin() + static_cast<std::ptrdiff_t>(skip), packet.payload.end());
    const auto [at, first_time] = sums.emplace(*place, sum);
    fuzz::check(at->second == sum, "the same to everybody, every time");
    if (!first_time || tainted.contains(place->message)) return;
    for (std::size_t i = 0; i + 4 <= sum.size(); i += 4) {
      const auto word = load_le<std::uint32_t>(sum.data() + i);
      for (std::uint32_t rank = 0; rank < members; ++rank) {
        const std::uint32_t part = word >> (10 * rank) & 0x3ff;
        fuzz::check(part == 0 || part == code_of(*place), "a rank's contribution is in its sum once, or not at all");
      }
      fuzz::check(word >> (10 * members) == 0, "and nothing else");
    }
  }

  // Beyond all messages that anybody named.
  [[nodiscard]] std::uint64_t end_of_search() const {
    std::uint64_t end = 0;
    for (const Place& place : next) end = std::max(end, place.message);
    return end + 20;
  }

  [[nodiscard]] std::optional<Place> place_of(std::uint64_t seal) {
    for (; sealed < end_of_search(); ++sealed) {
      for (std::uint32_t packet = 0; packet < message_packets; ++packet) {
        places.emplace(wire::netreduce::seal_of({config.incarnation, config.ring, sealed, packet, members}),
                       Place{sealed, packet});
      }
    }
    const auto found = places.find(seal);
    return found == places.end() ? std::nullopt : std::optional(found->second);
  }

  // However it was treated: hosts that keep to the rules from here on, in a ring of their own, get their sums.
  void be_kind(FuzzedDataProvider& input) {
    if (running) accelerator.remove_ring(config.incarnation);
    ++config.incarnation;
    begin();
    for (int i = 0; i < 8; ++i) message(input);
    fuzz::check(sums.size() == std::size_t{8} * message_packets, "every sum left");
    fuzz::check(accelerator.ring_counters(config.incarnation)->repeats_answered == 0, "once");
  }

  RingConfig config;
  std::vector<Connection> connections;  // by rank
  std::array<std::uint32_t, members> first_psns{};
  std::vector<fuzz::CacheLine> lines;
  Accelerator accelerator;
  bool running = false, known = false;
  std::array<Place, members> next{};      // that each host has not sent
  std::set<std::uint64_t> tainted;        // messages of which somebody said another type or another beginning
  std::map<Place, Bytes> sums;            // that have left
  std::map<std::uint64_t, Place> places;  // by their seals, of all messages below `sealed`
  std::uint64_t sealed = 0;
  fuzz::RecordingSink sink{[](std::span<const Endpoint>, bool multicast) { fuzz::check(!multicast, "no multicasts"); }};
  Time now{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  Harness harness(input);
  while (input.remaining_bytes() > 0) {
    switch (input.ConsumeIntegralInRange<std::uint8_t>(0, 15)) {
      case 0:
        harness.anything(input);
        break;
      case 1:
        if (harness.running)
          harness.end(input);
        else
          harness.begin();
        break;
      case 2:
        harness.message(input);
        break;
      case 8:
        harness.nak(input);
        break;
      case 3:
        harness.message(input, input.ConsumeIntegralInRange<std::size_t>(0, mtu / 4 + 2));
        break;
      case 4:
      case 5:
      case 6:
      case 7:
        harness.lie(input);
        break;
      default:
        harness.honest(input);
    }
    harness.now += std::chrono::milliseconds(1);
  }
  harness.be_kind(input);
  return 0;
}
