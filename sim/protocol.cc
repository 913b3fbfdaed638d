#include "sim/protocol.h"

#include <algorithm>
#include <stdexcept>

#include "sim/atp.h"
#include "sim/bump.h"
#include "sim/netreduce.h"
#include "sim/ring.h"
#include "sim/switchml.h"
#include "sim/switchml_chip.h"
#include "sim/switchml_rdma.h"

namespace netsum::sim {
namespace {

struct Known {
  std::string name;
  MakeProtocol make;
  bool in_scenarios = true;
  bool with_seeds = true;  // it has every call and every operation, and survives every fault
};

std::vector<Known>& registry() {
  static std::vector<Known> known{{"switchml", make_switchml},
                                  {"switchml-chip", make_switchml_chip, false},
                                  {"switchml-rdma", make_switchml_rdma},
                                  {"atp", [] { return make_atp(); }},
                                  {"atp-chip", make_atp_chip, false},
                                  {"netreduce", make_netreduce},
                                  {"bump", make_bump},
                                  {"ring", make_ring, true, false}};
  return known;
}

}  // namespace

void register_protocol(const std::string& name, MakeProtocol make) {
  if (make_protocol(name)) throw std::invalid_argument("there already is a protocol '" + name + "'");
  registry().push_back({name, make});
}

std::unique_ptr<Protocol> make_protocol(const std::string& name) {
  const auto found =
      std::find_if(registry().begin(), registry().end(), [&](const Known& known) { return known.name == name; });
  return found == registry().end() ? nullptr : found->make();
}

std::vector<std::string> seeds_protocol_names() {
  std::vector<std::string> names;
  for (const Known& known : registry()) {
    if (known.with_seeds) names.push_back(known.name);
  }
  return names;
}

std::vector<std::string> scenario_protocol_names() {
  std::vector<std::string> names;
  for (const Known& known : registry()) {
    if (known.in_scenarios) names.push_back(known.name);
  }
  return names;
}

}  // namespace netsum::sim
