#include "table_reader.h"

#include <algorithm>
#include <stdexcept>

namespace netsum::app {

UsageError TableReader::error(const std::string& key, const std::string& what) const {
  const toml::node* const node = table_.get(key);
  const auto line = (node != nullptr ? node->source() : table_.source()).begin.line;
  return UsageError(file_ + (line > 0 ? ", line " + std::to_string(line) : "") + ": `" + path_ + key + "` " + what);
}

const toml::node* TableReader::get(const std::string& key) {
  known_.insert(key);
  return table_.get(key);
}

std::string TableReader::text(const std::string& key, const std::string& otherwise) {
  const toml::node* const node = get(key);
  if (node == nullptr) return otherwise;
  if (!node->is_string()) throw error(key, "must be a string");
  return node->as_string()->get();
}

std::string TableReader::text(const std::string& key) {
  if (get(key) == nullptr) throw error(key, "is missing");
  return text(key, "");
}

bool TableReader::flag(const std::string& key, bool otherwise) {
  const toml::node* const node = get(key);
  if (node == nullptr) return otherwise;
  if (!node->is_boolean()) throw error(key, "is true or false");
  return node->as_boolean()->get();
}

std::uint64_t TableReader::number(const std::string& key, std::uint64_t otherwise, std::uint64_t least, std::uint64_t most) {
  const toml::node* const node = get(key);
  if (node == nullptr) return otherwise;
  const auto* const value = node->as_integer();
  if (value == nullptr || value->get() < 0 || static_cast<std::uint64_t>(value->get()) < least ||
      static_cast<std::uint64_t>(value->get()) > most) {
    throw error(key, "is an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<std::uint64_t>(value->get());
}

double TableReader::real(const std::string& key, double otherwise, double least, double most) {
  const toml::node* const node = get(key);
  if (node == nullptr) return otherwise;
  const std::optional<double> value = node->value<double>();
  if (!node->is_number() || !value || !(*value >= least && *value <= most)) {
    throw error(key, "is a number from " + as_toml(least) + " to " + as_toml(most));
  }
  return *value;
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
  const toml::node* const node = get(key);
  if (node == nullptr) return {};
  if (node->is_string()) return {node->as_string()->get()};
  const auto* const list = node->as_array();
  if (list == nullptr) throw error(key, "is a list of strings");
  std::vector<std::string> values;
  for (const toml::node& each : *list) {
    if (!each.is_string()) throw error(key, "is a list of strings");
    values.push_back(each.as_string()->get());
  }
  return values;
}

std::vector<std::uint64_t> TableReader::numbers(const std::string& key, std::uint64_t least, std::uint64_t most) {
  const toml::node* const node = get(key);
  if (node == nullptr) return {};
  const auto wrong = [&] {
    return error(key, "is a list of integers from " + std::to_string(least) + " to " + std::to_string(most));
  };
  const auto* const list = node->as_array();
  if (list == nullptr) throw wrong();
  std::vector<std::uint64_t> values;
  for (const toml::node& each : *list) {
    const auto* const value = each.as_integer();
    if (value == nullptr || value->get() < 0) throw wrong();
    values.push_back(static_cast<std::uint64_t>(value->get()));
    if (values.back() < least || values.back() > most) throw wrong();
  }
  return values;
}

std::vector<std::pair<Duration, Duration>> TableReader::spans(const std::string& key) {
  const toml::node* const node = get(key);
  if (node == nullptr) return {};
  const auto* const list = node->as_array();
  const auto wrong = [&] { return error(key, "is a list of pairs of times: [[\"1s\", \"2s\"]]"); };
  if (list == nullptr) throw wrong();
  std::vector<std::pair<Duration, Duration>> values;
  for (const toml::node& each : *list) {
    const auto* const pair = each.as_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string()) throw wrong();
    try {
      values.emplace_back(parse_duration((*pair)[0].as_string()->get()), parse_duration((*pair)[1].as_string()->get()));
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
  const toml::node* const node = get(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_table()) throw error(key, "is a table");
  return TableReader(*node->as_table(), file_, path_ + key + ".");
}

std::vector<TableReader> TableReader::tables(const std::string& key) {
  const toml::node* const node = get(key);
  if (node == nullptr) return {};
  const auto* const list = node->as_array();
  if (list == nullptr || !std::all_of(list->begin(), list->end(), [](const toml::node& each) { return each.is_table(); })) {
    throw error(key, "is a list of tables: [[" + path_ + key + "]]");
  }
  std::vector<TableReader> readers;
  for (std::size_t i = 0; i < list->size(); ++i) {
    readers.emplace_back(*(*list)[i].as_table(), file_, path_ + key + "[" + std::to_string(i) + "].");
  }
  return readers;
}

std::vector<std::string> TableReader::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, node] : table_) all.emplace_back(key.str());
  return all;
}

void TableReader::end() const {
  for (const auto& [key, node] : table_) {
    const std::string name(key.str());
    if (!known_.contains(name)) throw error(name, "is not a key that means something here");
  }
}

}  // namespace netsum::app
