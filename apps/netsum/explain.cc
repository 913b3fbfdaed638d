// `netsum explain`: the record of a job that failed, in words.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "command.h"
#include "telemetry/flight_file.h"

namespace netsum::app {
namespace {

class ExplainCommand final : public Command {
 public:
  ExplainCommand(CLI::App& app, Sections& sections) : Command(app, "explain", sections) {
    app.add_option("FILE", file_, "A file of a daemon's --flight-records")->required();
    footer(
        "Says what happened to a job that failed, whom it waited for, and what to do.\n"
        "Example:\n"
        "  netsum switch --listen 10.0.0.1:7170 --flight-records /var/lib/netsum/flights ...\n"
        "  netsum explain /var/lib/netsum/flights/20260102T030405.678-0a1b2c-train.flight.json");
  }

  int run() override {
    const std::string text = telemetry::explain(read_whole(file_));
    std::fputs(text.c_str(), stdout);
    return exit_done;
  }

 private:
  std::string file_;
};

}  // namespace

std::unique_ptr<Command> make_explain_command(CLI::App& root, Sections& sections) {
  return std::make_unique<ExplainCommand>(add_subcommand(root, "explain", "Say why a job failed, and what to do"), sections);
}

}  // namespace netsum::app
