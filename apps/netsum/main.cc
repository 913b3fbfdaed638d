// netsum: one binary, one file per subcommand. Exit codes: 0 done, 1 the job failed, 2 bad usage, 3 the aggregator was not
// reachable or refused. Data goes to stdout; logs, progress and errors to stderr.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "command.h"
#include "daemon.h"
#include "netsum/error.h"
#include "netsum/version.h"

namespace {

using namespace netsum::app;

// One line, whatever the text holds.
int fail(int code, std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  std::fprintf(stderr, "netsum: %s\n", text.c_str());
  return code;
}

// A command's exit code, unless what it printed reached nobody.
int after_output(int ended) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return ended;
  return fail(exit_failed, "the output is incomplete: standard output cannot be written (is the disk full?)");
}

const CLI::App& chosen(const CLI::App& root) {
  const CLI::App* command = &root;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// " (see netsum bench all-reduce --help)"
std::string help_of(const CLI::App& root) {
  std::string words;
  for (const CLI::App* each = &chosen(root); each != nullptr; each = each->get_parent())
    words = each->get_name() + " " + words;
  return " (see " + words + "--help)";
}

// What is wrong with the command line, where CLI11's words are its own ("--rank: 1 required UINT missing").
std::string in_words(const CLI::App& root, const CLI::ParseError& error) {
  const std::string text = error.what(), kind = error.get_name();
  if (kind == "ValidationError") return text;  // of Settings: "--slots: requires ..."
  const CLI::App* const command = &chosen(root);
  if (kind == "RequiredError") {
    const std::size_t end = text.find(" is required");
    return command->get_subcommands([](const CLI::App*) { return true; }).empty() && end != std::string::npos
               ? text.substr(0, end) + " is missing"
               : "a command is missing";
  }
  const CLI::Option* const option = command->get_option_no_throw(text.substr(0, text.find(':')));
  if (kind != "ArgumentMismatch" || option == nullptr) return "a flag's value is not understood";
  return option->get_name() + (option->results().size() > 1 ? " may be given once only" : " requires a value");
}

// CLI11's own message lists the unknown words in another order, or only reports a missing command.
void refuse_unknown(const CLI::App& root, bool has_command) {
  const std::vector<std::string> unknown = root.remaining(true);
  if (unknown.empty()) return;
  const auto flag = std::find_if(unknown.begin(), unknown.end(), [](const auto& word) { return word.starts_with('-'); });
  const std::string& word = has_command && flag != unknown.end() ? *flag : unknown.front();
  const std::string what = word.starts_with('-') ? "flag" : has_command ? "argument" : "command";
  throw UsageError("unknown " + what + " '" + word + "'" + help_of(root));
}

int run(int argc, char** argv) {
  CLI::App root{"Sums the gradients of distributed training inside the network.", "netsum"};
  root.set_version_flag("--version", "netsum " NETSUM_VERSION);
  root.require_subcommand(1);
  root.allow_extras();  // refuse_unknown() names them
  root.footer(
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
      "Exit codes: 0 done, 1 the job failed, 2 bad usage, 3 the aggregator was not reachable or refused.");
  Sections sections;
  std::vector<std::unique_ptr<Command>> commands;  // in the order in which --help lists them
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
  try {
    root.parse(argc, argv);
    refuse_unknown(root, true);
  } catch (const CLI::Success& success) {  // --help, --version
    return after_output(root.exit(success));
  } catch (const CLI::ParseError& error) {
    if (error.get_name() == "RequiredError") refuse_unknown(root, false);
    return fail(exit_usage, in_words(root, error) + help_of(root));
  }
  for (const auto& command : commands) {
    if (!command->chosen()) continue;
    command->settings().resolve();
    if (command->settings().print_only()) {
      std::fputs(command->settings().print().c_str(), stdout);
      return after_output(exit_done);
    }
    return after_output(command->run());
  }
  return exit_usage;
}

}  // namespace

int main(int argc, char** argv) {
  auto logger = spdlog::stderr_color_mt("netsum");
  logger->set_pattern(log_pattern);
  spdlog::set_default_logger(logger);
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    return fail(exit_usage, error.what());
  } catch (const netsum::Error& error) {
    return fail(exit_code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(exit_failed, "there is no memory left");
  } catch (const std::exception& error) {
    return fail(exit_failed, error.what());
  }
}
