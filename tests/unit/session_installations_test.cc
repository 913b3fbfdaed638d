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
  EXPECT_EQ(Told{}, take_due(installations, start + installation_interval - 1ns));
  EXPECT_EQ(start + installation_interval, installations.next_timeout(start));
  installations.on_installed(1, "a");  // it may restart: it is told on and on
  installations.on_installed(1, "b");
  EXPECT_EQ((Told{{1, "a"}, {1, "b"}}), take_due(installations, start + installation_interval));
}

TEST(Installations, AJobIsReadyWhenAllItsSwitchesHaveAnswered) {
  Installations installations;
  installations.add(1, {"a", "b"}, start);
  EXPECT_FALSE(installations.ready(1, start));
  installations.on_installed(1, "a");
  installations.on_installed(1, "elsewhere");
  installations.on_installed(2, "b");
  EXPECT_FALSE(installations.ready(1, start));
  installations.on_installed(1, "b");
  EXPECT_TRUE(installations.ready(1, start));
  EXPECT_TRUE(installations.ready(2, start));  // nothing is known of it
  installations.add(3, {}, start);
  EXPECT_TRUE(installations.ready(3, start));
}

TEST(Installations, AJobDoesNotWaitForASwitchForEver) {
  Installations installations;
  installations.add(1, {"a"}, start);
  static_cast<void>(installations.take_due(start + installation_patience / 2));
  EXPECT_FALSE(installations.ready(1, start + installation_patience - 1ns));
  EXPECT_EQ(start + installation_patience, installations.next_timeout(start));  // before it is told again
  EXPECT_TRUE(installations.ready(1, start + installation_patience));
  EXPECT_EQ(start + installation_patience / 2 + installation_interval,
            installations.next_timeout(start + installation_patience));
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
