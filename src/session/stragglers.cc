#include "session/stragglers.h"

#include <algorithm>
#include <optional>

namespace netsum::session {

RankSet stragglers(std::span<const Paced> ranks, Duration deadline, std::uint32_t least) {
  std::optional<std::uint64_t> wanted;  // the call that waits for them
  for (const Paced& rank : ranks) {
    if (rank.calls && rank.since >= deadline) wanted = std::max(wanted.value_or(0), rank.next);
  }
  const auto is_late = [&](const Paced& rank) {
    return !rank.calls && (rank.aside || (wanted && rank.since >= deadline && rank.next <= *wanted));
  };
  std::uint64_t least_of_others = UINT64_MAX;
  for (const Paced& rank : ranks) {
    if (!is_late(rank)) least_of_others = std::min(least_of_others, rank.next);
  }
  RankSet late;
  for (const Paced& rank : ranks) {
    if (is_late(rank) && rank.next <= least_of_others) late.insert(rank.rank);
  }
  return ranks.size() - late.size() < least ? RankSet() : late;
}

}  // namespace netsum::session
