// What SwitchML's ranks say of themselves as they join, and what they are told, at a chip as elsewhere: how long the runs
// are in which lanes are dealt an operation, as ranks that deal differently would wait for each other's chunks; and the
// public keys of ranks whose sums are private.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/public_keys.h"
#include "protocol/switchml/stripes.h"
#include "seal/private_sums.h"
#include "session/protocol_rules.h"

namespace netsum::jobs {

struct SwitchMlAsk {
  std::uint32_t run_bytes = switchml::default_run_bytes;
  PrivateAsk privacy{};
};
[[nodiscard]] session::OwnPart own_part(const SwitchMlAsk& ask);

// Of all ranks; none: their sums are not private.
[[nodiscard]] std::vector<seal::PublicKey> public_keys(const session::Admission& admission);

// That all ranks of a job say the same; one that says nothing has the defaults.
[[nodiscard]] session::ProtocolRules::Own switchml_terms();

}  // namespace netsum::jobs
