#include "sim/flow_level.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <stdexcept>
#include <string>

#include "sim/faults.h"
#include "sim/flow_paths.h"
#include "sim/sampler.h"

namespace netsum::sim {
namespace {

constexpr Time origin{std::chrono::seconds(1)};
constexpr double least_free = 1e-3;  // of a port's rate, however much background traffic there is

Duration lasting(double time) {
  return Duration(static_cast<std::int64_t>(std::ceil(time * 1e9)));
}

struct FlowJob {
  const ExperimentJob* plan = nullptr;
  FlowPaths paths;
  TrainingJob training;
  std::vector<Passes> passes;  // of each rank, if they differ
  std::vector<Time> ready, results;
  std::size_t bucket = 0;
  std::uint64_t operation = 0;
  bool sends = false, over = false;
  Time due{};       // the next call, if it does not send
  Time idle_at{};   // its stream
  double left = 0;  // elements of the call
  double weight = 0, rate = 0, sent = 0;

  FlowJob(const Experiment& experiment, std::size_t index, const Resources& resources)
      : plan(&experiment.jobs[index]),
        paths(paths_of(experiment, *plan, resources)),
        training(plan->training, 1, origin),
        weight(static_cast<double>(plan->plan.slots) * plan->plan.packet_elements) {
    const std::uint32_t different = plan->training.jitter > 0 ? plan->plan.workers : 1;
    for (std::uint32_t rank = 0; rank < different; ++rank) {
      passes.emplace_back(training, Random(derive(derive(experiment.seed, 2 + index), rank)));
    }
  }

  void begin_iteration(Time now) {
    ready.assign(plan->training.buckets.size(), Time{});
    for (Passes& rank : passes) {
      over = !rank.begin(results, now);
      if (over) return;
      for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = std::max(ready[i], rank.ready(i));
    }
    results.assign(ready.size(), Time{});
    bucket = 0;
    due = ready[0];
  }

  void begin_call(Time now) {
    sends = true;
    left = static_cast<double>(plan->training.buckets[bucket].elements);
    training.issued(operation, std::min(now, ready[bucket]));
  }

  // All of the call's elements are on their way.
  void sent_all(Time now) {
    const Time result = now + lasting(paths.round_trip);
    sent += static_cast<double>(plan->training.buckets[bucket].elements);
    training.completed(operation++, result);
    results[bucket] = idle_at = result;
    sends = false;
    if (++bucket == ready.size()) {
      begin_iteration(result);
      if (over) return;
    }
    due = std::max(now, ready[bucket]);
    if (due >= idle_at) due += lasting(paths.first_round);  // what comes next in a stream that goes on is known by then
  }
};

class FlowLevel {
 public:
  FlowLevel(const Experiment& experiment, Report& report)
      : experiment_(experiment), report_(report), resources_(experiment), background_(resources_.size()) {
    for (NodeId node = 0; node < experiment.topology.size(); ++node) {
      if (experiment.topology[node].up.loss > 0 || experiment.topology[node].down.loss > 0)
        throw ImpossibleExperiment("network",
                                   "has losses at " + experiment.topology[node].name + ": only --level packet has them");
    }
    for (std::size_t flow = 0; flow < experiment.background.size(); ++flow) {
      if (experiment.background[flow].tcp.empty()) continue;
      throw ImpossibleExperiment("background[" + std::to_string(flow) + "].tcp",
                                 "is TCP, and only ns-3 has TCP (docs/simulator.md)");
    }
    for (std::size_t job = 0; job < experiment.jobs.size(); ++job) {
      jobs_.emplace_back(experiment, job, resources_);
      // Joining takes a call and its answer.
      jobs_.back().begin_iteration(origin + experiment.jobs[job].start + 2 * experiment.control_delay);
      jobs_.back().due += lasting(jobs_.back().paths.first_round);
    }
    check_buffers();
    find_shared();
  }

  void run() {
    const Time end = after(origin, experiment_.end);
    for (;;) {
      set_background();
      share_rates();
      Time next = next_change();
      bool any = false;
      for (const FlowJob& job : jobs_) {
        if (job.over) continue;
        any = true;
        next = std::min(next, job.sends ? now_ + lasting(job.left / job.rate) : std::max(job.due, now_));
      }
      if (!any) break;
      const Time until = std::min(next, end);
      const double passed = std::chrono::duration<double>(until - now_).count();
      now_ = until;
      if (next > end) break;
      ++report_.events;
      for (FlowJob& job : jobs_) {
        if (job.over) continue;
        if (!job.sends) {
          if (job.due <= now_) job.begin_call(now_);
          continue;
        }
        job.left -= job.rate * passed;
        if (job.left < 0.5) job.sent_all(now_);
      }
    }
    for (const FlowJob& job : jobs_) now_ = std::max(now_, job.training.last());
  }

  void finish() {
    report_.seconds = std::chrono::duration<double>(now_ - origin).count();
    for (const FlowJob& job : jobs_) report_.jobs.push_back(report_of(*job.plan, job.training, origin));
    for (NodeId node = 0; node < experiment_.topology.size(); ++node) {
      if (experiment_.topology[node].above == no_node) continue;
      for (const Fabric::Way way : {Fabric::Way::up, Fabric::Way::down}) {
        const std::size_t port = way == Fabric::Way::up ? Resources::up(node) : Resources::down(node);
        double bytes = 0;
        for (const FlowJob& job : jobs_) bytes += job.sent * job.paths.load[port];
        if (bytes == 0) continue;
        PortReport of;
        of.link = port_name(experiment_.topology, node, way);
        of.bytes = static_cast<std::uint64_t>(bytes);
        if (report_.seconds > 0) of.utilisation = std::min(1.0, bytes / resources_.capacity(port) / report_.seconds);
        report_.ports.push_back(of);
      }
    }
  }

 private:
  // Whole windows may wait at a port: with less room packets are lost, and repeating them takes longer than all else.
  void check_buffers() const {
    const Topology& topology = experiment_.topology;
    const auto check = [](double waiting, std::uint64_t buffer, const std::string& at) {
      if (waiting <= static_cast<double>(buffer) * (1 + 1e-9)) return;
      throw ImpossibleExperiment("network", "has a buffer of " + std::to_string(buffer) + " bytes at " + at + ", where " +
                                                std::to_string(std::llround(waiting)) +
                                                " may wait: what is lost there, only --level packet has");
    };
    std::vector<double> at_node(topology.size());
    for (NodeId node = 0; node < topology.size(); ++node) {
      if (topology[node].above == no_node) continue;
      for (const Fabric::Way way : {Fabric::Way::up, Fabric::Way::down}) {
        const bool up = way == Fabric::Way::up;
        const PortPlan& port = up ? topology[node].up : topology[node].down;
        if (port.bits_per_second == 0) continue;
        double waiting = 0;
        for (const FlowJob& job : jobs_)
          waiting += job.paths.window * job.paths.load[up ? Resources::up(node) : Resources::down(node)];
        check(waiting, port.buffer_bytes, port_name(topology, node, way));
        at_node[up ? node : topology[node].above] += waiting;
      }
    }
    for (NodeId node = 0; node < topology.size(); ++node)
      check(at_node[node], topology[node].shared_buffer_bytes, topology[node].name);
  }

  // What one job alone uses limits that job once and for all.
  void find_shared() {
    std::vector<bool> noisy(resources_.size());
    for (const BackgroundFlow& flow : experiment_.background) {
      Resources::along(experiment_.topology, flow.from, flow.to,
                       [&](std::size_t port, const PortPlan&) { noisy[port] = true; });
    }
    for (std::size_t i = 0; i < resources_.size(); ++i) {
      FlowJob* user = nullptr;
      std::size_t users = 0;
      for (FlowJob& job : jobs_) {
        if (job.paths.load[i] == 0) continue;
        user = &job;
        ++users;
      }
      if (users > 1 || (users == 1 && noisy[i])) {
        shared_.push_back(i);
      } else if (users == 1) {
        user->paths.most = std::min(user->paths.most, resources_.capacity(i) / user->paths.load[i]);
      }
    }
    for (const FlowJob& job : jobs_) {
      if (std::isinf(job.paths.most) && shared_.empty())
        throw std::invalid_argument("nothing limits the speed of job " + job.plan->plan.name);
    }
  }

  void set_background() {
    std::fill(background_.begin(), background_.end(), 0.0);
    for (const BackgroundFlow& flow : experiment_.background) {
      if (!sends(flow)) continue;
      Resources::along(experiment_.topology, flow.from, flow.to, [&](std::size_t port, const PortPlan&) {
        background_[port] += static_cast<double>(flow.bits_per_second) / 8;
      });
    }
  }
  [[nodiscard]] bool sends(const BackgroundFlow& flow) const {
    const Duration at = now_ - origin;
    if (at < flow.start || at >= flow.stop) return false;
    return flow.off == Duration::zero() || (at - flow.start) % (flow.on + flow.off) < flow.on;
  }
  [[nodiscard]] Time next_change() const {
    Duration next = Duration::max();
    const Duration at = now_ - origin;
    for (const BackgroundFlow& flow : experiment_.background) {
      if (at < flow.start) {
        next = std::min(next, flow.start);
      } else if (at < flow.stop) {
        next = std::min(next, flow.stop);
        if (flow.off == Duration::zero()) continue;
        const Duration within = (at - flow.start) % (flow.on + flow.off);
        next = std::min(next, at - within + (within < flow.on ? flow.on : flow.on + flow.off));
      }
    }
    return after(origin, next);
  }

  // Max-min fair, by the jobs' windows: queues that are first in, first out serve each job in proportion to what it has in
  // them.
  void share_rates() {
    std::vector<FlowJob*> open;
    for (FlowJob& job : jobs_) {
      job.rate = 0;
      if (job.sends && !job.over) open.push_back(&job);
    }
    std::vector<double> room;
    for (const std::size_t i : shared_) {
      const double capacity = resources_.capacity(i);
      room.push_back(std::max(capacity - background_[i], capacity * least_free));
    }
    while (!open.empty()) {
      double level = std::numeric_limits<double>::infinity();
      for (const FlowJob* job : open) level = std::min(level, job->paths.most / job->weight);
      for (std::size_t i = 0; i < shared_.size(); ++i) {
        double used = 0;
        for (const FlowJob* job : open) used += job->weight * job->paths.load[shared_[i]];
        if (used > 0) level = std::min(level, room[i] / used);
      }
      // Those are done whom their own limit or a full resource holds at this level.
      std::vector<FlowJob*> still;
      std::vector<double> filled(room);
      for (FlowJob* job : open) {
        bool held = job->paths.most <= level * job->weight * (1 + 1e-9);
        for (std::size_t i = 0; i < shared_.size() && !held; ++i) {
          if (job->paths.load[shared_[i]] == 0) continue;
          double used = 0;
          for (const FlowJob* other : open) used += other->weight * other->paths.load[shared_[i]];
          held = room[i] <= level * used * (1 + 1e-9);
        }
        if (!held) {
          still.push_back(job);
          continue;
        }
        job->rate = level * job->weight;
        for (std::size_t i = 0; i < shared_.size(); ++i) filled[i] -= job->rate * job->paths.load[shared_[i]];
      }
      for (double& each : filled) each = std::max(each, 0.0);
      room = std::move(filled);
      open = std::move(still);
    }
  }

  const Experiment& experiment_;
  Report& report_;
  const Resources resources_;
  std::deque<FlowJob> jobs_;
  std::vector<std::size_t> shared_;  // resources of several jobs, or with background traffic
  std::vector<double> background_;   // of each port: bytes a second, now
  Time now_ = origin;
};

}  // namespace

Report run_flows(const Experiment& experiment) {
  Report report;
  FlowLevel level(experiment, report);
  level.run();
  level.finish();
  return report;
}

}  // namespace netsum::sim
