// A communicator over any protocol, those of Options::protocol or another one.
#pragma once

#include "collective/rank_protocol.h"
#include "netsum/communicator.h"

namespace netsum::collective {

class Connector {
 public:
  // As Communicator::connect().
  [[nodiscard]] static Communicator connect(const Options& options, MakeRank make);
};

}  // namespace netsum::collective
