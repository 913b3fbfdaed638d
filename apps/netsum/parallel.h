// The parts of `netsum bench parallel`: parallel.cc has its flags, parallel_member.cc runs one GPU's process,
// parallel_local.cc runs all processes, parallel_report.cc merges their measurements into one report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/drawn.h"
#include "parallel/parallel.h"
#include "protocols.h"

namespace netsum::app {

struct ParallelBenchOptions : ProtocolFlags {
  ParallelBenchOptions() { protocol = "netreduce"; }

  std::string pattern = "pn";
  std::uint32_t machines = 2, gpus = 2;
  std::uint64_t elements = 1'000'000;
  std::uint32_t iterations = 10, warmup = 2;
  std::uint64_t seed = 1;
  double connect_deadline_seconds = 10, deadline_seconds = 60;
  bool json = false;
  std::uint32_t threads = 1, switch_threads = 1, slots = 0;  // PN; slots 0: chosen
  // One process
  std::uint32_t machine = 0, gpu = 0;
  std::string job = "parallel", peers, token_file, tls_ca;
  bool rank_report = false;  // for a parent: also print "iteration I" and "error TEXT" lines on stdout

  [[nodiscard]] parallel::Pattern pattern_value() const;
  [[nodiscard]] const BenchProtocol& protocol_value() const;
  [[nodiscard]] std::uint32_t ranks() const { return machines * gpus; }
  // Whether a switch takes part.
  [[nodiscard]] bool in_network() const { return pattern == "pn" && machines > 1; }
};

// One process's measurements.
struct MemberReport {
  std::uint32_t rank = 0;
  std::vector<std::uint64_t> nanoseconds;            // of each iteration, as are the next two lines
  std::vector<std::uint64_t> before, across, after;  // its stages
  std::vector<std::uint64_t> hashes;
  oracle::Verdict verdict;
  std::uint64_t bytes_sent = 0, bytes_received = 0;  // between machines, over all iterations
  std::string placement;

  [[nodiscard]] std::string text() const;  // one line of JSON
  [[nodiscard]] static MemberReport parse(std::string_view text);
};

struct ParallelReport {
  std::vector<double> seconds;                // of each iteration: the slowest rank's time
  std::vector<double> before, across, after;  // of the slowest machine, as measured by its GPU 0
  oracle::Verdict verdict;
  bool bit_identical = true;
  std::uint64_t result_hash = 0;
  double bytes_sent = 0, bytes_received = 0;  // per machine's link and all-reduce
  std::string placement;

  ParallelReport(const ParallelBenchOptions& options, const std::vector<MemberReport>& members);
  [[nodiscard]] std::string json(const ParallelBenchOptions& options) const;
  [[nodiscard]] std::string table(const ParallelBenchOptions& options) const;
};

[[nodiscard]] MemberReport run_member(const ParallelBenchOptions& options,
                                      const std::function<void(std::uint32_t)>& on_iteration);

// Runs all members as child processes; on failure returns no reports and sets `exit_code`.
[[nodiscard]] std::vector<MemberReport> run_members(const ParallelBenchOptions& options, int& exit_code);

}  // namespace netsum::app
