#include "base/counters.h"

#include <algorithm>

namespace netsum {

Counters::Counters(std::initializer_list<Counter> counters) {
  counters_.reserve(counters.size());
  for (const auto& [name, value] : counters) add(name, value);
}

void Counters::add(const std::string& name, std::uint64_t value) {
  const auto found = std::find_if(counters_.begin(), counters_.end(), [&](const auto& c) { return c.first == name; });
  if (found == counters_.end()) {
    counters_.emplace_back(name, value);
  } else {
    found->second += value;
  }
}

void Counters::add(const Counters& more) {
  std::size_t guess = 0;  // lists of one kind have a name at the same index
  for (const auto& [name, value] : more) {
    if (guess < counters_.size() && counters_[guess].first == name) {
      counters_[guess].second += value;
    } else {
      add(name, value);
    }
    ++guess;
  }
}

std::uint64_t Counters::value(const std::string& name) const {
  const auto found = std::find_if(counters_.begin(), counters_.end(), [&](const auto& c) { return c.first == name; });
  return found == counters_.end() ? 0 : found->second;
}

}  // namespace netsum
