#include "daemon/ring_settings.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "daemon/connection_file.h"
#include "daemon/data_sockets.h"
#include "netsum/error.h"
#include "protocol/netreduce/learned_racks.h"
#include "protocol/netreduce/ring_text.h"
#include "transport/system/random.h"

namespace netsum::daemon {

using netreduce::HostAddress;
using netreduce::RingConfig;

namespace {

void check_racks(const BumpOptions& options, const std::string& text, const RingConfig& ring) {
  const auto refuse = [&](const std::string& why) { throw Error(ErrorCode::bad_argument, "ring '" + text + "': " + why); };
  if (!options.rack && options.rack_bumps.empty()) {
    refuse("racks= needs --rack and --root at a rack's bump, and --rack-bumps at the root");
  }
  const std::string racks = std::to_string(ring.racks.size()) + " racks";
  if (options.rack && *options.rack >= ring.racks.size()) {
    refuse("it has " + racks + ", and --rack " + std::to_string(*options.rack) +
           " is not below that: racks are numbered from 0");
  }
  if (!options.rack_bumps.empty() && options.rack_bumps.size() != ring.racks.size()) {
    refuse("it has " + racks + ", and --rack-bumps names " + std::to_string(options.rack_bumps.size()) + " bumps");
  }
}

// Empty: it is.
std::string why_not_here(const BumpOptions& options, const RingConfig& ring) {
  if (options.rack && !ring.racks.empty() && ring.racks[*options.rack] == 0) return "it has no rank in this rack";
  if (!options.rack_bumps.empty() && !netreduce::spans_racks(ring))
    return "all its ranks are in one rack, and the bump of that rack needs no root";
  return "";
}

}  // namespace

std::vector<HostAddress> parse_hosts(const std::vector<std::string>& texts) {
  std::vector<HostAddress> hosts;
  for (const std::string& text : texts) {
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t comma = std::min(text.find(',', at), text.size());
      const std::string each = text.substr(at, comma - at);
      const auto address = parse_address(each);
      if (!address) throw Error(ErrorCode::bad_argument, "'" + each + "' in --hosts is not an IPv4 or IPv6 address");
      hosts.push_back(*address);
      at = comma + 1;
    }
  }
  return hosts;
}

std::vector<RingConfig> parse_rings(const BumpOptions& options, const std::vector<HostAddress>& hosts,
                                    const std::function<void(const std::string&)>& log) {
  if (!options.rings.empty() && hosts.empty() && options.rack_bumps.empty()) {
    throw Error(ErrorCode::bad_argument,
                "--ring requires --hosts with the addresses of the ring's hosts (--hosts 10.0.0.1,10.0.0.2): otherwise "
                "any host could end the ring");
  }
  std::vector<RingConfig> rings;
  std::map<std::pair<std::uint32_t, std::vector<std::byte>>, std::string> seen;  // ID and magic: how packets tell them apart
  for (const std::string& text : options.rings) {
    RingConfig ring = netreduce::parse_ring(text);
    const auto magic = std::span(ring.layout.magic).first(ring.layout.magic_bytes);
    const auto [other, is_new] = seen.try_emplace({ring.ring, {magic.begin(), magic.end()}}, text);
    if (!is_new) {
      throw Error(ErrorCode::bad_argument,
                  "rings '" + other->second + "' and '" + text + "' have the same id and magic: give each its own id=");
    }
    ring.incarnation = transport::random_number();
    if (!ring.racks.empty()) check_racks(options, text, ring);
    if (const std::string why = why_not_here(options, ring); !why.empty()) {
      log("ring " + std::to_string(ring.ring) + " is not summed here: " + why);
      continue;
    }
    rings.push_back(std::move(ring));
  }
  return rings;
}

void check_wiring(const BumpOptions& options) {
  check_threads(options.threads);
  if (options.one_arm && options.ports.empty()) {
    throw Error(ErrorCode::bad_argument, "--one-arm requires a port at the switch (--port eth:IFNAME), or several");
  }
  if (options.racks && options.listen.empty()) {
    throw Error(ErrorCode::bad_argument, "--racks requires --listen, the address to which bumps of other racks send");
  }
  if (options.rack.has_value() != !options.root.empty()) {
    throw Error(ErrorCode::bad_argument, "--rack needs --root, the address of the bump above, and --root needs --rack");
  }
  if (options.rack && !options.rack_bumps.empty()) {
    throw Error(ErrorCode::bad_argument, "--rack and --rack-bumps exclude each other: the root is not the bump of a rack");
  }
  if ((options.rack || !options.rack_bumps.empty()) && !options.racks) {
    throw Error(ErrorCode::bad_argument, "--rack and --rack-bumps need --racks");
  }
  if (!options.one_arm && options.ports.size() < 2 && !(options.racks && options.ports.empty())) {
    throw Error(
        ErrorCode::bad_argument,
        "a bump in the wire requires at least two ports: pass --port eth:IFNAME or --port qemu:LOCAL,REMOTE for each");
  }
}

void check_hosts(const RingConfig& ring, const std::vector<HostAddress>& hosts) {
  if (hosts.empty()) return;
  for (const netreduce::Line& line : ring.lines) {
    if (line.way == netreduce::Way::child) continue;
    const HostAddress& host = line.way == netreduce::Way::arriving ? line.connection.destination : line.connection.source;
    if (std::find(hosts.begin(), hosts.end(), host) != hosts.end()) continue;
    throw Error(ErrorCode::refused,
                "--hosts of this bump does not name " + to_string(host) + ", the address of a rank: add it");
  }
}

}  // namespace netsum::daemon
