#include "collective/switches.h"

#include <utility>

#include "collective/data_sockets.h"
#include "netsum/error.h"
#include "transport/addresses.h"

namespace netsum::collective {

std::vector<Endpoint> Switches::reach(const std::string& address) {
  const std::lock_guard lock(mutex_);
  Switch& s = switches_[address];
  if (!s.client) {
    s.client = std::make_shared<control::Client>(control::ClientOptions{address, options_.token, options_.tls_ca});
  }
  if (!s.lanes.empty()) return s.lanes;
  const Endpoint control = transport::resolve(address);
  std::vector<Endpoint> found = s.client->hello(switch_deadline).lanes;
  if (found.size() < options_.lanes) {
    throw Error(ErrorCode::refused, "it has " + std::to_string(found.size()) + " threads, this " + options_.own + " " +
                                        std::to_string(options_.lanes) + ": start it with --threads " +
                                        std::to_string(options_.lanes));
  }
  for (Endpoint& lane : found) {
    if (!transport::is_unspecified(lane)) continue;
    lane.address = control.address;
    lane.scope = control.scope;
  }
  s.lanes = std::move(found);
  return s.lanes;
}

std::vector<std::vector<Endpoint>> Switches::lanes_of(const session::Placement& placement) {
  std::vector<std::vector<Endpoint>> lanes;
  for (const std::string& address : placement.switches) {
    try {
      lanes.push_back(reach(address));
    } catch (const Error&) {
      lanes.emplace_back(options_.lanes);
    }
  }
  return lanes;
}

session::SwitchEndpoint Switches::endpoints(const session::Placement& placement) {
  return [lanes = lanes_of(placement)](std::uint32_t a_switch, std::size_t lane) { return lanes[a_switch][lane]; };
}

std::vector<Endpoint> Switches::own_endpoints(const std::vector<Endpoint>& lanes, const std::string& address) {
  const Endpoint towards = reach(address).front();
  std::vector<Endpoint> own = lanes;
  for (Endpoint& lane : own) {
    if (!transport::is_unspecified(lane)) continue;
    const std::uint16_t port = lane.port;
    lane = path_towards(towards).local;
    lane.port = port;
  }
  return own;
}

void Switches::uninstall(const std::string& address, std::uint64_t epoch) {
  std::shared_ptr<control::Client> client;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = switches_.find(address); found != switches_.end()) client = found->second.client;
  }
  if (client) client->uninstall(epoch, switch_deadline);
}

std::shared_ptr<control::Client> Switches::client_of(const std::string& address) {
  const std::lock_guard lock(mutex_);
  return switches_.at(address).client;
}

void Switches::forget(const std::string& address) {
  const std::lock_guard lock(mutex_);
  switches_.erase(address);
}

}  // namespace netsum::collective
