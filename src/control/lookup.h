// A host's addresses by its name, without waiting: a name server may be slow, or never answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"

namespace netsum::control {

class Lookup {
 public:
  virtual ~Lookup() = default;
  // Nothing yet; or the addresses, IPv4 first. Throws Error: unreachable (no such host).
  [[nodiscard]] virtual std::optional<std::vector<Endpoint>> result() = 0;
};
using Resolve = std::function<std::unique_ptr<Lookup>(const std::string& address)>;

// HOST:PORT or [IPV6]:PORT. A numeric one is known at once; for others a thread of their own asks the system, and outlives
// the lookup if need be. Throws Error: bad_argument (not of that form).
[[nodiscard]] std::unique_ptr<Lookup> look_up(const std::string& address);

}  // namespace netsum::control
