#include "command_line.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "netsum/error.h"
#include "netsum/version.h"

namespace netsum::app {
namespace {

// One line, whatever the text holds.
int fail(const CommandLine& program, int code, std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), text.c_str());
  return code;
}

// A command's exit code, unless what it printed reached nobody.
int after_output(const CommandLine& program, int ended) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return ended;
  return fail(program, exit_failed, "the output is incomplete: standard output cannot be written (is the disk full?)");
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

int run(int argc, char** argv, const CommandLine& program) {
  CLI::App root{program.help, program.name};
  root.set_version_flag("--version", program.name + " " NETSUM_VERSION);
  root.require_subcommand(1);
  root.allow_extras();  // refuse_unknown() names them
  root.footer(program.footer);
  Sections sections;
  const Commands commands = program.commands(root, sections);
  try {
    root.parse(argc, argv);
    refuse_unknown(root, true);
  } catch (const CLI::Success& success) {  // --help, --version
    return after_output(program, root.exit(success));
  } catch (const CLI::ParseError& error) {
    if (error.get_name() == "RequiredError") refuse_unknown(root, false);
    return fail(program, exit_usage, in_words(root, error) + help_of(root));
  }
  for (const auto& command : commands) {
    if (!command->chosen()) continue;
    command->settings().resolve();
    if (command->settings().print_only()) {
      std::fputs(command->settings().print().c_str(), stdout);
      return after_output(program, exit_done);
    }
    return after_output(program, command->run());
  }
  return exit_usage;
}

}  // namespace

int run_program(int argc, char** argv, const CommandLine& program) {
  auto logger = spdlog::stderr_color_mt("netsum");
  logger->set_pattern(log_pattern);
  spdlog::set_default_logger(logger);
  try {
    return run(argc, argv, program);
  } catch (const UsageError& error) {
    return fail(program, exit_usage, error.what());
  } catch (const Error& error) {
    return fail(program, exit_code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(program, exit_failed, "there is no memory left");
  } catch (const std::exception& error) {
    return fail(program, exit_failed, error.what());
  }
}

}  // namespace netsum::app
