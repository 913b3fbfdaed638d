// Which switches (or parameter servers) a job has, as people write it.
#pragma once

#include <string>
#include <vector>

namespace netsum::transport {

// "HOST:PORT[,...]". In the place of an address there may be
//   srv:NAME   the service records of that name in DNS, e.g. srv:_netsum._tcp.example.org
//   @FILE      the addresses in a file, one a line; what follows a # is not read
// All who ask the same get the same list, in the same order. What is neither comes back as it is: resolve() checks it.
// Throws Error: bad_argument (a file or a name that cannot be), unreachable (DNS has no such service, or does not answer).
[[nodiscard]] std::vector<std::string> switch_list(const std::string& text);

// The same where there is one: also throws bad_argument if it is several.
[[nodiscard]] std::string one_switch(const std::string& text);

// Whether switch_list() looks this up.
[[nodiscard]] bool is_looked_up(const std::string& address);

}  // namespace netsum::transport
