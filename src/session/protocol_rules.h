// What membership needs to know of the protocol that an aggregator serves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace netsum::session {

// Where a job's ranks stand: the switches between them and this parameter server.
struct Placement {
  static constexpr std::uint32_t at_server = UINT32_MAX;

  std::vector<std::string> switches;            // their addresses
  std::vector<std::uint32_t> parent_of_switch;  // the next one on the way to the parameter server, or at_server
  std::vector<std::uint32_t> switch_of_rank;    // or at_server
};

struct ProtocolRules {
  std::string name;  // as in JoinRequest
  std::uint32_t version = 0;
  bool switches = false;  // ranks name the switch that they are at
  // Each empty, or why a job cannot have this.
  std::function<std::string(std::uint32_t packet_elements)> check_packet;
  std::function<std::string(const Placement& placement)> check_placement;
};

[[nodiscard]] ProtocolRules switchml_rules();

}  // namespace netsum::session
