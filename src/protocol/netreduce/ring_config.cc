#include "protocol/netreduce/ring_config.h"

#include <algorithm>
#include <numeric>

#include "wire/roce.h"

namespace netsum::netreduce {

std::uint32_t roomy_window(std::uint32_t messages, std::uint32_t message_packets) {
  const std::uint32_t most = std::min(wire::netreduce::max_window, most_buffers / 2 / std::max(1U, message_packets));
  return std::max(messages, std::min(most, (3 * messages + 3) / 2));
}

std::string check(const RingConfig& config) {
  const auto between = [](const char* what, std::uint64_t value, std::uint64_t least, std::uint64_t most) -> std::string {
    if (value >= least && value <= most) return "";
    return std::string(what) + " " + std::to_string(value) + " is not between " + std::to_string(least) + " and " +
           std::to_string(most);
  };
  for (const std::string& error :
       {between("ring size", config.members, 1, wire::netreduce::max_workers),
        between("window", config.window, 1, wire::netreduce::max_window),
        between("message length", config.message_packets, 1, wire::netreduce::max_message_packets),
        between("MTU", config.mtu, 256, config.tunnelled ? wire::roce::max_tunnel_mtu : wire::roce::max_mtu)}) {
    if (!error.empty()) return error;
  }
  if (!(config.tunnelled ? wire::roce::is_tunnel_mtu(config.mtu) : wire::roce::is_path_mtu(config.mtu))) {
    return "MTU " + std::to_string(config.mtu) + " is not a path MTU of RoCE: use 256, 512, 1024, 2048 or 4096";
  }
  const std::uint32_t message_bytes = config.layout.message.bytes;
  if (message_bytes < 4 && std::uint64_t{4} * config.window > std::uint64_t{1} << (8 * message_bytes)) {
    return "message IDs of " + std::to_string(message_bytes) + " bytes are too short to distinguish four windows of " +
           std::to_string(config.window) + " messages";
  }
  if (!config.racks.empty() && std::accumulate(config.racks.begin(), config.racks.end(), 0ULL) != config.members) {
    return "the racks do not have " + std::to_string(config.members) + " ranks in total";
  }
  if (!config.connections.empty() && config.connections.size() != config.members) {
    return std::to_string(config.connections.size()) + " connections for " + std::to_string(config.members) + " members";
  }
  if (config.lines.empty() && config.uplink) return "a switch has an uplink, and no lines below it";
  if (!config.lines.empty()) {
    if (!config.connections.empty()) return "a ring has both connections and lines of a tree of switches";
    if (std::all_of(config.lines.begin(), config.lines.end(), [](const Line& line) { return line.way == Way::arriving; })) {
      return "a switch of a tree has no line that contributes";
    }
    for (const Line& line : config.lines) {
      if (line.repair && line.way == Way::child) return "a line from a switch below cannot be asked for single packets";
      if (line.repair && line.way != Way::leaving && !line.answers)
        return "a line is asked for single packets, and the connection of these requests is not known";
      if (line.ranks.empty()) return "a line has no rank";
      if (!line.ranks.minus(RankSet::first(config.members)).empty()) return "a line has a rank that is not in the ring";
    }
  }
  static_assert(most_buffers <= (wire::roce::psn_mask + 1) / 4);
  if (std::uint64_t{2} * config.window * config.message_packets > most_buffers) {
    return "two windows of " + std::to_string(config.window) + " messages of " + std::to_string(config.message_packets) +
           " packets are too many for 24-bit packet sequence numbers";
  }
  return "";
}

}  // namespace netsum::netreduce
