// What follows from a chip's profile before ranks join.

#include "session/chip_profile.h"

#include <gtest/gtest.h>

#include <utility>

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
  EXPECT_EQ(8U, rules.max_world_size);
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
  EXPECT_EQ("", why_not_at_chip(chip, 31, 0, WireFormat::native));
  EXPECT_EQ("", why_not_at_chip(chip, 31, 64, WireFormat::float32));
  EXPECT_NE(std::string::npos, why_not_at_chip(chip, 32, 0, WireFormat::native).find("31 ranks"));
  EXPECT_NE(std::string::npos, why_not_at_chip(chip, 2, 512, WireFormat::native).find("64 or 256"));
  EXPECT_NE(std::string::npos, why_not_at_chip(chip, 2, 0, WireFormat::bfloat16).find("bfloat16"));
  EXPECT_NE(std::string::npos, why_not_at_chip(chip, 2, 0, WireFormat::float16).find("float16"));
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
  EXPECT_EQ(Refusal::bad_parameters, refusal(32, 256, "switchml-chip"));
  EXPECT_EQ(Refusal::bad_parameters, refusal(1, 320, "switchml-chip"));
  EXPECT_EQ(Refusal::protocol, refusal(1, 256, "switchml"));
}

}  // namespace
}  // namespace netsum::session
