// From options to a membership: reach every aggregator, measure the path, join the job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/client.h"
#include "netsum/communicator.h"
#include "runtime/worker_engine.h"

namespace netsum::collective {

// One aggregator that the rank is a member at.
struct Membership {
  std::string address;
  std::unique_ptr<control::Client> client;
  std::uint64_t job_epoch = 0;
  std::uint32_t rank_epoch = 0;
};

struct Joined {
  std::vector<Membership> memberships;
  std::vector<runtime::LaneSetup> lanes;
  std::vector<std::size_t> aggregator_of_lane;
  std::uint32_t packet_elements = 0, slots = 0;  // slots: of all lanes
  std::string placement;
};

// Throws Error: bad_argument, unreachable, refused, deadline.
[[nodiscard]] Joined join(const Options& options);

}  // namespace netsum::collective
