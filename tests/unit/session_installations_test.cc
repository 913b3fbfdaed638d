// Which switch is greeted and told of which job, and when.
#include "session/installations.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace netsum::session {
namespace {

using namespace std::chrono_literals;
using Ask = Installations::Ask;

constexpr Time start{10s};
constexpr std::uint32_t at_server = Placement::at_server;

Placement placement(std::vector<std::string> switches, std::vector<std::uint32_t> parents = {}) {
  Placement placement;
  placement.switches = std::move(switches);
  placement.parent_of_switch = std::move(parents);
  placement.parent_of_switch.resize(placement.switches.size(), at_server);
  return placement;
}

std::vector<Endpoint> lanes(std::uint16_t port) {
  return {Endpoint{.port = port}, Endpoint{.port = static_cast<std::uint16_t>(port + 1)}};
}

// "greet a", "1 a": job 1 to switch a; "1 a again"; "end 1 a".
using Words = std::vector<std::string>;

struct Telling : Installations {
  Words due(Time now) {
    Words words;
    for (const Due& due : take_due(now)) {
      const std::string job = std::to_string(due.job_epoch) + " " + due.switch_id;
      words.push_back(due.what == Ask::greet       ? "greet " + due.switch_id
                      : due.what == Ask::uninstall ? "end " + job
                      : due.again                  ? job + " again"
                                                   : job);
    }
    return words;
  }
  void begin(std::uint64_t epoch, const Placement& placement, Time now = start, bool needed = false) {
    EXPECT_TRUE(add(epoch, placement, now, needed));
  }
  void reach(const std::string& name, Time now = start, std::uint16_t port = 100, std::uint64_t instance = 1) {
    on_greeted(name, lanes(port), instance, now);
  }
  void install(std::uint64_t epoch, const std::string& name, Time now = start, std::uint64_t instance = 1) {
    on_installed(epoch, name, instance, now);
  }
};

TEST(Installations, ASwitchIsGreetedAndThenToldAgainAndAgain) {
  Telling telling;
  EXPECT_EQ(never, telling.next_timeout(start));
  telling.begin(1, placement({"a"}));
  EXPECT_EQ(start, telling.next_timeout(start));
  EXPECT_EQ(Words{"greet a"}, telling.due(start));
  EXPECT_EQ(Words{}, telling.due(start)) << "one message at a time";
  telling.reach("a");
  EXPECT_EQ(Words{"1 a"}, telling.due(start));
  telling.install(1, "a");
  static_cast<void>(telling.take_ready(start));
  EXPECT_EQ(start + installation_interval, telling.next_timeout(start));
  EXPECT_EQ(Words{}, telling.due(start + installation_interval - 1ns));
  EXPECT_EQ(Words{"1 a again"}, telling.due(start + installation_interval)) << "it may have restarted";
}

TEST(Installations, ASwitchThatRestartedBeforeItsAnswerCameIsToldThatItWasToldBefore) {
  for (const bool needed : {false, true}) {  // where all switches are needed, ranks have not begun
    Telling telling;
    telling.begin(1, placement({"a"}), start, needed);
    static_cast<void>(telling.due(start));
    telling.reach("a");
    EXPECT_EQ(Words{"1 a"}, telling.due(start));
    const Time later = start + installation_deadline + installation_rest;
    telling.on_failure("a", later);
    EXPECT_EQ(Words{"greet a"}, telling.due(later + installation_rest));
    telling.reach("a", later + installation_rest, 100, 2);
    EXPECT_EQ(Words{needed ? "1 a" : "1 a again"}, telling.due(later + installation_rest));
  }
}

TEST(Installations, ASilentSwitchIsGreetedAgainAndDelaysNoOther) {
  Telling telling;
  telling.begin(1, placement({"dead", "quick"}));
  EXPECT_EQ((Words{"greet dead", "greet quick"}), telling.due(start));
  telling.reach("quick");
  EXPECT_EQ(Words{"1 quick"}, telling.due(start));
  telling.install(1, "quick");
  telling.begin(2, placement({"quick", "dead"}));
  EXPECT_EQ(Words{"2 quick"}, telling.due(start));
  telling.install(2, "quick");
  // Not answered in time, or found out to be unreachable: the same. It rests for longer each time, up to a bound.
  Time now = start + installation_deadline;
  Duration rest = installation_retry;
  for (int i = 0; i < 4; ++i) {
    if (i % 2 == 0) telling.on_failure("dead", now);
    const Words then = telling.due(now + rest - 1ns);
    EXPECT_EQ(0, std::count(then.begin(), then.end(), "greet dead"));
    EXPECT_EQ(1, std::ranges::count(telling.due(now + rest), "greet dead"));
    now += rest + installation_deadline;
    if (i % 2 == 0) static_cast<void>(telling.due(now));
    rest = std::min(rest * 2, installation_rest);
  }
  telling.reach("dead", now);
  EXPECT_EQ(1, std::ranges::count(telling.due(now), "1 dead")) << "at once";
}

TEST(Installations, FromReachableToToldTakesLessThanASecond) {
  EXPECT_LT(2 * installation_rest, 1s);
}

TEST(Installations, AParentIsToldBeforeItsChildren) {
  Telling telling;
  telling.begin(1, placement({"leaf", "top"}, {1, at_server}));
  static_cast<void>(telling.due(start));
  telling.reach("leaf");
  EXPECT_EQ(Words{}, telling.due(start)) << "it would pass on what nobody takes";
  telling.reach("top", start + 2s, 200);
  EXPECT_EQ(Words{"1 top"}, telling.due(start + 2s));
  telling.install(1, "top", start + 2s);
  EXPECT_EQ(Words{"1 leaf"}, telling.due(start + 2s));
}

TEST(Installations, WhoIsNextToASwitchThatMovesIsToldAtOnce) {
  Telling telling;
  telling.begin(1, placement({"leaf", "top", "beside"}, {1, at_server, at_server}));
  static_cast<void>(telling.due(start));
  telling.reach("leaf");
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_moved());
  EXPECT_EQ((std::vector<std::vector<Endpoint>>{lanes(100), {}, {}}), telling.lanes_of(1));
  telling.reach("top", start, 200);
  telling.reach("beside", start, 300);
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_moved());
  EXPECT_TRUE(telling.take_moved().empty());
  EXPECT_EQ((Words{"1 beside", "1 top"}), telling.due(start));
  telling.install(1, "top");
  telling.install(1, "beside");
  EXPECT_EQ(Words{"1 leaf"}, telling.due(start));
  telling.install(1, "leaf");

  const Time later = start + installation_interval;
  EXPECT_EQ((Words{"1 beside again", "1 leaf again", "1 top again"}), telling.due(later));
  telling.install(1, "leaf", later);
  telling.install(1, "beside", later);
  telling.install(1, "top", later, 2);  // another process has answered
  EXPECT_EQ(Words{"greet top"}, telling.due(later));
  telling.reach("top", later, 400, 2);
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_moved());
  EXPECT_EQ(lanes(400), telling.lanes_of(1)[1]);
  EXPECT_EQ((Words{"1 leaf again", "1 top again"}), telling.due(later)) << "which are next to it";

  telling.on_failure("leaf", later);
  EXPECT_EQ(lanes(100), telling.lanes_of(1)[0]) << "until it says otherwise";
  static_cast<void>(telling.due(later + 1s));
  telling.reach("leaf", later + 1s);
  EXPECT_TRUE(telling.take_moved().empty()) << "it is where it was";
}

// The endpoint of a switch below is not in what its parent has just been told.
TEST(Installations, AParentThatWasToldTooEarlyIsToldAgainAtOnce) {
  Telling telling;
  telling.begin(1, placement({"leaf", "top"}, {1, at_server}));
  static_cast<void>(telling.due(start));
  telling.reach("top", start, 200);
  EXPECT_EQ(Words{"1 top"}, telling.due(start));
  telling.reach("leaf");
  EXPECT_EQ(Words{}, telling.due(start)) << "one message at a time";
  telling.install(1, "top");
  EXPECT_EQ((Words{"1 leaf", "1 top again"}), telling.due(start));
  telling.install(1, "leaf");
  EXPECT_TRUE(telling.take_ready(start + 1ms).empty()) << "it does not know all its children";
  telling.install(1, "top", start + 1ms);
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_ready(start + 1ms));
  EXPECT_EQ(start + installation_interval, telling.next_timeout(start + 1ms));
}

TEST(Installations, AJobIsReadyWhenAllItsSwitchesHaveAnswered) {
  Telling telling;
  telling.begin(1, placement({"a", "b"}));
  EXPECT_FALSE(telling.ready(1, start));
  telling.install(1, "a");
  telling.install(1, "elsewhere");
  telling.install(2, "b");
  EXPECT_FALSE(telling.ready(1, start));
  EXPECT_TRUE(telling.take_ready(start).empty());
  telling.install(1, "b");
  EXPECT_TRUE(telling.ready(1, start));
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_ready(start));
  EXPECT_TRUE(telling.take_ready(start).empty()) << "it was said";
  EXPECT_TRUE(telling.ready(2, start));  // nothing is known of it
}

TEST(Installations, AJobDoesNotWaitForASwitchForEver) {
  Telling telling;
  telling.begin(1, placement({"a"}));
  static_cast<void>(telling.due(start));
  EXPECT_FALSE(telling.ready(1, start + installation_patience - 1ns));
  EXPECT_EQ(start + installation_patience, telling.next_timeout(start));  // before the greeting's deadline
  EXPECT_TRUE(telling.ready(1, start + installation_patience));
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_ready(start + installation_patience));
  EXPECT_EQ(start + installation_deadline, telling.next_timeout(start + installation_patience));
}

TEST(Installations, AJobWaitsForSwitchesThatItNeedsUntilOneFallsSilent) {
  Telling telling;
  telling.begin(1, placement({"a", "b"}), start, true);
  telling.begin(2, placement({"a"}));
  static_cast<void>(telling.due(start));
  telling.reach("a");
  EXPECT_EQ(std::vector<std::uint64_t>{2}, telling.take_moved()) << "job 1 is placed when all is known";
  EXPECT_EQ(Words{"2 a"}, telling.due(start));
  telling.install(2, "a");
  telling.reach("b", start, 300);
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_moved());
  EXPECT_EQ((Words{"1 a", "1 b"}), telling.due(start));
  telling.install(1, "a", start + 1s);
  EXPECT_FALSE(telling.ready(1, start + 1h)) << "b may have been told, and have restarted since";
  EXPECT_TRUE(telling.take_silent(start + installation_lease - 1ns).empty());
  const auto silent = telling.take_silent(start + installation_lease);
  ASSERT_EQ(1U, silent.size());
  EXPECT_EQ(1U, silent[0].job_epoch);
  EXPECT_EQ("b", silent[0].switch_id);
  EXPECT_TRUE(telling.take_silent(start + installation_lease).empty()) << "it was said";
  EXPECT_EQ(1U, telling.take_silent(start + 1s + installation_lease).size()) << "and a";
  telling.remove(1);
  EXPECT_TRUE(telling.ready(1, start)) << "it has failed: its ranks are to hear of it";
  EXPECT_TRUE(telling.take_silent(start + 1h).empty());
}

// Its ranks can go around a switch that has been told and is silent, or has ended.
TEST(Installations, AJobMayHaveLessPatience) {
  Telling telling;
  ASSERT_TRUE(telling.add(1, placement({"a", "b"}), start, true, 600ms));
  static_cast<void>(telling.due(start));
  telling.reach("a");
  telling.reach("b");
  static_cast<void>(telling.due(start));
  for (const Duration after : {0s, 1s}) telling.install(1, "a", start + after);
  EXPECT_TRUE(telling.take_silent(start + 1s).empty()) << "b was not told yet";
  telling.install(1, "b", start + 1s);
  EXPECT_EQ(std::vector<std::uint64_t>{1}, telling.take_ready(start + 1s));
  EXPECT_EQ(start + 1s + 120ms, telling.next_timeout(start + 1s));
  EXPECT_TRUE(telling.take_silent(start + 1599ms).empty());
  telling.install(1, "a", start + 1599ms);
  const auto silent = telling.take_silent(start + 1600ms);
  ASSERT_EQ(1U, silent.size());
  EXPECT_EQ("b", silent[0].switch_id);
  EXPECT_EQ(600ms, silent[0].silence);
  telling.on_failure("a", start + 1601ms, true);
  EXPECT_EQ(1U, telling.take_silent(start + 1601ms).size()) << "a has ended";
}

TEST(Installations, OfAJobThatEndedNobodyIsToldButThatItHas) {
  Telling telling;
  telling.begin(1, placement({"a"}));
  telling.begin(2, placement({"a", "dead"}));
  static_cast<void>(telling.due(start));
  telling.reach("a");
  telling.remove(1);
  EXPECT_EQ(Words{"end 1 a"}, telling.due(start));
  telling.on_uninstalled("a");
  EXPECT_EQ(Words{"2 a"}, telling.due(start));
  telling.install(2, "a");
  telling.remove(2);
  EXPECT_EQ(Words{"end 2 a"}, telling.due(start));
  telling.on_uninstalled("a");
  EXPECT_TRUE(telling.knows("dead")) << "a message is under way to it";
  telling.on_failure("dead", start);
  EXPECT_EQ(Words{}, telling.due(start + 1s));
  EXPECT_FALSE(telling.knows("a") || telling.knows("dead")) << "nothing is kept of them";
  EXPECT_EQ(never, telling.next_timeout(start));
}

TEST(Installations, AKeptSwitchIsGreetedBeforeAnyJobAndAfterTheLast) {
  Telling telling;
  telling.keep("top", start);
  EXPECT_EQ(Words{"greet top"}, telling.due(start));
  telling.reach("top");
  EXPECT_EQ(Words{}, telling.due(start + 1h));
  telling.begin(1, placement({"top"}), start + 1h);
  EXPECT_EQ(Words{"1 top"}, telling.due(start + 1h)) << "it is known";
  telling.remove(1);
  telling.install(1, "top", start + 1h);
  EXPECT_EQ(Words{"end 1 top"}, telling.due(start + 1h));
  telling.on_uninstalled("top");
  EXPECT_EQ(Words{}, telling.due(start + 2h));
  EXPECT_TRUE(telling.knows("top"));
}

TEST(Installations, ThereAreOnlySoManySwitches) {
  Telling telling;
  for (std::size_t i = 0; i < Installations::most_switches; ++i) {
    telling.begin(i + 1, placement({std::to_string(i)}));
  }
  EXPECT_FALSE(telling.add(5000, placement({"0", "one more"}), start));
  EXPECT_TRUE(telling.ready(5000, start));
  telling.begin(5001, placement({"0", "1"}));
  telling.remove(3);
  EXPECT_EQ(Installations::most_switches - 1, telling.due(start).size());
  telling.begin(5000, placement({"0", "one more"}));
}

// Else a switch would forget a job between two tellings.
TEST(Installations, ALeaseIsLongerThanSeveralIntervals) {
  EXPECT_GE(installation_lease, 3 * installation_interval);
  EXPECT_GE(installation_lease, 2 * installation_deadline);
}

}  // namespace
}  // namespace netsum::session
