// What a data plane with SwitchML's chip profile states before ranks join, and the rules that follow from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "netsum/types.h"
#include "session/protocol_rules.h"
#include "wire/switchml_chip.h"

namespace netsum::jobs {

// The rest is the same for all chips: docs/protocol-switchml-chip.md.
struct ChipProfile {
  std::uint32_t max_members = wire::chip::max_members;  // the bits of a bitmap: ranks, and switches below
  std::vector<std::uint32_t> packet_elements{64, 256};  // the lengths that it takes
  bool operator==(const ChipProfile&) const = default;
};

// Empty, or why there is no such chip.
[[nodiscard]] std::string check(const ChipProfile& profile);

[[nodiscard]] session::Profile said_profile(const ChipProfile& profile);
// None: a software switch. Throws Error: internal, there is no such chip.
[[nodiscard]] std::optional<ChipProfile> chip_in(const std::vector<session::Profile>& profiles);

// The rules of SwitchML jobs at such a data plane, which count as a protocol of their own.
[[nodiscard]] session::ProtocolRules switchml_chip_rules(const ChipProfile& profile = {});

// Empty, or why a rank cannot join there. `packet_elements`: 0: any.
[[nodiscard]] std::string why_not_at_chip(const ChipProfile& profile, std::uint32_t packet_elements, WireFormat wire);

}  // namespace netsum::jobs
