// NUMA: which of this host's CPUs and memory are near a network interface, as /sys tells. SwitchML's workers keep threads
// and memory on the network card's node (appendix B). What /sys does not tell, and hosts of one node, are unknown: no error.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace netsum::transport {

inline constexpr std::uint32_t most_nodes = 1024;  // the kernel's own limit

// From a list of the kernel's, as in "0-3,8-11": each range's first and last. Empty: it is no such list.
using Ranges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
[[nodiscard]] Ranges parse_ranges(std::string_view list);
[[nodiscard]] bool contains(const Ranges& ranges, std::uint32_t number);

// The node that the interface's device is at; of a VLAN, a bond or a bridge: that of all devices below it.
[[nodiscard]] std::optional<std::uint32_t> node_of(const std::string& interface, const std::filesystem::path& sys = "/sys");

// Its CPUs, as such a list; empty: unknown, or it has none.
[[nodiscard]] std::string cpu_list_of(std::uint32_t node, const std::filesystem::path& sys = "/sys");

// The node's CPUs first, else in the order they have.
[[nodiscard]] std::vector<std::uint32_t> near_first(std::vector<std::uint32_t> cpus, std::optional<std::uint32_t> node,
                                                    const std::filesystem::path& sys = "/sys");

// While it lives, pages that this thread touches first, and those of threads that it creates, are the node's, as long as it
// has free ones. For memory that is made by another thread than the pinned one. Without a node, or where the kernel refuses:
// no effect.
class MemoryOf {
 public:
  explicit MemoryOf(std::optional<std::uint32_t> node);
  ~MemoryOf();
  MemoryOf(const MemoryOf&) = delete;
  MemoryOf& operator=(const MemoryOf&) = delete;

 private:
  using Nodes = std::array<unsigned long, most_nodes / 64>;
  bool changed_ = false;
  int mode_before_ = 0;
  Nodes before_{};
};

}  // namespace netsum::transport
