// The invariant that proof/switchml.py proves of the rule, of one slot of the real objects: clause by clause, with the same
// names (docs/proof.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "model/explore.h"

namespace netsum::model {

struct SlotState {
  using Round = std::tuple<std::uint64_t, std::uint32_t, bool>;  // an identity

  struct Version {
    bool used = false, complete = false;
    Round held;
    std::vector<bool> seen;  // by rank
    bool sum_is_right = true;
  };
  struct Rank {
    std::optional<Round> at;  // nothing: it waits for its next operation
    std::size_t version = 0;
  };
  struct Packet {
    bool is_result = false;
    std::size_t sender = 0, version = 0;
    Round round;
    bool sum_is_right = true;
  };

  std::array<Version, 2> versions;
  std::vector<Rank> ranks;
  std::vector<const Packet*> sent;
};

inline void check_invariant(const SlotState& slot) {
  using Round = SlotState::Round;
  const auto clause = [](const char* name, bool holds) {
    if (!holds) throw Wrong(std::string("the invariant's clause '") + name + "' does not hold");
  };
  const auto& versions = slot.versions;
  const auto is_open = [&](std::size_t v) { return versions[v].used && !versions[v].complete; };
  const auto is_whole = [&](std::size_t v) { return versions[v].used && versions[v].complete; };

  // The newest round's version is the one that is open; if none is, the one that does not hold the latest round.
  clause("last round", !is_open(0) || !is_open(1));
  const bool zero_is_last = is_whole(0) && (!is_whole(1) || versions[1].held < versions[0].held);
  const std::size_t newest_version = is_open(0) ? 0 : is_open(1) || zero_is_last ? 1 : 0;
  const auto &of_newest = versions[newest_version], &of_last = versions[1 - newest_version];
  const bool began = of_last.used;
  std::optional<Round> newest;
  if (is_open(newest_version)) newest = of_newest.held;
  for (const SlotState::Rank& rank : slot.ranks) {
    if (!newest && rank.version == newest_version) newest = rank.at;
  }

  clause("last round", !began || !newest || of_last.held < *newest);
  clause("newest round", !is_whole(newest_version) || (began && of_newest.held < of_last.held));
  for (const SlotState::Rank& rank : slot.ranks) {
    clause("one round apart",
           rank.version == newest_version ? !rank.at || rank.at == newest : began && rank.at == of_last.held);
    const auto& held = versions[rank.version];
    clause("never refused", !rank.at || !held.used || held.held == *rank.at || (held.held < *rank.at && held.complete));
  }
  for (std::size_t v = 0; v < 2; ++v) {
    const auto& version = versions[v];
    const std::size_t bits = static_cast<std::size_t>(std::count(version.seen.begin(), version.seen.end(), true));
    clause("seen", version.used || bits == 0);
    clause("seen", !version.complete || bits == slot.ranks.size());
    clause("waits for somebody", !is_open(v) || bits < slot.ranks.size());
    clause("sum", version.sum_is_right);
    for (std::size_t rank = 0; is_open(v) && rank < slot.ranks.size(); ++rank) {
      clause("seen", !version.seen[rank] || (slot.ranks[rank].version == v && slot.ranks[rank].at == version.held));
    }
  }
  for (const SlotState::Packet* const packet : slot.sent) {
    if (packet->is_result) {
      clause("results", packet->sum_is_right && began && packet->round <= of_last.held);
      clause("results", packet->round != of_last.held || packet->version != newest_version);
      continue;
    }
    const auto& sender = slot.ranks[packet->sender];
    const auto& held = versions[packet->version];
    clause("contributions", !sender.at || packet->round <= *sender.at);
    clause("contributions",
           packet->round == newest ? packet->version == newest_version : held.used && packet->round <= held.held);
  }
}

}  // namespace netsum::model
