// The chunks that wait at a chip, from its registers: in words of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "protocol/switchml/switch.h"

namespace netsum::switchml {

// One version of one slot. Operation and chunk are those of the packet that opened its round.
struct ChipWaiting {
  std::uint32_t missing = 0;  // members, as bits; 0: none
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;
};

// `at(number)`: ChipWaiting of each of a job's slot versions. Oldest identity first.
template <class At>
[[nodiscard]] std::vector<StalledChunk> chip_stalled(const SwitchJobConfig& config, std::size_t most, const At& at) {
  std::vector<StalledChunk> chunks;
  for (std::uint32_t number = 0; number < config.slots * 2; ++number) {
    const ChipWaiting waiting = at(number);
    if (waiting.missing == 0) continue;
    StalledChunk& chunk = chunks.emplace_back(StalledChunk{waiting.operation, waiting.chunk, number / 2, {}});
    for (std::uint32_t member = 0; member < config.members.size(); ++member) {
      if ((waiting.missing >> member & 1) == 0) continue;
      if (config.tree) {
        chunk.missing = chunk.missing.united(config.tree->below[member]);
      } else {
        chunk.missing.insert(member);
      }
    }
  }
  std::sort(chunks.begin(), chunks.end(), [](const StalledChunk& a, const StalledChunk& b) {
    return std::tie(a.operation, a.chunk) < std::tie(b.operation, b.chunk);
  });
  if (chunks.size() > most) chunks.resize(most);
  return chunks;
}

}  // namespace netsum::switchml
