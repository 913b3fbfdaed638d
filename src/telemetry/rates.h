// What happened between two reports of a daemon.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "telemetry/report.h"

namespace netsum::telemetry {

struct JobRates {
  double bits_in = 0, packets_in = 0;  // per second
  double sent_again = 0;               // results, of the packets; 0 to 1
};
struct Rates {
  double bits_in = 0, bits_out = 0, packets_in = 0, packets_out = 0;  // per second
  double sent_again = 0, dropped = 0;                                 // of jobs' packets, and of all; 0 to 1
  using Key = std::tuple<std::string, std::string, std::uint64_t>;    // tenant, job, epoch
  std::map<Key, JobRates> jobs;                                       // that are in both
};

[[nodiscard]] Rates::Key key_of(const JobReport& job);
// None: the daemon was started again in between, or no time passed.
[[nodiscard]] std::optional<Rates> between(const Report& before, const Report& now);

// Results that a job's ranks were sent once more, by any protocol's names: each was lost, or late. Of a job's packets they
// are about the loss, as each packet brings a rank one result.
[[nodiscard]] std::uint64_t repeated_of(const Counters& counters);

}  // namespace netsum::telemetry
