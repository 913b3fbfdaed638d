// A queue pair, and whatever arrives at whatever time: packets that nearly fit, answers to what was and was not sent, calls
// and timers. Beside it goes a plain account of what it has received. The memory around the region and what no accepted
// message covers stay as they are; no packet is acknowledged that was not received in order; nothing is sent outside the
// window; its peer is told of marked packets; and a copy does as the original. With single repeats the account also has what
// is kept behind a gap.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "fuzz/harness.h"
#include "protocol/roce/dcqcn.h"
#include "protocol/roce/queue_pair.h"
#include "support/recording_packet_sink.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using wire::roce::Aeth;
using wire::roce::Opcode;

constexpr std::size_t guard = 64, region = 1024;
constexpr std::uint32_t mtu = 64, max_packets = 16, max_messages = 4;
constexpr std::uint32_t key = 0xbeef, own_qp = 0x11, peer_qp = 0x22;

struct Harness {
  explicit Harness(FuzzedDataProvider& input)
      : memory(guard + region + guard, std::byte{0xee}), source(4096, std::byte{0x5a}), pair(config(input)) {}

  roce::QueuePairConfig config(FuzzedDataProvider& input) {
    roce::QueuePairConfig c;
    c.local = fuzz::endpoint_of(1).address;
    c.remote = fuzz::endpoint_of(2).address;
    c.local_qp = own_qp;
    c.remote_qp = peer_qp;
    c.send_psn = input.ConsumeBool() ? 0xfffff8 : input.ConsumeIntegral<std::uint32_t>() & wire::roce::psn_mask;
    c.receive_psn = input.ConsumeBool() ? 0xfffff8 : input.ConsumeIntegral<std::uint32_t>() & wire::roce::psn_mask;
    c.mtu = mtu;
    c.max_packets = max_packets;
    c.max_messages = max_messages;
    c.ack_interval = input.ConsumeIntegralInRange<std::uint32_t>(1, 20);
    c.memory = std::span(memory).subspan(guard, region);
    c.memory_address = address =
        input.ConsumeBool() ? 0x7000 : 0;  // from 0: what is before it is at the end of all addresses
    c.memory_key = key;
    if (input.ConsumeBool()) c.retries = input.ConsumeIntegralInRange<std::uint32_t>(0, 3);
    c.selective = input.ConsumeBool();
    c.congestion_control = input.ConsumeBool();
    return c;
  }

  [[nodiscard]] std::uint32_t expected_psn() const {
    return static_cast<std::uint32_t>(pair.config().receive_psn + in_order) & wire::roce::psn_mask;
  }

  // A request or an answer whose fields are near those that would be taken.
  void packet(FuzzedDataProvider& input) {
    constexpr Opcode opcodes[] = {
        Opcode::rc_write_first,          Opcode::rc_write_middle,       Opcode::rc_write_last,
        Opcode::rc_write_last_immediate, Opcode::rc_write_only,         Opcode::rc_write_only_immediate,
        Opcode::rc_acknowledge,          Opcode::rc_acknowledge,        Opcode::rc_send_only,
        Opcode::rc_read_request,         Opcode::rc_read_response_only, Opcode::uc_write_only_immediate,
        Opcode::congestion_notification};
    wire::roce::Packet packet;
    packet.ip.source = fuzz::endpoint_of(2).address;
    packet.ip.destination = fuzz::endpoint_of(1).address;
    packet.bth.opcode = opcodes[input.ConsumeIntegralInRange<std::size_t>(0, std::size(opcodes) - 1)];
    const auto flags = input.ConsumeIntegral<std::uint8_t>();
    if ((flags & 0x0f) == 1) packet.ip.source[15] = 3;
    if ((flags & 0x0f) == 2) packet.ip.destination[15] = 3;
    packet.bth.destination_qp = (flags & 0x0f) == 3 ? peer_qp : own_qp;
    packet.bth.ack_request = (flags & 0x10) != 0;
    packet.ip.traffic_class = input.ConsumeIntegralInRange<std::uint8_t>(0, 3);
    const auto off = static_cast<std::uint32_t>(input.ConsumeIntegralInRange<int>(-20, 20));
    if (packet.bth.opcode == Opcode::rc_acknowledge) {
      packet.bth.psn = (pair.config().send_psn + acknowledged + ((flags & 0x20) != 0 ? 0 : off)) & wire::roce::psn_mask;
      constexpr std::uint8_t syndromes[] = {Aeth::ack, Aeth::ack, Aeth::nak_sequence, 0x2c, 0x00, 0x61, 0x62, 0x63, 0x7f,
                                            0x40,      0xff};
      packet.aeth.syndrome = syndromes[input.ConsumeIntegralInRange<std::size_t>(0, std::size(syndromes) - 1)];
      packet.aeth.msn = input.ConsumeIntegral<std::uint8_t>();
    } else {
      packet.bth.psn = (expected_psn() + ((flags & 0x20) != 0 ? 0 : off)) & wire::roce::psn_mask;
      packet.reth.key = (flags & 0xc0) == 0x40 ? key + 1 : key;
      packet.reth.address =
          input.ConsumeBool()
              ? address + static_cast<std::uint64_t>(input.ConsumeIntegralInRange<std::int64_t>(-70, region + 70))
              : ~input.ConsumeIntegral<std::uint64_t>();
      packet.reth.length = input.ConsumeBool() ? input.ConsumeIntegralInRange<std::uint32_t>(0, 4 * mtu)
                                               : input.ConsumeIntegral<std::uint32_t>();
      packet.immediate = input.ConsumeIntegral<std::uint8_t>();
      const std::size_t length = input.ConsumeBool() ? mtu : input.ConsumeIntegralInRange<std::size_t>(0, mtu + 8);
      packet.payload = std::span(source).first(length);
    }
    give(packet);
  }

  // The packet that the account says is right, so that messages get somewhere.
  void right_packet(FuzzedDataProvider& input) {
    wire::roce::Packet packet;
    packet.ip.source = fuzz::endpoint_of(2).address;
    packet.ip.destination = fuzz::endpoint_of(1).address;
    packet.bth.destination_qp = own_qp;
    packet.bth.psn = expected_psn();
    packet.bth.ack_request = input.ConsumeBool();
    if (left == 0) {
      const auto length = input.ConsumeIntegralInRange<std::uint32_t>(1, 4 * mtu);
      packet.reth = {address + input.ConsumeIntegralInRange<std::uint64_t>(0, region - length), key, length};
      packet.bth.opcode = length <= mtu ? Opcode::rc_write_only_immediate : Opcode::rc_write_first;
      packet.payload = std::span(source).first(std::min(mtu, length));
    } else {
      packet.bth.opcode = left <= mtu ? Opcode::rc_write_last_immediate : Opcode::rc_write_middle;
      packet.payload = std::span(source).first(std::min<std::size_t>(mtu, left));
    }
    fuzz::check(account(packet), "the account knows its own packets");
    give(packet);
  }

  [[nodiscard]] static bool is_ours(const wire::roce::Packet& packet) {
    return packet.ip.source[15] == 2 && packet.ip.destination[15] == 1 && packet.bth.destination_qp == own_qp;
  }

  // What the specification says of a packet, written down once more; changes nothing.
  [[nodiscard]] bool account(const wire::roce::Packet& packet) const {
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    if (!is_ours(packet)) return false;
    if (static_cast<std::uint8_t>(packet.bth.opcode) >= 0x20 || !shape.write) return false;
    if (packet.bth.psn != expected_psn() || shape.first != (left == 0)) return false;
    const std::uint64_t length = packet.payload.size();
    if (!shape.first) return shape.last ? length == left && left <= mtu : length == mtu && left > mtu;
    const wire::roce::Reth& reth = packet.reth;
    if (shape.last ? length != reth.length || length > mtu : length != mtu || reth.length <= mtu) return false;
    if (reth.length == 0) return true;
    return reth.key == key && reth.address >= address && reth.address - address <= region &&
           reth.length <= region - (reth.address - address);
  }

  // A packet that the account says is right.
  void apply(const wire::roce::Packet& packet, std::vector<std::byte>& wanted) {
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    if (shape.first) {
      at = packet.reth.length == 0 ? 0 : packet.reth.address - address;
      left = packet.reth.length;
    }
    std::copy(packet.payload.begin(), packet.payload.end(), wanted.begin() + static_cast<std::ptrdiff_t>(guard + at));
    at += packet.payload.size();
    left -= packet.payload.size();
    ++in_order;
    if (shape.last && shape.immediate) ++told;
  }

  // The first packet of each number behind a gap; its payload is of `source`.
  void keep(const wire::roce::Packet& packet) {
    const auto ahead = wire::roce::psn_distance(expected_psn(), packet.bth.psn);
    const bool request = wire::roce::shape_of(packet.bth.opcode).request || packet.bth.opcode == Opcode::rc_read_request;
    if (!pair.config().selective || !is_ours(packet) || !request || static_cast<std::uint8_t>(packet.bth.opcode) >= 0x20)
      return;
    if (ahead <= 0 || ahead >= static_cast<std::int32_t>(max_packets) || packet.payload.size() > mtu) return;
    const std::uint64_t number = in_order + static_cast<std::uint64_t>(ahead);
    kept.try_emplace(number, packet);
    heard = std::max(heard, number + 1);
  }

  void give(const wire::roce::Packet& packet) {
    std::vector<std::byte> wanted = memory;
    const std::uint64_t received_before = pair.counters().packets_received;
    const std::uint64_t completed_before = pair.completed();
    const std::uint64_t in_order_before = in_order, marked_before = pair.counters().marked;
    keep(packet);
    bool right = account(packet);
    if (right) apply(packet, wanted);
    while (right && kept.contains(in_order)) {
      const wire::roce::Packet next = kept.extract(in_order).mapped();
      right = account(next);
      if (right) apply(next, wanted);
    }
    pair.on_packet(packet, now);
    ++packets;
    const bool marked = pair.counters().marked != marked_before;
    fuzz::check(!marked || (packet.ip.traffic_class == 3 && pair.config().congestion_control), "marks that came are marks");
    if (marked && now >= quiet_until) {
      to_notify = true;
      quiet_until = now + roce::notification_interval;
    }
    fuzz::check(pair.counters().packets_received - received_before == in_order - in_order_before,
                "what is right is taken, and nothing else");
    fuzz::check(memory == wanted, "payloads are in their places, and only there");
    if (packet.bth.opcode == Opcode::rc_acknowledge) {
      fuzz::check(pair.completed() >= completed_before, "what is completed stays so");
      // The account of the requester: how far the answer can have moved it.
      const auto ahead =
          wire::roce::psn_distance((pair.config().send_psn + acknowledged) & wire::roce::psn_mask, packet.bth.psn);
      const bool request = pair.config().selective && packet.aeth.asks_for_repeats();
      if (is_ours(packet) && !request && ahead >= 0 && acknowledged + static_cast<std::uint64_t>(ahead) < sent_end &&
          !failed && (packet.aeth.syndrome & 0xe0) != 0x40 && (packet.aeth.syndrome & 0x80) == 0) {
        const bool nak = packet.aeth.syndrome >= 0x20;
        acknowledged += static_cast<std::uint64_t>(ahead) + (nak ? 0 : 1);
        failed = packet.aeth.syndrome > Aeth::nak_sequence;
      }
    }
  }

  void send() {
    testing::RecordingPacketSink outbox;
    roce::QueuePair copy(pair);
    const std::uint64_t sent_before = pair.counters().packets_sent;
    pair.send(now, outbox);
    testing::RecordingPacketSink again;
    copy.send(now, again);
    fuzz::check(outbox.sent == again.sent, "a copy does the same");
    std::size_t requests = 0, answers = 0;
    for (const auto& bytes : outbox.sent) {
      wire::roce::Packet packet;
      fuzz::check(wire::roce::parse(bytes, packet) == wire::ParseError::none, "what it sends is a packet");
      fuzz::check(wire::roce::icrc_valid(bytes), "with the right ICRC");
      fuzz::check(packet.bth.destination_qp == peer_qp, "for the peer");
      if (packet.bth.opcode == Opcode::congestion_notification) {
        fuzz::check(std::exchange(to_notify, false) && packet.bth.becn, "it tells of a mark once in an interval");
      } else if (packet.bth.opcode == Opcode::rc_acknowledge && packet.aeth.asks_for_repeats()) {
        const auto ahead = wire::roce::psn_distance(expected_psn(), packet.bth.psn);
        fuzz::check(pair.config().selective && ahead >= 0 && packet.aeth.msn > 0, "it asks for what it has not received");
        fuzz::check(!kept.contains(in_order + static_cast<std::uint64_t>(ahead)), "and not for what it keeps");
        fuzz::check(static_cast<std::uint32_t>(ahead) + packet.aeth.msn <= max_packets, "nor beyond the window");
      } else if (packet.bth.opcode == Opcode::rc_acknowledge) {
        ++answers;
        const auto behind = wire::roce::psn_distance(packet.bth.psn, expected_psn());
        if (packet.aeth.syndrome == Aeth::ack) {
          fuzz::check(behind >= 1 && static_cast<std::uint64_t>(behind) <= in_order, "it acknowledges what it has received");
        } else {
          fuzz::check(behind == 0, "a NAK names the packet that is expected");
        }
      } else {
        ++requests;
        fuzz::check(!failed, "a requester that failed is silent");
        const auto ahead =
            wire::roce::psn_distance((pair.config().send_psn + acknowledged) & wire::roce::psn_mask, packet.bth.psn);
        fuzz::check(ahead >= 0 && ahead < static_cast<std::int32_t>(max_packets), "it sends what is in the window");
        sent_end = std::max(sent_end, acknowledged + static_cast<std::uint64_t>(ahead) + 1);
      }
    }
    fuzz::check(answers <= 1, "one answer a batch");
    fuzz::check(!to_notify, "it tells of a mark");
    fuzz::check(pair.counters().packets_sent - sent_before == requests, "it counts what it sends");
    testing::RecordingPacketSink nothing;
    pair.send(now, nothing);
    fuzz::check(nothing.sent.empty(), "all that may be sent was sent");
  }

  void time(FuzzedDataProvider& input) {
    if (input.ConsumeBool() && pair.next_timeout() != never)
      now = std::max(now, pair.next_timeout());
    else
      now += std::chrono::microseconds(input.ConsumeIntegral<std::uint16_t>());
    pair.on_timer(now);
    if (pair.error() == roce::QueuePairError::retries_exceeded) failed = true;
  }

  void post(FuzzedDataProvider& input) {
    const auto length = input.ConsumeIntegralInRange<std::size_t>(1, 20 * mtu);
    const bool room = posted - pair.completed() < max_messages;
    const bool taken = pair.post_write(std::span(source).first(length), 1, 2, 3);
    fuzz::check(taken == (room && !failed), "a message is taken if there is room");
    if (taken) ++posted;
  }

  void finish() {
    const auto& c = pair.counters();
    fuzz::check(packets == c.packets_received + c.acks_received + c.naks_received + c.duplicates + c.out_of_order +
                               c.repeat_requests_received + c.notifications_received + c.stale_acks + c.refused + c.foreign +
                               kept.size(),
                "every packet counts once");
    fuzz::check(std::all_of(memory.begin(), memory.begin() + guard, [](std::byte b) { return b == std::byte{0xee}; }) &&
                    std::all_of(memory.end() - guard, memory.end(), [](std::byte b) { return b == std::byte{0xee}; }),
                "the memory around the region is untouched");
  }

  // However it was treated: a peer that acknowledges everything gets everything.
  void be_kind() {
    for (int step = 0; step < 10'000 && !failed && pair.completed() < posted; ++step) {
      send();
      if (sent_end > acknowledged) {
        wire::roce::Packet packet;
        packet.ip.source = fuzz::endpoint_of(2).address;
        packet.ip.destination = fuzz::endpoint_of(1).address;
        packet.bth.opcode = Opcode::rc_acknowledge;
        packet.bth.destination_qp = own_qp;
        packet.bth.psn = static_cast<std::uint32_t>(pair.config().send_psn + sent_end - 1) & wire::roce::psn_mask;
        give(packet);
      } else {
        fuzz::check(pair.next_timeout() != never, "something is under way, or a timer runs");
        now = std::max(now, pair.next_timeout());
        pair.on_timer(now);
      }
    }
    fuzz::check(failed || pair.completed() == posted, "everything completes at a kind peer");
    fuzz::check(failed || pair.next_timeout() == never || in_order < heard, "and then no timer runs");
  }

  std::uint64_t address = 0;  // of the memory
  std::vector<std::byte> memory, source;
  roce::QueuePair pair;
  Time now{};
  std::map<std::uint64_t, wire::roce::Packet> kept;  // behind a gap, by number
  std::uint64_t heard = 0;                           // the first packet behind all of those
  std::uint64_t in_order = 0, at = 0, left = 0;      // what was received: packets; place and rest of the message
  std::uint64_t acknowledged = 0, sent_end = 0;      // of what it sent
  std::uint64_t posted = 0, packets = 0, told = 0;
  bool failed = false;
  bool to_notify = false;  // a marked packet came, and nobody was told since
  Time quiet_until = Time::min();
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  Harness harness(input);
  std::uint64_t told = 0;
  while (input.remaining_bytes() > 0) {
    switch (input.ConsumeIntegralInRange<std::uint8_t>(0, 7)) {
      case 0:
        harness.post(input);
        break;
      case 1:
        harness.time(input);
        break;
      case 2:
      case 3:
        harness.send();
        break;
      case 4:
        harness.right_packet(input);
        break;
      default:
        harness.packet(input);
    }
    told += harness.pair.take_received().size();
    fuzz::check(told == harness.told, "each whole message with immediate is told once");
  }
  harness.finish();
  harness.be_kind();
  return 0;
}
