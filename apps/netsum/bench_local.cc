// `netsum bench all-reduce` on one machine: aggregators and workers as processes of their own, over real sockets.
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>

#include "bench.h"
#include "child_process.h"
#include "command.h"
#include "progress.h"

namespace netsum::app {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// After the first failure the others must notice by themselves; heartbeats make that a few seconds.
constexpr auto patience_after_failure = std::chrono::seconds(15);
constexpr auto patience_at_stop = std::chrono::seconds(5);

std::string number(double value) {
  return fmt::format("{}", value);
}

// SIGCHLD, SIGINT and SIGTERM as something to poll.
class Signals {
 public:
  Signals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int each : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&wanted, each);
    sigprocmask(SIG_BLOCK, &wanted, &before_);
    descriptor_ = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
    if (descriptor_ < 0) throw std::runtime_error("signalfd failed");
  }
  ~Signals() {
    close(descriptor_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  // Takes what is there; true once SIGINT or SIGTERM came.
  [[nodiscard]] bool interrupted() {
    signalfd_siginfo info{};
    while (read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      interrupted_ |= info.ssi_signo != SIGCHLD;
    }
    return interrupted_;
  }

 private:
  sigset_t before_{};
  int descriptor_ = -1;
  bool interrupted_ = false;
};

class LocalRun {
 public:
  explicit LocalRun(const BenchOptions& options) : options_(options), progress_(options.iterations) {}

  int run(std::vector<RankReport>& reports) {
    const auto seconds = std::chrono::duration<double>(options_.connect_deadline_seconds);
    start_aggregators();
    const bool listening = wait([&] { return addresses_.size() == aggregators_.size() || lost_aggregator(); },
                                Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds));
    if (interrupted_) return fail(exit_failed, "interrupted");
    if (lost_aggregator()) return fail(exit_failed, first_end(aggregators_));
    if (!listening) return fail(exit_unreachable, "the aggregator did not start within the connect deadline");

    start_workers();
    wait([&] { return failed() || all_ended(workers_); }, Clock::time_point::max());
    if (failed() && !interrupted_) {
      wait([&] { return all_ended(workers_); }, Clock::now() + patience_after_failure);
    }
    if (interrupted_) return fail(exit_failed, "interrupted");
    if (failed() || reports_.size() != workers_.size()) return fail(failure_code(), failure_text());
    for (auto& aggregator : aggregators_) aggregator.signal(SIGTERM);
    if (!wait([&] { return all_ended(aggregators_); }, Clock::now() + patience_at_stop) || !all_succeeded(aggregators_)) {
      return fail(exit_failed, "after SIGTERM, " + first_end(aggregators_));
    }
    std::sort(reports_.begin(), reports_.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    reports = std::move(reports_);
    return exit_done;
  }

 private:
  void start_aggregators() {
    const bool atp = options_.protocol == "atp";
    for (std::uint32_t i = 0; atp && i < options_.parameter_servers; ++i) {
      std::vector<std::string> arguments{"ps",
                                         "--listen",
                                         "127.0.0.1:0",
                                         "--threads",
                                         std::to_string(options_.switch_threads),
                                         "--loss",
                                         number(options_.loss),
                                         "--seed",
                                         std::to_string(options_.loss_seed + 2000 + i),
                                         "--scaling",
                                         options_.scaling};
      if (options_.pin) arguments.push_back("--pin");
      aggregators_.emplace_back("parameter server " + std::to_string(i), arguments);
    }
    for (std::uint32_t i = 0; i < (atp ? 1 : options_.aggregators); ++i) {
      std::vector<std::string> arguments{"switch",
                                         "--listen",
                                         "127.0.0.1:0",
                                         "--threads",
                                         std::to_string(options_.switch_threads),
                                         "--slots",
                                         std::to_string(options_.switch_slots),
                                         "--pool-slots",
                                         std::to_string(options_.pool_slots),
                                         "--pool-elements",
                                         std::to_string(options_.pool_elements),
                                         "--loss",
                                         number(options_.loss),
                                         "--seed",
                                         std::to_string(options_.loss_seed + 1000 + i)};
      if (options_.pin) arguments.push_back("--pin");
      aggregators_.emplace_back("aggregator " + std::to_string(i), arguments);
    }
  }

  void start_workers() {
    std::string switches, servers;
    for (const auto& [address, server] : addresses_) {
      std::string& list = server ? servers : switches;
      list += (list.empty() ? "" : ",") + address;
    }
    for (std::uint32_t rank = 0; rank < options_.workers; ++rank) {
      std::vector<std::string> arguments{"bench", "all-reduce", "--rank-report"};
      const auto add = [&](const char* flag, const std::string& value) {
        arguments.push_back(std::string("--") + flag);
        arguments.push_back(value);
      };
      add("protocol", options_.protocol);
      add("switch", switches);
      if (!servers.empty()) add("ps", servers);
      add("job", options_.job);
      add("rank", std::to_string(rank));
      add("world-size", std::to_string(options_.workers));
      add("elements", std::to_string(options_.elements));
      add("dtype", options_.dtype);
      add("op", options_.op);
      add("scaling", options_.scaling);
      add("magnitude", std::to_string(options_.magnitude));
      add("iterations", std::to_string(options_.iterations));
      add("warmup", std::to_string(options_.warmup));
      add("seed", std::to_string(options_.seed));
      add("loss", number(options_.loss));
      add("loss-seed", std::to_string(options_.loss_seed + rank));
      add("threads", std::to_string(options_.threads));
      add("packet-elements", std::to_string(options_.packet_elements));
      add("slots", std::to_string(options_.slots));
      add("congestion-control", options_.congestion_control ? "true" : "false");
      add("message-packets", std::to_string(options_.message_packets));
      add("first-psn", options_.first_psn);
      add("connect-deadline", number(options_.connect_deadline_seconds));
      add("deadline", number(options_.deadline_seconds));
      if (options_.pin) arguments.emplace_back("--pin");
      workers_.emplace_back("worker rank " + std::to_string(rank), arguments);
    }
  }

  // Handles events until `done`; false if the deadline came first, or an interrupt.
  template <class Done>
  bool wait(Done done, Clock::time_point deadline) {
    while (!interrupted_) {
      if (done()) return true;
      const auto now = Clock::now();
      if (now >= deadline) return false;
      handle_events(std::chrono::ceil<milliseconds>(std::min<Clock::duration>(deadline - now, std::chrono::minutes(1))));
    }
    return false;
  }

  void handle_events(milliseconds at_most) {
    std::vector<pollfd> polls{{signals_.descriptor(), POLLIN, 0}};
    for (const auto* group : {&aggregators_, &workers_}) {
      for (const auto& child : *group) polls.push_back({child.output(), POLLIN, 0});
    }
    poll(polls.data(), polls.size(), static_cast<int>(at_most.count()));
    interrupted_ = signals_.interrupted();
    for (std::size_t i = 0; i < aggregators_.size(); ++i) {
      const bool server = options_.protocol == "atp" && i < options_.parameter_servers;
      aggregators_[i].read_lines([&](const std::string& line) { on_aggregator_line(line, server); });
    }
    for (auto& child : workers_) child.read_lines([&](const std::string& line) { on_worker_line(line); });
  }

  void on_aggregator_line(const std::string& line, bool server) {
    constexpr std::string_view ready = "listening ";
    if (line.starts_with(ready)) addresses_.emplace_back(line.substr(ready.size()), server);
  }

  void on_worker_line(const std::string& line) {
    constexpr std::string_view iteration = "iteration ";
    if (line.starts_with(iteration)) {
      slowest_done_ = std::max(slowest_done_, std::stoull(line.substr(iteration.size())));
      progress_.show(slowest_done_);
    } else {
      reports_.push_back(RankReport::parse(line));
    }
  }

  using Children = std::vector<ChildProcess>;
  static bool all_ended(Children& children) {
    return std::none_of(children.begin(), children.end(),
                        [](auto& child) { return child.running() || child.output() >= 0; });
  }
  static bool all_succeeded(const Children& children) {
    return std::all_of(children.begin(), children.end(), [](const auto& child) { return child.succeeded(); });
  }
  bool lost_aggregator() {
    return std::any_of(aggregators_.begin(), aggregators_.end(), [](auto& child) { return !child.running(); });
  }
  bool failed() {
    return lost_aggregator() ||
           std::any_of(workers_.begin(), workers_.end(), [](auto& child) { return !child.running() && !child.succeeded(); });
  }

  [[nodiscard]] static std::string first_end(const Children& children) {
    for (const auto& child : children) {
      if (!child.succeeded()) return child.how_it_ended();
    }
    return "every process ended";
  }

  // Those that were killed are the cause; the others tell of it.
  [[nodiscard]] std::string failure_text() {
    for (const auto* group : {&aggregators_, &workers_}) {
      for (const auto& child : *group) {
        if (child.killed()) return child.how_it_ended();
      }
    }
    if (lost_aggregator()) return first_end(aggregators_);
    return first_end(workers_);
  }

  [[nodiscard]] int failure_code() {
    for (const auto& aggregator : aggregators_) {
      if (aggregator.killed()) return exit_failed;  // whatever a worker that had not quite joined makes of it
    }
    for (const auto& worker : workers_) {
      if (worker.exit_code() == exit_usage || worker.exit_code() == exit_unreachable) return worker.exit_code();
    }
    return exit_failed;
  }

  static int fail(int code, const std::string& text) {
    std::fprintf(stderr, "netsum: %s\n", text.c_str());
    return code;
  }

  const BenchOptions& options_;
  Signals signals_;  // before any child, so that no end of one is missed
  Progress progress_;
  Children aggregators_, workers_;
  std::vector<std::pair<std::string, bool>> addresses_;  // whether of a parameter server
  std::vector<RankReport> reports_;
  unsigned long long slowest_done_ = 0;
  bool interrupted_ = false;
};

}  // namespace

std::vector<RankReport> run_local(const BenchOptions& options, int& exit_code) {
  std::vector<RankReport> reports;
  exit_code = LocalRun(options).run(reports);
  return reports;
}

}  // namespace netsum::app
