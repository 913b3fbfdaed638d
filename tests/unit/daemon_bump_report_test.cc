// A bump's numbers: a ring as a job, and all of it in one line.
#include "daemon/bump_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "protocol/netreduce/ring_text.h"

namespace netsum::daemon {
namespace {

bool has_counter(const Counters& counters, const std::string& name) {
  return std::any_of(counters.begin(), counters.end(), [&](const auto& each) { return each.first == name; });
}

TEST(BumpReport, HasARingAsAJob) {
  netreduce::RingConfig ring = netreduce::parse_ring("id=4,ranks=3,packets=8,window=2,mtu=1024,dtype=float16");
  ring.incarnation = 77;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory(netreduce::Accelerator::memory_bytes(ring) / sizeof(Line) + 1);
  netreduce::Accelerator accelerator;
  ASSERT_TRUE(accelerator.add_ring(ring, std::as_writable_bytes(std::span(memory))));
  const telemetry::JobReport report = report_of(ring, true, accelerator);
  EXPECT_EQ("ring 4", report.job.job);
  EXPECT_EQ(77U, report.job.job_epoch);
  EXPECT_EQ(3U, report.job.world_size);
  EXPECT_EQ(512U, report.job.packet_elements);
  EXPECT_EQ(4U, report.job.slots);
  EXPECT_TRUE(report.job.running);
  EXPECT_TRUE(report.stalled.empty());
  EXPECT_TRUE(has_counter(report.counters, "sums"));
}

TEST(BumpReport, HasTheSameCountersForARingThatHasNotBegun) {
  netreduce::RingConfig ring = netreduce::parse_ring("ranks=2");
  const telemetry::JobReport report = report_of(ring, false, netreduce::Accelerator());
  EXPECT_TRUE(has_counter(report.counters, "sums"));
  EXPECT_EQ(0U, report.counters.value("sums"));
}

TEST(BumpReport, HasDatagramsWithRacksAlone) {
  const netreduce::Bump bump((netreduce::BridgeConfig()));
  EXPECT_TRUE(has_counter(counters_of(bump, false), "roce_passed"));
  EXPECT_FALSE(has_counter(counters_of(bump, false), "agreements_ready"));
  EXPECT_TRUE(has_counter(counters_of(bump, true), "roce_passed"));
  EXPECT_TRUE(has_counter(counters_of(bump, true), "agreements_ready"));
  EXPECT_TRUE(has_counter(counters_of(bump, true), "datagrams_taken"));
}

TEST(BumpReport, SumsUpWhatRingsAndPortsCount) {
  telemetry::Report report;
  report.counters = {{"packets_received", 10}, {"packets_sent", 9}, {"port0_dropped_full", 2}, {"roce_passed", 5}};
  report.jobs.resize(2);
  report.jobs[0].counters = {{"sums", 3}, {"dropped_old", 1}};
  report.jobs[1].counters = {{"sums", 4}};
  EXPECT_EQ("10 frames received, 9 sent, 7 packets summed, 3 frames dropped", summary_of(report));
}

}  // namespace
}  // namespace netsum::daemon
