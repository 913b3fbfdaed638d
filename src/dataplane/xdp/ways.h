// The ways to a job's neighbours and of its results, as the kernel's routes and neighbours say.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "dataplane/xdp/maps.h"
#include "protocol/switchml/switch.h"
#include "transport/addresses/next_hop.h"

namespace netsum::dataplane::xdp {

// Throws Error: unreachable, bad_argument.
using Route = std::function<transport::NextHop(const Endpoint& to, Duration patience)>;

struct Ways {
  std::vector<XdpWay> neighbours;           // the members, and then the parent, if there is one
  std::map<std::uint32_t, XdpWay> results;  // by interface
};

// Asks for the ways of a job of one lane.
class WaysOfJob {
 public:
  // All may be called from any thread.
  struct Host {
    Route route;
    std::function<bool(std::uint32_t interface)> serves;   // whether the program is there
    std::function<bool(std::uint32_t interface)> reaches;  // whether results can leave there
  };
  WaysOfJob(const switchml::SwitchJobConfig& config, const Endpoint& local, Host host);

  // Throws Error: a neighbour cannot be served, and why.
  [[nodiscard]] Ways find(Duration patience) const;
  // As it is now; what cannot be found stays as it was.
  [[nodiscard]] Ways find_again(const Ways& before) const;

 private:
  [[nodiscard]] std::uint32_t interface_of(const transport::NextHop& hop) const;
  [[nodiscard]] XdpWay way_to_neighbour(const Endpoint& neighbour, Duration patience) const;
  [[nodiscard]] std::map<std::uint32_t, XdpWay> of_results(const std::vector<XdpWay>& neighbours) const;

  const switchml::SwitchJobConfig config_;
  const Endpoint local_;
  const Host host_;
  std::vector<Endpoint> neighbours_;
};

}  // namespace netsum::dataplane::xdp
