// `netsum drain`: a daemon that admits no new jobs, before it is stopped.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "command.h"
#include "daemon_call.h"

namespace netsum::app {
namespace {

constexpr std::chrono::milliseconds between_looks{500};

class DrainCommand final : public Command {
 public:
  DrainCommand(CLI::App& app, Sections& sections) : Command(app, "drain", sections) {
    settings().add_flag("undo", undo_, "Admit new jobs again");
    settings()
        .add("wait", wait_seconds_, "SECONDS",
             "Wait up to this many seconds until no job runs, then exit with code 1; 0: do not wait")
        .between(0.0, 1e6);
    settings().add_flag("json", json_, "Print JSON");
    footer(
        "Use it before a daemon is stopped or its host is maintained. The daemon admits no new job, also no job that\n"
        "still waits for ranks, and refuses ranks that join. Running jobs continue, and may recover. A restarted daemon\n"
        "admits jobs again. The command requires the daemon's own token, not a tenant's.\n"
        "Exit codes: 0 done, 1 jobs still ran after --wait, 3 the daemon was not reachable, or does not permit it.\n"
        "Examples:\n"
        "  netsum drain --switch 10.0.0.1:7170 --token-file token --wait 3600 && systemctl restart netsum-switch\n"
        "  netsum drain --switch 10.0.0.1:7170 --token-file token --undo");
  }

  int run() override {
    if (undo_ && wait_seconds_ > 0) throw UsageError("--undo and --wait exclude each other: there is nothing to wait for");
    control::Client client = call_.client();
    client.drain(undo_, call_.deadline());
    telemetry::Report report = client.report(call_.deadline());
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_seconds_);
    while (wait_seconds_ > 0 && running(report) != 0) {
      if (!report.draining)
        throw Error(ErrorCode::refused,
                    "the daemon no longer drains: another operator ran `netsum drain --undo`, or the daemon was restarted");
      const std::chrono::duration<double> left = until - std::chrono::steady_clock::now();
      if (left.count() <= 0) return say(report, exit_failed);
      std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(between_looks, left));
      report = client.report(call_.deadline());
    }
    return say(report, exit_done);
  }

 private:
  [[nodiscard]] static std::size_t running(const telemetry::Report& report) {
    return static_cast<std::size_t>(
        std::count_if(report.jobs.begin(), report.jobs.end(), [](const auto& job) { return job.job.failure.empty(); }));
  }

  int say(const telemetry::Report& report, int code) const {
    const std::size_t jobs = running(report);
    if (json_) {
      std::printf("%s\n", nlohmann::ordered_json({{"draining", report.draining}, {"jobs", jobs}}).dump().c_str());
      return code;
    }
    const std::string run = jobs == 0 ? "no job runs" : jobs == 1 ? "1 job runs" : std::to_string(jobs) + " jobs run";
    std::printf("%s: %s\n", report.draining ? "draining" : "new jobs are admitted", run.c_str());
    if (code != exit_done) std::fprintf(stderr, "netsum: %s still; the daemon keeps draining\n", run.c_str());
    return code;
  }

  DaemonCall call_{settings()};
  double wait_seconds_ = 0;
  bool undo_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_drain_command(CLI::App& root, Sections& sections) {
  return std::make_unique<DrainCommand>(
      add_subcommand(root, "drain", "Let a daemon admit no new jobs, before it is stopped"), sections);
}

}  // namespace netsum::app
