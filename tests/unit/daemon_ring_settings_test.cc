// What a bump's options say of its rings: which are summed here, and what they may not say together.
#include "daemon/ring_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/connection_file.h"
#include "netsum/error.h"

namespace netsum::daemon {
namespace {

using Lines = std::vector<std::string>;

std::vector<netreduce::RingConfig> rings_of(const BumpOptions& options, Lines* said = nullptr) {
  return parse_rings(options, parse_hosts(options.hosts), [&](const std::string& line) {
    if (said != nullptr) said->push_back(line);
  });
}

// The error; empty: there is none.
template <class Call>
std::string why_not(const Call& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string why_not_rings(const BumpOptions& options) {
  return why_not([&] { return rings_of(options); });
}
std::string why_not_wired(const BumpOptions& options) {
  return why_not([&] { return check_wiring(options), 0; });
}

void expect_says(const std::string& part, const std::string& error) {
  EXPECT_NE(std::string::npos, error.find(part)) << error;
}

BumpOptions with_rings(const Lines& rings) {
  BumpOptions options;
  options.rings = rings;
  options.hosts = {"10.0.0.1,10.0.0.2"};
  return options;
}

BumpOptions in_rack(std::uint32_t rack, const Lines& rings) {
  BumpOptions options = with_rings(rings);
  options.racks = true;
  options.listen = "127.0.0.1:0";
  options.rack = rack;
  options.root = "10.0.1.9:1";
  return options;
}

BumpOptions root_of(const Lines& bumps, const Lines& rings) {
  BumpOptions options;
  options.rings = rings;
  options.racks = true;
  options.listen = "127.0.0.1:0";
  options.rack_bumps = bumps;
  return options;
}

TEST(RingSettings, TakesHostsAloneAndInLists) {
  const auto hosts = parse_hosts({"10.0.0.1,fd88::2", "10.0.0.3"});
  EXPECT_EQ((std::vector{*parse_address("10.0.0.1"), *parse_address("fd88::2"), *parse_address("10.0.0.3")}), hosts);
  EXPECT_TRUE(parse_hosts({}).empty());
  expect_says("'node7' in --hosts is not", why_not([] { return parse_hosts({"10.0.0.1,node7"}); }));
  expect_says("'' in --hosts is not", why_not([] { return parse_hosts({"10.0.0.1,"}); }));
}

TEST(RingSettings, GivesEachRingAnIncarnation) {
  const auto rings = rings_of(with_rings({"id=1,ranks=2", "id=2,ranks=3"}));
  ASSERT_EQ(2U, rings.size());
  EXPECT_EQ(1U, rings[0].ring);
  EXPECT_EQ(3U, rings[1].members);
  EXPECT_NE(rings[0].incarnation, rings[1].incarnation);
}

TEST(RingSettings, TellsRingsApartByIdAndMagic) {
  expect_says("have the same id and magic", why_not_rings(with_rings({"id=1,ranks=2", "id=1,ranks=3"})));
  EXPECT_EQ("", why_not_rings(with_rings({"id=1,ranks=2", "id=1,ranks=2,layout=nrtv"})));
}

TEST(RingSettings, DemandsHostsExceptAtTheRoot) {
  BumpOptions options = with_rings({"ranks=2"});
  options.hosts.clear();
  expect_says("--ring requires --hosts", why_not_rings(options));
  EXPECT_EQ("", why_not_rings(root_of({"a:1", "b:1"}, {"ranks=2,racks=1:1"})));
}

TEST(RingSettings, ComparesRacksWithTheBumpsPlace) {
  expect_says("racks= needs --rack and --root", why_not_rings(with_rings({"ranks=2,racks=1:1"})));
  expect_says("it has 2 racks, and --rack 2 is not below", why_not_rings(in_rack(2, {"ranks=2,racks=1:1"})));
  expect_says("it has 2 racks, and --rack-bumps names 3 bumps",
              why_not_rings(root_of({"a:1", "b:1", "c:1"}, {"ranks=2,racks=1:1"})));
}

TEST(RingSettings, LeavesOutRingsThatAreSummedElsewhere) {
  Lines said;
  EXPECT_EQ(1U, rings_of(in_rack(1, {"id=1,ranks=2,racks=2:0", "id=2,ranks=2,racks=1:1"}), &said).size());
  EXPECT_EQ((Lines{"ring 1 is not summed here: it has no rank in this rack"}), said);
  said.clear();
  EXPECT_TRUE(rings_of(root_of({"a:1", "b:1"}, {"id=3,ranks=2,racks=2:0"}), &said).empty());
  EXPECT_EQ((Lines{"ring 3 is not summed here: all its ranks are in one rack, and the bump of that rack needs no root"}),
            said);
}

TEST(RingSettings, DemandsPortsAndAddresses) {
  BumpOptions wire;
  wire.ports = {"eth:a", "eth:b"};
  EXPECT_EQ("", why_not_wired(wire));
  wire.ports.pop_back();
  expect_says("at least two ports", why_not_wired(wire));
  wire.one_arm = true;
  EXPECT_EQ("", why_not_wired(wire));
  wire.ports.clear();
  expect_says("--one-arm requires a port", why_not_wired(wire));
  EXPECT_EQ("", why_not_wired(in_rack(0, {})));  // a root, or a switch of ranks that send datagrams
  BumpOptions racks = in_rack(0, {});
  racks.listen.clear();
  expect_says("--racks requires --listen", why_not_wired(racks));
}

TEST(RingSettings, HasOnePlaceAmongBumps) {
  BumpOptions options = in_rack(0, {});
  options.root.clear();
  expect_says("--rack needs --root", why_not_wired(options));
  options = in_rack(0, {});
  options.rack_bumps = {"a:1"};
  expect_says("exclude each other", why_not_wired(options));
  options = in_rack(0, {});
  options.racks = false;
  expect_says("need --racks", why_not_wired(options));
}

TEST(RingSettings, RefusesRanksOfOtherHosts) {
  netreduce::RingConfig ring;
  netreduce::Line& line = ring.lines.emplace_back();
  line.connection = {*parse_address("10.0.0.1"), *parse_address("10.0.0.2"), 7};
  const auto why_not_at = [&](const Lines& hosts) {
    return why_not([&] { return check_hosts(ring, parse_hosts(hosts)), 0; });
  };
  EXPECT_EQ("", why_not_at({}));
  EXPECT_EQ("", why_not_at({"10.0.0.1"}));
  expect_says("does not name 10.0.0.1", why_not_at({"10.0.0.2"}));
  line.way = netreduce::Way::arriving;  // the receiver is next to this bump
  expect_says("does not name 10.0.0.2", why_not_at({"10.0.0.1"}));
  line.way = netreduce::Way::child;  // no host is
  EXPECT_EQ("", why_not_at({"10.0.0.9"}));
}

}  // namespace
}  // namespace netsum::daemon
