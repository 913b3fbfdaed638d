// One GPU's process of `netsum bench parallel`.
#include <spdlog/spdlog.h>

#include <chrono>

#include "config.h"
#include "parallel.h"
#include "result_hash.h"

namespace netsum::app {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

parallel::ParallelOptions parallel_options(const ParallelBenchOptions& options) {
  parallel::ParallelOptions result;
  result.pattern = options.pattern_value();
  result.job = options.job;
  result.machines = options.machines;
  result.gpus = options.gpus;
  result.machine = options.machine;
  result.gpu = options.gpu;
  result.elements = options.elements;
  result.peers = split_list(options.peers);
  result.connect_deadline = milliseconds(options.connect_deadline_seconds);
  Options& across = result.across;
  across.protocol = options.protocol_value().settings(options);
  across.aggregators = split_list(options.roots().addresses);
  across.token = read_token(options.token_file);
  across.threads = options.threads;
  across.packet_elements = options.packet_elements;
  across.slots = options.slots;
  across.tls_ca = options.tls_ca;
  if (options.machine == 0 && options.gpu == 0) across.log = [](const std::string& line) { spdlog::info("{}", line); };
  return result;
}

oracle::Drawn drawn_of(const ParallelBenchOptions& options) {
  const Numbers numbers = options.in_network() ? options.protocol_value().numbers(options) : Numbers::in_order;
  return {options.seed, {.numbers = numbers, .ranks = options.ranks(), .added_before = options.gpus}};
}

}  // namespace

MemberReport run_member(const ParallelBenchOptions& options, const std::function<void(std::uint32_t)>& on_iteration) {
  parallel::ParallelAllReduce job(parallel_options(options));
  const oracle::Drawn drawn = drawn_of(options);
  const auto tensor = std::as_writable_bytes(job.tensor());
  const auto deadline = milliseconds(options.deadline_seconds);
  const auto nanoseconds = [](Duration duration) { return static_cast<std::uint64_t>(duration.count()); };

  MemberReport report;
  report.rank = options.machine * options.gpus + options.gpu;
  report.placement = job.placement();
  // Warm-up iterations count backwards, so that the timed ones have the same inputs whatever their number.
  for (std::uint64_t i = 0; i < options.warmup; ++i) {
    drawn.fill(tensor, report.rank, ~i);
    static_cast<void>(job.all_reduce(options.elements, deadline));
  }
  // Over all iterations, barriers included: traffic may arrive before an iteration has begun here.
  const auto traffic_before = job.traffic();
  for (std::uint32_t i = 0; i < options.iterations; ++i) {
    drawn.fill(tensor, report.rank, i);
    job.barrier(deadline);
    const parallel::StageDurations stages = job.all_reduce(options.elements, deadline);
    report.nanoseconds.push_back(nanoseconds(stages.before + stages.across + stages.after));
    report.before.push_back(nanoseconds(stages.before));
    report.across.push_back(nanoseconds(stages.across));
    report.after.push_back(nanoseconds(stages.after));
    job.barrier(deadline);  // no rank checks results on a processor that others still need
    report.verdict.merge(drawn.check(tensor, i));
    report.hashes.push_back(hash_of(tensor));
    on_iteration(i + 1);
  }
  const auto traffic = job.traffic();
  report.bytes_sent = traffic.bytes_sent - traffic_before.bytes_sent;
  report.bytes_received = traffic.bytes_received - traffic_before.bytes_received;
  return report;
}

}  // namespace netsum::app
