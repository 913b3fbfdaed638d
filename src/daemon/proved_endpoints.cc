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
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/system/random.h"
#include "transport/system/socket.h"

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
  return Error(ErrorCode::refused, rank + "'s data endpoint " + transport::to_string(endpoint) +
                                       " has not been probed, so the switch cannot know that the rank receives there. Are "
                                       "addresses translated on the way, or was the switch restarted without --state?");
}

void check_daemon(const Endpoint& endpoint, const control::Caller& caller) {
  if (caller.daemon || endpoint.port == 0 || are_together(endpoint, transport::resolve(caller.address))) return;
  throw Error(ErrorCode::refused, "data endpoint " + transport::to_string(endpoint) + " is not at " + caller.address +
                                      ", the daemon that installs the job: this switch cannot know that the endpoint "
                                      "receives packets; give both daemons the same --daemon-token-file");
}

[[nodiscard]] std::uint64_t cookie_at(std::span<const std::uint64_t> cookies, std::size_t lane) {
  return lane < cookies.size() ? cookies[lane] : 0;
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
      return "rank " + std::to_string(request.rank) + " asks for packets without keys, but " +
             transport::to_string(endpoint) + " is not a loopback address: another host could send from it";
    }
    if (cookie_at(request.cookies, lane) == cookies.of(endpoint)) continue;
    return unproved_rank("rank " + std::to_string(request.rank), endpoint).what();
  }
  return "";
}

void check_destinations(const std::vector<session::Destination>& destinations, const control::Caller& caller,
                        const EndpointCookies& cookies) {
  for (const session::Destination& each : destinations) {
    if (each.rank.empty()) {
      check_daemon(each.to, caller);
    } else if (each.cookie != cookies.of(each.to)) {
      throw unproved_rank(each.rank, each.to);
    }
  }
}

void check_lanes(const std::vector<Endpoint>& lanes, const Endpoint& control) {
  for (const Endpoint& lane : lanes) {
    if (are_together(lane, control)) continue;
    throw Error(ErrorCode::refused,
                "its data socket " + transport::to_string(lane) +
                    " is not at the address of its control port: this daemon cannot know that it receives packets there");
  }
}

}  // namespace netsum::daemon
