// What follows from a chip's profile before ranks join.

#include "jobs/chip_profile.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "jobs/switchml_job.h"
#include "protocol/switchml/chip_switch.h"
#include "session/registry.h"

namespace netsum::session {
namespace {

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
  JoinRequest request;
  request.packet_elements = 256;
  request.slots_fixed = 16;
  request.world_size = 4;
  EXPECT_EQ(switchml::ChipSwitch::total_bytes(256, 16), rules.memory_bytes(request, {}));
  EXPECT_EQ(1U, rules.units(request));
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
  for (std::uint32_t at = 0; at < ranks.size(); ++at) {
    const bool is_root = at == parents.size();
    if (!is_root) placement.switches.push_back("leaf" + std::to_string(at));
    placement.switch_of_rank.insert(placement.switch_of_rank.end(), ranks[at], is_root ? Placement::at_server : at);
  }
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
  EXPECT_EQ(0U, of_root.find("32 ranks and switches are next to the aggregator, a chip with a bit for each of 31"))
      << of_root;
  EXPECT_NE(std::string::npos, of_root.find("below it"));
  EXPECT_EQ(0U, error({31, 31, 30}, {root, root}).find("32 ranks and switches are next to the aggregator"));
  EXPECT_EQ(0U, error({1, 32}, {root, root}).find("32 ranks and switches are next to switch leaf1"));
  EXPECT_EQ(0U, error({1, 31}, {1, root}).find("32 ranks and switches are next to switch leaf1"));
  EXPECT_NE("", error({1}, {0})) << "no way up";
}

TEST(ChipProfile, MembersAreNumberedByTheirLowestRanks) {
  Placement placement = placement_of({2, 2, 1}, {1, Placement::at_server});  // ranks 0, 1 | 2, 3 | 4
  const auto at_root = members_at(placement, Placement::at_server), at_upper = members_at(placement, 1);
  ASSERT_EQ(2U, at_root.size());
  EXPECT_EQ(1U, at_root[0].a_switch);
  EXPECT_EQ(RankSet::first(4), at_root[0].ranks);
  ASSERT_EQ(3U, at_upper.size());
  EXPECT_EQ(0U, at_upper[0].a_switch);
  EXPECT_EQ(RankSet::first(2), at_upper[0].ranks);
  const std::uint32_t numbers[] = {0, 1, 1, 2, 1};
  for (std::uint32_t rank = 0; rank < 5; ++rank) EXPECT_EQ(numbers[rank], member_of(placement, rank)) << rank;
}

TEST(ChipProfile, TheRegistryHoldsJobsToIt) {
  RegistryConfig config;
  config.protocols = {switchml_chip_rules()};
  config.random = [next = std::uint64_t{1}]() mutable { return next++; };
  Registry registry(config);
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
}  // namespace netsum::session
