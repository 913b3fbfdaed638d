// The bottleneck link of the congestion measurements: when packets leave, which are dropped, and which are marked, and how.
#include "base/quantity.h"
#include "papers/bottleneck/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "wire/ecn.h"

namespace netsum::bottleneck {
namespace {

using namespace std::chrono_literals;
using wire::Ecn;
using wire::ecn_of;
using wire::mark_congestion;
using Packet = std::vector<std::byte>;

constexpr Time start{1000s};

// RFC 1071, over the whole header: 0 if the checksum in it is right.
std::uint32_t checksum_residue(const Packet& packet) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < std::to_integer<std::size_t>(packet[0] & std::byte{0x0f}) * 4; i += 2) {
    sum += std::to_integer<std::uint32_t>(packet[i]) << 8 | std::to_integer<std::uint32_t>(packet[i + 1]);
  }
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}

Packet ipv4(std::size_t bytes, Ecn ecn, unsigned seed = 1, std::size_t options = 0) {
  std::minstd_rand random(seed + 1);  // quick to seed
  Packet packet(bytes);
  for (auto& byte : packet) byte = static_cast<std::byte>(random());
  packet[0] = static_cast<std::byte>(0x45 + options / 4);
  packet[1] = (packet[1] & std::byte{0xfc}) | static_cast<std::byte>(ecn);
  packet[10] = packet[11] = std::byte{0};
  const std::uint32_t sum = checksum_residue(packet);
  packet[10] = static_cast<std::byte>(sum >> 8);
  packet[11] = static_cast<std::byte>(sum);
  return packet;
}

Packet ipv6(std::size_t bytes, Ecn ecn, unsigned seed = 1) {
  std::minstd_rand random(seed + 1);  // quick to seed
  Packet packet(bytes);
  for (auto& byte : packet) byte = static_cast<std::byte>(random());
  packet[0] = (packet[0] & std::byte{0x0f}) | std::byte{0x60};
  packet[1] = (packet[1] & std::byte{0xcf}) | static_cast<std::byte>(static_cast<unsigned>(ecn) << 4);
  return packet;
}

// 1000 bytes take 1 ms.
LinkSettings slow() {
  return {.bits_per_second = 8'000'000, .delay = 5ms, .queue_bytes = 10'000, .mark_bytes = 3'000};
}

// When each packet arrives at the other end, by a clock that looks only when something is due.
std::vector<Time> deliveries(Link& link) {
  std::vector<Time> times;
  for (Time due = link.due(); due != never; due = link.due()) {
    EXPECT_FALSE(link.pop(due - 1ns));
    EXPECT_TRUE(link.pop(due));
    times.push_back(due);
  }
  return times;
}

TEST(BottleneckLink, SendsAtItsRateAndDeliversAfterItsDelay) {
  Link link(slow());
  EXPECT_EQ(link.due(), never);
  EXPECT_FALSE(link.pop(start));
  link.push(start, ipv4(1000, Ecn::not_capable));
  link.push(start, ipv4(500, Ecn::not_capable));
  link.push(start + 1ms, ipv4(1000, Ecn::not_capable));  // while the second is leaving
  link.push(start + 100ms, ipv4(1000, Ecn::not_capable));
  EXPECT_EQ(deliveries(link), (std::vector<Time>{start + 6ms, start + 6500us, start + 7500us, start + 106ms}));
}

TEST(BottleneckLink, AnIdleLinkSavesNoTimeUp) {
  Link link({.bits_per_second = 8'000'000, .delay = 0ms, .queue_bytes = 10'000, .mark_bytes = {}});
  link.push(start, ipv4(1000, Ecn::not_capable));
  EXPECT_TRUE(link.pop(start + 1h));
  for (int i = 0; i < 3; ++i) link.push(start + 1h, ipv4(1000, Ecn::not_capable));
  EXPECT_EQ(deliveries(link), (std::vector<Time>{start + 1h + 1ms, start + 1h + 2ms, start + 1h + 3ms}));
}

// At rates that a packet's time in nanoseconds does not divide, no part of one is lost either.
TEST(BottleneckLink, KeepsItsRateOverMillionsOfPackets) {
  for (const std::uint64_t rate : {999'999'937ULL, 7'000'000'000ULL, 40'000'000'000ULL, 1'600'000'000'000ULL}) {
    Link link({.bits_per_second = rate, .delay = 0ms, .queue_bytes = 1000, .mark_bytes = {}});
    const Packet packet = ipv4(61, Ecn::not_capable);
    link.push(start, packet);
    Time last = start;
    for (int i = 1; i < 1'000'000; ++i) {  // the next arrives when the one before is leaving: never idle
      link.push(last, packet);
      last = link.due();
      ASSERT_TRUE(link.pop(last));
    }
    last = link.due();
    const double expected = 1e6 * 61 * 8 / static_cast<double>(rate);
    EXPECT_NEAR(std::chrono::duration<double>(last - start).count(), expected, 2e-9) << rate;
  }
}

TEST(BottleneckLink, KeepsOrderAndBytes) {
  Link link({.bits_per_second = 1'000'000'000, .delay = 1ms, .queue_bytes = 1'000'000, .mark_bytes = {}});
  std::mt19937 random(3);
  std::vector<Packet> sent, received;
  Time now = start;
  for (unsigned i = 0; i < 2000; ++i) {
    sent.push_back(i % 2 == 0 ? ipv4(20 + random() % 1480, Ecn::capable_0, i)
                              : ipv6(40 + random() % 1460, Ecn::capable_1, i));
    ASSERT_EQ(link.push(now, sent.back()), Fate::queued);
    now += Duration(random() % 20'000);
    while (auto packet = link.pop(now)) received.push_back(std::move(*packet));
  }
  while (auto packet = link.pop(now + 1h)) received.push_back(std::move(*packet));
  EXPECT_TRUE(sent == received);
  EXPECT_EQ(link.counters().packets, sent.size());
  EXPECT_EQ(link.counters().dropped, 0U);
}

TEST(BottleneckLink, DropsWhatDoesNotFit) {
  Link link(slow());
  for (int i = 0; i < 9; ++i) EXPECT_NE(link.push(start, ipv4(1000, Ecn::not_capable)), Fate::dropped);
  EXPECT_EQ(link.push(start, ipv4(1001, Ecn::not_capable)), Fate::dropped);
  EXPECT_NE(link.push(start, ipv4(1000, Ecn::not_capable)), Fate::dropped);
  EXPECT_EQ(link.push(start, ipv4(20, Ecn::capable_0)), Fate::dropped);
  EXPECT_EQ(link.queued_bytes(start), 10'000U);
  // A packet makes room when its last bit has left, not when it is delivered.
  EXPECT_EQ(link.push(start + 1ms - 1ns, ipv4(1000, Ecn::not_capable)), Fate::dropped);
  EXPECT_NE(link.push(start + 1ms, ipv4(1000, Ecn::not_capable)), Fate::dropped);
  EXPECT_EQ(link.counters().dropped, 3U);
  EXPECT_EQ(deliveries(link).size(), 11U);
  EXPECT_EQ(link.counters().packets, 11U);
  EXPECT_EQ(link.counters().bytes, 11'000U);
  EXPECT_EQ(link.queued_bytes(start + 1s), 0U);
}

TEST(BottleneckLink, MarksWhatFindsMoreThanTheThresholdQueued) {
  for (const bool six : {false, true}) {
    const auto capable = [&] { return six ? ipv6(1000, Ecn::capable_0) : ipv4(1000, Ecn::capable_0); };
    Link link(slow());
    for (int i = 0; i < 4; ++i) EXPECT_EQ(link.push(start, capable()), Fate::queued);  // the fourth finds 3000: not more
    EXPECT_EQ(link.push(start, capable()), Fate::marked);
    EXPECT_EQ(link.push(start + 2ms, capable()), Fate::queued);  // two have left
    EXPECT_EQ(link.push(start + 2ms, capable()), Fate::marked);
    std::vector<bool> marks;
    while (auto packet = link.pop(start + 1s)) {
      const bool marked = ecn_of(*packet) == Ecn::congestion;
      marks.push_back(marked);
      Packet expected = capable();
      if (marked) mark_congestion(expected);
      EXPECT_EQ(*packet, expected);
    }
    EXPECT_EQ(marks, (std::vector<bool>{false, false, false, false, true, false, true}));
    EXPECT_EQ(link.counters().marked, 2U);
  }
}

TEST(BottleneckLink, MarksOnlyThoseThatUnderstandIt) {
  Link link({.bits_per_second = 1, .delay = 0ms, .queue_bytes = 100'000, .mark_bytes = 0});
  EXPECT_EQ(link.push(start, ipv4(100, Ecn::capable_0)), Fate::queued);  // finds nothing, which is not more than 0
  const Packet foreign(100, std::byte{0xff});
  const std::vector<Packet> unmarked{ipv4(100, Ecn::not_capable),
                                     ipv4(100, Ecn::congestion),
                                     ipv6(100, Ecn::not_capable),
                                     ipv6(100, Ecn::congestion),
                                     foreign,
                                     {}};
  for (const Packet& packet : unmarked) EXPECT_EQ(link.push(start, packet), Fate::queued);
  for (const Packet& packet : {ipv4(100, Ecn::capable_0), ipv4(100, Ecn::capable_1), ipv6(100, Ecn::capable_1)}) {
    EXPECT_EQ(link.push(start, packet), Fate::marked);
  }
  EXPECT_EQ(link.counters().marked, 3U);
  EXPECT_TRUE(link.pop(start + 24h));
  for (const Packet& packet : unmarked) EXPECT_EQ(link.pop(start + 24h), packet);
}

TEST(BottleneckLink, WithoutAThresholdMarksNothing) {
  Link link({.bits_per_second = 1, .delay = 0ms, .queue_bytes = 100'000, .mark_bytes = {}});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(link.push(start, ipv4(1000, Ecn::capable_0)), Fate::queued);
}

TEST(BottleneckLink, TellsThePeakSinceTheLastLook) {
  Link link(slow());
  for (int i = 0; i < 3; ++i) link.push(start, ipv4(1000, Ecn::not_capable));
  EXPECT_EQ(link.take_peak(start + 2ms), 3000U);
  EXPECT_EQ(link.take_peak(start + 10ms), 1000U);  // what was there at the last look
  EXPECT_EQ(link.take_peak(start + 10ms), 0U);
}

TEST(BottleneckLink, RefusesRatesItCannotHold) {
  EXPECT_THROW(Link({.bits_per_second = 0, .queue_bytes = 1, .mark_bytes = {}}), std::invalid_argument);
  EXPECT_THROW(Link({.bits_per_second = most_bits_per_second + 1, .queue_bytes = 1, .mark_bytes = {}}),
               std::invalid_argument);
}

// All fields random, so that every carry of the one's complement sum comes up.
TEST(BottleneckMark, KeepsTheChecksumRight) {
  for (unsigned seed = 0; seed < 200'000; ++seed) {
    const Packet before = ipv4(60, seed % 2 == 0 ? Ecn::capable_0 : Ecn::capable_1, seed, seed % 11 * 4);
    ASSERT_EQ(checksum_residue(before), 0U);
    Packet after = before;
    ASSERT_TRUE(mark_congestion(after));
    ASSERT_EQ(checksum_residue(after), 0U) << seed;
    ASSERT_EQ(ecn_of(after), Ecn::congestion);
    ASSERT_EQ(after[1] >> 2, before[1] >> 2);  // the other six bits belong to somebody else
    ASSERT_FALSE(mark_congestion(after));
    after[1] = before[1];
    std::copy_n(&before[10], 2, &after[10]);
    ASSERT_EQ(after, before);
  }
}

TEST(BottleneckMark, DoesNotRepairAWrongChecksum) {
  Packet packet = ipv4(60, Ecn::capable_0);
  packet[11] ^= std::byte{0x40};
  ASSERT_TRUE(mark_congestion(packet));
  EXPECT_NE(checksum_residue(packet), 0U);
}

TEST(BottleneckMark, ChangesTwoBitsOfIpv6) {
  for (const Ecn ecn : {Ecn::capable_0, Ecn::capable_1}) {
    for (unsigned seed = 0; seed < 1000; ++seed) {
      const Packet before = ipv6(40, ecn, seed);
      Packet after = before;
      ASSERT_TRUE(mark_congestion(after));
      ASSERT_EQ(ecn_of(after), Ecn::congestion);
      after[1] = (after[1] & std::byte{0xcf}) | (before[1] & std::byte{0x30});
      ASSERT_EQ(after, before);
    }
  }
}

// Exactly as many bytes as there are, on the heap: the address sanitizer sees a read beyond.
TEST(BottleneckMark, LeavesWhatIsNoWholeHeaderAlone) {
  const auto untouched = [](const Packet& packet) {
    Packet copy(packet.begin(), packet.end());  // of just this capacity
    return !ecn_of(copy) && !mark_congestion(copy) && copy == packet;
  };
  Packet packet = ipv4(40, Ecn::capable_0, 1, 20);
  for (; !packet.empty(); packet.pop_back()) {
    EXPECT_EQ(untouched(packet), packet.size() < 40) << packet.size();
  }
  EXPECT_TRUE(untouched(packet));
  for (packet = ipv6(40, Ecn::capable_0); packet.size() > 1;) {
    packet.pop_back();
    EXPECT_TRUE(untouched(packet)) << packet.size();
  }
  for (unsigned first = 0; first < 256; ++first) {
    const bool header = (first >= 0x45 && first <= 0x4f) || (first >> 4) == 6;
    packet.assign(60, std::byte{0xaa});
    packet[0] = static_cast<std::byte>(first);
    EXPECT_EQ(untouched(packet), !header) << first;
  }
}

TEST(BottleneckQuantity, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_rate("1gbit"), 1'000'000'000U);
  EXPECT_EQ(parse_rate("1.5mbit"), 1'500'000U);
  EXPECT_EQ(parse_rate("1bit"), 1U);
  EXPECT_EQ(parse_rate("1600gbit"), most_bits_per_second);
  EXPECT_EQ(parse_duration("100us"), 100us);
  EXPECT_EQ(parse_duration("0.5ms"), 500us);
  EXPECT_EQ(parse_duration("0s"), 0s);
  EXPECT_EQ(parse_duration("17ns"), 17ns);
  EXPECT_EQ(parse_bytes("256kB"), 256'000U);
  EXPECT_EQ(parse_bytes("256KiB"), 262'144U);
  EXPECT_EQ(parse_bytes("64000B"), 64'000U);
}

TEST(BottleneckQuantity, RefusesTheRestAndSaysWhatItWants) {
  for (const char* text : {"", "1", "gbit", "0bit", "0.1bit", "-1gbit", "1Gbit", "1gbit ", " 1gbit", "1601gbit", "infgbit",
                           "nanbit", "1e3bit", "0x1bit", "1kB"}) {
    EXPECT_THROW((void)parse_rate(text), std::invalid_argument) << text;
  }
  for (const char* text : {"1", "1m", "-1s", "1001s", "1us us"})
    EXPECT_THROW((void)parse_duration(text), std::invalid_argument);
  for (const char* text : {"1", "1kb", "-1B", "1TB", "1KB"}) EXPECT_THROW((void)parse_bytes(text), std::invalid_argument);
  try {
    (void)parse_rate("5");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("'5' is not a rate like 100mbit"), std::string::npos);
  }
}

}  // namespace
}  // namespace netsum::bottleneck
