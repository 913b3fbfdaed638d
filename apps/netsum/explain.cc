// `netsum explain`: the record of a job, in words.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "command.h"
#include "daemon_call.h"
#include "telemetry/flight_file.h"

namespace netsum::app {
namespace {

class ExplainCommand final : public Command {
 public:
  ExplainCommand(CLI::App& app, Sections& sections) : Command(app, "explain", sections) {
    app.add_option("FILE|JOB", named_, "A file of a daemon's --flight-records; with --switch the name of a job there")
        ->required();
    settings().add("tenant", tenant_, "NAME", "Tenant of the job; required where several tenants have a job of this name");
    settings().add_flag("json", json_, "Print the record itself");
    footer(
        "Says what happened to a job, which ranks it waited for, and what to do: from a record that a daemon wrote when\n"
        "the job failed, or from the daemon itself, which knows its jobs and the latest that ended.\n"
        "Examples:\n"
        "  netsum explain --switch 10.0.0.1:7170 --token-file token train\n"
        "  netsum switch --listen 10.0.0.1:7170 --flight-records /var/lib/netsum/flights ...\n"
        "  netsum explain /var/lib/netsum/flights/20260102T030405.678-0a1b2c-train.flight.json");
  }

  int run() override {
    std::string record;
    // NETSUM_SWITCH may be set for other commands.
    if (call_.has_address() && (settings().origin("switch") == "--switch" || !std::filesystem::exists(named_))) {
      session::NamedJob job{named_};
      if (!tenant_.empty()) job.tenant = tenant_;
      record = call_.client().flight_record(job, call_.deadline());
    } else {
      record = read_whole(named_);
    }
    const std::string words = telemetry::explain(record);  // also checks the record
    const std::string text = json_ ? telemetry::printable_record(record) : words;
    std::fputs(text.c_str(), stdout);
    return exit_done;
  }

 private:
  DaemonCall call_{settings()};
  std::string named_, tenant_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_explain_command(CLI::App& root, Sections& sections) {
  return std::make_unique<ExplainCommand>(add_subcommand(root, "explain", "Say why a job failed, and what to do"), sections);
}

}  // namespace netsum::app
