// The accelerator in RTL beside the one in C++ (protocol/netreduce/accelerator.h): the same frames go into both, and what
// leaves must be the same to the byte and in the same order, and so must be all counters.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rtl/rtl_accelerator.h"
#include "sim/random.h"
#include "support/netreduce_packets.h"
#include "support/pcap.h"
#include "wire/ethernet.h"

namespace netsum::testing {
namespace {

using netreduce::Connection;
using netreduce::RingConfig;
using wire::roce::Packet;
using Draw = sim::Random;

// What netreduce::Bump does with a frame of one port whose other port is known.
class Reference {
 public:
  void add_ring(const RingConfig& config) {
    memory_.emplace_back(netreduce::Accelerator::memory_bytes(config) / sizeof(CacheLine));
    ASSERT_TRUE(accelerator.add_ring(config, std::as_writable_bytes(std::span(memory_.back()))));
  }
  std::vector<Bytes> give(const Bytes& frame) {
    if (taken(frame)) {
      std::vector<Bytes> sent;
      for (Datagram& each : sink_.take()) sent.push_back(std::move(each.bytes));
      return sent;
    }
    return {frame};
  }

  netreduce::Accelerator accelerator;
  std::uint32_t others = 0, dropped_unreadable = 0;

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };

  bool taken(const Bytes& frame) {
    const auto ethernet = wire::ethernet::parse(frame);
    if (!ethernet || (ethernet->type != wire::ethernet::ipv4 && ethernet->type != wire::ethernet::ipv6)) {
      ++others;
      return false;
    }
    const auto ip = std::span(frame).subspan(ethernet->bytes);
    Packet packet;
    if (!wire::roce::is_roce(ip) || wire::roce::parse(ip, packet) != wire::ParseError::none) {
      const auto seen = wire::roce::glance(ip);
      const bool gradient =
          seen && accelerator.may_be_gradient({seen->source, seen->destination, seen->destination_qp}, seen->beginning);
      ++(gradient ? dropped_unreadable : others);
      return gradient;
    }
    const bool taken = accelerator.on_packet(packet, frame, ethernet->bytes, endpoint_of(9, 9), {}, sink_) ==
                       netreduce::Accelerator::Verdict::taken;
    accelerator.check();
    return taken;
  }

  std::vector<std::vector<CacheLine>> memory_;
  RecordingSink sink_;
};

class Both {
 public:
  void add_ring(const RingConfig& config) {
    rtl.add_ring(static_cast<std::uint32_t>(rings_.size()), config);
    cc.add_ring(config);
    rings_.push_back(config.incarnation);
  }
  void give(const Bytes& frame) {
    if (frame.empty() || frame.size() > RtlAccelerator::longest_frame) return;
    rtl.give(frame);
    for (Bytes& sent : cc.give(frame)) expected_.push_back(std::move(sent));
    ++given;
  }
  // Compares what has left since, and all counters.
  void compare() {
    rtl.drain();
    const std::vector<Bytes> sent = rtl.take();
    for (std::size_t i = 0; i < std::min(sent.size(), expected_.size()); ++i) {
      if (sent[i] == expected_[i]) continue;
      const auto at =
          std::mismatch(sent[i].begin(), sent[i].end(), expected_[i].begin(), expected_[i].end()).first - sent[i].begin();
      FAIL() << "frame " << i << " of " << expected_.size() << ": " << sent[i].size() << " bytes for " << expected_[i].size()
             << ", the first that differs is " << at;
    }
    ASSERT_EQ(expected_.size(), sent.size());
    left += sent.size();
    expected_.clear();
    using R = RtlAccelerator;
    for (std::uint32_t ring = 0; ring < rings_.size(); ++ring) {
      const netreduce::RingCounters& c = *cc.accelerator.ring_counters(rings_[ring]);
      const std::pair<std::uint64_t, R::Counter> counters[] = {{c.packets, R::all},
                                                               {c.bytes, R::bytes},
                                                               {c.contributions, R::contributions},
                                                               {c.sums, R::sums},
                                                               {c.results, R::results},
                                                               {c.repeats_answered, R::repeats_answered},
                                                               {c.repeats_waiting, R::repeats_waiting},
                                                               {c.dropped_icrc, R::dropped_icrc},
                                                               {c.dropped_header, R::dropped_header},
                                                               {c.dropped_unplaced, R::dropped_unplaced},
                                                               {c.dropped_old, R::dropped_old},
                                                               {c.dropped_early, R::dropped_early},
                                                               {c.dropped_misplaced, R::dropped_misplaced},
                                                               {c.dropped_mismatch, R::dropped_mismatch},
                                                               {c.dropped_shape, R::dropped_shape}};
      for (const auto& [expected, counter] : counters) {
        ASSERT_EQ(expected, rtl.counter(ring, counter)) << "counter " << counter << " of ring " << ring;
        seen[counter] += expected;
      }
    }
    ASSERT_EQ(cc.accelerator.counters().passed, rtl.counter(R::passed));
    ASSERT_EQ(cc.others, rtl.counter(R::others));
    ASSERT_EQ(cc.dropped_unreadable, rtl.counter(R::dropped_unreadable));
  }

  RtlAccelerator rtl;
  Reference cc;
  std::size_t given = 0, left = 0;
  std::map<std::uint32_t, std::uint64_t> seen;  // counters

 private:
  std::vector<std::uint64_t> rings_;
  std::vector<Bytes> expected_;
};

Bytes in_ethernet(const Crafted& packet, std::uint32_t tags) {
  const std::size_t ip_at = wire::ethernet::header_bytes + wire::ethernet::tag_bytes * tags;
  Bytes frame = packet.frame(ip_at);
  for (std::uint32_t tag = 0; tag < tags; ++tag)
    store_be(frame.data() + 12 + 4 * tag, tag == 0 && tags == 2 ? wire::ethernet::provider_vlan : wire::ethernet::vlan);
  store_be(frame.data() + ip_at - 2, packet.packet.ip.v6 ? wire::ethernet::ipv6 : wire::ethernet::ipv4);
  return frame;
}

// Numbers of every kind, whose sums are rounded, leave float32 on the way, or are no numbers.
std::uint32_t drawn_value(Draw& draw, bool wild) {
  const auto any = static_cast<std::uint32_t>(draw.next());
  if (!wild)
    return std::bit_cast<std::uint32_t>((static_cast<float>(any & 0xffffff) - 0x1p23F) *
                                        (draw.chance(0.5) ? 0x1p-20F : 0x1p-4F));
  switch (draw.below(12)) {
    case 0:
      return (any & 0x807fffff) | 0x7f000000;  // large
    case 1:
      return any & 0x807fffff;  // subnormal
    case 2:
      return any & 0x80000000;
    case 3:
      return draw.chance(0.1) ? (any & 0x80000000) | 0x7f800000 : any;
    default:
      return (any & 0x87ffffff) | 0x38000000;
  }
}

// The hosts of one ring.
struct Hosts {
  Hosts(Draw& draw, std::uint8_t number)
      : hosts(drawn_ring(draw, number), static_cast<std::uint8_t>(1 + 10 * number), 0x100 + number) {
    const bool v6 = draw.chance(0.3);
    for (Connection& connection : hosts.connections) {
      if (v6) connection.source[0] = connection.destination[0] = 0xfd;
      ipv6 = v6;
    }
    hosts.config.connections = hosts.connections;
    for (std::uint32_t& psn : hosts.first_psns)
      psn = static_cast<std::uint32_t>(draw.chance(0.7) ? 0x1000000 - draw.below(200) : draw.below(0x1000000));
    tags = static_cast<std::uint32_t>(draw.chance(0.7) ? 0 : 1 + draw.below(2));
    udp_checksums = draw.chance(0.4);
    wild = draw.chance(0.4);
    values_seed = draw.next();
    dtype = draw.chance(0.3) ? DType::int32 : DType::float32;
    hosts.config.dtype = dtype;
    for (std::uint64_t message = 0; message < messages; ++message)
      hosts.set_packets(message, 1 + static_cast<std::uint32_t>(draw.below(hosts.config.message_packets)));
  }
  static RingConfig drawn_ring(Draw& draw, std::uint8_t number) {
    RingConfig config;
    config.incarnation = draw.next();
    config.ring = static_cast<std::uint32_t>(draw.chance(0.5) ? number : 0xffff - number);
    config.members = 1 + static_cast<std::uint32_t>(draw.chance(0.9) ? 1 + draw.below(3) : 0);
    config.window = 1U << draw.below(3);
    config.message_packets = 1 + static_cast<std::uint32_t>(draw.below(RtlAccelerator::packets));
    config.mtu = 256U << draw.below(3);
    config.layout = draw.chance(0.7) ? wire::netreduce::netsum_layout : wire::netreduce::nrtv_layout;
    config.order = netreduce::Order::arrival;
    return config;
  }

  // The same whenever it is sent, but for what a repeat may change.
  Crafted packet(std::uint32_t rank, std::uint64_t message, std::uint32_t number, Draw& draw) const {
    Crafted made = hosts.gradient(rank, message, number);
    if (number == 0) {
      auto header = hosts.header(rank, message);
      header.dtype = dtype;
      wire::netreduce::write_header(hosts.config.layout, made.payload, header);
    }
    Draw own(values_seed ^ (message << 20 | number << 4));
    const std::size_t skip = hosts.skipped(number), room = (hosts.config.mtu - skip) / 4;
    const std::size_t values = own.chance(0.6) ? room : own.below(room + 1);
    made.payload.resize(skip + 4 * values);
    Draw of_rank(own.next() + rank);
    for (std::size_t i = 0; i < values; ++i)
      store_le(made.payload.data() + skip + 4 * i, drawn_value(of_rank, wild && draw_wild(values_seed + message)));
    made.packet.ip.v6 = ipv6;
    made.packet.ip.identification = ipv6 ? 0 : static_cast<std::uint16_t>(draw.next());
    made.packet.ip.traffic_class = static_cast<std::uint8_t>(draw.below(4));
    made.packet.bth.ack_request = draw.chance(0.3);
    made.packet.udp_checksum = udp_checksums ? 1 : 0;
    return made;
  }
  static bool draw_wild(std::uint64_t of) { return Draw(of).chance(0.5); }

  static constexpr std::uint64_t messages = 200;
  RingHosts hosts;
  bool ipv6 = false, udp_checksums = false, wild = false;
  std::uint32_t tags = 0;
  DType dtype{};
  std::uint64_t values_seed = 0;
};

// What a rank sends next: of its window, in order, with gaps, steps back and repeats.
class Stream {
 public:
  explicit Stream(const Hosts& hosts) : hosts_(&hosts), cursor_(hosts.hosts.config.members, 0), places_{} {
    for (std::uint64_t message = 0; message < Hosts::messages; ++message) {
      for (std::uint32_t packet = 0; packet < hosts.hosts.packets_of(message); ++packet)
        places_.push_back({message, packet});
    }
    arrived_.resize(places_.size());
  }
  bool ended() const { return frontier_ + 200 >= places_.size(); }
  std::optional<Crafted> next(Draw& draw, double losses) {
    const auto rank = static_cast<std::uint32_t>(draw.below(cursor_.size()));
    std::size_t& cursor = cursor_[rank];
    while (arrived_[frontier_].size() == cursor_.size()) ++frontier_;
    const std::size_t limit = frontier_ + hosts_->hosts.config.window * hosts_->hosts.config.message_packets;
    if (cursor >= limit || draw.chance(losses / 4)) cursor = frontier_ - std::min<std::size_t>(frontier_, draw.below(8));
    if (draw.chance(losses / 4)) cursor += draw.below(20);
    cursor = std::min(cursor, places_.size() - 1);
    const std::size_t at = cursor++;
    if (draw.chance(losses)) return std::nullopt;
    // A message's first packet places the others.
    const auto [message, packet] = places_[at];
    if (arrived_[at - packet].contains(rank) || packet == 0) arrived_[at].insert(rank);
    return hosts_->packet(rank, message, packet, draw);
  }

 private:
  const Hosts* hosts_;
  std::vector<std::size_t> cursor_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> places_;
  std::vector<std::set<std::uint32_t>> arrived_;
  std::size_t frontier_ = 0;
};

// What else a wire has, and packets that are wrong in some place.
Bytes spoilt(Bytes frame, const Hosts& hosts, Draw& draw) {
  const std::size_t ip_at = wire::ethernet::header_bytes + 4 * hosts.tags;
  switch (draw.below(9)) {
    case 0:  // a bit of the packet
      frame[draw.below(frame.size())] ^= std::byte{1} << draw.below(8);
      break;
    case 1:  // a bit of the headers, which may be noticed elsewhere
      frame[draw.below(std::min<std::size_t>(frame.size(), 150))] ^= std::byte{1} << draw.below(8);
      break;
    case 2:
      frame.resize(1 + draw.below(frame.size()));
      break;
    case 3:  // another opcode, with a right ICRC
      frame[ip_at + (hosts.ipv6 ? 40 : 20) + 8] = static_cast<std::byte>(draw.below(draw.chance(0.5) ? 0x12 : 256));
      wire::roce::write_icrc(std::span(frame).subspan(ip_at));
      break;
    case 4:  // another place
      frame[ip_at + (hosts.ipv6 ? 40 : 20) + 8 + 9 + draw.below(3)] ^= static_cast<std::byte>(1 + draw.below(255));
      wire::roce::write_icrc(std::span(frame).subspan(ip_at));
      break;
    case 5: {  // another header
      const std::size_t at = std::min(frame.size() - 5, ip_at + (hosts.ipv6 ? 40U : 20U) + 20 + 16 + draw.below(44));
      frame[at] = static_cast<std::byte>(draw.next());
      if (draw.chance(0.5)) frame[at] &= std::byte{7};
      wire::roce::write_icrc(std::span(frame).subspan(ip_at));
      break;
    }
    case 6:  // a fragment, or IP options
      if (!hosts.ipv6) frame[ip_at + 6 * draw.below(2)] = static_cast<std::byte>(draw.below(256));
      break;
    case 7:
      frame.resize(frame.size() + draw.below(60), std::byte{0x77});  // Ethernet's own pad
      break;
    default:
      for (std::byte& byte : frame) byte = static_cast<std::byte>(draw.next());
  }
  return frame;
}

// 16-bit values and averages are not in the RTL: C++ would add them.
bool is_added_here(const Bytes& frame) {
  const auto ethernet = wire::ethernet::parse(frame);
  Packet packet;
  if (!ethernet || wire::roce::parse(std::span(frame).subspan(ethernet->bytes), packet) != wire::ParseError::none)
    return true;
  const auto header = wire::netreduce::read_header(wire::netreduce::netsum_layout, packet.payload);
  return !header || (!header->average && (header->dtype == DType::float32 || header->dtype == DType::int32));
}

TEST(RtlAccelerator, DoesAsTheOneInCc) {
  std::map<std::uint32_t, std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    Both both;
    std::vector<Hosts> hosts;
    for (std::uint8_t number = 0; number < 1 + draw.below(2); ++number) hosts.emplace_back(draw, number);
    std::vector<Stream> streams(hosts.begin(), hosts.end());
    for (const Hosts& each : hosts) both.add_ring(each.hosts.config);
    const double losses = draw.chance(0.3) ? 0 : draw.unit() * 0.2, wrong = draw.chance(0.3) ? 0 : draw.unit() * 0.2;
    if (draw.chance(0.5)) {
      both.rtl.set_ready([random = Draw(seed)](std::uint64_t) mutable { return random.chance(0.7); });
      both.rtl.set_offers([random = Draw(seed + 1)](std::uint64_t) mutable { return random.chance(0.8); });
    }
    for (int i = 0; i < 600; ++i) {
      const std::size_t ring = draw.below(hosts.size());
      if (streams[ring].ended()) break;
      const auto packet = streams[ring].next(draw, losses);
      if (!packet) continue;
      Bytes frame = in_ethernet(*packet, hosts[ring].tags);
      if (draw.chance(wrong)) {
        const Bytes other = spoilt(frame, hosts[ring], draw);
        if (is_added_here(other)) both.give(other);
      }
      both.give(frame);
    }
    both.compare();
    if (HasFatalFailure()) return;
    for (const auto& [counter, count] : both.seen) seen[counter] += count;
  }
  for (const auto& [counter, count] : seen) {
    EXPECT_GT(count, 0U) << "counter " << counter << " was never needed";
    RecordProperty("counter_" + std::to_string(counter), std::to_string(count));
  }
}

TEST(RtlAccelerator, SumsRecordedRings) {
  for (const char* const name :
       {"ring3_sum", "ring3_sum_loss_first", "ring3_sum_loss_last", "ring3_sum_loss_middle", "ring3_sum_loss_result"}) {
    SCOPED_TRACE(name);
    std::vector<CapturedFrame> frames;
    RingConfig config;
    config.incarnation = 1;
    config.members = 3;
    config.window = 4;
    config.message_packets = 8;
    config.layout = wire::netreduce::nrtv_layout;
    config.dtype = DType::int32;
    config.order = netreduce::Order::arrival;
    config.connections.resize(3);
    for (std::uint32_t link = 0; link < 3; ++link) {
      for (auto& frame :
           read_pcap(NETSUM_TEST_DATA "/roce/" + std::string(name) + ".link" + std::to_string(link) + ".pcap")) {
        Packet packet;
        ASSERT_EQ(wire::ParseError::none, wire::roce::parse(std::span(frame.bytes).subspan(14), packet));
        if (packet.ip.source[15] != link + 1) continue;  // what the recorded program passed on
        if (wire::roce::shape_of(packet.bth.opcode).request)
          config.connections[link] = {packet.ip.source, packet.ip.destination, packet.bth.destination_qp};
        frames.push_back(std::move(frame));
      }
    }
    std::stable_sort(frames.begin(), frames.end(), [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
    Both both;
    both.add_ring(config);
    for (const CapturedFrame& frame : frames) both.give(frame.bytes);
    both.compare();
    EXPECT_EQ(64U, both.seen[RtlAccelerator::sums]);
  }
}

TEST(RtlAccelerator, PassesRecordedTraffic) {
  Both both;
  for (const auto& file : std::filesystem::directory_iterator(NETSUM_TEST_DATA "/roce")) {
    if (file.path().extension() != ".pcap") continue;
    for (const CapturedFrame& frame : read_pcap(file.path().string())) both.give(frame.bytes);
  }
  both.compare();
  EXPECT_EQ(both.given, both.left);
  EXPECT_GT(both.given, 2000U);
}

// Packets of 1 KiB are 17 beats, a message's first one 18. Ranks' packets come in turn, without a pause.
TEST(RtlAccelerator, TakesAPacketOfOneKibibyteInSeventeenClocks) {
  for (std::uint32_t ranks = 2; ranks <= RtlAccelerator::ranks; ++ranks) {
    Draw draw(ranks);
    RingConfig config;
    config.incarnation = 5;
    config.members = ranks;
    config.window = 4;
    config.message_packets = RtlAccelerator::packets;
    config.order = netreduce::Order::arrival;
    RingHosts hosts(config);
    Both both;
    both.add_ring(hosts.config);
    constexpr std::uint64_t messages = 20;
    std::uint64_t frames = 0, beats = 0, first_in = 0, begun = 0;
    for (std::uint64_t message = 0; message < messages; ++message) {
      for (std::uint32_t packet = 0; packet < config.message_packets; ++packet) {
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          const Bytes frame = in_ethernet(hosts.gradient(rank, message, packet), 0);
          if (frames == 0 && ranks == 3) both.rtl.trace();
          if (frames == ranks - 1) first_in = both.rtl.clocks();
          if (message == 1 && packet == 0 && rank == 0) begun = both.rtl.clocks();
          if (message >= 1) beats += (frame.size() + 63) / 64;
          both.give(frame);
          ++frames;
        }
      }
    }
    const std::uint64_t clocks = both.rtl.clocks() - begun;
    both.compare();
    const std::uint64_t latency = both.rtl.take_clocks().front() - first_in;
    const double each = static_cast<double>(clocks) / static_cast<double>((messages - 1) * config.message_packets * ranks);
    std::printf(
        "%u ranks: %.2f clocks a packet, of which the wire's beats are %.2f; first sum %lu clocks behind the last "
        "contribution's first beat\n",
        ranks, each, static_cast<double>(beats) / static_cast<double>((messages - 1) * config.message_packets * ranks),
        latency);
    if (const char* const file = std::getenv("NETSUM_RTL_WAVES"); file != nullptr && ranks == 3)
      std::ofstream(file) << both.rtl.traced();
    EXPECT_LE(clocks, beats + beats / 50) << "the wire waits";
  }
  Both both;
  const Bytes other(1082, std::byte{1});
  const std::uint64_t begun = both.rtl.clocks();
  both.give(other);
  both.compare();
  std::printf("%lu clocks from the first beat of another frame of 1082 bytes to its last\n",
              both.rtl.take_clocks().front() - begun);
}

}  // namespace
}  // namespace netsum::testing
