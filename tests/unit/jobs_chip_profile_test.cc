// What follows from a chip's profile before ranks join.

#include "jobs/chip_profile.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "jobs/switchml_job.h"
#include "jobs/switchml_terms.h"
#include "netsum/error.h"
#include "protocol/switchml/chip_switch.h"
#include "session/registry.h"
#include "support/changed_list.h"
#include "wire/switchml.h"

namespace netsum::jobs {
namespace {

using session::JoinRequest;
using session::Placement;
using session::ProtocolRules;
using session::Refusal;

TEST(ChipProfile, IsCheckedByItself) {
  EXPECT_EQ("", check(ChipProfile{}));
  EXPECT_EQ("", check(ChipProfile{1, {64}}));
  for (const ChipProfile& wrong : {ChipProfile{0, {64}}, ChipProfile{32, {64}}, ChipProfile{4, {}}, ChipProfile{4, {128}},
                                   ChipProfile{4, {64, 64, 64}}}) {
    EXPECT_NE("", check(wrong));
  }
}

TEST(ChipProfile, IsAProtocolOfItsOwn) {
  const ProtocolRules rules = switchml_chip_rules({8, {64}});
  EXPECT_NE(switchml_rules().name, rules.name);
  EXPECT_EQ(wire::switchml::max_workers, rules.max_world_size);
  EXPECT_TRUE(rules.switches && rules.switches_needed);
  EXPECT_TRUE(rules.watched);
  EXPECT_EQ("", rules.check_packet(64));
  EXPECT_NE(std::string::npos, rules.check_packet(256).find("64"));
  const Placement placement;
  const session::OwnPart none;
  const session::Cost cost = rules.cost({4, 256, 16, placement, none});
  EXPECT_EQ(switchml::ChipSwitch::total_bytes(256, 16), cost.memory);
  EXPECT_EQ(1U, cost.units);
  // All ranks are to deal stripes alike.
  session::JoinRequest usual, other;
  other.own = own_part(SwitchMlAsk{4096, {}});
  EXPECT_EQ("", session::check_request(rules, usual));
  EXPECT_FALSE(session::compare(rules, usual, usual));
  const auto difference = session::compare(rules, usual, other);
  ASSERT_TRUE(difference);
  EXPECT_EQ(4096U, difference->second);
}

TEST(ChipProfile, IsReadAsItWasSaid) {
  const ChipProfile chip{8, {64}};
  const session::Profile said = said_profile(chip);
  EXPECT_EQ(switchml_chip_rules().name, said.protocol);
  EXPECT_EQ(chip, chip_in({{"atp", ""}, said}));
  EXPECT_EQ(ChipProfile{}, chip_in({said_profile({})})) << "its lengths are not added to those of the default";
  EXPECT_FALSE(chip_in({}));
  EXPECT_FALSE(chip_in({{"atp", said.own}})) << "a software switch";
}

// Not a software switch: ranks would send it packets that it does not take.
TEST(ChipProfile, AChipThatCannotBeIsAnError) {
  for (const session::Profile& wrong :
       {said_profile({0, {64}}), said_profile({4, {}}), said_profile({4, {128}}), {said_profile({}).protocol, "\xff"}}) {
    try {
      static_cast<void>(chip_in({wrong}));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::internal, error.code());
    }
  }
}

TEST(ChipProfile, SaysWhyARankCannotJoin) {
  const ChipProfile chip;
  EXPECT_EQ("", why_not_at_chip(chip, 0, WireFormat::native));
  EXPECT_EQ("", why_not_at_chip(chip, 64, WireFormat::float32));
  EXPECT_NE(std::string::npos, why_not_at_chip(chip, 512, WireFormat::native).find("64 or 256"));
  EXPECT_NE(std::string::npos, why_not_at_chip(chip, 0, WireFormat::bfloat16).find("bfloat16"));
  EXPECT_NE(std::string::npos, why_not_at_chip(chip, 0, WireFormat::float16).find("float16"));
}

// So many ranks at each switch; the last number: next to the aggregator.
Placement placement_of(const std::vector<std::uint32_t>& ranks, const std::vector<std::uint32_t>& parents) {
  Placement placement;
  placement.parent_of_switch = parents;
  std::vector<std::uint32_t> switch_of_rank;
  for (std::uint32_t at = 0; at < ranks.size(); ++at) {
    const bool is_root = at == parents.size();
    if (!is_root) placement.switches.push_back("leaf" + std::to_string(at));
    switch_of_rank.insert(switch_of_rank.end(), ranks[at], is_root ? Placement::at_server : at);
  }
  placement.switch_of_rank = std::move(switch_of_rank);
  return placement;
}

TEST(ChipProfile, EachChipHasABitForEachOfItsNeighboursBelow) {
  const ProtocolRules rules = switchml_chip_rules();
  const auto error = [&](const std::vector<std::uint32_t>& ranks, const std::vector<std::uint32_t>& parents) {
    return rules.check_placement(placement_of(ranks, parents));
  };
  constexpr std::uint32_t root = Placement::at_server;
  EXPECT_EQ("", error({31}, {}));
  EXPECT_EQ("", error({31, 31, 29}, {root, root}));
  EXPECT_EQ("", error({31, 30, 30}, {1, root})) << "one switch below the other";
  const std::string of_root = error({32}, {});
  EXPECT_EQ(0U, of_root.find("32 ranks and switches are directly below the aggregator, a chip for at most 31")) << of_root;
  EXPECT_NE(std::string::npos, of_root.find("below a chip of their own"));
  EXPECT_EQ(0U, error({31, 31, 30}, {root, root}).find("32 ranks and switches are directly below the aggregator"));
  EXPECT_EQ(0U, error({1, 32}, {root, root}).find("32 ranks and switches are directly below switch leaf1"));
  EXPECT_EQ(0U, error({1, 31}, {1, root}).find("32 ranks and switches are directly below switch leaf1"));
  EXPECT_NE("", error({1}, {0})) << "no way up";
}

TEST(ChipProfile, MembersAreNumberedByTheirLowestRanks) {
  Placement placement = placement_of({2, 2, 1}, {1, Placement::at_server});  // ranks 0, 1 | 2, 3 | 4
  const auto at_root = members_at(placement, Placement::at_server), at_upper = members_at(placement, 1);
  ASSERT_EQ(2U, at_root.size());
  EXPECT_EQ(1U, at_root[0].switch_id);
  EXPECT_EQ(RankSet::first(4), at_root[0].ranks);
  ASSERT_EQ(3U, at_upper.size());
  EXPECT_EQ(0U, at_upper[0].switch_id);
  EXPECT_EQ(RankSet::first(2), at_upper[0].ranks);
  const std::uint32_t numbers[] = {0, 1, 1, 2, 1};
  for (std::uint32_t rank = 0; rank < 5; ++rank) EXPECT_EQ(numbers[rank], member_of(placement, rank)) << rank;
}

// ---- switches below

TreeInstallation told(const ProtocolRules& rules) {
  TreeInstallation installation;
  installation.start.protocol = rules.name;
  installation.start.job = "train";
  session::Admission& admission = installation.start.admission;
  admission.job_epoch = 7;
  admission.rank_epochs = {10, 11, 12};
  admission.packet_elements = 256;
  admission.slots = 4;
  admission.placement = placement_of({2, 1}, {Placement::at_server});
  const auto host = [](std::uint16_t port) { return Endpoint{.address = {0xfd, 1}, .port = port}; };
  for (std::uint16_t rank = 0; rank < 3; ++rank) installation.start.endpoints.push_back({host(100 + rank)});
  installation.start.listens.resize(3);
  installation.switches = {{host(200)}};
  installation.root = {host(300)};
  return installation;
}

TEST(SwitchmlTree, ASwitchReadsWhatTheRootWrites) {
  for (const ProtocolRules& rules : {switchml_rules(), switchml_chip_rules()}) {
    TreeInstallation sent = told(rules);
    sent.again = true;
    const TreeInstallation read = read_switchml(message_of(sent), rules);
    EXPECT_EQ(rules.name, read.start.protocol);
    EXPECT_EQ("train", read.start.job);
    EXPECT_EQ(7U, read.start.admission.job_epoch);
    EXPECT_TRUE(read.again);
    EXPECT_THROW(refuse_again(read), Error);
    EXPECT_NO_THROW(refuse_again(told(rules)));
    EXPECT_EQ(message_of(sent).own, message_of(read).own);
    const switchml::SwitchJobConfig job = switchml_job(read, 0);
    ASSERT_EQ(2U, job.members.size()) << "rank 2 is next to the root";
    EXPECT_EQ(11U, job.members[1].epoch);
    EXPECT_EQ(sent.start.endpoints[1][0], job.members[1].endpoint);
    EXPECT_EQ(sent.root[0], job.tree->parent);
  }
}

TEST(SwitchmlTree, InstallationsThatMakeNoSenseAreRefused) {
  const std::pair<const char*, std::function<void(TreeInstallation&)>> wrong[] = {
      {"no rank is below",
       [](auto& i) {
         i.start.admission.placement = placement_of({0, 3}, {Placement::at_server});
       }},
      {"number of ranks 0", [](auto& i) { i.start.endpoints.clear(); }},
      {"rank epochs for", [](auto& i) { i.start.admission.rank_epochs = testing::shorter(i.start.admission.rank_epochs); }},
      {"lanes 0", [](auto& i) { i.root.clear(); }},
      {"slots 0", [](auto& i) { i.start.admission.slots = 0; }},
      {"slots 8192", [](auto& i) { i.start.admission.slots = 8192; }},
      {"packets of 100", [](auto& i) { i.start.admission.packet_elements = 100; }},
      {"placement is inconsistent",
       [](auto& i) {
         i.start.admission.placement.switch_of_rank = testing::shorter(i.start.admission.placement.switch_of_rank);
       }},
      {"switch 1 of 1", [](auto& i) { i.switch_id = 1; }},
      {"rank 1 does not have an address", [](auto& i) { i.start.endpoints[1][0].port = 0; }},
      {"aggregator's address", [](auto& i) { i.root[0] = {}; }},
      {"a switch does not have an address", [](auto& i) { i.switches[0].clear(); }},
      {"switch 0", [](auto& i) { i.start.admission.placement.parent_of_switch = {0}; }},
      {"the keys do not match", [](auto& i) { i.start.admission.security = PacketSecurity::tag; }},
  };
  for (const ProtocolRules& rules : {switchml_rules(), switchml_chip_rules()}) {
    for (const auto& [words, change] : wrong) {
      TreeInstallation installation = told(rules);
      change(installation);
      try {
        static_cast<void>(read_switchml(message_of(installation), rules));
        ADD_FAILURE() << words << ": it is taken";
      } catch (const Error& error) {
        EXPECT_EQ(ErrorCode::refused, error.code());
        EXPECT_NE(std::string::npos, std::string(error.what()).find(words)) << words << ": " << error.what();
      }
    }
    session::SwitchMessage message = message_of(told(rules));
    message.own.pop_back();
    EXPECT_THROW(static_cast<void>(read_switchml(message, rules)), Error);
  }
}

TEST(ChipProfile, TheRegistryHoldsJobsToIt) {
  session::RegistryConfig config;
  config.protocols = {switchml_chip_rules()};
  config.random = [next = std::uint64_t{1}]() mutable { return next++; };
  session::Registry registry(config);
  const auto refusal = [&](std::uint32_t world_size, std::uint32_t packet_elements, const char* protocol) {
    JoinRequest request;
    request.protocol_version = switchml_chip_rules().version;
    request.protocol = protocol;
    request.job = "job " + std::to_string(world_size) + protocol + std::to_string(packet_elements);
    request.world_size = world_size;
    request.packet_elements = packet_elements;
    request.slots_fixed = 4;
    Endpoint endpoint;
    endpoint.address[15] = 1;
    endpoint.port = 1;
    request.endpoints = {endpoint};
    const auto outcome = registry.join_outcome(registry.join(request, Time{}));
    return outcome ? outcome->refusal : Refusal::none;
  };
  EXPECT_EQ(Refusal::none, refusal(1, 256, "switchml-chip"));
  EXPECT_EQ(Refusal::bad_parameters, refusal(4097, 256, "switchml-chip"));
  EXPECT_EQ(Refusal::bad_parameters, refusal(1, 320, "switchml-chip"));
  EXPECT_EQ(Refusal::protocol, refusal(1, 256, "switchml"));
}

}  // namespace
}  // namespace netsum::jobs
