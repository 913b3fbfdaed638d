// Log lines about packets that were dropped, and not by loss; and how often such a line may be repeated.
#include "telemetry/drop_log.h"

#include <gtest/gtest.h>

#include "telemetry/line_limit.h"
#include "transport/addresses/addresses.h"

namespace netsum::telemetry {
namespace {

using std::chrono::seconds;

Report dropping(const Counters& of_job, std::uint64_t epoch = 7) {
  Report report;
  JobReport job;
  job.job.job = "train";
  job.job.tenant = "red";
  job.job.job_epoch = epoch;
  job.counters = of_job;
  report.jobs = {job};
  return report;
}

TEST(LineLimit, LetsALineThroughOnceAMinuteIfThereWasMore) {
  LineLimit limit;
  const Time start{};
  EXPECT_EQ(0U, limit.take(0, start));
  EXPECT_EQ(5U, limit.take(5, start));
  EXPECT_EQ(0U, limit.take(9, start + seconds(59)));
  EXPECT_EQ(4U, limit.take(9, start + seconds(60)));
  EXPECT_EQ(0U, limit.take(9, start + seconds(600)));
}

TEST(LineLimit, TakesALowerCountAsOneThatBeginsAnew) {
  LineLimit limit;
  const Time start{};
  EXPECT_EQ(5U, limit.take(5, start));
  EXPECT_EQ(0U, limit.take(0, start + seconds(60)));
  EXPECT_EQ(3U, limit.take(3, start + seconds(61)));
}

TEST(LineLimit, CountsForItselfWhatNothingElseCounts) {
  LineLimit limit;
  const Time start{};
  EXPECT_TRUE(limit.take(start));
  EXPECT_FALSE(limit.take(start + seconds(59)));
  EXPECT_TRUE(limit.take(start + seconds(60)));
}

TEST(DropLog, SaysHowManyWereDroppedOnceAMinuteForEachReason) {
  DropLog log;
  const Time start{};
  EXPECT_TRUE(log.look(dropping({{"packets", 9}, {"dropped_source", 0}}), start).empty());
  Report report = dropping({{"dropped_source", 3}});
  report.jobs[0].dropped_from = {{"dropped_slot", {}}, {"dropped_source", transport::resolve("10.0.0.9:4711")}};
  const auto first = log.look(report, start + seconds(1));
  ASSERT_EQ(1U, first.size());
  EXPECT_EQ("red", first[0].tenant);
  EXPECT_EQ(
      "warning: job 'train': 3 packets were dropped, since their source address is not that with which their rank joined "
      "(dropped_source); one came from 10.0.0.9:4711",
      first[0].text);
  EXPECT_TRUE(log.look(dropping({{"dropped_source", 500}}), start + seconds(60)).empty());
  EXPECT_EQ(1U, log.look(dropping({{"dropped_source", 500}, {"dropped_shape", 1}}), start + seconds(60)).size());
  const auto again = log.look(dropping({{"dropped_source", 900}, {"dropped_shape", 1}}), start + seconds(61));
  ASSERT_EQ(1U, again.size());
  EXPECT_TRUE(again[0].text.find("897 packets") != std::string::npos && again[0].text.ends_with("(dropped_source)"));
  EXPECT_TRUE(log.look(dropping({{"dropped_source", 900}, {"dropped_shape", 1}}), start + seconds(600)).empty());
}

TEST(DropLog, KeepsNothingOfJobsThatHaveEnded) {
  DropLog log;
  EXPECT_EQ(1U, log.look(dropping({{"dropped_seal", 2}}), Time{}).size());
  EXPECT_TRUE(log.look(Report{}, Time{} + seconds(1)).empty());
  EXPECT_EQ(1U, log.look(dropping({{"dropped_seal", 2}}, 8), Time{} + seconds(2)).size());  // another job of this name
}

TEST(DropLog, WhatIsLateBelongsToLosses) {
  EXPECT_TRUE(DropLog().look(dropping({{"dropped_old", 5}, {"dropped_stale", 5}, {"dropped_kernel", 5}}), Time{}).empty());
}

}  // namespace
}  // namespace netsum::telemetry
