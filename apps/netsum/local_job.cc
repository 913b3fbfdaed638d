#include "local_job.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string_view>

#include "command.h"

namespace netsum::app {
namespace {

// After the first failure the other processes must notice by themselves; with heartbeats that takes a few seconds.
constexpr auto patience_after_failure = std::chrono::seconds(15);
constexpr auto patience_at_stop = std::chrono::seconds(5);

using Children = std::vector<ChildProcess>;

bool all_ended(Children& children) {
  return std::none_of(children.begin(), children.end(), [](auto& child) { return child.running() || child.output() >= 0; });
}

bool all_succeeded(const Children& children) {
  return std::all_of(children.begin(), children.end(), [](const auto& child) { return child.succeeded(); });
}

std::string first_end(const Children& children) {
  for (const auto& child : children) {
    if (!child.succeeded()) return child.how_it_ended();
  }
  return "every process ended";
}

int fail(int code, const std::string& text) {
  std::fprintf(stderr, "netsum: %s\n", text.c_str());
  return code;
}

}  // namespace

Signals::Signals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int each : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&wanted, each);
  sigprocmask(SIG_BLOCK, &wanted, &before_);
  descriptor_ = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor_ < 0) throw std::runtime_error("signalfd failed");
}

Signals::~Signals() {
  close(descriptor_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

bool Signals::interrupted() {
  signalfd_siginfo info{};
  while (read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    interrupted_ |= info.ssi_signo != SIGCHLD;
  }
  return interrupted_;
}

int LocalJob::start(const std::vector<Program>& daemons, std::chrono::duration<double> patience) {
  for (const Program& each : daemons) daemons_.emplace_back(each.name, each.arguments);
  addresses_.resize(daemons_.size());
  const bool listening = wait([&] { return all_listen() || lost_daemon(); },
                              Clock::now() + std::chrono::duration_cast<Clock::duration>(patience));
  if (interrupted_) return fail(exit_failed, "interrupted");
  if (lost_daemon()) return fail(exit_failed, first_end(daemons_));
  if (!listening) return fail(exit_unreachable, "the aggregator did not start within the connect deadline");
  return exit_done;
}

int LocalJob::run(const std::vector<Program>& daemons, std::chrono::duration<double> patience,
                  const MakePrograms& make_workers, const OnLine& on_worker_line, const MakePrograms& make_above) {
  on_worker_line_ = on_worker_line;
  int code = start(daemons, patience);
  if (code == exit_done && make_above) code = start(make_above(addresses_), patience);
  if (code != exit_done) return code;
  for (const Program& each : make_workers(addresses_)) workers_.emplace_back(each.name, each.arguments);
  wait([&] { return failed() || all_ended(workers_); }, Clock::time_point::max());
  if (failed() && !interrupted_) {
    wait([&] { return all_ended(workers_); }, Clock::now() + patience_after_failure);
  }
  if (interrupted_) return fail(exit_failed, "interrupted");
  if (failed()) return fail(failure_code(), failure_text());
  for (auto& daemon : daemons_) daemon.signal(SIGTERM);
  if (!wait([&] { return all_ended(daemons_); }, Clock::now() + patience_at_stop) || !all_succeeded(daemons_)) {
    return fail(exit_failed, "after SIGTERM, " + first_end(daemons_));
  }
  return exit_done;
}

// Handles events until done(); false if the deadline or an interrupt came first.
template <class Done>
bool LocalJob::wait(Done done, Clock::time_point deadline) {
  while (!interrupted_) {
    if (done()) return true;
    const auto now = Clock::now();
    if (now >= deadline) return false;
    handle_events(
        std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(deadline - now, std::chrono::minutes(1))));
  }
  return false;
}

void LocalJob::handle_events(std::chrono::milliseconds at_most) {
  std::vector<pollfd> polls{{signals_.descriptor(), POLLIN, 0}};
  for (const auto* group : {&daemons_, &workers_}) {
    for (const auto& child : *group) polls.push_back({child.output(), POLLIN, 0});
  }
  poll(polls.data(), polls.size(), static_cast<int>(at_most.count()));
  interrupted_ = signals_.interrupted();
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    daemons_[i].read_lines([&](const std::string& line) {
      constexpr std::string_view ready = "listening ";
      if (line.starts_with(ready)) addresses_[i] = line.substr(ready.size());
    });
  }
  for (auto& child : workers_) {
    child.read_lines([&](const std::string& line) {
      constexpr std::string_view error = "error ";
      if (!line.starts_with(error)) return on_worker_line_(line);
      if (first_error_.empty()) first_error_ = line.substr(error.size());
    });
  }
}

bool LocalJob::all_listen() const {
  return std::none_of(addresses_.begin(), addresses_.end(), [](const auto& address) { return address.empty(); });
}

bool LocalJob::lost_daemon() {
  return std::any_of(daemons_.begin(), daemons_.end(), [](auto& child) { return !child.running(); });
}

bool LocalJob::failed() {
  return lost_daemon() ||
         std::any_of(workers_.begin(), workers_.end(), [](auto& child) { return !child.running() && !child.succeeded(); });
}

// Killed children are the cause; errors of the others follow from that.
std::string LocalJob::failure_text() {
  for (const auto* group : {&daemons_, &workers_}) {
    for (const auto& child : *group) {
      if (child.killed()) return child.how_it_ended();
    }
  }
  if (lost_daemon()) return first_end(daemons_);
  return first_error_.empty() ? first_end(workers_) : first_error_;
}

int LocalJob::failure_code() const {
  for (const auto& daemon : daemons_) {
    if (daemon.killed()) return exit_failed;  // whatever exit code a joining worker gives
  }
  for (const auto& worker : workers_) {
    if (worker.killed()) return exit_failed;  // not the other workers' exit codes
  }
  for (const auto& worker : workers_) {
    if (worker.exit_code() == exit_usage || worker.exit_code() == exit_unreachable) return worker.exit_code();
  }
  return exit_failed;
}

}  // namespace netsum::app
