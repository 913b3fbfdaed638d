// How the requests of a job's ranks become one job, stage by stage.
#include "session/admitting.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "session/check.h"

namespace netsum::session {
namespace {

constexpr std::uint32_t at_server = Placement::at_server;

// A protocol without a part of its own, whose slots take a byte of memory each.
ProtocolRules plain() {
  ProtocolRules rules;
  rules.name = "plain";
  rules.max_world_size = 8;
  rules.switches = true;
  rules.check_packet = [](std::uint32_t) { return std::string(); };
  rules.check_placement = [](const Placement&) { return std::string(); };
  rules.cost = [](const Terms& terms) -> Cost { return {units_of_packet(terms.packet_elements), terms.slots}; };
  return rules;
}

struct Ranks {
  explicit Ranks(std::uint32_t count) {
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      JoinRequest& request = all.emplace_back();
      request.protocol = "plain";
      request.job = "train";
      request.rank = rank;
      request.world_size = count;
      request.packet_elements = 256;
      request.slots_measured = 64;
      request.endpoints.resize(1);
    }
  }
  JoinRequest& operator[](std::size_t rank) { return all[rank]; }
  [[nodiscard]] Requests requests() const {
    Requests requests;
    for (const JoinRequest& request : all) requests.push_back(&request);
    return requests;
  }
  std::vector<JoinRequest> all;
};

// ---- compare

struct Compared {
  Ranks ranks{3};
  // Of the last rank, with the others.
  [[nodiscard]] std::string reason(const ProtocolRules& rules = plain()) const {
    const JoinOutcome outcome = compare({&ranks.all[0], &ranks.all[1]}, ranks.all[2], rules);
    EXPECT_EQ(outcome.reason.empty() ? Refusal::none : Refusal::parameters_differ, outcome.refusal);
    return outcome.reason;
  }
};

TEST(AdmittingCompare, NamesTheRankAndTheOneThatItDiffersFrom) {
  EXPECT_EQ("", Compared().reason());
  Compared c;
  c.ranks[2].world_size = 4;
  EXPECT_EQ("rank 2 joined job 'train' with world size 4, rank 0 with 3: all ranks must give the same", c.reason());
  c = {};
  c.ranks[2].protocol = "other";
  EXPECT_EQ("rank 2 joined job 'train' for other, rank 0 for plain: all ranks must give the same", c.reason());
  c = {};
  c.ranks[2].slots_fixed = 8;
  EXPECT_NE(std::string::npos, c.reason().find("slots 8, rank 0 with 0"));
  c = {};
  c.ranks[2].recovers = true;
  EXPECT_NE(std::string::npos, c.reason().find("recovery 1, rank 0 with 0"));
  c = {};
  c.ranks[2].aggregators = {"a:1", "b:1"};
  EXPECT_NE(std::string::npos, c.reason().find("joins at a:1, b:1, rank 0 at "));
}

// The first rank may have measured, and would hide the others.
TEST(AdmittingCompare, ALengthIsComparedWithThatOfEveryRank) {
  Compared c;
  for (JoinRequest& each : c.ranks.all) each.packet_elements_measured = true;
  c.ranks[1].packet_elements = 128;
  EXPECT_EQ("", c.reason()) << "all measured";
  c.ranks[2].packet_elements_measured = false;
  EXPECT_EQ(
      "rank 2 of job 'train' asks for packets of 256 elements, and the path of rank 1 takes at most 128: ask for fewer "
      "elements per packet, or for 0 (measured)",
      c.reason());
  c.ranks[2].packet_elements = 128;
  EXPECT_EQ("", c.reason());
  c.ranks[1].packet_elements_measured = false;
  c.ranks[2].packet_elements = 64;
  EXPECT_NE(std::string::npos, c.reason().find("with elements per packet 64, rank 1 with 128"));
}

TEST(AdmittingCompare, WhatIsAProtocolsOwnItComparesItself) {
  Compared c;
  ProtocolRules rules = plain();
  rules.own.emplace();
  EXPECT_EQ("", c.reason(rules)) << "it need not";
  rules.own->compare = [](const JoinRequest& first, const JoinRequest& second) {
    return std::optional<Difference>({"ranks", first.rank, second.rank});
  };
  EXPECT_NE(std::string::npos, c.reason(rules).find("with ranks 2, rank 0 with 0"));
  // Its own code is not given what is another protocol's.
  c.ranks[2].protocol = "other";
  EXPECT_EQ(std::string::npos, c.reason(rules).find("with ranks"));
}

// ---- place

TEST(AdmittingPlace, EverySwitchIsThereOnceWithThoseAboveIt) {
  Ranks ranks(4);
  ranks[0].switch_address = "rack";
  ranks[2].switch_address = "hall";
  ranks[3].switch_address = "rack";
  const Placement placement = place(ranks.requests(), {{"rack", "hall"}, {"hall", "site"}, {"elsewhere", "site"}});
  EXPECT_EQ((std::vector<std::string>{"rack", "hall", "site"}), placement.switches);
  EXPECT_EQ((std::vector<std::uint32_t>{1, 2, at_server}), placement.parent_of_switch);
  EXPECT_EQ((std::vector<std::uint32_t>{0, at_server, 1, 0}), placement.switch_of_rank);
  EXPECT_TRUE(place(Ranks(2).requests(), {{"rack", "hall"}}).switches.empty());
}

TEST(AdmittingPlace, EndsInACircle) {
  Ranks ranks(1);
  ranks[0].switch_address = "a";
  EXPECT_EQ((std::vector<std::uint32_t>{1, 0}), place(ranks.requests(), {{"a", "b"}, {"b", "a"}}).parent_of_switch);
  EXPECT_EQ(std::vector<std::uint32_t>{0}, place(ranks.requests(), {{"a", "a"}}).parent_of_switch);
}

// ---- agree, window

TEST(AdmittingWindow, IsTheLongestInPacketsOfTheAgreedLength) {
  Ranks ranks(3);
  ranks[0].packet_elements = 1024;
  ranks[0].slots_measured = 10;
  ranks[1].slots_measured = 30;
  ranks[2].packet_elements = 192;
  ranks[2].slots_measured = 0;
  EXPECT_EQ(192U, agreed_packet_elements(ranks.requests()));
  EXPECT_EQ(54U, longest_window(ranks.requests(), 192))
      << "10240 elements, rounded up; rank 1 has more packets, but fewer elements";
  EXPECT_EQ(40U, longest_window(ranks.requests(), 256));
  ranks[0].slots_measured = UINT32_MAX;
  EXPECT_EQ(UINT32_MAX / 2, longest_window(ranks.requests(), 1)) << "and does not wrap";
  for (JoinRequest& each : ranks.all) each.slots_measured = 0;
  EXPECT_EQ(0U, longest_window(ranks.requests(), 256));
}

constexpr std::uint64_t of_packet = 2 * 1024 + 1024;  // as the kernel charges one of 256 elements

TEST(AdmittingInFlight, EachBufferIsForTheRanksNextToIt) {
  Ranks ranks(5);
  const auto most = [&](std::uint64_t receive_bytes, std::uint32_t packets_of_slot = 1) {
    return most_in_flight(ranks.requests(), place(ranks.requests(), {}), receive_bytes, 256, packets_of_slot);
  };
  EXPECT_EQ(UINT32_MAX, most(0)) << "unknown";
  EXPECT_EQ(8U, most(5 * 8 * of_packet));
  EXPECT_EQ(7U, most(5 * 8 * of_packet - 1));
  EXPECT_EQ(2U, most(5 * 8 * of_packet, 4)) << "a slot is four packets";
  EXPECT_EQ(8U, most(5 * 8 * of_packet, 0));
  for (const std::size_t rank : {1U, 2U, 3U}) ranks[rank].switch_address = "rack";
  EXPECT_EQ(20U, most(5 * 8 * of_packet)) << "two are left, and the switch says nothing";
  ranks[1].switch_receive_bytes = 3 * 16 * of_packet;
  EXPECT_EQ(16U, most(5 * 8 * of_packet));
  ranks[3].switch_receive_bytes = 3 * 4 * of_packet;
  EXPECT_EQ(4U, most(5 * 8 * of_packet)) << "the least that a rank there has heard of";
  ranks[0].switch_receive_bytes = 1;
  EXPECT_EQ(4U, most(5 * 8 * of_packet)) << "of a rank at no switch";
  for (JoinRequest& each : ranks.all) each.switch_address = "rack";
  EXPECT_EQ(0U, most(1)) << "too small for a packet of each; the window's least is the plan's";
}

// ---- all of them, and charge

class AdmittingPlan : public ::testing::Test {
 protected:
  AdmittingPlan() { config.slots = 1024; }
  [[nodiscard]] Plan made() const {
    Supply supply{config, slots_free, memory, memory_quota, {}, [](const std::string&) { return nullptr; }};
    return plan(ranks.requests(), rules, supply);
  }
  Ranks ranks{2};
  ProtocolRules rules = plain();
  RegistryConfig config;
  std::uint32_t slots_free = 1024;
  MemoryAccount memory;
  std::uint64_t memory_quota = UINT64_MAX;
};

TEST_F(AdmittingPlan, AMeasuredWindowIsAPowerOfTwoThatFits) {
  ranks[1].slots_measured = 65;
  Plan p = made();
  EXPECT_EQ(Refusal::none, p.refusal) << p.reason;
  EXPECT_EQ(128U, p.slots);
  EXPECT_EQ(128U, p.charged);
  for (JoinRequest& each : ranks.all) each.endpoints.resize(3);
  slots_free = 300;
  p = made();
  EXPECT_EQ(64U, p.slots);
  EXPECT_EQ(64U * 3, p.charged) << "of all lanes";
  EXPECT_EQ(64U * 3, p.memory_bytes);
  memory_quota = 3 * 16;
  EXPECT_EQ(16U, made().slots);
  config.receive_bytes = 2 * 4 * of_packet;
  EXPECT_EQ(4U, made().slots);
  EXPECT_EQ("", made().warning);
  ranks[0].slots_measured = ranks[1].slots_measured = 0;
  EXPECT_EQ(2U, made().slots) << "nobody measured";
  ranks[0].slots_measured = UINT32_MAX;
  config = {};
  slots_free = UINT32_MAX;
  memory_quota = UINT64_MAX;
  EXPECT_EQ(most_slots, made().slots);
}

TEST_F(AdmittingPlan, AJobHasTheLanesThatAllItsRanksHave) {
  EXPECT_EQ(1U, made().lanes);
  ranks[0].endpoints.resize(4);
  EXPECT_EQ(1U, made().lanes);
  EXPECT_EQ(64U, made().charged) << "and is charged for no others";
  ranks[1].endpoints.resize(3);
  std::uint32_t agreed = 0;
  rules.own.emplace();
  rules.own->agree = [&](const Gathered& gathered) {
    agreed = gathered.lanes;
    return Agreement{"granted", gathered.window};
  };
  const Plan p = made();
  EXPECT_EQ(3U, p.lanes);
  EXPECT_EQ(3U, agreed);
  EXPECT_EQ(3U * 64, p.charged);
  EXPECT_EQ(3U * 64, p.memory_bytes);
}

TEST_F(AdmittingPlan, AWindowThatIsAskedForIsKeptOrRefused) {
  for (JoinRequest& each : ranks.all) each.slots_fixed = 256;
  config.receive_bytes = 2 * 4 * of_packet;
  Plan p = made();
  EXPECT_EQ(256U, p.slots);
  EXPECT_NE(std::string::npos, p.warning.find("256 slots per lane")) << p.warning;
  EXPECT_NE(std::string::npos, p.warning.find("holds only 4 packets")) << p.warning;
  slots_free = 255;
  p = made();
  EXPECT_EQ(Refusal::no_slots, p.refusal);
  EXPECT_EQ(
      "it needs 256 slots of 256 elements (256 per lane), and 255 of 1024 are free: start the switch with a larger --slots, "
      "or ask for fewer",
      p.reason);
  slots_free = 1024;
  memory_quota = 255;
  p = made();
  EXPECT_EQ(Refusal::no_memory, p.refusal);
  EXPECT_EQ(0U, p.reason.find("with 256 slots per lane, it needs 256 bytes of memory")) << p.reason;
  EXPECT_EQ(0U, p.charged);
}

TEST_F(AdmittingPlan, AMeasuredWindowThatItsProtocolCannotHaveIsHalved) {
  rules.own.emplace();
  rules.own->agree = [](const Gathered& gathered) { return Agreement{"granted", gathered.window, 2}; };
  rules.own->check_terms = [](const Terms& terms) { return terms.slots > 8 ? "too long for " + terms.own : ""; };
  const Plan p = made();
  EXPECT_EQ(8U, p.slots);
  EXPECT_EQ("granted", p.own);
  config.receive_bytes = 2 * 2 * 4 * of_packet;
  EXPECT_EQ(4U, made().slots) << "a slot is two packets of each rank";
}

TEST_F(AdmittingPlan, SaysWhyThereIsNoJob) {
  const auto refused = [&](Refusal refusal, const std::string& words) {
    const Plan p = made();
    EXPECT_EQ(refusal, p.refusal);
    EXPECT_NE(std::string::npos, p.reason.find(words)) << p.reason;
    EXPECT_EQ(std::string::npos, p.reason.find("'train'")) << "the registry names the job";
  };
  rules.check_placement = [](const Placement&) { return std::string("no way up"); };
  refused(Refusal::bad_parameters, "no way up");
  rules = plain();
  rules.own.emplace();
  rules.own->agree = [](const Gathered&) { return Agreement{"", 0, 1, Refusal::no_slots, "no part is left"}; };
  refused(Refusal::no_slots, "no part is left");
  rules = plain();
  ranks[0].progress = {9, 6, {}};
  ranks[1].progress = {3, 3, {}};
  refused(Refusal::results_forgotten, "rank 1 must continue with operation 3");
  ranks[1].progress = {8, 6, {}};
  EXPECT_EQ((stream::Resumption{8, {{8, 0}}}), made().resumption);
}

TEST_F(AdmittingPlan, SharedMemoryIsForAllRanksOrNone) {
  rules.sealed = config.keys = true;
  config.security = PacketSecurity::tag;
  for (JoinRequest& each : ranks.all) each.local_ticket = 1 + each.rank;
  Plan p = made();
  EXPECT_TRUE(p.local);
  EXPECT_EQ("", p.why_not_local);
  EXPECT_EQ(PacketSecurity::none, p.security) << "it has no packets";
  ranks[1].local_ticket = 0;
  ranks[1].why_not_local = "it is elsewhere";
  p = made();
  EXPECT_FALSE(p.local);
  EXPECT_EQ("rank 1 does not use it: it is elsewhere", p.why_not_local);
  EXPECT_EQ(PacketSecurity::tag, p.security);
  EXPECT_EQ(Refusal::none, p.refusal);
  ranks[0].needs_local = true;
  p = made();
  EXPECT_EQ(Refusal::bad_parameters, p.refusal);
  EXPECT_EQ("rank 0 requires shared memory, but rank 1 does not use it: it is elsewhere", p.reason);
}

// The switches of the placement that the protocol hears of, and the running jobs.
TEST_F(AdmittingPlan, AProtocolAgreesOnWhatIsThere) {
  config.switch_parents = {{"rack", "hall"}};
  ranks[1].switch_address = "rack";
  ranks[1].packet_elements = 128;
  const OwnPart hall = "a hall", other = "another job's";
  rules.own.emplace();
  rules.own->agree = [&](const Gathered& gathered) {
    EXPECT_EQ(2U, gathered.ranks.size());
    EXPECT_EQ((std::vector<std::string>{"rack", "hall"}), gathered.placement.switches);
    EXPECT_EQ(std::vector<const OwnPart*>{&hall}, gathered.parents);
    EXPECT_EQ(std::vector<const OwnPart*>{&other}, gathered.others);
    EXPECT_EQ(128U, gathered.packet_elements);
    return Agreement{{}, gathered.window};
  };
  const Supply supply{config,   slots_free,
                      memory,   memory_quota,
                      {&other}, [&](const std::string& switch_id) { return switch_id == "hall" ? &hall : nullptr; }};
  const Plan p = plan(ranks.requests(), rules, supply);
  EXPECT_EQ(128U, p.packet_elements);
  EXPECT_EQ(128U, p.slots) << "64 packets of 256 elements";
  for (JoinRequest& each : ranks.all) each.slots_fixed = 16;
  rules.own->agree = [](const Gathered& gathered) { return Agreement{std::to_string(gathered.window)}; };
  const Plan fixed = plan(ranks.requests(), rules, supply);
  EXPECT_EQ("0", fixed.own) << "no window is measured where the slots are given";
  EXPECT_EQ(16U, fixed.slots);
}

}  // namespace
}  // namespace netsum::session
