// The parameter server's clients: what joining needs to know of the protocol.
#pragma once

#include <chrono>
#include <memory>

#include "collective/rank_protocol.h"

namespace netsum::baseline {

// Of ranks that ask for such a patience (joining.h).
[[nodiscard]] collective::MakeRank ranks_with(std::chrono::milliseconds patience);
[[nodiscard]] std::unique_ptr<collective::RankProtocol> make_rank(const Options& options);

}  // namespace netsum::baseline
