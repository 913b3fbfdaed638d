// What the switches below an aggregator say of themselves, and what they are told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "encoding/bytes.h"

namespace netsum::session {

// By switch of a placement: its lanes' endpoints; none: not known yet.
using SwitchLanes = std::vector<std::vector<Endpoint>>;

// A job, as a switch is told of it.
struct SwitchMessage {
  std::string protocol, job;  // names
  std::uint64_t job_epoch = 0;
  // The job was told before, to this switch or to one that has restarted since: if it does not know the job now, it has lost
  // what it knew, such as sums, or the numbers of the packets that it sealed.
  bool again = false;
  encoding::Bytes own;  // written by the protocol at the aggregator, and read by that at the switch; may hold keys
};

// What such a job takes at the switch, in bytes.
struct InstallationCost {
  std::uint64_t shared = 0;  // nobody's: of all jobs so far and this one together, kept from then on
  std::uint64_t own = 0;
};

// Where a switch will send packets of a job that it is told of.
struct Destination {
  Endpoint to;
  std::string rank{};        // in words; empty: another daemon
  std::uint64_t cookie = 0;  // of a rank: proof that its endpoint receives this switch's packets
};
// At which of this switch's endpoints a neighbour knows it.
struct KnownAs {
  Endpoint to, own;
};

}  // namespace netsum::session
