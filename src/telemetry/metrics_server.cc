#include "telemetry/metrics_server.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <utility>

#include "netsum/error.h"

namespace netsum::telemetry {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(std::function<Report()> collect) : collect_(std::move(collect)) {}

  std::vector<MetricFamily> Collect() const override {
    const Report report = collect_();
    std::vector<MetricFamily> families;
    const auto gauge = [&](const char* name, const char* help, double value) {
      families.push_back({name, help, MetricType::Gauge, {gauge_of({}, value)}});
    };
    gauge("netsum_slots", "Slots of 256 elements.", report.slots);
    gauge("netsum_slots_free", "Slots that no job owns.", report.slots_free);
    gauge("netsum_jobs", "Jobs that are joining, running or failed lately.", static_cast<double>(report.jobs.size()));
    for (const auto& [name, value] : report.counters) {
      families.push_back(
          {"netsum_" + name + "_total", "Of the whole aggregator.", MetricType::Counter, {counter_of({}, value)}});
    }
    if (report.jobs.empty()) return families;
    for (std::size_t i = 0; i < report.jobs.front().counters.size(); ++i) {
      const std::string& name = report.jobs.front().counters[i].first;
      const bool is_gauge = name == "slots_in_use";
      MetricFamily family{"netsum_job_" + name + (is_gauge ? "" : "_total"),
                          "Of one job, over all lanes.",
                          is_gauge ? MetricType::Gauge : MetricType::Counter,
                          {}};
      for (const JobReport& job : report.jobs) {
        // A failed job is no longer on the lanes, and its name may be that of the next: one sample a name.
        if (i >= job.counters.size() || !job.job.failure.empty()) continue;
        const std::vector<ClientMetric::Label> labels = {{"job", job.job.job}};
        const auto value = job.counters[i].second;
        family.metric.push_back(is_gauge ? gauge_of(labels, static_cast<double>(value)) : counter_of(labels, value));
      }
      families.push_back(std::move(family));
    }
    return families;
  }

 private:
  static ClientMetric gauge_of(std::vector<ClientMetric::Label> labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    return metric;
  }
  static ClientMetric counter_of(std::vector<ClientMetric::Label> labels, std::uint64_t value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = static_cast<double>(value);
    return metric;
  }

  std::function<Report()> collect_;
};

}  // namespace

struct MetricsServer::Impl {
  std::shared_ptr<Collector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer(const std::string& listen, std::function<Report()> collect) : impl_(std::make_unique<Impl>()) {
  impl_->collector = std::make_shared<Collector>(std::move(collect));
  try {
    impl_->exposer = std::make_unique<prometheus::Exposer>(listen, 1);
  } catch (const std::exception& e) {
    throw Error(ErrorCode::refused, "cannot serve metrics on " + listen + ": " + e.what());
  }
  impl_->exposer->RegisterCollectable(impl_->collector);
}

MetricsServer::~MetricsServer() = default;

}  // namespace netsum::telemetry
