// A host of NetReduce without RDMA hardware: what of its datagrams it takes, and in which words it gives up.
#include "protocol/netreduce/roce_host.h"

#include <numeric>

#include "support/netreduce_packets.h"

namespace netsum::testing {
namespace {

using netreduce::Member;
using netreduce::RoceHost;
using wire::roce::Aeth;
using wire::roce::Opcode;
using namespace std::chrono_literals;

class NetreduceRoceHost : public ::testing::Test {
 protected:
  // Rank 0 of 2: host 1, whose successor and predecessor is host 2.
  void SetUp() override {
    config_.worker.incarnation = 0x99;
    config_.worker.world_size = 2;
    config_.worker.message_packets = 2;
    config_.worker.mtu = 256;
    for (std::uint8_t rank = 0; rank < 2; ++rank) {
      Member& member = rank == 0 ? config_.self : config_.successor;
      member.address = endpoint_of(static_cast<std::uint8_t>(rank + 1), 0).address;
      member.send_qp = 20;
      member.send_psn = 0xffffff;
      member.receive_qp = 21;
      member.memory_address = 0x1000 * (rank + 1);
      member.memory_key = 7 + rank;
    }
    config_.predecessor = config_.successor;
    config_.accelerator = endpoint_of(255, 7170);
    host_ = std::make_unique<RoceHost>(config_);
  }

  void submit(std::size_t elements) {
    tensor_.assign(elements, 1);
    stream::Operation operation;
    operation.elements = elements;
    operation.data = tensor_.data();
    ASSERT_TRUE(host_->submit(operation, now_, sink_));
  }

  void give(std::span<const std::byte> bytes, const Endpoint& from, bool congested = false) {
    const RxView view{bytes, from, congested};
    host_->on_packets({&view, 1}, now_, sink_);
    ++given_;
  }
  void give(const Bytes& bytes) { give(bytes, config_.accelerator); }

  // What the peer sends as its first message.
  [[nodiscard]] Crafted from_peer(std::uint32_t contributions) const {
    Crafted made;
    made.packet.ip.source = config_.predecessor.address;
    made.packet.ip.destination = config_.self.address;
    made.packet.bth.opcode = Opcode::rc_write_only_immediate;
    made.packet.bth.destination_qp = 21;
    made.packet.bth.psn = 0xffffff;
    made.packet.bth.ack_request = true;
    made.packet.reth = {config_.self.memory_address, config_.self.memory_key, 44};
    made.payload.resize(44);
    if (contributions != 0) wire::netreduce::write_seal(made.payload, {0x99, 0, 0, 0, contributions});
    store_le(made.payload.data() + 40, std::bit_cast<std::uint32_t>(3.0F));
    return made;
  }
  [[nodiscard]] Crafted answer(std::uint8_t syndrome) const {
    Crafted made;
    made.packet.ip.source = config_.successor.address;
    made.packet.ip.destination = config_.self.address;
    made.packet.bth.opcode = Opcode::rc_acknowledge;
    made.packet.bth.destination_qp = 20;
    made.packet.bth.psn = 0xffffff;
    made.packet.aeth = {syndrome, 1};
    return made;
  }

  // Every datagram counts once.
  void TearDown() override {
    const auto& c = host_->counters();
    const auto malformed = std::accumulate(std::begin(c.malformed), std::end(c.malformed), std::uint64_t{0});
    EXPECT_EQ(given_, c.packets + malformed + c.dropped_icrc + c.foreign);
  }

  netreduce::RoceHostConfig config_;
  std::unique_ptr<RoceHost> host_;
  RecordingSink sink_{look_for_frames};
  std::vector<float> tensor_;
  Time now_{};
  std::uint64_t given_ = 0;
};

// The datagram's mark is the packet's: its sender is notified, by way of the accelerator.
TEST_F(NetreduceRoceHost, TellsItsPredecessorOfCongestion) {
  submit(1);
  static_cast<void>(take_frames(sink_));
  Crafted made = from_peer(2);
  made.packet.ip.traffic_class = 2;
  give(made.frame(), config_.accelerator, true);
  const std::vector<Sent> sent = take_frames(sink_);
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(config_.accelerator, sent[0].to);
  EXPECT_EQ(Opcode::congestion_notification, sent[0].packet().bth.opcode);
  EXPECT_EQ((netreduce::Connection{config_.self.address, config_.predecessor.address, 20}), sent[0].connection());
  EXPECT_EQ(Opcode::rc_acknowledge, sent[1].packet().bth.opcode);
  EXPECT_EQ(1U, host_->receiving().marked);
}

TEST_F(NetreduceRoceHost, SendsItsMessagesThroughTheTunnel) {
  submit(54 + 62 + 1);  // one message of two packets, one of one
  const std::vector<Sent> sent = take_frames(sink_);
  ASSERT_EQ(3U, sent.size());
  const Opcode opcodes[] = {Opcode::rc_write_first, Opcode::rc_write_last_immediate, Opcode::rc_write_only_immediate};
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(config_.accelerator, sent[i].to);
    const auto packet = sent[i].packet();
    EXPECT_EQ(opcodes[i], packet.bth.opcode);
    EXPECT_EQ(config_.self.address, packet.ip.source);
    EXPECT_EQ(config_.successor.address, packet.ip.destination);
    EXPECT_EQ(21U, packet.bth.destination_qp);
    EXPECT_EQ((0xffffffU + i) & wire::roce::psn_mask, packet.bth.psn);
  }
  EXPECT_EQ((wire::roce::Reth{0x2000, 8, 512}), sent[0].packet().reth);
  EXPECT_EQ((wire::roce::Reth{0x2000 + 512, 8, 44}), sent[2].packet().reth) << "its place in the successor's memory";
  EXPECT_EQ(1U, sent[2].packet().immediate);
  EXPECT_FALSE(host_->drained());
}

// With room for them at the accelerator, N messages without a result are under way, packet by packet, whatever is
// acknowledged.
TEST_F(NetreduceRoceHost, SendsAPacketForEachThatComes) {
  config_.buffers = 8;
  host_ = std::make_unique<RoceHost>(config_);
  submit(3 * (54 + 62));
  EXPECT_EQ(4U, take_frames(sink_).size());
  Crafted first = from_peer(2);
  first.packet.bth.opcode = Opcode::rc_write_first;
  first.packet.bth.ack_request = false;
  first.packet.reth.length = 512;
  first.payload.resize(256);
  give(first.frame());
  const std::vector<Sent> sent = take_frames(sink_);
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(Opcode::rc_write_first, sent[0].packet().bth.opcode);
}

TEST_F(NetreduceRoceHost, TakesASealedMessageAndAcknowledgesIt) {
  submit(1);
  sink_.clear();
  give(from_peer(2).frame());
  EXPECT_EQ(3.0F, tensor_[0]);
  EXPECT_EQ(std::vector<std::uint64_t>{0}, host_->take_completed());
  const std::vector<Sent> sent = take_frames(sink_);
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(Opcode::rc_acknowledge, sent[0].packet().bth.opcode);
  EXPECT_EQ(20U, sent[0].packet().bth.destination_qp);
  EXPECT_FALSE(host_->drained()) << "the successor may still need what was sent";
  give(answer(Aeth::ack).frame());
  EXPECT_TRUE(host_->drained());
  EXPECT_EQ(never, host_->next_timeout());
  EXPECT_EQ("", host_->failure());
}

TEST_F(NetreduceRoceHost, BelievesNothingRaw) {
  submit(1);
  give(from_peer(0).frame());
  EXPECT_EQ(1.0F, tensor_[0]);
  EXPECT_EQ("packet 0 of message 0 arrived unsummed", host_->failure());
  EXPECT_TRUE(host_->take_completed().empty());
}

TEST_F(NetreduceRoceHost, BelievesNoSumThatLacksARank) {
  submit(1);
  give(from_peer(1).frame());
  EXPECT_EQ(1.0F, tensor_[0]);
  EXPECT_EQ("packet 0 of message 0 arrived with the sum of another packet", host_->failure());
}

TEST_F(NetreduceRoceHost, SaysWhichConnectionBroke) {
  submit(1);
  give(answer(Aeth::nak_access).frame());
  EXPECT_EQ("the connection to the successor broke: the peer refused the address, the key or the length", host_->failure());
}

TEST_F(NetreduceRoceHost, TakesDatagramsFromTheAcceleratorAlone) {
  submit(1);
  for (const Endpoint& stranger : {endpoint_of(255, 7171), endpoint_of(254, 7170), endpoint_of(2, 0)}) {
    give(from_peer(2).frame(), stranger);
    give(answer(Aeth::nak_access).frame(), stranger);
  }
  EXPECT_EQ(6U, host_->counters().foreign);
  EXPECT_EQ(1.0F, tensor_[0]);
  EXPECT_EQ("", host_->failure());
}

TEST_F(NetreduceRoceHost, CountsWhatItCannotTake) {
  submit(1);
  const Bytes whole = from_peer(2).frame();
  for (const std::size_t size : {std::size_t{0}, std::size_t{30}, whole.size() - 1})
    give(std::span(whole).first(size), config_.accelerator);
  EXPECT_EQ(3U, host_->counters().malformed[static_cast<std::size_t>(wire::ParseError::truncated)]);
  Bytes damaged = whole;
  damaged[whole.size() - 6] ^= std::byte{4};
  give(damaged);
  EXPECT_EQ(1U, host_->counters().dropped_icrc);
  Crafted other = from_peer(2);
  other.packet.bth.destination_qp = 22;
  give(other.frame());
  EXPECT_EQ(1U, host_->counters().foreign);
  other = from_peer(2);
  other.packet.ip.source[15] = 9;  // not from the predecessor: the queue pair's own check
  give(other.frame());
  EXPECT_EQ(1U, host_->receiving().foreign);
  EXPECT_EQ(1.0F, tensor_[0]);
  EXPECT_TRUE(host_->take_completed().empty());
}

TEST_F(NetreduceRoceHost, RepeatsWhatIsNotAcknowledged) {
  submit(1);
  const std::vector<Sent> first = take_frames(sink_);
  ASSERT_EQ(1U, first.size());
  EXPECT_EQ(now_ + 20ms, host_->next_timeout());
  now_ += 20ms;
  host_->on_timer(now_, sink_);
  const std::vector<Sent> again = take_frames(sink_);
  ASSERT_EQ(1U, again.size());
  const auto a = first[0].packet().payload, b = again[0].packet().payload;
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  EXPECT_EQ(first[0].packet().bth.psn, again[0].packet().bth.psn);
  EXPECT_EQ(1U, host_->sending().retransmissions);
  EXPECT_GT(host_->next_timeout(), now_);
}

}  // namespace
}  // namespace netsum::testing
