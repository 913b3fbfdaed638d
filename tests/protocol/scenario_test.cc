// Protocols and congestion controls that the product does not have, by name in scenario files.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "apps/netsum/scenario_file.h"
#include "protocol/additive.h"
#include "protocol/baseline/simulated.h"
#include "sim/atp.h"
#include "sim/flow_level.h"
#include "sim/packet_level.h"

namespace netsum {
namespace {

class OwnProtocols : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    sim::register_protocol("baseline",
                           []() -> std::unique_ptr<sim::Protocol> { return std::make_unique<baseline::Simulated>(); });
    sim::register_protocol("atp-additive", [] { return sim::make_atp(additive::make); });
  }
};

sim::Report run(const std::string& network, const std::string& jobs, const std::string& aggregation = "") {
  const sim::Report report = sim::run_packets(
      app::parse_scenario("[network]\nkind = \"star\"\n" + network + "\n[aggregation]\n" + aggregation + jobs, "test"));
  EXPECT_EQ("", report.failure);
  return report;
}

// All ranks' values, and their sums, cross the server's link: n M bytes each way.
TEST_F(OwnProtocols, AServerAtAHostTakesAsLongAsItsLink) {
  const sim::Report report =
      run("hosts = 5\nlink = { rate = \"1gbit\", delay = \"1us\" }",
          "[[job]]\nprotocol = \"baseline\"\nhosts = [\"h0..h3\"]\naggregators = [\"h4\"]\nslots = 16\nelements = 250_000\n"
          "[[job]]\nname = \"beside\"\nhosts = [\"h0..h3\"]\naggregators = [\"sw\"]\nelements = 1000\n",
          "aggregators = [\"h4\", \"sw\"]\n");
  const double packets = 4 * 250'000 / 256.0, bytes = packets * (256 * 4 + baseline::header_bytes + 42);
  EXPECT_NEAR(bytes * 8 / 1e9, report.jobs.at(0).operation_seconds.at(0), 0.02 * bytes * 8 / 1e9);
  EXPECT_LT(report.jobs.at(1).operation_seconds.at(0), 0.01);
}

TEST_F(OwnProtocols, StandBesideSwitchesThatTheyDoNotHave) {
  const std::string job =
      "[[job]]\nprotocol = \"baseline\"\naggregators = [\"sw\"]\nhosts = [\"h0\", \"h1\"]\nelements = 1000\n";
  const sim::Report report = run(
      "hosts = 5",
      job +
          "[[job]]\nname = \"atp\"\nprotocol = \"atp\"\naggregators = [\"h4\"]\nhosts = [\"h2\", \"h3\"]\nelements = 1000\n",
      "aggregators = [\"sw\", \"h4\"]\nswitches = [\"sw\"]\npool_slots = 256\n");
  EXPECT_EQ(1U, report.jobs.at(0).operation_seconds.size());
}

TEST_F(OwnProtocols, HaveTheirOwnLimitsAndNoFlows) {
  const std::string job = "[network]\nkind = \"star\"\nhosts = 70\n[[job]]\nprotocol = \"baseline\"\nelements = 1000\n";
  try {
    (void)app::parse_scenario(job + "packet_elements = 4096\n", "test");
    ADD_FAILURE();
  } catch (const app::UsageError& error) {
    EXPECT_NE(std::string::npos, std::string(error.what()).find("1 to 2048 elements")) << error.what();
  }
  const sim::Experiment experiment = app::parse_scenario(job, "test");
  EXPECT_THROW((void)sim::run_packets(experiment), sim::ImpossibleExperiment) << "65 ranks at most";
  EXPECT_THROW((void)sim::run_flows(experiment), sim::ImpossibleExperiment);
  EXPECT_THROW(sim::register_protocol("atp", [] { return sim::make_atp(); }), std::invalid_argument);
}

// Both fill the bottleneck; the other control has fewer packets in flight at first, and another window in the end.
TEST_F(OwnProtocols, ATPTakesAnotherCongestionControl) {
  const auto job = [](const std::string& protocol) {
    return "[[job]]\nprotocol = \"" + protocol +
           "\"\nhosts = [\"h0..h3\"]\nslots = 256\nelements = 2_000_000\n[output]\nseries = [\"job.job0.window\"]\nbin = "
           "\"100us\"\n";
  };
  const std::string network =
      "hosts = 5\nlink = { rate = \"1gbit\", delay = \"10us\", buffer = \"256kB\", mark = \"64kB\" }";
  const std::string server = "aggregators = [\"h4\"]\nswitches = [\"sw\"]\npool_slots = 1024\n";
  const sim::Report aimd = run(network, job("atp"), server), additive = run(network, job("atp-additive"), server);
  const auto first_window = [](const sim::Report& report) {
    const std::vector<double>& windows = report.series.at("job.job0.window");
    return *std::find_if(windows.begin(), windows.end(), [](double window) { return window > 0; });
  };
  EXPECT_EQ(8, first_window(additive));
  EXPECT_LT(8, first_window(aimd));
  EXPECT_LT(*std::max_element(additive.series.at("job.job0.window").begin(), additive.series.at("job.job0.window").end()),
            256);
  const double least = 2e6 / 256 * (256 * 4 + 66) * 8 / 1e9;
  for (const sim::Report* report : {&aimd, &additive})
    EXPECT_NEAR(least, report->jobs.at(0).operation_seconds.at(0), 0.1 * least);
}

}  // namespace
}  // namespace netsum
