#include "table_reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace netsum::app {
namespace {

// Letters to put in, take out or change.
std::size_t distance(const std::string& one, const std::string& other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t changed = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

bool mistyped(const std::string& typed, const std::string& meant) {
  return distance(typed, meant) <= (meant.size() + 1) / 3;
}

}  // namespace

UsageError TableReader::error(const std::string& key, const std::string& what) const {
  const TomlValue* const node = table_.get(key);
  const std::uint32_t line = node != nullptr ? node->line : table_.line;
  return UsageError(file_ + (line > 0 ? ", line " + std::to_string(line) : "") + ": `" + path_ + key + "` " + what);
}

UsageError TableReader::missing(const std::string& key, const std::string& hint) const {
  for (const auto& [typed, node] : table_.values) {
    if (!known_.contains(typed) && mistyped(typed, key))
      return error(typed, "is an unknown key: did you mean `" + key + "`?");
  }
  return error(key, "is missing" + hint);
}

const TomlValue* TableReader::get(const std::string& key) {
  known_.insert(key);
  return table_.get(key);
}

std::string TableReader::text(const std::string& key, const std::string& otherwise) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return otherwise;
  const auto* const value = node->as<std::string>();
  if (value == nullptr) throw error(key, "must be a string");
  return *value;
}

std::string TableReader::text(const std::string& key) {
  if (get(key) == nullptr) throw missing(key);
  return text(key, "");
}

bool TableReader::flag(const std::string& key, bool otherwise) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return otherwise;
  const bool* const value = node->as<bool>();
  if (value == nullptr) throw error(key, "is true or false");
  return *value;
}

std::uint64_t TableReader::number(const std::string& key, std::uint64_t otherwise, std::uint64_t least, std::uint64_t most) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return otherwise;
  const auto* const value = node->as<std::int64_t>();
  if (value == nullptr || *value < 0 || static_cast<std::uint64_t>(*value) < least ||
      static_cast<std::uint64_t>(*value) > most) {
    throw error(key, "is an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<std::uint64_t>(*value);
}

double TableReader::real(const std::string& key, double otherwise, double least, double most) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return otherwise;
  const auto* const whole = node->as<std::int64_t>();
  const auto* const number = node->as<double>();
  const double value = whole != nullptr ? static_cast<double>(*whole) : number != nullptr ? *number : NAN;
  if (!(value >= least && value <= most)) {
    throw error(key, "is a number from " + as_toml(least) + " to " + as_toml(most));
  }
  return value;
}

template <class Parse>
auto TableReader::parsed(const std::string& key, const Parse& parse, decltype(parse("")) otherwise) {
  if (get(key) == nullptr) return otherwise;
  try {
    return parse(text(key, ""));
  } catch (const std::invalid_argument& wrong) {
    throw error(key, std::string("is wrong: ") + wrong.what());
  }
}

Duration TableReader::duration(const std::string& key, Duration otherwise) {
  return parsed(
      key, [](const std::string& text) { return parse_duration(text); }, otherwise);
}

std::uint64_t TableReader::bytes(const std::string& key, std::uint64_t otherwise) {
  return parsed(
      key, [](const std::string& text) { return parse_bytes(text); }, otherwise);
}

std::uint64_t TableReader::rate(const std::string& key, std::uint64_t otherwise) {
  return parsed(
      key, [](const std::string& text) { return parse_rate(text); }, otherwise);
}

std::vector<std::string> TableReader::texts(const std::string& key) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return {};
  if (const auto* const alone = node->as<std::string>()) return {*alone};
  const auto* const list = node->as<TomlList>();
  if (list == nullptr) throw error(key, "is a list of strings");
  std::vector<std::string> values;
  for (const TomlValue& each : *list) {
    const auto* const value = each.as<std::string>();
    if (value == nullptr) throw error(key, "is a list of strings");
    values.push_back(*value);
  }
  return values;
}

std::vector<std::uint64_t> TableReader::numbers(const std::string& key, std::uint64_t least, std::uint64_t most) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return {};
  const auto wrong = [&] {
    return error(key, "is a list of integers from " + std::to_string(least) + " to " + std::to_string(most));
  };
  const auto* const list = node->as<TomlList>();
  if (list == nullptr) throw wrong();
  std::vector<std::uint64_t> values;
  for (const TomlValue& each : *list) {
    const auto* const value = each.as<std::int64_t>();
    if (value == nullptr || *value < 0) throw wrong();
    values.push_back(static_cast<std::uint64_t>(*value));
    if (values.back() < least || values.back() > most) throw wrong();
  }
  return values;
}

std::vector<std::pair<Duration, Duration>> TableReader::spans(const std::string& key) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return {};
  const auto* const list = node->as<TomlList>();
  const auto wrong = [&] { return error(key, "is a list of pairs of times: [[\"1s\", \"2s\"]]"); };
  if (list == nullptr) throw wrong();
  std::vector<std::pair<Duration, Duration>> values;
  for (const TomlValue& each : *list) {
    const auto* const pair = each.as<TomlList>();
    if (pair == nullptr || pair->size() != 2) throw wrong();
    const auto *const from = pair->front().as<std::string>(), *const to = pair->back().as<std::string>();
    if (from == nullptr || to == nullptr) throw wrong();
    try {
      values.emplace_back(parse_duration(*from), parse_duration(*to));
    } catch (const std::invalid_argument& reason) {
      throw error(key, std::string("is wrong: ") + reason.what());
    }
    if (values.back().first >= values.back().second) throw error(key, "has a span that ends before it begins");
  }
  return values;
}

std::size_t TableReader::choice(const std::string& key, const std::vector<std::string>& names, std::size_t otherwise) {
  if (get(key) == nullptr) return otherwise;
  const auto found = std::find(names.begin(), names.end(), text(key, ""));
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  throw error(key, "is one of " + all);
}

std::optional<TableReader> TableReader::table(const std::string& key) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return std::nullopt;
  const auto* const inner = node->as<TomlTable>();
  if (inner == nullptr) throw error(key, "is a table");
  return TableReader(*inner, file_, path_ + key + ".");
}

std::vector<TableReader> TableReader::tables(const std::string& key) {
  const TomlValue* const node = get(key);
  if (node == nullptr) return {};
  const auto* const list = node->as<TomlList>();
  if (list == nullptr ||
      !std::all_of(list->begin(), list->end(), [](const TomlValue& each) { return each.as<TomlTable>() != nullptr; })) {
    throw error(key, "is a list of tables: [[" + path_ + key + "]]");
  }
  std::vector<TableReader> readers;
  for (std::size_t i = 0; i < list->size(); ++i) {
    readers.emplace_back(*(*list)[i].as<TomlTable>(), file_, path_ + key + "[" + std::to_string(i) + "].");
  }
  return readers;
}

std::vector<std::string> TableReader::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, node] : table_.values) all.push_back(key);
  return all;
}

UsageError TableReader::unknown(const std::string& key) const {
  std::string all;
  const std::string* nearest = nullptr;
  for (const std::string& each : known_) {
    all += (all.empty() ? "" : ", ") + each;
    if (mistyped(key, each) && (nearest == nullptr || distance(key, each) < distance(key, *nearest))) nearest = &each;
  }
  const std::string meant = nearest == nullptr ? "; the" : ": did you mean `" + *nearest + "`? The";
  return error(key, "is an unknown key" + meant + " keys here are " + all);
}

void TableReader::end() const {
  for (const auto& [key, node] : table_.values) {
    if (!known_.contains(key)) throw unknown(key);
  }
}

}  // namespace netsum::app
