#include "telemetry/metrics_server.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "netsum/error.h"
#include "telemetry/metrics_text.h"
#include "telemetry/page_html.h"

namespace netsum::telemetry {
namespace {

constexpr std::string_view nanoseconds = "_nanoseconds";

[[nodiscard]] bool is_gauge(std::string_view counter) {
  return counter.ends_with("slots_in_use") || counter == "chunks_incomplete";
}

// All jobs' counters, grouped by name: jobs of different protocols have different counters.
std::vector<MetricFamily> families_of(const std::vector<JobReport>& jobs) {
  std::vector<MetricFamily> families;
  std::map<std::string, std::size_t> numbers;
  std::map<std::tuple<std::size_t, std::string, std::string>, std::size_t> samples;  // family, tenant, job
  for (const JobReport& job : jobs) {
    // A failed job is no longer on the lanes, and the next job may have its name.
    if (!job.job.failure.empty()) continue;
    decltype(Sample::labels) labels = {{"job", job.job.job}};
    if (!job.job.tenant.empty()) labels.push_back({"tenant", job.job.tenant});
    for (const auto& [name, value] : job.counters) {
      const auto type = is_gauge(name) ? MetricType::gauge : MetricType::counter;
      const auto [number, is_new] = numbers.emplace(name, families.size());
      if (is_new) {
        families.push_back({"netsum_job_" + name + (is_gauge(name) ? "" : "_total"),
                            "Counter or value of one job, over all lanes.",
                            type,
                            {}});
      }
      MetricFamily& family = families[number->second];
      // Jobs of different protocols or parameter servers may have the same name: Prometheus rejects a scrape with duplicate
      // samples.
      const auto [place, is_first] =
          samples.emplace(std::tuple(number->second, job.job.tenant, job.job.job), family.samples.size());
      if (is_first) {
        family.samples.push_back(Sample{labels, static_cast<double>(value)});
      } else {
        family.samples[place->second].value += static_cast<double>(value);
      }
    }
  }
  return families;
}

// What is no counter of a job's protocol.
std::vector<MetricFamily> states_of(const std::vector<JobReport>& jobs) {
  MetricFamily ranks{"netsum_job_ranks", "Ranks of the job.", MetricType::gauge, {}};
  MetricFamily joined{"netsum_job_ranks_joined", "Ranks of the job that have joined.", MetricType::gauge, {}};
  MetricFamily stalled{"netsum_job_stalled_seconds",
                       "Time that the oldest operation has waited for a rank, in seconds.",
                       MetricType::gauge,
                       {}};
  std::set<std::pair<std::string, std::string>> seen;
  for (const JobReport& job : jobs) {
    if (!job.job.failure.empty() || !seen.emplace(job.job.tenant, job.job.job).second) continue;
    decltype(Sample::labels) labels = {{"job", job.job.job}};
    if (!job.job.tenant.empty()) labels.push_back({"tenant", job.job.tenant});
    ranks.samples.push_back(Sample{labels, static_cast<double>(job.job.world_size)});
    joined.samples.push_back(Sample{labels, static_cast<double>(job.job.joined.size())});
    stalled.samples.push_back(Sample{std::move(labels), job.stalled_seconds});
  }
  if (ranks.samples.empty()) return {};
  return {std::move(ranks), std::move(joined), std::move(stalled)};
}

std::string metrics_page(const Report& report) {
  std::vector<MetricFamily> families;
  families.push_back({"netsum_info",
                      "Version and kind of the daemon.",
                      MetricType::gauge,
                      {Sample{{{"version", report.version}, {"daemon", report.daemon}}, 1}}});
  const auto add = [&](MetricType type, const std::string& name, const char* help, double value) {
    families.push_back({"netsum_" + name, help, type, {Sample{{}, value}}});
  };
  const std::chrono::duration<double> unix_now = std::chrono::system_clock::now().time_since_epoch();
  add(MetricType::gauge, "start_time_seconds", "Start time of the daemon, in seconds since 1970.",
      std::round(unix_now.count() - report.uptime_seconds));
  add(MetricType::gauge, "slots", "Slots of 256 elements.", report.slots);
  add(MetricType::gauge, "slots_free", "Slots that no job owns.", report.slots_free);
  add(MetricType::gauge, "memory_bytes", "Memory limit of all jobs together, in bytes.",
      static_cast<double>(report.memory_bytes));
  add(MetricType::gauge, "memory_used_bytes", "Memory in use by jobs, in bytes.", static_cast<double>(report.memory_used));
  if (report.certificate_until != 0) {
    add(MetricType::gauge, "certificate_expiry_timestamp_seconds",
        "Expiry time of the TLS certificate, in seconds since 1970.", report.certificate_until);
  }
  add(MetricType::gauge, "draining", "1 while an operator drains the daemon, which then admits no new job.",
      report.draining ? 1 : 0);
  MetricFamily attached{"netsum_interface_attached",
                        "1 while packets pass at the interface before the kernel's network has them, else 0.",
                        MetricType::gauge,
                        {}};
  for (const transport::Attachment& each : report.interfaces) {
    attached.samples.push_back(Sample{{{"interface", each.interface}}, each.attached ? 1.0 : 0.0});
  }
  if (!attached.samples.empty()) families.push_back(std::move(attached));
  add(MetricType::gauge, "jobs", "Jobs that are joining, running or failed lately.",
      static_cast<double>(report.jobs.size()));
  constexpr std::string_view by_cause = "jobs_failed_";
  MetricFamily failed{"netsum_jobs_failed_total", "Jobs that failed, by cause.", MetricType::counter, {}};
  for (const auto& [name, value] : report.counters) {
    if (name.starts_with(by_cause)) {
      failed.samples.push_back(Sample{{{"cause", std::string(name.substr(by_cause.size()))}}, static_cast<double>(value)});
    }
    if (name.starts_with("jobs_failed")) continue;
    if (is_gauge(name)) {
      add(MetricType::gauge, std::string(name), "Of the whole aggregator, right now.", static_cast<double>(value));
      continue;
    }
    // Prometheus counts in base units.
    const bool time = name.ends_with(nanoseconds);
    add(MetricType::counter,
        (time ? name.substr(0, name.size() - nanoseconds.size()) + "_seconds" : std::string(name)) + "_total",
        "Counter of the whole daemon.", (time ? 1e-9 : 1) * static_cast<double>(value));
  }
  if (!failed.samples.empty()) families.push_back(std::move(failed));
  for (MetricFamily& family : states_of(report.jobs)) families.push_back(std::move(family));
  for (MetricFamily& family : families_of(report.jobs)) families.push_back(std::move(family));
  return metrics_text(families);
}

// One report for all pages of a moment, on the server's thread.
class Recent {
 public:
  explicit Recent(std::function<Report()> collect) : collect_(std::move(collect)) {}
  [[nodiscard]] const Report& report() {
    const auto now = std::chrono::steady_clock::now();
    if (!report_ || now >= until_) {
      report_.reset();
      report_ = collect_();
      until_ = std::chrono::steady_clock::now() + PageServerLimits().page;
    }
    return *report_;
  }

 private:
  std::function<Report()> collect_;
  std::optional<Report> report_;
  std::chrono::steady_clock::time_point until_;
};

// A viewer as the pages' cache knows it. No tenant's name begins so.
constexpr char everything[] = " all";
std::string viewer_key(const PageAdmittance::Viewer& viewer) {
  return viewer.sees_all ? everything + viewer.tenant : viewer.tenant;
}

std::string status_for(const Report& report, const std::string& viewer, const std::string& challenge) {
  const bool sees_all = viewer.starts_with(everything);
  Report visible = sees_all ? report : visible_to(viewer, report);
  if (!sees_all && viewer.empty()) {  // who has shown no token sees nobody's, also where jobs are nobody's
    visible.jobs.clear();
    visible.ended.clear();
  }
  auto json = nlohmann::ordered_json::parse(to_json(visible, true));
  json["tenants"] = !challenge.empty();
  json["viewer"] = sees_all ? viewer.substr(std::string_view(everything).size()) : viewer;
  json["hidden_jobs"] = report.jobs.size() - visible.jobs.size();
  if (!challenge.empty()) json["challenge"] = challenge;
  return json.dump();
}

std::vector<Page> pages_of(std::function<Report()> collect, PageAdmittance admittance, std::function<bool()> alive) {
  const auto recent = std::make_shared<Recent>(std::move(collect));
  Page metrics{"/metrics", "text/plain; version=0.0.4; charset=utf-8",
               [recent](const std::string&) { return metrics_page(recent->report()); }};
  Page status{"/status.json", "application/json", {}, {}};
  const auto challenge = admittance.challenge;
  status.make = [recent, challenge](const std::string& viewer) {
    return status_for(recent->report(), viewer, challenge ? challenge() : "");
  };
  status.viewer = [viewer = admittance.viewer](std::string_view proof) {
    return viewer_key(viewer ? viewer(proof) : PageAdmittance::Viewer());
  };
  // For whoever starts daemons again: it costs no report.
  const auto health = [alive = std::move(alive)](const std::string&) -> std::string {
    if (alive && !alive()) throw Error(ErrorCode::internal, "a thread of this daemon does not answer");
    return "ok\n";
  };
  return {std::move(metrics), std::move(status), Page{"/healthz", "text/plain; charset=utf-8", health},
          Page{"/readyz", "text/plain; charset=utf-8", health},
          Page{"/", "text/html; charset=utf-8", [](const std::string&) { return std::string(page_html); }}};
}

}  // namespace

std::string metrics_address(const std::string& metrics, const std::string& listen) {
  if (!parse_number<std::uint16_t>(metrics)) return metrics;
  return listen.empty() ? "127.0.0.1:" + metrics : listen.substr(0, listen.rfind(':') + 1) + metrics;
}

MetricsServer::MetricsServer(const std::string& listen, std::function<Report()> collect, PageAdmittance admittance,
                             std::function<bool()> alive)
    : server_(listen, pages_of(std::move(collect), std::move(admittance), std::move(alive))) {}

}  // namespace netsum::telemetry
