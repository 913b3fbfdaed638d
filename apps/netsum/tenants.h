// The file with the tenants that a daemon serves (--tenants): a [[tenant]] per token. docs/security.md has an example.
#pragma once

#include <string>
#include <vector>

#include "netsum/tenant.h"

namespace netsum::app {

// `name`: of the file, for errors. Throws UsageError: not TOML, unknown keys, invalid values, or no tenant.
[[nodiscard]] std::vector<Tenant> parse_tenants(const std::string& text, const std::string& name);

}  // namespace netsum::app
