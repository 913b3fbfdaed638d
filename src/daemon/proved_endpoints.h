// Which endpoints a daemon's lanes may send to: those that have shown that they receive what comes from there. Otherwise
// whoever may join a job, or tell a switch of one, could have results sent to a third party, many for each packet of his
// own.
//
// A rank shows it by the cookie with which a lane answered its probe. Daemons do not probe each other: their endpoints are
// believed where they are at the address that a TCP connection has, and of callers that have the daemons' token.
#pragma once

#include <string>
#include <vector>

#include "base/endpoint_cookies.h"
#include "control/server.h"
#include "protocol/netreduce/tunnel.h"
#include "session/netreduce_job.h"
#include "session/registry.h"

namespace netsum::daemon {

// Nobody on another host knows their secret. It is the same after a restart, so that a switch which was restarted takes the
// cookies of ranks that are in the middle of a job; not after a reboot.
[[nodiscard]] EndpointCookies cookies_of(const std::string& listen, const std::string& daemon_token);

// Empty, or which endpoint of a rank that joins has not shown that it receives.
[[nodiscard]] std::string check_endpoints(const session::JoinRequest& request, const EndpointCookies& cookies);

// Of a job that another daemon tells of. Each throws Error: refused, which endpoint has not.
void check_endpoints(const session::Installation& installation, const control::Caller& caller,
                     const EndpointCookies& cookies);
void check_endpoints(const netreduce::TunnelRing& ring, const session::RingInstallation& installation, std::size_t lane,
                     const control::Caller& caller, const EndpointCookies& cookies);

// Of a daemon whose control connection is to an address. Throws Error: refused, which of its lanes is elsewhere.
void check_lanes(const std::vector<Endpoint>& lanes, const Endpoint& control);

}  // namespace netsum::daemon
