// Merges the processes' measurements into one report.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "parallel.h"
#include "quantiles.h"
#include "result_hash.h"
#include "verdict_json.h"

namespace netsum::app {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string MemberReport::text() const {
  Json json{
      {"rank", rank},          {"nanoseconds", nanoseconds}, {"before", before},         {"across", across},
      {"after", after},        {"hashes", hashes},           {"bytes_sent", bytes_sent}, {"bytes_received", bytes_received},
      {"placement", placement}};
  json.update(Json(verdict));
  return json.dump();
}

MemberReport MemberReport::parse(std::string_view text) {
  const Json json = Json::parse(text);
  MemberReport report;
  json.at("rank").get_to(report.rank);
  json.at("nanoseconds").get_to(report.nanoseconds);
  json.at("before").get_to(report.before);
  json.at("across").get_to(report.across);
  json.at("after").get_to(report.after);
  json.at("hashes").get_to(report.hashes);
  json.get_to(report.verdict);
  json.at("bytes_sent").get_to(report.bytes_sent);
  json.at("bytes_received").get_to(report.bytes_received);
  json.at("placement").get_to(report.placement);
  return report;
}

ParallelReport::ParallelReport(const ParallelBenchOptions& options, const std::vector<MemberReport>& members)
    : seconds(options.iterations),
      before(options.iterations),
      across(options.iterations),
      after(options.iterations),
      placement(members.front().placement) {
  const double share = 1.0 / (static_cast<double>(options.machines) * options.iterations);
  for (const MemberReport& member : members) {
    verdict.merge(member.verdict);
    bytes_sent += share * static_cast<double>(member.bytes_sent);
    bytes_received += share * static_cast<double>(member.bytes_received);
  }
  for (std::uint32_t i = 0; i < options.iterations; ++i) {
    const std::uint64_t hash = members.front().hashes.at(i);
    result_hash = hash_of(result_hash, hash);
    const auto slowest = [&](double& so_far, std::uint64_t nanoseconds) {
      so_far = std::max(so_far, 1e-9 * static_cast<double>(nanoseconds));
    };
    for (const MemberReport& member : members) {
      slowest(seconds[i], member.nanoseconds.at(i));
      if (member.rank % options.gpus == 0) {
        slowest(before[i], member.before.at(i));
        slowest(across[i], member.across.at(i));
        slowest(after[i], member.after.at(i));
      }
      if (member.hashes.at(i) == hash) continue;
      bit_identical = false;  // which elements differ is unknown here: all count
      verdict.wrong += std::max<std::uint64_t>(options.elements, 1);
    }
  }
}

std::string ParallelReport::json(const ParallelBenchOptions& options) const {
  const double middle = median(seconds);
  const Json json{
      {"pattern", options.pattern},
      {"protocol", options.in_network() ? Json(options.protocol) : Json(nullptr)},
      {"machines", options.machines},
      {"gpus", options.gpus},
      {"elements", options.elements},
      {"dtype", "float32"},
      {"iterations", options.iterations},
      {"placement", placement},
      {"tat_seconds",
       {{"min", quantile(seconds, 0)}, {"median", middle}, {"p99", quantile(seconds, 0.99)}, {"max", quantile(seconds, 1)}}},
      {"stage_seconds", {{"before", median(before)}, {"across", median(across)}, {"after", median(after)}}},
      {"ate_per_second", static_cast<double>(options.elements) / middle},
      {"algorithm_gbps", static_cast<double>(options.elements) * 32e-9 / middle},
      {"link_bytes_per_machine", {{"sent", bytes_sent}, {"received", bytes_received}}},
      {"max_abs_error", verdict.max_abs_error},
      {"error_bound", verdict.error_bound},
      {"max_error_over_bound", verdict.max_error_over_bound},
      {"wrong", verdict.wrong},
      {"bit_identical", bit_identical},
      {"result_hash", fmt::format("{:016x}", result_hash)}};
  return json.dump(2) + "\n";
}

std::string ParallelReport::table(const ParallelBenchOptions& options) const {
  const double middle = median(seconds);
  const double tensor_bytes = static_cast<double>(options.elements) * 4;
  const auto percent = [&](double bytes) { return tensor_bytes > 0 ? 100 * bytes / tensor_bytes : 0; };
  std::string out;
  const auto row = [&](const char* name, const std::string& value) { out += fmt::format("{:<22}{}\n", name, value); };
  row("all-reduce", fmt::format("{}{} of {} elements ({:.1f} MB), {} machines of {} GPUs, {} iterations", options.pattern,
                                options.in_network() ? " over " + options.protocol : "", options.elements,
                                tensor_bytes * 1e-6, options.machines, options.gpus, options.iterations));
  row("placement", placement);
  row("TAT", fmt::format("{:.3f} ms median, {:.3f} min, {:.3f} p99, {:.3f} max", middle * 1e3, quantile(seconds, 0) * 1e3,
                         quantile(seconds, 0.99) * 1e3, quantile(seconds, 1) * 1e3));
  row("stages", fmt::format("{:.3f} ms inside, {:.3f} across, {:.3f} inside (medians)", median(before) * 1e3,
                            median(across) * 1e3, median(after) * 1e3));
  row("ATE/s", fmt::format("{:.1f} million", static_cast<double>(options.elements) / middle * 1e-6));
  row("algorithm bandwidth", fmt::format("{:.2f} Gbit/s", tensor_bytes * 8e-9 / middle));
  row("a machine's link",
      fmt::format("{:.2f} MB sent ({:.1f} % of the tensor), {:.2f} MB received ({:.1f} %)", bytes_sent * 1e-6,
                  percent(bytes_sent), bytes_received * 1e-6, percent(bytes_received)));
  row("error", fmt::format("{:.3g} at most, bound {:.3g}, error/bound {:.3f} at most", verdict.max_abs_error,
                           verdict.error_bound, verdict.max_error_over_bound));
  row("wrong", fmt::format("{}{}", verdict.wrong, bit_identical ? ", all ranks have the same bits" : ", RANKS DIFFER"));
  row("result hash", fmt::format("{:016x}", result_hash));
  return out;
}

}  // namespace netsum::app
