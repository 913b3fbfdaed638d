// From where ranks stand to what everybody must know: a job of four ranks, two in rack 0, one in rack 1, one beside the
// server; rack 0's switch is below switch 2.
#include "jobs/atp_job.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "jobs/slot_parts.h"
#include "netsum/error.h"
#include "protocol/atp/sealed_hops.h"
#include "session/check.h"
#include "session/registry.h"
#include "support/atp_packets.h"
#include "support/changed_list.h"
#include "wire/epochs.h"

namespace netsum::jobs {
namespace {

using namespace std::chrono_literals;
using session::Admission;
using session::JoinRequest;
using session::Placement;
using session::ProtocolRules;
using session::Refusal;
using session::StartJob;
using session::SwitchEndpoint;

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
  start.admission.own = own_part(AtpGrant{.pool_slots = 30});
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    start.endpoints.push_back({at(static_cast<std::uint16_t>(1000 + rank)), at(static_cast<std::uint16_t>(2000 + rank))});
  }
  return start;
}

SwitchEndpoint switches() {
  return
      [](std::uint32_t switch_id, std::size_t lane) { return at(static_cast<std::uint16_t>(10 * switch_id + lane + 10)); };
}

const std::array<Endpoint, 2> server_lanes = {at(70), at(71)};

AtpInstallation installation(std::uint32_t switch_id) {
  return installation_for(job(), switch_id, {}, switches(), server_lanes);
}

TEST(AtpJob, TheServerKnowsItsMembersAndWhoIsNextToIt) {
  AtpSettings settings;
  settings.indexing = atp::Indexing::linear;
  settings.overflow = atp::Overflow::saturating;
  settings.rules = atp::Rules::paper;
  const auto config = server_job(job(), 1, settings, switches());
  EXPECT_EQ(7U, config.epoch);
  EXPECT_EQ(wire::fold_epochs(job().admission.rank_epochs), config.folded_epochs);
  EXPECT_EQ(62U, config.packet_elements);
  EXPECT_EQ(16U, config.window);
  EXPECT_EQ(30U, config.switch_slots);
  EXPECT_EQ(atp::Indexing::linear, config.indexing);
  EXPECT_EQ(atp::Overflow::saturating, config.overflow);
  EXPECT_EQ(atp::Rules::paper, config.rules);
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
      const AtpInstallation told = installation_for(start, i, {}, switches(), server_lanes);
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
  AtpInstallation told = installation_for(sealed_job(), 2, {}, switches(), server_lanes);
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
  const AtpInstallation rack = installation(0);
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
  const auto config = worker_config(admission, 2, at(70), at(10));
  EXPECT_EQ(4U, config.world_size);
  EXPECT_EQ(102U, config.rank_epoch);
  EXPECT_EQ(16U, config.window);
  EXPECT_EQ(30U, config.switch_slots);
  EXPECT_EQ(at(70), config.server);
  EXPECT_EQ(at(10), config.first_hop);
  EXPECT_EQ(topology_of(admission.placement).path(2), config.path);
  EXPECT_EQ(atp::Scaling::fixed, config.scaling);
  EXPECT_EQ(atp::Indexing::rehash, config.indexing);
  admission.own =
      own_part(AtpGrant{.indexing = atp::Indexing::linear, .scaling = atp::Scaling::dynamic, .rules = atp::Rules::paper});
  const auto other = worker_config(admission, 2, at(70), at(70));
  EXPECT_EQ(1U, other.switch_slots) << "nobody is at a switch";
  EXPECT_EQ(atp::Scaling::dynamic, other.scaling) << "as the server says";
  EXPECT_EQ(atp::Indexing::linear, other.indexing);
  EXPECT_EQ(atp::Rules::paper, other.rules);
}

// Without the words in front, which are the same for all.
std::string why_refused(const session::SwitchMessage& message) {
  constexpr std::string_view in_front = "invalid installation of job '";
  try {
    static_cast<void>(read_installation(message));
  } catch (const Error& error) {
    EXPECT_EQ(ErrorCode::refused, error.code());
    const std::string words = error.what();
    EXPECT_TRUE(words.starts_with(in_front)) << words;
    return words.substr(std::min(words.size(), in_front.size()));
  }
  return "";
}

TEST(AtpJob, InstallationsThatMakeNoSenseAreRefused) {
  for (const std::uint32_t switch_id : {0U, 1U, 2U}) EXPECT_EQ("", check(installation(switch_id)));
  const std::pair<const char*, std::function<void(AtpInstallation&)>> wrong[] = {
      {"level", [](AtpInstallation& i) { i.level = 4; }},
      {"level", [](AtpInstallation& i) { i.next_level = 4; }},
      {"level", [](AtpInstallation& i) { i.next_level = i.level; }},
      {"packet length", [](AtpInstallation& i) { i.packet_elements = 0; }},
      {"packet length", [](AtpInstallation& i) { i.packet_elements = wire::atp::max_packet_elements + 1; }},
      {"window", [](AtpInstallation& i) { i.window = 0; }},
      {"window", [](AtpInstallation& i) { i.window = 4097; }},
      {"lanes 0", [](AtpInstallation& i) { i.lanes.clear(); }},
      {"lanes 65", [](AtpInstallation& i) { i.lanes.resize(65, i.lanes[0]); }},
      {"children 0", [](AtpInstallation& i) { i.lanes[0].children.clear(); }},
      {"children 257", [](AtpInstallation& i) { i.lanes[1].children.resize(257); }},
      {"other children", [](AtpInstallation& i) { i.lanes[1].children.pop_back(); }},
      {"other children", [](AtpInstallation& i) { ++i.lanes[1].children[0].rank_epoch; }},
      {"parent", [](AtpInstallation& i) { i.lanes[1].parent = {}; }},
      {"parent",
       [](AtpInstallation& i) {
         i.lanes[0].parent.address = {0xff, 2};
       }},
      {"address of rank 0", [](AtpInstallation& i) { i.lanes[0].children[0].endpoint.port = 0; }},
      {"rank 0 has no epoch", [](AtpInstallation& i) { i.lanes[0].children[0].rank_epoch = 0; }},
      {"has no ranks", [](AtpInstallation& i) { i.lanes[0].children[0].ranks.clear(); }},
      {"a child that is a rank has",
       [](AtpInstallation& i) {
         i.lanes[0].children[0].ranks = {2, 3};
       }},
      {"rank 1 is below two", [](AtpInstallation& i) { i.lanes[0].children[0].ranks = {1}; }},
      {"rank 4096", [](AtpInstallation& i) { i.lanes[0].children[0].ranks = {4096}; }},
  };
  for (const auto& [words, change] : wrong) {
    AtpInstallation rack = installation(0);
    change(rack);
    EXPECT_NE(std::string::npos, check(rack).find(words)) << words << ": " << check(rack);
    EXPECT_NE("", why_refused(message_of(rack))) << words << ": and so is the message";
  }
  AtpInstallation above = installation(2);
  above.lanes[0].children[0].endpoint = {};
  EXPECT_EQ("", check(above)) << "a switch below that was not reached yet";
  EXPECT_EQ("", why_refused(message_of(above)));
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
  r.own = own_part(AtpAsk{30});
  return r;
}

TEST(AtpJob, AdmissionsThatMakeNoSenseAreRefused) {
  Admission good = job().admission;
  good.rank_epoch = 101;
  EXPECT_EQ("", check(good, asked(good), atp_rules()));
  const std::pair<const char*, std::function<void(Admission&)>> wrong[] = {
      {"no epoch", [](Admission& a) { a.job_epoch = 0; }},
      {"two different epochs for rank 1", [](Admission& a) { a.rank_epoch = 102; }},
      {"3 rank epochs for 4 ranks", [](Admission& a) { a.rank_epochs = testing::shorter(a.rank_epochs); }},
      {"for two ranks", [](Admission& a) { a.rank_epochs = testing::with(a.rank_epochs, 0, 101U); }},
      {"epoch 0", [](Admission& a) { a.rank_epochs = testing::with(a.rank_epochs, 0, 0U); }},
      {"packets of 0", [](Admission& a) { a.packet_elements = 0; }},
      {"packets of 63", [](Admission& a) { a.packet_elements = 63; }},
      {"32 slots", [](Admission& a) { a.slots = 32; }},
      {"cannot be decoded", [](Admission& a) { a.own = "\xff"; }},
      {"no path to",
       [](Admission& a) {
         a.placement.parent_of_switch = {2, server, 0};
       }},                                                                        // a circle
      {"no path to", [](Admission& a) { a.placement.parent_of_switch[1] = 1; }},  // its own
      {"no path to", [](Admission& a) { a.placement.parent_of_switch[0] = 3; }},  // there is none
      {"does not exist",
       [](Admission& a) { a.placement.switch_of_rank = testing::with(a.placement.switch_of_rank, 0, 3U); }},
      {"placement is inconsistent", [](Admission& a) { a.placement.parent_of_switch.pop_back(); }},
      {"placement is inconsistent",
       [](Admission& a) { a.placement.switch_of_rank = testing::shorter(a.placement.switch_of_rank); }},
      {"placement is inconsistent",
       [](Admission& a) { a.placement.switch_of_rank = testing::longer(a.placement.switch_of_rank, server); }},
      {"at another switch",
       [](Admission& a) { a.placement.switch_of_rank = testing::with(a.placement.switch_of_rank, 1, 1U); }},
      {"address of a switch", [](Admission& a) { a.placement.switches[1] = "\x1b[2J"; }},
      {"indexing", [](Admission& a) { a.own = own_part(AtpGrant{.indexing = static_cast<atp::Indexing>(3)}); }},
      {"scaling", [](Admission& a) { a.own = own_part(AtpGrant{.scaling = static_cast<atp::Scaling>(2)}); }},
      {"part 2 of the switches' slots", [](Admission& a) { a.own = own_part(AtpGrant{.part = 2, .parts = 2}); }},
      {"part 1 of the switches' slots", [](Admission& a) { a.own = own_part(AtpGrant{.part = 1}); }},
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
  Placement many;
  many.switch_of_rank = std::vector<std::uint32_t>(257, server);
  EXPECT_NE(std::string::npos, rules.check_placement(many).find("takes at most 256: put switches in between"));
  many.switch_of_rank = testing::shorter(many.switch_of_rank);
  EXPECT_EQ("", rules.check_placement(many));
}

TEST(AtpJob, ASwitchGivesNoSlotToTwoJobs) {
  SlotParts parts(100);
  EXPECT_EQ("", parts.take(1, "one", {0, 50}));
  EXPECT_EQ("", parts.take(1, "one", {0, 50})) << "it is told again and again";
  EXPECT_EQ("", parts.take(2, "two", {50, 50}));
  EXPECT_EQ("", parts.take(3, "all", {})) << "shares all of them";
  const std::string overlap = parts.take(4, "other", {25, 50});
  EXPECT_NE(std::string::npos, overlap.find("its slots 25 to 74 overlap with 0 to 49 of job 'one'")) << overlap;
  EXPECT_NE(std::string::npos, parts.take(4, "other", {51, 50}).find("this switch has 100"));
  EXPECT_NE(std::string::npos, parts.take(4, "other", {UINT32_MAX, UINT32_MAX}).find("this switch has 100"));
  parts.release(1);
  EXPECT_EQ("", parts.take(4, "other", {25, 25}));
}

TEST(AtpJob, WhatASwitchIsToldHasThePartThatRanksUse) {
  StartJob start = job();
  start.admission.own = own_part(AtpGrant{.pool_slots = 30, .part = 2, .parts = 3});
  EXPECT_EQ((SlotPart{20, 10}), installation_for(start, 0, {}, switches(), server_lanes).part);
  EXPECT_EQ(atp::Indexing::partition, server_job(start, 0, {}, switches()).indexing);
  const auto worker = worker_config(start.admission, 0, at(70), at(0));
  EXPECT_EQ(atp::Indexing::partition, worker.indexing);
  EXPECT_EQ(20U, worker.partition_first);
  EXPECT_EQ(10U, worker.partition_count);
}

// ---- what is ATP's own

TEST(AtpOwn, APoolIsWhatASwitchSays) {
  const session::Profile said = pool_profile({400, 62});
  EXPECT_EQ(atp_rules().name, said.protocol);
  const auto pool = pool_in({{"another", said.own}, said});
  ASSERT_TRUE(pool);
  EXPECT_EQ(400U, pool->slots);
  EXPECT_EQ(62U, pool->elements);
  EXPECT_FALSE(pool_in({}));
  EXPECT_FALSE(pool_in({{"another", said.own}}));
  EXPECT_FALSE(pool_in({{said.protocol, "\xff"}}));
  EXPECT_FALSE(pool_in({pool_profile({0, 62})}));
  EXPECT_FALSE(pool_in({pool_profile({400, 0})}));
  EXPECT_FALSE(pool_in({pool_profile({400, wire::atp::max_packet_elements + 1})}));
}

TEST(AtpOwn, ARequestThatIsNoneIsRefused) {
  JoinRequest request = asked(job().admission);
  EXPECT_EQ("", check_request(atp_rules(), request));
  request.own = "\xff";
  EXPECT_NE("", check_request(atp_rules(), request));
}

TEST(AtpOwn, ASwitchReadsWhatTheServerWrites) {
  StartJob start = sealed_job();
  start.switch_cookies = {{5, 6}, {7, 8}, {}, {}};
  start.admission.own = own_part(AtpGrant{.pool_slots = 30, .part = 2, .parts = 3});
  AtpSettings settings;
  settings.overflow = atp::Overflow::saturating;
  settings.rules = atp::Rules::paper;
  const AtpInstallation told = installation_for(start, 0, settings, switches(), server_lanes, true);
  const session::SwitchMessage message = message_of(told);
  EXPECT_EQ(atp_rules().name, message.protocol);
  const AtpInstallation read = read_installation(message);
  EXPECT_EQ("train", read.job);
  EXPECT_EQ(7U, read.job_epoch);
  EXPECT_TRUE(read.again);
  EXPECT_EQ(message.own, message_of(read).own);
  EXPECT_EQ(told.folded_epochs, read.folded_epochs);
  EXPECT_EQ(std::tuple(62U, 16U, 0U, 1U), std::tuple(read.packet_elements, read.window, read.level, read.next_level));
  EXPECT_TRUE(read.saturating);
  EXPECT_EQ(atp::Rules::paper, switch_job(read, 0).rules);
  EXPECT_EQ((SlotPart{20, 10}), read.part);
  EXPECT_EQ(PacketSecurity::tag, read.security);
  ASSERT_EQ(2U, read.lanes.size());
  for (std::size_t lane = 0; lane < 2; ++lane) {
    const AtpInstallation::Lane &ours = told.lanes[lane], &theirs = read.lanes[lane];
    EXPECT_EQ(std::pair(ours.parent, ours.own), std::pair(theirs.parent, theirs.own));
    EXPECT_TRUE(ours.keys.up == theirs.keys.up && ours.keys.down == theirs.keys.down);
    ASSERT_EQ(2U, theirs.children.size());
    EXPECT_EQ(7U + lane, theirs.children[1].cookie);
    EXPECT_TRUE(ours.children[1].keys.down == theirs.children[1].keys.down);
  }
  session::SwitchMessage spoiled = message;
  spoiled.own.pop_back();
  EXPECT_NE("", why_refused(spoiled));
  spoiled.own.clear();
  EXPECT_NE("", why_refused(spoiled));
}

// ---- admission at a server

class AtpRegistry : public ::testing::Test {
 protected:
  AtpRegistry() { begin(atp_rules()); }
  void begin(ProtocolRules rules, bool keys = false) {
    session::RegistryConfig config;
    config.keys = keys;
    config.protocols = {std::move(rules)};
    config.switch_parents = {{"rack", "hall"}};
    config.random = [engine = std::mt19937_64(7)]() mutable { return engine(); };
    registry.emplace(std::move(config));
  }
  static JoinRequest request(std::uint32_t rank, std::uint32_t world_size, const std::string& switch_id,
                             std::uint32_t pool_slots, const std::string& job = "train") {
    JoinRequest r;
    r.protocol_version = atp_rules().version;
    r.protocol = "atp";
    r.job = job;
    r.rank = rank;
    r.world_size = world_size;
    r.packet_elements = 62;
    r.slots_measured = 16;
    r.endpoints = {at(static_cast<std::uint16_t>(1000 + rank))};
    r.switch_address = switch_id;
    r.own = own_part(AtpAsk{pool_slots});
    return r;
  }
  // What the last of them to join is told.
  session::JoinOutcome join(const std::vector<JoinRequest>& requests) {
    std::uint64_t last = 0;
    for (const JoinRequest& each : requests) last = registry->join(each, Time{1s});
    return registry->join_outcome(last).value_or(session::JoinOutcome{Refusal::none, "no outcome", {}});
  }
  std::optional<session::Registry> registry;
};

TEST_F(AtpRegistry, PartsAreThoseOfThisServerAndOfTheSmallestPool) {
  begin(atp_rules({}, {.count = 4, .first = 2}));
  registry->on_greeted("hall", {pool_profile({100, 62})});
  registry->on_greeted("rack", {pool_profile({1, 62})});  // of which its ranks speak
  const auto alone = [&](const std::string& job, std::uint32_t pool_slots) {
    return join({request(0, 1, "rack", pool_slots, job)});
  };
  const auto first = alone("first", 400);
  ASSERT_TRUE(first.admission) << first.reason;
  EXPECT_EQ(100U, atp_grant(*first.admission).pool_slots) << "as two jobs would share the hall's otherwise";
  EXPECT_EQ((SlotPart{50, 25}), slot_part_of(atp_grant(*first.admission)));
  const auto few = alone("few", 3);
  EXPECT_EQ(Refusal::no_slots, few.refusal);
  EXPECT_EQ(0U, few.reason.find("job 'few': 3 slots of a switch are too few for 4 parts")) << few.reason;
  const auto second = alone("second", 400);
  ASSERT_TRUE(second.admission) << second.reason;
  EXPECT_EQ((SlotPart{75, 25}), slot_part_of(atp_grant(*second.admission)));
  EXPECT_EQ(0U, alone("third", 400).reason.find("job 'third': all 2 parts of the switches' slots are in use by other jobs"));
  registry->leave(first.admission->job_epoch, 0, first.admission->rank_epoch, {}, Time{1s});
  const auto third = alone("third", 400);
  ASSERT_TRUE(third.admission) << third.reason;
  EXPECT_EQ((SlotPart{50, 25}), slot_part_of(atp_grant(*third.admission))) << "the first one's is free again";
}

// Of two servers that share switches.
TEST_F(AtpRegistry, AServerGivesNoPartsButItsOwn) {
  begin(atp_rules({}, {.count = 4, .first = 1, .own = 1}));
  const auto only = join({request(0, 1, "rack", 40, "first")});
  ASSERT_TRUE(only.admission) << only.reason;
  EXPECT_EQ((SlotPart{10, 10}), slot_part_of(atp_grant(*only.admission)));
  EXPECT_NE(std::string::npos, join({request(0, 1, "rack", 40, "second")}).reason.find("all 1 parts"));
}

TEST_F(AtpRegistry, ThePoolIsThatOfTheSmallestSwitchThatARankIsAt) {
  const auto outcome = join(
      {request(0, 5, "a", 30), request(1, 5, "b", 20), request(2, 5, "", 7), request(3, 5, "c", 40), request(4, 5, "d", 0)});
  ASSERT_TRUE(outcome.admission) << outcome.reason;
  const AtpGrant grant = atp_grant(*outcome.admission);
  EXPECT_EQ(20U, grant.pool_slots) << "a rank at no switch has no pool, and one that knows none says 0";
  EXPECT_EQ(SlotPart{}, slot_part_of(grant)) << "jobs share all slots";
  const auto without = join({request(0, 1, "", 0, "other")});
  ASSERT_TRUE(without.admission) << without.reason;
  EXPECT_EQ(0U, atp_grant(*without.admission).pool_slots);
}

TEST_F(AtpRegistry, WhatTheServerHasSetForAJobIsGranted) {
  begin(atp_rules([](const std::string& name) -> AtpSettings {
    if (name == "linear") return {.indexing = atp::Indexing::linear};
    return {.scaling = atp::Scaling::dynamic};
  }));
  const auto granted = [&](const std::string& name) {
    const auto outcome = join({request(0, 1, "", 0, name)});
    EXPECT_TRUE(outcome.admission) << outcome.reason;
    return atp_grant(outcome.admission.value_or(job().admission));
  };
  EXPECT_EQ(atp::Indexing::linear, granted("linear").indexing);
  EXPECT_EQ(atp::Scaling::dynamic, granted("train").scaling);
  EXPECT_EQ(atp::Indexing::rehash, granted("third").indexing);
}

TEST_F(AtpRegistry, JobsForChipsHaveNoMoreNeighboursThanABitmap) {
  begin(atp_rules([](const std::string&) -> AtpSettings { return {.rules = atp::Rules::chip}; }), true);
  const auto outcome_of = [&](std::uint32_t ranks, const std::string& name) {
    std::vector<JoinRequest> requests;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) requests.push_back(request(rank, ranks, "rack", 30, name));
    return join(requests);
  };
  const auto full = outcome_of(32, "full");
  ASSERT_TRUE(full.admission) << full.reason;
  EXPECT_EQ(atp::Rules::chip, atp_grant(*full.admission).rules);
  const auto more = outcome_of(33, "more");
  EXPECT_EQ(Refusal::bad_parameters, more.refusal);
  EXPECT_NE(std::string::npos, more.reason.find("at most 32 ranks and switches")) << more.reason;
  JoinRequest sealed = request(0, 1, "", 0, "other");
  sealed.security = PacketSecurity::tag;
  EXPECT_NE(std::string::npos, join({sealed}).reason.find("rank 0 requires packet keys"));
}

TEST_F(AtpRegistry, WordsThatAreNoneAreRefused) {
  JoinRequest r = request(0, 1, "rack", 30);
  r.own = "\xff";
  EXPECT_EQ(Refusal::bad_parameters, join({r}).refusal);
  EXPECT_TRUE(registry->jobs().empty());
}

// What a switch above says may be anything; the job begins all the same.
TEST_F(AtpRegistry, ASwitchThatSaysNothingHasNoPool) {
  registry->on_greeted("hall", {{"atp", "\xff"}});
  const auto first = join({request(0, 1, "rack", 30, "first")});
  ASSERT_TRUE(first.admission) << first.reason;
  EXPECT_EQ(30U, atp_grant(*first.admission).pool_slots);
  registry->on_greeted("hall", {pool_profile({0, 0})});
  const auto second = join({request(0, 1, "rack", 30, "second")});
  ASSERT_TRUE(second.admission) << second.reason;
  EXPECT_EQ(30U, atp_grant(*second.admission).pool_slots);
}

// ---- memory

// Large blocks are mapped apart from the others.
std::size_t in_use() {
  const auto heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

// A sanitizer's allocator counts nothing here.
[[nodiscard]] bool heap_is_counted() {
  const std::size_t before = in_use();
  const std::vector<std::byte> some(4096);
  return in_use() >= before + some.size();
}

// Else tenants take memory that their quotas do not show.
TEST(AtpJob, AllThatItTakesAtASwitchIsCharged) {
  for (const PacketSecurity security : {PacketSecurity::none, PacketSecurity::tag, PacketSecurity::encrypt}) {
    for (const std::uint32_t many :
         {1U, 1U, wire::atp::max_fan_in}) {  // what the process takes once is taken the first time
      AtpInstallation told;
      told.job_epoch = 7;
      told.packet_elements = 64;
      told.window = 1000;
      told.next_level = 1;
      told.security = security;
      seal::PacketKey::Bytes bytes{};
      bytes[0] = std::byte{1};
      AtpInstallation::Lane& lane = told.lanes.emplace_back();
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
      const std::size_t before = in_use();
      ASSERT_TRUE(machine.add_job(at_lane));
      if (security != PacketSecurity::none) hops.set(told.job_epoch, security, neighbours, {&told.job_epoch, 1});
      const std::size_t taken = in_use() - before;
      if (many == 1) continue;
      EXPECT_LE(taken, memory_bytes(told)) << to_string(security);
      if (heap_is_counted()) {
        EXPECT_GT(2 * taken, memory_bytes(told)) << to_string(security);
      }
    }
  }
}

}  // namespace
}  // namespace netsum::jobs
