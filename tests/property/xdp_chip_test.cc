// The switch in the kernel does with random packets what the switch in C++ does: the same answers, to the byte and to whom,
// the same counters, the same open rounds.
//
// The program runs in this machine's kernel, which must permit it. Without that the test says "skipped: needs CAP_BPF".

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/counter_list.h"
#include "protocol/switchml/chip_switch.h"
#include "support/recording_sink.h"
#include "support/xdp_kernel.h"
#include "wire/internet_checksum.h"

namespace netsum::testing {
namespace {

constexpr std::uint64_t epoch = 0x1122334455667788;
constexpr std::uint16_t port = 7170;
constexpr int interfaces = 8;  // so many members at most, with one each

using dataplane::xdp::Plane;
using dataplane::xdp::Program;

std::shared_ptr<Program> program;  // null: not permitted here

class XdpChip : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    try {
      if (!enter_namespace(interfaces + 2)) return;
      auto loaded = std::make_shared<Program>(std::vector{lane_here(port)});
      for (int i = 0; i < interfaces; ++i) loaded->attach("xdp" + std::to_string(i));
      program = loaded;
    } catch (const Error& error) {
      if (std::string_view(error.what()).find("CAP_BPF") == std::string_view::npos) throw;
    }
  }
  static void TearDownTestSuite() { program.reset(); }
  void SetUp() override {
    if (!program) GTEST_SKIP() << "skipped: needs CAP_BPF";
  }
};

Endpoint member_at(std::uint32_t number) {
  return endpoint_of(static_cast<std::uint8_t>(1 + number), static_cast<std::uint16_t>(4000 + number));
}
const Endpoint parent = endpoint_of(100, 7170), stranger = endpoint_of(101, 999);

std::uint8_t station_of_neighbours = 1;  // a part of it

transport::NextHop hop_to(const Endpoint& to, bool one_interface) {
  const std::uint32_t host = one_interface ? 0 : (to == parent ? 0 : to.address[15] - 1U);
  transport::NextHop hop;
  hop.interface = if_nametoindex(("xdp" + std::to_string(host)).c_str());
  hop.own = own_station;
  hop.neighbour = {2, 0, 0, 0, station_of_neighbours, to.address[15]};
  return hop;
}

// A job at both switches.
class Pair {
 public:
  Pair(const switchml::SwitchJobConfig& config, bool one_interface)
      : config_(config),
        plane_(program, 0, [=](const Endpoint& to, Duration) { return hop_to(to, one_interface); }),
        before_(plane_.counters()),
        memory_(switchml::ChipSwitch::memory_bytes(config) / sizeof(Line)) {
    EXPECT_TRUE(chip_.add_job(config, std::as_writable_bytes(std::span(memory_))));
    EXPECT_TRUE(plane_.add_job(plane_.make_job(config)));
  }
  ~Pair() { plane_.remove_job(config_.epoch); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Returns what the C++ switch sent.
  std::vector<Datagram> receive(const std::vector<std::byte>& packet, const Endpoint& source) {
    const RxView view{packet, source};
    chip_.on_packets({&view, 1}, Time{}, sink_);
    std::vector<Datagram> sent = sink_.take();
    trains_ += is_train_of_this_job(packet) ? 1 : 0;
    const Verdict verdict = run(program->function("arrive"), frame_of(packet, source, program->lanes()[0].local));
    compare(sent, verdict, packet.size());
    return sent;
  }

  void compare_reports() {
    same(chip_.counters(), since_before());
    for (std::size_t i = 0; i < wire::parse_error_kinds; ++i) {
      EXPECT_EQ(chip_.counters().malformed[i], since_before().malformed[i]) << "malformed by reason " << i;
    }
    auto counted = plane_.job_counters(config_.epoch).value();
    EXPECT_EQ(trains_, std::exchange(counted.dropped_trains, 0));
    same(*chip_.job_counters(config_.epoch), counted);
    EXPECT_EQ(chip_.slots_in_use(config_.epoch), plane_.slots_in_use(config_.epoch));
    const auto expected = chip_.stalled(config_.epoch, 5), found = plane_.stalled(config_.epoch, 5);
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(std::tuple(expected[i].operation, expected[i].chunk), std::tuple(found[i].operation, found[i].chunk));
      EXPECT_EQ(expected[i].missing, found[i].missing);
    }
  }
  [[nodiscard]] const switchml::JobCounters& counters() const { return *chip_.job_counters(config_.epoch); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  // No packet has this length, but several together have.
  [[nodiscard]] bool is_train_of_this_job(const std::vector<std::byte>& packet) const {
    const std::size_t few = wire::chip::packet_bytes(64), many = wire::chip::packet_bytes(256);
    return packet.size() != many && packet.size() > few && (packet.size() % few == 0 || packet.size() % many == 0) &&
           (packet[1] == std::byte{1} || packet[1] == std::byte{2}) &&
           std::memcmp(packet.data() + 8, &epoch, sizeof epoch) == 0;
  }
  [[nodiscard]] switchml::SwitchCounters since_before() const {
    switchml::SwitchCounters counters = plane_.counters();
    for (std::size_t i = 0; i < wire::parse_error_kinds; ++i) counters.malformed[i] -= before_.malformed[i];
    counters.unknown_job -= before_.unknown_job;
    counters.unexpected_type -= before_.unexpected_type;
    return counters;
  }
  template <class Counters>
  static void same(const Counters& expected, const Counters& found) {
    for (const auto& field : counter_fields<Counters>) EXPECT_EQ(expected.*field.value, found.*field.value) << field.name;
  }

  void compare(const std::vector<Datagram>& sent, const Verdict& verdict, std::size_t bytes) {
    if (sent.empty()) {
      ASSERT_EQ(XDP_DROP, verdict.action);
      return;
    }
    ASSERT_EQ(XDP_REDIRECT, verdict.action);
    ASSERT_EQ(bytes, sent[0].bytes.size());
    EXPECT_TRUE(std::equal(sent[0].bytes.begin(), sent[0].bytes.end(), verdict.frame.begin() + xdp_frame_bytes));
    XdpWay::XdpFrame frame;
    std::memcpy(&frame, verdict.frame.data(), sizeof frame);
    EXPECT_EQ(chip_host16(port), frame.udp.source);
    if (sent.size() == 1 && !is_for_all(sent)) return expect_to(sent[0].to, frame);
    // What leaves on each interface is written there by another function, which only looks up what is compared here.
    ASSERT_EQ(config_.members.size(), sent.size());
    for (const Datagram& each : sent) {
      const XdpPortOfJob key{config_.epoch, chip_host16(port), hop_to(each.to, config_.group.has_value()).interface};
      XdpWay way;
      ASSERT_EQ(0, bpf_map_lookup_elem(program->map("ways"), &key, &way));
      expect_to(config_.group.value_or(each.to), way.frame);
    }
  }
  [[nodiscard]] bool is_for_all(const std::vector<Datagram>& sent) const {
    return config_.members.size() == 1 && sent[0].multicast && sent[0].to == config_.members[0].endpoint;
  }
  static void expect_to(const Endpoint& to, const XdpWay::XdpFrame& frame) {
    EXPECT_EQ(0, std::memcmp(frame.ip.destination, to.address.data() + 12, 4));
    EXPECT_EQ(chip_host16(to.port), frame.udp.destination);
    EXPECT_EQ(0, std::memcmp(frame.ip.source, program->lanes()[0].local.address.data() + 12, 4));
    const bool group = (to.address[12] & 0xf0) == 0xe0;
    EXPECT_EQ(group ? 1 : 2, frame.ethernet.destination[0]);
    EXPECT_TRUE(group || frame.ethernet.destination[4] == station_of_neighbours);
    EXPECT_EQ(to.address[15], frame.ethernet.destination[5]);
    EXPECT_EQ(0, wire::checksum_of(wire::sum_words(std::as_bytes(std::span(&frame.ip, 1)))));
  }

  const switchml::SwitchJobConfig config_;
  Plane plane_;
  const switchml::SwitchCounters before_;
  std::vector<Line> memory_;
  switchml::ChipSwitch chip_;
  RecordingSink sink_;
  std::uint64_t trains_ = 0;
};

enum class Place { alone, root, leaf };

switchml::SwitchJobConfig config_of(Place place, std::uint32_t members, std::uint32_t elements, std::uint32_t slots) {
  switchml::SwitchJobConfig config{epoch, elements, slots, {}};
  for (std::uint32_t number = 0; number < members; ++number) config.members.push_back({100 + number, member_at(number)});
  if (place == Place::alone) return config;
  config.tree.emplace();
  for (std::uint32_t number = 0; number < members; ++number) {
    config.tree->below.emplace_back().insert(3 * number + 1);
    config.tree->is_switch.push_back(number % 2 == 1);
  }
  if (place == Place::leaf) config.tree->parent = parent;
  config.tree->number = 4;
  return config;
}

// What ranks, switches and strangers send: mostly the rounds of now, sometimes anything.
class Senders {
 public:
  Senders(const switchml::SwitchJobConfig& config, Random& random) : config_(config), random_(random) {
    rounds_.resize(std::size_t{config.slots} * 2);
  }

  struct Packet {
    std::vector<std::byte> bytes;
    Endpoint source;
  };
  Packet next() {
    wire::chip::Header header;
    const auto slot = static_cast<std::uint16_t>(random_.below(config_.slots));
    header.slot = slot;
    header.version = static_cast<std::uint8_t>(random_.below(2));
    header.member = static_cast<std::uint8_t>(random_.below(config_.members.size()));
    header.rank = static_cast<std::uint16_t>(random_.next());
    header.job_epoch = config_.epoch;
    header.round = rounds_[std::size_t{slot} * 2 + header.version];
    if (random_.chance(0.1)) header.round += static_cast<std::uint32_t>(random_.below(4)) - 2;
    for (auto& exponent : header.exponents) exponent = static_cast<std::uint16_t>(random_.below(257));
    header.echoed = {random_.next(),
                     static_cast<std::uint32_t>(random_.next()),
                     7,
                     static_cast<std::uint32_t>(random_.next()),
                     static_cast<std::uint16_t>(random_.next()),
                     1};
    Endpoint source = config_.members[header.member].endpoint;
    if (random_.chance(config_.tree && config_.tree->parent ? 0.2 : 0.02)) {
      header.type = wire::chip::Type::result;
      source = parent;
    }
    std::vector<std::byte> bytes(wire::chip::packet_bytes(config_.packet_elements));
    wire::chip::write_header(bytes, header);
    for (std::size_t at = wire::chip::header_bytes; at < bytes.size(); at += 8) store_be(bytes.data() + at, random_.next());
    spoil(bytes, source);
    return {std::move(bytes), source};
  }
  // A result of the round has been sent to all.
  void completed(const wire::chip::Header& header) {
    rounds_[std::size_t{header.slot} * 2 + header.version] = header.round + 1;
  }

 private:
  void spoil(std::vector<std::byte>& bytes, Endpoint& source) {
    if (!random_.chance(0.15)) return;
    switch (random_.below(7)) {
      case 0:
        source = stranger;
        break;
      case 1:
        source.port = static_cast<std::uint16_t>(source.port + 1);
        break;
      case 2:  // anything in the header, but the format, which says whose packet it is
        bytes[1 + random_.below(wire::chip::header_bytes - 1)] ^= static_cast<std::byte>(1U << random_.below(8));
        break;
      case 3:
        bytes.resize(random_.chance(0.3) ? (2 + random_.below(3)) * wire::chip::packet_bytes(random_.chance(0.5) ? 64 : 256)
                                         : 1 + random_.below(wire::chip::packet_bytes(256)));
        break;
      case 4:  // the other length
        bytes.resize(wire::chip::packet_bytes(config_.packet_elements == 64 ? 256 : 64));
        break;
      case 5:
        bytes[2] = static_cast<std::byte>(random_.below(40));
        break;
      default:
        store_be(bytes.data() + 4, static_cast<std::uint16_t>(config_.slots + random_.below(3)));
    }
  }

  const switchml::SwitchJobConfig& config_;
  Random& random_;
  std::vector<std::uint32_t> rounds_;  // by slot and version
};

void compare_on_random_packets(const switchml::SwitchJobConfig& config, bool one_interface, std::uint64_t seed,
                               int packets) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(config.members.size()) + " members");
  Random random(seed);
  Pair both(config, one_interface);
  Senders senders(config, random);
  std::vector<Senders::Packet> before;
  for (int i = 0; i < packets && !::testing::Test::HasFailure(); ++i) {
    Senders::Packet packet = senders.next();
    if (!before.empty() && random.chance(0.15)) packet = before[random.below(before.size())];
    const std::vector<Datagram> sent = both.receive(packet.bytes, packet.source);
    wire::chip::Packet parsed;
    if (!sent.empty() && sent[0].multicast && wire::chip::parse(sent[0].bytes, parsed) == wire::ParseError::none &&
        parsed.header.type == wire::chip::Type::result) {
      senders.completed(parsed.header);
    }
    if (before.size() < 40) {
      before.push_back(std::move(packet));
    } else {
      before[random.below(before.size())] = std::move(packet);
    }
    if (i % 16 == 0) both.compare_reports();
    if (i % 100 == 0) {  // all neighbours get other Ethernet addresses
      ++station_of_neighbours;
      program->followers().follow_all();
    }
  }
  both.compare_reports();
  // The sequence was worth something.
  const switchml::JobCounters& counters = both.counters();
  const bool leaf = config.tree && config.tree->parent;
  for (const std::uint64_t each :
       {counters.contributions, counters.chunks, counters.repeats_silent, counters.repeats_answered, counters.dropped_old,
        counters.dropped_early, counters.dropped_source, counters.dropped_slot, counters.dropped_shape,
        leaf ? counters.results_taken : 1, leaf ? counters.sums_sent : 1}) {
    EXPECT_GT(each, 0U);
  }
}

TEST_F(XdpChip, IsTheSwitchInCxx) {
  std::uint64_t seed = 1;
  for (const std::uint32_t elements : {64U, 256U}) {
    for (const Place place : {Place::alone, Place::root, Place::leaf}) {
      for (const std::uint32_t members : {2U, 3U, 7U}) {
        compare_on_random_packets(config_of(place, members, elements, 1 + static_cast<std::uint32_t>(seed % 3)), false, seed,
                                  4000);
        ++seed;
      }
    }
  }
}

TEST_F(XdpChip, IsItWithOneMember) {
  auto config = config_of(Place::alone, 1, 256, 1);
  Pair both(config, false);
  std::vector<std::byte> packet(wire::chip::packet_bytes(256), std::byte{3});
  wire::chip::write_header(packet, {.job_epoch = epoch, .exponents = {9, 8}, .echoed = {5, 6, 7}});
  EXPECT_EQ(1U, both.receive(packet, member_at(0)).size());
  both.compare_reports();
}

TEST_F(XdpChip, IsItForAGroupBehindOneInterface) {
  auto config = config_of(Place::alone, 31, 64, 1);
  for (auto& member : config.members) member.listens = true;
  config.group = endpoint_of(7, 5000);
  config.group->address[12] = 239;
  compare_on_random_packets(config, true, 99, 30000);
}

TEST_F(XdpChip, RefusesWhomItCannotReach) {
  const auto refusal = [](const switchml::SwitchJobConfig& config, bool one_interface) -> std::string {
    Plane plane(program, 0, [=](const Endpoint& to, Duration) { return hop_to(to, one_interface); });
    try {
      static_cast<void>(plane.make_job(config));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ("", refusal(config_of(Place::alone, 3, 64, 1), false));
  EXPECT_NE(
      std::string::npos,
      refusal(config_of(Place::alone, 3, 64, 1), true).find("3 ranks or switches of the job are reached through xdp0"));
  auto config = config_of(Place::alone, 3, 64, 1);
  config.group = endpoint_of(7, 5000);
  config.members[0].listens = config.members[1].listens = true;
  EXPECT_NE(std::string::npos, refusal(config, true).find("--multicast"));
  config = config_of(Place::alone, interfaces + 1, 64, 1);  // there is no such interface for the last one
  EXPECT_NE(std::string::npos, refusal(config, false).find("which --interface does not name"));
}

TEST_F(XdpChip, LeavesTheRestToTheKernel) {
  Pair both(config_of(Place::alone, 2, 64, 1), false);
  std::vector<std::byte> packet(wire::chip::packet_bytes(64));
  wire::chip::write_header(packet, {.job_epoch = epoch, .echoed = {}});
  const Endpoint here = program->lanes()[0].local;
  const auto frame = frame_of(packet, member_at(0), here);
  const auto passes = [&](std::size_t at, std::byte value) {
    auto other = frame;
    other[at] = value;
    const Verdict verdict = run(program->function("arrive"), other);
    return verdict.action == XDP_PASS && verdict.frame == other;
  };
  EXPECT_TRUE(passes(13, std::byte{0x06}));                      // ARP
  EXPECT_TRUE(passes(12, std::byte{0x81}));                      // a VLAN's tag
  EXPECT_TRUE(passes(14, std::byte{0x46}));                      // IP with options
  EXPECT_TRUE(passes(20, std::byte{0x20}));                      // more fragments
  EXPECT_TRUE(passes(21, std::byte{0x01}));                      // a later fragment
  EXPECT_TRUE(passes(23, std::byte{6}));                         // TCP
  EXPECT_TRUE(passes(37, std::byte{1}));                         // another port
  EXPECT_TRUE(passes(38, std::byte{0xff}));                      // longer than the frame
  EXPECT_TRUE(passes(42, std::byte{2}));                         // SwitchML's other format
  for (std::size_t bytes = 14; bytes < frame.size(); ++bytes) {  // cut off
    const std::vector<std::byte> cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(XDP_PASS, run(program->function("arrive"), cut).action) << bytes;
  }
  EXPECT_EQ(0U, both.counters().packets);
  both.compare_reports();
}

// Frames and packets that this host forwards, or has for another daemon at another of its addresses: of the job, of a job
// elsewhere, and malformed.
TEST_F(XdpChip, LeavesToOthersWhatIsTheirs) {
  const auto config = config_of(Place::leaf, 2, 64, 1);
  Pair both(config, false);
  const Endpoint here = program->lanes()[0].local, elsewhere = endpoint_of(201, port);
  const auto passes = [&](const std::vector<std::byte>& packet, const Endpoint& source) {
    auto other_station = frame_of(packet, source, here);
    other_station[5] = std::byte{77};
    for (const auto& frame : {other_station, frame_of(packet, source, elsewhere)}) {
      const Verdict verdict = run(program->function("arrive"), frame);
      if (verdict.action != XDP_PASS || verdict.frame != frame) return false;
    }
    return true;
  };
  Random random(7);
  Senders senders(config, random);
  for (int i = 0; i < 1000; ++i) {
    Senders::Packet packet = senders.next();
    if (random.chance(0.2)) packet.bytes[8] ^= std::byte{1};  // of a job that is not here
    ASSERT_TRUE(passes(packet.bytes, packet.source)) << i;
  }
  EXPECT_EQ(0U, both.counters().packets);
  both.compare_reports();
}

// What arrives at another processor than the lane's changes nothing there.
TEST_F(XdpChip, HandsOverToTheLanesProcessor) {
  if (libbpf_num_possible_cpus() < 2) GTEST_SKIP() << "there is one processor";
  const int other = program->lanes()[0].cpu == 0 ? 1 : 0;
  const auto elsewhere = std::make_shared<Program>(std::vector<dataplane::xdp::Lane>{{endpoint_of(200, port), other}});
  for (const int end : {interfaces, interfaces + 1}) elsewhere->attach("xdp" + std::to_string(end));
  Plane plane(elsewhere, 0, [](const Endpoint&, Duration) { return hop_to(member_at(interfaces), false); });
  ASSERT_TRUE(plane.add_job(plane.make_job(config_of(Place::alone, 1, 64, 1))));
  std::vector<std::byte> packet(wire::chip::packet_bytes(64));
  wire::chip::write_header(packet, {.job_epoch = epoch, .echoed = {}});
  const auto frame = frame_of(packet, member_at(0), elsewhere->lanes()[0].local);
  const Verdict verdict = run(elsewhere->function("arrive"), frame);
  EXPECT_EQ(XDP_REDIRECT, verdict.action);
  EXPECT_EQ(frame, verdict.frame);
  EXPECT_EQ(0U, plane.job_counters(epoch)->packets);
}

}  // namespace
}  // namespace netsum::testing
