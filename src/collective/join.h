// From options to lanes, in the steps of a rank's session machine (session/rank.h): an attempt prepares the paths to every
// aggregator, makes the requests, and ends in lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/rank_protocol.h"
#include "collective/reach.h"
#include "netsum/communicator.h"
#include "runtime/worker_engine.h"
#include "session/registry.h"
#include "stream/operation_log.h"

namespace netsum::collective {

// The control protocol counts milliseconds in 32 bits.
inline constexpr Duration longest_join = std::chrono::hours(24);

// Throws Error: bad_argument.
void check(const Options& options, const RankProtocol& protocol);

// An attempt to join, over aggregators that can be reached.
struct Attempt {
  Options options;  // may name fewer aggregators than the rank's
  Time deadline{};
  std::unique_ptr<RankProtocol> protocol;  // refers to `options`
  Reach reach;
  bool past_switch = false;
};

// Each throws Error: unreachable, refused, deadline. If the job recovers: over those aggregators that can be reached.
[[nodiscard]] std::unique_ptr<Attempt> prepare(Options options, const MakeRank& make, Time deadline);
// For a job that has run, with packets of `packet_elements`; without the rank's switch if that does not answer, or `past`
// it.
[[nodiscard]] std::unique_ptr<Attempt> prepare_again(Options options, const MakeRank& make, std::uint32_t packet_elements,
                                                     bool past, Time deadline);

// All but what depends on earlier attempts (session::Rank::complete) and the progress.
[[nodiscard]] session::JoinRequest request_of(const Attempt& attempt, const Site& site);

struct Joined {
  std::vector<runtime::LaneSetup> lanes;
  std::vector<std::size_t> aggregator_of_lane;
  std::uint32_t packet_elements = 0, slots = 0;  // slots: of all lanes
  RankTraits traits;
  std::shared_ptr<LocalRanks> local;  // then there are no lanes
  std::optional<std::uint32_t> node;  // NUMA: of the interface towards the first aggregator
  stream::Resumption resumption;
  bool late_ranks = false;  // the life began without some
};
// `admissions`: by site. The attempt's sockets move to the lanes.
[[nodiscard]] Joined begin_lanes(Attempt& attempt, const std::vector<session::Admission>& admissions);

}  // namespace netsum::collective
