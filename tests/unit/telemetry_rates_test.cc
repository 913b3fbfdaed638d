// Rates between two reports of a daemon.
#include "telemetry/rates.h"

#include <gtest/gtest.h>

namespace netsum::telemetry {
namespace {

Report report(double uptime, const Counters& counters, const Counters& of_job, std::uint64_t epoch = 7) {
  Report report;
  report.uptime_seconds = uptime;
  report.counters = counters;
  JobReport job;
  job.job.job = "train";
  job.job.job_epoch = epoch;
  job.counters = of_job;
  report.jobs = {job};
  return report;
}

TEST(Rates, ArePerSecondOfTheDaemonsOwnTime) {
  const auto rates = between(report(10, {{"wire_bytes_received", 1000}, {"packets_received", 10}, {"dropped_kernel", 0}},
                                    {{"bytes", 0}, {"packets", 0}, {"repeats_answered", 0}}),
                             report(12, {{"wire_bytes_received", 3000}, {"packets_received", 100}, {"dropped_kernel", 10}},
                                    {{"bytes", 500}, {"packets", 80}, {"repeats_answered", 8}}));
  ASSERT_TRUE(rates);
  EXPECT_DOUBLE_EQ(rates->bits_in, 8000);
  EXPECT_DOUBLE_EQ(rates->packets_in, 45);
  EXPECT_DOUBLE_EQ(rates->dropped, 0.1);
  EXPECT_DOUBLE_EQ(rates->sent_again, 0.1);
  ASSERT_EQ(rates->jobs.size(), 1U);
  EXPECT_DOUBLE_EQ(rates->jobs.begin()->second.bits_in, 2000);
  EXPECT_DOUBLE_EQ(rates->jobs.begin()->second.packets_in, 40);
}

TEST(Rates, NoneAcrossARestart) {
  EXPECT_FALSE(between(report(10, {}, {}), report(1, {}, {})));
  EXPECT_FALSE(between(report(10, {}, {}), report(10, {}, {})));
}

TEST(Rates, AnotherLifeOfAJobBeginsAnew) {
  const auto rates = between(report(10, {}, {{"bytes", 500}}), report(11, {}, {{"bytes", 100}}, 8));
  ASSERT_TRUE(rates);
  EXPECT_TRUE(rates->jobs.empty());
  EXPECT_DOUBLE_EQ(rates->sent_again, 0);
}

}  // namespace
}  // namespace netsum::telemetry
