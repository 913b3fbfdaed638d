// A connection that cannot go on: what its peer did, in words behind the peer's name.
#pragma once

#include <stdexcept>
#include <string>

namespace netsum::control {

struct Broken : std::runtime_error {
  // `is_final`: trying again will not help. `is_logged`: the log has it already.
  explicit Broken(const std::string& why, bool is_final = false, bool is_logged = false)
      : std::runtime_error(why), final(is_final), logged(is_logged) {}
  const bool final, logged;
};

}  // namespace netsum::control
