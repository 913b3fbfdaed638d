// From where ranks stand to what everybody must know: a job of four ranks, two in rack 0, one in rack 1, one beside the
// server; rack 0's switch is below switch 2.
#include "session/atp_job.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "netsum/error.h"
#include "wire/switchml.h"

namespace netsum::session {
namespace {

Endpoint at(std::uint16_t port) {
  Endpoint endpoint;
  endpoint.port = port;
  return endpoint;
}

constexpr std::uint32_t server = Placement::at_server;

StartJob job() {
  StartJob start;
  start.job = "train";
  start.admission.job_epoch = 7;
  start.admission.rank_epochs = {100, 101, 102, 103};
  start.admission.packet_elements = 62;
  start.admission.slots = 16;
  start.admission.placement.switches = {"a:1", "b:1", "c:1"};
  start.admission.placement.parent_of_switch = {2, server, server};
  start.admission.placement.switch_of_rank = {0, 0, 1, server};
  start.admission.placement.pool_slots = 30;
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    start.endpoints.push_back({at(static_cast<std::uint16_t>(1000 + rank)), at(static_cast<std::uint16_t>(2000 + rank))});
  }
  return start;
}

SwitchEndpoint switches() {
  return [](std::uint32_t a_switch, std::size_t lane) { return at(static_cast<std::uint16_t>(10 * a_switch + lane)); };
}

const std::array<Endpoint, 2> server_lanes = {at(70), at(71)};

Installation installation(std::uint32_t a_switch) {
  return installation_for(job(), a_switch, {}, switches(), server_lanes);
}

TEST(AtpJob, TheServerKnowsItsMembersAndWhoIsNextToIt) {
  AtpSettings settings;
  settings.indexing = atp::Indexing::linear;
  settings.overflow = atp::Overflow::saturating;
  const auto config = server_job(job(), 1, settings, switches());
  EXPECT_EQ(7U, config.epoch);
  EXPECT_EQ(wire::fold_epochs(job().admission.rank_epochs), config.folded_epochs);
  EXPECT_EQ(62U, config.packet_elements);
  EXPECT_EQ(16U, config.window);
  EXPECT_EQ(30U, config.switch_slots);
  EXPECT_EQ(atp::Indexing::linear, config.indexing);
  EXPECT_EQ(atp::Overflow::saturating, config.overflow);
  ASSERT_EQ(4U, config.members.size());
  EXPECT_EQ(102U, config.members[2].epoch);
  EXPECT_EQ(at(2002), config.members[2].endpoint);
  // Switches b and c, and rank 3.
  EXPECT_EQ((std::vector<Endpoint>{at(11), at(21), at(2003)}), config.roots);
}

TEST(AtpJob, ARacksSwitchKnowsItsRanksAndTheSwitchAbove) {
  const Installation rack = installation(0);
  EXPECT_EQ("train", rack.job);
  EXPECT_EQ(0U, rack.level);
  EXPECT_EQ(1U, rack.next_level);
  ASSERT_EQ(2U, rack.lanes.size());
  const auto config = switch_job(rack, 1);
  EXPECT_EQ(7U, config.epoch);
  EXPECT_EQ(16U, config.window);
  EXPECT_EQ(at(21), config.parent);
  EXPECT_EQ(atp::Overflow::exact, config.overflow);
  ASSERT_EQ(2U, config.children.size());
  EXPECT_EQ(at(2001), config.children[1].endpoint);
  EXPECT_EQ(101U, config.children[1].rank_epoch);
  EXPECT_FALSE(config.children[1].is_switch);
  EXPECT_TRUE(config.children[1].ranks.contains(1));
  EXPECT_EQ(1U, config.children[1].ranks.size());
}

TEST(AtpJob, ASwitchAboveKnowsWhoIsBelowTheSwitchesBelow) {
  AtpSettings settings;
  settings.overflow = atp::Overflow::saturating;
  const auto config = switch_job(installation_for(job(), 2, settings, switches(), server_lanes), 0);
  EXPECT_EQ(1U, config.level);
  EXPECT_EQ(2U, config.next_level);
  EXPECT_EQ(at(70), config.parent);
  EXPECT_EQ(atp::Overflow::saturating, config.overflow);
  ASSERT_EQ(1U, config.children.size());
  EXPECT_TRUE(config.children[0].is_switch);
  EXPECT_EQ(at(0), config.children[0].endpoint);
  EXPECT_EQ(2U, config.children[0].ranks.size());
}

TEST(AtpJob, ASwitchWithoutAnyAboveSendsToTheServer) {
  const auto config = switch_job(installation(1), 1);
  EXPECT_EQ(at(71), config.parent);
  EXPECT_EQ(0U, config.level);
  EXPECT_EQ(2U, config.next_level);
}

TEST(AtpJob, ARankKnowsItsPath) {
  Admission admission = job().admission;
  admission.rank_epoch = 102;
  const auto config = worker_config(admission, 2, {}, at(70), at(10));
  EXPECT_EQ(4U, config.world_size);
  EXPECT_EQ(102U, config.rank_epoch);
  EXPECT_EQ(16U, config.window);
  EXPECT_EQ(30U, config.switch_slots);
  EXPECT_EQ(at(70), config.server);
  EXPECT_EQ(at(10), config.first_hop);
  EXPECT_EQ(topology_of(admission.placement).path(2), config.path);
  admission.placement.pool_slots = 0;  // nobody is at a switch
  EXPECT_EQ(1U, worker_config(admission, 2, {}, at(70), at(70)).switch_slots);
  EXPECT_EQ(atp::Scaling::fixed, config.scaling);
  AtpSettings settings;
  settings.scaling = atp::Scaling::dynamic;
  EXPECT_EQ(atp::Scaling::dynamic, worker_config(admission, 2, settings, at(70), at(10)).scaling);
}

TEST(AtpJob, WhatMakesNoSenseIsRefused) {
  const std::pair<const char*, std::function<void(Installation&)>> wrong[] = {
      {"level", [](Installation& i) { i.level = 4; }},
      {"level", [](Installation& i) { i.next_level = 4; }},
      {"level", [](Installation& i) { i.next_level = i.level; }},
      {"packets", [](Installation& i) { i.packet_elements = 0; }},
      {"packets", [](Installation& i) { i.packet_elements = wire::atp::max_packet_elements + 1; }},
      {"window", [](Installation& i) { i.window = 0; }},
      {"children", [](Installation& i) { i.lanes[0].children.clear(); }},
      {"children", [](Installation& i) { i.lanes[0].children.resize(33); }},
      {"rank 1024", [](Installation& i) { i.lanes[0].children[0].ranks = {1024}; }},
  };
  for (const auto& [word, change] : wrong) {
    Installation rack = installation(0);
    EXPECT_NO_THROW(static_cast<void>(switch_job(rack, 0)));
    change(rack);
    try {
      static_cast<void>(switch_job(rack, 0));
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::refused, error.code());
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(AtpJob, RulesOfMembership) {
  const ProtocolRules rules = atp_rules();
  EXPECT_EQ("atp", rules.name);
  EXPECT_TRUE(rules.switches);
  EXPECT_EQ("", rules.check_packet(1));
  EXPECT_EQ("", rules.check_packet(wire::atp::max_packet_elements));
  EXPECT_NE("", rules.check_packet(0));
  EXPECT_NE("", rules.check_packet(wire::atp::max_packet_elements + 1));
  EXPECT_EQ("", rules.check_placement(job().admission.placement));
  Placement circle = job().admission.placement;
  circle.parent_of_switch = {2, server, 0};
  EXPECT_NE("", rules.check_placement(circle));
}

}  // namespace
}  // namespace netsum::session
