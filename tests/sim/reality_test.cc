// The simulator against reality: tensor aggregation times that scripts/bench measured over scripts/testbed's links
// (bench/results/performance.json), within 5 %.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/netsum/scenario_file.h"
#include "sim/packet_level.h"

namespace netsum::sim {
namespace {

// Of a run: its group in scripts/bench's suites, and the entrant.
double measured(const std::string& run) {
  std::ifstream file(std::string(NETSUM_SOURCE_DIR) + "/bench/results/performance.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  for (const auto& processor : all.at("processors")) {
    if (processor.at("runs").contains(run)) return processor.at("runs").at(run).at("tat_seconds").get<double>();
  }
  throw std::runtime_error("bench/results/performance.json has no run '" + run + "'");
}

void expect_as_measured(const std::string& run, const std::string& scenario) {
  const Report report = run_packets(app::parse_scenario(scenario, "test.toml"));
  ASSERT_EQ("", report.failure) << run;
  const double tat = report.jobs[0].operation_seconds[0], as_measured = measured(run);
  EXPECT_NEAR(as_measured, tat, 0.05 * as_measured) << run;
}

// Four workers of 25 MB behind links as scripts/testbed --hosts 4 makes them: its queues, and no delay.
std::string testbed(const std::string& protocol, const std::string& rate, const std::string& loss) {
  return "protocol = \"" + protocol + "\"\n[network]\nhosts = 5\nlink = { rate = \"" + rate +
         "\", buffer = \"150kB\", loss = " + loss + " }\n[[job]]\nhosts = [\"h0..h3\"]\nelements = 6_250_000\n";
}

TEST(Reality, SwitchMlWithoutAndWithLosses) {
  const std::string job = "packet_elements = 320\nslots = 64\n";
  expect_as_measured("loss-4: SwitchML, 0 %, 6250000", testbed("switchml", "200mbit", "0") + job);
  expect_as_measured("loss-4: SwitchML, 1 %, 6250000", testbed("switchml", "200mbit", "0.01") + job);
  expect_as_measured("shaped-4: SwitchML, int8 on the wire, 6250000",
                     testbed("switchml", "200mbit", "0") + job + "wire = \"int8\"\n");
}

// The parameter server has a host of its own.
TEST(Reality, AtpWithoutAndWithLosses) {
  const std::string job =
      "packet_elements = 320\nslots = 256\n"
      "[aggregation]\naggregators = [\"h4\"]\nswitches = [\"sw\"]\npool_slots = 1024\n";
  expect_as_measured("repair-4-atp: ATP, 0 %, 6250000", testbed("atp", "200mbit", "0") + job);
  expect_as_measured("repair-4-atp: ATP, 1 %, 6250000", testbed("atp", "200mbit", "0.01") + job);
}

// A window of 32 KiB in four messages, as its ranks choose on short paths.
TEST(Reality, NetReduceWithoutLosses) {
  expect_as_measured("repair-4-netreduce: NetReduce, 0 %, 6250000",
                     testbed("netreduce", "100mbit", "0") + "slots = 4\nmessage_packets = 8\n");
}

}  // namespace
}  // namespace netsum::sim
