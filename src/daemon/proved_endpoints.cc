#include "daemon/proved_endpoints.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>

#include "netsum/error.h"
#include "session/switchml_job.h"
#include "transport/addresses.h"
#include "transport/interfaces.h"
#include "transport/random.h"
#include "transport/socket.h"

namespace netsum::daemon {
namespace {

[[nodiscard]] SipKey random_key() {
  SipKey key{};
  transport::random_bytes(std::as_writable_bytes(std::span(key)));
  return key;
}

// In a file that this user alone reads, drawn once. Daemons with the same folder may begin at the same time.
[[nodiscard]] SipKey key_in(const std::string& folder) {
  const std::string path = folder + "/cookies";
  const auto fail = [&] {
    return Error(ErrorCode::bad_argument, "cannot keep a secret in '" + path + "': " + transport::errno_text());
  };
  std::error_code ignored;  // open() says what is wrong
  std::filesystem::create_directories(folder, ignored);
  const transport::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.number() < 0 || ::flock(file.number(), LOCK_EX) != 0) throw fail();
  SipKey key{};
  if (::pread(file.number(), key.data(), sizeof key, 0) == sizeof key) return key;
  key = random_key();
  if (::pwrite(file.number(), key.data(), sizeof key, 0) != sizeof key || ::fsync(file.number()) != 0) throw fail();
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
                   "translated on the way, or was the switch started again without --state?");
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

EndpointCookies cookies_of(const std::string& listen, const std::string& state) {
  if (state.empty()) return EndpointCookies(random_key());
  const SipKey kept = key_in(state);
  const auto half = [&](char which) {
    const std::string message = "cookies of " + listen + " " + which;
    return siphash(kept, std::as_bytes(std::span(message)));
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
