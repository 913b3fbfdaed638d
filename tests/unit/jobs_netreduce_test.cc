// NetReduce's membership: from what ranks say when they join to rings that fit together, beside jobs of another protocol.
#include "jobs/netreduce_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "jobs/switchml_job.h"
#include "netsum/error.h"
#include "session/check.h"
#include "session/job_view.h"
#include "session/registry.h"
#include "support/changed_list.h"
#include "support/virtual_network.h"
#include "wire/netreduce.h"
#include "wire/switchml.h"

namespace netsum::jobs {
namespace {

using namespace std::chrono_literals;
using netreduce::Member;
using netsum::testing::endpoint_of;
using session::Admission;
using session::HeartbeatReply;
using session::HopKeys;
using session::JoinOutcome;
using session::JoinRequest;
using session::Placement;
using session::ProtocolRules;
using session::Refusal;
using session::Registry;
using session::StartJob;

constexpr std::size_t lanes = 2;

Member member_of(std::uint32_t rank, std::size_t lane, std::uint32_t host_of_rank_0 = 1) {
  Member member;
  member.address = endpoint_of(static_cast<std::uint8_t>(host_of_rank_0 + rank), 0).address;
  member.send_qp = static_cast<std::uint32_t>(2 * lane + 16);
  member.receive_qp = member.send_qp + 1;
  member.send_psn = 100 * rank + static_cast<std::uint32_t>(lane);
  member.memory_address = 0x1000 * rank + lane;
  member.memory_key = rank + 7;
  return member;
}

RingAsk ask_of(std::uint32_t rank, std::uint32_t host_of_rank_0 = 1) {
  RingAsk ask{16, {}};
  for (std::size_t lane = 0; lane < lanes; ++lane) ask.members.push_back(member_of(rank, lane, host_of_rank_0));
  return ask;
}

JoinRequest request(std::uint32_t rank, std::uint32_t world_size, const std::string& job = "train",
                    std::uint32_t host_of_rank_0 = 1) {
  JoinRequest r;
  r.protocol_version = wire::netreduce::version;
  r.protocol = "netreduce";
  r.job = job;
  r.rank = rank;
  r.world_size = world_size;
  r.packet_elements = 256;
  r.slots_fixed = 4;
  r.own = own_part(ask_of(rank, host_of_rank_0));
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    r.endpoints.push_back(endpoint_of(static_cast<std::uint8_t>(50 + rank), static_cast<std::uint16_t>(7000 + lane)));
  }
  return r;
}

JoinRequest switchml_request(std::uint32_t rank, std::uint32_t world_size, const std::string& job) {
  JoinRequest r = request(rank, world_size, job);
  r.protocol = "switchml";
  r.protocol_version = wire::switchml::version;
  r.own.clear();
  return r;
}

// ---- rules

TEST(NetreduceRules, SayWhatAJobMayBe) {
  const ProtocolRules rules = netreduce_rules();
  EXPECT_EQ("netreduce", rules.name);
  EXPECT_EQ(wire::netreduce::version, rules.version);
  EXPECT_EQ(4096U, rules.max_world_size);
  EXPECT_TRUE(rules.switches && rules.switches_needed);
  EXPECT_EQ("", rules.check_placement({}));
  const ProtocolRules at_a_bump = bump_rules(true);
  for (const std::uint32_t elements : {64U, 128U, 256U, 512U, 1024U}) {
    EXPECT_EQ("", rules.check_packet(elements));
    EXPECT_EQ("", at_a_bump.check_packet(elements));
  }
  for (const std::uint32_t elements : {2048U, 3072U, 15360U}) {
    EXPECT_EQ("", rules.check_packet(elements)) << "through a tunnel";
    EXPECT_NE("", at_a_bump.check_packet(elements)) << "of RDMA hardware";
  }
  for (const std::uint32_t elements :
       {0U, 1U, 32U, 63U, 65U, 192U, 768U, 2560U, 16384U, 0x40000000U, 0x40000400U, 0xffffffffU}) {
    EXPECT_NE("", rules.check_packet(elements)) << elements;
    EXPECT_NE("", at_a_bump.check_packet(elements)) << elements;
  }
  EXPECT_EQ("", check_request(rules, request(0, 3)));
  const auto refused = [&](const std::function<void(JoinRequest&)>& change) {
    JoinRequest r = request(0, 3);
    change(r);
    return check_request(rules, r);
  };
  const auto refused_ask = [&](const std::function<void(RingAsk&)>& change) {
    return refused([&](JoinRequest& r) {
      RingAsk ask = ask_of(0);
      change(ask);
      r.own = own_part(ask);
    });
  };
  EXPECT_EQ("the rank does not name one queue pair per lane", refused_ask([](RingAsk& ask) { ask.members.clear(); }));
  EXPECT_EQ("the rank does not name one queue pair per lane", refused_ask([](RingAsk& ask) { ask.members.pop_back(); }));
  EXPECT_EQ("", refused_ask([](RingAsk& ask) { ask.message_packets = 0; })) << "then it follows from the packets";
  EXPECT_EQ("message length 4097 is not between 1 and 4096", refused_ask([](RingAsk& ask) { ask.message_packets = 4097; }));
  EXPECT_EQ("window 2048 is not between 1 and 1024", refused([](JoinRequest& r) { r.slots_fixed = 2048; }));
  EXPECT_NE("", refused([](JoinRequest& r) {
              r.own = own_part(RingAsk{4096, ask_of(0).members});
              r.slots_fixed = 1024;
            }))
      << "24-bit packet sequence numbers";
  const std::string wide = "the number or the first PSN of a queue pair has more than 24 bits";
  EXPECT_EQ(wide, refused_ask([](RingAsk& ask) { ask.members[1].send_qp = 1U << 24; }));
  EXPECT_EQ(wide, refused_ask([](RingAsk& ask) { ask.members[0].receive_qp = 1U << 24; }));
  EXPECT_EQ(wide, refused_ask([](RingAsk& ask) { ask.members[0].send_psn = 1U << 24; }));
  EXPECT_NE("", refused([](JoinRequest& r) { r.own = "\xff"; }));
  EXPECT_EQ("", refused([](JoinRequest& r) { r.slots_fixed = 0; })) << "then it is measured";
}

// A message of the window has buffers of each packet of each rank, for its acknowledgement too.
TEST(NetreduceRules, ASlotIsAMessageOfAllRanks) {
  const ProtocolRules rules = netreduce_rules();
  const auto cost = [&](std::uint32_t packet_elements, std::size_t switches = 0) {
    Placement placement;
    placement.switches.resize(switches);
    const session::OwnPart own = own_part(RingGrant{16, {}});
    return rules.cost({3, packet_elements, 4, placement, own});
  };
  EXPECT_EQ(16U * 3, cost(256).units);
  EXPECT_EQ(4U * 16 * 3, cost(1024).units);
  EXPECT_EQ(16U * 3, cost(64).units);
  netreduce::RingConfig ring;
  ring.members = 3;
  ring.window = netreduce::roomy_window(4, 16);
  ring.message_packets = 16;
  ring.mtu = 1024;
  ring.tunnelled = true;
  EXPECT_EQ(netreduce::Accelerator::memory_bytes(ring), cost(256).memory);
  ring.members = 5;
  EXPECT_EQ(netreduce::Accelerator::memory_bytes(ring), cost(256, 2).memory) << "any of which may be next to it";
}

// Three windows and two messages, in windows of two.
TEST(NetreduceRules, ARingHasRoomForAcknowledgements) {
  EXPECT_EQ(3U, netreduce::roomy_window(1, 170));
  EXPECT_EQ(4U, netreduce::roomy_window(2, 170));
  EXPECT_EQ(13U, netreduce::roomy_window(8, 170));
  EXPECT_EQ(1024U, netreduce::roomy_window(1000, 1));
  EXPECT_EQ(512U, netreduce::roomy_window(512, 4096)) << "as many as packet sequence numbers allow";
}

// ---- rings

RingGrant grant_of(std::uint32_t ranks) {
  RingGrant grant{20, {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) grant.members.push_back(ask_of(rank).members);
  return grant;
}

StartJob start_of(std::uint32_t ranks) {
  StartJob start;
  start.admission.job_epoch = 0x1234567812345678;
  start.admission.packet_elements = 512;
  start.admission.slots = 8;
  start.admission.lanes = lanes;
  start.admission.own = own_part(grant_of(ranks));
  start.job = "train";
  std::vector<std::uint32_t> epochs;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    epochs.push_back(10 + rank);
    start.endpoints.push_back(request(rank, ranks).endpoints);
  }
  start.admission.rank_epochs = std::move(epochs);
  return start;
}

TEST(NetreduceJob, ALaneOfTheAcceleratorIsARing) {
  const StartJob start = start_of(3);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const netreduce::TunnelRing ring = tunnel_ring(start, lane);
    EXPECT_EQ(incarnation_of(0x1234567812345678, lane), ring.ring.incarnation);
    EXPECT_EQ(lane, ring.ring.ring);
    EXPECT_EQ(3U, ring.ring.members);
    EXPECT_EQ(13U, ring.ring.window);
    EXPECT_EQ(20U, ring.ring.message_packets);
    EXPECT_EQ(2048U, ring.ring.mtu);
    EXPECT_STREQ("netsum", ring.ring.layout.name);
    EXPECT_EQ(netreduce::Order::ring, ring.ring.order);
    EXPECT_EQ("", netreduce::check(ring.ring));
    ASSERT_EQ(3U, ring.ring.lines.size());
    EXPECT_FALSE(ring.ring.uplink);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const netreduce::Member own = member_of(rank, lane), next = member_of((rank + 1) % 3, lane);
      const Endpoint from = start.endpoints[rank][lane], to = start.endpoints[(rank + 1) % 3][lane];
      EXPECT_EQ(netreduce::data_connection(own, next), ring.ring.lines[rank].connection);
      EXPECT_EQ(netreduce::Way::through, ring.ring.lines[rank].way);
      EXPECT_EQ(1, std::count_if(ring.routes.begin(), ring.routes.end(), [&](const auto& route) {
                  return route.connection == netreduce::data_connection(own, next) && route.from == from && route.to == to;
                }));
      EXPECT_EQ(1, std::count_if(ring.routes.begin(), ring.routes.end(), [&](const auto& route) {
                  return route.connection == netreduce::answer_connection(own, next) && route.from == to && route.to == from;
                }));
    }
    EXPECT_EQ(6U, ring.routes.size());
  }
  EXPECT_EQ(netreduce::Order::arrival, tunnel_ring(start, 0, netreduce::Order::arrival).ring.order);
}

// Beside a bump are unmodified RDMA hosts, which know no repeat requests.
TEST(NetreduceJob, AtABumpItIsOneRingWhoseHostsGoBack) {
  EXPECT_FALSE(bump_rules(false).switches || bump_rules(false).switches_needed);
  const auto nowhere = [](std::uint32_t, std::size_t) { return Endpoint{}; };
  const StartJob start = start_of(3);
  const netreduce::TunnelRing made = bump_ring(start, nowhere);
  EXPECT_TRUE(made.routes.empty()) << "frames are bridged";
  const netreduce::RingConfig &ring = made.ring, tunnelled = tunnel_ring(start, 0).ring;
  EXPECT_EQ("", netreduce::check(ring));
  EXPECT_EQ(std::tuple(tunnelled.incarnation, tunnelled.members, tunnelled.window, tunnelled.message_packets, tunnelled.mtu),
            std::tuple(ring.incarnation, ring.members, ring.window, ring.message_packets, ring.mtu));
  EXPECT_EQ(netreduce::Order::ring, ring.order);
  EXPECT_FALSE(ring.selective);
  ASSERT_EQ(3U, ring.lines.size());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(tunnelled.lines[rank].connection, ring.lines[rank].connection);
    EXPECT_EQ(netreduce::Way::through, ring.lines[rank].way);
    EXPECT_FALSE(ring.lines[rank].repair);
    EXPECT_TRUE(tunnelled.lines[rank].repair) << "what the tunnel's hosts know";
  }
}

// ---- racks

TreeInstallation installation_of(std::uint32_t switch_id) {
  TreeInstallation installation{start_of(4), switch_id, false, {}, {}};
  installation.start.protocol = "netreduce";
  Placement& placement = installation.start.admission.placement;
  placement.switches = {"leaf0:1", "leaf1:1"};
  placement.parent_of_switch = {Placement::at_server, Placement::at_server};
  placement.switch_of_rank = {0, 0, 1, 1};
  for (std::uint8_t host = 0; host < 2; ++host) {
    auto& of_switch = installation.switches.emplace_back();
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      of_switch.push_back({{9, 9, 9, host}, static_cast<std::uint16_t>(100 + lane), 0});
    }
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    installation.root.push_back({{8, 8, 8}, static_cast<std::uint16_t>(100 + lane), 0});
  }
  return installation;
}

// Empty, or why the switch refuses the message.
std::string why_refused(const session::SwitchMessage& message) {
  try {
    static_cast<void>(read_ring(message, netreduce_rules()));
  } catch (const Error& error) {
    EXPECT_EQ(ErrorCode::refused, error.code());
    const std::string words = error.what();
    EXPECT_TRUE(words.starts_with("invalid installation of job '")) << words;
    return words;
  }
  return "";
}

// The same lines as at a switch, but only connections between bumps have routes; what passes a bump is known to it.
TEST(NetreduceJob, BumpsOfSeveralRacksHaveTheirPartsOfTheTree) {
  EXPECT_TRUE(bump_rules(true).switches && bump_rules(true).switches_needed);
  const TreeInstallation installation = installation_of(1);
  const netreduce::TunnelRing bump = bump_ring(installation), leaf = tunnel_ring(installation, 0);
  EXPECT_EQ("", netreduce::check(bump.ring));
  ASSERT_EQ(leaf.ring.lines.size(), bump.ring.lines.size());
  for (std::size_t i = 0; i < leaf.ring.lines.size(); ++i) {
    EXPECT_EQ(leaf.ring.lines[i].connection, bump.ring.lines[i].connection);
    EXPECT_EQ(leaf.ring.lines[i].way, bump.ring.lines[i].way);
    EXPECT_EQ(leaf.ring.lines[i].answers, bump.ring.lines[i].answers);
  }
  ASSERT_TRUE(bump.ring.uplink);
  ASSERT_EQ(1U, bump.routes.size());
  EXPECT_EQ(bump.ring.uplink->down(), bump.routes.front().connection);
  EXPECT_EQ(installation.root.front(), bump.routes.front().from);
  EXPECT_TRUE(bump.ring.passing.empty());

  const netreduce::TunnelRing root =
      bump_ring(installation.start, [&](std::uint32_t s, std::size_t lane) { return installation.switches[s][lane]; });
  EXPECT_EQ("", netreduce::check(root.ring));
  EXPECT_EQ(2U, root.routes.size()) << "one up from each rack";
  const auto connection = [](std::uint32_t rank) {
    return netreduce::data_connection(member_of(rank, 0), member_of((rank + 1) % 4, 0));
  };
  EXPECT_EQ((std::vector{connection(1), connection(3)}), root.ring.passing);
}

TEST(NetreduceJob, ALeafLearnsItsPartOfTheTree) {
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const TreeInstallation sent = installation_of(1);
    const TreeInstallation installation = read_ring(message_of(sent), netreduce_rules());
    EXPECT_EQ(sent.start.job, installation.start.job);
    EXPECT_EQ(sent.start.admission.job_epoch, installation.start.admission.job_epoch);
    const netreduce::TunnelRing leaf = tunnel_ring(installation, lane);
    EXPECT_EQ("", netreduce::check(leaf.ring));
    EXPECT_EQ(4U, leaf.ring.members) << "all ranks, whose number is in the seals";
    ASSERT_TRUE(leaf.ring.uplink);
    EXPECT_EQ(installation.root[lane], leaf.ring.uplink->egress);
    EXPECT_EQ(3U, leaf.ring.lines.size());
    const netreduce::TunnelRing root =
        tunnel_ring(installation.start, lane, netreduce::at_root,
                    [&](std::uint32_t switch_id, std::size_t l) { return installation.switches[switch_id][l]; });
    EXPECT_EQ(leaf.ring.incarnation, root.ring.incarnation);
    EXPECT_EQ(2U, root.ring.lines.size());
    EXPECT_EQ(leaf.ring.uplink->up, root.ring.lines[1].connection);
  }
}

// ---- keys

seal::PacketKey key(std::uint8_t number) {
  seal::PacketKey::Bytes bytes;
  bytes.fill(std::byte{number});
  return seal::PacketKey(bytes);
}

// Each hop has one key a way and a lane, which its two ends and nobody else have.
TEST(NetreduceJob, BothEndsOfAHopHaveItsKeys) {
  TreeInstallation installation = installation_of(1);
  StartJob& start = installation.start;
  start.admission.security = PacketSecurity::tag;
  start.admission.results = key(1);
  for (std::uint8_t i = 0; i < 6; ++i) {
    const HopKeys keys{key(static_cast<std::uint8_t>(10 + 2 * i)), key(static_cast<std::uint8_t>(11 + 2 * i))};
    (i < 4 ? start.keys : start.switch_keys).push_back(keys);
  }
  const auto endpoint = [&](std::uint32_t switch_id, std::size_t lane) { return installation.switches[switch_id][lane]; };
  std::map<Endpoint, std::vector<seal::Neighbour>> nodes;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    nodes[installation.root[lane]] = ring_neighbours(start, lane, netreduce::at_root, endpoint);
    for (std::uint32_t i = 0; i < 2; ++i) {
      const TreeInstallation told{for_switch(start, i), i, false, installation.switches, installation.root};
      EXPECT_EQ("", why_refused(message_of(told)));
      const auto message = tree_message(start, i, false, installation.switches, installation.root);
      EXPECT_EQ(message_of(told).own, message.own);
      nodes[endpoint(i, lane)] = ring_neighbours(told, lane);
    }
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      Admission admission = start.admission;
      admission.keys = start.keys[rank];
      const netreduce::LaneKeys own = ring_keys(admission, lane);
      nodes[start.endpoints[rank][lane]] = {{endpoint(admission.placement.switch_of_rank[rank], lane), own.up, own.down}};
    }
  }
  std::set<seal::PacketKey::Bytes> ways;
  std::size_t hops = 0;
  for (const auto& [node, neighbours] : nodes) {
    for (const seal::Neighbour& neighbour : neighbours) {
      ++hops;
      ways.insert(neighbour.send.bytes());
      const auto& theirs = nodes.at(neighbour.endpoint);
      const auto back = std::ranges::find(theirs, node, &seal::Neighbour::endpoint);
      ASSERT_NE(theirs.end(), back);
      EXPECT_TRUE(neighbour.send && neighbour.send == back->receive && neighbour.receive == back->send);
    }
  }
  EXPECT_EQ(2U * lanes * (4 + 2), hops);  // two ends: of ranks and their switches, of switches and the root
  EXPECT_EQ(hops, ways.size());
}

void spoil_grant(Admission& admission, const std::function<void(RingGrant&)>& how) {
  RingGrant grant = ring_grant(admission);
  how(grant);
  admission.own = own_part(grant);
}

TEST(NetreduceJob, InstallationsThatMakeNoSenseAreRefused) {
  using Break = std::function<void(TreeInstallation&)>;
  const Break breaks[] = {
      [](auto& i) { spoil_grant(i.start.admission, [](RingGrant& grant) { grant.members.clear(); }); },
      [](auto& i) { spoil_grant(i.start.admission, [](RingGrant& grant) { grant.members[2].clear(); }); },
      [](auto& i) { i.start.admission.own = "\xff"; },
      [](auto& i) { i.start.admission.own.clear(); },
      [](auto& i) { i.start.admission.rank_epochs = testing::shorter(i.start.admission.rank_epochs); },
      [](auto& i) { i.start.admission.results = key(1); },
      [](auto& i) { i.start.admission.security = PacketSecurity::tag; },
      [](auto& i) { i.start.endpoints.pop_back(); },
      [](auto& i) { i.start.endpoints[1].clear(); },
      [](auto& i) {
        i.start.admission.placement.switch_of_rank = testing::shorter(i.start.admission.placement.switch_of_rank);
      },
      [](auto& i) {
        i.start.admission.placement.switch_of_rank = testing::with(i.start.admission.placement.switch_of_rank, 0, 7U);
      },
      [](auto& i) {
        i.start.admission.placement.parent_of_switch = {1, 0};
      },
      [](auto& i) { i.start.admission.placement.parent_of_switch.clear(); },
      [](auto& i) { i.switch_id = 2; },
      [](auto& i) { i.switch_id = netreduce::at_root; },
      [](auto& i) { i.switches[0].clear(); },
      [](auto& i) { i.switches.clear(); },
      [](auto& i) { i.root.clear(); },
      [](auto& i) { i.root[1] = {}; },
      [](auto& i) { i.root.resize(65, i.root[0]); },
      [](auto& i) { i.start.endpoints[1][1].port = 0; },
      [](auto& i) { i.start.endpoints[1].push_back(i.start.endpoints[1][0]); },
      [](auto& i) { spoil_grant(i.start.admission, [](RingGrant& grant) { grant.members[2].pop_back(); }); },
      [](auto& i) {
        spoil_grant(i.start.admission,
                    [](RingGrant& grant) { grant.members[2][1] = grant.members[1][1] = grant.members[3][1]; });
      },
      [](auto& i) {
        spoil_grant(i.start.admission, [](RingGrant& grant) { grant.members.resize(4097, grant.members[0]); });
      },
      [](auto& i) { spoil_grant(i.start.admission, [](RingGrant& grant) { grant.members[1][0].send_qp = 1U << 24; }); },
      [](auto& i) {
        i.switches[1][0].address = {0xff, 1};
      },
      [](auto& i) { i.start.admission.packet_elements = (1U << 30) + 256; },
      [](auto& i) { spoil_grant(i.start.admission, [](RingGrant& grant) { grant.message_packets = 0; }); },
      [](auto& i) { i.start.admission.slots = 0; },
      [](auto& i) { i.start.admission.slots = 1U << 30; },
      [](auto& i) { i.start.admission.packet_elements = 1U << 20; },
      [](auto& i) {
        i.start.admission.placement.switch_of_rank = {0, 0, 0, 0};
      },
  };
  for (const Break& spoil : breaks) {
    TreeInstallation installation = installation_of(1);
    spoil(installation);
    EXPECT_NE("", why_refused(message_of(installation))) << &spoil - breaks;
  }
  TreeInstallation early = installation_of(1);
  early.switches[0].assign(lanes, {});
  EXPECT_EQ("", why_refused(message_of(early))) << "a switch that was not reached yet";
}

TEST(NetreduceJob, AdmissionsThatMakeNoSenseAreRefused) {
  Admission good = start_of(4).admission;
  JoinRequest asked = request(2, 4);
  good.rank_epochs = {10, 11, 12, 13};
  good.rank_epoch = 12;
  good.placement.switch_of_rank = std::vector<std::uint32_t>(4, Placement::at_server);
  good.own = session::shares(netreduce_rules(), good.own, 4)[2];  // ranks 1, 2 and 3
  asked.slots_fixed = good.slots;
  asked.packet_elements = good.packet_elements;
  asked.own = own_part(RingAsk{20, ask_of(2).members});
  EXPECT_EQ("", check(good, asked, netreduce_rules()));
  Admission fewer = good;
  fewer.lanes = 1;
  spoil_grant(fewer, [](RingGrant& grant) {
    for (auto& members : grant.members) members.resize(1);
  });
  EXPECT_EQ("", check(fewer, asked, netreduce_rules())) << "the first lanes of this rank";
  const std::function<void(Admission&)> breaks[] = {
      [](auto& a) { a.lanes = lanes - 1; },
      [](auto& a) { a.lanes = lanes + 1; },
      [](auto& a) { a.lanes = 0; },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.members.clear(); }); },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.members.pop_back(); }); },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.members.push_back(grant.members[0]); }); },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.members[0].pop_back(); }); },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.members[1][1] = grant.members[2][1]; }); },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.first = 0; }); },
      [](auto& a) {
        spoil_grant(a, [](RingGrant& grant) { grant.members[2][0] = grant.members[0][0] = grant.members[1][0]; });
      },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.members[1][0].receive_qp = 1U << 24; }); },
      [](auto& a) { spoil_grant(a, [](RingGrant& grant) { grant.message_packets = 21; }); },
      [](auto& a) { a.own = "\xff"; },
      [](auto& a) { a.own.clear(); },
      [](auto& a) { a.slots = 0; },
      [](auto& a) { a.placement.switch_of_rank = testing::with(a.placement.switch_of_rank, 1, 0U); },
      [](auto& a) {
        a.placement.switches = {"a:1"};
        a.placement.parent_of_switch = {0};
      },
  };
  for (const auto& spoil : breaks) {
    Admission admission = good;
    spoil(admission);
    EXPECT_NE("", check(admission, asked, netreduce_rules())) << &spoil - breaks;
  }
  RingAsk little{20, ask_of(2).members};
  little.most_messages = good.slots / 2;
  asked.own = own_part(little);
  EXPECT_NE("", check(good, asked, netreduce_rules())) << "a window that its memory does not hold";
  // Where the rank has asked for no length.
  asked.own = own_part(RingAsk{0, ask_of(2).members});
  EXPECT_EQ("", check(good, asked, netreduce_rules()));
  for (const std::uint32_t packets : {0U, 4097U}) {
    Admission admission = good;
    spoil_grant(admission, [&](RingGrant& grant) { grant.message_packets = packets; });
    EXPECT_NE("", check(admission, asked, netreduce_rules())) << packets;
  }
}

TEST(NetreduceJob, WhatALeafSaysRefinesWhatTheRootKnows) {
  Placement placement;
  placement.switches = {"a", "b", "top"};
  placement.parent_of_switch = {2, 2, Placement::at_server};
  placement.switch_of_rank = {0, 0, 1, 1, Placement::at_server};
  const auto set = [](std::initializer_list<std::uint32_t> ranks) {
    RankSet made;
    for (const std::uint32_t rank : ranks) made.insert(rank);
    return made;
  };
  EXPECT_EQ(set({1, 2, 3}), refined(set({0, 1, 2, 3}), placement, "a", set({1})));
  EXPECT_EQ(set({1, 2, 3, 4}), refined(set({0, 1, 2, 3, 4}), placement, "top", set({1, 2, 3})));
  EXPECT_EQ(set({2, 3}), refined(set({2, 3}), placement, "a", set({1}))) << "it has come meanwhile";
  EXPECT_EQ(set({0, 1}), refined(set({0, 1}), placement, "a", {}));
  EXPECT_EQ(set({0, 1}), refined(set({0, 1}), placement, "a", set({3}))) << "not below it";
}

TEST(NetreduceJob, ARankKnowsWhoIsBesideIt) {
  for (const std::uint32_t ranks : {1U, 2U, 3U, 7U}) {
    const StartJob start = start_of(ranks);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const netreduce::TunnelRing ring = tunnel_ring(start, lane);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const netreduce::RoceHostConfig host = host_config(start.admission, ring_grant(start.admission), rank, lane);
        EXPECT_EQ(rank, host.worker.rank);
        EXPECT_EQ(ranks, host.worker.world_size);
        // The same numbers as the accelerator's, or no seal would fit.
        EXPECT_EQ(ring.ring.incarnation, host.worker.incarnation);
        EXPECT_EQ(ring.ring.ring, host.worker.ring);
        EXPECT_EQ(2 * ring.ring.window, host.buffers);
        EXPECT_EQ(ring.ring.message_packets, host.worker.message_packets);
        EXPECT_EQ(ring.ring.mtu, host.worker.mtu);
        EXPECT_EQ(member_of(rank, lane), host.self);
        EXPECT_EQ(member_of((rank + 1) % ranks, lane), host.successor);
        EXPECT_EQ(member_of((rank + ranks - 1) % ranks, lane), host.predecessor);
        // What the rank is told is enough.
        Admission told = start.admission;
        told.own = session::shares(netreduce_rules(), told.own, ranks)[rank];
        const netreduce::RoceHostConfig same = host_config(told, ring_grant(told), rank, lane);
        EXPECT_EQ(host.self, same.self);
        EXPECT_EQ(host.successor, same.successor);
        EXPECT_EQ(host.predecessor, same.predecessor);
        EXPECT_EQ(std::min(3U, ranks), ring_grant(told).members.size());
        EXPECT_EQ((rank + 1) % ranks, successor_of(rank, ranks));
        EXPECT_EQ(rank, successor_of(predecessor_of(rank, ranks), ranks));
      }
    }
  }
}

TEST(NetreduceJob, EveryLaneOfEveryLifeHasAnIncarnationOfItsOwn) {
  std::set<std::uint64_t> all;
  for (const std::uint64_t epoch : {1U, 2U, 3U, 0x12345678U}) {
    for (std::size_t lane = 0; lane < 64; ++lane) EXPECT_TRUE(all.insert(incarnation_of(epoch, lane)).second);
  }
}

// ---- membership, beside SwitchML's

class NetreduceRegistry : public ::testing::Test {
 protected:
  static constexpr std::uint32_t all_slots = 4096;

  explicit NetreduceRegistry(std::uint32_t slots = all_slots) : registry(make(slots)) {}

  static Registry make(std::uint32_t slots) {
    session::RegistryConfig c;
    session::ProtocolRules plain = switchml_rules();
    plain.own.reset();
    c.protocols = {plain, netreduce_rules()};
    c.lanes = lanes;
    c.slots = slots;
    c.random = [engine = std::mt19937_64(7)]() mutable { return engine(); };
    return Registry(std::move(c));
  }

  // What the last of them to join is told.
  JoinOutcome join(const std::vector<JoinRequest>& requests) {
    std::uint64_t last = 0;
    for (const JoinRequest& r : requests) last = registry.join(r, now);
    return registry.join_outcome(last).value_or(JoinOutcome{Refusal::none, "no outcome", {}});
  }
  void expect_refused(const std::vector<JoinRequest>& requests, Refusal refusal, const std::string& reason) {
    const JoinOutcome outcome = join(requests);
    EXPECT_EQ(refusal, outcome.refusal) << to_string(outcome.refusal);
    EXPECT_EQ(reason, outcome.reason);
    EXPECT_FALSE(outcome.admission);
  }

  Time now{1000s};
  Registry registry;
};

class NetreduceLargeRegistry : public NetreduceRegistry {
 protected:
  NetreduceLargeRegistry() : NetreduceRegistry(~0U) {}
};

TEST_F(NetreduceRegistry, AdmitsRingsWithAllTheirQueuePairs) {
  const JoinOutcome outcome = join({request(2, 3), request(0, 3), request(1, 3)});
  ASSERT_TRUE(outcome.admission) << outcome.reason;
  const Admission& admission = *outcome.admission;
  const RingGrant grant = ring_grant(admission);
  EXPECT_EQ(16U, grant.message_packets);
  EXPECT_EQ(4U, admission.slots);
  ASSERT_EQ(3U, grant.members.size());
  for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ask_of(rank).members, grant.members[rank]) << "by rank";
  const auto starts = registry.take_starts();
  ASSERT_EQ(1U, starts.size());
  EXPECT_EQ(admission.own, starts[0].admission.own);
  EXPECT_EQ(request(1, 3).endpoints, starts[0].endpoints[1]);
  EXPECT_EQ(all_slots - 4U * 16 * 3 * lanes, registry.slots_free());
}

TEST_F(NetreduceRegistry, ServesJobsOfBothProtocols) {
  const JoinOutcome ring = join({request(0, 2), request(1, 2)});
  const JoinOutcome star = join({switchml_request(0, 2, "other"), switchml_request(1, 2, "other")});
  ASSERT_TRUE(ring.admission && star.admission);
  EXPECT_EQ(2U, ring_grant(*ring.admission).members.size());
  EXPECT_TRUE(star.admission->own.empty());
  EXPECT_EQ(2U, registry.take_starts().size());
}

TEST_F(NetreduceRegistry, EachProtocolHasItsVersion) {
  JoinRequest r = request(0, 2);
  r.protocol_version = wire::switchml::version;
  EXPECT_EQ(Refusal::protocol_version, join({r}).refusal);
  r = switchml_request(0, 2, "train");
  r.protocol_version = wire::netreduce::version;
  EXPECT_EQ(Refusal::protocol_version, join({r}).refusal);
  r = request(0, 2);
  r.protocol = "atp";
  expect_refused({r}, Refusal::protocol, "this aggregator does not serve protocol 'atp', only switchml, netreduce");
}

TEST_F(NetreduceRegistry, RanksOfAJobAgreeOnProtocolAndMessages) {
  expect_refused({request(0, 2), switchml_request(1, 2, "train")}, Refusal::parameters_differ,
                 "rank 1 joined job 'train' for switchml, rank 0 for netreduce: all ranks must give the same");
  JoinRequest other = request(1, 2, "second");
  other.own = own_part(RingAsk{17, ask_of(1).members});
  expect_refused({request(0, 2, "second"), other}, Refusal::parameters_differ,
                 "rank 1 joined job 'second' with packets per message 17, rank 0 with 16: all ranks must give the same");
}

TEST_F(NetreduceRegistry, RefusesWhatItsRulesRefuse) {
  JoinRequest r = request(0, 2);
  RingAsk ask = ask_of(0);
  ask.members.pop_back();
  r.own = own_part(ask);
  expect_refused({r}, Refusal::bad_parameters, "the rank does not name one queue pair per lane");
  EXPECT_EQ(Refusal::bad_parameters, join({request(0, wire::netreduce::max_workers + 1)}).refusal);
  EXPECT_TRUE(registry.jobs().empty());
}

TEST_F(NetreduceRegistry, AMeasuredWindowShrinksToWhatIsFree) {
  std::vector<JoinRequest> requests = {request(0, 2), request(1, 2)};
  for (JoinRequest& r : requests) {
    r.slots_fixed = 0;
    r.slots_measured = 100 * 16;
  }
  const JoinOutcome outcome = join(requests);
  ASSERT_TRUE(outcome.admission) << outcome.reason;
  EXPECT_EQ(64U, outcome.admission->slots) << "of 128: 4096 slots are for 64 messages of 16 packets of 2 ranks on 2 lanes";
  EXPECT_EQ(0U, registry.slots_free());
}

TEST_F(NetreduceRegistry, RanksThatIssueDifferentCallsFailTheirJob) {
  const JoinOutcome ring = join({request(0, 2), request(1, 2)});
  const JoinOutcome other = join({request(0, 2, "other", 20), request(1, 2, "other", 20)});
  ASSERT_TRUE(ring.admission && other.admission);
  static_cast<void>(registry.take_starts());
  const std::uint64_t epoch = ring.admission->job_epoch;
  registry.fail_mismatch(epoch, "ranks 0 and 1 issued different calls", now);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const HeartbeatReply reply = registry.heartbeat(epoch, rank, ring.admission->rank_epochs[rank], now);
    EXPECT_EQ(HeartbeatReply::State::failed, reply.state);
    EXPECT_TRUE(reply.mismatch);
    EXPECT_FALSE(reply.lost);
    EXPECT_EQ("job 'train': ranks 0 and 1 issued different calls", reply.reason);
  }
  const auto stops = registry.take_stops();
  ASSERT_EQ(1U, stops.size());
  EXPECT_EQ(epoch, stops[0].job_epoch);
  const HeartbeatReply reply = registry.heartbeat(other.admission->job_epoch, 0, other.admission->rank_epochs[0], now);
  EXPECT_EQ(HeartbeatReply::State::running, reply.state);
  EXPECT_FALSE(reply.mismatch);
  // Once is enough; and of a job that is not there, nothing.
  registry.fail_mismatch(epoch, "something else", now);
  registry.fail_mismatch(12345, "something else", now);
  EXPECT_TRUE(registry.take_stops().empty());
  EXPECT_EQ("job 'train': ranks 0 and 1 issued different calls", registry.heartbeat(epoch, 0, 0, now).reason);
  // The name is free, and so are the queue pairs.
  const JoinOutcome again = join({request(0, 2), request(1, 2)});
  ASSERT_TRUE(again.admission) << again.reason;
  EXPECT_NE(epoch, again.admission->job_epoch);
}

// ---- what a stranger may say

// Nobody would check it, and it would go to all ranks.
TEST_F(NetreduceRegistry, AProtocolWithoutAPartOfItsOwnTakesNone) {
  JoinRequest r = switchml_request(0, 1, "train");
  r.own = request(0, 1).own;
  expect_refused({r}, Refusal::bad_parameters, "switchml does not use protocol data in a join");
  EXPECT_TRUE(registry.take_starts().empty());
}

// Two connections that look the same on the wire could not be told apart.
TEST_F(NetreduceRegistry, AQueuePairIsOneRanks) {
  const auto with = [](JoinRequest request, const RingAsk& ask) {
    request.own = own_part(ask);
    return request;
  };
  RingAsk same = ask_of(2);
  same.members[1] = ask_of(1).members[1];
  std::vector<JoinRequest> requests = {request(0, 3), request(1, 3), with(request(2, 3), same)};
  EXPECT_TRUE(join(requests).admission) << "rank 1 to itself and to rank 0 are two connections";
  RingAsk mixed = ask_of(1, 20);
  mixed.members[1].send_qp = mixed.members[1].receive_qp;
  requests = {request(0, 2, "second", 20), with(request(1, 2, "second", 20), mixed)};
  expect_refused(requests, Refusal::bad_parameters,
                 "job 'second': a queue pair between ranks 1 and 0 on lane 1 is in use already");
  EXPECT_TRUE(join({request(0, 2, "third", 20), request(1, 2, "third", 20)}).admission) << "and nothing is left of it";
  EXPECT_EQ(2U, registry.take_starts().size());
}

TEST_F(NetreduceRegistry, AQueuePairOfARunningJobIsTaken) {
  const JoinOutcome first = join({request(0, 3), request(1, 3), request(2, 3)});
  ASSERT_TRUE(first.admission);
  expect_refused({request(0, 3, "second"), request(1, 3, "second"), request(2, 3, "second")}, Refusal::bad_parameters,
                 "job 'second': a queue pair between ranks 0 and 1 on lane 0 is in use already");
  EXPECT_EQ(all_slots - 4U * 16 * 3 * lanes, registry.slots_free());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    registry.leave(first.admission->job_epoch, rank, first.admission->rank_epochs[rank], {}, now);
  }
  EXPECT_TRUE(join({request(0, 3, "second"), request(1, 3, "second"), request(2, 3, "second")}).admission);
}

// 2^32 slots are not none.
TEST_F(NetreduceRegistry, WhatAJobNeedsDoesNotWrap) {
  std::vector<JoinRequest> requests;
  for (std::uint32_t rank = 0; rank < 1024; ++rank) {
    JoinRequest r = request(rank, 1024, "huge");
    RingAsk ask = ask_of(rank);
    for (Member& member : ask.members) member.memory_key = rank;
    for (Member& member : ask.members) member.address[14] = static_cast<std::uint8_t>(rank / 200);
    ask.message_packets = 2048;
    r.own = own_part(ask);
    r.packet_elements = 1024;
    r.slots_fixed = 256;  // 256 * 4 * 2048 * 1024 * 2 lanes = 2^32
    requests.push_back(r);
  }
  const JoinOutcome outcome = join(requests);
  EXPECT_EQ(Refusal::no_slots, outcome.refusal);
  EXPECT_NE(std::string::npos, outcome.reason.find("needs 4294967296 slots of 256 elements (256 per lane)"))
      << outcome.reason;
}

// N x MsgLen x pktSize >= RTT x PortRate (§3.2).
TEST(NetreduceJob, AWindowKeepsAPortBusy) {
  using std::chrono::microseconds;
  constexpr std::uint64_t gbit = 1'000'000'000;
  const auto messages = [](std::uint64_t rate, microseconds round_trip) {
    return messages_of(packets_in_flight(rate, round_trip, 4096), 16, 1024).count;  // of 64 KiB
  };
  EXPECT_EQ(123U, packets_in_flight(25 * gbit, microseconds(161), 4096)) << "503,125 bytes";
  EXPECT_EQ(8U, messages(25 * gbit, microseconds(160)));
  EXPECT_EQ(4U, messages(25 * gbit, microseconds(60)));
  EXPECT_EQ(16U, messages(100 * gbit, microseconds(60)));
  EXPECT_EQ(4U, messages(1 * gbit, microseconds(1))) << "the least";
  EXPECT_EQ(1'000'000'000U, packets_in_flight(400 * gbit, std::chrono::hours(1), 256)) << "and does not wrap";
}

// A device's memory is registered before anybody knows the job's window.
TEST_F(NetreduceRegistry, AWindowFitsIntoTheMemoryOfEachRank) {
  const auto window = [&](std::uint32_t first, std::uint32_t second, std::uint32_t most) {
    registry = make(1 << 20);
    std::vector<JoinRequest> requests = {request(0, 2), request(1, 2)};
    for (JoinRequest& r : requests) {
      RingAsk ask = ask_of(r.rank);
      ask.message_packets = 16;
      ask.most_messages = r.rank == 0 ? most : 16;
      r.own = own_part(ask);
      r.packet_elements = 1024;
      r.slots_fixed = 0;
      r.slots_measured = 16 * (r.rank == 0 ? first : second);
    }
    const JoinOutcome outcome = join(requests);
    if (!outcome.admission) return 0U;
    EXPECT_EQ("", check(*outcome.admission, requests[1], netreduce_rules()));
    return outcome.admission->slots;
  };
  EXPECT_EQ(8U, window(4, 8, 8)) << "the longest that a rank measured";
  EXPECT_EQ(4U, window(4, 16, 4)) << "as far as all have memory for it";
  EXPECT_EQ(16U, window(4, 16, 0)) << "a rank that can make room";
}

// Where nobody asks for a length, messages are a quarter of the longest window that a rank measured.
TEST_F(NetreduceRegistry, MessagesFollowFromTheWindow) {
  std::vector<JoinRequest> requests = {request(0, 2), request(1, 2)};
  for (JoinRequest& r : requests) {
    r.packet_elements = 1024 >> r.rank;
    r.packet_elements_measured = true;
    r.own = own_part(RingAsk{0, ask_of(r.rank).members});
    r.slots_fixed = 0;
    r.slots_measured = 10;
  }
  const JoinOutcome outcome = join(requests);
  ASSERT_TRUE(outcome.admission) << outcome.reason;
  EXPECT_EQ(512U, outcome.admission->packet_elements);
  EXPECT_EQ(5U, ring_grant(*outcome.admission).message_packets) << "rank 0's 10 packets are 20 of those agreed on";
  EXPECT_EQ(4U, outcome.admission->slots);
}

// 4096 slots are for two messages on each of two lanes, of 1024 packets in all: 85 of each of 12 ranks.
TEST_F(NetreduceRegistry, MessagesShrinkBeforeAJobIsRefused) {
  const auto requests_of = [](std::uint32_t message_packets) {
    std::vector<JoinRequest> requests;
    for (std::uint32_t rank = 0; rank < 12; ++rank) {
      JoinRequest& r = requests.emplace_back(request(rank, 12));
      r.own = own_part(RingAsk{message_packets, ask_of(rank).members});
      r.slots_fixed = 0;
      r.slots_measured = 4 * 4096;
      r.packet_elements = 64;
    }
    return requests;
  };
  EXPECT_EQ(Refusal::no_slots, join(requests_of(100)).refusal) << "what is asked for is not shortened";
  const JoinOutcome outcome = join(requests_of(0));
  ASSERT_TRUE(outcome.admission) << outcome.reason;
  EXPECT_EQ(85U, ring_grant(*outcome.admission).message_packets);
  EXPECT_EQ(2U, outcome.admission->slots);
}

TEST(NetreduceMessages, DivideTheWindow) {
  const auto divided = [](std::uint32_t packets, std::uint32_t asked = 0, std::uint32_t packet_elements = 256) {
    const Messages messages = messages_of(packets, asked, packet_elements);
    return std::pair(messages.packets, messages.count);
  };
  EXPECT_EQ(std::pair(1U, 4U), divided(1)) << "a window is never less than four messages";
  EXPECT_EQ(std::pair(8U, 4U), divided(32));
  EXPECT_EQ(std::pair(9U, 4U), divided(33));
  EXPECT_EQ(std::pair(64U, 8U), divided(512)) << "a message is at most 64 KiB";
  EXPECT_EQ(std::pair(16U, 32U), divided(512, 0, 1024));
  EXPECT_EQ(std::pair(3U, 16U), divided(32, 3));
  EXPECT_EQ(std::pair(300U, 4U), divided(32, 300)) << "what is asked for is kept";
  EXPECT_EQ(64U, divided(0).first) << "no window was measured";
}

// Whatever the ranks measured, the ring can be made.
TEST_F(NetreduceLargeRegistry, AMeasuredWindowIsOneThatARingMayHave) {
  std::vector<JoinRequest> requests = {request(0, 2), request(1, 2)};
  for (JoinRequest& r : requests) {
    r.slots_fixed = 0;
    r.slots_measured = 4096 * 4096;
  }
  const JoinOutcome outcome = join(requests);
  ASSERT_TRUE(outcome.admission) << outcome.reason;
  EXPECT_EQ(1024U, outcome.admission->slots);
  for (JoinRequest& r : requests) {
    r.job = "second";
    RingAsk ask{4096, ask_of(r.rank).members};
    for (Member& member : ask.members) member.address[13] = 9;
    r.own = own_part(ask);
  }
  const JoinOutcome longer = join(requests);
  ASSERT_TRUE(longer.admission) << longer.reason;
  EXPECT_EQ(512U, longer.admission->slots);
  for (const StartJob& start : registry.take_starts()) EXPECT_EQ("", netreduce::check(tunnel_ring(start, 0).ring));
}

}  // namespace
}  // namespace netsum::jobs
