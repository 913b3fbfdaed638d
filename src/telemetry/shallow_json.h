// JSON from anywhere, of reports and records, which do not nest deeply: what does would end the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "netsum/error.h"

namespace netsum::telemetry {

// What `read` makes of the value. Throws Error: that of `wrong`, with what is wrong in plain words.
template <class Read, class Wrong>
auto read_json(const std::string& text, const Read& read, const Wrong& wrong) {
  using Json = nlohmann::ordered_json;
  constexpr int deepest = 16;
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > deepest) throw wrong("its values nest too deeply");
    return true;
  };
  try {
    return read(Json::parse(text, shallow));
  } catch (const nlohmann::json::parse_error& error) {
    throw wrong("it is not valid JSON from byte " + std::to_string(error.byte) + " on");
  } catch (const nlohmann::json::exception&) {
    throw wrong("a field is missing, or has another type");
  }
}

}  // namespace netsum::telemetry
