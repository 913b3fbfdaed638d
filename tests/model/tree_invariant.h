// The invariant that proof/trees.py proves of the rule, of one slot of the real objects of a tree: clause by clause, with
// the same names (docs/proof.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "model/explore.h"
#include "model/slot_invariant.h"

namespace netsum::model {

struct TreeState {
  using Round = SlotState::Round;

  struct Version {
    bool used = false, went = false, final = false;
    Round held;
    std::vector<bool> seen;  // by child
    bool sum_is_right = true;

    [[nodiscard]] bool whole() const { return went || final; }
  };
  struct Node {
    std::size_t parent = 0;             // of the root: itself
    std::vector<std::size_t> children;  // none: a rank
    std::array<Version, 2> versions;    // of a switch
    SlotState::Rank rank;

    [[nodiscard]] bool is_rank() const { return children.empty(); }
  };
  struct Packet {
    std::size_t sender = 0;
    const SlotState::Packet* about = nullptr;
  };

  std::vector<Node> nodes;  // the root is the first
  std::vector<Packet> sent;
};

inline void check_invariant(const TreeState& tree) {
  using Round = TreeState::Round;
  const auto clause = [](const char* name, bool holds) {
    if (!holds) throw Wrong(std::string("the invariant's clause '") + name + "' does not hold in the tree");
  };
  const auto& nodes = tree.nodes;
  const auto is_open = [&](std::size_t v) { return nodes[0].versions[v].used && !nodes[0].versions[v].final; };
  const auto is_whole = [&](std::size_t v) { return nodes[0].versions[v].used && nodes[0].versions[v].final; };

  // As at one switch, by what the root has. If it has not heard of the newest round, others may be in it.
  clause("last round", !is_open(0) || !is_open(1));
  const bool zero_is_last = is_whole(0) && (!is_whole(1) || nodes[0].versions[1].held < nodes[0].versions[0].held);
  const std::size_t now = is_open(0) ? 0 : is_open(1) || zero_is_last ? 1 : 0, old = 1 - now;
  const bool began = is_whole(old);
  const Round last = nodes[0].versions[old].held;
  std::optional<Round> newest;
  for (const TreeState::Node& node : nodes) {
    const auto& version = node.versions[now];
    if (node.is_rank() && node.rank.version == now && node.rank.at) newest = node.rank.at;
    if (!node.is_rank() && version.used && !version.final) newest = version.held;
  }

  const auto above = [&](std::size_t number, const auto& holds) {
    for (; number != 0; number = nodes[number].parent) {
      if (!holds(nodes[nodes[number].parent])) return false;
    }
    return true;
  };
  const auto final_above = [&](std::size_t number) {
    return !began || above(number, [&](const TreeState::Node& node) { return node.versions[old].final; });
  };
  const auto holds_newest = [&](const TreeState::Node& node) {
    return newest && node.versions[now].used && node.versions[now].held == *newest;
  };
  const auto gave = [&](std::size_t number) {
    const TreeState::Node& node = nodes[number];
    if (node.is_rank()) return newest && node.rank.version == now && node.rank.at == newest;
    return holds_newest(node) && node.versions[now].went;
  };
  const auto accepts = [&](const TreeState::Node& node, std::size_t v, const Round& round) {
    const auto& version = node.versions[v];
    return !version.used || version.held == round || (version.held < round && version.final);
  };

  clause("last round", !began || !newest || last < *newest);
  for (std::size_t number = 0; number < nodes.size(); ++number) {
    const TreeState::Node& node = nodes[number];
    if (node.is_rank()) {
      const SlotState::Rank& rank = node.rank;
      clause("one round apart",
             rank.version == now ? (!rank.at || (rank.at == newest && final_above(number))) : began && rank.at == last);
      clause("never refused", !rank.at || accepts(nodes[node.parent], rank.version, *rank.at));
      continue;
    }
    const auto &of_newest = node.versions[now], &of_last = node.versions[old];
    if (of_newest.used) {
      clause("newest round",
             newest && of_newest.held == *newest ? !of_newest.final : of_newest.final && began && of_newest.held < last);
    }
    clause("last round", of_last.used == began && (!began || (of_last.held == last && of_last.whole())));
    clause("final above", !began || !of_last.final || final_above(number));
    clause("final above", !began || !holds_newest(node) || (of_last.final && final_above(number)));
    for (std::size_t v = 0; v < 2; ++v) {
      const auto& version = node.versions[v];
      const auto bits = static_cast<std::size_t>(std::count(version.seen.begin(), version.seen.end(), true));
      clause("seen", version.used || (bits == 0 && !version.whole()));
      clause("seen", !version.whole() || bits == node.children.size());
      clause("seen", !version.went || number != 0);
      clause("waits for somebody", !version.used || version.whole() || bits < node.children.size());
      clause("sum", version.sum_is_right);
      clause("never refused",
             !version.used || !version.went || version.final || accepts(nodes[node.parent], v, version.held));
    }
    for (std::size_t child = 0; child < node.children.size(); ++child) {
      const bool has = holds_newest(node) && of_newest.seen[child];
      clause("all below gave", !(has || gave(number)) || gave(node.children[child]));
    }
  }
  for (const TreeState::Packet& packet : tree.sent) {
    const SlotState::Packet& about = *packet.about;
    const TreeState::Node& sender = nodes[packet.sender];
    clause(about.is_result ? "results" : "contributions", about.sum_is_right);
    if (about.is_result) {
      clause("results", began && !sender.is_rank() && about.round <= last);
      clause("results",
             about.round != last || (about.version == old && sender.versions[old].final && final_above(packet.sender)));
    } else if (about.round == newest) {
      clause("contributions", about.version == now && gave(packet.sender) && final_above(packet.sender));
    } else {
      for (const TreeState::Node& node : nodes) {
        const auto& version = node.versions[about.version];
        clause("contributions", node.is_rank() || (version.used && about.round <= version.held));
      }
    }
  }
}

}  // namespace netsum::model
