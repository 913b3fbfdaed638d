// netsum: one binary, one file per subcommand.
#include <CLI/CLI.hpp>
#include <utility>

#include "command_line.h"

namespace netsum::app {
namespace {

constexpr const char* footer =
    "Examples:\n"
    "  netsum switch --listen 0.0.0.0:7170                      run an aggregator\n"
    "  netsum ps --listen 0.0.0.0:7270                          run a parameter server (ATP)\n"
    "  netsum bump --port eth:eth0 --port eth:eth1              run a bump in the wire (NetReduce)\n"
    "  netsum status --switch 10.0.0.1:7170                     its jobs, and the ranks that they wait for\n"
    "  netsum top --switch 10.0.0.1:7170                        the same, again and again, with rates\n"
    "  netsum explain --switch 10.0.0.1:7170 JOB                why a job failed, and what to do\n"
    "  netsum end JOB --switch 10.0.0.1:7170                    end a job; its ranks are told\n"
    "  netsum drain --switch 10.0.0.1:7170 --wait 3600          admit no new jobs, before the daemon is stopped\n"
    "  netsum doctor --switch 10.0.0.1:7170                     what keeps jobs from running well, and the fix\n"
    "  netsum bench all-reduce --workers 4 --elements 25000000  aggregator and workers on this machine\n"
    "  netsum bench parallel --machines 4 --gpus 2              machines of several GPUs, as processes\n"
    "  netsum simulate --faults chaos --seeds 1..1000           whole clusters under a virtual clock\n"
    " Every flag can also be set as NETSUM_<FLAG> (NETSUM_LISTEN) or in a TOML file (--config): a flag wins over the\n"
    "variable, the variable over the file. `netsum <subcommand> --help` shows the flags.\n"
    "Exit codes: 0 done, 1 the job failed, 2 bad usage, 3 the aggregator was not reachable or refused.";

Commands make_commands(CLI::App& root, Sections& sections) {
  Commands commands;
  commands.push_back(make_switch_command(root, sections));
  commands.push_back(make_ps_command(root, sections));
  commands.push_back(make_bump_command(root, sections));
  commands.push_back(make_status_command(root, sections));
  commands.push_back(make_top_command(root, sections));
  commands.push_back(make_explain_command(root, sections));
  commands.push_back(make_end_command(root, sections));
  commands.push_back(make_drain_command(root, sections));
  commands.push_back(make_doctor_command(root, sections));
  CLI::App& bench = *root.add_subcommand("bench", "Measure a collective, and check every result")->require_subcommand(1);
  for (auto& command : make_bench_commands(bench, sections)) commands.push_back(std::move(command));
  commands.push_back(make_parallel_command(bench, sections));
  commands.push_back(make_simulate_command(root, sections));
  return commands;
}

}  // namespace
}  // namespace netsum::app

int main(int argc, char** argv) {
  using namespace netsum::app;
  return run_program(argc, argv,
                     {"netsum", "Sums the gradients of distributed training inside the network.", footer, make_commands});
}
