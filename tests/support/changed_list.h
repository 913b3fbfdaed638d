// Lists that are shared, with a change.
#pragma once

#include <cstddef>
#include <vector>

#include "base/shared_list.h"

namespace netsum::testing {

template <class Value>
std::vector<Value> shorter(const SharedList<Value>& list) {
  return {list.begin(), list.end() - 1};
}
template <class Value>
std::vector<Value> longer(const SharedList<Value>& list, Value last) {
  std::vector<Value> values = list;
  values.push_back(last);
  return values;
}
template <class Value>
std::vector<Value> with(const SharedList<Value>& list, std::size_t place, Value value) {
  std::vector<Value> values = list;
  values[place] = value;
  return values;
}

}  // namespace netsum::testing
