// Any placement of ranks and switches: what check() lets pass has directions that can be sent and that lead back to the
// rank; and whatever directions a packet may have, decode() finds ranks of the job or nothing.
#include <fuzzer/FuzzedDataProvider.h>

#include "fuzz/harness.h"
#include "protocol/atp/topology.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using wire::atp::Children;

atp::TopologyConfig config_of(FuzzedDataProvider& input) {
  atp::TopologyConfig config;
  const auto somewhere = [&](std::uint32_t switches) {
    const auto pick = input.ConsumeIntegral<std::uint8_t>();
    if (pick == 255 || switches == 0) return atp::at_server;
    return pick == 254 ? input.ConsumeIntegral<std::uint32_t>() : pick % switches;
  };
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {  // a long chain
    const auto length = input.ConsumeIntegralInRange<std::uint32_t>(1, 600);
    for (std::uint32_t i = 1; i < length; ++i) config.parent_of_switch.push_back(i);
    config.parent_of_switch.push_back(atp::at_server);
  } else {
    const auto switches = input.ConsumeIntegralInRange<std::uint32_t>(0, 12);
    for (std::uint32_t i = 0; i < switches; ++i) config.parent_of_switch.push_back(somewhere(switches));
  }
  const auto switches = static_cast<std::uint32_t>(config.parent_of_switch.size());
  std::uint32_t ranks = input.ConsumeIntegralInRange<std::uint32_t>(0, 40);
  if (input.ConsumeIntegralInRange<int>(0, 15) == 0) ranks *= 30;
  for (std::uint32_t i = 0; i < ranks; ++i) config.switch_of_rank.push_back(somewhere(switches));
  return config;
}

// What the parsers let pass.
wire::atp::Directions directions_of(FuzzedDataProvider& input, const atp::Topology& topology) {
  wire::atp::Directions directions = topology.path(input.ConsumeIntegral<std::uint16_t>() % topology.world_size());
  for (int changes = input.ConsumeIntegralInRange<int>(0, 3); changes > 0; --changes) {
    const auto level = input.ConsumeIntegralInRange<std::size_t>(0, wire::atp::max_levels - 1);
    auto fan_in = directions.fan_in();
    if (input.ConsumeBool()) fan_in[level] = input.ConsumeIntegralInRange<std::uint16_t>(0, wire::atp::max_fan_in);
    wire::atp::Directions changed(directions.level, fan_in);
    for (std::size_t i = 0; i < wire::atp::max_levels; ++i) changed.set(i, directions.children(i));
    auto children = Children::first(fan_in[level]);
    if (input.ConsumeBool()) {
      Children::Words left_out{};
      for (std::uint64_t& word : left_out) word = input.ConsumeIntegral<std::uint64_t>();
      children = children.minus(Children::from_words(left_out));
    }
    changed.set(level, children);
    directions = changed;
  }
  return directions;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const atp::TopologyConfig config = config_of(input);
  if (!atp::check(config).empty()) return 0;
  const atp::Topology topology(config);
  const auto all = atp::Ranks::first(topology.world_size());
  fuzz::check(topology.server_level() < wire::atp::max_levels, "no more levels than directions have");

  atp::Ranks below_server;
  for (const auto& child : topology.server_children()) {
    fuzz::check(!below_server.intersects(topology.below(child)), "a rank is below one child");
    below_server = below_server.united(topology.below(child));
  }
  fuzz::check(below_server == all, "every rank is below the server");
  for (std::uint32_t i = 0; i < topology.switches(); ++i) {
    if (!topology.used(i)) continue;
    const std::uint32_t parent = topology.parent(i);
    fuzz::check(topology.level(i) < (parent == atp::at_server ? topology.server_level() : topology.level(parent)),
                "every step leads a level up");
  }
  for (std::uint32_t rank = 0; rank < topology.world_size(); ++rank) {
    const wire::atp::Directions path = topology.path(rank);
    for (std::size_t level = 0; level < wire::atp::max_levels; ++level) {
      const std::uint32_t fan_in = path.fan_in()[level];
      fuzz::check(fan_in <= wire::atp::max_fan_in && path.children(level).minus(Children::first(fan_in)).empty(),
                  "a path can be sent as directions");
    }
    atp::Ranks one;
    one.insert(rank);
    fuzz::check(topology.decode(path) == one, "a rank's own packet is its own");
  }
  while (input.remaining_bytes() > 0) {
    const auto ranks = topology.decode(directions_of(input, topology));
    if (!ranks) continue;
    fuzz::check(!ranks->empty() && ranks->minus(all).empty(), "a sum is of ranks of the job");
  }
  return 0;
}
