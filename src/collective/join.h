// From options to a membership: reach every aggregator, measure the path, join the job.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "collective/rank_protocol.h"
#include "collective/reach.h"
#include "netsum/communicator.h"
#include "runtime/worker_engine.h"

namespace netsum::collective {

struct Joined {
  std::vector<Membership> memberships;
  std::vector<runtime::LaneSetup> lanes;
  std::vector<std::size_t> aggregator_of_lane;
  std::uint32_t packet_elements = 0, slots = 0;  // slots: of all lanes
  RankTraits traits;
  std::shared_ptr<LocalGroup> local;  // then there are no lanes
  stream::Resumption resumption;
};

// Throws Error: bad_argument, unreachable, refused, deadline.
[[nodiscard]] Joined join(const Options& options);

// For a job that recovers: a former life of this rank, which it gives up. An admission from a failed attempt counts too.
struct Former {
  stream::Progress progress;
  std::uint32_t packet_elements = 0;
  std::map<std::string, std::uint32_t> rank_epochs;  // by aggregator
};

// Joins again, at the aggregators that can be reached; without the rank's switch if need be. Tries once. `stop` ends the
// wait. Throws as join(), or `closed`.
[[nodiscard]] Joined join_again(const Options& options, Former& former, Time deadline, const std::stop_token& stop);

}  // namespace netsum::collective
