#include "simulate_scenario.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "command.h"
#include "quantiles.h"
#include "scenario_file.h"
#include "sim/flow_level.h"
#include "sim/packet_level.h"

namespace netsum::app {
namespace {

using nlohmann::ordered_json;

ordered_json summary_of(std::vector<double> seconds) {
  if (seconds.empty()) return nullptr;
  std::sort(seconds.begin(), seconds.end());
  double sum = 0;
  for (const double each : seconds) sum += each;
  return {{"min", seconds.front()},
          {"median", median(seconds)},
          {"mean", sum / static_cast<double>(seconds.size())},
          {"max", seconds.back()},
          {"count", seconds.size()}};
}

// "switchml, atp": of its jobs, in their order.
std::string protocols_of(const sim::Experiment& experiment) {
  std::vector<std::string> names;
  for (const sim::ExperimentJob& job : experiment.jobs) {
    const std::string& name = protocol_of(experiment, job);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

ordered_json json_of(const sim::Experiment& experiment, const sim::Report& report, const std::string& level, double real) {
  ordered_json out;
  out["scenario"] = experiment.name;
  out["protocol"] = protocols_of(experiment);
  out["level"] = level;
  out["seed"] = experiment.seed;
  out["virtual_seconds"] = report.seconds;
  out["real_seconds"] = real;
  out["packets"] = report.packets;
  out["hops"] = report.hops;
  out["events"] = report.events;
  out["packets_per_second"] = real > 0 ? static_cast<double>(report.packets) / real : 0;
  out["lost"] = report.lost;
  out["jobs"] = ordered_json::array();
  for (std::size_t i = 0; i < report.jobs.size(); ++i) {
    const sim::JobReport& job = report.jobs[i];
    const double busy = job.last - job.first;
    ordered_json buckets = ordered_json::array();
    for (const sim::Bucket& bucket : experiment.jobs[i].training.buckets) {
      buckets.push_back({{"elements", bucket.elements},
                         {"forward", std::chrono::duration<double>(bucket.forward).count()},
                         {"backward", std::chrono::duration<double>(bucket.backward).count()}});
    }
    out["jobs"].push_back({{"name", job.name},
                           {"protocol", protocol_of(experiment, experiment.jobs[i])},
                           {"ranks", job.ranks},
                           {"first", job.first},
                           {"last", job.last},
                           {"bytes", job.bytes},
                           {"algorithm_gbps", busy > 0 ? static_cast<double>(job.bytes) * 8e-9 / busy : 0},
                           {"retransmissions", job.retransmissions},
                           {"tat_seconds", summary_of(job.operation_seconds)},
                           {"iteration_seconds", summary_of(job.iteration_seconds)},
                           {"iterations", job.iteration_seconds},
                           {"buckets", std::move(buckets)}});
  }
  out["links"] = ordered_json::array();
  for (const sim::PortReport& port : report.ports) {
    ordered_json& link = out["links"].emplace_back(ordered_json{{"link", port.link},
                                                                {"packets", port.packets},
                                                                {"bytes", port.bytes},
                                                                {"dropped", port.dropped},
                                                                {"lost", port.lost},
                                                                {"marked", port.marked},
                                                                {"longest_queue", port.longest_queue},
                                                                {"utilisation", port.utilisation}});
    if (experiment.topology.pfc) link.update({{"pauses", port.pauses}, {"paused_seconds", port.paused}});
  }
  out["counters"] = report.counters;
  if (!report.series.empty()) {
    out["bin_seconds"] = std::chrono::duration<double>(experiment.bin).count();
    out["series"] = report.series;
  }
  if (!report.warnings.empty()) out["warnings"] = report.warnings;
  if (!report.failure.empty()) out["failure"] = report.failure;
  return out;
}

void print_table(const sim::Experiment& experiment, const sim::Report& report, const std::string& level, double real) {
  std::printf("%s: %s, %s level, %.6f virtual seconds in %.2f s", experiment.name.c_str(), protocols_of(experiment).c_str(),
              level.c_str(), report.seconds, real);
  if (report.packets != 0) {
    std::printf("; %llu packets (%.0f a second), %llu of them lost", static_cast<unsigned long long>(report.packets),
                static_cast<double>(report.packets) / real, static_cast<unsigned long long>(report.lost));
  }
  std::printf("\n\n  %-16s %7s %12s %12s %12s %12s\n", "job", "ranks", "operations", "TAT ms", "iteration ms", "Gbit/s");
  const auto milliseconds = [](const std::vector<double>& seconds) { return seconds.empty() ? 0.0 : median(seconds) * 1e3; };
  for (const sim::JobReport& job : report.jobs) {
    const double busy = job.last - job.first;
    std::printf("  %-16s %7u %12zu %12.3f %12.3f %12.3f\n", job.name.c_str(), job.ranks, job.operation_seconds.size(),
                milliseconds(job.operation_seconds), milliseconds(job.iteration_seconds),
                busy > 0 ? static_cast<double>(job.bytes) * 8e-9 / busy : 0.0);
  }
  std::vector<sim::PortReport> busiest = report.ports;
  std::sort(busiest.begin(), busiest.end(), [](const auto& a, const auto& b) { return a.utilisation > b.utilisation; });
  busiest.resize(std::min<std::size_t>(busiest.size(), 5));
  if (busiest.empty()) return;
  std::printf("\n  %-16s %12s %12s %12s %12s %12s\n", "busiest links", "use %", "MB", "dropped", "lost", "marked");
  for (const sim::PortReport& port : busiest) {
    std::printf("  %-16s %12.1f %12.2f %12llu %12llu %12llu\n", port.link.c_str(), 100 * port.utilisation,
                static_cast<double>(port.bytes) * 1e-6, static_cast<unsigned long long>(port.dropped),
                static_cast<unsigned long long>(port.lost), static_cast<unsigned long long>(port.marked));
  }
}

void write_times(const std::string& path, const sim::Report& report) {
  std::ofstream csv(path);
  csv << "job,operation,rank,called_seconds,result_seconds,milliseconds\n";
  for (const sim::JobReport& job : report.jobs) {
    for (const sim::RankTime& time : job.times) {
      char line[128];
      const auto called = time.called.time_since_epoch(), result = time.result.time_since_epoch();
      std::snprintf(line, sizeof line, ",%llu,%u,%.9f,%.9f,%.6f\n", static_cast<unsigned long long>(time.operation),
                    time.rank, std::chrono::duration<double>(called).count(), std::chrono::duration<double>(result).count(),
                    std::chrono::duration<double, std::milli>(result - called).count());
      csv << job.name << line;
    }
  }
  if (!csv.flush()) throw UsageError("cannot write " + path);
}

// A column for each series, a row for each bin, at its end.
void write_series(const std::string& path, const sim::Experiment& experiment, const sim::Report& report) {
  std::ofstream csv(path);
  csv << "seconds";
  std::size_t bins = 0;
  for (const auto& [name, values] : report.series) {
    csv << ',' << name;
    bins = std::max(bins, values.size());
  }
  csv << '\n';
  const double bin = std::chrono::duration<double>(experiment.bin).count();
  for (std::size_t i = 0; i < bins; ++i) {
    csv << fmt::format("{:.9g}", bin * static_cast<double>(i + 1));
    for (const auto& [name, values] : report.series) csv << fmt::format(",{:.12g}", values[i]);
    csv << '\n';
  }
  if (!csv.flush()) throw UsageError("cannot write " + path);
}

}  // namespace

int simulate_scenario(const std::string& path, const std::string& level, bool json, const ScenarioFiles& files) {
  if (level != "packet" && level != "flow") throw UsageError("--level is packet or flow, not '" + level + "'");
  if (level == "flow" && !files.pcap.empty()) throw UsageError("--pcap requires --level packet: flows have no packets");
  const auto run = [&](const sim::Experiment& experiment) {
    if (level == "flow") return sim::run_flows(experiment);
    if (files.pcap.empty()) return sim::run_packets(experiment);
    std::ofstream pcap(files.pcap, std::ios::binary);
    sim::Report report = sim::run_packets(experiment, &pcap);
    if (!pcap.flush()) throw UsageError("cannot write " + files.pcap);
    return report;
  };
  return simulate_scenario(path, level, json, run, files);
}

int simulate_scenario(const std::string& path, const std::string& level, bool json,
                      const std::function<sim::Report(const sim::Experiment&)>& run, const ScenarioFiles& files) {
  sim::Experiment experiment = read_scenario(path);
  for (sim::ExperimentJob& job : experiment.jobs) job.training.keep_times = !files.times.empty();
  if (!files.series.empty() && experiment.series.empty())
    throw UsageError(path + ": --series requires the key series in [output]: series = [\"link.*.queue\"], for example");
  const auto began = std::chrono::steady_clock::now();
  sim::Report report;
  try {
    report = run(experiment);
  } catch (const sim::ImpossibleExperiment& error) {
    throw error_in_scenario(path, error.key, error.what());
  } catch (const std::bad_alloc&) {
    throw UsageError(path + ": the experiment does not fit into memory: use fewer elements or ranks, or --level flow");
  } catch (const std::invalid_argument& error) {
    throw UsageError(path + ": " + error.what());
  }
  const double real = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (!files.times.empty()) write_times(files.times, report);
  if (!files.series.empty()) write_series(files.series, experiment, report);
  if (json) {
    std::puts(json_of(experiment, report, level, real).dump(2).c_str());
  } else {
    print_table(experiment, report, level, real);
  }
  for (const std::string& warning : report.warnings) std::fprintf(stderr, "netsum: %s: %s\n", path.c_str(), warning.c_str());
  if (report.failure.empty()) return exit_done;
  std::fprintf(stderr, "netsum: %s: %s\n", path.c_str(), report.failure.c_str());
  return exit_failed;
}

}  // namespace netsum::app
