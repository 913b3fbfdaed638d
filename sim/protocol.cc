#include "sim/protocol.h"

#include "sim/atp.h"
#include "sim/switchml.h"

namespace netsum::sim {

std::unique_ptr<Protocol> make_protocol(const std::string& name) {
  if (name == "switchml") return make_switchml();
  if (name == "atp") return make_atp();
  return nullptr;
}

}  // namespace netsum::sim
