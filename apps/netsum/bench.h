// The parts of `netsum bench COLLECTIVE`: bench.cc has its flags, bench_worker.cc runs one rank, bench_local.cc runs all
// ranks as processes, bench_report.cc merges the ranks' measurements into one report.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "local_job.h"
#include "netsum/types.h"
#include "oracle/drawn.h"
#include "protocols.h"

namespace netsum::app {

// fsdp: a reduce-scatter and an all-gather in flight together, as FSDP has them in its backward pass.
enum class CollectiveName : std::uint8_t { all_reduce, reduce_scatter, all_gather, fsdp, reduce, broadcast, barrier };
inline constexpr std::array every_collective{
    CollectiveName::all_reduce, CollectiveName::reduce_scatter, CollectiveName::all_gather, CollectiveName::fsdp,
    CollectiveName::reduce,     CollectiveName::broadcast,      CollectiveName::barrier};
// As on the command line.
[[nodiscard]] const char* to_string(CollectiveName collective);
[[nodiscard]] bool has_parts(CollectiveName collective);  // as many as ranks

struct BenchOptions : ProtocolFlags {
  BenchOptions() {
    protocol = "switchml";
    transport = "udp";
  }

  CollectiveName collective = CollectiveName::all_reduce;
  std::string op = "sum";
  std::uint32_t magnitude = 0;
  std::uint64_t elements = 1'000'000, warmup_elements = 0;  // 0: as many
  std::uint32_t iterations = 10, warmup = 2;
  std::uint64_t seed = 1, loss_seed = 0;  // loss_seed 0: follows seed
  std::uint32_t threads = 0, slots = 0;   // 0: chosen
  bool pin = false;
  bool allocate = false;
  bool busy_poll = true;
  double connect_deadline_seconds = 10, deadline_seconds = 60;
  bool back_to_back = false;  // timed all-reduces without barriers between them
  bool json = false;
  // All ranks on this machine
  std::uint32_t workers = 2, switch_threads = 0, switch_slots = default_slots;
  std::uint32_t pool_slots = 0, pool_elements = 0;  // ATP
  // One rank
  std::string job = "bench";
  std::uint32_t rank = 0, world_size = 0;
  std::string token_file, job_key_file, tls_ca, packet_security, data_path = "sockets";
  DpdkOptions dpdk;
  std::string compat, bind;  // bind: with compat
  bool require_keys = false;
  bool rank_report = false;  // print lines for a parent: "iteration I" as each ends, then this rank's report

  [[nodiscard]] bool local() const { return roots().addresses.empty(); }
  [[nodiscard]] const BenchProtocol& protocol_value() const;
  [[nodiscard]] ReduceOp op_value() const;
};

// One rank's measurements: sums over its timed iterations, except the lists.
struct RankReport {
  std::uint32_t rank = 0;
  std::uint32_t first_iteration = 0;       // a restarted process has none before
  std::vector<std::uint64_t> nanoseconds;  // of each iteration
  std::vector<std::uint64_t> hashes;       // of each iteration's result
  oracle::Verdict verdict;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint64_t packets_sent = 0, packets_received = 0, packets_retransmitted = 0, packets_dropped_down = 0;
  std::uint64_t packets_dropped_up = 0;  // of all ranks, by the aggregators' counters; only rank 0 queries them
  std::uint64_t bytes_copied = 0;        // in shared memory, from and to tensors
  std::uint64_t busy_nanoseconds = 0;    // as Statistics'
  std::uint64_t cpu_nanoseconds = 0;     // of this process, in the calls alone
  std::uint32_t lanes = 0;
  std::uint32_t window = 0;  // packets that may be in flight, at the end
  std::string placement;

  [[nodiscard]] std::string text() const;  // one line of JSON
  [[nodiscard]] static RankReport parse(std::string_view text);
};

struct BenchReport {
  std::vector<double> seconds;  // of each iteration: the slowest rank's time; back to back: the ranks' mean
  oracle::Verdict verdict;      // of all ranks; results that differ between ranks are wrong
  bool bit_identical = true;
  std::uint64_t result_hash = 0;
  double bytes_sent = 0, bytes_received = 0;  // per worker and all-reduce, as are the packets
  double packets_sent = 0, packets_received = 0, packets_retransmitted = 0, packets_dropped_up = 0, packets_dropped_down = 0;
  double bytes_copied = 0;                   // per worker and all-reduce
  double busy_seconds = 0, cpu_seconds = 0;  // the same
  std::uint32_t lanes = 0;                   // of a worker
  double window = 0;                         // packets that a worker may have in flight, at the end
  std::string placement;

  BenchReport(const BenchOptions& options, const std::vector<RankReport>& ranks);
  [[nodiscard]] std::string json(const BenchOptions& options) const;
  [[nodiscard]] std::string table(const BenchOptions& options) const;
};

// Runs one rank against the aggregators of options.switches. Returns its report and, with `gather`, the other ranks' too,
// exchanged through the communicator. Throws Error.
[[nodiscard]] std::vector<RankReport> run_rank(const BenchOptions& options, bool gather,
                                               const std::function<void(std::uint32_t)>& on_iteration);

// Runs aggregators and workers as child processes. Returns the workers' reports; on failure none, and sets `exit_code`.
[[nodiscard]] std::vector<RankReport> run_local(const BenchOptions& options, int& exit_code);

// The same with --compat p4app. A rank has no other ranks' reports.
[[nodiscard]] RankReport run_p4app_rank(const BenchOptions& options, const std::function<void(std::uint32_t)>& on_iteration);
[[nodiscard]] std::vector<RankReport> run_p4app_local(const BenchOptions& options, int& exit_code);

// Of both: the workers' reports, by rank.
[[nodiscard]] std::vector<RankReport> run_programs(const BenchOptions& options, const std::vector<Program>& daemons,
                                                   const LocalJob::MakePrograms& make_workers,
                                                   const LocalJob::MakePrograms& make_above, int& exit_code);

}  // namespace netsum::app
