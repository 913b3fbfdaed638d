// Settings of a subcommand: flags over NETSUM_* variables over a TOML file over defaults. One declaration serves all four.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "toml.h"

// Commands declare settings without CLI11's headers: they take longer to parse than a command takes to compile.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace netsum::app {

// Bad usage: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The tables and keys that a file may have. One file may configure several subcommands; an unknown key in any is an error.
using Sections = std::map<std::string, std::set<std::string>>;

// A declared setting: sets its limits, and the heading under which --help lists it.
class Declared {
 public:
  explicit Declared(CLI::Option& option) : option_(option) {}
  Declared& between(int least, int most);
  Declared& between(double least, double most);
  Declared& share(double most);  // 0.01, or 1%
  Declared& positive();
  Declared& at_least(std::uint64_t least);
  Declared& group(const std::string& heading);  // "": not listed

 private:
  template <class Number>
  Declared& within(Number least, Number most, const char* requires_what);

  CLI::Option& option_;
};

class Settings {
 public:
  // `section`: the TOML table: the subcommand's words joined by dots ("bench.all-reduce").
  Settings(CLI::App& app, std::string section, Sections& sections);

  // --NAME VALUE, NETSUM_NAME, or NAME in the file; the target's value is the default. T: std::string, bool, double,
  // std::uint32_t or std::uint64_t.
  template <class T>
  Declared add(const std::string& name, T& target, const std::string& value_name, const std::string& help);
  // --NAME once per value, NETSUM_NAME with spaces between values, or a list in the file. Values may contain commas.
  Declared add_list(const std::string& name, std::vector<std::string>& target, const std::string& value_name,
                    const std::string& help);
  Declared add_flag(const std::string& name, bool& target, const std::string& help);

  // Two headings of --help whose settings exclude each other. Where flags of one alone are given, variables of the other do
  // not count: resolve() says so in a line, and takes them out of the environment.
  void exclusive(std::string one, std::string other);

  // After the command line was parsed: takes missing settings from the environment and from the file `config`.
  void resolve();

  // Where a setting's value came from, in words ("--loss", "NETSUM_LOSS", "netsum.toml"); empty: the default.
  [[nodiscard]] const std::string& origin(const std::string& name) const;

  [[nodiscard]] std::vector<std::string> given() const;  // names of settings that have not their default

  [[nodiscard]] bool print_only() const { return print_config_; }
  [[nodiscard]] std::string print() const;  // TOML, with each setting's origin as a comment

 private:
  struct Setting {
    std::string name;
    CLI::Option* option;
    bool is_text, is_list;
    std::function<std::string()> value;  // the one in effect, as TOML
    std::string origin;
  };
  void declare(Setting setting);
  static void check_given(const Setting& setting, const std::string& value, const std::string& origin);
  void take(Setting& setting, const std::vector<std::string>& values, const std::string& origin);
  void read_file(const std::string& path);
  void ignore_variables_beside_flags() const;

  CLI::App& app_;
  std::string section_;
  Sections& sections_;
  std::vector<Setting> settings_;
  std::string one_, other_;  // headings that exclude each other
  std::string config_;
  bool print_config_ = false;
};

// Of a protocol that other systems have too: it takes these settings alone. Throws UsageError.
void check_compat_flags(const Settings& settings, const std::set<std::string>& allowed);

[[nodiscard]] std::vector<std::string> split_list(const std::string& comma_separated);
[[nodiscard]] std::string read_whole(const std::string& path);  // throws UsageError
[[nodiscard]] std::string read_token(
    const std::string& path,
    const char* flag = "--token-file");  // a secret from a file, without the newline at its end

}  // namespace netsum::app
