#include "sim/experiment.h"

namespace netsum::sim {

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
