// `netsum simulate`: whole clusters under a virtual clock, one per seed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/check.h"
#include "command.h"
#include "progress.h"
#include "quantiles.h"
#include "sim/cluster.h"
#include "sim/protocol.h"
#include "sim/shrink.h"
#include "simulate_scenario.h"
#include "sweep.h"

namespace netsum::app {
namespace {

constexpr std::size_t shrunk_at_most = 3;  // failing seeds; the others are likely the same bug

// The result kept for a seed.
struct SeedResult {
  std::uint64_t trace_hash = 0, operations = 0, live_faults = 0;
  double turns = 0;
  std::string failure;
};

struct Failure {
  std::uint64_t seed = 0;
  std::string what, replay;
  std::string smallest_what, smallest_replay;  // empty: not shrunk
};

class SimulateCommand final : public Command {
 public:
  SimulateCommand(CLI::App& app, Sections& sections) : Command(app, "simulate", sections) {
    Settings& s = settings();
    const auto seeds = "Clusters from seeds", scenario = "A scenario in their place";
    s.add("protocol", protocol_, "NAME",
          "switchml, atp, netreduce; switchml-chip: at chips; switchml-rdma: over RoCEv2 UC; bump: NetReduce through a bump "
          "in the wire")
        .group(seeds);
    s.add("workers", workers_, "N|A..B", "Workers of a job; from a range, each seed draws a number").group(seeds);
    s.add("jobs", jobs_, "N|A..B", "Concurrent jobs").group(seeds);
    s.add("seeds", seeds_, "N|A..B", "Seeds to run; each simulates a cluster from start to end").group(seeds);
    s.add("faults", faults_, "PROFILE",
          "none, lossy (links), crash (nodes), leave (nodes, of jobs with survivors), chaos (everything); or one fault that "
          "never heals: dead-link, slow-rank, lossy-lane")
        .group(seeds);
    s.add("threads", threads_, "T", "Seeds that run at once; 0: one per CPU").between(0, 256).group(seeds);
    s.add("limit", limit_, "WHAT=N,...",
          "Limit the faults and sizes that the seed draws, as shrinking does: workers=2,without=loss+late")
        .group(seeds);
    s.add("least", least_, "N",
          "Fail if a kind of fault or a rare event occurred fewer times, or the median seed tests too little")
        .group(seeds);
    s.add("trace", trace_, "PREFIX", "Write the events of one seed to PREFIX.txt, and its packets to PREFIX.pcap")
        .group(seeds);
    s.add_flag("unchecked", unchecked_,
               "With --trace: continue after an error that the simulator finds, so that judge/judge can read what follows")
        .group(seeds);
    s.add_flag("first-failure", first_failure_, "Stop at the first seed that fails").group(seeds);
    s.add_flag("no-shrink", no_shrink_, "Report a failing seed as it is, without shrinking its scenario").group(seeds);
    s.add("scenario", scenario_, "FILE", "One experiment over a network, from a TOML file (docs/simulator.md)")
        .group(scenario);
    s.add("level", level_, "LEVEL", "Level of a scenario: packet, or flow for networks too large for packets")
        .group(scenario);
    s.add_list("set", sets_, "KEY=A,B,C", "Run with each of these values of a scenario's key, and with each of --seeds A..B")
        .group(scenario);
    s.add("output", output_, "PREFIX", "Where runs with several values or seeds go: PREFIX.jsonl, .csv, -summary.csv, .svg")
        .group(scenario);
    s.add("times", files_.times, "FILE", "Write each operation's and rank's times as CSV").group(scenario);
    s.add("series", files_.series, "FILE", "Write the scenario's series, queues over time for example, as CSV")
        .group(scenario);
    s.add("pcap", files_.pcap, "FILE", "Write all datagrams, as they leave their senders, for Wireshark").group(scenario);
    s.exclusive(seeds, scenario);
    s.add_flag("json", json_, "Print one JSON object in place of a table");
    footer(
        "The protocol, stream and session code is that of the binaries; network, clocks and hosts are simulated, and\n"
        "everything follows from the seed. After each step it is checked that every result is the exact sum, the same on\n"
        "all ranks, that counters and slots add up, and that every wait ends. A seed that fails is shrunk, and its replay\n"
        "printed. Exit code 1 if any failed.\n"
        "Examples:\n"
        "  netsum simulate --workers 2..16 --faults chaos --seeds 1..10000\n"
        "  netsum simulate --faults chaos --seeds 17 --trace seed17     then: less seed17.txt, wireshark seed17.pcap\n"
        "  netsum simulate --scenario examples/scenarios/star.toml --json\n"
        "  netsum simulate --scenario star.toml --set job.slots=16,64 --seeds 1..10      resumed by the same command");
  }

  int run() override {
    checking = !unchecked_;
    if (!scenario_.empty()) {
      for (const auto* name :
           {"protocol", "workers", "jobs", "faults", "limit", "least", "trace", "unchecked", "first-failure", "no-shrink"}) {
        refuse(name, " does not apply to --scenario: its FILE has its own `protocol` and `seed`");
      }
      const bool seeds = !settings().origin("seeds").empty();
      if (!seeds && sets_.empty() && !has_sweep(scenario_)) {
        for (const auto* name : {"threads", "output"})
          refuse(name, " does not apply to one run of a --scenario: give --set, --seeds A..B, or the FILE a [sweep]");
        return simulate_scenario(scenario_, level_, json_, files_);
      }
      for (const auto* name : {"times", "series", "pcap"}) refuse(name, " is of one run, not of a sweep");
      return run_sweep({scenario_, level_, sets_, seeds ? seeds_ : "", output_, threads_, json_});
    }
    for (const auto* name : {"level", "set", "output", "times", "series", "pcap"}) refuse(name, " requires --scenario FILE");
    check();
    const auto began = std::chrono::steady_clock::now();
    run_seeds();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    seconds_ = took.count();
    explain_failures();
    complain_of_worth();
    std::fputs(json_ ? json().c_str() : table().c_str(), stdout);
    for (const Failure& failure : failures_) {
      std::fprintf(stderr, "netsum: seed %llu failed: %s\n  replay:   %s\n", static_cast<unsigned long long>(failure.seed),
                   failure.what.c_str(), failure.replay.c_str());
      if (failure.smallest_replay.empty()) continue;
      std::fprintf(stderr, "  smallest: %s\n            %s\n", failure.smallest_replay.c_str(),
                   failure.smallest_what.c_str());
    }
    for (const std::string& complaint : complaints_) std::fprintf(stderr, "netsum: %s\n", complaint.c_str());
    return failures_.empty() && complaints_.empty() ? exit_done : exit_failed;
  }

 private:
  void refuse(const char* name, const char* why) {
    if (const std::string& origin = settings().origin(name); !origin.empty()) throw UsageError(origin + why);
  }

  void check() {
    const std::vector<std::string> known = sim::seeds_protocol_names();
    if (std::find(known.begin(), known.end(), protocol_) == known.end()) {
      std::string names;
      for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
      throw UsageError("--protocol is one of " + names + ", not '" + protocol_ + "'");
    }
    const auto profile = sim::profile_of(faults_);
    if (!profile)
      throw UsageError("--faults must be none, lossy, crash, leave, chaos, dead-link, slow-rank or lossy-lane, not '" +
                       faults_ + "'");
    const SeedSpan workers = parse_span("workers", workers_, 1, sim::make_protocol(protocol_)->rules().max_world_size),
                   jobs = parse_span("jobs", jobs_, 1, 64);
    span_ = parse_span("seeds", seeds_, 0, UINT64_MAX / 2);
    if (span_.to - span_.from >= 100'000'000) throw UsageError("--seeds " + seeds_ + " are more than 100,000,000 at once");
    simulation_.protocol = protocol_;
    simulation_.profile = *profile;
    simulation_.workers = {static_cast<std::uint32_t>(workers.from), static_cast<std::uint32_t>(workers.to)};
    simulation_.jobs = {static_cast<std::uint32_t>(jobs.from), static_cast<std::uint32_t>(jobs.to)};
    try {
      simulation_.limits = sim::Limits::parse(limit_);
    } catch (const std::invalid_argument& error) {
      throw UsageError(std::string("--limit: ") + error.what());
    }
    if (!trace_.empty() && span_.from != span_.to)
      throw UsageError("--trace writes what happened in one seed: name it with --seeds N");
    if (unchecked_ && trace_.empty()) throw UsageError("--unchecked requires --trace");
  }

  void run_seeds() {
    const std::uint64_t count = span_.to - span_.from + 1;
    results_.resize(count);
    const Progress progress(count);
    std::atomic<std::uint64_t> next = 0;
    std::atomic<bool> failed = false;
    std::uint64_t done = 0;
    std::mutex mutex;  // guards tally_ and done
    const auto work = [&] {
      sim::Tally tally;
      for (std::uint64_t i = next++; i < count && !(first_failure_ && failed); i = next++) {
        const sim::Outcome outcome = run_seed(span_.from + i);
        results_[i] = {outcome.trace_hash, outcome.tally.operations, outcome.tally.live_faults, outcome.turns_of_window,
                       outcome.failure};
        tally.add(outcome.tally);
        if (!outcome.failure.empty()) failed = true;
        const std::lock_guard lock(mutex);
        if (++done % 16 == 0) progress.show(done);
      }
      const std::lock_guard lock(mutex);
      tally_.add(tally);
    };
    const std::uint64_t threads = threads_ != 0 ? threads_ : std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::jthread> others;
    for (std::uint64_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
    work();
  }

  [[nodiscard]] sim::Outcome run_seed(std::uint64_t seed) const {
    sim::Scenario scenario = sim::generate(simulation_, seed);
    scenario.checked = !unchecked_;
    if (trace_.empty()) return sim::run(scenario);
    std::ofstream text(trace_ + ".txt"), pcap(trace_ + ".pcap", std::ios::binary);
    if (!text || !pcap) throw UsageError("cannot write " + trace_ + ".txt and " + trace_ + ".pcap");
    text << "seed " << seed << ", " << faults_ << ": " << scenario.summary() << "\n\n";
    sim::Outcome outcome = sim::run(scenario, {&text, &pcap, nullptr});
    text << (outcome.failure.empty() ? "\neverything held\n" : "\nFAILED: " + outcome.failure + "\n");
    return outcome;
  }

  [[nodiscard]] std::string replay(std::uint64_t seed, const sim::Limits& limits) const {
    std::string command = "netsum simulate --protocol " + protocol_ + " --workers " + workers_ + " --jobs " + jobs_ +
                          " --faults " + faults_ + " --seeds " + std::to_string(seed);
    if (const std::string text = limits.text(); !text.empty()) command += " --limit " + text;
    return command + " --trace seed" + std::to_string(seed);
  }

  void explain_failures() {
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (results_[i].failure.empty()) continue;
      Failure failure{span_.from + i, results_[i].failure, replay(span_.from + i, simulation_.limits), {}, {}};
      if (!no_shrink_ && failures_.size() < shrunk_at_most) {
        const sim::Shrunk shrunk = sim::shrink(simulation_, failure.seed);
        failure.smallest_what = shrunk.failure;
        failure.smallest_replay = replay(failure.seed, shrunk.limits);
      }
      failures_.push_back(std::move(failure));
    }
  }

  template <class Field>
  [[nodiscard]] double median_of(Field field) const {
    std::vector<double> values;
    for (const SeedResult& result : results_) values.push_back(static_cast<double>(result.*field));
    return median(std::move(values));
  }

  // A run that never reached the hard cases proves nothing.
  void complain_of_worth() {
    if (least_ == 0) return;
    if (median_of(&SeedResult::operations) < 3) complaints_.emplace_back("the median seed delivers fewer than 3 operations");
    if (median_of(&SeedResult::turns) < 4) complaints_.emplace_back("the median seed turns its window fewer than 4 times");
    if (simulation_.profile != sim::Profile::chaos) return;
    if (median_of(&SeedResult::live_faults) < 30)
      complaints_.emplace_back("the median seed has fewer than 30 faults that hit a job");
    const auto require = [&](const std::string& what, std::uint64_t count) {
      if (count < least_)
        complaints_.push_back("'" + what + "' came up only " + std::to_string(count) +
                              " times: run more seeds, or a scenario with more such events");
    };
    const auto protocol = sim::make_protocol(protocol_);
    for (std::size_t i = 0; i < sim::fault_kinds; ++i) {
      const auto fault = static_cast<sim::Fault>(i);
      if (fault == sim::Fault::bypass && !protocol->can_bypass()) continue;
      if (!sim::heals(fault)) continue;
      const bool below = fault == sim::Fault::silent_switch || fault == sim::Fault::slow_switch;
      if (below && !protocol->rules().switches) continue;
      require(to_string(fault), tally_.faults[i]);
    }
    for (const auto& [name, count] : tally_.events) require(name, count);
  }

  [[nodiscard]] std::uint64_t combined_hash() const {
    std::uint64_t hash = 0;
    for (const SeedResult& result : results_) hash = netsum::mix(hash ^ result.trace_hash) + 1;
    return hash;
  }

  [[nodiscard]] std::string json() const {
    nlohmann::ordered_json report;
    char hash[20];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(combined_hash()));
    report["protocol"] = protocol_;
    report["faults_profile"] = faults_;
    report["workers"] = workers_;
    report["jobs"] = jobs_;
    report["seeds"] = results_.size();
    report["first_seed"] = span_.from;
    report["real_seconds"] = seconds_;
    report["virtual_seconds"] = tally_.virtual_seconds;
    report["virtual_over_real"] = tally_.virtual_seconds / seconds_;
    report["packets"] = tally_.packets;
    report["operations"] = tally_.operations;
    report["errors"] = tally_.errors;
    report["live_faults"] = tally_.live_faults;
    for (std::size_t i = 0; i < sim::fault_kinds; ++i)
      report["faults"][to_string(static_cast<sim::Fault>(i))] = tally_.faults[i];
    report["rare_events"] = tally_.events;
    report["median_seed"] = {{"operations", median_of(&SeedResult::operations)},
                             {"turns_of_window", median_of(&SeedResult::turns)},
                             {"live_faults", median_of(&SeedResult::live_faults)}};
    report["failed"] = nlohmann::ordered_json::array();
    for (const Failure& failure : failures_) {
      nlohmann::ordered_json one{{"seed", failure.seed}, {"failure", failure.what}, {"replay", failure.replay}};
      if (!failure.smallest_replay.empty())
        one["smallest"] = {{"failure", failure.smallest_what}, {"replay", failure.smallest_replay}};
      report["failed"].push_back(std::move(one));
    }
    report["trace_hash"] = hash;
    return report.dump(2) + "\n";
  }

  [[nodiscard]] std::string table() const {
    std::string text;
    char line[256];
    const auto add = [&](const char* format, auto... values) {
      std::snprintf(line, sizeof line, format, values...);
      text += line;
    };
    using Long = unsigned long long;
    add("%llu seeds of '%s' in %.1f s: %zu failed\n\n", static_cast<Long>(results_.size()), faults_.c_str(), seconds_,
        failures_.size());
    add("  virtual time   %14.2f h  (%.0f times real time)\n", tally_.virtual_seconds / 3600,
        tally_.virtual_seconds / seconds_);
    add("  packets        %14llu\n", static_cast<Long>(tally_.packets));
    add("  operations     %14llu  delivered to a rank, each judged\n", static_cast<Long>(tally_.operations));
    add("  errors         %14llu  each explained by a fault\n", static_cast<Long>(tally_.errors));
    add("  trace hash   %016llx\n\n", static_cast<Long>(combined_hash()));
    add("  the median seed: %.0f operations, %.0f turns of the window, %.0f faults that hit a running job\n",
        median_of(&SeedResult::operations), median_of(&SeedResult::turns), median_of(&SeedResult::live_faults));
    text += "\n  faults\n";
    for (std::size_t i = 0; i < sim::fault_kinds; ++i) {
      if (tally_.faults[i] != 0)
        add("    %-34s %12llu\n", to_string(static_cast<sim::Fault>(i)), static_cast<Long>(tally_.faults[i]));
    }
    text += "\n  rare events\n";
    for (const auto& [name, count] : tally_.events) add("    %-34s %12llu\n", name.c_str(), static_cast<Long>(count));
    return text;
  }

  std::string protocol_ = "switchml", workers_ = "2..8", jobs_ = "1..3", seeds_ = "1..100", faults_ = "chaos", limit_,
              trace_, scenario_, level_ = "packet", output_;
  ScenarioFiles files_;
  std::vector<std::string> sets_;
  std::uint32_t threads_ = 0;
  std::uint64_t least_ = 0;
  bool unchecked_ = false, first_failure_ = false, no_shrink_ = false, json_ = false;

  sim::Settings simulation_;
  SeedSpan span_;
  std::vector<SeedResult> results_;
  sim::Tally tally_;
  double seconds_ = 0;
  std::vector<Failure> failures_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::unique_ptr<Command> make_simulate_command(CLI::App& root, Sections& sections) {
  return std::make_unique<SimulateCommand>(
      add_subcommand(root, "simulate", "Run whole clusters under a virtual clock, from seeds"), sections);
}

}  // namespace netsum::app
