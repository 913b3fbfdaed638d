#include "telemetry/rates.h"

#include <algorithm>

namespace netsum::telemetry {
namespace {

std::uint64_t more(std::uint64_t before, std::uint64_t now) {
  return now - std::min(before, now);
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::uint64_t repeated_of(const Counters& counters) {
  return counters.value("repeats_answered") + counters.value("sums_asked_for");
}

Rates::Key key_of(const JobReport& job) {
  return {job.job.tenant, job.job.job, job.job.job_epoch};
}

std::optional<Rates> between(const Report& before, const Report& now) {
  const double seconds = now.uptime_seconds - before.uptime_seconds;
  if (!(seconds > 0)) return std::nullopt;
  Rates rates;
  const auto per_second = [&](const Counters& then, const Counters& later, const char* name) {
    return static_cast<double>(more(then.value(name), later.value(name))) / seconds;
  };
  const auto of_all = [&](const char* name) { return per_second(before.counters, now.counters, name); };
  rates.bits_in = 8 * of_all("wire_bytes_received");
  rates.bits_out = 8 * of_all("wire_bytes_sent");
  rates.packets_in = of_all("packets_received");
  rates.packets_out = of_all("packets_sent");
  if (const double dropped = of_all("dropped_kernel"); dropped > 0) rates.dropped = dropped / (dropped + rates.packets_in);
  std::map<Rates::Key, const JobReport*> former;
  for (const JobReport& job : before.jobs) former.emplace(key_of(job), &job);
  std::uint64_t packets = 0, repeated = 0;
  for (const JobReport& job : now.jobs) {
    const auto found = former.find(key_of(job));
    if (found == former.end()) continue;
    const Counters& then = found->second->counters;
    JobRates own;
    own.bits_in = 8 * per_second(then, job.counters, "bytes");
    own.packets_in = per_second(then, job.counters, "packets");
    const std::uint64_t own_repeated = more(repeated_of(then), repeated_of(job.counters));
    const std::uint64_t own_packets = std::max(own_repeated, more(then.value("packets"), job.counters.value("packets")));
    own.sent_again = share(own_repeated, own_packets);
    packets += own_packets;
    repeated += own_repeated;
    rates.jobs.emplace(key_of(job), own);
  }
  rates.sent_again = share(repeated, packets);
  return rates;
}

}  // namespace netsum::telemetry
