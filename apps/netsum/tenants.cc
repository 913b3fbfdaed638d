#include "tenants.h"

#include <cstdint>

#include "table_reader.h"

namespace netsum::app {
namespace {

constexpr auto most = static_cast<std::uint64_t>(INT64_MAX);  // that TOML can say

Tenant read(TableReader& reader) {
  Tenant tenant;
  tenant.name = reader.text("name");
  const std::vector<std::string> tokens = reader.texts("token");
  if (tokens.empty() || tokens.size() > 2) throw reader.error("token", "is a string, or a list of one or two");
  tenant.token = tokens.front();
  if (tokens.size() == 2) tenant.second_token = tokens.back();
  tenant.memory_bytes = reader.number("max_memory_bytes", tenant.memory_bytes, 1, most);
  tenant.jobs = static_cast<std::uint32_t>(reader.number("max_jobs", tenant.jobs, 1, UINT32_MAX));
  tenant.joins = static_cast<std::uint32_t>(reader.number("max_pending_joins", tenant.joins, 1, UINT32_MAX));
  tenant.sees_all = reader.flag("sees_all_jobs", tenant.sees_all);
  reader.end();
  return tenant;
}

}  // namespace

std::vector<Tenant> parse_tenants(const std::string& text, const std::string& name) {
  const TomlTable table = parse_toml(text, name);
  TableReader file(table, name, "");
  std::vector<Tenant> tenants;
  for (TableReader& reader : file.tables("tenant")) tenants.push_back(read(reader));
  file.end();
  if (tenants.empty()) throw UsageError(name + ": there is no [[tenant]] in it, so no worker could join");
  return tenants;
}

}  // namespace netsum::app
