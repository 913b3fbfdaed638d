#include "config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace netsum::app {
namespace {

[[nodiscard]] std::string variable_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return "NETSUM_" + name;
}

[[nodiscard]] std::string text_of(const toml::node& node, const std::string& key) {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  if (const auto* value = node.as_integer()) return std::to_string(value->get());
  if (const auto* value = node.as_floating_point()) {
    std::ostringstream text;
    text << value->get();
    return text.str();
  }
  if (const auto* list = node.as_array()) {  // ["a:1", "b:1"] is the flag's "a:1,b:1"
    std::string joined;
    for (const auto& element : *list) joined += (joined.empty() ? "" : ",") + text_of(element, key);
    return joined;
  }
  throw UsageError(key + " must be a string, a number, true or false, or a list");
}

void check_keys(const toml::table& table, const std::string& prefix, const std::string& path, const Sections& sections) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
    const auto section = sections.find(prefix);
    if (section != sections.end() && section->second.contains(std::string(key.str()))) continue;
    const bool leads_on = std::any_of(sections.begin(), sections.end(), [&](const auto& known) {
      return known.first == name || known.first.starts_with(name + ".");
    });
    if (leads_on && node.is_table()) {
      check_keys(*node.as_table(), name, path, sections);
      continue;
    }
    throw UsageError(path + ": unknown key '" + name + "' in line " + std::to_string(node.source().begin.line));
  }
}

}  // namespace

Settings::Settings(CLI::App& app, std::string section, Sections& sections)
    : app_(app), section_(std::move(section)), sections_(sections) {
  add("config", config_, "FILE", "Read settings from the table [" + section_ + "] of this TOML file");
  app_.add_flag("--print-config", print_config_, "Print every setting and where it comes from, as TOML, and exit");
}

CLI::Option* Settings::add_flag(const std::string& name, bool& target, const std::string& help) {
  CLI::Option* option = app_.add_flag("--" + name, target, help);
  declare({name, option, Kind::boolean, {}});
  return option;
}

void Settings::declare(Setting setting) {
  if (setting.name != "config") sections_[section_].insert(setting.name);
  settings_.push_back(std::move(setting));
}

void Settings::take(Setting& setting, const std::string& value, const std::string& origin) {
  try {
    setting.option->clear();
    setting.option->add_result(value);
    setting.option->run_callback();
  } catch (const CLI::Error& error) {
    throw UsageError(origin + ": " + error.what());
  }
  setting.origin = origin;
}

void Settings::resolve() {
  for (Setting& setting : settings_) {
    if (setting.option->count() > 0) {
      setting.origin = "--" + setting.name;
    } else if (const char* value = std::getenv(variable_of(setting.name).c_str())) {
      take(setting, value, variable_of(setting.name));
    }
  }
  if (!config_.empty()) read_file(config_);
}

void Settings::read_file(const std::string& path) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    throw UsageError(path + ": " + std::string(error.description()) + (line > 0 ? " in line " + std::to_string(line) : ""));
  }
  check_keys(table, "", path, sections_);
  const auto section = table.at_path(section_);
  if (!section.is_table()) return;
  for (Setting& setting : settings_) {
    const toml::node* node = section.as_table()->get(setting.name);
    if (node != nullptr && setting.origin.empty()) take(setting, text_of(*node, setting.name), path);
  }
}

const std::string& Settings::origin(const std::string& name) const {
  static const std::string none;
  const auto at = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& each) { return each.name == name; });
  return at == settings_.end() ? none : at->origin;
}

std::string Settings::print() const {
  std::ostringstream out;
  out << "[" << section_ << "]\n";
  for (const Setting& setting : settings_) {
    if (setting.name == "config" || setting.option->get_group().empty()) continue;
    std::string value = setting.option->count() > 0 ? setting.option->as<std::string>() : setting.option->get_default_str();
    if (setting.kind == Kind::boolean) value = setting.option->count() > 0 && setting.option->as<bool>() ? "true" : "false";
    out << setting.name << " = ";
    if (setting.kind == Kind::text) {
      out << toml::value<std::string>(value);
    } else {
      out << value;
    }
    out << "  # " << (setting.origin.empty() ? "default" : setting.origin) << "\n";
  }
  return out.str();
}

std::vector<std::string> split_list(const std::string& comma_separated) {
  std::vector<std::string> parts;
  std::istringstream in(comma_separated);
  for (std::string part; std::getline(in, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string read_token(const std::string& path) {
  if (path.empty()) return {};
  std::ifstream file(path);
  std::string token;
  if (!std::getline(file, token) || token.empty())
    throw UsageError("--token-file " + path + ": cannot read a token from it");
  return token;
}

}  // namespace netsum::app
