#include "transport/system/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>

namespace netsum::transport {
namespace {

using std::filesystem::path;

std::string first_line(const path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

bool has_several_nodes(const path& sys) {
  const Ranges online = parse_ranges(first_line(sys / "devices/system/node/online"));
  return online.size() > 1 || (online.size() == 1 && online.front().first != online.front().second);
}

// In /sys/class/net/IF. The device of a virtio card is a part of the one that has the node.
std::optional<std::uint32_t> node_at(const path& folder) {
  for (const char* const file : {"device/numa_node", "device/../numa_node"}) {
    const Ranges node = parse_ranges(first_line(folder / file));  // "-1": the firmware does not say
    if (node.size() == 1 && node.front().second < most_nodes) return node.front().first;
  }
  return std::nullopt;
}

}  // namespace

Ranges parse_ranges(std::string_view list) {
  Ranges ranges;
  const char *at = list.data(), *const end = at + list.size();
  const auto number = [&](std::uint32_t& value) {
    const auto [after, error] = std::from_chars(at, end, value);
    at = after;
    return error == std::errc();
  };
  while (true) {
    std::uint32_t first = 0;
    if (!number(first)) return {};
    std::uint32_t last = first;
    if (at != end && *at == '-' && (++at, !number(last) || last < first)) return {};
    ranges.emplace_back(first, last);
    if (at == end) return ranges;
    if (*at++ != ',') return {};
  }
}

bool contains(const Ranges& ranges, std::uint32_t number) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [number](const auto& range) { return range.first <= number && number <= range.second; });
}

std::optional<std::uint32_t> node_of(const std::string& interface, const path& sys) {
  if (interface.empty() || interface.find('/') != std::string::npos || !has_several_nodes(sys)) return std::nullopt;
  const path folder = sys / "class/net" / interface;
  if (const auto node = node_at(folder)) return node;
  std::optional<std::uint32_t> common;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("lower_")) continue;
    const auto node = node_of(name.substr(6), sys);
    if (!node || (common && common != node)) return std::nullopt;
    common = node;
  }
  return common;
}

std::string cpu_list_of(std::uint32_t node, const path& sys) {
  return first_line(sys / ("devices/system/node/node" + std::to_string(node)) / "cpulist");
}

std::vector<std::uint32_t> near_first(std::vector<std::uint32_t> cpus, std::optional<std::uint32_t> node, const path& sys) {
  if (!node) return cpus;
  const Ranges near = parse_ranges(cpu_list_of(*node, sys));
  std::stable_partition(cpus.begin(), cpus.end(), [&near](std::uint32_t cpu) { return contains(near, cpu); });
  return cpus;
}

MemoryOf::MemoryOf(std::optional<std::uint32_t> node) {
  if (!node || *node >= most_nodes ||
      ::syscall(SYS_get_mempolicy, &mode_before_, before_.data(), most_nodes, nullptr, 0) != 0) {
    return;
  }
  Nodes preferred{};
  preferred[*node / 64] = 1UL << (*node % 64);
  changed_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, preferred.data(), most_nodes + 1) == 0;  // it counts one more
}

MemoryOf::~MemoryOf() {
  if (changed_) ::syscall(SYS_set_mempolicy, mode_before_, before_.data(), most_nodes + 1);
}

}  // namespace netsum::transport
