#include "sim/sampler.h"

#include <algorithm>
#include <stdexcept>

namespace netsum::sim {

CounterName::CounterName(const std::string& name) {
  const std::size_t first = name.find('.'), last = name.rfind('.');
  if (first == std::string::npos || last == first) throw std::invalid_argument("has no counter '" + name + "'");
  of = name.substr(0, first);
  whose = name.substr(first + 1, last - first - 1);
  what = name.substr(last + 1);
}

void Sampler::sample() {
  for (Series& series : series_) {
    const double value = series.value.read();
    // What has ended counts nothing any more.
    series.bins.push_back(series.value.gauge ? value : std::max(0.0, value - series.last));
    series.last = series.value.gauge ? value : std::max(value, series.last);
  }
}

std::map<std::string, std::vector<double>> Sampler::take() {
  std::map<std::string, std::vector<double>> taken;
  for (Series& series : series_) taken[series.name] = std::move(series.bins);
  return taken;
}

std::string port_name(const Topology& topology, LinkId link, Fabric::Way way) {
  return topology.link_name(link) + (way == Fabric::Way::up ? ".up" : ".down");
}

Sampler::Value port_value(const Topology& topology, const Medium& medium, const CounterName& name) {
  const auto none = [&] { return std::invalid_argument("has no counter 'link." + name.whose + "." + name.what + "'"); };
  const std::size_t dot = name.whose.rfind('.');
  if (dot == std::string::npos) throw none();
  const auto link = topology.find_link(name.whose.substr(0, dot));
  const std::string direction = name.whose.substr(dot + 1);
  if (!link || (direction != "up" && direction != "down")) throw none();
  const Fabric::Way way = direction == "up" ? Fabric::Way::up : Fabric::Way::down;
  if (name.what == "queue") {
    return {[&medium, link = *link, way] { return static_cast<double>(medium.queued_bytes(link, way)); }, true};
  }
  static constexpr std::pair<const char*, std::uint64_t PortCounts::*> counters[] = {
      {"packets", &PortCounts::packets}, {"bytes", &PortCounts::bytes},   {"dropped", &PortCounts::dropped},
      {"lost", &PortCounts::lost},       {"marked", &PortCounts::marked}, {"pauses", &PortCounts::pauses}};
  for (const auto& [what, counter] : counters) {
    if (name.what != what) continue;
    return {
        [&medium, link = *link, way, counter = counter] { return static_cast<double>(medium.counts(link, way).*counter); },
        false};
  }
  throw none();
}

}  // namespace netsum::sim
