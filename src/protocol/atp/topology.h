// A job's ranks and switches below its parameter server: the aggregation tree (ATP §3.2, §3.4, §A.2), the directions that
// packets carry, and how a packet's bitmaps map to ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire/atp.h"

namespace netsum::atp {

using wire::atp::Ranks;

inline constexpr std::uint32_t at_server = UINT32_MAX;  // in place of a switch

struct TopologyConfig {
  std::vector<std::uint32_t> parent_of_switch;  // the next switch on the way to the parameter server, or at_server
  std::vector<std::uint32_t> switch_of_rank;    // or at_server
};

// Empty if the topology is valid, else the reason.
[[nodiscard]] std::string check(const TopologyConfig& config);

class Topology {
 public:
  struct Child {
    bool is_switch = false;
    std::uint32_t index = 0;  // switch or rank number
    bool operator==(const Child&) const = default;
  };

  Topology() = default;
  explicit Topology(const TopologyConfig& config);  // that check() accepts

  [[nodiscard]] std::uint32_t world_size() const { return static_cast<std::uint32_t>(switch_of_rank_.size()); }
  [[nodiscard]] std::size_t switches() const { return nodes_.size() - 1; }
  [[nodiscard]] bool used(std::uint32_t switch_id) const { return !nodes_[switch_id].children.empty(); }
  // Children have positions: bits in the bitmap of their parent's level. A switch without ranks below is no child.
  [[nodiscard]] const std::vector<Child>& children(std::uint32_t switch_id) const { return nodes_[switch_id].children; }
  [[nodiscard]] const std::vector<Child>& server_children() const { return nodes_.back().children; }
  // The rank itself, or all ranks below the switch.
  [[nodiscard]] Ranks below(const Child& child) const;
  [[nodiscard]] std::uint32_t parent(std::uint32_t switch_id) const { return nodes_[switch_id].parent; }
  [[nodiscard]] std::uint8_t level(std::uint32_t switch_id) const { return nodes_[switch_id].level; }
  [[nodiscard]] std::uint8_t server_level() const { return nodes_.back().level; }

  // The directions in a rank's packet when it is sent.
  [[nodiscard]] wire::atp::Directions path(std::uint32_t rank) const;

  // The ranks whose values a packet with these directions holds; none if the directions do not fit this job.
  [[nodiscard]] std::optional<Ranks> decode(const wire::atp::Directions& directions) const;

 private:
  struct Node {
    std::uint32_t parent = at_server;
    std::uint8_t level = 0;
    std::vector<Child> children;
    Ranks below;
  };
  [[nodiscard]] const Node& node(std::uint32_t switch_id) const {
    return switch_id == at_server ? nodes_.back() : nodes_[switch_id];
  }

  std::vector<Node> nodes_;  // switches, then the server
  std::vector<std::uint32_t> switch_of_rank_;
};

}  // namespace netsum::atp
