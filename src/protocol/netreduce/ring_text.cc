#include "protocol/netreduce/ring_text.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "base/numbers.h"
#include "netsum/error.h"

namespace netsum::netreduce {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::bad_argument, "ring '" + text + "': " + why);
}

std::uint32_t number(const std::string& text, std::string_view key, std::string_view value) {
  const auto parsed = parse_number<std::uint32_t>(value);
  if (!parsed) refuse(text, "'" + std::string(value) + "' is not a number for " + std::string(key));
  return *parsed;
}

std::vector<std::uint32_t> racks(const std::string& text, std::string_view key, std::string_view value) {
  std::vector<std::uint32_t> ranks;
  while (true) {
    const std::size_t colon = std::min(value.find(':'), value.size());
    ranks.push_back(number(text, key, value.substr(0, colon)));
    if (colon == value.size()) return ranks;
    value.remove_prefix(colon + 1);
  }
}

DType dtype(const std::string& text, std::string_view value) {
  for (const DType each : {DType::float32, DType::int32, DType::float16, DType::bfloat16}) {
    if (value == to_string(each)) return each;
  }
  refuse(text, "dtype must be float32, int32, float16 or bfloat16, not '" + std::string(value) + "'");
}

}  // namespace

RingConfig parse_ring(const std::string& text) {
  RingConfig ring;
  std::set<std::string_view> seen;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) refuse(text, "'" + std::string(part) + "' is not KEY=VALUE");
    const std::string_view key = part.substr(0, equals), value = part.substr(equals + 1);
    if (!seen.insert(key).second) refuse(text, std::string(key) + " is given twice");
    if (key == "id") {
      ring.ring = number(text, key, value);
    } else if (key == "ranks") {
      ring.members = number(text, key, value);
    } else if (key == "packets") {
      ring.message_packets = number(text, key, value);
    } else if (key == "window") {
      ring.window = number(text, key, value);
    } else if (key == "mtu") {
      ring.mtu = number(text, key, value);
    } else if (key == "dtype") {
      ring.dtype = dtype(text, value);
    } else if (key == "layout") {
      std::string layout(value);
      if (layout != wire::netreduce::netsum_layout.name && layout != wire::netreduce::nrtv_layout.name &&
          layout.find('=') == std::string::npos) {
        refuse(text, "unknown layout '" + layout + "': use netsum, nrtv or fields (magic=HEXBYTES@OFFSET;ring=...)");
      }
      std::replace(layout.begin(), layout.end(), ';', ',');
      try {
        ring.layout = wire::netreduce::parse_layout(layout);
      } catch (const Error& error) {
        refuse(text, error.what());
      }
    } else if (key == "order") {
      if (value != "ring" && value != "arrival")
        refuse(text, "order must be ring or arrival, not '" + std::string(value) + "'");
      ring.order = value == "ring" ? Order::ring : Order::arrival;
    } else if (key == "racks") {
      ring.racks = racks(text, key, value);
    } else {
      refuse(text,
             "unknown key '" + std::string(key) + "': use id, ranks, racks, packets, window, mtu, dtype, layout or order");
    }
  }
  if (!seen.contains("ranks")) refuse(text, "the number of ranks is missing (ranks=N)");
  if (const std::string error = check(ring); !error.empty()) refuse(text, error);
  return ring;
}

}  // namespace netsum::netreduce
