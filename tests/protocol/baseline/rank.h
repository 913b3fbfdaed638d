// The parameter server's clients: what joining needs to know of the protocol.
#pragma once

#include <memory>

#include "collective/rank_protocol.h"

namespace netsum::baseline {

[[nodiscard]] std::unique_ptr<collective::RankProtocol> make_rank(const Options& options);

}  // namespace netsum::baseline
