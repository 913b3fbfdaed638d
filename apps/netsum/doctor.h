// What `netsum doctor` finds. Each check is about one thing and changes nothing; checks that need a switch ask one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"

namespace netsum::app {

struct Finding {
  enum class Level : std::uint8_t {
    good,
    advice,  // works, and could be faster
    wrong,   // jobs will fail, or crawl
  };
  std::string name;  // "mtu", "firewall", ...
  Level level = Level::good;
  std::string what;
  std::string fix{};  // commands; empty: nothing to do
};
using Findings = std::vector<Finding>;

// This host: kernel settings, processors, and the interface with this address, or all that are up.
void check_settings(Findings& findings);
void check_interfaces(const std::optional<Endpoint>& local, Findings& findings);
[[nodiscard]] std::string interface_with(const Endpoint& local);  // the name of that which has this address
// What else than sockets would work here: XDP, verbs, multicast, shared memory.
void check_data_paths(Findings& findings);

// Each certificate's dates. `name`: of the flag, for the finding. Throws UsageError: the file cannot be read.
void check_certificate_file(const std::string& path, const std::string& name, Findings& findings);
// The one that a daemon shows, whoever signed it: its dates, and whether it names the address.
void check_certificate_of(const std::string& address, const std::string& ca, Findings& findings);  // ca: a PEM file

struct SwitchToAsk {
  std::string address, token, tls_ca;
};
// Whether it answers on TCP and on each UDP port, how long packets may be, and what throughput to expect. Returns this
// host's address on the way there.
std::optional<Endpoint> check_switch(const SwitchToAsk& asked, Findings& findings);

}  // namespace netsum::app
