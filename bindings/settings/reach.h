// Whether aggregators answer, asked before ranks that have another way wait for them.
#pragma once

#include <chrono>
#include <string>

#include "bindings/settings/settings.h"

namespace netsum::settings {

// Opens a TCP connection to each control port that the ranks need, and closes it. Returns an error in words, which names the
// address; empty if all answer. Each has `patience`.
[[nodiscard]] std::string unreachable(const Settings& settings, std::chrono::milliseconds patience);

}  // namespace netsum::settings
