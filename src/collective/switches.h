// The switches below an aggregator or a parameter server: reached when a job first needs them, and again after they were out
// of reach.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "control/client.h"
#include "netsum/error.h"
#include "session/protocol_rules.h"

namespace netsum::collective {

inline constexpr std::chrono::milliseconds switch_deadline{400};

// Any thread.
class Switches {
 public:
  struct Options {
    std::string token, tls_ca;
    std::string own;        // what this process is, for errors
    std::size_t lanes = 1;  // that it has, and each switch must have
  };
  explicit Switches(Options options) : options_(std::move(options)) {}

  // The data sockets of a switch. Throws Error.
  [[nodiscard]] std::vector<Endpoint> reach(const std::string& address);
  // Where packets of a placement's switches come from: [switch][lane]. One that cannot be reached has no such place, and
  // nothing comes from there.
  [[nodiscard]] std::vector<std::vector<Endpoint>> lanes_of(const session::Placement& placement);
  [[nodiscard]] session::SwitchEndpoint endpoints(const session::Placement& placement);
  // A process that listens on every address is reached at the one that its route to the switch has.
  [[nodiscard]] std::vector<Endpoint> own_endpoints(const std::vector<Endpoint>& lanes, const std::string& address);

  // Calls what(client) with the switch's control channel. One that does not answer may come back at other ports, and be
  // reached sooner anew.
  template <class What>
  auto ask(const std::string& address, const What& what) {
    try {
      static_cast<void>(reach(address));
      return what(*client_of(address));
    } catch (const Error&) {
      forget(address);
      throw;
    }
  }
  void uninstall(const std::string& address, std::uint64_t epoch);

 private:
  struct Switch {
    std::shared_ptr<control::Client> client;
    std::vector<Endpoint> lanes;
  };
  [[nodiscard]] std::shared_ptr<control::Client> client_of(const std::string& address);
  void forget(const std::string& address);

  const Options options_;
  std::map<std::string, Switch> switches_;
  std::mutex mutex_;
};

}  // namespace netsum::collective
