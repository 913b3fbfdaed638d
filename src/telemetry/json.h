// JSON from outside of this process.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace netsum::telemetry {

// Throws nlohmann::json::exception, also where values are nested deeper than netsum's own are: taking a value apart again
// needs stack for each level, and 100,000 of them fit in a small text.
[[nodiscard]] inline nlohmann::ordered_json parse_json(const std::string& text) {
  constexpr int deepest = 32;
  return nlohmann::ordered_json::parse(
      text, [](int depth, nlohmann::ordered_json::parse_event_t, const nlohmann::ordered_json&) {
        if (depth > deepest) throw nlohmann::json::parse_error::create(101, 0, "values are nested too deeply", nullptr);
        return true;
      });
}

}  // namespace netsum::telemetry
