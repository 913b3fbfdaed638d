#include "telemetry/metrics_server.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "netsum/error.h"

namespace netsum::telemetry {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric sample(MetricType type, std::vector<ClientMetric::Label> labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
  return metric;
}

// All jobs' counters, grouped by name: jobs of different protocols have different counters.
std::vector<MetricFamily> families_of(const std::vector<JobReport>& jobs) {
  std::vector<MetricFamily> families;
  std::map<std::string, std::size_t> numbers;
  std::map<std::tuple<std::size_t, std::string, std::string>, std::size_t> samples;  // family, tenant, job
  for (const JobReport& job : jobs) {
    // A failed job is no longer on the lanes, and the next job may have its name.
    if (!job.job.failure.empty()) continue;
    std::vector<ClientMetric::Label> labels = {{"job", job.job.job}};
    if (!job.job.tenant.empty()) labels.push_back({"tenant", job.job.tenant});
    for (const auto& [name, value] : job.counters) {
      const bool is_gauge = name == "slots_in_use";
      const auto type = is_gauge ? MetricType::Gauge : MetricType::Counter;
      const auto [number, is_new] = numbers.emplace(name, families.size());
      if (is_new) {
        families.push_back({"netsum_job_" + name + (is_gauge ? "" : "_total"), "Of one job, over all lanes.", type, {}});
      }
      MetricFamily& family = families[number->second];
      // Jobs of different protocols or parameter servers may have the same name: Prometheus rejects a scrape with duplicate
      // samples.
      const auto [place, is_first] =
          samples.emplace(std::tuple(number->second, job.job.tenant, job.job.job), family.metric.size());
      if (is_first) {
        family.metric.push_back(sample(type, labels, static_cast<double>(value)));
      } else {
        ClientMetric& metric = family.metric[place->second];
        (is_gauge ? metric.gauge.value : metric.counter.value) += static_cast<double>(value);
      }
    }
  }
  return families;
}

std::string page(const Report& report) {
  std::vector<MetricFamily> families;
  const auto add = [&](MetricType type, const std::string& name, const char* help, double value) {
    families.push_back({"netsum_" + name, help, type, {sample(type, {}, value)}});
  };
  add(MetricType::Gauge, "slots", "Slots of 256 elements.", report.slots);
  add(MetricType::Gauge, "slots_free", "Slots that no job owns.", report.slots_free);
  add(MetricType::Gauge, "memory_bytes", "Memory that jobs may have.", static_cast<double>(report.memory_bytes));
  add(MetricType::Gauge, "memory_used_bytes", "Memory that jobs have.", static_cast<double>(report.memory_used));
  add(MetricType::Gauge, "jobs", "Jobs that are joining, running or failed lately.",
      static_cast<double>(report.jobs.size()));
  for (const auto& [name, value] : report.counters) {
    add(MetricType::Counter, name + "_total", "Of the whole aggregator.", static_cast<double>(value));
  }
  for (MetricFamily& family : families_of(report.jobs)) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

std::string metrics_address(const std::string& metrics, const std::string& listen) {
  if (!parse_number<std::uint16_t>(metrics)) return metrics;
  return listen.empty() ? "127.0.0.1:" + metrics : listen.substr(0, listen.rfind(':') + 1) + metrics;
}

MetricsServer::MetricsServer(const std::string& listen, std::function<Report()> collect)
    : server_(listen, "/metrics", [collect = std::move(collect)] { return page(collect()); }) {}

}  // namespace netsum::telemetry
