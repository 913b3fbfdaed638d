#include "sim/promises.h"

#include <algorithm>

#include "stream/operation.h"

namespace netsum::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration until_joined = seconds(1);
// Until the others go on without a rank that is silent for heartbeat_timeout: they join again after a pause of up to 2 s,
// and may have to look twice.
constexpr Duration until_without = seconds(10);
// Until a late rank is left out, and until it is in the job again.
constexpr Duration lives_of_late_rank = 2 * seconds(4);

std::int64_t parts_of(std::uint64_t elements, std::uint64_t part) {
  return static_cast<std::int64_t>((elements + part - 1) / part);
}

// Of a call, once all ranks have made it.
Duration bound_of(const Scenario& scenario, const Protocol& protocol, const JobPlan& job, const stream::Operation& call,
                  bool hit) {
  const std::uint64_t elements = stream::wire_elements(call);
  const std::uint64_t lanes = std::uint64_t{scenario.lanes} * scenario.aggregators;
  const std::int64_t turns = parts_of(elements, lanes * job.slots * job.packet_elements);
  if (hit && scenario.lasting->kind == Fault::slow_rank) return seconds(1) + (2 + turns) * 12 * scenario.lasting->turn;
  if (hit && scenario.lasting->kind == Fault::lossy_lane) {
    // A packet comes through the third time at the latest, of time-outs that are a quarter of a second at most, and then
    // half as long again. Where losses shorten the window, or hosts go back, packets of a turn wait for each other.
    const std::int64_t waits = protocol.losses_hold_up_others() ? parts_of(elements, job.packet_elements) : turns;
    return seconds(2) + waits * milliseconds(750);
  }
  return milliseconds(1500) + turns * milliseconds(50);
}

}  // namespace

std::vector<Promise> promises(const Scenario& scenario, const Protocol& protocol) {
  std::vector<Promise> all;
  if (!scenario.lasting) return all;
  const LastingFault& fault = *scenario.lasting;
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    const JobPlan& job = scenario.jobs[index];
    const bool its = fault.job == index, dead = its && fault.kind == Fault::dead_link;
    const bool hit = its || fault.trunk;  // which all jobs share
    // Behind several aggregators a rank that misses one joins again, and may need a result that nobody has kept.
    const bool alone = fault.reach == LastingFault::Reach::cable ||
                       (fault.reach == LastingFault::Reach::path && scenario.aggregators == 1 &&
                        (job.switch_of_rank.empty() || job.switch_of_rank[fault.rank] == UINT32_MAX));
    const bool all_results = !dead || (job.survivors != 0 && alone);
    const bool left_out = its && job.straggler_deadline.count() != 0;
    Duration pause = job.gap + job.straggle_for;
    if (its && fault.kind == Fault::slow_rank) pause += fault.late;
    Time by = Time(until_joined) + (dead ? until_without : Duration::zero());
    for (std::size_t call = 0; call < job.calls.size(); ++call) {
      by += pause + bound_of(scenario, protocol, job, job.calls[call], hit) +
            (left_out ? lives_of_late_rank : Duration::zero());
      for (std::uint32_t rank = 0; rank < job.workers; ++rank) {
        // Where it does not get them: it may be too late for what others keep.
        const bool excepted = its && rank == fault.rank && (dead || left_out);
        if (all_results && !excepted) all.push_back({index, rank, call + 1, by});
      }
    }
    // A rank that has all results waits for others that need it, and one that has not tries again.
    by += job.operation_deadline;
    if (dead || left_out) by += job.attempts * (job.operation_deadline + scenario.connect_deadline + until_without);
    for (std::uint32_t rank = 0; rank < job.workers; ++rank) all.push_back({index, rank, 0, by});
  }
  return all;
}

}  // namespace netsum::sim
