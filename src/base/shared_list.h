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

  SharedList() : SharedList(std::vector<Value>()) {}
  SharedList(std::vector<Value> values)  // NOLINT(google-explicit-constructor): it takes a vector's place
      : values_(std::make_shared<const std::vector<Value>>(std::move(values))) {}
  SharedList(std::initializer_list<Value> values) : SharedList(std::vector<Value>(values)) {}

  // Moved from, it would have no values.
  SharedList(const SharedList&) = default;
  SharedList& operator=(const SharedList&) = default;

  operator const std::vector<Value>&() const { return *values_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const std::vector<Value>& values() const { return *this; }
  [[nodiscard]] std::size_t size() const { return values().size(); }
  [[nodiscard]] bool empty() const { return values_->empty(); }
  [[nodiscard]] const_iterator begin() const { return values().begin(); }
  [[nodiscard]] const_iterator end() const { return values().end(); }
  [[nodiscard]] const Value& operator[](std::size_t place) const { return (*values_)[place]; }
  bool operator==(const SharedList& other) const { return values() == other.values(); }

 private:
  std::shared_ptr<const std::vector<Value>> values_;
};

}  // namespace netsum
