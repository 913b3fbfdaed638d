// A verdict in a worker process's report to its parent.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

#include "oracle/drawn.h"

namespace netsum::oracle {

template <class Json>
void to_json(Json& json, const Verdict& verdict) {
  json = {{"wrong", verdict.wrong},
          {"max_abs_error", verdict.max_abs_error},
          {"error_bound", verdict.error_bound},
          {"max_error_over_bound", verdict.max_error_over_bound}};
}

template <class Json>
void from_json(const Json& json, Verdict& verdict) {
  // JSON has no NaN or infinity: null stands for them, and only a wrong result gives it.
  const auto number = [&](const char* key) {
    return json.at(key).is_null() ? HUGE_VAL : json.at(key).template get<double>();
  };
  json.at("wrong").get_to(verdict.wrong);
  verdict.max_abs_error = number("max_abs_error");
  verdict.error_bound = number("error_bound");
  verdict.max_error_over_bound = number("max_error_over_bound");
}

}  // namespace netsum::oracle
