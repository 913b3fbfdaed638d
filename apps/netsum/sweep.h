// `netsum simulate --scenario FILE` with several values or seeds: a run for each, on all cores; finished ones are kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/experiment.h"
#include "toml.h"

namespace netsum::app {

struct SweepPlan {
  std::string path;               // of the scenario
  std::string level;              // "packet" or "flow"
  std::vector<std::string> sets;  // "KEY=A,B,C", beside those of the file's [sweep]
  std::string seeds;              // "A..B"; empty: the file's
  std::string output;             // PREFIX.jsonl, .csv, -summary.csv, .svg; empty: the scenario's name and "-sweep"
  std::uint64_t threads = 0;      // 0: one per CPU
  bool json = false;
};

// Whether the file has a [sweep].
[[nodiscard]] bool has_sweep(const std::string& path);

// The exit code. May throw UsageError.
[[nodiscard]] int run_sweep(const SweepPlan& plan);

// "10..20", or one number.
struct SeedSpan {
  std::uint64_t from = 0, to = 0;
};
[[nodiscard]] SeedSpan parse_span(const std::string& flag, const std::string& text, std::uint64_t least, std::uint64_t most);

// ---- for tests

// Sets what a key like "job[0].slots" or "network.link.rate" names; "job.slots": of all jobs. `line`: of the file, for
// errors; 0: there is none. Throws UsageError.
void set_value(TomlTable& root, const std::string& key, const std::string& value, std::uint32_t line = 0);
// At commas outside of quotes and brackets.
[[nodiscard]] std::vector<std::string> split_values(const std::string& text);

struct Spread {
  double median = 0, low = 0, high = 0;          // the 5th and 95th percentile
  double mean = 0, mean_low = 0, mean_high = 0;  // with its 95 % interval, by Student's t
};
[[nodiscard]] Spread spread_of(std::vector<double> values);

}  // namespace netsum::app
