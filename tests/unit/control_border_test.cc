// Where messages become values: what is written is read again, and what no correct program sends is refused in one line,
// whichever side it comes from.
#include "control/border.h"

#include <gtest/gtest.h>

#include <functional>
#include <protozero/pbf_writer.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "control/digest.h"
#include "control/fingerprint.h"
#include "encoding/codec.h"
#include "jobs/atp_job.h"
#include "jobs/chip_profile.h"
#include "jobs/netreduce_job.h"
#include "jobs/switchml_job.h"
#include "jobs/tree.h"
#include "netsum/error.h"
#include "seal/sealer.h"
#include "session/check.h"
#include "support/changed_list.h"
#include "wire/atp.h"
#include "wire/netreduce.h"
#include "wire/samples.h"
#include "wire/switchml.h"

namespace netsum::control {
namespace {

using encoding::encoded;
using std::chrono::milliseconds;

Endpoint at(std::uint16_t port) {
  return {.address = {0xfd, 1}, .port = port, .scope = 3};
}

netreduce::Member member_of(std::uint32_t rank) {
  return {{0xfd, 2, static_cast<std::uint8_t>(rank)}, 16, rank, 17, 0x1000, 7};
}

jobs::RingAsk ring_ask() {
  return {16, {member_of(1)}};
}

session::JoinRequest request() {
  session::JoinRequest r;
  r.protocol_version = wire::netreduce::version;
  r.protocol = "netreduce";
  r.job = "train";
  r.rank = 1;
  r.world_size = 3;
  r.packet_elements = 256;
  r.slots_fixed = 4;
  r.slots_measured = 64;
  r.endpoints = {at(1)};
  r.switch_address = "leaf:1";
  r.recovers = true;
  r.progress = {9, 6, {11}};
  r.aggregators = {"a:1", "b:2", "c:3"};
  r.standbys = 1;
  r.site = 1;
  r.reached = session::SiteSet::first(3);
  r.former_epoch = 8;
  r.own = own_part(ring_ask());
  r.local_ticket = 12;
  r.why_not_local = "none";
  r.needs_local = true;
  r.listens = true;
  r.packet_elements_measured = true;
  r.switch_receive_bytes = 13;
  r.cookies = {14};
  r.switch_cookies = {15};
  r.generation = 16;
  r.security = PacketSecurity::tag;
  return r;
}

jobs::RingGrant ring_grant() {
  return {16, {{member_of(0)}, {member_of(1)}, {member_of(2)}}};
}

session::Admission admission() {
  session::Admission a;
  a.job_epoch = 1;
  a.rank_epoch = 11;
  a.rank_epochs = {10, 11, 12};
  a.packet_elements = 256;
  a.slots = 4;
  a.placement = {{"leaf:1", "top:1"}, {1, session::Placement::at_server}, {0, 0, session::Placement::at_server}};
  a.resumption = {8, {{8, 1}, {11, 2}}};
  a.own = own_part(ring_grant());
  a.sites = session::SiteSet::first(2);
  a.local = true;
  a.why_not_local = "rank 0 is without";
  return a;
}

// The same ranks and switches with ATP.
session::JoinRequest atp_request() {
  session::JoinRequest r = request();
  r.protocol = "atp";
  r.protocol_version = wire::atp::version;
  r.own = own_part(jobs::AtpAsk{5});
  return r;
}
jobs::AtpGrant atp_grant() {
  return {5, 1, 2, atp::Indexing::linear, atp::Scaling::dynamic};
}
session::Admission atp_admission() {
  session::Admission a = admission();
  a.own = own_part(atp_grant());
  return a;
}

jobs::TreeInstallation ring() {
  jobs::TreeInstallation i;
  i.start.job = "train";
  i.start.protocol = "netreduce";
  i.start.admission = admission();
  i.start.endpoints = {{at(1)}, {at(2)}, {at(3)}};
  i.switches = {{at(4)}, {Endpoint{}}};
  i.start.switch_cookies = {{16}, {17}, {}};
  i.root = {at(6)};
  i.again = true;
  return i;
}

jobs::AtpInstallation installation() {
  return {"train", 1, 2, 64, 16, 0, 1, true, {5, 6}, {{at(1), {{at(2), false, 7, {0}, 18}, {at(3), true, 0, {1, 2}}}}}};
}

Hello hello() {
  return {{at(1), {.address = {}, .port = 7}},
          9,
          true,
          "netsum-1",
          {{.address = {0xff, 2}, .port = 7}, {.address = {0xff, 2}, .port = 8}},
          true,
          1 << 20,
          false,
          PacketSecurity::tag,
          {jobs::pool_profile({10, 64}), jobs::said_profile({30, {64}})}};
}

seal::PacketKey key_of(std::uint8_t first) {
  seal::PacketKey::Bytes bytes{};
  bytes[0] = std::byte{first};
  return seal::PacketKey(bytes);
}

// The message that was read, written again.
template <class Message>
std::string again(const Message& message) {
  const Bytes first = encoded(message);
  const auto value = parse<Message>(view(first));
  if (!value) return "refused: " + value.why();
  return encoded(*value) == first ? "same" : "another";
}
std::string again(const session::Admission& message, const session::JoinRequest& asked = request(),
                  const session::ProtocolRules& rules = jobs::netreduce_rules()) {
  const Bytes first = encoded(message);
  const auto value = parse_admission(view(first), asked, rules);
  if (!value) return "refused: " + value.why();
  return encoded(*value) == first ? "same" : "another";
}

// The message that a switch is told of the job in, over the border, read by its protocol and written again.
template <class Installation, class Read>
std::string again(const Installation& installation, const Read& read) {
  const session::SwitchMessage message = message_of(installation);
  if (const std::string border = again(message); border != "same") return border;
  try {
    return encoded(message_of(read(message))) == encoded(message) ? "same" : "another";
  } catch (const Error& error) {
    return error.what();
  }
}
jobs::TreeInstallation read_ring(const session::SwitchMessage& message) {
  return jobs::read_ring(message, jobs::netreduce_rules());
}

TEST(Border, WhatIsWrittenIsRead) {
  EXPECT_EQ("same", again(HelloRequest{"train"}));
  EXPECT_EQ("same", again(HelloRequest{}));
  EXPECT_EQ("same", again(Join{request(), milliseconds(1500)}));
  EXPECT_EQ("same", again(Life{1, 2, 3, {session::FailureCause::mismatch, "why"}}));
  EXPECT_EQ("same", again(Beat{{1, 2, 3, {}}}));
  EXPECT_EQ("same", again(Beat{{1, 2, 3, {}}, "barrier, tag 7", session::SiteSet::first(2)}));
  EXPECT_EQ("same", again(installation(), jobs::read_installation));
  EXPECT_EQ("same", again(ring(), read_ring));
  jobs::AtpInstallation sealed_installation = installation();
  sealed_installation.security = PacketSecurity::tag;
  sealed_installation.again = true;
  sealed_installation.lanes[0].keys = {key_of(4), key_of(5)};
  sealed_installation.lanes[0].children[1].keys = {key_of(6), key_of(7)};
  EXPECT_EQ("same", again(sealed_installation, jobs::read_installation));
  jobs::TreeInstallation sealed_ring = ring();
  sealed_ring.start.admission.security = PacketSecurity::tag;
  sealed_ring.start.admission.results = key_of(1);
  sealed_ring.start.keys = {{}, {key_of(8), key_of(9)}, {}};
  sealed_ring.start.switch_keys = {{key_of(10), key_of(11)}, {}};
  EXPECT_EQ("same", again(sealed_ring, read_ring));
  EXPECT_EQ("same", again(hello()));
  EXPECT_EQ("same", again(admission()));
  session::Admission sealed = admission();
  sealed.local = false;
  sealed.security = PacketSecurity::encrypt;
  sealed.results = key_of(1);
  sealed.keys = {key_of(2), key_of(3)};
  EXPECT_EQ("same", again(sealed));
  using State = session::HeartbeatReply::State;
  EXPECT_EQ("same", again(session::HeartbeatReply{State::unknown, "", {}, {}, false, {}}));
  EXPECT_EQ("same", again(session::HeartbeatReply{State::failed, "died", 0, RankSet::first(2), true, RankSet::first(1024)}));
  EXPECT_EQ("same", again(session::HeartbeatReply{State::failed, "ended", {}, {}, false, {}, true, "switch 2 is away"}));
  EXPECT_EQ(
      "same",
      again(session::HeartbeatReply{
          State::running, "", {}, {}, false, {}, false, "", {{3, "barrier"}}, {}, "rack:2", session::SiteSet::first(2)}));
  EXPECT_EQ("same", again(session::NamedJob{"train", "research"}));
  EXPECT_EQ("same", again(session::NamedJob{"train", {}}));
  EXPECT_EQ("same", again(Drain{true}));
  EXPECT_EQ("same", again(InstallReply{{"differ", 3, 5, RankSet::first(3), "merged"}, 9}));
  EXPECT_EQ("same", again(Uninstall{5}));
  EXPECT_TRUE(parse_report(view(write_report({}))));
  const std::string nonce(nonce_bytes, '\xff');
  EXPECT_EQ("same", again(Greeting{"0.1", "0123", nonce}));
  EXPECT_EQ("same", again(Challenge{"0.1", "0123", nonce, true, true}));
  EXPECT_EQ("same", again(Proofs{"a", "b"}));
  EXPECT_EQ("same", again(Failure{ErrorKind::busy, "later"}));
}

TEST(Border, OwnPartsAreReadAsTheyAreWritten) {
  EXPECT_EQ("", session::check_request(jobs::netreduce_rules(), request()));
  EXPECT_EQ("", session::check_request(jobs::atp_rules(), atp_request()));
  EXPECT_EQ("same", again(atp_admission(), atp_request(), jobs::atp_rules()));
  const jobs::RingGrant ring = jobs::ring_grant(admission());
  EXPECT_EQ(ring_grant().message_packets, ring.message_packets);
  EXPECT_EQ(ring_grant().members, ring.members);
  const jobs::AtpGrant grant = jobs::atp_grant(atp_admission());
  EXPECT_EQ(5U, grant.pool_slots);
  EXPECT_EQ(1U, grant.part);
  EXPECT_EQ(2U, grant.parts);
  EXPECT_EQ(atp::Indexing::linear, grant.indexing);
  EXPECT_EQ(atp::Scaling::dynamic, grant.scaling);
  const auto parsed = parse<Hello>(view(encoded(hello())));
  ASSERT_TRUE(parsed) << parsed.why();
  const auto pool = jobs::pool_in(parsed->profiles);
  ASSERT_TRUE(pool);
  EXPECT_EQ(10U, pool->slots);
  EXPECT_EQ(64U, pool->elements);
  EXPECT_EQ((jobs::ChipProfile{30, {64}}), jobs::chip_in(parsed->profiles));
}

// A later netsum's fields are skipped; what has another type than it should is refused.
TEST(Border, FieldsThatNobodyKnows) {
  std::string bytes;
  protozero::pbf_writer out(bytes);
  out.add_uint64(1, 5);
  out.add_bytes(900, std::string(100, 'x'));
  out.add_fixed64(901, 7);
  const auto known = parse<Uninstall>(bytes);
  ASSERT_TRUE(known) << known.why();
  EXPECT_EQ(5U, known->job_epoch);
  out.add_bytes(1, "five");
  EXPECT_FALSE(parse<Uninstall>(bytes));
  EXPECT_FALSE(parse<Uninstall>("\xff\xff"));
  EXPECT_FALSE(parse<Uninstall>("\x0a\x7fshort"));
}

// Of a join whose endpoint is written by hand.
Parsed<Join> join_with(const std::function<void(protozero::pbf_writer&)>& write_endpoint) {
  Join join{request(), {}};
  join.request.endpoints.clear();
  const Bytes rest = encoded(join);
  std::string endpoint, bytes(rest.begin(), rest.end());
  protozero::pbf_writer inner(endpoint), out(bytes);
  write_endpoint(inner);
  out.add_message(9, endpoint);
  return parse<Join>(bytes);
}

TEST(Border, NumbersAndBytesThatDoNotFit) {
  EXPECT_NE(std::string::npos, join_with([](auto& out) { out.add_bytes(1, "short"); }).why().find("16 bytes"));
  EXPECT_NE(std::string::npos, join_with([](auto& out) { out.add_uint64(2, 65536); }).why().find("port is above 65535"));
  std::string key, bytes;
  protozero::pbf_writer inner(key), out(bytes);
  inner.add_bytes(1, "short");
  out.add_message(14, key);
  EXPECT_NE(std::string::npos, parse_admission(bytes, request(), jobs::netreduce_rules()).why().find("32 bytes"));
}

// A field's number, type or limit is a promise to the other end, which has the same fingerprint. Where one changes on
// purpose, so does this number; and CHANGELOG.md says that both ends need the same version.
TEST(Border, TheFingerprintIsThatOfTheseLayouts) {
  EXPECT_EQ(16U, fingerprint().size());
  const std::string all = layouts();
  EXPECT_NE(std::string::npos,
            all.find("heartbeat: 1 job_epoch: number; 2 rank: number; 3 rank_epoch: number; 4 call: text 255; 5 seen: 256 "
                     "ranks; 6 pace: {1 calls: flag; 2 next: number; 3 since_ms: number; }; \n"))
      << all;
  EXPECT_NE(std::string::npos, all.find("9 endpoints: 64 times {1 address: 16 bytes; 2 port: number; 3 scope: number; }"));
  for (const char* const own : {"pool_slots: number", "folded_epochs: number", "memory_key: number", "max_members: number",
                                "run_bytes: number", "rank_keys: ", "5 own: bytes "}) {
    EXPECT_NE(std::string::npos, all.find(own)) << own << ": " << all;
  }
}

// A tag that is computed otherwise is another fingerprint: packets would be dropped, where a join can be refused.
TEST(Border, TheFingerprintIsOfSealedPacketsToo) {
  std::string all = layouts();
  const auto append = [&all](const std::vector<std::byte>& bytes) {
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  append(wire::samples());
  for (const PacketSecurity security : {PacketSecurity::tag, PacketSecurity::encrypt}) {
    std::vector<std::byte> packet(3000);
    seal::Sealer(security, seal::PacketKey(seal::PacketKey::Bytes{}), 0).seal(packet, 20);
    EXPECT_NE(std::vector<std::byte>(packet.size()), packet);
    append(packet);
  }
  const Digest digest = sha256(all);
  EXPECT_EQ(hexadecimal(std::span(digest).first<8>()), fingerprint());
}

// Every sentence that is ours to say passes at the other end.
TEST(Border, SentencesLeaveAsOneLine) {
  const std::string words = "rank 1\nof " + std::string(5000, 'x');
  const auto reply = parse<InstallReply>(view(write(InstallReply{{words, 0, 0, {}, words}, 1})));
  ASSERT_TRUE(reply) << reply.why();
  EXPECT_EQ(0U, reply->view.mismatch.find("rank 1 of xxx"));
  EXPECT_EQ(session::longest_text, reply->view.mismatch.size());
  EXPECT_EQ(reply->view.mismatch, reply->view.hopeless);
  EXPECT_TRUE(parse<session::HeartbeatReply>(
      view(write(session::HeartbeatReply{session::HeartbeatReply::State::failed, words, {}, {}}))));
}

template <class Message>
struct Change {
  const char* words;
  std::function<void(Message&)> spoil;
};

template <class Message>
void expect_refused(const Message& good, const std::vector<Change<Message>>& changes) {
  for (const auto& [words, spoil] : changes) {
    Message message = good;
    spoil(message);
    const Bytes bytes = encoded(message);
    const auto why = [&] {
      if constexpr (std::is_same_v<Message, session::Admission>) {
        return parse_admission(view(bytes), request(), jobs::netreduce_rules()).why();
      } else {
        return parse<Message>(view(bytes)).why();
      }
    }();
    EXPECT_NE(std::string::npos, why.find(words)) << words << ": " << why;
    EXPECT_TRUE(session::printable(why) && why.size() < 500) << why;
  }
}

TEST(Border, TextOfStrangersIsOneLineOfUtf8) {
  for (const char* const text : {"", "train", "Zürich", "東京", "🚂", "\u00a0"}) {
    EXPECT_TRUE(session::printable(text)) << text;
    EXPECT_EQ(text, session::one_line(text));
  }
  // Lone and missing continuation bytes, forms that are too long, surrogates, beyond Unicode; then C0, DEL, C1, ends of
  // lines, and turns of direction.
  for (const char* const text :
       {"\x80", "\xc3", "\xe6\x9d", "\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xff", "\n", "\x1b[2J", "\x7f", "\xc2\x9b", "\u2028", "\u2029", "\u061c", "\u200e", "\u202e", "\u2066"}) {
    const std::string between = "a" + std::string(text) + "b";
    EXPECT_FALSE(session::printable(between)) << between;
    const std::string line = session::one_line(between);
    EXPECT_TRUE(session::printable(line) && line.starts_with("a ") && line.ends_with("b")) << line;
  }
  std::string most;
  while (most.size() < 2 * session::longest_text) most += "東";
  const std::string line = session::one_line(most);
  EXPECT_TRUE(session::printable(line)) << "cut between characters";
  EXPECT_GT(line.size(), session::longest_text - 3);
  EXPECT_LE(line.size(), session::longest_text);
}

TEST(Border, ASwitchIsAtHostAndPort) {
  for (const char* const address :
       {"leaf:1", "10.0.0.1:7170", "[fd00::1]:7170", "[fe80::1%eth0]:1", "a-b_c.example.org:65535"}) {
    EXPECT_TRUE(session::is_address(address)) << address;
  }
  for (const char* const address : {"", "leaf", ":1", "leaf:", "leaf:0", "leaf:65536", "leaf:1x", "fd00::1:1", "[]:1",
                                    "unix:/run/x:1", "unix:x", "unix-abstract:x:1", "dns:///leaf:1", "xds:///leaf:1",
                                    "ipv4:1.2.3.4:1", "a@b:1", "leaf/x:1", "le af:1", "le\naf:1"}) {
    EXPECT_FALSE(session::is_address(address)) << address;
  }
}

TEST(Border, RequestsThatMakeNoSense) {
  EXPECT_FALSE(parse<HelloRequest>(view(encoded(HelloRequest{std::string(256, 'j')}))));
  const auto join = [](const char* words, const std::function<void(session::JoinRequest&)>& spoil) {
    return Change<Join>{words, [spoil](Join& m) { spoil(m.request); }};
  };
  expect_refused<Join>(
      {request(), {}},
      {join("not a unicast address", [](auto& m) { m.endpoints[0].port = 0; }),
       join("not a unicast address", [](auto& m) { m.endpoints[0].address.fill(0xff); }),
       join("endpoints has more than 64", [](auto& m) { m.endpoints.resize(65, m.endpoints[0]); }),
       join("own is longer than", [](auto& m) { m.own = std::string(session::longest_own_ask + 1, 'x'); }),
       join("name is empty", [](auto& m) { m.job.clear(); }), join("control characters", [](auto& m) { m.job = "\n"; }),
       join("not below", [](auto& m) { m.rank = 3; }), join("world size 4097", [](auto& m) { m.world_size = 4097; }),
       join("power of two", [](auto& m) { m.slots_fixed = 3; }), join("operations", [](auto& m) { m.progress.kept = 10; }),
       join("operations", [](auto& m) { m.progress.next = UINT64_MAX - 1; }),
       join("finished has more than 4096", [](auto& m) { m.progress.finished.resize(5000, 12); }),
       join("aggregators has more than 256", [](auto& m) { m.aggregators.resize(257, "a:1"); }),
       join("aggregators", [](auto& m) { m.aggregators.emplace_back("\t"); }),
       join("switch", [](auto& m) { m.switch_address = "\r"; }),
       join("HOST:PORT", [](auto& m) { m.switch_address = "unix:/run/other.sock:1"; }),
       join("security has an unknown value", [](auto& m) { m.security = static_cast<PacketSecurity>(3); }),
       join("shared memory", [](auto& m) { m.why_not_local = std::string(256, 'x'); })});
  expect_refused<Life>({1, 2, 3, {}}, {{"epoch", [](auto& m) { m.job_epoch = 0; }},
                                       {"epoch", [](auto& m) { m.rank_epoch = 0; }},
                                       {"rank", [](auto& m) { m.rank = max_world_size; }}});
  EXPECT_FALSE(parse<Uninstall>(""));
  EXPECT_FALSE(parse<Greeting>(""));
}

template <class Part>
using Spoil = std::function<void(Part&)>;

// The border hands a protocol's own part on as it is.
TEST(Border, OwnPartsOfRequestsThatMakeNoSense) {
  const auto expect = [](const char* words, const session::ProtocolRules& rules, const session::JoinRequest& asked) {
    const std::string why = session::check_request(rules, asked);
    EXPECT_NE(std::string::npos, why.find(words)) << words << ": " << why;
    EXPECT_TRUE(session::printable(why) && why.size() < 500) << why;
  };
  const auto ring = [&](const char* words, const Spoil<jobs::RingAsk>& spoil) {
    jobs::RingAsk ask = ring_ask();
    spoil(ask);
    session::JoinRequest asked = request();
    asked.own = own_part(ask);
    expect(words, jobs::netreduce_rules(), asked);
  };
  ring("24 bits", [](auto& m) { m.members[0].send_qp = 1U << 24; });
  ring("24 bits", [](auto& m) { m.members[0].receive_qp = 1U << 24; });
  ring("24 bits", [](auto& m) { m.members[0].send_psn = 1U << 24; });
  ring("name one queue pair per lane", [](auto& m) { m.members.clear(); });
  ring("name one queue pair per lane", [](auto& m) { m.members.push_back(m.members[0]); });
  ring("members has more than 64", [](auto& m) { m.members.resize(65, m.members[0]); });
  ring("message", [](auto& m) { m.message_packets = UINT32_MAX; });
  session::JoinRequest asked = request();
  asked.own = "\xff";
  expect("cannot be decoded", jobs::netreduce_rules(), asked);
  expect("cannot be decoded", jobs::atp_rules(), asked);
  expect("cannot be decoded", jobs::switchml_rules(), asked);
  asked.own.clear();
  EXPECT_EQ("", session::check_request(jobs::switchml_rules(), asked));
}

TEST(Border, OwnPartsOfAdmissionsThatMakeNoSense) {
  const auto expect = [](const char* words, const session::JoinRequest& asked, const session::Admission& told,
                         const session::ProtocolRules& rules) {
    try {
      const std::string why = parse_admission(view(encoded(told)), asked, rules).why();
      EXPECT_NE(std::string::npos, why.find(words)) << words << ": " << why;
      EXPECT_TRUE(session::printable(why) && why.size() < 500) << why;
    } catch (const Error& error) {
      ADD_FAILURE() << words << ": not refused, but thrown: " << error.what();
    }
  };
  const auto ring = [&](const char* words, const Spoil<jobs::RingGrant>& spoil) {
    jobs::RingGrant grant = ring_grant();
    spoil(grant);
    session::Admission told = admission();
    told.own = own_part(grant);
    expect(words, request(), told, jobs::netreduce_rules());
  };
  ring("queue pairs of 2", [](auto& m) { m.members.pop_back(); });
  ring("0 queue pairs", [](auto& m) { m.members[0].clear(); });
  ring("than the rank named", [](auto& m) { m.members[1][0].memory_key = 9; });
  ring("24 bits", [](auto& m) { m.members[0][0].send_qp = 1U << 24; });
  ring("is in use already", [](auto& m) {
    m.members[0][0].receive_qp = m.members[0][0].send_qp;
    m.members[2] = m.members[0];
  });
  ring("this rank asked for 16", [](auto& m) { m.message_packets = 8; });
  ring("this rank asked for 16", [](auto& m) { m.message_packets = 0; });
  const auto atp = [&](const char* words, const Spoil<jobs::AtpGrant>& spoil) {
    jobs::AtpGrant grant = atp_grant();
    spoil(grant);
    session::Admission told = atp_admission();
    told.own = own_part(grant);
    expect(words, atp_request(), told, jobs::atp_rules());
  };
  atp("part 2 of the switches' slots", [](auto& m) { m.part = 2; });
  atp("part 1 of the switches' slots", [](auto& m) { m.parts = 0; });
  atp("indexing has an unknown value", [](auto& m) { m.indexing = static_cast<atp::Indexing>(99); });
  atp("scaling has an unknown value", [](auto& m) { m.scaling = static_cast<atp::Scaling>(99); });
  session::Admission told = admission();
  told.own = "\xff";
  expect("cannot be decoded", request(), told, jobs::netreduce_rules());
  expect("cannot be decoded", atp_request(), told, jobs::atp_rules());
  session::JoinRequest without = request();
  without.own.clear();
  expect("cannot be decoded", without, told, jobs::switchml_rules());
}

// An empty message is what a random byte as the body parses to.
TEST(Border, InstallationsThatMakeNoSense) {
  EXPECT_FALSE(parse<session::SwitchMessage>(""));
  expect_refused<session::SwitchMessage>(
      message_of(ring()), {{"epoch", [](auto& m) { m.job_epoch = 0; }},
                           {"name is empty", [](auto& m) { m.job.clear(); }},
                           {"control characters", [](auto& m) { m.job = "\n"; }},
                           {"protocol name", [](auto& m) { m.protocol = "\n"; }},
                           {"own is longer than", [](auto& m) { m.own.assign(session::longest_own_grant + 1, 'x'); }}});
  const auto expect = [](const char* words, const session::SwitchMessage& message, const auto& read) {
    try {
      static_cast<void>(read(message));
      ADD_FAILURE() << words << ": accepted";
    } catch (const Error& error) {
      const std::string why = error.what();
      EXPECT_EQ(ErrorCode::refused, error.code()) << why;
      EXPECT_NE(std::string::npos, why.find(words)) << words << ": " << why;
      EXPECT_TRUE(session::printable(why) && why.size() < 500) << why;
    }
  };
  const auto tree = [](const session::SwitchMessage& message) {
    return jobs::read_switchml(message, jobs::switchml_rules());
  };
  session::SwitchMessage nothing{"atp", "train", 1, false, {}};
  expect("invalid installation", nothing, jobs::read_installation);
  expect("invalid installation", nothing, read_ring);
  expect("invalid installation", nothing, tree);
  nothing.own.assign(5, '\xff');
  expect("cannot be decoded", nothing, jobs::read_installation);
  expect("cannot be decoded", nothing, read_ring);
  expect("cannot be decoded", nothing, tree);

  const auto atp = [&](const char* words, const Spoil<jobs::AtpInstallation>& spoil) {
    jobs::AtpInstallation spoiled = installation();
    spoil(spoiled);
    expect(words, message_of(spoiled), jobs::read_installation);
    if (spoiled.lanes.size() > session::most_lanes) return;
    EXPECT_NE(std::string::npos, jobs::check(spoiled).find(words)) << words << ": " << jobs::check(spoiled);
  };
  EXPECT_EQ("", jobs::check(installation()));
  atp("lanes 0", [](auto& m) { m.lanes.clear(); });
  atp("lanes has more than 64", [](auto& m) { m.lanes.resize(65); });
  atp("not a unicast address", [](auto& m) { m.lanes[0].parent = {}; });
  atp("children 0", [](auto& m) { m.lanes[0].children.clear(); });
  atp("rank 0 has no epoch", [](auto& m) { m.lanes[0].children[0].rank_epoch = 0; });
  atp("window", [](auto& m) { m.window = 1U << 31; });

  const auto any = [&](const char* words, const Spoil<jobs::TreeInstallation>& spoil, const auto& read) {
    jobs::TreeInstallation spoiled = ring();
    spoil(spoiled);
    expect(words, message_of(spoiled), read);
  };
  const auto both = [&](const char* words, const Spoil<jobs::TreeInstallation>& spoil) {
    any(words, spoil, read_ring);
    any(words, spoil, tree);
  };
  EXPECT_NO_THROW(static_cast<void>(tree(message_of(ring()))));
  both("lanes 0", [](auto& m) { m.root.clear(); });
  both("rank epochs for", [](auto& m) { m.start.admission.rank_epochs = {}; });
  both("number of ranks 0", [](auto& m) { m.start.endpoints.clear(); });
  both("rank 2 does not have an address", [](auto& m) { m.start.endpoints[2].clear(); });
  both("ranks 3 of 2", [](auto& m) { m.start.endpoints.pop_back(); });
  both("no path", [](auto& m) { m.start.admission.placement.parent_of_switch[1] = 0; });
  both("at a switch that does not exist", [](auto& m) {
    m.start.admission.placement.switch_of_rank = testing::with(m.start.admission.placement.switch_of_rank, 1, 2U);
  });
  both("switch 2 of 2", [](auto& m) { m.switch_id = 2; });
  both("or the addresses of", [](auto& m) { m.switches.pop_back(); });
  both("slots 0", [](auto& m) { m.start.admission.slots = 0; });
  both("the keys do not match", [](auto& m) { m.start.admission.results = key_of(1); });
  const auto of_ring = [&](const char* words, const Spoil<jobs::RingGrant>& spoil) {
    any(
        words,
        [&](auto& m) {
          jobs::RingGrant grant = ring_grant();
          spoil(grant);
          m.start.admission.own = own_part(grant);
        },
        read_ring);
  };
  of_ring("queue pairs of 0 ranks", [](auto& m) { m.members.clear(); });
  of_ring("a rank has", [](auto& m) { m.members[1].clear(); });
  of_ring("24 bits", [](auto& m) { m.members[1][0].receive_qp = 1U << 24; });
  of_ring("message length", [](auto& m) { m.message_packets = 0; });
  any(
      "cannot be decoded", [](auto& m) { m.start.admission.own = "\xff"; }, read_ring);
  any(
      "no rank is below",
      [](auto& m) {
        m.start.admission.placement.switch_of_rank = {1, 1, 1};
      },
      tree);
}

TEST(Border, RepliesThatMakeNoSense) {
  expect_refused<Hello>(
      hello(), {{"not a unicast address", [](auto& m) { m.lanes[0].port = 0; }},
                {"lanes has more than 64", [](auto& m) { m.lanes.resize(65, m.lanes[0]); }},
                {"number of multicast groups", [](auto& m) { m.groups.pop_back(); }},
                {"not a multicast address", [](auto& m) { m.groups[0] = m.lanes[0]; }},
                {"profiles has more than 16", [](auto& m) { m.profiles.resize(17); }},
                {"own is longer than", [](auto& m) { m.profiles[0].own = std::string(session::longest_own_ask + 1, 'x'); }},
                {"socket", [](auto& m) { m.local_socket = "\n"; }}});
  for (const jobs::AtpPool& none : {jobs::AtpPool{10, 0}, jobs::AtpPool{10, UINT32_MAX}, jobs::AtpPool{0, 64}}) {
    EXPECT_FALSE(jobs::pool_in({jobs::pool_profile(none)}));
  }
  for (const auto& [words, chip] :
       std::vector<std::pair<const char*, jobs::ChipProfile>>{{"members", {wire::chip::max_members + 1, {64}}},
                                                              {"are not possible", {30, {64, 65}}},
                                                              {"more than 2", {30, {64, 64, 64, 64}}}}) {
    try {
      static_cast<void>(jobs::chip_in({jobs::said_profile(chip)}));
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string::npos, std::string(error.what()).find(words)) << words << ": " << error.what();
    }
  }
  expect_refused<session::Admission>(
      admission(), {{"epoch", [](auto& m) { m = {}; }},
                    {"epochs", [](auto& m) { m.rank_epochs = testing::shorter(m.rank_epochs); }},
                    {"rank_epochs has more than 4096",
                     [](auto& m) { m.rank_epochs = std::vector<std::uint32_t>(max_world_size + 1, 100); }},
                    {"no path", [](auto& m) { m.placement.parent_of_switch[1] = 0; }},
                    {"no path", [](auto& m) { m.placement.parent_of_switch[0] = 77; }},
                    {"at a switch that does not exist",
                     [](auto& m) { m.placement.switch_of_rank = testing::with(m.placement.switch_of_rank, 0, 2U); }},
                    {"placement is inconsistent",
                     [](auto& m) { m.placement.switch_of_rank = testing::shorter(m.placement.switch_of_rank); }},
                    {"placement is inconsistent", [](auto& m) { m.placement.switches.clear(); }},
                    {"operation 11", [](auto& m) { m.resumption.replays.erase(11); }},
                    {"operation 8", [](auto& m) { m.resumption.replays[8] = 3; }},
                    {"slots", [](auto& m) { m.slots = 0; }},
                    {"security has an unknown value", [](auto& m) { m.security = static_cast<PacketSecurity>(3); }},
                    {"by none, and this rank asked for tag", [](auto& m) { m.local = false; }},
                    {"has no packet keys", [](auto& m) { m.results = key_of(1); }},
                    {"keys of this rank", [](auto& m) { m.keys.up = key_of(1); }}});
  session::JoinRequest without_memory = request();
  without_memory.local_ticket = 0;
  EXPECT_FALSE(parse_admission(view(encoded(admission())), without_memory, jobs::netreduce_rules()));

  using State = session::HeartbeatReply::State;
  expect_refused<session::HeartbeatReply>({}, {{"state", [](auto& m) { m.state = static_cast<State>(3); }},
                                               {"reason", [](auto& m) { m.state = State::failed; }},
                                               {"reason", [](auto& m) { m.reason = "\x1b[2J"; }},
                                               {"rank 4096", [](auto& m) { m.lost = max_world_size; }}});
  expect_refused<InstallReply>({}, {{"different calls", [](auto& m) { m.view.mismatch = "\n"; }},
                                    {"cannot continue", [](auto& m) { m.view.hopeless = "\n"; }}});
  std::string ranks;
  protozero::pbf_writer(ranks).add_packed_uint32(3, &max_world_size, &max_world_size + 1);
  EXPECT_NE(std::string::npos, parse<InstallReply>(ranks).why().find("has a number above 4095"));
  const std::vector<std::uint32_t> many(max_world_size + 1, 0);
  ranks.clear();
  protozero::pbf_writer(ranks).add_packed_uint32(3, many.begin(), many.end());
  EXPECT_NE(std::string::npos, parse<InstallReply>(ranks).why().find("more than 4096"));
  EXPECT_NE(std::string::npos, parse_report("").why().find("invalid report"));
}

}  // namespace
}  // namespace netsum::control
