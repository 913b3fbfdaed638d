// `netsum status`: an aggregator's state, and the ranks that it waits for.
#include <chrono>
#include <cstdio>

#include "command.h"
#include "control/client.h"
#include "screen.h"
#include "telemetry/report.h"
#include "transport/switch_list.h"

namespace netsum::app {
namespace {

class StatusCommand final : public Command {
 public:
  StatusCommand(CLI::App& app, Sections& sections) : Command(app, "status", sections) {
    settings().add("switch", address_, "HOST:PORT", "The aggregator; or srv:NAME or @FILE, if it names one");
    settings().add("token-file", token_file_, "FILE", "Secret that the aggregator wants, in the first line");
    settings().add("tls-ca", tls_ca_, "FILE", "PEM file: the control channel is TLS");
    settings().add("connect-deadline", deadline_seconds_, "SECONDS", "For the answer").between(0.001, 1e6);
    settings().add_flag("json", json_, "Print JSON in place of tables; with --watch each report on a line of its own");
    settings()
        .add("watch", watch_seconds_, "SECONDS", "Again and again, with so many seconds in between; 0: once")
        .between(0.0, 3600.0);
    footer(
        "Shows the aggregator's counters, its jobs, and for each operation that stalls the ranks that it waits for.\n"
        "Examples:\n"
        "  netsum status --switch 10.0.0.1:7170\n"
        "  netsum status --switch 10.0.0.1:7170 --watch 10 --json >>status.jsonl");
  }

  int run() override {
    if (address_.empty()) throw UsageError("status needs --switch HOST:PORT (or NETSUM_SWITCH)");
    control::Client client({transport::one_switch(address_), read_token(token_file_), tls_ca_});
    const auto text = [&] {
      const auto report = client.report(std::chrono::milliseconds(static_cast<std::int64_t>(deadline_seconds_ * 1e3)));
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
  std::string address_, token_file_, tls_ca_;
  double deadline_seconds_ = 5, watch_seconds_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_status_command(CLI::App& root, Sections& sections) {
  return std::make_unique<StatusCommand>(
      add_subcommand(root, "status", "Show an aggregator's jobs and the ranks that they wait for"), sections);
}

}  // namespace netsum::app
