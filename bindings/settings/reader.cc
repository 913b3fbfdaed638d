#include "bindings/settings/reader.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/numbers.h"
#include "transport/addresses/switch_list.h"

namespace netsum::settings {

std::string from_environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

std::string stripped(const std::string& text) {
  constexpr std::string_view blanks = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(blanks);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool Reader::seconds(const std::string& name, std::chrono::milliseconds& duration, double least, double most) const {
  double given = 0;
  if (!number(name, given, least, most)) return false;
  duration = std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(given));
  return true;
}

std::vector<std::string> Reader::addresses(const std::string& name) const {
  std::vector<std::string> found;
  const std::string given = text(name);
  for (std::size_t at = 0; at <= given.size();) {
    const std::size_t comma = std::min(given.find(',', at), given.size());
    const std::string address = stripped(given.substr(at, comma - at));
    at = comma + 1;
    if (address.empty()) continue;
    if (transport::is_looked_up(address)) {  // by the ranks as they join
      found.push_back(address);
      continue;
    }
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0 || !parse_number<std::uint16_t>(address.substr(colon + 1), 1)) {
      throw bad(name + ": '" + address + "' is not HOST:PORT, srv:NAME or @FILE");
    }
    found.push_back(address);
  }
  return found;
}

}  // namespace netsum::settings
