// What a daemon keeps of its jobs: looks when they are due, what reports show, and one file and line of each job that
// failed.
#include "control/flights.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

namespace netsum::control {
namespace {

using namespace std::chrono_literals;
using Kind = session::JobEvent::Kind;

class FlightsTest : public ::testing::Test {
 protected:
  void event(Kind kind, const std::string& what = {}, const std::string& tenant = {}) {
    flights.record({kind, "train", tenant, 7, 2, now, 1, what, session::FailureCause::died});
  }

  Time now{1000s};
  std::vector<std::string> lines;
  Journal journal{[this](const std::string& line) { lines.push_back(line); }};
  Flights flights{journal};
};

TEST_F(FlightsTest, LooksTwiceASecondWhileAJobRuns) {
  EXPECT_EQ(flights.next_look(), never);
  EXPECT_FALSE(flights.takes_look(now));
  event(Kind::started);
  EXPECT_EQ(flights.next_look(), now + 500ms);
  EXPECT_FALSE(flights.takes_look(now + 499ms));
  EXPECT_TRUE(flights.takes_look(now + 500ms));
  EXPECT_FALSE(flights.takes_look(now + 501ms));
  EXPECT_TRUE(flights.takes_look(now + 1s));
  event(Kind::ended);
  EXPECT_EQ(flights.next_look(), never);
}

TEST_F(FlightsTest, ReportsHaveTheLatestEventsAndJobsThatEnded) {
  event(Kind::started);
  event(Kind::rank_refused, "twice");
  telemetry::JobReport job;
  job.job.job = "train";
  job.job.job_epoch = 7;
  flights.add_to(job, now + 3s, 1);
  ASSERT_EQ(job.events.size(), 1U);
  EXPECT_EQ(job.events[0].what, "twice");
  EXPECT_EQ(job.events[0].age_seconds, 3);
  telemetry::JobReport bare = job;
  bare.events.clear();
  flights.add_to(bare, now, 0);
  EXPECT_TRUE(bare.events.empty());
  event(Kind::failed, "rank 1 died");
  flights.write_failures({});
  telemetry::Report report;
  flights.add_ended_to(report, now);
  flights.add_failures_to(report);
  ASSERT_EQ(report.ended.size(), 1U);
  bool counted = false;
  for (const auto& [name, value] : report.counters) counted |= name == "jobs_failed_died" && value == 1;
  EXPECT_TRUE(counted);
}

TEST_F(FlightsTest, EachJobThatFailedHasAFileAndALine) {
  std::string folder = (std::filesystem::temp_directory_path() / "netsum-flights-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  flights.keep_files_in(folder);
  event(Kind::started);
  event(Kind::failed, "rank 1 died");
  flights.write_failures({});
  flights.write_failures({});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("netsum explain " + folder), std::string::npos) << lines[0];
  EXPECT_TRUE(flights.find({"train", {}}).has_value());
  EXPECT_FALSE(flights.find({"other", {}}).has_value());

  // A folder that is gone is one warning, and no exception.
  std::filesystem::remove_all(folder);
  event(Kind::started);
  event(Kind::failed, "rank 1 died");
  flights.write_failures({});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[1].starts_with("warning: ")) << lines[1];
}

}  // namespace
}  // namespace netsum::control
