// netsum_ns3 [--json] FILE: a scenario file (docs/simulator.md) over a network of ns-3's, packet by packet.
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "apps/netsum/command.h"
#include "apps/netsum/simulate_scenario.h"
#include "sim/ns3/ns3_medium.h"
#include "sim/packet_level.h"
#include "sim/random.h"

namespace netsum {
namespace {

sim::Report run(const sim::Experiment& experiment) {
  if (const auto needs = sim::needs_disciplines(experiment, "only netsum simulate has it", true)) throw *needs;
  sim::Ns3Medium medium(experiment.topology, sim::derive(experiment.seed, 1), sim::packet_level_origin);
  return sim::run_packets(experiment, medium);
}

int main_of(int count, char** arguments) {
  const bool json = count > 1 && std::string_view(arguments[1]) == "--json";
  if (count != (json ? 3 : 2) || arguments[count - 1][0] == '-') {
    std::fputs("usage: netsum_ns3 [--json] FILE    a scenario file (docs/simulator.md) over a network of ns-3's\n", stderr);
    return app::exit_usage;
  }
  return app::simulate_scenario(arguments[count - 1], "ns-3", json, run);
}

}  // namespace
}  // namespace netsum

int main(int count, char** arguments) {
  try {
    return netsum::main_of(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "netsum_ns3: %s\n", error.what());
    return netsum::app::exit_usage;
  }
}
