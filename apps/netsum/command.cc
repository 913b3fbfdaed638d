#include "command.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace netsum::app {

Command::Command(CLI::App& app, std::string section, Sections& sections)
    : app_(app), settings_(app, std::move(section), sections) {}

bool Command::chosen() const {
  return app_.parsed();
}

void Command::footer(const std::string& text) {
  app_.footer(text);
}

CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& help) {
  return *parent.add_subcommand(name, help);
}

}  // namespace netsum::app
