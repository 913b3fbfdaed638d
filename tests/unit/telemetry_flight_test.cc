// The flight recorder: what it keeps of a job, what it forgets, and how a file of it reads.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "jobs/switchml_job.h"
#include "netsum/error.h"
#include "session/registry.h"
#include "telemetry/flight_file.h"
#include "telemetry/flight_recorder.h"
#include "telemetry/report.h"
#include "wire/switchml.h"

namespace netsum::telemetry {
namespace {

using namespace std::chrono_literals;
using session::FailureCause;
using session::JobEvent;
using session::JobReport;
using Kind = session::JobEvent::Kind;

class FlightTest : public ::testing::Test {
 protected:
  Time now{1000s};
  FlightRecorder recorder{FlightRecorder::Limits{8, 3, 2, 3}};

  void event(Kind kind, std::optional<std::uint32_t> rank = {}, const std::string& what = {},
             FailureCause cause = FailureCause::none, const std::string& job = "train", std::uint64_t epoch = 7) {
    recorder.record({kind, job, "", epoch, 4, now, rank, what, cause});
  }
  [[nodiscard]] JobReport report(const std::vector<JobReport::Stalled>& stalled, const Counters& counters = {}) const {
    JobReport job;
    job.job.job = "train";
    job.job.job_epoch = 7;
    job.job.world_size = 4;
    job.job.protocol = "switchml";
    job.hosts = {{"10.0.0.1", {0, 1}}, {"10.0.0.2", {2, 3}}};
    job.stalled = stalled;
    job.counters = counters;
    return job;
  }
  void look(const std::vector<JobReport::Stalled>& stalled, const Counters& counters = {}) {
    recorder.look(report(stalled, counters), now);
    now += FlightRecorder::look_interval;
  }
  [[nodiscard]] std::vector<std::string> kinds() const {
    session::JobStatus job;
    job.job = "train";
    job.job_epoch = 7;
    std::vector<std::string> names;
    for (const FlightEvent& each : recorder.latest(job, 100)) names.push_back(each.kind);
    return names;
  }
};

using Names = std::vector<std::string>;

TEST_F(FlightTest, KeepsTheLatestEventsAndCountsTheOthers) {
  for (std::uint32_t rank = 0; rank < 4; ++rank) event(Kind::joined, rank);
  for (int i = 0; i < 10; ++i) event(Kind::rank_refused, 3, "twice");
  event(Kind::failed, 1, "rank 1 died", FailureCause::silent);
  const auto failures = recorder.take_failures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].events.size(), 8U);
  EXPECT_EQ(failures[0].omitted, 7U);
  EXPECT_EQ(failures[0].events.back().what, "rank 1 died");
  EXPECT_EQ(failures[0].lost, 1U);
  EXPECT_TRUE(recorder.take_failures().empty());
  EXPECT_FALSE(recorder.any_running());
  EXPECT_EQ(kinds().back(), "failed") << "status shows a failed job for a while";
}

TEST_F(FlightTest, AJobThatEndsInGoodOrderIsNoFailure) {
  event(Kind::joined, 0);
  event(Kind::started);
  EXPECT_TRUE(recorder.any_running());
  look({{3, 1, 0, {2}}});
  look({});
  event(Kind::left, 0);
  event(Kind::ended);
  EXPECT_TRUE(recorder.take_failures().empty());
  ASSERT_EQ(recorder.ended(now).size(), 1U);
  EXPECT_EQ(recorder.ended(now)[0].cause, "none");
  const auto record = recorder.find({"train"});
  ASSERT_TRUE(record);
  EXPECT_NE(explain(to_json(*record, {})).find("it ended in good order"), std::string::npos);
}

TEST_F(FlightTest, TheLatestJobOfANameIsFoundAndExplainedWhileItRuns) {
  EXPECT_FALSE(recorder.find({"train"}));
  event(Kind::started);
  event(Kind::failed, 1, "rank 1 died", FailureCause::silent);
  now += 1s;
  event(Kind::started, {}, {}, FailureCause::none, "train", 8);
  EXPECT_EQ(recorder.find({"train"})->job_epoch, 8U);
  EXPECT_FALSE(recorder.find({"train", "b"})) << "another tenant's";
  EXPECT_NE(explain(to_json(*recorder.find({"train"}), {})).find("it has not ended"), std::string::npos);
}

TEST_F(FlightTest, JobsThatFailedComeFirstAndNoTenantHidesAnothers) {
  const auto end = [&](const std::string& tenant, const std::string& job, FailureCause cause) {
    const bool failed = cause != FailureCause::none;
    now += 1s;
    recorder.record({Kind::started, job, tenant, 7, 4, now});
    JobReport seen = report({});
    seen.job.job = job;
    seen.job.tenant = tenant;
    seen.hosts = {{"10.0.0.1", {0, 1}, "node7", {40, 41}}};
    recorder.look(seen, now);
    recorder.record({failed ? Kind::failed : Kind::ended, job, tenant, 7, 4, now, failed ? std::optional(1U) : std::nullopt,
                     failed ? "it broke" : "", cause});
    static_cast<void>(recorder.take_failures());
  };
  const auto names = [&] {
    std::vector<std::string> jobs;
    for (const EndedJob& ended : recorder.ended(now)) jobs.push_back(ended.job);
    return jobs;
  };
  end("a", "broken", FailureCause::died);
  for (const char* const job : {"1", "2", "3", "4"}) end("loud", job, FailureCause::none);
  EXPECT_EQ(names(), Names({"broken", "4", "3"}));
  const EndedJob broken = recorder.ended(now + 1s)[0];
  EXPECT_EQ(broken.cause, "died");
  EXPECT_EQ(in_words(broken), "failed 5.0 s ago: it broke (10.0.0.1, node7, process 41)");
  Report all;
  all.ended = recorder.ended(now);
  EXPECT_EQ(visible_to("loud", all).ended.size(), 2U);
}

TEST_F(FlightTest, AChunkThatWaitsForASecondIsStalledUntilItGoesOn) {
  event(Kind::started);
  look({{3, 1, 0, {2}}});
  look({{3, 1, 0, {2}}});
  EXPECT_EQ(kinds(), Names({"started"})) << "half a second is no stall";
  look({{3, 1, 0, {2}}});
  look({{3, 1, 0, {2}}});
  EXPECT_EQ(kinds(), Names({"started", "stalled"})) << "once";
  session::JobStatus job;
  job.job = "train";
  job.job_epoch = 7;
  EXPECT_EQ(recorder.stalled_for(job, now), 2s);
  look({{3, 1, 0, {2, 3}}});
  look({{4, 0, 0, {2}}});
  EXPECT_EQ(kinds(), Names({"started", "stalled", "stalled", "went_on"}));
  EXPECT_EQ(recorder.stalled_for(job, now), 0s);
  const auto events = recorder.latest(job, 2);
  EXPECT_EQ(events[0].what, "operation 3, chunk 1 waits for ranks 2, 3");
  EXPECT_EQ(events[1].what, "operation 3 after 2.5 s");
  for (std::uint64_t operation = 5; operation < 9; ++operation) look({{operation, 0, 0, {2}}});
  EXPECT_EQ(kinds().size(), 4U) << "chunks come and go";
}

TEST_F(FlightTest, ARankThatLeavesWhileOthersWaitForItIsAFailure) {
  event(Kind::started);
  event(Kind::left, 2);
  look({{3, 1, 0, {2}}});
  look({{3, 1, 0, {2}}});
  for (const std::uint32_t rank : {0U, 1U, 3U}) event(Kind::left, rank);
  event(Kind::ended);
  const auto failures = recorder.take_failures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].cause, FailureCause::left);
  EXPECT_EQ(failures[0].lost, 2U);
  EXPECT_EQ(failures[0].failure, "rank 2 of job 'train' left while others waited for it");
}

TEST_F(FlightTest, ADropAndALossyNetworkAreToldOnce) {
  event(Kind::started);
  look({}, {{"packets", 1000}, {"repeats_answered", 0}, {"dropped_mismatch", 0}, {"dropped_old", 1}});
  look({}, {{"packets", 2000}, {"repeats_answered", 100}, {"dropped_mismatch", 2}, {"dropped_old", 9}});
  look({}, {{"packets", 3000}, {"repeats_answered", 200}, {"dropped_mismatch", 5}, {"dropped_old", 9}});
  EXPECT_EQ(kinds(), Names({"started", "dropped", "lossy"}));
  look({}, {{"packets", 4000}, {"repeats_answered", 200}, {"dropped_mismatch", 5}, {"dropped_old", 9}});
  EXPECT_EQ(kinds(), Names({"started", "dropped", "lossy", "lossless"}));
}

TEST_F(FlightTest, AFileThatNestsWithoutEndIsRefused) {
  EXPECT_THROW(static_cast<void>(explain(std::string(200'000, '['))), Error);
}

TEST_F(FlightTest, MemoryIsBounded) {
  const auto refuse = [&](const char* job) { event(Kind::refused, {}, "no", FailureCause::refused, job, 0); };
  for (const char* const job : {"a", "b", "c", "d"}) event(Kind::joined, 0, {}, FailureCause::none, job, 0);
  refuse("d");
  EXPECT_TRUE(recorder.take_failures().empty()) << "three jobs are all that it keeps";
  for (const char* const job : {"a", "b", "c"}) refuse(job);
  EXPECT_EQ(recorder.take_failures().size(), 2U) << "two failures that nobody takes";
  EXPECT_EQ(recorder.failures().value("jobs_failed"), 4U) << "also without a record";
  EXPECT_EQ(recorder.failures().value("jobs_failed_refused"), 4U);
}

// The registry's own words, from a rank's silence to a file that explains it.
TEST(FlightFile, ExplainsASilentRank) {
  Time now{1000s};
  session::RegistryConfig config;
  config.protocols = {jobs::switchml_rules()};
  config.heartbeat_timeout = 3s;
  config.random = [number = std::uint64_t{1}]() mutable { return ++number; };
  session::Registry registry(config);
  FlightRecorder recorder;
  const auto hand_over = [&] {
    for (const session::JobEvent& event : registry.take_events()) recorder.record(event);
  };
  const auto look = [&] {
    for (auto& status : registry.jobs()) {
      JobReport job{.job = std::move(status)};
      locate(job);
      job.counters = {{"packets", 1000}, {"repeats_answered", 50}};
      job.stalled = {{14, 0, 2, {1}}};
      recorder.look(job, now);
    }
  };
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    session::JoinRequest request;
    request.protocol_version = wire::switchml::version;
    request.protocol = "switchml";
    request.job = "train";
    request.rank = rank;
    request.world_size = 2;
    request.packet_elements = 256;
    request.slots_measured = 64;
    request.endpoints = {
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, static_cast<std::uint8_t>(rank + 1)}, 1000, 0}};
    static_cast<void>(registry.join(request, now));
  }
  hand_over();
  const auto start = registry.take_starts().at(0).admission;
  for (int i = 0; i < 8; ++i, now += 500ms) {
    static_cast<void>(registry.heartbeat(start.job_epoch, 0, start.rank_epochs[0], now));
    look();
    registry.on_timer(now);
    hand_over();
  }
  look();
  const auto failures = recorder.take_failures();
  ASSERT_EQ(failures.size(), 1U);
  const auto written = std::chrono::system_clock::time_point(1767323045s);
  const std::string text = explain(to_json(failures[0], {"1.2.3", "aggregator", "10.0.0.9:7170", written, now}));
  for (const char* const words :
       {"job 'train', 2 ranks, switchml, at aggregator 10.0.0.9:7170 (netsum 1.2.3)", "until 2026-01-02 03:04:05 UTC",
        "rank 1 of job 'train' has not been heard from for 3.0 s", "operation 14 waited for rank 1 (10.0.0.2)",
        "+0.000 s  joined", "+1.000 s  stalled", "50 of 1000 packets were answered again",
        "The rank in question: rank 1 (10.0.0.2).", "OOM killer"}) {
    EXPECT_NE(text.find(words), std::string::npos) << "no '" << words << "' in:\n" << text;
  }
}

TEST(FlightFile, WhatIsNoRecordIsAnError) {
  FlightRecord record;
  record.job = "train";
  record.events = {{Time{}, "joined", 3, "x"}};
  record.looked = JobReport{};
  record.looked->stalled = {{1, 2, 3, {4}}};
  const std::string whole = to_json(record, {});
  EXPECT_NO_THROW(static_cast<void>(explain(whole)));
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[]"), std::string("null"), whole + "x", std::string(100'000, '['),
        R"({"netsum_flight_record": 1, "x": )" + std::string(200'000, '[') + std::string(200'000, ']') + "}"}) {
    EXPECT_THROW(static_cast<void>(explain(text)), Error) << text.substr(0, 40);
  }
  for (std::size_t length = 0; length + 2 < whole.size(); length += 5) {
    EXPECT_THROW(static_cast<void>(explain(whole.substr(0, length))), Error) << length;
  }
  std::string escape = whole;
  escape.replace(escape.find("train"), 5, "\\u001b[2J");
  EXPECT_EQ(explain(escape).find('\033'), std::string::npos);
  std::string later = whole;
  later.replace(later.find("record\": 1"), 10, "record\": 2");
  try {
    static_cast<void>(explain(later));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("format 2"), std::string::npos) << error.what();
  }
}

TEST(FlightFolder, KeepsTheNewestFiles) {
  char pattern[] = "/tmp/netsum-flights-XXXXXX";
  ASSERT_NE(mkdtemp(pattern), nullptr);
  const std::string path = std::string(pattern) + "/deep/er";
  const FlightFolder folder(path, 3);
  FlightRecord record;
  record.job = "a/../b c";
  std::vector<std::string> written;
  for (int i = 0; i < 5; ++i) {
    record.job_epoch = static_cast<std::uint64_t>(i);
    written.push_back(
        folder.write(record, {"", "", "", std::chrono::system_clock::time_point(std::chrono::seconds(1'000'000 + i)), {}}));
  }
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(path)) left.push_back(entry.path());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, std::vector<std::string>(written.begin() + 2, written.end()));
  EXPECT_NE(written[0].find("/deep/er/19700112T134640.000-000000-a____b_c.flight.json"), std::string::npos) << written[0];

  // A full disk leaves no half of a record.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  record.job = "last";
  EXPECT_THROW(static_cast<void>(folder.write(record, {})), Error);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  for (const auto& entry : std::filesystem::directory_iterator(path))
    EXPECT_EQ(entry.path().string().find("last"), std::string::npos);

  // Another tenant's, more than there is room for, push out none but their own.
  record.tenant = "loud";
  for (int i = 0; i < 9; ++i) {
    static_cast<void>(
        folder.write(record, {"", "", "", std::chrono::system_clock::time_point(std::chrono::seconds(2'000'000 + i)), {}}));
  }
  for (const std::string& each : left) EXPECT_TRUE(std::filesystem::exists(each)) << each;
  const auto files = std::filesystem::directory_iterator(path);
  EXPECT_EQ(6, std::distance(begin(files), end(files)));
  std::filesystem::remove_all(pattern);
  EXPECT_THROW(FlightFolder("/proc/flights"), Error);
}

}  // namespace
}  // namespace netsum::telemetry
