// Which endpoints a daemon's lanes may send to: those proved to receive the lanes' packets. Otherwise any caller that may
// join a job, or tell a switch of one, could have results sent to a third party, many for each packet sent.
//
// A rank's proof is the cookie with which a lane answered its probe. Daemons do not probe each other: their endpoints are
// believed if they are at the address of the TCP connection, or if the caller has the daemons' token.
#pragma once

#include <string>
#include <vector>

#include "base/endpoint_cookies.h"
#include "control/server.h"
#include "session/membership.h"
#include "session/switch_message.h"

namespace netsum::daemon {

// Nobody else knows their secret. With `state`, a folder, it is the same after a restart, so that a restarted switch accepts
// the cookies of ranks in the middle of a job. Throws Error: bad_argument, if nothing can be kept there.
[[nodiscard]] EndpointCookies cookies_of(const std::string& listen, const std::string& state);

// Empty, or the endpoint of a joining rank that is not proved.
[[nodiscard]] std::string check_endpoints(const session::JoinRequest& request, const EndpointCookies& cookies);

// For a job that another daemon tells of. Throws Error: refused, with the endpoint that is not proved.
void check_destinations(const std::vector<session::Destination>& destinations, const control::Caller& caller,
                        const EndpointCookies& cookies);

// For a daemon with a control connection to this address. Throws Error: refused, with the lane that is elsewhere.
void check_lanes(const std::vector<Endpoint>& lanes, const Endpoint& control);

}  // namespace netsum::daemon
