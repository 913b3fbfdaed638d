// The switch's end of UC queue pairs with hand-made packets.

#include "protocol/switchml/rdma_switch.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/bytes.h"
#include "protocol/switchml/rdma_ends.h"
#include "support/recording_sink.h"
#include "support/virtual_network.h"
#include "wire/switchml_chip.h"
#include "wire/switchml_rdma.h"

namespace netsum::testing {
namespace {

namespace rdma = wire::rdma;
using wire::roce::Opcode;

constexpr std::uint64_t epoch = 77;
constexpr std::uint32_t ranks = 2, queues = 2, longest = 4;

// One packet of a rank's message on a queue pair.
struct Sent {
  std::uint32_t rank = 0, psn = 0;  // psn: from the queue pair's first
  std::uint32_t packet = 0, packets = longest;
  std::uint32_t number = 0;  // of the round
  std::int32_t value = 1;
  std::array<std::uint16_t, 2> exponents{};
  std::uint32_t call = 5, queue = 0;
};

class RdmaSwitchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = {epoch, longest * rdma::packet_elements, queues, {}};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) config_.members.push_back({100 + rank, host(rank)});
    memory_.resize(switchml::RdmaSwitch::memory_bytes(config_) / sizeof(Line));
    ASSERT_TRUE(switch_.add_job(config_, std::as_writable_bytes(std::span(memory_))));
  }

  static Endpoint host(std::uint32_t rank) { return endpoint_of(static_cast<std::uint8_t>(rank), 9); }
  static switchml::RdmaEnds ends_of(std::uint32_t rank) { return switchml::rdma_ends(epoch, ranks, rank, queues); }

  static wire::roce::Packet packet_of(const Sent& sent) {
    const switchml::RdmaEnds ends = ends_of(sent.rank);
    wire::roce::Packet packet;
    wire::roce::set_addresses(packet, host(sent.rank).address, endpoint_of(255, 9).address);
    packet.bth.opcode = rdma::opcode_of(sent.packet, sent.packets);
    packet.bth.destination_qp = ends.switch_qp + sent.queue;
    packet.bth.psn = (switchml::rdma_psn(epoch, ends.switch_qp + sent.queue) + sent.psn) & wire::roce::psn_mask;
    packet.reth = {rdma::address_of({sent.call, sent.queue * longest * rdma::packet_bytes}), sent.number,
                   sent.packets * static_cast<std::uint32_t>(rdma::packet_bytes)};
    packet.immediate = rdma::immediate_of({sent.number, sent.exponents});
    return packet;
  }
  void receive(wire::roce::Packet packet, std::int32_t value, const Endpoint& source, bool damaged = false) {
    std::vector<std::byte> payload(packet.reth.length == 0 ? 0 : rdma::packet_bytes);
    for (std::size_t i = 0; i < payload.size(); i += 4) store_be(payload.data() + i, static_cast<std::uint32_t>(value));
    packet.payload = payload;
    std::vector<std::byte> bytes(wire::roce::packet_bytes(packet));
    wire::roce::write(bytes, packet);
    if (damaged) bytes.back() ^= std::byte{1};
    const RxView view{bytes, source};
    switch_.on_packets({&view, 1}, Time{}, sink_);
    sink_.flush();
  }
  void receive(const Sent& sent) { receive(packet_of(sent), sent.value, host(sent.rank)); }
  // Packets [first, end) of a message, the first with this PSN.
  void message(Sent sent, std::uint32_t psn, std::uint32_t first = 0, std::uint32_t end = longest) {
    for (std::uint32_t packet = first; packet < end; ++packet) {
      sent.packet = packet;
      sent.psn = psn + packet - first;
      receive(sent);
    }
  }

  struct Result {
    Endpoint to;
    Opcode opcode{};
    std::uint32_t psn = 0;  // from the queue pair's first
    wire::roce::Reth reth;
    rdma::Immediate immediate;
    std::int32_t sum = 0;
  };
  std::vector<Result> take_results() {
    std::vector<Result> results;
    for (const Datagram& sent : sink_.take()) {
      wire::roce::Packet packet;
      EXPECT_EQ(wire::ParseError::none, wire::roce::parse(sent.bytes, packet));
      EXPECT_TRUE(wire::roce::icrc_valid(sent.bytes));
      const std::uint32_t rank = sent.to == host(0) ? 0 : 1;
      EXPECT_EQ(host(rank).address, packet.ip.destination);
      EXPECT_EQ(endpoint_of(255, 9).address, packet.ip.source);
      const std::uint32_t pair = ends_of(rank).rank_qp;
      EXPECT_EQ(pair, packet.bth.destination_qp);
      results.push_back(
          {sent.to, packet.bth.opcode, (packet.bth.psn - switchml::rdma_psn(epoch, pair)) & wire::roce::psn_mask,
           packet.reth, rdma::read_immediate(packet.immediate),
           packet.payload.empty() ? 0 : static_cast<std::int32_t>(load_be<std::uint32_t>(packet.payload.data() + 1020))});
    }
    return results;
  }
  [[nodiscard]] const switchml::JobCounters& counters() const { return *switch_.job_counters(epoch); }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  switchml::SwitchJobConfig config_;
  std::vector<Line> memory_;
  switchml::RdmaSwitch switch_;
  RecordingSink sink_;
};

TEST_F(RdmaSwitchTest, SumsAMessageAndAnswersAllRanksWithOne) {
  message({.rank = 0, .value = 3, .exponents = {10, 200}}, 0);
  EXPECT_TRUE(take_results().empty());
  message({.rank = 1, .value = 4, .exponents = {11, 100}}, 0);
  const auto results = take_results();
  ASSERT_EQ(ranks * longest, results.size());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<Result> own;
    for (const Result& each : results) {
      if (each.to == host(rank)) own.push_back(each);
    }
    ASSERT_EQ(longest, own.size());
    for (std::uint32_t packet = 0; packet < longest; ++packet) {
      EXPECT_EQ(rdma::opcode_of(packet, longest), own[packet].opcode);
      EXPECT_EQ(packet, own[packet].psn);
      EXPECT_EQ(7, own[packet].sum);
    }
    EXPECT_EQ((wire::roce::Reth{ends_of(rank).memory_address, ends_of(rank).memory_key, 4096}), own[0].reth);
    EXPECT_EQ((rdma::Immediate{0, {11, 200}}), own[3].immediate);
  }
}

TEST_F(RdmaSwitchTest, DropsTheRestOfAMessageBehindAGap) {
  message({.rank = 0}, 0);
  message({.rank = 1}, 0, 0, 2);
  EXPECT_EQ(2 * ranks, take_results().size());  // two packets are complete, and go out
  message({.rank = 1}, 3, 3, 4);
  EXPECT_EQ(1U, counters().dropped_gap);
  EXPECT_TRUE(take_results().empty());
  // The message again, with new PSNs: what was there already counts once, and rank 1 gets its result from the beginning.
  message({.rank = 1}, 4);
  const auto results = take_results();
  ASSERT_EQ(2U + 2 * ranks, results.size());
  EXPECT_EQ(Opcode::uc_write_first, results[0].opcode);
  EXPECT_EQ(host(1), results[0].to);
  for (const Result& each : results) EXPECT_EQ(2, each.sum);
  EXPECT_EQ(1U, counters().repeats_answered);
  EXPECT_EQ(1U, counters().repeats_silent);
}

// A NIC would write packet 2 where packet 1 belongs.
TEST_F(RdmaSwitchTest, SendsNoPacketOfAResultBeforeTheOneInFrontOfIt) {
  message({.rank = 0}, 0);
  message({.rank = 1}, 0, 0, 2);
  static_cast<void>(take_results());
  message({.rank = 0}, 4, 0, 1);  // rank 0 repeats, while the result is half sent
  auto results = take_results();
  ASSERT_EQ(2U, results.size());
  EXPECT_EQ(Opcode::uc_write_first, results[0].opcode);
  message({.rank = 0}, 5, 1, 4);
  EXPECT_TRUE(take_results().empty());
  message({.rank = 1}, 2, 2, 4);
  results = take_results();
  ASSERT_EQ(2 * 2U, results.size());
  EXPECT_EQ(Opcode::uc_write_middle, results[0].opcode);
  EXPECT_EQ(4U, results[0].psn);  // two packets twice went before
}

TEST_F(RdmaSwitchTest, AnswersACompleteMessageAgainToTheRankThatAsks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) message({.rank = rank}, 0);
  static_cast<void>(take_results());
  message({.rank = 1}, 4);
  const auto results = take_results();
  ASSERT_EQ(longest, results.size());
  for (const Result& each : results) EXPECT_EQ(host(1), each.to);
  EXPECT_EQ(4U, results[0].psn);
}

TEST_F(RdmaSwitchTest, TakesNoLateCopy) {
  message({.rank = 0}, 0);
  message({.rank = 0}, 0);
  EXPECT_EQ(longest, counters().dropped_old);
  EXPECT_EQ(longest, counters().contributions);
  // Nor one that a network has given a later PSN: the round in its key is past.
  message({.rank = 1}, 0);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) message({.rank = rank, .number = 1}, 4);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) message({.rank = rank, .number = 2}, 8);
  static_cast<void>(take_results());
  message({.rank = 0, .value = 99}, 12);
  EXPECT_TRUE(take_results().empty());
  EXPECT_EQ(2 * longest, counters().dropped_old);
}

TEST_F(RdmaSwitchTest, ShortMessagesTakeTheirRoundInAllSlots) {
  for (std::uint32_t number = 0; number < 4; ++number) {
    const std::uint32_t packets = number % 2 == 0 ? 1 : longest;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      message({.rank = rank, .packets = packets, .number = number}, 100 * number, 0, packets);
    EXPECT_EQ(ranks * packets, take_results().size()) << number;
  }
}

TEST_F(RdmaSwitchTest, RoundsOfExponentsHaveNoBytes) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    wire::roce::Packet packet = packet_of({.rank = rank, .packets = 1, .exponents = {7, wire::chip::unknown}});
    packet.reth.length = 0;
    receive(packet, 0, host(rank));
  }
  const auto results = take_results();
  ASSERT_EQ(ranks, results.size());
  EXPECT_EQ(Opcode::uc_write_only_immediate, results[0].opcode);
  EXPECT_EQ(0U, results[0].reth.length);
  EXPECT_EQ((rdma::Immediate{0, {7, wire::chip::unknown}}), results[0].immediate);
}

TEST_F(RdmaSwitchTest, TellsAllRanksOfCallsThatDiffer) {
  message({.rank = 0}, 0);
  message({.rank = 1, .call = 6}, 0);
  const auto results = take_results();
  ASSERT_EQ(ranks * longest, results.size());
  EXPECT_EQ((rdma::Immediate{0, {rdma::differing, 1}}), results.back().immediate);
  EXPECT_EQ(longest, counters().dropped_mismatch);
}

// Nobody takes for a sum what a rank with a shorter message has not added to.
TEST_F(RdmaSwitchTest, TellsThoseWithLongerMessagesToo) {
  message({.rank = 0}, 0);
  message({.rank = 1, .packets = 1, .call = 6}, 0, 0, 1);
  const auto results = take_results();
  ASSERT_EQ(longest + 1U, results.size());
  for (const Result& each : results) {
    if (each.opcode == Opcode::uc_write_last_immediate || each.opcode == Opcode::uc_write_only_immediate) {
      EXPECT_EQ((rdma::Immediate{0, {rdma::differing, 1}}), each.immediate);
    }
  }
}

TEST_F(RdmaSwitchTest, RefusesWhatIsNoMessageOfTheJob) {
  const Sent sent{.rank = 0};
  receive(packet_of(sent), 1, host(1));
  EXPECT_EQ(1U, counters().dropped_source);
  receive(packet_of(sent), 1, host(0), true);
  EXPECT_EQ(1U, switch_.counters().malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
  wire::roce::Packet packet = packet_of(sent);
  packet.bth.destination_qp = 1;
  receive(packet, 1, host(0));
  EXPECT_EQ(1U, switch_.counters().unknown_job);
  packet = packet_of(sent);
  packet.bth.opcode = Opcode::rc_write_first;
  receive(packet, 1, host(0));
  EXPECT_EQ(1U, switch_.counters().unexpected_type);

  std::uint32_t psn = 0;
  for (const std::uint32_t length : {0U, 1024U, 1028U, 5 * 1024U}) {
    packet = packet_of({.rank = 0, .psn = psn++});
    packet.reth.length = length;
    receive(packet, 1, host(0));
  }
  packet = packet_of({.rank = 0, .psn = psn++, .packets = 1});
  packet.bth.opcode = Opcode::uc_write_only;  // without an immediate
  receive(packet, 1, host(0));
  EXPECT_EQ(5U, counters().dropped_shape);
  packet = packet_of({.rank = 0, .psn = psn++});
  packet.reth.address = rdma::address_of({5, (queues * longest - 3) * rdma::packet_bytes});
  receive(packet, 1, host(0));
  EXPECT_EQ(1U, counters().dropped_slot);
  receive({.rank = 0, .psn = psn, .packet = 1});
  EXPECT_EQ(1U, counters().dropped_gap);  // its message has been refused
  EXPECT_EQ(0U, counters().contributions);
  EXPECT_EQ(counters().packets, outcomes(counters()));
}

TEST_F(RdmaSwitchTest, SaysWhoIsMissing) {
  message({.rank = 1, .queue = 1}, 0, 0, 2);
  const auto stalled = switch_.stalled(epoch, 9);
  ASSERT_EQ(2U, stalled.size());
  EXPECT_EQ(longest, stalled[0].slot);
  EXPECT_EQ(wire::switchml::Ranks::first(1), stalled[0].missing);
  EXPECT_EQ(2U, switch_.slots_in_use(epoch));
}

TEST_F(RdmaSwitchTest, ServesNoJobTwiceAndNoneThatItCannot) {
  std::vector<Line> more(memory_.size());
  const auto bytes = std::as_writable_bytes(std::span(more));
  EXPECT_FALSE(switch_.add_job(config_, bytes));
  switchml::SwitchJobConfig other = config_;
  other.epoch = 78;
  other.packet_elements = 768;
  EXPECT_FALSE(switch_.add_job(other, bytes));
  other.packet_elements = config_.packet_elements;
  EXPECT_FALSE(switch_.add_job(other, bytes.first(bytes.size() - 64)));
  EXPECT_TRUE(switch_.add_job(other, bytes));
  EXPECT_NE(nullptr, switch_.remove_job(epoch));
  message({.rank = 0}, 0);
  EXPECT_EQ(longest, switch_.counters().unknown_job);
}

}  // namespace
}  // namespace netsum::testing
