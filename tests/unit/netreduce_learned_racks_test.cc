// Rings of foreign hosts in two racks: their bumps and the root in memory, and hosts whose packets are made by hand. What is
// sent arrives at once, unless a test loses it.
#include "protocol/netreduce/learned_racks.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "protocol/netreduce/ring_text.h"
#include "support/netreduce_packets.h"
#include "support/rack_bump.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;
using netreduce::LearnedRacks;
using netreduce::RingConfig;
using wire::netreduce::RingAgreement;

class TwoRacks : public ::testing::Test {
 protected:
  void start(const std::vector<RingConfig>& rings) {
    rings_ = rings;
    hosts_.clear();
    for (std::size_t i = 0; i < rings.size(); ++i)
      be_born(static_cast<std::uint32_t>(i), 17 + static_cast<std::uint32_t>(i));
    for (std::uint32_t bump = 0; bump <= RackBump::root; ++bump) start_bump(bump);
  }
  void start(std::vector<std::uint32_t> racks) { start(std::vector{RackBump::ring_of(std::move(racks))}); }

  // Another process; `known`: what the file of the former one knew.
  void start_bump(std::uint32_t number, const std::vector<netreduce::KnownConnection>& known = {}) {
    bumps_[number].reset();
    bumps_[number].emplace(number, RackBump::Start{rings_, ++processes_, [this] { return ++lives_; }, known}, now_);
  }
  [[nodiscard]] std::uint32_t rack_of(std::uint32_t ring, std::uint32_t rank) const {
    return rank < rings_[ring].racks.front() ? 0 : 1;
  }

  // All of a ring's hosts, with queue pairs that are new.
  void be_born(std::uint32_t ring, std::uint32_t queue_pair) {
    hosts_.resize(std::max<std::size_t>(hosts_.size(), ring + 1));
    RingConfig config = rings_[ring];
    config.racks.clear();
    hosts_[ring] = std::make_unique<RingHosts>(config, 1, queue_pair);
  }

  void give(std::uint32_t rank, std::uint64_t message, std::uint32_t packet, std::uint32_t ring = 0) {
    const Bytes ip = hosts_[ring]->gradient(rank, message, packet).frame();
    const auto host = static_cast<std::uint8_t>(rank + 1);
    const auto to = static_cast<std::uint8_t>((rank + 1) % rings_[ring].members + 1);
    frames_.push_back({rack_of(ring, rank), RackBump::port_of(rack_of(ring, rank), host), RackBump::framed(ip, host, to)});
    run();
  }
  void give_message(std::uint64_t message, std::uint32_t ring = 0, std::optional<std::uint32_t> but = {}) {
    for (std::uint32_t packet = 0; packet < 2; ++packet) {
      for (std::uint32_t rank = 0; rank < rings_[ring].members; ++rank) {
        if (rank != but) give(rank, message, packet, ring);
      }
    }
  }

  // Carries everything where it goes.
  void run() {
    while (!frames_.empty() || !datagrams_.empty()) {
      if (!frames_.empty()) {
        const Frame frame = frames_.front();
        frames_.pop_front();
        bumps_[frame.rack]->give_frame(frame.port, frame.bytes, now_);
        collect(frame.rack);
        continue;
      }
      const Datagram datagram = datagrams_.front();
      datagrams_.pop_front();
      const std::uint32_t to = RackBump::number_of(datagram.to);
      bumps_[to]->give_datagram(datagram.from, datagram.bytes, now_);
      collect(to);
    }
  }

  // What came to hosts: the ring's results, and nothing else. Repeats are answered once more.
  void expect_results(std::uint64_t message, std::uint32_t ring = 0) {
    std::vector<Bytes> expected;
    for (std::uint32_t rank = 0; rank < rings_[ring].members; ++rank) {
      for (std::uint32_t packet = 0; packet < 2; ++packet) expected.push_back(result(rank, message, packet, ring));
    }
    std::sort(expected.begin(), expected.end());
    std::sort(arrived_.begin(), arrived_.end());
    arrived_.erase(std::unique(arrived_.begin(), arrived_.end()), arrived_.end());
    EXPECT_TRUE(expected == arrived_) << words_of(expected) << "were expected, and came:\n" << words_of(arrived_);
    arrived_.clear();
  }
  void expect_nothing() {
    EXPECT_TRUE(arrived_.empty()) << words_of(arrived_);
    arrived_.clear();
  }

  [[nodiscard]] LearnedRacks& racks(std::uint32_t bump) { return (*bumps_[bump])->learned_racks(); }
  [[nodiscard]] netreduce::Accelerator::Gathered gathered(std::uint32_t rack, std::uint32_t ring = 0) const {
    return (*bumps_[rack])->accelerator().gathered(RackBump::incarnation_at(rings_[ring], rack));
  }

  [[nodiscard]] std::uint64_t racks_lives() { return racks(RackBump::root).counters().lives; }
  [[nodiscard]] std::optional<std::uint32_t> psn_of(const netreduce::Connection& connection) const {
    for (std::uint32_t rank = 0; rank < rings_[0].members; ++rank) {
      if (hosts_[0]->connections[rank] == connection) return hosts_[0]->first_psns[rank];
    }
    return std::nullopt;
  }

  // Loses agreements from or to a bump.
  std::optional<RingAgreement::Kind> lost_;
  Time now_{1h};
  std::uint64_t lives_ = 1000, processes_ = 0;
  std::vector<RingConfig> rings_;
  std::vector<std::unique_ptr<RingHosts>> hosts_;
  std::optional<RackBump> bumps_[RackBump::root + 1];
  std::deque<Datagram> datagrams_;
  std::vector<Bytes> arrived_;  // packets at hosts, from the IP header on
  std::vector<RingAgreement> said_;

 private:
  static std::string words_of(const std::vector<Bytes>& packets) {
    std::string words;
    for (const Bytes& each : packets) {
      wire::roce::Packet packet;
      EXPECT_EQ(wire::ParseError::none, wire::roce::parse(each, packet));
      words += "to host " + std::to_string(packet.ip.destination[15]) + ", queue pair " +
               std::to_string(packet.bth.destination_qp) + ", PSN " + std::to_string(packet.bth.psn) + ", seal " +
               std::to_string(wire::netreduce::read_seal(packet.payload)) + ", " + std::to_string(packet.payload.size()) +
               " bytes\n";
    }
    return words;
  }

  struct Frame {
    std::uint32_t rack = 0;
    Endpoint port;
    Bytes bytes;
  };

  void collect(std::uint32_t number) {
    for (Datagram& each : bumps_[number]->take()) {
      if (!RackBump::is_port(each.to)) {
        if (const auto agreement = wire::netreduce::read_ring_agreement(each.bytes)) {
          said_.push_back(*agreement);
          if (lost_ == agreement->kind) continue;
        }
        datagrams_.push_back(std::move(each));
      } else if (each.to == RackBump::trunk_of(number)) {
        frames_.push_back({1 - number, RackBump::trunk_of(1 - number), std::move(each.bytes)});
      } else {
        arrived_.emplace_back(each.bytes.begin() + RackBump::ip_at, each.bytes.end());
      }
    }
  }

  // Each rack's values are added, and then the sums.
  [[nodiscard]] Bytes result(std::uint32_t rank, std::uint64_t message, std::uint32_t packet, std::uint32_t ring) const {
    const RingHosts& hosts = *hosts_[ring];
    Crafted made = hosts.result(rank, message, packet);
    const std::size_t skip = hosts.skipped(packet);
    for (std::size_t at = 0; at < made.payload.size() - skip; at += 4) {
      float total = 0;
      std::uint32_t first = 0;
      for (const std::uint32_t ranks : rings_[ring].racks) {
        float sum = 0;
        for (std::uint32_t r = first; r < first + ranks; ++r) {
          const Bytes values = RingHosts::values(r, message, packet, made.payload.size() - skip);
          sum += std::bit_cast<float>(load_le<std::uint32_t>(values.data() + at));
        }
        total += sum;
        first += ranks;
      }
      store_le(made.payload.data() + skip + at, std::bit_cast<std::uint32_t>(total));
    }
    return made.frame();
  }

  std::deque<Frame> frames_;
};

TEST_F(TwoRacks, AreLearnedFromPacketsAndSummed) {
  for (const std::vector<std::uint32_t>& racks : {std::vector{2U, 2U}, {1U, 1U}, {1U, 2U}, {2U, 1U}}) {
    start(racks);
    give_message(0);
    expect_nothing();  // what was sent before all were there is to be repeated
    EXPECT_TRUE(gathered(0).begun);
    EXPECT_TRUE(gathered(1).begun);
    for (std::uint64_t message = 0; message < 6; ++message) {
      give_message(message);
      expect_results(message);
    }
    EXPECT_EQ(1U, racks_lives());
  }
}

TEST_F(TwoRacks, WaitForAHostThatNeverComes) {
  start({2, 2});
  for (int repeat = 0; repeat < 3; ++repeat) give_message(0, 0, 3);
  expect_nothing();
  EXPECT_TRUE(gathered(0).complete);
  EXPECT_FALSE(gathered(0).begun);
  EXPECT_EQ((std::vector<std::uint32_t>{1}), racks(RackBump::root).awaited(rings_[0].incarnation));
}

// A host that has died since is no part of a sum: each must have spoken after all were there.
TEST_F(TwoRacks, CountNothingThatWasSentBeforeAllWereThere) {
  start({2, 2});
  give_message(0, 0, 3);
  give_message(0, 0, 0);  // rank 3 comes; rank 0 has fallen silent
  give_message(0, 0, 0);
  EXPECT_TRUE(gathered(0).begun);
  expect_nothing();
  for (std::uint32_t packet = 0; packet < 2; ++packet) give(0, 0, packet);
  expect_results(0);
}

TEST_F(TwoRacks, AskAgainForWhatWasLostAsHostsRepeat) {
  for (const auto kind : {RingAgreement::Kind::ready, RingAgreement::Kind::begin}) {
    start({2, 2});
    lost_ = kind;
    give_message(0);
    give_message(0);
    EXPECT_FALSE(gathered(0).begun);
    expect_nothing();
    lost_.reset();
    give_message(0);
    EXPECT_TRUE(gathered(0).begun);
    give_message(0);
    expect_results(0);
  }
}

TEST_F(TwoRacks, GoOnWithTheSameConnectionsIfNothingHadLeft) {
  start({2, 2});
  give_message(0);
  const auto first = gathered(1);
  now_ += 2s;
  hosts_[0]->connections[0].destination_qp = 99;  // rank 0's host was started again
  give(0, 0, 0);
  EXPECT_TRUE(gathered(0).begun);
  EXPECT_TRUE(gathered(1).begun);
  EXPECT_NE(first.attempt, gathered(1).attempt);
  EXPECT_EQ(2U, racks_lives());
  give_message(0);
  expect_results(0);
}

TEST_F(TwoRacks, EndWithOneHostOnceSumsHaveLeft) {
  start({2, 2});
  give_message(0);
  give_message(0);
  expect_results(0);
  now_ += 2s;
  for (const std::uint32_t rank : {0U, 1U}) hosts_[0]->connections[rank].destination_qp = 99;  // of the first rack
  give(0, 0, 0);
  EXPECT_FALSE(gathered(0).complete) << "the other host cannot go on";
  give(1, 0, 0);
  EXPECT_TRUE(gathered(0).complete);
  EXPECT_FALSE(gathered(1).complete) << "told that it is over";
  for (const std::uint32_t rank : {2U, 3U}) give(rank, 1, 0);
  expect_nothing();
  now_ += 2s;
  be_born(0, 200);
  give_message(0);
  give_message(0);
  expect_results(0);
}

TEST_F(TwoRacks, KnowFormerConnectionsAfterARestart) {
  start({2, 2});
  give_message(0);
  give_message(0);
  expect_results(0);
  std::vector<netreduce::KnownConnection> known;
  for (const auto& connection : (*bumps_[1])->accelerator().known()) known.push_back({connection, {}});
  for (auto& each : known) each.first_psn = psn_of(each.connection);
  start_bump(1, known);
  give_message(1);
  give_message(0);
  // Repeats of message 0 are answered in rack 0, whose bump has it; nothing else leaves.
  for (const Bytes& packet : arrived_) {
    wire::roce::Packet parsed;
    ASSERT_EQ(wire::ParseError::none, wire::roce::parse(packet, parsed));
    EXPECT_NE(0U, wire::netreduce::read_seal(parsed.payload));
  }
  arrived_.clear();
  now_ += 2s;
  be_born(0, 200);
  give_message(0);
  give_message(0);
  expect_results(0);
}

TEST_F(TwoRacks, AreToldToBeginAnewByARootThatWasStartedAgain) {
  start({2, 2});
  give_message(0);
  start_bump(RackBump::root);
  give_message(0);  // repeated; the root knows nothing of the life, and says so
  EXPECT_GT(racks(0).counters().over, 0U);
  give_message(0);
  give_message(0);
  expect_results(0);
}

TEST_F(TwoRacks, HaveSeveralRingsAtOnce) {
  start(std::vector{RackBump::ring_of({2, 2}, 3), RackBump::ring_of({2, 2}, 4)});
  give_message(0, 0);
  give_message(0, 1, 2);  // the second lacks a rank
  give_message(0, 0);
  expect_results(0, 0);
  give_message(0, 1);
  give_message(1, 0);
  expect_results(1, 0);
  give_message(0, 1);
  expect_results(0, 1);
}

TEST_F(TwoRacks, DoNotNeedTheRootForARingInOneOfThem) {
  const RingConfig ring = RackBump::ring_of({4, 0});
  EXPECT_FALSE(netreduce::spans_racks(ring));
  const auto part = netreduce::rack_ring(ring, 0, RackBump::socket_of(RackBump::root));
  ASSERT_TRUE(part);
  EXPECT_FALSE(part->uplink);
  EXPECT_TRUE(part->lines.empty());
  EXPECT_FALSE(netreduce::rack_ring(ring, 1, RackBump::socket_of(RackBump::root)));
}

TEST_F(TwoRacks, HearNoStrangersAndNothingThatIsDamaged) {
  start({2, 2});
  give_message(0, 0, 3);
  ASSERT_FALSE(said_.empty());
  RingAgreement ready = said_.front();
  ready.rack = 1;
  Bytes bytes(RingAgreement::bytes);
  wire::netreduce::write(std::span(bytes).first<RingAgreement::bytes>(), ready);
  const auto tell = [&](const Endpoint& from) { bumps_[RackBump::root]->give_datagram(from, bytes, now_); };
  tell(RackBump::socket_of(0));
  EXPECT_EQ(1U, racks(RackBump::root).counters().strangers);
  bytes[40] ^= std::byte{1};
  tell(RackBump::socket_of(1));
  EXPECT_EQ(1U, racks(RackBump::root).counters().malformed);
  EXPECT_EQ(0U, racks_lives());
}

TEST_F(TwoRacks, AreNotMadeToGoBackByWhatComesLate) {
  start({2, 2});
  give_message(0);
  const RingAgreement former = said_.front();
  ASSERT_EQ(RingAgreement::Kind::ready, former.kind);
  now_ += 2s;
  hosts_[0]->connections[0].destination_qp = 99;
  give(0, 0, 0);
  EXPECT_EQ(2U, racks_lives());
  Bytes bytes(RingAgreement::bytes);
  wire::netreduce::write(std::span(bytes).first<RingAgreement::bytes>(), former);
  datagrams_.push_back({RackBump::socket_of(former.rack), RackBump::socket_of(RackBump::root), bytes});
  run();
  EXPECT_EQ(2U, racks_lives());
  give_message(0);
  expect_results(0);
}

// Neither from outside, with a guess, nor late, of a process of the bump that has ended since.
TEST_F(TwoRacks, BelieveNoProcessThatDoesNotBringTheChallengeBack) {
  start({2, 2});
  give_message(0);
  const auto proved = std::find_if(said_.begin(), said_.end(), [](const auto& each) { return each.challenge != 0; });
  ASSERT_NE(said_.end(), proved);
  RingAgreement forged = *proved;
  forged.kind = RingAgreement::Kind::ready;
  for (const std::uint64_t challenge : {std::uint64_t{0}, proved->challenge, proved->challenge}) {
    ++forged.process;
    forged.challenge = challenge;
    Bytes bytes(RingAgreement::bytes);
    wire::netreduce::write(std::span(bytes).first<RingAgreement::bytes>(), forged);
    datagrams_.push_back({RackBump::socket_of(forged.rack), RackBump::socket_of(RackBump::root), bytes});
    said_.clear();
    run();
    ASSERT_EQ(1U, said_.size()) << "the bump of this address asked for nothing";
    EXPECT_EQ(RingAgreement::Kind::ask, said_.front().kind);
    EXPECT_EQ(forged.process, said_.front().process);
  }
  EXPECT_EQ(1U, racks_lives());
  EXPECT_TRUE(gathered(0).begun);
  EXPECT_TRUE(gathered(1).begun);
  give_message(0);
  expect_results(0);
}

TEST_F(TwoRacks, AgreeOnNothingThatTheyWereGivenDifferently) {
  start({2, 2});
  rings_[0].window = 4;
  start_bump(RackBump::root);
  give_message(0);
  EXPECT_GT(racks(RackBump::root).counters().differing, 0U);
  EXPECT_EQ(3U, racks(RackBump::root).differing().ring);
  expect_nothing();
}

TEST(RingAgreement, IsReadAsItWasWritten) {
  RingAgreement message;
  message.kind = RingAgreement::Kind::begin;
  message.ring = 7;
  message.digest = 0x12345678;
  message.rack = 2;
  message.process = 0x1122334455667788;
  message.attempt = 9;
  message.source = endpoint_of(1, 0).address;
  message.destination = endpoint_of(2, 0).address;
  message.destination_qp = 0xabcdef;
  message.first_psn = 0xfffffe;
  message.life = 5;
  message.incarnation = 6;
  message.challenge = 0x8877665544332211;
  Bytes bytes(RingAgreement::bytes);
  wire::netreduce::write(std::span(bytes).first<RingAgreement::bytes>(), message);
  EXPECT_EQ(message, wire::netreduce::read_ring_agreement(bytes));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x10};
    EXPECT_FALSE(wire::netreduce::read_ring_agreement(bytes)) << i;
    bytes[i] ^= std::byte{0x10};
    EXPECT_FALSE(wire::netreduce::read_ring_agreement(std::span(bytes).first(i)));
  }
}

TEST(RacksOfARing, AreReadFromText) {
  const RingConfig ring = netreduce::parse_ring("ranks=5,racks=2:0:3");
  EXPECT_EQ((std::vector<std::uint32_t>{2, 0, 3}), ring.racks);
  EXPECT_TRUE(netreduce::spans_racks(ring));
  for (const char* const wrong : {"ranks=4,racks=2:3", "ranks=2,racks=2:", "ranks=2,racks=:2", "ranks=2,racks=1-1"}) {
    EXPECT_THROW(static_cast<void>(netreduce::parse_ring(wrong)), Error) << wrong;
  }
  RingConfig other = ring;
  EXPECT_EQ(netreduce::digest_of(ring), netreduce::digest_of(other));
  other.racks = {2, 1, 2};
  EXPECT_NE(netreduce::digest_of(ring), netreduce::digest_of(other));
}

}  // namespace
}  // namespace netsum::testing
