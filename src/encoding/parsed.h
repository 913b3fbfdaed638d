// A message's value, or what is wrong with it.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace netsum::encoding {

template <class Value>
class Parsed {
 public:
  Parsed(Value value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): as std::expected
  [[nodiscard]] static Parsed wrong(std::string why) {
    Parsed none;
    none.why_ = std::move(why);
    return none;
  }

  [[nodiscard]] explicit operator bool() const { return value_.has_value(); }
  [[nodiscard]] const Value& operator*() const { return *value_; }
  [[nodiscard]] Value& operator*() { return *value_; }
  [[nodiscard]] const Value* operator->() const { return &*value_; }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  Parsed() = default;
  std::optional<Value> value_;
  std::string why_;
};

}  // namespace netsum::encoding
