// The accelerator with hand-made packets: which it finds, where it places them, what it sends. Repeats, the ends of buffers'
// lives and orders are netreduce_accelerator_repeats_test.cc's; which connections are whose, _rings_test.cc's.
#include "protocol/netreduce/accelerator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/netreduce_ring.h"

namespace netsum::testing {
namespace {

using wire::netreduce::InaHeader;
using wire::roce::Opcode;

class NetreduceAccelerator : public OneRing {
 protected:
  // One position: the same packet of all ranks with the values given, which are summed to those that come back.
  Bytes sum_of(DType dtype, bool average, const std::vector<Bytes>& values) {
    netreduce::RingConfig config = ring_of(static_cast<std::uint32_t>(values.size()));
    config.message_packets = 1;
    start(config);
    for (std::uint32_t rank = 0; rank < values.size(); ++rank) {
      Crafted packet = hosts_->gradient(rank, 0, 0);
      InaHeader header = hosts_->header(rank, 0);
      header.dtype = dtype;
      header.average = average;
      packet.payload.resize(config.layout.header_bytes);
      wire::netreduce::write_header(config.layout, packet.payload, header);
      packet.payload.insert(packet.payload.end(), values[rank].begin(), values[rank].end());
      give(packet, rank);
    }
    const std::vector<Sent> sent = bump_->take();
    EXPECT_EQ(values.size(), sent.size());
    if (sent.empty()) return {};
    const auto payload = sent[0].packet().payload.subspan(config.layout.header_bytes);
    return {payload.begin(), payload.end()};
  }
  template <class T>
  static Bytes as_bytes(std::initializer_list<T> values) {
    Bytes bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.begin(), bytes.size());
    return bytes;
  }
};

// With memory of its own, it knows nothing of what comes to the other.
TEST_F(NetreduceAccelerator, ACopyIsAnAcceleratorOfItsOwn) {
  start(2);
  give(At{0, 0, 0});
  const Bytes before = bump_->state();
  netreduce::Accelerator copy(bump_->accelerator);
  RingHosts hosts(hosts_->config);
  std::copy(hosts_->memory().begin(), hosts_->memory().end(), hosts.memory().begin());
  copy.move_memory(hosts_->config.incarnation, hosts.memory());
  const auto state = [&] {
    Bytes bytes;
    copy.append_state(bytes);
    return bytes;
  };
  EXPECT_EQ(before, state());
  give(At{1, 0, 0});
  expect_results(of_all(0, 0));
  EXPECT_NE(before, bump_->state());
  EXPECT_EQ(before, state());

  const Bytes frame = hosts_->gradient(1, 0, 0).frame();
  wire::roce::Packet packet;
  ASSERT_EQ(wire::ParseError::none, wire::roce::parse(frame, packet));
  RecordingSink sink;
  EXPECT_EQ(Verdict::taken, copy.on_packet(packet, frame, 0, hosts_->egress[1], {}, sink));
  EXPECT_EQ(2U, sink.sent().size());
  EXPECT_EQ(bump_->state(), state());
}

// The network may refer to it until then. Nothing is looked at in between.
TEST_F(NetreduceAccelerator, ASumLeavesBeforeItsPlaceIsUsedAgain) {
  netreduce::RingConfig config = ring_of(3);
  config.message_packets = 1;
  config.tunnelled = true;
  start(config);
  std::vector<At> all;
  for (std::uint64_t message = 0; message < 5 * std::uint64_t{config.window}; ++message) {
    give_message(message);
    for (const At& each : of_all(message, 0)) all.push_back(each);
  }
  expect_results(all);
}

TEST_F(NetreduceAccelerator, SumsInRankOrderWhateverTheOrderOfArrival) {
  std::vector<std::uint32_t> order(4);
  std::iota(order.begin(), order.end(), 0U);
  do {
    start(4);
    for (const std::uint32_t rank : order) {
      expect_nothing();
      give(At{rank, 0, 0});
    }
    expect_results(of_all(0, 0));
  } while (std::next_permutation(order.begin(), order.end()));
  // The other way round it would have been another sum.
  Bytes backward = RingHosts::values(3, 0, 0, 216);
  for (const std::uint32_t rank : {2U, 1U, 0U}) {
    const Bytes more = RingHosts::values(rank, 0, 0, 216);
    for (std::size_t i = 0; i < backward.size(); i += 4) {
      const float sum = std::bit_cast<float>(load_le<std::uint32_t>(backward.data() + i)) +
                        std::bit_cast<float>(load_le<std::uint32_t>(more.data() + i));
      store_le(backward.data() + i, std::bit_cast<std::uint32_t>(sum));
    }
  }
  EXPECT_NE(hosts_->sum(0, 0), backward);
}

TEST_F(NetreduceAccelerator, HostsOfAnySpeedGetTheSameBits) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    start(3);
    std::map<std::pair<netreduce::Connection, std::uint32_t>, Bytes> results;
    std::vector<std::uint32_t> next(3);  // of the 4 messages' packets
    while (std::any_of(next.begin(), next.end(), [](std::uint32_t n) { return n < 12; })) {
      const auto rank = static_cast<std::uint32_t>(random.below(3));
      if (next[rank] == 12) continue;
      give(At{rank, next[rank] / 3, next[rank] % 3});
      ++next[rank];
      for (const Sent& sent : bump_->take()) {
        EXPECT_TRUE(results.emplace(std::pair(sent.connection(), sent.packet().bth.psn), sent.frame).second);
      }
    }
    ASSERT_EQ(36U, results.size());
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      for (std::uint32_t n = 0; n < 12; ++n) {
        const Crafted wanted = hosts_->result(rank, n / 3, n % 3);
        EXPECT_EQ(wanted.frame(), (results[{hosts_->connections[rank], wanted.packet.bth.psn}]));
      }
    }
    EXPECT_EQ(12U, counters().sums);
    EXPECT_EQ(36U, counters().results);
    EXPECT_EQ(36U, counters().contributions);
    EXPECT_EQ(36U, counters().packets);
  }
}

TEST_F(NetreduceAccelerator, ARingMayHaveOneMember) {
  start(1);
  give_all(0, 0);
  expect_results(of_all(0, 0));
}

TEST_F(NetreduceAccelerator, ARingMayHaveManyMembers) {
  netreduce::RingConfig config = ring_of(130);
  config.message_packets = 1;
  start(config);
  for (std::uint32_t rank = 130; rank-- > 0;) give(At{rank, 0, 0});
  expect_results(of_all(0, 0));
}

// Whatever NICs put into headers leaves as it came; only payload, ICRC and a UDP checksum that is in use are new.
TEST_F(NetreduceAccelerator, LeavesHeadersAsTheyCame) {
  for (const bool v6 : {false, true}) {
    for (const std::uint16_t checksum : {std::uint16_t{0}, std::uint16_t{1}}) {
      for (const std::size_t ip_at : {std::size_t{0}, std::size_t{14}, std::size_t{18}, std::size_t{22}, std::size_t{34}}) {
        netreduce::RingConfig config = ring_of(2);
        hosts_ = std::make_unique<RingHosts>(config);
        for (auto& connection : hosts_->config.connections) {
          if (v6) connection.source[0] = connection.destination[0] = 0xfd;
        }
        hosts_->connections = hosts_->config.connections;
        bump_ = std::make_unique<Bump>();
        ASSERT_TRUE(bump_->accelerator.add_ring(hosts_->config, hosts_->memory()));
        const auto dress = [&](Crafted packet, std::uint32_t rank) {
          packet.packet.ip.v6 = v6;
          packet.packet.ip.traffic_class = static_cast<std::uint8_t>(0x68 | rank);
          packet.packet.ip.hop_limit = static_cast<std::uint8_t>(63 - rank);
          packet.packet.ip.identification = v6 ? 0 : static_cast<std::uint16_t>(0xfff0 + rank);
          packet.packet.ip.fragment = v6 || rank == 0 ? 0x4000 : 0;
          packet.packet.ip.flow_label = v6 ? 0xabcde + rank : 0;
          packet.packet.source_port = static_cast<std::uint16_t>(0xc123 + rank);
          packet.packet.udp_checksum = checksum;
          packet.packet.bth.solicited = rank == 1;
          packet.packet.bth.migration = rank == 0;
          packet.packet.bth.becn = packet.packet.bth.fecn = rank == 1;
          packet.packet.bth.ack_request = rank == 0;
          packet.packet.bth.partition_key = static_cast<std::uint16_t>(0x8001 + rank);
          packet.packet.bth.reserved6 = static_cast<std::uint8_t>(rank);
          packet.packet.bth.reserved7 = static_cast<std::uint8_t>(rank);
          if (wire::roce::shape_of(packet.packet.bth.opcode).reth) {
            packet.packet.reth = {0x123456789abcdef1U + rank, 0xdeadbee0 + rank, 0x7fffffff - rank};
          }
          return packet;
        };
        for (std::uint32_t packet = 0; packet < 3; ++packet) {
          for (const std::uint32_t rank : {0U, 1U}) {
            const Crafted made = dress(hosts_->gradient(rank, 0, packet), rank);
            EXPECT_EQ(Verdict::taken, bump_->give(made, hosts_->egress[rank], ip_at));
          }
          const std::vector<Sent> sent = bump_->take();
          ASSERT_EQ(2U, sent.size());
          for (const std::uint32_t rank : {0U, 1U}) {
            EXPECT_EQ(hosts_->egress[rank], sent[rank].to);
            EXPECT_EQ(dress(hosts_->result(rank, 0, packet), rank).frame(ip_at), sent[rank].frame);
          }
        }
      }
    }
  }
}

// Where the payload begins depends on the opcode (RETH, immediate), and on nothing else here.
TEST_F(NetreduceAccelerator, TakesMessagesOfAllOpcodesThatCarryThem) {
  const std::vector<std::vector<Opcode>> messages = {
      {Opcode::rc_write_first, Opcode::rc_write_middle, Opcode::rc_write_last},
      {Opcode::rc_write_first, Opcode::rc_write_middle, Opcode::rc_write_last_immediate},
      {Opcode::rc_write_only},
      {Opcode::rc_write_only_immediate},
      {Opcode::rc_send_first, Opcode::rc_send_middle, Opcode::rc_send_last},
      {Opcode::rc_send_first, Opcode::rc_send_middle, Opcode::rc_send_last_immediate},
      {Opcode::rc_send_only},
      {Opcode::rc_send_only_immediate},
      {Opcode::uc_write_first, Opcode::uc_write_middle, Opcode::uc_write_last},
      {Opcode::uc_send_only_immediate},
  };
  start(2);
  for (std::uint64_t message = 0; message < messages.size(); ++message) {
    hosts_->set_packets(message, static_cast<std::uint32_t>(messages[message].size()));
    for (std::uint32_t packet = 0; packet < messages[message].size(); ++packet) {
      const Opcode opcode = messages[message][packet];
      SCOPED_TRACE(static_cast<int>(opcode));
      const auto with_opcode = [&](Crafted made) {
        made.packet.bth.opcode = opcode;
        if (!wire::roce::shape_of(opcode).reth) made.packet.reth = {};
        if (!wire::roce::shape_of(opcode).immediate) made.packet.immediate = 0;
        return made;
      };
      for (const std::uint32_t rank : {1U, 0U}) give(with_opcode(hosts_->gradient(rank, message, packet)), rank);
      const std::vector<Sent> sent = bump_->take();
      ASSERT_EQ(2U, sent.size());
      for (const std::uint32_t rank : {0U, 1U}) {
        EXPECT_EQ(with_opcode(hosts_->result(rank, message, packet)).frame(), sent[rank].frame);
      }
    }
  }
}

TEST_F(NetreduceAccelerator, PadIsNeitherSummedNorLost) {
  netreduce::RingConfig config = ring_of(2);
  config.message_packets = 1;
  start(config);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Crafted packet = hosts_->gradient(rank, 0, 0);
    InaHeader header = hosts_->header(rank, 0);
    header.dtype = DType::bfloat16;
    packet.payload.resize(config.layout.header_bytes);
    wire::netreduce::write_header(config.layout, packet.payload, header);
    for (int i = 0; i < 3; ++i) append_bytes(packet.payload, std::uint16_t{0x3f80});  // 1
    Bytes frame = packet.frame();
    frame[frame.size() - 6] = std::byte{0xa5};  // two bytes of pad, in front of the ICRC
    frame[frame.size() - 5] = static_cast<std::byte>(rank);
    wire::roce::write_icrc(frame);
    EXPECT_EQ(Verdict::taken, bump_->give(frame, hosts_->egress[rank]));
  }
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(2U, sent.size());
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto packet = sent[rank].packet();
    EXPECT_EQ(2U, packet.bth.pad);
    ASSERT_EQ(46U, packet.payload.size());
    for (std::size_t i = 40; i < 46; i += 2) EXPECT_EQ(0x4000, load_le<std::uint16_t>(packet.payload.data() + i));  // 2
    EXPECT_EQ(std::byte{0xa5}, sent[rank].frame[sent[rank].frame.size() - 6]);
    EXPECT_EQ(static_cast<std::byte>(rank), sent[rank].frame[sent[rank].frame.size() - 5]);
  }
}

TEST_F(NetreduceAccelerator, SumsEveryTypeThatTheHeaderNames) {
  EXPECT_EQ(as_bytes<std::int32_t>({-1, std::numeric_limits<std::int32_t>::min(), 0}),
            sum_of(DType::int32, false,
                   {as_bytes<std::int32_t>({1, std::numeric_limits<std::int32_t>::max(), 5}),
                    as_bytes<std::int32_t>({-2, 1, -5})}));
  EXPECT_EQ(as_bytes<std::int32_t>({-2, 2, 0}),
            sum_of(DType::int32, true, {as_bytes<std::int32_t>({-7, 7, 1}), as_bytes<std::int32_t>({2, -2, -2})}));
  EXPECT_EQ(
      as_bytes<std::uint16_t>({0x4200, 0xc000}),  // 1 + 2, -1 + -1
      sum_of(DType::float16, false, {as_bytes<std::uint16_t>({0x3c00, 0xbc00}), as_bytes<std::uint16_t>({0x4000, 0xbc00})}));
  EXPECT_EQ(
      as_bytes<std::uint16_t>({0x3e00, 0xbc00}),
      sum_of(DType::float16, true, {as_bytes<std::uint16_t>({0x3c00, 0xbc00}), as_bytes<std::uint16_t>({0x4000, 0xbc00})}));
  EXPECT_EQ(as_bytes<std::uint16_t>({0x4040, 0xc000}),
            sum_of(DType::bfloat16, false,
                   {as_bytes<std::uint16_t>({0x3f80, 0xbf80}), as_bytes<std::uint16_t>({0x4000, 0xbf80})}));
  EXPECT_EQ(as_bytes<float>({2.5F, -1}), sum_of(DType::float32, true, {as_bytes<float>({2, -3}), as_bytes<float>({3, 1})}));
}

TEST_F(NetreduceAccelerator, ASumThatLeavesFloat32OnItsWayIsMended) {
  const float most = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(as_bytes<float>({most, infinity, -infinity, 1}),
            sum_of(DType::float32, false,
                   {as_bytes<float>({most, most, -infinity, 1}), as_bytes<float>({most, most, 1, 1}),
                    as_bytes<float>({-most, 1, 1, -1})}));
  EXPECT_EQ(as_bytes<float>({most}), sum_of(DType::float32, true, {as_bytes<float>({most}), as_bytes<float>({most})}));
  const Bytes nan = sum_of(DType::float32, false, {as_bytes<float>({infinity, 1}), as_bytes<float>({-infinity, 1})});
  ASSERT_EQ(8U, nan.size());
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(load_le<std::uint32_t>(nan.data()))));
  EXPECT_EQ(2.0F, std::bit_cast<float>(load_le<std::uint32_t>(nan.data() + 4)));
}

// Empty tensors and barriers are a header alone.
TEST_F(NetreduceAccelerator, AMessageMayHoldNoValues) {
  EXPECT_EQ(Bytes(), sum_of(DType::float32, false, {{}, {}, {}}));
  EXPECT_EQ(1U, counters().sums);
}

TEST_F(NetreduceAccelerator, SealsSayWhatWasSummed) {
  start(2);
  give_message(0);
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(6U, sent.size());
  for (std::uint32_t i = 0; i < 6; ++i) {
    const auto payload = sent[i].packet().payload;
    EXPECT_EQ(wire::netreduce::seal_of({hosts_->config.incarnation, 3, 0, i / 2, 2}), wire::netreduce::read_seal(payload));
    EXPECT_EQ(2U, wire::netreduce::read_seal(payload) & 0xffff);
  }
  // In the first packet the rest of the header is the host's own.
  const auto header = wire::netreduce::read_header(hosts_->config.layout, sent[1].packet().payload);
  EXPECT_EQ(hosts_->header(1, 0), header);
}

// ---- headers

TEST_F(NetreduceAccelerator, RefusesFirstPacketsThatAreNotOfTheRankInTheRing) {
  start(3);
  const auto give_with = [&](auto change) {
    Crafted packet = hosts_->gradient(1, 0, 0);
    InaHeader header = hosts_->header(1, 0);
    change(header, packet.payload);
    wire::netreduce::write_header(hosts_->config.layout, packet.payload, header);
    change(header, packet.payload);
    EXPECT_EQ(Verdict::taken, give(packet, 1));
  };
  const Bytes before = bump_->state();
  give_with([](InaHeader& h, Bytes&) { h.ring = 4; });
  give_with([](InaHeader& h, Bytes&) { h.rank = 0; });
  give_with([](InaHeader& h, Bytes&) { h.rank = 3; });
  give_with([](InaHeader& h, Bytes&) { h.packets = 0; });
  give_with([](InaHeader& h, Bytes&) { h.packets = 4; });
  give_with([](InaHeader& h, Bytes&) { h.packets = 0xffff; });
  give_with([](InaHeader&, Bytes& payload) { payload[8] ^= std::byte{1}; });     // the magic
  give_with([](InaHeader&, Bytes& payload) { payload[12] = std::byte{4}; });     // no such type
  give_with([](InaHeader&, Bytes& payload) { payload[13] = std::byte{0x80}; });  // no such flag
  Crafted cut = hosts_->gradient(1, 0, 0);
  cut.payload.resize(39);
  give(cut, 1);
  EXPECT_EQ(10U, counters().dropped_header);
  EXPECT_EQ(10U, counters().packets);
  EXPECT_EQ(before, bump_->state());
  // What follows them is nowhere.
  give(At{1, 0, 1});
  EXPECT_EQ(1U, counters().dropped_unplaced);
  give_message(0);
  EXPECT_EQ(3U, counters().sums);
}

TEST_F(NetreduceAccelerator, RefusesPacketsThatContradictTheirMessage) {
  start(2);
  const auto give_as = [&](const At& at, Opcode opcode, std::int32_t psn_off = 0) {
    Crafted packet = hosts_->gradient(at.rank, at.message, at.packet);
    packet.packet.bth.opcode = opcode;
    packet.packet.bth.psn = (packet.packet.bth.psn + static_cast<std::uint32_t>(psn_off)) & wire::roce::psn_mask;
    EXPECT_EQ(Verdict::taken, give(packet, at.rank));
    expect_nothing();
  };
  give_as({0, 0, 0}, Opcode::rc_write_only_immediate);  // and says that it has three packets
  EXPECT_EQ(1U, counters().dropped_misplaced);
  give(At{0, 0, 0});
  const Bytes before = bump_->state();
  give_as({0, 0, 0}, Opcode::rc_write_first, 1);        // the message begins elsewhere by now
  give_as({0, 0, 0}, Opcode::rc_write_middle);          // where the first is
  give_as({0, 0, 1}, Opcode::rc_write_last_immediate);  // ends too early
  give_as({0, 0, 2}, Opcode::rc_write_middle);          // does not end
  give_as({0, 1, 0}, Opcode::rc_write_first, 1);        // the next message begins later than this one ends
  give_as({0, 1, 0}, Opcode::rc_write_first, -1);       // or earlier
  EXPECT_EQ(7U, counters().dropped_misplaced);
  EXPECT_EQ(before, bump_->state());
  // The other way round: the later message is known first.
  give(At{1, 1, 0});
  give_as({1, 0, 0}, Opcode::rc_write_first, 1);
  give_as({1, 0, 0}, Opcode::rc_write_first, -1);
  EXPECT_EQ(9U, counters().dropped_misplaced);
  give_all(0, 1, 1);
  give_all(0, 2, 1);
  give(At{1, 0, 0});
  expect_results(of_all(0, 0));
}

TEST_F(NetreduceAccelerator, RefusesPayloadsThatFitNoBuffer) {
  start(2);
  const auto give_sized = [&](const At& at, std::size_t bytes) {
    Crafted packet = hosts_->gradient(at.rank, at.message, at.packet);
    packet.payload.resize(bytes);
    EXPECT_EQ(Verdict::taken, give(packet, at.rank));
    expect_nothing();
  };
  give_sized({0, 0, 0}, 257);
  give_sized({0, 0, 0}, 4096);
  give_sized({0, 0, 0}, 255);  // no whole values
  give_sized({0, 0, 0}, 42);
  EXPECT_EQ(4U, counters().dropped_shape);
  give_sized({0, 0, 1}, 0);
  give_sized({0, 0, 1}, 7);  // not even a seal
  give_sized({0, 0, 1}, 260);
  EXPECT_EQ(7U, counters().dropped_shape);
  give(At{0, 0, 0});
  give_sized({1, 0, 0}, 252);  // another length than the other ranks'
  EXPECT_EQ(8U, counters().dropped_shape);
  give_sized({0, 0, 0}, 252);  // than before
  EXPECT_EQ(9U, counters().dropped_shape);
  give(At{1, 0, 0});
  expect_results(of_all(0, 0));
}

TEST_F(NetreduceAccelerator, RefusesHeadersThatFitNoBuffer) {
  start(1);
  // 128 bytes are kept for what is in front of the payload: a FIRST packet over IPv4 has 56 of its own.
  EXPECT_EQ(Verdict::taken, bump_->give(hosts_->gradient(0, 0, 0), hosts_->egress[0], 128 - 56 + 1));
  EXPECT_EQ(1U, counters().dropped_shape);
  expect_nothing();
  EXPECT_EQ(Verdict::taken, bump_->give(hosts_->gradient(0, 0, 0), hosts_->egress[0], 128 - 56));
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(hosts_->result(0, 0, 0).frame(128 - 56), sent[0].frame);
}

// The accelerator writes an ICRC that is right on what leaves: damage that got in would be laundered.
TEST_F(NetreduceAccelerator, SumsNothingThatIsDamaged) {
  start(2);
  give(At{0, 0, 0});
  const Bytes before = bump_->state();
  const Bytes whole = hosts_->gradient(1, 0, 0).frame();
  constexpr std::size_t psn_at = wire::roce::ipv4_bytes + wire::roce::udp_bytes + 8;
  for (std::size_t at = psn_at; at < whole.size(); ++at) {
    Bytes damaged = whole;
    damaged[at] ^= std::byte{0x10};
    EXPECT_EQ(Verdict::taken, bump_->give(damaged, hosts_->egress[1])) << at;
  }
  EXPECT_EQ(whole.size() - psn_at, counters().dropped_icrc);
  EXPECT_EQ(before, bump_->state());
  expect_nothing();
  give(At{1, 0, 0});
  expect_results(of_all(0, 0));
}

// Two calls as one message: who makes it is told, and no sum is made.
TEST_F(NetreduceAccelerator, NamesRanksThatIssuedDifferentCalls) {
  const auto changes = std::vector<std::pair<const char*, void (*)(InaHeader&)>>{
      {"signature", [](InaHeader& h) { h.signature ^= 1; }},
      {"type", [](InaHeader& h) { h.dtype = DType::int32; }},
      {"average", [](InaHeader& h) { h.average = true; }},
      {"length", [](InaHeader& h) { h.packets = 2; }},
  };
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    start(3);
    give_message(0);
    drop_sent();
    EXPECT_FALSE(bump_->accelerator.mismatch(hosts_->config.incarnation).has_value());
    give(At{2, 1, 0});
    Crafted other = hosts_->gradient(0, 1, 0);
    InaHeader header = hosts_->header(0, 1);
    change(header);
    wire::netreduce::write_header(hosts_->config.layout, other.payload, header);
    give(other, 0);
    give(At{0, 1, 1});
    EXPECT_EQ(1U, counters().dropped_mismatch);
    EXPECT_EQ(1U, counters().dropped_unplaced) << "nor does what follows it count";
    const auto mismatch = bump_->accelerator.mismatch(hosts_->config.incarnation);
    ASSERT_TRUE(mismatch.has_value());
    EXPECT_EQ(1U, mismatch->message);
    EXPECT_EQ(0U, mismatch->first_rank);
    EXPECT_EQ(2U, mismatch->second_rank);
    give(At{1, 1, 0});
    expect_nothing();
  }
}

// ---- places

TEST_F(NetreduceAccelerator, PacketNumbersWrapInsideAndBetweenMessages) {
  for (std::uint32_t before = 0; before <= 9; ++before) {
    SCOPED_TRACE(before);
    netreduce::RingConfig config = ring_of(3);
    start(config);
    hosts_->first_psns = {wire::roce::psn_mask + 1 - before, 0x7fffff - before, before};
    for (std::uint64_t message = 0; message < 6; ++message) {
      for (std::uint32_t packet = 0; packet < 3; ++packet) {
        give_all(message, packet);
        expect_results(of_all(message, packet));
      }
    }
    EXPECT_EQ(18U, counters().sums);
  }
}

// Of the paper: "packets whose first packet is lost" (§3.2).
TEST_F(NetreduceAccelerator, DropsWhatFollowsALostFirstPacketUntilItComes) {
  start(2);
  give(At{0, 0, 1});
  give(At{0, 0, 2});
  EXPECT_EQ(2U, counters().dropped_unplaced);
  give_message(0);
  drop_sent();
  // The next message's: out of the range of this one's packet numbers.
  give(At{0, 1, 1});
  give(At{0, 1, 2});
  give(At{0, 2, 1});
  EXPECT_EQ(5U, counters().dropped_unplaced);
  // The very next number, too: "PSN - PSN0 > MsgLen" of the paper would let it in.
  Crafted next = hosts_->gradient(0, 1, 0);
  next.packet.bth.opcode = Opcode::rc_write_middle;
  give(next, 0);
  EXPECT_EQ(6U, counters().dropped_unplaced);
  give(At{0, 1, 0});
  give(At{0, 1, 1});
  give(At{0, 1, 2});
  give_all(1, 0, 0);
  expect_results(of_all(1, 0));
  EXPECT_EQ(6U, counters().dropped_unplaced);
}

// A later message's first packet tells nothing of an earlier one whose first packet was lost.
TEST_F(NetreduceAccelerator, ALaterMessageDoesNotPlaceAnEarlierOne) {
  start(2);
  give(At{0, 0, 1});
  give(At{0, 1, 0});
  give(At{0, 1, 1});
  give(At{0, 0, 2});
  EXPECT_EQ(2U, counters().dropped_unplaced);
  EXPECT_EQ(2U, counters().contributions);
  give(At{0, 0, 0});
  give(At{0, 0, 1});
  give_all(0, 0, 0);
  give_all(0, 1, 0);
  std::vector<At> both = of_all(0, 0);
  for (const At& at : of_all(0, 1)) both.push_back(at);
  expect_results(both);
}

// Go-back-N restarts where the gap is, with a packet that has no header, when first packets of later messages have come. One
// entry per connection in the lookup table, as the paper has it, would place it in the wrong message.
TEST_F(NetreduceAccelerator, PlacesAMiddlePacketOfAnOlderMessage) {
  start(2);
  for (const At& at : {At{0, 0, 0}, {0, 0, 2}, {0, 1, 0}, {0, 1, 1}, {0, 1, 2}}) give(at);  // without 0, 1
  give_all(0, 0, 0);
  drop_sent();
  for (const At& at : {At{0, 0, 1}, {0, 0, 2}, {0, 1, 0}, {0, 1, 1}, {0, 1, 2}}) give(at);
  EXPECT_EQ(7U, counters().contributions);
  EXPECT_EQ(4U, counters().repeats_waiting);
  give_all(0, 1, 0);
  expect_results(of_all(0, 1));
  give_all(0, 2, 0);
  expect_results(of_all(0, 2));
}

// Old and new packet numbers are told apart by two windows, not by one message.
TEST_F(NetreduceAccelerator, PlacesAPacketOfAnyMessageOfTwoWindows) {
  netreduce::RingConfig config = ring_of(2);
  config.window = 4;
  start(config);
  for (std::uint64_t message = 0; message < 8; ++message) give(At{0, message, 0});
  for (std::uint64_t message = 8; message-- > 0;) {
    give(At{0, message, 2});
    give(At{0, message, 1});
  }
  EXPECT_EQ(24U, counters().contributions);
}

// ---- what it leaves alone

TEST_F(NetreduceAccelerator, PassesWhatIsNoGradient) {
  start(3);
  const Bytes before = bump_->state();
  std::uint64_t passed = 0;
  for (const Opcode opcode :
       {Opcode::rc_acknowledge, Opcode::rc_read_request, Opcode::rc_read_response_first, Opcode::rc_read_response_middle,
        Opcode::rc_read_response_last, Opcode::rc_read_response_only, Opcode::congestion_notification}) {
    Crafted packet = hosts_->gradient(0, 0, 0);  // even on a gradient connection
    packet.packet.bth.opcode = opcode;
    packet.packet.aeth.syndrome = wire::roce::Aeth::nak_sequence;
    if (!wire::roce::shape_of(opcode).payload) packet.payload.clear();
    EXPECT_EQ(Verdict::pass, give(packet, 0)) << static_cast<int>(opcode);
    EXPECT_EQ(++passed, bump_->accelerator.counters().passed);
  }
  // Gradients of somebody whom we do not know.
  const auto change = [&](auto what) {
    Crafted packet = hosts_->gradient(0, 0, 0);
    what(packet.packet);
    EXPECT_EQ(Verdict::pass, give(packet, 0));
    EXPECT_EQ(++passed, bump_->accelerator.counters().passed);
  };
  change([](wire::roce::Packet& p) { p.bth.destination_qp ^= 1; });
  change([](wire::roce::Packet& p) { p.ip.source[15] ^= 0x40; });
  change([](wire::roce::Packet& p) { p.ip.destination[15] ^= 0x40; });
  change([](wire::roce::Packet& p) { std::swap(p.ip.source, p.ip.destination); });
  EXPECT_EQ(0U, counters().packets);
  EXPECT_EQ(before, bump_->state());
  expect_nothing();
}

// Every packet of a ring's connection counts once.
TEST_F(NetreduceAccelerator, CountsBytesFromTheIpHeaderOn) {
  start(2);
  EXPECT_EQ(Verdict::taken, bump_->give(hosts_->gradient(0, 0, 0), hosts_->egress[0], 14));
  EXPECT_EQ(hosts_->gradient(0, 0, 0).frame().size(), counters().bytes);
  EXPECT_EQ(1U, counters().packets);
}

// Ethernet pads short frames, and the pad is no part of the packet.
TEST_F(NetreduceAccelerator, WhatIsBehindThePacketIsNotItsBusiness) {
  start(1);
  Bytes frame = hosts_->gradient(0, 0, 0).frame(14);
  frame.resize(frame.size() + 18, std::byte{0x77});
  EXPECT_EQ(Verdict::taken, bump_->give(frame, hosts_->egress[0], 14));
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(hosts_->result(0, 0, 0).frame(14), sent[0].frame);
}

TEST_F(NetreduceAccelerator, NamesWhoTheOldestSumWaitsFor) {
  start(3);
  EXPECT_FALSE(bump_->accelerator.stall(hosts_->config.incarnation).has_value());
  give(At{1, 0, 0});
  give(At{1, 0, 1});
  give(At{0, 0, 0});
  auto stall = bump_->accelerator.stall(hosts_->config.incarnation);
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(0U, stall->message);
  EXPECT_EQ(0U, stall->packet);
  EXPECT_TRUE(stall->missing.contains(2));
  EXPECT_EQ(1U, stall->missing.size());
  give(At{2, 0, 0});
  stall = bump_->accelerator.stall(hosts_->config.incarnation);
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(1U, stall->packet);
  EXPECT_EQ(2U, stall->missing.size());
  EXPECT_FALSE(stall->missing.contains(1));
  EXPECT_FALSE(bump_->accelerator.stall(1).has_value());
}

TEST(NetreduceRing, RefusesWhatCannotBe) {
  netreduce::RingConfig good;
  good.members = 4;
  EXPECT_EQ("", check(good));
  const auto bad = [&](auto change) {
    netreduce::RingConfig config = good;
    change(config);
    return check(config);
  };
  using Config = netreduce::RingConfig;
  EXPECT_EQ("ring size 0 is not between 1 and 4096", bad([](Config& c) { c.members = 0; }));
  EXPECT_NE("", bad([](Config& c) { c.members = 4097; }));
  EXPECT_EQ("window 0 is not between 1 and 1024", bad([](Config& c) { c.window = 0; }));
  EXPECT_NE("", bad([](Config& c) { c.window = 1025; }));
  EXPECT_EQ("message length 0 is not between 1 and 4096", bad([](Config& c) { c.message_packets = 0; }));
  EXPECT_NE("", bad([](Config& c) { c.message_packets = 4097; }));
  EXPECT_EQ("MTU 255 is not between 256 and 4096", bad([](Config& c) { c.mtu = 255; }));
  EXPECT_NE("", bad([](Config& c) { c.mtu = 4097; }));
  EXPECT_EQ("3 connections for 4 members", bad([](Config& c) { c.connections.resize(3); }));
  EXPECT_EQ("", bad([](Config& c) { c.window = 512, c.message_packets = 4096; }));
  // Of two windows behind and two ahead.
  good.layout.message.bytes = 1;
  EXPECT_EQ("", bad([](Config& c) { c.window = 64; }));
  EXPECT_EQ("message IDs of 1 bytes are too short to distinguish four windows of 65 messages",
            bad([](Config& c) { c.window = 65; }));
  good.layout.message.bytes = 2;
  EXPECT_EQ("", bad([](Config& c) { c.window = 1024; }));
  EXPECT_EQ("two windows of 513 messages of 4096 packets are too many for 24-bit packet sequence numbers",
            bad([](Config& c) { c.window = 513, c.message_packets = 4096; }));
}

}  // namespace
}  // namespace netsum::testing
