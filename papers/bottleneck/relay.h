// The I/O around two Links: reads what both namespaces send, and delivers it when it is due.
#pragma once

#include <string>

#include "base/time.h"
#include "papers/bottleneck/link.h"

namespace netsum::bottleneck {

struct RelaySettings {
  std::string left, right;  // network namespaces
  std::string device = "bottle0";
  unsigned mtu = 1500;
  LinkSettings link;  // of both directions
  Duration interval = std::chrono::seconds(1);
};

// Until SIGINT or SIGTERM. Statistics go to stdout, a line of JSON for each direction at the interval and at the end.
void relay(const RelaySettings& settings);

}  // namespace netsum::bottleneck
