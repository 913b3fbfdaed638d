#include "tenants.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "toml.h"

namespace netsum::app {
namespace {

class Reader {
 public:
  Reader(const toml::table& table, const std::string& where) : table_(table), where_(where) {}

  [[nodiscard]] std::string text(const char* key) const {
    const toml::node* const node = table_.get(key);
    if (node == nullptr || !node->is_string()) throw UsageError(where_ + ": `" + key + "` is missing, or no string");
    return node->as_string()->get();
  }
  // One text, or a list of one or two.
  [[nodiscard]] std::pair<std::string, std::string> one_or_two(const char* key) const {
    const toml::node* const node = table_.get(key);
    const toml::array* const list = node == nullptr ? nullptr : node->as_array();
    if (list == nullptr) return {text(key), ""};
    const bool right = (list->size() == 1 || list->size() == 2) &&
                       std::all_of(list->begin(), list->end(), [](const toml::node& each) { return each.is_string(); });
    if (!right) throw UsageError(where_ + ": `" + key + "` is a string, or a list of one or two");
    return {list->front().as_string()->get(), list->size() == 1 ? "" : list->back().as_string()->get()};
  }
  template <class Number>
  [[nodiscard]] Number number(const char* key) const {
    constexpr Number most = std::numeric_limits<Number>::max();
    const toml::node* const node = table_.get(key);
    if (node == nullptr) return most;
    const auto* const value = node->as_integer();
    if (value == nullptr || value->get() < 1 || static_cast<std::uint64_t>(value->get()) > most) {
      throw UsageError(where_ + ": `" + key + "` must be an integer of at least 1");
    }
    return static_cast<Number>(value->get());
  }
  [[nodiscard]] bool flag(const char* key) const {
    const toml::node* const node = table_.get(key);
    if (node == nullptr) return false;
    if (!node->is_boolean()) throw UsageError(where_ + ": `" + key + "` is true or false");
    return node->as_boolean()->get();
  }

 private:
  const toml::table& table_;
  const std::string where_;
};

Tenant read(const toml::table& table, const std::string& where) {
  for (const auto& [key, node] : table) {
    const std::string_view name = key.str();
    if (name != "name" && name != "token" && name != "max_memory_bytes" && name != "max_jobs" &&
        name != "max_pending_joins" && name != "sees_all_jobs") {
      throw UsageError(where + ": unknown key '" + std::string(name) +
                       "': a tenant has name, token, max_memory_bytes, max_jobs, max_pending_joins and sees_all_jobs");
    }
  }
  const Reader reader(table, where);
  Tenant tenant;
  tenant.name = reader.text("name");
  std::tie(tenant.token, tenant.second_token) = reader.one_or_two("token");
  tenant.memory_bytes = reader.number<std::uint64_t>("max_memory_bytes");
  tenant.jobs = reader.number<std::uint32_t>("max_jobs");
  tenant.joins = reader.number<std::uint32_t>("max_pending_joins");
  tenant.sees_all = reader.flag("sees_all_jobs");
  return tenant;
}

}  // namespace

std::vector<Tenant> parse_tenants(const std::string& text, const std::string& name) {
  const toml::table table = parse_toml(text, name);
  std::vector<Tenant> tenants;
  for (const auto& [key, node] : table) {
    const toml::array* const list = node.as_array();
    if (key.str() != "tenant" || list == nullptr) {
      throw UsageError(name + ": unknown key '" + std::string(key.str()) + "': the file is a list of [[tenant]]");
    }
    for (const toml::node& element : *list) {
      const std::string where = name + ", line " + std::to_string(element.source().begin.line);
      if (!element.is_table()) throw UsageError(where + ": each tenant must be a table: [[tenant]]");
      tenants.push_back(read(*element.as_table(), where));
    }
  }
  if (tenants.empty()) throw UsageError(name + ": there is no [[tenant]] in it, so nobody could join");
  return tenants;
}

}  // namespace netsum::app
