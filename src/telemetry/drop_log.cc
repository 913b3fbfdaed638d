#include "telemetry/drop_log.h"

#include <algorithm>
#include <array>

#include "transport/addresses/addresses.h"

namespace netsum::telemetry {
namespace {

struct Reason {
  const char* counter;
  const char* words;
};
// By any protocol's names. The counters of packets that are late or repeated (dropped_old, dropped_stale, ...) are not here.
constexpr auto reasons = std::to_array<Reason>({
    {"dropped_source", "their source address is not that with which their rank joined"},
    {"dropped_rank", "their rank is not in the job"},
    {"dropped_rank_epoch", "they come from an earlier process of their rank"},
    {"dropped_slot", "their slot is outside of the job's window"},
    {"dropped_shape", "their length is not that of their chunk or message"},
    {"dropped_mismatch", "the ranks issued different calls"},
    {"dropped_early", "their rank is ahead of its window"},
    {"dropped_trains",
     "the kernel merged them before the XDP program, which runs in generic mode: ethtool -K INTERFACE gro off at the "
     "interface (netsum status names those in generic mode), and tx-udp-segmentation off at ranks' veths"},
    {"dropped_seal", "their seal is missing or wrong: another key, or a packet changed on its way"},
    {"dropped_header", "their first header does not fit their rank and ring"},
    {"dropped_misplaced", "their PSN or opcode contradicts the state of their message"},
    {"dropped_raw", "the switch of their rack passed them on without a sum"},
});

}  // namespace

std::vector<DropLog::Line> DropLog::look(const Report& seen, Time at) {
  std::vector<Line> lines;
  std::map<std::pair<Rates::Key, std::string>, LineLimit> now;
  for (const JobReport& job : seen.jobs) {
    for (const Reason& reason : reasons) {
      const std::uint64_t count = job.counters.value(reason.counter);
      if (count == 0) continue;
      LineLimit& limit = now[{key_of(job), reason.counter}];
      if (const auto before = limits_.find({key_of(job), reason.counter}); before != limits_.end()) limit = before->second;
      const std::uint64_t dropped = limit.take(count, at);
      if (dropped == 0) continue;
      const auto from = job.dropped_from.find(reason.counter);
      lines.push_back({job.job.tenant,
                       "warning: job '" + job.job.job + "': " + std::to_string(dropped) + " packets were dropped, since " +
                           reason.words + " (" + reason.counter + ")" +
                           (from == job.dropped_from.end() ? "" : "; one came from " + transport::to_string(from->second))});
    }
  }
  limits_ = std::move(now);
  return lines;
}

}  // namespace netsum::telemetry
