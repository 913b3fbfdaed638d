// Answers the probes of ranks that are about to join. They have SwitchML's format, whatever the ranks' protocol.
#pragma once

#include <vector>

#include "base/endpoint_cookies.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::service {

// For aggregators without SwitchML, whose switch answers them too.
class ProbeService final : public Service {
 public:
  ProbeService(const Lanes& lanes, const EndpointCookies& cookies);

  void report(std::size_t lane, Counters& counters) const override;

 private:
  class ProbeFormat;

  std::vector<ProbeFormat*> formats_;  // the lanes own them
};

}  // namespace netsum::service
