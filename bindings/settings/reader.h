// Reads environment variables by one set of rules. Every complaint is an Error, bad_argument, that names the variable and
// what it may be; a variable that is empty is not set.
#pragma once

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "netsum/error.h"

namespace netsum::settings {

// A variable's value; empty if it is not set.
using Lookup = std::function<std::string(const std::string& name)>;
[[nodiscard]] std::string from_environment(const std::string& name);

[[nodiscard]] std::string joined(const std::vector<std::string>& parts, const char* between);
[[nodiscard]] std::string stripped(const std::string& text);  // without blanks at its ends

template <class Value>
struct Choice {
  const char* name;
  Value value;
};
template <class Value>
Choice(const char*, Value) -> Choice<Value>;

template <class Choices, class Value>
[[nodiscard]] const char* name_of(const Choices& choices, Value value) {
  for (const auto& each : choices) {
    if (each.value == value) return each.name;
  }
  return "?";
}

class Reader {
 public:
  explicit Reader(Lookup lookup = &from_environment) : lookup_(std::move(lookup)) {}

  [[nodiscard]] std::string text(const std::string& name) const { return lookup_(name); }

  template <class Value, std::size_t n>
  [[nodiscard]] Value one_of(const std::string& name, const std::array<Choice<Value>, n>& choices, Value by_default) const {
    const std::string given = text(name);
    if (given.empty()) return by_default;
    std::vector<std::string> names;
    for (const Choice<Value>& each : choices) {
      if (given == each.name) return each.value;
      names.emplace_back(each.name);
    }
    throw bad(name + "='" + given + "': must be one of " + joined(names, ", "));
  }

  // `number` stays as it is if the variable is not set; returns whether it is.
  template <class Number>
  bool number(const std::string& name, Number& number, Number least, Number most) const {
    const std::string given = text(name);
    if (given.empty()) return false;
    // Wider than Number, so that what is out of range is told from what is no number.
    std::conditional_t<std::is_floating_point_v<Number>, double, std::int64_t> value = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
    if (error == std::errc::invalid_argument || end != given.data() + given.size()) {
      throw bad(name + "='" + given + "': must be a number");
    }
    if (error != std::errc{} ||
        !(value >= static_cast<decltype(value)>(least) && value <= static_cast<decltype(value)>(most))) {
      const auto shown = [](Number bound) {
        std::array<char, 32> digits{};
        return std::string(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), bound).ptr);
      };
      throw bad(name + "=" + given + ": must be between " + shown(least) + " and " + shown(most));
    }
    number = static_cast<Number>(value);
    return true;
  }

  bool seconds(const std::string& name, std::chrono::milliseconds& duration, double least, double most) const;
  [[nodiscard]] std::vector<std::string> addresses(
      const std::string& name) const;  // HOST:PORT[,...], or transport/addresses/switch_list.h's

  [[nodiscard]] static Error bad(const std::string& text) { return {ErrorCode::bad_argument, text}; }

 private:
  const Lookup lookup_;
};

}  // namespace netsum::settings
