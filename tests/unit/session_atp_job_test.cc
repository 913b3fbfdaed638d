// From where ranks stand to what everybody must know: a job of four ranks, two in rack 0, one in rack 1, one beside the
// server; rack 0's switch is below switch 2.
#include "jobs/atp_job.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "protocol/atp/sealed_hops.h"
#include "session/check.h"
#include "jobs/slot_parts.h"
#include "support/atp_packets.h"
#include "wire/epochs.h"
#include "wire/switchml.h"

namespace netsum::session {
namespace {

Endpoint at(std::uint16_t port) {
  return {.address = {0xfd, 1}, .port = port};
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
  return [](std::uint32_t a_switch, std::size_t lane) { return at(static_cast<std::uint16_t>(10 * a_switch + lane + 10)); };
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
  EXPECT_EQ((std::vector<Endpoint>{at(21), at(31), at(2003)}), config.roots);
}

seal::PacketKey key(std::uint8_t number) {
  seal::PacketKey::Bytes bytes;
  bytes.fill(std::byte{number});
  return seal::PacketKey(bytes);
}

StartJob sealed_job() {
  StartJob start = job();
  start.admission.security = PacketSecurity::tag;
  start.admission.results = key(1);
  for (std::uint8_t i = 0; i < 4; ++i) {
    start.keys.push_back({key(static_cast<std::uint8_t>(10 + 2 * i)), key(static_cast<std::uint8_t>(11 + 2 * i))});
  }
  for (std::uint8_t i = 0; i < 3; ++i) {
    start.switch_keys.push_back({key(static_cast<std::uint8_t>(30 + 2 * i)), key(static_cast<std::uint8_t>(31 + 2 * i))});
  }
  return start;
}

// Each hop has one key a way and a lane, which its two ends and nobody else have.
TEST(AtpJob, BothEndsOfAHopHaveItsKeys) {
  const StartJob start = sealed_job();
  std::map<Endpoint, std::vector<seal::Neighbour>> nodes;
  for (std::size_t lane = 0; lane < 2; ++lane) {
    nodes[server_lanes[lane]] = server_neighbours(start, lane, switches());
    for (std::uint32_t i = 0; i < 3; ++i) {
      const Installation told = installation_for(start, i, {}, switches(), server_lanes);
      EXPECT_EQ("", check(told));
      nodes[switches()(i, lane)] = switch_neighbours(told.lanes[lane]);
    }
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      Admission admission = start.admission;
      admission.keys = start.keys[rank];
      const std::uint32_t at_switch = admission.placement.switch_of_rank[rank];
      const Endpoint hop = at_switch == server ? server_lanes[lane] : switches()(at_switch, lane);
      nodes[start.endpoints[rank][lane]] = lane_keys(admission, lane, server_lanes[lane], hop).neighbours;
    }
  }
  std::map<seal::PacketKey::Bytes, std::set<std::pair<Endpoint, Endpoint>>> ways;
  std::size_t hops = 0;
  for (const auto& each : nodes) {
    const Endpoint& node = each.first;
    for (const seal::Neighbour& neighbour : each.second) {
      ++hops;
      ways[neighbour.send.bytes()].emplace(node, neighbour.endpoint);
      const auto& theirs = nodes.at(neighbour.endpoint);
      const auto back =
          std::find_if(theirs.begin(), theirs.end(), [&](const auto& their) { return their.endpoint == node; });
      ASSERT_NE(theirs.end(), back);
      EXPECT_TRUE(neighbour.send == back->receive && neighbour.receive == back->send);
    }
  }
  EXPECT_EQ(2U * 2 * (4 + 3 + 3), hops);  // lanes, ends: ranks and the server, ranks and their switches, switches and theirs
  EXPECT_EQ(hops, ways.size());
  for (const auto& [bytes, of] : ways) EXPECT_EQ(1U, of.size());
}

TEST(AtpJob, AnInstallationHasTheKeysOfItsJobOrNone) {
  Installation told = installation_for(sealed_job(), 2, {}, switches(), server_lanes);
  told.lanes[1].children[0].keys = {};
  EXPECT_NE("", check(told)) << "a switch below is on another host";
  told = installation_for(sealed_job(), 2, {}, switches(), server_lanes);
  told.lanes[0].keys.down = {};
  EXPECT_NE("", check(told));
  told = installation(2);
  EXPECT_EQ("", check(told));
  told.lanes[0].keys.up = key(1);
  EXPECT_NE("", check(told));
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
  EXPECT_EQ(at(31), config.parent);
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
  EXPECT_EQ(at(10), config.children[0].endpoint);
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

TEST(AtpJob, InstallationsThatMakeNoSenseAreRefused) {
  for (const std::uint32_t a_switch : {0U, 1U, 2U}) EXPECT_EQ("", check(installation(a_switch)));
  const std::pair<const char*, std::function<void(Installation&)>> wrong[] = {
      {"without an epoch", [](Installation& i) { i.job_epoch = 0; }},
      {"no name", [](Installation& i) { i.job.clear(); }},
      {"control characters", [](Installation& i) { i.job = "a\nb"; }},
      {"level", [](Installation& i) { i.level = 4; }},
      {"level", [](Installation& i) { i.next_level = 4; }},
      {"level", [](Installation& i) { i.next_level = i.level; }},
      {"packet length", [](Installation& i) { i.packet_elements = 0; }},
      {"packet length", [](Installation& i) { i.packet_elements = wire::atp::max_packet_elements + 1; }},
      {"window", [](Installation& i) { i.window = 0; }},
      {"window", [](Installation& i) { i.window = 4097; }},
      {"lanes 0", [](Installation& i) { i.lanes.clear(); }},
      {"lanes 65", [](Installation& i) { i.lanes.resize(65, i.lanes[0]); }},
      {"children 0", [](Installation& i) { i.lanes[0].children.clear(); }},
      {"children 33", [](Installation& i) { i.lanes[1].children.resize(33); }},
      {"other children", [](Installation& i) { i.lanes[1].children.pop_back(); }},
      {"other children", [](Installation& i) { ++i.lanes[1].children[0].rank_epoch; }},
      {"parent", [](Installation& i) { i.lanes[1].parent = {}; }},
      {"parent",
       [](Installation& i) {
         i.lanes[0].parent.address = {0xff, 2};
       }},
      {"address of rank 0", [](Installation& i) { i.lanes[0].children[0].endpoint.port = 0; }},
      {"rank 0 without an epoch", [](Installation& i) { i.lanes[0].children[0].rank_epoch = 0; }},
      {"without ranks", [](Installation& i) { i.lanes[0].children[0].ranks.clear(); }},
      {"in place of one",
       [](Installation& i) {
         i.lanes[0].children[0].ranks = {2, 3};
       }},
      {"rank 1 below two", [](Installation& i) { i.lanes[0].children[0].ranks = {1}; }},
      {"rank 1024", [](Installation& i) { i.lanes[0].children[0].ranks = {1024}; }},
  };
  for (const auto& [words, change] : wrong) {
    Installation rack = installation(0);
    change(rack);
    EXPECT_NE(std::string::npos, check(rack).find(words)) << words << ": " << check(rack);
  }
  Installation above = installation(2);
  above.lanes[0].children[0].endpoint = {};
  EXPECT_EQ("", check(above)) << "a switch below that was not reached yet";
  above.lanes[0].children[0].endpoint.port = 1;
  EXPECT_NE("", check(above));
}

// A rank at switch a, as it asked and as it is admitted.
JoinRequest asked(const Admission& admission) {
  JoinRequest r;
  r.protocol = "atp";
  r.job = "train";
  r.rank = 1;
  r.world_size = 4;
  r.packet_elements = admission.packet_elements;
  r.slots_fixed = 16;
  r.endpoints = {at(1001), at(2001)};
  r.switch_address = "a:1";
  return r;
}

TEST(AtpJob, AdmissionsThatMakeNoSenseAreRefused) {
  Admission good = job().admission;
  good.rank_epoch = 101;
  EXPECT_EQ("", check(good, asked(good), atp_rules()));
  const std::pair<const char*, std::function<void(Admission&)>> wrong[] = {
      {"without an epoch", [](Admission& a) { a.job_epoch = 0; }},
      {"two epochs of rank 1", [](Admission& a) { a.rank_epoch = 102; }},
      {"3 epochs for 4 ranks", [](Admission& a) { a.rank_epochs.pop_back(); }},
      {"two ranks'", [](Admission& a) { a.rank_epochs[0] = 101; }},
      {"no rank's", [](Admission& a) { a.rank_epochs[0] = 0; }},
      {"packets of 0", [](Admission& a) { a.packet_elements = 0; }},
      {"packets of 63", [](Admission& a) { a.packet_elements = 63; }},
      {"32 slots", [](Admission& a) { a.slots = 32; }},
      {"messages", [](Admission& a) { a.message_packets = 1; }},
      {"queue pairs", [](Admission& a) { a.members.resize(4); }},
      {"no way to",
       [](Admission& a) {
         a.placement.parent_of_switch = {2, server, 0};
       }},                                                                       // a circle
      {"no way to", [](Admission& a) { a.placement.parent_of_switch[1] = 1; }},  // its own
      {"no way to", [](Admission& a) { a.placement.parent_of_switch[0] = 3; }},  // there is none
      {"does not exist", [](Admission& a) { a.placement.switch_of_rank[0] = 3; }},
      {"placement of", [](Admission& a) { a.placement.parent_of_switch.pop_back(); }},
      {"placement of", [](Admission& a) { a.placement.switch_of_rank.pop_back(); }},
      {"placement of", [](Admission& a) { a.placement.switch_of_rank.push_back(server); }},
      {"not its own", [](Admission& a) { a.placement.switch_of_rank[1] = 1; }},
      {"address of a switch", [](Admission& a) { a.placement.switches[1] = "\x1b[2J"; }},
      {"choose slots", [](Admission& a) { a.placement.indexing = 3; }},
      {"scale", [](Admission& a) { a.placement.scaling = 2; }},
      {"part 2 of 2", [](Admission& a) { a.placement.part = a.placement.parts = 2; }},
      {"operation", [](Admission& a) { a.resumption.first = UINT64_MAX; }},
      {"operation 9",
       [](Admission& a) {
         a.resumption = {9, {{9, 4}}};
       }},
      {"shared memory", [](Admission& a) { a.local = true; }},
      {"shared memory", [](Admission& a) { a.why_not_local = "\n"; }},
  };
  for (const auto& [words, change] : wrong) {
    Admission admission = good;
    change(admission);
    const std::string error = check(admission, asked(good), atp_rules());
    EXPECT_NE(std::string::npos, error.find(words)) << words << ": " << error;
  }
}

// What a rank must send again it must have, and what it has it must not send anew.
TEST(AtpJob, ARankGoesOnOnlyWhereItCan) {
  Admission admission = job().admission;
  admission.rank_epoch = 101;
  JoinRequest request = asked(admission);
  request.progress = {6, 4, {8}};
  const auto fits = [&](stream::Resumption resumption) {
    admission.resumption = std::move(resumption);
    return check(admission, request, atp_rules()).empty();
  };
  EXPECT_TRUE(fits({6, {{8, 1}}}));
  EXPECT_TRUE(fits({4, {{4, 1}, {5, 0}, {8, 3}}}));
  EXPECT_FALSE(fits({4, {{5, 0}, {8, 3}}})) << "operation 4 has a result";
  EXPECT_FALSE(fits({6, {}})) << "and so has 8";
  EXPECT_FALSE(fits({3, {{3, 0}, {4, 1}, {5, 0}, {8, 3}}})) << "3 is forgotten";
  EXPECT_FALSE(fits({7, {{8, 1}}})) << "6 has none";
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

TEST(AtpJob, ASwitchGivesNoSlotToTwoJobs) {
  Parts parts(100);
  EXPECT_EQ("", parts.take(1, "one", {0, 50}));
  EXPECT_EQ("", parts.take(1, "one", {0, 50})) << "it is told again and again";
  EXPECT_EQ("", parts.take(2, "two", {50, 50}));
  EXPECT_EQ("", parts.take(3, "all", {})) << "shares all of them";
  const std::string overlap = parts.take(4, "other", {25, 50});
  EXPECT_NE(std::string::npos, overlap.find("its slots 25 to 74 overlap with 0 to 49, which job 'one'")) << overlap;
  EXPECT_NE(std::string::npos, parts.take(4, "other", {51, 50}).find("this switch has 100"));
  EXPECT_NE(std::string::npos, parts.take(4, "other", {UINT32_MAX, UINT32_MAX}).find("this switch has 100"));
  parts.release(1);
  EXPECT_EQ("", parts.take(4, "other", {25, 25}));
}

TEST(AtpJob, WhatASwitchIsToldHasThePartThatRanksUse) {
  StartJob start = job();
  start.admission.placement.parts = 3;
  start.admission.placement.part = 2;
  EXPECT_EQ((Part{20, 10}), installation_for(start, 0, {}, switches(), server_lanes).part);
  const auto worker = worker_config(start.admission, 0, {}, at(70), at(0));
  EXPECT_EQ(20U, worker.partition_first);
  EXPECT_EQ(10U, worker.partition_count);
}

// A sanitizer's allocator counts nothing here.
[[nodiscard]] bool heap_is_counted() {
  const std::size_t before = mallinfo2().uordblks;
  const std::vector<std::byte> some(4096);
  return mallinfo2().uordblks >= before + some.size();
}

// Else tenants take memory that their quotas do not show.
TEST(AtpJob, AllThatItTakesAtASwitchIsCharged) {
  for (const PacketSecurity security : {PacketSecurity::none, PacketSecurity::tag, PacketSecurity::encrypt}) {
    for (const std::uint32_t many :
         {1U, 1U, wire::atp::max_fan_in}) {  // what the process takes once is taken the first time
      Installation told;
      told.job_epoch = 7;
      told.packet_elements = 64;
      told.window = 1000;
      told.next_level = 1;
      told.security = security;
      seal::PacketKey::Bytes bytes{};
      bytes[0] = std::byte{1};
      Installation::Lane& lane = told.lanes.emplace_back();
      lane.parent = testing::port(99);
      for (std::uint32_t rank = 0; rank < many; ++rank) {
        lane.children.push_back({.endpoint = testing::port(static_cast<std::uint16_t>(10 + rank)), .ranks = {rank}});
      }
      if (security != PacketSecurity::none) {
        lane.keys = {seal::PacketKey(bytes), seal::PacketKey(bytes)};
        for (auto& child : lane.children) child.keys = lane.keys;
      }
      const atp::SwitchJobConfig at_lane = switch_job(told, 0);
      const std::vector<seal::Neighbour> neighbours = switch_neighbours(lane);
      const atp::SwitchConfig pool{.slots = 4, .packet_elements = 64};
      std::vector<testing::CacheLine> memory(atp::Switch::memory_bytes(pool) / sizeof(testing::CacheLine));
      atp::Switch machine(pool, std::as_writable_bytes(std::span(memory)));
      seal::Hops hops = atp::no_hops();
      const std::size_t before = mallinfo2().uordblks;
      ASSERT_TRUE(machine.add_job(at_lane));
      if (security != PacketSecurity::none) hops.set(told.job_epoch, security, neighbours, {&told.job_epoch, 1});
      const std::size_t taken = mallinfo2().uordblks - before;
      if (many == 1) continue;
      EXPECT_LE(taken, memory_bytes(told)) << to_string(security);
      if (heap_is_counted()) EXPECT_GT(2 * taken, memory_bytes(told)) << to_string(security);
    }
  }
}

}  // namespace
}  // namespace netsum::session
