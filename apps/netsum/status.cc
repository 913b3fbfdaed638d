// `netsum status`: an aggregator's state, and the ranks that it waits for.
#include <chrono>
#include <cstdio>

#include "command.h"
#include "control/client.h"
#include "telemetry/report.h"

namespace netsum::app {
namespace {

class StatusCommand final : public Command {
 public:
  StatusCommand(CLI::App& app, Sections& sections) : Command(app, "status", sections) {
    settings().add("switch", address_, "HOST:PORT", "The aggregator");
    settings().add("token-file", token_file_, "FILE", "Secret that the aggregator wants, in the first line");
    settings().add("tls-ca", tls_ca_, "FILE", "PEM file: the control channel is TLS");
    settings().add("connect-deadline", deadline_seconds_, "SECONDS", "For the answer").between(0.001, 1e6);
    settings().add_flag("json", json_, "Print JSON in place of tables");
    footer(
        "Shows the aggregator's counters, its jobs, and for each operation that stalls the ranks that it waits for.\n"
        "Example:\n"
        "  netsum status --switch 10.0.0.1:7170");
  }

  int run() override {
    if (address_.empty()) throw UsageError("status needs --switch HOST:PORT (or NETSUM_SWITCH)");
    control::Client client({address_, read_token(token_file_), tls_ca_});
    const auto report = client.report(std::chrono::milliseconds(static_cast<std::int64_t>(deadline_seconds_ * 1e3)));
    const std::string text = json_ ? telemetry::to_json(report) : telemetry::to_table(report);
    std::fputs(text.c_str(), stdout);
    if (!text.ends_with('\n')) std::fputc('\n', stdout);
    return exit_done;
  }

 private:
  std::string address_, token_file_, tls_ca_;
  double deadline_seconds_ = 5;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_status_command(CLI::App& root, Sections& sections) {
  return std::make_unique<StatusCommand>(
      add_subcommand(root, "status", "Show an aggregator's jobs and the ranks that they wait for"), sections);
}

}  // namespace netsum::app
