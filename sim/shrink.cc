#include "sim/shrink.h"

#include <algorithm>

namespace netsum::sim {
namespace {

class Shrinker {
 public:
  Shrinker(const Settings& settings, std::uint64_t seed, std::uint32_t most_runs, const Runner& runner)
      : settings_(settings), seed_(seed), most_(most_runs), runner_(runner) {
    static_cast<void>(fails(settings.limits));
  }

  // One pass over all limits. True if anything could be removed.
  bool round() {
    const Limits before = shrunk_.limits;
    const Scenario scenario = current();
    std::uint64_t workers = 1, operations = 1, elements = 1, slots = 1, attempts = 1;
    for (const JobPlan& job : scenario.jobs) {
      workers = std::max<std::uint64_t>(workers, job.workers);
      operations = std::max<std::uint64_t>(operations, job.calls.size());
      slots = std::max<std::uint64_t>(slots, job.slots);
      attempts = std::max<std::uint64_t>(attempts, job.attempts);
      for (const auto& call : job.calls) elements = std::max(elements, call.elements);
    }
    lower(&Limits::jobs, scenario.jobs.size(), 1);
    lower(&Limits::aggregators, scenario.aggregators, 1);
    lower(&Limits::lanes, scenario.lanes, 1);
    lower(&Limits::attempts, attempts, 1);
    lower(&Limits::workers, workers, 2);
    lower(&Limits::operations, operations, 1);
    lower(&Limits::elements, elements, 1);
    lower(&Limits::slots, slots, 1);
    for (std::size_t i = 0; i < fault_kinds; ++i) {
      Limits limits = shrunk_.limits;
      limits.kinds.erase(static_cast<Fault>(i));
      if (limits != shrunk_.limits) try_(limits);
    }
    lower(&Limits::node_faults, scenario.node_faults.size(), 0);
    lower(&Limits::faults, link_faults_, 0);
    return shrunk_.limits != before;
  }

  [[nodiscard]] const Shrunk& result() const { return shrunk_; }

 private:
  [[nodiscard]] Scenario current() const {
    Settings settings = settings_;
    settings.limits = shrunk_.limits;
    return generate(settings, seed_);
  }

  [[nodiscard]] bool fails(const Limits& limits) {
    Settings settings = settings_;
    settings.limits = limits;
    const Outcome outcome = runner_(generate(settings, seed_));
    ++shrunk_.runs;
    if (outcome.failure.empty()) return false;
    shrunk_.limits = limits;
    shrunk_.failure = outcome.failure;
    link_faults_ = 0;
    for (const Fault fault : {Fault::loss, Fault::burst, Fault::duplicate, Fault::late, Fault::corrupt, Fault::truncate,
                              Fault::queue, Fault::partition}) {
      link_faults_ += outcome.tally.faults[static_cast<std::size_t>(fault)];
    }
    return true;
  }
  bool try_(const Limits& limits) { return shrunk_.runs < most_ && fails(limits); }

  // Bisects between `least` and `now`: not every failure is monotone, but most are nearly so.
  void lower(std::uint64_t Limits::*field, std::uint64_t now, std::uint64_t least) {
    std::uint64_t low = least, high = std::min(now, shrunk_.limits.*field);
    while (low < high) {
      Limits limits = shrunk_.limits;
      limits.*field = low + (high - low) / 2;
      if (try_(limits)) {
        high = limits.*field;
      } else {
        low = limits.*field + 1;
      }
      if (shrunk_.runs >= most_) return;
    }
  }

  const Settings settings_;
  const std::uint64_t seed_;
  const std::uint32_t most_;
  const Runner& runner_;
  Shrunk shrunk_;
  std::uint64_t link_faults_ = 0;
};

}  // namespace

Shrunk shrink(const Settings& settings, std::uint64_t seed, std::uint32_t most_runs, const Runner& runner) {
  Shrinker shrinker(settings, seed, most_runs, runner);
  while (shrinker.round()) {
  }
  return shrinker.result();
}

}  // namespace netsum::sim
