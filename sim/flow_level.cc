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
constexpr double at_once = 1e18;     // elements a second, where nothing limits a burst

Duration lasting(double time) {
  return Duration(static_cast<std::int64_t>(std::ceil(time * 1e9)));
}

double seconds_at(Time time) {
  return std::chrono::duration<double>(time - origin).count();
}

// What a job has sent until when, in elements, so far as it says what its window allows.
class SentCurve {
 public:
  void add(double time, double sent) {
    if (!points_.empty() && points_.back().sent == sent && points_.size() > 1 && points_[points_.size() - 2].sent == sent)
      points_.pop_back();
    points_.push_back({time, sent});
  }
  struct Part {
    double sent = 0, rate = 0;                               // then, and from then on
    double until = std::numeric_limits<double>::infinity();  // so long
  };
  // Times do not go back between calls.
  [[nodiscard]] Part at(double time) {
    while (points_.size() > 1 && points_[1].time <= time) points_.pop_front();
    if (points_.empty()) return {};
    const Point from = points_.front();
    if (time < from.time) return {before_, 0, from.time};
    before_ = from.sent;
    if (points_.size() == 1) return {from.sent};
    const Point to = points_[1];
    const double rate = (to.sent - from.sent) / (to.time - from.time);
    return {from.sent + rate * (time - from.time), rate, to.time};
  }
  [[nodiscard]] double sent() const { return points_.empty() ? 0 : points_.back().sent; }

 private:
  struct Point {
    double time, sent;
  };
  std::deque<Point> points_;
  double before_ = 0;
};

struct FlowJob {
  const ExperimentJob* plan = nullptr;
  std::string protocol;
  FlowPaths paths;
  TrainingJob training;
  std::vector<Passes> passes;  // of each rank, if they differ
  std::vector<Time> ready, results;
  std::size_t bucket = 0;
  std::uint64_t operation = 0;
  bool sends = false, over = false;
  Time due{};         // the next call, if it does not send
  Time idle_at{};     // its stream
  bool fresh = true;  // its stream was idle
  double left = 0;    // elements of the call
  bool behind_acknowledgements = false, bursts = false, doubted = false;
  SentCurve curve;
  double answered_before = 0, not_grown = 0;
  // Where a window is sent faster than its results come, there are bursts and waits: the next elements at so high a rate at
  // most, and when there may be another one at last.
  double most = 0, stretch = 0;
  Time until = never;
  double weight = 0, rate = 0, sent = 0;

  FlowJob(const Experiment& experiment, std::size_t index, const Resources& resources)
      : plan(&experiment.jobs[index]),
        protocol(protocol_of(experiment, *plan)),
        paths(paths_of(experiment, *plan, resources)),
        training(plan->training, 1, origin),
        weight(static_cast<double>(plan->plan.slots) * paths.packet) {
    const TrainingPlan& ranks = plan->training;
    const bool alike =
        ranks.jitter == 0 && ranks.start_jitter == Duration::zero() && ranks.stragglers.empty() && ranks.trace.empty();
    const std::uint32_t different = alike ? 1 : plan->plan.workers;
    for (std::uint32_t rank = 0; rank < different; ++rank) {
      passes.emplace_back(training, rank, Random(derive(derive(experiment.seed, 2 + index), rank)));
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
    left = packets() * paths.packet;
    behind_acknowledgements = fresh && now < idle_at + lasting(paths.acknowledged_after);
    curve.add(seconds_at(now), curve.sent());
    const double answered = curve.at(seconds_at(now) - turn()).sent;
    if (fresh) not_grown += answered - answered_before;
    if (fresh && allowed(answered) >= curve.sent() + paths.packet) {
      left -= paths.packet;  // the first packet is sent at once
      curve.add(seconds_at(now), curve.sent() + paths.packet);
    }
    training.issued(operation, 0, std::min(now, ready[bucket]));
    plan_stretch(now);
  }

  [[nodiscard]] double elements() const { return static_cast<double>(plan->training.buckets[bucket].elements); }
  [[nodiscard]] double packets() const { return std::ceil(elements() / paths.packet); }
  [[nodiscard]] double missing() const { return packets() * paths.packet - elements(); }  // of the last one

  [[nodiscard]] double fastest() const { return std::min(paths.most, at_once); }
  [[nodiscard]] double first_fastest() const { return std::min(paths.first_most, at_once); }
  // From a packet until the one that is a window behind it may be sent.
  [[nodiscard]] double turn() const { return paths.round_trip; }
  // What may be sent in all when this has been answered. A window grows by what is answered while something waits for it.
  [[nodiscard]] double allowed(double answered) const {
    return answered + std::min(paths.window, paths.first_window + (paths.growth - 1) * (answered - not_grown));
  }
  [[nodiscard]] bool in_bursts(double answered) const { return allowed(answered) - answered < turn() * fastest(); }

  void plan_stretch(Time now) {
    const double time = seconds_at(now) - turn();
    const SentCurve::Part answered = curve.at(time);
    stretch = left;
    until = never;
    bursts = in_bursts(answered.sent);
    most = bursts ? first_fastest() : fastest();
    if (!bursts) return;
    const double room = allowed(answered.sent) - curve.sent();
    const double grows = answered.rate * (allowed(answered.sent + 1) - allowed(answered.sent));
    double lasts = answered.until - time;
    if (room < 0.5) {
      most = std::min(most, grows);
    } else if (most > grows) {
      lasts = std::min(lasts, room / (most - grows));
    }
    stretch = std::min(left, std::max(most * lasts, std::min(room, left)));
    if (most * lasts < left) until = now + std::max(lasting(lasts), Duration(1));
  }

  // Whether the two levels may differ by more than 5 %, by the grid of tests/sim/flow_level_test.cc.
  [[nodiscard]] bool doubtful() const {
    const double holds = paths.window / (turn() * fastest());  // of what the path does
    // One turn more or less, of the window as it begins: whether a last packet needs one may hang on nanoseconds.
    const double turns = packets() * paths.packet / paths.first_window;
    const bool in_turns = bursts && turns > 0.9 && turns < 20;
    if (protocol == "netreduce") return paths.costs || packets() < 64 || in_turns || (holds > 0.5 && holds < 2);
    if (protocol == "atp" && paths.growth > 1 && in_turns) return true;
    const bool near = holds > 0.5 && holds < 2;
    // Some of the exponents are received while links are busy with values, and cost nothing then.
    const double received = std::min(packets(), paths.window / paths.packet) * paths.exponent_received;
    const double all = paths.exponent_trip + turn() + packets() * paths.packet * paths.first_at_slowest;
    const bool between = received > 0.1 * all;
    const bool short_end = packets() > 1 && 64 * missing() > elements();  // which saves less where packets take time
    return paths.costs && (near || short_end || between || (protocol == "atp" && (packets() < 4 || paths.switch_costs)));
  }

  // From the last packet's sending to its result.
  [[nodiscard]] double last_round_trip() const {
    const double each = paths.packet / fastest();
    double time = paths.round_trip;
    // What takes time for packets both ways was ahead by those that had no result yet.
    if (!bursts)
      time = std::max(
          each, time - (std::min(packets(), paths.window / paths.packet) - 1) * (each - paths.packet / first_fastest()));
    if (behind_acknowledgements) time += paths.acknowledging;
    return time - missing() * (fresh && packets() == 1 ? paths.of_element : std::min(paths.of_element, 1 / fastest()));
  }

  // False: the call goes on.
  [[nodiscard]] bool send(double amount, Time now) {
    amount = std::min(amount, stretch);
    left -= amount;
    stretch -= amount;
    curve.add(seconds_at(now), curve.sent() + amount);
    if (left < 0.5) return true;
    if (now >= until) plan_stretch(now);
    return false;
  }
  [[nodiscard]] Time next(Time now) const {
    return std::min(until, rate > 0 || left < 0.5 ? now + lasting(left < 0.5 ? 0 : left / rate) : never);
  }

  // All of the call's elements are on their way.
  void sent_all(Time now) {
    const Time result = now + lasting(last_round_trip());
    answered_before = curve.at(seconds_at(now) - turn()).sent;
    sent += elements();
    doubted |= doubtful();
    training.completed(operation++, 0, result);
    results[bucket] = idle_at = result;
    sends = false;
    if (++bucket == ready.size()) {
      begin_iteration(result);
      if (over) return;
    }
    due = std::max(now, ready[bucket]);
    fresh = due >= idle_at;
    if (fresh)
      due += lasting(
          paths.exponents(elements(), first_fastest()));  // what comes next in a stream that goes on is known by then
  }
};

class FlowLevel {
 public:
  FlowLevel(const Experiment& experiment, Report& report)
      : experiment_(experiment), report_(report), resources_(experiment), background_(resources_.size()) {
    if (const auto needs = needs_disciplines(experiment, "only --level packet has it")) throw *needs;
    for (std::size_t job = 0; job < experiment.jobs.size(); ++job) {
      const std::string& protocol = protocol_of(experiment, experiment.jobs[job]);
      const WireFormat wire = experiment.jobs[job].training.wire;
      if (rounds_blocks(wire) && protocol != "switchml")
        throw ImpossibleExperiment("job[" + std::to_string(job) + "].wire",
                                   std::string("is ") + to_string(wire) + ", which only switchml has, not " + protocol);
      if (has_flows(protocol)) continue;
      throw ImpossibleExperiment(protocol == experiment.protocol ? "protocol" : "job[" + std::to_string(job) + "].protocol",
                                 "is '" + protocol + "': only --level packet has it" +
                                     (protocol == "bump" ? ", as its hosts go back; netreduce is near without losses" : ""));
    }
    for (NodeId node = 0; node < experiment.topology.size(); ++node) {
      const auto loses = [](const PortPlan& port) { return port.loss > 0 || !port.outages.empty(); };
      if (loses(experiment.topology[node].up) || loses(experiment.topology[node].down))
        throw ImpossibleExperiment("network",
                                   "has losses at " + experiment.topology[node].name + ": only --level packet has them");
    }
    for (std::size_t flow = 0; flow < experiment.background.size(); ++flow) {
      if (experiment.background[flow].tcp.empty()) continue;
      throw ImpossibleExperiment("background[" + std::to_string(flow) + "].tcp", "is TCP: only --level packet has it");
    }
    for (std::size_t job = 0; job < experiment.jobs.size(); ++job) {
      jobs_.emplace_back(experiment, job, resources_);
      // Joining takes a call and its answer.
      jobs_.back().begin_iteration(origin + experiment.jobs[job].start + 2 * experiment.control_delay);
      jobs_.back().due += lasting(jobs_.back().paths.exponents(jobs_.back().elements(), jobs_.back().first_fastest()));
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
        next = std::min(next, job.sends ? job.next(now_) : std::max(job.due, now_));
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
        if (job.send(job.rate * passed, now_)) job.sent_all(now_);
      }
    }
    for (const FlowJob& job : jobs_) now_ = std::max(now_, job.training.last());
  }

  void finish() {
    report_.seconds = std::chrono::duration<double>(now_ - origin).count();
    for (const FlowJob& job : jobs_) {
      report_.jobs.push_back(report_of(*job.plan, job.training, origin));
      if (!job.doubted) continue;
      report_.warnings.push_back(
          "job '" + job.plan->plan.name +
          "': these times may be off by more than 5 %, as all-reduces are short, a window is about as "
          "long as what the path holds, or hosts take time for packets: compare with --level packet");
    }
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
        FlowPaths& paths = user->paths;
        paths.most = std::min(paths.most, resources_.capacity(i) / paths.load[i]);
        paths.first_most = std::min(paths.first_most, resources_.capacity(i) / paths.first_load[i]);
      }
    }
    for (const FlowJob& job : jobs_) {
      if (std::isinf(job.paths.most) && job.paths.round_trip == 0 && shared_.empty())
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
      for (const FlowJob* job : open) level = std::min(level, job->most / job->weight);
      for (std::size_t i = 0; i < shared_.size(); ++i) {
        double used = 0;
        for (const FlowJob* job : open) used += job->weight * job->paths.load[shared_[i]];
        if (used > 0) level = std::min(level, room[i] / used);
      }
      // Those are done whom their own limit or a full resource holds at this level.
      std::vector<FlowJob*> still;
      std::vector<double> filled(room);
      for (FlowJob* job : open) {
        bool held = job->most <= level * job->weight * (1 + 1e-9);
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
