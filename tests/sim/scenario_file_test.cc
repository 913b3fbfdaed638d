// Scenario files: the examples, and errors that say where they are.

#include "apps/netsum/scenario_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "apps/netsum/config.h"
#include "apps/netsum/workload_file.h"
#include "sim/packet_level.h"

namespace netsum::app {
namespace {

const std::string examples = std::string(NETSUM_SOURCE_DIR) + "/examples/";

TEST(ScenarioFile, EveryExampleIsOne) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(examples + "scenarios")) {
    if (entry.path().extension() != ".toml") continue;
    if (read_whole(entry.path().string()).find("[sweep]") != std::string::npos) continue;  // docs/simulator.md runs it
    ++files;
    EXPECT_NO_THROW((void)read_scenario(entry.path().string())) << entry.path();
  }
  EXPECT_GE(files, 3);
}

// A ring and parameter servers take as long as the bytes of their fullest link: 2 (n - 1) / n M, n M, and 2 (n - 1) / n M.
TEST(ScenarioFile, BaselinesTakeAsLongAsTheirBytes) {
  const sim::Report report = sim::run_packets(read_scenario(examples + "scenarios/baselines.toml"));
  ASSERT_EQ("", report.failure);
  const double switchml = report.jobs.at(0).operation_seconds.at(0);
  for (const auto& [job, ratio] : {std::pair{1U, 2.0 * 7 / 8}, std::pair{2U, 8.0}, std::pair{3U, 2.0 * 7 / 8}})
    EXPECT_NEAR(ratio, report.jobs.at(job).operation_seconds.at(0) / switchml, 0.05 * ratio) << report.jobs[job].name;
}

// Sizes in MiB as the papers have them: SwitchML's Table 1, NetReduce's Table 7, ATP's §5.1. Theirs of AlexNet (236) and of
// ResNet-50 in SwitchML (87) are not of torchvision's layers.
TEST(Workloads, AreAsLargeAsThePapersSay) {
  const std::pair<const char*, double> papers[] = {
      {"vgg16", 528}, {"vgg19", 548},  {"resnet50", 98}, {"bert", 1274},   {"ncf", 121},   {"deeplight", 2319},
      {"lstm", 1627}, {"ugatit", 511}, {"ssd", 98},      {"alexnet", 233}, {"vgg11", 507}, {"resnet152", 230}};
  for (const auto& [model, size] : papers) {
    const sim::Workload workload = read_workload(examples + "workloads/models.toml", model, "");
    EXPECT_NEAR(size, static_cast<double>(workload.parameters()) * 4 / (1 << 20), 0.01 * size) << model;
    EXPECT_GT(workload.iteration, Duration::zero()) << model;
  }
  EXPECT_EQ(std::chrono::microseconds(269'500),
            read_workload(examples + "workloads/models.toml", "resnet50", "p100").iteration);
}

TEST(Workloads, ErrorsNameTheFileAndWhatItHas) {
  const auto complaint_of = [](const std::string& model, const std::string& gpu) -> std::string {
    try {
      (void)read_workload(examples + "workloads/models.toml", model, gpu);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(std::string::npos, complaint_of("vgg17", "").find("models.toml, line"));
  EXPECT_NE(std::string::npos, complaint_of("vgg17", "").find("`model.vgg17` is not a model of this file"));
  EXPECT_NE(std::string::npos, complaint_of("vgg16", "abacus").find("has no GPU 'abacus': it has v100, rtx2080ti"));
}

std::string complaint(const std::string& text) {
  try {
    (void)parse_scenario(text, "test.toml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* small = "[network]\nhosts = 2\n[[job]]\nelements = 1000\n";

TEST(ScenarioFile, TheLeastThatIsOne) {
  const sim::Experiment experiment = parse_scenario(small, "test.toml");
  EXPECT_EQ(3U, experiment.topology.size());
  EXPECT_EQ(2U, experiment.jobs[0].plan.workers);
  EXPECT_EQ(std::vector<sim::NodeId>{0}, experiment.aggregators);
}

TEST(ScenarioFile, ErrorsNameFileLineAndKey) {
  EXPECT_EQ("test.toml, line 1: `network` is missing", complaint(""));
  EXPECT_EQ(0U, complaint(std::string(small) + "colour = 1\n")
                    .find("test.toml, line 5: `job[0].colour` is an unknown key; the keys here are "));
  EXPECT_EQ("test.toml, line 2: `network.hosts` is an integer from 1 to 100000", complaint("[network]\nhosts = \"two\"\n"));
  EXPECT_EQ(
      "test.toml, line 3: `network.link.rate` is wrong: '10 parsecs' is not a rate like 100mbit (bit, kbit, mbit or gbit; "
      "at "
      "most 1600gbit)",
      complaint("[network]\nhosts = 2\nlink = { rate = \"10 parsecs\" }\n"));
  EXPECT_EQ("test.toml, line 3: `network.link.loss` is a number from 0 to 1",
            complaint("[network]\nhosts = 2\nlink = { loss = 3 }\n"));
  EXPECT_EQ("test.toml, line 5: `job[0].hosts` names an unknown node: 'h2'",
            complaint(std::string(small) + "hosts = [\"h0..h2\"]\n"));
  EXPECT_EQ("test.toml, line 1: `protocol` is one of switchml, switchml-rdma, atp, netreduce, bump, ring",
            complaint("protocol = \"tcp\"\n" + std::string(small)));
  EXPECT_EQ("test.toml, line 5: `job[0].pauses` has a span that ends before it begins",
            complaint(std::string(small) + "pauses = [[\"2s\", \"1s\"]]\n"));
  EXPECT_EQ("test.toml, line 7: `job[1].name` is already the name of another job: give each job its own name",
            complaint("[network]\nhosts = 2\n[[job]]\nelements = 10\nname = \"a\"\n[[job]]\nname = \"a\"\nelements = 10\n"));
  EXPECT_EQ(0U, complaint("[network\n").find("test.toml, line 1, column 9: this is not TOML")) << complaint("[network\n");
}

// These were taken in silence, or told of without a place.
TEST(ScenarioFile, RefusesWhatCannotBeMeant) {
  const std::string aggregation = std::string(small) + "[aggregation]\n";
  EXPECT_EQ("test.toml, line 5: `job[0].hosts` names a host twice: 'h1'",
            complaint(small + std::string("hosts = [\"all\", \"h1\"]")));
  EXPECT_EQ("test.toml, line 5: `job[0].hosts` names a switch: 'sw'",
            complaint(small + std::string("hosts = [\"h0\", \"sw\"]")));
  EXPECT_EQ("test.toml, line 5: `job[0].hosts` names a switch: 'sw'",
            complaint(small + std::string("hosts = [\"sw..h1\"]")));
  EXPECT_EQ("test.toml, line 6: `aggregation.aggregators` names a node twice: 'h1'",
            complaint(aggregation + "aggregators = [\"h1\", \"sw\", \"h1\"]"));
  EXPECT_EQ("test.toml, line 6: `aggregation.switches` names a node twice: 'sw'",
            complaint(aggregation + "switches = [\"sw\", \"sw\"]"));
  EXPECT_EQ("test.toml, line 5: `job[0].aggregators` names a node twice: 'sw'",
            complaint(small + std::string("aggregators = [\"sw\", \"sw\"]")));
  EXPECT_EQ(
      "test.toml, line 6: `aggregation.pool_slots` requires a job with protocol = \"atp\": at switches of switchml each job "
      "has slots of its own",
      complaint(aggregation + "pool_slots = 8"));
  EXPECT_EQ("test.toml, line 5: `job[0].slots` is wrong: 100 slots per lane are not a power of two up to 4096",
            complaint(small + std::string("slots = 100")));
  EXPECT_EQ(0U, complaint(small + std::string("packet_elements = 100"))
                    .find("test.toml, line 5: `job[0].packet_elements` is wrong: packets of 100 elements are not possible"));
  EXPECT_EQ("test.toml, line 8: `background[0].tcp` is one of reno, dctcp, cubic",
            complaint(small + std::string("[[background]]\nfrom = \"h0\"\nto = \"h1\"\ntcp = \"vegas\"")));
}

TEST(ScenarioFile, ErrorsOfQueuesAndPausesNameFileLineAndKey) {
  const auto network = [](const std::string& more) {
    return "[network]\nhosts = 2\nlink = { rate = \"1gbit\" }\n" + more + "\n[[job]]\nelements = 10\n";
  };
  EXPECT_EQ("test.toml, line 4: `network.pfc.xoff` is missing", complaint(network("pfc = { priorities = [0] }")));
  EXPECT_EQ(0U,
            complaint(network("pfc = { xoff = \"1kB\" }")).find("test.toml, line 4: `network.pfc.priorities` is missing: "));
  EXPECT_EQ("test.toml, line 4: `network.pfc.xon` must be below xoff",
            complaint(network("pfc = { priorities = [0], xoff = \"1kB\", xon = \"1kB\" }")));
  EXPECT_EQ("test.toml, line 3: `network.pfc` requires that every link has a rate: set the rate of link h0",
            complaint("[network]\nhosts = 2\npfc = { priorities = [0], xoff = \"1kB\" }\n[[job]]\nelements = 10\n"));
  EXPECT_EQ(
      "test.toml, line 4: `network.trunk.red.max` must be above min: the drop probability grows between these two "
      "queue lengths",
      complaint(network("trunk = { red = { min = \"9kB\", max = \"3kB\" } }")));
  EXPECT_EQ("test.toml, line 5: `job[0].priority` is an integer from 0 to 7",
            complaint(small + std::string("priority = 8")));
  EXPECT_EQ("test.toml, line 6: `network.change[0].nodes` names an unknown node: 'leaf0-spine2'",
            complaint("[network]\nkind = \"leaf_spine\"\nspines = 2\nleaves = 2\n"
                      "[[network.change]]\nnodes = [\"leaf0-spine2\"]\nup = { loss = 0.1 }\n"));
}

TEST(ScenarioFile, AChangeMayBeOfOneLinkOfALeaf) {
  const sim::Experiment experiment = parse_scenario(
      "[network]\nkind = \"leaf_spine\"\nspines = 2\nleaves = 2\nhosts = 3\nlink = { rate = \"1gbit\" }\n"
      "[[network.change]]\nnodes = [\"leaf1-spine1\"]\nup = { loss = 0.1 }\n"
      "[[network.change]]\nnodes = [\"leaf0\"]\nlink = { rate = \"2gbit\" }\n"
      "[[job]]\nelements = 10\npriority = 2\n",
      "test.toml");
  const sim::Topology& topology = experiment.topology;
  EXPECT_EQ(2U + 2 + 6, topology.size());
  EXPECT_EQ(2, experiment.jobs[0].priority);
  for (const auto& [name, loss, rate] :
       {std::tuple("leaf0-spine0", 0.0, 2), {"leaf0-spine1", 0.0, 2}, {"leaf1-spine0", 0.0, 1}, {"leaf1-spine1", 0.1, 1}}) {
    const auto link = topology.find_link(name);
    ASSERT_TRUE(link) << name;
    EXPECT_EQ(loss, topology.port(*link, true).loss) << name;
    EXPECT_EQ(0, topology.port(*link, false).loss) << name;
    EXPECT_EQ(1'000'000'000U * static_cast<unsigned>(rate), topology.port(*link, false).bits_per_second) << name;
  }
}

TEST(ScenarioFile, AMistypedKeyIsNamedWithTheOneThatIsMeant) {
  EXPECT_EQ("test.toml, line 4: `job[0].elemnts` is an unknown key: did you mean `elements`?",
            complaint("[network]\nhosts = 2\n[[job]]\nelemnts = 1000\n"));
  EXPECT_EQ("test.toml, line 1: `netwrok` is an unknown key: did you mean `network`?", complaint("[netwrok]\nhosts = 2\n"));
  EXPECT_EQ(
      0U,
      complaint(small + std::string("slotss = 8"))
          .find(
              "test.toml, line 5: `job[0].slotss` is an unknown key: did you mean `slots`? The keys here are aggregators,"));
}

TEST(ScenarioFile, SwitchesSumForTheRanksBelow) {
  const sim::Experiment experiment = parse_scenario(
      "[network]\nkind = \"tree\"\nfan_out = [2, 2, 2]\n[aggregation]\nswitches = \"all\"\n[[job]]\nelements = 1\n", "t");
  ASSERT_EQ(6U, experiment.switches.size());
  const auto name = [&](std::uint32_t switch_id) {
    return switch_id == UINT32_MAX ? "root" : experiment.topology[experiment.switches[switch_id]].name;
  };
  EXPECT_EQ("s1.1", name(experiment.jobs[0].plan.switch_of_rank[7]));
  EXPECT_EQ("s1", name(experiment.parent_of_switch[experiment.jobs[0].plan.switch_of_rank[7]]));
  EXPECT_EQ("root", name(experiment.parent_of_switch[0]));
}

// Hosts with RDMA hardware send their own frames, without a tunnel's headers but with the paper's window, and go back at a
// loss.
TEST(ScenarioFile, HostsBehindABumpGoBack) {
  const auto run = [](const char* protocol, const char* loss) {
    const std::string text = std::string("protocol = \"") + protocol + "\"\n[network]\nhosts = 4\n" +
                             "link = { rate = \"10gbit\", delay = \"1us\", loss = " + loss + " }\n" +
                             "[[job]]\nelements = 500_000\niterations = 3\nslots = 8\nmessage_packets = 8\n";
    sim::Report made = sim::run_packets(parse_scenario(text, "test.toml"));
    EXPECT_EQ("", made.failure) << protocol << ", " << loss;
    return made;
  };
  const auto tat = [](const sim::Report& report) {
    std::vector<double> seconds = report.jobs[0].operation_seconds;
    std::sort(seconds.begin(), seconds.end());
    return seconds.at(seconds.size() / 2);
  };
  const double tunnels = tat(run("netreduce", "0.0")), frames = tat(run("bump", "0.0"));
  EXPECT_LT(frames, 1.05 * tunnels);
  EXPECT_GT(frames, 0.95 * tunnels);
  EXPECT_GT(run("bump", "0.01").jobs[0].retransmissions, 4 * run("netreduce", "0.01").jobs[0].retransmissions);
}

// It was followed for ever.
TEST(ScenarioFile, ParentsLeadToAnAggregator) {
  const std::string tree = "[network]\nkind = \"tree\"\nfan_out = [3, 2]\n[aggregation]\nswitches = \"all\"\n";
  const std::string job = "[[job]]\nelements = 1\n";
  EXPECT_EQ("", complaint(tree + "parents = { s0 = \"s1\", s1 = \"s2\" }\n" + job));
  EXPECT_EQ("test.toml, line 6: `aggregation.parents.s0` is above itself: parents must lead to an aggregator",
            complaint(tree + "parents = { s0 = \"s1\", s1 = \"s2\", s2 = \"s0\" }\n" + job));
  EXPECT_EQ("test.toml, line 6: `aggregation.parents.s2` is above itself: parents must lead to an aggregator",
            complaint(tree + "parents = { s0 = \"s1\", s2 = \"s2\" }\n" + job));
}

TEST(ScenarioFile, AChangeIsOfTheNamedNodesOnly) {
  const sim::Experiment experiment = parse_scenario(
      "[network]\nhosts = 3\nlink = { rate = \"1gbit\" }\n[[network.change]]\nnodes = [\"h1\"]\nlink = { rate = \"10gbit\" "
      "}\n"
      "up = { loss = 0.5 }\n[[job]]\nelements = 1\n",
      "t");
  const auto& topology = experiment.topology;
  EXPECT_EQ(1'000'000'000U, topology[*topology.find("h0")].up.bits_per_second);
  EXPECT_EQ(10'000'000'000U, topology[*topology.find("h1")].down.bits_per_second);
  EXPECT_EQ(0.5, topology[*topology.find("h1")].up.loss);
  EXPECT_EQ(0, topology[*topology.find("h1")].down.loss);
}

}  // namespace
}  // namespace netsum::app
