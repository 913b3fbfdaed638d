#include "sim/protocol.h"

#include "sim/switchml.h"

namespace netsum::sim {

std::unique_ptr<Protocol> make_protocol(const std::string& name) {
  if (name == "switchml") return make_switchml();
  return nullptr;
}

}  // namespace netsum::sim
