#include "scenario_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "session/check.h"
#include "sim/protocol.h"
#include "sim/random.h"
#include "sim/switchml_rdma.h"
#include "sim/workload.h"
#include "table_reader.h"
#include "workload_file.h"

namespace netsum::app {
namespace {

constexpr std::uint64_t most_hosts = 100'000;
constexpr Duration for_ever = Duration::max();
constexpr std::uint64_t arrivals_label = 1'000'000;  // of random numbers, beside those of the run

// ---- the network

sim::RedPlan read_red(TableReader& reader) {
  sim::RedPlan red;
  red.least_bytes = reader.bytes("min", 0);
  red.most_bytes = reader.bytes("max", 0);
  if (red.most_bytes <= red.least_bytes)
    throw reader.error("max", "must be above min: the drop probability grows between these two queue lengths");
  red.most_chance = reader.real("probability", red.most_chance, 0, 1);
  red.weight = reader.real("weight", red.weight, 1e-6, 1);
  red.marks = reader.flag("mark", false);
  reader.end();
  return red;
}

void read_port(TableReader& reader, sim::PortPlan& port) {
  port.bits_per_second = reader.rate("rate", port.bits_per_second);
  port.delay = reader.duration("delay", port.delay);
  port.buffer_bytes = reader.bytes("buffer", port.buffer_bytes);
  port.mark_bytes = reader.bytes("mark", port.mark_bytes);
  port.loss = reader.real("loss", port.loss, 0, 1);
  port.loss_burst = reader.real("loss_burst", port.loss_burst, 1, 1'000'000);
  if (port.loss_burst > 1 && port.loss / (1 - port.loss) > port.loss_burst)
    throw reader.error("loss_burst",
                       "is too short for this loss: between two bursts a packet arrives, so at most loss_burst / "
                       "(loss_burst + 1) of the packets are lost; raise loss_burst");
  if (auto red = reader.table("red")) port.red = read_red(*red);
  if (reader.has("outages")) port.outages.clear();
  for (const auto& [from, to] : reader.spans("outages")) port.outages.push_back({from, to});
  reader.end();
}

void read_node(TableReader& reader, sim::NodePlan& node) {
  node.shared_buffer_bytes = reader.bytes("buffer", node.shared_buffer_bytes);
  for (const auto& [key, cost] : {std::pair("send", &node.send_cost), std::pair("receive", &node.receive_cost)}) {
    const Duration given = reader.duration(key, for_ever);
    if (given != for_ever) *cost = given;
  }
  if (reader.has("packets_per_second")) {
    if (reader.has("receive")) throw reader.error("receive", "and packets_per_second exclude each other");
    const auto rate = static_cast<std::int64_t>(reader.number("packets_per_second", 1, 1, 1'000'000'000));
    node.receive_cost = sim::PacketCost(std::chrono::seconds(1)) / rate;
  }
  node.threads = static_cast<std::uint32_t>(reader.number("threads", node.threads, 1, 1024));
  node.receive_packets = static_cast<std::uint32_t>(reader.number("receive_packets", node.receive_packets, 1, 1 << 30));
  reader.end();
}

sim::NodeId node_named(const sim::Topology& topology, const TableReader& reader, const std::string& key,
                       const std::string& name) {
  const auto node = topology.find(name);
  if (!node) throw reader.error(key, "names an unknown node: '" + name + "'");
  return *node;
}

// Each once: who names a node twice means another one.
std::vector<sim::NodeId> read_nodes(TableReader& reader, const std::string& key, const sim::Topology& topology) {
  std::vector<sim::NodeId> nodes;
  std::set<sim::NodeId> named;
  for (const std::string& name : reader.texts(key)) {
    nodes.push_back(node_named(topology, reader, key, name));
    if (!named.insert(nodes.back()).second) throw reader.error(key, "names a node twice: '" + name + "'");
  }
  return nodes;
}

sim::PfcPlan read_pfc(TableReader& reader) {
  sim::PfcPlan pfc;
  for (const std::uint64_t priority : reader.numbers("priorities", 0, sim::priorities - 1))
    pfc.of |= static_cast<std::uint8_t>(1U << priority);
  if (pfc.of == 0) throw reader.missing("priorities", ": for example [0], those of all jobs that have none of their own");
  pfc.off = reader.bytes("xoff", 0);
  if (pfc.off == 0) throw reader.missing("xoff");
  pfc.on = reader.bytes("xon", pfc.off / 2);
  if (pfc.on >= pfc.off) throw reader.error("xon", "must be below xoff");
  if (reader.has("headroom")) pfc.headroom = reader.bytes("headroom", 0);
  reader.end();
  return pfc;
}

std::uint8_t read_priority(TableReader& reader) {
  return static_cast<std::uint8_t>(reader.number("priority", 0, 0, sim::priorities - 1));
}

// Of nodes and of links, "leaf0-spine1".
void read_change(TableReader& change, sim::Topology& topology) {
  if (!change.has("nodes")) throw change.error("nodes", "is missing");
  for (const std::string& name : change.texts("nodes")) {
    const auto link = topology.find(name) ? std::nullopt : topology.find_link(name);
    const sim::NodeId node = link ? topology.lower(*link) : node_named(topology, change, "nodes", name);
    for (const sim::LinkId each : link ? std::vector{*link} : topology.links_above(node)) {
      for (const auto& [key, both, up] : {std::tuple("link", true, true), {"up", false, true}, {"down", false, false}}) {
        if (auto port = change.table(key)) read_port(*port, topology.port(each, up));
        if (auto port = both ? change.table(key) : std::nullopt) read_port(*port, topology.port(each, !up));
      }
    }
    if (auto costs = change.table("node")) {
      if (link) throw change.error("node", "is of nodes, and '" + name + "' is a link");
      read_node(*costs, topology[node]);
    }
  }
  change.end();
}

sim::Topology read_network(TableReader& reader) {
  sim::Uniform all;
  if (auto link = reader.table("link")) read_port(*link, all.link);
  all.trunk = all.link;
  if (auto trunk = reader.table("trunk")) read_port(*trunk, all.trunk);
  if (auto host = reader.table("host")) read_node(*host, all.host);
  if (auto plan = reader.table("switch")) read_node(*plan, all.switch_plan);
  const std::vector<std::string> kinds{"star", "tree", "shared", "leaf_spine"};
  sim::Topology topology;
  const auto count = [&](const char* key) { return static_cast<std::uint32_t>(reader.number(key, 2, 1, most_hosts)); };
  switch (reader.choice("kind", kinds, 0)) {
    case 0:
      topology = sim::star(count("hosts"), all);
      break;
    case 1: {
      std::vector<std::uint32_t> fan_out;
      std::uint64_t hosts = 1;
      for (const std::uint64_t each : reader.numbers("fan_out", 1, most_hosts)) {
        fan_out.push_back(static_cast<std::uint32_t>(each));
        hosts = std::min(hosts * each, most_hosts + 1);
      }
      if (fan_out.empty()) throw reader.missing("fan_out", ": for example [4, 16], 4 racks of 16 hosts");
      if (hosts > most_hosts) throw reader.error("fan_out", "makes more than " + std::to_string(most_hosts) + " hosts");
      topology = sim::tree(fan_out, all);
      break;
    }
    case 2:
      topology = sim::shared_bottleneck(count("left"), count("right"), all);
      break;
    default: {
      const std::uint32_t spines = count("spines"), leaves = count("leaves"), hosts = count("hosts");
      if (std::uint64_t{leaves} * std::max(hosts, spines) > most_hosts)
        throw reader.error("leaves", "makes more than " + std::to_string(most_hosts) + " hosts or links");
      topology = sim::leaf_spine(spines, leaves, hosts, all);
    }
  }
  for (TableReader& change : reader.tables("change")) read_change(change, topology);
  if (auto pfc = reader.table("pfc")) {
    topology.pfc = read_pfc(*pfc);
    for (sim::LinkId link = 0; link < topology.links(); ++link) {
      if (topology.upper(link) == sim::no_node) continue;
      if (topology.port(link, true).bits_per_second == 0 || topology.port(link, false).bits_per_second == 0)
        throw reader.error("pfc", "requires that every link has a rate: set the rate of link " + topology.link_name(link));
    }
  }
  reader.end();
  return topology;
}

// ---- who sums

void read_aggregation(TableReader& reader, sim::Experiment& experiment) {
  const sim::Topology& topology = experiment.topology;
  experiment.aggregators = read_nodes(reader, "aggregators", topology);
  const std::vector<std::string> names = reader.texts("switches");
  if (names == std::vector<std::string>{"all"}) {
    const bool root_too = reader.flag("root", false);
    for (sim::NodeId node = 0; node < topology.size(); ++node) {
      if (topology[node].is_switch && (root_too || topology[node].above != sim::no_node))
        experiment.switches.push_back(node);
    }
  } else {
    experiment.switches = read_nodes(reader, "switches", topology);
  }
  const auto index_of = [&](sim::NodeId node) {
    const auto found = std::find(experiment.switches.begin(), experiment.switches.end(), node);
    return found == experiment.switches.end() ? UINT32_MAX : static_cast<std::uint32_t>(found - experiment.switches.begin());
  };
  const auto sums = [&](sim::NodeId node) { return index_of(node) != UINT32_MAX; };
  for (const sim::NodeId node : experiment.switches) {
    const sim::NodeId parent = topology.at_or_above(topology[node].above, sums);
    experiment.parent_of_switch.push_back(parent == sim::no_node ? UINT32_MAX : index_of(parent));
  }
  if (auto parents = reader.table("parents")) {
    for (const std::string& key : parents->keys()) {
      const std::uint32_t of = index_of(node_named(topology, *parents, key, key));
      const std::uint32_t parent = index_of(node_named(topology, *parents, key, parents->text(key)));
      if (of == UINT32_MAX || parent == UINT32_MAX) throw parents->error(key, "must be switches that sum");
      experiment.parent_of_switch[of] = parent;
    }
    for (const std::string& key : parents->keys()) {
      const std::uint32_t of = index_of(*topology.find(key));
      std::uint32_t at = experiment.parent_of_switch[of];
      for (std::size_t steps = 1; at != UINT32_MAX && at != of && steps < experiment.switches.size(); ++steps)
        at = experiment.parent_of_switch[at];
      if (at == of) throw parents->error(key, "is above itself: parents must lead to an aggregator");
    }
  }
  experiment.pool_slots = static_cast<std::uint32_t>(reader.number("pool_slots", 0, 1, 1 << 24));
  experiment.pool_parts = static_cast<std::uint32_t>(reader.number("pool_parts", 0, 1, 1024));
  reader.end();
}

// ---- jobs

// "h0..h3", "h7", or "all": all hosts.
std::vector<sim::NodeId> read_hosts(TableReader& reader, const sim::Topology& topology) {
  std::vector<sim::NodeId> nodes;
  std::vector<std::string> names = reader.texts("hosts");
  if (names.empty()) names.emplace_back("all");
  for (const std::string& name : names) {
    const std::size_t dots = name.find("..");
    if (name == "all") {
      for (sim::NodeId node = 0; node < topology.size(); ++node) {
        if (!topology[node].is_switch) nodes.push_back(node);
      }
    } else if (dots == std::string::npos) {
      nodes.push_back(node_named(topology, reader, "hosts", name));
    } else {
      const sim::NodeId first = node_named(topology, reader, "hosts", name.substr(0, dots));
      const sim::NodeId last = node_named(topology, reader, "hosts", name.substr(dots + 2));
      if (first > last) throw reader.error("hosts", "ends before it begins: '" + name + "'");
      nodes.push_back(first);
      for (sim::NodeId node = first + 1; node <= last; ++node) {
        if (!topology[node].is_switch || node == last) nodes.push_back(node);
      }
    }
  }
  std::vector<bool> named(topology.size());
  for (const sim::NodeId node : nodes) {
    if (topology[node].is_switch) throw reader.error("hosts", "names a switch: '" + topology[node].name + "'");
    if (named[node]) throw reader.error("hosts", "names a host twice: '" + topology[node].name + "'");
    named[node] = true;
  }
  return nodes;
}

// A file that the scenario names, from its own folder.
std::string beside(const std::string& path, const std::string& file) {
  if (file.starts_with("/")) return file;
  return path.substr(0, path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1) + file;
}

std::vector<sim::Bucket> read_compute(TableReader& reader, const std::string& path) {
  const bool computes = reader.flag("computes", true);
  std::vector<sim::Bucket> buckets;
  if (reader.has("model")) {
    sim::Workload workload =
        read_workload(beside(path, reader.text("workloads")), reader.text("model"), reader.text("gpu", ""));
    workload.iteration = reader.duration("iteration", workload.iteration);
    const std::vector<std::string> names{"layers", "buckets", "pieces", "whole"};
    const auto bucketing = static_cast<sim::Bucketing>(reader.choice("bucketing", names, 1));
    const std::uint64_t bytes = reader.bytes("bucket", bucketing == sim::Bucketing::pieces ? 4'000'000 : 25 << 20);
    if (bytes < 4) throw reader.error("bucket", "must hold at least one element, 4 bytes");
    buckets = sim::buckets_of(workload, bucketing, bytes);
  } else if (reader.has("bucket")) {
    for (TableReader& each : reader.tables("bucket")) {
      sim::Bucket bucket;
      bucket.elements = each.number("elements", 0, 1, std::uint64_t{1} << 33);
      bucket.forward = each.duration("forward", Duration::zero());
      bucket.backward = each.duration("backward", Duration::zero());
      if (bucket.elements == 0) throw each.missing("elements");
      each.end();
      buckets.push_back(bucket);
    }
  } else {
    if (!reader.has("elements")) throw reader.missing("elements", ": give elements, a model or [[job.bucket]]");
    buckets.push_back({reader.number("elements", 1, 1, std::uint64_t{1} << 33), Duration::zero(), Duration::zero()});
  }
  if (!computes) {
    for (sim::Bucket& bucket : buckets) bucket.forward = bucket.backward = Duration::zero();
  }
  return buckets;
}

// The protocol of the product that it is a kind of, or itself.
std::string kind_of(const std::string& protocol) {
  return sim::make_protocol(protocol)->rules().name;
}

void read_protocol(TableReader& reader, const std::string& protocol, sim::JobPlan& plan) {
  const bool ring = kind_of(protocol) == "netreduce";
  plan.packet_elements = static_cast<std::uint32_t>(reader.number("packet_elements", 256, 1, 16'384));
  plan.slots = static_cast<std::uint32_t>(reader.number("slots", ring ? 8 : 64, 1, session::most_slots));
  const auto check = [&](const char* key, const std::string& why) {
    if (!why.empty()) throw reader.error(key, "is wrong: " + why);
  };
  check("packet_elements", sim::make_protocol(protocol)->rules().check_packet(plan.packet_elements));
  check("slots", session::check_slots(plan.slots));
  if (kind_of(protocol) == "atp") {
    plan.indexing = static_cast<std::uint32_t>(reader.choice("indexing", {"rehash", "hash", "linear"}, 0));
    plan.congestion_control = reader.flag("congestion_control", true);
    plan.paper_rules = reader.choice("rules", {"netsum", "paper"}, 0) == 1;
    plan.numbers = reader.flag("rescaled", false) ? sim::Numbers::rescaled : sim::Numbers::scaled;
  }
  if (kind_of(protocol) == "switchml-rdma") sim::set_blocks(plan);
  if (!ring) return;
  plan.message_packets = static_cast<std::uint32_t>(reader.number("message_packets", 8, 1, 1024));
  plan.unordered = reader.flag("unordered", false);
  plan.numbers = sim::Numbers::in_order;
}

// A row of numbers for each line of the file, between commas.
std::vector<std::vector<double>> read_trace(TableReader& reader, const std::string& path) {
  std::vector<std::vector<double>> rows;
  std::string text;
  try {
    text = read_whole(path);
  } catch (const UsageError& error) {
    throw reader.error("trace", std::string("is wrong: ") + error.what());
  }
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream cells(line);
    std::vector<double>& row = rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) {
      std::size_t end = 0;
      try {
        row.push_back(std::stod(cell, &end));
      } catch (const std::exception&) {
        end = 0;
      }
      if (end == 0 || cell.find_first_not_of(" \t\r", end) != std::string::npos || !(row.back() >= 0 && row.back() <= 1e6))
        throw reader.error("trace", "names " + path + ", where line " + std::to_string(number) + " has '" + cell +
                                        "': each cell must be a number from 0 to 1000000");
    }
  }
  if (rows.empty()) throw reader.error("trace", "names " + path + ", which has no numbers");
  return rows;
}

// The value of a `protocol`.
std::string read_name(TableReader& reader, const std::string& otherwise) {
  const std::vector<std::string> names = sim::scenario_protocol_names();
  const auto known = std::find(names.begin(), names.end(), otherwise);
  return names[reader.choice("protocol", names, static_cast<std::size_t>(known - names.begin()))];
}

sim::ExperimentJob read_job(TableReader& reader, const sim::Experiment& experiment, const std::string& path,
                            std::size_t index) {
  sim::ExperimentJob job;
  sim::JobPlan& plan = job.plan;
  plan.name = reader.text("name", "job" + std::to_string(index));
  job.nodes = read_hosts(reader, experiment.topology);
  plan.workers = static_cast<std::uint32_t>(job.nodes.size());
  plan.attempts = 1;
  plan.operation_deadline = reader.duration("deadline", std::chrono::seconds(120));
  job.protocol = read_name(reader, experiment.protocol);
  read_protocol(reader, job.protocol, plan);
  for (const sim::NodeId node : read_nodes(reader, "aggregators", experiment.topology)) {
    const auto found = std::find(experiment.aggregators.begin(), experiment.aggregators.end(), node);
    if (found == experiment.aggregators.end())
      throw reader.error("aggregators", "names a node that is not an aggregator: '" + experiment.topology[node].name + "'");
    plan.aggregators.push_back(static_cast<std::uint32_t>(found - experiment.aggregators.begin()));
  }
  const auto index_of = [&](sim::NodeId node) {
    return static_cast<std::uint32_t>(std::find(experiment.switches.begin(), experiment.switches.end(), node) -
                                      experiment.switches.begin());
  };
  for (const sim::NodeId host : job.nodes) {
    if (experiment.switches.empty()) break;
    const sim::NodeId at =
        experiment.topology.at_or_above(host, [&](sim::NodeId node) { return index_of(node) < experiment.switches.size(); });
    plan.switch_of_rank.push_back(at == sim::no_node ? UINT32_MAX : index_of(at));
  }
  job.start = reader.duration("start", Duration::zero());
  job.priority = read_priority(reader);
  sim::TrainingPlan& training = job.training;
  training.buckets = read_compute(reader, path);
  training.stop = reader.duration("stop", for_ever);
  if (training.stop <= job.start) throw reader.error("stop", "must be later than start: no iteration would begin");
  training.iterations = reader.number("iterations", training.stop == for_ever ? 1 : 0, 0, 1'000'000'000);
  if (training.iterations == 0 && training.stop == for_ever)
    throw reader.error("iterations", "must be above 0, or a stop must be given");
  for (const auto& [from, to] : reader.spans("pauses")) training.pauses.push_back({from, to});
  training.values = reader.flag("values", true);
  training.jitter = reader.real("jitter", 0, 0, 10);
  if (reader.has("trace")) training.trace = read_trace(reader, beside(path, reader.text("trace")));
  training.start_jitter = reader.duration("start_jitter", Duration::zero());
  for (TableReader& each : reader.tables("straggler")) {
    if (!each.has("hosts")) throw each.missing("hosts");
    sim::TrainingPlan::Straggler straggler;
    straggler.slower = each.real("slower", 1, 0, 1'000'000);
    straggler.late = each.duration("late", Duration::zero());
    for (const sim::NodeId node : read_hosts(each, experiment.topology)) {
      const auto found = std::find(job.nodes.begin(), job.nodes.end(), node);
      if (found == job.nodes.end())
        throw each.error("hosts", "'" + experiment.topology[node].name + "' is not one of the job's hosts");
      straggler.rank = static_cast<std::uint32_t>(found - job.nodes.begin());
      training.stragglers.push_back(straggler);
    }
    each.end();
  }
  constexpr WireFormat wires[] = {WireFormat::native, WireFormat::float16, WireFormat::bfloat16, WireFormat::int8,
                                  WireFormat::int4};
  training.wire = wires[reader.choice("wire", {"float32", "float16", "bfloat16", "int8", "int4"}, 0)];
  reader.end();
  return job;
}

sim::BackgroundFlow read_flow(TableReader& reader, const sim::Topology& topology, std::size_t index) {
  sim::BackgroundFlow flow;
  flow.name = reader.text("name", "flow" + std::to_string(index));
  flow.from = node_named(topology, reader, "from", reader.text("from"));
  flow.to = node_named(topology, reader, "to", reader.text("to"));
  if (flow.from == flow.to) throw reader.error("to", "must be another node than from");
  flow.start = reader.duration("start", Duration::zero());
  flow.stop = reader.duration("stop", for_ever);
  if (flow.stop <= flow.start) throw reader.error("stop", "must be later than start: nothing would be sent");
  flow.priority = read_priority(reader);
  if (reader.has("tcp")) {
    const std::vector<std::string> controls{"reno", "dctcp", "cubic"};
    flow.tcp = controls[reader.choice("tcp", controls, 0)];
    reader.end();
    return flow;
  }
  flow.bits_per_second = reader.rate("rate", 0);
  if (flow.bits_per_second == 0) throw reader.missing("rate");
  flow.frame_bytes = static_cast<std::uint32_t>(reader.number("frame", 1514, 64, 65'535));
  flow.on = reader.duration("on", Duration::zero());
  flow.off = reader.duration("off", Duration::zero());
  if (flow.off > Duration::zero() && flow.on == Duration::zero()) throw reader.error("on", "is missing, and off is given");
  reader.end();
  return flow;
}

}  // namespace

sim::Experiment parse_scenario(const std::string& text, const std::string& path) {
  return scenario_of(parse_toml(text, path), path);
}

sim::Experiment scenario_of(const TomlTable& root, const std::string& path) {
  TableReader top(root, path, "");
  sim::Experiment experiment;
  experiment.name = top.text("name", path);
  experiment.seed = top.number("seed", 1, 0, std::numeric_limits<std::int64_t>::max());
  experiment.protocol = read_name(top, experiment.protocol);
  experiment.random_ties = top.choice("ties", {"in_order", "random"}, 0) == 1;
  experiment.lanes = static_cast<std::uint32_t>(top.number("lanes", 1, 1, 64));
  experiment.end = top.duration("end", for_ever);
  if (experiment.end == Duration::zero()) throw top.error("end", "must be longer than 0");
  experiment.control_delay = top.duration("control_delay", experiment.control_delay);
  auto network = top.table("network");
  if (!network) throw top.missing("network");
  experiment.topology = read_network(*network);
  auto aggregation = top.table("aggregation");
  if (aggregation) read_aggregation(*aggregation, experiment);
  if (experiment.aggregators.empty()) experiment.aggregators.push_back(0);
  std::vector<TableReader> jobs = top.tables("job");
  if (jobs.empty()) throw top.missing("job");
  std::set<std::string> names;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::uint64_t copies = jobs[i].number("copies", 1, 1, 10'000);
    const Duration apart = jobs[i].duration("arrivals", Duration::zero());
    sim::ExperimentJob job = read_job(jobs[i], experiment, path, i);
    const std::string name = job.plan.name;
    sim::Random random(sim::derive(sim::derive(experiment.seed, arrivals_label), i));
    for (std::uint64_t copy = 0; copy < copies; ++copy) {
      if (copies > 1) job.plan.name = name + "-" + std::to_string(copy);
      if (!names.insert(job.plan.name).second)
        throw jobs[i].error("name", "is already the name of another job: give each job its own name");
      experiment.jobs.push_back(job);
      job.start += Duration(static_cast<std::int64_t>(-std::log1p(-random.unit()) * static_cast<double>(apart.count())));
    }
  }
  const bool atp = std::any_of(experiment.jobs.begin(), experiment.jobs.end(),
                               [](const sim::ExperimentJob& job) { return kind_of(job.protocol) == "atp"; });
  for (const auto* key : {"pool_slots", "pool_parts"}) {
    if (aggregation && aggregation->has(key) && !atp)
      throw aggregation->error(key, "requires a job with protocol = \"atp\": at switches of " + experiment.protocol +
                                        " each job has slots of its own");
  }
  std::vector<TableReader> flows = top.tables("background");
  for (std::size_t i = 0; i < flows.size(); ++i)
    experiment.background.push_back(read_flow(flows[i], experiment.topology, i));
  if (auto output = top.table("output")) {
    experiment.series = output->texts("series");
    experiment.bin = output->duration("bin", experiment.bin);
    if (experiment.bin == Duration::zero()) throw output->error("bin", "must be longer than 0");
    output->end();
  }
  top.end();
  return experiment;
}

UsageError error_in_scenario(const std::string& path, const std::string& key, const std::string& what) {
  const TomlTable root = parse_toml(read_whole(path), path);
  TableReader at(root, path, "");
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos) return at.error(key, what);
  const std::string table = key.substr(0, dot), inside = key.substr(dot + 1);
  if (const std::size_t bracket = table.find('['); bracket != std::string::npos)
    return at.tables(table.substr(0, bracket)).at(std::stoul(table.substr(bracket + 1))).error(inside, what);
  return at.table(table)->error(inside, what);
}

sim::Experiment read_scenario(const std::string& path) {
  return parse_scenario(read_whole(path), path);
}

}  // namespace netsum::app
