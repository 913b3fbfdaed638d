// Which switch is told of which job, and when.
#include "session/installations.h"

#include <gtest/gtest.h>

namespace netsum::session {
namespace {

using namespace std::chrono_literals;

using Told = std::vector<std::pair<std::uint64_t, std::string>>;

Told take_due(Installations& installations, Time now) {
  Told list;
  for (const auto& due : installations.take_due(now)) list.emplace_back(due.job_epoch, due.a_switch);
  return list;
}

constexpr Time start{10s};

TEST(Installations, EverySwitchIsToldAtOnceAndAgainAfterAnInterval) {
  Installations installations;
  EXPECT_EQ(never, installations.next_timeout(start));
  installations.add(1, {"b", "a"}, start);
  EXPECT_EQ(start, installations.next_timeout(start));
  EXPECT_EQ((Told{{1, "a"}, {1, "b"}}), take_due(installations, start));
  installations.on_installed(1, "a", start);  // it may restart: it is told on and on
  EXPECT_EQ(Told{}, take_due(installations, start + installation_retry - 1ns));
  EXPECT_EQ(start + installation_retry, installations.next_timeout(start));
  EXPECT_EQ((Told{{1, "b"}}), take_due(installations, start + installation_retry)) << "which has not answered";
  installations.on_installed(1, "b", start);
  EXPECT_EQ(Told{}, take_due(installations, start + installation_interval - 1ns));
  EXPECT_EQ(start + installation_interval, installations.next_timeout(start + installation_patience));
  EXPECT_EQ((Told{{1, "a"}, {1, "b"}}), take_due(installations, start + installation_interval));
}

TEST(Installations, AJobIsReadyWhenAllItsSwitchesHaveAnswered) {
  Installations installations;
  installations.add(1, {"a", "b"}, start);
  EXPECT_FALSE(installations.ready(1, start));
  installations.on_installed(1, "a", start);
  installations.on_installed(1, "elsewhere", start);
  installations.on_installed(2, "b", start);
  EXPECT_FALSE(installations.ready(1, start));
  installations.on_installed(1, "b", start);
  EXPECT_TRUE(installations.ready(1, start));
  EXPECT_TRUE(installations.ready(2, start));  // nothing is known of it
  installations.add(3, {}, start);
  EXPECT_TRUE(installations.ready(3, start));
}

TEST(Installations, AJobDoesNotWaitForASwitchForEver) {
  Installations installations;
  installations.add(1, {"a"}, start);
  const Time last_told = start + installation_patience - installation_retry / 2;
  static_cast<void>(installations.take_due(last_told));
  EXPECT_FALSE(installations.ready(1, start + installation_patience - 1ns));
  EXPECT_EQ(start + installation_patience, installations.next_timeout(start));  // before it is told again
  EXPECT_TRUE(installations.ready(1, start + installation_patience));
  EXPECT_EQ(last_told + installation_retry, installations.next_timeout(start + installation_patience));
}

TEST(Installations, ASwitchThatAJobNeedsMayNotFallSilent) {
  Installations installations;
  installations.add(1, {"a", "b"}, start, true);
  installations.add(2, {"a"}, start);
  installations.on_installed(1, "a", start + 1s);
  EXPECT_TRUE(installations.silent(start + installation_lease - 1ns).empty());
  const auto silent = installations.silent(start + installation_lease);
  ASSERT_EQ(1U, silent.size());
  EXPECT_EQ(1U, silent[0].job_epoch);
  EXPECT_EQ("b", silent[0].a_switch);
  EXPECT_FALSE(silent[0].again) << "it has never answered";
  EXPECT_EQ(2U, installations.silent(start + 1s + installation_lease).size());
  installations.remove(1);
  EXPECT_TRUE(installations.silent(start + 1h).empty());
}

TEST(Installations, WhoHasAnsweredIsToldThatItShouldKnow) {
  Installations installations;
  installations.add(1, {"a", "b"}, start);
  for (const auto& due : installations.take_due(start)) EXPECT_FALSE(due.again);
  installations.on_installed(1, "a", start);
  for (const auto& due : installations.take_due(start + installation_interval)) {
    EXPECT_EQ(due.a_switch == "a", due.again);
  }
}

TEST(Installations, AJobWaitsForSwitchesThatItNeeds) {
  Installations installations;
  installations.add(1, {"a", "b"}, start, true);
  installations.on_installed(1, "a", start);
  EXPECT_FALSE(installations.ready(1, start + 1h)) << "b may have been told, and have restarted since";
  installations.on_installed(1, "b", start);
  EXPECT_TRUE(installations.ready(1, start));
  installations.remove(1);
  EXPECT_TRUE(installations.ready(1, start)) << "it has failed: its ranks are to hear of it";
}

TEST(Installations, OfAJobThatEndedNobodyIsTold) {
  Installations installations;
  installations.add(1, {"a"}, start);
  installations.add(2, {"a"}, start);
  installations.remove(1);
  EXPECT_EQ((Told{{2, "a"}}), take_due(installations, start));
  installations.remove(2);
  EXPECT_EQ(never, installations.next_timeout(start));
}

// Else a switch would forget a job between two tellings.
TEST(Installations, ALeaseIsLongerThanSeveralIntervals) {
  EXPECT_GE(installation_lease, 3 * installation_interval);
}

}  // namespace
}  // namespace netsum::session
