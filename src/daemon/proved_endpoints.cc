#include "daemon/proved_endpoints.h"

#include <algorithm>
#include <fstream>
#include <span>

#include "netsum/error.h"
#include "session/switchml_job.h"
#include "transport/addresses.h"
#include "transport/interfaces.h"
#include "transport/random.h"

namespace netsum::daemon {
namespace {

// From the kernel's boot ID, random per boot; without one, drawn now.
[[nodiscard]] SipKey key_of_this_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  SipKey key{};
  if (file >> text) {
    int digits = 0;
    for (const char c : text) {
      const auto digit = std::string_view("0123456789abcdef").find(c);
      if (digit == std::string_view::npos || digits == 32) continue;
      std::uint64_t& word = key[static_cast<std::size_t>(digits++ / 16)];
      word = word << 4 | digit;
    }
    if (digits == 32) return key;
  }
  for (std::uint64_t& word : key) word = transport::random_number();
  return key;
}

// Whether a peer at `other` may have packets sent to the endpoint: same address, or both on this host.
[[nodiscard]] bool are_together(const Endpoint& endpoint, const Endpoint& other) {
  return endpoint.address == other.address || (transport::is_of_this_host(endpoint) && transport::is_of_this_host(other));
}

[[nodiscard]] Error unproved_rank(const std::string& rank, const Endpoint& endpoint) {
  return Error(ErrorCode::refused,
               rank + "'s data endpoint " + transport::to_string(endpoint) +
                   " has not been probed: nothing shows that it receives what is sent there. Are addresses "
                   "translated on the way, or was the switch's host started again?");
}

void check_daemon(const Endpoint& endpoint, const control::Caller& caller) {
  if (caller.daemon || endpoint.port == 0 || are_together(endpoint, transport::resolve(caller.address))) return;
  throw Error(ErrorCode::refused, "nothing shows that " + transport::to_string(endpoint) +
                                      " receives what is sent there, as it is not where " + caller.address +
                                      " is, which tells of the job: give both --daemon-token-file");
}

[[nodiscard]] std::uint64_t cookie_at(std::span<const std::uint64_t> cookies, std::size_t lane) {
  return lane < cookies.size() ? cookies[lane] : 0;
}

// To which the switch's lane will send.
[[nodiscard]] std::vector<Endpoint> destinations(const session::TreeInstallation& installation, std::size_t lane) {
  std::vector<Endpoint> all;
  if (installation.start.protocol == session::netreduce_rules().name) {
    for (const netreduce::TunnelRoute& route : session::tunnel_ring(installation, lane).routes) all.push_back(route.to);
  } else {
    const switchml::SwitchJobConfig config = session::switchml_job(installation, lane);
    for (const switchml::Member& member : config.members) all.push_back(member.endpoint);
    all.push_back(*config.tree->parent);
  }
  return all;
}

void check_lane(const session::TreeInstallation& installation, std::size_t lane, const control::Caller& caller,
                const EndpointCookies& cookies) {
  const session::StartJob& start = installation.start;
  for (const Endpoint& to : destinations(installation, lane)) {
    const auto is_it = [&](const auto& lanes) { return lanes.at(lane) == to; };
    const auto rank = std::find_if(start.endpoints.begin(), start.endpoints.end(), is_it) - start.endpoints.begin();
    const bool daemon =
        is_it(installation.root) || std::any_of(installation.switches.begin(), installation.switches.end(), is_it);
    const auto number = static_cast<std::size_t>(rank);
    if (daemon) {
      check_daemon(to, caller);
    } else if (number >= start.switch_cookies.size() || cookie_at(start.switch_cookies[number], lane) != cookies.of(to)) {
      throw unproved_rank("rank " + std::to_string(number), to);
    }
  }
}

}  // namespace

EndpointCookies cookies_of(const std::string& listen, const std::string& daemon_token) {
  const SipKey boot = key_of_this_boot();
  const std::string text = "cookies of " + listen + " " + daemon_token + " ";
  const auto half = [&](char which) {
    const std::string message = text + which;
    return siphash(boot, std::as_bytes(std::span(message)));
  };
  return EndpointCookies({half('0'), half('1')});
}

std::string check_endpoints(const session::JoinRequest& request, const EndpointCookies& cookies) {
  for (std::size_t lane = 0; lane < request.endpoints.size(); ++lane) {
    const Endpoint& endpoint = request.endpoints[lane];
    // Packets without a seal are believed of near ranks: no other host can send from the loopback device.
    if (request.near && !transport::is_loopback(endpoint)) {
      return "rank " + std::to_string(request.rank) + " says that its packets need no keys, and " +
             transport::to_string(endpoint) + " is not of the loopback device: another host can send from there";
    }
    if (cookie_at(request.cookies, lane) == cookies.of(endpoint)) continue;
    return unproved_rank("rank " + std::to_string(request.rank), endpoint).what();
  }
  return "";
}

void check_endpoints(const session::Installation& installation, const control::Caller& caller,
                     const EndpointCookies& cookies) {
  for (const auto& lane : installation.lanes) {
    check_daemon(lane.parent, caller);
    for (const auto& child : lane.children) {
      if (child.is_switch) {
        check_daemon(child.endpoint, caller);
      } else if (child.cookie != cookies.of(child.endpoint)) {
        throw unproved_rank(child.ranks.size() == 1 ? "rank " + std::to_string(child.ranks.front()) : "a rank",
                            child.endpoint);
      }
    }
  }
}

void check_endpoints(const session::TreeInstallation& installation, const control::Caller& caller,
                     const EndpointCookies& cookies) {
  for (std::size_t lane = 0; lane < installation.root.size(); ++lane) check_lane(installation, lane, caller, cookies);
}

void check_bumps(const session::TreeInstallation& installation, const control::Caller& caller) {
  for (const netreduce::TunnelRoute& route : session::bump_ring(installation).routes) check_daemon(route.to, caller);
}

void check_lanes(const std::vector<Endpoint>& lanes, const Endpoint& control) {
  for (const Endpoint& lane : lanes) {
    if (are_together(lane, control)) continue;
    throw Error(ErrorCode::refused, "its data socket " + transport::to_string(lane) +
                                        " is not at the address where it was called: nothing shows that it receives what is "
                                        "sent there");
  }
}

}  // namespace netsum::daemon
