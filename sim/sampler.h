// Time series of counters, in bins of equal length.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "sim/medium.h"
#include "sim/topology.h"

namespace netsum::sim {

// A counter's name, "link.h0.up.bytes": of what, whose (which may have dots), and what.
struct CounterName {
  explicit CounterName(const std::string& name);
  std::string of, whose, what;
};

class Sampler {
 public:
  struct Value {
    std::function<double()> read;
    bool gauge = false;  // its value at a bin's end counts, not its growth
  };

  void add(const std::string& name, Value value) { series_.push_back({name, std::move(value), 0, {}}); }
  void sample();  // at the end of each bin
  [[nodiscard]] std::map<std::string, std::vector<double>> take();

 private:
  struct Series {
    std::string name;
    Value value;
    double last = 0;
    std::vector<double> bins;
  };
  std::vector<Series> series_;
};

[[nodiscard]] std::string port_name(const Topology& topology, LinkId link, Fabric::Way way);
// "link.LINK.up.WHAT": packets, bytes, dropped, lost, marked, pauses, or queue. Throws std::invalid_argument if there is
// none.
[[nodiscard]] Sampler::Value port_value(const Topology& topology, const Medium& medium, const CounterName& name);

}  // namespace netsum::sim
