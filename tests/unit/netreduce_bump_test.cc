// A bump in the wire with three ports, a host behind each: recorded rings (tests/data/roce) leave it as sums, and all else
// as it came.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/virtio_net.h"
#include "netsum/error.h"
#include "protocol/netreduce/bump.h"
#include "protocol/netreduce/ring_text.h"
#include "support/pcap.h"
#include "support/recording_sink.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace netsum::netreduce {
namespace {

using testing::Datagram;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t workers = 3;
constexpr std::size_t ip_at = virtio_net_header_bytes + wire::ethernet::header_bytes;
constexpr const char* recorded_ring = "ranks=3,packets=8,window=4,mtu=1024,dtype=int32,layout=nrtv,order=arrival";

Endpoint port(std::uint32_t number) {
  return {.address = {'p'}, .port = static_cast<std::uint16_t>(number)};
}

Bytes framed(std::span<const std::byte> ethernet, const VirtioNetHeader& header = {}) {
  Bytes frame(virtio_net_header_bytes);
  write_virtio_net_header(frame, header);
  frame.insert(frame.end(), ethernet.begin(), ethernet.end());
  return frame;
}

// What a worker of the recordings sent, and what was passed to it.
struct Recorded {
  std::uint64_t time_ns = 0;
  std::uint32_t link = 0;
  Bytes frame;
  wire::roce::Packet packet;  // of `frame`
  [[nodiscard]] std::uint32_t from() const { return packet.ip.source[15] - 1U; }
  [[nodiscard]] bool gradient() const { return wire::roce::shape_of(packet.bth.opcode).request; }
};

std::vector<Recorded> recorded(const std::string& name) {
  std::vector<Recorded> frames;
  for (std::uint32_t link = 0; link < workers; ++link) {
    for (auto& captured : testing::read_pcap(NETSUM_TEST_DATA "/roce/" + name + ".link" + std::to_string(link) + ".pcap")) {
      Recorded& frame = frames.emplace_back(Recorded{captured.time_ns, link, framed(captured.bytes), {}});
      EXPECT_EQ(wire::ParseError::none, wire::roce::parse(std::span(frame.frame).subspan(ip_at), frame.packet));
    }
  }
  std::stable_sort(frames.begin(), frames.end(), [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
  return frames;
}

class BumpTest : public ::testing::Test {
 protected:
  BumpTest() { begin(); }

  // Another life: it knows nothing.
  void begin(const BridgeConfig& bridge = {.ports = {port(0), port(1), port(2)}}) {
    bump_ = std::make_unique<Bump>(bridge);
    RingConfig ring = parse_ring(recorded_ring);
    ring.incarnation = ++incarnation_;
    memory_.assign(Accelerator::memory_bytes(ring) / sizeof(Line), {});
    ASSERT_TRUE(bump_->accelerator().add_ring(ring, std::as_writable_bytes(std::span(memory_))));
    LearningConfig learning;
    for (std::uint8_t host = 1; host <= workers; ++host) {
      learning.hosts.push_back({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host});
    }
    bump_->accelerator().learn(learning);
  }

  std::vector<Datagram> give(const Bytes& frame, std::uint32_t from) {
    sink_.clear();
    const RxView view{frame, port(from)};
    bump_->on_packets({&view, 1}, now_, sink_);
    return sink_.sent();
  }

  // The workers' frames in the order in which they were sent.
  std::vector<Datagram> replay(std::span<const Recorded> frames) {
    std::vector<Datagram> all;
    for (const Recorded& each : frames) {
      if (each.from() != each.link) continue;
      for (Datagram& sent : give(each.frame, each.link)) all.push_back(std::move(sent));
    }
    return all;
  }

  // As ARP would: afterwards the bridge knows where everybody is.
  void introduce(std::span<const Recorded> frames) {
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
      const auto own = std::find_if(frames.begin(), frames.end(), [&](const auto& f) { return f.from() == worker; });
      ASSERT_NE(frames.end(), own);
      give(arp(own->frame), worker);
    }
  }

  // A broadcast by the sender of `frame`.
  static Bytes arp(const Bytes& frame) {
    Bytes ethernet(60);
    std::fill_n(ethernet.begin(), 6, std::byte{0xff});
    std::copy_n(frame.begin() + virtio_net_header_bytes + 6, 6, ethernet.begin() + 6);
    ethernet[12] = std::byte{0x08}, ethernet[13] = std::byte{0x06};
    return framed(ethernet);
  }

  [[nodiscard]] const RingCounters& ring() const { return *bump_->accelerator().ring_counters(incarnation_); }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::unique_ptr<Bump> bump_;
  std::vector<Line> memory_;
  std::uint64_t incarnation_ = 0;
  testing::RecordingSink sink_;
  Time now_{};
};

std::vector<Datagram> sorted(std::vector<Datagram> frames) {
  const auto key = [](const Datagram& s) { return std::tie(s.to, s.bytes); };
  std::sort(frames.begin(), frames.end(), [&](const Datagram& a, const Datagram& b) { return key(a) < key(b); });
  return frames;
}

TEST_F(BumpTest, ARecordedRingLeavesAsItWasRecorded) {
  const auto frames = recorded("ring3_sum");
  introduce(frames);
  std::vector<Datagram> expected;
  for (const Recorded& each : frames) {
    if (each.from() != each.link) expected.push_back({{}, port(each.link), each.frame});
  }
  EXPECT_EQ(sorted(expected), sorted(replay(frames)));
  EXPECT_EQ(64U, ring().sums);
  EXPECT_EQ(RankSet::first(workers), bump_->accelerator().bound(incarnation_));
}

// A worker in another network, by its tag, and one whose kernel has not computed the checksum of its UDP yet.
TEST_F(BumpTest, SumsBehindTagsAndOfUnfinishedFrames) {
  const auto frames = recorded("ring3_sum");
  introduce(frames);
  std::map<std::uint32_t, std::size_t> results;
  for (const Recorded& each : frames) {
    if (each.from() != each.link) continue;
    Bytes frame = each.frame;
    if (each.from() == 1) {
      const std::byte tag[] = {std::byte{0x81}, std::byte{0}, std::byte{0}, std::byte{0}};  // priority 0 of no VLAN
      frame.insert(frame.begin() + virtio_net_header_bytes + 12, std::begin(tag), std::end(tag));
    }
    if (each.from() == 2 && each.gradient()) {
      VirtioNetHeader header;
      header.flags = VirtioNetHeader::needs_checksum;
      header.csum_start = wire::ethernet::header_bytes + wire::roce::ipv4_bytes;
      header.csum_offset = 6;
      write_virtio_net_header(frame, header);
    }
    for (const Datagram& sent : give(frame, each.link)) {
      const std::size_t at = ip_at + (sent.bytes.size() > virtio_net_header_bytes + 12 &&
                                              sent.bytes[virtio_net_header_bytes + 12] == std::byte{0x81}
                                          ? wire::ethernet::tag_bytes
                                          : 0);
      const auto ip = std::span(sent.bytes).subspan(at);
      wire::roce::Packet packet;
      ASSERT_EQ(wire::ParseError::none, wire::roce::parse(ip, packet));
      if (!wire::roce::shape_of(packet.bth.opcode).request) continue;
      ++results[packet.ip.source[15] - 1U];
      EXPECT_TRUE(wire::roce::icrc_valid(ip));
      EXPECT_EQ(packet.ip.source[15] == 2, at != ip_at) << "the connection's own tag";
      EXPECT_EQ(0, read_virtio_net_header(sent.bytes).flags & VirtioNetHeader::needs_checksum);
      EXPECT_EQ(packet.ip.source[15] == 3, packet.udp_checksum != 0);
    }
  }
  EXPECT_EQ(64U, ring().sums);
  for (std::uint32_t worker = 0; worker < workers; ++worker) EXPECT_EQ(64U, results[worker]);
}

// Each connection's sums leave by the port that brings its gradients.
TEST_F(BumpTest, ThroughSeveralPortsOfOneArmSumsGoBackWhereTheirConnectionsComeFrom) {
  const auto frames = recorded("ring3_sum");
  begin({.ports = {port(0), port(1), port(2)}, .one_arm = true});
  std::vector<Datagram> expected, sent;
  for (const Recorded& each : frames) {
    if (each.from() != each.link) {
      expected.push_back({{}, port(each.from()), each.frame});
    } else {
      for (Datagram& one : give(each.frame, each.from())) sent.push_back(std::move(one));
    }
  }
  EXPECT_EQ(sorted(expected), sorted(sent));
  EXPECT_EQ(64U, ring().sums);
}

// On one arm, a switch has all ports, and redirects RoCE.
TEST_F(BumpTest, ThroughOneArmSumsGoBackAndOtherRoceDoesAndNothingElse) {
  const auto frames = recorded("ring3_sum");
  begin({.ports = {port(0)}, .one_arm = true});
  std::vector<Datagram> expected, sent;
  for (const Recorded& each : frames) {
    if (each.from() != each.link) {
      expected.push_back({{}, port(0), each.frame});
    } else {
      for (Datagram& one : give(each.frame, 0)) sent.push_back(std::move(one));
    }
  }
  EXPECT_EQ(sorted(expected), sorted(sent));
  EXPECT_EQ(64U, ring().sums);
  Bytes to_one = arp(frames[0].frame);
  EXPECT_TRUE(give(to_one, 0).empty());
  std::copy_n(frames[0].frame.begin() + virtio_net_header_bytes, 6, to_one.begin() + virtio_net_header_bytes);
  EXPECT_TRUE(give(to_one, 0).empty());
  Bytes tcp = frames[0].frame;
  tcp[ip_at + 9] = std::byte{6};
  EXPECT_TRUE(give(tcp, 0).empty());
  EXPECT_EQ(2U, bump_->counters().others);
}

TEST_F(BumpTest, OtherTrafficLeavesAsItCame) {
  const auto frames = recorded("ring3_sum");
  introduce(frames);
  for (const char* const name :
       {"rc_write", "rc_write_imm_wrap", "rc_send", "rc_read", "rc_write_imm_bad_icrc", "uc_write_imm"}) {
    for (const auto& captured : testing::read_pcap(std::string(NETSUM_TEST_DATA "/roce/") + name + ".pcap")) {
      const Bytes frame = framed(captured.bytes);
      const auto ethernet = wire::ethernet::parse(captured.bytes);
      const std::uint32_t from = ethernet->source[5] - 1U;
      const std::vector<Datagram> sent = give(frame, from);
      ASSERT_FALSE(sent.empty()) << name;
      for (const Datagram& each : sent) EXPECT_EQ(frame, each.bytes) << name;
      EXPECT_EQ(port(1 - from), sent[0].to) << name;
    }
  }
  EXPECT_GT(bump_->accelerator().counters().passed, 0U);
  EXPECT_EQ(0U, ring().packets);

  for (const std::size_t bytes : {14U, 15U, 60U, 1514U}) {
    Bytes ethernet(bytes);
    std::copy_n(frames[0].frame.begin() + virtio_net_header_bytes, 12, ethernet.begin());  // some type, no content
    const Bytes frame = framed(ethernet);
    const std::vector<Datagram> sent = give(frame, frames[0].from());
    ASSERT_EQ(1U, sent.size());
    EXPECT_EQ(frame, sent[0].bytes);
  }
}

TEST_F(BumpTest, WhatIsForEverybodyOrNobodyKnowsWhoIsFlooded) {
  const auto frames = recorded("ring3_sum");
  const Bytes hello = arp(frames[0].frame);
  const std::uint32_t from = frames[0].from();
  std::vector<Datagram> expected;
  for (std::uint32_t i = 0; i < workers; ++i) {
    if (i != from) expected.push_back({{}, port(i), hello});
  }
  EXPECT_EQ(expected, sorted(give(hello, from)));
  // No gradient, to somebody who has not spoken.
  const auto answer = std::find_if(frames.begin(), frames.end(), [&](const auto& f) {
    return !f.gradient() && f.packet.ip.destination[15] - 1U != from && f.from() == f.link;
  });
  ASSERT_NE(frames.end(), answer);
  EXPECT_EQ(2U, give(answer->frame, answer->link).size());
  EXPECT_EQ(answer->frame, sink_.sent()[0].bytes);
  EXPECT_EQ(answer->frame, sink_.sent()[1].bytes);
}

TEST_F(BumpTest, AGradientToNobodyKnowsWhereIsDroppedAndItsRepeatCounts) {
  const auto frames = recorded("ring3_sum");
  const auto first = std::find_if(frames.begin(), frames.end(), [](const auto& f) { return f.gradient(); });
  EXPECT_EQ(0U, give(first->frame, first->from()).size());
  EXPECT_EQ(1U, bump_->accelerator().counters().dropped_nowhere);
  EXPECT_EQ(0U, ring().contributions);
  introduce(frames);
  EXPECT_EQ(0U, give(first->frame, first->from()).size());
  EXPECT_EQ(1U, ring().contributions);
}

// A rank that waits for a lost result has nothing to send, and the bridge forgets it.
TEST_F(BumpTest, ARepeatReachesAReceiverOfWhichTheBridgeHasNotHeardForLong) {
  const auto frames = recorded("ring3_sum");
  introduce(frames);
  replay(frames);
  const auto first = std::find_if(frames.rbegin(), frames.rend(), [](const auto& f) { return f.gradient(); });
  const std::vector<Datagram> answered = give(first->frame, first->from());
  ASSERT_EQ(1U, answered.size());
  now_ += std::chrono::minutes(6);
  EXPECT_EQ(answered, give(first->frame, first->from()));
  EXPECT_EQ(0U, bump_->accelerator().counters().dropped_nowhere);
}

// Merged by the receiving kernel (GRO), or with something in them that this cannot read.
TEST_F(BumpTest, WhatCannotBeReadPassesUnlessItMayBeAGradient) {
  const auto frames = recorded("ring3_sum");
  introduce(frames);
  const auto merged = [](Bytes frame, std::size_t segment) {
    VirtioNetHeader header;
    header.gso_type = VirtioNetHeader::gso_udp_l4;
    header.gso_size = static_cast<std::uint16_t>(segment);
    write_virtio_net_header(frame, header);
    return frame;
  };
  const auto unreadable = [](Bytes frame) {  // its IPv4 header is damaged
    frame[ip_at + 8] ^= std::byte{1};
    return frame;
  };
  const auto fragment = [](Bytes frame) {  // the first one
    frame[ip_at + 6] |= std::byte{0x20};
    return frame;
  };
  std::size_t begin = 0, others = 0;
  for (const Recorded& each : frames) {
    if (each.from() != each.link || !each.gradient()) continue;
    const std::uint32_t to = each.packet.ip.destination[15] - 1U;
    for (const Bytes& frame : {merged(each.frame, 500), unreadable(each.frame), fragment(each.frame)}) {
      // Those that begin a message have a mark, though nobody knows the connection yet.
      if (wire::roce::shape_of(each.packet.bth.opcode).first) {
        ++begin;
        EXPECT_TRUE(give(frame, each.from()).empty());
      } else {
        ++others;
        EXPECT_EQ((std::vector<Datagram>{{{}, port(to), frame}}), give(frame, each.from()));
      }
    }
  }
  EXPECT_EQ(others / 3, bump_->counters().trains);
  EXPECT_EQ(begin / 3, bump_->counters().dropped_trains);
  EXPECT_EQ(2 * begin / 3, bump_->counters().dropped_unreadable);

  replay(frames);
  const RingCounters before = ring();
  for (const Recorded& each : frames) {
    if (each.from() != each.link) continue;
    for (const Bytes& frame :
         {merged(each.frame, 500), merged(each.frame, 0), unreadable(each.frame), fragment(each.frame)}) {
      EXPECT_EQ(each.gradient() ? 0U : 1U, give(frame, each.from()).size());
    }
  }
  EXPECT_EQ(begin / 3 + 2 * 192, bump_->counters().dropped_trains);
  EXPECT_EQ(before.packets, ring().packets);
  // The second of two packets in a train is one: its connection shares a source port with another.
  const auto gradient = std::find_if(frames.begin(), frames.end(), [](const auto& f) { return f.gradient(); });
  Bytes train = gradient->frame;
  const Bytes payload(train.begin() + static_cast<std::ptrdiff_t>(ip_at + 28), train.end());
  train.insert(train.end(), payload.begin(), payload.end());
  train[ip_at + 28] = std::byte{0x07};       // of the first: a MIDDLE,
  train[ip_at + 28 + 7] ^= std::byte{0x55};  // to another queue pair
  EXPECT_TRUE(give(merged(train, payload.size()), gradient->from()).empty());
  train[ip_at + 28 + payload.size()] = std::byte{0x07};
  train[ip_at + 28 + payload.size() + 7] ^= std::byte{0x55};
  EXPECT_EQ(1U, give(merged(train, payload.size()), gradient->from()).size());
}

TEST_F(BumpTest, WhatAFormerLifeKnewDoesNotPass) {
  const auto frames = recorded("ring3_sum");
  introduce(frames);
  std::vector<KnownConnection> learned;
  bump_->accelerator().on_change([&](const ConnectionChange& change) {
    EXPECT_EQ(ConnectionChange::Kind::learned, change.kind);
    EXPECT_EQ(incarnation_, change.incarnation);
    learned.push_back(change.known);
  });
  const std::size_t half = frames.size() / 2;
  replay(std::span(frames).first(half));
  ASSERT_EQ(3U, learned.size());
  std::vector<Connection> connections;
  for (const KnownConnection& each : learned) connections.push_back(each.connection);
  std::sort(connections.begin(), connections.end());
  EXPECT_EQ(connections, bump_->accelerator().known());

  for (const bool knows : {true, false}) {
    begin();
    for (const KnownConnection& connection : learned) {
      if (knows) bump_->accelerator().know(connection, now_);
    }
    introduce(frames);
    std::size_t unsummed = 0;
    for (const Datagram& sent : replay(std::span(frames).subspan(half))) {
      wire::roce::Packet packet;
      ASSERT_EQ(wire::ParseError::none, wire::roce::parse(std::span(sent.bytes).subspan(ip_at), packet));
      unsummed += wire::roce::shape_of(packet.bth.opcode).request ? 1 : 0;
    }
    // It has lost what the first half had; so there is no sum, and what passes otherwise is a worker's own, but for first
    // packets, which show what they are.
    EXPECT_EQ(knows, unsummed == 0);
    const AcceleratorCounters& c = bump_->accelerator().counters();
    EXPECT_EQ(knows, c.dropped_known > 0);
    EXPECT_EQ(!knows, c.dropped_misfit[static_cast<std::size_t>(Misfit::beginning)] > 0);
  }
}

// Whatever the bytes: no frame is read beyond its end (sanitizers see that), and short ones are no frames.
TEST_F(BumpTest, CutFramesAreCarriedOrCounted) {
  const auto frames = recorded("ring3_sum");
  introduce(frames);
  const Recorded& first = *std::find_if(frames.begin(), frames.end(), [](const auto& f) { return f.gradient(); });
  const std::size_t first_payload = ip_at + wire::roce::payload_offset(first.packet);
  for (std::size_t bytes = 0; bytes < first.frame.size(); ++bytes) {
    const Bytes cut(first.frame.begin(), first.frame.begin() + static_cast<std::ptrdiff_t>(bytes));
    // What begins with a mark may be a gradient.
    const std::size_t expected = bytes < ip_at || bytes >= first_payload + 4 ? 0 : 1;
    ASSERT_EQ(expected, give(cut, first.from()).size()) << bytes;
    if (expected == 1) {
      EXPECT_EQ(cut, sink_.sent()[0].bytes);
    }
  }
  EXPECT_EQ(ip_at, bump_->bridge().counters().malformed);
  EXPECT_EQ(0U, ring().packets);
}

TEST(RingText, IsReadAsItIsMeant) {
  const RingConfig ring = parse_ring(
      "id=7,ranks=3,packets=8,window=4,mtu=4096,dtype=int32,order=arrival,"
      "layout=magic=4e527476@0;ring=4:2;rank=6:2;message=8:4;packets=12:4;header=16");
  EXPECT_EQ(7U, ring.ring);
  EXPECT_EQ(3U, ring.members);
  EXPECT_EQ(8U, ring.message_packets);
  EXPECT_EQ(4U, ring.window);
  EXPECT_EQ(4096U, ring.mtu);
  EXPECT_EQ(DType::int32, ring.dtype);
  EXPECT_EQ(Order::arrival, ring.order);
  EXPECT_EQ(16U, ring.layout.header_bytes);
  EXPECT_EQ(8U, ring.layout.message.offset);
  EXPECT_TRUE(ring.connections.empty());
  const RingConfig least = parse_ring("ranks=2");
  EXPECT_EQ(RingConfig{}.message_packets, least.message_packets);
  EXPECT_EQ(Order::ring, least.order);
  EXPECT_STREQ("netsum", least.layout.name);
}

TEST(RingText, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> texts[] = {
      {"", "ranks=N"},
      {"id=1", "ranks=N"},
      {"ranks", "KEY=VALUE"},
      {"ranks=three", "'three' is not a number for ranks"},
      {"ranks=-1", "'-1' is not a number"},
      {"ranks=", "'' is not a number"},
      {"ranks=0", "ring size 0"},
      {"ranks=2,ranks=2", "ranks is given twice"},
      {"ranks=2,dtype=float64", "'float64'"},
      {"ranks=2,order=random", "'random'"},
      {"ranks=2,layout=nothing", "unknown layout 'nothing'"},
      {"ranks=2,layout=magic=4e52@0;ring=2:2", "rank"},
      {"ranks=2,size=3", "unknown key 'size'"},
      {"ranks=2,mtu=100", "MTU 100"},
      {"ranks=2,mtu=1000", "MTU 1000 is not a path MTU"},
      {"ranks=2,mtu=8192", "MTU 8192"},
      {"ranks=2,window=1024,packets=4096", "24-bit"},
  };
  for (const auto& [text, word] : texts) {
    try {
      static_cast<void>(parse_ring(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::bad_argument, error.code());
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("ring '" + std::string(text) + "'"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace netsum::netreduce
