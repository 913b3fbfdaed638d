// Merges the ranks' measurements into one report.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "exercise.h"
#include "quantiles.h"
#include "result_hash.h"
#include "verdict_json.h"

namespace netsum::app {
namespace {

using Json = nlohmann::ordered_json;

[[nodiscard]] double algorithm_gbps(const BenchOptions& options, double seconds) {
  return static_cast<double>(options.elements * bytes_of(options.dtype_value())) * 8e-9 / seconds;
}

}  // namespace

std::string RankReport::text() const {
  Json json{{"rank", rank},
            {"first_iteration", first_iteration},
            {"nanoseconds", nanoseconds},
            {"hashes", hashes},
            {"bytes_sent", bytes_sent},
            {"bytes_received", bytes_received},
            {"packets_sent", packets_sent},
            {"packets_received", packets_received},
            {"packets_retransmitted", packets_retransmitted},
            {"packets_dropped_down", packets_dropped_down},
            {"packets_dropped_up", packets_dropped_up},
            {"bytes_copied", bytes_copied},
            {"busy_nanoseconds", busy_nanoseconds},
            {"cpu_nanoseconds", cpu_nanoseconds},
            {"lanes", lanes},
            {"window", window},
            {"placement", placement}};
  json.update(Json(verdict));
  return json.dump();
}

RankReport RankReport::parse(std::string_view text) {
  const Json json = Json::parse(text);
  RankReport report;
  json.at("rank").get_to(report.rank);
  json.at("first_iteration").get_to(report.first_iteration);
  json.at("nanoseconds").get_to(report.nanoseconds);
  json.at("hashes").get_to(report.hashes);
  json.get_to(report.verdict);
  json.at("bytes_sent").get_to(report.bytes_sent);
  json.at("bytes_received").get_to(report.bytes_received);
  json.at("packets_sent").get_to(report.packets_sent);
  json.at("packets_received").get_to(report.packets_received);
  json.at("packets_retransmitted").get_to(report.packets_retransmitted);
  json.at("packets_dropped_down").get_to(report.packets_dropped_down);
  json.at("packets_dropped_up").get_to(report.packets_dropped_up);
  json.at("bytes_copied").get_to(report.bytes_copied);
  json.at("busy_nanoseconds").get_to(report.busy_nanoseconds);
  json.at("cpu_nanoseconds").get_to(report.cpu_nanoseconds);
  json.at("lanes").get_to(report.lanes);
  json.at("window").get_to(report.window);
  json.at("placement").get_to(report.placement);
  return report;
}

BenchReport::BenchReport(const BenchOptions& options, const std::vector<RankReport>& ranks)
    : seconds(options.iterations), placement(ranks.front().placement) {
  const double share = 1.0 / (static_cast<double>(ranks.size()) * options.iterations);
  for (const RankReport& rank : ranks) {
    verdict.merge(rank.verdict);
    bytes_sent += share * static_cast<double>(rank.bytes_sent);
    bytes_received += share * static_cast<double>(rank.bytes_received);
    packets_sent += share * static_cast<double>(rank.packets_sent);
    packets_received += share * static_cast<double>(rank.packets_received);
    packets_retransmitted += share * static_cast<double>(rank.packets_retransmitted);
    packets_dropped_down += share * static_cast<double>(rank.packets_dropped_down);
    bytes_copied += share * static_cast<double>(rank.bytes_copied);
    busy_seconds += 1e-9 * share * static_cast<double>(rank.busy_nanoseconds);
    cpu_seconds += 1e-9 * share * static_cast<double>(rank.cpu_nanoseconds);
    lanes = rank.lanes;
    window += static_cast<double>(rank.window) / static_cast<double>(ranks.size());
    packets_dropped_up += share * static_cast<double>(rank.packets_dropped_up);
  }
  for (std::uint32_t i = 0; i < options.iterations; ++i) {
    const auto known = std::find_if(ranks.begin(), ranks.end(), [&](const auto& rank) { return i >= rank.first_iteration; });
    if (known == ranks.end()) continue;
    const std::uint64_t hash = known->hashes.at(i - known->first_iteration);
    const bool same = same_everywhere(options.collective);
    if (same) result_hash = hash_of(result_hash, hash);
    for (const RankReport& rank : ranks) {
      if (i < rank.first_iteration) continue;
      const double own = 1e-9 * static_cast<double>(rank.nanoseconds.at(i - rank.first_iteration));
      // Back to back, ranks do not begin together: an early rank waits, and only the mean does not count that time twice.
      seconds[i] = options.back_to_back ? seconds[i] + own / static_cast<double>(ranks.size()) : std::max(seconds[i], own);
      if (!same) result_hash = hash_of(result_hash, rank.hashes.at(i - rank.first_iteration));
      if (!same || rank.hashes.at(i - rank.first_iteration) == hash) continue;
      bit_identical = false;  // which elements differ is unknown here: all count
      verdict.wrong += std::max<std::uint64_t>(options.elements, 1);
    }
  }
}

std::string BenchReport::json(const BenchOptions& options) const {
  const double middle = median(seconds);
  const Json json{
      {"collective", to_string(options.collective)},
      {"protocol", options.protocol},
      {"workers", options.workers},
      {"elements", options.elements},
      {"dtype", options.dtype},
      {"wire", options.wire},
      {"profile", options.profile},
      {"op", options.op},
      {"iterations", options.iterations},
      {"loss", options.loss},
      {"transport", options.transport},
      {"allocate", options.allocate},
      {"placement", placement},
      {"tat_seconds",
       {{"min", quantile(seconds, 0)}, {"median", middle}, {"p99", quantile(seconds, 0.99)}, {"max", quantile(seconds, 1)}}},
      {"ate_per_second", static_cast<double>(options.elements) / middle},
      {"algorithm_gbps", algorithm_gbps(options, middle)},
      {"wire_bytes_per_worker", {{"sent", bytes_sent}, {"received", bytes_received}}},
      {"packets",
       {{"sent", packets_sent},
        {"received", packets_received},
        {"retransmitted", packets_retransmitted},
        {"dropped_up", packets_dropped_up},
        {"dropped_down", packets_dropped_down}}},
      {"bytes_copied", bytes_copied},
      {"cpu_seconds_per_worker", cpu_seconds},
      {"busy_seconds_per_worker", busy_seconds},
      {"lanes", lanes},
      {"window", window},
      {"max_abs_error", verdict.max_abs_error},
      {"error_bound", verdict.error_bound},
      {"max_error_over_bound", verdict.max_error_over_bound},
      {"wrong", verdict.wrong},
      {"bit_identical", bit_identical},
      {"result_hash", fmt::format("{:016x}", result_hash)}};
  return json.dump(2) + "\n";
}

std::string BenchReport::table(const BenchOptions& options) const {
  const double middle = median(seconds);
  const double tensor_bytes = static_cast<double>(options.elements * bytes_of(options.dtype_value()));
  const auto percent = [&](double bytes) { return tensor_bytes > 0 ? 100 * bytes / tensor_bytes : 0; };
  std::string out;
  const auto row = [&](const char* name, const std::string& value) { out += fmt::format("{:<22}{}\n", name, value); };
  const bool barrier = options.collective == CollectiveName::barrier;  // nothing is summed
  row(to_string(options.collective),
      options.protocol +
          (barrier ? "" : fmt::format(" {} of {} elements ({:.1f} MB)", options.op, options.elements, tensor_bytes * 1e-6)) +
          fmt::format(", {} workers, {} iterations, loss {}", options.workers, options.iterations, options.loss));
  if (!barrier) {
    row("dtype", options.dtype + (options.wire_value() == WireFormat::native ? "" : ", " + options.wire + " on the wire"));
  }
  row("placement", placement);
  row("TAT", fmt::format("{:.3f} ms median, {:.3f} min, {:.3f} p99, {:.3f} max", middle * 1e3, quantile(seconds, 0) * 1e3,
                         quantile(seconds, 0.99) * 1e3, quantile(seconds, 1) * 1e3));
  if (!barrier) {
    row("ATE/s", fmt::format("{:.1f} million", static_cast<double>(options.elements) / middle * 1e-6));
    row("algorithm bandwidth", fmt::format("{:.2f} Gbit/s", algorithm_gbps(options, middle)));
  }
  row("bytes per worker",
      fmt::format("{:.2f} MB sent ({:.1f} % of the tensor), {:.2f} MB received ({:.1f} %)", bytes_sent * 1e-6,
                  percent(bytes_sent), bytes_received * 1e-6, percent(bytes_received)));
  row("packets per worker",
      fmt::format("{:.1f} sent, {:.1f} received, {:.1f} retransmitted, {:.1f} dropped up, {:.1f} down", packets_sent,
                  packets_received, packets_retransmitted, packets_dropped_up, packets_dropped_down));
  row("CPU per worker",
      fmt::format("{:.3f} ms; its threads had packets in hand for {:.3f} ms", cpu_seconds * 1e3, busy_seconds * 1e3));
  row("error", fmt::format("{:.3g} at most, bound {:.3g}, error/bound {:.3f} at most", verdict.max_abs_error,
                           verdict.error_bound, verdict.max_error_over_bound));
  row("wrong", fmt::format("{}{}", verdict.wrong,
                           !bit_identical                        ? ", RANKS DIFFER"
                           : same_everywhere(options.collective) ? ", all ranks have the same bits"
                                                                 : ""));
  row("result hash", fmt::format("{:016x}", result_hash));
  return out;
}

}  // namespace netsum::app
