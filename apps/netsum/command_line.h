// A program of subcommands: what its main() does. Exit codes: 0 done, 1 the job failed, 2 bad usage, 3 the aggregator was
// not reachable or refused. Data goes to stdout; logs, progress and errors to stderr.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "command.h"

namespace netsum::app {

using Commands = std::vector<std::unique_ptr<Command>>;  // in the order in which --help lists them

struct CommandLine {
  std::string name, help, footer;
  std::function<Commands(CLI::App& root, Sections& sections)> commands;
};

[[nodiscard]] int run_program(int argc, char** argv, const CommandLine& program);  // the exit code

}  // namespace netsum::app
