#include "config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <limits>
#include <sstream>
#include <type_traits>

namespace netsum::app {
namespace {

[[nodiscard]] std::string variable_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return "NETSUM_" + name;
}

[[nodiscard]] std::string text_of(const TomlValue& node, const std::string& key) {
  if (const auto* value = node.as<std::string>()) return *value;
  if (const auto* value = node.as<bool>()) return *value ? "true" : "false";
  if (const auto* value = node.as<std::int64_t>()) return std::to_string(*value);
  if (const auto* value = node.as<double>()) return as_toml(*value);
  if (const auto* list = node.as<TomlList>()) {  // ["a:1", "b:1"] is the flag's "a:1,b:1"
    std::string joined;
    for (const TomlValue& element : *list) joined += (joined.empty() ? "" : ",") + text_of(element, key);
    return joined;
  }
  throw UsageError(key + " must be a string, a number, true or false, or a list");
}

[[nodiscard]] std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

void check_keys(const TomlTable& table, const std::string& prefix, const std::string& path, const Sections& sections) {
  for (const auto& [key, node] : table.values) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    const auto section = sections.find(prefix);
    if (section != sections.end() && section->second.contains(key)) continue;
    const bool leads_on = std::any_of(sections.begin(), sections.end(), [&](const auto& known) {
      return known.first == name || known.first.starts_with(name + ".");
    });
    if (const auto* const inner = node.as<TomlTable>(); leads_on && inner != nullptr) {
      check_keys(*inner, name, path, sections);
      continue;
    }
    throw UsageError(path + ", line " + std::to_string(node.line) + ": unknown key '" + name + "'");
  }
}

// For CLI11, whose own words would be "Could not convert: --slots = many": empty, or why the text is no such value.
template <class T>
[[nodiscard]] std::string check_value(const std::string& text) {
  T value{};
  const bool converts = CLI::detail::lexical_cast(text, value);
  if constexpr (std::is_same_v<T, bool>) {
    return converts ? "" : "requires true or false, not '" + text + "'";
  } else if constexpr (std::is_floating_point_v<T>) {  // CLI::Range takes NaN
    return converts && !std::isnan(value) ? "" : "requires a number, not '" + text + "'";
  } else {
    if (converts && !text.starts_with('-')) return "";
    const std::string most =
        std::is_same_v<T, std::uint64_t> ? "" : " and at most " + std::to_string(std::numeric_limits<T>::max());
    return "requires a whole number of at least 0" + most + ", not '" + text + "'";
  }
}

}  // namespace

Declared& Declared::between(int least, int most) {
  return within(least, most, "requires a whole number");
}

Declared& Declared::between(double least, double most) {
  return within(least, most, "requires a number");
}

// What was meant by 5 is 5% here and 0.05 there: a number alone is a share, and above 1 it is an error that says so.
Declared& Declared::share(double most) {
  std::ostringstream range;
  range << "SHARE in [0 - " << most << "]";
  CLI::Validator limits(
      [=](std::string& text) {
        const bool has_sign = text.ends_with('%');
        const std::string number = has_sign ? text.substr(0, text.size() - 1) : text;
        double value{};
        const bool is_number = CLI::detail::lexical_cast(number, value);
        if (has_sign) value /= 100;
        std::ostringstream words;
        words.precision(std::numeric_limits<double>::max_digits10);
        if (is_number && value >= 0 && value <= most) {
          words << value;
          text = words.str();  // what follows reads a number
          return std::string();
        }
        words.precision(6);
        words << "requires a share from 0 to " << most << " (0.01, or 1%), not '" << text << "'";
        if (is_number && !has_sign && value > 1) words << ": " << text << " percent is " << text << "%";
        return words.str();
      },
      range.str());
  option_.transform(limits);
  return *this;
}

// CLI11's own words would be "Value --json not in range 0.000000 to 1.000000".
template <class Number>
Declared& Declared::within(Number least, Number most, const char* requires_what) {
  CLI::Validator limits = CLI::Range(least, most);  // for --help
  limits.operation([=](std::string& text) {
    Number value{};
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return std::string();
    std::ostringstream words;
    words << requires_what << " from " << least << " to " << most << ", not '" << text << "'";
    return words.str();
  });
  option_.transform(limits);  // in front of check_value(): its words are closer
  return *this;
}

Declared& Declared::positive() {
  return at_least(1);
}

Declared& Declared::at_least(std::uint64_t least) {
  CLI::Validator limits(
      [=](std::string& text) {
        std::uint64_t value = 0;
        if (!text.starts_with('-') && CLI::detail::lexical_cast(text, value) && value >= least) return std::string();
        return "requires a whole number of at least " + std::to_string(least) + ", not '" + text + "'";
      },
      least == 1 ? "POSITIVE" : "AT LEAST " + std::to_string(least));
  option_.transform(limits);
  return *this;
}

Declared& Declared::group(const std::string& heading) {
  option_.group(heading);
  return *this;
}

Settings::Settings(CLI::App& app, std::string section, Sections& sections)
    : app_(app), section_(std::move(section)), sections_(sections) {
  add("config", config_, "FILE", "Read settings from the table [" + section_ + "] of this TOML file");
  app_.add_flag("--print-config", print_config_, "Print every setting and where it comes from, as TOML, and exit");
}

template <class T>
Declared Settings::add(const std::string& name, T& target, const std::string& value_name, const std::string& help) {
  CLI::Option* option = app_.add_option("--" + name, target, help)->type_name(value_name)->capture_default_str();
  if constexpr (!std::is_same_v<T, std::string>) option->check(&check_value<T>);
  declare({name, option, std::is_same_v<T, std::string>, false, [&target] { return as_toml(target); }, {}});
  return Declared(*option);
}
template Declared Settings::add(const std::string&, std::string&, const std::string&, const std::string&);
template Declared Settings::add(const std::string&, bool&, const std::string&, const std::string&);
template Declared Settings::add(const std::string&, double&, const std::string&, const std::string&);
template Declared Settings::add(const std::string&, std::uint32_t&, const std::string&, const std::string&);
template Declared Settings::add(const std::string&, std::uint64_t&, const std::string&, const std::string&);

Declared Settings::add_flag(const std::string& name, bool& target, const std::string& help) {
  CLI::Option* option = app_.add_flag("--" + name, target, help)->check(&check_value<bool>);
  declare({name, option, false, false, [&target] { return as_toml(target); }, {}});
  return Declared(*option);
}

Declared Settings::add_list(const std::string& name, std::vector<std::string>& target, const std::string& value_name,
                            const std::string& help) {
  CLI::Option* option = app_.add_option("--" + name, target, help)->type_name(value_name)->allow_extra_args(false);
  declare({name, option, true, true, [&target] { return as_toml(target); }, {}});
  return Declared(*option);
}

void Settings::declare(Setting setting) {
  if (setting.name != "config") sections_[section_].insert(setting.name);
  settings_.push_back(std::move(setting));
}

// CLI11 parses an empty text as the number 0.
void Settings::check_given(const Setting& setting, const std::string& value, const std::string& origin) {
  if (value.empty() && !setting.is_text) throw UsageError(origin + ": " + setting.name + " has no value");
}

void Settings::take(Setting& setting, const std::vector<std::string>& values, const std::string& origin) {
  if (values.empty()) return;
  try {
    setting.option->clear();
    for (const std::string& value : values) {
      check_given(setting, value, origin);
      setting.option->add_result(value);
    }
    setting.option->run_callback();
  } catch (const CLI::Error& error) {
    throw UsageError(origin + ": " + error.what());
  }
  setting.origin = origin;
}

void Settings::exclusive(std::string one, std::string other) {
  one_ = std::move(one);
  other_ = std::move(other);
}

void Settings::ignore_variables_beside_flags() const {
  const auto flag_of = [&](const std::string& heading) {
    const auto at = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& each) {
      return each.option->count() > 0 && each.option->get_group() == heading;
    });
    return at == settings_.end() ? std::string() : "--" + at->name;
  };
  const std::string one = flag_of(one_), other = flag_of(other_);
  if (one_ == other_ || one.empty() == other.empty()) return;
  std::string ignored;
  for (const Setting& each : settings_) {
    const std::string variable = variable_of(each.name);
    if (each.option->get_group() != (one.empty() ? one_ : other_) || std::getenv(variable.c_str()) == nullptr) continue;
    ::unsetenv(variable.c_str());
    ignored += (ignored.empty() ? "" : ", ") + variable;
  }
  if (!ignored.empty())
    std::fprintf(stderr, "netsum: not used, because of %s: %s\n", (one + other).c_str(), ignored.c_str());
}

void Settings::resolve() {
  ignore_variables_beside_flags();
  for (Setting& setting : settings_) {
    if (setting.option->count() > 0) {
      setting.origin = "--" + setting.name;
      for (const std::string& value : setting.option->results()) check_given(setting, value, setting.origin);
    } else if (const char* value = std::getenv(variable_of(setting.name).c_str())) {
      take(setting, setting.is_list ? split_words(value) : std::vector<std::string>{value}, variable_of(setting.name));
    }
  }
  if (!config_.empty()) read_file(config_);
}

void Settings::read_file(const std::string& path) {
  const TomlTable file = parse_toml(read_whole(path), path);
  check_keys(file, "", path, sections_);
  const TomlTable* section = &file;  // of "bench.all-reduce", that of "all-reduce" in that of "bench"
  std::istringstream names(section_);
  for (std::string name; section != nullptr && std::getline(names, name, '.');) {
    const TomlValue* const next = section->get(name);
    section = next == nullptr ? nullptr : next->as<TomlTable>();
  }
  if (section == nullptr) return;
  for (Setting& setting : settings_) {
    const TomlValue* const node = section->get(setting.name);
    if (node == nullptr || !setting.origin.empty()) continue;
    std::vector<std::string> values;
    if (const auto* const list = node->as<TomlList>(); setting.is_list && list != nullptr) {
      for (const TomlValue& element : *list) values.push_back(text_of(element, setting.name));
    } else {
      values.push_back(text_of(*node, setting.name));
    }
    take(setting, values, path);
  }
}

const std::string& Settings::origin(const std::string& name) const {
  static const std::string none;
  const auto at = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& each) { return each.name == name; });
  return at == settings_.end() ? none : at->origin;
}

std::vector<std::string> Settings::given() const {
  std::vector<std::string> names;
  for (const Setting& each : settings_) {
    if (!each.origin.empty()) names.push_back(each.name);
  }
  return names;
}

void check_compat_flags(const Settings& settings, const std::set<std::string>& allowed) {
  for (const std::string& name : settings.given()) {
    if (name == "config" || allowed.contains(name)) continue;
    throw UsageError(settings.origin(name) + " cannot be used with --compat: its protocol has no such setting");
  }
}

std::string Settings::print() const {
  std::ostringstream out;
  out << "[" << section_ << "]\n";
  for (const Setting& setting : settings_) {
    if (setting.name == "config" || setting.option->get_group().empty()) continue;
    out << setting.name << " = " << setting.value();
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

std::string read_whole(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) throw UsageError("cannot read '" + path + "': it is a folder");
  std::ifstream file(path, std::ios::binary);
  try {
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (file.is_open()) return text;
  } catch (const std::ios_base::failure&) {
  }
  throw UsageError("cannot read '" + path + "': is it there, and may this user read it?");
}

std::string read_token(const std::string& path, const char* flag) {
  if (path.empty()) return {};
  std::ifstream file(path);
  std::string token;
  if (!std::getline(file, token) || token.empty())
    throw UsageError(std::string(flag) + " " + path + ": the first line must hold a secret, and is empty or cannot be read");
  return token;
}

}  // namespace netsum::app
