#include "sim/experiment.h"

#include <algorithm>

namespace netsum::sim {

std::optional<ImpossibleExperiment> needs_disciplines(const Experiment& experiment, const std::string& why, bool has_red) {
  const Topology& topology = experiment.topology;
  if (!topology.is_tree()) return ImpossibleExperiment("network.kind", "has several paths: " + why);
  if (topology.pfc) return ImpossibleExperiment("network.pfc", "is there: " + why);
  for (NodeId node = 0; node < topology.size() && !has_red; ++node) {
    if (topology[node].up.red || topology[node].down.red)
      return ImpossibleExperiment("network", "has red at " + topology[node].name + ": " + why);
  }
  const auto of = [&](const char* key, const auto& list) -> std::optional<ImpossibleExperiment> {
    const auto found = std::find_if(list.begin(), list.end(), [](const auto& each) { return each.priority != 0; });
    if (found == list.end()) return std::nullopt;
    return ImpossibleExperiment(std::string(key) + "[" + std::to_string(found - list.begin()) + "].priority",
                                "is above 0: " + why);
  };
  const auto job = of("job", experiment.jobs);
  return job ? job : of("background", experiment.background);
}

JobReport report_of(const ExperimentJob& job, const TrainingJob& training, Time origin) {
  JobReport report;
  report.name = job.plan.name;
  report.ranks = job.plan.workers;
  const auto seconds = [&](Time time) { return std::chrono::duration<double>(time - origin).count(); };
  if (const auto first = training.first()) {
    report.first = seconds(*first);
    report.last = seconds(training.last());
  }
  report.bytes = training.bytes_reduced();
  report.iteration_seconds = training.iteration_seconds();
  report.operation_seconds = training.operation_seconds();
  report.times = training.times();
  for (RankTime& time : report.times) {
    time.called = Time(time.called - origin);
    time.result = Time(time.result - origin);
  }
  return report;
}

}  // namespace netsum::sim
