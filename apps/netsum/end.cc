// `netsum end`: ends a job at a daemon.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "command.h"
#include "daemon_call.h"

namespace netsum::app {
namespace {

class EndCommand final : public Command {
 public:
  EndCommand(CLI::App& app, Sections& sections) : Command(app, "end", sections) {
    app.add_option("JOB", job_.job, "The job's name, as `netsum status` shows it")->required();
    settings().add("tenant", tenant_, "NAME", "Tenant of the job; required where several tenants have a job of this name");
    settings().add_flag("json", json_, "Print JSON");
    footer(
        "Ends a job that runs, or that waits for ranks: each of its ranks gets the error that an operator ended it, and\n"
        "does not continue, also not with --recovery. Its slots and its name are free at once. A tenant's token ends its\n"
        "own jobs, the daemon's own token all. A launcher that starts jobs again starts this one again: stop it first.\n"
        "Exit codes: 0 it is ended, 3 there is no such job, or the daemon does not permit it.\n"
        "Examples:\n"
        "  netsum end vision --switch 10.0.0.1:7170 --token-file token\n"
        "  netsum end vision --tenant research --switch 10.0.0.1:7170 --daemon-token-file /etc/netsum/daemon-token");
  }

  int run() override {
    if (!tenant_.empty()) job_.tenant = tenant_;
    call_.client().end(job_, call_.deadline());
    if (json_) {
      std::printf("%s\n", nlohmann::ordered_json({{"job", job_.job}, {"ended", true}}).dump().c_str());
    } else {
      std::printf("job '%s' is ended\n", job_.job.c_str());
    }
    return exit_done;
  }

 private:
  DaemonCall call_{settings()};
  session::NamedJob job_;
  std::string tenant_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_end_command(CLI::App& root, Sections& sections) {
  return std::make_unique<EndCommand>(add_subcommand(root, "end", "End a job: its ranks get an error that says so"),
                                      sections);
}

}  // namespace netsum::app
