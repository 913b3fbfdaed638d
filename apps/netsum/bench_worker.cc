// One rank of `netsum bench COLLECTIVE`.
#include <spdlog/spdlog.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "bench.h"
#include "config.h"
#include "control/client.h"
#include "data_path.h"
#include "exercise.h"
#include "netsum/communicator.h"
#include "packet_security.h"
#include "runtime/cpus.h"
#include "transport/addresses/switch_list.h"

namespace netsum::app {
namespace {

using Clock = std::chrono::steady_clock;

// Every rank's bytes, on every rank: each rank fills its section among zeros, so an int32 sum is a gather.
std::vector<std::string> gather(Communicator& comm, const std::string& mine) {
  std::vector<std::int32_t> lengths(comm.world_size());
  lengths[comm.rank()] = static_cast<std::int32_t>(mine.size());
  comm.all_reduce(std::span<std::int32_t>(lengths), ReduceOp::sum);
  const auto words_of = [](std::int32_t bytes) { return (static_cast<std::size_t>(bytes) + 3) / 4; };
  std::vector<std::size_t> begins;
  std::size_t words = 0;
  for (const std::int32_t length : lengths) {
    begins.push_back(words);
    words += words_of(length);
  }
  std::vector<std::int32_t> all(words);
  std::memcpy(all.data() + begins[comm.rank()], mine.data(), mine.size());
  comm.all_reduce(std::span<std::int32_t>(all), ReduceOp::sum);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] == 0) continue;  // it died
    std::string text(static_cast<std::size_t>(lengths[rank]), '\0');
    std::memcpy(text.data(), all.data() + begins[rank], text.size());
    texts.push_back(std::move(text));
  }
  return texts;
}

// Datagrams dropped on purpose so far by the aggregators and by this rank's switch.
std::uint64_t dropped_at(const Options& options, const std::string& at) {
  std::uint64_t dropped = 0;
  std::vector<std::string> all = options.aggregators;
  if (!at.empty()) all.push_back(at);
  for (const auto& address : all) {
    control::Client client({address, options.token, options.tls_ca});
    for (const auto& [name, value] : client.report(options.connect_deadline).counters) {
      if (name.find("dropped_injected") != std::string::npos) dropped += value;
    }
  }
  return dropped;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

Options communicator_options(const BenchOptions& options) {
  Options result;
  result.protocol = options.protocol_value().settings(options);
  result.aggregators = transport::switch_list(options.roots().addresses);
  result.job = options.job;
  result.rank = options.rank;
  result.world_size = options.world_size;
  result.packet_elements = options.packet_elements;
  result.slots = options.slots;
  result.threads = options.threads;
  if (options.pin) result.cpus = runtime::allowed_cpus();  // thread i beside shard i, in one cache
  result.busy_poll = options.busy_poll;
  result.connect_deadline = milliseconds(options.connect_deadline_seconds);
  result.operation_deadline = milliseconds(options.deadline_seconds);
  result.recovery = milliseconds(options.recovery_seconds);
  result.survivors = options.survivors;
  result.straggler_deadline = std::chrono::milliseconds(options.straggler_deadline_ms);
  result.standbys = transport::switch_list(options.standbys);
  result.token = read_token(options.token_file);
  if (options.private_sums)
    result.private_sums = PrivateSums{read_token(options.job_key_file, "--job-key-file"), options.fixed_scale_value()};
  result.tls_ca = options.tls_ca;
  result.packet_security = packet_security_named(options.packet_security).value_or(PacketSecurity::none);
  result.require_keys = options.require_keys;
  result.data_path = data_path_named(options.data_path);
  result.dpdk = options.dpdk;
  result.loss = options.loss;
  result.loss_seed = options.loss_seed;
  if (options.rank == 0) result.log = [](const std::string& line) { spdlog::info("{}", line); };
  return result;
}

// A barrier, so that all ranks begin together; the call; and a barrier, so that no rank checks results on a processor
// that others still need.
constexpr std::uint64_t calls_of_iteration = 3;

// Counts the cost of the timed calls alone, without the barriers between them.
void add_difference(RankReport& report, const Statistics& before, const Statistics& after) {
  report.bytes_sent += after.wire_bytes_sent - before.wire_bytes_sent;
  report.bytes_received += after.wire_bytes_received - before.wire_bytes_received;
  report.packets_sent += after.packets_sent - before.packets_sent;
  report.packets_received += after.packets_received - before.packets_received;
  report.packets_retransmitted += after.packets_retransmitted - before.packets_retransmitted;
  report.bytes_copied += after.bytes_copied - before.bytes_copied;
  report.packets_dropped_down += after.packets_dropped_down - before.packets_dropped_down;
  report.busy_nanoseconds += after.busy_nanoseconds - before.busy_nanoseconds;
}

// Of all threads of this process.
std::chrono::nanoseconds cpu_time() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

// One timed call.
void measure(Communicator& comm, Exercise& exercise, RankReport& report) {
  const std::chrono::nanoseconds cpu_before = cpu_time();
  const auto begin = Clock::now();
  exercise.call(comm);
  const auto end = Clock::now();
  report.cpu_nanoseconds += static_cast<std::uint64_t>((cpu_time() - cpu_before).count());
  report.nanoseconds.push_back(static_cast<std::uint64_t>(std::chrono::nanoseconds(end - begin).count()));
}

// Several tensors of the same length.
class Tensors {
 public:
  Tensors(const BenchOptions& options, Communicator& comm, std::size_t count) : bytes_(Exercise::bytes_for(options)) {
    if (options.allocate) {
      allocated_ = comm.allocate(count * stride());
    } else {
      own_.resize(count, std::vector<std::byte>(bytes_));
    }
  }
  [[nodiscard]] std::span<std::byte> operator[](std::size_t i) {
    return own_.empty() ? allocated_.bytes().subspan(i * stride(), bytes_) : own_[i];
  }

 private:
  [[nodiscard]] std::size_t stride() const { return (bytes_ + 63) / 64 * 64; }

  std::size_t bytes_;
  std::vector<std::vector<std::byte>> own_;
  TensorMemory allocated_;
};

// A tensor per iteration, so that none is filled or checked in between.
void measure_back_to_back(const BenchOptions& options, Communicator& comm, RankReport& report,
                          const std::function<void(std::uint32_t)>& on_iteration) {
  Tensors tensors(options, comm, options.iterations);
  std::vector<Exercise> exercises;
  for (std::uint32_t i = 0; i < options.iterations; ++i) exercises.emplace_back(options, tensors[i]).fill(i);
  comm.barrier();
  const Statistics before = comm.statistics();
  for (Exercise& exercise : exercises) measure(comm, exercise, report);
  add_difference(report, before, comm.statistics());
  for (std::uint32_t i = 0; i < options.iterations; ++i) {
    report.verdict.merge(exercises[i].check(i));
    report.hashes.push_back(exercises[i].hash());
  }
  on_iteration(options.iterations);
}

}  // namespace

std::vector<RankReport> run_rank(const BenchOptions& options, bool gather_all,
                                 const std::function<void(std::uint32_t)>& on_iteration) {
  const Options connect = communicator_options(options);
  Communicator comm = Communicator::connect(connect);
  // A restarted process continues where the former one stopped: one call per warm-up iteration, three per timed one.
  const std::uint64_t calls = comm.next_operation();
  Tensors tensors(options, comm, 1);
  Exercise exercise(options, tensors[0]);
  const std::uint64_t allocations = comm.next_operation() - calls;
  const auto calls_so_far = [&] { return comm.next_operation() - allocations; };

  RankReport report;
  report.rank = options.rank;
  report.placement = comm.placement();
  const bool asks = options.rank == 0 && options.loss > 0;
  std::uint64_t dropped_before = 0;
  // Warm-up iterations count backwards, so that the timed ones have the same inputs whatever their number.
  BenchOptions fewer = options;
  if (options.warmup_elements != 0) fewer.elements = std::min(options.warmup_elements, options.elements);
  Exercise warming(fewer, tensors[0].first(Exercise::bytes_for(fewer)));
  for (std::uint64_t i = calls; i < options.warmup; ++i) {
    warming.fill(~i);
    warming.call(comm);
  }
  if (asks) dropped_before = dropped_at(connect, transport::one_switch(options.own_switch()));
  const std::uint64_t timed = std::max<std::uint64_t>(calls, options.warmup) - options.warmup;
  // Iterations that the former process completed are not measured again.
  report.first_iteration =
      static_cast<std::uint32_t>(std::min<std::uint64_t>((timed + 1) / calls_of_iteration, options.iterations));
  if (options.back_to_back) measure_back_to_back(options, comm, report, on_iteration);
  // Only a restarted process is within an iteration. A call may be several operations where nothing restarts.
  if (timed % calls_of_iteration == 2 && timed > 0) comm.barrier();
  for (std::uint32_t i = report.first_iteration; !options.back_to_back && i < options.iterations; ++i) {
    exercise.fill(i);
    if (timed == 0 || calls_so_far() == options.warmup + calls_of_iteration * i) comm.barrier();
    const Statistics before = comm.statistics();
    measure(comm, exercise, report);
    add_difference(report, before, comm.statistics());
    comm.barrier();
    report.verdict.merge(exercise.check(i));
    report.hashes.push_back(exercise.hash());
    on_iteration(i + 1);
  }
  report.lanes = comm.statistics().lanes;
  report.window = comm.statistics().window;
  if (options.back_to_back) comm.barrier();  // all ranks have finished measuring
  if (asks) report.packets_dropped_up = dropped_at(connect, transport::one_switch(options.own_switch())) - dropped_before;
  if (!gather_all) return {report};
  std::vector<RankReport> reports;
  for (const auto& text : gather(comm, report.text())) reports.push_back(RankReport::parse(text));
  return reports;
}

}  // namespace netsum::app
