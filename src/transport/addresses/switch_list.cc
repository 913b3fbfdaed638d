#include "transport/addresses/switch_list.h"

#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "base/numbers.h"
#include "netsum/error.h"
#include "transport/addresses/service_records.h"
#include "transport/system/socket.h"

namespace netsum::transport {
namespace {

constexpr const char* service_prefix = "srv:";
constexpr std::size_t longest_file = std::size_t{1} << 20;

Error bad(const std::string& text) {
  return {ErrorCode::bad_argument, text};
}

std::string stripped(const std::string& text) {
  constexpr const char* blanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

std::vector<std::string> in_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(longest_file + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!file.is_open() || file.bad()) throw bad("cannot read the list of switches " + path + ": " + errno_text());
  if (text.size() > longest_file) throw bad("the list of switches " + path + " is larger than 1 MiB");
  std::vector<std::string> found;
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string address = stripped(line.substr(0, line.find('#')));
    if (address.empty()) continue;
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0 || !parse_number<std::uint16_t>(address.substr(colon + 1), 1) ||
        address.find_first_of(" \t,") != std::string::npos) {
      throw bad(path + ":" + std::to_string(number) + ": '" + address + "' is not HOST:PORT (one address per line)");
    }
    found.push_back(address);
  }
  if (found.empty()) throw bad("the list of switches " + path + " contains no address");
  return found;
}

// A thread's own resolver: as /etc/resolv.conf has it, but with less patience than the default's half a minute.
class Resolver {
 public:
  Resolver() : good_(res_ninit(&state_) == 0) {
    state_.retrans = 2;
    state_.retry = 2;
  }
  ~Resolver() {
    if (good_) res_nclose(&state_);
  }
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // What DNS says; empty: see why().
  std::vector<std::uint8_t> services(const std::string& name) {
    std::vector<std::uint8_t> answer(std::size_t{1} << 16);
    const int length =
        good_ ? res_nquery(&state_, name.c_str(), C_IN, T_SRV, answer.data(), static_cast<int>(answer.size())) : -1;
    answer.resize(length < 0 ? 0 : std::min(static_cast<std::size_t>(length), answer.size()));
    return answer;
  }
  [[nodiscard]] std::string why() const {
    if (!good_) return "/etc/resolv.conf cannot be used";
    switch (state_.res_h_errno) {
      case HOST_NOT_FOUND:
        return "there is no such name";
      case NO_DATA:
        return "the name has no service records";
      default:
        return "no server of /etc/resolv.conf answered";
    }
  }

 private:
  struct __res_state state_ {};
  const bool good_;
};

std::vector<std::string> in_dns(const std::string& name) {
  if (name.empty() || name.size() > 255 || name.find_first_of(std::string(" \t\r\n:/\0", 7)) != std::string::npos) {
    throw bad("'" + std::string(service_prefix) + name + "' is not a valid service name: use srv:_netsum._tcp.DOMAIN");
  }
  Resolver resolver;
  const std::vector<std::uint8_t> answer = resolver.services(name);
  const auto unreachable = [&](const std::string& why) {
    return Error(ErrorCode::unreachable,
                 "cannot find switches in DNS at " + name + ": " + why + " (check with: dig SRV " + name + ")");
  };
  if (answer.empty()) throw unreachable(resolver.why());
  const auto records = service_records(answer);
  if (!records) throw unreachable("the answer is malformed");
  if (records->empty()) throw unreachable("the service is declared absent");
  std::vector<std::string> found;
  found.reserve(records->size());
  for (const ServiceRecord& record : *records) found.push_back(record.host + ":" + std::to_string(record.port));
  return found;
}

}  // namespace

bool is_looked_up(const std::string& address) {
  return address.starts_with(service_prefix) || address.starts_with('@');
}

std::vector<std::string> switch_list(const std::string& text) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    at = comma + 1;
    if (part.empty()) continue;
    if (is_looked_up(part)) {
      const auto more =
          part.front() == '@' ? in_file(part.substr(1)) : in_dns(part.substr(std::string(service_prefix).size()));
      found.insert(found.end(), more.begin(), more.end());
    } else {
      found.push_back(part);
    }
  }
  return found;
}

std::string one_switch(const std::string& text) {
  if (!is_looked_up(text)) return text;
  const std::vector<std::string> found = switch_list(text);
  if (found.size() == 1) return found.front();
  throw bad("'" + text + "' names " + std::to_string(found.size()) +
            " switches, but exactly one is required: give its HOST:PORT");
}

}  // namespace netsum::transport
