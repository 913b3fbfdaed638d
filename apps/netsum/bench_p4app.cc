// `netsum bench all-reduce --compat p4app`: one rank, or a switch and all ranks as processes on this machine.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "bench.h"
#include "oracle/drawn.h"
#include "p4app/rank.h"
#include "result_hash.h"

namespace netsum::app {
namespace {

using Clock = std::chrono::steady_clock;

template <class Element>
Element element_at(std::span<const std::byte> tensor, std::size_t i) {
  Element element;
  std::memcpy(&element, tensor.data() + i * sizeof element, sizeof element);
  return element;
}

// Judges a result by all ranks' inputs. Of floats, a packet's elements share an exponent; a thread's packets begin where its
// slice of the tensor does.
class Judge {
 public:
  Judge(const BenchOptions& options, const oracle::Drawn& drawn, std::size_t bytes)
      : options_(options), drawn_(drawn), inputs_(options.workers, std::vector<std::byte>(bytes)) {}

  [[nodiscard]] oracle::Verdict check(std::span<const std::byte> result, std::uint64_t iteration) {
    for (std::uint32_t rank = 0; rank < options_.workers; ++rank) drawn_.fill(inputs_[rank], rank, iteration);
    oracle::Verdict verdict;
    const std::size_t elements = options_.elements, threads = options_.threads;
    std::size_t begin = 0;
    for (std::size_t thread = 0; thread < threads; ++thread) {
      const std::size_t end = begin + elements / threads + (thread < elements % threads ? 1 : 0);
      for (; begin < end; begin = std::min<std::size_t>(begin + options_.packet_elements, end)) {
        const std::size_t chunk_end = std::min<std::size_t>(begin + options_.packet_elements, end);
        if (options_.dtype_value() == DType::int32) {
          check_integers(result, begin, chunk_end, verdict);
        } else {
          check_floats(result, begin, chunk_end, verdict);
        }
      }
    }
    return verdict;
  }

 private:
  void check_integers(std::span<const std::byte> result, std::size_t begin, std::size_t end,
                      oracle::Verdict& verdict) const {
    for (std::size_t i = begin; i < end; ++i) {
      std::uint32_t sum = 0;
      for (const auto& input : inputs_) sum += element_at<std::uint32_t>(input, i);
      verdict.wrong += sum != element_at<std::uint32_t>(result, i);
    }
  }

  void check_floats(std::span<const std::byte> result, std::size_t begin, std::size_t end, oracle::Verdict& verdict) const {
    float largest = 0;
    for (const auto& input : inputs_) {
      for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(element_at<float>(input, i)));
    }
    // Each rank's value is rounded to an integer, half a unit away at most; on the way it is a float, as are scale and sum.
    const double unit = std::exp2(std::ilogb(std::max(largest, 1e-37F)) + 1) * options_.workers * 0x1p-31;
    for (std::size_t i = begin; i < end; ++i) {
      double exact = 0, magnitude = 0;
      for (const auto& input : inputs_) {
        exact += element_at<float>(input, i);
        magnitude += std::fabs(element_at<float>(input, i));
      }
      const double error = std::fabs(element_at<float>(result, i) - exact);
      const double bound = options_.workers * unit + (magnitude + std::fabs(exact)) * 0x1p-22;
      verdict.wrong += !(error <= bound);
      verdict.max_abs_error = std::max(verdict.max_abs_error, error);
      verdict.error_bound = std::max(verdict.error_bound, bound);
      verdict.max_error_over_bound = std::max(verdict.max_error_over_bound, error == 0 ? 0 : error / bound);
    }
  }

  const BenchOptions& options_;
  const oracle::Drawn& drawn_;
  std::vector<std::vector<std::byte>> inputs_;  // by rank
};

p4app::RankOptions rank_options(const BenchOptions& options) {
  p4app::RankOptions of_rank;
  of_rank.controller = options.switches;
  of_rank.bind = options.bind;
  of_rank.rank = options.rank;
  of_rank.world_size = options.world_size;
  of_rank.packet_elements = options.packet_elements;
  of_rank.window = options.slots;
  of_rank.threads = options.threads;
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
  };
  of_rank.connect_deadline = milliseconds(options.connect_deadline_seconds);
  of_rank.deadline = milliseconds(options.deadline_seconds);
  of_rank.loss = options.loss;
  of_rank.loss_seed = options.loss_seed;
  return of_rank;
}

std::uint64_t cpu_nanoseconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(used.tv_nsec);
}

}  // namespace

RankReport run_p4app_rank(const BenchOptions& options, const std::function<void(std::uint32_t)>& on_iteration) {
  p4app::Rank rank(rank_options(options));
  oracle::Reduction reduction;
  reduction.dtype = options.dtype_value();
  reduction.ranks = options.workers;
  const oracle::Drawn drawn(options.seed, reduction);
  std::vector<std::byte> tensor(options.elements * bytes_of(reduction.dtype));
  Judge judge(options, drawn, tensor.size());
  RankReport report;
  report.rank = options.rank;
  report.lanes = options.threads;
  report.window = options.slots;
  report.placement = "switch " + options.switches;
  for (std::uint64_t i = 0; i < options.warmup; ++i) {
    drawn.fill(tensor, options.rank, ~i);
    rank.all_reduce(reduction.dtype, tensor);
  }
  const p4app::WorkerCounters before = rank.worker_counters();
  const transport::Counters of_sockets = rank.transport_counters();
  for (std::uint32_t i = 0; i < options.iterations; ++i) {
    drawn.fill(tensor, options.rank, i);
    rank.barrier();
    const std::uint64_t cpu = cpu_nanoseconds();
    const auto begin = Clock::now();
    rank.all_reduce(reduction.dtype, tensor);
    report.nanoseconds.push_back(static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count()));
    report.cpu_nanoseconds += cpu_nanoseconds() - cpu;
    report.verdict.merge(judge.check(tensor, i));
    report.hashes.push_back(hash_of(tensor));
    on_iteration(i + 1);
  }
  report.packets_sent = rank.worker_counters().sent - before.sent;
  report.packets_received = rank.worker_counters().results - before.results;
  report.packets_retransmitted = rank.worker_counters().retransmitted - before.retransmitted;
  const transport::Counters sockets = rank.transport_counters();
  report.bytes_sent = sockets.wire_bytes_sent - of_sockets.wire_bytes_sent;
  report.bytes_received = sockets.wire_bytes_received - of_sockets.wire_bytes_received;
  report.packets_dropped_down = sockets.dropped_injected - of_sockets.dropped_injected;
  rank.barrier();  // a rank that goes takes its control connection with it, not its packets: others may wait for neither
  return report;
}

std::vector<RankReport> run_p4app_local(const BenchOptions& options, int& exit_code) {
  // The port of packets is fixed, and a worker is an address: each run has a network of the loopback device to itself.
  const auto process = static_cast<std::uint32_t>(::getpid());
  const std::string network = "127." + std::to_string(1 + process / 256 % 254) + "." + std::to_string(process % 256) + ".";
  const Program daemon{"switch",
                       {"switch", "--compat", "p4app", "--listen", network + "1:0", "--loss", std::to_string(options.loss),
                        "--seed", std::to_string(options.loss_seed + 1000)}};
  const auto workers = [&](const std::vector<std::string>& addresses) {
    std::vector<Program> programs;
    for (std::uint32_t rank = 0; rank < options.workers; ++rank) {
      const std::pair<const char*, std::string> flags[] = {
          {"--switch", addresses.front()},
          {"--bind", network + std::to_string(2 + rank) + ":4000"},
          {"--rank", std::to_string(rank)},
          {"--world-size", std::to_string(options.workers)},
          {"--elements", std::to_string(options.elements)},
          {"--dtype", options.dtype},
          {"--iterations", std::to_string(options.iterations)},
          {"--warmup", std::to_string(options.warmup)},
          {"--seed", std::to_string(options.seed)},
          {"--loss", std::to_string(options.loss)},
          {"--loss-seed", std::to_string(options.loss_seed + rank)},
          {"--threads", std::to_string(options.threads)},
          {"--packet-elements", std::to_string(options.packet_elements)},
          {"--slots", std::to_string(options.slots)},
          {"--connect-deadline", std::to_string(options.connect_deadline_seconds)},
          {"--deadline", std::to_string(options.deadline_seconds)},
      };
      std::vector<std::string> words = {"bench", "all-reduce", "--rank-report", "--compat", "p4app"};
      for (const auto& [name, value] : flags) words.insert(words.end(), {name, value});
      programs.push_back({"worker rank " + std::to_string(rank), std::move(words)});
    }
    return programs;
  };
  return run_programs(options, {daemon}, workers, {}, exit_code);
}

}  // namespace netsum::app
