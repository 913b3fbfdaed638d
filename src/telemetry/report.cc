#include "telemetry/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "netsum/error.h"

namespace netsum::telemetry {
namespace {

using nlohmann::ordered_json;

std::vector<std::uint32_t> members(const RankSet& set, std::uint32_t world_size) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    if (set.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

ordered_json counters_json(const Counters& counters) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : counters) json[name] = value;
  return json;
}

Counters counters_of(const ordered_json& json) {
  Counters counters;
  for (const auto& [name, value] : json.items()) counters.emplace_back(name, value.get<std::uint64_t>());
  return counters;
}

RankSet set_of(const ordered_json& json) {
  RankSet set;
  for (const auto& rank : json) set.insert(std::min(rank.get<std::uint32_t>(), max_world_size - 1));
  return set;
}

std::string list(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (const std::uint32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text.empty() ? "-" : text;
}

std::uint64_t value_of(const Counters& counters, const std::string& name) {
  const auto found = std::find_if(counters.begin(), counters.end(), [&](const auto& c) { return c.first == name; });
  return found == counters.end() ? 0 : found->second;
}

template <class... Args>
std::string format(const char* pattern, Args... args) {
  const int size = std::snprintf(nullptr, 0, pattern, args...);
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), pattern, args...);
  text.pop_back();
  return text;
}

}  // namespace

std::string to_json(const Report& report) {
  ordered_json jobs = ordered_json::array();
  for (const JobReport& entry : report.jobs) {
    const session::JobStatus& job = entry.job;
    ordered_json stalled = ordered_json::array();
    for (const auto& stall : entry.stalled) {
      stalled.push_back(
          {{"operation", stall.operation}, {"chunk", stall.chunk}, {"slot", stall.slot}, {"missing", stall.missing}});
    }
    jobs.push_back({{"job", job.job},
                    {"job_epoch", job.job_epoch},
                    {"state", job.running           ? "running"
                              : job.failure.empty() ? "joining"
                                                    : "failed"},
                    {"failure", job.failure},
                    {"world_size", job.world_size},
                    {"packet_elements", job.packet_elements},
                    {"slots", job.slots},
                    {"joined", members(job.joined, job.world_size)},
                    {"left", members(job.left, job.world_size)},
                    {"counters", counters_json(entry.counters)},
                    {"stalled", std::move(stalled)}});
  }
  const ordered_json json = {{"version", report.version},       {"uptime_seconds", report.uptime_seconds},
                             {"lanes", report.lanes},           {"slots", report.slots},
                             {"slots_free", report.slots_free}, {"counters", counters_json(report.counters)},
                             {"jobs", std::move(jobs)}};
  return json.dump(2);
}

Report from_json(const std::string& text) {
  try {
    const auto json = ordered_json::parse(text);
    Report report;
    report.version = json.at("version");
    report.uptime_seconds = json.at("uptime_seconds");
    report.lanes = json.at("lanes");
    report.slots = json.at("slots");
    report.slots_free = json.at("slots_free");
    report.counters = counters_of(json.at("counters"));
    for (const auto& job : json.at("jobs")) {
      JobReport entry;
      entry.job.job = job.at("job");
      entry.job.job_epoch = job.at("job_epoch");
      entry.job.running = job.at("state") == "running";
      entry.job.failure = job.at("failure");
      entry.job.world_size = job.at("world_size");
      entry.job.packet_elements = job.at("packet_elements");
      entry.job.slots = job.at("slots");
      entry.job.joined = set_of(job.at("joined"));
      entry.job.left = set_of(job.at("left"));
      entry.counters = counters_of(job.at("counters"));
      for (const auto& stall : job.at("stalled")) {
        entry.stalled.push_back({stall.at("operation"), stall.at("chunk"), stall.at("slot"), stall.at("missing")});
      }
      report.jobs.push_back(std::move(entry));
    }
    return report;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::internal, std::string("the aggregator's report cannot be read: ") + e.what());
  }
}

std::string to_table(const Report& report) {
  std::string text = format("netsum %s, up %.0f s, %u lanes, %u of %u slots free\n", report.version.c_str(),
                            report.uptime_seconds, report.lanes, report.slots_free, report.slots);
  if (report.jobs.empty()) return text + "no jobs\n";
  text += format("\n%-20s %-8s %9s %7s %14s %12s %12s %10s %9s\n", "job", "state", "ranks", "slots", "packets", "chunks",
                 "MB in", "repeats", "in use");
  for (const JobReport& entry : report.jobs) {
    const session::JobStatus& job = entry.job;
    const std::string ranks = std::to_string(job.joined.size()) + "/" + std::to_string(job.world_size);
    const char* state = job.running ? "running" : job.failure.empty() ? "joining" : "failed";
    const std::uint64_t repeats = value_of(entry.counters, "repeats_answered") +
                                  value_of(entry.counters, "repeats_waiting") + value_of(entry.counters, "repeats_silent");
    text += format("%-20s %-8s %9s %7u %14llu %12llu %12.1f %10llu %9llu\n", job.job.c_str(), state, ranks.c_str(),
                   job.slots, static_cast<unsigned long long>(value_of(entry.counters, "packets")),
                   static_cast<unsigned long long>(value_of(entry.counters, "chunks")),
                   static_cast<double>(value_of(entry.counters, "bytes")) / 1e6, static_cast<unsigned long long>(repeats),
                   static_cast<unsigned long long>(value_of(entry.counters, "slots_in_use")));
    if (!job.failure.empty()) text += "  failed: " + job.failure + "\n";
    for (const auto& stall : entry.stalled) {
      text += format("  operation %llu, chunk %u (slot %u) waits for ranks %s\n",
                     static_cast<unsigned long long>(stall.operation), stall.chunk, stall.slot, list(stall.missing).c_str());
    }
  }
  return text;
}

}  // namespace netsum::telemetry
