// `netsum status`: an aggregator's state, and the ranks that it waits for.
#include <cstdio>

#include "command.h"
#include "daemon_call.h"
#include "screen.h"
#include "telemetry/report.h"

namespace netsum::app {
namespace {

class StatusCommand final : public Command {
 public:
  StatusCommand(CLI::App& app, Sections& sections) : Command(app, "status", sections) {
    settings().add_flag("json", json_, "Print JSON in place of tables; with --watch each report on a line of its own");
    settings().add("watch", watch_seconds_, "SECONDS", "Repeat every so many seconds; 0: once").between(0.0, 3600.0);
    footer(
        "Shows the aggregator's counters, its jobs, the ranks that each stalled operation waits for, and the jobs that\n"
        "ended lately.\n"
        "Examples:\n"
        "  netsum status --switch 10.0.0.1:7170\n"
        "  netsum status --switch 10.0.0.1:7170 --watch 10 --json >>status.jsonl");
  }

  int run() override {
    control::Client client = call_.client();
    const auto text = [&] {
      const auto report = client.report(call_.deadline());
      std::string words = json_ ? telemetry::to_json(report, watch_seconds_ > 0) : telemetry::to_table(report);
      if (!words.ends_with('\n')) words += '\n';
      return words;
    };
    if (watch_seconds_ == 0) {
      std::fputs(text().c_str(), stdout);
      return exit_done;
    }
    std::string shown = text();  // a daemon that never answers is an error, and not one that is away for a moment
    Screen screen;
    do {
      screen.show(json_ || screen.terminal() ? shown : shown + "\n");
      if (!screen.wait(watch_seconds_)) break;
      try {
        shown = text();
      } catch (const Error& error) {
        if (!json_)
          shown = std::string(error.what()) + "\n";
        else
          shown.clear();
      }
    } while (true);
    return exit_done;
  }

 private:
  DaemonCall call_{settings()};
  double watch_seconds_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_status_command(CLI::App& root, Sections& sections) {
  return std::make_unique<StatusCommand>(
      add_subcommand(root, "status", "Show an aggregator's jobs and the ranks that they wait for"), sections);
}

}  // namespace netsum::app
