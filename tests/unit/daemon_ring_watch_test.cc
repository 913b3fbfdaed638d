// What a bump says of its rings, by what is seen of them and when; and that it sees its rings.
#include "daemon/ring_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "daemon/bump_rings.h"
#include "daemon/connection_file.h"
#include "protocol/netreduce/ring_text.h"

namespace netsum::daemon {
namespace {

using netreduce::ConnectionChange;
using netreduce::RingConfig;
using std::chrono::seconds;
using Said = std::vector<std::string>;

RingConfig watched_ring(const std::string& text, std::uint64_t incarnation) {
  RingConfig ring = netreduce::parse_ring(text);
  ring.incarnation = incarnation;
  return ring;
}

netreduce::Connection from_host(const std::string& address) {
  return {*parse_address(address), *parse_address("10.0.0.9"), 7};
}

class RingWatchTest : public testing::Test {
 protected:
  // What is said of what is seen now.
  Said look(seconds at) {
    said_.clear();
    watch_.on_look(look_, Time{} + at);
    return said_;
  }
  Said change(ConnectionChange::Kind kind, std::uint64_t incarnation) {
    said_.clear();
    watch_.on_change({kind, {from_host("10.0.0.1"), {}}, incarnation, 2});
    return said_;
  }

  Said said_;
  RingWatch watch_{{watched_ring("id=4,ranks=2", 1), watched_ring("id=5,ranks=4,racks=2:1:1", 2)},
                   [this](const std::string& line) { said_.push_back(line); }};
  BumpLook look_{.counters = {}, .examples = {}, .frames = {}, .racks = {}, .differing = {}, .rings = {{}, {}}};
};

TEST_F(RingWatchTest, SaysOnceThatAllRanksAreThere) {
  EXPECT_EQ(Said{}, look(seconds(0)));
  look_.rings[0].complete = true;
  EXPECT_EQ(Said{"ring 4: all 2 ranks are connected"}, look(seconds(1)));
  EXPECT_EQ(Said{}, look(seconds(2)));
  look_.rings[0].complete = false;
  EXPECT_EQ(Said{}, look(seconds(3)));
  look_.rings[0].complete = true;
  EXPECT_EQ(Said{"ring 4: all 2 ranks are connected"}, look(seconds(4)));
}

TEST_F(RingWatchTest, NamesTheConnectionsOfItsOwnRings) {
  using Kind = ConnectionChange::Kind;
  const std::string words = "from 10.0.0.1 to 10.0.0.9, queue pair 7";
  EXPECT_EQ(Said{"ring 4: rank 2 sends " + words}, change(Kind::learned, 1));
  EXPECT_EQ(Said{"ring 5 starts again: rank 2 has a new connection, " + words}, change(Kind::restarted, 2));
  EXPECT_EQ(Said{}, change(Kind::forgotten, 1));
  EXPECT_EQ(Said{}, change(Kind::learned, 3));
}

TEST_F(RingWatchTest, SaysThatARingStallsAfterFiveSecondsAtOnePlace) {
  look_.rings[0].connections = {from_host("10.0.0.1"), {}};
  netreduce::RingStall stall{7, 3, {}};
  stall.missing.insert(0);
  stall.missing.insert(1);
  look_.rings[0].stall = stall;
  EXPECT_EQ(Said{}, look(seconds(0)));
  look_.rings[0].stall->packet = 4;  // it went on meanwhile
  EXPECT_EQ(Said{}, look(seconds(4)));
  EXPECT_EQ(Said{}, look(seconds(8)));
  EXPECT_EQ(Said{"ring 4 stalls: packet 4 of message 7 waits for ranks 0 (10.0.0.1), 1 (not connected)"}, look(seconds(9)));
  EXPECT_EQ(Said{}, look(seconds(20)));
  look_.rings[0].stall.reset();
  EXPECT_EQ(Said{"ring 4 continues"}, look(seconds(21)));
  EXPECT_EQ(Said{}, look(seconds(22)));
}

TEST_F(RingWatchTest, SaysWhatASumWithoutMissingRanksWaitsFor) {
  look_.rings[0].stall = look_.rings[1].stall = netreduce::RingStall{1, 0, {}};
  EXPECT_EQ(Said{}, look(seconds(0)));
  EXPECT_EQ((Said{"ring 4 stalls: packet 0 of message 1 waits for earlier packets",
                  "ring 5 stalls: packet 0 of message 1 waits for other racks"}),
            look(seconds(5)));
}

TEST_F(RingWatchTest, NamesAwaitedRacksOnceOneIsThere) {
  look_.rings[1].racks_awaited = {0, 1, 2};
  EXPECT_EQ(Said{}, look(seconds(0)));
  look_.rings[1].racks_awaited = {0, 2};
  EXPECT_EQ(Said{"ring 5 waits for the ranks of racks 0, 2"}, look(seconds(1)));
  EXPECT_EQ(Said{}, look(seconds(60)));
  EXPECT_EQ(Said{"ring 5 waits for the ranks of racks 0, 2"}, look(seconds(61)));
}

TEST_F(RingWatchTest, RepeatsAComplaintOnceAMinuteIfThereWasMore) {
  const auto ranks = static_cast<std::size_t>(netreduce::Misfit::rank);
  look_.examples[ranks].connection = from_host("10.0.0.1");
  look_.examples[ranks].header.ring = 4;
  look_.examples[ranks].header.rank = 9;
  look_.counters.dropped_misfit[ranks] = 1;
  const Said misfit{
      "gradients from 10.0.0.1 to 10.0.0.9, queue pair 7 are dropped: their header names rank 9 of ring 4, and the --ring "
      "of "
      "this id has fewer ranks"};
  EXPECT_EQ(misfit, look(seconds(0)));
  EXPECT_EQ(Said{}, look(seconds(100)));
  look_.counters.dropped_misfit[ranks] = 2;
  EXPECT_EQ(misfit, look(seconds(100)));
  look_.counters.dropped_misfit[ranks] = 3;
  EXPECT_EQ(Said{}, look(seconds(159)));
  look_.rings[0].counters.dropped_early = 1;  // another complaint does not wait
  EXPECT_EQ(Said{"ring 4: gradients are dropped (dropped_early): a host has more messages in flight than window=2"},
            look(seconds(159)));
}

TEST_F(RingWatchTest, ComplainsOfUnmarkedMessagesWhileRanksAreMissing) {
  look_.rings[0].complete = look_.rings[1].complete = true;
  EXPECT_EQ(2U, look(seconds(0)).size());
  look_.counters.unmarked = 5;
  EXPECT_EQ(Said{}, look(seconds(1)));
  look_.rings[1].complete = false;
  static_cast<void>(look(seconds(2)));
  const Said said = look(seconds(3));
  ASSERT_EQ(1U, said.size());
  EXPECT_NE(std::string::npos, said[0].find("do not have the magic of a ring")) << said[0];
}

class BumpRingsTest : public testing::Test {
 protected:
  BumpLook look_at(const std::string& ring) {
    rings_.emplace(std::vector{watched_ring(ring, 1)}, options_);
    bump_.emplace(netreduce::BridgeConfig());
    rings_->add_to(*bump_, [this](const std::string& line) { said_.push_back(line); });
    return rings_->look(*bump_);
  }

  BumpOptions options_;
  std::optional<BumpRings> rings_;
  std::optional<netreduce::Bump> bump_;
  Said said_;
};

TEST_F(BumpRingsTest, SeesARingThatWaitsForItsRanks) {
  const BumpLook look = look_at("id=4,ranks=2,packets=8,window=2,mtu=1024");
  ASSERT_EQ(1U, said_.size());
  EXPECT_TRUE(said_[0].starts_with("ring 4: 2 ranks, ")) << said_[0];
  ASSERT_EQ(1U, look.rings.size());
  EXPECT_FALSE(look.rings[0].complete);
  EXPECT_FALSE(look.rings[0].stall);
  EXPECT_TRUE(look.rings[0].racks_awaited.empty());
}

TEST_F(BumpRingsTest, AwaitsAtTheRootTheRacksThatHaveRanks) {
  options_.rack_bumps = {"10.0.1.1:1", "10.0.1.2:1", "10.0.1.3:1"};
  const BumpLook look = look_at("id=5,ranks=3,racks=2:0:1");
  EXPECT_EQ((std::vector<std::uint32_t>{0, 2}), look.rings[0].racks_awaited);
  EXPECT_FALSE(look.rings[0].complete);
  EXPECT_EQ(nullptr, bump_->accelerator().ring_counters(1));  // it has not begun
}

TEST_F(BumpRingsTest, HasItsPartOfARingInSeveralRacks) {
  options_.rack = 0;
  options_.root = "10.0.1.9:1";
  EXPECT_FALSE(look_at("id=5,ranks=3,racks=2:1").rings[0].complete);
  EXPECT_NE(nullptr, bump_->accelerator().ring_counters(1));
}

}  // namespace
}  // namespace netsum::daemon
