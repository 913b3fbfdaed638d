// A list that is long and the same for many: its copies share its memory. It does not change; it is set to another one.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace netsum {

template <class Value>
class SharedList {
 public:
  using const_iterator = typename std::vector<Value>::const_iterator;

  SharedList() = default;
  SharedList(std::vector<Value> values)  // NOLINT(google-explicit-constructor): it takes a vector's place
      : values_(values.empty() ? nullptr : std::make_shared<const std::vector<Value>>(std::move(values))) {}
  SharedList(std::initializer_list<Value> values) : SharedList(std::vector<Value>(values)) {}

  operator const std::vector<Value>&() const {  // NOLINT(google-explicit-constructor)
    static const std::vector<Value> none;
    return values_ ? *values_ : none;
  }
  [[nodiscard]] const std::vector<Value>& values() const { return *this; }
  [[nodiscard]] std::size_t size() const { return values().size(); }
  [[nodiscard]] bool empty() const { return !values_; }
  [[nodiscard]] const_iterator begin() const { return values().begin(); }
  [[nodiscard]] const_iterator end() const { return values().end(); }
  [[nodiscard]] const Value& operator[](std::size_t place) const { return (*values_)[place]; }
  bool operator==(const SharedList& other) const { return values() == other.values(); }

 private:
  std::shared_ptr<const std::vector<Value>> values_;  // none: empty
};

}  // namespace netsum
