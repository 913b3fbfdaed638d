// Where the newest packet came from that each counter of a table dropped: for logs. Nothing is done for other packets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/counter_list.h"
#include "base/endpoint.h"

namespace netsum {

template <class Counters>
class DropSources {
 public:
  // Counts a packet that is dropped, in one of the counters. Out of line, or callers would save registers for it.
  [[gnu::cold, gnu::noinline]] void drop(Counters& counters, std::uint64_t& counter, const Endpoint& source) {
    ++counter;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (&(counters.*counter_fields<Counters>[i].value) == &counter) sources_[i] = source;
    }
  }
  // By the counter's name, in place of what is there.
  void add_to(std::map<std::string, Endpoint>& sources) const {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i] != Endpoint{}) sources[counter_fields<Counters>[i].name] = sources_[i];
    }
  }

 private:
  std::array<Endpoint, counter_fields<Counters>.size()> sources_{};
};

}  // namespace netsum
