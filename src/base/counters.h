// Named counters. They are read, added and compared by name alone: nothing depends on their order.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/counter_list.h"

namespace netsum {

class Counters {
 public:
  using Counter = std::pair<std::string, std::uint64_t>;  // the name is as in the Prometheus endpoint

  Counters() = default;
  Counters(std::initializer_list<Counter> counters);

  void add(const std::string& name, std::uint64_t value);
  void add(const Counters& more);
  [[nodiscard]] std::uint64_t value(const std::string& name) const;  // 0 if there is none

  // In the order in which the names came.
  [[nodiscard]] auto begin() const { return counters_.begin(); }
  [[nodiscard]] auto end() const { return counters_.end(); }
  bool operator==(const Counters&) const = default;

 private:
  std::vector<Counter> counters_;
};

// As the struct's own table names them.
template <class Struct>
[[nodiscard]] Counters named(const Struct& counters) {
  Counters list;
  for_each_counter(counters, [&](const CounterValue& counter) { list.add(counter.name, counter.value); });
  return list;
}

}  // namespace netsum
