// The file that says whom a daemon serves (--tenants): a [[tenant]] for each token. docs/security.md has an example.
#pragma once

#include <string>
#include <vector>

#include "netsum/tenant.h"

namespace netsum::app {

// `name`: of the file, for errors. Throws UsageError: it is no TOML, or has keys or values that no tenant has, or no tenant.
[[nodiscard]] std::vector<Tenant> parse_tenants(const std::string& text, const std::string& name);

}  // namespace netsum::app
