#include "dataplane/xdp/ways.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "dataplane/xdp/frames.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/links.h"

namespace netsum::dataplane::xdp {
namespace {

std::string ports_to_name(std::uint32_t bridge) {
  std::string ports;
  for (const std::string& each : transport::parts_of(bridge)) ports += (ports.empty() ? "" : ",") + each;
  return ports.empty() ? "" : "; its ports are " + ports + ": name them in --interface in its place";
}

}  // namespace

WaysOfJob::WaysOfJob(const switchml::SwitchJobConfig& config, const Endpoint& local, Host host)
    : config_(config), local_(local), host_(std::move(host)) {
  for (const auto& member : config_.members) neighbours_.push_back(member.endpoint);
  if (config_.tree && config_.tree->parent) neighbours_.push_back(*config_.tree->parent);
}

Ways WaysOfJob::find(Duration patience) const {
  Ways ways;
  for (const Endpoint& each : neighbours_) ways.neighbours.push_back(way_to_neighbour(each, patience));
  ways.results = of_results(ways.neighbours);
  return ways;
}

Ways WaysOfJob::find_again(const Ways& before) const {
  Ways ways = before;
  for (std::size_t i = 0; i < neighbours_.size(); ++i) {
    try {
      ways.neighbours[i] = way_to_neighbour(neighbours_[i], Duration::zero());
    } catch (const Error&) {  // it may come back as it was, and is asked for
    }
  }
  try {
    ways.results = of_results(ways.neighbours);
  } catch (const Error&) {  // as above
  }
  return ways;
}

// Where its packets arrive: that of the kernel's route, or the port of a bridge.
std::uint32_t WaysOfJob::interface_of(const transport::NextHop& hop) const {
  if (host_.serves(hop.interface)) return hop.interface;
  const auto port = transport::bridge_port(hop.interface, hop.neighbour);
  if (port && host_.serves(*port)) return *port;
  throw Error(ErrorCode::refused, "it is reached through " + transport::interface_name(hop.interface) +
                                      ", which --interface does not name" + ports_to_name(hop.interface));
}

XdpWay WaysOfJob::way_to_neighbour(const Endpoint& neighbour, Duration patience) const {
  const std::string name = "the XDP data plane cannot serve " + transport::to_string(neighbour) + ": ";
  try {
    transport::NextHop hop = host_.route(neighbour, patience);
    hop.interface = interface_of(hop);
    if (!host_.reaches(hop.interface)) {
      throw Error(ErrorCode::refused, "results cannot leave by " + transport::interface_name(hop.interface) +
                                          ", as its driver sends nothing for XDP programs; for a veth, its other end must "
                                          "have GRO (ethtool -K DEVICE gro on)");
    }
    Endpoint from = local_;
    if (transport::is_unspecified(from)) std::copy(hop.source.begin(), hop.source.end(), from.address.begin() + 12);
    return way_to(neighbour, from, hop, config_.packet_elements);
  } catch (const Error& error) {
    throw Error(error.code(), name + error.what());
  }
}

// By interface: the kernel copies a result to each interface once, so several members behind one hear it in a group.
std::map<std::uint32_t, XdpWay> WaysOfJob::of_results(const std::vector<XdpWay>& neighbours) const {
  std::map<std::uint32_t, XdpWay> ways;
  const auto members = static_cast<std::ptrdiff_t>(config_.members.size());
  for (std::size_t member = 0; member < config_.members.size(); ++member) {
    const XdpWay& own = neighbours[member];
    const auto behind_the_same = std::count_if(neighbours.begin(), neighbours.begin() + members,
                                               [&](const XdpWay& each) { return each.interface == own.interface; });
    if (behind_the_same == 1) {
      ways[own.interface] = own;
      continue;
    }
    if (!config_.group || !config_.members[member].listens) {
      throw Error(ErrorCode::refused, std::to_string(behind_the_same) +
                                          " ranks or switches of the job are reached through " +
                                          transport::interface_name(own.interface) +
                                          ", and the XDP data plane sends each result once per interface: start the switch "
                                          "with --multicast (not in trees), or connect each through its own interface" +
                                          ports_to_name(own.interface));
    }
    transport::NextHop hop;
    hop.interface = own.interface;
    std::copy(std::begin(own.frame.ethernet.source), std::end(own.frame.ethernet.source), hop.own.begin());
    Endpoint from = local_;
    std::memcpy(from.address.data() + 12, own.frame.ip.source, 4);
    ways[own.interface] = way_to_group(*config_.group, from, hop, config_.packet_elements);
  }
  return ways;
}

}  // namespace netsum::dataplane::xdp
