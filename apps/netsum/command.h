// A subcommand of netsum: its constructor declares flags, and it runs after they were resolved.
#pragma once

#include <memory>
#include <string>

#include "config.h"
#include "netsum/error.h"

namespace netsum::app {

enum ExitCode : int { exit_done = 0, exit_failed = 1, exit_usage = 2, exit_unreachable = 3 };

[[nodiscard]] constexpr ExitCode exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_argument:
      return exit_usage;
    case ErrorCode::unreachable:
    case ErrorCode::refused:
      return exit_unreachable;
    default:
      return exit_failed;
  }
}

// Of logs.
inline constexpr char log_pattern[] = "%H:%M:%S.%e %n[%P] %^%l%$ %v";

class Command {
 public:
  Command(CLI::App& app, std::string section, Sections& sections);
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  [[nodiscard]] bool chosen() const;
  [[nodiscard]] Settings& settings() { return settings_; }

  // The exit code. May throw UsageError or netsum::Error.
  [[nodiscard]] virtual int run() = 0;

 protected:
  void footer(const std::string& text);  // of --help

 private:
  CLI::App& app_;
  Settings settings_;
};

[[nodiscard]] CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& help);

[[nodiscard]] std::unique_ptr<Command> make_switch_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_ps_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_bump_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_status_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_end_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_drain_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_top_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_doctor_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_explain_command(CLI::App& root, Sections& sections);
[[nodiscard]] std::vector<std::unique_ptr<Command>> make_bench_commands(CLI::App& bench,
                                                                        Sections& sections);  // by collective
[[nodiscard]] std::unique_ptr<Command> make_parallel_command(CLI::App& bench, Sections& sections);
[[nodiscard]] std::unique_ptr<Command> make_simulate_command(CLI::App& root, Sections& sections);

}  // namespace netsum::app
