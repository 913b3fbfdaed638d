// Where messages become values: what is written is read again, and what no correct program sends is refused in one line,
// whichever side it comes from.
#include "control/border.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "session/check.h"
#include "wire/netreduce.h"
#include "wire/switchml.h"

namespace netsum::control {
namespace {

using std::chrono::milliseconds;

Endpoint at(std::uint16_t port) {
  return {.address = {0xfd, 1}, .port = port, .scope = 3};
}

netreduce::Member member_of(std::uint32_t rank) {
  return {{0xfd, 2, static_cast<std::uint8_t>(rank)}, 16, rank, 17, 0x1000, 7};
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
  r.pool_slots = 5;
  r.switch_address = "leaf:1";
  r.recovers = true;
  r.progress = {9, 6, {11}};
  r.aggregators = {"a:1", "b:2"};
  r.former_epoch = 8;
  r.message_packets = 16;
  r.members = {member_of(1)};
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

session::Admission admission() {
  session::Admission a;
  a.job_epoch = 1;
  a.rank_epoch = 11;
  a.rank_epochs = {10, 11, 12};
  a.packet_elements = 256;
  a.slots = 4;
  a.placement = {
      {"leaf:1", "top:1"}, {1, session::Placement::at_server}, {0, 0, session::Placement::at_server}, 5, 1, 1, 2, 1};
  a.resumption = {8, {{8, 1}, {11, 2}}};
  a.message_packets = 16;
  for (std::uint32_t rank = 0; rank < 3; ++rank) a.members.push_back({member_of(rank)});
  a.local = true;
  a.why_not_local = "rank 0 is without";
  return a;
}

session::TreeInstallation ring() {
  session::TreeInstallation i;
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

session::Installation installation() {
  return {"train", 1, 2, 64, 16, 0, 1, true, {5, 6}, {{at(1), {{at(2), false, 7, {0}, 18}, {at(3), true, 0, {1, 2}}}}}};
}

Hello hello() {
  return {{at(1), {.address = {}, .port = 7}},
          9,
          10,
          64,
          "netsum-1",
          {{.address = {0xff, 2}, .port = 7}, {.address = {0xff, 2}, .port = 8}},
          true,
          1 << 20,
          false,
          PacketSecurity::tag,
          session::ChipProfile{30, {64}}};
}

seal::PacketKey key_of(std::uint8_t first) {
  seal::PacketKey::Bytes bytes{};
  bytes[0] = std::byte{first};
  return seal::PacketKey(bytes);
}

// The message that was read, written again.
template <class Message, class... Context>
std::string again(const Message& message, const Context&... context) {
  const auto value = parse(message, context...);
  if (!value) return "refused: " + value.why();
  Message copy;
  write(*value, copy);
  return copy.SerializeAsString() == message.SerializeAsString() ? "same" : "another: " + copy.DebugString();
}

template <class Message, class Value>
Message written(const Value& value) {
  Message message;
  write(value, message);
  return message;
}

TEST(Border, WhatIsWrittenIsRead) {
  EXPECT_EQ("same", again(written<proto::HelloRequest>(std::string("train"))));
  EXPECT_EQ("same", again(written<proto::HelloRequest>(std::string())));
  EXPECT_EQ("same", again(written<proto::JoinRequest>(Join{request(), milliseconds(1500)})));
  EXPECT_EQ("same", again(written<proto::Membership>(Life{1, 2, 3})));
  EXPECT_EQ("same", again(written<proto::Installation>(installation())));
  EXPECT_EQ("same", again(written<proto::TreeInstallation>(ring())));
  session::Installation sealed_installation = installation();
  sealed_installation.security = PacketSecurity::tag;
  sealed_installation.again = true;
  sealed_installation.lanes[0].keys = {key_of(4), key_of(5)};
  sealed_installation.lanes[0].children[1].keys = {key_of(6), key_of(7)};
  EXPECT_EQ("same", again(written<proto::Installation>(sealed_installation)));
  session::TreeInstallation sealed_ring = ring();
  sealed_ring.start.admission.security = PacketSecurity::tag;
  sealed_ring.start.admission.results = key_of(1);
  sealed_ring.start.keys = {{}, {key_of(8), key_of(9)}, {}};
  sealed_ring.start.switch_keys = {{key_of(10), key_of(11)}, {}};
  EXPECT_EQ("same", again(written<proto::TreeInstallation>(sealed_ring)));
  EXPECT_EQ("same", again(written<proto::HelloReply>(hello())));
  EXPECT_EQ("same", again(written<proto::JoinReply>(admission()), request(), session::netreduce_rules()));
  session::Admission sealed = admission();
  sealed.local = false;
  sealed.security = PacketSecurity::encrypt;
  sealed.results = key_of(1);
  sealed.keys = {key_of(2), key_of(3)};
  EXPECT_EQ("same", again(written<proto::JoinReply>(sealed), request(), session::netreduce_rules()));
  using State = session::HeartbeatReply::State;
  EXPECT_EQ("same", again(written<proto::HeartbeatReply>(session::HeartbeatReply{State::unknown, "", {}, {}, false, {}})));
  EXPECT_EQ("same", again(written<proto::HeartbeatReply>(
                        session::HeartbeatReply{State::failed, "died", 0, RankSet::first(2), true, RankSet::first(1024)})));
  EXPECT_EQ("same", again(written<proto::HeartbeatReply>(
                        session::HeartbeatReply{State::failed, "ended", {}, {}, false, {}, true, "switch x is away"})));
  EXPECT_EQ("same", again(written<proto::NamedJob>(session::NamedJob{"train", "research"})));
  EXPECT_EQ("same", again(written<proto::NamedJob>(session::NamedJob{"train"})));
  EXPECT_EQ("same", again(written<proto::RingView>(session::JobView{"differ", RankSet::first(3)})));
  EXPECT_EQ("same", again(written<proto::StatusReply>(telemetry::Report{})));
  proto::Membership uninstall;
  write_uninstall(5, uninstall);
  EXPECT_EQ(5U, *parse_uninstall(uninstall));
}

// Every sentence that is ours to say passes at the other end.
TEST(Border, SentencesLeaveAsOneLine) {
  const std::string words = "rank 1\nof " + std::string(5000, 'x');
  const auto view = parse(written<proto::RingView>(session::JobView{words, {}}));
  ASSERT_TRUE(view) << view.why();
  EXPECT_EQ(0U, view->mismatch.find("rank 1 of xxx"));
  EXPECT_EQ(session::longest_text, view->mismatch.size());
  EXPECT_TRUE(
      parse(written<proto::HeartbeatReply>(session::HeartbeatReply{session::HeartbeatReply::State::failed, words, {}, {}})));
}

template <class Message>
struct Change {
  const char* words;
  std::function<void(Message&)> spoil;
};

template <class Message, class... Context>
void expect_refused(const Message& good, const std::vector<Change<Message>>& changes, const Context&... context) {
  for (const auto& [words, spoil] : changes) {
    Message message = good;
    spoil(message);
    const auto value = parse(message, context...);
    EXPECT_FALSE(value) << words;
    EXPECT_NE(std::string::npos, value.why().find(words)) << words << ": " << value.why();
    EXPECT_TRUE(session::printable(value.why()) && value.why().size() < 500) << value.why();
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
  proto::HelloRequest asks;
  asks.set_job(std::string(256, 'j'));
  EXPECT_FALSE(parse(asks));
  expect_refused<proto::JoinRequest>(
      written<proto::JoinRequest>(Join{request(), {}}),
      {{"16 bytes", [](auto& m) { m.mutable_endpoints(0)->set_address("short"); }},
       {"a port", [](auto& m) { m.mutable_endpoints(0)->set_port(65536); }},
       {"no host's", [](auto& m) { m.mutable_endpoints(0)->set_port(0); }},
       {"no host's", [](auto& m) { m.mutable_endpoints(0)->set_address(std::string(16, '\xff')); }},
       {"more lanes",
        [](auto& m) {
          for (int i = 0; i < 64; ++i) *m.add_endpoints() = m.endpoints(0);
        }},
       {"24 bits", [](auto& m) { m.mutable_members(0)->set_send_qp(1U << 24); }},
       {"24 bits", [](auto& m) { m.mutable_members(0)->set_send_psn(1U << 24); }},
       {"no name", [](auto& m) { m.clear_job(); }},
       {"control characters", [](auto& m) { m.set_job("\n"); }},
       {"not below", [](auto& m) { m.set_rank(3); }},
       {"world size 4097", [](auto& m) { m.set_world_size(4097); }},
       {"power of two", [](auto& m) { m.set_slots_fixed(3); }},
       {"operations", [](auto& m) { m.mutable_progress()->set_kept(10); }},
       {"operations", [](auto& m) { m.mutable_progress()->set_next(UINT64_MAX - 1); }},
       {"more results",
        [](auto& m) {
          for (std::uint64_t i = 0; i < 5000; ++i) m.mutable_progress()->add_finished(12 + i);
        }},
       {"more aggregators",
        [](auto& m) {
          for (int i = 0; i < 256; ++i) m.add_aggregators("a:1");
        }},
       {"aggregators", [](auto& m) { m.add_aggregators("\t"); }},
       {"switch", [](auto& m) { m.set_switch_address("\r"); }},
       {"HOST:PORT", [](auto& m) { m.set_switch_address("unix:/run/other.sock:1"); }},
       {"shared memory", [](auto& m) { m.set_why_not_local(std::string(256, 'x')); }}});
  expect_refused<proto::Membership>(written<proto::Membership>(Life{1, 2, 3}),
                                    {{"epoch", [](auto& m) { m.clear_job_epoch(); }},
                                     {"epoch", [](auto& m) { m.clear_rank_epoch(); }},
                                     {"rank", [](auto& m) { m.set_rank(max_world_size); }}});
  EXPECT_FALSE(parse_uninstall({}));
}

// An empty message is what a random byte as the body parses to.
TEST(Border, InstallationsThatMakeNoSense) {
  EXPECT_FALSE(parse(proto::Installation()));
  EXPECT_FALSE(parse(proto::TreeInstallation()));
  expect_refused<proto::Installation>(
      written<proto::Installation>(installation()),
      {{"lanes 0", [](auto& m) { m.clear_lanes(); }},
       {"more lanes",
        [](auto& m) {
          for (int i = 0; i < 64; ++i) m.add_lanes();
        }},
       {"16 bytes", [](auto& m) { m.mutable_lanes(0)->clear_parent(); }},
       {"children 0", [](auto& m) { m.mutable_lanes(0)->clear_children(); }},
       {"rank 0 without", [](auto& m) { m.mutable_lanes(0)->mutable_children(0)->clear_rank_epoch(); }},
       {"window", [](auto& m) { m.set_window(1U << 31); }}});
  expect_refused<proto::TreeInstallation>(
      written<proto::TreeInstallation>(ring()),
      {{"lanes 0", [](auto& m) { m.clear_root(); }},
       {"not the job's", [](auto& m) { m.clear_members(); }},
       {"number of ranks 0", [](auto& m) { m.clear_endpoints(); }},
       {"no protocol", [](auto& m) { m.clear_protocol(); }},
       {"queue pairs of a rank", [](auto& m) { m.mutable_members(1)->clear_lanes(); }},
       {"rank 2 for each", [](auto& m) { m.mutable_endpoints(2)->clear_lanes(); }},
       {"for 2 ranks", [](auto& m) { m.mutable_endpoints()->RemoveLast(); }},
       {"no way", [](auto& m) { m.mutable_placement()->set_parent_of_switch(1, 0); }},
       {"at a switch that is none", [](auto& m) { m.mutable_placement()->set_switch_of_rank(1, 2); }},
       {"switch 2 of 2", [](auto& m) { m.set_a_switch(2); }},
       {"are somewhere", [](auto& m) { m.mutable_switches()->RemoveLast(); }},
       {"window 0", [](auto& m) { m.set_slots(0); }},
       {"message length", [](auto& m) { m.clear_message_packets(); }}});
}

TEST(Border, RepliesThatMakeNoSense) {
  expect_refused<proto::HelloReply>(written<proto::HelloReply>(hello()),
                                    {{"no host's", [](auto& m) { m.mutable_lanes(0)->clear_port(); }},
                                     {"more lanes",
                                      [](auto& m) {
                                        for (int i = 0; i < 64; ++i) m.add_lanes();
                                      }},
                                     {"one a lane", [](auto& m) { m.mutable_groups()->RemoveLast(); }},
                                     {"a group", [](auto& m) { *m.mutable_groups(0) = m.lanes(0); }},
                                     {"packets of 0", [](auto& m) { m.clear_pool_elements(); }},
                                     {"packets of", [](auto& m) { m.set_pool_elements(UINT32_MAX); }},
                                     {"socket", [](auto& m) { m.set_local_socket("\n"); }},
                                     {"members", [](auto& m) { m.mutable_switchml_chip()->set_max_members(32); }},
                                     {"no such length", [](auto& m) { m.mutable_switchml_chip()->add_packet_elements(65); }},
                                     {"no such length", [](auto& m) {
                                        for (int i = 0; i < 3; ++i) m.mutable_switchml_chip()->add_packet_elements(64);
                                      }}});
  expect_refused<proto::JoinReply>(
      written<proto::JoinReply>(admission()),
      {{"epoch", [](auto& m) { m.Clear(); }},
       {"epochs", [](auto& m) { m.mutable_rank_epochs()->RemoveLast(); }},
       {"more ranks",
        [](auto& m) {
          for (std::uint32_t i = 0; i < max_world_size; ++i) m.add_rank_epochs(100 + i);
        }},
       {"no way", [](auto& m) { m.mutable_placement()->set_parent_of_switch(1, 0); }},
       {"no way", [](auto& m) { m.mutable_placement()->set_parent_of_switch(0, 77); }},
       {"at a switch that is none", [](auto& m) { m.mutable_placement()->set_switch_of_rank(0, 2); }},
       {"placement of 2", [](auto& m) { m.mutable_placement()->mutable_switch_of_rank()->RemoveLast(); }},
       {"placement of 3", [](auto& m) { m.mutable_placement()->clear_switches(); }},
       {"queue pairs of 2", [](auto& m) { m.mutable_members()->RemoveLast(); }},
       {"0 queue pairs", [](auto& m) { m.mutable_members(0)->clear_lanes(); }},
       {"its own", [](auto& m) { m.mutable_members(1)->mutable_lanes(0)->set_memory_key(9); }},
       {"by two", [](auto& m) { *m.mutable_resumption()->add_replays() = m.resumption().replays(0); }},
       {"operation 11", [](auto& m) { m.mutable_resumption()->mutable_replays()->RemoveLast(); }},
       {"operation 8", [](auto& m) { m.mutable_resumption()->mutable_replays(0)->set_rank(3); }},
       {"slots", [](auto& m) { m.clear_slots(); }},
       {"protection", [](auto& m) { m.set_security(3); }},
       {"none in place of tag", [](auto& m) { m.clear_local(); }},
       {"another length", [](auto& m) { m.set_result_key("short"); }},
       {"a job without keys", [](auto& m) { m.set_result_key(std::string(32, 'k')); }},
       {"other keys", [](auto& m) { m.set_up_key(std::string(32, 'k')); }}},
      request(), session::netreduce_rules());
  session::JoinRequest without_memory = request();
  without_memory.local_ticket = 0;
  EXPECT_FALSE(parse(written<proto::JoinReply>(admission()), without_memory, session::netreduce_rules()));

  proto::HeartbeatReply beat;
  expect_refused<proto::HeartbeatReply>(
      beat, {{"state", [](auto& m) { m.set_state(static_cast<proto::HeartbeatReply::State>(3)); }},
             {"reason", [](auto& m) { m.set_state(proto::HeartbeatReply::FAILED); }},
             {"reason", [](auto& m) { m.set_reason("\x1b[2J"); }},
             {"rank 4096", [](auto& m) { m.set_lost(max_world_size); }},
             {"a rank", [](auto& m) { m.add_left(max_world_size); }},
             {"more ranks", [](auto& m) {
                for (std::uint32_t i = 0; i <= max_world_size; ++i) m.add_missing(0);
              }}});
  expect_refused<proto::RingView>(
      {}, {{"a rank", [](auto& m) { m.add_missing(UINT32_MAX); }}, {"words", [](auto& m) { m.set_mismatch("\n"); }}});
  EXPECT_NE(std::string::npos, parse(proto::StatusReply()).why().find("invalid report"));
}

}  // namespace
}  // namespace netsum::control
