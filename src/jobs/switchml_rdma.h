// SwitchML's jobs over RoCEv2 UC (docs/protocol-switchml-rdma.md): the rules of their admission. Slots are messages in
// flight, and a packet's elements those of the longest message.
#pragma once

#include "session/protocol_rules.h"

namespace netsum::jobs {

[[nodiscard]] session::ProtocolRules switchml_rdma_rules();

}  // namespace netsum::jobs
