#include "protocol/netreduce/bridge.h"

#include <algorithm>
#include <bit>

#include "netsum/error.h"
#include "wire/ethernet.h"

namespace netsum::netreduce {
namespace {

using wire::ethernet::header_bytes;
using wire::ethernet::tag_bytes;

constexpr std::uint64_t group_bit = std::uint64_t{1} << 40;  // in an address as a number

std::uint64_t number_at(std::span<const std::byte> frame, std::size_t offset, std::size_t bytes) {
  std::uint64_t value = 0;
  for (const std::byte byte : frame.subspan(offset, bytes)) value = value << 8 | std::to_integer<std::uint64_t>(byte);
  return value;
}

// The network of a frame, in the bits above an address: its outermost tag's VLAN, with customer and provider tags kept
// apart. The same address may be at different ports in different VLANs (802.1Q: independent learning). Untagged frames and
// frames of VLAN 0, which carries only a priority, are in the same network.
std::uint64_t network_of(std::span<const std::byte> frame) {
  const std::uint64_t type = number_at(frame, 12, 2);
  const bool provider = type == wire::ethernet::provider_vlan;
  if ((type != wire::ethernet::vlan && !provider) || frame.size() < header_bytes + tag_bytes) return 0;
  const std::uint64_t vlan = number_at(frame, 14, 2) & 0xfff;
  return vlan == 0 ? 0 : (vlan | std::uint64_t{provider} << 12) << 48;
}

}  // namespace

Bridge::Bridge(const BridgeConfig& config)
    : count_(config.ports.size()),
      max_age_(config.max_age),
      one_arm_(config.one_arm),
      table_(std::bit_ceil(std::max(config.addresses, ways))) {
  for (auto port = config.ports.begin(); port != config.ports.end(); ++port) {
    if (std::find(config.ports.begin(), port, *port) != port) {
      throw Error(ErrorCode::bad_argument, "a bridge was given the same port twice");
    }
  }
  ports_.reserve(2 * count_);
  for (int copy = 0; copy < 2; ++copy) ports_.insert(ports_.end(), config.ports.begin(), config.ports.end());
}

// Frames to the link-local group addresses (01:80:c2:00:00:00 to 0f: spanning tree, pause, LACP, 802.1X, LLDP), which a
// bridge that speaks those protocols keeps, are forwarded like any other group's: this bridge acts as a wire, through which
// a host and the switch behind it still authenticate, aggregate and discover each other. It is also the safest for spanning
// tree: a switch receives its own frames through a loop that contains this bridge, and cuts the loop.
std::span<const Endpoint> Bridge::route(std::span<const std::byte> frame, const Endpoint& source, Time now) {
  const auto ports = std::span(ports_).first(count_);
  const auto from = static_cast<std::size_t>(std::find(ports.begin(), ports.end(), source) - ports.begin());
  if (from == count_) {
    ++counters_.no_such_port;
    return {};
  }
  if (frame.size() < header_bytes) {
    ++counters_.malformed;
    return {};
  }
  const std::uint64_t network = network_of(frame);
  const std::uint64_t destination = number_at(frame, 0, 6), sender = number_at(frame, 6, 6);
  if (one_arm_) {
    const bool group = (destination & group_bit) != 0;
    ++(group ? counters_.filtered : counters_.forwarded);
    return ports.subspan(from, group ? 0 : 1);
  }
  // A group address or zero is no valid source: the frame is forwarded, but nothing is learned from it.
  if ((sender & group_bit) == 0 && sender != 0) learn(network | sender, static_cast<std::uint32_t>(from), now);

  if ((destination & group_bit) == 0) {
    const std::uint64_t key = network | destination;
    for (const Entry& entry : set_of(key)) {
      if (entry.key != key || !alive(entry, now)) continue;
      if (entry.port == from) {
        ++counters_.filtered;
        return {};
      }
      ++counters_.forwarded;
      return ports.subspan(entry.port, 1);
    }
  }
  ++counters_.flooded;
  return std::span(ports_).subspan(from + 1, count_ - 1);
}

std::span<Bridge::Entry> Bridge::set_of(std::uint64_t key) {
  const std::uint64_t mixed = key * 0x9e3779b97f4a7c15ULL;
  const std::size_t set = static_cast<std::size_t>(mixed >> 32) & (table_.size() / ways - 1);
  return std::span(table_).subspan(set * ways, ways);
}

// Known addresses stay while they are active: a flood of invented addresses finds no room, and evicts none.
void Bridge::learn(std::uint64_t key, std::uint32_t port, Time now) {
  Entry* room = nullptr;
  for (Entry& entry : set_of(key)) {
    if (entry.key == key) {
      if (entry.port != port && alive(entry, now)) ++counters_.moved;
      entry.seen = now;
      entry.port = port;
      return;
    }
    if (room == nullptr && !alive(entry, now)) room = &entry;
  }
  if (room == nullptr) {
    ++counters_.not_learned;
    return;
  }
  *room = {key, now, port};
}

std::size_t Bridge::known(Time now) const {
  return static_cast<std::size_t>(
      std::count_if(table_.begin(), table_.end(), [&](const Entry& entry) { return alive(entry, now); }));
}

}  // namespace netsum::netreduce
