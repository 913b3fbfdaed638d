#include "sim/protocol.h"

#include "sim/atp.h"
#include "sim/bump.h"
#include "sim/netreduce.h"
#include "sim/switchml.h"
#include "sim/switchml_chip.h"

namespace netsum::sim {

std::unique_ptr<Protocol> make_protocol(const std::string& name) {
  if (name == "switchml") return make_switchml();
  if (name == "switchml-chip") return make_switchml_chip();
  if (name == "atp") return make_atp();
  if (name == "netreduce") return make_netreduce();
  if (name == "bump") return make_bump();
  return nullptr;
}

}  // namespace netsum::sim
