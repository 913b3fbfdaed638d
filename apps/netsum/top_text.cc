#include "top_text.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "session/words.h"

namespace netsum::app {
namespace {

using telemetry::JobReport;

constexpr std::size_t most_ended = 5;  // shown of each daemon

std::string scaled(double value, const char* unit) {
  constexpr const char* prefixes[] = {"", "k", "M", "G", "T"};
  std::size_t at = 0;
  while (value >= 1000 && at < 4) {
    value /= 1000;
    ++at;
  }
  char text[32];
  const char* const gap = *prefixes[at] == '\0' && *unit == '\0' ? "" : " ";
  std::snprintf(text, sizeof text, "%.*f%s%s%s",
                value >= 100 || at == 0 ? 0
                : value >= 10           ? 1
                                        : 2,
                value, gap, prefixes[at], unit);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string duration(double seconds) {
  char text[32];
  if (seconds < 90) {
    std::snprintf(text, sizeof text, "%.0f s", seconds);
  } else if (seconds < 5400) {
    std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  }
  return text;
}

std::string padded(const std::string& text, std::size_t width, bool right = false) {
  const std::string space(width - std::min(width, text.size()), ' ');
  return (right ? space + text : text + space) + " ";
}

std::string row(const std::string& job, const std::string& state, const std::string& protocol, const std::string& ranks,
                const std::string& in, const std::string& packets, const std::string& again, const std::string& slots,
                const std::string& rest) {
  std::string line = "  " + padded(job, 20) + padded(state, 8) + padded(protocol, 9) + padded(ranks, 9, true) +
                     padded(in, 12, true) + padded(packets, 11, true) + padded(again, 7, true) + padded(slots, 6, true) +
                     " " + rest;
  line.resize(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string full_name(const std::string& job, const std::string& tenant) {
  return tenant.empty() ? job : tenant + "/" + job;
}

RankSet set_of(const std::vector<std::uint32_t>& ranks) {
  RankSet set;
  for (const std::uint32_t rank : ranks) {
    if (rank < max_world_size) set.insert(rank);
  }
  return set;
}

std::string waits_for(const JobReport& job) {
  if (!job.job.running) {
    const RankSet missing = RankSet::first(job.job.world_size).minus(job.job.joined);
    return missing.empty() ? "" : session::name_ranks(missing) + " to join";
  }
  if (job.stalled.empty() || job.stalled_seconds <= 0) return "";
  const JobReport::Stalled& oldest = job.stalled.front();
  const RankSet missing = set_of(oldest.missing);
  std::string text = missing.empty() ? "the switch above" : session::name_ranks(missing);
  std::string hosts = missing.size() == 1 ? telemetry::place_of(job, missing.front()) : "";
  for (const auto& host : job.hosts) {
    if (missing.size() > 1 && set_of(host.ranks).intersects(missing)) hosts += (hosts.empty() ? "" : ", ") + host.address;
  }
  if (!hosts.empty()) text += " at " + hosts;
  return text + " for " + duration(job.stalled_seconds) + " (" + job.stalled_unit + " " + std::to_string(oldest.operation) +
         ")";
}

}  // namespace

std::string TopText::next(const std::vector<Answer>& answers, std::size_t columns) {
  std::string text, lines;
  for (const Answer& answer : answers) text += (text.empty() ? "" : "\n") + of_daemon(answer);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines += text.substr(at, std::min(end - at, columns)) + "\n";
    at = end + 1;
  }
  return lines;
}

std::string TopText::of_daemon(const Answer& answer) {
  if (!answer.report) return answer.address + ": " + answer.error + "\n";
  const telemetry::Report& report = *answer.report;
  const auto before = last_.find(answer.address);
  const auto rates = before == last_.end() ? std::nullopt : telemetry::between(before->second, report);
  std::string text =
      (report.daemon.empty() ? "daemon" : report.daemon) + " " + answer.address + ", up " + duration(report.uptime_seconds);
  if (before != last_.end() && report.uptime_seconds < before->second.uptime_seconds) text += ", started again";
  if (rates) {
    text += ": in " + scaled(rates->bits_in, "bit/s") + ", out " + scaled(rates->bits_out, "bit/s") + ", " +
            scaled(rates->packets_in, "packets/s") + ", " + percent(rates->sent_again) + " sent again, " +
            percent(rates->dropped) + " dropped";
  }
  text += "\n  " + std::to_string(report.slots - std::min(report.slots, report.slots_free)) + " of " +
          std::to_string(report.slots) + " slots, " + session::in_bytes(report.memory_used) +
          (report.memory_bytes == UINT64_MAX ? "" : " of " + session::in_bytes(report.memory_bytes)) + " of memory, " +
          std::to_string(report.jobs.size()) + (report.jobs.size() == 1 ? " job" : " jobs") +
          (report.draining ? ", draining: no new job is admitted" : "") + "\n";
  if (!report.jobs.empty())
    text += row("JOB", "STATE", "PROTOCOL", "RANKS", "IN", "PACKETS/S", "AGAIN", "SLOTS", "WAITS FOR");
  for (const JobReport* const each : telemetry::failed_first(report.jobs)) {
    const JobReport& job = *each;
    const auto found = rates ? rates->jobs.find(telemetry::key_of(job))
                             : std::map<telemetry::Rates::Key, telemetry::JobRates>::const_iterator();
    const bool known = rates && found != rates->jobs.end() && job.job.running;
    std::string rest = job.job.failure.empty() ? waits_for(job) : job.job.failure;
    if (!job.job.late.empty()) rest += (rest.empty() ? "" : ", ") + session::name_ranks(job.job.late) + " late";
    for (const std::string& absent : job.job.absent) rest += (rest.empty() ? "without " : ", without ") + absent;
    text += row(full_name(job.job.job, job.job.tenant), telemetry::state_of(job.job), job.job.protocol,
                std::to_string(job.job.joined.size()) + "/" + std::to_string(job.job.world_size),
                known ? scaled(found->second.bits_in, "bit/s") : "", known ? scaled(found->second.packets_in, "") : "",
                known ? percent(found->second.sent_again) : "", std::to_string(job.job.slots), rest);
  }
  for (std::size_t i = 0; i < std::min(most_ended, report.ended.size()); ++i) {
    const telemetry::EndedJob& ended = report.ended[i];
    text += "  " + padded(full_name(ended.job, ended.tenant), 20) + telemetry::in_words(ended) + "\n";
  }
  last_[answer.address] = report;
  return text;
}

}  // namespace netsum::app
