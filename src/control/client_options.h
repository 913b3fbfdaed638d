// Where a daemon is, and what a caller shows it and wants to see of it.
#pragma once

#include <string>

namespace netsum::control {

struct ClientOptions {
  std::string address;  // host:port
  std::string token;
  std::string tls_ca;
  std::string daemon_token{};  // a daemon's, for other daemons
};

}  // namespace netsum::control
